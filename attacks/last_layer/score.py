"""Class score: the logit of a class as the server chooses it, and its threshold."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.attacks.labels.head import Head, head
from bench.errors import NotApplicable
from bench.rng import Key
from bench.trip import Reading, Server

PUBLIC = 4096  # public examples for the class score
_RIDGE = 1e-3  # of the features' mean variance
_LEVELS = 512  # quantiles of the class score
NO_HEAD = "its last layer is no linear layer with bias whose outputs are the logits"


def last_layer(known: Reading | Server) -> Head | None:
    """Return the model's last layer if the attack `fishing` can use it: linear outputs are the logits, with a bias.
    None otherwise. `known`: a reading, or a server's knowledge before the round."""
    last = head(known) if known.kind.differentiable else None
    return last if last is not None and last.logits and last.name("bias") in known.weights else None


def features(server: Server) -> tuple[Head, Tensor]:
    """Return the last layer of the server's model and its inputs (features) for at most 4096 public examples: (example,
    feature) in float64. The attack `fishing` chooses a class score from them. `server` is the server's knowledge before
    the round. Raises `NotApplicable` for a model without a usable last layer."""
    last = last_layer(server)
    if last is None:
        raise NotApplicable(NO_HEAD)
    calls: list[Tensor] = []
    handle = server.model.get_submodule(last.path).register_forward_pre_hook(
        lambda _, arguments: calls.append(arguments[0].detach().double().cpu())
    )
    like = next(iter(server.weights.values()))
    try:
        with torch.no_grad():
            for chunk in server.public_inputs[:PUBLIC].split(256):
                functional_call(server.model, dict(server.weights), (chunk.to(like),))
    finally:
        handle.remove()
    return last, torch.cat(calls)


def class_score(features: Tensor, labels: Tensor, classes: int, examples: int, key: Key) -> tuple[Tensor, float, int]:
    """Choose the class, its score and the threshold that a server sends in the attack `fishing`. The choice gives the
    greatest probability that only one example behind a reading is active (has a gradient below the last layer).
    Examples of the class are active if their score is below the threshold, other examples if it is above. Return the
    direction of the score (feature,), scaled to deviation 1 over public examples, then the threshold and the class
    number.

    - `features` (example, feature), `labels` (example,): public examples; label -1: unknown. One half gives the
      directions, by ridge regression, the other half the probability. With unknown labels, direction and class are
      random, and the threshold lies above all scores.
    - `classes`, `examples`: number of classes, and of examples behind a reading.
    - `key`: source of random numbers."""
    if (labels < 0).any():
        draw = key.generator("score").standard_normal(features.shape[1])
        score = torch.from_numpy(draw) / (features @ torch.from_numpy(draw)).std().clamp_min(1e-12)
        return score, above_all(features @ score), int(key.generator("class").integers(classes))
    half = len(features) // 2
    known, tested = features[:half], features[half:]
    centred = known - known.mean(0)
    gram = centred.T @ centred
    gram += _RIDGE * gram.diagonal().mean().clamp_min(1e-12) * torch.eye(len(gram), dtype=gram.dtype)
    member = nn.functional.one_hot(labels, classes).double()
    scores = torch.linalg.solve(gram, centred.T @ member[:half])  # (feature, class)
    scores = scores / (known @ scores).std(0).clamp_min(1e-12)
    reached = tested @ scores
    levels = torch.linspace(0, 1, _LEVELS, dtype=torch.float64)
    best = (-1.0, scores[:, 0], 0.0, 0)
    for number in range(classes):
        of_class = member[half:, number] > 0
        for threshold in (*reached[:, number].quantile(levels).tolist(), above_all(reached[:, number])):
            below = reached[:, number] < threshold
            active = float((of_class == below).double().mean())
            alone = examples * active * (1 - active) ** (examples - 1)
            if alone > best[0]:
                best = (alone, scores[:, number], threshold, number)
    return best[1], best[2], best[3]


def above_all(values: Tensor) -> float:
    """Return a threshold that no example's class score exceeds, given the scores of public examples, `values` (value,).
    Below this threshold, the active examples in the attack `fishing` are those of the class."""
    return float(values.max() + 10 * (values.max() - values.min()))
