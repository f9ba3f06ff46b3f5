"""Match the gradients of all layers, with candidates inside the row space of the first layer's gradient."""

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad, jacfwd, vmap

from bench.attacks.base import Attack
from bench.attacks.first_layer.certificate import Upper, Witness
from bench.attacks.first_layer.ica import independent
from bench.attacks.first_layer.layer import FirstLayer, RowSpace, first_layer, refusal, row_space, table
from bench.attacks.labels.infer import infer_labels
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.attacks.solvers.levenberg import least_squares
from bench.gradients import one_hot
from bench.parameters import parameter
from bench.rng import Key
from bench.training import soft_cross_entropy
from bench.trip import Budget, Reading, Reconstruction, Status

_TOGETHER = 4  # starts minimised in parallel
_EXACT = 1e-12  # sum of squares of a complete explanation
_ROUNDING = 1e-6  # of a layer's largest singular value
_VARIABLES = 1000  # above, the normal equations cost too much: the independent components are the result
_NOTES = ("a Jacobian counts as one evaluation, residuals alone as another",)


@dataclass(frozen=True, kw_only=True)
class Subspace(Attack):
    """Find the examples in the row space of the first layer's gradient: minimise ‖∇L(A R) - g‖² over the mixing matrix
    A. R is this row space, the rows of A R are the candidates, L is the loss, and g the reading (the observed update).
    SPEAR (Dimitrov et al. 2024, §3) finds A from the zeros of a ReLU. This attack finds A from the gradients of the
    layers above, under any activation, by Levenberg–Marquardt.

    The bias column fixes each example's scale: at rank r, B examples have B(r - 1) variables. Residuals of a layer's
    gradient are divided by the gradient's singular values. The first start is the independent components (`cpa`), with
    labels from δ (∂loss/∂z at the first layer's output z). Further starts are public examples projected on the row
    space, with labels from the last layer's gradient or from δ. The search ends when every example is confirmed: δ from
    the gradient agrees with δ simulated by the model (`first_layer/certificate.py`).

    With a description of the defense, each example's gradient gets an unknown factor as a further variable, which
    undoes clipping. After several local steps, or above 1000 variables, the result is the independent components,
    without matching."""

    reference = "Dimitrov et al. 2024; Kariyappa et al. 2023"
    knowledge = ("plain", "adaptive")

    share: int = parameter(100, "limit per start", unit="evaluations", source="ours", low=3)
    unknown_scale: bool = parameter(False, "an unknown factor may have shortened each example", source="ours")

    def refuses(self, reading: Reading) -> str | None:
        return refusal(reading)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        layer = first_layer(reading)
        assert layer is not None
        observed, witness = observations(reading), Witness.of(reading, layer)
        inferred = infer_labels(reading, mean_observation(observed))
        attempts = [
            self._one_reading(reading, layer, witness, observed, row, inferred[row], budget, key)
            for row in range(len(reading))
        ]
        evaluations = torch.tensor([attempt.evaluations for attempt in attempts])
        return Reconstruction(
            inputs=torch.stack([attempt.inputs for attempt in attempts]).to(next(iter(reading.values.values())).dtype),
            labels=torch.stack([attempt.labels for attempt in attempts]),
            loss=torch.tensor([attempt.loss for attempt in attempts], dtype=torch.float64),
            certificate=torch.tensor([attempt.certain for attempt in attempts], dtype=torch.float64),
            evaluations=evaluations,
            outer=evaluations,
            restarts=torch.tensor([attempt.restarts for attempt in attempts]),
            status=tuple(attempt.status for attempt in attempts),
            notes=_NOTES,
        )

    def _one_reading(
        self,
        reading: Reading,
        layer: FirstLayer,
        witness: Witness,
        observed: list[dict[str, Tensor]],
        row: int,
        labels: Tensor,
        budget: Budget,
        key: Key,
    ) -> "_Attempt":
        gradient, count = table(layer, observed, row), reading.examples
        public = reading.public_mean.double().cpu().expand(count, *reading.shape)
        failed = _Attempt(inputs=public, labels=labels, loss=1.0, certain=0.0, status="diverged")
        if not all(torch.isfinite(value[row]).all() for gradients in observed for value in gradients.values()):
            return _Attempt(inputs=public, labels=labels, loss=float("nan"), certain=0.0, status="nan")
        if not gradient[:, -1].any():
            return failed
        space = row_space(layer, gradient, count)
        index = reading.indices[row]
        begun = independent(space, reading, key.generator("start", index, 0, 0), refine=True)
        best = failed
        if begun is not None and torch.isfinite(begun).all():
            best = _judged(reading, witness, space, begun, labels)
        factors = self.unknown_scale or reading.description is not None
        problem = _Problem(
            space=space,
            upper=witness.upper,
            observed={name: value[row] for name, value in observed[0].items()},
            examples=count,
            factors=factors,
        )
        many = problem.variables > _VARIABLES or reading.steps > 1 or int(labels.min()) < 0
        if best.certain == 1 or many or space.rank == 1:
            return best
        return self._matched(reading, witness, problem, best, labels, budget, key, index)

    def _matched(
        self,
        reading: Reading,
        witness: Witness,
        problem: "_Problem",
        best: "_Attempt",
        labels: Tensor,
        budget: Budget,
        key: Key,
        index: int,
    ) -> "_Attempt":
        public = reading.public_inputs.double().cpu().flatten(1)
        used, number, loss = best.evaluations, 0, float("inf")
        point = problem.project(best.inputs.flatten(1)) if best.status == "ok" else None
        fitted = best.labels
        while best.certain < 1 and budget.evaluations - used >= 2:
            starts, targets = ([], []) if point is None else ([point], [fitted])
            left = budget.evaluations - used - 1  # minus the judgement
            least = min(self.share, left)
            while len(starts) < min(_TOGETHER, left // least):
                random = key.generator("start", index, 0, number + len(starts) + 1)
                drawn = public[torch.from_numpy(random.integers(len(public), size=reading.examples))]
                starts.append(problem.project(drawn))
                # a clipped or trained layer may give wrong label counts: every second start takes labels from δ
                targets.append(best.labels if len(starts) % 2 else labels)
            probabilities = one_hot(torch.stack(targets), reading.classes, torch.float64)
            fit = least_squares(
                lambda x, at, y=probabilities: problem.residuals(x, y[at]),  # type: ignore[misc]
                lambda x, at, y=probabilities: problem.jacobian(x, y[at]),  # type: ignore[misc]
                torch.stack(starts),
                evaluations=least,
                stop=_EXACT,
            )
            used, number = used + int(fit.evaluations.sum()), number + len(starts)
            at = int(fit.loss.argmin())
            if torch.isfinite(fit.loss[at]) and float(fit.loss[at]) < loss:
                loss, point, fitted = float(fit.loss[at]), fit.x[at], targets[at]
                attempt = _judged(reading, witness, problem.space, problem.mixing(point), fitted)
                best = replace(attempt, loss=loss)
                used += attempt.evaluations
            best = replace(best, evaluations=used, restarts=number - 1)
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    inputs: Tensor  # (example, *shape)
    labels: Tensor  # (example,)
    loss: float
    certain: float  # share of examples with a certificate
    status: Status
    evaluations: int = 0  # including the judgement
    restarts: int = 0


def _judged(reading: Reading, witness: Witness, space: RowSpace, mixing: Tensor, labels: Tensor) -> _Attempt:
    inputs = mixing @ space.right
    missing = reading.examples - len(inputs)  # repeated examples, or more examples than neurons
    loss, certain = 1.0, 0.0
    if len(mixing) == space.rank:
        agreed = witness.agreement(inputs, space.deltas(mixing))
        loss = float(1 - agreed.explained.clamp_min(0).mean())
        certain = agreed.certain / reading.examples
        labels = agreed.labels if missing == 0 and reading.labels is None else labels
    inputs = torch.cat([inputs, inputs.mean(0).expand(missing, -1)])
    return _Attempt(
        inputs=inputs.reshape(-1, *reading.shape),
        labels=labels,
        loss=loss,
        certain=certain,
        status="ok",
        evaluations=int(len(mixing) == space.rank),
    )


class _Problem:
    """Least-squares problem for a reading. The rows of the space span a subspace, in which the vectors with bias entry
    1 form a plane. An example's variables are its rank - 1 coordinates in this plane. If `factors` is True, the log of
    the unknown factor on the example's gradient follows."""

    def __init__(
        self, space: RowSpace, upper: Upper, observed: dict[str, Tensor], examples: int, factors: bool
    ) -> None:
        self.space, self.upper, self.examples, self.factors = space, upper, examples, factors
        bias = space.bias
        self._origin = bias / bias.square().sum()
        self._axes = torch.linalg.svd(bias[None], full_matrices=True).Vh[1:]  # (rank - 1, rank)
        self._inner = space.right @ upper.weight.T + bias[:, None] * upper.bias  # mixing → z
        layers: dict[str, dict[str, Tensor]] = {}
        for name in upper.rest:
            path, _, kind = name.rpartition(".")
            layers.setdefault(path, {})[kind] = observed[name].double().cpu()
        self._upper: list[tuple[list[str], Tensor, Tensor]] = []
        targets = [space.left[: len(upper.bias)]]
        for path, tensors in layers.items():
            left, singular, right = torch.linalg.svd(_matrix(list(tensors.values())), full_matrices=False)
            rank = max(1, min(examples, int((singular > _ROUNDING * singular[0]).sum())))
            names = [f"{path}.{kind}" if path else kind for kind in tensors]
            self._upper.append((names, left[:, :rank] / singular[:rank].clamp_min(1e-300), right[:rank]))
            targets.append(torch.eye(rank, dtype=torch.float64))
        self._target = torch.cat([target.flatten() for target in targets])

    @property
    def variables(self) -> int:
        return self.examples * (self.space.rank - 1 + self.factors)

    def project(self, inputs: Tensor) -> Tensor:
        mixing = inputs @ self.space.right.T + self.space.bias
        places = (mixing - self._origin) @ self._axes.T
        zero = places.new_zeros(len(places), int(self.factors))
        return torch.cat([places, zero], 1).flatten()

    def mixing(self, x: Tensor) -> Tensor:
        rows: Tensor = self._origin + x.reshape(self.examples, -1)[:, : self.space.rank - 1] @ self._axes
        return rows

    def residuals(self, x: Tensor, targets: Tensor) -> Tensor:
        each = vmap(vmap(self._contribution))(x.unflatten(1, (self.examples, -1)), targets)
        total: Tensor = each.sum(1) - self._target
        return total

    def jacobian(self, x: Tensor, targets: Tensor) -> Tensor:
        with warnings.catch_warnings():
            # raised by torch about its `jit.script`, at the first forward derivative in a process
            warnings.simplefilter("ignore", DeprecationWarning)
            each = vmap(vmap(jacfwd(self._contribution)))(x.unflatten(1, (self.examples, -1)), targets)
        blocks: Tensor = each.transpose(1, 2).flatten(2)
        return blocks

    def _contribution(self, x: Tensor, target: Tensor) -> Tensor:
        """Return an example's part in every layer's gradient, divided by the gradient's singular values: (residual,).
        `x` are the example's variables, `target` its label probabilities."""
        rank = self.space.rank
        mixing = self._origin + x[: rank - 1] @ self._axes
        weight = (x[-1].exp() if self.factors else 1.0) / self.examples

        def loss(z: Tensor, rest: dict[str, Tensor]) -> Tensor:
            value: Tensor = soft_cross_entropy(self.upper.logits(z[None], rest), target[None]).sum()
            return value * weight

        delta, rest = grad(loss, argnums=(0, 1))(mixing @ self._inner, self.upper.rest)
        parts = [delta[:, None] * (mixing / self.space.singular)]
        for names, left, right in self._upper:
            parts.append(left.T @ _matrix([rest[name] for name in names]) @ right.T)
        return torch.cat([part.flatten() for part in parts])


def _matrix(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], 1)
