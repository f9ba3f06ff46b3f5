"""Find by trials how a transform's output shows the transform's draws: zeros may show, for example, a random mask."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from bench.defenses.base import Context, State, Tensors, Transform
from bench.defenses.transforms.levels import public_gradients
from bench.federated.draws import KeyedDraws
from bench.federated.shown import Code, Equal, Kept, Levels, Limited, Nearest, Permuted, Rule, Signs
from bench.federated.straight_through import straight_through
from bench.rows import flattened, rows

_DESCRIPTIONS = ("expected", "simulate", "noise", "log_likelihood", "log_density")
_SIZES = (1.0, 0.25, 4.0)  # of the trial gradients, relative to the gradient given
_DRAWS = 3  # for each trial gradient
_MIXINGS = 32  # draws which show the groups of a permutation
_EXPLAINED = 1e3  # largest distance of the truth, relative to the output, in the dtype's precision
_TOLD_APART = 0.1  # least distance of another gradient: a rule which explains everything shows nothing
_OTHER = 99  # number of the other gradient's draw
_SAMPLES = 8  # least number of inputs on each side of a boundary between levels
_SAME = 1e-5  # relative spread of an equal factor

_Ends = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A trial run of a transform: the gradient `given`, and the transform's `output` for a draw, both name → (*lead,
    *shape)."""

    given: Tensors
    output: Tensors


def recognised(transform: Transform, probe: Tensors, state: State, context: Context) -> Rule | None:
    """Find out how a reading (an observed update) shows the random draws of a transform without a description, such as
    a mask by its zeros. An adaptive attacker then simulates the transform by the returned rule. None if no rule holds.

    - `transform`: the transform; the result is None if its class describes itself by `expected`, `simulate`, `noise`,
      `log_likelihood` or `log_density`.
    - `probe`: any gradient, which gives each tensor's size, name → (*lead, *shape).
    - `state`: the transform's memory between rounds; `context`: its stage, round and setting.

    The rule is tested on trial gradients: it must explain the output of each trial, up to rounding, but not the output
    of a different gradient. A transform without draws gets a rule only if its code has no useful derivative."""
    if transform.mixes_clients or any(getattr(type(transform), n) is not getattr(Transform, n) for n in _DESCRIPTIONS):
        return None
    trials = _trials(transform, probe, state, context)
    random = any(not _equal(a.output, b.output) for a, b in pairwise(trials) if a.given is b.given)
    # not on the probe: in a reading of signs, no small change flips a sign
    if not random and straight_through(transform, trials[0].given, state, context).slopes is None:
        return None
    tried = Code(transform, state, context)
    rules = _of_draws(trials, tried) if random else _of_rounding(trials, context.lead)
    return next((rule for rule in rules if _holds(rule, trials, tried)), None)


def _of_draws(trials: Sequence[_Trial], code: Code) -> Iterator[Rule]:
    """Yield rules for a random transform, first the rules that use the most information in a reading."""
    lead = code.lead
    ratios = [flattened(_ratios(trial), lead) for trial in trials]
    zeros = any(bool((flattened(t.output, lead)[flattened(t.given, lead) != 0] == 0).any()) for t in trials)
    kept = torch.cat([ratio[ratio != 0] for ratio in ratios])
    if len(kept):
        factor = float(kept.median())
        same = float((kept - factor).abs().max()) <= _SAME * abs(factor)
        if same and (zeros or abs(factor - 1) > _SAME):
            yield Kept(1.0 if abs(factor - 1) <= _SAME else factor, zeros=zeros)
        for over in ("model", "tensor", "row"):
            yield Kept(None, over, positive=bool((kept > 0).all()), zeros=zeros)
    yield Equal()
    yield Limited()
    if all(_of_one_size(value, lead) for trial in trials for value in trial.output.values()):
        yield Signs(own_scale=False)
    groups = _groups(trials[0], code)
    if groups is not None:
        yield Permuted(groups)
    yield Nearest()


