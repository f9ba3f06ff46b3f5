"""Promise: every attack, defense, point and training runs on a GPU without a tensor left on the host, and waits seldom.

Rehearsed on the CPU (`tests/rehearsal.py`).
"""

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.benchmarks.small_cells import FEDERATED, attack_cell, pictures, training_cell
from tests.rehearsal import Rehearsal
from torch import Tensor
from torch.func import functional_call, grad, vmap

from bench.answer.context import Memory, RunContext
from bench.answer.run import run
from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch
from bench.attacks.solvers import loop
from bench.attacks.solvers.base import Evaluate
from bench.cell import AnyCell, Bayesian, CheckpointWeights, Entry, Grants
from bench.device import repeatable, tf32
from bench.federated import clients, resume
from bench.federated.replayed import Step
from bench.federated.stages import Stages
from bench.matrix.entries import registered
from bench.points import POINTS
from bench.record.schema import Record
from bench.record.store import write
from bench.registry import entries as registry
from bench.rows import kth_smallest, median

SEVERAL_STEPS = FEDERATED.model_copy(update={"algorithm": "fedavg", "steps": 2})
OURS = {"line_search": "backtracking", "restarts": 2, "refine_float64": True}
MEMORY = 500_000  # bytes in one piece: less than the history of eight readings takes, more than that of four
# Kernels of an evaluation, plain and adaptive, at the commit that began to count them.
LIMITS = {"cpl": (324, 748), "gradinv": (315, 720), "map": (400, 777)}


def rehearsed(cell: AnyCell, folder: Path, **conditions: Any) -> tuple[Record, Rehearsal]:
    with Rehearsal(**conditions) as on:
        record = run(cell, RunContext(run=folder, device="cuda"), Memory())
    return record, on


def sound(record: Record) -> None:
    assert record.status != "crashed", record.reason


@pytest.mark.slow
@pytest.mark.parametrize("knowledge", ["plain", "adaptive", "black-box"])
@pytest.mark.parametrize("attack", registry.names("attacks"))
def test_every_attack(tmp_path: Path, attack: str, knowledge: str) -> None:
    record, on = rehearsed(attack_cell(attack, "gaussian", knowledge=knowledge), tmp_path)
    sound(record)
    if record.status == "done" and not attack.startswith("prior-"):
        assert on.kernels, "nothing ran on the GPU"


@pytest.mark.slow
@pytest.mark.parametrize("knowledge", ["plain", "adaptive"])
@pytest.mark.parametrize("attack", ["cpl", "gradinv", "map"])
def test_an_evaluation_can_be_recorded_as_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str, knowledge: str
) -> None:
    """After the first, which looks at the model, an evaluation copies nothing from the host and waits for nothing."""
    seen: Counter[object] = Counter()
    with Rehearsal() as on:

        def watched(evaluate: Evaluate, device: torch.device) -> Evaluate:
            calls = 0

            def call(x: Tensor) -> tuple[Tensor, Tensor]:
                nonlocal calls
                calls, before = calls + 1, on.uploads + on.waits
                found = evaluate(x)
                if calls > 1:
                    seen.update((on.uploads + on.waits) - before)
                return found

            return call

        monkeypatch.setattr(loop, "replayed", watched)
        cell = attack_cell(attack, "gaussian", knowledge=knowledge, dataset=pictures(), evaluations=20)
        record = run(cell, RunContext(run=tmp_path, device="cuda"), Memory())
    sound(record)
    assert not seen, seen


