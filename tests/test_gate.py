"""The gate: what passes, what is weaker, what is inconclusive; the same verdict in every form."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests.records import (
    TRAINING,
    attack_cell,
    attack_record,
    example,
    printed,
    training_record,
    unfinished,
    with_result,
)

from bench.cell import Entry
from bench.cli.gate import command as gate
from bench.cli.main import cli
from bench.defenses.accounting.report import at_tap
from bench.defenses.base import Setting
from bench.defenses.fed_cdp import FedCdp
from bench.errors import BenchError
from bench.gate import baseline, markdown, services
from bench.gate import reports as gate_reports
from bench.gate.verdict import GATE_METRICS, Comparison, Verdict, verdict, with_oldest
from bench.record import request
from bench.record.request import Request
from bench.record.schema import AttackConditions, Code, Cost, Privacy, Provenance, ReadingScore, Record, TrainingCost
from bench.registry import entries as registry

SEEDS, READINGS = 8, 8


def attacked(
    hits: Sequence[Sequence[bool]],
    *,
    seed: int = 0,
    defense: str | Entry = "prune",
    snr: float = 10.0,
    cosine: float = 0.5,
    attack: str = "cpl",
    status: Any = "done",
    protocol: int = 1,
    first: int = 0,
) -> Record:
    readings = tuple(
        ReadingScore(
            status="ok",
            clients=(first + number,),
            indices=(number,),
            snr_db=snr,
            cosine=cosine,
            examples=tuple(example(hit, rmse=0.1 if hit else 0.4) for hit in row),
        )
        for number, row in enumerate(hits)
    )
    cell = attack_cell(seed=seed, defense=defense, attack=attack, readings=len(hits))
    code = Provenance(bench=Code(origin="gradient-leakage-bench", protocol=protocol))
    made = attack_record(readings=readings, cell=cell, provenance=code)
    return made if status == "done" else unfinished(made, status, "because")


def trained(seed: int, accuracy: float, overhead: float | None = 1.2, defense: str = "prune") -> Record:
    cell = TRAINING.model_copy(update={"seed": seed, "defense": Entry(name=defense)})
    return training_record(accuracy, cell=cell, cost=Cost(training=TrainingCost(overhead=overhead)))


def run(rate: float = 0.0, *, draw: int = 0, **options: Any) -> list[Record]:
    """A run of eight weight seeds whose examples leak with this rate, independently."""
    leaked = np.random.default_rng(draw).random((SEEDS, READINGS, 1)) < rate
    return [attacked(hits.tolist(), seed=seed, **options) for seed, hits in enumerate(leaked)]


def of(result: Verdict, metric: str) -> Comparison:
    (row,) = (row for row in result.comparisons if row.metric == metric)
    return row


def test_the_same_twice_passes() -> None:
    result = verdict(run(0.3), run(0.3))
    assert (result.outcome, result.exit_code) == ("pass", 0)
    assert [row.metric for row in result.comparisons] == ["asr", "identified", "rmse", "reading_snr", "reading_cosine"]
    assert of(result, "asr").upper < 0.10


@pytest.mark.parametrize(("margin", "needed"), [(0.10, 32), (0.05, 64)])
def test_too_few_examples_is_inconclusive(margin: float, needed: int) -> None:
    few = run()[: needed // READINGS - 1]
    result = verdict(few, few, {"asr": margin})
    assert result.exit_code == 3
    assert (of(result, "asr").outcome, of(result, "asr").needed) == ("inconclusive", needed)
    enough = run()[: needed // READINGS]
    assert of(verdict(enough, enough, {"asr": margin}), "asr").outcome == "pass"


def test_a_clear_rise_is_weaker_and_names_the_attack() -> None:
    result = verdict(run(0.1), run(0.9, draw=1))
    assert result.exit_code == 1
    row = of(result, "asr")
    assert row.outcome == "weaker" and row.lower > 0 and row.worse >= row.margin
    assert row.attacks == ("cpl",)


def test_a_rise_within_chance_is_inconclusive_and_says_how_many_more() -> None:
    result = verdict(run(0.30), run(0.42, draw=1))
    row = of(result, "asr")
    assert row.outcome == "inconclusive" and row.needed is not None and row.needed > row.pairs
    assert result.exit_code == 3


def test_protection_that_grew_passes() -> None:
    assert of(verdict(run(0.9), run(0.1, draw=1)), "asr").outcome == "pass"


def test_an_example_leaks_to_the_worst_attacker_not_to_one() -> None:
    """Each attack alone gets a half before and after; afterwards they get different halves."""
    half = [[True]] * 4 + [[False]] * 4
    other = half[::-1]
    before = [attacked(half, seed=s, attack=a) for s in range(8) for a in ("cpl", "dlg")]
    after = [attacked(h, seed=s, attack=a) for s in range(8) for a, h in (("cpl", half), ("dlg", other))]
    row = of(verdict(before, after), "asr")
    assert (row.before, row.after, row.outcome) == (0.5, 1.0, "weaker")


def test_a_reading_that_became_clearer_is_seen_where_nothing_leaks() -> None:
    """σ halved: 6 dB more in every reading."""
    result = verdict(run(snr=-8.0), run(snr=-2.0))
    assert of(result, "reading_snr").outcome == "weaker"
    assert of(result, "asr").outcome == "pass" and result.exit_code == 1
    assert of(verdict(run(cosine=0.2), run(cosine=0.26)), "reading_cosine").outcome == "weaker"
    assert of(verdict(run(cosine=0.2), run(cosine=0.24)), "reading_cosine").outcome == "pass"


def test_attackers_that_got_worse_are_no_protection() -> None:
    before, after = run(1.0, defense="none"), run(0.2, defense="none")
    result = verdict([*before, *run()], [*after, *run()])
    row = of(result, "undefended_asr")
    assert row.outcome == "inconclusive" and "attacks got weaker" in str(row.reason)
    assert result.exit_code == 3


def test_what_is_missing_or_failed_is_never_a_pass() -> None:
    before = run()
    gone = verdict(before, before[1:])
    assert gone.exit_code == 3 and "not in the run" in gone.unpaired[0][1]
    crashed = verdict(before, [replace(before[0], status="crashed", reason="boom", result=None), *before[1:]])
    assert crashed.exit_code == 3 and crashed.unpaired[0][1] == "crashed now: boom"
    others = verdict(before, run(first=5))
    assert others.exit_code == 3 and not others.comparisons and "other victims" in others.unpaired[0][1]
    heavier = [with_result(record, conditions=AttackConditions(weights_norm=4.0)) for record in before]
    assert "other weights" in verdict(before, heavier).unpaired[0][1]
    assert verdict([], []).exit_code == 3
    assert verdict([*before, *run(defense="x", status="n/a")], before).outcome == "pass"


def test_protocols_do_not_mix() -> None:
    with pytest.raises(BenchError, match="baseline is of protocol 1, the run of 2"):
        verdict(run(), run(protocol=2))


def test_accuracy_and_time_are_paired_by_seed() -> None:
    before = [trained(seed, 0.8 + 0.01 * seed) for seed in range(8)]
    worse = [trained(seed, 0.7 + 0.01 * seed, overhead=2.9) for seed in range(8)]
    result = verdict(before, worse)
    assert {(row.metric, row.outcome) for row in result.comparisons} == {("accuracy", "weaker"), ("overhead", "weaker")}
    # two timings say little of how timings vary: no comparison, rather than one that always fails
    assert [row.metric for row in verdict(before[:2], worse[:2]).comparisons] == ["accuracy"]
    assert not verdict([trained(0, 0.9, defense="none")], [trained(0, 0.1, defense="none")]).comparisons


def test_many_places_are_corrected_for() -> None:
    """200 places without a change, 5 dB of noise in each reading: uncorrected a twentieth would be called."""
    generator = np.random.default_rng(5)

    def noisy() -> list[Record]:
        return [
            attacked([[False]] * 4, seed=seed, defense=f"d{place}", snr=float(generator.normal(0, 5)))
            for place in range(200)
            for seed in range(8)
        ]

    rows = [row for row in verdict(noisy(), noisy()).comparisons if row.metric == "reading_snr"]
    assert len(rows) == 200
    assert sum(row.outcome == "weaker" for row in rows) == 0
    assert sum(row.worse >= row.margin for row in rows) > 5  # the margin alone would have called these


def test_wrong_margins_are_a_users_mistake() -> None:
    with pytest.raises(BenchError, match="no such metric; there are asr"):
        verdict(run(), run(), {"ars": 0.1})
    with pytest.raises(BenchError, match="must be above 0"):
        verdict(run(), run(), {"asr": 0.0})


HOSTILE = "<script>|x\x1b[31m`"


def test_every_report_says_the_same_and_takes_any_name() -> None:
    before = [*run(0.1, defense=HOSTILE), *run(0.2)[:2], *run(0.1, defense="gone")]
    after = [*run(0.9, defense=HOSTILE, draw=1), *run(0.2)[:2]]
    result = verdict(before, after, changes=(HOSTILE,))
    content = result.json()
    json.dumps(content, allow_nan=False)
    root = ElementTree.fromstring(services.junit(result))
    cases = root.findall(".//testcase")
    assert len(cases) == len(content["comparisons"]) + len(content["unpaired"])
    outcomes = [row["outcome"] for row in content["comparisons"]]
    assert len(root.findall(".//failure")) == outcomes.count("weaker") > 0
    assert len(root.findall(".//error")) == outcomes.count("inconclusive") + len(content["unpaired"]) > 0
    shown = markdown.markdown(result)
    assert "<script>" not in shown
    weaker = shown.partition("**Weaker**")[2].partition("**")[0]
    table = [line for line in weaker.splitlines() if line.startswith("| `")]
    assert len(table) == outcomes.count("weaker")
    assert all(line.count("|") == 8 for line in table)


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    asked = Request(matrix="gate", defenses=("prune",), plugins=("mine.py",))
    made = baseline.of_run([*run(0.4), trained(0, 0.9)], asked, {"asr": 0.05})
    baseline.write(tmp_path / "b.json", made)
    again = baseline.read(tmp_path / "b.json")
    assert again == made
    assert again.margins == {**{name: c.margin for name, c in GATE_METRICS.items()}, "asr": 0.05}
    assert verdict(again.records, run(0.4)).comparisons[:2] == verdict(run(0.4), run(0.4)).comparisons[:2]
    with pytest.raises(BenchError, match="no finished cell"):
        baseline.of_run([], None, {})


def test_a_run_keeps_its_request(tmp_path: Path) -> None:
    asked = Request(matrix="gate", scale="small", plugins=("mine.py",))
    assert request.read(tmp_path) is None
    request.save(tmp_path, asked)
    assert request.read(tmp_path) == asked
    for damaged in ("{", "[]", '{"matrix": 3}', "[" * 10**5):
        (tmp_path / "request.json").write_text(damaged)
        assert request.read(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a baseline"),
        ("[]", "not a baseline"),
        ('{"baseline": 9}', "should be 3"),
        ('{"baseline": 3, "margins": 3}', "not a baseline"),
        ("[" * 100000, "not a baseline"),
        ('{"baseline": 3, "margins": {}, "request": null, "records": [{"id": 3}]}', "not a baseline"),
        ('{"baseline": 3, "margins": {}, "request": null, "records": [{"id": "3"}]}', "field required"),
        ('{"baseline": 3, "margins": {}, "request": null, "records": [{"schema": 1}]}', "schema 1, this bench reads 2"),
        ("\x00\xff", "not a baseline"),
        ('{"baseline": 3, "margins": {}, "request": null, "records": [', "not a baseline"),
        ('{"baseline": 3, "margins": {}, "request": null, "records": []} and more', "not a baseline"),
        ('{"baseline": 3, "margins": {}, "request": null}', "has no records"),
    ],
)
def test_a_damaged_baseline_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(BenchError, match=message) as raised:
        baseline.read(path)
    assert "\n" not in str(raised.value) and "--write-baseline" in str(raised.value)
    with pytest.raises(BenchError, match="no such file"):
        baseline.read(tmp_path / "none.json")


PLUGIN = """
from dataclasses import dataclass
from bench.defenses.base import Defense
from bench.defenses.transforms.noise import GaussianNoise

