"""Readings with a single unknown example: simulated readings for its candidates, and its part in a reading."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.objective.choices import few_sums, first_message
from bench.attacks.objective.mismatch import observations
from bench.attacks.objective.public import gradients_of, public_of
from bench.gradients import group_gradients, one_hot
from bench.trip import Candidates, Clients, Description, Given, Noise, Outcomes, Reading, StepDefense, Tensors

_SINGLE = "a single example's part of a reading has no further examples, steps or clients"


def known_examples(reading: Reading, row: int, weights: Tensors) -> Candidates:
    """Return the examples behind a reading that the grant `mates` gives to the attacker: all except the first, as a
    single candidate batch (1, example - 1).

    - `reading`: the attacked readings; `row`: the reading's position in the batch.
    - `weights`: the model's weights, name → (*shape)."""
    assert reading.mates_inputs is not None and reading.mates_labels is not None
    like = next(iter(reading.values.values()))
    y = one_hot(reading.mates_labels[row], reading.classes, like.dtype).to(like.device)
    return Candidates(inputs=reading.mates_inputs[row].to(like)[None], targets=y[None], weights=weights)


def given_known(reading: Reading, observed: Tensors, known: Candidates) -> Given:
    """Build a simulator of the reading for an attacker with the grant `mates`: all examples except the first are known.
    Return a function. The function takes candidates for the unknown example and their gradients, name → (row, *shape),
    and returns each candidate's simulated reading, name → (row, *shape). The simulation follows the defense's
    description, or has no defense without a description.

    - `reading`: the attacked reading, with model and description.
    - `observed`: the reading as a gradient, name → (1, *shape).
    - `known`: the known examples behind the reading, from `known_examples`."""
    description = reading.description
    if description is not None and description.inside_steps:
        x, y = known.inputs[0][:, None], known.targets[0][:, None]
        each = group_gradients(reading.model, known.weights, x, y)
        return description.with_mates({name: value[None] for name, value in each.items()}, observed, known)
    return given_updates(reading, observed, *updates(reading, known))


def given_updates(
    reading: Reading, observed: Tensors, updated: Callable[[Tensors], dict[str, Tensor]], others: Tensors
) -> Given:
    """Build the simulator of `given_known` for a defense that acts on whole updates, not inside local steps. Return a
    function from candidates' gradients, name → (row, *shape), to simulated readings, name → (row, *shape); its second
    argument, the candidates, is not used.

    - `reading`: the attacked reading, with the defense's description.
    - `observed`: the reading as a gradient, name → (1, *shape).
    - `updated`: function from candidates' gradients to the first client's updates, both name → (row, *shape).
    - `others`: the other clients' updates, name → (client, *shape)."""
    description = reading.description
    if description is None:
        total = {name: value.sum(0) for name, value in others.items()}
        return lambda gradients, _: {
            name: (value + total.get(name, 0)) / reading.senders for name, value in updated(gradients).items()
        }
    sent = description.with_clients({name: value[None] for name, value in others.items()}, observed)
    return lambda gradients, _: sent(updated(gradients))


