"""Records → table: the worst case example by example, nothing dropped, nothing mixed."""

from dataclasses import replace
from typing import Any

import pytest
from tests.records import attack_cell, attack_record, printed, readings_of, unfinished

from bench.cell import Federated, FileWeights, Grants, InitialWeights
from bench.leaderboard.conditions import by_condition, without_evidence
from bench.leaderboard.forms import terminal
from bench.leaderboard.forms.numbers import share
from bench.leaderboard.worst import WorstCase
from bench.record.metrics import PSNR_DB
from bench.record.names import distinct
from bench.record.schema import Code, Distortion, Provenance, Record
from bench.scoring.intervals import wilson


def record(
    hits: list[list[bool]] | None,
    *,
    attack: str = "cpl",
    defense: str = "none",
    point: str = "type-2",
    seed: int = 0,
    draw: int = 0,
    status: str = "done",
    snr: float = 120.0,
    protocol: int = 1,
    example_status: str = "ok",
    weights: Any = None,
    **federated: Any,
) -> Record:
    """A record whose examples leaked as `hits` (reading, example) says."""
    cell = attack_cell(
        seed=seed,
        draw=draw,
        federated=Federated(**federated),
        defense=defense,
        attack=attack,
        point=point,
        weights=weights or InitialWeights(),
    )
    made = attack_record(
        cell=cell,
        readings=readings_of(hits or [[False], [False]], status=example_status),
        result={"distortion": Distortion(snr_db_least=snr)},
        provenance=Provenance(bench=Code(origin="bench", protocol=protocol)),
    )
    return made if status == "done" else unfinished(made, status, "because")


def only(*found: Record) -> WorstCase:
    (condition,) = by_condition(found)
    ((_, row),) = condition.rows.items()
    ((_, worst),) = row.items()
    return worst


def test_an_example_leaks_if_any_attack_gets_it() -> None:
    worst = only(
        record([[True], [False], [False], [False]], attack="cpl"),
        record([[False], [True], [False], [False]], attack="dlg"),
    )
    assert worst.asr == 0.5  # neither attack alone is above a quarter, and their mean is a quarter
    assert worst.best == ("cpl", 0.25)
    assert worst.interval == wilson(2, 4)


def test_a_crash_keeps_its_examples_in_the_denominator_and_marks_the_figure() -> None:
    worst = only(record([[True], [True]], seed=0), record(None, seed=1, status="crashed"))
    assert (worst.asr, worst.lower_bound, worst.crashed) == (0.5, True, {"cpl": "because"})


def test_a_failed_attack_is_no_protection_unless_another_got_the_example() -> None:
    diverged = record([[False], [False]], example_status="diverged")
    assert only(diverged).lower_bound
    assert not only(diverged, record([[True], [True]], attack="dlg")).lower_bound
    assert only(diverged, record([[True], [False]], attack="dlg")).lower_bound


def test_what_does_not_apply_counts_nowhere() -> None:
    worst = only(record([[True], [True]]), record(None, attack="dlg", status="n/a"))
    assert (worst.asr, worst.lower_bound, worst.absent) == (1.0, False, {"dlg": "because"})


@pytest.mark.parametrize(
    ("records", "wider"),
    [
        ([record([[True] * 3, [False] * 3] * 4, point="type-1")], True),  # batches are clusters
        ([record([[True], [False]] * 4, draw=0), record([[True], [False]] * 4, draw=1)], True),  # and draws
        ([record([[True], [False]] * 4)], False),
    ],
    ids=["a batch's examples", "a reading's draws", "single examples"],
)
def test_examples_that_belong_together_are_not_counted_as_independent(records: list[Record], wider: bool) -> None:
    worst = only(*records)
    assert worst.interval is not None
    low, high = wilson(len(worst.leaked) / 2, len(worst.leaked))
    assert (worst.interval[1] - worst.interval[0] > (high - low) * 1.1) is wider


@pytest.mark.parametrize("field", [{"per_round": 20}, {"partition": "two-shard"}, {"rate": 0.1}])
def test_settings_are_never_mixed(field: dict[str, Any]) -> None:
    found = by_condition([record([[True]]), record([[False]], **field)])
    assert [condition.rows["none"]["type-2"].asr for condition in found] == [1.0, 0.0]
    assert found[0].title != found[1].title


def test_short_titles_tell_what_differs() -> None:
    plain = record([[True]])
    wide, thin = (
        plain.cell.model.model_copy(update={"params": {**plain.cell.model.params, "width": width}}) for width in (2, 1)
    )
    cells = (
        plain.cell.model_copy(update={"model": wide}),
        plain.cell.model_copy(update={"model": thin}),
        plain.cell.model_copy(update={"model": thin, "grants": Grants(labels=True)}),
    )
    found = by_condition([replace(plain, cell=cell) for cell in cells])
    common = by_condition([plain])[0].short
    ends = ["width=2", "width=1", "granted the true labels width=1"]
    assert [each.short for each in found] == [f"{common} · {end}" for end in ends]


