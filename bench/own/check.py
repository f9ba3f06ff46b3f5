"""Check of a user's reading: the declared protocol, run on the true examples, must give the reading.

An attack that assumes another protocol reconstructs no example, so the model would look protected. With the true
examples, the check names the likeliest mistake. Without them, the check only inspects the reading."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bench.attacks.objective.mismatch import mean_observation, observations
from bench.attacks.objective.repeats import distinct_examples
from bench.errors import MALFORMED, BenchError, NotApplicable
from bench.own import coerce
from bench.own.coerce import Values
from bench.own.doubts import doubts
from bench.own.likeness import Likeness, likeness
from bench.own.mistakes import initial_statistics, likeliest, unexplained
from bench.own.noisy import undeclared
from bench.own.options import options
from bench.own.order import declared, matters, sought, spread
from bench.own.replay import positions, replayed
from bench.own.rounding import rounded
from bench.own.statistics import statistics_fault
from bench.own.vocabulary import refuse_texts
from bench.sanitize import first_line
from bench.trip import Reading

_SAME = 0.999  # least cosine of a replay which explains the update
_LENGTH = 0.02  # largest relative difference of lengths
_ORDERS = 4  # replays with random orders of later epochs
_SPREAD = 0.05  # allowed below the cosine between two such replays
_STANDARD_ERRORS = 4.0  # of the replay's share in a noisy reading; a larger deviation from 1 is wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of a check of a user's reading (observed update): whether the declared training (model, batch, steps,
    rate, …), run on the true examples, gives the update."""

    explained: bool | None
    """True if the declared training gives the update; None if undecidable (no true examples, or strong noise)."""
    line: str
    """The result as a line of text, with a remedy for a mistake."""
    cosine: float | None = None
    """Cosine between the update and its replay (the declared training, run on the true examples), for the worst
    reading; None without true examples."""
    scale: float | None = None
    """Length of the update divided by the length of its replay, for the worst reading; None without true examples."""
    noise: Mapping[str, Any] | None = None
    """Gaussian noise that was not declared and explains the difference, as the argument `defense` of `api.reading`;
    None: no such noise."""


def check(
    reading: Reading,
    truth: Values | None = None,
    labels: Values | None = None,
    *,
    order: Sequence[int] | Tensor | None = None,
) -> Check:
    """Check a user's reading (observed update): run the declared training on the true examples, compare the result with
    the update, and name the likeliest mistake.

    - `truth` (reading, example, *shape): true examples with values in `reading.value_range`; `labels` (reading,
      example): true labels. Both list each reading's distinct examples; leading axes may be merged. If either is None,
      the check compares the reading's length with public gradients, and inspects the last bias (sum, sign) and the last
      layer (rank).
    - `order` (use,): numbers of the examples in the order of local steps, as `[4, 0, …]`. None: the order of `truth` in
      each epoch; if this order does not give the update, an order is sought.

    Raises `BenchError` for a truth of another shape."""
    if not isinstance(reading, Reading):
        raise BenchError(f"check takes what api.reading returns, not a {type(reading).__name__}")
    observed = mean_observation(observations(reading))
    try:
        if truth is None or labels is None:
            against = list(doubts(reading, observed))
            line = "; ".join(against) or "nothing in the reading contradicts what was declared"
            return Check(explained=False if against else None, line=line)
        distinct = distinct_examples(reading)
        like = (len(reading), distinct, *reading.shape)
        inputs = coerce.like_reading(truth, like).to(next(iter(observed.values())))
        refuse_texts(reading.model, inputs, "truth", reading.kind)
        targets = coerce.labels(labels, len(reading) * distinct, reading.classes).reshape(len(reading), distinct)
        at = None if order is None else declared(order, reading)
        return _against_truth(reading, observed, inputs, targets, at)
    except NotApplicable as reason:
        return Check(explained=None, line=f"cannot be replayed: {reason}")
    except (*MALFORMED, RuntimeError) as error:  # errors from a layer's derivative
        return Check(explained=None, line=f"cannot be replayed: {type(error).__name__}: {first_line(error)}")


