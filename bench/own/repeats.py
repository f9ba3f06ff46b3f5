"""Examples which several local steps use: labels and reconstructions have each distinct example once."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from bench.attacks.objective.repeats import distinct_examples
from bench.errors import BenchError
from bench.own import coerce
from bench.own.coerce import Values
from bench.trip import Reading, Reconstruction


def granted_labels(labels: Values, reading: Reading) -> Tensor:
    """Convert labels that the user grants to the attacker to the form of `Reading.labels`: (reading, example), with a
    label for each use of an example in the local steps. `labels` has a label for each distinct example, or for each
    use.

    The result is sorted, because the attacker does not know the batch order. Raises `BenchError` for labels of distinct
    examples if the last epoch is not complete."""
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
    """A reconstruction together with the attacked reading (the observed update). `bench.api.score` uses the reading to
    check the user's true examples: their gradient must explain the reading (`bench.api.check`)."""

    reading: Reading
    """The attacked reading."""


def claim(reconstruction: Reconstruction, reading: Reading) -> Claim:
    """Join a reconstruction with its reading (observed update), so that `bench.api.score` can check both. An example
    used in several epochs is reconstructed several times; only the reconstruction for the first epoch is kept."""
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
