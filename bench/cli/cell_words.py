"""One cell in words: who attacked what, where, knowing what, and what came of it."""

from collections.abc import Iterator
from typing import Any

from bench.cli.figures import asr, figure, interval, percent, sparkline
from bench.cli.words import duration
from bench.leaderboard.blocks import entry
from bench.points import POINTS
from bench.record.store import Record

Line = tuple[str, str]  # heading, text
_KNOWLEDGE = {
    "plain": "plain: attacks as published, without knowing the defense",
    "adaptive": "adaptive: knows the defense and its parameters, not its draws",
}


def lines(record: Record) -> list[Line]:
    """A record as headed lines; raises what a record with other fields makes it raise."""
    told = _training if record.cell["kind"] == "training" else _attack
    return [*told(record), *_answered(record)]


def _attack(record: Record) -> Iterator[Line]:
    cell = record.cell
    yield "attack", f"{entry(cell['attack'])} on {_data(cell)}"
    yield "defense", entry(cell["defense"])
    yield (
        "point",
        f"{cell['point']} ({POINTS[cell['point']].source})" if cell["point"] in POINTS else cell["point"],
    )
    described = record.summary.get("conditions", {}).get("described")
    undescribed = cell["knowledge"] == "adaptive" and described is False
    unsaid = "; but this defense describes nothing, so it stayed plain" if undescribed else ""
    yield "knowledge", _KNOWLEDGE.get(cell["knowledge"], cell["knowledge"]) + unsaid
    grants = ["the true labels"] if cell["labels"] else []
    if cell["repeated_readings"] > 1:
        grants.append(f"{cell['repeated_readings']} draws at the same weights")
    if cell.get("colluders"):
        grants.append(f"what {cell['colluders']:.0%} of a client's neighbours know")
    yield "grants", " and ".join(grants) or "none"
    yield "weights", _weights(cell["weights"], cell["seed"])
    yield (
        "federated",
        _federated(cell["federated"], record.summary.get("conditions", {}).get("client_examples")),
    )
    yield (
        "drawn",
        f"{cell['readings']} readings by seed {cell['seed']}; the defense's noise by draw {cell['draw']}",
    )
    yield "budget", f"{cell['evaluations']} evaluations a reading, restarts included"
    yield from _status(record)
    if record.status == "done":
        yield from _leak(record.summary)
        yield from _recognition(record.summary)
        yield from _spent(record.summary)
        yield "conditions", _conditions(record.summary["conditions"])


def _training(record: Record) -> Iterator[Line]:
    cell, summary = record.cell, record.summary
    yield "training", f"{_data(cell)}, {cell['rounds']} rounds by seed {cell['seed']}"
    yield "defense", entry(cell["defense"])
    yield "federated", _federated(cell["federated"], cell["federated"].get("client_examples"))
    yield from _status(record)
    if record.status != "done":
        return
    curve = summary["curve"]
    diverged = "; it diverged, which counts as 0" if summary["diverged"] else ""
    yield (
        "accuracy",
        f"{percent(summary['accuracy'])} on {cell['test_examples']} test examples at most{diverged}",
    )
    yield "curve", f"{sparkline([value for _, value in curve])}  0 to 100 %"
    yield from (("", f"round {round_:>4}  {percent(value)}") for round_, value in curve)
    yield from _spent(summary)
    if record.cost.get("overhead") is not None:
        low, high = record.cost["overhead_quartiles"]
        yield (
            "a local step",
            f"{record.cost['milliseconds_per_step']:.2f} ms of one client, {record.cost['overhead']:.2f} times "
            f"the undefended one's ({low:.2f} to {high:.2f}); {summary['upload_bytes']} bytes sent a round",
        )
    for round_, sha256 in sorted(summary["checkpoints"].items(), key=lambda item: int(item[0])):
        yield "checkpoint", f"weights/{record.id}/round-{round_}.safetensors (sha256 {sha256[:8]})"


def _spent(summary: dict[str, Any]) -> Iterator[Line]:
    """Every figure for ε with what it means, or why there is none."""
    figures = summary.get("privacy") or []
    if not figures:
        yield "ε", f"absent: {summary.get('epsilon_absent')}"
    bayesian = summary.get("bayesian") or {"spent": {}, "absent": {}, "by_round": {}}
    for level, reason in bayesian["absent"].items():
        yield "ε bayesian", f"absent at {level} level: {reason}"
    for one in (*figures, *bayesian["spent"].values()):
        value = f"absent: {one['absent']}" if one["epsilon"] is None else f"{one['epsilon']:.4g}"
        yield (
            f"ε {one['convention']}",
            f"{value} at δ = {one['delta']:g} of one {one['unit']}, for an attacker who {one['adversary']} "
            f"({one['accountant']}; q = {one['q']:g}, {one['steps']} steps, {one['adjacency']})",
        )
        yield from (("", f"not in it: {note}") for note in one["caveats"])
    for level, rows in bayesian["by_round"].items():
        told = (f"{int(at)}: {_three(ours)} ({_three(moments)})" for at, ours, moments in rows)
        yield f"ε {level}", "round: Bayesian ε (moments accountant's)  " + ", ".join(told)


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _leak(summary: dict[str, Any]) -> Iterator[Line]:
    why = "; some pictures failed and might have leaked" if summary["lower_bound"] else ""
    yield "ASR", f"{asr(summary)} of {summary['pictures']} pictures (Wilson, 95 %){why}"
    if summary.get("asr_strict") is not None:
        yield "strict ASR", f"{interval(summary, 'asr_strict')} with PSNR ≥ 30 dB"
    yield "readings", f"{interval(summary, 'readings_leaked')} of {summary['readings']} with a leak"
    for name, floor in sorted(summary["floors"].items()):
        figures = f"PSNR {figure(floor['psnr_db_median'], ' dB')}, RMSE {figure(floor['rmse_median'])}"
        yield (
            f"floor {name}",
            f"{figures}, success {percent(floor['asr'])}; beaten on {percent(floor['beaten'])}",
        )
    over = figure(summary["over_floor_db_median"], " dB")
    yield "over floors", f"{over} over the best floor (median); beaten on {percent(summary['prior_beaten'])}"
    chance = f"chance {percent(summary['identification_chance'])}"
    yield (
        "identified",
        f"{interval(summary, 'identification')} among {summary['gallery']} strangers; {chance}",
    )
    yield "medians", ", ".join(_medians(summary))
    yield "labels", f"{percent(summary['label_accuracy'])} right"
    yield (
        "evaluations",
        f"{summary['evaluations_median']:g} used in {summary['outer_median']:g} outer steps (medians)",
    )
    failed = [f"{percent(summary[f'{kind}_share'])} {kind}" for kind in ("diverged", "nan", "missing")]
    yield "failures", f"{', '.join(failed)}; all of them count as not leaked"


