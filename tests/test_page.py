"""Rows → one HTML file: it opens offline, obeys no stranger's text, sorts and filters, and stays small."""

import base64
import hashlib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from playwright.sync_api import Browser, Page, expect
from tests.browser import Visit, browser, visit
from tests.records import attack_record, defense_cost

from bench.kinds.images import IMAGE
from bench.kinds.known import of_shape
from bench.leaderboard.board import THRESHOLDS_DB, AtPoint, Best, Row, board
from bench.leaderboard.costs import DefenseCost
from bench.leaderboard.flags import Flag
from bench.leaderboard.forms import page, reconstructions
from bench.leaderboard.recognition import Rate
from bench.pictures.thumbnails import MOST, TOTAL, Thumbnail, fitting
from bench.pictures.words import Words
from bench.record.metrics import COMPARED
from bench.record.store import record_path, write, write_arrays

pytestmark = pytest.mark.long

__all__ = ["browser"]  # the fixture
CPL = "cpl(outer=300, start=tile-2)"
MEDIANS = {**dict.fromkeys(metric.name for metric in COMPARED), "rmse": 0.1, "psnr_db": 25.0, "ssim": 0.9}
ROW = board([attack_record()])[0]  # of these the tests change fields: a new field has its value here
AT = ROW.points["type-2"]
HOSTILE = (
    "<script>document.title='owned'</script>",
    "</script><img src=x onerror=\"document.title='owned'\">",
    "x(a=<b onmouseover=alert(1)>&lt;img src=x onerror=alert(1)&gt;)",
    "${title} $policy {{x}} \u2028\u2029 \ud800 " + "w" * 200,
)


def best(**changes: Any) -> Best:
    assert AT.best is not None
    return replace(AT.best, **{"attack": CPL, "medians": MEDIANS, **changes})


def at(point: str = "type-2", asr: float | None = 0.5, **changes: Any) -> AtPoint:
    scored = asr is not None
    rate = asr or 0.0
    return replace(
        AT,
        **{
            "point": point,
            "asr": asr,
            "interval": (max(0.0, rate - 0.1), min(1.0, rate + 0.1)) if scored else None,
            "lower_bound": False,
            "at_least_once": None,
            "examples": 64 if scored else 0,
            "identified": Rate(value=rate, interval=(0.0, 1.0), chance=0.01) if scored else None,
            "named": None,
            "best": best(asr=rate) if scored else None,
            "by_attack": {CPL: rate, f"{CPL} · adaptive": rate / 2} if scored else {},
            "reached": tuple(rate for _ in THRESHOLDS_DB),
            "prior_asr": 0.0,
            "prior_psnr_db": 12.0,
            "epsilon": None,
            "epsilon_absent": "it adds no noise",
            "absent": {},
            "crashed": {},
            "missing": (),
            "flags": (),
            **changes,
        },
    )


def cost(**changes: Any) -> DefenseCost:
    return defense_cost(
        **{
            "setting": "fedsgd N=100",
            "seeds": 1,
            "accuracy": 0.9,
            "loss": 0.02,
            "epsilon": None,
            "delta": None,
            "epsilon_unit": None,
            "epsilon_adjacency": None,
            "epsilon_absent": "it adds no noise",
            "overhead": 1.5,
            "diverged": 0,
            "curve": ((0, 0.1), (5, 0.7), (10, 0.9)),
            **changes,
        }
    )


def row(defense: str = "none", *points: AtPoint, key: str = "k", **changes: Any) -> Row:
    own = {one.point: one for one in points or (at(),)}
    return replace(
        ROW,
        **{
            "title": "digits · lenet(width=0.5) · untrained",
            "key": key,
            "dataset": "digits",
            "model": "lenet(width=0.5)",
            "protocol": 1,
            "defense": defense,
            "points": own,
            "cost": cost(),
            "complete": True,
            "private": False,
            "cells": (),
            "rank": 1,
            **changes,
        },
    )


