"""CENSOR: vectors orthogonal to the gradient, by a float64 oracle, and an attacker who knows of the orthogonality."""

from pathlib import Path
from typing import cast

import pytest
import torch
from tests.cells import attack, entry
from torch import Tensor, nn
from torch.func import functional_call

from bench.answer.attack import attack as run_attack
from bench.answer.context import Memory, RunContext
from bench.cell import Federated, Grants
from bench.defenses.base import Context, Local, Setting
from bench.defenses.censor import SendOrthogonal
from bench.federated.draws import KeyedDraws

SETTING = Setting(clients=10, per_round=5, rounds=1, steps=1, batch=4, client_examples=8, rate=0.1)
CLIENTS, TRIALS = 3, 6


def context() -> tuple[Context, dict[str, Tensor]]:
    """A small net's weights, random gradients, one of them zero, and batches of four examples."""
    source = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3)).double()
    weights = {name: torch.randn(each.shape, generator=source).double() for name, each in model.named_parameters()}
    gradients = {
        name: 3 * torch.randn(CLIENTS, *value.shape, generator=source).double() for name, value in weights.items()
    }
    gradients["0.bias"][1] = 0.0
    local = Local(
        model=model,
        weights={name: value.expand(CLIENTS, *value.shape) for name, value in weights.items()},
        inputs=torch.rand(CLIENTS, 4, 5, generator=source).double(),
        labels=torch.randint(3, (CLIENTS, 4), generator=source),
    )
    draws = KeyedDraws(seed=0, fields=("test",), rows=tuple((client,) for client in range(CLIENTS)))
    made = Context(lead=1, stage="step", round=0, step=0, setting=SETTING, draws=draws, local=local)
    return made, gradients


def test_each_tensor_sent_is_orthogonal_to_the_gradient_and_as_long() -> None:
    now, gradients = context()
    sent = SendOrthogonal(trials=TRIALS, rate=0.1).apply(gradients, now)
    for name, g in gradients.items():
        o, truth = sent[name].flatten(1), g.flatten(1)
        assert torch.allclose((o * truth).sum(1), torch.zeros(CLIENTS).double(), atol=1e-12)
        assert torch.allclose(o.norm(dim=1), truth.norm(dim=1))
    assert not sent["0.bias"][1].any()


def test_the_draw_with_the_least_loss_after_a_step_is_sent() -> None:
    """The oracle projects each draw by itself, and steps with a large rate."""
    (now, gradients), rate = context(), 0.5
    assert now.local is not None
    sent = SendOrthogonal(trials=TRIALS, rate=rate).apply(gradients, now)
    chosen = []
    for client in range(CLIENTS):
        losses, rows = [], []
        for trial in range(TRIALS):
            row = {}
            for name, value in gradients.items():
                g, r = value[client], now.draws.normal(f"{name}/{trial}", value)[client]
                rest = r - (r * g).sum() / g.square().sum().clamp_min(1e-300) * g
                row[name] = rest * (g.norm() / rest.norm())
            moved = {name: now.local.weights[name][client] - rate * step for name, step in row.items()}
            logits = functional_call(now.local.model, moved, (now.local.inputs[client],))
            losses.append(float(nn.functional.cross_entropy(logits, now.local.labels[client])))
            rows.append(row)
        best = losses.index(min(losses))
        chosen.append(best)
        for name, expected in rows[best].items():
            assert torch.allclose(sent[name][client], expected, atol=1e-12)
    assert len(set(chosen)) > 1  # clients choose by themselves


@pytest.mark.parametrize(("batch", "mates"), [(1, False), pytest.param(16, True, marks=pytest.mark.slow)])
def test_an_attacker_who_knows_censor_names_the_example(tmp_path: Path, batch: int, mates: bool) -> None:
    """Behind the same readings, the plain attacker names about a candidate in 40."""
    named = {}
    for knowledge in ("plain", "adaptive"):
        cell = attack(
            attack=entry("attacks", "gallery"),
            defense=entry("defenses", "censor", trials=4),
            knowledge=knowledge,
            grants=Grants(gallery=40, mates=mates),
            federated=Federated(clients=20, per_round=3, batch=batch),
            point="type-1",
            readings=12,
        )
        result, _ = run_attack(cell, RunContext(run=tmp_path), Memory())
        named[knowledge] = sum(cast(bool, each.named) for row in result.readings for each in row.examples)
    assert named["adaptive"] == 12
    assert named["plain"] <= 3
