"""Rules by which a reading shows the draws in a transform without a description (`bench.federated.recognise`).

Each rule returns a simulated output for a candidate's gradient.  For the true gradient, it equals the reading."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from bench.defenses.base import Context, Shown, State, Tensors, Transform
from bench.federated.draws import CentralDraws
from bench.federated.straight_through import PARTS
from bench.rows import flattened, rows, unflattened


@dataclass(frozen=True, slots=True)
class Code:
    """A transform's own code, which attackers run on the gradients of candidates (guessed examples), with fixed numbers
    in place of random draws."""

    transform: Transform
    """The transform."""
    state: State
    """The transform's state before the round."""
    context: Context
    """Stage, round and federated setting of the transform."""

    @property
    def lead(self) -> int:
        """Number of leading axes (such as client and example) of the transform's tensors."""
        return self.context.lead

    def __call__(self, tensors: Tensors, part: int = 0, parts: int = 1) -> dict[str, Tensor]:
        """Return the transform's output for `tensors`, both name → (*lead, *shape), with fixed numbers as random draws:
        number `part` of `parts` sets of numbers (`CentralDraws`)."""
        draws = CentralDraws(lead=self.lead, part=part, parts=parts)
        return self.transform.update(tensors, self.state, replace(self.context, draws=draws))[0]


class Rule(Protocol):
    """Rule by which an attacker reads the random draws of a transform without a description from the reading (the
    observed update), such as a mask from its zeros. `simulate` applies the transform with these draws to a candidate's
    gradient; for the true gradient, the result equals the reading."""

    @property
    def reads(self) -> Shown:
        """Property of the reading (observed update) on which the rule depends: "zeros" (positions of zeros),
        "directions" (signs), or "values" (all values)."""

    @property
    def words(self) -> str:
        """The rule as a phrase, for the notes in an experiment's record."""

    def simulate(self, tensors: Tensors, observed: Tensors, code: Code) -> dict[str, Tensor]:
        """Return the transform's output for candidates' gradients, with the random draws that the real output shows.

        - `tensors`: the candidates' gradients, name → (*lead, *shape), where lead are leading axes such as client and
          example.
        - `observed`: the real output, of the same shapes.
        - `code`: runs the transform."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Rule (see `Rule`) for a random mask, possibly with rescaling. The candidate's gradient is set to zero where the
    reading (the observed update) is exactly zero; its other coordinates are multiplied by a factor."""

    factor: float | None
    """Common factor of all outputs; None: the factor differs between outputs, and comes from the reading."""
    over: Literal["model", "tensor", "row"] = "model"
    """Part of the output with a common factor from the reading; a row is a slice along the tensor's first axis."""
    positive: bool = True
    """True if the factor is never negative."""
    zeros: bool = True
    """True if the transform sets nonzero coordinates to zero."""

    @property
    def reads(self) -> Shown:
        return "values" if self.factor is None else "zeros"

    @property
    def words(self) -> str:
        zeros = ["exact zeros: dropped coordinates"] if self.zeros else []
        if self.factor is None:
            return "; ".join([*zeros, f"a common factor per {self.over}: the ratio to the candidate"])
        return "; ".join([*zeros, *([] if self.factor == 1 else [f"a constant factor of {self.factor:.4g}"])])

    def simulate(self, tensors: Tensors, observed: Tensors, code: Code) -> dict[str, Tensor]:
        kept = {name: tensor * (observed[name] != 0).to(tensor) for name, tensor in tensors.items()}
        if self.factor is not None:
            return {name: self.factor * tensor for name, tensor in kept.items()}
        if self.over == "model":
            whole, seen = flattened(kept, code.lead), flattened(observed, code.lead)
            return unflattened(self._scaled(whole, seen), tensors, code.lead)
        lead = code.lead + (self.over == "row")
        scaled = {}
        for name, tensor in kept.items():
            over = min(lead, tensor.dim())
            scaled[name] = self._scaled(rows(tensor, over), rows(observed[name], over)).reshape(tensor.shape)
        return scaled

    def _scaled(self, candidate: Tensor, seen: Tensor) -> Tensor:
        """Return `candidate` (..., coordinate) times the factor that fits the reading `seen` best. If factors are
        positive, both get equal length; otherwise the factor is the least-squares factor. Equal length is better for a
        search: with o = `seen`, its distance 2‖o‖²(1 - cos) grows with the angle up to 180°. The residual of least
        squares, ‖o‖²(1 - cos²), falls again beyond 90°."""
        tiny = torch.finfo(candidate.dtype).tiny
        square = candidate.square().sum(-1, keepdim=True).clamp_min(tiny)
        if self.positive:
            length: Tensor = torch.linalg.vector_norm(seen, dim=-1, keepdim=True)
            return candidate * length / square.sqrt()
        return candidate * (candidate * seen).sum(-1, keepdim=True) / square


