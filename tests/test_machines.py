"""Against a Dask cluster of machines that share no file system, and whose network is cut without a word."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests import runs
from tests.lab import Lab
from tests.machines import Machine, machine

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
pytest.importorskip("distributed")
# How long a silence is no hiccup is Dask's to say, half a minute and five: here sooner.
HASTY = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s", "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s"}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path, host="0.0.0.0", settings=HASTY)
    yield lab
    lab.close()


@pytest.fixture
def two() -> Iterator[tuple[Machine, Machine]]:
    with ExitStack() as stack:
        yield stack.enter_context(machine(1)), stack.enter_context(machine(2))


def test_machines_that_share_nothing(
    lab: Lab, two: tuple[Machine, Machine], gate: runs.Gate, gated: list[object], gated_alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for there in two:
        lab.add_worker(machine=there, hidden=run)
    runs.ran(*gated, "--executor", lab.address, "--out", run, **HASTY)
    runs.assert_equal(run, gated_alone)


def test_a_machine_that_is_cut_off_and_comes_back(
    lab: Lab, two: tuple[Machine, Machine], gate: runs.Gate, gated: list[object], gated_alone: Path, tmp_path: Path
) -> None:
    for there in two:
        lab.add_worker(machine=there)
    runs.disturbed(gate, [*gated, "--executor", lab.address, "--out", tmp_path / "run"], two[0].cut, **HASTY)
    two[0].mend()
    runs.assert_equal(tmp_path / "run", gated_alone)


def test_the_head_cut_off_for_a_while(
    lab: Lab, two: tuple[Machine, Machine], gate: runs.Gate, gated: list[object], gated_alone: Path, tmp_path: Path
) -> None:
    run, there = tmp_path / "run", two[0]
    lab.add_worker(machine=two[1])
    lab.add_worker()

    def disturb() -> None:
        clients = lab.logged("Remove client")
        there.cut()
        runs.until(lambda: lab.logged("Remove client") > clients)  # the scheduler gave the head up
        there.mend()

    executor = f"dask://{there.here}:{lab.port}"
    runs.disturbed(gate, [*gated, "--executor", executor, "--out", run], disturb, inside=there.inside(), **HASTY)
    runs.assert_equal(run, gated_alone)


def test_a_worker_that_stands_still_and_wakes_up(
    lab: Lab, gate: runs.Gate, gated: list[object], gated_alone: Path, tmp_path: Path
) -> None:
    asleep = lab.add_worker()
    lab.add_worker()

    def disturb() -> None:
        workers = lab.logged("Remove worker")
        asleep.send_signal(signal.SIGSTOP)
        runs.until(lambda: lab.logged("Remove worker") > workers)  # the scheduler gave it up
        asleep.send_signal(signal.SIGCONT)

    runs.disturbed(gate, [*gated, "--executor", lab.address, "--out", tmp_path / "run"], disturb, **HASTY)
    runs.assert_equal(tmp_path / "run", gated_alone)