@dataclass(frozen=True, kw_only=True)
class MyNoise(Defense):
    reference = "a test"
    stages = ("client",)

    def transforms(self, setting):
        return {"client": (GaussianNoise(deviation=DEVIATION),)}
"""
MATRIX = """
title = "gate in small"
readings = 8
evaluations = 1

[axes]
dataset = ["digits"]
model = ["dlg-lenet"]
seed = [0, 1, 2, 3]
attack = ["prior-mean"]
point = ["type-1"]
federated = [{ batch = 1 }]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a user has it: a matrix and a defense in a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setattr(registry, "_added", {})  # plug-ins are the process's: none of ours may stay
    (tmp_path / "m.toml").write_text(MATRIX)
    (tmp_path / "mine.py").write_text(PLUGIN.replace("DEVIATION", "0.1"))
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(gate, list(arguments))


@pytest.mark.slow
def test_a_weakened_defense_fails_the_gate_from_the_command_line(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real run, a baseline of it, the same again, then σ halved in the file, name and parameters unchanged."""
    typed = "run --matrix m.toml --plugin mine.py --defense my-noise --no-tracking --jobs 1 --out runs/first"
    assert CliRunner().invoke(cli, typed.split()).exit_code == 0
    made = call("runs/first", "--write-baseline", "b.json")
    assert made.exit_code == 0 and "64 cells" not in made.output and "itself" not in made.output
    assert call("runs/first", "--baseline", "b.json").exit_code == 0
    (project / "mine.py").write_text(PLUGIN.replace("DEVIATION", "0.05"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project / "summary.md"))
    result = call("--baseline", "b.json", "--jobs", "1", "--junit", "j.xml", "--markdown", "v.md", "--json")
    assert result.exit_code == 1, result.output
    content = json.loads(result.stdout)
    assert [row["criterion"] for row in content["comparisons"] if row["outcome"] == "weaker"][:1] == ["reading_snr"]
    assert any("my-noise" in line for line in content["changes"])
    assert ElementTree.parse("j.xml").getroot().tag == "testsuites"
    assert (project / "summary.md").read_text().strip() == (project / "v.md").read_text().strip()
    assert call("runs/gate", "--baseline", "b.json").exit_code == 1


def test_mistakes_at_the_command_line(project: Path) -> None:
    assert call().exit_code == 2
    assert call("--baseline", "a", "--write-baseline", "b").exit_code == 2
    assert call("--baseline", "b.json", "--margin", "asr").exit_code == 2
    assert isinstance(call("--baseline", "b.json").exception, BenchError)
    baseline.write(project / "b.json", baseline.of_run(run(), None, {}))
    assert "names no matrix" in str(call("--baseline", "b.json").exception)
    lines = textwrap.dedent(call("--help").output)
    assert "Exit code 0" in lines


def steps(*rates: float) -> list[list[Record]]:
    """Runs of the same victims, each of which leaks what the one before did, and more."""
    drawn = np.random.default_rng(0).random((SEEDS, READINGS, 1))
    return [[attacked((d < rate).tolist(), seed=seed) for seed, d in enumerate(drawn)] for rate in rates]


def test_small_steps_add_up_against_the_oldest_baseline() -> None:
    """Each passes against the one before, and says that it is weaker for certain; the oldest baseline finds the sum."""
    runs = steps(0.2, 0.28, 0.36, 0.44, 0.52)
    made = baseline.of_run(runs[0], None, {"asr": 0.2})
    for number, now in enumerate(runs[1:]):
        step = verdict(made.records, now, made.margins)
        assert of(step, "asr").outcome == "pass"
        whole = with_oldest(step, verdict(made.oldest, now, made.margins)) if made.oldest else step
        made = baseline.replacing(baseline.of_run(now, None, made.margins), made)
        assert made.oldest == baseline.of_run(runs[0], None, {}).records, number
    assert whole.exit_code == 1
    assert "asr" in {row.metric for row in whole.since_oldest}
    assert "against the oldest baseline" in printed(gate_reports.render(whole))
    assert "Weaker than the oldest baseline" in markdown.markdown(whole)
    assert 'type="weaker"' in services.junit(whole)


def test_the_oldest_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    first, second = (baseline.of_run(each, None, {}) for each in steps(0.2, 0.3))
    made = baseline.replacing(second, first)
    baseline.write(tmp_path / "b.json", made)
    assert baseline.read(tmp_path / "b.json") == made
    assert made.oldest == first.records
    assert baseline.replacing(first, first).oldest == (), "written again as it was, nothing is older"


def test_what_passes_and_is_weaker_for_certain_is_said() -> None:
    before, after = steps(0.2, 0.35)
    result = verdict(before, after, {"asr": 0.4, "identified": 0.4, "rmse": 0.9})
    assert of(result, "asr").outcome == "pass" and of(result, "asr").drifted
    assert "weaker within the margin, for certain" in printed(gate_reports.render(result))
    assert not any(row.drifted for row in verdict(before, before).comparisons)


def spending(record: Record, epsilon: float | None, named: bool = False) -> Record:
    """The record with an ε at its point, and examples that were named from a gallery."""
    report = at_tap(FedCdp(sigma=6.0, clipping="flat").mechanism(ALONE), "example", tensors=1)
    assert report is not None and record.attack is not None
    figure = replace(report, epsilon=epsilon)
    readings = tuple(
        replace(reading, examples=tuple(replace(example, identified=named) for example in reading.examples))
        for reading in record.attack.readings
    )
    return with_result(record, privacy=Privacy(epsilon=epsilon, figures=(figure,)), readings=readings)


ALONE = Setting(clients=10, per_round=1, rounds=1, steps=1, batch=1, client_examples=50, rate=0.1)


@pytest.mark.parametrize(("now", "outcome"), [(1.27, "pass"), (1.3, "pass"), (1.5, "weaker"), (None, "weaker")])
def test_epsilon_at_the_point_is_a_metric(now: float | None, outcome: str) -> None:
    before, after = ([spending(record, epsilon) for record in run(0.0)] for epsilon in (1.27, now))
    found = of(verdict(before, after), "epsilon")
    assert (found.outcome, found.drifted) == (outcome, now == 1.3)


def test_more_identified_than_epsilon_allows_is_a_fault() -> None:
    honest = [spending(record, 1.27) for record in run(0.0)]
    assert not verdict(honest, honest).faults
    lying = [spending(record, 1.27, named=True) for record in run(0.0)]
    result = verdict(lying, lying)
    assert result.exit_code == 1 and len(result.faults) == 1
    assert "epsilon-violated" in printed(gate_reports.render(result))
    assert "epsilon-violated" in markdown.markdown(result)


def test_a_defense_that_breaks_a_contract_is_a_fault() -> None:
    before = run(0.0)
    broken = [replace(record, broken=("sensitivity: nothing is clipped",)) for record in before]
    result = verdict(before, broken)
    assert result.exit_code == 1 and len(result.faults) == 1
    assert "broken: " in printed(gate_reports.render(result)) and result.json()["faults"][0]["code"] == "broken"


def test_a_margin_wider_than_the_default_is_said() -> None:
    before = run(0.0)
    result = verdict(before, before, margins={"asr": 0.5, "rmse": 0.01})
    assert result.wider == {"asr": 0.5}
    assert "margin of asr: 0.5, wider than the default 0.1" in printed(gate_reports.render(result))
    assert "margin of asr 0.5: wider than the default" in markdown.markdown(result)
    assert "margin of" not in printed(gate_reports.render(verdict(before, before)))
