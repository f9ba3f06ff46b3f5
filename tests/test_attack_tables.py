"""The tables of what knowing gains and of how each attack fares, from records made by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.records import attack_cell, attack_record, example, printed, unfinished

from bench.cell import DataRef, Entry, Federated
from bench.cli.show import command
from bench.errors import RecordError
from bench.leaderboard.attacks import attacks
from bench.leaderboard.forms import terminal
from bench.leaderboard.forms.terminal import UNDESCRIBED
from bench.leaderboard.knowledge import KnowledgeRow, knowledge
from bench.matrix.published import PublishedFigures, save, saved
from bench.record import store as records
from bench.record.metrics import RMSE
from bench.record.schema import AttackConditions, Distortion, ReadingScore, Record
from bench.scoring.intervals import paired_difference, wilson


def record(
    hits: list[list[bool]],
    *,
    knowledge: Any = "plain",
    attack: str = "cpl",
    defense: str = "prune",
    dataset: str = "digits",
    point: str = "type-2",
    seed: int = 0,
    described: bool = True,
    status: str = "done",
    rmse: float = 0.1,
    example_status: str = "ok",
    evaluations: int = 40,
    **params: Any,
) -> Record:
    """A record whose examples leaked as `hits` (reading, example) says; those that did not have RMSE .5."""
    cell = attack_cell(
        dataset=DataRef(name=dataset, sha256="0" * 64),
        seed=seed,
        federated=Federated(),
        defense=defense,
        attack=Entry(name=attack, params=params),
        point=point,
        knowledge=knowledge,
    )
    readings = [
        ReadingScore(
            status="ok",
            evaluations=evaluations,
            outer=evaluations // 20,
            examples=tuple(
                example(
                    hit, status=example_status, rmse=rmse if hit else 0.5, psnr_db=25.0 if hit else 6.0, prior_db=11.0
                )
                for hit in row
            ),
        )
        for row in hits
    ]
    found = attack_record(
        cell=cell,
        readings=readings,
        result={"distortion": Distortion(snr_db_least=3.0), "conditions": AttackConditions(described=described)},
    )
    return found if status == "done" else unfinished(found, status, "because")


def single(*hits: bool) -> list[list[bool]]:
    return [[hit] for hit in hits]


def row(*found: Record) -> KnowledgeRow:
    (only,) = knowledge(found)
    return only


def test_the_change_is_paired_example_by_example() -> None:
    before, after = [True] + [False] * 15, [True] * 12 + [False] * 4
    found = row(record(single(*before)), record(single(*after), knowledge="adaptive", rmse=0.02))
    assert found.change == paired_difference(np.array(after), np.array(before))
    assert (found.plain.asr, found.adaptive.asr) == (1 / 16, 12 / 16)
    assert (found.plain.best_median(RMSE), found.adaptive.best_median(RMSE)) == (0.5, 0.02)
    text = printed(terminal.knowledge([found]), width=160)
    assert all(words in text for words in ("+69 %", "0.500 → 0.020", "6 → 25 dB", "prior 11 dB"))


def test_seeds_are_resampled_whole() -> None:
    """Knowledge that gains everything under two seeds and nothing under two others is not surely a gain."""
    plain = [record(single(*[False] * 8), seed=seed) for seed in range(4)]
    adaptive = [record(single(*[seed < 2] * 8), seed=seed, knowledge="adaptive") for seed in range(4)]
    change = row(*plain, *adaptive).change
    assert change is not None
    alone = paired_difference(np.repeat([True, True, False, False], 8), np.zeros(32, bool))
    assert change[0] == alone[0] == 0.5 and change[1] <= 0 < alone[1]


def test_only_attacks_that_were_run_both_ways_count() -> None:
    found = row(
        record(single(False, False)),
        record(single(True, False), knowledge="adaptive"),
        record(single(True, True), attack="labels-only"),
        record(single(False), attack="idlg", status="n/a"),
        record(single(True, True), attack="idlg", knowledge="adaptive"),
    )
    assert (found.plain.asr, found.adaptive.asr) == (0.0, 0.5)


def test_black_box_attackers_stand_beside() -> None:
    """Another attack than those that were run both ways: its rate counts in neither of theirs."""
    both = [record(single(False, False)), record(single(True, False), knowledge="adaptive")]
    boxed = record(single(True, True), attack="learned-inverter", knowledge="black-box")
    found = row(*both, boxed)
    assert found.black_box is not None
    assert (found.plain.asr, found.adaptive.asr, found.black_box.asr) == (0.0, 0.5, 1.0)
    assert found.json()["black_box"]["asr"] == 1.0
    shown = printed(terminal.knowledge([found]), width=160)
    assert "black box" in shown
    assert "learned-inverter" in " ".join(shown.split())
    assert row(*both).black_box is None
    assert "black box" not in printed(terminal.knowledge([row(*both)]), width=160)
    assert knowledge([boxed]) == []


def test_one_kind_alone_makes_no_table() -> None:
    assert knowledge([record(single(True))]) == []
    assert knowledge([record(single(True), knowledge="adaptive")]) == []


def test_a_defense_that_describes_nothing_is_marked() -> None:
    found = row(record(single(True)), record(single(True), knowledge="adaptive", described=False))
    assert found.undescribed
    assert UNDESCRIBED in " ".join(printed(terminal.knowledge([found]), width=160).split())
    both = record(single(True), described=False), record(single(True), knowledge="adaptive")
    assert not row(*both).undescribed


def test_each_defense_point_and_data_set_has_its_row() -> None:
    varied: tuple[dict[str, Any], ...] = (
        {"defense": "none"},
        {"defense": "prune"},
        {"point": "type-1"},
        {"dataset": "mnist"},
    )
    found = knowledge(record(single(True), knowledge=kind, **one) for kind in ("plain", "adaptive") for one in varied)
    places = {(each.condition.partition(" · ")[0], each.defense, each.point) for each in found}
    assert places == {
        ("digits", "none", "type-2"),
        ("digits", "prune", "type-2"),
        ("digits", "prune", "type-1"),
        ("mnist", "prune", "type-2"),
    }


def test_a_crash_is_no_gain() -> None:
    found = row(record(single(False, False)), record(single(False, False), knowledge="adaptive", status="crashed"))
    assert found.adaptive.lower_bound and found.change is not None and found.change[0] == 0.0


def test_figures_of_an_attack_over_its_seeds() -> None:
    (found,) = attacks(
        [
            record(single(True, True, False), rmse=0.1, evaluations=40),
            record(single(True, False, False), seed=1, rmse=0.3, evaluations=60, example_status="diverged"),
        ]
    )
    assert (found.dataset, found.attack, found.examples, found.asr) == ("digits", "cpl", 6, 0.5)
    assert found.medians["rmse"] == pytest.approx(0.4)  # .1 .1 .3 .5 .5 .5
    assert found.rmse_of_successes == pytest.approx(0.1)
    assert (found.evaluations, found.outer, found.diverged) == (50.0, 2.5, 0.5)
    assert (found.medians["psnr_db"], found.prior_psnr_db) == (15.5, 11.0)
    assert found.interval is not None
    low, high = wilson(3, 6)
    assert found.interval[0] <= low < high <= found.interval[1]


def test_without_a_success_there_is_no_rmse_of_successes() -> None:
    (found,) = attacks([record(single(False, False))])
    assert (found.asr, found.medians["rmse"], found.rmse_of_successes) == (0.0, 0.5, None)


def test_a_crashed_attack_has_a_row_without_figures_and_one_that_does_not_apply_has_none() -> None:
    (found,) = attacks([record(single(True), status="crashed"), record(single(False), attack="dlg", status="n/a")])
    assert (found.attack, found.asr, found.diverged, found.crashed) == ("cpl", None, None, 1)
    assert "crashed" in printed(terminal.attacks([found]))


PAPER = PublishedFigures(
    where={"attack": {"name": "cpl"}, "dataset": {"name": "mnist"}, "point": "type-2"},
    figures={"asr": 0.686, "rmse": 0.145, "iterations": 18.4},
    source="a paper, Table I",
)


def test_what_is_published_stands_below_what_is_measured() -> None:
    found = attacks([record(single(True), dataset=name, restarts=3) for name in ("digits", "mnist")], [PAPER])
    assert [each.published for each in found] == [None, PAPER]
    shown = printed(terminal.attacks(found))
    assert shown.count("paper 68.6 %") == shown.count("paper 0.145") == shown.count("paper 18.4") == 1
    assert "paper: a paper, Table I" in shown
    assert found[1].json()["published"] == {**PAPER.figures, "source": "a paper, Table I"}


def test_published_figures_stay_with_the_run(tmp_path: Path) -> None:
    assert saved(tmp_path) == ()
    save(tmp_path, ())
    assert not list(tmp_path.iterdir())
    save(tmp_path, [PAPER])
    assert saved(tmp_path) == (PAPER,)
    (tmp_path / "published.json").write_text('[{"where": 3}]')
    with pytest.raises(RecordError, match="no published figures"):
        saved(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for kind in ("plain", "adaptive"):
        records.write(tmp_path, record(single(True, False), knowledge=kind, dataset="mnist"))
    save(tmp_path, [PAPER])
    return tmp_path


def shown(*arguments: str | Path) -> Any:
    return CliRunner().invoke(command, [*map(str, arguments)])


def test_bench_show_prints_both_tables(run: Path) -> None:
    for table, words in (("--attacks", "paper 68.6 %"), ("--knowledge", "what knowing the defense gains")):
        result = shown(run, table)
        assert result.exit_code == 0, result.exception
        assert words in " ".join(result.output.split())
    assert '"change"' in shown(run, "--knowledge", "--json").output
    assert '"rmse_of_successes"' in shown(run, "--attacks", "--json").output


def test_a_table_is_of_a_run_and_says_so_where_it_has_no_rows(run: Path, tmp_path_factory: Any) -> None:
    assert "leave 3f2a out" in shown("3f2a", run, "--attacks").output
    other = tmp_path_factory.mktemp("other")
    records.write(other, record(single(True)))
    assert "no attack of" in shown(other, "--knowledge").output


def test_names_are_not_squeezed_away_where_defenses_and_points_differ() -> None:
    """At 80 columns, with every name that can vary varying; a figure's last letters may go, a name may not."""
    fared = [
        record([[True, False]], attack="cpl", defense=defense, point=point)
        for defense in ("none", "fed-sdp")
        for point in ("type-2", "type-1")
    ]
    text = printed(terminal.attacks(attacks(fared)), width=80)
    assert all(name in text for name in ("cpl", "fed-sdp", "none", "type-2", "type-1", "outer"))
