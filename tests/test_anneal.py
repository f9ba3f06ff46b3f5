"""Promise: a defense's hard decisions, in a mean of clients, hide no example from a search over gradual versions."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.contracts.base import ContractBroken
from bench.contracts.descriptions import gradual as contract
from bench.defenses.base import Context, Setting, StageTransforms, State, Tensors, Transform
from bench.defenses.prune import Prune
from bench.defenses.transforms.mask import KeepLargest
from bench.defenses.transforms.sign import ScaledSign
from bench.federated import gradual
from bench.federated.draws import CentralDraws
from bench.federated.straight_through import straight_through

SETTING = Setting(clients=100, per_round=10, rounds=20, steps=1, batch=1, client_examples=50, rate=0.1)
CONTEXT = Context(lead=1, stage="client", round=0, step=0, setting=SETTING, draws=CentralDraws(lead=1))


def tensors(rows: int = 2) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(3)
    shapes = {"a": (40, 5), "b": (60,)}
    return {name: torch.randn(rows, *shape, generator=source) ** 3 for name, shape in shapes.items()}


@dataclass(frozen=True)
class Coded(Transform):
    """A transform of which attackers know only the code."""

    kind: str

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        if self.kind == "sign":
            return {name: value.sign() for name, value in tensors.items()}
        if self.kind == "levels":
            return {name: value.round() for name, value in tensors.items()}
        if self.kind == "mask":
            return {name: value * (value.abs() > 0.5) for name, value in tensors.items()}
        return {name: value.flip(1).sign() for name, value in tensors.items()}


def test_a_sign_of_great_width_is_the_best_linear_approximation() -> None:
    given = tensors()
    soft, _ = ScaledSign().smoothed(given, {}, CONTEXT, 1e4)
    hard = ScaledSign().apply(given, CONTEXT)
    for name, value in given.items():
        flat, target = value.flatten(1), hard[name].flatten(1)
        slope = (flat * target).sum(1) / flat.square().sum(1)
        assert torch.allclose(soft[name].flatten(1), slope[:, None] * flat, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("width", [1.0, 0.1, 1e-3])
def test_the_factor_of_a_gradual_mask_leaves_the_least_distance(width: float) -> None:
    given = tensors()
    transform = KeepLargest(share=0.7)
    soft, _ = transform.smoothed(given, {}, CONTEXT, width)
    hard = transform.apply(given, CONTEXT)
    s, h = (torch.cat([v.flatten(1) for v in each.values()], 1).double() for each in (soft, hard))
    assert ((s * (h - s)).sum(1).abs() <= 1e-5 * s.square().sum(1)).all()  # the gap is orthogonal to the result


@pytest.mark.parametrize("width", [2.0, 0.3, 0.02])
def test_local_lines_against_a_loop(width: float) -> None:
    before = torch.randn(2, 37, generator=torch.Generator().manual_seed(0)).double()
    after = before.sign() + 0.1 * before
    means, slopes = gradual._local_lines(before, after, width)
    reach = max(gradual._LEAST, round(37 * width / (1 + width) / 2))
    for row in range(2):
        order = before[row].argsort()
        for place, at in enumerate(order.tolist()):
            near = order[max(0, place - reach) : place + reach + 1]
            slope, constant = np.polyfit(before[row, near].numpy(), after[row, near].numpy(), 1)
            assert slopes[row, at] == pytest.approx(slope, rel=1e-6, abs=1e-9)
            assert means[row, at] == pytest.approx(slope * float(before[row, at]) + constant, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("kind", "gradual_"), [("sign", True), ("levels", True), ("mask", True), ("moved", False)])
def test_a_decision_by_coordinate_is_recognised(kind: str, gradual_: bool) -> None:
    """A transform which moves coordinates keeps the identity's derivative."""
    code = straight_through(Coded(kind), tensors(1), {}, CONTEXT)
    made = code.smoothed(tensors(1), {}, CONTEXT, 0.5)
    assert (made is not None) == (gradual_ and code.slopes is not None)
    if made is not None:
        free = {name: value.requires_grad_() for name, value in tensors(1).items()}
        soft, _ = code.smoothed(free, {}, CONTEXT, 0.5) or ({}, {})
        slopes = torch.autograd.grad(torch.stack([value.sum() for value in soft.values()]).sum(), list(free.values()))
        assert all(bool(slope.isfinite().all()) for slope in slopes)
        assert torch.cat([slope.flatten() for slope in slopes]).mean() > 0


def test_a_gradual_version_of_another_decision_breaks_the_contract() -> None:
    class Wrong(KeepLargest):
        def smoothed(
            self, tensors: Tensors, state: State, context: Context, width: float
        ) -> tuple[dict[str, Tensor], State]:
            return KeepLargest(share=0.1).smoothed(tensors, state, context, width)

    class Odd(Prune):
        def transforms(self, setting: Setting) -> StageTransforms:
            return {"client": (Wrong(share=0.7),)}

    contract(Prune(share=0.7, at="client"))
    with pytest.raises(ContractBroken, match="off `expected`"):
        contract(Odd(share=0.7, at="client"))
