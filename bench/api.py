"""Python API: attack your own gradient and score the reconstructions, without a run folder.

    from bench import api
    reading = api.reading(gradients, model=model, weights=model.state_dict(), shape=(1, 28, 28), classes=10)
    reconstruction = api.attack(reading, "cpl", evaluations=500)
    scores = api.score(reconstruction, truth, labels, public=public_examples)
    api.save_pictures("leak.png", truth, reconstruction)
    print(scores.summary.asr.value)

`check` tests whether a reading agrees with the settings declared for it; `score` includes this test.  docs/OWN.md
treats updates with several local steps, known defenses, Opacus and Flower."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.assess.result import Assessment
from bench.assess.run import assess
from bench.audit.foreign import audit
from bench.errors import BenchError
from bench.gradients import batch_gradient, one_hot
from bench.kinds.known import of_shape
from bench.own import coerce
from bench.own.attack import attack
from bench.own.check import Check, check
from bench.own.coerce import ZERO_TO_ONE, Range, Values
from bench.own.copies import plain_copy, unwrapped
from bench.own.flower import from_flower
from bench.own.frames import Frames, frames
from bench.own.given import build, open_reading, reading, save_reading
from bench.own.local import SGD, Adam
from bench.own.losses import declared, two_logits
from bench.own.opacus import OpacusStep, from_opacus
from bench.own.recorded import Recording, recording
from bench.own.repeats import Claim
from bench.own.score import scaled_inputs, score
from bench.own.server import before_server
from bench.own.vocabulary import BEYOND, refuse_unknown_tokens
from bench.own.weights import refuse_batch_statistics
from bench.pictures.grid import grid
from bench.pictures.grid import save as save_picture
from bench.record.checkpoints import refuse_diverged
from bench.sanitize import first_line
from bench.scoring.assign import assign, in_order
from bench.training import declare
from bench.trip import Reconstruction
from bench.uses import bypass, reached

__all__ = (
    "SGD",
    "Adam",
    "Assessment",
    "Check",
    "OpacusStep",
    "Recording",
    "assess",
    "attack",
    "audit",
    "before_server",
    "build",
    "check",
    "frame",
    "from_flower",
    "from_opacus",
    "gradient",
    "open_reading",
    "reading",
    "recording",
    "save_pictures",
    "save_reading",
    "score",
)


def gradient(
    model: nn.Module,
    inputs: Values,
    labels: Values,
    *,
    loss: Callable[..., Tensor] | None = None,
    batch_statistics: bool = False,
) -> dict[str, Tensor]:
    """Return the gradient that a client would send for a batch, parameter name → (*shape). A copy of `model` in eval
    mode computes the gradient by plain autograd at the model's current weights.

    - `inputs` (example, *shape), `labels` (example,): the batch's examples, and their class numbers.
    - `loss`: loss of the client's training; None is the mean cross entropy.
    - `batch_statistics`: True if the client's BatchNorm is in training mode, with statistics of the batch.

    Raises `BenchError` for inputs or labels unfit for the model, for weights that are not finite, and for a model whose
    copy still uses the original model's parameters."""
    if not batch_statistics:
        refuse_batch_statistics(model)
    module = plain_copy(model, batch_statistics=batch_statistics)
    refuse_diverged(module.state_dict(), where="the model")
    module.requires_grad_()
    x = coerce.tensor(inputs, "inputs").to(next(module.parameters()).dtype)
    if x.dim() == 2:
        refuse_unknown_tokens(module, x, "inputs")
    try:
        with torch.enable_grad():
            logits = module(x.clone())
            one_logit = logits.numel() == len(x)
            logits = two_logits(module, (), logits) if one_logit else logits
            classes = logits.shape[-1]
    except (RuntimeError, ValueError, IndexError) as error:
        hint = BEYOND if isinstance(error, IndexError) else ""
        wrong = f"{tuple(x.shape)}, (example, *shape): {first_line(error)}{hint}"
        raise BenchError(f"the model takes no inputs of shape {wrong}") from None
    declare(module, loss=declared(loss, classes, one_logit=one_logit), batch_statistics=batch_statistics)
    targets = one_hot(coerce.labels(labels, len(x), classes), classes, x.dtype)
    if name := reached(logits, dict(unwrapped(model).named_parameters())):
        raise BenchError(bypass(name))
    return batch_gradient(module, logits, targets)


def save_pictures(
    path: str | PathLike[str], truth: Values | None, reconstruction: Reconstruction, *, value_range: Range = ZERO_TO_ONE
) -> Path:
    """Write a PNG file with up to eight true examples above their reconstructions; return `path`, the file.

    - `truth` (reading, example, *shape): true examples; None draws only the reconstructions.
    - `reconstruction`: the attack's result, from `bench.api.attack`.
    - `value_range`: smallest and largest possible values of the examples.

    Raises `BenchError` if the examples are not images."""
    guess = scaled_inputs(reconstruction, value_range).numpy()
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
    """Return the results of the run folder `run` as a pair of pandas DataFrames: first `cells`, with a row per cell
    (experiment configuration), then `victims`, with a row per attacked example.

        cells, examples = api.frame("runs/quickstart")  # in a cascade, attacks see the remaining readings
        examples.join(cells[["defense", "point"]]).groupby(["defense", "point"])["success"].mean().unstack().plot.bar()

    Raises `RecordError` for a folder without records."""
    return frames(Path(run))
