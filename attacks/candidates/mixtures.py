"""Scores of candidates for mixed training examples: a Gaussian likelihood, fitted to simulated mixtures.

Used where the known examples span all inputs, so that no direction of the first layer's gradient belongs to the unknown
example alone.  Partners and shares of the mixtures stay secret; their effect on the reading is noise with a simulated
covariance."""

import numpy as np
import torch
from torch import Tensor

from bench.attacks.candidates.listed import candidates
from bench.gradients import group_gradients
from bench.rows import flattened
from bench.trip import Candidates, Description, Reading, Tensors

_SIMULATIONS = 1500  # readings from which the covariance comes
_HELD_OUT = 200  # further readings, by which the ridge is chosen
_DRAWS = 64  # mixing matrices over which a candidate's part of the reading is averaged
_RIDGES = (1e-3, 1e-2, 1e-1, 1.0)  # times the mean eigenvalue of the covariance
_ROUNDING = 1e-7  # share of the largest eigenvalue below which an eigenvalue is rounding
_PARALLEL = 6000  # examples in parallel


def by_mixtures(
    reading: Reading, observed: Tensors, known: Candidates, members: Tensor, rng: np.random.Generator
) -> Tensor:
    """Name the only unknown example behind a reading under mixup, if all other examples are known: return each
    candidate's log likelihood to be this example, (candidate,), up to a constant. The secret partners and mixing ratios
    count as Gaussian noise, with a covariance from simulated mixtures.

    - `reading`: the attacked reading, with a description that mixes examples, and with a gallery.
    - `observed`: the reading as a gradient, name → (1, *shape).
    - `known`: the known examples behind the reading, (1, example - 1), client after client; the unknown example's
      client is the first.
    - `members` (candidate,): positions of the candidates in the gallery.
    - `rng`: source of the simulation's draws."""
    description = reading.description
    assert description is not None
    inputs, targets = candidates(reading, members)
    x, y = known.inputs[0], known.targets[0]

    def gradients(mixed: Tensor, labels: Tensor) -> Tensor:
        return _vectors(group_gradients(reading.model, known.weights, mixed, labels))

    # Mixtures with the unknown example: its share, and the rest from known examples of the same client.
    matrices = _matrices(description, reading.examples, _DRAWS, rng)[:, 0]
    shares = matrices[matrices[..., 0] != 0].to(x)
    mates = shares.shape[1] - 1
    rests = [(shares[:, 1:] @ value[:mates].flatten(1)).unflatten(1, value.shape[1:]) for value in (x, y)]
    parts = []
    for some in zip(*(value.split(max(1, _PARALLEL // len(shares))) for value in (inputs, targets)), strict=True):
        own = [
            (shares[:, :1] * value.flatten(1)[:, None] + rest.flatten(1)).unflatten(2, value.shape[1:])
            for value, rest in zip(some, rests, strict=True)
        ]
        parts.append(gradients(*own))
    part = torch.cat(parts) * (len(shares) / _DRAWS / reading.examples)

    who = torch.from_numpy(rng.integers(len(members), size=_SIMULATIONS + _HELD_OUT))
    rows = []
    for chosen in who.split(max(1, _PARALLEL // reading.examples)):
        mixing = _matrices(description, reading.examples, len(chosen), rng).to(x)
        originals = [
            torch.cat([own[chosen][:, None], others.expand(len(chosen), *others.shape)], 1)
            for own, others in ((inputs, x), (targets, y))
        ]
        rows.append(gradients(*(_by_client(mixing, value) for value in originals)))
    simulated = torch.cat(rows) - part[who]
    mean, scale = simulated[:_SIMULATIONS].mean(0), simulated[:_SIMULATIONS].std(0)
    scale = scale.clamp_min(_ROUNDING * float(scale.max()))
    noise, part, seen = (simulated - mean) / scale, part / scale, (_vectors(observed) - mean) / scale
    variances, directions = _principal(noise[:_SIMULATIONS])
    readings = torch.cat([noise[_SIMULATIONS:] + part[who[_SIMULATIONS:]], seen])
    along, part_along = readings @ directions, part @ directions
    products, squares = readings @ part.T, part.square().sum(1)

    def likelihoods(ridge: float) -> Tensor:
        """Return -½ |reading - part|² in the metric of the noise, (reading, candidate), up to a constant of each
        reading."""
        gains = 1 / (variances + ridge) - 1 / ridge
        crossed = products / ridge + (along * gains) @ part_along.T
        return crossed - (squares / ridge + (part_along.square() * gains).sum(1)) / 2

    scored = [likelihoods(share * float(variances.mean())) for share in _RIDGES]
    best: Tensor = max(scored, key=lambda each: int((each[:-1].argmax(1) == who[_SIMULATIONS:]).sum()))[-1]
    return best


def _matrices(description: Description, examples: int, count: int, rng: np.random.Generator) -> Tensor:
    """Return random mixing matrices in a random batch order: (draw, client, mixture, original)."""
    batch = examples // description.senders
    drawn = description.mixing(batch, count * description.senders, int(rng.integers(2**32)))
    order = torch.from_numpy(rng.permuted(np.tile(np.arange(batch), (len(drawn), 1)), axis=1))
    shuffled: Tensor = drawn.gather(2, order[:, None].expand_as(drawn)).unflatten(0, (count, description.senders))
    return shuffled


def _by_client(mixing: Tensor, originals: Tensor) -> Tensor:
    """Return mixtures (draw, example, *shape) of `originals` (draw, example, *shape), client after client."""
    flat = originals.flatten(2).unflatten(1, mixing.shape[1:3])
    mixed: Tensor = (mixing @ flat).flatten(1, 2).unflatten(2, originals.shape[2:])
    return mixed


def _vectors(gradients: Tensors) -> Tensor:
    return flattened(dict(sorted(gradients.items())), 1)


def _principal(noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return variances (direction,) and directions (value, direction) of `noise` (row, value), without rounding."""
    of_values = noise.shape[1] < len(noise)
    values, vectors = torch.linalg.eigh((noise.T @ noise if of_values else noise @ noise.T).double() / len(noise))
    kept = values > _ROUNDING * values[-1]
    variances, vectors = values[kept].to(noise), vectors[:, kept].to(noise)
    return variances, vectors if of_values else noise.T @ vectors / (variances * len(noise)).sqrt()
