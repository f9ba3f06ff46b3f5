"""Worst case over all attacks on a defense at a point: an example leaks if any attack reconstructs the example."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf, nan

from bench.cell import AttackCell
from bench.points import POINTS
from bench.record.metrics import LEARNED, PSNR_DB, Metric
from bench.record.names import attack_name
from bench.record.schema import ExampleScore, Privacy, Record
from bench.scoring.intervals import LEVEL, clustered_share
from bench.scoring.summary import median

SNR_CAP_DB = 120.0  # cap in `bench.scoring.reading`: the reading equals the undefended reading
GRADIENT_FREE = ("prior-", "labels-only")  # attackers whose examples owe nothing to the gradient
ExampleKey = tuple[int, int, int, int]  # seed, draw, reading, example


@dataclass(frozen=True, slots=True, kw_only=True)
class OfSeed:
    """Counts of attacked and leaked examples for a single seed of the model's weights, to show the variation between
    seeds."""

    leaked: int
    """Number of leaked examples: any attack reconstructed them."""
    examples: int
    """Number of attacked examples."""
    readings: int
    """Number of readings of these examples."""


@dataclass(slots=True)
class WorstCase:
    """Joint results of all attacks on a defense at an interception point: the worst case for the defense. An example
    counts as leaked if any attack reconstructs it. An example's key is (weight seed, noise draw, reading, example). An
    attack with a granted gallery (a list of candidates) saw the true example, so its results enter `named` and
    `places`, but not `leaked`."""

    leaked: dict[ExampleKey, bool] = field(default_factory=dict)
    """Map from example to whether any attack reconstructed the example."""
    scores: dict[str, dict[ExampleKey, ExampleScore]] = field(default_factory=dict)
    """Map from attack name to a map from example to the example's score."""
    prior_db: dict[ExampleKey, float] = field(default_factory=dict)
    """Map from example to the highest PSNR in dB of a prior-only baseline; NaN without a baseline."""
    records: dict[str, list[Record]] = field(default_factory=dict)
    """Map from attack name to the attack's records."""
    absent: dict[str, str] = field(default_factory=dict)
    """Map from attack name to the reason why the attack does not apply (status n/a)."""
    seeds: dict[str, set[int]] = field(default_factory=dict)
    """Map from attack name to the seeds of the attacked weights."""
    refused_seeds: dict[str, set[int]] = field(default_factory=dict)
    """Map from attack name to the seeds of the weights to which the attack does not apply (status n/a)."""
    crashed: dict[str, str] = field(default_factory=dict)
    """Map from attack name to the reason for its crash."""
    failed: set[ExampleKey] = field(default_factory=set)
    """Examples on which at least one attack crashed, diverged or returned non-finite values."""
    identified: dict[ExampleKey, bool] = field(default_factory=dict)
    """Map from example to whether any attack identified the example: its reconstruction is nearer to the true example
    than every stranger."""
    identified_chance: dict[str, dict[ExampleKey, float]] = field(default_factory=dict)
    """Map from attack name to a map from example to a blind guess's chance to identify the example."""
    named: dict[ExampleKey, bool] = field(default_factory=dict)
    """Map from example to whether any attack named the example: picked it among candidates."""
    named_chance: dict[str, dict[ExampleKey, float]] = field(default_factory=dict)
    """Map from attack name to a map from example to a blind guess's chance to name the example."""
    places: dict[ExampleKey, int] = field(default_factory=dict)
    """Map from example to its rank (0: first) among the candidates. The order is that of an exact attack, by the true
    likelihood of the reading. For a batch, this attack knows the other examples."""
    guesses: dict[ExampleKey, int] = field(default_factory=dict)
    """Map from example to the number of guesses that an attacker has: the number of examples in its reading; with
    granted labels, the number with its label."""
    candidates: int = 0
    """Number of candidates in the gallery from which an attacker names the true example; for `places`."""
    strangers: int = 0
    """Number of strangers with which a reconstruction is compared; for `identified`."""
    unchanged: bool = True
    """True if the defense changed no reading: each equals the undefended reading (SNR of 120 dB, the cap)."""
    cascade: bool = False
    """True if the attacks form a cascade: later attacks got only readings with an example that earlier attacks did not
    reconstruct."""
    attacked: bool = False
    """True if at least one attack that reads the gradient was run, not only gradient-free baselines."""
    informed: bool = False
    """True if at least one attack that reads the gradient knew or simulated the defense."""
    _draws: set[int] = field(default_factory=set)

    def add(self, record: Record) -> None:
        """Add `record`, the result of an attack on this defense at this point, to the joint results. A crashed attack's
        examples count as attacked and not leaked."""
        cell = record.cell
        assert isinstance(cell, AttackCell)
        attack, result = attack_name(cell), record.attack
        self.records.setdefault(attack, []).append(record)
        self.cascade |= bool(cell.after)
        if record.status == "n/a":
            self.absent[attack] = record.reason or "no reason given"
            self.refused_seeds.setdefault(attack, set()).add(cell.seed)
            return
        self.seeds.setdefault(attack, set()).add(cell.seed)
        if cell.grants.gallery:  # the attacker saw the true example in a gallery: no reconstruction
            self._add_named(attack, cell, record)
            return
        self._draws.add(cell.draw)
        reads_gradient = not attack.startswith(GRADIENT_FREE)
        self.attacked |= reads_gradient
        if result is None:
            self.crashed[attack] = record.reason or "no reason given"
            for key in example_keys(cell):
                self.leaked.setdefault(key, False)
                self.failed.add(key)
            return
        if not result.readings:  # earlier attacks in the cascade left no reading
            self.scores.setdefault(attack, {})
            return
        knows = result.conditions.described or result.conditions.simulated  # always False for plain attackers
        self.informed |= reads_gradient and knows
        self.unchanged &= result.distortion.snr_db_least == SNR_CAP_DB
        scores, leaked, priors = self.scores.setdefault(attack, {}), self.leaked, self.prior_db
        chance = (result.summary and result.summary.identification_chance) or 0.0
        for key, example in example_scores(record):
            scores[key] = example
            leaked[key] = example.success or leaked.get(key, False)
            if example.identified is not None and reads_gradient:
                self.strangers = result.summary.gallery if result.summary else 0
                self.identified[key] = example.identified or self.identified.get(key, False)
                self.identified_chance.setdefault(attack, {})[key] = chance
            prior, best = example.prior_db, priors.get(key, nan)
            priors[key] = best if prior is None or prior <= best else prior
            if example.status in ("diverged", "nan"):
                self.failed.add(key)

    def _add_named(self, attack: str, cell: AttackCell, record: Record) -> None:
        if record.attack is None:
            self.crashed[attack] = record.reason or "no reason given"
            return
        summary = record.attack.summary
        chance = (summary and summary.naming_chance) or 0.0
        examples_of = {number: reading.examples for number, reading in record.attack.numbered()}
        for key, example in example_scores(record):
            if example.named is not None:
                self.named[key] = example.named or self.named.get(key, False)
                self.named_chance.setdefault(attack, {})[key] = chance
            honest = record.attack.self_check.explained is not False
            if example.place is not None and record.attack.conditions.exact and honest:
                self.places[key], self.candidates = example.place, cell.grants.gallery
                others = examples_of[key[2]]
                alike = [each for each in others if each.label == example.label or not cell.grants.labels]
                self.guesses[key] = len(alike)

    @property
    def privacy(self) -> Privacy:
        """ε of the defense at the interception point, by several accounting conventions. The value comes from the first
        record with a result, because all records at the point have the same ε; without a result it is an empty
        `Privacy`."""
        results = (record.attack for records in self.records.values() for record in records if record.attack)
        return next((result.privacy for result in results), Privacy())

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the contracts (tested promises) that the defense breaks, over all records, without repeats."""
        return tuple(dict.fromkeys(each for records in self.records.values() for r in records for each in r.broken))

    @property
    def asr(self) -> float | None:
        """Attack success rate: share of examples that any attack reconstructed; None if no attack that uses the
        gradient ran."""
        return sum(self.leaked.values()) / len(self.leaked) if self.leaked and self.attacked else None

    @property
    def cut_short(self) -> bool:
        """True if an attack crashed, diverged or gave NaN on an example that no other attack reconstructed."""
        return any(not self.leaked[key] for key in self.failed)

    @property
    def plain_only(self) -> bool:
        """True if only attacks without knowledge of the defense ran on readings (observed updates) changed by the
        defense, and at least one example did not leak."""
        known = self.unchanged or self.informed
        return self.attacked and not known and not all(self.leaked.values())

    @property
    def lower_bound(self) -> bool:
        """True if the attack success rate `asr` is only a lower bound: an attack failed on an unleaked example
        (`cut_short`), or no attack knew or simulated the defense (`plain_only`)."""
        return self.cut_short or self.plain_only

    @property
    def distinct(self) -> int:
        """Number of attacked examples; an example with several noise draws (attacks under other random noise) counts
        once."""
        return len({(seed, reading, example) for seed, _, reading, example in self.leaked})

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval for the attack success rate `asr`, clustered by reading (observed update) and by the weights'
        seed; None if `asr` is None."""
        return share_interval(self.leaked) if self.attacked else None

    @property
    def by_seed(self) -> dict[int, OfSeed]:
        """Map from the weights' seed to the numbers of leaked examples, examples and readings (observed updates)."""
        hits: dict[int, list[bool]] = {}
        readings: dict[int, set[int]] = {}
        for (seed, _, reading, _), hit in self.leaked.items():
            hits.setdefault(seed, []).append(hit)
            readings.setdefault(seed, set()).add(reading)
        return {
            seed: OfSeed(leaked=sum(each), examples=len(each), readings=len(readings[seed]))
            for seed, each in hits.items()
        }

    @property
    def at_least_once(self) -> float | None:
        """Share of examples reconstructed under at least one draw of the defense's noise; None if only a single noise
        draw was attacked."""
        if len(self._draws) < 2:
            return None
        every = {(seed, reading, example) for seed, _, reading, example in self.leaked}
        once = {(seed, reading, example) for (seed, _, reading, example), leaked in self.leaked.items() if leaked}
        return len(once) / len(every)

    @property
    def best(self) -> tuple[str, float] | None:
        """Name and success rate of the single attack with the highest rate; None if no attack has a score. Ties are
        broken by the median PSNR. A baseline without the gradient is returned only if no attack ran.

        With several noise draws (repetitions with other noise), the first draw selects the attack and the other draws
        give its rate, because the best attack on a draw is partly lucky. In a cascade (later attacks get only what
        earlier attacks left), the result is the attack with the most successes, with its share of all examples."""
        attacks = [name for name in self.scores if not name.startswith(GRADIENT_FREE)] or list(self.scores)
        first = {name: examples for name in attacks if (examples := self._on_draws(name, first=True))}
        if not first:
            return None
        if self.cascade:
            best = max(first, key=self.rate)
            return best, self.rate(best)
        best = max(first, key=lambda name: (_rate(first[name]), _median_db(first[name])))
        return best, _rate(self._on_draws(best, first=False))

    def best_median(self, metric: Metric) -> float | None:
        """Return the median of `metric` over examples for the most successful attack (`best`), on the same noise draws
        as its success rate. None without attacks, and in a cascade (later attacks get only what earlier attacks left),
        because attacks saw different examples."""
        best = self.best
        return None if best is None else self.median_on_report_draws(best[0], metric)

    def median_on_report_draws(self, attack: str, metric: Metric) -> float | None:
        """Return the median of `metric` for `attack` (a name) on the noise draws that count in reports: all draws
        except the first, which selects the best attack. With a single draw, this draw counts. None in a cascade
        (attacks in a fixed order), because each attack saw different readings (observed updates)."""
        if self.cascade:
            return None
        return median_of(self._on_draws(attack, first=False), metric)

    def rate(self, attack: str) -> float:
        """Return the success rate of `attack` (a name) over its examples; in a cascade (later attacks get only the
        examples left by earlier attacks), over all examples. An attack without scores has a rate of 0."""
        scores = self.scores.get(attack, {}).values()
        if self.cascade:
            return sum(example.success for example in scores) / max(1, len(self.leaked))
        return _rate(scores)

    @property
    def prior_psnr_db(self) -> float | None:
        """Median over examples of the prior-only baselines' highest PSNR in dB; None if no baseline has a score."""
        return median(list(self.prior_db.values()), -inf)

    @property
    def reference_db(self) -> float | None:
        """Median over records of the reference PSNR in dB, which an ideal estimate would have if the gradient were
        linear around the true example; None if not computed."""
        each = [r.attack.reference_db for records in self.records.values() for r in records if r.attack]
        return median([value for value in each if value is not None], -inf)

    def _on_draws(self, attack: str, *, first: bool) -> list[ExampleScore]:
        scores = self.scores[attack]
        if len(self._draws) < 2:
            return list(scores.values())
        return [example for key, example in scores.items() if (key[1] == min(self._draws)) == first]


