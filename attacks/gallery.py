"""Gallery: which of some candidates is behind a reading?  The quickest strong test there is, and no reconstruction."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy.optimize import nnls
from torch import Tensor

from bench.attacks.base import Attack
from bench.attacks.parts.distance import Distance
from bench.attacks.parts.features import Sketch
from bench.attacks.parts.objective import Mismatch, by_likelihood, mean_observation, observations
from bench.attacks.parts.rescale import rescaled
from bench.attacks.priors_only import claim
from bench.gradients import group_gradients, one_hot
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

_CHUNK = 64  # candidates side by side
_VALUES = 1 << 16  # kept of a gradient: larger ones are hashed together, and lose where a reading is zero
_RIDGE = 1e-8  # of the Gram matrix's diagonal, which is 1
_ABOUT = (0.5, 2.0)  # times 1/B, the coefficients of candidates that are taken first
_FEW = 2  # values for each candidate
_TINY = 1e-30
LIST = 10  # candidates named of one example, best first: what so many attackers together may say


@dataclass(frozen=True, kw_only=True)
class Gallery(Attack):
    """Names the most likely of the candidates; as inputs the public mean, so that nothing else can score.

    One example: the least -log likelihood of the reading under a candidate's own gradient, as the description has it;
    without a description the greatest cosine.  With candidates that are exchangeable no attacker does better than the
    likelihood.  Several: the largest coefficients when the reading is written as a non-negative combination of the
    candidates' gradients, on the coordinates that are not zero in it.
    """

    reference = "ours; the maximum likelihood among exchangeable candidates"
    knowledge = ("plain", "adaptive")
    iterative = False

    def refuses(self, reading: Reading) -> str | None:
        if reading.gallery_inputs is None:
            return "it has no candidates; grant a gallery: grants = [[{ gallery = 1000 }]]"
        if reading.linked != "vector":
            return "it compares whole vectors, and this reading's coordinates are not linked"
        if reading.steps > 1:
            return "it has no account of several local steps"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        del budget
        reading = rescaled(reading)
        assert reading.gallery_inputs is not None and reading.gallery_labels is not None
        scores = _likelihoods(reading) if reading.examples == 1 else _coefficients(reading, key)
        named = torch.stack([_best(reading, row, scores[row]) for row in range(len(reading))])
        first = named[:, : reading.examples]
        mean = reading.public_mean.expand(*first.shape, *reading.shape)
        made = claim(reading, mean, reading.gallery_labels[first])
        return Reconstruction(
            inputs=made.inputs, labels=made.labels, loss=-scores.amax(1), evaluations=made.evaluations,
            outer=made.outer, restarts=made.restarts, status=made.status, named=named,
        )  # fmt: skip


def _best(reading: Reading, row: int, scores: Tensor) -> Tensor:
    """The candidates of the greatest scores, of each granted label as many as it has examples, (example,); of one
    example a list, (candidate,), best first."""
    assert reading.gallery_labels is not None
    if reading.examples == 1:
        if reading.labels is not None:
            scores = scores.where(reading.gallery_labels == reading.labels[row], -torch.inf)
        return scores.topk(min(LIST, len(scores))).indices
    if reading.labels is None:
        return scores.topk(reading.examples).indices
    labels, counts = reading.labels[row].unique(return_counts=True)
    parts = [
        scores.where(reading.gallery_labels == label, -torch.inf).topk(int(count)).indices
        for label, count in zip(labels, counts, strict=True)
    ]
    return torch.cat(parts)


def _likelihoods(reading: Reading) -> Tensor:
    """(reading, candidate): minus the distance of the reading from each candidate's described gradient."""
    distance = (
        Distance(kind="cosine")
        if reading.description is None
        else by_likelihood(Distance(kind="l2"), reading)
    )
    mismatch, observed = Mismatch(reading=reading, distance=distance, exact=True), observations(reading)
    rows = []
    for row in range(len(reading)):
        parts = []
        for x, y in _candidates(reading):
            seen = [{n: v[row].expand(len(x), *v.shape[1:]) for n, v in each.items()} for each in observed]
            with torch.no_grad():
                parts.append(mismatch(seen, x, y, differentiable=False))
        rows.append(-torch.cat(parts))
    return torch.stack(rows).cpu()


