"""Structured updates: local training inside a mask or A·B equals training the few variables, at every local step."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from tests.test_pipeline import BATCH, CLASSES, CLIENTS, batches, setting
from torch import Tensor, nn
from torch.func import functional_call

from bench.cell import Federated
from bench.defenses.base import Context, Defense
from bench.defenses.none import NoDefense
from bench.defenses.structured import Structured
from bench.defenses.transforms.structure import TrainInside
from bench.federated.draws import NoDraws
from bench.federated.pipeline import run_round
from bench.federated.stages import DrawKey, stages

MODEL = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(3 * 36, CLASSES)).double()
Kind = Literal["mask", "low-rank"]
RATE, KEPT = 0.5, 0.4


@pytest.fixture
def weights() -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(0)
    shapes = {name: value.shape for name, value in MODEL.named_parameters()}
    return {name: 0.3 * torch.randn(shape, generator=made, dtype=torch.float64) for name, shape in shapes.items()}


def here(steps: int = 1, round_: int = 0) -> Context:
    return Context(lead=1, stage="step", round=round_, step=0, setting=setting(steps), draws=NoDraws())


def updates(defense: Defense, start: dict[str, Tensor], steps: int) -> dict[str, Tensor]:
    """The clients' updates of round 0, in float64."""
    federated = Federated(algorithm="fedavg", steps=steps, batch=BATCH, rate=RATE)
    staged = stages(defense, replace(setting(steps), rate=RATE), {n: tuple(v.shape) for n, v in start.items()})
    key = DrawKey(seed=0, draw=0, round=0)
    shown = run_round(MODEL, start, batches(steps), federated, staged, key, classes=CLASSES).shown
    return dict(shown["client"])


def trained_variables(kind: Kind, start: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Autograd and SGD of the variables themselves: B in w_0 - A·B, the masked coordinates, or a whole bias."""
    it = Structured(structure=kind, kept=KEPT).transforms(setting())["step"][0]
    whole = {name: torch.ones(1, *value.shape, dtype=value.dtype) for name, value in start.items()}
    moves, bases = {}, {}
    for name, value in start.items():
        if kind == "mask":
            bases[name] = it.apply(whole, here())[name][0]
        elif value.dim() > 1:  # columns of A from the image of the identity: A·Aᵀ
            rows = len(value)
            eye = torch.eye(rows, dtype=value.dtype).reshape(1, rows, rows)
            square = TrainInside(structure=kind, kept=KEPT * min(rows, value[0].numel()) / rows, seed=0)
            vectors = torch.linalg.eigh(square.apply({name: eye}, here())[name][0])
            bases[name] = vectors.eigenvectors[:, vectors.eigenvalues > 0.5]
        shape = value.shape if kind == "mask" or value.dim() < 2 else (bases[name].shape[1], value[0].numel())
        moves[name] = torch.zeros(shape, dtype=value.dtype, requires_grad=True)

    def update(name: str) -> Tensor:
        move = moves[name]
        if kind == "mask":
            return bases[name] * move
        return (bases[name] @ move).reshape(start[name].shape) if name in bases else move

    optimizer = torch.optim.SGD(list(moves.values()), lr=RATE)
    for x, y in zip(inputs, labels, strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            functional_call(MODEL, {n: start[n] + update(n) for n in start}, (x,)), y
        ).backward()
        optimizer.step()
    return {name: -update(name).detach() for name in start}


@pytest.mark.parametrize("kind", ["mask", "low-rank"])
@pytest.mark.parametrize("steps", [1, 4])
def test_an_update_is_that_of_sgd_on_the_variables(kind: Kind, steps: int, weights: dict[str, Tensor]) -> None:
    found, given = updates(Structured(structure=kind, kept=KEPT), weights, steps), batches(steps)
    for client in range(CLIENTS):
        expected = trained_variables(kind, weights, given.inputs[client], given.labels[client])
        for name in weights:
            torch.testing.assert_close(found[name][client], expected[name], atol=1e-13, rtol=1e-10)


@pytest.mark.parametrize("kind", ["mask", "low-rank"])
def test_a_finished_update_restricted_afterwards_is_another_after_several_steps(
    kind: Kind, weights: dict[str, Tensor]
) -> None:
    """What `random-prune` sends, with the same mask: equal after one step only."""
    defense = Structured(structure=kind, kept=KEPT)
    for steps, equal in ((1, True), (4, False)):
        inside, free = updates(defense, weights, steps), updates(NoDefense(), weights, steps)
        after = defense.transforms(setting(steps))["step"][0].apply(free, here())
        apart = max(float((inside[n] - after[n]).norm() / after[n].norm()) for n in weights)
        assert apart < 1e-12 if equal else apart > 1e-3, (steps, apart)


def test_structures_have_their_size_are_new_each_round_and_are_projections() -> None:
    given = {"a": torch.randn(2, 20, 30, dtype=torch.float64), "b": torch.randn(2, 20, dtype=torch.float64)}
    for kind in ("mask", "low-rank"):
        it = TrainInside(structure=kind, kept=0.25, seed=0)  # type: ignore[arg-type]
        once = it.apply(given, here())
        twice = it.apply(once, here())
        assert all(torch.allclose(once[n], twice[n], atol=1e-14) for n in given)
        others = (it.apply(given, here(round_=1)), replace(it, seed=1).apply(given, here()))
        assert not any(torch.allclose(once["a"], other["a"]) for other in others)
        if kind == "mask":
            assert [int((row != 0).sum()) for n in given for row in once[n]] == [150, 150, 5, 5]
        else:
            assert [int(torch.linalg.matrix_rank(row)) for row in once["a"]] == [5, 5]
            assert torch.equal(once["b"], given["b"])


def test_a_mask_keeps_each_coordinate_equally_often_and_a_projection_shortens_alike() -> None:
    """Over 400 rounds, to five standard errors: a coordinate with probability `kept`; E[A·Aᵀ] = k/out · 1."""
    rounds, given = 400, {"a": torch.eye(8, dtype=torch.float64)[None]}
    for kind, tolerance in (("mask", (0.25 * 0.75 / rounds) ** 0.5), ("low-rank", (0.25 / rounds) ** 0.5)):
        whole = given if kind == "low-rank" else {"a": torch.ones(1, 8, 8, dtype=torch.float64)}
        it = TrainInside(structure=kind, kept=0.25, seed=3)  # type: ignore[arg-type]
        mean = torch.stack([it.apply(whole, here(round_=n))["a"][0] for n in range(rounds)]).mean(0)
        expected = 0.25 * (torch.eye(8) if kind == "low-rank" else torch.ones(8, 8))
        assert float((mean - expected).abs().max()) < 5 * tolerance


def test_whole_is_no_defense(weights: dict[str, Tensor]) -> None:
    bare = updates(NoDefense(), weights, 3)
    for kind in ("mask", "low-rank"):
        found = updates(Structured(structure=kind, kept=1.0), weights, 3)  # type: ignore[arg-type]
        # a low-rank A has min(out, rest) columns: square where out is the smaller side, as here
        assert all(torch.allclose(found[n], bare[n], atol=1e-13) for n in weights)


def test_a_diverged_gradient_stays_inside_the_mask() -> None:
    given = {"a": torch.full((1, 40), torch.inf)}
    found = TrainInside(structure="mask", kept=0.5, seed=0).apply(given, here())["a"]
    assert int(found.isinf().sum()) == 20 and int((found == 0).sum()) == 20


def test_shares_outside_the_unit_interval_are_refused() -> None:
    with pytest.raises(ValueError, match="share of trained variables must lie in"):
        TrainInside(structure="mask", kept=0.0, seed=0)