@pytest.mark.parametrize(
    "defense",
    [
        "dp-sgd",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("none", "fed-alpha-cdp", "quantile:at=example", "adaclip:at=example")
        ),
    ],
)
def test_a_local_step_can_be_recorded_as_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defense: str) -> None:
    """After the first, a steady defense's step copies nothing from the host and waits for nothing."""
    seen: Counter[bool] = Counter()
    name, _, at = defense.partition(":at=")
    params = {"at": at, "sigma": 0.5} | ({"correction": "none"} if name == "quantile" else {}) if at else {}
    setting = FEDERATED.model_copy(update={"algorithm": "fedavg", "steps": 3})
    cell = training_cell(registered("defense", {"name": name, **params}, registry), federated=setting)
    with Rehearsal() as on:

        def watched(step: Step, stages: Stages, *of: Any) -> Step:
            assert stages.steady

            def call(inputs: Tensor, labels: Tensor, stages: Stages, number: int) -> Stages:
                before = on.uploads.total() + on.waits.total()
                after = step(inputs, labels, stages, number)
                seen[number > 0 and on.uploads.total() + on.waits.total() > before] += 1
                return after

            return call

        monkeypatch.setattr(clients, "replayed", watched)
        record = run(cell, RunContext(run=tmp_path, device="cuda"), Memory())
    sound(record)
    assert seen[False] and not seen[True], seen


def test_what_cuda_does_not_repeat_is_refused() -> None:
    with Rehearsal(), repeatable("cuda"):
        values = torch.rand(3, 5, device="cuda")
        assert median(values).shape == (3,)
        for refused in (lambda: values.median(1), lambda: values.cumsum(1), lambda: values.kthvalue(2)):
            with pytest.raises(RuntimeError, match="on CUDA is not repeatable"):
                refused()


@pytest.mark.parametrize("k", [1, 5, 9])
def test_the_kth_smallest_value_is_that_of_torch(k: int) -> None:
    values = torch.rand(2, 3, 9, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    expected = values.kthvalue(k, dim=-1, keepdim=True).values
    assert torch.equal(kth_smallest(values, k), expected)
    with Rehearsal(), repeatable("cuda"):
        assert torch.equal(kth_smallest(values.to("cuda"), k).cpu(), expected)


def test_the_median_of_a_row_is_that_of_torch() -> None:
    values = torch.rand(4, 8, generator=torch.Generator().manual_seed(0))
    values[0, :3], values[1, 1], values[3] = torch.nan, 0.5, torch.nan
    assert torch.equal(median(values).nan_to_num(-1), values.nanmedian(1).values.nan_to_num(-1))


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("defense", registry.names("defenses"))
def test_every_defense_described_at_every_point(tmp_path: Path, defense: str, point: str) -> None:
    record, _ = rehearsed(attack_cell("cpl", defense, knowledge="adaptive", point=point, evaluations=3), tmp_path)
    sound(record)


@pytest.mark.slow
@pytest.mark.parametrize("defense", registry.names("defenses"))
def test_every_defense_in_a_training(tmp_path: Path, defense: str) -> None:
    """Whole, then attacked at a checkpoint, where a defense with memory is replayed."""
    training = training_cell(defense, checkpoints=(2,))
    record, on = rehearsed(training, tmp_path)
    sound(record)
    if record.status != "done":
        return
    assert on.kernels
    write(tmp_path, record)
    weights = CheckpointWeights(training=training.id, round=2)
    at = attack_cell("cpl", defense, weights=weights, federated=training.federated, evaluations=3)
    attacked, _ = rehearsed(at, tmp_path)
    sound(attacked)
    assert attacked.status == "done", attacked.reason


@pytest.mark.parametrize(
    ("attack", "changes"),
    [
        pytest.param(
            "map", {"federated": FEDERATED.model_copy(update={"batch": 3}), "chunk": 1}, marks=pytest.mark.slow
        ),
        ("gallery", {"grants": Grants(gallery=20), "knowledge": "adaptive"}),
    ],
)
def test_some_ways(tmp_path: Path, attack: str | Entry, changes: dict[str, Any]) -> None:
    record, _ = rehearsed(attack_cell(attack, "gaussian", **changes), tmp_path)
    assert record.status == "done", record.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "changes"),
    [
        ("map", {"model": Entry(name="dlg-lenet", params={"activation": "relu", "width": 0.1})}),
        ("map", {"federated": SEVERAL_STEPS, "grants": Grants()}),
        ("map", {"knowledge": "adaptive", "reference": True}),
        (Entry(name="idlg", params=OURS), {"grants": Grants(), "evaluations": 40}),
        ("cpl", {"grants": Grants(repeated_readings=3), "knowledge": "adaptive"}),
        (Entry(name="cpl", params={"local": "unrolled"}), {"federated": SEVERAL_STEPS, "knowledge": "adaptive"}),
        (
            "gallery",
            {
                "grants": Grants(gallery=20),
                "knowledge": "adaptive",
                "federated": FEDERATED.model_copy(update={"batch": 3}),
            },
        ),
    ],
)
def test_other_ways(tmp_path: Path, attack: str | Entry, changes: dict[str, Any]) -> None:
    record, _ = rehearsed(attack_cell(attack, "gaussian", **changes), tmp_path)
    assert record.status == "done", record.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defense", "params"), [("adaclip", {"at": "example"}), ("quantile", {"at": "example", "correction": "none"})]
)
def test_a_defense_with_memory_is_replayed_where_its_training_ran(
    tmp_path: Path, defense: str, params: dict[str, Any]
) -> None:
    """Draws of a GPU's own generator: on the host its training would end at other weights."""
    entry = Entry(name=defense, params=params)
    training = training_cell(defense=entry, checkpoints=(2,))
    record, _ = rehearsed(training, tmp_path)
    assert record.status == "done", record.reason
    write(tmp_path, record)
    at = attack_cell(
        "cpl",
        weights=CheckpointWeights(training=training.id, round=2),
        federated=training.federated,
        defense=entry,
        evaluations=3,
        knowledge="adaptive",
    )
    attacked, _ = rehearsed(at, tmp_path)
    assert attacked.status == "done", attacked.reason


