"""The speed table alone, without pytest: `python -P tests/benchmarks/table.py --data mnist`.

One thread; ratios are of this run, so quote them and not the milliseconds.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import measures

PARTS = ("reconstruction", "alone", "strength", "workers", "gradinv", "scaling")
COUNTS = (16, 32, 64, 128, 256)
SAMPLES = {"mnist": 32, "cifar10": 4}
GRADINV = (32, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", choices=SAMPLES, default=list(SAMPLES))
    parser.add_argument("--attacks", nargs="+", choices=measures.STARTS, default=list(measures.STARTS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sample", type=int, help="victims that the published loop takes")
    parser.add_argument("--outer", type=int, default=300, help="outer steps at most, of 20 evaluations")
    parser.add_argument("--rounds", type=int, default=2, help="times that ours runs")
    parser.add_argument("--published", action="store_true", help="ours takes full steps, too")
    parser.add_argument("--data-dir", type=Path, help="looked at before BENCH_DATA")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for data in args.data:
        given = measures.case(data, max(COUNTS), args.data_dir)
        _warm(given)
        sample = args.sample or SAMPLES[data]
        for attack in args.attacks:
            if "reconstruction" in args.parts:
                row = measures.reconstruction(
                    given, attack, sample=sample, outer=args.outer, rounds=args.rounds, published=args.published
                )
                show("reconstruction", row)
            if "alone" in args.parts:
                row = measures.alone(given, attack, outer=args.outer, published=args.published)
                show("one victim alone", row)
            if "strength" in args.parts:
                for stop in (True, False):
                    show("strength", measures.strength(given, attack, outer=args.outer, stop=stop))
            if "workers" in args.parts:
                for count in (1, 2):
                    row = measures.workers(data, attack, count=count, outer=args.outer, data_dir=args.data_dir)
                    show("workers", row)
        if "gradinv" in args.parts:
            for signed in (True, False):
                for victims in GRADINV:
                    show("gradinv", measures.gradinv(given, signed=signed, victims=victims))
        if "scaling" in args.parts:
            for row in measures.scaling(given, "cpl", COUNTS):
                show("scaling", row)


def line(row: measures.Row) -> str:
    return ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
    )


def show(title: str, row: measures.Row) -> None:
    print(f"{title}: {line(row)}", flush=True)


def _warm(given: measures.Case) -> None:
    """The first calls of the library are slow and belong to neither side."""
    measures.reconstruction(given, "cpl", victims=32, sample=1, outer=1, rounds=1)


if __name__ == "__main__":
    main()
