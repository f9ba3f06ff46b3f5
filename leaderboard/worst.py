"""Records of one configuration → the worst-case attack success rate, example by example, and the best prior-only
baseline beside it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf, nan

from bench.cell import AttackCell
from bench.points import POINTS
from bench.record.metrics import PSNR_DB, Metric
from bench.record.names import attack_name
from bench.record.schema import ExampleScore, Privacy, Record
from bench.scoring.intervals import LEVEL, clustered_share
from bench.scoring.summary import median

SNR_CAP_DB = 120.0  # of `bench.scoring.reading`: the reading is the undefended one
GRADIENT_FREE = ("prior-", "labels-only")  # attackers whose examples owe nothing to the gradient
ExampleKey = tuple[int, int, int, int]  # seed, draw, reading, example


@dataclass(frozen=True, slots=True, kw_only=True)
class OfSeed:
    """Of a weight seed's examples, behind so many readings, how many leaked."""

    leaked: int
    examples: int
    readings: int


@dataclass(slots=True)
class WorstCase:
    """One defense at one point, over all its attacks.

    `leaked` example → whether any attack succeeded; `scores` attack → example → its score; `prior_db` the best
    prior-only PSNR, NaN for none.  `records` attack → all that were counted; `absent` attack → why it is n/a; `seeds`
    and `refused_seeds` attack → the weight seeds that it ran on, and on which it is n/a; `crashed` attack → reason;
    `failed` the examples on which some attack crashed, diverged or gave no number; `unchanged` whether every reading
    was the undefended one (SNR at its cap).  `identified` and `named` example → whether any attack did, and their
    chances attack → what a blind guess gets; `named` is of attacks with a gallery, which count in no other figure (one
    that crashed is in `crashed`).  `places` of the truth on the list of an attack that has the readings' own
    likelihood, or of the decoder that knows a batch's other examples, among so many `candidates`; `guesses` of one
    attacker that may count for such an example: as many as its reading has examples, with granted labels of its class;
    `strangers` beside a reconstruction; `cascade`: attacks saw only what others had left.  `attacked`: some attack that
    reads the gradient applied; `informed`: one of them knew the defense, or could run it.
    """

    leaked: dict[ExampleKey, bool] = field(default_factory=dict)
    scores: dict[str, dict[ExampleKey, ExampleScore]] = field(default_factory=dict)
    prior_db: dict[ExampleKey, float] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    seeds: dict[str, set[int]] = field(default_factory=dict)
    refused_seeds: dict[str, set[int]] = field(default_factory=dict)
    crashed: dict[str, str] = field(default_factory=dict)
    failed: set[ExampleKey] = field(default_factory=set)
    identified: dict[ExampleKey, bool] = field(default_factory=dict)
    identified_chance: dict[str, dict[ExampleKey, float]] = field(default_factory=dict)
    named: dict[ExampleKey, bool] = field(default_factory=dict)
    named_chance: dict[str, dict[ExampleKey, float]] = field(default_factory=dict)
    places: dict[ExampleKey, int] = field(default_factory=dict)
    guesses: dict[ExampleKey, int] = field(default_factory=dict)
    candidates: int = 0
    strangers: int = 0
    unchanged: bool = True
    cascade: bool = False
    attacked: bool = False
    informed: bool = False
    _draws: set[int] = field(default_factory=set)

    def add(self, record: Record) -> None:
        """Count one attack cell.  A crash is no protection: its examples stay in the denominator."""
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
        if cell.grants.gallery:  # it was shown the example among others: no reconstruction
            self._add_named(attack, cell, record)
            return
        self._draws.add(cell.draw)
        reads_gradient = not attack.startswith(GRADIENT_FREE)
        self.attacked |= reads_gradient
        if result is None:
            self.crashed[attack] = record.reason or "no reason given"
            for key in _keys(cell):
                self.leaked.setdefault(key, False)
                self.failed.add(key)
            return
        if not result.readings:  # those before it in a cascade left nothing
            self.scores.setdefault(attack, {})
            return
        knows = result.conditions.described or result.conditions.simulated  # plain attackers know nothing, whatever
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
        """ε at the point: the same for all its records."""
        results = (record.attack for records in self.records.values() for record in records if record.attack)
        return next((result.privacy for result in results), Privacy())

    @property
    def broken(self) -> tuple[str, ...]:
        """The contracts that the defense broke in any record, each once."""
        return tuple(dict.fromkeys(each for records in self.records.values() for r in records for each in r.broken))

    @property
    def asr(self) -> float | None:
        """Share of examples leaked to at least one attack; None where none was scored, or no attack applied that reads
        the gradient."""
        return sum(self.leaked.values()) / len(self.leaked) if self.leaked and self.attacked else None

    @property
    def cut_short(self) -> bool:
        """Whether an attack failed on an example that nobody got back."""
        return any(not self.leaked[key] for key in self.failed)

    @property
    def plain_only(self) -> bool:
        """Whether only attacks ran, on readings that the defense changed, that neither know it nor can run it, and
        left something to one who does."""
        known = self.unchanged or self.informed
        return self.attacked and not known and not all(self.leaked.values())

    @property
    def lower_bound(self) -> bool:
        """Whether the true rate may be higher: some attack failed, or none knew the defense, and not all leaked."""
        return self.cut_short or self.plain_only

    @property
    def distinct(self) -> int:
        """Examples, those of several draws of the defense's noise once."""
        return len({(seed, reading, example) for seed, _, reading, example in self.leaked})

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %, with what belongs together counted together (`share_interval`); None where there is no rate."""
        return share_interval(self.leaked) if self.attacked else None

    @property
    def by_seed(self) -> dict[int, OfSeed]:
        """What leaked, by weight seed."""
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
        """Share of examples that leaked on some draw of the defense's noise; None where there was one draw."""
        if len(self._draws) < 2:
            return None
        every = {(seed, reading, example) for seed, _, reading, example in self.leaked}
        once = {(seed, reading, example) for (seed, _, reading, example), leaked in self.leaked.items() if leaked}
        return len(once) / len(every)

    @property
    def best(self) -> tuple[str, float] | None:
        """The attack with the highest rate of its own, of equal ones that of the highest median PSNR, and
        that rate; a baseline only where there is nothing else.

        Where the defense's noise was drawn several times the attack is chosen on the first draw and its rate
        is of the others: the best of several attacks on one draw is partly lucky with it.  Of a cascade it is the one
        that got most back, and the rate its share of all examples.
        """
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
        """The best attack's median of a compared metric, on the draws that its rate is of."""
        best = self.best
        return None if best is None else self.median_on_report_draws(best[0], metric)

    def median_on_report_draws(self, attack: str, metric: Metric) -> float | None:
        """`median_of` an attack's examples on the draws that `best` reports: all but the one it was chosen on.

        None in a cascade, where each attack has seen what others left.
        """
        if self.cascade:
            return None
        return median_of(self._on_draws(attack, first=False), metric)

    def rate(self, attack: str) -> float:
        """One attack's own success rate over all its examples; in a cascade what it got back of all that there are."""
        if self.cascade:
            return sum(example.success for example in self.scores[attack].values()) / max(1, len(self.leaked))
        return _rate(self.scores[attack].values())

    @property
    def prior_psnr_db(self) -> float | None:
        """Median PSNR in dB of the best prior-only baseline on each example, which any success has to beat by
        3 dB; None where there was no baseline."""
        return median(list(self.prior_db.values()), -inf)

    @property
    def reference_db(self) -> float | None:
        """Median PSNR of the linear-Gaussian reference over the cells that computed it; None where none did."""
        each = [r.attack.reference_db for records in self.records.values() for r in records if r.attack]
        return median([value for value in each if value is not None], -inf)

    def _on_draws(self, attack: str, *, first: bool) -> list[ExampleScore]:
        """An attack's examples on the first draw, or on the others; all of them where there is one draw."""
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
    """Median of a metric over examples, a failed one worse than any; None where it is no number."""
    return median([example.value(metric) for example in examples], metric.failed)


