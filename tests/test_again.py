"""A cell of an export, run again: the choice of the cell and the verdict."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _make import again
from tests.records import MACHINE, attack_cell, attack_record, training_record, with_result

from bench.cell import AttackCell
from bench.errors import BenchError
from bench.record.schema import Cost, Privacy, Record, Status

HALF = [(True,), (False,)] * 8


def verdict(old: Record, new: Record) -> str:
    return again.compared("p-table-1", "abc1234", old, new).verdict


def test_the_cheapest_cell_of_the_device_that_needs_no_other_is_run() -> None:
    machine = {"cpu": MACHINE, "cuda": replace(MACHINE, device="cuda")}
    settings: list[tuple[str, dict[str, Any], str, Status, tuple[AttackCell, ...]]] = [
        ("a", {"cpu_seconds": 9.0}, "cpu", "done", ()),
        ("b", {"cpu_seconds": 3.0}, "cpu", "done", ()),
        ("c", {"cpu_seconds": 0.1, "reused_from": "a"}, "cpu", "done", ()),
        ("d", {"cpu_seconds": 0.1}, "cpu", "n/a", ()),
        ("e", {"cpu_seconds": 0.1}, "cuda", "done", ()),
        ("f", {"cpu_seconds": 0.1}, "cpu", "done", (attack_cell(),)),
    ]
    its = [
        attack_record(
            id=id, cell=attack_cell(after=after), cost=Cost(**cost), environment=machine[device], status=status
        )
        for id, cost, device, status, after in settings
    ]
    assert [each.id for each in again.candidates(its, "cpu")] == ["b", "a", "e"]


def test_equal_records_are_equal_whatever_the_machine_and_the_time() -> None:
    old = attack_record(HALF)
    new = replace(old, cost=Cost(cpu_seconds=7.0), environment=replace(MACHINE, device_name="another"))
    line = again.compared("p-table-1", "abc1234", old, new)
    assert (line.verdict, line.why) == (again.EQUAL, "x86_64 → another")
    assert "p-table-1" in line.text and line.old == line.new == "ASR 0.500, 15.0000 dB"


def test_a_digit_that_an_export_rounds_is_no_difference_and_a_bit_of_the_arrays_is() -> None:
    old = attack_record(HALF, [(30.0,), (10.0,)] * 8, result={"arrays": "a" * 64})
    assert verdict(old, attack_record(HALF, [(30.0000001,), (10.0,)] * 8, result={"arrays": "a" * 64})) == again.EQUAL
    assert verdict(old, with_result(old, arrays="b" * 64)) == again.ROUNDING
    assert verdict(old, attack_record(HALF, [(30.01,), (10.0,)] * 8)) == again.ROUNDING


def test_other_successes_are_within_the_interval_or_beyond() -> None:
    old = attack_record(HALF)
    assert verdict(old, attack_record([(True,), (True,), (False,)] * 5 + [(True,)])) == again.WITHIN
    assert verdict(old, attack_record([(False,)] * 16)) == again.DIFFERS


def test_trainings_are_compared_by_accuracy_on_their_test_examples() -> None:
    old = training_record(0.9)
    assert verdict(old, training_record(0.9)) == again.EQUAL
    assert verdict(old, training_record(0.91)) == again.WITHIN  # of 2000: ± 1.3 points
    assert verdict(old, training_record(0.8)) == again.DIFFERS


@pytest.mark.parametrize(
    ("accuracy", "said"), [(0.6, again.EQUAL), (0.6005, again.ROUNDING), (0.61, again.WITHIN), (0.7, again.DIFFERS)]
)
def test_a_training_that_was_only_begun_is_compared_round_by_round(accuracy: float, said: str) -> None:
    old = training_record(0.9, result={"curve": ((0, 0.1), (5, 0.4), (10, 0.6), (20, 0.9))})
    line = again.begun("p-one", "a", old, old, [(4, 0.3), (5, 0.4), (6, 0.5), (10, accuracy), (11, 0.9)])
    assert (line.verdict, line.rounds, line.old) == (said, 10, "60.00 % after 10 of 20 rounds")
    assert ("points, in round 10" in line.why) == (said != again.EQUAL)
    assert "- First rounds only: `p-one` (10 of 20 rounds).\n" in again.section([line], {})


def test_no_tested_round_is_no_comparison() -> None:
    with pytest.raises(BenchError, match="more --minutes"):
        again.begun(
            "p-one", "a", training_record(0.9, result={"curve": ((0, 0.1), (5, 0.4))}), training_record(), [(4, 0.1)]
        )


def test_a_missing_library_and_a_younger_field_are_no_differences() -> None:
    lacking = training_record(result={"privacy": Privacy(absent="dp-accounting is not installed here")})
    assert verdict(lacking, training_record(result={"privacy": Privacy(epsilon=3.0)})) == again.EQUAL
    assert verdict(training_record(), training_record(result={"upload_bytes": 12})) == again.EQUAL
    assert verdict(training_record(result={"upload_bytes": 12}), training_record()) != again.EQUAL


def test_comparisons_replace_earlier_ones_of_the_same_cell(tmp_path: Path) -> None:
    old, path = training_record(0.9), tmp_path / again.FILE
    first = again.compared("p-one", "a", old, training_record(0.8))
    other = again.failed("p-two", "a", old, "60 minutes left after round 4")
    again.write(path, [first, other])
    again.write(path, [again.compared("p-one", "b", old, old)])
    assert [(each.export, each.verdict, each.commit) for each in again.read(path)] == [
        ("p-one", again.EQUAL, "b"),
        ("p-two", again.OPEN, "a"),
    ]


def test_a_page_counts_verdicts_and_gives_a_reason_for_each_difference() -> None:
    old = training_record(0.9)
    its = [
        again.compared("p-one", "a", old, old),
        again.compared("p-two", "a", old, training_record(0.91)),
        again.failed("p-three", "a", old, "about 60 minutes here, by estimate"),
    ]
    text = again.section(its, {"p-two": "later code"})
    assert "1 equal, 0 equal to rounding, 1 within the interval, 0 differs, 1 not run." in text
    assert (
        "- `p-two`: 90.00 % in 20 rounds → 91.00 % in 20 rounds, within the interval: later code.\n"
        "- Not run: `p-three`.\n"
    ) in text
