"""Attack several cells (experiments) in a single batch, because a single cell rarely fills a GPU. The cells share
model, weights and attack.

Every cell still gets a separate record: its result waits in `Memory.attacked` until the cell's turn, and its cost names
the other cells in the batch."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from bench.answer.context import Memory, RunContext, many_rows
from bench.answer.observation import draw_and_observe
from bench.answer.readings import reading_hash
from bench.answer.reconstruct import ReadingKey, attack_readings, attacker_of, reading_key, remember, rows_at_once
from bench.answer.values import Attempt, Observation
from bench.attacks.base import Attack
from bench.cell import AnyCell, AttackCell
from bench.registry import entries as registry
from bench.trip import TRACED, Budget, Reading, Reconstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    cell: AttackCell
    observation: Observation
    key: ReadingKey
    wall: float
    """Wall-clock seconds for the observation of the round."""
    cpu: float
    """CPU seconds for the observation of the round."""

    @property
    def reading(self) -> Reading:
        return self.observation.reading


def attack_together(cell: AnyCell, company: Sequence[AnyCell], context: RunContext, memory: Memory) -> None:
    """Attack `cell` together with later cells (experiments) in a single batch, to fill the GPU. If the batch fails, no
    result is kept, and each cell is attacked at its turn.

    - `company`: the next cells; those with the same model, weights and attack join the batch, as many as fit.
    - `context`: the run's folders, device and limits.
    - `memory`: values that the worker keeps between cells; the results wait in `memory.attacked` until each cell's
      turn."""
    if not company or not isinstance(cell, AttackCell) or cell.id in memory.attacked or not many_rows(context):
        return
    if cell.grants.server != "listen":  # a reading under crafted weights belongs to a single cell
        return
    coming = {other.id for other in company}
    for other in memory.attacked.keys() - coming:  # another worker took it
        del memory.attacked[other]
    members: list[_Member] = []
    with suppress(Exception):  # a cell that fails does so in its own turn, with its reason
        members = _members(cell, company, context, memory)
    if len(members) < 2:
        return
    whole, rows = Reading.joined([member.reading for member in members])
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
        part = part_of(claimed, own)
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


def part_of(whole: Reconstruction, rows: Sequence[int]) -> Reconstruction:
    """Return the part of the reconstruction `whole` that belongs to one of the cells (experiments) attacked in a single
    batch, as if the cell had been attacked alone. `rows` are the positions of the cell's readings (observed updates) in
    the batch. The cell's loss history ends at the last evaluation of these readings."""
    part = whole.of(rows)
    last = int(part.evaluations.max())
    marks = [n for n, (mark, _) in enumerate(part.history) if mark < last]
    marks += [len(part.history) - 1] * bool(part.history)
    history = tuple((min(mark, last), losses) for mark, losses in (part.history[n] for n in marks))
    way = part.trajectory
    return replace(part, history=history, trajectory=None if way is None else way[marks])


def _members(cell: AttackCell, company: Sequence[AnyCell], context: RunContext, memory: Memory) -> list[_Member]:
    others = list(_alike(cell, company))
    attack: type[Attack] = registry.load("attacks", cell.attack.name)
    if not others or not attack.mergeable or cell.knowledge == "black-box":
        return []
    members = [_observed(cell, context, memory)]
    if not len(members[0].reading):  # a cascade left no reading
        return []
    room = rows_at_once(context, members[0].reading) - len(members[0].reading)
    shared = reading_hash(members[0].reading.of(()))
    for other in others:
        if other.readings > room:
            break
        with suppress(Exception):
            member = _observed(other, context, memory)
            known = member.key in memory.reconstructions or any(each.key == member.key for each in members)
            if len(member.reading) and reading_hash(member.reading.of(())) == shared and not known:
                members.append(member)
                room -= other.readings
    return members


def _alike(cell: AttackCell, company: Sequence[AnyCell]) -> Iterator[AttackCell]:
    """Yield cells in `company` that differ from `cell` only in noise draw, point and (for a plain attacker) defense."""
    anything = {"defense": cell.defense, "draw": 0, "point": cell.point, "reference": False, "after": ()}
    own = cell.model_copy(update=anything).canonical()
    for other in company:
        if not isinstance(other, AttackCell) or (cell.knowledge != "plain" and other.defense != cell.defense):
            continue
        if other.model_copy(update=anything).canonical() == own:
            yield other


def _observed(cell: AttackCell, context: RunContext, memory: Memory) -> _Member:
    began, cpu = time.perf_counter(), time.process_time()
    observation = draw_and_observe(cell, context, memory)
    return _Member(
        cell=cell,
        observation=observation,
        key=reading_key(observation.reading, cell),
        wall=time.perf_counter() - began,
        cpu=time.process_time() - cpu,
    )
