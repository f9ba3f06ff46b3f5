"""Search client by client behind a mean of quantised messages, which shows each message (`objective/separate.py`,
`objective/lattice.py`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from bench.attacks.labels.head import last_layer
from bench.attacks.labels.hypotheses import label_hypotheses
from bench.attacks.objective.lattice import Lattice, lattice
from bench.attacks.objective.mismatch import observations
from bench.attacks.objective.public import MOST, gradients_of, public_of
from bench.attacks.objective.separate import Floats, separate
from bench.rng import Key
from bench.rows import rows
from bench.trip import Budget, Clients, Description, Reading, Reconstruction

Search = Callable[[Reading, Budget], Reconstruction]
Messages = dict[str, Tensor]  # tensor name → (client, *shape)

_FIRST = 0.4  # of the evaluations: search by the messages of a single tensor
_LINKED = (
    0.6  # of the median cosine between candidates' gradients and messages: less for two clients marks a wrong tensor
)
_AXES = 60  # principal components of public gradients' directions
_SAMPLES = 100  # public examples of a label, behind mean and covariance
_WRONG = 0.2  # deviation of a column's energy by wrong integers, as a share
_AGAIN = 3  # choices of columns
_SHRUNK = 0.1  # weight of the covariance's diagonal
_NOTE = "the mean of quantised messages shows each client's message: searched client by client"


class Divided(Protocol):
    """A tensor of the mean, divided into the clients' messages."""

    @property
    def examples(self) -> int:
        """Number of public examples of each label that `by_class` needs."""

    def by_class(self, typical: list[Tensor]) -> Tensor | None:
        """Return the messages (client, *shape) in the order of `typical`: for each client, gradients of public examples
        with the client's label (example, *shape). None if the messages cannot be assigned."""

    def by_gradient(self, gradients: Tensor) -> tuple[Tensor, bool] | None:
        """Return the messages in the order of the candidates' `gradients`, both (client, *shape), and whether their
        cosines show the messages right. None if the messages cannot be assigned."""


def by_client(reading: Reading, budget: Budget, key: Key, search: Search) -> Reconstruction | None:
    """Attack a mean of quantised messages client by client: separate each client's message from the mean, then search
    the example behind each message. Return None if the messages are not quantised, if a client has several examples, or
    if a reading has several observations (repeated reports). A reading whose messages cannot be separated is searched
    as a whole.

    - `reading`: the batch of attacked means.
    - `budget`: limits of the attack.
    - `key`: draws the start of a search for labels.
    - `search`: attack on the messages, as a function of a reading and a budget.

    In each tensor, the messages have an unknown order; messages with several levels are known up to integer
    combinations. The gradients of public examples assign the largest tensor's messages to labels. A first search on
    these messages gives candidates, which assign the other tensors' messages."""
    clients = None if reading.description is None else reading.description.clients
    if clients is None or reading.senders != reading.examples or len(reading.rounds) > 1:
        return None
    labels = label_hypotheses(reading, observations(reading)[0], 1, key)[:, 0]
    results = []
    for row in range(len(reading)):
        one = reading.of([row])
        found = None
        if not bool((labels[row] < 0).any()):
            found = _searched(
                replace(one, labels=labels[row : row + 1]), clients, _divided(one, clients), budget, search
            )
        results.append(search(one, budget) if found is None else found)
    return joined(results)


def _divided(one: Reading, clients: Clients) -> dict[str, Divided]:
    """Return the tensors that show the messages, the largest tensor first. The last layer is left out: its steps are
    nearly equal for all clients."""
    divided: dict[str, Divided] = {}
    last = f"{last_layer(one)}."
    for name, value in sorted(one.values.items(), key=lambda item: -item[1].numel()):
        if name.startswith(last):
            continue
        mean = value.flatten().double().cpu().numpy()
        if clients.values == "levels":
            steps = lattice(mean, one.senders)
            if steps is not None:
                divided[name] = _Combined(steps=steps, alone=clients.alone, name=name, like=value[0, 0])
        else:
            each = separate(mean, one.senders, signs=clients.values == "signs")
            if each is not None:
                divided[name] = _Unordered(each=torch.from_numpy(each).to(value).unflatten(1, value.shape[2:]))
    return divided


