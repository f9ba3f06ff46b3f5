"""Records → board: complete rows first, costs beside, and every doubt raised by a defense broken on purpose."""

import base64
import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from tests.boards import attacked, by_defense, codes, trained
from tests.records import printed, unfinished, with_result

from bench.cli.leaderboard import command as leaderboard
from bench.errors import BenchError
from bench.kinds.images import IMAGE
from bench.leaderboard.board import board
from bench.leaderboard.flags import FAILED, INCOMPLETE
from bench.leaderboard.forms import csv as csv_form
from bench.leaderboard.forms import figure, latex, markdown, terminal
from bench.record.schema import AttackConditions, Distortion, Record, SelfCheck, Trajectory
from bench.record.store import write
from bench.sanitize import sanitize


def test_a_row_has_every_point_its_worst_case_and_the_best_attack() -> None:
    rows = board(
        [
            attacked(32),
            attacked(8, attack="dlg"),
            attacked(32, point="type-1"),
            attacked(0, attack="dlg", point="type-1"),
            attacked(4, defense="prune"),
            attacked(8, attack="dlg", defense="prune"),
            attacked(2, defense="prune", point="type-1"),
            attacked(0, attack="dlg", defense="prune", point="type-1"),
        ]
    )
    prune = by_defense(rows)["prune"]
    assert prune.complete and list(prune.points) == ["type-2", "type-1"]
    at = prune.worst
    assert at is not None and at.point == "type-2" and at.asr == 0.25
    assert at.best is not None and (at.best.attack, at.best.asr) == ("dlg", 0.25)
    assert at.best.medians.items() >= {"rmse": 0.4, "psnr_db": 8.0, "ssim": 0.9, "lpips": None}.items()
    assert at.by_attack == {"cpl": 0.125, "dlg": 0.25}
    assert at.reached[:2] == (0.25, 0.25) and at.reached[-1] == 0.0
    assert [row.rank for row in rows] == [1, 2] and rows[0].defense == "prune"
    json.dumps(prune.json(), allow_nan=False)


def test_an_incomplete_row_ranks_below_every_complete_one() -> None:
    full = [attacked(32), attacked(32, attack="dlg")]
    full += [attacked(30, defense="weak"), attacked(1, defense="weak", attack="dlg")]
    new = attacked(0, defense="new")
    for broken, code in (
        ([new], "missing"),
        ([new, attacked(defense="new", attack="dlg", status="crashed")], "crashed"),
        ([new, attacked(0, defense="new", attack="dlg")], None),
    ):
        rows = board([*full, *broken])
        row = by_defense(rows)["new"]
        assert row.complete == (code is None) and rows[-1 if code else 0].defense == "new"
        assert code is None or codes(row)[0] == code
    few = by_defense(board([attacked(0, readings=31)]))["none"]
    assert codes(few)[0] == "few" and not few.complete
    # a combination that does not apply is no gap
    settled = [*full, new, attacked(defense="new", attack="dlg", status="n/a")]
    assert by_defense(board(settled))["new"].complete


def test_costs_are_of_the_same_data_model_and_defense() -> None:
    records = [
        attacked(32),
        attacked(4, defense="prune"),
        *(trained(a, seed=s) for s, a in enumerate((0.9, 0.8))),
        *(trained(a, seed=s, defense="prune", epsilon=3.0, overhead=1.4) for s, a in enumerate((0.7, 0.75))),
        trained(0.2, defense="prune", model="mlp"),
        # longer, but nothing undefended beside it: its accuracy would have no loss
        trained(0.99, defense="prune", rounds=50),
    ]
    cost = by_defense(board(records))["prune"].cost
    assert cost is not None
    assert (cost.accuracy, cost.seeds, cost.epsilon, cost.epsilon_unit) == (0.725, 2, 3.0, "client")
    assert cost.loss == pytest.approx(0.125)  # the median of .2 and .05, each against the same seed
    assert cost.overhead == 1.4 and [round_ for round_, _ in cost.curve] == [0, 10]
    assert [accuracy for _, accuracy in cost.curve] == pytest.approx([0.1, 0.725])
    none = by_defense(board(records))["none"].cost
    assert none is not None and none.loss == 0.0 and none.epsilon is None and none.epsilon_absent


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    records = [
        attacked(32),
        trained(0.9),
        attacked(10, defense="good"),
        trained(0.8, defense="good"),
        attacked(10, defense="dear"),
        trained(0.7, defense="dear"),  # leaks as much and loses more
        attacked(0, defense="strong"),
        trained(0.3, defense="strong"),
        attacked(0, defense="untrained"),
        attacked(0, defense="few", readings=8),
        trained(0.9, defense="few"),
    ]
    front = {row.defense for row in board(records) if row.pareto}
    assert front == {"none", "good", "strong"}


