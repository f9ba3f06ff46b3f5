"""Run an assessment: attacks for each listener (an attacker at a point of the round) within a time, the facts that
decide how much leaks, defenses that would help, and the report."""

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from bench.answer.gallery import naming_chance
from bench.assess import page
from bench.assess.client import Client, of_reading, of_recording
from bench.assess.decides import decides
from bench.assess.recognition import too_few
from bench.assess.remedies import of_what, remedies
from bench.assess.result import Assessment, Attempt, Figure, Listener
from bench.ceilings.by_epsilon import ceiling
from bench.errors import BenchError
from bench.federated.privacy import at_point
from bench.gradients import group_gradients, one_hot
from bench.own.attack import BY_ADAM, attack
from bench.own.coerce import Values, scaled
from bench.own.defended import Chosen, instance, setting_of_reading
from bench.own.given import reading
from bench.own.recorded import Recording
from bench.own.score import score
from bench.pictures.grid import grid
from bench.pictures.grid import save as save_picture
from bench.scoring.assign import assign, in_order
from bench.scoring.score import Scores
from bench.scoring.summary import share
from bench.training import loss_of, mixes
from bench.trip import Reading, Reconstruction

_INSIDE = 8  # single examples attacked inside the client
_LEAST, _MOST = 40, 2000  # evaluations of the search; fewer are no attack, more change little
_SHARES = {"update": 0.55, "inside": 0.2, "remedies": 0.2}  # of the time
_PROBE = (2, 12)
_EXAMPLES = 256  # behind an update, at most, for the search: more never came back


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A listener's reading with its truth, and the evaluations that fit into the time."""

    name: str
    reads: str
    reading: Reading
    inputs: Tensor
    labels: Tensor
    evaluations: int
    per_evaluation: float
    refused: BenchError | None = None
    """Reason why the search does not run; None: it runs."""

    @property
    def seconds(self) -> float:
        return self.evaluations * self.per_evaluation


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
    left, folder, listeners = _SHARES["remedies"] * minutes * 60, Path(out), []
    shown = watch or _Unwatched()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", BY_ADAM)  # it becomes a note
        plans = list(_plans(made, minutes * 60))
        shown.planned([*((each.name, each.seconds) for each in plans), ("remedies", left)])
        for plan in plans:
            shown.began(plan.name)
            listeners.append(_listener(plan, made, defense, folder, seed))
            shown.ended(plan.name)
    shown.began("remedies")
    known = made.public is not None and made.public_labels is not None and not mixes(made.model)
    helped = tuple(remedies(made, left, seed=seed)) if known else ()
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


def _plans(client: Client, seconds: float) -> Iterator[_Plan]:
    """Yield the listeners' readings, with a search that fits into its share of the `seconds`."""
    if client.update is not None:
        update = client.update
        steps = "one local step" if update.steps == 1 else f"{update.steps} local steps"
        yield _plan("update", f"{steps} of {_examples(update.batch)}", update, client.inputs, client.labels, seconds)
    if mixes(client.model):  # one example has no gradient of its own
        return
    inputs, labels = client.inputs[0, :_INSIDE, None], client.labels[0, :_INSIDE, None]
    targets = one_hot(labels, client.classes, inputs.dtype)
    inside = reading(
        group_gradients(client.model, client.weights, inputs, targets),
        model=client.model,
        shape=client.shape,
        classes=client.classes,
        loss=loss_of(client.model),
        value_range=client.value_range,
        kind=client.kind.name,
        labels=labels,
        public=client.public,
        public_labels=client.public_labels,
    )
    words = f"the gradient of each of {_examples(len(inputs))}, before the first step"
    yield _plan("inside", words, inside, inputs, labels, seconds)


def _plan(name: str, reads: str, reading: Reading, inputs: Tensor, labels: Tensor, seconds: float) -> _Plan:
    times = list[float]()
    refused: BenchError | None = None
    for evaluations in _PROBE if reading.examples <= _EXAMPLES else ():
        began = time.monotonic()
        try:
            attack(reading, "map", evaluations=evaluations)
        except BenchError as error:
            refused = error
            break
        times.append(time.monotonic() - began)
    per = (times[1] - times[0]) / (_PROBE[1] - _PROBE[0]) if len(times) == 2 else 0.0
    fit = int(_SHARES[name] * seconds / max(per, 1e-4)) if len(times) == 2 else 0
    return _Plan(
        name=name,
        reads=reads,
        reading=reading,
        inputs=inputs,
        labels=labels,
        evaluations=min(fit, _MOST),
        per_evaluation=per,
        refused=refused,
    )


