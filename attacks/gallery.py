"""Gallery: which of some candidates is behind a reading?  The quickest strong test there is, and no reconstruction."""

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
_TINY = 1e-30


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
        mean = reading.public_mean.expand(*named.shape, *reading.shape)
        made = claim(reading, mean, reading.gallery_labels[named])
        return Reconstruction(
            inputs=made.inputs, labels=made.labels, loss=-scores.amax(1), evaluations=made.evaluations,
            outer=made.outer, restarts=made.restarts, status=made.status, named=named,
        )  # fmt: skip


def _best(reading: Reading, row: int, scores: Tensor) -> Tensor:
    """The candidates of the greatest scores, (example,); of each granted label as many as it has examples."""
    assert reading.gallery_labels is not None
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
    assert reading.gallery_inputs is not None and reading.gallery_labels is not None
    distance = (
        Distance(kind="cosine")
        if reading.description is None
        else by_likelihood(Distance(kind="l2"), reading)
    )
    mismatch, observed = Mismatch(reading=reading, distance=distance), observations(reading)
    like = next(iter(reading.values.values()))
    targets = one_hot(reading.gallery_labels, reading.classes, like.dtype).to(like)[:, None]
    inputs = reading.gallery_inputs.to(like)[:, None]
    rows = []
    for row in range(len(reading)):
        parts = []
        for x, y in zip(inputs.split(_CHUNK), targets.split(_CHUNK), strict=True):
            seen = [{n: v[row].expand(len(x), *v.shape[1:]) for n, v in each.items()} for each in observed]
            with torch.no_grad():
                parts.append(mismatch(seen, x, y, differentiable=False))
        rows.append(-torch.cat(parts))
    return torch.stack(rows).cpu()


def _coefficients(reading: Reading, key: Key) -> Tensor:
    """(reading, candidate): coefficients ≥ 0 of the candidates' gradients that come nearest to the reading."""
    observed = mean_observation(observations(reading))
    sketch = Sketch.of({name: tuple(value.shape[1:]) for name, value in observed.items()}, key, _VALUES)
    seen, gradients = sketch(observed).float().cpu(), _gradients(reading, sketch)
    found = torch.zeros(len(seen), len(gradients), dtype=torch.float64)
    for row, values in enumerate(seen):
        shown = values != 0
        if row == 0 or not bool(shown.all()):
            part = gradients if bool(shown.all()) else gradients * shown
            norms = torch.linalg.vector_norm(part, dim=1).double().clamp_min(_TINY)
            gram = (part @ part.T).double() / norms / norms[:, None]
            root = torch.linalg.cholesky(gram + _RIDGE * torch.eye(len(gram), dtype=gram.dtype))
        target = torch.linalg.solve_triangular(root, ((part @ values).double() / norms)[:, None], upper=False)
        coefficients = nnls(root.T.numpy(), target[:, 0].numpy(), maxiter=20 * len(gram))[0]
        found[row] = _picked(
            torch.from_numpy(coefficients), part.double(), norms, values.double(), reading.examples
        )
    return found


def _picked(
    coefficients: Tensor, gradients: Tensor, norms: Tensor, observed: Tensor, examples: int
) -> Tensor:
    """Scores (candidate,) of those that one reading holds: `coefficients` of gradients of norm 1.

    In a mean of B every gradient has the coefficient 1/B: a faint one with far more explains noise, and one that is
    much fainter than others may have any.  So those of about 1/B are taken first, and taken off; then, one by one, the
    candidate that leaves the least.
    """
    share = coefficients / norms * examples
    sure = coefficients * ((share > _ABOUT[0]) & (share < _ABOUT[1]))
    scores = torch.zeros_like(coefficients)
    left = observed.clone()
    chosen = [int(at) for at in sure.topk(min(examples, len(sure))).indices if sure[at] > 0]
    for at in chosen:
        scores[at] = 2 + coefficients[at]
        left -= gradients[at] / examples
    for step in range(examples - len(chosen)):
        gain = 2 * gradients @ left / examples - (norms / examples) ** 2
        gain[scores > 0] = -torch.inf
        at = int(gain.argmax())
        scores[at] = 2 - (step + 1) / (examples + 1)
        left -= gradients[at] / examples
    return scores


def _gradients(reading: Reading, sketch: Sketch) -> Tensor:
    """The candidates' gradients, sketched, (candidate, value); not all of them are in memory whole."""
    assert reading.gallery_inputs is not None and reading.gallery_labels is not None
    weights = {name: value[0] for name, value in reading.weights.items()}
    like = next(iter(weights.values()))
    targets = one_hot(reading.gallery_labels, reading.classes, like.dtype).to(like)[:, None]
    parts = [
        sketch(group_gradients(reading.model, weights, x, y)).float().cpu()
        for x, y in zip(
            reading.gallery_inputs.to(like)[:, None].split(_CHUNK), targets.split(_CHUNK), strict=True
        )
    ]
    return torch.cat(parts)
