"""The board of attacks: ranks, unions and differences against a slow count, a plug-in's run, a second draw."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.cells import prepared
from tests.command import fault, in_this_process, output
from tests.records import attack_cell, attack_record, printed, readings_of, unfinished

from bench.answer.context import Memory, RunContext
from bench.answer.truth import truth_from
from bench.cell import AttackCell, DataRef, Federated
from bench.cli import leaderboard
from bench.cli.run import command
from bench.leaderboard.attackers import Cross, crossed, difference, drop, fails, neighbours
from bench.leaderboard.forms import attackers as form
from bench.leaderboard.forms.page import render_attackers
from bench.matrix.suites import ATTACKS, draw_key, suite_of
from bench.record.names import attack_name, entry_text
from bench.record.schema import Cost, Record
from bench.reference import attackers, store
from bench.reference.costs import expected_of_attacks
from bench.sweep.plan import Resolver

NAMES = ("map", "gradinv", "cpl")
CONDITIONS = (("none", 1), ("none", 4), ("prune", 1))
SEEDS = (0, 1, 2, 3)
READINGS = 4


def outcome(
    attack: str,
    hits: Sequence[Sequence[bool]],
    *,
    condition: tuple[str, int] = ("none", 1),
    seed: int = 0,
    seconds: float = 1.0,
    psnr_db: Sequence[Sequence[float | None]] | None = None,
    **cell: Any,
) -> Record:
    """An attack's record in a condition, which is a defense and a batch size, for a weight seed."""
    defense, batch = condition
    made = attack_cell(
        attack=attack,
        knowledge="adaptive",
        defense=defense,
        federated=Federated(batch=batch),
        point="type-1",
        readings=len(hits),
        seed=seed,
        **cell,
    )
    return attack_record(
        id=made.id, cell=made, readings=readings_of(hits, psnr_db), cost=Cost(cpu_seconds=seconds, wall_seconds=seconds)
    )


def random_cross(seed: int, victims: str | None = None) -> list[Record]:
    """Random outcomes of every attack in every condition, with random decibels and costs."""
    draws = np.random.default_rng(seed)
    records = []
    for (number, name), condition, weights in product(enumerate(NAMES), CONDITIONS, SEEDS):
        hits = draws.random((READINGS, condition[1])) < 0.2 + 0.2 * number
        psnr_db = np.where(hits, draws.uniform(20, 60, hits.shape), draws.uniform(5, 19, hits.shape)).tolist()
        seconds = float(draws.uniform(1, 9))
        records.append(
            outcome(
                name,
                hits.tolist(),
                condition=condition,
                seed=weights,
                seconds=seconds,
                psnr_db=psnr_db,
                victims=victims,
            )
        )
    return records