def _rate(examples: Collection[ExampleScore]) -> float:
    return sum(example.success for example in examples) / len(examples) if examples else 0.0


def _median_db(examples: Iterable[ExampleScore]) -> float:
    value = median_of(examples, PSNR_DB)
    return -inf if value is None else value


def median_of(examples: Iterable[ExampleScore], metric: Metric) -> float | None:
    """Return the median of `metric` over the scores `examples`, in which a failed attack counts as the worst value;
    None if the median is infinite, and for a learned metric that a machine lacked for some examples."""
    examples = list(examples)
    if metric in LEARNED and any(e.psnr_db is not None and getattr(e, metric.name) is None for e in examples):
        return None  # not measured is not failed
    return median([example.value(metric) for example in examples], metric.failed)


def example_scores(record: Record) -> Iterator[tuple[ExampleKey, ExampleScore]]:
    """Yield (key, score) for each example in `record`, the result of an attack; the key is (weight seed, noise draw,
    reading, example). A record without a result yields no pair."""
    cell, result = record.cell, record.attack
    if isinstance(cell, AttackCell) and result is not None:
        for number, reading in result.numbered():
            for position, example in enumerate(reading.examples):
                yield (cell.seed, cell.draw, number, position), example


def clusters(keys: Sequence[ExampleKey]) -> list[int] | None:
    """Return a cluster number for each example of `keys`, in their order, for confidence intervals: examples with the
    same weight seed (for several seeds), otherwise in the same reading (observed update), may leak together. None if no
    clustering is necessary or possible: every cluster has a single example, or only a single cluster exists.

    - `keys`: examples as (weight seed, noise draw, reading, example)."""
    numbers = _numbers([(key[0],) for key in keys]) if len({key[0] for key in keys}) > 1 else readings(keys)
    return None if len(set(numbers)) in (1, len(keys)) else numbers