def example_scores(record: Record) -> Iterator[tuple[ExampleKey, ExampleScore]]:
    """Every example of an attack's record with its key; none where the cell is not done."""
    cell, result = record.cell, record.attack
    if isinstance(cell, AttackCell) and result is not None:
        for number, reading in result.numbered():
            for position, example in enumerate(reading.examples):
                yield (cell.seed, cell.draw, number, position), example


def clusters(keys: Sequence[ExampleKey]) -> list[int] | None:
    """The cluster of each example, by number: the weight seed where there are several, else the reading (a
    batch's examples and a reading's draws belong together); None where every cluster is one example, or
    there is one alone."""
    numbers = _numbers([(key[0],) for key in keys]) if len({key[0] for key in keys}) > 1 else readings(keys)
    return None if len(set(numbers)) in (1, len(keys)) else numbers


def readings(keys: Sequence[ExampleKey]) -> list[int]:
    """The reading of each example, by number; its draws are one, as without noise they are equal."""
    return _numbers([(key[0], key[2]) for key in keys])


def share_interval(hits: Mapping[ExampleKey, bool], level: float = LEVEL) -> tuple[float, float] | None:
    """The interval of a share of examples, of which those of one reading and of one weight seed belong together."""
    if not hits:
        return None
    keys = list(hits)
    seeds = _numbers([(key[0],) for key in keys])
    return clustered_share(list(hits.values()), readings(keys), seeds if max(seeds) else None, level)


def _numbers(names: Sequence[tuple[int, ...]]) -> list[int]:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]


def _keys(cell: AttackCell) -> Iterator[ExampleKey]:
    """The examples of a cell by its configuration alone: a crashed one has no scores."""
    setting = cell.federated
    count = POINTS[cell.point].examples(batch=setting.batch, steps=setting.steps, senders=setting.per_round)
    for reading, example in product(range(cell.readings), range(count)):
        yield cell.seed, cell.draw, reading, example
