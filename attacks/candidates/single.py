"""Scores of candidates for a reading's only unknown example."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from bench.attacks.candidates.complement import by_complement
from bench.attacks.candidates.listed import alone, candidates
from bench.attacks.candidates.mixtures import by_mixtures
from bench.attacks.candidates.sums import by_sums
from bench.attacks.objective.distance import Distance
from bench.attacks.objective.known import given_known, given_updates, known_examples, updates
from bench.attacks.objective.mismatch import Mismatch, by_likelihood, by_round, observations
from bench.gradients import group_gradients
from bench.rng import Key
from bench.trip import Candidates, Given, Reading, Tensors, repeated

_MOST_WORK = 3_000_000  # examples behind a reading times its values; simulating mixtures of more takes minutes

# (gradients of candidates, name → (row, *shape), candidates) → log likelihoods (row,), up to a constant
Scorer = Callable[[Tensors, Candidates], Tensor]


def likelihoods(reading: Reading, key: Key, unit: float = 1.0) -> Tensor:
    """Rate each gallery candidate as the only unknown example behind each reading of the batch `reading`: log
    likelihoods (reading, candidate), up to a constant. The gallery is the list of candidates granted to the attacker.

    Without a description of the defense, a negative distance replaces the log likelihood. The distance is 1 - cosine,
    or a squared distance if the other examples are known. If label and other examples are known, candidates with other
    labels get -inf.

    - `key`: the attacker's key for random draws.
    - `unit`: factor for distances; with the factor from distances to log likelihoods, rounds can be added."""
    description = reading.description
    gaussian = description is None or (description.additive and description.noise.law == "gaussian")
    if len(reading.rounds) > 1 and not gaussian:
        # only for Gaussian noise, the mean of the draws is a sufficient statistic
        return torch.stack([likelihoods(each, key, unit) for each in by_round(reading)]).mean(0)
    parts = [_of_observation(reading, each, number, key, unit) for number, each in enumerate(observations(reading))]
    return torch.stack(parts).mean(0)


def _of_observation(reading: Reading, observed: Tensors, number: int, key: Key, unit: float) -> Tensor:
    """Return the scores (reading, candidate) by `observed`, the observation `number`; candidates' gradients serve
    all."""
    assert reading.gallery_labels is not None
    weights = {name: value[number] for name, value in reading.weights.items()}
    mismatch = by_description(reading)
    targets = [{name: value[row : row + 1] for name, value in observed.items()} for row in range(len(reading))]
    scorers = [_scorer(mismatch, target, weights, row, unit) for row, target in enumerate(targets)]
    scores = torch.full((len(reading), len(reading.gallery_labels)), -torch.inf)
    for rows, members in _groups(reading):
        by_gradients = [(row, scorer) for row in rows if (scorer := scorers[row]) is not None]
        for chosen, behind in _parts(reading, members, weights) if by_gradients else ():
            gradients = group_gradients(reading.model, weights, behind.inputs, behind.targets)
            for row, scorer in by_gradients:
                with torch.no_grad():
                    scores[row, chosen] = scorer(gradients, behind).float().cpu()
        for row in (row for row in rows if scorers[row] is None):
            rng = key.generator("mixtures", reading.indices[row], number)
            known = known_examples(reading, row, weights)
            scores[row, members] = by_mixtures(reading, targets[row], known, members, rng).float().cpu()
    return scores


def by_description(reading: Reading) -> Mismatch:
    """Return the distance between simulated and actual readings by which an attack ranks candidates for the batch
    `reading`; the candidate with the least distance is named. The distance is minus the log likelihood under the
    defense's description. Without a description, the distance is 1 - cosine, or the squared distance if the other
    examples of each reading are known."""
    plain = reading.description is None and reading.mates_inputs is None
    distance = by_likelihood(Distance(kind="cosine" if plain else "l2"), reading)
    return Mismatch(reading=reading, distance=distance, exact=True)


def _groups(reading: Reading) -> Iterator[tuple[Sequence[int], Tensor]]:
    """Yield readings with their candidates; with known other examples and labels, candidates of the reading's label."""
    assert reading.gallery_labels is not None
    if reading.mates_inputs is None or reading.labels is None:
        yield range(len(reading)), torch.arange(len(reading.gallery_labels))
        return
    own = reading.labels[:, 0]
    for label in own.unique():
        yield torch.nonzero(own == label)[:, 0].tolist(), torch.nonzero(reading.gallery_labels == label)[:, 0]


def _parts(reading: Reading, members: Tensor, weights: Tensors) -> Iterator[tuple[Tensor, Candidates]]:
    start = 0
    for x, y in alone(*candidates(reading, members)):
        yield members[start : start + len(x)], Candidates(inputs=x, targets=y, weights=weights)
        start += len(x)


def _scorer(mismatch: Mismatch, observed: Tensors, weights: Tensors, row: int, unit: float) -> Scorer | None:
    """Return a function from candidates and their gradients to log likelihoods of the reading in position `row`, at the
    model's `weights`. `observed` is this reading; `unit` the factor for distances. None: mixtures of the known examples
    are to be simulated."""
    reading, description = mismatch.reading, mismatch.reading.description

    def by_distance(given: Given) -> Scorer:
        return lambda gradients, behind: (
            -unit * mismatch.of_shown(given(gradients, behind), repeated(observed, len(behind.inputs)))
        )

    if reading.examples == 1 or reading.mates_inputs is None:
        return by_distance(
            lambda gradients, behind: mismatch.shown(
                repeated(observed, len(behind.inputs)),
                {name: value[:, None] for name, value in gradients.items()},
                behind,
            )
        )
    known = known_examples(reading, row, weights)
    if description is not None and description.mixed:
        of_rest = by_complement(reading, observed, known.inputs[0])
        if of_rest is not None:
            return of_rest
        if reading.examples * sum(value.numel() for value in observed.values()) <= _MOST_WORK:
            return None
    if description is not None and not description.inside_steps:
        updated, others = updates(reading, known)
        if others and (of_sums := by_sums(description, others, observed)) is not None:
            return lambda gradients, _: of_sums(updated(gradients))
        return by_distance(given_updates(reading, observed, updated, others))
    return by_distance(given_known(reading, observed, known))
