"""What the user sees of a run: progress and a growing table, then where things are and what next."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from bench.answer.run import Place, Step
from bench.cell import AnyCell
from bench.cli.words import duration
from bench.errors import BenchError
from bench.leaderboard import knowledge, trainings
from bench.leaderboard.blocks import blocks, without_evidence
from bench.leaderboard.forms.numbers import render
from bench.matrix.published import Published
from bench.pictures import grid as strips
from bench.record import store as records
from bench.record.store import Record
from bench.sanitize import LONGEST, sanitize
from bench.sweep.dispatch import Watch
from bench.sweep.estimates import Remaining
from bench.sweep.plan import Schedule
from bench.sweep.pool import Crew
from bench.sweep.session import carry_out
from bench.tracking import store
from bench.tracking.uploader import Uploader


@dataclass(frozen=True, slots=True, kw_only=True)
class Engaged:
    """Who is to answer: `start` a crew, given where it may say something; what it is called; how many workers,
    None where that is not known."""

    start: Callable[[Callable[[str], None]], Crew]
    words: str
    jobs: int | None


class _Tally:
    """What has come in, and how much of the work is behind us."""

    def __init__(self, todo: Schedule, run: Path) -> None:
        self.found = [records.read(records.record_path(run, cell.id)) for cell in todo.done]
        self.began = time.monotonic()
        self.fresh = 0
        self._remaining = Remaining(todo.waiting, todo.estimates)

    def add(self, record: Record) -> None:
        self.found.append(record)
        self.fresh += 1
        self._remaining.settle(record.id)

    def count(self, status: str) -> int:
        return sum(record.status == status for record in self.found)

    def left(self) -> str:
        """Time left, from the work done so far at the speed seen so far."""
        seconds = self._remaining.left()
        return "…" if seconds is None else duration(seconds)


def watched(
    todo: Schedule, place: Place, crew: Engaged, *, ids: Sequence[str], plugins: Sequence[str], quiet: bool,
    title: str, matrix: str, tracking_uri: str | None, include_pictures: bool,
    published: Sequence[Published] = (),
) -> dict[str, Any]:  # fmt: skip
    """Carry out a schedule under the user's eyes; returns the result as JSON types.

    `tracking_uri` None: no MLflow; "": the default store.
    """
    console = Console(stderr=quiet, highlight=False)
    tally = _Tally(todo, place.run)
    if not quiet:
        _announce(console, title, todo, crew)
    uploaded = None
    with ExitStack() as stack:
        uploader = None
        if tracking_uri is not None:
            uploader = stack.enter_context(
                Uploader(place.run, tracking_uri or None, include_pictures=include_pictures)
            )
        bar = Progress(
            SpinnerColumn(), TextColumn("{task.fields[doing]}", markup=False), BarColumn(), MofNCompleteColumn(),
            TextColumn("cells · {task.fields[failed]} failed · {task.fields[left]} left"), console=console,
        )  # fmt: skip
        task = bar.add_task(
            "", total=len(ids), completed=len(todo.done), doing="starting", failed=0, left="…"
        )
        live = stack.enter_context(Live(console=console, transient=True, refresh_per_second=2))

        table: RenderableType = Text("")
        drawn_at = cost = 0.0  # when the screen was made last, and how long that took
        under_way: dict[str, str] = {}  # trainings, a line each below the bar

        def show() -> None:
            """The screen as things stand; less often where making it takes long, so that the run is not held up."""
            nonlocal table, drawn_at, cost
            now = time.monotonic()
            if not console.is_terminal or quiet or now - drawn_at < max(0.5, 20 * cost):
                return
            table = render(blocks(tally.found), detail=False)
            bar.update(task, completed=len(tally.found), failed=tally.count("crashed"), left=tally.left())
            live.update(Group(table, bar, *(Text(line, style="dim") for line in under_way.values())))
            drawn_at = time.monotonic()
            cost = drawn_at - now

        show()  # the bar stands from the beginning

        def started(cell: AnyCell, worker: str) -> None:
            del worker
            bar.update(task, doing=f"{cell.dataset.name} · {cell.defense.name}")

        def stepped(cell: AnyCell, step: Step) -> None:
            under_way[cell.id] = line = training(cell, step)
            long = step.seconds_left > 60 and step.round % max(1, step.rounds // 10) == 0
            if long and not console.is_terminal and not quiet:
                _say(console, line)
            show()

        def finished(record: Record) -> None:
            under_way.pop(record.id, None)
            tally.add(record)
            _draw(place.run, record)
            if uploader is not None:
                uploader.notify(record.id)
            if not console.is_terminal and not quiet and tally.fresh % max(25, len(ids) // 100) == 0:
                console.print(f"{len(tally.found)}/{len(ids)} cells, {tally.left()} left")
            show()

        try:
            watch = Watch(started=started, stepped=stepped, finished=finished)
            carry_out(todo, place, partial(crew.start, partial(_say, console)), watch=watch, title=title)
        except KeyboardInterrupt:
            live.stop()
            console.print(
                f"\nstopped; {len(tally.found)} of {len(ids)} cells are on disk.  The same command goes on from there."
            )
            sys.exit(130)
        live.stop()
        if uploader is not None:
            uploaded = uploader.close()
    order = {cell_id: position for position, cell_id in enumerate(ids)}
    tally.found.sort(key=lambda record: order[record.id])
    if not quiet:
        _conclude(console, tally, place, matrix, uploaded, plugins, tracking_uri, published)
    return _result(tally, place, uploaded)


def training(cell: AnyCell, step: Step) -> str:
    """How far a training is, on one line."""
    spent = "" if step.epsilon is None else f" · ε {step.epsilon:.2f} (paper)"
    return (
        f"{cell.dataset.name} · {cell.defense.name} · round {step.round}/{step.rounds} · "
        f"accuracy {step.accuracy:.3f}{spent} · {duration(step.seconds_left)} left"
    )


def _say(console: Console, line: str, style: str = "") -> None:
    """A line with names and reasons in it, which may be anybody's: shown as it is, not as markup."""
    console.print(sanitize(line, LONGEST), markup=False, style=style)


