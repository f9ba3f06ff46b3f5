"""Recognition of a client's examples behind an update from several local steps, or from many examples.

A true example is recognised if its score is above the scores of strangers with the same label. An example's score is
the update's component along the example's gradient at the received weights, after whitening: directions that are
common among public gradients count little."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.assess.client import Client
from bench.assess.result import Figure
from bench.attacks.candidates.listed import alone
from bench.attacks.candidates.naming import VALUES
from bench.attacks.inverter.sketch import Sketch
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.errors import BenchError
from bench.gradients import group_gradients, one_hot
from bench.rng import Key
from bench.scoring.summary import share
from bench.trip import Reading

STRANGERS = 9  # with the label of each true example
_TRIALS = 64  # true examples, at most
_FEWEST = 8
_FIT = 1000  # public examples for the whitening
_RIDGE = 1e-4  # of the mean squared norm of a gradient
_PROBE = 32  # public examples whose gradients are timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Trials that measure whether an update gives away a client's examples: each trial has a true example, and
    strangers with the same label from public data. The true example is recognised if its score is above all strangers'
    scores."""

    members: Tensor
    """Positions of the true examples in the client's data, (trial,)."""
    strangers: Tensor
    """Positions of the strangers in the public examples, (trial, stranger)."""
    fit: Tensor
    """Positions of the public examples for the whitening, (example,); none is a stranger."""

    @classmethod
    def of(cls, client: Client, seed: int) -> "Trials":
        """Draw the trials for `client` with `seed`: at most 64 of its examples, each with nine public examples of the
        same label. Raises `BenchError` if `client` has too few public examples with labels."""
        if client.public is None or client.public_labels is None:
            raise BenchError("no public examples with labels")
        draw = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(client.public), generator=draw)
        half = min(_FIT, len(order) // 2)
        fit, others = order[:half], order[half:]
        members, strangers = [], []
        for at in torch.randperm(client.labels.numel(), generator=draw)[:_TRIALS]:
            own = others[client.public_labels[others] == client.labels.flatten()[at]]
            if len(own) >= STRANGERS:
                members.append(at)
                strangers.append(own[torch.randperm(len(own), generator=draw)[:STRANGERS]])
        if len(members) < _FEWEST:
            raise BenchError(
                f"too few strangers: examples of the client with {STRANGERS} public examples of the same label: "
                f"{len(members)} of {_FEWEST} or more; give more public examples"
            )
        return cls(members=torch.stack(members), strangers=torch.stack(strangers), fit=fit)


def expected_seconds(client: Client, trials: Trials) -> float:
    """Return the seconds that `recognised` will take for these `trials` of `client`, estimated from a short measurement
    on this machine."""
    assert client.public is not None and client.public_labels is not None
    few, began = trials.fit[:_PROBE], time.monotonic()
    _gradients(client, _sketch(client), client.public[few], client.public_labels[few])
    count = len(trials.fit) + trials.strangers.numel() + len(trials.members)
    return 2 * (time.monotonic() - began) * count / len(few)


def recognised(client: Client, update: Reading, trials: Trials) -> Figure:
    """Measure how many examples of `client` its `update` gives away: return the share of `trials` in which the true
    example has a higher score than all strangers. The score is the update's component along the example's gradient,
    with directions that are common among public gradients reduced (whitening). This also works for several local steps
    and many examples."""
    assert client.public is not None and client.public_labels is not None
    inputs, labels = client.inputs.flatten(0, 1), client.labels.flatten()
    sketch, at = _sketch(client), trials.strangers.flatten()
    known = _gradients(client, sketch, client.public[trials.fit], client.public_labels[trials.fit])
    strangers = _gradients(client, sketch, client.public[at], client.public_labels[at])
    members = _gradients(client, sketch, inputs[trials.members], labels[trials.members])
    mean = mean_observation(observations(update))
    observed = sketch({name: value[:1].cpu() for name, value in mean.items()}).float()
    whiten = _Whitening.of(known)
    scores = whiten.scores(strangers, observed).reshape(trials.strangers.shape)
    hits = whiten.scores(members, observed) > scores.amax(1)
    return Figure(share=share(hits.tolist(), [*range(len(hits))]), of=len(hits), chance=1 / (1 + STRANGERS))


def _sketch(client: Client) -> Sketch:
    return Sketch.of({name: tuple(value.shape) for name, value in client.weights.items()}, Key(seed=0), VALUES)


def _gradients(client: Client, sketch: Sketch, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return each example's gradient at the received weights, as a vector: (example, value)."""
    chunks = alone(inputs, one_hot(labels, client.classes, inputs.dtype))
    return torch.cat([sketch(group_gradients(client.model, client.weights, x, y)).float() for x, y in chunks])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whitening:
    known: Tensor
    """Gradients of public examples, (example, value)."""
    inverse: Tensor
    """Inverse of their Gram matrix with a ridge, (example, example) in float64."""

    @classmethod
    def of(cls, known: Tensor) -> "_Whitening":
        gram = (known @ known.T).double()
        ridge = _RIDGE * gram.diagonal().mean().clamp_min(1e-30)
        return cls(known=known, inverse=torch.linalg.inv(gram + ridge * torch.eye(len(gram), dtype=gram.dtype)))

    def scores(self, gradients: Tensor, observed: Tensor) -> Tensor:
        """Return gᵀ W u / √(gᵀ W g) for each of the `gradients` g, (example,), with the whitening W and the update u =
        `observed` (1, value)."""
        common, of_update = (gradients @ self.known.T).double(), (self.known @ observed[0]).double()
        along = (gradients @ observed[0]).double() - common @ (self.inverse @ of_update)
        size = gradients.square().sum(1).double() - (common @ self.inverse * common).sum(1)
        return along / size.clamp_min(1e-30).sqrt()