def _candidates(reading: Reading) -> Iterator[tuple[Tensor, Tensor]]:
    """Some at a time: inputs (candidate, 1, *shape) and label probabilities (candidate, 1, class)."""
    assert reading.gallery_inputs is not None and reading.gallery_labels is not None
    like = next(iter(reading.values.values()))
    targets = one_hot(reading.gallery_labels, reading.classes, like.dtype).to(like)[:, None]
    yield from zip(reading.gallery_inputs.to(like)[:, None].split(_CHUNK), targets.split(_CHUNK), strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Basis:
    """The candidates' `gradients` (candidate, value), their `norms` (candidate,), and a Cholesky factor of the Gram
    matrix of the gradients at norm 1, lower."""

    gradients: Tensor
    norms: Tensor
    root: Tensor

    @classmethod
    def of(cls, gradients: Tensor, shown: Tensor | None = None) -> "_Basis":
        """Of the values that are `shown` (value,), by default all.

        Where these are hardly more than the candidates, the Gram matrix is singular but for its ridge, which rounding
        in single precision is larger than.
        """
        few = shown is not None and int(shown.sum()) < _FEW * len(gradients)
        gradients = gradients if shown is None else gradients * shown
        norms = torch.linalg.vector_norm(gradients, dim=1).double().clamp_min(_TINY)
        values = gradients[:, shown].double() if shown is not None and few else gradients
        gram = (values @ values.T).double() / norms / norms[:, None]
        root = torch.linalg.cholesky(gram + _RIDGE * torch.eye(len(gram), dtype=gram.dtype))
        return cls(gradients=gradients, norms=norms, root=root)


def _coefficients(reading: Reading, key: Key) -> Tensor:
    """(reading, candidate): scores from the coefficients ≥ 0 of candidates' gradients nearest to a reading."""
    observed = mean_observation(observations(reading))
    sketch = Sketch.of({name: tuple(value.shape[1:]) for name, value in observed.items()}, key, _VALUES)
    weights = {name: value[0] for name, value in reading.weights.items()}
    gradients = torch.cat([
        sketch(group_gradients(reading.model, weights, x, y)).float().cpu() for x, y in _candidates(reading)
    ])  # fmt: skip
    whole: _Basis | None = None  # of readings that are zero nowhere
    rows = []
    for values in sketch(observed).float().cpu():
        shown = values != 0
        if bool(shown.all()):
            basis = whole = whole or _Basis.of(gradients)
        else:
            basis = _Basis.of(gradients, shown)
        rows.append(_scores(basis, values, reading.examples))
    return torch.stack(rows)


def _scores(basis: _Basis, observed: Tensor, examples: int) -> Tensor:
    """Scores (candidate,) of those that one reading (value,) holds, a mean of so many examples.

    In a mean of B every gradient has the coefficient 1/B: a faint one with far more explains noise, and one that is
    much fainter than others may have any.  So those of about 1/B are taken first, and taken off; then, one by one, the
    candidate that leaves the least.
    """
    gradients, norms, root = basis.gradients, basis.norms, basis.root
    products = (gradients @ observed).double() / norms
    target = torch.linalg.solve_triangular(root, products[:, None], upper=False)[:, 0]
    coefficients = torch.from_numpy(nnls(root.T.numpy(), target.numpy(), maxiter=20 * len(root))[0])
    share = coefficients / norms * examples
    sure = coefficients * ((share > _ABOUT[0]) & (share < _ABOUT[1]))
    scores = torch.zeros_like(coefficients)
    left = observed.double()
    chosen = [int(at) for at in sure.topk(min(examples, len(sure))).indices if sure[at] > 0]
    for at in chosen:
        scores[at] = 2 + coefficients[at]
        left = left - gradients[at].double() / examples
    for step in range(examples - len(chosen)):
        gain = 2 * gradients.double() @ left / examples - (norms / examples) ** 2
        gain[scores > 0] = -torch.inf
        at = int(gain.argmax())
        scores[at] = 2 - (step + 1) / (examples + 1)
        left = left - gradients[at].double() / examples
    return scores