def some() -> list[Row]:
    """Two data sets, six defenses: rates that sort otherwise as text, a flag, a row that is incomplete."""
    few = Flag("few", "8 examples; at least 32 are needed")
    other = {"key": "other", "title": "mnist · lenet(width=0.5) · untrained", "dataset": "mnist"}
    return [
        row("quantile", at(asr=0.08), rank=1, pareto=True, cost=cost(accuracy=0.7, loss=0.22, epsilon=9.5, delta=1e-5)),
        row("gaussian(sigma=1)", at(asr=0.3), rank=2, pareto=True, cost=cost(accuracy=0.8, epsilon=10.25, delta=1e-5)),
        row("gaussian(sigma=2)", at(asr=1.0, lower_bound=True), rank=3, cost=None),
        row("none", at(asr=1.0), at("type-1", asr=0.04), rank=4, pareto=True),
        row("prune", at(asr=0.005, flags=(few,)), at("type-1", asr=None), rank=5, complete=False),
        row("none", at(asr=0.9), rank=1, cost=None, **other),
    ]


def render(
    rows: Sequence[Row], found: Mapping[tuple[str, str], Thumbnail | list[Words]] | None = None, **changes: Any
) -> str:
    return page.render(rows, **{"thumbnails": found or {}, "title": "Board", "context": ["protocol 1"], **changes})


@contextmanager
def opened(browser: Browser, folder: Path, text: str, **changes: Any) -> Iterator[Visit]:
    """The page once its script is done."""
    file = folder / "board.html"
    file.write_bytes(text.encode())
    with visit(browser, file, **changes) as seen:
        if "<table" in text:
            seen.page.wait_for_selector("html[data-ready]", state="attached")
        yield seen


def shows(shown: Page, place: str, expected: Sequence[str]) -> None:
    """Wait until the visible rows say this there: the table is drawn again a moment after a click."""
    expect(shown.locator(f"#rows tbody tr {place}")).to_have_text(list(expected))


def noise(count: int = 4, seed: int = 0, limit: int = MOST) -> Thumbnail:
    rng = np.random.default_rng(seed)
    found = fitting(rng.random((count, 2, 3, 32, 32)), rng.random((count, 2, 3, 32, 32)), IMAGE, limit)
    assert found is not None
    return found


# --- without a browser


def test_names_of_strangers_are_text() -> None:
    rows = [row(name, at(best=None, by_attack={name: 1.0}, absent={"dlg": name})) for name in HOSTILE]
    flagged = at(HOSTILE[1], flags=(Flag(HOSTILE[0], HOSTILE[1]),))
    rows += [row(HOSTILE[0], flagged, title=HOSTILE[1], dataset=HOSTILE[2])]
    text = render(rows, title=HOSTILE[0], context=HOSTILE)
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == text.lower().count("</script") == 4
    outside = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert not re.search(r"<(script|img src=x|b onmouseover)", outside)
    assert str(escape(HOSTILE[0])) in outside
    assert "<" not in "".join(scripts[:3]) and "\u2028" not in "".join(scripts)


def test_only_its_own_scripts_may_run_and_nothing_may_load() -> None:
    text = render(some())
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    policy = html.unescape(found[1])
    modules = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(own.encode()).digest()).decode() for own in modules}
    assert set(re.findall(r"'sha256-([^']*)'", policy)) == hashes
    assert policy.startswith("default-src 'none'; ") and "unsafe-eval" not in policy
    assert "script-src 'unsafe" not in policy and "http" not in policy


