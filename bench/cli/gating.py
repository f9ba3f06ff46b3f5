"""The comparison behind `bench gate`: choose the baseline, run its matrix, and compare the records."""

import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cli import lookup
from bench.errors import BenchError
from bench.gate import alterations, revision
from bench.gate import baseline as baselines
from bench.gate.baseline import Baseline
from bench.gate.occasion import Occasion, Place
from bench.gate.pairing import is_asked_for, partners
from bench.gate.verdict import Verdict, on_occasion, verdict, with_oldest
from bench.matrix.read import Asked, Matrix, read
from bench.record import fingerprint, request
from bench.record.request import Request
from bench.record.runs import checked_run
from bench.record.schema import Record
from bench.registry import entries as registry
from bench.registry import static


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisive:
    """Reference of the gate: the baseline (records of an earlier run) with which a run is compared, and the matrix that
    both run. In CI both come from the base revision, not from the checkout, so that a change cannot lower its own
    bar."""

    baseline: Baseline
    """Earlier records, margins (the smallest worsening that counts, by metric), and the request that made the
    records."""
    path: Path
    """File of the baseline."""
    matrix: bytes | None
    """Content of the matrix file in the base revision; None takes the file or preset in the checkout."""
    occasion: Occasion
    """Changes that the tested commit makes to baseline or matrix, with remarks on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Result of the gate: a run compared with a baseline (records of an earlier run)."""

    verdict: Verdict
    """The gate's outcome (`weaker`, `inconclusive`, `changed` or `pass`), with a comparison for each defense, point and
    metric."""
    run: Path
    """Folder of the compared run."""
    pairs: tuple[tuple[Record, Record], ...]
    """Pairs (record of the baseline, record of the run) that were compared."""


def decisive(path: Path, base: str | None, reason: str | None) -> Decisive:
    """Choose the baseline (records of an earlier run) with which the gate compares a run, and list the changes to it.

    - `path`: the baseline's file in the checkout; used if `base` is None.
    - `base`: a git revision, such as the target of a pull request: its baseline and matrix are used. Differences in the
      checkout are listed in the result's `occasion`.
    - `reason`: the user's reason for a changed baseline; the checkout's baseline is then used. None: the change is not
      accepted.

    Raises `BenchError` for a missing or damaged baseline, for an unknown revision, and without git."""
    if base is None:
        root = revision.root()
        shown = (root and revision.within(root, path)) or str(path)
        return Decisive(baseline=baselines.read(path), path=path, matrix=None, occasion=Occasion(baseline=shown))
    at = revision.at(base)
    content = at.content(path)
    then: Baseline | None = None
    altered: list[str] = []
    if content is None and reason is None:
        raise BenchError(
            f"--base {base}: {path} is not in that revision; for a change that adds the baseline, "
            'say --accept-baseline "the first baseline"'
        )
    if content is None:
        altered.append(f"the baseline is new: {base} has none")
    else:
        try:
            then = baselines.parse(content, f"{base}:{path}")
        except BenchError as error:
            if reason is None:
                raise BenchError(f'{error}; then give --accept-baseline "another format"') from None
            altered.append(f"the baseline of {base} cannot be read: {error}")
    here = baselines.read(path) if path.exists() or then is None else None
    text: bytes | None = None
    if then is not None:
        altered += alterations.of_baselines(then, here)
        if (file := _matrix_file(then.request)) is not None:
            text = at.content(file)
            if text is None and reason is None:
                raise BenchError(f"--base {base}: the matrix {file} is not in that revision; commit it there first")
            now = _matrix_file(here.request) if here is not None else file
            there = Path(now).read_bytes() if now is not None and Path(now).is_file() else None
            altered += alterations.of_matrices(str(file), text, there)
    notes = ["the working tree differs from the last commit; the run measures the tree"] if revision.is_dirty() else []
    if altered and at.is_ahead():
        notes.append(f"{base} has commits that this checkout lacks: merge {base} first, or its changes count as yours")
    occasion = Occasion(
        baseline=revision.within(at.root, path) or str(path),
        base=base,
        altered=tuple(altered),
        accepted=reason if altered else None,
        notes=tuple(notes),
    )
    if altered and reason is not None:
        if here is None:
            raise BenchError(f"{path}: deleted in this change, and an accepted baseline is needed; write it again")
        return Decisive(baseline=here, path=path, matrix=None, occasion=occasion)
    assert then is not None
    return Decisive(baseline=then, path=path, matrix=text, occasion=occasion)


