"""Rank the attacks within each condition by success rate, then by computing time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.cell import AttackCell
from bench.leaderboard.conditions import by_condition, condition_key, of_one_series
from bench.leaderboard.worst import ExampleKey, example_scores, median_of, share_interval
from bench.record.groups import grouped
from bench.record.metrics import PSNR_DB
from bench.record.names import attack_name
from bench.record.schema import ExampleScore, Record

_Key = tuple[str, str, ExampleKey]  # (defense, point, example); the example's key holds seed and draw


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackRank:
    """An attack's rank among the attacks in a condition (equal data, model, weights and setting). Figures are pooled
    over defenses and interception points. Cells with a gallery (a list of candidates that holds the true examples) do
    not count."""

    title: str
    """The condition in words: data set, model, weights and federated setting."""
    attack: str
    """The attack with its parameters and its knowledge of the defense, as text."""
    examples: int
    """Number of examples on which the attack ran."""
    rate: float
    """Success rate over the examples on which the attack ran."""
    interval: tuple[float, float]
    """95 % confidence interval (low, high) for `rate`."""
    of_all: float
    """Successes divided by all examples in the condition. In a cascade this rate is below `rate`: a later attack ran
    only on the failures of earlier attacks."""
    psnr_db: float | None
    """Median PSNR in dB over the attacked examples; None in a cascade, whose later attacks ran only on earlier
    failures."""
    seconds: float | None
    """The attack's CPU seconds divided by its successes; None without a success."""
    cpu_seconds: float
    """The attack's CPU time in seconds."""
    rank: int = 0
    """Rank in the condition, from 1."""


def attack_ranks(records: Iterable[Record]) -> list[AttackRank]:
    """Rank the attacks in `records` (results of experiments) within each condition: by the share of all examples
    reconstructed, highest first, then by total CPU time, lowest first. Conditions are in the order of the records."""
    done = [(record, record.cell) for record in of_one_series(records) if record.status == "done"]
    listed = [(record, cell) for record, cell in done if isinstance(cell, AttackCell) and not cell.grants.gallery]
    titles = {condition.key: condition.title for condition in by_condition(record for record, _ in listed)}
    ranks = []
    for key, its in grouped(listed, lambda pair: condition_key(pair[0])).items():
        of_attacks = grouped(its, lambda pair: attack_name(pair[1]))
        attacks = {name: [record for record, _ in pairs] for name, pairs in of_attacks.items()}
        scores = {name: _scores(its) for name, its in attacks.items()}
        everything = {example for each in scores.values() for example in each}
        made = [
            _rank(titles[key], name, attacks[name], scores[name], len(everything)) for name in attacks if scores[name]
        ]
        made.sort(key=lambda each: (-each.of_all, each.cpu_seconds, each.attack))
        ranks += [replace(each, rank=number) for number, each in enumerate(made, 1)]
    return ranks


def _scores(records: Sequence[Record]) -> dict[_Key, ExampleScore]:
    scores: dict[_Key, ExampleScore] = {}
    for record in records:
        cell = record.cell
        assert isinstance(cell, AttackCell)
        for example, score in example_scores(record):
            scores[cell.defense.model_dump_json(), cell.point, example] = score
    return scores


def _rank(
    title: str, attack: str, records: Sequence[Record], scores: dict[_Key, ExampleScore], everything: int
) -> AttackRank:
    # a reading under another defense or point is another reading: number them so that they form separate clusters
    places = {place: n for n, place in enumerate(dict.fromkeys(key[:2] for key in scores))}
    hits = {
        (seed, draw, len(places) * reading + places[defense, point], at): score.success
        for (defense, point, (seed, draw, reading, at)), score in scores.items()
    }
    back = sum(hits.values())
    interval = share_interval(hits)
    assert interval is not None
    cascade = any(isinstance(record.cell, AttackCell) and record.cell.after for record in records)
    spent = sum(record.cost.cpu_seconds for record in records)
    return AttackRank(
        title=title,
        attack=attack,
        examples=len(hits),
        rate=back / len(hits),
        interval=interval,
        of_all=back / everything,
        psnr_db=None if cascade else median_of(scores.values(), PSNR_DB),
        seconds=spent / back if back else None,
        cpu_seconds=spent,
    )
