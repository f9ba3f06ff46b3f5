"""The board as a table of a page: static, escaped, with what sorts and filters need in its attributes."""

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from bench.leaderboard.board import UNRANKED, AtPoint, Row
from bench.leaderboard.flags import Flag
from bench.leaderboard.forms.charts import ordered_points
from bench.leaderboard.forms.html import Html, join, tag
from bench.pictures.thumbnails import Thumbnail

LONGEST = 400  # characters shown of a reason: a crash may bring its whole traceback


def table(
    rows: Sequence[Row], names: Mapping[tuple[str, str], str], attacks: Mapping[str, str],
    thumbnails: Mapping[tuple[str, str], Thumbnail],
) -> Html:  # fmt: skip
    points = ordered_points(rows)
    groups = [
        ("", [("rank", "#", "num"), ("defense", "Defense", "text"), ("condition", "Condition", "text")]),
        ("", [("pictures", "Pictures", "still")]),
        ("Attack success rate at each interception point", [("asr", point, "num") for point in points]),
        ("Cost of the defense", [
            ("accuracy", "Accuracy", "num"), ("lost", "Lost", "num"), ("epsilon", "ε", "num"),
            ("overhead", "Overhead", "num"),
        ]),
        ("Evidence", [("flags", "Flags", "text"), ("coverage", "Attacks", "num")]),
        ("Best single attack at the worst point", [
            ("best", "Attack", "text"), ("own", "Its ASR", "num"), ("median", "PSNR", "num"),
            ("median", "Prior PSNR", "num"), ("median", "RMSE", "num"), ("median", "SSIM", "num"),
            ("median", "LPIPS", "num"),
        ]),
    ]  # fmt: skip
    above = [
        tag("th", name or None, colspan=len(own), scope="colgroup", class_="group", data_dt_order="disable")
        for name, own in groups
    ]
    below = [
        tag("th", name, scope="col", class_=column, data_kind=kind, aria_label=_spoken(group, name))
        for group, own in groups
        for column, name, kind in own
    ]
    asked = _asked(rows)
    body = [
        tag(
            "tr", *_cells(row, points, names, attacks, thumbnails, asked[row.key]), data_dataset=row.dataset,
            data_flags=json.dumps([flag.code for flag in flags_of(row)]), data_pareto=row.pareto,
            data_complete=row.complete, class_=None if row.complete else "incomplete",
        )
        for row in rows
    ]  # fmt: skip
    found = tag(
        "table", tag("caption", "All defenses; buttons in the header sort", class_="unseen"),
        tag("thead", tag("tr", *above), tag("tr", *below)), tag("tbody", *body), id="rows",
    )  # fmt: skip
    return tag(
        "div", found, class_="scroll", id="scroll", tabindex=0, role="region", aria_label="Board, scrolls"
    )


def _spoken(group: str, name: str) -> str:
    return {"#": "Rank"}.get(name, f"ASR at {name}" if group.startswith("Attack success") else name)


def _asked(rows: Sequence[Row]) -> dict[str, dict[str, set[str]]]:
    """Condition → point → attacks that some row met there: what a complete row has."""
    found: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        for point, at in row.points.items():
            found.setdefault(row.key, {}).setdefault(point, set()).update(met(at))
    return found


def _cells(
    row: Row, points: Sequence[str], names: Mapping[tuple[str, str], str], attacks: Mapping[str, str],
    thumbnails: Mapping[tuple[str, str], Thumbnail], asked: Mapping[str, set[str]],
) -> list[Html]:  # fmt: skip
    worst, name = row.worst, names[row.key, row.defense]
    best = worst.best if worst else None
    return [
        tag("td", str(row.rank), class_="rank", data_order=row.rank),
        tag(
            "th", _more(name, row.defense) if name != row.defense else tag("span", name, class_="name"),
            tag("span", "Pareto", class_="badge front") if row.pareto else None, scope="row", class_="defense",
        ),
        tag("td", _condition(row), class_="condition"),
        tag("td", _pictures(row, name, attacks, thumbnails.get((row.key, row.defense))), class_="pictures"),
        *(_rate(row.points.get(point), strong=worst is not None and point == worst.point) for point in points),
        *_cost(row),
        tag("td", _flagged(row), class_="flags"), _coverage(row, attacks, asked),
        tag("td", tag("span", attacks[best.attack], class_="name") if best else "–", class_="best"),
        _figure(best.asr if best else None, _percent),
        _figure(best.psnr_db if best else None, lambda value: f"{value:.1f} dB"),
        _figure(worst.prior_psnr_db if worst else None, lambda value: f"{value:.1f} dB"),
        *(_figure(getattr(best, own, None), lambda value: f"{value:.3f}") for own in ("rmse", "ssim", "lpips")),
    ]  # fmt: skip


