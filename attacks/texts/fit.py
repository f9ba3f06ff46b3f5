"""How well texts explain a reading: the distance between their simulated reading and the observed reading."""

import copy
import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.attacks.objective.mismatch import Mismatch
from bench.attacks.texts.embedding import token_embedding, vectors
from bench.attacks.texts.language import Language
from bench.gradients import group_gradients, one_hot
from bench.training import loss_of
from bench.trip import Candidates, Tensors, repeated

_AT_ONCE = 64  # gradients of texts in memory
_ALL_TEXTS = 32  # texts of all compared batches in memory, if each text's gradient counts

State = tuple[Tensor, Tensors]  # texts (example, position), their gradients, name → (example, *shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Objective of a search for the texts behind a reading (observed update): the distance between the reading and the
    reading simulated for candidate texts; with described noise, the texts' weighted negative log probability is added.
    Lower is better. A *batch* is a text for each example behind the reading."""

    mismatch: Mismatch
    """Distance between gradients."""
    observed: Tensors
    """The attacked reading, name → (1, *shape)."""
    weights: Tensors
    """The model's weights, name → (*shape)."""
    model: nn.Module
    """The model's copy without hooks."""
    embedding: str
    """The token embedding's path."""
    table: Tensor
    """(token, value): the token embedding's weights."""
    targets: Tensor
    """(example, class): label probabilities for the examples behind the reading."""
    language: Language
    """Probability of a text."""
    scale: float
    """Factor between a negative log likelihood and the distance; 0 without a known noise, which ignores the language.
    """

    @classmethod
    def of(cls, mismatch: Mismatch, observed: Tensors, labels: Tensor) -> Self:
        """Prepare the objective for a single reading.

        - `mismatch`: distance between simulated and actual reading, with the model.
        - `observed`: the reading, name → (1, *shape).
        - `labels` (example,): class numbers of the texts."""
        reading = mismatch.reading
        like = next(iter(observed.values()))
        model = copy.deepcopy(reading.model)
        for module in model.modules():
            module._forward_pre_hooks.clear()  # passes of the copy are no evaluations
        weights = {name: value[0] for name, value in reading.weights.items()}
        texts = reading.public_inputs.to(like)
        path = token_embedding(model, weights, texts[:1].long())
        assert path is not None
        table = _table(model, weights, path)
        return cls(
            mismatch=mismatch,
            observed=observed,
            weights=weights,
            model=model,
            embedding=path,
            table=table,
            targets=one_hot(labels, reading.classes, like.dtype).to(like),
            language=Language.of(texts, len(table)),
            scale=_scale(mismatch),
        )

    def with_labels(self, labels: Tensor) -> Self:
        """Return the same objective under other class numbers of the texts, `labels` (example,)."""
        targets = one_hot(labels.to(self.targets.device), self.targets.shape[1], self.targets.dtype)
        return replace(self, targets=targets)

    def gradients(self, texts: Tensor, examples: Tensor) -> dict[str, Tensor]:
        """Compute the model's gradient for each candidate text: name → (text, *shape).

        - `texts` (text, position): token ids.
        - `examples` (text,): for each text, the example whose label it gets."""
        inputs = texts[:, None].to(self.targets)
        return group_gradients(self.model, self.weights, inputs, self.targets[examples][:, None])

    def state(self, texts: Tensor) -> State:
        """Prepare a batch of candidate `texts` (example, position) for a search: return the texts together with their
        gradients, name → (example, *shape)."""
        return texts, self.gradients(texts, torch.arange(len(texts)))

    def losses(self, state: State, moves: Tensor) -> Tensor:
        """Compute the objective for several batches of candidate texts: (move,). Only texts that differ from the
        present batch need a new gradient, so batches with few changes are fast.

        - `state`: the present batch with its gradients, from the method `state`.
        - `moves` (move, example, position): the batches."""
        changed = (moves != state[0]).any(-1)
        whole = self._each_text_counts
        most = max(1, _ALL_TEXTS // len(state[0])) if whole else _AT_ONCE // 2
        parts = zip(moves.split(most), changed.split(most), strict=True)
        distances = torch.cat([self._some(state, *part, whole) for part in parts])
        return distances.cpu() - self.scale * self.language.log_probability(moves).sum(-1).float()

    def _some(self, state: State, moves: Tensor, changed: Tensor, whole: bool) -> Tensor:
        if self.mismatch.unrolled:
            target, targets = repeated(self.observed, len(moves)), self.targets.expand(len(moves), -1, -1)
            return self.mismatch([target], moves.to(self.targets), targets, differentiable=False)
        count, (rows, examples) = len(moves), changed.nonzero(as_tuple=True)
        start = {name: value if whole else value.mean(0) for name, value in state[1].items()}
        shown = {name: value.expand(count, *value.shape).clone() for name, value in start.items()}
        for row, example in zip(rows.split(_AT_ONCE), examples.split(_AT_ONCE), strict=True):
            new = self.gradients(moves[row, example], example) if len(row) else {}
            row, example = row.to(self.targets.device), example.to(self.targets.device)
            for name, value in new.items():
                if whole:
                    shown[name][row, example] = value
                else:
                    shown[name].index_add_(0, row, (value - state[1][name][example]) / len(state[0]))
        return self._distance({name: value if whole else value[:, None] for name, value in shown.items()}, moves)

    def _distance(self, gradients: Tensors, moves: Tensor) -> Tensor:
        behind = Candidates(
            inputs=moves.to(self.targets), targets=self.targets.expand(len(moves), -1, -1), weights=self.weights
        )
        target = repeated(self.observed, len(moves))
        return self.mismatch.of_shown(self.mismatch.shown(target, gradients, behind), target)

    @property
    def _each_text_counts(self) -> bool:
        description = self.mismatch.reading.description
        return description is not None and (description.inside_steps or description.senders > 1)

    def wanted(self, state: State) -> dict[str, Tensor]:
        """Return the direction in which the candidate texts' mean gradient must change to lower the distance to the
        reading, name → (*shape): the distance's negative derivative. Scores of token exchanges (`promise`) follow from
        this direction. `state`: the present batch, from the method `state`."""
        if self.mismatch.unrolled:
            return self._wanted_in_steps(state[0])
        with torch.enable_grad():
            each = {name: value.detach().requires_grad_() for name, value in state[1].items()}
            mean = {
                name: value[None] if self._each_text_counts else value.mean(0)[None, None]
                for name, value in each.items()
            }
            distance = self._distance(mean, state[0][None]).sum()
            slopes = torch.autograd.grad(distance, list(each.values()), materialize_grads=True)
        descent = {name: -slope.mean(0) for name, slope in zip(each, slopes, strict=True)}
        if any(bool(value.any()) for value in descent.values()):
            return descent
        return {name: value[0] - state[1][name].mean(0) for name, value in self.observed.items()}

    def _wanted_in_steps(self, texts: Tensor) -> dict[str, Tensor]:
        shown = self.mismatch.simulated(self.observed, texts[None].to(self.targets), self.targets[None])
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in shown.items()}
            distance = self.mismatch.of_shown(leaves, self.observed).sum()
            slopes = torch.autograd.grad(distance, list(leaves.values()), materialize_grads=True)
        return {name: -slope[0] for name, slope in zip(leaves, slopes, strict=True)}

    def promise(self, state: State) -> Tensor:
        """Predict which exchange of a single token would improve the objective: a score (example, position, token),
        higher for a better token at this position, 0 for the present token. The prediction is linear (first order), and
        serves to select few exchanges for exact tests. Considered are the token vector's effect on the gradients, and
        the nonzero rows in the embedding's gradient. `state`: the present batch, from the method `state`."""
        texts, wanted = state[0], self.wanted(state)
        weights = {name: value.detach().requires_grad_() for name, value in self.weights.items()}
        with torch.enable_grad(), vectors(self.model, self.embedding) as leaves:
            logits = functional_call(self.model, weights, (texts.to(self.targets),))
            each_loss = [
                loss_of(self.model)(*pair) for pair in zip(logits.split(1), self.targets.split(1), strict=True)
            ]
            own = [name for name in weights if name != f"{self.embedding}.weight"]
            rows, *each = torch.autograd.grad(
                torch.stack(each_loss).sum(),
                [leaves[0], *(weights[name] for name in own)],
                create_graph=True,
                allow_unused=True,
            )
            used = [(wanted[name] * value).sum() for name, value in zip(own, each, strict=True) if value is not None]
            slopes = torch.autograd.grad(torch.stack(used).sum(), leaves[0])[0]
        filled = wanted.get(f"{self.embedding}.weight")
        total = slopes @ self.table.mT
        if filled is not None:
            total = total + rows.detach() @ filled.mT
        total = total.detach().cpu()
        return total - total.gather(2, texts[..., None])


def _table(model: nn.Module, weights: Tensors, path: str) -> Tensor:
    layer = model.get_submodule(path)
    assert isinstance(layer, nn.Embedding)
    return weights.get(f"{path}.weight", layer.weight).detach()


def _scale(mismatch: Mismatch) -> float:
    description = mismatch.reading.description
    if description is None:
        return 0.0
    variance = description.noise.variance
    return math.sqrt(variance / 2) if mismatch.distance.kind == "l1" else 2 * variance
