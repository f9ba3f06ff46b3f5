"""A federated client under assessment: its update, its model, its true examples, and public examples."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.attacks.objective.repeats import distinct_examples
from bench.errors import BenchError
from bench.kinds.base import Kind
from bench.kinds.known import of_shape
from bench.own import coerce
from bench.own.check import check
from bench.own.coerce import Range, Values
from bench.own.copies import plain_copy
from bench.own.defended import defended
from bench.own.recorded import Recording
from bench.training import mixes
from bench.trip import Reading

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A federated client under assessment, with its true examples. Only the report uses the true examples; attacks
    never get them."""

    update: Reading | None
    """The update that leaves the client, with granted labels, in the form for attacks; None: no attack can simulate the
    client's training."""
    line: str
    """A sentence for the report: whether the declared or recorded training really gives the update."""
    model: nn.Module
    """Model at the weights before the training, on the CPU, in the form for attacks: with the training's loss."""
    inputs: Tensor
    """(reading, example, *shape): distinct true examples, in the model's range."""
    labels: Tensor
    """(reading, example): true labels."""
    classes: int
    """Number of classes."""
    value_range: Range
    """Smallest and largest possible input value."""
    kind: Kind
    """Kind of data: images, table rows or texts."""
    public: Tensor | None
    """(example, *shape): public examples, for the attacks and as strangers among candidates; without the client's
    examples. None: no public examples are known."""
    public_labels: Tensor | None
    """(example,): labels of `public`; None: unknown."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an example."""
        return tuple(self.inputs.shape[2:])

    @property
    def weights(self) -> dict[str, Tensor]:
        """Model parameters that the training changes (`requires_grad`), name → (*shape), before the training."""
        return {name: value.detach() for name, value in self.model.named_parameters() if value.requires_grad}


def of_recording(sent: Recording, public: Values | None, public_labels: Values | None) -> Client:
    """Return the client under assessment, made from the recorded training `sent`.

    - `public` (example, *shape): public examples; None takes the examples of recorded forward passes without gradients.
    - `public_labels` (example,): labels of `public`; None: unknown.

    Raises `BenchError` for a recording without examples."""
    inputs, labels = sent.truth
    held, held_labels = sent.held_out
    known = held if public is None else coerce.tensor(public, "public").float()
    known_labels = held_labels if public is None else public_labels
    marks = None if known_labels is None else coerce.tensor(known_labels, "public_labels").long()
    update = sent.reading(public=known, public_labels=marks) if sent.explained else None
    model = sent.for_attacks()
    shape = tuple(inputs.shape[1:])
    low, high = sent.value_range
    if known is not None:
        low, high = min(low, float(known.min())), max(high, float(known.max()))
    return Client(
        update=update,
        line=sent.line,
        model=model,
        inputs=inputs[None],
        labels=labels[None].long(),
        classes=sent.classes,
        value_range=(low, high),
        kind=of_shape(shape) if update is None else update.kind,
        public=known,
        public_labels=marks,
    )


def of_reading(reading: Reading, truth: Values | None, labels: Values | None) -> Client:
    """Return the client under assessment, made from a `reading` (the observed update with its declared training). The
    client gets the reading's public examples; a reading with only one, a grey placeholder, counts as a reading without.

    - `truth` (reading, example, *shape), `labels` (reading, example): the distinct true examples behind the reading.

    Raises `BenchError` without `truth` or `labels`, or for a truth of another shape."""
    if truth is None or labels is None:
        raise BenchError("the report compares with the truth: give truth and labels of a client of your own")
    distinct = distinct_examples(reading)
    inputs = coerce.like_reading(truth, (len(reading), distinct, *reading.shape))
    own = coerce.labels(labels, len(reading) * distinct, reading.classes).reshape(len(reading), distinct)
    checked = check(reading, inputs, own)
    model = plain_copy(reading.model, batch_statistics=mixes(reading.model))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name in reading.weights:
                value.copy_(reading.weights[name][0])
    known = len(reading.public_inputs) > 1
    marked = known and bool((reading.public_labels >= 0).all())
    update, line = (None if checked.explained is False else reading), checked.line
    if checked.noise is not None:
        update, line = defended(reading, checked.noise), f"{line}. Attacked as if declared."
    return Client(
        update=update,
        line=line,
        model=model,
        inputs=inputs,
        labels=own,
        classes=reading.classes,
        value_range=reading.value_range,
        kind=reading.kind,
        public=reading.public_inputs.float() if known else None,
        public_labels=reading.public_labels if marked else None,
    )
