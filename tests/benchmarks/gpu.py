"""All that is to be known of a GPU: `python -P tests/benchmarks/gpu.py --out gpu.json`, on a machine with one.

It needs this wheel without its dependencies, and of those torch, numpy, scipy, scikit-image, scikit-learn, pandas,
safetensors, rich and pydantic: no MLflow.  Data are looked for in BENCH_DATA.  Checks take about ten minutes in one
process; what a figure has no time for is left out.  `--into BENCHMARKS.md` writes the tables between the marks there,
from a file of `--out` and on any machine.
"""

import argparse
import json
import platform
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import gpu_checks

from bench import __version__
from bench.answer.context import Memory, RunContext
from bench.answer.observation import draw_and_observe
from bench.answer.readings import to_device
from bench.answer.reconstruct import attacker_of
from bench.answer.run import run
from bench.cell import AnyCell, AttackCell, DataRef, Entry, Federated, Grants, TrainingCell
from bench.datasets.loading import load
from bench.device import repeatable, synchronize
from bench.errors import BenchError
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.registry import entries as registry
from bench.rng import Key
from bench.sweep.plan import Resolver, schedule
from bench.trip import Budget, Reading

ROWS = (64, 256, 1024, 4096)
ONE_CORE = {"dlg-lenet": 16, "resnet20": 4}  # readings that one core attacks
# data, model, attack, evaluations: to its end, or, of the residual net, so many
CASES = (
    ("mnist", "dlg-lenet", "cpl", 500),
    ("cifar10", "dlg-lenet", "cpl", 1200),
    ("cifar10", "dlg-lenet", "map", 1200),
    ("cifar10", "resnet20", "cpl", 20),
)
BUSY = 40  # evaluations of which the kernels are timed
SECONDS = 100.0  # of a case of `reconstructions`, and of the preset
MARKS = ("<!-- gpu tables -->", "<!-- end of gpu tables -->")
Figure = dict[str, Any]


def reconstructions(
    device: str, seconds: float = SECONDS, rows: tuple[int, ...] = ROWS, cases: Any = CASES
) -> Iterator[Figure]:
    """Reconstructions a second, undefended and labels known, against one core with the same attack."""
    for dataset, model, name, evaluations in cases:
        began, rate = time.perf_counter(), None
        for count in (ONE_CORE[model], *rows):
            if time.perf_counter() - began > seconds:
                break
            at = "cpu" if rate is None else device
            reading, cell = _reading(dataset, model, name, count, evaluations)
            took, share = _attacked(reading, cell, at, count)
            if rate is None:
                rate, began = count / took, time.perf_counter()
            else:
                yield {
                    "data": dataset,
                    "model": model,
                    "attack": name,
                    "evaluations": evaluations,
                    "rows": count,
                    "seconds": took,
                    "a second": count / took,
                    "one core": rate,
                    "ratio": count / took / rate,
                    "explained": share,
                    "busy": _busy(reading, cell, device, count),
                }


def _reading(dataset: str, model: str, attack: str, count: int, evaluations: int) -> tuple[Reading, AttackCell]:
    options = {} if attack == "map" else {"line_search": "backtracking"}
    data = load(registry.instance("datasets", dataset, {}), dataset, None)
    cell = AttackCell(
        dataset=DataRef(name=dataset, sha256=data.sha256),
        model=Entry(name=model),
        defense=Entry(name="none"),
        attack=Entry(name=attack, params=options),
        point="type-2",
        readings=count,
        evaluations=evaluations,
        federated=Federated(clients=min(5000, len(data.training)), batch=1),
        grants=Grants(labels=True),
    )
    with tempfile.TemporaryDirectory() as folder:
        return draw_and_observe(cell, RunContext(run=Path(folder)), Memory()).reading, cell


def _attacked(reading: Reading, cell: AttackCell, device: str, chunk: int) -> tuple[float, float]:
    """Seconds, and the share of readings that are explained to 1e-4 of the zero-gradient loss."""
    budget = Budget(evaluations=cell.evaluations, chunk=chunk, traced=0)
    attacker = attacker_of(cell, reading)
    with repeatable(device):
        at = to_device(reading, torch.device(device))
        attacker.reconstruct(at, replace(budget, evaluations=3), Key.of_attacker(0))  # kernels are compiled once
        synchronize(device)
        began = time.perf_counter()
        result = attacker.reconstruct(at, budget, Key.of_attacker(0))
        synchronize(device)
    seconds = time.perf_counter() - began
    of_zero = sum(value.flatten(2).square().sum(2).mean(1) for value in reading.values.values())
    return seconds, float((result.loss < 1e-4 * of_zero).float().mean())


def _busy(reading: Reading, cell: AttackCell, device: str, chunk: int) -> float | None:
    """The share of time in which a kernel runs, over a few evaluations; the rest is the host's. None without a GPU,
    or if the profiler sees none."""
    if (
        not torch.cuda.is_available()
        or torch.profiler.ProfilerActivity.CUDA not in torch.profiler.supported_activities()
    ):
        return None
    attacker, budget = attacker_of(cell, reading), Budget(evaluations=BUSY, chunk=chunk, traced=0)
    with repeatable(device):
        at = to_device(reading, torch.device(device))
        began = time.perf_counter()
        attacker.reconstruct(at, budget, Key.of_attacker(0))
        synchronize(device)
        wall = time.perf_counter() - began
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            attacker.reconstruct(at, budget, Key.of_attacker(0))
            synchronize(device)
    return sum(each.self_device_time_total for each in seen.key_averages()) / 1e6 / wall


