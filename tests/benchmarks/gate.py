"""How often the gate is wrong, from stored results of each example: `python -P tests/benchmarks/gate.py`.

    weaken CHECKOUT        plant four weakenings in a copy of the sources, names and parameters unchanged
    matrix SETS WEAK       print the preset `gate` over that many sets of eight weight seeds (WEAK: yes or no)
    measure BASE WEAK      false alarms of BASE's runs, and how often each weakening in WEAK is caught
    power BASELINE         how often new leaks of the size that `--prove` states are weaker, in a whole verdict

A real gate compares the same seeds, where unchanged code gives equal figures and no alarm can be false.  Here two
*different* sets of seeds (weights, victims, noise, starts) stand for the two sides, which is harder: all that a
seed changes is in the difference.  A weakening is compared on the same seeds, as a gate would.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from bench.cell import AttackCell
from bench.gate import baseline
from bench.gate.sensitivity import sees, sentence
from bench.gate.verdict import Comparison, Verdict, verdict
from bench.leaderboard.conditions import by_condition
from bench.leaderboard.worst import GRADIENT_FREE, ExampleKey
from bench.matrix.document import PRESETS
from bench.record.schema import AttackConditions, Record
from bench.record.store import records

SEEDS = 8  # of the preset
PAIRS = 200
# defense → file, what stands there, what is put there
WEAKENINGS = {
    "gaussian": ("gaussian.py", "deviation=math.sqrt(self.variance)", "deviation=math.sqrt(self.variance) / 2"),
    "fed-cdp": ("fed_cdp.py", "clip = Clip(bound=self.clip,", "clip = Clip(bound=3 * self.clip,"),
    "prune": ("prune.py", "KeepLargest(share=self.share)", "KeepLargest(share=self.share - 0.4)"),
    "fed-sdp": ("fed_sdp.py", "return {self.at: (clip, GaussianNoise(deviation=deviation))}", "return {}"),
}
WORDS = {
    "gaussian": "σ halved",
    "fed-cdp": "clipping bound tripled, the noise's deviation held",
    "prune": "pruning 90 % → 50 %",
    "fed-sdp": "the client's stage returns its input",
}


def weaken(checkout: Path) -> None:
    """Edit the four files; raises `ValueError` where the code no longer reads as expected."""
    for name, old, new in WEAKENINGS.values():
        path = checkout / "defenses" / name
        text = path.read_text("utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{path}: expected once {old!r}")
        path.write_text(text.replace(old, new), "utf-8")


def matrix(sets: int, *, weak: bool) -> str:
    """The preset over `sets` times its seeds; of weakened code, without the undefended cells."""
    text = (PRESETS / "gate.toml").read_text("utf-8")
    few, all_ = (f"seed = {list(range(count))}" for count in (SEEDS, sets * SEEDS))
    if text.count(few) != 2:
        raise ValueError(f"gate.toml: expected twice {few!r}")
    text = text.replace(few, all_)
    return text.replace('    "none",\n', "") if weak else text


def by_seed(run: Path) -> dict[int, list[Record]]:
    """Seed → its records, without what tells the seeds' victims and weights apart."""
    seeds: dict[int, list[Record]] = {}
    for record in records(run):
        if (result := record.attack) is not None:
            readings = tuple(replace(reading, clients=(), indices=()) for reading in result.readings)
            record = replace(record, result=replace(result, readings=readings, conditions=AttackConditions()))
        seeds.setdefault(record.cell.seed, []).append(record)
    return seeds


def as_set(by_seed: dict[int, list[Record]], seeds: Sequence[int]) -> list[Record]:
    """The records of these seeds, as if they were the preset's first, second, …"""
    return [
        replace(record, cell=record.cell.model_copy(update={"seed": place}))
        for place, seed in enumerate(seeds)
        for record in by_seed[seed]
    ]


def false_alarms(base: dict[int, list[Record]], generator: np.random.Generator) -> list[Verdict]:
    """Verdicts on pairs of disjoint sets of seeds of the same code."""
    seeds = np.array(sorted(base))
    verdicts = []
    for _ in range(PAIRS):
        drawn = generator.choice(seeds, 2 * SEEDS, replace=False).tolist()
        verdicts.append(verdict(as_set(base, drawn[:SEEDS]), as_set(base, drawn[SEEDS:])))
    return verdicts