def _medians(summary: dict[str, Any]) -> Iterator[str]:
    yield f"RMSE {figure(summary['rmse_median'])} (unclipped {figure(summary['rmse_unclipped_median'])})"
    yield f"PSNR {figure(summary['psnr_db_median'], ' dB')}"
    if summary["numeric_rmse_median"] is not None or summary["groups_right_median"] is not None:
        yield f"numeric RMSE {figure(summary['numeric_rmse_median'])}"
        yield f"groups right {percent(summary['groups_right_median'])}"
        return
    yield f"SSIM {figure(summary['ssim_median'])}"
    absent = summary.get("lpips_absent")
    missing = f"– ({absent})" if absent else "–"
    yield f"LPIPS {missing if summary['lpips_median'] is None else figure(summary['lpips_median'])}"


def _recognition(summary: dict[str, Any]) -> Iterator[Line]:
    snr, cosine = summary["reading_snr_db_median"], summary["reading_cosine_median"]
    yield "reading", f"SNR {figure(snr, ' dB')}, cosine {figure(cosine)} to the undefended one (medians)"
    recognises = summary["recognises_truth"]
    if recognises is None:
        yield "self-check", "this attack matches no gradient"
        return
    verdict = (
        "the attacker recognises the truth" if recognises else "the attacker does not recognise the truth"
    )
    at_truth, at_public = summary["distance_at_truth"], summary["distance_at_public"]
    yield (
        "self-check",
        f"distance {figure(at_truth)} at the truth, {figure(at_public)} at public pictures: {verdict}",
    )
    yield from (("note", note) for note in summary["notes"])


def _conditions(given: dict[str, Any]) -> str:
    parts = [
        f"training round {given['round']}",
        f"gradient norm {figure(given['gradient_norm_median'])} (median)",
        f"weights norm {figure(given['weights_norm'])}",
        f"{given['mode']} mode",
        f"{given['pictures_per_reading']} pictures a reading",
    ]
    accuracy = given.get("accuracy")
    parts += [f"test accuracy {accuracy:.3f}"] if isinstance(accuracy, float) else []
    parts += [f"subset {given['subset']}"] if given["subset"] else []
    return ", ".join(parts + (["private data"] if given["private"] else []))


def _status(record: Record) -> Iterator[Line]:
    yield "status", record.status if record.reason is None else f"{record.status}: {record.reason}"


def _answered(record: Record) -> Iterator[Line]:
    cost, on = record.cost, record.environment
    parts = [duration(cost["wall_seconds"])]
    if cost.get("reused_from"):
        parts.append(f"reconstruction reused from cell {cost['reused_from'][:8]}")
    elif cost.get("attack_seconds") is not None:
        parts.append(f"of it the attack {duration(cost['attack_seconds'])}")
    if cost.get("seconds_per_round") is not None:
        parts.append(f"{cost['seconds_per_round']:.3g} s a round")
    parts.append(f"{cost['peak_mb']:.0f} MB at most")
    threads = f"{on['threads']} thread{'' if on['threads'] == 1 else 's'}"
    yield "cost", f"{', '.join(parts)}; {on['device']} ({on['device_name']}), {threads}"
    own = record.source["bench"]
    parts = [f"bench {own['version']}, protocol {own['protocol']} ({own['sha256'][:8]})"]
    for part, source in sorted(record.source.items()):
        if part != "bench" and "sha256" in source:
            whence = f"plug-in {source['plugin']}" if "plugin" in source else source["distribution"]
            parts.append(f"{part} of {whence} ({source['sha256'][:8]})")
    yield "source", f"{', '.join(parts)}; torch {on['torch']}, numpy {on['numpy']}"


def _data(cell: dict[str, Any]) -> str:
    return f"{entry(cell['dataset'])} with {entry(cell['model'])}"


def _weights(weights: dict[str, Any], seed: int) -> str:
    if weights["kind"] == "checkpoint":
        return f"after round {weights['round']} of training {weights['training'][:8]}"
    if weights["kind"] == "file":
        return f"from a file (sha256 {weights['sha256'][:8]})"
    return f"untrained, the model's initialisation by seed {seed}"


def _federated(federated: dict[str, Any], client_examples: int | None) -> str:
    of = f" of {client_examples} examples" if client_examples else ""
    return (
        f"{federated['algorithm']}, N = {federated['clients']} clients{of} ({federated['partition']}), "
        f"K = {federated['per_round']} a round, L = {federated['steps']}, B = {federated['batch']}, "
        f"η = {federated['rate']:g}"
    )
