"""Describe a record (a cell's result) as text: attack, defense, interception point, the attacker's knowledge and the
outcome."""

from collections.abc import Iterator, Sequence

from bench.cell import AttackCell, CheckpointWeights, Federated, FileWeights, TrainingCell
from bench.cli.words import duration
from bench.epsilon import Epsilon
from bench.leaderboard.forms import numbers
from bench.leaderboard.forms.numbers import NONE, figure, fine, share
from bench.points import POINTS
from bench.record import schema
from bench.record.metrics import LPIPS, PSNR_DB, RMSE, ST_LPIPS, Metric, named, of_kind
from bench.record.names import entry_text

Line = tuple[str, str]  # heading, text
_BARS = "▁▂▃▄▅▆▇█"
_KNOWLEDGE = {
    "plain": "plain: attacks as published, without knowing the defense",
    "adaptive": "adaptive: knows the defense and its parameters, not its draws",
    "black-box": "black-box: runs the defense on examples of its own, and has no description of it",
}


def lines(record: schema.Record) -> list[Line]:
    """Return the `record` (a cell's result) as lines of text for `bench show`: pairs (heading, text)."""
    cell = record.cell
    text = _training(cell, record) if isinstance(cell, TrainingCell) else _attack(cell, record)
    return [*text, *_answered(record)]


def interval(value: schema.Share | None) -> str:
    """Return the share `value` with its 95 % interval as text, such as 67 % [21–94 %]; None becomes a dash."""
    if value is None:
        return NONE
    return f"{share(value.value)} [{numbers.interval((value.low, value.high))}]"


def asr(summary: schema.Summary) -> str:
    """Return the attack success rate in `summary` (an attack's scores over all examples) as text, with its 95 %
    interval; "≥" marks a lower bound."""
    return ("≥ " if summary.lower_bound else "") + interval(summary.asr)


def sparkline(shares: Sequence[float]) -> str:
    """Return a small bar chart of `shares` in [0, 1] as text: a block character of matching height for each share."""
    return "".join(_BARS[round(min(max(value, 0), 1) * (len(_BARS) - 1))] for value in shares)


def number(value: float | None, unit: str = "") -> str:
    """Return the number `value` as text, with three digits and its `unit`; None becomes a dash."""
    return NONE if value is None else f"{value:.3g}{unit}"


def _attack(cell: AttackCell, record: schema.Record) -> Iterator[Line]:
    result = record.attack
    yield "attack", f"{entry_text(cell.attack)} on {_data(cell)}"
    yield "defense", entry_text(cell.defense)
    yield "point", f"{cell.point} ({POINTS[cell.point].source})" if cell.point in POINTS else cell.point
    undescribed = cell.knowledge == "adaptive" and result is not None and not result.conditions.described
    unsaid = "; but this defense describes nothing, so it stayed plain" if undescribed else ""
    yield "knowledge", _KNOWLEDGE[cell.knowledge] + unsaid
    yield "grants", " and ".join(cell.grants.words()) or "none"
    yield "weights", _weights(cell)
    yield "federated", _federated(cell.federated, result.conditions.client_examples if result else None)
    victims = "" if cell.victims is None else f" and victims {cell.victims}"
    yield "drawn", f"{cell.readings} readings by seed {cell.seed}{victims}; the defense's noise by draw {cell.draw}"
    yield "budget", f"{cell.evaluations} evaluations a reading, restarts included"
    yield "status", record.status + (f": {record.reason}" if record.reason is not None else "")
    if result is not None:
        yield from _leak(result)
        snr, cosine = number(result.distortion.snr_db_median, " dB"), number(result.distortion.cosine_median)
        yield "reading", f"SNR {snr}, cosine {cosine} to the undefended one (medians)"
        yield "self-check", _self_check(result.self_check)
        yield from (("note", note) for note in result.notes)
        yield from _epsilon(result.privacy)
        yield "conditions", _conditions(result.conditions, private=result.private)


