"""ε with its meaning: protected unit, adversary, convention, sampling, adjacency and caveats."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from bench.defenses.accounting import composition, fixed, pld, rdp
from bench.defenses.accounting.mechanism import Mechanism, Sampling
from bench.epsilon import Epsilon
from bench.points import Stage

DELTA = 1e-5
RELEASED = "sees the released models"
TAP = "sees who takes part, at the tap"
_NOT_INSTALLED = "dp-accounting is not installed here"
_WIDE = 50.0  # ε beyond which a distribution's grid takes minutes for a useless figure
_NOT_POISSON = "holds were each drawn by itself at rate q; what runs draws fixed numbers, in shuffled order"
_POISSON, _FIXED = "as Poisson", "fixed size, without replacement"
_ADDED, _REMOVED, _REPLACED = "one added or removed", "one removed: its gradient is zero", "one replaced"


def released(mechanism: Mechanism, sampling: Sampling, *, tensors: int, delta: float = DELTA) -> tuple[Epsilon, ...]:
    """Return ε of the released models at δ = `delta`, an entry for each convention: the actual sampling, idealised
    Poisson sampling, and the paper's accounting at the actual and at the stated sampling rate.

    - `mechanism`: the defense's noise and sensitivity.
    - `sampling`: use of examples and clients. Its number of rounds may be smaller than the number of noise multipliers
      in `mechanism`.
    - `tensors`: number of the model's tensors, for a clip by tensor."""
    ours = (*_valid(mechanism, sampling, tensors, delta), _idealised(mechanism, sampling, tensors, delta))
    if not mechanism.paper:
        return ours
    reports = [_paper(mechanism, sampling, delta), *_table_11(mechanism, sampling, delta)]
    if sampling.stated is not None and not math.isclose(sampling.stated, sampling.q):
        reports.append(_paper(mechanism, replace(sampling, q=sampling.stated), delta))
    return (*ours, *reports)


def figures(
    sigma: float, *, q: float, steps: int, tensors: int = 1, uses: int = 1, delta: float = DELTA
) -> tuple[Epsilon, ...]:
    """Return ε of a training, for noise σ·C on the sum of examples' gradients clipped to norm C. The result has an
    entry for each convention: actual sampling, Poisson sampling, the paper's accounting, and an attacker inside the
    rounds.

    - `sigma`: σ, the noise multiplier.
    - `q`, `steps`: sampling rate of an example in a step, and number of steps.
    - `tensors`: M, number of tensors; above 1, each tensor is clipped to C separately, so the sensitivity is √M·C.
    - `uses`: number of views of an example's gradient for an attacker inside the rounds, over the whole training.
    - `delta`: δ."""
    mechanism = Mechanism(unit="example", sigmas=(sigma,), released=1.0, rows={"step": 0.5}, per_tensor=tensors > 1)
    sampling = Sampling(q=q, per_round=steps, rounds=1)
    tap = at_tap(mechanism, "step", tensors=tensors, uses=uses, delta=delta)
    assert tap is not None  # a step's mean is protected
    return (*released(mechanism, sampling, tensors=tensors, delta=delta), tap)


def paper_epsilon(mechanism: Mechanism, sampling: Sampling, delta: float = DELTA) -> float:
    """Return ε of the released models at δ = `delta` as the paper Fed-αCDP computes it, by the moments accountant. For
    the protected unit `client`, the paper counts the last round twice, and so does this function.

    - `mechanism`: the defense's noise; its `sigmas` count as noise deviation over sensitivity.
    - `sampling`: sampling rate and number of steps."""
    counts = _steps(mechanism, sampling, 1.0)
    if mechanism.unit == "client":
        last = list(counts)[-1]
        counts = {**counts, last: counts[last] + 1}
    return rdp.epsilon(counts, delta, q=sampling.q, old=True)


