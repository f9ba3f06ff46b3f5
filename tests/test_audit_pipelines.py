"""Promise: `bench audit` measures a loop of Opacus, a mod of Flower, a filter of NVFLARE, and every defense that has a
mechanism; what it measures and what it refuses is said in a line."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from tests.command import fault

from bench import api
from bench.audit import foreign, planted
from bench.audit.measure import Plan
from bench.audit.result import Audit
from bench.cli import audit as command
from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.dp_sgd import DpSgd
from bench.errors import BenchError
from bench.registry import entries as registry

Values = NDArray[np.float64]
ROOT = Path(__file__).parent.parent
OPACUS = str(ROOT / "docs" / "recipes" / "audit_opacus.py")
ZOO = str(ROOT / "tests" / "zoo.py")
UPDATES = np.full(6, 100.0), np.full(6, -100.0)  # a client's update in either world


# --- Opacus


@pytest.mark.filterwarnings("ignore")  # Opacus' own
def test_a_step_of_opacus_keeps_its_claim_and_breaks_half_of_it() -> None:
    score: Callable[[Values], float] = foreign.load(f"{OPACUS}:canarys")  # type: ignore[assignment]
    found = api.audit(f"{OPACUS}:step", runs=500, multiplier=1.0, score=score)
    assert not found.violated
    assert 0.4 < found.mu.value <= 1
    assert api.audit(f"{OPACUS}:step", runs=500, multiplier=4.0, score=score).violated


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_half_of_opacus_epsilon_is_found(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    step = foreign.load(f"{OPACUS}:step")
    monkeypatch.setitem(step.__globals__, "SIGMA", sigma)  # type: ignore[attr-defined]
    step.__globals__["training"].cache_clear()  # type: ignore[attr-defined]
    found = api.audit(step, multiplier=sigma, score=step.__globals__["canarys"])  # type: ignore[attr-defined]
    step.__globals__["training"].cache_clear()  # type: ignore[attr-defined]
    assert found.claim is not None
    assert found.claim.epsilon / 2 <= found.gaussian <= found.claim.epsilon


# --- Flower and NVFLARE: their calling conventions, and the real libraries where they are installed


@dataclass
class Message:
    """What a mod passes on."""

    arrays: list[Values]


def _through_mod(sensitivity: float) -> Callable[[int, int], list[Values]]:
    """A client whose mod clips to norm 1 and adds the noise of Flower's local differential privacy, ε = 4."""

    def mod(message: Message, context: object, call_next: Callable[[Message, object], Message]) -> Message:
        reply = call_next(message, context)
        norm = math.sqrt(sum(float(np.square(array).sum()) for array in reply.arrays))
        deviation = sensitivity * math.sqrt(2 * math.log(1.25 / 1e-5)) / 4
        return Message([array * min(1.0, 1 / norm) + rng.normal(0, deviation, array.shape) for array in reply.arrays])

    rng = np.random.default_rng()

    def client(world: int, seed: int) -> list[Values]:
        nonlocal rng
        rng = np.random.default_rng(seed)
        return mod(Message([]), {}, lambda message, context: Message([UPDATES[world]])).arrays

    return client


def _multiplier(epsilon: float = 4.0, delta: float = 1e-5) -> float:
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def test_a_mod_with_the_sensitivity_of_a_replaced_client_keeps_its_claim() -> None:
    found = api.audit(_through_mod(2.0), runs=1000, multiplier=_multiplier())
    assert not found.violated
    assert found.mu.value > 0.2


def test_a_mod_with_a_misdeclared_sensitivity_is_caught() -> None:
    found = api.audit(_through_mod(1e-4), runs=100, multiplier=_multiplier())
    assert found.violated
    assert found.epsilon.value == pytest.approx(Plan(runs=100).largest)


@dataclass
class Exchange:
    """Weight differences and their description, as a filter gets them."""

    data: dict[str, Values]
    meta: dict[str, Any] = field(default_factory=dict)


class PercentileFilter:
    """Sends the largest values, cut at ±γ."""

    def process_dxo(self, dxo: Exchange, shareable: object, context: object) -> Exchange:
        cutoff = np.percentile(np.abs(np.concatenate([*dxo.data.values()])), 10)
        return Exchange({name: np.where(np.abs(v) < cutoff, 0, v.clip(-0.01, 0.01)) for name, v in dxo.data.items()})


def test_a_percentile_filter_hides_nothing() -> None:
    def client(world: int, seed: int) -> dict[str, Values]:
        del seed
        return PercentileFilter().process_dxo(Exchange({"w": UPDATES[world]}), None, None).data

    found = api.audit(client, runs=100, epsilon=1.0)
    assert found.violated
    assert found.epsilon.value == pytest.approx(Plan(runs=100).largest)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("sensitivity", "violated"), [(2.0, False), (1e-4, True)])
def test_flowers_own_mod(sensitivity: float, violated: bool) -> None:
    pytest.importorskip("flwr", reason="tox -e flower")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from flwr.app import ArrayRecord, Context, RecordDict
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp.mod import LocalDpMod
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 2, 3  # what the runtime sets
    mod = LocalDpMod(1.0, sensitivity, 4.0, 1e-5)
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})

    def client(world: int, seed: int) -> list[Values]:
        def train(message: FlowerMessage, context: Context) -> FlowerMessage:
            return FlowerMessage(content=RecordDict({"arrays": ArrayRecord([UPDATES[world]])}), reply_to=message)

        np.random.seed(seed)
        content = RecordDict({"arrays": ArrayRecord([np.zeros(6)])})
        reply = mod(FlowerMessage(content=content, dst_node_id=2, message_type="train"), context, train)
        return next(iter(reply.content.array_records.values())).to_numpy_ndarrays()

    assert api.audit(client, runs=200, multiplier=_multiplier()).violated is violated


