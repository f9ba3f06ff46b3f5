"""The short path from Python: one's own gradient in, reconstructions and scores out, no run folder.

    from bench import api
    reading = api.reading(gradients, model=model, weights=model.state_dict(), shape=(1, 28, 28), classes=10)
    reconstruction = api.attack(reading, "cpl", evaluations=500)
    scores = api.score(reconstruction, truth, labels, public=public_examples)
    api.save_pictures("leak.png", truth, reconstruction)
    print(scores.summary.asr.value)

Where the gradients come from:

*A training loop.*  After `loss.backward()`: `{name: p.grad for name, p in model.named_parameters()}`, with the weights
from before the optimiser's step.

*Opacus.*  `p.grad_sample` holds one gradient per example, before clipping: each is a reading.

    inner = private_model._module
    gradients = {name: p.grad_sample for name, p in inner.named_parameters()}    # (example, *shape)
    reading = api.reading(gradients, model=inner, shape=(1, 28, 28), classes=10)

*Flower.*  A client sends new weights; what they tell is the update.  For L local steps of batch B at rate η, with
`before` and `after` lists of arrays in the order of `model.named_parameters()`:

    update = [b - a for b, a in zip(before, after)]
    reading = api.reading(update, model=model, weights=dict(zip(names, before)), shape=(1, 28, 28), classes=10,
                          batch=B, steps=L, rate=eta, unit=eta)
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bench.answer.readings import to_device
from bench.attacks.base import Attack
from bench.datasets.base import Group
from bench.device import repeatable
from bench.errors import BenchError, NotApplicable
from bench.gradients import group_gradients, one_hot
from bench.models.base import Model
from bench.own import coerce
from bench.own import files as reading_files
from bench.own.coerce import Range, Values
from bench.own.frames import Frames, frames
from bench.pictures.grid import grid
from bench.pictures.grid import save as save_picture
from bench.points import point
from bench.record.checkpoints import fit
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

NO_PUBLIC = "a uniform grey, as no public examples were given; a real prior is nearer to the truth"
ZERO_TO_ONE: Range = (0.0, 1.0)


def build(
    name: str, *, shape: tuple[int, ...], classes: int, seed: int = 0, params: Mapping[str, Any] | None = None
) -> nn.Module:
    """A registered model as a module in eval mode, at its initial weights of that seed.

    Raises `BenchError` for an unknown name or parameter, or a shape that it cannot take.
    """
    architecture: Model = registry.instance("models", name, params or {})
    try:
        module = architecture.build(shape, classes).eval()
    except (ValueError, RuntimeError, TypeError) as error:
        raise BenchError(f"model {name!r} takes no inputs of shape {shape}: {first_line(error)}") from None
    with torch.no_grad():
        for key, value in architecture.initial(module, seed).items():
            module.get_parameter(key).copy_(value)
    return module


def gradient(model: nn.Module, inputs: Values, labels: Values) -> dict[str, Tensor]:
    """The mean gradient of cross entropy over a batch, name → (*shape), with the model in eval mode.

    `inputs` (example, *shape), `labels` (example,).  The model itself is left as it is.  Raises `BenchError` for
    inputs or labels that do not fit it.
    """
    module = _copy(model)
    weights = {name: value.detach() for name, value in module.named_parameters()}
    x = coerce.tensor(inputs, "inputs").to(next(iter(weights.values())).dtype)
    try:
        with torch.no_grad():
            classes = module(x).shape[-1]
    except (RuntimeError, ValueError, IndexError) as error:
        wrong = f"{tuple(x.shape)}, (example, *shape): {first_line(error)}"
        raise BenchError(f"the model takes no inputs of shape {wrong}") from None
    targets = one_hot(coerce.labels(labels, len(x), classes), classes, x.dtype)
    gradients = group_gradients(module, weights, x[None], targets[None])
    return {name: value[0].detach() for name, value in gradients.items()}


def reading(
    gradients: Mapping[str, Values] | Sequence[Values], *, model: nn.Module | str, shape: tuple[int, ...],
    classes: int, weights: Mapping[str, Values] | None = None, batch: int = 1, steps: int = 1, rate: float = 1.0,
    unit: float = 1.0, value_range: Range = ZERO_TO_ONE, labels: Values | None = None, public: Values | None = None,
    public_labels: Values | None = None,
) -> Reading:  # fmt: skip
    """What an attacker holds of one's own gradients, ready for `attack`.

    `gradients`: name → tensor, or a list in the order of `model.parameters()`; each of its parameter's shape, or
    (reading, *shape) for several readings under the same weights.  `model` is a module (copied, and put into eval mode)
    or a registered name; `weights` those at which the gradients were taken, by default the module's own.  `unit` is 1
    for gradients, and `rate` for a weight difference w_0 - w_L over `steps` local steps of `batch` examples.  `labels`,
    if given, are the true ones and count as granted.  `public` (example, *shape) and `public_labels` (example,) are
    what anyone may know; without them, one uniform grey.

    Raises `BenchError`, in one line, for whatever does not fit together.
    """
    meta = reading_files.checked_meta(
        shape=tuple(shape), classes=classes, batch=batch, steps=steps, rate=rate, unit=unit,
        value_range=tuple(value_range),
    )  # fmt: skip
    if isinstance(model, str) and weights is None:
        raise BenchError(f"model {model!r} is given by name: give the weights of the gradients, too")
    module = build(model, shape=meta.shape, classes=classes) if isinstance(model, str) else _copy(model)
    named = {name: coerce.tensor(value, f"weight {name!r}") for name, value in (weights or {}).items()}
    own = {name: value.detach() for name, value in module.named_parameters()}
    parameters = fit(module, named, where="weights") if weights is not None else own
    values = coerce.gradients(gradients, parameters)
    count, examples = len(next(iter(values.values()))), batch * steps
    known = torch.full((1, *meta.shape), sum(meta.value_range) / 2)
    if public is not None:
        known = coerce.examples(public, meta.shape, "public")
    known_labels = torch.full((len(known),), -1)
    if public_labels is not None:
        known_labels = coerce.labels(public_labels, len(known), classes)
    granted = None
    if labels is not None:  # in ascending order: the order of a batch is nobody's to know
        granted = coerce.labels(labels, count * examples, classes).reshape(count, examples).sort(1).values
    return Reading(
        point=point("type-2" if examples == 1 else "type-1"), linked="vector",
        values={name: value[:, None] for name, value in values.items()},
        weights={name: value[None] for name, value in parameters.items()},
        rounds=(0,), indices=tuple(range(count)), model=module,
        kind="image" if len(meta.shape) == 3 else "table", shape=meta.shape, value_range=meta.value_range,
        classes=classes, batch=batch, steps=steps, rate=meta.rate, unit=meta.unit, client_examples=examples,
        senders=1, public_mean=known.mean(0), public_inputs=known, public_labels=known_labels, labels=granted,
    )  # fmt: skip


def open_reading(
    path: str | PathLike[str], *, model: nn.Module | str, weights: Mapping[str, Values] | None = None,
    params: Mapping[str, Any] | None = None, public: Values | None = None, public_labels: Values | None = None,
) -> Reading:  # fmt: skip
    """The reading of a reading file (`bench.own.files`).

    `weights` go before those in the file; `params` are a named model's.  Raises `BenchError` naming the file.
    """
    content = reading_files.load(Path(path))
    meta, chosen = content.meta, weights or content.weights
    if isinstance(model, str):
        if not chosen:
            raise BenchError(f"{path}: it holds no weights of the model; give them beside it")
        model = build(model, shape=meta.shape, classes=meta.classes, params=params)
    try:
        return reading(
            content.values, model=model, weights=chosen or None, labels=content.labels, public=public,
            public_labels=public_labels, **asdict(meta),
        )  # fmt: skip
    except BenchError as error:
        raise type(error)(f"{path}: {error}") from None


def save_reading(path: str | PathLike[str], reading: Reading) -> None:
    """Write a reading of one observation for `bench attack --reading`; granted labels go with it."""
    knows = reading.description is not None or reading.simulator is not None
    if len(reading.rounds) > 1 or reading.senders > 1 or knows:
        raise BenchError(
            f"{path}: a reading file holds one observation of one client, and no description or simulator"
        )
    meta = reading_files.checked_meta(
        shape=reading.shape, classes=reading.classes, batch=reading.examples // reading.steps,
        steps=reading.steps, rate=reading.rate, unit=reading.unit, value_range=reading.value_range,
    )  # fmt: skip
    reading_files.save(
        Path(path), {name: value[:, 0].cpu().numpy() for name, value in reading.values.items()}, meta,
        weights={name: value[0].cpu().numpy() for name, value in reading.weights.items()},
        labels=None if reading.labels is None else reading.labels.cpu().numpy(),
    )  # fmt: skip


def attack(
    reading: Reading, attack: str | Attack = "cpl", *, evaluations: int = 500, chunk: int = 32, seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "cpu", params: Mapping[str, Any] | None = None,
) -> Reconstruction:  # fmt: skip
    """Attack all readings; `evaluations` for each, restarts included; `params` are a named attack's.

    Raises `BenchError` where the attack is unknown or cannot take the reading.
    """
    if evaluations < 1 or chunk < 1:
        raise BenchError(f"evaluations and chunk must be at least 1, got {evaluations} and {chunk}")
    chosen: Attack = registry.instance("attacks", attack, params or {}) if isinstance(attack, str) else attack
    place = torch.device(chosen_device(device))
    held = replace(reading, model=copy.deepcopy(reading.model))  # it may be moved to the device
    try:
        if reason := chosen.refuses(held):
            raise NotApplicable(reason)
        budget = Budget(evaluations=evaluations, chunk=chunk)
        with repeatable(place):
            return chosen.reconstruct(to_device(held, place), budget, Key(seed=seed))
    except NotApplicable as reason:
        name = attack if isinstance(attack, str) else type(attack).__name__
        raise BenchError(f"attack {name} cannot take this reading: {reason}") from None


def score(
    reconstruction: Reconstruction, truth: Values, labels: Values, *, public: Values | None = None,
    public_labels: Values | None = None, labels_known: bool = False, value_range: Range = ZERO_TO_ONE,
    groups: Sequence[Group] = (),
) -> Scores:  # fmt: skip
    """PSNR, SSIM and the rest of each example (`readings`) and their `summary`, as records have them.

    `truth` (reading, example, *shape) and `labels` (reading, example), or the same examples in fewer axes.
    `public` (example, *shape) gives the prior-only baselines and, as strangers to the victims, the gallery of
    identification; without it there is no identification, and `priors_from` says what the prior was.
    `labels_known`: the attacker had the true labels, so that a blind guess is of the right class; it takes
    `public_labels`.  Values
    in `value_range` are scored as [0, 1]. A table without `groups` counts every column as numeric.  Raises
    `BenchError` for shapes, labels or values that do not fit.
    """
    claimed = replace(reconstruction, inputs=_scaled(reconstruction, value_range))
    true = coerce.scaled(coerce.like_reading(truth, tuple(claimed.inputs.shape)), value_range, "truth")
    true_labels = coerce.labels(labels, true.shape[0] * true.shape[1]).reshape(true.shape[:2])
    shape = true.shape[2:]
    kind: Literal["image", "table"] = "image" if len(shape) == 3 else "table"
    known, known_labels = np.full((1, *shape), 0.5), np.array([-1])
    if public is not None:
        known = coerce.scaled(coerce.examples(public, shape, "public"), value_range, "public")
        known_labels = np.full(len(known), -1)
    if labels_known and (public is None or public_labels is None):
        raise BenchError(
            "labels_known: chance is among examples of the true class; give public and public_labels"
        )
    if public is not None and public_labels is not None:
        known_labels = coerce.labels(public_labels, len(known)).numpy()
    if kind == "table" and not groups:
        groups = tuple(
            Group(name=str(n), columns=(n,), categorical=False, deviation=float(column.std()))
            for n, column in enumerate(known.T)
        )
    lpips, lpips_absent = lpips_for(kind)
    scores = score_examples(
        true, true_labels.numpy(), claimed, kind=kind, groups=groups,
        priors=prior_only_baselines(known, known_labels, true_labels.numpy()),
        gallery=None if public is None else known, lpips=lpips,
        gallery_labels=known_labels if labels_known else None,
    )  # fmt: skip
    return replace(
        scores, lpips_absent=lpips_absent,
        priors_from=NO_PUBLIC if public is None else "the public examples given",
    )  # fmt: skip


def save_pictures(
    path: str | PathLike[str],
    truth: Values | None,
    reconstruction: Reconstruction,
    *,
    value_range: Range = ZERO_TO_ONE,
) -> Path:
    """Write the truth above its reconstructions as PNG, up to eight; `truth` None: these alone."""
    guess = _scaled(reconstruction, value_range).numpy()
    if truth is None:
        image = grid(guess, guess)
        image = image and image.crop((0, image.height // 2, image.width, image.height))
    else:
        true = coerce.scaled(coerce.like_reading(truth, guess.shape), value_range, "truth")
        image = grid(true, in_order(guess, assign(true, guess)))
    if image is None:
        raise BenchError(f"{path}: there is no picture to draw")
    save_picture(image, Path(path))
    return Path(path)


def frame(run: str | PathLike[str]) -> Frames:
    """A run's `cells` and `victims` as pandas DataFrames.

        cells, examples = api.frame("runs/quickstart")
        examples.join(cells[["defense", "point"]]).groupby(["defense", "point"])["success"].mean().unstack().plot.bar()

    Raises `RecordError` where the folder has no records.
    """
    return frames(Path(run))


def _copy(model: nn.Module) -> nn.Module:
    """The model on the CPU in eval mode; the caller's own is never touched."""
    return copy.deepcopy(model).cpu().eval().requires_grad_(True)


def _scaled(reconstruction: Reconstruction, value_range: Range) -> Tensor:
    low, high = value_range
    return (reconstruction.inputs.detach().cpu().double() - low) / (high - low)