def at_tap(
    mechanism: Mechanism, stage: Stage, *, tensors: int, uses: int = 1, at: int = 0, delta: float = DELTA
) -> Epsilon | None:
    """Return ε at δ = `delta` against an attacker inside a round: the attacker sees the tensors after `stage` (place in
    the round), and knows the round's participants. None for a stage without protection, or if no ε is proved.

    - `mechanism`: the defense's noise and sensitivity.
    - `tensors`: number of the model's tensors; a clip of each tensor multiplies the sensitivity.
    - `uses`: number of times that the attacker sees the same example (client) with new noise.
    - `at`: index of the attacked round's (or local step's) noise multiplier in `mechanism.sigmas`."""
    if stage not in mechanism.rows or mechanism.unproved:
        return None
    noise = mechanism.sigmas[min(at, len(mechanism.sigmas) - 1)] / _root(mechanism, tensors)
    each = noise * mechanism.rows[stage]
    epsilon = composition.gaussian(each / math.sqrt(uses), delta)
    return Epsilon(
        convention="tap",
        accountant="Gaussian mechanism, exactly",
        unit=mechanism.unit,
        adversary=TAP,
        **_finite(epsilon),
        delta=delta,
        q=1.0,
        steps=uses,
        multiplier=(each, each),
        sampling="none",
        adjacency=_REPLACED,
        caveats=_caveats(mechanism, tensors),
        removed_multiplier=noise * mechanism.removed[stage] if stage in mechanism.removed else None,
    )


def _paper(mechanism: Mechanism, sampling: Sampling, delta: float) -> Epsilon:
    epsilon = paper_epsilon(mechanism, sampling, delta)
    assumption = "as if each row were clipped whole and the noise were σC on the sum"
    return Epsilon(
        convention="paper",
        accountant="moments accountant (RDP, old conversion)",
        unit=mechanism.unit,
        adversary=RELEASED,
        **_finite(epsilon),
        delta=delta,
        q=sampling.q,
        steps=sampling.per_round * sampling.rounds + (mechanism.unit == "client"),
        multiplier=_ends(_steps(mechanism, sampling, 1.0)),
        sampling=_POISSON,
        adjacency=_ADDED,
        caveats=(assumption, *mechanism.caveats),
    )


def _table_11(mechanism: Mechanism, sampling: Sampling, delta: float) -> list[Epsilon]:
    counts, q = _steps(mechanism, sampling, 1.0), sampling.q
    if 0.0 in counts:
        return []
    composed = composition.of_paper(counts, q, delta)
    classic = "δ adds up over the steps, too, and the classic Gaussian formula holds for ε < 1 alone"
    caveats = {
        "base": classic,
        "advanced": classic,
        "zCDP": "counts twice the Gaussian's ρ; amplification by q² is no theorem for zCDP",
    }
    return [
        Epsilon(
            convention="paper",
            accountant=f"{name} composition" if name != "zCDP" else name,
            unit=mechanism.unit,
            adversary=RELEASED,
            **_finite(value),
            delta=delta,
            q=q,
            steps=int(sum(counts.values())),
            multiplier=_ends(counts),
            sampling=_POISSON,
            adjacency=_ADDED,
            caveats=(caveats[name],),
        )
        for name, value in composed.items()
    ]


def _idealised(mechanism: Mechanism, sampling: Sampling, tensors: int, delta: float) -> Epsilon:
    factor = mechanism.released / _root(mechanism, tensors)
    counts = _steps(mechanism, sampling, factor)
    bound = rdp.epsilon(counts, delta, q=sampling.q, old=False)
    wide = bound > _WIDE
    shared: dict[str, Any] = {
        "convention": "idealised",
        "accountant": "RDP (too large for a distribution)" if wide else "privacy loss distributions (dp-accounting)",
        "unit": mechanism.unit,
        "adversary": RELEASED,
        "delta": delta,
        "q": sampling.q,
        "steps": sampling.per_round * sampling.rounds,
        "multiplier": _ends(counts),
        "sampling": _POISSON,
        "adjacency": _ADDED,
        "caveats": (*_caveats(mechanism, tensors), _NOT_POISSON),
    }
    if not pld.available():
        return Epsilon(epsilon=None, absent=_NOT_INSTALLED, **shared)
    epsilon = bound if wide else pld.epsilon(counts, delta, q=sampling.q)
    if math.isinf(epsilon) and math.isfinite(bound):  # losses are cut off at a probability above δ
        epsilon, shared["accountant"] = bound, "RDP (δ too small for a distribution)"
        if sampling.q == 1:
            multiplier = sum(count / sigma**2 for sigma, count in counts.items()) ** -0.5
            epsilon, shared["accountant"] = composition.gaussian(multiplier, delta), "Gaussian, exact"
    return Epsilon(**_finite(epsilon), **shared)


