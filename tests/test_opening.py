"""README's table: no defense first, then the most accurate setting of each group that hides the same, at most eight."""

from typing import Any

from _make.opening import ROWS, chosen, opening
from tests.records import defense_cost

from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.standings import Absent, Place, Standing

POINTS = ("type-1", "type-0", "aggregate")


def place(leaked: float, recognised: float = 0.02) -> Place:
    return Place(
        leaked=leaked,
        interval=(0.0, 1.0),
        most=leaked,
        where="",
        recognised=recognised,
        chance=0.02,
        ceiling=None,
        lower_bound=leaked < 1,
        conditions=1,
    )


def standing(name: str, leaked: tuple[float, ...], accuracy: float = 0.8, **changes: Any) -> Standing:
    """A setting that leaks so much at each of `POINTS`, trained with this accuracy."""
    recognised, diverged = changes.pop("recognised", 0.02), changes.pop("diverged", 0)
    cost = {"setting": "", "seeds": 3, "loss": None, "overhead": 1.0, "curve": (), "epsilon": None, "delta": None}
    cost |= {"epsilon_unit": None, "epsilon_adjacency": None, "epsilon_absent": None}
    costs = [("a", defense_cost(**cost, accuracy=accuracy, diverged=0))]
    costs += [("b", defense_cost(**cost, accuracy=0.0, diverged=3))] if diverged else []
    points = {point: place(rate, recognised) for point, rate in zip(POINTS, leaked, strict=True)}
    return Standing(defense=name, points=points, costs=tuple(costs), base=(), faults=(), **changes)


NONE = standing(UNDEFENDED, (1.0, 1.0, 1.0), recognised=1.0, rank=9)


def names(*every: Standing) -> list[str]:
    return [each.defense for each in chosen(every)]


def test_of_settings_that_hide_the_same_the_most_accurate_is_shown() -> None:
    weak, strong = standing("weak", (0, 0, 0), 0.3, rank=1), standing("strong", (0.05, 0.09, 0), 0.7, rank=2)
    assert names(weak, strong, NONE) == [UNDEFENDED, "strong"]


def test_who_hides_pixels_and_not_names_is_another_group() -> None:
    pixels, both = standing("pixels", (0, 0, 0), 0.9, recognised=0.9, rank=2), standing("both", (0, 0, 0), 0.1, rank=1)
    server = standing("server", (1, 0, 0), 0.8, rank=3)
    assert names(both, pixels, server, NONE) == [UNDEFENDED, "both", "pixels", "server"]


def test_a_setting_whose_nets_diverge_comes_after_one_whose_nets_converge() -> None:
    assert names(standing("diverges", (0, 0, 0), 0.9, diverged=1), standing("trains", (0, 0, 0), 0.2)) == ["trains"]


def test_what_is_incomplete_or_broken_is_not_shown() -> None:
    absent = (Absent(point="type-0", where="", why="missing"),)
    assert names(standing("lacks", (0, 0, 0), absent=absent), NONE) == [UNDEFENDED]


def test_eight_rows_at_most() -> None:
    rates = [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    every = [standing(f"{rate}{known}", rate, recognised=known) for rate in rates for known in (0.02, 1.0)]
    assert len(names(*every, NONE)) == ROWS


def test_a_row_says_bound_and_who_trains_no_model() -> None:
    text = opening("suite-v1", [standing("dp", (0, 0, 0), 0.3), standing(UNDEFENDED, (1.0, 1.0, 1.0), 0.8)], 8)
    assert "| mean of 8 clients |" in text
    assert "| `none` | 100 % | 100 % | 100 % | 2 % | 80 % | – |" in text
    assert "| `dp` | ≥ 0 % | ≥ 0 % | ≥ 0 % | 2 % | 30 %† | – |" in text