def updates(reading: Reading, known: Candidates) -> tuple[Callable[[Tensors], dict[str, Tensor]], Tensors]:
    """Compute the clients' updates for an attacker with the grant `mates`: all examples except the first are known. The
    unknown example belongs to the first client, so this client's update depends on the candidate. Return two parts:

    - a function from candidates' gradients to the first client's updates, both name → (row, *shape);
    - the other clients' updates, name → (client, *shape); empty for a single client.

    `reading` is the attacked reading, with the model; `known` are the known examples behind the reading."""
    x, y = known.inputs[0], known.targets[0]
    batch = (len(x) + 1) // reading.senders

    def means(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return group_gradients(reading.model, known.weights, inputs, targets)

    own = means(x[None, : batch - 1], y[None, : batch - 1]) if batch > 1 else {}
    others = {}
    if reading.senders > 1:
        others = means(*(value[batch - 1 :].unflatten(0, (-1, batch)) for value in (x, y)))

    def updated(gradients: Tensors) -> dict[str, Tensor]:
        if not own:
            return dict(gradients)
        return {name: (value + (batch - 1) * own[name]) / batch for name, value in gradients.items()}

    return updated, others


def inseparable(reading: Reading) -> str | None:
    """Return the reason, in a few words, why the unknown example's part cannot be separated from the batch `reading` by
    `of_unknown`, or None if it can be separated. All other examples behind a reading are known (the grant `mates`)."""
    if reading.labels is None:
        return "it knows all other examples and not the label of the unknown example; grant labels"
    if len(reading.rounds) > 1 or reading.stepwise:
        return "it separates known examples from a single local step's reading; set repeated_readings and steps to 1"
    description = reading.description
    if description is not None and description.mixed:
        return "training used mixtures of examples with secret partners; take gallery"
    if description is None or reading.senders == 1:
        return None
    others = {n: value[:1, 0].expand(reading.senders - 1, *value.shape[2:]) for n, value in reading.values.items()}
    random = not description.inside_steps and description.outcomes(others) is not None
    many = random and few_sums(description, others) is None
    if many or (description.single is None and (random or description.hard)):
        return "behind a mean, it cannot separate the client's message after these decisions; take gallery"
    return None


def of_unknown(reading: Reading, row: int) -> Reading:
    """Separate the unknown example's part from a reading, if all other examples are known (grant `mates`), so that an
    attack can invert this part like a single example's gradient. Return the part as a reading with a single example.
    The part is the difference between the reading and a simulated reading in which this example has a zero gradient,
    times the number of examples. In an undefended mean, the part is the example's gradient.

    - `reading`: the attacked readings, with known examples, labels and a single report on each victim.
    - `row`: the reading's position in the batch."""
    reading = reading.of([row])
    weights = {name: value[0] for name, value in reading.weights.items()}
    reading = _own_message(reading, weights)
    (observed,) = observations(reading)
    assert reading.labels is not None
    known, scale = known_examples(reading, 0, weights), float(reading.examples)
    like = next(iter(observed.values()))
    inside = reading.description is not None and reading.description.inside_steps
    # the same updates serve every description of the reading, also those with softened decisions
    whole_updates = None if inside else updates(reading, known)
    faint = Candidates(inputs=reading.public_mean.to(like)[None, None], targets=known.targets[:, :1], weights=weights)

    def part(description: Description | None) -> "_Part":
        described = replace(reading, description=description)
        if whole_updates is None:
            given = given_known(described, observed, known)
        else:
            given = given_updates(described, observed, *whole_updates)
        zero = given({name: torch.zeros_like(value) for name, value in observed.items()}, faint)
        updated = None if whole_updates is None else whole_updates[0]
        return _Part(description=description, given=given, zero=zero, scale=scale, updated=updated, refit=part)

    whole = part(reading.description)
    return replace(
        reading,
        values={name: value[:, None] for name, value in whole.own(observed).items()},
        batch=1,
        senders=1,
        unit=1.0,
        labels=reading.labels[:, :1],
        mates_inputs=None,
        mates_labels=None,
        client_examples=1,
        description=None if reading.description is None else whole,
    )


def _own_message(reading: Reading, weights: Tensors) -> Reading:
    """Return the first client's message behind a mean as a reading, if messages follow hard or random decisions: the
    message shows the decisions, and the mean does not. `reading` is a single reading; other readings are returned
    unchanged."""
    description = reading.description
    if description is None or description.single is None:
        return reading
    assert reading.labels is not None and reading.mates_inputs is not None and reading.mates_labels is not None
    (observed,) = observations(reading)
    updated, others = updates(reading, known_examples(reading, 0, weights))
    choices = few_sums(description, others)
    if choices is not None:
        guesses = gradients_of(reading, *public_of(reading, int(reading.labels[0, 0]), least=2))
        message = first_message(description, choices, updated(guesses), observed)
    elif description.hard:
        message = description.message(others, observed)
    else:
        return reading
    batch = reading.examples // reading.senders
    return replace(
        reading,
        values={name: value[:, None] for name, value in message.items()},
        senders=1,
        labels=reading.labels[:, :batch],
        mates_inputs=reading.mates_inputs[:, : batch - 1],
        mates_labels=reading.mates_labels[:, : batch - 1],
        description=description.single,
    )


def with_gaussian_rounding(part: Reading) -> Reading | None:
    """Return the unknown example's part in a reading with another description: Gaussian noise in place of the
    likelihood of a random rounding. In a large batch, the unknown example moves each coordinate by a small share of a
    rounding step. The likelihood of the rounding then has a barrier wherever a coordinate changes its sign, and the
    Gaussian distance has none. The noise has the rounding's variance in each coordinate, as a mean over public examples
    in the unknown example's place. Return None for a description without such a likelihood.

    - `part`: the unknown example's part, from `of_unknown`."""
    description, (observed,) = part.description, observations(part)
    if not isinstance(description, _Part) or description.log_likelihood(observed, observed) is None:
        return None
    assert part.labels is not None
    outcomes = description.outcomes(gradients_of(part, *public_of(part, int(part.labels[0, 0]))))
    if outcomes is None:
        return None
    variances = {name: _variance(value, outcomes.chances[name]).mean(0) for name, value in outcomes.values.items()}
    total = sum(value.numel() for value in variances.values())
    noise = Noise(variance=sum(float(value.sum()) for value in variances.values()) / total, variances=variances)
    return replace(part, description=replace(description, rounding=noise))


def _variance(values: Tensor, chances: Tensor) -> Tensor:
    """Return the variance over outcomes (row, *shape) of `values` and their probabilities `chances`, both (outcome,
    row, *shape)."""
    mean = (chances * values).sum(0)
    return (chances * (values - mean).square()).sum(0)


@dataclass(frozen=True, slots=True)
class _Part:
    """Description for the unknown example's part in a reading (`of_unknown`); `description` is the whole reading's."""

    description: Description | None
    given: Given  # whole readings for candidates
    zero: Tensors  # the whole reading of an example without gradient
    scale: float
    updated: Callable[[Tensors], dict[str, Tensor]] | None  # client's updates for the unknown example's gradients
    refit: Callable[[Description | None], "_Part"]
    rounding: Noise | None = None  # Gaussian noise in place of a random rounding's likelihood

    def own(self, whole: Tensors) -> dict[str, Tensor]:
        return {name: self.scale * (value - self.zero[name]) for name, value in whole.items()}

    def whole(self, own: Tensors) -> dict[str, Tensor]:
        return {name: value / self.scale + self.zero[name] for name, value in own.items()}

    @property
    def inner(self) -> Description:
        assert self.description is not None
        return self.description

    @property
    def noise(self) -> Noise:
        return self.rounding or self.inner.noise.times(self.scale)

    additive = changes = inside_steps = True
    ordered = mixed = False
    senders = 1
    clients: Clients | None = None
    single: Description | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        return self.inner.notes

    @property
    def hard(self) -> bool:
        return self.inner.hard

    def mixing(self, size: int, count: int, seed: int) -> Tensor:
        raise NotImplementedError(_SINGLE)

    def softened(self, width: float) -> "_Part":
        return self.refit(self.inner.softened(width))

    def simulate(
        self, per_example: Tensors, observed: Tensors, candidates: Candidates | None = None
    ) -> dict[str, Tensor]:
        assert candidates is not None
        return self.own(self.given({name: value[:, 0] for name, value in per_example.items()}, candidates))

    def log_likelihood(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        if self.rounding is not None:
            return None
        return self.inner.log_likelihood(self.whole(simulated), self.whole(observed))

    def log_density(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        return self.inner.log_density(self.whole(simulated), self.whole(observed))

    def with_mates(self, mates: Tensors, observed: Tensors, behind: Candidates) -> Given:
        raise NotImplementedError(_SINGLE)

    def local_steps(self, observed: Tensors) -> StepDefense:
        raise NotImplementedError(_SINGLE)

    def sent(self, updates: Tensors, observed: Tensors) -> dict[str, Tensor]:
        raise NotImplementedError(_SINGLE)

    def with_clients(self, others: Tensors, observed: Tensors) -> Callable[[Tensors], dict[str, Tensor]]:
        raise NotImplementedError(_SINGLE)

    def message(self, others: Tensors, observed: Tensors) -> dict[str, Tensor]:
        raise NotImplementedError(_SINGLE)

    def outcomes(self, updates: Tensors) -> Outcomes | None:
        if self.updated is None or self.inner.senders > 1:
            return None
        whole = self.inner.outcomes(self.updated(updates))
        return whole and Outcomes(values=self.own(whole.values), chances=whole.chances)