def readings(keys: Sequence[ExampleKey]) -> list[int]:
    """Number the readings (observed updates) behind examples, for confidence intervals clustered by reading. Return a
    number from 0 for each example of `keys`, in their order; all noise draws of a reading have the same number.

    - `keys`: examples as (weight seed, noise draw, reading, example)."""
    return _numbers([(key[0], key[2]) for key in keys])


def share_interval(hits: Mapping[ExampleKey, bool], level: float = LEVEL) -> tuple[float, float] | None:
    """Return (low, high), the interval at confidence `level` for the share of True in `hits`, clustered by reading
    (observed update) and weight seed. `hits` maps an example to whether an attack succeeded. None if `hits` is empty.
    """
    if not hits:
        return None
    keys = list(hits)
    seeds = _numbers([(key[0],) for key in keys])
    return clustered_share(list(hits.values()), readings(keys), seeds if max(seeds) else None, level)


def _numbers(names: Sequence[tuple[int, ...]]) -> list[int]:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]


def example_keys(cell: AttackCell) -> Iterator[ExampleKey]:
    """Yield the keys (weight seed, noise draw, reading, example) of all examples in `cell`, an attack's configuration.
    The keys follow from the configuration, so they also exist for a cell without result, such as a crashed cell."""
    setting = cell.federated
    count = POINTS[cell.point].examples(batch=setting.batch, steps=setting.steps, senders=setting.per_round)
    for reading, example in product(range(cell.readings), range(count)):
        yield cell.seed, cell.draw, reading, example
