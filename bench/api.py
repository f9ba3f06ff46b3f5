"""Python API: attack your own gradient and score the reconstructions, without a run folder.

from bench import api reading = api.reading(gradients, model=model, weights=model.state_dict(), shape=(1, 28, 28),
classes=10) reconstruction = api.attack(reading, "cpl", evaluations=500) scores = api.score(reconstruction, truth,
labels, public=public_examples) api.save_pictures("leak.png", truth, reconstruction) print(scores.summary.asr.value)

`check` tests whether a reading agrees with the settings declared for it; `score` includes this test.  docs/OWN.md
treats updates with several local steps, known defenses, Opacus and Flower."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.answer.readings import to_device
from bench.attacks.base import Attack
from bench.datasets.base import Group
from bench.device import repeatable
from bench.errors import BenchError, NotApplicable
from bench.gradients import batch_gradient, one_hot
from bench.kinds.known import of_shape
from bench.own import coerce
from bench.own.check import Check, check
from bench.own.coerce import ZERO_TO_ONE, Range, Values
from bench.own.copies import plain_copy, unwrapped
from bench.own.flower import from_flower
from bench.own.frames import Frames, frames
from bench.own.given import build, open_reading, reading, save_reading
from bench.own.local import SGD
from bench.own.opacus import OpacusStep, from_opacus
from bench.own.repeats import Claim, claim
from bench.own.weights import refuse_batch_statistics
from bench.pictures.grid import grid
from bench.pictures.grid import save as save_picture
from bench.registry import entries as registry
from bench.rng import Key
from bench.sanitize import first_line
from bench.scoring.assign import assign, in_order
from bench.scoring.lpips_metric import lpips_for
from bench.scoring.prior_only import prior_only_baselines
from bench.scoring.score import Scores
from bench.scoring.score import score as score_examples
from bench.sweep.session import chosen_device
from bench.trip import Budget, Reading, Reconstruction
from bench.uses import bypass, reached

__all__ = (
    "SGD",
    "Check",
    "OpacusStep",
    "attack",
    "build",
    "check",
    "frame",
    "from_flower",
    "from_opacus",
    "gradient",
    "open_reading",
    "reading",
    "save_pictures",
    "save_reading",
    "score",
)
NO_PUBLIC = "a uniform grey, as no public examples were given; a real prior is nearer to the truth"


def gradient(model: nn.Module, inputs: Values, labels: Values) -> dict[str, Tensor]:
    """Return the mean cross-entropy gradient over a batch, name → (*shape), from a copy of the model in eval mode.

    `inputs` are (example, *shape), `labels` (example,).  The gradient is plain autograd's over the whole batch.  Raises
    `BenchError` for inputs or labels unfit for the model, and for a model whose copy uses the original's parameters."""
    refuse_batch_statistics(model)
    module = plain_copy(model)
    module.requires_grad_()
    x = coerce.tensor(inputs, "inputs").to(next(module.parameters()).dtype)
    try:
        with torch.enable_grad():
            logits = module(x.clone())
            classes = logits.shape[-1]
    except (RuntimeError, ValueError, IndexError) as error:
        wrong = f"{tuple(x.shape)}, (example, *shape): {first_line(error)}"
        raise BenchError(f"the model takes no inputs of shape {wrong}") from None
    targets = one_hot(coerce.labels(labels, len(x), classes), classes, x.dtype)
    if name := reached(logits, dict(unwrapped(model).named_parameters())):
        raise BenchError(bypass(name))
    return batch_gradient(module, logits, targets)


def attack(
    reading: Reading,
    attack: str | Attack = "cpl",
    *,
    evaluations: int = 500,
    chunk: int = 32,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    params: Mapping[str, Any] | None = None,
) -> Claim:
    """Attack the readings in `reading` (a `Reading` holds several, on the first axis of its tensors), and return their
    reconstructions in the same order. Raises `BenchError` for an unknown attack or an unsupported reading.

    - `attack`: name of a registered attack, or an instance.
    - `evaluations`: objective evaluations per reading, restarts included.
    - `chunk`: number of readings attacked at once.
    - `seed`: seed of the attack's random numbers.
    - `params`: parameters of an attack given by name.

    An attack with a parameter `local` simulates several local steps one by one (`local="unrolled"`), unless `params`
    sets it. An example used in several epochs is returned once."""
    if evaluations < 1 or chunk < 1:
        raise BenchError(f"evaluations and chunk must be at least 1, got {evaluations} and {chunk}")
    chosen = _chosen(attack, params or {}, several_steps=reading.steps > 1) if isinstance(attack, str) else attack
    if device not in ("auto", "cpu", "cuda"):
        raise BenchError(f"device {device!r}: it is auto, cpu or cuda")
    place = torch.device(chosen_device(device))
    held = replace(reading, model=copy.deepcopy(reading.model))  # it may be moved to the device
    try:
        if reading.kind.name not in chosen.takes:
            raise NotApplicable(f"it takes {' and '.join(chosen.takes)}, this is {reading.kind.article}")
        if reason := chosen.refuses(held):
            raise NotApplicable(reason)
        budget = Budget(evaluations=evaluations, chunk=chunk)
        with repeatable(place):
            return claim(chosen.reconstruct(to_device(held, place), budget, Key(seed=seed)), reading)
    except NotApplicable as reason:
        name = attack if isinstance(attack, str) else type(attack).__name__
        raise BenchError(f"attack {name} cannot take this reading: {reason}") from None
    except (RuntimeError, KeyError) as error:  # e.g. a layer without a second derivative
        name = attack if isinstance(attack, str) else type(attack).__name__
        said = f"{type(error).__name__}: {first_line(error)}"
        raise BenchError(f"attack {name} cannot run this model or reading: {said}; try gallery or another") from error