@dataclass(frozen=True, slots=True)
class Equal:
    """Rule (see `Rule`) for means over groups of coordinates. Coordinates of a tensor with an equal nonzero value in
    the reading (the observed update) form a group; each gets the mean of the candidate's gradient over its group."""

    reads: ClassVar[Shown] = "values"
    words: ClassVar[str] = "equal values: means over these coordinates"

    def simulate(self, tensors: Tensors, observed: Tensors, code: Code) -> dict[str, Tensor]:
        simulated = {}
        for name, tensor in tensors.items():
            seen = rows(observed[name].detach(), code.lead)
            ordered, order = seen.sort(dim=-1)
            starts = torch.ones_like(order)
            starts[..., 1:] = ((ordered[..., 1:] != ordered[..., :-1]) | (ordered[..., 1:] == 0)).to(starts)
            number = torch.empty_like(order).scatter(-1, order, starts.cumsum(-1) - 1)
            candidate = rows(tensor, code.lead)
            nothing = torch.zeros_like(candidate)
            sums = nothing.scatter_add(-1, number, candidate)
            counts = nothing.scatter_add(-1, number, torch.ones_like(candidate))
            simulated[name] = (sums / counts.clamp_min(1)).gather(-1, number).reshape(tensor.shape)
        return simulated


@dataclass(frozen=True, slots=True)
class Limited:
    """Rule (see `Rule`) for a limit on magnitudes that the attacker does not know, such as a clip by value. The
    candidate's gradient is clipped, in each tensor, at the largest magnitude in the reading (the observed update)."""

    reads: ClassVar[Shown] = "values"
    words: ClassVar[str] = "a repeated largest magnitude: a limit on magnitudes"

    def simulate(self, tensors: Tensors, observed: Tensors, code: Code) -> dict[str, Tensor]:
        simulated = {}
        for name, tensor in tensors.items():
            limit = rows(observed[name], code.lead).abs().amax(-1, keepdim=True)
            cut = torch.minimum(torch.maximum(rows(tensor, code.lead), -limit), limit)
            simulated[name] = cut.reshape(tensor.shape)
        return simulated


@dataclass(frozen=True, slots=True)
class Signs:
    """Rule (see `Rule`) for a transform that sends signs with a single magnitude per tensor. The result has the signs
    of the reading (the observed update). Where the candidate's gradient has the opposite sign, its value is added to
    the result, so that a search can lower the difference; the value is rescaled if `own_scale` is False."""

    own_scale: bool
    """True: the transform's code computes the magnitude from the candidate. False: the magnitude is random, and comes
    from the reading."""

    @property
    def reads(self) -> Shown:
        return "directions" if self.own_scale else "values"

    @property
    def words(self) -> str:
        return f"a single magnitude per tensor: signs, {'' if self.own_scale else 'with a drawn scale'}".rstrip(", ")

    def simulate(self, tensors: Tensors, observed: Tensors, code: Code) -> dict[str, Tensor]:
        own = code(tensors) if self.own_scale else None
        simulated = {}
        for name, tensor in tensors.items():
            seen = observed[name].detach()
            sign = seen.sign()
            wrong = torch.where(sign == 0, 0.0, sign * (sign * tensor).clamp_max(0))
            if own is not None:
                simulated[name] = own[name].abs() * sign + wrong
                continue
            # in units of the drawn scale: otherwise a short gradient would need the least change
            size = rows(tensor, code.lead).abs().mean(-1, keepdim=True)
            unit = rows(seen, code.lead).abs().mean(-1, keepdim=True) / size.clamp_min(torch.finfo(size.dtype).tiny)
            simulated[name] = seen + (rows(wrong, code.lead) * unit).reshape(tensor.shape)
        return simulated