def test_protocols_never_share_a_board() -> None:
    rows = board([attacked(32), attacked(32, protocol=2)])
    assert len({row.title for row in rows}) == 2 and [row.rank for row in rows] == [1, 1]


RANDOM: dict[str, Any] = {"conditions": AttackConditions(random=True, described=True)}


def test_random_defenses_are_the_mean_over_draws_and_say_what_leaks_once() -> None:
    records = [
        attacked(8, defense="noise", draw=0, **RANDOM),
        attacked(4, defense="noise", draw=1, **RANDOM),
        attacked(7, defense="noise", attack="dlg", draw=0, **RANDOM),
        attacked(9, defense="noise", attack="dlg", draw=1, **RANDOM),
    ]
    at = by_defense(board(records))["noise"].worst
    assert at is not None
    assert at.asr == (8 + 9) / 64 and at.at_least_once == 9 / 32
    # chosen on the first draw, quoted on the other: no luck of the best of two
    assert at.best is not None and (at.best.attack, at.best.asr) == ("cpl", 4 / 32)


def losses(*each: float) -> dict[str, Any]:
    return {"trajectory": Trajectory(losses=each, evaluations=(1, 64))}


def recognises(truth: bool) -> dict[str, Any]:
    return {"self_check": SelfCheck(recognises_truth=truth)}


PLAIN: dict[str, Any] = {"conditions": AttackConditions()}
FLAGGED: dict[str, list[Record]] = {
    "no-evidence": [attacked(0), attacked(0, defense="d")],
    "no-baseline": [attacked(9, defense="e"), attacked(0, defense="d")],
    "recognised": [attacked(32), attacked(0, defense="d", identified=32)],
    "failed": [attacked(32), attacked(0, defense="d", example_status="diverged")],
    "single-observation": [attacked(32), attacked(0, defense="d", **RANDOM)],
    # the third was to know the defense, which describes nothing: it stayed plain
    "no-adaptive-attack": [
        attacked(32),
        attacked(0, defense="d", **PLAIN),
        attacked(0, defense="d", knowledge="adaptive", **PLAIN),
    ],
    "no-progress": [attacked(32), attacked(0, defense="d", **losses(1.0, 0.95))],
    "self-check": [attacked(32), attacked(0, defense="d", **recognises(False))],
    "restarts": [attacked(32), attacked(9, defense="d", restarts=1)],
    "at-prior-level": [attacked(32), attacked(0, defense="d", prior=14.0)],
}
CLEARED: dict[str, list[Record]] = {
    "no-evidence": [attacked(32), attacked(0, defense="d")],
    "no-baseline": [attacked(32), attacked(0, defense="d")],
    "recognised": [attacked(32), attacked(0, defense="d", identified=9)],
    "failed": [attacked(32), attacked(32, defense="d", example_status="diverged")],
    "single-observation": [
        attacked(32),
        attacked(0, defense="d", **RANDOM),
        attacked(0, defense="d", **RANDOM, repeated=10),
    ],
    "no-adaptive-attack": [
        attacked(32),
        attacked(0, defense="d", **PLAIN),
        attacked(0, defense="d", knowledge="adaptive"),
    ],
    "no-progress": [attacked(32), attacked(0, defense="d", **losses(1.0, 0.2))],
    "self-check": [attacked(32), attacked(0, defense="d", **recognises(True))],
    "restarts": [attacked(32), attacked(9, defense="d", restarts=0)],
    "at-prior-level": [attacked(32), attacked(17, defense="d", prior=14.0)],
}


