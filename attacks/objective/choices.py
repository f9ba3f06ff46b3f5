"""Random choices of clients behind a mean: each client sends one of a few values per coordinate."""

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from bench.gradients import one_hot
from bench.trip import Description, Outcomes

Tensors = Mapping[str, Tensor]
_SUMS = 1 << 12  # largest number of the other clients' sums per coordinate
_PRECISION = 1e-5  # of a sum in single precision, relative to the sum of magnitudes
_SURE = 0.9  # least posterior probability of choices that show a value behind a mask
_CHUNK = 2048  # coordinates at once: 512 sums of them take 8 MiB


def few_sums(description: Description, others: Tensors) -> Outcomes | None:
    """Return the values that the other clients behind a mean (all but the victim) may send at each coordinate, with
    their probabilities. Return None if a client may send more than a few values per coordinate, or if the clients'
    messages have more than 4096 possible sums.

    - `description`: the defense's description.
    - `others`: the other clients' updates, name → (client, *shape)."""
    known = description.outcomes(others)
    if known is None:
        return None
    kinds, clients = next(iter(known.values.values())).shape[:2]
    return known if kinds**clients <= _SUMS else None


def flat(tensors: Tensors) -> Tensor:
    """Flatten and join a model's tensors to vectors in double precision: (outcome, row, coordinate). `tensors` are name
    → (outcome, row, *shape); an outcome is a possible value of a coordinate, a row is a client or a candidate."""
    return torch.cat([value.flatten(2) for value in tensors.values()], 2).double()


def all_sums(values: Tensor, chances: Tensor) -> tuple[Tensor, Tensor]:
    """List every possible sum over clients, for a defense with few possible values per coordinate. Return the sums and
    their probabilities, both (sum, coordinate).

    - `values` (outcome, client, coordinate): the possible values (outcomes) of each client.
    - `chances` (outcome, client, coordinate): their probabilities."""
    sums, weights = values.new_zeros(1, values.shape[-1]), values.new_ones(1, values.shape[-1])
    for client in range(values.shape[1]):
        sums = (sums[:, None] + values[:, client]).flatten(0, 1)
        weights = (weights[:, None] * chances[:, client]).flatten(0, 1)
    return sums, weights


def surprise(outcomes: Outcomes, total: Tensors, width: float, floor: Tensors) -> Tensor:
    """Return minus the log density (), up to a constant, for the sum over clients' messages with random choices, such
    as masks. A coordinate's density has a Gaussian for each possible sum; coordinates are independent. A wide Gaussian
    allows for errors in the clients' values.

    - `outcomes`: the clients' possible values, with probabilities.
    - `total`: the observed sum over clients, name → (*shape).
    - `width`: the Gaussians' deviation, relative to the root of the clients' summed expected squares. An infinite width
      gives a single Gaussian with the sum's mean and variance.
    - `floor`: variance added to each Gaussian in a tensor, name → ()."""
    lost = []
    for name, observed in total.items():
        values, chances = outcomes.values[name].flatten(2), outcomes.chances[name].flatten(2)
        y, squares = observed.flatten(), (chances * values.square()).sum(0)
        if width == torch.inf:
            means = (chances * values).sum(0)
            variance = (squares - means.square()).sum(0) + floor[name]
            lost.append(0.5 * ((y - means.sum(0)).square() / variance + variance.log()).sum())
        else:
            variance = width**2 * squares.sum(0).detach() + floor[name]
            lost.append(-_log_mixture(values.flatten(0, 1), chances.flatten(0, 1), y, variance, len(values)))
    return torch.stack(lost).sum()


