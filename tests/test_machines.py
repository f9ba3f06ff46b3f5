"""Against a Dask cluster of machines that share no file system, and whose network is cut without a word."""

import signal
import time
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
HASTY = {
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s",
}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path, host="0.0.0.0", settings=HASTY)
    yield found
    found.close()


@pytest.fixture
def two() -> Iterator[tuple[Machine, Machine]]:
    with ExitStack() as stack:
        yield stack.enter_context(machine(1)), stack.enter_context(machine(2))


def test_machines_that_share_nothing(
    lab: Lab, two: tuple[Machine, Machine], slow_asked: list[object], slow_alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for one in two:
        lab.add_worker(machine=one, hidden=run)
    code, told = runs.ran(*slow_asked, "--executor", lab.address, "--out", run, **HASTY)
    assert code == 0, told
    runs.assert_equal(run, slow_alone)


def test_a_machine_that_is_cut_off_and_comes_back(
    lab: Lab, two: tuple[Machine, Machine], slow_asked: list[object], slow_alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for one in two:
        lab.add_worker(machine=one)
    with runs.bench(*slow_asked, "--executor", lab.address, "--out", run, **HASTY) as process:
        runs.until(lambda: runs.settled(run) >= 5)
        two[0].cut()
        code, told = runs.ended(process)
        two[0].mend()
    assert code == 0, told
    runs.assert_equal(run, slow_alone)


def test_the_head_cut_off_for_a_while(
    lab: Lab, two: tuple[Machine, Machine], slow_asked: list[object], slow_alone: Path, tmp_path: Path
) -> None:
    run, there = tmp_path / "run", two[0]
    lab.add_worker(machine=two[1])
    lab.add_worker()
    executor = f"dask://{there.here}:{lab.port}"
    with runs.bench(
        *slow_asked, "--executor", executor, "--out", run, inside=there.inside(), **HASTY
    ) as process:
        runs.until(lambda: runs.settled(run) >= 5)
        there.cut()
        time.sleep(25)
        there.mend()
        code, told = runs.ended(process)
    assert code == 0, told
    runs.assert_equal(run, slow_alone)


def test_a_worker_that_stands_still_and_wakes_up(
    lab: Lab, slow_asked: list[object], slow_alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    asleep = lab.add_worker()
    lab.add_worker()
    with runs.bench(*slow_asked, "--executor", lab.address, "--out", run, **HASTY) as process:
        runs.until(lambda: runs.settled(run) >= 5)
        asleep.send_signal(signal.SIGSTOP)
        time.sleep(15)
        asleep.send_signal(signal.SIGCONT)
        code, told = runs.ended(process)
    assert code == 0, told
    runs.assert_equal(run, slow_alone)
