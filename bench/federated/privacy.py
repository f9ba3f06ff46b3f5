"""ε for a training and for a reading: a defense's mechanism in its federated setting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.defenses.accounting import local
from bench.defenses.accounting.mechanism import Mechanism, Reports, Sampling, sampling_of, uses_of_example
from bench.defenses.accounting.report import at_tap, paper_epsilon, released
from bench.defenses.base import Defense, Setting
from bench.epsilon import Epsilon
from bench.points import UPDATE_STAGES, Point, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A defense's noise and sensitivity in a training, with the sampling of examples or clients; ε follows from
    these."""

    mechanism: Mechanism | Reports
    """Noise and sensitivity, or locally private reports."""
    sampling: Sampling
    """Probability with which the training uses an example or client."""
    tensors: int
    """M, the number of the model's tensors."""
    coordinates: int
    """d, the number of the model's coordinates."""

    def released(self, rounds: int) -> tuple[Epsilon, ...]:
        """Return ε of the released models after `rounds` rounds, against an attacker who sees every model: a value for
        each convention of accounting (papers count privacy loss differently) that applies."""
        if isinstance(self.mechanism, Reports):
            return local.released(self.mechanism, rounds=rounds, coordinates=self.coordinates)
        return released(self.mechanism, replace(self.sampling, rounds=rounds), tensors=self.tensors)

    def so_far(self, rounds: int) -> float:
        """Return ε after `rounds` rounds by the formula in the defense's paper. The computation is fast enough for
        every round of a training."""
        if isinstance(self.mechanism, Reports):
            return self.mechanism.epsilon if rounds else 0.0
        return paper_epsilon(self.mechanism, replace(self.sampling, rounds=rounds)) if rounds else 0.0


def account(defense: Defense, setting: Setting, *, tensors: int, coordinates: int, examples: int) -> Account | None:
    """Return the account of ε for a defense in a training, or None if the defense has no noise from which ε follows.
    `setting` is the federated setting, `tensors` and `coordinates` are the numbers of the model's tensors and
    coordinates, and `examples` is the size of the training split."""
    mechanism = defense.mechanism(setting)
    if mechanism is None:
        return None
    sampling = sampling_of(
        mechanism.unit,
        clients=setting.clients,
        per_round=setting.per_round,
        rounds=setting.rounds,
        steps=setting.steps,
        batch=setting.batch,
        client_examples=setting.client_examples,
        examples=examples,
    )
    held = setting.clients * setting.client_examples
    if isinstance(mechanism, Mechanism) and mechanism.unit == "example" and held > examples:
        copies = f"for one client's copy of an example; clients hold each example {held / examples:.3g} times"
        mechanism = replace(mechanism, caveats=(*mechanism.caveats, copies))
    return Account(mechanism=mechanism, sampling=sampling, tensors=tensors, coordinates=coordinates)


def at_point(
    defense: Defense, setting: Setting, where: Point, *, tensors: int, coordinates: int, round_: int, observations: int
) -> tuple[Epsilon | None, str | None]:
    """Return (ε, None) against an attacker who observes round `round_` at the interception point `where`, or (None,
    reason) if there is no ε. `Epsilon` holds the protected unit (example or client) and δ.

    - `observations`: number of readings (observed updates) that the attacker gets; in each, an example counts once for
      each local step that may use the example.
    - `tensors`, `coordinates`: numbers of the model's tensors and coordinates.
    - `defense`, `setting`: the defense in its federated setting."""
    mechanism = defense.mechanism(setting)
    if mechanism is None:
        return None, defense.no_epsilon
    if isinstance(mechanism, Mechanism) and mechanism.unproved:
        return None, mechanism.unproved
    if mechanism.unit == "client" and not where.after_training:
        return None, f"it speaks of a client's update, not of what {where.name} shows"
    if isinstance(mechanism, Reports):
        return local.at_tap(mechanism, coordinates=coordinates, observations=observations), None
    inside = mechanism.unit == "example" and where.after_training
    uses = 1
    if inside:
        uses = uses_of_example(steps=setting.steps, batch=setting.batch, client_examples=setting.client_examples)
    mechanism = _without_dummies(mechanism, setting)
    at = round_
    if mechanism.by_step:  # the visible local step with the least noise
        first = round_ * setting.steps
        shown = range(first, first + (setting.steps if inside else 1))
        at = min(shown, key=lambda step: mechanism.sigmas[min(step, len(mechanism.sigmas) - 1)])
    later_steps = inside and where.after == "aggregate" and setting.steps > 1
    visible = _of_mean(mechanism, setting, uses) if later_steps else mechanism
    report = at_tap(visible, where.after, tensors=tensors, uses=uses * observations, at=at)
    if report is None:
        return None, f"nothing protects one {mechanism.unit} by itself at {where.name}"
    return report, None


def _without_dummies(mechanism: Mechanism, setting: Setting) -> Mechanism:
    """Return the mechanism with only the noise of a round's K - k honest clients in the mean: the attacker knows the
    messages of the k dummies in `setting`. The noise at `aggregate` has K equal shares, because dummies allow no noise
    by the server."""
    left = math.sqrt(setting.senders / setting.per_round)

    def counted(multipliers: Mapping[Stage, float]) -> dict[Stage, float]:
        return {stage: value * left if stage == "aggregate" else value for stage, value in multipliers.items()}

    return replace(mechanism, rows=counted(mechanism.rows), removed=counted(mechanism.removed))


def _of_mean(mechanism: Mechanism, setting: Setting, uses: int) -> Mechanism:
    """Return the mechanism of an example at the mean over clients after L ≥ 2 noisy local steps. Two bounds are valid,
    and the better is returned. `uses` is Σ n² over the steps (`uses_of_example`).

    A client's later step reads weights with noise from earlier steps, and may take this noise off again. Hence only the
    noise of the last step is certain to stay in the mean.

    - The example's client by itself: each use of the example has the client's noise of the same step, because later
      steps only process a noisy gradient.
    - The last step: noise of all K clients, against the change of the whole update. At the first use, a replaced
      example changes a gradient by at most 2C, with the clip C (two gradients, if the batch holds a copy); a removed
      example changes it by C. Each of at most L - 1 later steps reads other weights: all B gradients change by 2C, in
      both cases."""
    copies = min(setting.batch, 2) if uses > 1 else 1
    later = setting.batch * (setting.steps - 1)
    replaced, removed = [], []
    for stage in [stage for stage in UPDATE_STAGES if stage in mechanism.rows][-1:]:
        replaced.append(mechanism.rows[stage])
        removed.append(2 * mechanism.rows[stage])
    if "aggregate" in mechanism.rows:
        whole = mechanism.rows["aggregate"] * math.sqrt(uses)
        replaced.append(whole / (copies + later))
        removed.append(whole / (copies / 2 + later))
    if not replaced:
        return replace(mechanism, rows={})
    return replace(mechanism, rows={"aggregate": max(replaced)}, removed={"aggregate": max(removed)})