def _of_rounding(trials: Sequence[_Trial], lead: int) -> Iterator[Rule]:
    """Yield rules for a transform without draws or a useful derivative, such as a sign. `lead`: leading axes."""
    if all(_of_one_size(value, lead) for trial in trials for value in trial.output.values()):
        yield Signs(own_scale=True)
        return
    for mirrored in (True, False):
        boundary, at_zero = _boundaries(trials, lead, mirrored)
        if boundary is not None:
            yield Levels(boundary, at_zero or (0.0, 1.0), mirrored)


def _holds(rule: Rule, trials: Sequence[_Trial], code: Code) -> bool:
    """Return whether `rule` explains the output of every trial, but would not explain an arbitrary output. The rule
    must give each output from the trial's gradient, up to rounding. From an unrelated random gradient, it must give
    another output. Outputs that are zero as a whole decide nothing: with such outputs alone, the result is False."""
    told_apart = False
    with torch.no_grad():
        for trial in trials:
            like = next(iter(trial.output.values()))
            near = _distance(rule.simulate(trial.given, trial.output, code), trial.output, code.lead)
            if not near <= _EXPLAINED * torch.finfo(like.dtype).eps:
                return False
            if not any(bool(value.any()) for value in trial.output.values()):
                continue  # dropped as a whole
            other = _noise_like(trial.given, _OTHER, 1.0)
            if not _distance(rule.simulate(other, trial.output, code), trial.output, code.lead) >= _TOLD_APART:
                return False
            told_apart = True
    return told_apart


def _distance(simulated: Tensors, output: Tensors, lead: int) -> float:
    """Return the relative distance ‖simulated - output‖/‖output‖, 0 for two zero outputs; `lead`: leading axes."""
    seen = flattened(output, lead).double()
    apart = float((flattened(simulated, lead).double() - seen).norm())
    return apart / max(float(seen.norm()), 1e-300) if apart else 0.0


# ------------------------------------------------------------------ trials


def _trials(transform: Transform, probe: Tensors, state: State, context: Context) -> list[_Trial]:
    """Run the code of a transform with several draws, for random gradients in several sizes and a public gradient.
    `probe` gives the shapes and sizes of tensors."""
    given: list[Tensors] = [_noise_like(probe, number, size) for number, size in enumerate(_SIZES)]
    public = public_gradients(context)
    if public is not None and all(public[name].shape[1:] == probe[name].shape[context.lead :] for name in probe):
        given.append({n: public[n][:1].reshape(v.shape).to(v) * _scale(public, probe) for n, v in probe.items()})
    return [
        _Trial(given=each, output=_run(transform, each, state, context, _DRAWS * number + draw))
        for number, each in enumerate(given)
        for draw in range(_DRAWS)
    ]


def _run(transform: Transform, given: Tensors, state: State, context: Context, number: int) -> dict[str, Tensor]:
    draws = KeyedDraws(seed=0, fields=("trial of a rule", number), rows=((0,),))
    with torch.no_grad():
        return transform.update(given, state, replace(context, draws=draws))[0]


def _noise_like(probe: Tensors, seed: int, size: float) -> dict[str, Tensor]:
    """Return normal numbers with the root mean square of each tensor in `probe`, times `size`. A zero tensor takes the
    root mean square of the whole probe."""
    source = torch.Generator().manual_seed(seed)
    whole = _size(probe)
    return {
        name: (size * (float(value.double().square().mean().sqrt()) or whole or 1.0))
        * torch.randn(value.shape, generator=source, dtype=torch.float64).to(value)
        for name, value in probe.items()
    }


def _scale(public: Mapping[str, Tensor], probe: Tensors) -> float:
    return (_size(probe) or 1.0) / (_size({name: value[:1] for name, value in public.items()}) or 1.0)


def _size(tensors: Tensors) -> float:
    return float(flattened(tensors, 0).double().square().mean().sqrt())


# ------------------------------------------------------------------ properties of outputs


def _equal(first: Tensors, second: Tensors) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