def score(
    reconstruction: Reconstruction,
    truth: Values,
    labels: Values,
    *,
    public: Values | None = None,
    public_labels: Values | None = None,
    labels_known: bool = False,
    value_range: Range = ZERO_TO_ONE,
    groups: Sequence[Group] = (),
    kind: str | None = None,
) -> Scores:
    """Return PSNR, SSIM and other metrics for each example (`readings`), and their `summary`, as in a record.

    - `truth` (reading, example, *shape), `labels` (reading, example): the true examples; fewer axes are accepted.
    - `public` (example, *shape): examples for the prior-only baselines and for the gallery of identification. Without
      `public` there is no identification, and `priors_from` names the baseline.
    - `public_labels` (example,): labels of `public`.
    - `labels_known`: True if the attacker had the true labels; a blind guess then has the right class. Requires
      `public_labels`.
    - `value_range`: range of the values; it is mapped to [0, 1].
    - `groups`: columns of a table; without them every column is numeric.
    - `kind`: kind of data; None takes the reading's kind, or infers the kind from `truth`.

    A result of `attack` is also checked against the truth (`check`). If the truth does not explain the update, low
    figures are meaningless: a warning is issued, and `doubt` holds the reason. Raises `BenchError` for mismatched
    shapes, labels or values."""
    claimed = replace(reconstruction, inputs=_scaled(reconstruction, value_range))
    true = coerce.scaled(coerce.like_reading(truth, tuple(claimed.inputs.shape)), value_range, "truth")
    true_labels = coerce.labels(labels, true.shape[0] * true.shape[1]).reshape(true.shape[:2])
    shape = true.shape[2:]
    of_data = (
        claimed.reading.kind
        if isinstance(claimed, Claim) and kind is None
        else of_shape(shape, kind, integers=coerce.integers(truth, "truth"))
    )
    known, known_labels = np.full((1, *shape), 0.5), np.array([-1])
    if public is not None:
        known = coerce.scaled(coerce.examples(public, shape, "public"), value_range, "public")
        known_labels = np.full(len(known), -1)
    if labels_known and (public is None or public_labels is None):
        raise BenchError("labels_known: chance is among examples of the true class; give public and public_labels")
    if public is not None and public_labels is not None:
        known_labels = coerce.labels(public_labels, len(known)).numpy()
    if of_data.columns and not groups:
        groups = tuple(
            Group(name=str(n), columns=(n,), categorical=False, deviation=float(column.std()))
            for n, column in enumerate(known.T)
        )
    lpips, lpips_absent = lpips_for(of_data)
    scores = score_examples(
        true,
        true_labels.numpy(),
        claimed,
        kind=of_data,
        groups=groups,
        priors=prior_only_baselines(known, known_labels, true_labels.numpy(), of_data.values),
        gallery=None if public is None else known,
        lpips=lpips,
        gallery_labels=known_labels if labels_known else None,
    )
    doubt = _doubt(reconstruction, true, true_labels)
    if doubt:
        warnings.warn(f"the scores say nothing: {doubt}", stacklevel=2)
    return replace(
        scores,
        lpips_absent=lpips_absent,
        doubt=doubt,
        priors_from=NO_PUBLIC if public is None else "the public examples given",
    )


def _doubt(claimed: Reconstruction, true: NDArray[np.float64], labels: Tensor) -> str | None:
    """Return the reason why scores against these examples are meaningless; None if there is no reason. `true` is in [0,
    1]."""
    if not isinstance(claimed, Claim):
        return None
    low, high = claimed.reading.value_range
    checked = check(claimed.reading, low + (high - low) * torch.from_numpy(true), labels)
    return f"the truth {checked.line}" if checked.explained is False else None


def save_pictures(
    path: str | PathLike[str], truth: Values | None, reconstruction: Reconstruction, *, value_range: Range = ZERO_TO_ONE
) -> Path:
    """Write a PNG with up to eight truths above their reconstructions; if `truth` is None, only reconstructions.
    `value_range` is the range of the values. Raises `BenchError` if the data are no images."""
    guess = _scaled(reconstruction, value_range).numpy()
    kind = reconstruction.reading.kind if isinstance(reconstruction, Claim) else of_shape(guess.shape[2:])
    if truth is None:
        image = grid(guess, guess, kind)
        image = image and image.crop((0, image.height // 2, image.width, image.height))
    else:
        true = coerce.scaled(coerce.like_reading(truth, guess.shape), value_range, "truth")
        image = grid(true, in_order(guess, assign(true, guess, kind.values)), kind)
    if image is None:
        raise BenchError(f"{path}: there is no picture to draw")
    save_picture(image, Path(path))
    return Path(path)


def frame(run: str | PathLike[str]) -> Frames:
    """Return a run's `cells` and `victims` as pandas DataFrames, with a row per cell and a row per attacked example.

    cells, examples = api.frame("runs/quickstart")  # in a cascade, attacks see the remaining readings
    examples.join(cells[["defense", "point"]]).groupby(["defense", "point"])["success"].mean().unstack().plot.bar()

    Raises `RecordError` for a folder without records."""
    return frames(Path(run))


def _chosen(name: str, params: Mapping[str, Any], *, several_steps: bool) -> Attack:
    made: Attack = registry.instance("attacks", name, params)
    if several_steps and "local" not in params and hasattr(made, "local"):
        made = registry.instance("attacks", name, {**params, "local": "unrolled"})
    return made


def _scaled(reconstruction: Reconstruction, value_range: Range) -> Tensor:
    low, high = value_range
    return (reconstruction.inputs.detach().cpu().double() - low) / (high - low)