def test_five_hundred_rows_with_pictures_stay_below_five_megabytes() -> None:
    one = noise(limit=TOTAL // 500)
    assert len(one.webp) <= TOTAL // 500
    codes = ("single-observation", "at-prior-level", "restarts")
    flags = tuple(Flag(code, f"{code}: a line of text about it") for code in codes)
    params = "refine_float64=False, history=100, layers=equal, outer=300, start=tile-2"
    attacks = {f"attack-{n}({params})": 0.5 for n in range(8)}
    points = [at(name, by_attack=attacks, flags=flags) for name in ("type-2", "type-1", "type-0")]
    rows = [row(f"defense(strength={n}, clip=1, noise=share)", *points, key=f"{n // 25}") for n in range(500)]
    text = render(rows, {(own.key, own.defense): one for own in rows})
    assert text.count("data:image/webp") == 500
    assert len(text.encode()) < 4_500_000  # 5 MB, with room for longer names


def test_no_rows_make_a_page_that_says_so() -> None:
    text = html.unescape(render([]))
    assert "nothing to show yet" in text and "<script" not in text and "script-src 'none'" in text


# --- thumbnails


def recorded(run: Path, *, private: bool = False, arrays_kept: bool = True) -> list[Row]:
    """The board of one record in `run` with three examples."""
    kept = np.random.default_rng(0).random((3, 1, 1, 8, 8))
    arrays = write_arrays(run, {"truth": kept, "reconstruction": kept / 2}) if arrays_kept else None
    record = attack_record(((True,),) * 3, result={"private": private, "arrays": arrays})
    write(run, record)
    return board([record])


def places(run: Path, rows: Sequence[Row]) -> dict[str, Path]:
    return {cell: run for own in rows for cell in own.cells}


def test_a_row_shows_the_examples_of_its_best_attack(tmp_path: Path) -> None:
    rows = recorded(tmp_path)
    found = reconstructions.thumbnails(rows, places(tmp_path, rows))
    (one,) = found.values()
    assert isinstance(one, Thumbnail)
    assert (one.examples, one.width, one.height) == (3, 3 * 8 + 2, 2 * 8 + 1)
    assert "data:image/webp" in render(rows, found)


def test_private_examples_stay_out_unless_asked_for(tmp_path: Path) -> None:
    rows = recorded(tmp_path, private=True)
    assert reconstructions.thumbnails(rows, places(tmp_path, rows)) == {}
    assert "left out: the data are private" in render(rows)
    assert len(reconstructions.thumbnails(rows, places(tmp_path, rows), private=True)) == 1


def test_no_examples_are_no_error(tmp_path: Path) -> None:
    without = recorded(tmp_path / "a", arrays_kept=False)
    assert reconstructions.thumbnails(without, places(tmp_path / "a", without)) == {}
    rows = recorded(tmp_path / "b")
    where = places(tmp_path / "b", rows)
    assert reconstructions.thumbnails(rows, {}) == {}
    assert reconstructions.thumbnails([replace(rows[0], cells=())], where) == {}
    (file,) = (tmp_path / "b" / "arrays").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:200] + bytes(20) + whole[220:])
    assert reconstructions.thumbnails(rows, where) == {}
    file.unlink()
    assert reconstructions.thumbnails(rows, where) == {}
    record_path(tmp_path / "b", rows[0].cells[0]).unlink()
    assert reconstructions.thumbnails(rows, where) == {}


@pytest.mark.parametrize(
    "shape", [(2, 2, 3, 32, 32), (2, 2, 1, 8, 8), (1, 1, 14), (2, 1, 3, 300, 200), (1, 1, 1, 5, 7)]
)
def test_a_thumbnail_fits_its_limit_for_every_shape(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).random(shape)
    broken = np.where(values < 0.1, np.nan, values * 3 - 1)
    for limit in (20_000, 3000, 600):
        found = fitting(values, broken, of_shape(shape[2:]), limit)
        assert found is not None and len(found.webp) <= limit
    assert fitting(values, broken, of_shape(shape[2:]), 10) is None


def test_a_thumbnail_needs_examples_of_one_shape() -> None:
    assert fitting(np.ones((0, 1, 1, 8, 8)), np.ones((0, 1, 1, 8, 8)), IMAGE, MOST) is None
    with pytest.raises(ValueError, match="alike"):
        fitting(np.ones((1, 1, 8, 8)), np.ones((1, 2, 8, 8)), IMAGE, MOST)


# --- in a browser


def test_it_opens_offline_without_a_word_of_complaint(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, render(some(), {("k", "none"): noise()})) as seen:
        assert seen.page.locator("#rows tbody tr").count() == 6
        assert seen.page.locator(".chart svg").count() == 4
        seen.page.select_option("#point", label="type-1")
        expect(seen.page.locator("#attacks-chart .mark-text.role-mark text")).to_have_count(2)
        seen.page.select_option("#condition", index=1)
        expect(seen.page.locator(".chart svg")).to_have_count(2)
        assert "accuracy is unknown" in seen.page.locator("#trade-chart").inner_text()
    assert (seen.complaints, seen.outside) == ([], [])


def test_what_matters_is_seen_without_scrolling(browser: Browser, tmp_path: Path) -> None:
    """Overhead and flags at 1400 pixels, what leaks at 400; the charts begin where defenses differ."""
    with opened(browser, tmp_path, render(some(), {("k", "none"): noise()})) as seen:
        seen.page.set_viewport_size({"width": 1400, "height": 900})
        for name in ("overhead", "flags"):
            box = seen.page.locator(f"thead th.{name}").bounding_box()
            assert box is not None and box["x"] + box["width"] <= 1400, (name, box)
        seen.page.set_viewport_size({"width": 400, "height": 900})
        first = seen.page.locator("#rows tbody td.asr").first.bounding_box()
        assert first is not None and first["x"] + first["width"] <= 400
        assert seen.page.locator("#point").input_value() == "=type-2"  # .005 to 1.00 there