def preset(device: str, seconds: float = SECONDS, name: str = "undefended") -> Iterator[Figure]:
    """The cells of a preset, ordered as by `bench run`, until the time is over; one of each data set on a core, too."""
    resolver, memory = Resolver(None), Memory()
    with tempfile.TemporaryDirectory() as folder:
        plan = schedule(expand(read(name), resolver.data), Path(folder), resolver)
        began, done = time.perf_counter(), 0
        first: dict[str, tuple[AnyCell, float]] = {}  # of each data set
        context = RunContext(run=Path(folder), device=device)
        for group in plan.groups:
            for n, cell in enumerate(group.cells):
                if time.perf_counter() - began < seconds:
                    record = run(cell, context, memory, company=group.cells[n + 1 :])
                    done += record.status != "crashed"
                    first.setdefault(str(group.data), (cell, record.cost.wall_seconds))
        took = time.perf_counter() - began
        here, there = 0.0, 0.0
        for cell, on_device in first.values():
            one = run(cell, RunContext(run=Path(folder) / "core"), Memory())
            here, there = here + one.cost.wall_seconds, there + on_device
    yield {
        "preset": name,
        "cells": len(plan.waiting),
        "answered": done,
        "seconds": took,
        "one core over device": here / there if there else None,
        "compared": len(first),
    }


def training(
    device: str, seconds: float = SECONDS, rounds: int = 3, defenses: tuple[str, ...] = ("none", "fed-cdp")
) -> Iterator[Figure]:
    """Seconds of a round at Fed-αCDP's own size, against one core; no defense is begun after `seconds`."""
    began = time.perf_counter()
    for item in expand(read("fed-alpha-cdp/full-size"), Resolver(None).data):
        cell = item.cell
        if not isinstance(cell, TrainingCell) or cell.defense.name not in defenses or cell.seed:
            continue
        if time.perf_counter() - began > seconds:
            return
        took = {}
        for at, count in (("cpu", 1), (device, rounds)):
            with tempfile.TemporaryDirectory() as folder:
                short = cell.model_copy(update={"rounds": count, "test_every": count, "checkpoints": ()})
                record = run(short, RunContext(run=Path(folder), device=at), Memory())
            cost = record.cost.training
            took[at] = cost.seconds_per_round if cost is not None else None
        one, other = took["cpu"], took[device]
        yield {
            "defense": str(cell.defense),
            "device": other,
            "one core": one,
            "ratio": one / other if one and other else None,
        }


FIGURES: dict[str, Callable[[str, float], Iterator[Figure]]] = {
    "reconstructions": reconstructions,
    "preset": preset,
    "training": training,
}


def tables(report: dict[str, Any]) -> str:
    """The report in words, for BENCHMARKS.md."""
    lines = [f"{report['device']}, torch {report['torch']}, bench {report['bench']}; one core of {report['core']}.", ""]
    lines += ["| check | cases | largest difference | bound | failed |", "|---|---|---|---|---|"]
    for each in report["checks"]:
        failed = "<br>".join(textwrap.shorten(line, 120) for line in each["failed"]) or "none"
        lines.append(f"| {each['name']} | {each['cases']} | {each['worst']:.2g} | {each['bound']:.2g} | {failed} |")
    for name, rows in report["figures"].items():
        lines += ["", f"**{name}**", ""]
        if not rows:
            lines.append("not measured")
            continue
        if isinstance(rows, str):
            lines.append(rows)
            continue
        lines += [f"| {' | '.join(rows[0])} |", "|---" * len(rows[0]) + "|"]
        lines += [f"| {' | '.join(_shown(value) for value in row.values())} |" for row in rows]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "–" if value is None else str(value)


def written(text: str, new: str) -> str:
    """`text` with `new` between the marks; raises `SystemExit` where they are not there."""
    if any(text.count(mark) != 1 for mark in MARKS):
        raise SystemExit(f"the file has not one {MARKS[0]} and one {MARKS[1]}; put them where the tables belong")
    before, rest = text.split(MARKS[0])
    return f"{before}{MARKS[0]}\n{new}{MARKS[1]}{rest.split(MARKS[1])[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="the report, written after each part")
    parser.add_argument("--into", type=Path, help="write the tables of --out into this file, and do nothing else")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the checks")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a case of a figure")
    parser.add_argument("--parts", nargs="+", choices=["checks", *FIGURES], default=["checks", *FIGURES])
    args = parser.parse_args()
    if args.into is not None:
        args.into.write_text(written(args.into.read_text(), tables(json.loads(args.out.read_text()))))
        return
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here; `pytest tests/test_rehearsal.py` rehearses one on the CPU")
    torch.set_num_threads(1)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "bench": __version__,
        "core": platform.processor() or platform.machine(),
        "checks": [],
        "figures": {},
    }
    if "checks" in args.parts:
        every = (*gpu_checks.shared("cuda", args.workers), *gpu_checks.checks("cuda", names=gpu_checks.ALONE))
        for each in every:
            report["checks"].append(asdict(each))
            args.out.write_text(json.dumps(report, indent=1))
            print(
                f"{each.name}: {each.cases} cases, worst {each.worst:.2g} of {each.bound:.2g}, {each.seconds} s",
                flush=True,
            )
            for line in each.failed:
                print(f"  {line}", flush=True)
    for name in (name for name in FIGURES if name in args.parts):
        rows: list[Figure] = []
        try:
            for row in FIGURES[name]("cuda", args.seconds):
                rows.append(row)
                print(name, row, flush=True)
        except BenchError as error:  # data that are not at hand
            report["figures"][name] = str(error)
            print(f"{name}: {error}", flush=True)
        else:
            report["figures"][name] = rows
        args.out.write_text(json.dumps(report, indent=1))
    print(tables(report))
    sys.exit(any(each["failed"] for each in report["checks"]))


if __name__ == "__main__":
    main()
