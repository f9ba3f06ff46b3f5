"""Contract for the whole distribution of stated noise: it holds on every row, and the noise cannot be removed."""

from collections.abc import Mapping
from math import ceil, sqrt

import torch
from torch import Tensor

from bench.contracts.base import ContractSkipped, require
from bench.contracts.descriptions import arriving_at, of_one
from bench.contracts.trials import Trial, context_of, first_trial, lead_of
from bench.defenses.base import AddedNoise, Defense, State, Transform
from bench.federated.describe import states_its_law
from bench.federated.straight_through import StraightThrough
from bench.points import Stage
from bench.trip import Tensors

_ROWS = 800  # rows of noise: with 2¹⁶ seeds, two rows are equal in 99 cases out of 100
_COORDINATES = 400  # coordinates tested per tensor
_VALUES = 200_000  # values whose distribution is compared
_OFF = 0.03  # largest distance of two distribution functions (Kolmogorov, Smirnov); by chance it is below .01
_DISTINCT = 0.98  # least share of distinct values; single precision repeats 1 or 2 in a thousand
_DEPENDENT = 2.0  # largest `dependence`; independent coordinates give 1
_WHOLE = 0.99  # least share of coordinates with noise
_SAME = 1e-12  # relative difference between equal rows, float64
_LEAST = 0.1  # least ratio between two rows' mean squares
_GROWN = 2.0  # largest growth of the variance for gradients ten times larger


def law(defense: Defense) -> None:
    """Check that an attacker cannot remove the noise of a transform (a defense's function on tensors): it must have the
    stated distribution for every row (a client's or an example's tensors). Coordinates must be independent, the noise
    different in each row, and the variance about equal for gradients ten times larger. Raises `ContractBroken`
    otherwise.

    A transform that states its density (`log_density` or `log_likelihood`) may have another distribution, and noise
    that scales with the gradient."""
    words, trial = first_trial(defense)
    stated = 0
    for stage, transform, given, state in arriving_at(trial):
        said = transform.noise(context_of(trial, stage), of_one(transform, state))
        if said is None or (not said.bound and _is_zero(said)):
            continue
        stated += 1
        what = f"{words}, {stage}: {type(transform).__name__}'s noise"
        _looks(what, transform, given, state, said, trial, stage)
    if not stated:
        raise ContractSkipped("it adds no noise of a stated variance")


def dependence(z: Tensor) -> float:
    """Measure how much the coordinates of noise depend on each other: about 1 for independent coordinates, and about
    n/r if noise in n coordinates spans only r dimensions, so that an attacker could remove the noise. `z` (draw,
    coordinate) are draws of the noise with mean 0 and variance 1. The measure is the squared inner product of two
    different draws, divided by n, as a mean over all pairs of draws."""
    gram = z @ z.T / z.shape[1]
    apart = ~torch.eye(len(z), dtype=torch.bool)
    return float(gram[apart].square().mean() * z.shape[1])


