"""What stands beside the scores: the distortion of the readings, the attacker's self-check, the circumstances
(`AttackConditions`: norms, accuracy, what is described), ε at the point.

All of it is known to the harness alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bench import rng
from bench.answer.decoder import decoder_places, has_likelihood
from bench.answer.explained import explained
from bench.answer.gallery import Gallery
from bench.answer.readings import observe
from bench.answer.setup import Setup, defense_of
from bench.answer.victims import Truth
from bench.attacks.base import Attack
from bench.ceilings.linear_gaussian import mean_squared_errors
from bench.cell import AttackCell
from bench.defenses.accounting.report import EpsilonReport
from bench.federated.batches import Batches
from bench.federated.describe import is_random, untouched
from bench.federated.privacy import at_point
from bench.gradients import one_hot
from bench.points import Point
from bench.record.schema import AttackConditions, Distortion, Epsilon, Privacy, SelfCheck
from bench.scoring.reading import reading_cosine, reading_snr
from bench.trip import Reading

REFERENCES = 8  # readings of a cell: seconds each


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """`snr_db` and `cosine` are of each reading against the undefended one; `places` as of `decoder_places`;
    `reference_db` as of `reference`."""

    snr_db: tuple[float | None, ...]
    cosine: tuple[float | None, ...]
    distortion: Distortion
    self_check: SelfCheck
    conditions: AttackConditions
    privacy: Privacy
    places: tuple[int, ...] | None = None
    reference_db: float | None = None

    def of(self, rows: tuple[int, ...]) -> Distortion:
        """The distortion of some readings, by number."""
        if len(rows) == len(self.snr_db):
            return self.distortion
        snr, cosine = (np.array([each[row] for row in rows], np.float64) for each in (self.snr_db, self.cosine))
        return Distortion(
            snr_db_median=finite(float(np.median(snr))),
            snr_db_least=finite(float(np.min(snr))),
            cosine_median=finite(float(np.median(cosine))),
        )


def diagnose(
    cell: AttackCell,
    setup: Setup,
    point: Point,
    reading: Reading,
    batches: Sequence[Batches],
    attacker: Attack,
    truth: Truth,
    trained: Truth,
    gallery: Gallery | None = None,
) -> Diagnosis:
    """All the checks of one attack cell; `trained`: what the gradients were computed on, the truth after stage
    `input`."""
    places = None if gallery is None else decoder_places(reading, truth, gallery)
    undefended = observe(cell, setup, point, batches, setup.undefended)
    values = {name: value.numpy() for name, value in reading.values.items()}
    without = {
        name: value[:, None].expand(-1, len(reading.rounds), *value.shape[1:]).numpy()
        for name, value in undefended.items()
    }
    snr, cosine = reading_snr(values, without), reading_cosine(values, without)
    return Diagnosis(
        snr_db=tuple(finite(float(value)) for value in snr),
        cosine=tuple(finite(float(value)) for value in cosine),
        distortion=Distortion(
            snr_db_median=finite(float(np.median(snr))),
            snr_db_least=finite(float(np.min(snr))),
            cosine_median=finite(float(np.median(cosine))),
        ),
        self_check=self_check(attacker, reading, trained, setup, cell.seed),
        conditions=conditions(cell, setup, point, reading, undefended, decoded=places is not None),
        privacy=privacy_at(cell, setup, point, reading),
        places=places,
        reference_db=reference(reading, truth) if cell.reference and not setup.stages.has("input") else None,
    )


def reference(reading: Reading, truth: Truth) -> float | None:
    """The median PSNR of the linear-Gaussian reference over the first readings; None where it has none, and for
    tables."""
    errors = mean_squared_errors(reading, truth.inputs[:REFERENCES, 0], truth.labels[:REFERENCES, 0])
    return None if errors is None or reading.kind != "image" else float(-10 * errors.median().log10())


def self_check(attacker: Attack, reading: Reading, truth: Truth, setup: Setup, seed: int) -> SelfCheck:
    """The matching distance at the truth, what was trained on, and at random public examples; absent for attacks that
    match nothing."""
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
    """What the attack ran under; `decoded`: the batch's decoder answered beside it."""
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
        exact=decoded or (reading.examples == 1 and has_likelihood(reading)),
    )


def privacy_at(cell: AttackCell, setup: Setup, point: Point, reading: Reading) -> Privacy:
    """ε at the point: what bounds any attacker there, or why nothing does."""
    spent, absent = at_point(
        defense_of(cell),
        setup.setting,
        point,
        tensors=len(setup.weights),
        coordinates=setup.coordinates,
        round_=setup.round,
        observations=len(reading.rounds),
    )
    return privacy(() if spent is None else (spent,), spent, absent)


def privacy(figures: tuple[EpsilonReport, ...], headline: EpsilonReport | None, absent: str | None) -> Privacy:
    """ε as a record has it: every figure, the headline's, and why there is none."""
    epsilon, absent = (headline.epsilon, headline.absent) if headline else (None, absent)
    return Privacy(epsilon=epsilon, absent=absent, figures=tuple(Epsilon(**figure.json()) for figure in figures))


def finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