def caught(
    base: dict[int, list[Record]], weak: dict[int, list[Record]], defense: str, generator: np.random.Generator
) -> list[Verdict]:
    """Verdicts on sets of seeds whose cells of one defense are those of weakened code."""
    seeds = np.array(sorted(set(base) & set(weak)))
    verdicts = []
    for _ in range(PAIRS):
        drawn = generator.choice(seeds, SEEDS, replace=False).tolist()
        before = as_set(base, drawn)
        weakened = [r for r in as_set(weak, drawn) if r.cell.defense.name == defense]
        after = [r for r in before if r.cell.defense.name != defense] + weakened
        verdicts.append(verdict(before, after))
    return verdicts


def measure(base_run: Path, weak_run: Path) -> None:
    """Print the table of `RESULTS.md`."""
    generator = np.random.default_rng(0)
    base, weak = by_seed(base_run), by_seed(weak_run)
    alarms = false_alarms(base, generator)
    count = sum(alarm.outcome == "weaker" for alarm in alarms)
    passed = sum(alarm.outcome == "pass" for alarm in alarms)
    upper = binomtest(count, PAIRS).proportion_ci(0.90).high
    print(f"{len(base)} seeds, {len(base) // SEEDS} runs of {SEEDS}; {len(alarms[0].comparisons)} comparisons a gate")
    print(f"false alarms: {count} of {PAIRS}, one-sided 95 % upper bound {upper:.3f}; {passed} passed")
    rows = Counter(row.metric for alarm in alarms for row in alarm.comparisons if row.outcome == "weaker")
    print("  by metric:", dict(rows))
    for defense, words in WORDS.items():
        outcomes = caught(base, weak, defense, generator)
        hits = [
            hit
            for hit in outcomes
            if any(row.outcome == "weaker" and row.defense.startswith(defense) for row in hit.comparisons)
        ]
        lower = binomtest(len(hits), PAIRS).proportion_ci(0.90).low
        names = [{row.metric for row in hit.comparisons if row.outcome == "weaker"} for hit in hits]
        seen = dict(Counter(name for each in names for name in each))
        print(f"{defense}, {words}: caught {len(hits)} of {PAIRS}, lower bound {lower:.3f}; by {seen}")


def power(file: Path) -> None:
    """Print, for each place, in how many of 60 trials random new leaks are called weaker: as many as `--prove` states,
    and four fewer."""
    before = baseline.read(file).records
    whole = verdict(before, before)
    print(f"{len(before)} cells, {len(whole.comparisons)} comparisons; stated: {sentence(sees(whole))}")
    conditions = {each.title: each for each in by_condition(before)}
    generator = np.random.default_rng(7)
    for row in (row for row in whole.comparisons if row.metric == "asr" and row.before < 1):
        worst = conditions[row.title].rows[row.defense][row.point]
        attack = next(name for name in worst.scores if not name.startswith(GRADIENT_FREE))
        own = {record.id for record in worst.records[attack]}
        free = [key for key, hit in worst.leaked.items() if not hit]
        one = replace(whole, comparisons=(row,) * len(whole.comparisons))
        stated = round(sees(one)["asr"] * row.pairs)
        for count in (stated, stated - 4):
            caught = 0
            for _ in range(60):
                fresh = {free[place] for place in generator.permutation(len(free))[:count]}
                after = [leaking(r, fresh) if r.id in own else r for r in before]
                rows = verdict(before, after).comparisons
                caught += any((r.metric, r.defense, r.point, r.outcome) == (*key_of(row), "weaker") for r in rows)
            low, high = binomtest(caught, 60).proportion_ci(0.95)
            print(f"{row.defense} {row.point}: {count} of {row.pairs}: {caught} of 60 [{low:.2f}, {high:.2f}]")


def key_of(row: Comparison) -> tuple[str, str, str]:
    """What a comparison is about."""
    return row.metric, row.defense, row.point


def leaking(record: Record, fresh: set[ExampleKey]) -> Record:
    """The record in which the examples `fresh` are reconstructed, too."""
    assert isinstance(record.cell, AttackCell) and record.attack is not None
    readings = []
    for number, reading in record.attack.numbered():
        keys = [(record.cell.seed, record.cell.draw, number, place) for place in range(len(reading.examples))]
        examples = (
            replace(e, success=e.success or key in fresh) for key, e in zip(keys, reading.examples, strict=True)
        )
        readings.append(replace(reading, examples=tuple(examples)))
    return replace(record, result=replace(record.attack, readings=tuple(readings)))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["weaken", folder]:
            weaken(Path(folder))
        case ["matrix", sets, weak]:
            print(matrix(int(sets), weak=weak == "yes"))
        case ["measure", base, weak]:
            measure(Path(base), Path(weak))
        case ["power", file]:
            power(Path(file))
        case _:
            sys.exit(__doc__)
