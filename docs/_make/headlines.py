"""The papers' main claims beside our figures from the records."""

from collections.abc import Callable, Sequence
from math import isnan, sqrt
from statistics import median, quantiles

from _make.items import Evidence, Headline, Setting
from _make.markdown import plain
from bench.cell import AttackCell, TrainingCell
from bench.leaderboard.forms.numbers import NONE
from bench.record.schema import AttackResult, ExampleScore, Record, TrainingResult
from bench.scoring.intervals import wilson

NEAR = 3.0  # points of accuracy up to which two trainings agree
_LEVEL = 1.96

Figure = tuple[float, str]  # our figure, and the figure with its interval as text


def row(of: Headline, settings: dict[str, Setting], evidence: Evidence, title: str) -> list[str]:
    """Cells of the table: paper, claim, paper's figure, ours, verdict, source."""
    setting = settings.get(of.at)
    found = evidence.of(setting, of.defense) if setting else []
    others = evidence.of(setting, of.against) if setting and of.against is not None else []
    made = _METRICS[of.metric]([each for _, each in found], [each for _, each in others], setting)
    paper = NONE if of.value is None else _shown(of.metric, of.value)
    if made is None:
        return [title, plain(of.claim), paper, "not run", of.why or NONE]
    value, text = made
    verdict = of.verdict or _verdict(of, value)
    return [title, plain(of.claim), paper, text, plain(": ".join(part for part in (verdict, of.why) if part) or NONE)]


def _verdict(of: Headline, value: float) -> str:
    if of.value is None or isnan(value):
        return ""
    if of.metric in ("accuracy", "asr"):
        gap = 100 * (value - of.value)
    elif of.metric == "difference":
        gap = value - of.value
    elif of.metric == "psnr_db":
        return f"differs by {value - of.value:+.0f} dB"
    else:
        return "agrees" if 0.8 <= value / of.value <= 1.25 else f"differs by a factor of {value / of.value:.2g}"
    return f"agrees within {NEAR:g} points" if abs(gap) <= NEAR else f"differs by {gap:+.0f} points"


def _shown(metric: str, value: float) -> str:
    return {
        "accuracy": f"{100 * value:.1f} %",
        "asr": f"{100 * value:.0f} %",
        "difference": f"{value:+.1f} points",
        "psnr_db": f"{value:.1f} dB",
        "rmse": f"{value:.3f}",
        "overhead": f"× {value:.2f}",
        "epsilon": f"{value:.3g}",
    }[metric]


def _accuracy(its: Sequence[Record], others: Sequence[Record], setting: Setting | None) -> Figure | None:
    known = [_trained(each) for each in its if isinstance(each.result, TrainingResult)]
    if not known:
        return None
    value = sum(result.accuracy for _, result in known) / len(known)
    tested = _tested(known, setting)
    if not tested:
        return value, _shown("accuracy", value)
    least, most = wilson(value * tested, tested)
    return value, f"{_shown('accuracy', value)} [{100 * least:.1f}–{100 * most:.1f}]"


def _difference(its: Sequence[Record], others: Sequence[Record], setting: Setting | None) -> Figure | None:
    ours, theirs = _accuracy(its, [], setting), _accuracy(others, [], setting)
    if ours is None or theirs is None:
        return None
    value = 100 * (ours[0] - theirs[0])
    tested = _tested([_trained(each) for each in its], setting)
    if not tested:
        return value, _shown("difference", value)
    width = 100 * _LEVEL * sqrt(sum(p * (1 - p) for p, _ in (ours, theirs)) / tested)
    return value, f"{value:+.1f} points [{value - width:+.1f}, {value + width:+.1f}]"


def _tested(known: Sequence[tuple[TrainingCell, TrainingResult]], setting: Setting | None) -> int:
    """Examples on which each accuracy was measured; 0: unknown."""
    return min([setting.tested if setting else 0, *(cell.test_examples for cell, _ in known)])


def _trained(record: Record) -> tuple[TrainingCell, TrainingResult]:
    assert isinstance(record.cell, TrainingCell) and isinstance(record.result, TrainingResult)
    return record.cell, record.result


def _asr(its: Sequence[Record], others: Sequence[Record], setting: Setting | None) -> Figure | None:
    hits = [bool(each.success) for each in _examples(its)]
    if not hits:
        return None
    least, most = wilson(sum(hits), len(hits))
    value = sum(hits) / len(hits)
    return value, f"{100 * value:.0f} % [{100 * least:.0f}–{100 * most:.0f}] of {len(hits)}"


def _median(name: str) -> Callable[[Sequence[Record], Sequence[Record], Setting | None], Figure | None]:
    def made(its: Sequence[Record], others: Sequence[Record], setting: Setting | None) -> Figure | None:
        values = [value for each in _examples(its) if (value := getattr(each, name)) is not None]
        if len(values) < 2:
            return None
        low, _, high = quantiles(values, n=4)
        digits = 1 if name == "psnr_db" else 3
        value = median(values)
        return value, f"{_shown(name, value)} [quartiles {low:.{digits}f}, {high:.{digits}f}] of {len(values)}"

    return made


def _overhead(its: Sequence[Record], others: Sequence[Record], setting: Setting | None) -> Figure | None:
    costs = [each.cost.training for each in its if each.cost.training and each.cost.training.overhead]
    if not costs:
        return None
    value = median([cost.overhead for cost in costs if cost.overhead])
    quartiles = costs[0].overhead_quartiles
    return value, f"× {value:.2f}" + (f" [quartiles {quartiles[0]:.2f}, {quartiles[1]:.2f}]" if quartiles else "")


def _epsilon(its: Sequence[Record], others: Sequence[Record], setting: Setting | None) -> Figure | None:
    """The least ε of a valid accountant."""
    for each in its:
        if isinstance(each.result, TrainingResult) and each.result.privacy:
            value = each.result.privacy.epsilon
            return (float("nan"), "none is proved") if value is None else (value, f"{value:.3g}, valid")
    return None


def _examples(its: Sequence[Record]) -> list[ExampleScore]:
    return [
        example
        for each in its
        if isinstance(each.cell, AttackCell) and isinstance(each.result, AttackResult)
        for reading in each.result.readings
        for example in reading.examples
    ]


_METRICS = {
    "accuracy": _accuracy,
    "difference": _difference,
    "asr": _asr,
    "psnr_db": _median("psnr_db"),
    "rmse": _median("rmse"),
    "overhead": _overhead,
    "epsilon": _epsilon,
}