def _searched(
    one: Reading, clients: Clients, divided: dict[str, Divided], budget: Budget, search: Search
) -> Reconstruction | None:
    assert one.labels is not None
    labels = one.labels[0]
    linked: Messages = {}
    for anchor in divided:
        typical = [
            gradients_of(one, *public_of(one, int(label), most=divided[anchor].examples))[anchor] for label in labels
        ]
        messages = divided[anchor].by_class(typical)
        if messages is not None:
            linked[anchor] = messages
            break
    if not linked:
        return None
    first = round(_FIRST * budget.evaluations)
    found = search(_of_clients(one, clients, linked), replace(budget, evaluations=first))
    gradients = gradients_of(one, found.inputs[:, 0], labels)
    for name, part in divided.items():
        chosen = part.by_gradient(gradients[name])
        if chosen is not None and chosen[1]:
            linked[name] = chosen[0]
    if len(linked) > 1:
        again = search(_of_clients(one, clients, linked), replace(budget, evaluations=budget.evaluations - first))
        found = replace(again, evaluations=again.evaluations + found.evaluations)
    return Reconstruction(
        inputs=found.inputs[:, 0][None],
        labels=one.labels.clone(),
        loss=found.loss.sum()[None],
        evaluations=found.evaluations.amax()[None],
        outer=found.outer.amax()[None],
        restarts=found.restarts.amax()[None],
        status=("ok" if all(word == "ok" for word in found.status) else "diverged",),
        notes=(*found.notes, f"{_NOTE}; tensors {', '.join(sorted(linked))}"),
    )


