"""CENSOR: send a random vector orthogonal to the gradient, in each tensor, in place of the gradient."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from bench.defenses.base import AddedNoise, Context, Defense, Local, Setting, StageTransforms, State, Tensors, Transform
from bench.defenses.ranges import at_least, positive
from bench.defenses.transforms.levels import public_gradients
from bench.defenses.transforms.rows import broadcast, norms
from bench.parameters import parameter
from bench.rows import rows

_MARGIN = 2.0  # factor on the largest norm of public examples' gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOrthogonal(Transform):
    """Send a random vector in place of the gradient. Each tensor g of a row (a client's mean gradient of a local step)
    is replaced by a random vector o with o ⟂ g and ‖o‖ = ‖g‖: a standard normal vector, projected and rescaled.
    `trials` such rows are drawn; sent is the row after which the loss on the batch is least, for a step with the
    learning rate `rate`."""

    random: ClassVar[bool] = True

    trials: int
    """Number of random rows."""
    rate: float
    """Learning rate of the step for the loss."""

    def __post_init__(self) -> None:
        at_least("trials", self.trials, 1)
        positive("rate", self.rate)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        if context.local is None:
            raise ValueError("the loss after a step needs the batch: send orthogonal vectors at stage step")
        best: dict[str, Tensor] = {}
        least: Tensor | None = None
        for trial in range(self.trials):
            drawn = {name: context.draws.normal(f"{name}/{trial}", g) for name, g in tensors.items()}
            sent = _orthogonal(drawn, tensors, context.lead)
            if self.trials == 1:
                return sent
            loss = _losses(context.local, sent, self.rate)
            better = loss < (torch.inf if least is None else least)
            if least is None:
                better = torch.ones_like(better)
            best = {n: o.where(broadcast(better, o).bool(), best.get(n, o)) for n, o in sent.items()}
            least = loss if least is None else torch.where(better, loss, least)
        return best

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return the transform's output for an attacker's candidate gradients `tensors`, averaged over the random
        vectors: zeros with the same shapes, and the unchanged `state`. `context`: place in the training."""
        return {name: 0.0 * g for name, g in tensors.items()}, state

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Simulate the transform on an attacker's candidate gradients `tensors`, with the random vectors that the
        attacked reading `observed` shows. The result is the reading, made orthogonal to the candidate c and as long as
        c, in each tensor. At the true gradient, the result is the reading. Any other candidate has another length, or
        is not orthogonal to the reading: two exact equations for each tensor."""
        return _orthogonal(observed, tensors, context.lead)

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Return the noise that attackers assume behind a mean over clients, where a single client's vector is unknown.
        A tensor with gradient g and n coordinates has the variance ‖g‖²/(n - 1) per coordinate. For ‖g‖, twice the
        largest norm among public examples' gradients is taken, so the variance is an upper bound; without public data
        the variance is 1."""
        gradients = public_gradients(context)
        if gradients is None:
            return AddedNoise(variance=1.0, bound=True)
        variance = {
            name: (_MARGIN * norm.amax()).square() / max(1, gradients[name][0].numel() - 1)
            for name, norm in norms(gradients, 1).items()
        }
        return AddedNoise(variance=variance, bound=True)

    def log_density(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """Score candidates by how well they explain the attacked reading `observed`: minus the squared distance between
        `tensors` (the reading simulated for a candidate) and `observed`, relative to each tensor's squared length,
        summed over tensors. Return a score per row; the truth has 0 up to rounding."""
        total = None
        for name, value in tensors.items():
            seen = rows(observed[name], context.lead)
            size = seen.square().sum(-1).clamp_min(torch.finfo(seen.dtype).tiny)
            each = -(rows(value, context.lead) - seen).square().sum(-1) / size
            total = each if total is None else total + each
        assert total is not None
        return total


def _orthogonal(drawn: Tensors, tensors: Tensors, lead: int) -> dict[str, Tensor]:
    """Return each vector in `drawn` without its part along the same name's vector in `tensors`, rescaled to the length
    of the latter. A vector without another part, as in a tensor with a single coordinate, becomes zero."""
    result = {}
    for name, tensor in tensors.items():
        g, r = rows(tensor, lead), rows(drawn[name], lead)
        square = g.square().sum(-1, keepdim=True)
        tiny = torch.finfo(g.dtype).tiny
        rest = r - (r * g).sum(-1, keepdim=True) / square.clamp_min(tiny) * g
        length = rest.square().sum(-1, keepdim=True)
        enough = length > (torch.finfo(g.dtype).eps ** 2) * r.square().sum(-1, keepdim=True)
        scale = (square / length.where(enough, 1.0)).clamp_min(tiny).sqrt()
        result[name] = (rest * scale).where(enough & (square > 0), 0.0).reshape(tensor.shape)
    return result


def _losses(local: Local, sent: Tensors, rate: float) -> Tensor:
    """Return each client's mean loss on its batch after a step along `sent`, (client,), in double precision: losses of
    different draws differ by about 1e-9."""
    buffers = {name: value.double() for name, value in local.model.named_buffers() if value.is_floating_point()}

    def of_client(weights: Tensors, step: Tensors, inputs: Tensor, labels: Tensor) -> Tensor:
        moved = {name: value.double() - rate * step[name].double() for name, value in weights.items()}
        logits = functional_call(local.model, {**buffers, **moved}, (inputs.double(),))
        return torch.nn.functional.cross_entropy(logits, labels)

    with torch.no_grad():
        losses: Tensor = vmap(of_client)(dict(local.weights), dict(sent), local.inputs, local.labels)
    return losses


@dataclass(frozen=True, slots=True, kw_only=True)
class Censor(Defense):
    """Send a random vector for each tensor, orthogonal to a local step's mean gradient and as long, in place of the
    gradient. Of `trials` draws, the draw is sent with the least loss on the batch after a step along it.

    An attacker who knows the defense has two exact equations for each tensor: the true gradient is orthogonal to the
    reading, and as long. These suffice to name an example among candidates (`gallery`), but are too few for the values
    of an image. No bound limits the effect of an example on the reading, hence no ε.

    Departures from the authors' code, each in favour of the defense. The code divides by ‖g‖ in place of ‖g‖²: vectors
    are orthogonal only for ‖g‖ = 1. The code sends the true gradient if no draw lowers the loss, and from epoch 10 on.
    A type-2 reading is an example's gradient before the defense."""

    reference = "Zhang et al. 2025 (CENSOR), NDSS; code KaiyuanZh/censor, defense.py"
    stages = ("step",)

    trials: int = parameter(20, "number of random draws", source="CENSOR's code", low=1)
    rate: float = parameter(1e-4, "learning rate of the step for the loss", source="CENSOR's code", above=0)

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"step": (SendOrthogonal(trials=self.trials, rate=self.rate),)}
