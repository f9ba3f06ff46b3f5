"""`bench gate --prove`: test the gate with two weakenings, planted in every defense of a baseline's matrix."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import click

from bench.cell import AttackCell, Entry
from bench.cli import common, gating, lookup, running
from bench.cli.gating import Decisive
from bench.contracts.plants import Plant, weakened
from bench.errors import BenchError
from bench.gate.reports import headline
from bench.gate.sensitivity import sees, sentence
from bench.gate.verdict import Verdict, verdict
from bench.leaderboard.costs import UNDEFENDED
from bench.matrix.entries import registered
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.registry import entries as registry
from bench.sanitize import LONG, sanitize

PLUGIN = "bench.contracts.plants"
_SAME_DB = 0.1  # a smaller difference of a reading's SNR comes from another processor


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A test of the gate: a weakening planted in a defense, and the metrics that reveal the weakening."""

    plant: str
    """Name of the weakening, such as `noise halved`."""
    defense: str
    """The weakened defense, with its parameters."""
    acts: bool
    """True if the weakening changes a reading (an observed update). It changes none if, for example, a defense without
    normal noise gets its noise halved."""
    metrics: tuple[str, ...]
    """Metrics by which the gate calls the defense weaker; empty if the gate misses the weakening."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Result of `bench gate --prove`, a test of the gate itself: known weakenings are planted in the defenses of a
    baseline (records of an earlier run), and the gate should call each of these defenses weaker."""

    plants: tuple[Planted, ...]
    """Test results, one for each weakening and defense."""
    sees: Mapping[str, float]
    """Metric → smallest worsening that the gate would call weaker for every defense and interception point."""

    @property
    def exit_code(self) -> int:
        """Exit code of `bench gate --prove`. 0: each weakening that changes a reading (an observed update) is detected,
        and each kind changes a reading of some defense. 1: a weakening is missed. 3: a kind of weakening changes no
        reading."""
        if any(one.acts and not one.metrics for one in self.plants):
            return 1
        acting = {one.plant for one in self.plants if one.acts}
        return 0 if acting == {*get_args(Plant)} else 3

    def json(self) -> dict[str, Any]:
        """Return the test's result as JSON values, field name → value, with the exit code."""
        return {**asdict(self), "exit_code": self.exit_code}


def prove(
    decisive: Decisive,
    whole: Verdict,
    margins: Mapping[str, float],
    *,
    data_dir: Path | None,
    device: str,
    jobs: int | None,
) -> Proof:
    """Test a gate's baseline (records of an earlier run): plant two weakenings in every defense of its matrix, run the
    matrix, and compare with the baseline. Return for each weakening whether the gate detects it.

    - `decisive`: the baseline with its matrix.
    - `whole`: verdict of the same baseline without a weakening.
    - `margins`: metric → smallest worsening that counts as weaker; these replace the baseline's margins.
    - `data_dir`, `device`, `jobs`: folder of data sets (None: default), torch device, number of processes (None:
      chosen).

    Raises `BenchError` for a baseline without a matrix."""
    before, asked = decisive.baseline, decisive.baseline.request
    if asked is None:
        raise BenchError(f"{decisive.path}: it names no matrix, so nothing can be planted; write the baseline again")
    matrix = gating.matrix_of(asked, decisive.matrix)
    registry.add_plugin(PLUGIN)
    request = replace(asked, plugins=(*asked.plugins, PLUGIN))
    old = {_key(r.cell, r.cell.defense): r for r in before.records if isinstance(r.cell, AttackCell)}
    found: list[Planted] = []
    for plant in get_args(Plant):
        rows = [
            {**row, "defense": registered("defense", weakened(entry.name, entry.params, plant), registry)}
            for row in matrix.attacks
            if (entry := row.get("defense")) is not None and entry.name != UNDEFENDED
        ]
        if not rows:
            raise BenchError(f"{decisive.path}: its matrix has no defense, so nothing can be planted")
        with TemporaryDirectory(prefix="bench-gate-") as folder:
            changed = replace(matrix, attacks=tuple(rows), trainings=())
            run = running.prepare(request, changed, out=Path(folder), data_dir=data_dir, jobs=jobs)
            running.execute(run, device=device, quiet=True, tracking_uri=None)
            planted = lookup.compact_records(Path(folder), whole=True)
        pairs = [(then, replace(now, cell=then.cell)) for now in planted if (then := old.get(_origin(now)))]
        found += _answers(plant, pairs, {**before.margins, **margins})
    return Proof(plants=tuple(found), sees=sees(whole))


def lines(proof: Proof) -> list[str]:
    """Return the result `proof` of `bench gate --prove`, a test of the gate with planted weakenings, as lines of text:
    one for each weakening, detected, missed or without effect."""
    said = []
    for one in proof.plants:
        answer = f"seen by {', '.join(one.metrics)}" if one.metrics else "MISSED" if one.acts else "changes no reading"
        said.append(f"{one.plant}: {one.defense}: {answer}")
    return said


def show(proof: Proof, whole: Verdict, *, as_json: bool) -> None:
    """Print the result `proof` of `bench gate --prove`, a test of the gate with planted weakenings, as text, or as JSON
    if `as_json` is True. `whole` is the gate's verdict without a weakening."""
    if as_json:
        common.print_json({"without": whole.outcome, **proof.json()})
        return
    for line in [f"without a weakening: {headline(whole)}", *lines(proof)]:
        click.echo(sanitize(line, LONG))
    click.echo(f"this baseline sees: {sentence(proof.sees)}")


def _answers(plant: str, pairs: Sequence[tuple[Record, Record]], margins: Mapping[str, float]) -> list[Planted]:
    result = verdict([then for then, _ in pairs], [now for _, now in pairs], margins)
    acting = {entry_text(then.cell.defense) for then, now in pairs if _differ(then, now)}
    weaker: dict[str, dict[str, None]] = {}
    for row in result.comparisons:
        if row.outcome == "weaker":
            weaker.setdefault(row.defense, {})[row.metric] = None
    return [
        Planted(plant=plant, defense=name, acts=name in acting, metrics=tuple(weaker.get(name, ())))
        for name in dict.fromkeys(entry_text(then.cell.defense) for then, _ in pairs)
    ]


def _differ(then: Record, now: Record) -> bool:
    if then.attack is None or now.attack is None:
        return then.status != now.status
    values = [(a.snr_db, b.snr_db) for a, b in zip(then.attack.readings, now.attack.readings, strict=False)]
    return any(a is not None and b is not None and abs(a - b) > _SAME_DB for a, b in values)


def _origin(record: Record) -> str:
    """Return the key of the cell whose defense was weakened for this record."""
    params = record.cell.defense.params
    assert isinstance(record.cell, AttackCell)
    return _key(record.cell, Entry(name=params["of"], params=json.loads(params["params"])))


def _key(cell: AttackCell, defense: Entry) -> str:
    return cell.model_copy(update={"defense": defense, "after": ()}).canonical()
