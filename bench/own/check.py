"""Does a reading say what its owner believes?  The declared protocol, run again on the true examples.

A gradient that is not what was declared brings nothing back, which looks like protection.  With the truth the likeliest
mistake is named; without it, what can be seen in the reading alone.
"""

from dataclasses import dataclass

from torch import Tensor

from bench.attacks.parts.objective import mean_observation, observations
from bench.attacks.parts.repeats import distinct_examples
from bench.own import coerce
from bench.own.coerce import Values
from bench.own.doubts import doubts
from bench.own.mistakes import likeliest
from bench.own.replay import likeness, replayed
from bench.trip import Reading

_SAME = 0.999  # cosine from which a replay is what was sent
_EPOCHS = 0.98  # the same of several epochs, whose order nobody declared
_LENGTH = 0.02  # relative difference of lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Whether the reading is what the declared protocol makes of the true examples.

    `cosine` between what was sent and the replay, and `scale`, how many times as long it is: the least alike of the
    readings; None without a truth.  `explained` None: without a truth nothing contradicts the declaration.  `line`:
    what to do, in one line.
    """

    explained: bool | None
    line: str
    cosine: float | None = None
    scale: float | None = None


def check(reading: Reading, truth: Values | None = None, labels: Values | None = None) -> Check:
    """Run the protocol of `reading` on its true examples and compare; name the likeliest mistake where they differ.

    `truth` (reading, example, *shape) in `reading.value_range` and `labels` (reading, example), each reading's distinct
    examples in the order of its local steps, or the same in fewer axes.  Without them: its length beside that of public
    examples' gradients, the sum of the last bias, its sign, and the rank of the last layer.

    Raises `BenchError` for a truth that is not of the reading's shape.
    """
    observed = mean_observation(observations(reading))
    if truth is None or labels is None:
        against = list(doubts(reading, observed))
        line = "; ".join(against) or "nothing in the reading contradicts what was declared"
        return Check(explained=False if against else None, line=line)
    distinct = distinct_examples(reading)
    like = (len(reading), distinct, *reading.shape)
    inputs = coerce.like_reading(truth, like).to(next(iter(observed.values())))
    targets = coerce.labels(labels, len(reading) * distinct, reading.classes).reshape(len(reading), distinct)
    found = likeness(observed, replayed(reading, inputs, targets))
    enough = _EPOCHS if distinct < reading.examples else _SAME
    cosine, scale = found.least
    figures = f"cosine {cosine:.4f}, scale {scale:.3f}"
    noise = _noise(reading, observed)
    if noise is not None and found.residual <= 2 * noise:
        line = f"explains what was sent, up to the described noise: {figures}"
        return Check(explained=True, line=line, cosine=cosine, scale=scale)
    if cosine >= enough and abs(scale - 1) <= _LENGTH:
        return Check(explained=True, line=f"explains what was sent: {figures}", cosine=cosine, scale=scale)
    mistake = likeliest(reading, observed, inputs, targets, found, enough)
    line = f"does not explain what was sent: {figures}; {mistake}"
    return Check(explained=False, line=line, cosine=cosine, scale=scale)


def _noise(reading: Reading, observed: dict[str, Tensor]) -> float | None:
    """The described noise's energy on a reading."""
    if reading.description is None or reading.description.noise.variance == 0:
        return None
    return reading.description.noise.variance * sum(value[0].numel() for value in observed.values())