def slowly(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Each attack's figures, counted example by example."""
    got: dict[str, dict[tuple[Any, ...], bool]] = {name: {} for name in map(_name, records)}
    decibels: dict[str, list[float]] = {name: [] for name in got}
    for record in records:
        cell, name = record.cell, _name(record)
        assert isinstance(cell, AttackCell) and record.attack is not None
        for row, reading in enumerate(record.attack.readings):
            for place, example in enumerate(reading.examples):
                key = ((entry_text(cell.defense), cell.federated.batch), cell.seed, row, place)
                got[name][key] = example.success
                if example.success:
                    decibels[name].append(example.psnr_db or 0.0)
    figures: dict[str, dict[str, Any]] = {}
    for name, hits in got.items():
        rates, only, with_it, without = [], [], [], []
        for condition in CONDITIONS:
            keys = [key for key in hits if key[0] == condition]
            others = {key for key in keys if any(got[other][key] for other in got if other != name)}
            mine = {key for key in keys if hits[key]}
            rates.append(len(mine) / len(keys))
            only.append(len(mine - others))
            with_it.append(len(mine | others) / len(keys))
            without.append(len(others) / len(keys))
        spent = sum(record.cost.cpu_seconds for record in records if _name(record) == name)
        figures[name] = {
            "rates": rates,
            "rate": fmean(rates),
            "only": only,
            "adds": fmean(with_it) - fmean(without),
            "union": fmean(with_it),
            "psnr_db": median(decibels[name]),
            "seconds": spent / sum(hits.values()),
        }
    return figures


def _name(record: Record) -> str:
    assert isinstance(record.cell, AttackCell)
    return attack_name(record.cell)


def cross_of(records: Sequence[Record], own: Sequence[str] = (), victims: str | None = None) -> Cross:
    cross = crossed(records, own, victims)
    assert cross is not None
    return cross


@pytest.mark.parametrize("seed", range(5))
def test_figures_equal_a_slow_count(seed: int) -> None:
    records = random_cross(seed)
    cross, slow = cross_of(records), slowly(records)
    assert [each.attack for each in cross.attackers] == sorted(slow, key=lambda name: -slow[name]["rate"])
    assert [each.rank for each in cross.attackers] == [1, 2, 3]
    for row in cross.attackers:
        its = slow[row.attack]
        assert row.only == tuple(its["only"])
        for name in ("rate", "adds", "psnr_db", "seconds"):
            assert getattr(row, name) == pytest.approx(its[name]), name
        assert row.rates == pytest.approx(its["rates"])
        assert cross.union == pytest.approx(its["union"])
        assert row.interval[0] < row.rate < row.interval[1]


def test_a_difference_pairs_the_victims_and_weighs_conditions_equally() -> None:
    """The batch of four has four times the examples, and counts once."""
    records = [
        *(outcome("map", [[True]] * 4, seed=seed) for seed in SEEDS),
        *(outcome("map", [[False] * 4] * 4, condition=("none", 4), seed=seed) for seed in SEEDS),
        *(outcome("cpl", [[seed == 0]] * 4, seed=seed) for seed in SEEDS),
        *(outcome("cpl", [[False] * 4] * 4, condition=("none", 4), seed=seed) for seed in SEEDS),
    ]
    value, low, high = difference(cross_of(records), "map · adaptive", "cpl · adaptive")
    assert value == pytest.approx((0.75 + 0) / 2)
    assert low < value < high
    other, low_, high_ = difference(cross_of(records), "cpl · adaptive", "map · adaptive")
    assert (other, low_, high_) == pytest.approx((-value, -high, -low), abs=0.02)


def test_equal_rates_are_ranked_by_time() -> None:
    records = [outcome("map", [[True], [False]], seconds=3.0), outcome("cpl", [[False], [True]], seconds=2.0)]
    assert [each.attack for each in cross_of(records).attackers] == ["cpl · adaptive", "map · adaptive"]


def test_an_attack_that_cannot_run_gets_nothing_there_and_one_that_was_not_run_has_no_rank() -> None:
    absent = unfinished(outcome("cpl", [[True]] * 2, condition=("prune", 1)), "n/a", "its layers are convolutions")
    crashed = unfinished(outcome("gradinv", [[True]] * 2, condition=("prune", 1)), "crashed", "a fault")
    records = [
        *(outcome(name, [[True]] * 2) for name in ("map", "cpl", "gradinv")),
        outcome("dlg", [[True]] * 2),
        outcome("map", [[True], [False]], condition=("prune", 1)),
        absent,
        crashed,
    ]
    cross = cross_of(records)
    rows = {each.attack.partition(" ")[0]: each for each in cross.attackers}
    assert (rows["map"].rate, rows["map"].rank) == (0.75, 1)
    assert (rows["cpl"].rates, rows["cpl"].rate) == ((1.0, None), 0.5)
    assert dict(rows["cpl"].absent) == {1: "its layers are convolutions"}
    assert (rows["gradinv"].rates, dict(rows["gradinv"].crashed)) == ((1.0, 0.0), {1: "a fault"})
    assert rows["dlg"].missing == (1,)
    assert cross.attackers[-1].attack == "dlg · adaptive"
    above, below = neighbours(cross, "map · adaptive")
    assert above is None and below is not None and below.attack == "cpl · adaptive"
    assert fails(cross, "gradinv · adaptive") == [(1, "map · adaptive", 0.5)]
    assert fails(cross, "cpl · adaptive") == []


def test_a_drop_on_other_victims_is_beyond_the_interval_or_not() -> None:
    """Half of the victims less in one of two conditions; then nothing."""
    hits, fewer = [[True]] * 16, [[n < 8] for n in range(16)]
    published, second = (
        cross_of(
            [
                outcome("cpl", its, condition=condition, seed=seed, victims=victims)
                for seed in SEEDS
                for condition, its in ((("none", 1), first), (("prune", 1), fewer))
            ],
            victims=victims,
        )
        for first, victims in ((hits, None), (fewer, "7-a"))
    )
    change, low, high = drop(published, second, "cpl · adaptive")
    assert change == pytest.approx(-0.25)
    assert -1 <= low < change < high < 0
    change, low, high = drop(second, second, "cpl · adaptive")
    assert change == 0
    assert low < 0 < high


def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: Sequence[Record]) -> None:
    store.write(attackers.VERSION, records, folder=tmp_path, by=store.of_attack)
    read, versions = store.read, store.versions
    monkeypatch.setattr(store, "read", lambda version: read(version, tmp_path))
    monkeypatch.setattr(store, "versions", lambda: versions(tmp_path))