def _of_clients(one: Reading, clients: Clients, messages: Messages) -> Reading:
    """Return a reading for each client, with the tensors in `messages` only."""
    assert one.labels is not None
    return replace(
        one,
        values={name: value[:, None] for name, value in messages.items()},
        labels=one.labels.T.contiguous(),
        indices=tuple(one.indices[0] * one.senders + client for client in range(one.senders)),
        senders=1,
        description=clients.alone,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unordered:
    """Messages in an unknown order: signs or ternary values."""

    each: Tensor  # (client, *shape)
    examples: int = MOST

    def by_class(self, typical: list[Tensor]) -> Tensor:
        return _linked(torch.stack([gradients.mean(0) for gradients in typical]), self.each)[0]

    def by_gradient(self, gradients: Tensor) -> tuple[Tensor, bool]:
        return _linked(gradients, self.each)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Combined:
    """Messages up to integer combinations: several levels."""

    steps: Lattice
    alone: Description
    name: str
    like: Tensor  # (*shape)
    examples: int = _SAMPLES

    def by_class(self, typical: list[Tensor]) -> Tensor | None:
        each = [self._levels(gradients) for gradients in typical]
        _, _, axes = np.linalg.svd(np.concatenate([levels for levels, _ in each]), full_matrices=False)
        axes = axes[:_AXES]
        current, clients = self.steps, np.zeros(0, np.int64)
        for _ in range(_AGAIN):  # better columns give better integers
            combinations = current.combinations()
            found = current.chosen(combinations, self._scores(current, combinations, axes, each))
            if found is None:
                return None
            current, clients = found
        return self._as_tensor(current.messages(clients))

    @staticmethod
    def _scores(
        steps: Lattice, combinations: NDArray[np.int64], axes: Floats, each: list[tuple[Floats, float]]
    ) -> Floats:
        """Return each combination's log-likelihood as each client's column, (client, combination). `each`: public
        examples' levels for the client's label, and the rounding variance; `axes`: their principal components."""
        along, squares = steps.along(combinations, axes)
        outside = squares - np.square(along).sum(1)
        scores = []
        for levels, rounding in each:
            inside = levels @ axes.T
            rest = np.square(levels).sum(1) - np.square(inside).sum(1) + rounding * levels.shape[1]
            wrong = (_WRONG * float(rest.mean())) ** 2
            scores.append(
                _log_likelihood(along, inside, rounding) + _log_likelihood(outside[:, None], rest[:, None], wrong)
            )
        return np.stack(scores)

    def by_gradient(self, gradients: Tensor) -> tuple[Tensor, bool] | None:
        levels, rounding = self._levels(gradients)
        combinations = self.steps.combinations()
        along, squares = self.steps.along(combinations, levels)
        apart = squares - 2 * along.T + np.square(levels).sum(1)[:, None]
        found = self.steps.chosen(combinations, -apart / (2 * rounding), levels)
        if found is None:
            return None
        messages = self._as_tensor(found[0].messages(found[1]))
        return messages, _fits(_cosines(gradients, messages).diagonal())

    def _levels(self, gradients: Tensor) -> tuple[Floats, float]:
        """Return the `gradients` (example, *shape) in units of each example's step, (example, coordinate), and the mean
        variance of the rounding to integers."""
        outcomes = self.alone.outcomes({self.name: gradients})
        assert outcomes is not None
        values, chances = (
            rows(each[self.name], 2).double().cpu().numpy() for each in (outcomes.values, outcomes.chances)
        )
        steps = (values[1] - values[0]).max(1, keepdims=True).clip(min=np.finfo(np.float64).tiny)
        return (values * chances).sum(0) / steps, float((chances[0] * chances[1]).mean())

    def _as_tensor(self, messages: Floats) -> Tensor:
        made: Tensor = torch.from_numpy(messages).to(self.like).unflatten(1, self.like.shape)
        return made


def _log_likelihood(values: Floats, samples: Floats, variance: float) -> Floats:
    """Return the Gaussian log density of `values` (value, axis), with mean and covariance of `samples` (sample, axis).
    `variance` is added to the variance of each axis."""
    centred = samples - samples.mean(0)
    covariance = (1 - _SHRUNK) * centred.T @ centred / max(1, len(samples) - 1)
    covariance += np.diag(_SHRUNK * centred.var(0) + variance)
    factor = np.linalg.cholesky(covariance)
    apart = np.linalg.solve(factor, (values - samples.mean(0)).T)
    density: Floats = -0.5 * np.square(apart).sum(0) - np.log(factor.diagonal()).sum()
    return density


def _linked(gradients: Tensor, messages: Tensor) -> tuple[Tensor, bool]:
    """Return `messages` (client, *shape) in the order of `gradients` (client, *shape) with the largest sum of cosines,
    and whether the cosines show the messages right."""
    cosines = _cosines(gradients, messages)
    clients, columns = linear_sum_assignment(-cosines)
    return messages[torch.from_numpy(columns)], _fits(cosines[clients, columns])


def _cosines(gradients: Tensor, messages: Tensor) -> Floats:
    tiny = torch.finfo(messages.dtype).tiny
    flat = (rows(value, 1) for value in (gradients, messages))
    left, right = (value / value.norm(dim=1, keepdim=True).clamp_min(tiny) for value in flat)
    cosines: Floats = (left @ right.T).double().cpu().numpy()
    return cosines


def _fits(cosines: Floats) -> bool:
    return bool(np.sort(cosines)[1] >= _LINKED * np.median(cosines))


def joined(results: Sequence[Reconstruction]) -> Reconstruction:
    """Concatenate the reconstructions of several batches along the axis of readings, in the order of `results`."""

    def column(name: str) -> Tensor:
        return torch.cat([getattr(each, name) for each in results])

    return Reconstruction(
        inputs=column("inputs"),
        labels=column("labels"),
        loss=column("loss"),
        evaluations=column("evaluations"),
        outer=column("outer"),
        restarts=column("restarts"),
        status=tuple(word for each in results for word in each.status),
        notes=tuple(dict.fromkeys(note for each in results for note in each.notes)),
    )