def test_headers_sort_numbers_as_numbers_and_what_is_missing_last(browser: Browser, tmp_path: Path) -> None:
    header, cells = "thead [role=button][aria-label^='ASR at type-2']", "td.asr:nth-of-type(3) .figure"
    with opened(browser, tmp_path, render(some())) as seen:
        shown = seen.page
        shows(shown, cells, ["8 %", "30 %", "≥ 100 %", "100 %", "0.5 %", "90 %"])
        shown.click(header)
        shows(shown, cells, ["0.5 %", "8 %", "30 %", "90 %", "≥ 100 %", "100 %"])
        expect(shown.locator("th[aria-sort=ascending]")).to_have_text("type-2")
        shown.focus(header)
        shown.keyboard.press("Enter")
        shows(shown, cells, ["≥ 100 %", "100 %", "90 %", "30 %", "8 %", "0.5 %"])
        names = ["quantile", "gaussian(sigma=1)"]  # ε 9.5 and 10.25
        for first, second in (names, names[::-1]):
            shown.click("thead [role=button][aria-label^='ε']")
            shows(shown, "th .name >> nth=0", [first])
            shows(shown, "th .name >> nth=1", [second])
    assert seen.complaints == []


def test_filters_leave_what_fits(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, render(some())) as seen:
        shown, names = seen.page, "th .name"
        shown.fill("#search", "gauss")
        shows(shown, names, ["gaussian(sigma=1)", "gaussian(sigma=2)"])
        expect(shown.locator(".dt-info")).to_contain_text("2 rows")
        shown.check("#pareto")
        shows(shown, names, ["gaussian(sigma=1)"])
        shown.fill("#search", "")
        shows(shown, names, ["quantile", "gaussian(sigma=1)", "none"])
        shown.uncheck("#pareto")
        shown.check("#complete")
        shows(shown, names, ["quantile", "gaussian(sigma=1)", "gaussian(sigma=2)", "none", "none"])
        shown.uncheck("#complete")
        shown.select_option("#flag", value="=few")
        shows(shown, names, ["prune"])
        shown.select_option("#dataset", value="=mnist")
        expect(shown.locator("#rows tbody")).to_contain_text("No row fits")
        shown.select_option("#flag", value="")
        shows(shown, names, ["none"])
    assert seen.complaints == []


def test_what_strangers_wrote_shows_and_does_nothing(browser: Browser, tmp_path: Path) -> None:
    point = at(HOSTILE[1], best=replace(at().best, attack=HOSTILE[0]), flags=(Flag(HOSTILE[2], HOSTILE[1]),))  # type: ignore[type-var]
    same = {"title": HOSTILE[1], "dataset": HOSTILE[2]}
    rows = [row(name, point, cost=cost(epsilon_absent=name), **same) for name in HOSTILE]
    text = render(rows, {("k", HOSTILE[1]): noise()}, context=HOSTILE)
    with opened(browser, tmp_path, text) as seen:
        shown = seen.page
        assert HOSTILE[0] in shown.locator("#rows tbody th").first.inner_text()
        shown.fill("#search", "onerror")
        assert shown.locator("#rows tbody th").count() > 0
        shown.fill("#search", "")
        for button in shown.locator("thead [role=button]").all():
            button.click()
        shown.locator(".thumb").click()
        assert HOSTILE[1] in shown.locator("#large figcaption").inner_text()
        shown.keyboard.press("Escape")
        shown.locator("#key button").first.click()
        shown.locator("#trade-chart .mark-symbol path").last.hover(force=True)
        shown.wait_for_selector("#vg-tooltip-element.visible")
        assert shown.locator("#vg-tooltip-element img, #vg-tooltip-element script").count() == 0
        assert shown.title() == "Board"
    assert (seen.complaints, seen.outside) == ([], [])


