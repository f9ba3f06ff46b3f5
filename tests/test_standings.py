"""A suite's standings: means over the conditions that count, ranks by the mean over points, neighbours on the same
victims."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from tests.boards import SUITE_EXAMPLES, scored, suite
from tests.records import TRAINING, attack_cell, attack_record, defense_cost, entry, readings_of, training_record

from bench.cell import Grants
from bench.leaderboard.attack_ranks import attack_ranks
from bench.leaderboard.board import Row, board
from bench.leaderboard.forms import latex, numbers, poster
from bench.leaderboard.forms import standings as form
from bench.leaderboard.recognition import Rate, most_over_chance
from bench.leaderboard.standings import Standing, beside, conditions, nearest, neighbours, standings
from bench.record.schema import Record
from bench.scoring.intervals import clustered_share, paired_difference, wilson


def rows() -> list[Row]:
    return board(suite())


def by_name(every: list[Standing]) -> dict[str, Standing]:
    return {each.defense: each for each in every}


def test_a_condition_counts_where_half_comes_back_undefended() -> None:
    counting = conditions(rows())
    assert {point: len(keys) for point, keys in counting.items()} == {"type-2": 1, "type-0": 2}
    at = by_name(standings(rows()))
    assert at["none"].points["type-0"].leaked == pytest.approx(0.9)  # not the third condition's .2
    assert at["prune"].points["type-0"].leaked == pytest.approx(0.3)
    assert (at["prune"].points["type-0"].most, at["prune"].points["type-0"].conditions) == (0.5, 2)


def test_ranks_go_by_the_mean_over_the_points() -> None:
    every = by_name(standings(rows()))
    # none and prune leak all at type-2: what type-0 shows decides
    assert {name: each.rank for name, each in every.items()} == {"cdp": 1, "noise": 2, "prune": 3, "none": 4}
    assert every["prune"].leaked == pytest.approx((1.0 + 0.3) / 2)


def test_an_interval_is_of_the_mean_over_conditions_and_of_few_seeds() -> None:
    """Conditions share victims and seeds: they are no more trials than one of them."""
    alone = by_name(standings(rows()))["cdp"].points
    assert alone["type-0"].interval == pytest.approx(wilson(0, SUITE_EXAMPLES))
    rates = {0: 1.0, 1: 0.5, 2: 0.0, 3: 0.5}
    seeds = [scored(rate, "mine", "type-0", batch, seed=seed) for seed, rate in rates.items() for batch in (1, 2)]
    base = [scored(1.0, "none", "type-0", batch, seed=seed) for seed in rates for batch in (1, 2)]
    place = by_name(standings(board([*base, *seeds])))["mine"].points["type-0"]
    one = clustered_share(
        [n < rate * SUITE_EXAMPLES for rate in rates.values() for n in range(SUITE_EXAMPLES)],
        range(4 * SUITE_EXAMPLES),
        [seed for seed in rates for _ in range(SUITE_EXAMPLES)],
    )
    assert place.leaked == 0.5
    assert place.interval == pytest.approx(one, abs=0.01)
    assert place.interval[1] - place.interval[0] > 0.7


def test_a_zero_of_batches_counts_readings_and_beside_single_examples_those() -> None:
    """Five readings of eight examples each may leak whole: a zero of them is one of five; the mean with a condition of
    forty single examples is a zero of forty."""
    batches = []
    for name in ("none", "mine"):
        made = scored(1.0, name, "type-0", batch=8)
        assert made.attack is not None
        readings = readings_of([[name == "none"] * 8] * 5)
        batches.append(replace(made, result=replace(made.attack, readings=readings)))
    single = [scored(1.0, "none"), scored(0.0, "mine")]
    of_batches = by_name(standings(board(batches)))["mine"].points["type-0"]
    assert of_batches.interval == pytest.approx(wilson(0, 5))
    assert by_name(standings(board(batches)))["none"].points["type-0"].interval == pytest.approx(wilson(5, 5))
    of_both = by_name(standings(board([*batches, *single])))["mine"].points["type-0"]
    assert of_both.interval == pytest.approx(wilson(0, SUITE_EXAMPLES))


@pytest.mark.parametrize(("undefended", "bound"), [("adaptive", False), ("plain", True)])
def test_a_zero_where_no_adaptive_attacker_has_shown_what_he_can_is_a_lower_bound(undefended: str, bound: bool) -> None:
    """In a cascade a plain attack may leave adaptive ones nothing to show it on."""
    rates = {("none", undefended): 1.0, ("mine", "plain"): 0.0, ("mine", "adaptive"): 0.0, ("none", "plain"): 1.0}
    rates.setdefault(("none", "adaptive"), 0.0)
    records = [scored(rate, defense, knowledge=knows) for (defense, knows), rate in rates.items()]
    place = by_name(standings(board(records)))["mine"].points["type-0"]
    assert place.lower_bound == bound


def test_recognised_is_what_is_farther_above_chance() -> None:
    low, high = (Rate(value=0.05, interval=(0.0, 0.1), chance=0.02), Rate(value=0.3, interval=(0.2, 0.4), chance=0.04))
    assert most_over_chance(low, high) is most_over_chance(high, low) is high
    assert most_over_chance(None, low) is low and most_over_chance(None, None) is None
    by_luck = Rate(value=0.31, interval=(0.2, 0.4), chance=0.3)
    assert most_over_chance(by_luck, low) is low


def test_a_training_that_diverged_is_no_accuracy_of_zero() -> None:
    models = [TRAINING.model, entry("mlp")]
    trained = [
        training_record(
            0.0 if gone else 0.9,
            cell=_trained(defense, 0).model_copy(update={"model": model}),
            result={"diverged": gone},
        )
        for defense in ("none", "prune")
        for model in models
        for gone in [defense == "prune" and model.name == "mlp"]
    ]
    other = [replace(each, cell=each.cell.model_copy(update={"model": models[1]})) for each in suite()]  # type: ignore[arg-type]
    records = [*suite(), *(replace(each, id=each.cell.id) for each in (*other, *trained))]
    at = by_name(standings(board(records)))["prune"]
    assert (at.diverged, at.accuracy, at.lost) == (("mlp",), 0.9, 0.0)
    assert form.figures([at])[0].change == "1 of 2 diverged"


def test_equal_settings_share_a_rank() -> None:
    twin = [scored(0.0, "twin", point, batch) for batch, point in ((1, "type-2"), (1, "type-0"), (2, "type-0"))]
    ranks = {each.defense: each.rank for each in standings(board([*suite(), *twin]))}
    assert (ranks["cdp"], ranks["twin"], ranks["noise"]) == (1, 1, 3)


def test_a_setting_that_lacks_a_condition_ranks_last() -> None:
    partial = [scored(0.0, "partial", "type-0", 1)]
    every = standings(board([*suite(), *partial]))
    assert every[-1].defense == "partial"
    assert len(every[-1].absent) == 2
    assert {each.why for each in every[-1].absent} <= {"missing", "not run"}
    assert form.figures(every)[-1].rank == "·"


def _mine(**changes: object) -> list[Record]:
    """A setting that leaks nothing, each of its records with these changes."""
    cells = ((1, "type-2"), (1, "type-0"), (2, "type-0"))
    return [replace(scored(0.0, "mine", point, batch), **changes) for batch, point in cells]  # type: ignore[arg-type]


def last(records: list[Record]) -> Standing:
    return standings(board([*suite(), *records]))[-1]


def test_what_was_not_attacked_does_not_rank() -> None:
    """Crashed, on fewer weight seeds, on fewer examples, without the gallery that others met: no rank."""
    crashed = _mine(status="crashed", reason="a reason", result=None)
    assert (last(crashed).defense, len(last(crashed).absent)) == ("mine", 3)
    (first, *rest) = _mine()
    assert first.attack is not None
    fewer = replace(first, result=replace(first.attack, readings=first.attack.readings[:36]))
    assert last([fewer, *rest]).absent[0].why == "36 examples of 40"
    second = [replace(each, cell=each.cell.model_copy(update={"attack": entry("gradinv")})) for each in suite()]
    whole = [replace(each, id=each.cell.id) for each in second]
    lacks = standings(board([*suite(), *whole, *_mine()]))[-1]
    assert (lacks.defense, len(lacks.absent)) == ("mine", 3)  # one of two attacks


def test_a_zero_of_attackers_who_failed_is_a_lower_bound() -> None:
    crashed = [*suite(), *_mine(status="crashed", reason="a reason", result=None)]
    rows_ = board(crashed)
    assert {at.lower_bound for row in rows_ if row.defense == "mine" for at in row.points.values()} == {True}


def test_accuracy_of_one_model_is_not_that_of_two() -> None:
    models = [entry("dlg-lenet"), entry("mlp")]
    trained = [
        training_record(0.9, cell=_trained(defense, 0).model_copy(update={"model": model}))
        for defense, its in (("none", models), ("prune", models[:1]))
        for model in its
    ]
    records = suite()
    other = [
        replace(each, cell=each.cell.model_copy(update={"model": models[1]}))
        for each in suite()
        if isinstance(each.cell.defense, type(models[1]))
    ]
    records += [replace(each, id=each.cell.id) for each in other]
    at = by_name(standings(board([*records, *(replace(each, id=each.cell.id) for each in trained)])))
    assert "training, mlp: of 0 seeds, 1 without a defense" in map(str, at["prune"].absent)


def test_neighbours_are_of_the_reference_and_the_nearest_has_the_same_rates() -> None:
    mine = [scored(0.5, "mine", "type-2", 1), scored(0.5, "mine", "type-0", 1), scored(0.2, "mine", "type-0", 2)]
    records = [*suite(), *mine]
    every = standings(board(records), own=("mine",))
    above, below = neighbours(every, "mine")
    assert above is not None
    assert below is not None
    assert (above.defense, below.defense) == ("cdp", "noise")
    assert nearest(board(records), "mine", ["none", "prune", "noise", "cdp", "mine"]) == "noise"
    (_, at_server) = beside(records, board(records), "mine", "noise")
    assert (at_server.point, at_server.examples) == ("type-0", 80)
    first = [n < 20 for n in range(40)] + [n < 8 for n in range(40)]
    second = [n < 20 for n in range(40)] + [n < 12 for n in range(40)]
    difference, low, high = paired_difference(first, second, clusters=list(range(40)) * 2)
    assert (at_server.difference, at_server.interval) == (difference, (low, high))
    assert difference == pytest.approx(-0.05)


def test_costs_are_means_over_models() -> None:
    trained = [
        training_record(accuracy, cell=_trained(defense, seed))
        for defense, accuracy in (("none", 0.9), ("prune", 0.8))
        for seed in (0, 1)
    ]
    at = by_name(standings(board([*suite(), *(replace(each, id=each.cell.id) for each in trained)])))
    assert at["prune"].accuracy == pytest.approx(0.8)
    assert at["prune"].lost == pytest.approx(0.1)
    assert at["cdp"].accuracy is None


def _trained(defense: str, seed: int):
    return TRAINING.model_copy(update={"defense": entry(defense), "seed": seed})


def test_the_forms_have_every_setting_and_name_what_is_new() -> None:
    every = standings(rows(), own=("noise",))
    text = form.markdown(every)
    assert text.count("\n") == 2 + 4
    assert "▸ noise" in text
    assert form.comma_separated(every).splitlines()[0].startswith("rank,defense,own,type-2 leaked")
    drawn = poster.svg(every, {}, "a suite").decode()
    assert all(name in drawn for name in ("cdp", "▸ noise", "prune", "none", "30 %"))
    assert poster.png(drawn.encode())[:4] == b"\x89PNG"


def test_no_figure_is_cut_off_at_eighty_columns() -> None:
    """The widest figures that there are: a row that loses a digit of its ε states another ε."""
    (at, *others) = standings(board(suite()))
    place = replace(
        next(iter(at.points.values())),
        leaked=0.008,
        interval=(0.001, 0.16),
        recognised=0.993,
        chance=0.051,
        lower_bound=True,
        ceiling=None,
    )
    released = defense_cost(
        setting="",
        seeds=3,
        accuracy=0.85,
        loss=None,
        epsilon=421.4,
        delta=1e-5,
        epsilon_unit="client",
        epsilon_adjacency="one replaced",
        epsilon_absent=None,
        overhead=1.0,
        diverged=0,
        curve=(),
    )
    wide = replace(
        at,
        defense="▸ secure-aggregation(bits=22)",
        own=True,
        rank=29,
        costs=(("a-model", released),),
        points=dict.fromkeys(("type-2", "type-1", "type-0", "aggregate"), place),
    )
    text = io.StringIO()
    Console(width=80, file=text).print(form.terminal([wide, *others], "a suite"))
    lines = text.getvalue().splitlines()
    (row,) = [line for line in lines if "421" in line]
    assert row.count("≥ 0.8 %") == 4
    assert "99.3 %" in row and "85 %" in row
    assert sum("0.1–16" in line and "(5.1 %)" in line for line in lines) == 1


def test_attacks_rank_by_what_they_get_of_all_examples() -> None:
    """In a cascade the second attack saw the half that the first left, and got half of that back."""
    first = attack_cell(readings=4, attack="cpl")
    second = attack_cell(readings=4, attack="map", after=(first.id,))
    gallery = attack_cell(readings=4, attack="gallery", grants=Grants(gallery=100))
    early = attack_record(cell=first, readings=readings_of([[True], [True], [False], [False]]))
    left = readings_of([[True], [False]])
    late = attack_record(cell=second, readings=tuple(replace(each, number=n + 2) for n, each in enumerate(left)))
    late = replace(late, cell=second)
    named = attack_record(cell=gallery, readings=readings_of([[False]] * 4))
    ranks = attack_ranks([early, late, named])
    assert [(each.attack.partition("(")[0], each.rank, each.rate, each.of_all) for each in ranks] == [
        ("cpl", 1, 0.5, 0.5),
        ("map", 2, 0.5, 0.25),
    ]
    assert ranks[0].psnr_db is not None
    assert ranks[1].psnr_db is None
    assert ranks[1].seconds == ranks[1].cpu_seconds


@pytest.mark.parametrize(
    ("value", "text"), [(0.974, "0.97"), (1.26, "1.3"), (99.6, "100"), (423.4, "423"), (268520.0, "3e5"), (None, "–")]
)
def test_an_epsilon_is_short(value: float | None, text: str) -> None:
    assert numbers.epsilon(value) == text


def test_latex_has_the_standings_before_the_conditions() -> None:
    text = latex.board(rows(), standings(rows(), own=("noise",)))
    first = text.partition(r"\end{table}")[0]
    assert r"\caption{Standings over the conditions of the suite}" in first
    assert first.count(r"\\") == 1 + 4
    assert r"$\triangleright$ noise" in first