def test_protocols_are_never_mixed() -> None:
    one, two = by_condition([record([[True]]), record([[False]], protocol=2)])
    assert "protocol 1" in one.title and "protocol 2" in two.title


def test_weights_of_one_series_are_one_configuration_at_several_seeds() -> None:
    def on(seed: int, series: str, sha256: str | None = None) -> Record:
        weights = FileWeights(sha256=sha256 or f"{seed:064}", path=f"{seed}", series=series)
        return record([[True], [False]], seed=seed, weights=weights)

    (condition,) = by_condition([on(0, "late-{seed}.safetensors"), on(1, "late-{seed}.safetensors")])
    assert len(condition.rows["none"]["type-2"].leaked) == 4
    assert "weights late-{seed}.safetensors" in condition.title
    assert len(list(by_condition([on(0, "late-{seed}"), on(1, "early-{seed}")]))) == 2
    assert len(list(by_condition([on(0, ""), on(1, "")]))) == 2  # files of no series are told apart by content
    changed = on(0, "late-{seed}.safetensors", "f" * 64)  # the file of one seed was replaced between two runs
    assert len(list(by_condition([on(0, "late-{seed}.safetensors"), changed]))) == 2


@pytest.mark.parametrize("grants", [{"labels": True}, {"repeated_readings": 10}, {"colluders": 0.5}])
def test_each_grant_makes_a_block_and_names_it(grants: dict[str, Any]) -> None:
    plain = record([[True]])
    granted = replace(plain, cell=plain.cell.model_copy(update={"grants": Grants(**grants)}))
    found = by_condition([plain, granted])
    assert len(found) == 2
    assert found[1].title.endswith(f"granted {Grants(**grants).words()[0]}")


def test_no_evidence_where_nothing_leaks_undefended() -> None:
    none = [record([[False], [False]], point="type-1"), record([[True], [False]])]
    pruned = [record([[False], [False]], point=name, defense="prune", snr=3.0) for name in ("type-2", "type-1")]
    (condition,) = by_condition(none + pruned)
    assert without_evidence(condition) == ("type-1",)


def measured(
    psnr_db: list[float | None], *, prior: float = 12.0, attack: str = "cpl", hits: list[bool] | None = None
) -> Record:
    """A record of single examples with these PSNRs; without `hits` those of 20 dB and more leaked."""
    leaked = [value is not None and value >= 20 for value in psnr_db] if hits is None else hits
    readings = readings_of([[hit] for hit in leaked], [[value] for value in psnr_db], prior_db=prior)
    return attack_record(cell=attack_cell(attack=attack), readings=readings)


def test_the_prior_stands_beside_the_best_attack() -> None:
    worst = only(measured([31.0, 33.0, 10.0], prior=12.0), measured([9.0, 9.0, 9.0], prior=13.0, attack="dlg"))
    # The prior is the best guess that any attacker could make: one named the class, one did not.
    assert (worst.best, worst.best_median(PSNR_DB), worst.prior_psnr_db) == (("cpl", 2 / 3), 31.0, 13.0)
    shown = terminal.conditions(by_condition([measured([31.0, 33.0, 10.0], prior=13.0)]))
    lines = [line.strip("│ ").split("│")[-1].strip() for line in printed(shown).splitlines()]
    assert lines.index("prior 13 dB") == lines.index("31 dB") + 1


def test_a_failed_example_is_worse_than_any_in_the_median() -> None:
    worst = only(measured([None, None, 30.0]))
    assert worst.best_median(PSNR_DB) is None
    shown = printed(terminal.conditions(by_condition([measured([None, None, 30.0])])))
    assert "– dB" in shown and "prior 12 dB" in shown


@pytest.mark.parametrize("baseline", ["prior-mean", "prior-class-mean", "labels-only"])
def test_a_prior_is_no_best_attack(baseline: str) -> None:
    worst = only(measured([12.0, 12.0], attack=baseline), measured([3.0, 5.0], attack="dlg"))
    assert (worst.best, worst.best_median(PSNR_DB), worst.prior_psnr_db) == (("dlg", 0.0), 4.0, 12.0)
    assert only(measured([12.0, 12.0], attack=baseline)).best == (baseline, 0.0)


def test_names_are_cut_to_what_differs() -> None:
    assert distinct(["cpl(restarts=3, line_search=none)", "cpl(restarts=3, line_search=backtracking)", "dlg(a=1)"]) == {
        "cpl(restarts=3, line_search=none)": "cpl(line_search=none)",
        "cpl(restarts=3, line_search=backtracking)": "cpl(line_search=backtracking)",
        "dlg(a=1)": "dlg",
    }
    assert distinct(["cpl(a=1)", "cpl(a=1) · adaptive"]) == {"cpl(a=1)": "cpl", "cpl(a=1) · adaptive": "cpl · adaptive"}


def test_a_share_is_never_rounded_to_nothing_or_to_all() -> None:
    values = (0.0, 0.684, 0.004, 0.996, -0.1, 1.0, None)
    assert [share(value) for value in values] == ["0 %", "68 %", "0.4 %", "99.6 %", "−10 %", "100 %", "–"]