def test_a_run_stands_beside_the_shipped_attacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference comes back as written; mine stands between, the same condition for the same victims."""
    reference = random_cross(0)
    shipped(tmp_path, monkeypatch, reference)
    assert {path.name for path in (tmp_path / attackers.VERSION).iterdir()} == {
        f"{name}-adaptive.json.xz" for name in NAMES
    }
    alone = attackers.ranked()
    assert alone is not None and alone.own == () and not alone.why
    assert [each.rate for each in alone.cross.attackers] == [each.rate for each in cross_of(reference).attackers]
    mine = [
        outcome("mine", [[seed == 3] * condition[1]] * READINGS, condition=condition, seed=seed, victims=victims)
        for condition, seed, victims in product(CONDITIONS, SEEDS, (None, "7-abc"))
    ]
    elsewhere = outcome("mine", [[True]], condition=("sign", 1))  # no condition of the suite
    standing = attackers.ranked([*mine, elsewhere])
    assert standing is not None
    assert standing.own == ("mine · adaptive",)
    assert len(standing.cross.contests) == len(CONDITIONS)
    said = dict(attackers.lines(standing, "mine · adaptive"))
    assert list(said) == ["rank", "only", "costs", "fails", "victims"]
    row = standing.cross.at("mine · adaptive")
    assert said["rank"].startswith(f"{row.rank} of 4 on attacks-v1, mean rate 25 % [")
    assert "on the same victims" in said["rank"]
    assert f"{sum(row.only)} examples that no other attack reconstructs" in said["only"]
    assert "the first of the shipped" in said["costs"]
    assert said["victims"].startswith("published 25 % [") and "draw 7 25 % [" in said["victims"]
    assert said["victims"].endswith("no difference shown")


def test_a_published_attack_made_again_does_not_replace_what_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = random_cross(0)
    shipped(tmp_path, monkeypatch, reference)
    again = [outcome("map", [[True] * c[1]] * READINGS, condition=c, seed=s) for c, s in product(CONDITIONS, SEEDS)]
    standing = attackers.ranked(again)
    assert standing is not None and standing.own == ()
    assert standing.cross.at("map · adaptive").rate == cross_of(reference).at("map · adaptive").rate


def test_without_a_reference_the_lines_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped(tmp_path, monkeypatch, [])
    standing = attackers.ranked([outcome("mine", [[True], [False]])])
    assert standing is not None
    said = dict(attackers.lines(standing, "mine · adaptive"))
    why = "this package has no reference results of attacks-v1 yet"
    assert said["rank"].startswith(f"1 of 1 in this run alone ({why})")
    assert said["only"] == "1 examples; no other attack is there to compare"


def test_times_are_those_of_the_attack_or_the_middle_one_of_the_condition() -> None:
    records = [outcome(name, [[True]], seconds=seconds) for name, seconds in zip(NAMES, (1.0, 5.0, 30.0), strict=True)]
    seconds = expected_of_attacks(records)
    assert [seconds(record.cell) for record in records] == [1.0, 5.0, 30.0]
    mine = outcome("mine", [[True]])
    assert seconds(mine.cell) == 5.0
    assert seconds(outcome("map", [[True]], victims="7-abc").cell) == 1.0
    assert seconds(outcome("mine", [[True]], condition=("prune", 1)).cell) is None


@pytest.mark.parametrize("width", [80, 120])
def test_twelve_conditions_fit_into_the_terminal(width: int) -> None:
    conditions = [(defense, batch) for defense in ("none", "prune", "sign", "top-k") for batch in (1, 2, 4)]
    records = [
        outcome(name, [[True] * condition[1], [False] * condition[1]], condition=condition, seconds=900.0)
        for name, condition in product(("map", "learned-inverter"), conditions)
    ]
    cross = cross_of(records, own=["map · adaptive"])
    shown = printed(form.terminal(cross, "a title"), width)
    assert max(map(len, shown.splitlines())) <= width
    assert "▸ map" in shown and "together" in shown
    assert len(form.labels(cross.contests)) == len(set(form.labels(cross.contests))) == 12
    assert form.labels(cross.contests)[0] == "1 B = 1"
    head, *_ = form.markdown(cross).splitlines()
    assert head.count("|") == 1 + 3 + 12 + 3


def test_a_page_escapes_an_attacks_name() -> None:
    records = [outcome("<script>alert(1)</script>", [[True]])]
    text = render_attackers([("a <b>", cross_of(records))], context=["a & b"])
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "a &lt;b&gt;" in text and "a &amp; b" in text


@pytest.mark.parametrize("point", ["type-1", "aggregate"])
def test_a_second_draw_changes_the_victims_and_nothing_else(tmp_path: Path, point: str) -> None:
    first = attack_cell(
        dataset=DataRef(name="digits", sha256=Resolver(None).data("digits", {}).sha256),
        point=point,
        federated=Federated(batch=2, per_round=4, clients=20),
        readings=4,
    )
    cells = [first, *(first.model_copy(update={"victims": key}) for key in ("7-a", "8-a", "7-a"))]
    setups = [prepared(cell, RunContext(run=tmp_path), Memory()) for cell in cells]
    truths = [truth_from(cell, setup.source) for cell, setup in zip(cells, setups, strict=True)]
    assert len({cell.id for cell in cells}) == 3
    assert len({truth.victims.clients for truth in truths}) == 3
    assert len({tuple(truth.victims.indices.flatten().tolist()) for truth in truths}) == 3
    for setup, truth in zip(setups, truths, strict=True):
        assert np.array_equal(setup.source.clients, setups[0].source.clients)
        assert setup.weights.keys() == setups[0].weights.keys()
        assert all(torch.equal(value, setups[0].weights[name]) for name, value in setup.weights.items())
        owned = {
            int(index) for row in truth.victims.clients for client in row for index in setup.source.clients[client]
        }
        assert set(truth.victims.indices.flatten().tolist()) <= owned


def test_the_key_of_a_draw_depends_on_seed_and_matrix(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("a = 1\n")
    second.write_text("a = 2\n")
    keys = [draw_key(first, 7), draw_key(first, 8), draw_key(second, 7)]
    assert len(set(keys)) == 3
    assert draw_key(first, 7) == keys[0]
    assert keys[0].startswith("7-")


MATRIX = """
suite = "attacks"
title = "two conditions"
informed = true
[axes]
dataset = ["digits"]
model = ["dlg-lenet"]
attack = ["cpl", "idlg"]
seed = [0, 1]
grants = [["labels"]]
federated = [{ batch = 1 }]
point = ["type-1"]
readings = 2
evaluations = 20
[[attack]]
[[attack]]
defense = [{ name = "prune", share = 0.7, at = "client" }]
"""
MINE = """
from dataclasses import dataclass

