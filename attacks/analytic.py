"""The exact inversion of a first fully connected layer with bias: no matching, no optimisation.

A neuron's gradients are dW_i = Σ_n δ_in x_n and db_i = Σ_n δ_in, so that dW_i / db_i is the picture
itself where one example alone moves the neuron, and a mixture of the pictures elsewhere.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.attacks.base import Attack
from bench.attacks.matching import mean_of, observations
from bench.attacks.parts.labels import infer_labels
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Status

_SWEEPS = 100  # of alternating least squares; one is enough where the reading is exact
_SMALL = 1e-6  # a bias gradient this far below the largest one is rounding


@dataclass(frozen=True, kw_only=True)
class Analytic(Attack):
    """x = dW_i / db_i: one example exactly; of a batch, those that have a ReLU neuron of their own.

    One picture is the rank-one least-squares fit of all neurons of all observations at once, whose noise
    averages out.  It needs no description of the defense: a factor common to weight and bias cancels
    in the ratio, and coordinates that were set to zero show themselves and are left out of the fit.
    Factors of the weight and of the bias apart (clipping by tensor) are not undone.
    """

    reference = "Phong et al. 2018 §3; Geiping et al. 2020 Prop. 3.1; batches: Boenisch et al. 2023"
    iterative = False

    tolerance: float = parameter(
        1e-3, "how far outside the data's box a candidate of a batch may lie", unit="box widths",
        source="ours", low=0,
    )  # fmt: skip
    same: float = parameter(
        1e-3, "root mean square difference up to which two neurons show the same picture",
        unit="box widths", source="ours", low=0,
    )  # fmt: skip

    def refuses(self, reading: Reading) -> str | None:
        if reading.linked != "vector":
            return "it divides weights by biases, and this reading's coordinates are not linked"
        if _first_layer(reading) is None:
            return "its first layer is no fully connected layer with bias"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        del budget, key
        found = _first_layer(reading)
        assert found is not None
        observed = observations(reading)
        mean = mean_of(observed)
        claims = [
            self._one_reading(reading, found, _table(found, observed, row)) for row in range(len(reading))
        ]
        none = torch.zeros(len(reading), dtype=torch.long)
        return Reconstruction(
            inputs=torch.stack([inputs for inputs, _, _ in claims]).to(mean[f"{found.prefix}bias"].dtype),
            labels=infer_labels(reading, mean), loss=torch.stack([loss for _, loss, _ in claims]),
            evaluations=none, outer=none, restarts=none, status=tuple(status for _, _, status in claims),
        )  # fmt: skip

    def _one_reading(self, reading: Reading, layer: "_Layer", table: Tensor) -> tuple[Tensor, Tensor, Status]:
        """Pictures (picture, *shape), the share of the table (neuron, weight or bias) that they leave
        unexplained, and the status; the public mean where nothing can be read."""
        nothing = reading.public_mean.double().cpu().expand(reading.examples, *reading.shape)
        if not torch.isfinite(table).all():
            return nothing, torch.tensor(torch.nan, dtype=torch.float64), "nan"
        one = torch.tensor(1.0, dtype=torch.float64)
        if not table[:, -1].any():
            return nothing, one, "diverged"
        table = table / table.abs().max()
        common = layer.undo(_rank_one(table))
        if not torch.isfinite(common).all():
            return nothing, one, "diverged"
        if reading.examples == 1:
            x = common[None]
        else:
            x = self._separate(reading, layer.undo(_ratios(table)), common)
        return x.reshape(reading.examples, *reading.shape), _unexplained(table, layer.apply(x)), "ok"

    def _separate(self, reading: Reading, ratios: Tensor, common: Tensor) -> Tensor:
        """Pictures (picture, input) among the neurons' ratios: those that most neurons show, then those
        farthest from what is chosen, as mixtures lie between; `common` fills what is left."""
        low, high = reading.value_range
        width = high - low
        slack = self.tolerance * width
        rows = ratios[((ratios >= low - slack) & (ratios <= high + slack)).all(1)]
        apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") / rows.shape[1] ** 0.5
        near = apart <= self.same * width
        support = near.sum(1)
        distance = (rows - common).square().mean(1).sqrt()
        left = torch.ones(len(rows), dtype=torch.bool)
        chosen: list[Tensor] = []
        while len(chosen) < reading.examples and left.any():
            best = left & (support == support[left].max())
            at = int(torch.where(best, distance, -1).argmax())
            chosen.append(rows[near[at]].median(0).values)
            left &= ~near[at]
            distance = torch.minimum(distance, apart[at]) if len(chosen) > 1 else apart[at]
        return torch.stack(chosen + [common] * (reading.examples - len(chosen)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The first layer: its parameters' prefix, and what it reads of an input x: factor · x + offset."""

    prefix: str
    factor: Tensor
    offset: Tensor

    def apply(self, x: Tensor) -> Tensor:
        return self.factor * x + self.offset

    def undo(self, z: Tensor) -> Tensor:
        return (z - self.offset) / self.factor


