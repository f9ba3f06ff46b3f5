"""Bins under several local steps: the chosen rows hardly move, so that an example is single as in one step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cells import MEMORY, attack, entry

from bench.answer.context import RunContext
from bench.answer.observation import draw_and_observe
from bench.answer.run import run
from bench.attacks.first_layer.rows import rows_of
from bench.cell import AttackCell, Federated, Grants
from bench.record.schema import Record

THREE = entry("models", "mlp", hidden=(64, 16), activation="relu")
TWO = entry("models", "mlp", hidden=(64,), activation="relu")
RANDOM = entry("attacks", "bins", direction="random")  # few digits differ in brightness


def cell(rate: float = 0.1, server: Any = "weights", **changes: Any) -> AttackCell:
    steps = Federated(algorithm="fedavg", clients=24, per_round=4, batch=3, steps=4, rate=rate)
    return attack(
        **{
            "attack": RANDOM,
            "model": THREE,
            "federated": steps,
            "point": "type-1",
            "readings": 6,
            "grants": Grants(server=server),
        }
        | changes
    )


def share(record: Record) -> float:
    assert record.attack is not None and record.attack.summary is not None, record.reason
    return record.attack.summary.asr.value


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_local_steps_recover_as_one_step_does(tmp_path: Path, rate: float) -> None:
    one = Federated(clients=24, per_round=4, batch=12)
    several, single = (run(each, RunContext(run=tmp_path), MEMORY) for each in (cell(rate), cell(federated=one)))
    assert share(several) >= share(single) - 0.06
    assert share(single) >= (1 - 1 / 64) ** 11 - 0.1


def test_the_rows_hardly_move(tmp_path: Path) -> None:
    """An update moves the outputs by less than the distance between quantiles, for each example alone."""
    reading = draw_and_observe(cell(), RunContext(run=tmp_path), MEMORY).reading
    rows = rows_of(reading)
    assert rows is not None
    inputs = torch.cat([reading.public_inputs[:200].flatten(1).double(), torch.zeros(1, 64, dtype=torch.float64)])
    before = rows.outputs(inputs)
    spacing = before[:200, 0].std() / 64
    moved = reading.values["1.weight"][0, 0].double() @ inputs.T + reading.values["1.bias"][0, 0].double()[:, None]
    assert 0 < moved.abs().max() < 12 * spacing  # twelve examples
    unequal = reading.weights["3.weight"][0] - reading.values["3.weight"][0, 0]
    assert (unequal[:, 1:] - unequal[:, :-1]).abs().max() < 1e-2 * unequal.abs().max()


def test_a_silenced_round_of_local_steps_is_the_victim_s(tmp_path: Path) -> None:
    alone, mean = (cell(server=each, point="aggregate") for each in ("inconsistent", "weights"))
    own, all_clients = (share(run(each, RunContext(run=tmp_path), MEMORY)) for each in (alone, mean))
    single = (1 - 1 / 64) ** 11
    assert own >= single - 3 * (single * (1 - single) / 72) ** 0.5 - 0.01  # 72 examples
    assert all_clients < own - 0.15


def test_what_cannot_hold_still_is_a_line(tmp_path: Path) -> None:
    def reason(**changes: Any) -> str:
        record = run(cell(**changes), RunContext(run=tmp_path), MEMORY)
        assert record.status == "n/a"
        return str(record.reason)

    assert reason(model=TWO).startswith("several local steps move the rows of a net without a third layer")
    assert reason(server="layers").startswith("several local steps move the rows of a net without a third layer")
    disguised = entry("attacks", "bins", disguise=0.5, gain=1.0)
    assert reason(attack=disguised).startswith("a disguise holds for a single local step")
    assert reason(attack=entry("attacks", "trap")) == "the weights of a later local step are not those of the server"
