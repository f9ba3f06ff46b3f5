"""The published reconstruction loops, one victim at a time: what the engine's speed is measured against.

Written from the papers' descriptions.  Each is as lean as its description allows (no printing, no
trajectory, derivatives with respect to the candidate alone), so that the ratios are fair.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The last candidate (*shape) of a loop, its last computed loss, evaluations used."""

    example: Tensor
    loss: float
    evaluations: int


def published_lbfgs(
    model: nn.Module, weights: Tensors, gradient: Tensors, label: int, start: Tensor, outer: int, stop_loss: float
) -> Result:
    """iDLG (Zhao et al. 2020) from a Gaussian `start`, CPL (Wei et al. 2020) from a patterned one.

    Minimises ‖∇L(x', y) - g‖² by `torch.optim.LBFGS(lr=1, history_size=100, max_iter=20)`, at most
    `outer` of its steps of 20 evaluations; ends after a step whose last loss is below
    `stop_loss`, or whose candidate is not finite.  `gradient` name → (*parameter shape), `start` (*shape).
    """
    _load(model, weights)
    candidate, target = _candidate(start), torch.tensor([label])
    parameters = [value for _, value in model.named_parameters()]
    observed = [gradient[name] for name, _ in model.named_parameters()]
    optimiser = torch.optim.LBFGS([candidate], lr=1, history_size=100, max_iter=20)
    evaluations, last = 0, float("inf")

    def closure() -> Tensor:
        nonlocal evaluations, last
        evaluations += 1
        loss = F.cross_entropy(model(candidate), target)
        sent = torch.autograd.grad(loss, parameters, create_graph=True)
        gap = torch.stack([((a - b) ** 2).sum() for a, b in zip(sent, observed, strict=True)]).sum()
        (candidate.grad,) = torch.autograd.grad(gap, candidate)
        last = float(gap.detach())
        return gap.detach()

    for _ in range(outer):
        optimiser.step(closure)
        if last < stop_loss or not torch.isfinite(candidate).all():
            break
    return Result(example=candidate.detach()[0], loss=last, evaluations=evaluations)


def published_gradinv(
    model: nn.Module,
    weights: Tensors,
    gradient: Tensors,
    label: int,
    start: Tensor,
    iterations: int,
    *,
    tv: float = 1e-4,
    signed: bool = True,
    box: tuple[float, float] = (0.0, 1.0),
) -> Result:
    """Inverting gradients (Geiping et al. 2020, §4): 1 - cos(∇L(x', y), g) + α TV(x'), by Adam.

    Rate .1, times .1 after 3/8, 5/8 and 7/8 of the iterations; the sign of the derivative if `signed`;
    the candidate is clamped to `box` after every step.
    """
    _load(model, weights)
    candidate, target = _candidate(start), torch.tensor([label])
    parameters = [value for _, value in model.named_parameters()]
    observed = [gradient[name] for name, _ in model.named_parameters()]
    energy = torch.stack([(value * value).sum() for value in observed]).sum()
    optimiser = torch.optim.Adam([candidate], lr=0.1)
    milestones = [int(iterations * share / 8) for share in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones=milestones, gamma=0.1)
    last = float("inf")

    for _ in range(iterations):
        loss = F.cross_entropy(model(candidate), target)
        sent = torch.autograd.grad(loss, parameters, create_graph=True)
        dot = torch.stack([(a * b).sum() for a, b in zip(sent, observed, strict=True)]).sum()
        norm = torch.stack([(a * a).sum() for a in sent]).sum()
        total = 1 - dot / (norm * energy).sqrt() + tv * _variation(candidate)
        (candidate.grad,) = torch.autograd.grad(total, candidate)
        last = float(total.detach())
        if signed:
            candidate.grad.sign_()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            candidate.clamp_(*box)
    return Result(example=candidate.detach()[0], loss=last, evaluations=iterations)


def _variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, across and down."""
    return (x[..., :, 1:] - x[..., :, :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()


def _candidate(start: Tensor) -> Tensor:
    return start[None].clone().requires_grad_()


def _load(model: nn.Module, weights: Tensors) -> None:
    with torch.no_grad():
        for name, value in weights.items():
            model.get_parameter(name).copy_(value)