def test_an_attacker_who_runs_the_defense_need_not_know_it() -> None:
    simulated = AttackConditions(simulated=True)
    black_box = attacked(0, defense="d", knowledge="black-box", conditions=simulated)
    rows = board([attacked(32), attacked(0, defense="d", **PLAIN), black_box])
    assert "no-adaptive-attack" not in codes(by_defense(rows)["d"])


@pytest.mark.parametrize("code", FLAGGED)
def test_a_doubt_is_raised_and_only_then(code: str) -> None:
    assert code in codes(by_defense(board(FLAGGED[code]))["d"])
    assert all(code not in codes(row) for row in board(CLEARED[code]) if row.defense == "d")
    # a doubt says what a figure is worth; it does not make the row incomplete
    assert by_defense(board(FLAGGED[code]))["d"].complete == (code not in INCOMPLETE)


def test_only_plain_attacks_are_a_lower_bound_and_rank_below() -> None:
    plain = attacked(0, defense="plain", **PLAIN)
    rows = by_defense(board([attacked(32), attacked(9, defense="met"), plain]))
    assert (rows["met"].rank, rows["none"].rank, rows["plain"].rank) == (1, 2, 3)
    assert [rows[name].points["type-2"].lower_bound for name in rows] == [False, False, True]
    whole = board([attacked(32), attacked(32, defense="plain", **PLAIN)])
    assert not any(row.points["type-2"].lower_bound for row in whole), "more than all cannot leak"


def test_where_no_attack_applies_there_is_no_figure() -> None:
    """Of guesses without the gradient alone nothing follows: no 0, and no first rank."""
    absent = attacked(defense="split", status="n/a")
    guess = attacked(0, defense="split", attack="prior-mean")
    rows = by_defense(
        board(
            [
                attacked(32),
                attacked(0, attack="prior-mean"),
                attacked(9, defense="met"),
                attacked(0, defense="met", attack="prior-mean"),
                absent,
                guess,
            ]
        )
    )
    at = rows["split"].points["type-2"]
    assert at.asr is None and at.interval is None and "not-attacked" in codes(rows["split"])
    assert (rows["met"].rank, rows["none"].rank, rows["split"].rank) == (1, 2, 3)


@pytest.mark.parametrize(("empty", "cosine", "flagged"), [(17, None, True), (16, None, False), (32, 0.1, False)])
def test_where_a_defense_sends_nothing_a_zero_says_nothing(empty: int, cosine: float | None, flagged: bool) -> None:
    """A defense that holds back what it sends later would rank first in a suite that attacks one round."""
    record = attacked(0, defense="later")
    assert record.attack
    readings = tuple(
        replace(reading, snr_db=0.0, cosine=cosine) if n < empty else replace(reading, snr_db=3.0, cosine=0.7)
        for n, reading in enumerate(record.attack.readings)
    )
    later = with_result(record, readings=readings)
    row = by_defense(board([attacked(32), later]))["later"]
    assert ("nothing-sent" in codes(row)) == flagged and row.complete != flagged


def test_equal_rows_share_a_rank() -> None:
    records = [attacked(32), attacked(0, defense="a"), attacked(0, defense="b"), attacked(4, defense="c")]
    assert {row.defense: row.rank for row in board(records)} == {"a": 1, "b": 1, "c": 3, "none": 4}


@pytest.mark.parametrize("code", FAILED)
def test_a_row_whose_attacks_failed_is_on_no_front(code: str) -> None:
    records = [*FLAGGED[code], trained(0.9), trained(0.9, defense="d")]
    assert "d" not in {row.defense for row in board(records) if row.pareto}
    assert "d" in {row.defense for row in board([*CLEARED[code], *records[-2:]]) if row.pareto}


def test_under_noise_nobodys_loss_falls_and_that_is_no_failure() -> None:
    check = SelfCheck(distance_at_truth=0.93, distance_at_public=0.99)
    records = [attacked(32), attacked(0, defense="d", self_check=check, **losses(1.0, 0.95))]
    assert "no-progress" not in codes(by_defense(board(records))["d"])