def _valid(mechanism: Mechanism, sampling: Sampling, tensors: int, delta: float) -> tuple[Epsilon, ...]:
    """Return ε at δ = `delta` for the actual sampling; for examples first with a removed, then a replaced example."""
    if sampling.clients is None:
        return ()
    drawn, clients = sampling.clients
    removed = _by_round(mechanism, sampling, mechanism.released / _root(mechanism, tensors))
    replaced = [multiplier / 2 for multiplier in removed]
    shared: dict[str, Any] = {
        "convention": "valid",
        "unit": mechanism.unit,
        "adversary": RELEASED,
        "delta": delta,
        "q": drawn / clients,
        "steps": sampling.rounds,
        "sampling": _FIXED,
    }
    caveats = _caveats(mechanism, tensors)
    if mechanism.unit == "client":
        counts = rdp.multiplicities(replaced, 1)
        value = _unless_unproved(
            mechanism, lambda: pld.without_replacement(counts, delta, per_round=drawn, clients=clients), needs=True
        )
        accountant = "RDP of samples without replacement (Wang, Balle & Kasiviswanathan 2019)"
        return (
            Epsilon(
                **shared,
                **value,
                accountant=accountant,
                adjacency=_REPLACED,
                multiplier=(replaced[0], replaced[-1]),
                caveats=caveats,
            ),
        )
    rate = drawn / clients * sampling.used
    reports = []
    for adjacency, multipliers in ((_REMOVED, removed), (_REPLACED, replaced)):
        releases = [sampling.uses / each**2 if each else math.inf for each in multipliers]
        value = _unless_unproved(mechanism, partial(fixed.of_examples, releases, delta, rate=rate))
        always = fixed.of_examples(releases, delta, rate=1.0)
        every = (f"{always:.3g} of a client that takes part in every round",) if value["epsilon"] is not None else ()
        reports.append(
            Epsilon(
                **shared,
                **value,
                adjacency=adjacency,
                multiplier=(multipliers[0], multipliers[-1]),
                accountant="Gaussian releases to an attacker who knows when an example is used",
                caveats=(*every, *caveats),
            )
        )
    return tuple(reports)


def _by_round(mechanism: Mechanism, sampling: Sampling, factor: float) -> list[float]:
    """Return a noise multiplier per round, times `factor`; if local steps have different σ, the least."""
    count = sampling.per_round if mechanism.by_step else 1
    sigmas = mechanism.sigmas[: sampling.rounds * count]
    return [factor * min(sigmas[first : first + count]) for first in range(0, len(sigmas), count)]


def _unless_unproved(mechanism: Mechanism, epsilon: Callable[[], float], *, needs: bool = False) -> Mapping[str, Any]:
    if mechanism.unproved:
        return {"epsilon": None, "absent": mechanism.unproved}
    if needs and not pld.available():
        return {"epsilon": None, "absent": _NOT_INSTALLED}
    return _finite(epsilon())


def _steps(mechanism: Mechanism, sampling: Sampling, factor: float) -> dict[float, int]:
    if mechanism.by_step:
        planned, each = mechanism.sigmas[: sampling.rounds * sampling.per_round], 1
    else:
        planned, each = mechanism.sigmas[: sampling.rounds], sampling.per_round
    return rdp.multiplicities([sigma * factor for sigma in planned], each)


def _ends(counts: Mapping[float, int]) -> tuple[float, float]:
    multipliers = list(counts)
    return multipliers[0], multipliers[-1]


def _root(mechanism: Mechanism, tensors: int) -> float:
    return math.sqrt(tensors) if mechanism.per_tensor else 1.0


def _caveats(mechanism: Mechanism, tensors: int) -> tuple[str, ...]:
    if not mechanism.per_tensor:
        return mechanism.caveats
    return (f"{tensors} tensors clipped by themselves: sensitivity √{tensors}·C", *mechanism.caveats)


def _finite(epsilon: float) -> Mapping[str, Any]:
    """Return the fields `epsilon` and `absent` of an `Epsilon`; an infinite ε is absent, with the reason."""
    if math.isfinite(epsilon):
        return {"epsilon": epsilon}
    return {"epsilon": None, "absent": "no noise at some step, or too little to count: no ε holds"}