@dataclass(frozen=True, slots=True)
class Levels:
    """Rule (see `Rule`) for a rounding to levels, the few values in the output. Each coordinate of the reading (the
    observed update) shows its level, and so an interval in which the true gradient lies. For a candidate's coordinate
    in this interval, the result is the level; otherwise the distance from the interval is added, so that a search can
    lower it.

    The interval ends at the boundaries to the adjacent levels. A boundary between levels a < b lies at a + p·(b - a),
    with a position p that is known approximately."""

    boundary: tuple[float, float]
    """Least and greatest possible position p of the boundary between two adjacent levels, in [0, 1]."""
    at_zero: tuple[float, float]
    """Least and greatest possible position p of the boundary between zero and the smallest magnitude, in [0, 1]; used
    if `mirrored`."""
    mirrored: bool
    """True if the boundaries apply to magnitudes: the transform f rounds g and -g alike, f(-g) = -f(g)."""

    reads: ClassVar[Shown] = "values"
    words: ClassVar[str] = "few distinct values per tensor: levels"

    def simulate(self, tensors: Tensors, observed: Tensors, code: Code) -> dict[str, Tensor]:
        simulated = {}
        for name, tensor in tensors.items():
            seen, candidate = rows(observed[name].detach(), code.lead), rows(tensor, code.lead)
            if self.mirrored:
                low, high = self._interval(seen.abs())
                low = low.clamp_min(0).where(seen != 0, -high)
                side = seen.sign().where(seen != 0, 1.0)
                off = side * (side * candidate - (side * candidate).clamp(low, high))
            else:
                off = candidate - candidate.clamp(*self._interval(seen))
            simulated[name] = (seen + off).reshape(tensor.shape)
        return simulated

    def _interval(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ends of each coordinate's interval, (..., coordinate); ±∞ beyond the outermost levels."""
        ordered, order = seen.sort(dim=-1)
        steps = torch.arange(seen.shape[-1], device=seen.device).expand_as(order)
        new = torch.ones_like(order, dtype=torch.bool)
        new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
        first = torch.where(new, steps, 0).cummax(-1).values  # the position at which the coordinate's level begins
        last = new.roll(-1, -1)
        last[..., -1] = True
        final = torch.where(last, steps, seen.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
        below = ordered.gather(-1, (first - 1).clamp_min(0))
        above = ordered.gather(-1, (final + 1).clamp_max(seen.shape[-1] - 1))
        low = (below + self._position(below, 0) * (ordered - below)).where(first > 0, -torch.inf)
        high = (ordered + self._position(ordered, 1) * (above - ordered)).where(final < seen.shape[-1] - 1, torch.inf)
        return torch.empty_like(seen).scatter(-1, order, low), torch.empty_like(seen).scatter(-1, order, high)

    def _position(self, lower: Tensor, end: int) -> Tensor:
        return torch.where((lower == 0) & self.mirrored, self.at_zero[end], self.boundary[end])


@dataclass(frozen=True, slots=True)
class Permuted:
    """Rule (see `Rule`) for a random permutation within known groups of coordinates. The values of the candidate's
    gradient are sorted into each group so that they have the same order of size as in the reading (the observed
    update)."""

    groups: Mapping[str, Tensor] = field(repr=False, compare=False)
    """Number of each coordinate's group in its tensor, name → (coordinate,)."""

    reads: ClassVar[Shown] = "values"
    words: ClassVar[str] = "permuted values: each group's sorted values"

    def simulate(self, tensors: Tensors, observed: Tensors, code: Code) -> dict[str, Tensor]:
        simulated = {}
        for name, tensor in tensors.items():
            groups, candidate = self.groups[name].to(tensor.device), rows(tensor, code.lead)
            ours, theirs = (_ordered(value.detach(), groups) for value in (candidate, rows(observed[name], code.lead)))
            placed = torch.zeros_like(candidate).scatter(-1, theirs, candidate.gather(-1, ours))
            simulated[name] = placed.reshape(tensor.shape)
        return simulated


def _ordered(value: Tensor, groups: Tensor) -> Tensor:
    """Return the coordinates' positions (..., coordinate), sorted by group number, then by value. `value` (...,
    coordinate) holds the values, `groups` (coordinate,) the group numbers."""
    order = value.argsort(dim=-1, stable=True)
    return order.gather(-1, groups.expand_as(order).gather(-1, order).argsort(dim=-1, stable=True))


@dataclass(frozen=True, slots=True)
class Nearest:
    """Rule (see `Rule`) for a transform with few possible outputs per coordinate. The transform's code runs on the
    candidate's gradient with several fixed draws; each coordinate takes the output nearest to the reading (the observed
    update)."""

    reads: ClassVar[Shown] = "values"
    words: ClassVar[str] = f"few outputs per coordinate: the nearest of {PARTS} draws"

    def simulate(self, tensors: Tensors, observed: Tensors, code: Code) -> dict[str, Tensor]:
        best = code(tensors, 0, PARTS)
        for part in range(1, PARTS):
            other = code(tensors, part, PARTS)
            best = {
                name: torch.where(
                    (other[name] - observed[name]).abs() < (value - observed[name]).abs(), other[name], value
                )
                for name, value in best.items()
            }
        return best
