"""A transform as an attacker applies it to candidates: its code, with fixed draws and a useful derivative.

A rounding, or a sign, has derivative 0 almost everywhere.  Attackers therefore combine the code's value with the
identity's derivative (straight-through: Bengio, Léonard & Courville 2013, §4; Athalye et al. 2018, §4.1), and average a
random transform over draws (Athalye et al. 2018, §4.2)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor

from bench.defenses.base import Context, State, Tensors, Transform
from bench.federated.draws import CentralDraws
from bench.federated.gradual import by_coordinate, gradual

PARTS = 8  # number of fixed draws for each uniform
_CHANGE = 0.01  # change in a trial of the derivative, relative to the tensor's size
_TINY = 1e-30  # near the smallest numbers of single precision, which have few digits
_DIRECTIONS = 4
_AGREE = 0.2  # largest relative error of the derivative's prediction
_STATED = 0.8  # the same limit for a stated `expected`: a mask may change with the candidate

Slopes = Mapping[str, float]  # a factor on the identity for each tensor


@dataclass(frozen=True, slots=True)
class StraightThrough:
    """Differentiable form of a defense's transform, by which attackers search for examples. Its values are the outputs
    of the transform's code, for random code in the mean over draws. Where the code's derivative is useless (0, as for a
    rounding), the derivative is a multiple of the identity."""

    transform: Transform
    """The transform."""
    slopes: Slopes | None = None
    """Derivative for each tensor, as a multiple of the identity; None: torch's derivative."""
    stated: bool = True
    """True: take the transform's own description (`Transform.expected`) if there is one. False: run the transform's
    code (`Transform.update`) with fixed numbers in place of random draws."""
    by_coordinate: bool = False
    """True if each output depends only on the input at the same coordinate; `smoothed` then averages over coordinates
    with similar values."""

    def smoothed(
        self, tensors: Tensors, state: State, context: Context, width: float
    ) -> tuple[dict[str, Tensor], State] | None:
        """Return the output of a gradual version of the transform, in which a hard decision such as a sign becomes a
        smooth transition, and the next state (memory); None if the transform has no hard decision. A search uses this
        version for its derivative.

        - `tensors`: candidates' gradients, name → (*lead, *shape).
        - `state`, `context`: the transform's memory; its stage, round and setting.
        - `width`: relative width of the transitions, above 0 (`Transform.smoothed`)."""
        stated = self.transform.smoothed(tensors, state, context, width)
        if stated is not None or not self.by_coordinate:
            return stated
        with torch.no_grad():
            after, state = _expected(self.transform, tensors, state, context, stated=self.stated)
        return gradual(tensors, after, context.lead, width), state

    def __call__(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return the transformed tensors, differentiable in `tensors`, and the next state."""
        if self.slopes is None:
            return _expected(self.transform, tensors, state, context, stated=self.stated)
        with torch.no_grad():
            after, state = _expected(self.transform, tensors, state, context, stated=self.stated)
        return {
            name: after[name].detach() + self.slopes[name] * (value - value.detach()) for name, value in tensors.items()
        }, state


def straight_through(transform: Transform, probe: Tensors, state: State, context: Context) -> StraightThrough:
    """Make the differentiable form of a transform, with which an attacker's gradient search passes through a defense.
    The transform's own derivative is taken if it predicts small changes around `probe`, otherwise a multiple of the
    identity.

    - `probe`: any gradient, name → (*lead, *shape).
    - `state`: the transform's memory between rounds; `context`: its stage, round and setting.

    Raises the error of the transform's code if the code fails, for example because an attacker lacks its inputs."""
    context = replace(context, draws=CentralDraws(lead=context.lead))
    stated = transform.expected(probe, state, context) is not None
    plain = StraightThrough(transform)
    plain(probe, state, context)
    if _is_right(plain, probe, state, context, _STATED if stated else _AGREE):
        return plain
    own = StraightThrough(transform, stated=False)
    if stated and _same(plain, own, probe, state, context) and _is_right(own, probe, state, context):
        return own  # `expected` has the right values, but a misleading derivative
    with torch.no_grad():
        after, _ = plain(probe, state, context)
    return StraightThrough(
        transform, _slopes(plain, probe, state, context), by_coordinate=by_coordinate(probe, after, context.lead)
    )


def _same(plain: StraightThrough, own: StraightThrough, probe: Tensors, state: State, context: Context) -> bool:
    with torch.no_grad():
        first, second = (each(probe, state, context)[0] for each in (plain, own))
    return all(torch.allclose(value, second[name], rtol=1e-6) for name, value in first.items())


def _expected(
    transform: Transform, tensors: Tensors, state: State, context: Context, *, stated: bool = True
) -> tuple[dict[str, Tensor], State]:
    """Return the mean output of the transform over its draws, and the next state. The mean is `expected` of the
    transform if defined and `stated` is True, and otherwise a mean of `update` over fixed draws (`CentralDraws`). The
    next state then comes from the first of these draws."""
    draws = CentralDraws(lead=context.lead, parts=PARTS)
    central = replace(context, draws=CentralDraws(lead=context.lead))
    known = transform.expected(tensors, state, central) if stated else None
    if known is not None:
        return known
    total, after = transform.update(tensors, state, replace(context, draws=draws))
    if not draws.drawn:
        return total, after
    for part in range(1, PARTS):
        again = replace(context, draws=CentralDraws(lead=context.lead, part=part, parts=PARTS))
        more, _ = transform.update(tensors, state, again)
        total = {name: value + more[name] for name, value in total.items()}
    return {name: value / PARTS for name, value in total.items()}, after


def _is_right(plain: StraightThrough, probe: Tensors, state: State, context: Context, agree: float = _AGREE) -> bool:
    """Return whether the derivative of `plain` predicts its change after a 1 % change of `probe`, in random directions.
    The prediction must agree to a share `agree`. A rounding fails: its derivative is 0 within a step, or reflects only
    the changed step size."""
    free = {name: value.detach().clone().requires_grad_() for name, value in probe.items()}
    with torch.enable_grad():
        after, _ = plain(free, state, context)
    for number in range(_DIRECTIONS):
        step = _direction(probe, number)
        change = _difference(plain, probe, step, state, context)
        # in double precision and along a unit vector: squares of very large gradients overflow single precision
        size = float(torch.stack([value.double().square().sum() for value in change.values()]).sum().sqrt())
        if not isfinite(size) or 0 < size < _TINY:
            continue  # outside single precision the trial is meaningless
        along = {name: value / size if size else value for name, value in change.items()}
        with torch.enable_grad():
            total = torch.stack([(after[name] * along[name]).sum() for name in probe]).sum()
        if not total.requires_grad:
            return False
        slopes = torch.autograd.grad(total, list(free.values()), retain_graph=True, allow_unused=True)
        predicted = sum(
            (slope * step[name]).sum() for name, slope in zip(free, slopes, strict=True) if slope is not None
        )
        sound = all(slope is None or bool(slope.isfinite().all()) for slope in slopes)
        if not sound or abs(float(predicted) - size) > agree * size:
            return False
    return True


def _slopes(plain: StraightThrough, probe: Tensors, state: State, context: Context) -> Slopes:
    """Return a factor for each tensor: the factor times a 1 % change of `probe` fits the effect of this change best. A
    factor ≤ 0 becomes 1."""
    along, size = dict.fromkeys(probe, 0.0), dict.fromkeys(probe, 0.0)
    for number in range(_DIRECTIONS):
        step = _direction(probe, number)
        change = _difference(plain, probe, step, state, context)
        for name in probe:
            along[name] += float((change[name] * step[name]).sum())
            size[name] += float(step[name].square().sum())
    slopes = {name: along[name] / size[name] if size[name] else 1.0 for name in probe}
    return {name: slope if 0 < slope < float("inf") else 1.0 for name, slope in slopes.items()}


def _direction(probe: Tensors, number: int) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(number)
    return {
        name: _CHANGE
        * float(value.double().square().mean().sqrt())
        * torch.randn(value.shape, generator=source).to(value)
        for name, value in probe.items()
    }


def _difference(
    plain: StraightThrough, probe: Tensors, step: Tensors, state: State, context: Context
) -> dict[str, Tensor]:
    with torch.no_grad():
        up, _ = plain({name: value + step[name] for name, value in probe.items()}, state, context)
        down, _ = plain({name: value - step[name] for name, value in probe.items()}, state, context)
    return {name: (up[name] - down[name]) / 2 for name in probe}