import torch

from bench.attacks.base import Attack, closed_form


@dataclass(frozen=True, kw_only=True)
class Grey(Attack):
    reference = "a test"
    iterative = False

    def reconstruct(self, reading, budget, key):
        return closed_form(reading, torch.full((len(reading), reading.examples, *reading.shape), 0.5))
"""


def test_a_plug_in_is_ranked_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(MATRIX)
    (tmp_path / "my_attack.py").write_text(MINE)
    words = ["--matrix", "small.toml", "--plugin", "my_attack.py", "--attack", "grey,cpl", "--draw-seed", "7"]
    plan = json.loads(output(command, *words, "--dry-run", "--json"))["cells"]
    assert len(plan) == 2 * 2 * 2 * 2  # attacks, conditions, seeds, draws
    known = {(cell["cell"]["attack"]["name"], cell["cell"]["knowledge"]) for cell in plan}
    assert known == {("grey", "plain"), ("cpl", "adaptive")}
    assert {cell["cell"]["victims"] for cell in plan} == {None, draw_key(tmp_path / "small.toml", 7)}
    text = output(command, *words, "--no-tracking", "--jobs", "1")
    said = " ".join(text.split())
    assert "1 of 2 in this run alone (the matrix is not the shipped attacks.toml)" in said
    for line in ("rank", "only", "costs", "fails", "victims", "next"):
        assert f"\n{line} " in text, line
    assert "suite attacks-v1, protocol 3: unranked" in said
    board = output(leaderboard.command, "runs/small")
    assert "second draw of victims, 7" in board and "cpl adaptive" in board
    written = json.loads(output(leaderboard.command, "runs/small", "--json"))
    assert {each["attack"].partition("(")[0] for each in written["attacks"]} == {"cpl", "grey"}
    assert written["reference"] is None and len(written["draws"]) == 1
    output(leaderboard.command, "runs/small", "--html", "b.html", "--markdown", "b.md")
    assert "board of attacks" in (tmp_path / "b.html").read_text()
    assert (tmp_path / "b.md").read_text().count("| together | 100 % |") == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--suite", "standard-v1", "--attack", "cpl"], "--attack is of a run without --matrix"),
        (["--suite", "standard-v1", "--draw-seed", "7"], "--draw-seed is of the suite attacks"),
        (["--suite", "standard"], "--suite standard ranks a defense; add --defense NAME"),
        (
            ["--suite", "standard", "--defense", "sign", "--seed", "1"],
            "--seed is not of --suite standard; leave it out, or take --suite standard-v1",
        ),
        (["--attack", "cpl", "--draw-seed", "7"], "--draw-seed is of the suite attacks; add --suite attacks"),
        (["--suite", "attacks", "--defense", "prune"], "--defense changes the conditions of the suite attacks"),
        (["--suite", "attacks", "--seed", "7"], "--seed is of a run without --matrix"),
        (["--suite", "attacks", "--attack", "cppl"], "--attack: unknown attack 'cppl'; did you mean 'cpl'?"),
    ],
)
def test_options_of_another_suite_are_refused(words: list[str], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CliRunner().invoke(command, words)
    assert made.exit_code != 0
    assert line in made.output + str(made.exception)


def test_a_matrix_names_its_suite(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('suite = "attacks"\n')
    (tmp_path / "none.toml").write_text("suite = [")
    assert suite_of(str(tmp_path / "mine.toml")) == suite_of("attacks") == ATTACKS
    assert suite_of("standard") == "standard"
    assert suite_of(str(tmp_path / "none.toml")) is None
    assert suite_of("quickstart") is None


def test_a_board_without_reference_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped(tmp_path, monkeypatch, [])
    assert "no reference results of attacks-v1" in fault(leaderboard.command, "--suite", "attacks")