def _condition(row: Row) -> Html:
    """The data set, and below it the rest of the title, with the model's parameters on demand."""
    rest = row.title.removeprefix(row.dataset).removeprefix(" · ")
    short = rest.replace(row.model, row.model.partition("(")[0], 1)
    set_name, _, subset = row.dataset.partition(" (")
    inner = [tag("span", set_name, class_="set"), tag("span", short, class_="small")]
    opens = bool(subset) or short != rest
    return tag("details", tag("summary", *inner), tag("p", row.title)) if opens else join(inner)


def _rate(at: AtPoint | None, *, strong: bool) -> Html:
    if at is None or at.asr is None:
        said = "crashed" if at and at.crashed else "n/a" if at and at.absent else "–"
        return tag("td", tag("span", said, class_="small"), class_="asr", data_order="")
    low, high = at.interval or (None, None)
    figure = ("≥ " if at.lower_bound else "") + _percent(at.asr)
    bar = tag(
        "span", class_="bar", aria_hidden="true",
        style=f"--share:{100 * at.asr:.1f}%;--low:{100 * (low or 0):.1f}%;--high:{100 * (high or 0):.1f}%",
    )  # fmt: skip
    between = f"{100 * low:.0f}–{_percent(high)}" if low is not None and high is not None else None
    return tag(
        "td", tag("strong" if strong else "span", figure, class_="figure"), bar,
        tag("span", between, class_="small") if between else None, class_="asr", data_order=f"{at.asr:.6f}",
    )  # fmt: skip


def _cost(row: Row) -> list[Html]:
    cost = row.cost
    if cost is None:
        none = tag("span", "not trained", class_="small")
        return [tag("td", none, class_="accuracy", data_order=""), *(_figure(None, str) for _ in range(3))]
    diverged = f"{cost.diverged} of {cost.seeds} diverged" if cost.diverged else None
    seeds = f"{cost.seeds} seeds" if cost.seeds > 1 else None
    return [
        _figure(cost.accuracy, lambda value: f"{100 * value:.1f} %", diverged or seeds),
        _figure(cost.loss, lambda value: f"{100 * value:.1f} pp".replace("-0.0", "0.0").replace("-", "−")),
        _epsilon(row),
        _figure(cost.overhead, lambda value: f"× {value:.2f}"),
    ]


def _epsilon(row: Row) -> Html:
    cost = row.cost
    if cost is None or not _is_number(cost.epsilon):
        why = (cost.epsilon_absent if cost else None) or "no reason given"
        return tag("td", _more("none", why, title=_cut(why)), class_="epsilon", data_order="")
    what = [f"δ = {cost.delta:.0e}".replace("e-0", "e-") if cost.delta else None, cost.epsilon_unit]
    return _figure(cost.epsilon, lambda value: f"{value:.3g}", ", ".join(filter(None, what)) or None)


def _figure(value: float | None, form: Any, small: str | None = None) -> Html:
    """A cell with a number, which sorts as one; a dash where there is none, which sorts last either way."""
    below = tag("span", small, class_="small") if small else None
    if not _is_number(value):
        return tag("td", "–", below, class_="number", data_order="")
    return tag(
        "td", tag("span", form(value), class_="figure"), below, class_="number", data_order=f"{value:.6g}"
    )


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def flags_of(row: Row) -> list[Flag]:
    """The row's flags by code, once each, what makes it incomplete first."""
    return list({flag.code: flag for flag in reversed(row.flags)}.values())[::-1]