def _announce(console: Console, title: str, todo: Schedule, crew: Engaged) -> None:
    waiting = len(todo.waiting)
    console.print(Text(sanitize(title), style="bold"))
    about = duration(todo.seconds / (crew.jobs or 1)) + ("" if crew.jobs else " of one core")
    _say(
        console,
        f"{waiting} cells to run on {crew.words}, about {about}; "
        f"{len(todo.done)} done before, {len(todo.impossible)} n/a",
    )
    changed = [reason for reason in todo.again.values() if not reason.startswith("crashed")]
    if changed:
        _say(console, f"{len(changed)} cells run again, their old records are kept: {_most(changed)}")
    crashed = len(todo.again) - len(changed)
    if crashed:
        console.print(f"{crashed} cells that crashed before are tried again")


def _draw(run: Path, record: Record) -> None:
    """The cell's picture, truth above reconstruction; without one the record stands all the same."""
    if record.status != "done":
        return
    with suppress(BenchError, OSError):
        image = strips.of_record(run, record)
        if image is not None:
            strips.save(image, run / "pictures" / f"{record.id}.png")


def _conclude(
    console: Console, tally: _Tally, place: Place, matrix: str, uploaded: Any, plugins: Sequence[str],
    tracking_uri: str | None, published: Sequence[Published],
) -> None:  # fmt: skip
    found = blocks(tally.found)
    console.print()
    if found:
        console.print(render(found))
    if trained := trainings.trainings(tally.found, published):
        console.print(trainings.render(trained, published))
    if told := knowledge.knowledge(tally.found):
        console.print()
        console.print(knowledge.render(told))
    if found:
        console.print(_legend())
    for block in found:
        if silent := without_evidence(block):
            _say(
                console,
                f"no evidence: {block.title}: at {', '.join(silent)} no attack got anything back even without "
                "a defense, so 0 there says nothing of the defenses",
                style="yellow",
            )
    for title, status in (("crashed", "crashed"), ("n/a", "n/a")):
        reasons = [record.reason or "" for record in tally.found if record.status == status]
        if reasons:
            _say(console, f"{len(reasons)} {title}: {_most(reasons)}", "red" if status == "crashed" else "")
    example = next((r for r in tally.found if r.status == "done" and r.cell["kind"] == "attack"), None)
    lines = [
        ("records", str(place.run / "records")),
        ("pictures", str(place.run / "pictures")),
        ("MLflow", _upload_line(uploaded, place, tracking_uri)),
        (
            "a cell, with its pictures",
            f"bench show {example.id[:8]} {place.run}" if example else "bench show",
        ),
        ("in the browser", f"bench ui {place.run}"),
    ]
    if not plugins:
        lines.append(
            (
                "your own defense",
                f"bench run --matrix {matrix} --plugin my_defense.py --defense round-off   (README)",
            )
        )
    console.print()
    for name, text in lines:
        console.print(Text.assemble((f"{name:26}", "dim"), text), soft_wrap=True)