def compare(
    decisive: Decisive,
    run: Path | None,
    margins: dict[str, float],
    *,
    out: Path | None,
    data_dir: Path | None,
    device: str,
    jobs: int | None,
) -> Compared:
    """Compare a run with the baseline in `decisive` (records of an earlier run), and return the gate's verdict, whether
    a defense has become weaker, with the compared records.

    - `run`: run folder; None first runs the baseline's matrix, into `out` (None: `runs/gate`).
    - `margins`: metric → smallest worsening that counts as weaker; these replace the baseline's margins.
    - `data_dir`: folder of data sets; None for the default folder.
    - `device`, `jobs`: torch device; number of worker processes (None: chosen by the bench).

    Raises `BenchError` for a mistake in the matrix, an incomplete run, and an unknown metric."""
    asked: Asked = {}
    before = decisive.baseline
    if run is None:
        run, asked = _run(decisive, out, data_dir, device, jobs)
    asked = asked or _words_of(run)
    records = lookup.compact_records(checked_run(run), whole=True)
    after = [record for record in records if is_asked_for(record.cell, asked)]
    new = {record.cell.id: record for record in after}
    partner = partners({r.cell.id: r.cell for r in before.records}, {id_: r.cell for id_, r in new.items()}, asked)
    changes = dict.fromkeys(
        f"{entry.name}: {line}" if (entry := getattr(record.cell, line.partition(":")[0], None)) else line
        for record in before.records
        if record.cell.id in partner
        for line in fingerprint.changed(record.provenance, new[partner[record.cell.id]].provenance)
    )
    allowed = {**before.margins, **margins}
    result = verdict(before.records, after, allowed, tuple(changes), asked)
    if before.oldest:
        result = with_oldest(result, verdict(before.oldest, after, allowed, asked=asked))
    occasion = decisive.occasion
    command = ["bench", "gate", "--baseline", str(decisive.path), *(["--base", occasion.base] if occasion.base else [])]
    found = places({record.cell.defense.name for record in after})
    return Compared(
        verdict=on_occasion(result, replace(occasion, command=shlex.join(command), places=found)),
        run=run,
        pairs=tuple((r, new[partner[r.cell.id]]) for r in before.records if r.cell.id in partner),
    )


def _run(
    decisive: Decisive, out: Path | None, data_dir: Path | None, device: str, jobs: int | None
) -> tuple[Path, Asked]:
    from bench.cli import running

    asked = decisive.baseline.request
    if asked is None:
        raise BenchError(
            f"{decisive.path}: it names no matrix; run one and give its folder: bench gate RUN --baseline …"
        )
    matrix = matrix_of(asked, decisive.matrix)
    run = running.prepare(asked, matrix, out=out or Path("runs") / "gate", data_dir=data_dir, jobs=jobs)
    running.execute(run, device=device, quiet=True, tracking_uri=None)
    return run.folder, matrix.asked


def matrix_of(requested: Request, text: bytes | None) -> Matrix:
    """Return the matrix that the request `requested` names, after loading the request's plug-ins. `text` is the content
    of the matrix file in the base revision; None reads the file in the checkout. Raises `BenchError` for a mistake in
    matrix or plug-in."""
    for plugin in requested.plugins:
        registry.add_plugin(plugin)
    return read(
        requested.matrix,
        more_defenses=requested.defenses,
        attacks=requested.attacks,
        scale=requested.scale,
        full=requested.full,
        text=text,
    )


def _words_of(run: Path) -> Asked:
    """Return the parameters that the matrix of an existing run writes; empty if its matrix is unknown or has changed so
    much that it cannot be read."""
    asked = request.read(run)
    with suppress(BenchError):
        return {} if asked is None else matrix_of(asked, None).asked
    return {}


def _matrix_file(asked: Request | None) -> str | None:
    """Return the path of the requested matrix; None for a preset or an unknown matrix."""
    return asked.matrix if asked is not None and asked.matrix.endswith(".toml") else None


def places(defenses: set[str]) -> dict[str, Place]:
    """Return where each of `defenses` (names) is defined, for annotations in CI: defense name → file and line of its
    class. Defenses outside the repository are left out."""
    root = revision.root()
    if root is None:
        return {}
    found = {}
    for name in sorted(defenses):
        with suppress(BenchError, OSError):
            source = registry.origin("defenses", name)
            module, _, attribute = source.target.partition(":")
            file = source.file or static.file_of(module)
            path = file and revision.within(root, file)
            if path:
                found[name] = Place(path=path, line=static.line_of(module, attribute, file))
    return found