def _training(cell: TrainingCell, record: schema.Record) -> Iterator[Line]:
    yield "training", f"{_data(cell)}, {cell.rounds} rounds by seed {cell.seed}"
    yield "defense", entry_text(cell.defense)
    yield "federated", _federated(cell.federated, cell.federated.client_examples)
    yield "status", record.status + (f": {record.reason}" if record.reason is not None else "")
    result = record.training
    if result is None:
        return
    diverged = "; it diverged, which counts as 0" if result.diverged else ""
    yield "accuracy", f"{share(result.accuracy, 1)} on {cell.test_examples} test examples at most{diverged}"
    if result.perplexity is not None:
        yield "perplexity", f"{number(result.perplexity)} on the next tokens of test texts"
    yield "curve", f"{sparkline([value for _, value in result.curve])}  0 to 100 %"
    yield from (("", f"round {round_:>4}  {share(value, 1)}") for round_, value in result.curve)
    yield from _epsilon(result.privacy)
    yield from _bayesian(result)
    cost = record.cost.training
    if cost is not None and cost.overhead is not None and cost.overhead_quartiles is not None:
        low, high = cost.overhead_quartiles
        overhead = f"{cost.overhead:.2f} times the undefended one's ({low:.2f} to {high:.2f})"
        step = f"{number(cost.milliseconds_per_step)} ms of one client, {overhead}"
        yield "a local step", f"{step}; {result.upload_bytes} bytes sent a round"
    for round_, sha256 in sorted(result.checkpoints.items()):
        yield "checkpoint", f"weights/{record.id}/round-{round_}.safetensors (sha256 {sha256[:8]})"


def _epsilon(privacy: schema.Privacy) -> Iterator[Line]:
    if not privacy.figures:
        yield "ε", f"absent: {privacy.absent}"
    yield from (line for item in privacy.figures for line in _one_epsilon(item))


def _one_epsilon(item: Epsilon) -> Iterator[Line]:
    value = f"absent: {item.absent}" if item.epsilon is None else f"{item.epsilon:.4g}"
    whom = f"at δ = {item.delta:g} of one {item.unit}, for an attacker who {item.adversary}"
    how = f"{item.accountant}; q = {item.q:g}, {item.steps} steps, {item.adjacency}"
    yield f"ε {item.convention}", f"{value} {whom} ({how})"
    yield from (("", f"not in it: {caveat}") for caveat in item.caveats)


def _bayesian(result: schema.TrainingResult) -> Iterator[Line]:
    if result.bayesian is None:
        return
    for level, reason in result.bayesian.absent.items():
        yield "ε bayesian", f"absent at {level} level: {reason}"
    yield from (line for item in result.bayesian.spent.values() for line in _one_epsilon(item))
    for level, rounds in result.bayesian.by_round.items():
        text = (f"{at.round}: {number(at.epsilon)} ({number(at.moments_epsilon)})" for at in rounds)
        yield f"ε {level}", "round: Bayesian ε (moments accountant's)  " + ", ".join(text)


def _leak(result: schema.AttackResult) -> Iterator[Line]:
    if result.summary is None:
        yield "ASR", "–; " + "; ".join(result.notes)
        return
    summary, rule = result.summary, result.data_kind.success
    why = "; some examples failed and might have leaked" if summary.lower_bound else ""
    numbers = [reading.number for reading in result.readings if reading.number is not None]
    left = f", of the {len(numbers)} readings that the cascade left" if numbers else ""
    yield "ASR", f"{asr(summary)} of {summary.examples} examples{left} (Wilson, 95 %){why}"
    if summary.asr_strict is not None:
        yield "strict ASR", f"{interval(summary.asr_strict)} {rule.strict_words}"
    yield "readings", f"{interval(summary.readings_leaked)} of {summary.readings} with a leak"
    certain = [reading.certificate for reading in result.readings if reading.certificate is not None]
    if certain:
        yield ("certificate", f"the attack knew {share(sum(certain) / len(certain))} of its examples to be right")
    for name, prior in sorted(summary.priors.items()):
        figures = f"PSNR {figure(PSNR_DB, prior.psnr_db_median)}, RMSE {figure(RMSE, prior.rmse_median)}, "
        success = f"success {share(prior.asr)}; beaten on {share(prior.beaten)}"
        yield f"prior {name}", (figures if rule.closeness == PSNR_DB.name else "") + success
    margin, beaten = named(rule.over), share(summary.prior_beaten)
    over = number(summary.median(margin), f" {margin.unit}" if margin.unit else "")
    yield "over priors", f"{over} over the best prior (median); beaten on {beaten} of the examples"
    identified, chance = interval(summary.identification), fine(summary.identification_chance)
    yield "identified", f"{identified} among {summary.gallery} strangers; chance {chance}"
    shown = [metric for metric in of_kind(result.data_kind) if metric is not margin]
    yield "medians", ", ".join(filter(None, (_median(metric, summary, result) for metric in shown)))
    yield "labels", f"{share(summary.label_accuracy)} right"
    evaluations = f"{summary.evaluations_median:g} used in {summary.outer_median:g} outer steps"
    yield "evaluations", f"{evaluations} (medians)"
    failed = {"diverged": summary.diverged_share, "nan": summary.nan_share, "missing": summary.missing_share}
    shares = ", ".join(f"{share(value)} {status}" for status, value in failed.items())
    yield "failures", f"{shares}; all of them count as not leaked"