def _flagged(row: Row) -> Html:
    codes = flags_of(row)
    if not codes:
        return tag("span", "none", class_="small")
    badges = [
        tag(
            "span", flag.code, class_="badge bad" if flag.code in UNRANKED else "badge", title=_cut(flag.text)
        )
        for flag in codes
    ]
    texts = [tag("li", tag("b", flag.code), ": ", _cut(flag.text)) for flag in row.flags]
    return tag("details", tag("summary", *badges), tag("ul", *texts))


def _coverage(row: Row, attacks: Mapping[str, str], asked: Mapping[str, set[str]]) -> Html:
    """How many attacks ran, and on demand each with its rates, what did not run and why, and ε at each tap."""
    run = {name for at in row.points.values() for name in at.by_attack}
    absent = {name: why for at in row.points.values() for name, why in at.absent.items()}
    crashed = {name: why for at in row.points.values() for name, why in at.crashed.items()}
    missing = {
        name
        for point, named in asked.items()
        for name in (named - met(row.points[point]) if point in row.points else named)
    }
    counts = [(len(absent), "n/a"), (len(missing), "missing"), (len(crashed), "crashed")]
    short = ", ".join([f"{len(run)} run", *(f"{count} {word}" for count, word in counts if count)])
    lines = [tag("li", tag("b", attacks[name]), ": ", _rates(row, name)) for name in sorted(run)]
    lines += [
        tag("li", tag("b", attacks[name]), f" {word}: {_cut(why)}")
        for word, found in (
            ("n/a", absent),
            ("crashed", crashed),
            ("missing", dict.fromkeys(missing, "not run")),
        )
        for name, why in sorted(found.items())
    ]
    lines += [tag("li", f"{point}: {_bound(at)}") for point, at in row.points.items()]
    if row.cost:
        lines.append(tag("li", f"trained: {row.cost.setting}, {row.cost.seeds} seeds"))
    return tag(
        "td", tag("details", tag("summary", short), tag("ul", *lines)), class_="coverage", data_order=len(run)
    )


def _rates(row: Row, attack: str) -> str:
    return ", ".join(
        f"{point} {_percent(at.by_attack[attack])}"
        for point, at in row.points.items()
        if attack in at.by_attack
    )


def _bound(at: AtPoint) -> str:
    often = (
        f", {_percent(at.at_least_once)} on some draw of the noise" if at.at_least_once is not None else ""
    )
    epsilon = f"{at.epsilon:.3g}" if at.epsilon is not None and _is_number(at.epsilon) else "none"
    why = f" ({_cut(at.epsilon_absent)})" if epsilon == "none" and at.epsilon_absent else ""
    return f"{at.pictures} pictures{often}; ε at this tap: {epsilon}{why}"


def _pictures(row: Row, name: str, attacks: Mapping[str, str], found: Thumbnail | None) -> Html:
    if found is None:
        private = "left out: the data are private" if row.private else None
        return tag("span", "private" if row.private else "–", class_="small", title=private)
    worst = row.worst
    attack = attacks[worst.best.attack] if worst and worst.best else "the attack"
    count = "picture" if found.pictures == 1 else f"{found.pictures} pictures"
    said = f"{name}: truth above, {attack} at {worst.point if worst else '–'} below, {count}"
    picture = tag(
        "img", src=f"data:image/webp;base64,{b64encode(found.webp).decode()}", alt=said,
        width=found.width, height=found.height, loading="lazy", decoding="async",
    )  # fmt: skip
    return tag("button", picture, type="button", class_="thumb", title="Enlarge")


def _more(short: str, full: str, title: str | None = None) -> Html:
    """A short name that opens to the full one, by mouse, finger or keyboard."""
    inner = tag("span", short, class_="name")
    return tag("details", tag("summary", inner, title=title or full), tag("p", full))


def _percent(share: float) -> str:
    """A share in whole percent, never rounded to all or nothing."""
    value = 100 * share
    return f"{value:.0f} %" if value in (0, 100) or 1 <= value <= 99 else f"{value:.1f} %"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def met(at: AtPoint) -> set[str]:
    """Attacks that a point was asked with, whatever came of it."""
    return {*at.by_attack, *at.absent, *at.crashed, *([at.best.attack] if at.best else [])}