def _listener(plan: _Plan, client: Client, defense: Chosen | None, folder: Path, seed: int) -> Listener:
    attempts, found = [], list[tuple[Scores, Reconstruction]]()
    for name in ("analytic", "map"):
        began = time.monotonic()
        if name == "map" and plan.refused is not None:
            attempts.append(_refused(name, plan.refused, began))
            continue
        if name == "map" and plan.evaluations < _LEAST:
            line = f"not run: an evaluation takes {plan.per_evaluation:.2g} s; give more minutes"
            if plan.reading.examples > _EXAMPLES:
                line = f"not run: {plan.reading.examples} examples behind one update, at most {_EXAMPLES} are searched"
            attempts.append(Attempt(attack=name, line=line, seconds=0.0))
            continue
        try:
            result = attack(plan.reading, name, evaluations=max(plan.evaluations, 1), seed=seed)
        except BenchError as error:
            attempts.append(_refused(name, error, began))
            continue
        scores = _scores(result, plan, client)
        found.append((scores, result))
        attempts.append(
            Attempt(attack=name, line=_line(scores, name, plan), seconds=round(time.monotonic() - began, 1))
        )
    figures = dict(_figures([scores for scores, _ in found]))
    attempt, recognised = _gallery(plan, client, defense, seed)
    attempts.append(attempt)
    if recognised is not None:
        figures["recognised"] = recognised
    return Listener(
        name=plan.name,
        reads=plan.reads,
        figures=figures,
        attempts=tuple(attempts),
        picture=_picture(plan, client, found, folder),
    )


def _scores(result: Reconstruction, plan: _Plan, client: Client) -> Scores:
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


def _examples(count: int) -> str:
    return "one example" if count == 1 else f"{count} examples"


def _refused(name: str, error: BenchError, began: float) -> Attempt:
    reason = str(error).removeprefix(f"attack {name} cannot take this reading: ")
    return Attempt(attack=name, line=f"not run: {reason}", seconds=round(time.monotonic() - began, 1))


def _line(scores: Scores, name: str, plan: _Plan) -> str:
    summary = scores.summary
    leaked = sum(example.success for each in scores.readings for example in each.examples)
    psnr = summary.medians.get("psnr_db")
    median = "" if psnr is None else f", median PSNR {psnr:.1f} dB"
    effort = f" after {plan.evaluations} evaluations" if name == "map" else ""
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


def _gallery(plan: _Plan, client: Client, defense: Chosen | None, seed: int) -> tuple[Attempt, Figure | None]:
    began = time.monotonic()
    if client.public is None or client.public_labels is None:
        return Attempt(attack="gallery", line="not run: no public examples with labels", seconds=0.0), None
    inputs, labels = plan.inputs.flatten(0, 1), plan.labels.flatten()
    strangers = max(0, 1000 - len(inputs))
    order = torch.randperm(len(inputs) + len(client.public[:strangers]), generator=torch.Generator().manual_seed(seed))
    candidates = torch.cat([inputs, client.public[:strangers]])[order]
    marks = torch.cat([labels, client.public_labels[:strangers]])[order]
    chance = naming_chance(marks, plan.labels, granted=plan.reading.labels is not None)
    if reason := too_few(chance):
        return Attempt(attack="gallery", line=f"not run: {reason}", seconds=0.0), None
    try:
        result = attack(replace(plan.reading, gallery_inputs=candidates, gallery_labels=marks), "gallery", seed=seed)
    except BenchError as error:
        return _refused("gallery", error, began), None
    assert result.named is not None
    truth = order.argsort()[: len(inputs)].reshape(plan.labels.shape)
    named = result.named[:, : plan.labels.shape[1]]
    hits = (truth[:, :, None] == named[:, None, :]).any(-1)
    groups = [row for row in range(len(hits)) for _ in range(hits.shape[1])]
    figure = Figure(
        share=share(hits.flatten().tolist(), groups),
        of=hits.numel(),
        chance=chance,
        ceiling=None if defense is None else _ceiling(plan.reading, defense, chance),
    )
    line = f"{int(hits.sum())} of {hits.numel()} examples named among {len(marks)} candidates"
    return Attempt(attack="gallery", line=line, seconds=round(time.monotonic() - began, 1)), figure


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


def _picture(plan: _Plan, client: Client, found: Sequence[tuple[Scores, Reconstruction]], folder: Path) -> str | None:
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
