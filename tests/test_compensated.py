"""GradInv after compensation: the attacked update is what Risk-balanced's server would keep of it."""

from dataclasses import replace

import torch
from torch import Tensor

from bench.attacks.compensated_gradinv import CompensatedGradInv
from bench.attacks.gradinv import GradInv
from bench.cell import Federated
from bench.contracts.situations import setting_of, situation
from bench.defenses.base import Context
from bench.defenses.transforms.compensate import Compensate
from bench.federated.draws import NoDraws
from bench.gradients import one_hot
from bench.rows import flattened
from bench.trip import Reading, Tensors

CASE = situation("type-1", batch=1, readings=3)
VARIANCE = 1e-2


def _distances(attack: GradInv, values: Tensors) -> Tensor:
    """Of the true examples, (reading,)."""
    reading: Reading = replace(CASE.reading, values=values)
    truth = CASE.truth.to(next(iter(reading.weights.values())))
    return attack.objective(reading)(truth, one_hot(CASE.labels, reading.classes, truth.dtype))


def _noisy(share: float) -> dict[str, Tensor]:
    """The updates times `share`, in Gaussian noise of the attack's variance."""
    draw = torch.Generator().manual_seed(0)
    return {
        name: share * value + VARIANCE**0.5 * torch.randn(value.shape, generator=draw, dtype=value.dtype)
        for name, value in CASE.reading.values.items()
    }


def test_the_attacker_keeps_what_the_server_keeps() -> None:
    values, attack = _noisy(1.0), CompensatedGradInv(variance=VARIANCE)
    server = Compensate(variance=VARIANCE, quotient=attack.quotient, tolerance=attack.tolerance)
    context = Context(lead=2, stage="aggregate", round=0, step=0, setting=setting_of(Federated()), draws=NoDraws())
    kept = server.apply(values, context)
    assert (flattened(kept, 2) - flattened(values, 2)).norm() > 0.1 * flattened(values, 2).norm()
    found = _distances(attack, values)
    assert torch.equal(found, _distances(GradInv(), kept))
    assert (found < _distances(GradInv(), values)).all(), "the compensated update fits the truth better"


def test_an_update_of_noise_only_stays() -> None:
    noise = _noisy(0.0)
    assert torch.equal(_distances(CompensatedGradInv(variance=VARIANCE), noise), _distances(GradInv(), noise))


def test_without_a_variance_it_is_gradinv() -> None:
    values = _noisy(1.0)
    assert torch.equal(_distances(CompensatedGradInv(variance=0.0), values), _distances(GradInv(), values))