@pytest.mark.slow
def test_a_training_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = training_cell(
        defense=Entry(name="adaclip", params={"at": "example"}), rounds=4, bayesian=Bayesian(levels=("client",))
    )
    whole, _ = rehearsed(cell, tmp_path / "whole")

    def cut(*arguments: Any) -> None:
        saved(*arguments)
        raise KeyboardInterrupt

    saved = resume.save
    with monkeypatch.context() as patch:
        patch.setattr(resume, "save", cut)
        with Rehearsal(), pytest.raises(KeyboardInterrupt):
            run(cell, RunContext(run=tmp_path, device="cuda", save_every=0), Memory())
    assert resume.place(tmp_path, cell.id).exists()
    resumed, _ = rehearsed(cell, tmp_path)
    assert resumed.training is not None and whole.training is not None
    assert resumed.training == whole.training


@pytest.mark.slow
def test_out_of_memory_halves_the_chunk(tmp_path: Path) -> None:
    cell = attack_cell("cpl", readings=8, chunk=8, evaluations=120)
    whole, _ = rehearsed(cell, tmp_path)
    record, _ = rehearsed(cell, tmp_path, memory=MEMORY)
    assert record.attack is not None and whole.attack is not None, record.reason
    halved = [note for note in record.attack.notes if note.startswith("out of memory")]
    assert halved == ["out of memory: went on with 4 readings at once"]
    for one, other in zip(record.attack.readings, whole.attack.readings, strict=True):
        assert [each.success for each in one.examples] == [each.success for each in other.examples] == [True]