def test_every_flag_is_explained() -> None:
    """docs/FLAGS.md has a line for each flag that the board can raise."""
    page = (Path(__file__).parent.parent / "docs" / "FLAGS.md").read_text("utf-8")
    assert all(f"`{code}`" in page for code in (*FLAGGED, *INCOMPLETE))


HOSTILE = "=<script>|\x1b[31m](x)"


def test_every_form_has_the_same_rows_and_takes_any_name() -> None:
    rows = board([attacked(32), attacked(4, defense=HOSTILE), trained(0.9), trained(0.8, defense=HOSTILE, epsilon=2.0)])
    table = list(csv.DictReader(io.StringIO(csv_form.board(rows))))
    assert [line["type-2 asr"] for line in table] == [str(row.points["type-2"].asr) for row in rows]
    assert [line["accuracy_lost"] for line in table] == ["0.09999999999999998", "0.0"]
    assert table[0]["defense"] == f"'{sanitize(HOSTILE)}"
    shown = markdown.board(rows)
    assert "<script>" not in shown and "](x)" not in shown
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    assert len({line.replace(r"\|", "").count("|") for line in lines}) == 1 and len(lines) == 2 + len(rows)
    text = printed(terminal.board(rows), width=100)
    assert "12 %" in text and "80.0 %" in text and "<script>" in text


def test_three_points_fit_eighty_columns() -> None:
    """Whole figures, and the defenses' names beside them."""
    rows = board(
        [
            *(
                attacked(32, point=point, attack="map", knowledge="adaptive")
                for point in ("type-2", "type-1", "type-0")
            ),
            trained(0.9, epsilon=4.48),
        ]
    )
    text = printed(terminal.board(rows), width=80)
    assert "none" in text and "90.0 %" in text and "lost 0.0 pp" in text and "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_command_writes_what_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = tmp_path / "runs" / "a", tmp_path / "runs" / "b"
    for record in (attacked(32), attacked(4, defense="prune")):
        write(one, record)
    later = attacked(8, defense="prune")
    write(other, later)
    files = ["--csv", "b.csv", "--markdown", "b.md", "--json"]
    result = CliRunner().invoke(leaderboard, [str(one), str(other), *files])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert {row["defense"]: row["points"]["type-2"]["asr"] for row in rows} == {"none": 1.0, "prune": 0.25}
    assert (tmp_path / "b.csv").read_text().count("\n") == 3 and "prune" in (tmp_path / "b.md").read_text()
    assert "prune" in CliRunner().invoke(leaderboard, ["show", str(one)]).output
    assert isinstance(CliRunner().invoke(leaderboard, ["nowhere"]).exception, BenchError)
    (one / "records" / "bad.json").write_text("{}")
    broken = CliRunner().invoke(leaderboard, [str(one)])
    assert broken.exit_code == 0 and "prune" in broken.stdout
    assert "bad.json: not a record" in broken.stderr and "1 of 3 records of" in broken.stderr


def test_latex_has_every_row_and_takes_any_name() -> None:
    rows = board([attacked(32), attacked(4, defense=HOSTILE), trained(0.9)])
    text = latex.board(rows)
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == len(rows) and all(line.endswith(r" \\") for line in body)
    columns = text.split(r"\begin{tabular}{")[1].split("}")[0]
    assert {line.replace(r"\&", "").count("&") + 1 for line in body} == {len(columns)}
    assert latex.escaped("50 % of a_b\n{x} \\ ≥ <&>") == (
        r"50 \% of a\_b \{x\} \textbackslash{} $\geq$ \textless{}\&\textgreater{}"
    )


def test_a_picture_is_what_its_ending_says(tmp_path: Path) -> None:
    strips = [
        figure.Strip("victims", "type-2", np.linspace(0, 1, 128).reshape(2, 1, 8, 8), IMAGE),
        figure.Strip("a <b> & c", "1 of 2\nidentified", np.zeros((2, 1, 8, 8)), IMAGE),
    ]
    assert figure.png(strips)[:4] == b"\x89PNG" and figure.pdf(strips)[:5] == b"%PDF-"
    root = ElementTree.fromstring(figure.svg(strips))
    assert [item.text for item in root.iter("{http://www.w3.org/2000/svg}text")] == [
        "victims",
        "type-2",
        "a <b> & c",
        "1 of 2",
        "identified",
    ]
    images = list(root.iter("{http://www.w3.org/2000/svg}image"))
    assert len(images) == 4
    data = base64.b64decode(images[0].attrib["href"].partition("base64,")[2])
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (8, 8)
    wrong = CliRunner().invoke(leaderboard, [str(tmp_path), "--picture", "x.gif"]).exception
    assert isinstance(wrong, BenchError) and "it ends in .png, .svg, .pdf" in str(wrong)