def _first_layer(reading: Reading) -> _Layer | None:
    """The layer with parameters that a forward pass meets first, if it is linear with a bias, used once,
    and reads the flattened input, coordinate by coordinate, or a normalised one."""
    weights = {name: value[0] for name, value in reading.weights.items()}
    like = next(iter(weights.values()))
    size = prod(reading.shape)
    # two points fix factor and offset of each coordinate, a ramp that is not symmetric tests them
    ramp = torch.linspace(0, 1, size, dtype=like.dtype, device=like.device).square()
    probes = torch.stack([torch.zeros_like(ramp), torch.ones_like(ramp), ramp])
    met: list[tuple[str, nn.Module, Tensor]] = []

    def keep(path: str) -> object:
        def hook(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            met.append((path, layer, given[0].detach().clone()))

        return hook

    handles = [
        layer.register_forward_pre_hook(keep(path))
        for path, layer in reading.model.named_modules()
        if next(layer.parameters(recurse=False), None) is not None
    ]
    try:
        with torch.no_grad():
            functional_call(reading.model, weights, (probes.reshape(3, *reading.shape),))
    finally:
        for handle in handles:
            handle.remove()
    path, layer, seen = met[0] if met else ("", reading.model, probes)
    plain = type(layer) is nn.Linear and layer.bias is not None and layer.in_features == size
    if not plain or seen.shape != probes.shape or sum(one is layer for _, one, _ in met) > 1:
        return None
    offset, factor = seen[0], seen[1] - seen[0]
    if not factor.all() or not torch.allclose(seen[2], factor * ramp + offset, rtol=1e-5, atol=1e-5):
        return None
    return _Layer(
        prefix=f"{path}." if path else "", factor=factor.double().cpu(), offset=offset.double().cpu()
    )


def _table(layer: _Layer, observed: list[dict[str, Tensor]], row: int) -> Tensor:
    """A reading's first layer, (observation · neuron, input + 1), biases last: Σ_n δ_n (x_n, 1)."""
    weight, bias = (
        torch.cat([one[f"{layer.prefix}{name}"][row] for one in observed]).double().cpu()
        for name in ("weight", "bias")
    )
    return torch.cat([weight, bias[:, None]], 1)


def _rank_one(table: Tensor) -> Tensor:
    """z of the best fit table ≈ δ (z, 1)ᵀ, by alternating least squares from z = Σ db_i dW_i / Σ db_i².

    Without zeros this is the first singular pair: of equal noise everywhere, the likeliest one.
    A zero is left out unless its whole column is zero: it says that a value was withheld.
    """
    shown = (table != 0) | (table == 0).all(0)
    mask = shown.double()
    delta = table[:, -1]
    for _ in range(_SWEEPS):
        z = (table.T @ delta) / (mask.T @ delta.square()).clamp_min(1e-300)
        following = (table @ z) / (mask @ z.square()).clamp_min(1e-300)
        following = following / following.norm()
        settled = (following - delta).norm() <= 1e-13
        delta = following
        if settled:
            break
    return z[:-1] / z[-1]


def _ratios(table: Tensor) -> Tensor:
    """dW_i / db_i of each neuron whose bias gradient is more than rounding: (neuron, input)."""
    bias = table[:, -1]
    rows = table[bias.abs() > _SMALL * bias.abs().max()]
    return rows[:, :-1] / rows[:, -1:]


def _unexplained(table: Tensor, z: Tensor) -> Tensor:
    """‖table - its projection on the span of the (z, 1)‖² / ‖table‖², between 0 and 1."""
    span = torch.cat([z, torch.ones_like(z[:, :1])], 1)
    weights = torch.linalg.lstsq(span.T, table.T, driver="gelsd").solution
    left: Tensor = table.T - span.T @ weights
    return left.square().sum() / table.square().sum()