@pytest.mark.slow
def test_thumbnails_open_and_close_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, render(some(), {("k", "none"): noise()})) as seen:
        shown = seen.page
        shown.focus(".thumb")
        shown.keyboard.press("Enter")
        assert shown.locator("#large").is_visible()
        caption = shown.locator("#large figcaption").inner_text()
        assert "truth above, cpl at type-2 below, 8 examples" in caption
        assert shown.locator("#large img").evaluate("img => img.naturalWidth") == 8 * 32 + 7
        shown.keyboard.press("Escape")
        assert not shown.locator("#large").is_visible()
        assert shown.evaluate("document.activeElement.className") == "thumb"
    assert seen.complaints == []


def test_the_caveats_of_epsilon_are_in_the_page() -> None:
    caveats = ("8 tensors clipped by <themselves>",)
    priced = row("fed-cdp", at(), cost=cost(epsilon=4.48, epsilon_caveats=caveats))
    page = render([priced])
    assert "8 tensors clipped by &lt;themselves&gt;" in page


@pytest.mark.slow
def test_flags_and_full_names_open_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    rows = [row("prune(share=0.7)", at(flags=(Flag("few", "8 examples"),)))]
    with opened(browser, tmp_path, render(rows)) as seen:
        shown = seen.page
        assert shown.locator("#rows tbody th .name").inner_text() == "prune"
        words = {".defense": "prune(share=0.7)", ".flags": "few: 8 examples", ".epsilon": "no noise"}
        for place, said in words.items():
            shown.focus(f"#rows tbody {place} summary")
            shown.keyboard.press("Enter")
            assert said in shown.locator(f"#rows tbody {place}").inner_text()


@pytest.mark.slow
def test_the_keyboard_skips_to_the_table(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, render(some())) as seen:
        shown = seen.page
        shown.keyboard.press("Tab")
        assert shown.evaluate("document.activeElement.className") == "skip"
        assert shown.locator(".skip").evaluate("link => link.getBoundingClientRect().left") >= 0
        shown.keyboard.press("Enter")
        assert shown.evaluate("document.activeElement.id") == "board"
        shown.keyboard.press("Tab")
        assert shown.evaluate("document.activeElement.id") == "search"


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_telephone_scrolls_the_table_and_not_the_page(browser: Browser, tmp_path: Path, dark: bool) -> None:
    long = [row(f"defense-{n}(of={'x' * 200})", at("p" * 60), at("type-1")) for n in range(3)]
    long += [row("none", title="t" * 300, dataset="d" * 200, key="other")]
    for rows in (some(), long):
        text = render(rows, {("k", "none"): noise()}, context=["s" * 300])
        with opened(browser, tmp_path, text, width=400, dark=dark) as seen:
            assert seen.page.evaluate("document.documentElement.scrollWidth") == 400
            inner = seen.page.locator("#board .scroll")
            assert inner.evaluate("place => place.scrollWidth > place.clientWidth")
            widths = seen.page.locator(".chart svg").evaluate_all("all => all.map(one => one.clientWidth)")
            assert all(200 < width < 400 for width in widths) and widths
        assert seen.complaints == []


@pytest.mark.parametrize(
    "missing", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("trainings", "rates")), "figures", "rows"]
)
def test_what_is_missing_is_said(browser: Browser, tmp_path: Path, missing: str) -> None:
    empty = best(asr=0.0, medians={**dict.fromkeys(MEDIANS), "lpips": float("nan")})
    blank = cost(accuracy=None, loss=None, epsilon=float("inf"), overhead=None, curve=(), epsilon_absent=None)
    crashed = at(asr=None, crashed={CPL: "boom " * 500}, best=None)
    rows = {
        "trainings": [replace(own, cost=None, pareto=False) for own in some()],
        "rates": [row("none", crashed, cost=None, complete=False), row("prune", at(asr=None, absent={CPL: "no bias"}))],
        "figures": [row("none", at(best=empty, prior_psnr_db=None, interval=None), cost=blank)],
        "rows": [],
    }[missing]
    said = {
        "trainings": "No defense was trained",
        "rates": "No attack was scored",
        "figures": "none",
        "rows": "nothing to show",
    }[missing]
    with opened(browser, tmp_path, render(rows)) as seen:
        text = seen.page.locator("main").inner_text()
        assert said in text
        assert not re.search(r"undefined|NaN|Infinity|inf\b|None|null", text)
    assert (seen.complaints, seen.outside) == ([], [])