def _against_truth(
    reading: Reading, observed: dict[str, Tensor], inputs: Tensor, labels: Tensor, order: Tensor | None
) -> Check:
    if granted := _wrong_grant(reading, labels):
        return Check(explained=False, line=f"does not explain what was granted: {granted}")
    orders = [order] if order is not None else [positions(reading, draw) for draw in range(_orders(reading))]
    replays = [replayed(reading, inputs, labels, at) for at in orders]
    each = [likeness(observed, replay) for replay in replays]
    compared = max(each, key=lambda one: one.least[0])
    cosine, scale = compared.least
    which = f" (reading {compared.worst})" if len(reading) > 1 else ""
    figures = f"cosine {cosine:.4f}, scale {scale:.3f}"

    def checked(explained: bool | None, line: str) -> Check:
        return Check(explained=explained, line=line, cosine=cosine, scale=scale)

    noise = _noise(reading, observed)
    if noise is not None and reading.description is not None:
        return checked(*_behind_noise(compared, noise, observed, reading.description.noise.bound, figures + which))
    if bool((compared.energy == 0).any()) and compared.alike(_SAME, _LENGTH):
        return checked(True, "explains what was sent: both are zero, as the model is sure of the example")
    enough, length, doubt = _SAME, _LENGTH, ""
    if len(replays) > 1:  # as similar as replays with other orders of later epochs
        others = [likeness(replays[0], other) for other in replays[1:]]
        enough = min(one.least[0] for one in others) - _SPREAD
        length = max(_LENGTH, *(2 * abs(one.least[1] - 1) + _SPREAD for one in others))
        doubt = f", within the effect of the unknown order of later epochs ({1 - enough - _SPREAD:.2g})"
    chosen = orders[each.index(compared)]
    wrong = statistics_fault(reading, inputs, labels, chosen) if compared.alike(enough, length) else None
    if wrong and len(replays) == 1:
        return checked(False, f"does not explain what was sent: {figures}; {wrong}")
    if compared.alike(enough, length) and (len(replays) > 1 or not compared.off):
        return checked(True, f"explains what was sent{doubt}: {figures}")
    replay = replays[each.index(compared)]
    if rounding := rounded(reading, observed, replay, inputs, labels):
        return checked(True, f"agrees up to 16-bit rounding ({rounding}): {figures}")
    if noise_of := undeclared(reading, observed, replay):
        words = f"the difference is Gaussian noise, which was not declared; give defense={noise_of}"
        line = f"does not explain what was sent: {figures}{which}; {words}"
        return Check(explained=False, line=line, cosine=cosine, scale=scale, noise=noise_of)
    if compared.alike(enough, length):
        cause = options(reading, observed, inputs, labels) or initial_statistics(reading) or _off(observed, compared)
        return checked(False, f"does not explain what was sent: {figures}{which}; {cause}")
    mistake = likeliest(reading, observed, inputs, labels, compared, enough)
    if mistake is None and order is None and matters(reading):
        best = sought(reading, observed, inputs, labels, _SAME)
        another = likeness(observed, replayed(reading, inputs, labels, best))
        if another.alike(_SAME, _LENGTH):
            figures = f"cosine {another.least[0]:.4f}, scale {another.least[1]:.3f}"
            return checked(True, f"explains what was sent, with the examples in another order than given: {figures}")
        least, longest = spread(reading, inputs, labels)
        near, room = another.least[1], (1 + _LENGTH) * longest
        if another.least[0] >= least and 1 / room <= near <= room:
            return checked(
                None,
                "undecided: the order of the examples is missing, and decides; pass order=, or the truth in the order "
                f"of the local steps (random orders have a cosine of {least:.2g} with each other): {figures}",
            )
    mistake = mistake or unexplained(reading, observed, replay, compared)
    return checked(False, f"does not explain what was sent: {figures}{which}; {mistake}")


def _orders(reading: Reading) -> int:
    return _ORDERS if distinct_examples(reading) < reading.examples else 1


def _wrong_grant(reading: Reading, labels: Tensor) -> str | None:
    if reading.labels is None:
        return None
    times = reading.examples // labels.shape[1]
    true = labels.repeat(1, times).sort(1).values
    if reading.labels.shape == true.shape and bool((reading.labels.cpu() != true).any()):
        return "the labels that the attacker has are not those of the truth"
    return None


def _off(observed: dict[str, Tensor], compared: Likeness) -> str:
    name = max(compared.off, key=lambda each: float(compared.off[each].max()))
    row = int(compared.off[name].argmax())
    zero = not bool(observed[name][row].any())
    words = "is zero: frozen or withheld, or a defense on it" if zero else "is unlike its replay: a defense on it"
    more = f" (and {len(compared.off) - 1} more)" if len(compared.off) > 1 else ""
    return f"all but {name!r}{more}, which {words}; freeze it in the model, or declare defense="


def _behind_noise(
    compared: Likeness, noise: float, observed: dict[str, Tensor], bound: bool, figures: str
) -> tuple[bool | None, str]:
    """Return whether noise with expected squared length `noise` explains the difference, and a line of text with
    `figures`. The first result is None if the noise hides the replay. The squared length of noise varies by a few times
    √coordinates. The coefficient of the replay in the update `observed` should be 1, with the standard error
    √(v/‖replay‖²) for noise of variance v. `bound` is True if the noise is only an upper bound."""
    count = sum(value[0].numel() for value in observed.values())
    error = (noise / count / compared.energy.clamp_min(1e-300)).sqrt()
    share, worst = compared.share, int((compared.share - 1).abs().argmax())
    room = 4 * (2 / count) ** 0.5 + 0.1
    size = compared.residual / noise
    if bool((size > 1 + room).any()) or (not bound and bool((size < 1 - room).any())):
        cause = f"the difference has {float(size[(size - 1).abs().argmax()]):.2g} times the described noise's energy"
        return (False, f"does not explain what was sent: {figures}; {cause}: another strength, or another declaration")
    if bool(((share - 1).abs() > _STANDARD_ERRORS * error + _LENGTH).any()):
        cause = f"the update holds the replay times {float(share[worst]):.2g}, and should hold it once"
        return (
            False,
            f"does not explain what was sent: {figures}; {cause}: sign, rate, batch, weights or other examples",
        )
    if bool((error * _STANDARD_ERRORS > 1).any()):
        return None, f"undecided: the described noise hides the replay ({figures})"
    return True, f"explains what was sent, up to the described noise: {figures}"


def _noise(reading: Reading, observed: dict[str, Tensor]) -> float | None:
    if reading.description is None or reading.description.noise.variance == 0:
        return None
    return reading.description.noise.variance * sum(value[0].numel() for value in observed.values())
