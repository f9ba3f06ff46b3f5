"""Check names: other software called `bench`, a hidden module `datasets`, entries claimed twice, broken plug-ins."""

import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from bench.errors import BenchError
from bench.health.finding import Finding
from bench.registry import entries as registry
from bench.registry import static


def packages() -> Finding:
    """Check that no other distribution installs a top-level module `bench`, as frappe-bench does: one would overwrite
    the other."""
    others = sorted(set(metadata.packages_distributions().get("bench", ())) - {registry.DISTRIBUTION})
    if others:
        detail = f"{', '.join(others)} installs a module `bench` too, and one overwrites the other"
        remedy = f"use an environment of its own: pip uninstall {others[0]}, then install this again"
        return Finding("module bench", "fail", detail, remedy)
    return Finding("module bench", "ok", "ours alone")


def command() -> Finding:
    """Check that the shell's command `bench` belongs to this environment, not to another installation."""
    first = shutil.which("bench")
    here = Path(sys.executable).parent
    if first is None or Path(first).parent.resolve() == here.resolve():
        return Finding("command bench", "ok", first or "not on PATH; called by its full path")
    detail = f"the shell finds {first}, this is {here}"
    return Finding("command bench", "warn", detail, "activate this environment, or put it first on PATH")


def shadows() -> Finding:
    """Check that the folder `datasets/` does not hide Hugging Face's `datasets` because the checkout is on sys.path."""
    ours = static.file_of("bench.datasets")
    importable = static.file_of("datasets")
    if ours is not None and importable is not None and importable.resolve() == ours.resolve():
        detail = f"`import datasets` gives {importable.parent}, since the checkout is on sys.path"
        remedy = "take it off PYTHONPATH; use `bench` and `pytest`, not `python -m`, or set PYTHONSAFEPATH=1"
        return Finding("module datasets", "warn", detail, remedy)
    return Finding("module datasets", "ok", "not shadowed")


def entries(load: bool) -> list[Finding]:
    """Return a finding for each unusable entry (attack, defense, data set or model), or a summary if all are usable;
    `load` True also imports third-party entries."""
    titles = {kind: "data sets" if kind == "datasets" else kind for kind in registry.KINDS}
    counts = ", ".join(f"{len(registry.names(kind))} {title}" for kind, title in titles.items())
    return list(_unusable(load)) or [Finding("entries", "ok", counts)]


def _unusable(load: bool) -> Iterator[Finding]:
    for kind in registry.KINDS:
        for name in registry.names(kind):
            try:
                registry.literals(kind, name)
                if load and not registry.origin(kind, name).built_in:
                    registry.load(kind, name)
            except BenchError as error:
                what, _, remedy = str(error).rpartition("; ")
                yield Finding(f"{registry.SINGULAR[kind]} {name}", "fail", what, remedy)