def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that somebody made on the host."""
    original = Distance.__call__

    def forgetful(self: Distance, candidate: Any, observed: Any) -> Tensor:
        return original(self, candidate, observed) + torch.zeros(len(next(iter(observed.values()))))

    monkeypatch.setattr(Distance, "__call__", forgetful)
    record, on = rehearsed(attack_cell(), tmp_path)
    assert record.status == "crashed" and "tensors on two devices" in str(record.reason)
    ((_, line),) = on.mixes
    assert line.startswith("bench.attacks.objective.mismatch:")


@pytest.mark.parametrize("knowledge", ["plain", pytest.param("adaptive", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "attack", ["cpl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gradinv", "map"))]
)
def test_waits_and_kernels_of_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str, knowledge: str
) -> None:
    """At most what they were (`LIMITS`), and a tenth.  Two budgets: what the set-up takes is in both."""
    called, original = Counter[int](), Mismatch.__call__
    done = {}
    for evaluations in (12, 32):

        def counted(self: Mismatch, *given: Any, evaluations: int = evaluations, **named: Any) -> Tensor:
            called[evaluations] += 1
            return original(self, *given, **named)

        monkeypatch.setattr(Mismatch, "__call__", counted)
        cell = attack_cell(attack, "prune", knowledge=knowledge, evaluations=evaluations)
        _, done[evaluations] = rehearsed(cell, tmp_path)
    count = called[32] - called[12]
    waits = (done[32].waits.total() - done[12].waits.total()) / count
    kernels = (done[32].kernels.total() - done[12].kernels.total()) / count
    assert count >= 10 and waits <= 4
    assert kernels <= 1.1 * LIMITS[attack][knowledge == "adaptive"], f"{kernels:.0f} kernels, {waits:.1f} waits"


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises((RuntimeError, TypeError)) as raised:
        call()
    return str(raised.value)


def test_the_rehearsal_itself() -> None:
    """What CUDA does, as far as it is rehearsed."""
    with Rehearsal() as on:
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        assert (here.device.type, there.device.type, there[1:].device.type) == ("cpu", "cuda", "cuda")
        assert there.is_cuda and (2 * there).is_cuda and there.detach().is_cuda and not there.cpu().is_cuda
        assert here.to("cuda").is_cuda and here.cuda().double().is_cuda and torch.zeros_like(there).is_cuda
        assert "two devices" in refused(lambda: here + there)
        assert "two devices" in refused(lambda: torch.stack([there.sum(), torch.tensor(1.0)]))
        assert (there + torch.tensor(2.0)).is_cuda, "a number may lie anywhere"
        assert there[torch.tensor([0])].is_cuda
        assert "indices" in refused(lambda: here[torch.tensor([0], device="cuda")])
        assert "numpy" in refused(there.numpy) and "numpy" in refused(lambda: np.asarray(there))
        assert "generator" in refused(lambda: there.normal_(generator=torch.Generator()))
        drawn = torch.randn(3, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
        assert not torch.equal(drawn.cpu(), torch.randn(3, generator=torch.Generator().manual_seed(3)))
        target = torch.zeros(3)
        target.copy_(there)
        assert not target.is_cuda
        layer = torch.nn.Linear(3, 2).to("cuda")
        assert layer.weight.is_cuda and copy.deepcopy(layer).weight.is_cuda
        x = torch.randn(4, 3).cuda().requires_grad_()
        first = torch.autograd.grad(layer(x).square().sum(), [*layer.parameters(), x], create_graph=True)
        second = torch.autograd.grad(torch.stack([each.square().sum() for each in first]).sum(), x)[0]
        assert all(each.is_cuda for each in (*first, second))
        weights = {name: value.detach() for name, value in layer.named_parameters()}

        def loss(values: dict[str, Tensor], row: Tensor) -> Tensor:
            return functional_call(layer, values, (row,)).square().sum()

        each = vmap(grad(loss), in_dims=(None, 0))
        assert all(value.is_cuda for value in each(weights, x.detach()).values())
        assert "two devices" in refused(lambda: each(weights, torch.randn(4, 3)))
        on.waits.clear()
        bool(there.any()), there.sum().item(), there.tolist(), there[there > 0], torch.nonzero(there)
        assert on.waits.total() == 5
        there[there > 0] = 0
        assert on.waits.total() == 5, "filling by a mask does not wait"
    assert not torch.cuda.is_available() or torch.version.cuda
    assert torch.zeros(2).device.type == "cpu"


def test_on_a_gpu_products_are_exact_and_repeat() -> None:
    backends: Any = torch.backends
    conv, matmul = backends.cudnn.conv, backends.cuda.matmul
    before = conv.fp32_precision, matmul.fp32_precision, torch.are_deterministic_algorithms_enabled()
    with repeatable("cuda"):
        assert (conv.fp32_precision, matmul.fp32_precision) == ("ieee", "ieee")
        assert torch.are_deterministic_algorithms_enabled()
    assert before == (conv.fp32_precision, matmul.fp32_precision, torch.are_deterministic_algorithms_enabled())
    assert tf32("cuda") is False and tf32("cpu") is None
