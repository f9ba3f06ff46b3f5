"""Run an assessment: attacks for each listener (an attacker at a point of the round) within a time, the facts that
decide how much leaks, defenses that would help, and the report."""

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Protocol

from bench.assess import members, page
from bench.assess.client import Client, of_reading, of_recording
from bench.assess.decides import decides
from bench.assess.plans import MOST, Plan, Search, plans, reason_of
from bench.assess.remedies import of_what, remedies, trials_within
from bench.assess.result import Assessment, Attempt, Figure, Listener
from bench.ceilings.by_epsilon import ceiling
from bench.errors import BenchError
from bench.federated.privacy import at_point
from bench.own.attack import BY_ADAM, attack
from bench.own.coerce import Values, scaled
from bench.own.defended import Chosen, instance, setting_of_reading
from bench.own.recorded import Recording
from bench.own.score import score
from bench.pictures.grid import grid
from bench.pictures.grid import save as save_picture
from bench.scoring.assign import assign, in_order
from bench.scoring.score import Scores
from bench.scoring.summary import share
from bench.training import mixes
from bench.trip import Reading, Reconstruction

_REMEDIES = 0.2  # of the time


class Watch(Protocol):
    """Receiver of an assessment's progress, such as a progress bar."""

    def planned(self, parts: Sequence[tuple[str, float]]) -> None:
        """Show the assessment's planned `parts`, each (name, expected seconds); called before the first part begins."""

    def began(self, part: str) -> None:
        """Show that the part named `part` began."""

    def ended(self, part: str) -> None:
        """Show that the part named `part` ended."""


class _Unwatched:
    def planned(self, parts: Sequence[tuple[str, float]]) -> None:
        pass

    def began(self, part: str) -> None:
        pass

    ended = began