def _ratios(trial: _Trial) -> dict[str, Tensor]:
    """Return the output of a trial divided by its input, coordinate by coordinate; 0 for a zero input."""
    return {n: (trial.output[n] / v.where(v != 0, 1.0)).where(v != 0, 0.0) for n, v in trial.given.items()}


def _of_one_size(value: Tensor, lead: int) -> bool:
    magnitudes = rows(value, lead).abs()
    present = magnitudes[magnitudes > 0]
    return not len(present) or float(present.max() - present.min()) <= _SAME * float(present.max())


def _boundaries(trials: Sequence[_Trial], lead: int, mirrored: bool) -> tuple[_Ends | None, _Ends | None]:
    """Return the position of a rounding's boundary between two adjacent levels, as intervals that fit all `trials`
    (tensors with `lead` leading axes). Position 0 is the lower level, 1 the upper level. The first interval is for most
    pairs of levels. The second is for the pair of level zero and the level above, if `mirrored` is True (equal
    magnitudes on both sides of zero). An interval is None if no position fits all trials."""
    above, at_zero = [], []
    for trial in trials:
        for name, value in trial.given.items():
            given, output = rows(value, lead).flatten(), rows(trial.output[name], lead).flatten()
            if mirrored:
                given, output = given.abs(), output.abs()
            levels, number, counts = output.unique(return_inverse=True, return_counts=True)
            if len(levels) > len(output) / _SAMPLES:
                continue
            lower = ((counts[:-1] >= _SAMPLES) & (counts[1:] >= _SAMPLES)).nonzero().flatten()
            ends = levels.new_zeros(len(levels))
            most, least = (ends.scatter_reduce(0, number, given, way, include_self=False) for way in ("amax", "amin"))
            gaps = levels[lower + 1] - levels[lower]
            between = torch.stack([(most[lower] - levels[lower]) / gaps, (least[lower + 1] - levels[lower]) / gaps])
            separate = (levels[lower] == 0) & mirrored
            above.append(between[:, ~separate])
            at_zero.append(between[:, separate])
    return _common(above), _common(at_zero)


def _common(between: Sequence[Tensor]) -> _Ends | None:
    """Return the interval common to all intervals in `between`, (2, interval); None if there is none."""
    bounds = torch.cat([torch.zeros(2, 0), *(each.cpu() for each in between)], 1)
    if not bounds.shape[1]:
        return None
    least, most = float(bounds[0].max()) - _SAME, float(bounds[1].min()) + _SAME
    return None if least > most else (max(least, 0.0), min(most, 1.0))


def _groups(trial: _Trial, code: Code) -> dict[str, Tensor] | None:
    """Return the groups of coordinates within which the draws permute values, name → (coordinate,). Each coordinate has
    the number of its group. The result is None if the output is no permutation of the input."""
    if not all(torch.equal(trial.output[n].flatten().sort()[0], v.flatten().sort()[0]) for n, v in trial.given.items()):
        return None
    numbers = {name: torch.arange(value.numel()) for name, value in trial.given.items()}
    order = {name: value.flatten().argsort() for name, value in trial.given.items()}
    for draw in range(_MIXINGS):
        output = _run(code.transform, trial.given, code.state, code.context, draw)
        for name, value in output.items():
            source = torch.empty_like(order[name])
            source[value.flatten().argsort()] = order[name]  # the coordinate from which each value comes
            numbers[name] = _united(numbers[name], source.cpu())
    return numbers


def _united(numbers: Tensor, source: Tensor) -> Tensor:
    """Unite the groups that a permutation connects: each coordinate takes the least number in its group. `numbers` are
    the present group numbers, and `source` is the permutation."""
    while True:
        fewer = numbers.scatter_reduce(0, source, numbers, "amin").minimum(numbers[source])
        fewer = numbers.scatter_reduce(0, numbers, fewer, "amin")[numbers]
        if torch.equal(fewer, numbers):
            return numbers
        numbers = fewer