def _median(metric: Metric, summary: schema.Summary, result: schema.AttackResult) -> str:
    """Return a metric's median as text, or the reason for its absence; empty for an optional metric without either."""
    value = summary.median(metric)
    absent = {LPIPS: result.lpips_absent, ST_LPIPS: result.st_lpips_absent}.get(metric) if value is None else None
    if metric.optional and value is None and absent is None:
        return ""
    return f"{metric.label} {figure(metric, value)}{f' ({absent})' if absent else ''}"


def _self_check(check: schema.SelfCheck) -> str:
    if check.recognises_truth is None:
        return "this attack matches no gradient"
    verdict = "recognises" if check.recognises_truth else "does not recognise"
    return (
        f"distance {number(check.distance_at_truth)} at the truth, {number(check.distance_at_public)} at public "
        f"examples: the attacker {verdict} the truth"
    )


def _conditions(conditions: schema.AttackConditions, *, private: bool) -> str:
    parts = [
        f"training round {conditions.round}",
        f"gradient norm {number(conditions.gradient_norm_median)} (median)",
        f"weights norm {number(conditions.weights_norm)}",
        f"{conditions.mode} mode",
        f"{conditions.examples_per_reading} examples a reading",
    ]
    parts += [f"test accuracy {conditions.accuracy:.3f}"] if conditions.accuracy is not None else []
    parts += [f"subset {conditions.subset}"] if conditions.subset else []
    return ", ".join(parts + (["private data"] if private else []))


def _answered(record: schema.Record) -> Iterator[Line]:
    cost, machine = record.cost, record.environment
    parts = [duration(cost.wall_seconds)]
    if cost.reused_from:
        parts.append(f"reconstruction reused from cell {cost.reused_from[:8]}")
    elif cost.attack_seconds is not None:
        parts.append(f"of it the attack {duration(cost.attack_seconds)}")
    if cost.simulations is not None:
        parts.append(f"{cost.simulations} simulations in {duration(cost.simulation_seconds or 0.0)}")
    if cost.training is not None and cost.training.seconds_per_round is not None:
        parts.append(f"{cost.training.seconds_per_round:.3g} s a round")
    where = ""
    if machine is not None:
        threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
        where = f"; {machine.device} ({machine.device_name}), {threads}"
    yield "cost", f"{', '.join(parts)}, {cost.peak_mb:.0f} MB at most{where}"
    yield "provenance", ", ".join(_provenance(record))


def _provenance(record: schema.Record) -> Iterator[str]:
    code = record.provenance.bench
    yield f"bench {code.version}, protocol {code.protocol} ({(code.sha256 or '')[:8]})"
    for name in ("attack", "dataset", "defense", "model"):
        part = getattr(record.provenance, name)
        if part is not None and part.origin != code.origin:
            yield f"{name} of {'plug-in ' if part.plugin else ''}{part.origin} ({(part.sha256 or '')[:8]})"
    if record.environment is not None:
        yield f"torch {record.environment.torch}, numpy {record.environment.numpy}"


def _data(cell: AttackCell | TrainingCell) -> str:
    return f"{entry_text(cell.dataset)} with {entry_text(cell.model)}"


def _weights(cell: AttackCell) -> str:
    weights = cell.weights
    if isinstance(weights, CheckpointWeights):
        return f"after {weights} of training {weights.training[:8]}"
    if isinstance(weights, FileWeights):
        return f"from a file (sha256 {weights.sha256[:8]})"
    return f"untrained, the model's initialisation by seed {cell.seed}"


def _federated(federated: Federated, client_examples: int | None) -> str:
    size = f" of {client_examples} examples" if client_examples else ""
    return (
        f"{federated.algorithm}, N = {federated.clients} clients{size} ({federated.partition}), "
        f"K = {federated.per_round} a round, L = {federated.steps}, B = {federated.batch}, "
        f"η = {federated.rate:g}"
    )


def headline(record: schema.Record) -> str:
    """Return the main result in the `record` of a cell (an experiment) as text: success rate of an attack or accuracy
    of a training; empty without a result."""
    if record.attack is not None:
        return asr(record.attack.summary) if record.attack.summary else "nothing left"
    return share(record.training.accuracy, 1) if record.training is not None else ""