def _log_mixture(values: Tensor, chances: Tensor, total: Tensor, variance: Tensor, kinds: int) -> Tensor:
    """Return Σ log Σ_s P(s) N(total; s, variance) over coordinates, with its derivatives by `values` and `chances`
    (outcome and client, coordinate). Autograd would keep an array for each step over all sums s."""
    which = _sums_of(kinds, len(values) // kinds).to(values)
    logs = chances.clamp_min(torch.finfo(chances.dtype).tiny).log()
    result, by_value, by_chance = values.new_zeros(()), torch.empty_like(values), torch.empty_like(values)
    with torch.no_grad():
        for at in torch.arange(len(total), device=values.device).split(_CHUNK):
            apart = total[at] - which @ values[:, at]
            score = which @ logs[:, at] - 0.5 * apart.square() / variance[at]
            most = score.amax(0)
            score = score.sub_(most).exp_()
            density = score.sum(0)
            score /= density
            result += (density.log() + most - 0.5 * variance[at].log()).sum()
            by_chance[:, at] = which.T @ score
            by_value[:, at] = which.T @ score.mul_(apart) / variance[at]
    moved = (by_value * values + by_chance * logs).sum()
    return result + moved - moved.detach()


@cache
def _sums_of(kinds: int, clients: int) -> Tensor:
    """Return the choices behind each sum, (sum, outcome and client): 1 for each client's outcome."""
    choices = torch.cartesian_prod(*[torch.arange(kinds)] * clients).reshape(-1, clients)
    return one_hot(choices, kinds, torch.float64).transpose(1, 2).flatten(1)


def rounding(values: Tensor, total: Tensor) -> Tensor:
    """Return a bound on the rounding error (coordinate,) when clients' values are summed in single precision: a
    possible sum within this distance explains the observed sum.

    - `values` (outcome, client, coordinate): the values (outcomes) that each client may send.
    - `total` (coordinate,): the sum."""
    return _PRECISION * (values.abs().amax(0).sum(0) + total.abs()).clamp_min(torch.finfo(torch.float32).tiny)


def first_message(description: Description, others: Outcomes, guesses: Tensors, observed: Tensors) -> dict[str, Tensor]:
    """Return the victim's most probable message if only a mean over clients is observed: name → (1, *shape). The victim
    is the first client. The defense gives few possible values per coordinate; the function takes the values with the
    largest posterior probability, jointly for the victim and for all other clients. For a random mask, a value counts
    as masked if no choice is probable enough.

    - `description`: the defense's description; it gives the few values that a client may send per coordinate.
    - `others`: the values that the other clients may send, with probabilities, from `few_sums`.
    - `guesses`: probable updates of the victim, name → (guess, *shape); their mean and variance are the prior for the
      victim's values.
    - `observed`: the mean, name → (1, *shape)."""
    own = description.outcomes(guesses)
    assert own is not None
    values, chances = flat(others.values), flat(others.chances)
    own_values, own_chances = flat(own.values), flat(own.chances).mean(1)
    centre, variance = own_values.mean(1), own_values.var(1)
    update = flat({name: value[None] for name, value in guesses.items()})[0].mean(0)
    total = (values.shape[1] + 1) * torch.cat([value.flatten() for value in observed.values()]).double()
    error = rounding(values, total)
    messages = []
    for at in torch.arange(len(total)).split(_CHUNK):
        sums, weights = all_sums(values[..., at], chances[..., at])
        spread = variance[:, at] + error[at].square()
        apart = total[at] - sums[:, None] - centre[:, at]
        score = (weights[:, None] * own_chances[:, at]).log() - 0.5 * (apart.square() / spread + spread.log())
        score = score.flatten(0, 1)
        best, sure = score.argmax(0), score.softmax(0).amax(0) >= _SURE
        chosen, kind = best // len(centre), best % len(centre)
        left = total[at] - sums.gather(0, chosen[None])[0]
        constant = variance[:, at] == 0  # such as the value 0 of a mask
        whole = (centre[:, at] - update[at]).abs() <= _PRECISION * update[at].abs()
        masked = (constant & (centre[:, at] == 0)).any(0) & whole.any(0)
        left = left.where(sure | ~masked, 0.0)
        kind = kind[None]
        messages.append(centre[:, at].gather(0, kind)[0].where(constant.gather(0, kind)[0], left))
    parts = torch.cat(messages).split([value.numel() for value in observed.values()])
    return {n: part.reshape(value.shape).to(value) for (n, value), part in zip(observed.items(), parts, strict=True)}
