"""How far each defense's best attacker is from the reference: `python -P tests/benchmarks/gaps.py RUN [RUN]`.

A row a defense of `bench run --matrix gaps`: ASR and median PSNR of each attacker over the weight seeds, the share that
an adaptive attacker names in a gallery, the PSNR of the best prior, and of the linear-Gaussian reference where the
noise's law is known.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from bench.cell import AttackCell
from bench.record.names import distinct
from bench.record.schema import ExampleScore, Record
from bench.record.store import records

ATTACKERS = (("map", "plain"), ("map", "adaptive"), ("learned-inverter", "black-box"))
NO_FIGURE = "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args()
    for line in table(options.runs):
        print(line, flush=True)


def table(runs: Sequence[Path]) -> Iterator[str]:
    by_defense: dict[str, dict[tuple[str, str], list[Record]]] = {}
    for record in (record for run in runs for record in records(run)):
        if isinstance(record.cell, AttackCell):
            attacker = (record.cell.attack.name, record.cell.knowledge)
            by_defense.setdefault(str(record.cell.defense), {}).setdefault(attacker, []).append(record)
    short = distinct(list(by_defense))
    columns = [
        "defense",
        *(f"{name}, {knowledge}" for name, knowledge in ATTACKERS),
        "named",
        "prior",
        "reference",
        "gap",
    ]
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for defense, of_attackers in sorted(by_defense.items(), key=lambda item: short[item[0]]):
        named = [e.named for e in _examples(of_attackers.pop(("gallery", "adaptive"), [])) if e.named is not None]
        of_attackers.pop(("gallery", "plain"), None)
        best = [psnr for answers in of_attackers.values() if (psnr := _psnr(answers)) is not None]
        prior = [e.prior_db for answers in of_attackers.values() for e in _examples(answers) if e.prior_db is not None]
        reference = _reference(of_attackers.get(("map", "adaptive"), []))
        cells = [short[defense], *(_figure(of_attackers.get(attacker, [])) for attacker in ATTACKERS)]
        cells.append(f"{np.mean(named):.2f}" if named else NO_FIGURE)
        cells.append(f"{median(prior):.1f}" if prior else NO_FIGURE)
        cells += [NO_FIGURE] * 2 if reference is None else [f"{reference:.1f}", f"{max(best) - reference:+.1f}"]
        yield f"| {' | '.join(cells)} |"


def _examples(records: Sequence[Record]) -> list[ExampleScore]:
    return [e for record in records if record.attack is not None for r in record.attack.readings for e in r.examples]


def _psnr(records: Sequence[Record]) -> float | None:
    figures = [e.psnr_db for e in _examples(records) if e.psnr_db is not None]
    return median(figures) if figures else None


def _figure(records: Sequence[Record]) -> str:
    examples, psnr = _examples(records), _psnr(records)
    if psnr is None:
        return NO_FIGURE
    success, identified = (np.mean([getattr(e, key) for e in examples]) for key in ("success", "identified"))
    return f"{success:.2f}, {psnr:.1f} dB, identified {identified:.2f}"


def _reference(records: Sequence[Record]) -> float | None:
    """The median of the reference over these cells; None where there is none."""
    figures = [record.attack.reference_db for record in records if record.attack is not None]
    known = [figure for figure in figures if figure is not None]
    return median(known) if known else None


if __name__ == "__main__":
    main()