@pytest.mark.filterwarnings("ignore")
def test_nvflares_own_filter() -> None:
    pytest.importorskip("nvflare")
    from nvflare.apis.dxo import DXO, DataKind, from_shareable
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy

    def client(world: int, seed: int) -> dict[str, Values]:
        del seed
        update = DXO(DataKind.WEIGHT_DIFF, data={"w": UPDATES[world].copy()}).to_shareable()
        sent: dict[str, Values] = from_shareable(PercentilePrivacy().process(update, FLContext())).data
        return sent

    assert api.audit(client, runs=100, epsilon=1.0).violated


# --- registered defenses and plug-ins


@dataclass(frozen=True, slots=True, kw_only=True)
class Faint(DpSgd):
    """States eight times its noise."""

    def transforms(self, setting: Setting) -> StageTransforms:
        return DpSgd(clip=self.clip, sigma=self.sigma / 8).transforms(setting)

    def mechanism(self, setting: Setting) -> Mechanism:
        return DpSgd(clip=self.clip, sigma=self.sigma).mechanism(setting)


def _audits(defense: Defense, runs: int) -> dict[str, Audit]:
    subject = planted.subject("own", defense)
    pipeline, places = planted.pipeline_of(subject)
    return {each.point: each for each in planted.audit_defense(subject, pipeline, places, Plan(runs=runs))}


def test_a_defense_is_audited_at_every_point_with_a_claim() -> None:
    found = _audits(DpSgd(sigma=0.5), 120)
    assert [*found] == ["type-2-step", "type-1", "type-0", "aggregate"]
    for each in found.values():
        assert each.claim is not None
        assert not each.violated
        assert each.mu.value > 0.3 * each.claim.mu  # type: ignore[operator]
    step, aggregate = found["type-2-step"].claim, found["aggregate"].claim
    assert step is not None and aggregate is not None
    assert step.mu == pytest.approx(4)  # a replaced gradient moves the sum by 2C, σ = .5
    assert aggregate.mu == pytest.approx(4 / 3**0.5)


def test_less_noise_than_stated_is_caught() -> None:
    assert _audits(Faint(sigma=4.0), 120)["type-1"].violated


def test_noise_that_cancels_between_clients_is_seen_by_the_server() -> None:
    found = _audits(registry.instance("defenses", "niss", {}), 200)["type-0"]
    assert (found.claim, found.absent) == (None, "no noise at some step, or too little to count: no ε holds")
    assert found.epsilon.value == pytest.approx(Plan(runs=200).largest)


# --- the command


def test_the_command_prints_the_table_and_fails_for_a_broken_claim() -> None:
    arguments = [f"{ZOO}:half_of_the_sensitivity", "--runs", "1000", "--multiplier", "1"]
    result = CliRunner().invoke(command.command, arguments)
    assert result.exit_code == 1
    assert "2 × 1000 runs, about" in result.output
    assert "claimed" in result.output
    assert "epsilon-violated" in result.output
    result = CliRunner().invoke(command.command, [*arguments[:3], "--json"])
    assert result.exit_code == 0
    (record,) = json.loads(result.stdout)
    assert (record["claim"], record["fault"], record["runs"]) == (None, None, 1000)
    assert 0 < record["epsilon"] < record["epsilon_if_gaussian"]


def test_the_command_audits_a_defense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")  # below, names fold
    result = CliRunner().invoke(command.command, ["--defense", "dp-sgd:sigma=2", "--runs", "40"])
    assert result.exit_code == 0, result.output
    assert "dp-sgd:sigma=2.0" in result.output
    assert "type-2: not audited, nothing protects one example by itself at type-2" in result.output
    assert "type-2-step, type-1, type-0" in result.output  # equal figures share a row


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--defense", "gaussian"], "gaussian has no mechanism to audit: it adds no noise that is calibrated"),
        (["--defense", "dp-sgd", "--delta", "1"], "δ must be at least 0 and below 1"),
        (["--defense", "dp-sgd", "--runs", "8"], "8 runs prove no ε above 0"),
        (["--defense", "dp-sgd", "--epsilon", "1"], "--epsilon belongs to a pipeline"),
        ([f"{ZOO}:shuffles", "--defense", "dp-sgd"], "a pipeline or --defense, not both"),
        ([f"{ZOO}:nothing"], "has no function 'nothing'; there are shuffled_ratio, clips_the_mean, "),
        (["no-file.py:step"], "pipeline no-file.py: no such file"),
        (["no_such_module:step"], "pipeline no_such_module: no such module is installed"),
        (["step"], "names no function; write pkg.mod:function or FILE.py:function"),
    ],
)
def test_a_mistake_is_named_in_a_line(arguments: list[str], words: str) -> None:
    assert words in fault(command.command, *arguments)


def test_an_unknown_defense_is_named() -> None:
    with pytest.raises(BenchError, match="unknown defense"):
        CliRunner().invoke(command.command, ["--defense", "dp-sgdd"], catch_exceptions=False)
