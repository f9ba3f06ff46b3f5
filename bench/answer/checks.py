"""Checks of readings (observed updates) before the attack: effect of the defense, objective at the true examples,
conditions, ε."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bench import rng
from bench.answer.decoder import decoder_places, has_likelihood
from bench.answer.explained import explained
from bench.answer.readings import observe
from bench.answer.reconstruct import attacker_of
from bench.answer.setup import Setup
from bench.answer.truth import CellTruth
from bench.answer.values import Diagnosis, finite
from bench.answer.victims import Truth, trained_at
from bench.attacks.base import Attack
from bench.ceilings.linear_gaussian import mean_squared_errors
from bench.cell import AttackCell
from bench.epsilon import Epsilon
from bench.federated.batches import Batches
from bench.federated.describe import is_random, untouched
from bench.federated.privacy import at_point
from bench.gradients import one_hot
from bench.points import Point
from bench.record.schema import AttackConditions, Privacy, SelfCheck
from bench.scoring.reading import reading_cosine, reading_snr
from bench.trip import Reading

REFERENCES = 8  # readings per cell: seconds each


def diagnose(
    cell: AttackCell, setup: Setup, truth: CellTruth, reading: Reading, batches: Sequence[Batches]
) -> Diagnosis:
    """Check the readings (observed updates) of a cell (an experiment) before the attack. Return the effect of the
    defense on the readings (SNR and cosine), the attack's objective at the true examples, the conditions of the attack,
    and ε. Raises `NotApplicable` if the attack refuses the readings.

    - `setup`: model, weights and defense of the round.
    - `truth`: true examples behind the readings.
    - `reading`: the attacker's readings.
    - `batches`: the observed clients' batches, to repeat the round without the defense."""
    attacker = attacker_of(cell, reading)
    examples = truth.examples
    trained = trained_at(cell, setup, truth.victims, truth.point)  # the truth after stage `input`
    places = None if truth.gallery is None else decoder_places(reading, examples, truth.gallery)
    rounds = range(len(reading.rounds)) if cell.grants.varies or reading.several_rounds else range(1)
    several = [
        observe(cell, replace(setup, weights=weights), truth.point, batches, setup.undefended)
        for weights in ({name: value[number] for name, value in reading.weights.items()} for number in rounds)
    ]
    undefended = several[-1]
    values = {name: value.numpy() for name, value in reading.values.items()}
    without = {
        name: torch.stack([each[name] for each in several], 1).expand(-1, len(reading.rounds), *value.shape[1:]).numpy()
        for name, value in undefended.items()
    }
    snr, cosine = reading_snr(values, without), reading_cosine(values, without)
    return Diagnosis(
        snr_db=tuple(finite(float(value)) for value in snr),
        cosine=tuple(finite(float(value)) for value in cosine),
        self_check=self_check(attacker, reading, trained, setup, cell.seed),
        conditions=conditions(cell, setup, truth.point, reading, undefended, decoded=places is not None),
        privacy=privacy_at(setup, truth.point, reading),
        places=places,
        reference_db=reference(reading, examples) if cell.reference and not setup.stages.has("input") else None,
    )


def reference(reading: Reading, truth: Truth) -> float | None:
    """Return the PSNR in dB of the best possible estimate of an example, a reference next to the attacks' PSNR. The
    estimate is the best for a gradient that is linear around the true example, and for a Gaussian prior
    (`bench.ceilings.linear_gaussian`).

    - `reading`: the attacker's readings (observed updates); the result is the median over the first `REFERENCES`.
    - `truth`: true examples behind the readings.

    None for data other than images, for several examples, local steps or rounds behind a reading, and without noise of
    known variance."""
    if not reading.kind.spatial:
        return None
    errors = mean_squared_errors(reading, truth.inputs[:REFERENCES, 0], truth.labels[:REFERENCES, 0])
    return None if errors is None else float(-10 * errors.median().log10())


