"""Contracts for a defense's description (for adaptive attackers), and for trainings that need only the norms of
gradients."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.objective.local import unrolled_update
from bench.contracts.base import ContractSkipped, require
from bench.contracts.trials import CLOSE, DRAWS, SIGMAS, Trial, context_of, first_trial, lead_of, trial_of, variants
from bench.defenses.base import AddedNoise, Context, Defense, Scaling, Shapes, State, Transform
from bench.defenses.transforms.rows import broadcast, norms
from bench.federated.describe import Composition, DescribedTransform, describe, states_its_law
from bench.federated.stages import Stages
from bench.federated.straight_through import StraightThrough
from bench.points import POINTS, STAGES, Point, Scope, Stage
from bench.rows import flattened
from bench.trip import Tensors

SETTINGS = ((1, 1), (1, 3), (2, 1), (2, 3))  # local steps, batch
NARROW, NEAR = 1e-4, 0.05  # width of a gradual decision, and its largest relative distance from the hard decision
EXACT = 1e-9  # relative distance at the truth, float64
POSITIVE = 1e-12


@dataclass(frozen=True)
class Quiet(Transform):
    """Noiseless stand-in for a random transform (a defense's function on tensors), for tests: it returns the expected
    output (`Transform.expected`) instead of a random output."""

    inner: Transform
    """The replaced transform, with random output."""

    @property
    def mixes_clients(self) -> bool:  # type: ignore[override]
        return self.inner.mixes_clients

    @property
    def owner(self) -> str:  # type: ignore[override]
        return self.inner.owner

    def initial(self, shapes: Shapes) -> State:
        return self.inner.initial(shapes)

    def update(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        return StraightThrough(self.inner)(tensors, state, context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Test case for a defense's description (a public model of the defense, for adaptive attackers): a reading (an
    observed update) without the defense's stated noise, and the description, which must give this reading from the true
    examples."""

    words: str
    """The federated setting in words, for error messages."""
    point: Point
    """Interception point, the attacker's position in the round."""
    trial: Trial
    """The federated round that gave the reading."""
    said: Composition
    """The defense's description for readings at this point."""
    observed: dict[str, Tensor]
    """The observed update without the stated noise, name → (reading, *shape)."""


def description(defense: Defense) -> None:
    """Check that the defense's description (a public model of the defense, for adaptive attackers) is exact and
    differentiable. At each interception point, the description of the true training data must equal the reading
    (observed update) without the described noise. Raises `ContractBroken` otherwise.

    The true training data are examples and class probabilities after stage `input`. Batch sizes 1 and 3, and 1 and 2
    local steps are tested. If the defense has random draws that the description does not cover, the true data must only
    come nearer to the reading than other examples do."""
    seen = list(seen_of(defense))
    if not seen:
        raise ContractSkipped("there is nothing to describe, or attackers stay plain, with a flag")
    for one in seen:
        inputs, targets = one.trial.trained_on
        free = inputs.clone().requires_grad_()
        at_truth = _described(one, free, targets)
        _require_derivative(one, at_truth, free)
        off = _distance(one, at_truth)
        if unread(one.said):
            elsewhere = _distance(one, _described(one, 1 - inputs, targets))
            require(off < elsewhere, f"{one.words}: the truth is at {off:.1e}, other examples at {elsewhere:.1e}")
            continue
        require(off <= EXACT, f"{one.words}: the candidate at the truth is off the reading by {off:.1e} of it")


def unread(said: Composition) -> list[str]:
    """Return the class names of the transforms (functions on tensors) with hidden random draws: draws that a defense's
    description `said` does not state as noise, and that the reading (observed update) does not show. With such
    transforms, the description need not be exact. Empty if there are none."""
    return [
        type(part.transform).__name__
        for part in said.parts
        if part.transform.random
        and not _reads(part)
        and part.transform.noise(said.contexts[part.stage], part.state) is None
        and not (part.transform.mixes_clients and said.senders > 1)
    ]


def noise(defense: Defense) -> None:
    """Check the noise of each transform (a defense's function on tensors): the difference between its random output and
    its expected output (`Transform.expected`). The noise must have mean 0 and, for each tensor, the variance that the
    transform states (smaller if it states an upper bound), to five standard errors. Raises `ContractBroken`
    otherwise."""
    words, trial = first_trial(defense)
    stated, unknown = 0, []
    for stage, transform, given, state in arriving_at(trial):
        context = context_of(trial, stage)
        said = transform.noise(context, of_one(transform, state))
        if said is None and not _claims_a_mean(transform, given, state, context):
            if transform.random and not _says_its_draws(transform, given, context):
                name = type(transform).__name__
                require(
                    not states_its_law(transform),
                    f"{words}, {stage}: {name} states a likelihood of what `expected` "
                    "returns, and no `expected`; state both",
                )
                unknown.append(name)
            continue
        stated += 1
        before = StraightThrough(transform)(given, state, context)[0]
        exact = transform.variance_at(given, context)
        drawn = [transform.update(given, state, context_of(trial, stage, draw=draw))[0] for draw in range(DRAWS)]
        name = type(transform).__name__
        for key, value in before.items():
            apart = torch.stack([one[key] - value for one in drawn])
            what = f"{words}, {stage}: {name}'s noise on {key}"
            if said is None and (exact is not None or states_its_law(transform)):
                _of_no_bias(what, apart, lead_of(stage))
            else:
                _of_tensor(what, apart, value, said, key, lead_of(stage))
            if stage == "example" and said is not None:  # the client sends the batch's mean
                of_mean = f"{words}, {stage}: {name}'s noise on the mean of a batch, {key}"
                _of_tensor(of_mean, apart.mean(2), value.mean(1), _of_mean(said, value.shape[1]), key, 1)
            if exact is not None:
                _of_what_passes(what, apart, exact[key])
    if unknown:
        raise ContractSkipped(
            f"{', '.join(unknown)} draws random numbers and states no law: attackers know an average over draws, and "
            "shares of named examples are lower bounds; state `expected` with `noise` or `log_density`"
        )
    if not stated:
        raise ContractSkipped("it adds no noise of a stated variance")


def _of_mean(said: AddedNoise, batch: int) -> AddedNoise:
    """Return the noise on the mean over a batch, given each example's independent noise `said`."""
    variance = said.variance
    if isinstance(variance, Mapping):
        return replace(said, variance={name: value / batch for name, value in variance.items()})
    return replace(said, variance=variance / batch)


def _says_its_draws(transform: Transform, given: Tensors, context: Context) -> bool:
    """Return whether an attacker reads the transform's draws off the reading, or knows the few possible values."""
    return _simulates(transform) or transform.mixes_examples or transform.outcomes(given, context) is not None


def _claims_a_mean(transform: Transform, given: Tensors, state: State, context: Context) -> bool:
    if not transform.random or _simulates(transform):
        return False
    return transform.expected(given, state, context) is not None


def _simulates(transform: Transform) -> bool:
    """Return whether the transform defines `simulate`, by which an attacker reads its draws off the reading."""
    return type(transform).simulate is not Transform.simulate


def by_norms(defense: Defense) -> None:
    """Check `Transform.update_by_norms`, by which fast trainings apply a transform (a defense's function on tensors)
    without computing example gradients. From the norms of the gradients, the method must return the scale factors and
    the noise that the transform applies to the gradients. Raises `ContractBroken` otherwise."""
    words, trial = first_trial(defense)
    checked = 0
    for stage, transform, arriving, state in arriving_at(trial):
        if stage != "example":
            continue
        for scale in (1e-3, 1.0, 1e3):
            given = {name: scale * value for name, value in arriving.items()}
            context = context_of(trial, stage)
            said = transform.update_by_norms(norms(given, context.lead), state, context)
            if said is None:
                continue
            checked += 1
            what = f"{words}, gradients times {scale:g}: {type(transform).__name__}.by_norms"
            _same_effect(what, transform, given, state, trial, said[0])
    if not checked:
        raise ContractSkipped("nothing of it follows from norms at stage example")


def gradual(defense: Defense) -> None:
    """Check `Transform.smoothed`, the version of a transform (a defense's function on tensors) with gradual transitions
    in place of hard decisions (a sign, a coordinate kept or not). Its output must be differentiable, and tend to the
    transform's expected output if the transitions' width tends to 0. Raises `ContractBroken` otherwise."""
    words, trial = first_trial(defense)
    checked = 0
    for stage, transform, arriving, state in arriving_at(trial):
        context = context_of(trial, stage)
        if stage == "step":
            context = replace(context, examples=trial.at("example"))
        given = {name: value.detach().clone().requires_grad_() for name, value in arriving.items()}
        if transform.smoothed(given, state, context, 1.0) is None:
            continue
        checked += 1
        name = f"{words}, {stage}: {type(transform).__name__}.smoothed"
        hard = StraightThrough(transform)(given, state, context)[0]
        apart = {}
        for width in (1.0, NARROW):
            soft, _ = transform.smoothed(given, state, context, width) or ({}, {})
            total = torch.stack([value.square().sum() for value in soft.values()]).sum()
            require(total.requires_grad, f"{name}: its result has no derivative")
            slopes = torch.autograd.grad(total, list(given.values()), allow_unused=True)
            sound = all(slope is None or bool(slope.isfinite().all()) for slope in slopes)
            require(sound, f"{name}: a derivative at width {width:g} is not finite")
            gaps = [(soft[key] - value).detach().double().square().sum() for key, value in hard.items()]
            apart[width] = float(torch.stack(gaps).sum().sqrt())
        size = float(torch.stack([value.detach().double().square().sum() for value in hard.values()]).sum().sqrt())
        off = apart[NARROW] / size if size else 0.0
        require(off <= NEAR, f"{name}: at width {NARROW:g} its result is off `expected` by {off:.1e} of the norm")
    if not checked:
        raise ContractSkipped("it states no gradual version of a hard decision")


# ------------------------------------------------------------------ the description at the truth


def seen_of(defense: Defense) -> Iterator[Seen]:
    """Yield the cases in which the contract `description` tests a defense: at each interception point, a reading (an
    observed update) without stated noise, and the defense's description. The cases have 1 or 2 local steps and batch
    size 1 or 3, as far as the defense accepts these."""
    for steps, batch in SETTINGS:
        trial = _taken(defense, steps, batch)
        if trial is None:
            continue
        for where in POINTS.values():
            if not any(where.sees(stage) for stage in trial.wired):
                continue
            counted = steps if where.after_training else 1
            unit = trial.federated.unit * counted if where.after_training else 1.0
            probe = {name: value[0, 0] for name, value in trial.at("example").items()}
            said = describe(trial.stages, where, round_=0, unit=unit, probe=probe, weights=trial.weights)
            if said is None:
                continue
            shown = trial.taps(_quiet(trial.stages, said)).shown[where.after]
            if where.scope is Scope.AGGREGATE:
                shown = {name: value[None] for name, value in shown.items()}
            yield Seen(
                words=f"{where.name}, B={batch}, L={steps}",
                point=where,
                trial=trial,
                said=said,
                observed={name: value / unit for name, value in shown.items()},
            )


def _taken(defense: Defense, steps: int, batch: int) -> Trial | None:
    for variant in variants(defense):
        try:
            return trial_of(variant, steps=steps, batch=batch)
        except ValueError:
            continue
    return None


def _quiet(stages: Stages, said: Composition) -> Stages:
    explained = {id(part.transform) for part in said.parts if _reads(part)}
    return replace(
        stages,
        transforms={
            stage: tuple(
                Quiet(item) if id(item) not in explained and _adds(item, said, stage, stages, n) else item
                for n, item in enumerate(items)
            )
            for stage, items in stages.transforms.items()
        },
    )


def _adds(item: Transform, said: Composition, stage: Stage, stages: Stages, position: int) -> bool:
    if stage not in said.contexts:
        return False
    state = of_one(item, stages.states.get((stage, position), {}))
    return item.noise(said.contexts[stage], state) is not None


def _reads(part: DescribedTransform) -> bool:
    return part.shown and _simulates(part.transform)


def _described(one: Seen, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Apply the description to `inputs` (client, step, example, *shape) and class probabilities `targets`."""
    trial, said = one.trial, one.said
    steps, examples = trial.federated.steps, trial.federated.batch
    steps = steps if one.point.after_training else 1
    examples = 1 if one.point.scope is Scope.EXAMPLE else examples
    x, y = (value[:, :steps, :examples].flatten(1, 2) for value in (inputs, targets))
    updates = unrolled_update(
        trial.module,
        trial.weights,
        x,
        y,
        steps=steps,
        rate=trial.federated.rate,
        between=said.local_steps(one.observed) if said.inside_steps else None,
    )
    return said.sent({n: v.unflatten(0, (-1, said.senders)) for n, v in updates.items()}, one.observed)


def _distance(one: Seen, simulated: Tensors) -> float:
    """Return the distance of the `simulated` from the real reading, divided by the real reading's norm."""
    for name, value in simulated.items():
        expected = one.observed[name].shape
        require(
            value.shape == expected, f"{one.words}: candidate {name} is {tuple(value.shape)}, not {tuple(expected)}"
        )
    apart = flattened({name: value.detach() - one.observed[name] for name, value in simulated.items()}, 0).norm()
    return float(apart / flattened(one.observed, 0).norm().clamp_min(POSITIVE))


def _require_derivative(one: Seen, after: Tensors, free: Tensor) -> None:
    total = torch.stack([value.sum() for value in after.values()]).sum()
    require(total.requires_grad, f"{one.words}: the candidate is not differentiable in the dummy's gradient")
    (slope,) = torch.autograd.grad(total, free, allow_unused=True)
    sound = slope is None or bool(torch.isfinite(slope).all())
    require(sound, f"{one.words}: the derivative of the candidate is not finite at the truth")


# ------------------------------------------------------------------ noise


def arriving_at(trial: Trial) -> Iterator[tuple[Stage, Transform, dict[str, Tensor], State]]:
    """Yield each of the defense's transforms (functions on tensors) in the round `trial` with its inputs, so that a
    contract can test the transform alone. A tuple holds the stage, the transform, its input tensors (name → tensor;
    earlier transforms add no noise), and its state (memory) before round 0."""
    for stage in STAGES:
        given = trial.at(stage)
        rows = len(next(iter(given.values()))) if lead_of(stage) else 1
        for transform in trial.stages.transforms.get(stage, ()):
            state = transform.initial_of(trial.shapes, rows)
            yield stage, transform, given, state
            given = StraightThrough(transform)(given, state, context_of(trial, stage))[0]


def of_one(transform: Transform, state: State) -> State:
    """Return the first client's part of a transform's `state` (memory between rounds), with a client axis of length 1:
    the form in which an attacker knows the state. The state of a `transform` at the server is returned unchanged."""
    return state if transform.owner == "server" else {key: value[:1] for key, value in state.items()}


def _of_tensor(what: str, apart: Tensor, like: Tensor, said: AddedNoise | None, name: str, lead: int) -> None:
    """Test deviations `apart` from the expected output, (draw, *lead, *shape), against the variance stated for the
    tensor `name`. `lead` is the number of leading axes. `said` is the stated noise; None states no noise. `like` is the
    tensor's expected output, and `what` begins the error message. Standard errors come from the draws' means, since
    coordinates within a draw may be dependent."""
    stated = 0.0
    if said is not None:
        variance = said.variance[name] if isinstance(said.variance, Mapping) else said.variance
        whole = torch.as_tensor(variance, dtype=like.dtype).expand(like.shape)
        stated = float(whole[like != 0].mean()) if bool((like != 0).any()) else float(whole.mean())
    each = _of_no_bias(what, apart, lead)
    if each is None:
        require(stated <= POSITIVE or bool(said and said.bound), f"{what} is 0, stated {stated:.4g}")
        return
    squares = each.square().mean(1)
    found, error = float(squares.mean()), float(squares.std() / len(squares) ** 0.5)
    allowed = SIGMAS * error + 1e-6 * stated
    remedy = "" if said else "; state `noise`, `variance_at` or `log_density`"
    require(
        found <= stated + allowed, f"{what} has the variance {found:.4g}, stated {stated:.4g} ± {allowed:.2g}{remedy}"
    )
    require(
        found >= stated - allowed or bool(said and said.bound),
        f"{what} has the variance {found:.4g}, stated {stated:.4g} ± {allowed:.2g}",
    )


def _of_no_bias(what: str, apart: Tensor, lead: int) -> Tensor | None:
    """Test that deviations `apart` from the expected output, (draw, *lead, *shape), have mean 0. Return the noised
    coordinates, (draw, coordinate); None without noise. `lead` is the number of leading axes, and `what` begins the
    error message."""
    counted = (apart != 0).any(0)
    if not bool(counted.any()):
        return None
    each = apart[:, counted] if lead else apart.flatten(1)
    means = each.mean(1)
    error = float(means.std() / len(means) ** 0.5) + POSITIVE
    require(abs(float(means.mean())) <= SIGMAS * error, f"{what} has the mean {float(means.mean()):.3g} ± {error:.1g}")
    return each


def _of_what_passes(what: str, apart: Tensor, exact: Tensor) -> None:
    """Test deviations `apart` (draw, *lead, *shape) against the variance `exact`, which depends on the gradient. `what`
    begins the error message."""
    squares = apart.square().flatten(1).mean(1)
    stated = float(exact.mean())
    found, error = float(squares.mean()), float(squares.std() / len(squares) ** 0.5)
    require(
        abs(found - stated) <= SIGMAS * error + 1e-6 * stated,
        f"{what} has the variance {found:.4g}, by what passes {stated:.4g} ± {SIGMAS * error:.2g}",
    )
    require(not bool(apart[:, exact == 0].any()), f"{what} is on coordinates that it says have none")


# ------------------------------------------------------------------ norms


def _same_effect(what: str, transform: Transform, given: Tensors, state: State, trial: Trial, said: Scaling) -> None:
    context = context_of(trial, "example")
    before = StraightThrough(transform)(given, state, context)[0]
    deviation = said.deviation
    drawn = [transform.update(given, state, context_of(trial, "example", draw=draw))[0] for draw in range(DRAWS)]
    for name, value in given.items():
        factor = said.factors.get(name)
        scaled = value if factor is None else value * broadcast(factor, value)
        off = float((scaled - before[name]).norm() / before[name].norm().clamp_min(POSITIVE))
        require(off <= CLOSE, f"{what} scales {name} otherwise than apply, by {off:.1e} of it")
        squares = torch.stack([(one[name] - before[name]).square() for one in drawn]).flatten(3).mean(-1)
        found, error = squares.mean(0), squares.std(0) / DRAWS**0.5
        stated = torch.as_tensor(deviation, dtype=value.dtype).square().expand(found.shape)
        allowed = SIGMAS * error + 1e-6 * stated + POSITIVE * float(value.square().mean())
        worst = int(((found - stated).abs() - allowed).argmax())
        require(
            bool(((found - stated).abs() <= allowed).all()),
            f"{what} adds the variance {float(stated.flatten()[worst]):.4g} to {name}, apply "
            f"{float(found.flatten()[worst]):.4g} ± {float(allowed.flatten()[worst]):.2g}",
        )
