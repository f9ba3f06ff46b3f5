"""Exact inversion of a fully connected first layer with bias, without optimisation.

Neuron i with output z_i has the gradients dW_i = Σ_n δ_in x_n and db_i = Σ_n δ_in, where x_n is example n and δ_in =
∂loss/∂z_i for this example. The ratio dW_i / db_i is an example if no other example activates the neuron; otherwise the
ratio is a mixture."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.first_layer.layer import FirstLayer, first_layer, refusal, table
from bench.attacks.labels.infer import infer_labels
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.parameters import parameter
from bench.rng import Key
from bench.rows import median
from bench.trip import Budget, Reading, Reconstruction, Status

_SWEEPS = 100  # of alternating least squares; a single sweep suffices for an exact reading
_ROUNDING = 1e-6  # of the largest bias gradient: smaller values are rounding


@dataclass(frozen=True, kw_only=True)
class Analytic(Attack):
    """Closed-form reconstruction from the first layer's gradient: at neuron i, the weight gradient divided by the bias
    gradient is the example, x = dW_i / db_i.

    A single example is recovered exactly. In a batch, an example is recovered if it is the only example that activates
    some ReLU neuron. For a single example the attack takes the rank-one least-squares fit to all neurons and all
    observations (repeated reports on the example), which averages noise out. The attack needs no description of the
    defense: the ratio cancels a factor common to weight and bias, and the fit skips coordinates that a defense set to
    zero. The attack does not undo different factors for weight and bias (clipping by tensor)."""

    reference = "Phong et al. 2018 §3; Geiping et al. 2020 Prop. 3.1; batches: Boenisch et al. 2023"
    iterative = False

    tolerance: float = parameter(
        1e-3,
        "distance outside the data's range allowed for a candidate in a batch",
        unit="widths of the range",
        source="ours",
        low=0,
    )
    same: float = parameter(
        1e-3,
        "greatest root mean square difference between two neurons with the same example",
        unit="widths of the range",
        source="ours",
        low=0,
    )

    def refuses(self, reading: Reading) -> str | None:
        return refusal(reading)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        layer = first_layer(reading)
        assert layer is not None
        observed = observations(reading)
        mean = mean_observation(observed)
        inputs, loss, status = zip(
            *(self._one_reading(reading, layer, table(layer, observed, row)) for row in range(len(reading))),
            strict=True,
        )
        found = torch.stack(inputs).to(mean[f"{layer.prefix}bias"].dtype)
        return closed_form(reading, found, infer_labels(reading, mean), loss=torch.stack(loss), status=status)

    def _one_reading(self, reading: Reading, layer: FirstLayer, table: Tensor) -> tuple[Tensor, Tensor, Status]:
        public = reading.public_mean.double().cpu().expand(reading.examples, *reading.shape)
        if not torch.isfinite(table).all():
            return public, torch.tensor(torch.nan, dtype=torch.float64), "nan"
        failed: tuple[Tensor, Tensor, Status] = (public, torch.tensor(1.0, dtype=torch.float64), "diverged")
        if not table[:, -1].any():
            return failed
        table = table / table.abs().max()
        common = layer.undo(_rank_one(table))
        if not torch.isfinite(common).all():
            return failed
        x = common[None]
        if reading.examples > 1:
            x = self._separate(reading, layer.undo(_ratios(table)), common)
        return x.reshape(reading.examples, *reading.shape), _unexplained(table, layer.apply(x)), "ok"

    def _separate(self, reading: Reading, ratios: Tensor, common: Tensor) -> Tensor:
        """Choose the examples (example, input) of a batch among `ratios` (neuron, input), a neuron's weight gradient
        divided by its bias gradient: pure examples and mixtures. Each choice is the ratio shared by most neurons; among
        equals, the ratio farthest from earlier choices, because mixtures lie between examples. If too few ratios are in
        the data's range, the rest are `common` (input,), the fit to all neurons (`_rank_one`)."""
        low, high = reading.value_range
        width = high - low
        slack = self.tolerance * width
        rows = ratios[((ratios >= low - slack) & (ratios <= high + slack)).all(1)]
        gaps = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") / rows.shape[1] ** 0.5
        near = gaps <= self.same * width
        support = near.sum(1)
        distance = (rows - common).square().mean(1).sqrt()
        remaining = torch.ones(len(rows), dtype=torch.bool)
        chosen: list[Tensor] = []
        while len(chosen) < reading.examples and remaining.any():
            best = remaining & (support == support[remaining].max())
            at = int(torch.where(best, distance, -1).argmax())
            chosen.append(median(rows[near[at]].mT))
            remaining &= ~near[at]
            distance = torch.minimum(distance, gaps[at]) if len(chosen) > 1 else gaps[at]
        return torch.stack(chosen + [common] * (reading.examples - len(chosen)))


def _rank_one(table: Tensor) -> Tensor:
    """Fit the gradient `table` (neuron, input + 1) by δ (z, 1)ᵀ, with δ (neuron,), and return z (input,).
    Alternating least squares start from z = Σ db_i dW_i / Σ db_i², with neuron i's gradients dW_i, db_i. Without
    zeros in the table, the fit is the first singular pair, the maximum likelihood under equal noise. A zero
    counts as withheld by a defense and is left out, unless its whole column is zero."""
    shown = (table != 0) | (table == 0).all(0)
    mask = shown.double()
    delta = table[:, -1]
    for _ in range(_SWEEPS):
        z = (table.T @ delta) / (mask.T @ delta.square()).clamp_min(1e-300)
        previous = delta
        delta = (table @ z) / (mask @ z.square()).clamp_min(1e-300)
        delta = delta / delta.norm()
        if (delta - previous).norm() <= 1e-13:
            break
    return z[:-1] / z[-1]


def _ratios(table: Tensor) -> Tensor:
    bias = table[:, -1]
    rows = table[bias.abs() > _ROUNDING * bias.abs().max()]
    return rows[:, :-1] / rows[:, -1:]


def _unexplained(table: Tensor, z: Tensor) -> Tensor:
    span = torch.cat([z, torch.ones_like(z[:, :1])], 1)
    weights = torch.linalg.lstsq(span.T, table.T, driver="gelsd").solution
    residual: Tensor = table.T - span.T @ weights
    return residual.square().sum() / table.square().sum()