def _legend() -> RenderableType:
    return Text(
        "Each figure is the share of pictures that the worst attacker got back, with its 95 % interval and the "
        "best single attack; below it that attack's median PSNR beside that of the best guess without the "
        "gradient (prior).  A picture counts as leaked if any attack reaches PSNR ≥ 20 dB and beats the best "
        "guess without the gradient by 3 dB.  0 protects, 1 leaks everything.  type-2 is one example's gradient "
        "inside the client, type-1 the client's update as it leaves, type-0 the same at the server.  "
        "≥: some attacks failed, so the true figure may be higher.",
        style="dim",
    )


def _upload_line(uploaded: Any, place: Place, tracking_uri: str | None) -> str:
    if uploaded is None:
        return f"not asked for; `bench sync {place.run}` uploads"
    if uploaded.reason or uploaded.left:
        return f"{uploaded.left} records wait ({uploaded.reason}); `bench sync {place.run}` tries again"
    address = store.shown(store.checked_uri(place.run, tracking_uri or None))
    return f"{uploaded.count} runs uploaded, {uploaded.skipped} there before: {address}"


def _most(reasons: Sequence[str]) -> str:
    """The most frequent reason, and how many others there are."""
    common = max(set(reasons), key=reasons.count)
    others = len(set(reasons)) - 1
    return common + (f" (and {others} other reason{'s' if others > 1 else ''})" if others else "")


def _result(tally: _Tally, place: Place, uploaded: Any) -> dict[str, Any]:
    table = [
        {
            "block": block.title, "defense": defense, "point": point, "asr": worst.asr,
            "interval": worst.interval, "best_attack": worst.best, "lower_bound": worst.lower_bound,
            "psnr_db_median": worst.best_psnr_db, "prior_psnr_db_median": worst.prior_psnr_db,
            "pictures": len(worst.leaked), "absent": worst.absent, "crashed": worst.crashed,
        }
        for block in blocks(tally.found)
        for defense, row in block.rows.items()
        for point, worst in row.items()
    ]  # fmt: skip
    return {
        "run": str(Path(place.run).resolve()), "cells": len(tally.found), "done": tally.count("done"),
        "not_applicable": tally.count("n/a"), "crashed": tally.count("crashed"), "table": table,
        "knowledge": [row.json() for row in knowledge.knowledge(tally.found)],
        "uploaded": None if uploaded is None else {"count": uploaded.count, "left": uploaded.left},
        "seconds": round(time.monotonic() - tally.began, 1),
    }  # fmt: skip