def self_check(attacker: Attack, reading: Reading, truth: Truth, setup: Setup, seed: int) -> SelfCheck:
    """Test whether an attack can recognise the true examples: compare its mean objective, which the attack minimises,
    at the true examples and at random public examples. Both means are None if the attack has no objective. The result
    also says whether the defense's description, applied to the true examples, gives the readings (observed updates).

    - `attacker`: the attack.
    - `reading`: the attacked readings.
    - `truth`: true examples behind the readings, as the gradient used them.
    - `setup`: values of the round; holds the public examples.
    - `seed`: seed that draws the public examples."""
    described = explained(reading, truth)
    objective = attacker.objective(reading)
    if objective is None:
        return SelfCheck(explained=described)
    data, inputs, labels = setup.data, truth.inputs, truth.labels
    chosen = rng.generator(seed, "self-check").integers(len(data.public), size=labels.numel())
    public = torch.from_numpy(data.public.floats(chosen)).reshape(inputs.shape)
    public_labels = torch.from_numpy(data.public.labels[chosen]).reshape(labels.shape)
    at_truth = float(objective(inputs, truth.probabilities(data.classes, inputs.dtype)).mean())
    at_public = float(objective(public, one_hot(public_labels, data.classes, inputs.dtype)).mean())
    return SelfCheck(
        distance_at_truth=finite(at_truth),
        distance_at_public=finite(at_public),
        recognises_truth=at_truth < at_public,
        explained=described,
    )


def conditions(
    cell: AttackCell,
    setup: Setup,
    point: Point,
    reading: Reading,
    undefended: Mapping[str, Tensor],
    *,
    decoded: bool = False,
) -> AttackConditions:
    """Return the conditions of the attack in `cell` (an experiment) for its record: the model's state, gradient norms
    and the attacker's knowledge.

    - `setup`, `point`: the round's model, weights and defense; the interception point.
    - `reading`: the attacker's readings (observed updates).
    - `undefended`: the same readings without the defense, name → (reading, *shape); their norms are recorded.
    - `decoded`: True if the granted candidates were ranked by exact likelihood (`bench.answer.decoder`)."""
    norms = torch.stack([value.flatten(1).square().sum(1) for value in undefended.values()]).sum(0).sqrt()
    weights_norm = float(sum(value.square().sum() for value in setup.weights.values()) ** 0.5)
    knows_all = reading.description is not None or untouched(setup.stages, point)
    return AttackConditions(
        round=setup.trained_rounds,
        accuracy=setup.accuracy,
        gradient_norm_median=finite(float(norms.median())),
        weights_norm=finite(weights_norm),
        mode="eval",
        client_examples=reading.client_examples,
        examples_per_reading=reading.examples,
        subset=setup.data.subset,
        described=cell.knowledge == "adaptive" and knows_all,
        simulated=cell.knowledge == "black-box",
        random=is_random(setup.stages, point),
        exact=decoded or (reading.unknown == 1 and has_likelihood(reading)),
    )


def privacy_at(setup: Setup, point: Point, reading: Reading) -> Privacy:
    """Return the ε that the defense in `setup` guarantees for a reading (an observed update) at the interception
    `point`, or the reason why no ε exists. ε grows with the number of repeated observations in `reading`."""
    spent, absent = at_point(
        setup.defense,
        setup.setting,
        point,
        tensors=len(setup.weights),
        coordinates=setup.coordinates,
        round_=setup.round,
        observations=len(reading.rounds),
    )
    return privacy(() if spent is None else (spent,), spent, absent)


def privacy(figures: tuple[Epsilon, ...], headline: Epsilon | None, absent: str | None) -> Privacy:
    """Return values of ε in the form for a record.

    - `figures`: ε by each rule of accounting.
    - `headline`: the main ε among `figures`; None: no ε exists.
    - `absent`: reason why no ε exists; None if `headline` is given."""
    epsilon, absent = (headline.epsilon, headline.absent) if headline else (None, absent)
    return Privacy(epsilon=epsilon, absent=absent, figures=figures)
