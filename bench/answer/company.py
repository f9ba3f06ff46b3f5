"""Cells attacked side by side: readings of the same model, weights and objective as the rows of one batch.

One cell's readings do not fill a GPU.  Each cell is answered by itself all the same: what its readings got waits in
memory for its turn.  Which cells it was attacked beside is noted in its cost, and is no part of it.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.answer.context import Memory, RunContext, many_rows
from bench.answer.observation import Observation, observe_cell
from bench.answer.readings import reading_hash
from bench.answer.reconstruct import (
    Attempt,
    ReadingKey,
    attack_readings,
    attacker_of,
    reading_key,
    remember,
    rows_at_once,
)
from bench.attacks.base import Attack
from bench.cell import AnyCell, AttackCell
from bench.registry import entries as registry
from bench.trip import TRACED, Budget, Reading, Reconstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A cell of a company; `wall` and `cpu` are the seconds that its observation took."""

    cell: AttackCell
    observation: Observation
    key: ReadingKey
    wall: float
    cpu: float


def attack_together(cell: AnyCell, company: Sequence[AnyCell], context: RunContext, memory: Memory) -> None:
    """Attack the readings of `cell` and those of its `company` that fit beside them, and keep for each what it gets.

    Cells whose objective is another's are left out.  Where the attack fails, nothing is kept: each cell is then
    attacked by itself and says what happened.
    """
    if not isinstance(cell, AttackCell) or cell.id in memory.attacked or not many_rows(context):
        return
    coming = {other.id for other in company}
    for other in memory.attacked.keys() - coming:  # another worker took it
        del memory.attacked[other]
    members: list[_Member] = []
    with suppress(Exception):  # a cell that fails does so in its own turn, with its reason
        members = _members(cell, company, context, memory)
    if len(members) < 2:
        return
    whole, rows = merged([member.observation.reading for member in members])
    budget = Budget(
        evaluations=cell.evaluations, chunk=cell.chunk, traced=sum(index < TRACED for index in whole.indices)
    )
    began, cpu = time.perf_counter(), time.process_time()
    try:
        claimed = attack_readings(attacker_of(cell, whole), whole, cell, context, budget)
    except Exception:
        return
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    ids = [member.cell.id for member in members]
    spent = claimed.evaluations.sum().clamp_min(1).item()
    for member, own in zip(members, rows, strict=True):
        part = part_of(claimed, own, budget.traced)
        share = part.evaluations.sum().item() / spent
        attempt = Attempt(
            reconstruction=part,
            seconds=round(share * wall, 4),
            earlier_wall=member.wall + share * wall,
            earlier_cpu=member.cpu + share * cpu,
            company=tuple(i for i in ids if i != member.cell.id),
        )
        remember(member.key, member.cell, attempt, memory)
        memory.attacked[member.cell.id] = member.observation, attempt


def merged(readings: Sequence[Reading]) -> tuple[Reading, list[Tensor]]:
    """Readings that differ in values, labels and indices as one, and the rows of each.

    The first reading of every cell comes first, then the second ones: the first rows have their trajectory kept.
    """
    numbers = [(index, cell) for cell, reading in enumerate(readings) for index in reading.indices]
    order = torch.tensor(sorted(range(len(numbers)), key=numbers.__getitem__))
    of_cell = torch.tensor([cell for _, cell in numbers])[order]
    first = readings[0]
    values = {name: torch.cat([each.values[name] for each in readings])[order] for name in first.values}
    labels = None
    if first.labels is not None:
        labels = torch.cat([each.labels for each in readings if each.labels is not None])[order]
    whole = replace(first, values=values, labels=labels, indices=tuple(numbers[n][0] for n in order.tolist()))
    return whole, [torch.nonzero(of_cell == cell)[:, 0] for cell in range(len(readings))]


def part_of(whole: Reconstruction, rows: Tensor, traced: int) -> Reconstruction:
    """The reconstruction of some rows, with their own count of evaluations as the last mark."""
    last = int(whole.evaluations[rows].max())
    marks = [n for n, (mark, _) in enumerate(whole.history) if mark < last]
    marks += [len(whole.history) - 1] * bool(whole.history)
    kept = rows.tolist()
    history = tuple(
        (min(mark, last), tuple(losses[row] for row in kept)) for mark, losses in (whole.history[n] for n in marks)
    )
    way = whole.trajectory
    return replace(
        whole,
        inputs=whole.inputs[rows],
        labels=whole.labels[rows],
        loss=whole.loss[rows],
        evaluations=whole.evaluations[rows],
        outer=whole.outer[rows],
        restarts=whole.restarts[rows],
        status=tuple(whole.status[row] for row in kept),
        history=history,
        trajectory=None if way is None else way[marks][:, rows[rows < way.shape[1]]],
        certificate=None if whole.certificate is None else whole.certificate[rows],
        named=None if whole.named is None else whole.named[rows],
    )


def _members(cell: AttackCell, company: Sequence[AnyCell], context: RunContext, memory: Memory) -> list[_Member]:
    """The cell and those of its company whose readings are attacked beside its own, each reading once."""
    others = list(_alike(cell, company))
    attack: type[Attack] = registry.load("attacks", cell.attack.name)
    if not others or not attack.mergeable or cell.knowledge == "black-box":
        return []
    own = _observed(cell, context, memory)
    reading = own.observation.reading
    room, shared, members = rows_at_once(context, reading) - len(reading), _shared(reading), [own]
    for other in others:
        if other.readings > room:
            break
        with suppress(Exception):
            member = _observed(other, context, memory)
            known = member.key in memory.reconstructions or any(each.key == member.key for each in members)
            if _shared(member.observation.reading) == shared and not known:
                members.append(member)
                room -= other.readings
    return members


def _alike(cell: AttackCell, company: Sequence[AnyCell]) -> Iterator[AttackCell]:
    """Those that may have the same objective: all else that differs is the defense, of plain attackers, the draw, or
    the point."""
    anything = {"defense": cell.defense, "draw": 0, "point": cell.point, "reference": False, "after": ()}
    own = cell.model_copy(update=anything).canonical()
    for other in company:
        if not isinstance(other, AttackCell) or (cell.knowledge != "plain" and other.defense != cell.defense):
            continue
        if other.model_copy(update=anything).canonical() == own:
            yield other


def _observed(cell: AttackCell, context: RunContext, memory: Memory) -> _Member:
    began, cpu = time.perf_counter(), time.process_time()
    observation = observe_cell(cell, context, memory)
    return _Member(
        cell=cell,
        observation=observation,
        key=reading_key(observation.reading, cell),
        wall=time.perf_counter() - began,
        cpu=time.process_time() - cpu,
    )


def _shared(reading: Reading) -> tuple[str, bool]:
    """What readings have in common that may be attacked as one."""
    return reading_hash(replace(reading, values={}, labels=None, indices=())), reading.labels is None
