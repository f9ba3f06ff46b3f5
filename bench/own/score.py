"""Scores of a reconstruction against a user's true examples."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.datasets.base import Group
from bench.errors import BenchError
from bench.kinds.base import Kind
from bench.kinds.known import of_shape
from bench.own import coerce
from bench.own.check import check
from bench.own.coerce import ZERO_TO_ONE, Range, Values
from bench.own.repeats import Claim
from bench.record.metrics import LPIPS, ST_LPIPS
from bench.scoring.learned import learned_for
from bench.scoring.prior_only import prior_only_baselines
from bench.scoring.score import Scores
from bench.scoring.score import score as score_examples
from bench.trip import Reconstruction

NO_PUBLIC = "a uniform grey, as no public examples were given; a real prior is nearer to the truth"


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
    """Compare a reconstruction with the true examples. Return PSNR, SSIM and other metrics for each example
    (`readings`), and their `summary`.

    - `reconstruction`: the attack's guesses, from `attack` or another source.
    - `truth` (reading, example, *shape), `labels` (reading, example): the true examples; fewer axes are accepted.
    - `public` (example, *shape): examples for the prior-only baselines and for the gallery of identification; required
      for texts. None: no identification, and a uniform grey example as baseline.
    - `public_labels` (example,): labels of `public`.
    - `labels_known`: True if the attacker had the true labels; a blind guess then has the right class. Requires
      `public_labels`.
    - `value_range`: range of the values; it is mapped to [0, 1].
    - `groups`: columns of a table; without them every column is numeric.
    - `kind`: kind of data; None takes the reading's kind, or infers the kind from `truth`.

    A result of `attack` is also checked against the truth (`check`). If the truth does not explain the update, low
    figures are meaningless: a warning is issued, and `doubt` holds the reason. Raises `BenchError` for mismatched
    shapes, labels or values."""
    claimed = replace(reconstruction, inputs=scaled_inputs(reconstruction, value_range))
    shape = tuple(claimed.inputs.shape[2:])
    of_data = (
        claimed.reading.kind
        if isinstance(claimed, Claim) and kind is None
        else of_shape(shape, kind, integers=coerce.integers(truth, "truth"))
    )
    true = _values(coerce.like_reading(truth, tuple(claimed.inputs.shape)), value_range, "truth", of_data)
    true_labels = coerce.labels(labels, true.shape[0] * true.shape[1]).reshape(true.shape[:2])
    if public is None and not of_data.differentiable:
        raise BenchError(f"{of_data.plural} are scored against guesses from public examples; give public=")
    known, known_labels = np.full((1, *shape), 0.5), np.array([-1])
    if public is not None:
        known = _values(coerce.examples(public, shape, "public"), value_range, "public", of_data)
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
    learned, absent = learned_for(of_data)
    scores = score_examples(
        true,
        true_labels.numpy(),
        claimed,
        kind=of_data,
        groups=groups,
        priors=prior_only_baselines(known, known_labels, true_labels.numpy(), of_data.values),
        gallery=None if public is None else known,
        learned=learned,
        gallery_labels=known_labels if labels_known else None,
    )
    doubt = _doubt(reconstruction, true, true_labels)
    if doubt:
        warnings.warn(f"the scores say nothing: {doubt}", stacklevel=2)
    return replace(
        scores,
        lpips_absent=absent.get(LPIPS.name),
        st_lpips_absent=absent.get(ST_LPIPS.name),
        doubt=doubt,
        priors_from=NO_PUBLIC if public is None else "the public examples given",
    )


def _values(values: Tensor, value_range: Range, what: str, kind: Kind) -> NDArray[np.float64]:
    """Return the examples `values`, mapped from `value_range` to [0, 1] if their kind has real numbers. Raises
    `BenchError` with the name `what` for values outside the range, or that are no examples of the kind."""
    if kind.differentiable:
        return coerce.scaled(values, value_range, what)
    try:
        return kind.values.checked(values.double().numpy())
    except ValueError as error:
        raise BenchError(f"{what}: {error}") from None


def _doubt(claimed: Reconstruction, true: NDArray[np.float64], labels: Tensor) -> str | None:
    """Return the reason why scores against these examples are meaningless; None if there is no reason. `true` is in [0,
    1]."""
    if not isinstance(claimed, Claim):
        return None
    low, high = claimed.reading.value_range
    checked = check(claimed.reading, low + (high - low) * torch.from_numpy(true), labels)
    return f"the truth {checked.line}" if checked.explained is False else None


def scaled_inputs(reconstruction: Reconstruction, value_range: Range) -> Tensor:
    """Return the reconstructed inputs, (reading, example, *shape) float64, mapped from `value_range` (least, greatest
    value) to [0, 1]."""
    low, high = value_range
    return (reconstruction.inputs.detach().cpu().double() - low) / (high - low)
