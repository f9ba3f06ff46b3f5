"""Fishing: a server chooses the last layer so that a batch's gradient below is that of few examples."""

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.attacks.base import Attack, closed_form
from bench.attacks.labels.head import Head, head
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.attacks.objective.rescale import rescaled
from bench.attacks.search.probable import most_probable
from bench.errors import NotApplicable
from bench.parameters import parameter
from bench.rng import Key
from bench.rows import flattened
from bench.trip import Budget, Reading, Reconstruction, Server

_PUBLIC = 4096  # public examples for the class score
_RIDGE = 1e-3  # of the features' mean variance
_THRESHOLDS = 512  # quantiles of the class score
_SIZE = 100.0  # norm of the class's row in the search: noise on the features, which have no gain, counts little
_CLOSED = -1e9  # bias below all logits: a probability of 0
_STARTS, _TOLERANCE = 3, 1e-9  # as in `map`
_NO_HEAD = "its last layer is no linear layer with bias whose outputs are the logits"


@dataclass(frozen=True, kw_only=True)
class Fishing(Attack):
    """Attack by a server that chooses the last layer only, of any model with a linear last layer: the batch's gradient
    in all layers below becomes the gradient of few examples, best of a single one. A search for the most probable
    examples, as in `map`, then inverts this gradient.

    All rows of the last layer are zero but one, of a class c. The logit of c is a score f(x) of c, times a large gain,
    minus a threshold τ. The derivative of the loss by this logit is p - y, with the probability p of c and y = 1 for an
    example of class c. With a large gain p is 0 or 1, so only two kinds of examples have a gradient below the last
    layer: examples of class c with f < τ, and other examples with f > τ. The loss is wrong for them. The gradient of
    the bias of c is their difference in number, divided by the batch size.

    The server chooses c and τ on public examples: a single example among B is active with the greatest probability, B a
    (1 - a)^(B - 1) at a share a of active examples. This probability is at most about 1/e, unless the server may choose
    new weights for the same batch. For τ above all scores, the active examples are those of class c.

    Departure: the paper's score is a single feature; here it is a ridge regression of the class on all features."""

    reference = "Wen et al. 2022, ICML (Fishing for User Data)"
    most_examples = 1024
    servers = ("weights",)

    gain: float = parameter(
        1e4, "factor on the class score", unit="logits per standard deviation of the score", source="ours", above=0
    )
    most: int = parameter(
        4, "largest number of active examples that are inverted together", source="ours", low=1, high=16
    )

    def craft(self, server: Server, key: Key) -> dict[str, Tensor]:
        last = _last(server)
        if last is None:
            raise NotApplicable(_NO_HEAD)
        features, labels = _features(server, last), server.public_labels[:_PUBLIC]
        score, threshold, chosen = _score(features, labels, server.classes, server.examples, key)
        weight, bias = (torch.zeros_like(server.weights[last.name(name)]) for name in ("weight", "bias"))
        weight[chosen] = (self.gain * score).to(weight)
        bias[chosen] = -self.gain * threshold
        return {**server.weights, last.name("weight"): weight, last.name("bias"): bias}

    def refuses(self, reading: Reading) -> str | None:
        if reading.steps > 1:
            return "the weights of a later local step are not those of the server"
        if reading.linked != "vector":
            return "it matches whole vectors, and this reading's coordinates are not linked"
        last = _last(reading)
        if last is None:
            return _NO_HEAD
        if int((reading.weights[last.name("weight")][0] != 0).any(1).sum()) != 1:
            return "the last layer has more rows than one; fishing needs the weights of its own craft"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        last = _last(reading)
        assert last is not None
        gradient = mean_observation(observations(reading))
        chosen = int((reading.weights[last.name("weight")][0] != 0).any(1).nonzero()[0])
        active = gradient[last.name("bias")][:, chosen] * reading.examples
        finite = flattened(gradient, 1).isfinite().all(1)
        counts = active.abs().where(finite, 0.0).round().clamp(max=self.most + 1).long()
        mean = reading.public_mean.repeat(len(reading), reading.examples, *[1] * len(reading.shape))
        whole = closed_form(reading, mean, status=tuple("ok" if each else "nan" for each in finite.tolist()))
        for count in range(1, min(self.most, reading.examples) + 1):
            rows = (counts == count).nonzero()[:, 0].tolist()
            if rows:
                part = rescaled(_fished(reading.of(rows), last, chosen, count))
                result = most_probable(part, budget, key, starts=_STARTS, tolerance=_TOLERANCE)
                whole = _with(whole, rows, result, chosen, active[rows] < 0)
        return whole


def _last(known: Reading | Server) -> Head | None:
    last = head(known) if known.kind.differentiable else None
    return last if last is not None and last.logits and last.name("bias") in known.weights else None


def _features(server: Server, last: Head) -> Tensor:
    """Return the inputs of the `last` layer for public examples, (example, feature), in float64."""
    calls: list[Tensor] = []
    handle = server.model.get_submodule(last.path).register_forward_pre_hook(
        lambda _, arguments: calls.append(arguments[0].detach().double().cpu())
    )
    like = next(iter(server.weights.values()))
    try:
        with torch.no_grad():
            for chunk in server.public_inputs[:_PUBLIC].split(256):
                functional_call(server.model, dict(server.weights), (chunk.to(like),))
    finally:
        handle.remove()
    return torch.cat(calls)