def assess(
    client: Recording | Reading,
    truth: Values | None = None,
    labels: Values | None = None,
    *,
    public: Values | None = None,
    public_labels: Values | None = None,
    defense: Chosen | None = None,
    out: str | PathLike[str] = "leak",
    minutes: float = 10.0,
    seed: int = 0,
    notes: Sequence[str] = (),
    watch: Watch | None = None,
) -> Assessment:
    """Assess how much leaks from a client: attack its update with the bench's strongest attacks, and write a report
    into the folder `out`.

    - `client`: a recorded training (`bench.own`), or a reading (an observed update) with `truth` and `labels`.
    - `truth` (reading, example, *shape), `labels` (reading, example): the true examples behind a reading.
    - `public` (example, *shape), `public_labels` (example,): public examples for a recorded training; None takes the
      examples of its forward passes without gradients.
    - `defense`: the defense of a reading, for ε and upper bounds; None: no defense is declared. A recorded training
      holds its defense, so the argument is ignored.
    - `minutes`: time for the attacks on two cores; searches get as many evaluations as fit.
    - `seed`: seed of the attacks.
    - `notes`: remarks to print in the report.
    - `watch`: receiver of the progress, such as a progress bar; None shows no progress.

    Raises `BenchError` for a client without true examples, or a time below half a minute."""
    began = time.monotonic()
    if not minutes >= 0.5:
        raise BenchError(f"minutes is {minutes!r}; searches need at least half a minute")
    made = (
        of_recording(client, public, public_labels)
        if isinstance(client, Recording)
        else of_reading(client, truth, labels)
    )
    if isinstance(client, Recording):
        defense = client.defense
    folder, listeners, shown = Path(out), [], watch or _Unwatched()
    known = made.public is not None and made.public_labels is not None and not mixes(made.model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", BY_ADAM)  # it becomes a note
        planned = list(plans(made, minutes * 60, seed))
        trials, last = trials_within(made, _REMEDIES * minutes * 60, seed=seed) if known else (0, 0.0)
        shown.planned([*((each.name, each.seconds) for each in planned), ("remedies", last)])
        for plan in planned:
            shown.began(plan.name)
            listeners.append(_listener(plan, made, defense, folder, seed))
            shown.ended(plan.name)
    shown.began("remedies")
    helped = tuple(remedies(made, trials, seed=seed)) if known else ()
    shown.ended("remedies")
    result = Assessment(
        declaration=made.line,
        explained=made.update is not None,
        listeners=tuple(listeners),
        decides=tuple(decides(made)),
        remedies=helped,
        remedies_of=of_what(made) if helped else _no_remedies(made),
        notes=(*notes, *_notes(client, made)),
        seconds=round(time.monotonic() - began, 1),
        page=str(folder / page.FILE),
    )
    page.write(folder, result)
    return result


def _notes(client: Recording | Reading, made: Client) -> Iterator[str]:
    if isinstance(client, Recording):
        yield from client.notes
        if client.inside is not None:
            yield client.inside
    if made.update is not None and made.update.adam is not None:
        yield f"{BY_ADAM}."


def _no_remedies(client: Client) -> str:
    if mixes(client.model):
        return "the model mixes the examples of a batch: defenses of single examples cannot act"
    return "no public examples with labels: recognition needs strangers"


def _listener(plan: Plan, client: Client, defense: Chosen | None, folder: Path, seed: int) -> Listener:
    attempts, found = [], list[tuple[Scores, Reconstruction]]()
    for search in (Search(attack="analytic", evaluations=1), *plan.searches):
        if search.refused:
            attempts.append(Attempt(attack=search.attack, line=f"not run: {search.refused}", seconds=0.0))
            continue
        began = time.monotonic()
        try:
            result = attack(plan.reading, search.attack, evaluations=search.evaluations, seed=seed)
        except BenchError as error:
            attempts.append(_refused(search.attack, error, began))
            continue
        scores = _scores(result, plan, client)
        found.append((scores, result))
        seconds, used = round(time.monotonic() - began, 1), int(result.evaluations.max())
        cut = bool(search.each) and used == search.evaluations < MOST and scores.summary.asr.value < 1
        attempts.append(Attempt(attack=search.attack, line=_line(scores, search, used, cut), seconds=seconds, cut=cut))
    figures = dict(_figures([scores for scores, _ in found]))
    attempt, recognised = _gallery(plan, defense, seed)
    attempts.append(attempt)
    if plan.trials is not None:
        attempt, member = _members(plan, client)
        attempts.append(attempt)
        recognised = max(
            (each for each in (recognised, member) if each), key=lambda each: each.share.value, default=None
        )
    if recognised is not None:
        figures["recognised"] = recognised
    return Listener(
        name=plan.name,
        reads=plan.reads,
        figures=figures,
        attempts=tuple(attempts),
        picture=_picture(plan, client, found, folder),
    )


def _scores(result: Reconstruction, plan: Plan, client: Client) -> Scores:
    plain = Reconstruction(**{name: getattr(result, name) for name in Reconstruction.__dataclass_fields__})
    marked = client.public_labels is not None and plan.reading.labels is not None
    return score(  # the declaration was checked before: a plain reconstruction is not checked again
        plain,
        plan.inputs,
        plan.labels,
        public=client.public,
        public_labels=client.public_labels if marked else None,
        labels_known=marked,
        value_range=client.value_range,
        kind=client.kind.name,
    )


def _refused(name: str, error: BenchError, began: float) -> Attempt:
    line = f"not run: {reason_of(error, name)}"
    return Attempt(attack=name, line=line, seconds=round(time.monotonic() - began, 1))


def _line(scores: Scores, search: Search, used: int, cut: bool) -> str:
    summary = scores.summary
    leaked = sum(example.success for each in scores.readings for example in each.examples)
    psnr = summary.medians.get("psnr_db")
    median = "" if psnr is None else f", median PSNR {psnr:.1f} dB"
    effort = f" after {used} evaluations" if search.each else ""
    effort += f"; the time limit ended the search (useful: {MOST})" if cut else ""
    return f"{leaked} of {summary.examples} examples reconstructed{median}{effort}"


def _figures(scores: Sequence[Scores]) -> Iterator[tuple[str, Figure]]:
    """Yield the shares of examples that at least one attack reconstructs, and the best attack's share of identified
    examples."""
    if not scores:
        return
    groups = [n for n, each in enumerate(scores[0].readings) for _ in each.examples]
    rows = [[bool(example.success) for each in one.readings for example in each.examples] for one in scores]
    hits = [any(column) for column in zip(*rows, strict=True)]
    yield "reconstructed", Figure(share=share(hits, groups), of=len(groups), chance=0.0)
    known = [one.summary for one in scores if one.summary.identification is not None]
    if known:
        best = max(known, key=lambda one: one.identification.value if one.identification else 0.0)
        assert best.identification is not None
        yield "identified", Figure(share=best.identification, of=len(groups), chance=best.identification_chance)


def _gallery(plan: Plan, defense: Chosen | None, seed: int) -> tuple[Attempt, Figure | None]:
    began, naming = time.monotonic(), plan.naming
    if isinstance(naming, str):
        return Attempt(attack="gallery", line=f"not run: {naming}", seconds=0.0), None
    granted = replace(plan.reading, gallery_inputs=naming.inputs, gallery_labels=naming.labels)
    try:
        result = attack(granted, "gallery", seed=seed, seconds=naming.limit)
    except BenchError as error:
        return _refused("gallery", error, began), None
    assert result.named is not None
    named = result.named[:, : plan.labels.shape[1]]
    hits = (naming.truth[:, :, None] == named[:, None, :]).any(-1)
    groups = [row for row in range(len(hits)) for _ in range(hits.shape[1])]
    figure = Figure(
        share=share(hits.flatten().tolist(), groups),
        of=hits.numel(),
        chance=naming.chance,
        ceiling=None if defense is None else _ceiling(plan.reading, defense, naming.chance),
    )
    seconds = time.monotonic() - began
    ended = ", ended by its time" if plan.reading.examples > 1 and seconds > naming.limit else ""
    line = f"{int(hits.sum())} of {hits.numel()} examples named among {len(naming.labels)} candidates{ended}"
    return Attempt(attack="gallery", line=line, seconds=round(seconds, 1)), figure


def _members(plan: Plan, client: Client) -> tuple[Attempt, Figure | None]:
    began, trials = time.monotonic(), plan.trials
    if not isinstance(trials, members.Trials):
        return Attempt(attack="members", line=f"not run: {trials}", seconds=0.0), None
    figure = members.recognised(client, plan.reading, trials)
    line = f"{round(figure.share.value * figure.of)} of {figure.of} examples above {members.STRANGERS} strangers each"
    return Attempt(attack="members", line=line, seconds=round(time.monotonic() - began, 1)), figure


def _ceiling(reading: Reading, defense: Chosen, chance: float) -> float | None:
    spent, _ = at_point(
        instance(defense),
        setting_of_reading(reading),
        reading.point,
        tensors=len(reading.weights),
        coordinates=sum(value[0].numel() for value in reading.weights.values()),
        round_=0,
        observations=1,
    )
    return ceiling(spent, chance)


def _picture(plan: Plan, client: Client, found: Sequence[tuple[Scores, Reconstruction]], folder: Path) -> str | None:
    """Draw the reconstruction with the highest share of reconstructed examples, then the highest median PSNR."""
    if not found:
        return None
    _, best = max(found, key=lambda one: (one[0].summary.asr.value, one[0].summary.medians.get("psnr_db") or 0.0))
    true = scaled(plan.inputs.flatten(0, 1), client.value_range, "truth").reshape(plan.inputs.shape)
    low, high = client.value_range
    guess = ((best.inputs.detach().cpu().double() - low) / (high - low)).numpy()
    image = grid(true, in_order(guess, assign(true, guess, client.kind.values)), client.kind)
    if image is None:
        return None
    save_picture(image, folder / f"{plan.name}.png")
    return f"{plan.name}.png"