def test_a_defense_that_breaks_a_contract_ranks_last_and_is_no_protection() -> None:
    broken = replace(attacked(0, defense="a"), broken=("noise: it is not added",))
    rows = {row.defense: row for row in board([broken, attacked(32, defense="b"), attacked(32, defense="none")])}
    assert rows["a"].broken and not rows["a"].pareto and rows["a"].rank == 3
    assert next(flag.code for flag in rows["a"].flags) == "broken"
    shown = " ".join(printed(terminal.board([*rows.values()]), width=200).split())
    assert "✗" in shown and "the defense breaks a contract: noise: it is not added" in shown


def test_what_is_identified_breaks_ties() -> None:
    def row(defense: str, identified: int) -> Record:
        record = attacked(0, defense=defense)
        assert record.attack is not None
        readings = tuple(
            replace(reading, examples=tuple(replace(e, identified=n < identified) for e in reading.examples))
            for n, reading in enumerate(record.attack.readings)
        )
        return replace(record, result=replace(record.attack, readings=readings))

    rows = {row.defense: row.rank for row in board([row("more", 20), row("less", 2), row("less-too", 2)])}
    assert rows == {"less": 1, "less-too": 1, "more": 3}


@pytest.mark.parametrize(
    ("described", "random", "snr", "truth", "fault"),
    [
        (True, False, 10.0, 0.02, True),
        (True, False, 10.0, 1e-9, False),
        (True, True, 10.0, 0.02, False),  # noise is unknown to all
        (False, False, 10.0, 0.9, False),  # a plain attacker does not know the defense
        (False, False, 120.0, 0.02, True),
        (False, False, 120.0, 0.0, False),
    ],
)
def test_examples_that_do_not_explain_a_reading_are_a_fault(
    described: bool, random: bool, snr: float, truth: float, fault: bool
) -> None:
    record = attacked(
        0,
        conditions=AttackConditions(described=described, random=random),
        distortion=Distortion(snr_db_least=snr),
        self_check=SelfCheck(distance_at_truth=truth, distance_at_public=1.0, recognises_truth=True),
    )
    (row,) = board([record])
    assert any(flag.code == "truth-unexplained" for flag in row.flags) == row.broken == fault


def test_a_distance_from_zeros_is_no_fault() -> None:
    """A cosine from a reading of zeros is 1 wherever one looks: that nothing was sent is said in its own flag."""
    record = attacked(
        0,
        conditions=AttackConditions(described=True),
        distortion=Distortion(snr_db_least=0.0),
        self_check=SelfCheck(distance_at_truth=1.0, distance_at_public=1.0, recognises_truth=False),
    )
    assert record.attack
    empty = tuple(replace(reading, snr_db=0.0, cosine=None) for reading in record.attack.readings)
    (row,) = board([with_result(record, readings=empty)])
    assert "truth-unexplained" not in codes(row) and not row.broken and "nothing-sent" in codes(row)


def test_a_row_does_not_choose_its_weight_seeds() -> None:
    """n/a on some seeds that others have is missing; on seeds that nobody has, or on all, it is not."""

    def refused(defense: str, seed: int) -> Record:
        return unfinished(attacked(defense=defense, seed=seed), "n/a", "badly conditioned")

    choosy = [attacked(defense="choosy"), refused("choosy", 1)]
    rows = {row.defense: row for row in board([*choosy, *(attacked(32, seed=seed) for seed in (0, 1))])}
    assert not rows["choosy"].complete and rows["choosy"].points["type-2"].missing == ("cpl",)
    assert rows["none"].complete
    both = [*choosy, attacked(32), refused("none", 1)]
    assert all(row.complete for row in board(both))