def _score(features: Tensor, labels: Tensor, classes: int, examples: int, key: Key) -> tuple[Tensor, float, int]:
    """Return a class score with deviation 1 over public examples (feature,), its threshold, and the class. They are
    chosen so that a single one of `examples` is active with the greatest probability. One half of the public examples
    gives the scores, the other half the probability. Without labels, the score is a random direction, and the threshold
    lies above all scores. `features` (example, feature) and `labels` (example,) are of public examples."""
    if (labels < 0).any():
        draw = key.generator("score").standard_normal(features.shape[1])
        score = torch.from_numpy(draw) / (features @ torch.from_numpy(draw)).std().clamp_min(1e-12)
        return score, _above(features @ score), int(key.generator("class").integers(classes))
    half = len(features) // 2
    known, tested = features[:half], features[half:]
    centred = known - known.mean(0)
    gram = centred.T @ centred
    gram += _RIDGE * gram.diagonal().mean().clamp_min(1e-12) * torch.eye(len(gram), dtype=gram.dtype)
    member = nn.functional.one_hot(labels, classes).double()
    scores = torch.linalg.solve(gram, centred.T @ member[:half])  # (feature, class)
    scores = scores / (known @ scores).std(0).clamp_min(1e-12)
    reached = tested @ scores
    levels = torch.linspace(0, 1, _THRESHOLDS, dtype=torch.float64)
    best = (-1.0, scores[:, 0], 0.0, 0)
    for number in range(classes):
        of_class = member[half:, number] > 0
        for threshold in (*reached[:, number].quantile(levels).tolist(), _above(reached[:, number])):
            below = reached[:, number] < threshold
            active = float((of_class == below).double().mean())
            alone = examples * active * (1 - active) ** (examples - 1)
            if alone > best[0]:
                best = (alone, scores[:, number], threshold, number)
    return best[1], best[2], best[3]


def _above(values: Tensor) -> float:
    return float(values.max() + 10 * (values.max() - values.min()))


class _Beside(nn.Module):
    """A logit 0 beside the logit of a class."""

    def forward(self, logit: Tensor) -> Tensor:
        return torch.cat([logit, torch.zeros_like(logit)], 1)


def _fished(reading: Reading, last: Head, chosen: int, count: int) -> Reading:
    """Return `reading` as the mean gradient of `count` examples of class 0 in a model with two classes: the class
    `chosen`, with probability 0, and all others. Only the chosen row of the `last` layer is used."""
    gradient = mean_observation(observations(reading))
    model = copy.deepcopy(reading.model)
    like = reading.weights[last.name("weight")]
    row = like[:1, chosen : chosen + 1]
    scale = _SIZE / row.norm()
    narrow = nn.Sequential(nn.Linear(row.shape[2], 1), _Beside()).to(like)
    if last.path:
        model.set_submodule(last.path, narrow)
    else:
        model = narrow
    prefix = f"{last.path}.0." if last.path else "0."
    below = {name: value for name, value in gradient.items() if name not in (last.name("weight"), last.name("bias"))}
    bias = gradient[last.name("bias")][:, chosen]
    active = -bias.sign() * count / reading.examples  # δ = -1 for each active example of the class, 1 for others
    values = {name: scale * value / _rows(active, value) for name, value in below.items()}
    for name in ("weight", "bias"):
        value = gradient[last.name(name)][:, chosen : chosen + 1]
        values[f"{prefix}{name}"] = value / _rows(active, value)
    kept = {name: reading.weights[name][:1] for name in below}
    return replace(
        reading,
        model=model.eval(),
        values={name: value[:, None] for name, value in values.items()},
        weights=kept | {f"{prefix}weight": scale * row, f"{prefix}bias": torch.full_like(row[..., 0], _CLOSED)},
        rounds=reading.rounds[:1],
        repeated_readings=1,
        classes=2,
        batch=count,
        senders=1,
        unit=1.0,
        labels=torch.zeros(len(reading), count, dtype=torch.long),
        public_labels=torch.full_like(reading.public_labels, -1),
    )


def _rows(factors: Tensor, like: Tensor) -> Tensor:
    return factors.reshape(-1, *[1] * (like.dim() - 1))


def _with(
    whole: Reconstruction, rows: list[int], part: Reconstruction, chosen: int, of_class: Tensor
) -> Reconstruction:
    """Return `whole` with the examples and costs of `part` at the `rows`. Examples get the label `chosen` where
    `of_class` (row,)."""
    inputs, labels = whole.inputs.clone(), whole.labels.clone()
    count = part.inputs.shape[1]
    inputs[rows, :count] = part.inputs.to(inputs)
    labels[rows, :count] = torch.where(of_class[:, None].cpu(), chosen, -1).expand(-1, count)
    costs = {}
    for name in ("loss", "evaluations", "outer", "restarts"):
        costs[name] = getattr(whole, name).clone()
        costs[name][rows] = getattr(part, name).to(costs[name])
    status = list(whole.status)
    for row, each in zip(rows, part.status, strict=True):
        status[row] = each
    return replace(whole, inputs=inputs, labels=labels, status=tuple(status), **costs)
