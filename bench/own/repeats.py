"""Examples seen by several local steps count as a single example."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from bench.attacks.objective.repeats import distinct_examples
from bench.errors import BenchError
from bench.own import coerce
from bench.own.coerce import Values
from bench.trip import Reading, Reconstruction


def granted_labels(labels: Values, reading: Reading) -> Tensor:
    """True labels in the form of `Reading.labels`: (reading, example), a label per use of an example, ascending,
    because batch order is unknown.

    Input: labels of each reading's distinct examples, or already a label per use.
    """
    distinct, count = distinct_examples(reading), len(reading)
    if coerce.tensor(labels, "labels").numel() == count * reading.examples:
        return coerce.labels(labels, count * reading.examples, reading.classes).reshape(count, -1).sort(1).values
    once = coerce.labels(labels, count * distinct, reading.classes).reshape(count, distinct)
    if reading.examples % distinct:
        raise BenchError(
            "labels are not granted where the last epoch is not whole: which of them came once more is unknown"
        )
    return once.repeat(1, reading.examples // distinct).sort(1).values


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Reconstruction):
    """A reconstruction with its reading, so a score can check the truth against the reading."""

    reading: Reading


def claim(reconstruction: Reconstruction, reading: Reading) -> Claim:
    """The claim with each distinct example once: the first epoch's examples, for attacks with an example per use."""
    made = Claim(**{item.name: getattr(reconstruction, item.name) for item in fields(Reconstruction)}, reading=reading)
    distinct, way = distinct_examples(reading), made.trajectory
    if made.inputs.shape[1] <= distinct:
        return made
    return replace(
        made,
        inputs=made.inputs[:, :distinct],
        labels=made.labels[:, :distinct],
        trajectory=None if way is None else torch.as_tensor(way[:, :, :distinct]),
    )