def _looks(
    what: str, transform: Transform, given: Tensors, state: State, said: AddedNoise, trial: Trial, stage: Stage
) -> None:
    lead = lead_of(stage)
    rows = next(iter(given.values())).shape[:lead].numel() if lead else 1
    parts = _parts(transform, given, state, trial, stage, draws=max(2, ceil(_ROWS / rows)))
    own = states_its_law(transform)
    whole = torch.cat(list(parts.values()), -1)  # (draw, row, coordinate)
    squares = whole.square().mean((0, 2))
    if not float(squares.max()):
        return  # contract `noise` tests stated noise that is absent
    alike = squares.unflatten(0, given[next(iter(given))].shape[:lead]) if lead > 1 else squares[None]
    if lead > 1 or not said.bound:
        least = float((alike.amin(-1) / alike.amax(-1).clamp_min(1e-300)).min())
        require(least >= _LEAST, f"{what} on one row is {least:.2g} of another's (mean square)")
    same = _repeated(whole.flatten(0, 1))
    require(same == 0, f"{what} is the same on {same} rows as on others: it has few draws")
    exact = transform.variance_at(given, context_of(trial, stage))
    z = torch.cat([_standardised(value, said, name, given, lead, exact) for name, value in parts.items()], -1)
    z = z[..., (z != 0).any(0).any(0)]
    found = dependence(z[:, 0])
    require(
        found <= _DEPENDENT,
        f"{what}: its coordinates depend on one another (two draws agree {found:.3g} times as independent ones do), "
        "so that a part of what is seen has none",
    )
    if own:
        return
    values = z.flatten()[:: max(1, z.numel() // _VALUES)].sort().values
    drawn, values = len(values), values[values != 0]
    if len(values) < _WHOLE * drawn:  # noise on some coordinates only, chosen anew in each draw
        values = values / values.square().mean().sqrt()
    distinct = len(torch.unique(values)) / max(1, len(values))
    require(distinct >= _DISTINCT, f"{what} takes few values ({distinct:.2g} of them are distinct)")
    off = _distance(values, said)
    require(off <= _OFF, f"{what} is not {said.law}: its distribution is off by {off:.2g}, allowed {_OFF:g}")
    larger = {name: 10 * value for name, value in given.items()}
    again = torch.cat(list(_parts(transform, larger, state, trial, stage, draws=16).values()), -1)
    grown = float(again.square().mean() / whole.square().mean())
    require(
        grown <= _GROWN,
        f"{what} has {grown:.3g} times the variance on gradients ten times larger; state its likelihood (log_density)",
    )


def _parts(
    transform: Transform, given: Tensors, state: State, trial: Trial, stage: Stage, *, draws: int
) -> dict[str, Tensor]:
    lead = lead_of(stage)
    before = StraightThrough(transform)(given, state, context_of(trial, stage))[0]
    drawn = []
    for draw in range(draws):
        after = transform.update(given, state, context_of(trial, stage, draw=draw))[0]
        drawn.append({name: _some(after[name] - value, lead) for name, value in before.items()})
    return {name: torch.stack([each[name] for each in drawn]) for name in before}


def _some(value: Tensor, lead: int) -> Tensor:
    rows = value.reshape(value.shape[:lead].numel() if lead else 1, -1)
    return rows[:, :_COORDINATES]


def _standardised(
    apart: Tensor, said: AddedNoise, name: str, given: Tensors, lead: int, exact: Tensors | None
) -> Tensor:
    """Return the noise `apart` of the tensor `name`, with `lead` leading axes, divided by its standard deviation. The
    deviation comes from the variance `exact` if given, from each row if `said` is a bound, else from `said`."""
    if exact is not None:
        return apart / _some(exact[name], lead).clamp_min(1e-300).sqrt()
    if said.bound:
        return apart / apart.square().mean((0, 2), keepdim=True).sqrt().clamp_min(1e-300)
    variance = said.variance[name] if isinstance(said.variance, Mapping) else said.variance
    like = given[name]
    whole = torch.as_tensor(variance, dtype=like.dtype).expand(like.shape[lead:])
    return apart / whole.reshape(-1)[:_COORDINATES].clamp_min(1e-300).sqrt()


def _distance(values: Tensor, said: AddedNoise) -> float:
    """Return the Kolmogorov-Smirnov distance between the sorted values and the stated law with variance 1."""
    if said.law == "laplace":
        below = 0.5 * torch.exp(-values.abs() * sqrt(2))
        expected = below.where(values < 0, 1 - below)
    else:
        expected = torch.special.ndtr(values)
    shares = torch.arange(1, len(values) + 1, dtype=values.dtype) / len(values)
    return float((shares - expected).abs().max())


def _repeated(rows: Tensor) -> int:
    """Count the `rows` (row, coordinate) of noise that repeat another row up to rounding; zero rows do not count."""
    along = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0), dtype=rows.dtype)
    marks = (rows @ along).sort().values
    marks = marks[marks != 0]
    return int((marks.diff() <= _SAME * marks.abs().amax()).sum()) if len(marks) else 0


def _is_zero(said: AddedNoise) -> bool:
    if isinstance(said.variance, Mapping):
        return not any(bool((value > 0).any()) for value in said.variance.values())
    return said.variance == 0
