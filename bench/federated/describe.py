"""A defense's public description: its transforms' effects on a candidate, composed in stage order."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor

from bench.defenses.base import Context, Local, Shown, State, Tensors, Transform
from bench.defenses.transforms.rows import norms
from bench.federated.draws import CentralDraws
from bench.federated.mixing import Mixer
from bench.federated.noises import Added, MeanOver, total_noise
from bench.federated.recognise import recognised
from bench.federated.shown import Code, Rule
from bench.federated.stages import Stages
from bench.federated.straight_through import StraightThrough, straight_through
from bench.points import GRADIENT_STAGES, STAGES, STEP_STAGES, UPDATE_STAGES, Point, Scope, Stage
from bench.points import point as point_of
from bench.trip import Candidates, Clients, Given, Noise, Outcomes, StepDefense, repeated

_OF_A_CLIENT = (*STEP_STAGES, *UPDATE_STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTransform:
    """A defense's transform (a function on tensors) as an adaptive attacker applies it to the gradients of candidates
    (guessed examples): differentiable, with the random draws that the reading (the observed update) shows."""

    stage: Stage
    """Stage of the transform."""
    code: StraightThrough
    """The transform as a function that is differentiable in the candidates' gradients."""
    state: State
    """State (memory) before the transform: the server's, or a single client's with a client axis of length 1."""
    shown: bool
    """True if the reading (the observed update) still shows the property, such as the zeros, from which the transform's
    `simulate` recovers its random draws."""
    hard: bool
    """True if the transform makes hard decisions (such as a sign) that the reading does not show."""
    rule: Rule | None = None
    """Rule by which the reading shows the transform's random draws, such as zeros that show a mask. None: no rule was
    recognised, or the transform has its own description."""

    @property
    def transform(self) -> Transform:
        """The defense's own transform, without the derivative and the rule that attackers add."""
        return self.code.transform

    def __call__(
        self, tensors: Tensors, observed: Tensors | None, state: State, context: Context, width: float = 0.0
    ) -> tuple[dict[str, Tensor], State]:
        if self.rule is not None and observed is not None:
            return self.rule.simulate(tensors, observed, Code(self.transform, state, context)), state
        if self.shown and observed is not None:
            seen = self.transform.simulate(tensors, observed, context)
            if seen is not None:
                return seen, state
        if width:
            soft = self.code.smoothed(tensors, state, context, width)
            if soft is not None:
                return soft
        return self.code(tensors, state, context)

    def of_rows(self, rows: int) -> State:
        """Return the transform's state (memory between rounds) for a batch of `rows` simulated clients: a copy of the
        single client's state for each, on the first axis. A server's state is returned as it is."""
        if self.transform.owner == "server":
            return self.state
        return {key: value.expand(rows, *value.shape[1:]) for key, value in self.state.items()}


def states_its_law(transform: Transform) -> bool:
    """Return whether a transform (a defense's function on tensors) states the likelihood of its output."""
    kind = type(transform)
    return kind.log_density is not Transform.log_density or kind.log_likelihood is not Transform.log_likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Public description of a defense for adaptive attackers: it computes the reading (observed update) at an
    interception point that the defense would make from the gradients of candidates (guessed examples). The attacker
    compares this simulated reading with the real reading. (Implements `bench.trip.Description`.)"""

    parts: tuple[DescribedTransform, ...]
    """Transforms before the point, in order."""
    contexts: Mapping[Stage, Context]
    """Map from stage to its context: round, setting, public data."""
    unit: float = 1.0
    """Factor from a mean gradient to an update: 1 if clients send gradients; learning rate times L if clients send the
    weight difference of L local steps."""
    senders: int = 1
    """Number of clients behind a reading."""
    noise: Noise = Noise()
    """Distribution of the defense's noise around the simulated reading."""
    additive: bool = True
    """True if the defense has no other randomness than `noise`."""
    mixer: Mixer | None = None
    """Mixing of examples at stage `input` (before local training); None if the defense mixes none."""
    hard: bool = False
    """True if a hard decision leaves the simulation without a useful derivative."""
    width: float = 0.0
    """Relative width of the transitions in place of hard decisions (`Transform.smoothed`); 0: hard decisions."""
    clients: Clients | None = None
    """Description of the clients' messages one by one, if the reading is a mean over clients and each message has few
    possible values (`Transform.quantises`); otherwise None."""
    single: "Composition | None" = None
    """Description of a single client's message, if the reading is a mean over clients and each client's update
    determines the message up to a few values; otherwise None."""

    @property
    def mixed(self) -> bool:
        """True if the defense trains on mixtures of examples, as mixup does."""
        return self.mixer is not None

    def mixing(self, size: int, count: int, seed: int) -> Tensor:
        """Draw mixtures as a defense such as mixup draws them from a client's batch with `size` examples: `count`
        matrices (draw, mixture, original), whose rows hold the share of each original in a mixture. `seed` determines
        the draws."""
        assert self.mixer is not None
        return self.mixer.matrices(size, count, seed)

    def softened(self, width: float) -> "Composition":
        """Return the description with gradual transitions in place of hard decisions (such as a sign), so that a
        gradient search gets a useful derivative; `width` > 0 is their relative width."""
        return replace(self, width=width)

    @property
    def changes(self) -> bool:
        """False if the defense leaves every reading as it is."""
        return bool(self.parts) or self.noise.variance > 0 or self.mixed

    @property
    def inside_steps(self) -> bool:
        """True if the defense acts inside a local step, at stage `example` or `step`; a simulation then needs the
        candidates themselves, not only their updates."""
        return any(part.stage in STEP_STAGES for part in self.parts)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines of text for the record of an attack, about transforms without a description of their own: each line
        says by which rule the attacker reads the transform's random draws from the reading (the observed update)."""
        return tuple(
            f"{type(part.transform).__name__} at {part.stage} has no description; the reading shows {part.rule.words}"
            for part in self.parts
            if part.rule is not None
        )

    @property
    def ordered(self) -> bool:
        """True if the simulated reading depends on which client holds which example, so that a search must try several
        orders of the examples. This is so if a reading combines several clients with several examples each, and a
        transform acts on single clients."""
        of_clients = [part for part in self.parts if part.stage in _OF_A_CLIENT]
        setting = self.contexts[of_clients[0].stage].setting if of_clients else None
        return self.senders > 1 and setting is not None and setting.batch * setting.steps > 1

    def simulate(
        self, per_example: Tensors, observed: Tensors, candidates: Candidates | None = None
    ) -> dict[str, Tensor]:
        """Return the reading that the defense would make from candidates (guessed examples), name → (reading, *shape),
        in gradient units.

        - `per_example`: gradients of the candidates, name → (reading, example, *shape), client after client, with
          equally many examples for each client.
        - `observed`: the attacked reading, name → (reading, *shape).
        - `candidates`: the candidates; needed if the defense acts inside local steps (it may run further local steps on
          them), otherwise None.

        The result is exact for a single local step."""
        rows = {name: self._of_senders(value) for name, value in per_example.items()}
        if candidates is not None:
            candidates = replace(
                candidates, inputs=self._of_senders(candidates.inputs), targets=self._of_senders(candidates.targets)
            )
        mean = self._local_step(0, rows, candidates, observed, self._states(rows))
        return self.sent({name: value.unflatten(0, (-1, self.senders)) for name, value in mean.items()}, observed)

    def local_steps(self, observed: Tensors) -> StepDefense:
        """Return a function that applies the defense inside local steps, for an attacker who repeats the client's local
        training on candidates (guessed examples). The function takes the step's number, the candidates' gradients, name
        → (client, example, *shape), and the candidates; it returns the step's gradients, name → (client, *shape). It
        keeps the defense's states, so calls must have the order of the steps. `observed` is the attacked reading, name
        → (reading, *shape)."""
        states: list[dict[int, State]] = []

        def between(step: int, each: Mapping[str, Tensor], candidates: Candidates) -> dict[str, Tensor]:
            if not step:
                states[:] = [self._states(each)]
            return self._local_step(step, each, candidates, observed, states[0])

        return between

    def sent(self, updates: Tensors, observed: Tensors) -> dict[str, Tensor]:
        """Return the reading that the defense would make from clients' updates, name → (reading, *shape).

        - `updates`: name → (reading, client, *shape).
        - `observed`: the attacked reading, name → (reading, *shape); the result has the same tensors.

        All tensors are in gradient units."""
        messages = self._messages({name: updates[name] for name in observed}, observed)
        mean = {name: value[:, 0] if self.senders == 1 else value.mean(1) for name, value in messages.items()}
        return self._aggregated(mean, observed)

    def with_clients(self, others: Tensors, observed: Tensors) -> Callable[[Tensors], dict[str, Tensor]]:
        """Return a function that simulates readings (observed updates) for candidate updates of the first client, while
        the other clients' updates are known. The function maps candidate updates to readings, both name → (candidate,
        *shape), in gradient units.

        - `others`: the other clients' updates, name → (1, client - 1, *shape).
        - `observed`: the attacked reading, name → (1, *shape)."""
        if self.senders == 1 or any(part.transform.mixes_clients for part in self.parts):

            def together(first: Tensors) -> dict[str, Tensor]:
                count = len(next(iter(first.values())))
                seen = repeated(observed, count)
                rest = repeated(others, count)
                return self.sent(
                    {n: torch.cat([v[:, None], rest[n]], 1) if rest else v[:, None] for n, v in first.items()}, seen
                )

            return together
        total = {name: value.sum(1) for name, value in self._messages(others, observed).items()}

        def apart(first: Tensors) -> dict[str, Tensor]:
            count = len(next(iter(first.values())))
            seen = repeated(observed, count)
            own = self._messages({name: value[:, None] for name, value in first.items()}, seen)
            return self._aggregated({n: (v[:, 0] + total[n]) / self.senders for n, v in own.items()}, seen)

        return apart

    def _messages(self, updates: Tensors, observed: Tensors) -> dict[str, Tensor]:
        """Return clients' messages after the update stages, (reading, client, *shape), in the update's unit."""
        readings, clients = next(iter(updates.values())).shape[:2]
        unit = self._unit
        current = {
            name: unit * value.flatten(0, 1) if unit != 1 else value.flatten(0, 1) for name, value in updates.items()
        }
        seen = {name: unit * value for name, value in observed.items()} if unit != 1 else observed
        for part in self.parts:
            if part.stage in UPDATE_STAGES:
                current = self._of_clients(part, current, seen, readings, clients)
        return {name: value.unflatten(0, (readings, clients)) for name, value in current.items()}

    def _aggregated(self, mean: dict[str, Tensor], observed: Tensors) -> dict[str, Tensor]:
        """Apply the transforms at stage `aggregate` to means of messages, (reading, *shape) → in gradient units."""
        current, unit = mean, self._unit
        seen = {name: unit * value for name, value in observed.items()} if unit != 1 else observed
        for part in self.parts:
            if part.stage == "aggregate":
                readings = len(next(iter(current.values())))
                current, _ = part(current, seen, part.of_rows(readings), self.contexts["aggregate"], self.width)
        return {name: value / unit for name, value in current.items()} if unit != 1 else current

    def outcomes(self, updates: Tensors) -> Outcomes | None:
        """Return the few values that each coordinate of a client's message can take, with their probabilities, for
        given client updates: an attacker who guesses an update can then compute the likelihood of a message. `updates`
        are name → (client, *shape), in gradient units. None if such values are not known: the reading is no plain mean
        of messages, or another transform than the last draws random numbers."""
        if not self.parts or not _of_single_clients(self.parts):
            return None
        *before, last = self.parts
        if any(part.transform.random for part in before):
            return None
        current = self._after(before, updates)
        outcomes = last.transform.outcomes(current, self.contexts[last.stage])
        unit = self._unit
        return outcomes and replace(outcomes, values={name: value / unit for name, value in outcomes.values.items()})

    def message(self, others: Tensors, observed: Tensors) -> dict[str, Tensor]:
        """Separate the first client's message from a mean over clients, for an attacker who knows all other clients'
        updates: return the mean times the number of clients, minus the messages of the others, name → (1, *shape), in
        gradient units. Values within rounding error of 0 become 0.

        - `others`: the other clients' known updates, name → (client - 1, *shape).
        - `observed`: the mean, name → (1, *shape)."""
        unit, known = self._unit, self._after(self.parts, {name: others[name] for name in observed})
        separated = {}
        for name, mean in observed.items():
            total, rest = self.senders * unit * mean[0], known[name]
            own = total - rest.sum(0)
            rounding = self.senders * torch.finfo(mean.dtype).eps * (rest.abs().sum(0) + total.abs())
            separated[name] = (own.where(own.abs() > rounding, 0.0) / unit)[None]
        return separated

    def _after(self, parts: Sequence[DescribedTransform], updates: Tensors) -> dict[str, Tensor]:
        """Apply `parts` to clients' `updates` in gradient units, both name → (client, *shape); the result is in the
        update's unit."""
        unit, count = self._unit, len(next(iter(updates.values())))
        current = {name: unit * value for name, value in updates.items()}
        for part in parts:
            current = part(current, None, part.of_rows(count), self.contexts[part.stage])[0]
        return current

    @property
    def _unit(self) -> float:
        """Factor from a mean gradient to the tensors of the stages after training; 1 if no transform acts there."""
        return self.unit if any(part.stage not in STEP_STAGES for part in self.parts) else 1.0

    def log_likelihood(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        """Return how likely each attacked reading (observed update) is for a candidate, as the objective of a search:
        log p(`observed` | `simulated`), (reading,), up to a constant and at most 0. Both arguments are name → (reading,
        *shape); `simulated` is the candidate's reading before the random draws of the defense's last transform. None if
        this transform states no likelihood, or if other transforms are random, too."""
        return self._of_last("log_likelihood", simulated, observed)

    def log_density(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        """Return the log density of each attacked reading (observed update) for a candidate, to rank candidates: log
        p(`observed` | `simulated`), (reading,), of any sign. Both arguments are name → (reading, *shape); `simulated`
        is the candidate's reading before the random draws of the defense's last transform. None if this transform
        states no density, or if other transforms are random, too."""
        return self._of_last("log_density", simulated, observed)

    def _of_last(
        self, name: Literal["log_likelihood", "log_density"], simulated: Tensors, observed: Tensors
    ) -> Tensor | None:
        if not self.parts or not self.parts[-1].shown:
            return None
        *others, last = self.parts
        if not states_its_law(last.transform):
            return None  # before the scaled copies, which took a third of a gallery's time
        law: Callable[[Tensors, Tensors, Context], Tensor | None] = getattr(last.transform, name)
        if not self.additive and any(part.transform.random for part in others):
            return None
        scale = self.unit if last.stage not in STEP_STAGES else 1.0
        ours, seen = ({n: scale * v for n, v in each.items()} for each in (simulated, observed))
        context = self.contexts[last.stage]
        if last.stage != "example":
            return law(ours, seen, context)
        ours, seen = ({n: v[:, None] for n, v in each.items()} for each in (ours, seen))
        whole = law(ours, seen, context)
        return None if whole is None else whole[:, 0]

    def _of_senders(self, value: Tensor) -> Tensor:
        return value if self.senders == 1 else value.unflatten(1, (self.senders, -1)).flatten(0, 1)

    def _states(self, rows: Mapping[str, Tensor]) -> dict[int, State]:
        count = len(next(iter(rows.values())))
        return {n: part.of_rows(count) for n, part in enumerate(self.parts) if part.stage in STEP_STAGES}

    def _local_step(
        self,
        step: int,
        each: Mapping[str, Tensor],
        candidates: Candidates | None,
        observed: Tensors,
        states: dict[int, State],
    ) -> dict[str, Tensor]:
        """Apply a local step's transforms, (client, example, *shape) → (client, *shape); advance `states` in place."""
        examples = self._examples(step, each, candidates, observed, states)
        mean = {name: value.mean(1) for name, value in examples.items()}
        return self._mean(step, mean, lambda: norms(examples, 2), lambda: examples, observed, states)

    def _examples(
        self,
        step: int,
        each: Mapping[str, Tensor],
        candidates: Candidates | None,
        observed: Tensors,
        states: dict[int, State],
    ) -> dict[str, Tensor]:
        """Apply the transforms at stage `example`, (client, example, *shape) → the same axes."""
        current = dict(each)
        local = None if candidates is None else _local(self.contexts, candidates)
        seen = {name: value[:, None] for name, value in observed.items()}
        for number, part in self._at("example"):
            context = replace(self.contexts["example"], step=step, local=local)
            current, states[number] = part(current, seen, states[number], context, self.width)
        return current

    def _mean(
        self,
        step: int,
        mean: dict[str, Tensor],
        remaining: Callable[[], dict[str, Tensor]],
        examples: Callable[[], dict[str, Tensor]],
        observed: Tensors,
        states: dict[int, State],
    ) -> dict[str, Tensor]:
        """Apply the transforms at stage `step` to a step's mean, (client, *shape); `remaining` returns the examples'
        norms, (client, example), and `examples` their gradients.
        """
        current = mean
        for number, part in self._at("step"):
            context = replace(
                self.contexts["step"],
                step=step,
                norms=remaining(),
                examples=examples() if part.transform.needs_examples else None,
            )
            current, states[number] = part(current, observed, states[number], context, self.width)
        return current

    def _at(self, stage: Stage) -> list[tuple[int, DescribedTransform]]:
        return [(number, part) for number, part in enumerate(self.parts) if part.stage == stage]

    def with_mates(self, mates: Tensors, observed: Tensors, behind: Candidates) -> Given:
        """Return a function that simulates readings (observed updates) for candidates of the first example, if all
        other examples are known. The function takes the candidates' gradients and the candidates, and returns the
        readings, name → (candidate, *shape).

        - `mates`: gradients of the known examples, name → (1, example - 1, *shape); they are simulated once.
        - `observed`: the attacked reading, name → (1, *shape).
        - `behind`: the known examples."""
        states = self._states({name: value[:1] for name, value in mates.items()})
        done = self._examples(0, mates, behind, observed, states)
        batch = (next(iter(mates.values())).shape[1] + 1) // self.senders
        own = {name: value[:, : batch - 1] for name, value in done.items()}
        known, total = norms(own, 2), {name: value.sum(1) for name, value in own.items()}
        others = {name: value[0, batch - 1 :].unflatten(0, (-1, batch)) for name, value in done.items()}
        rest = self._step_of(others, observed) if self.senders > 1 else {}
        sent = self.with_clients({name: value[None] for name, value in rest.items()}, observed)

        def given(gradients: Tensors, candidates: Candidates) -> dict[str, Tensor]:
            count = len(candidates.inputs)
            seen = repeated(observed, count)
            each = {name: value[:, None] for name, value in gradients.items()}
            first = self._examples(0, each, candidates, seen, self._states(each))

            def examples() -> dict[str, Tensor]:
                known_rows = repeated(own, count)
                return {name: torch.cat([value, known_rows[name]], 1) for name, value in first.items()}

            def remaining() -> dict[str, Tensor]:
                return {n: torch.cat([v, known[n].expand(count, -1)], 1) for n, v in norms(first, 2).items()}

            mean = {name: (value[:, 0] + total[name]) / batch for name, value in first.items()}
            mean = self._mean(0, mean, remaining, examples, seen, self._states(mean))
            return sent(mean)

        return given

    def _step_of(self, examples: Tensors, observed: Tensors) -> dict[str, Tensor]:
        """Return local step 0 after stage `step`, (client, *shape), for example gradients after stage `example`."""
        mean = {name: value.mean(1) for name, value in examples.items()}
        seen = repeated(observed, len(next(iter(mean.values()))))
        return self._mean(0, mean, lambda: norms(examples, 2), lambda: dict(examples), seen, self._states(mean))

    def _of_clients(
        self, part: DescribedTransform, rows: Tensors, observed: Tensors, readings: int, clients: int
    ) -> dict[str, Tensor]:
        context = self.contexts[part.stage]
        if not part.transform.mixes_clients:
            return part(rows, observed, part.of_rows(readings * clients), context, self.width)[0]
        rounds = [
            part(
                {n: v.unflatten(0, (readings, -1))[r] for n, v in rows.items()},
                None,
                part.of_rows(self.senders),
                context,
                self.width,
            )[0]
            for r in range(readings)
        ]
        return {name: torch.cat([one[name] for one in rounds]) for name in rows}

    def __repr__(self) -> str:
        """Return a text for the reading's hash. Points behind the same transforms have equal texts, so their equal
        readings are attacked once."""
        acting = tuple((p.stage, p.transform, p.shown, *([p.rule] if p.rule else [])) for p in self.parts)
        digest = hashlib.sha256()
        for tensors in (*(part.state for part in self.parts), self.noise.variances or {}):
            for name, value in tensors.items():
                digest.update(f"{name}{tuple(value.shape)}".encode() + value.detach().cpu().numpy().tobytes())
        noise = replace(self.noise, variances=None)
        return f"Composition({acting!r}, {self.unit=}, {self.senders=}, {self.mixed=}, {noise=}, {digest.hexdigest()})"


def untouched(stages: Stages, point: Point) -> bool:
    """Return whether no transform of the defense `stages` acts up to the interception point `point`. A reading
    (observed update) at this point then equals the undefended reading."""
    return not any(stages.has(stage) for stage in STAGES if point.sees(stage))


def is_random(stages: Stages, point: Point) -> bool:
    """Return whether a reading (observed update) at the interception point `point` depends on random draws of the
    defense `stages`."""
    seen = (stage for stage in STAGES if point.sees(stage))
    return any(transform.random for stage in seen for transform in stages.transforms.get(stage, ()))


def describe(
    stages: Stages,
    point: Point,
    *,
    round_: int,
    unit: float,
    probe: Tensors,
    weights: Tensors | None = None,
    colluders: float = 0.0,
) -> Composition | None:
    """Return the public description of a defense for readings (observed updates) at the interception point `point`. An
    adaptive attacker simulates with it the reading of a candidate: the inputs and class probabilities on which clients
    train.

    - `stages`: the defense's stages with their states.
    - `round_`: number of the round; `weights`: weights at its start, name → (*shape).
    - `unit`: factor from a mean gradient to an update: 1 if clients send gradients.
    - `probe`: any gradient, used to test each transform, name → (*shape).
    - `colluders`: share of a client's partners that collude with the attacker.

    The result is None if no description exists, and the attacker stays without knowledge of the defense. Reasons are: a
    transform that mixes clients has no description of its own (`Transform.expected`) and the reading is of a single
    client; a client's state depends on earlier rounds; a transform's code fails on a candidate."""
    seen = [stage for stage in GRADIENT_STAGES if point.sees(stage)]
    contexts: dict[Stage, Context] = {
        stage: Context(
            lead=2 if stage == "example" else 1,  # a candidate keeps the readings' axis at `aggregate`
            stage=stage,
            round=round_,
            step=0,
            setting=stages.setting,
            draws=CentralDraws(lead=2 if stage == "example" else 1),
            weights=weights,
            colluders=colluders,
        )
        for stage in seen
    }
    setting = stages.setting
    senders = setting.senders if point.scope is Scope.AGGREGATE else 1
    steps = setting.steps if point.after_training else 1
    examples = 1 if point.scope is Scope.EXAMPLE else setting.batch
    # number of a stage's rows over which a reading is the mean
    behind = {stage: senders * (steps if stage in STEP_STAGES else 1) for stage in STAGES} | {"aggregate": 1}
    behind["example"] *= examples
    try:
        parts = _parts(stages, contexts, probe, behind, unit)
    except Exception:  # a plug-in's code may fail on a candidate
        return None
    if parts is None:
        return None
    noises, additive = _noises(parts, contexts)
    # draws at `input` change the examples: means over draws, and likelihoods of original examples, are useless
    additive = additive and not stages.has("input")
    scales: dict[Stage, float] = {stage: 1.0 if stage in STEP_STAGES else unit for stage in STAGES}
    single = cache(
        partial(
            describe,
            stages,
            point_of("type-0"),
            round_=round_,
            unit=unit,
            probe=probe,
            weights=weights,
            colluders=colluders,
        )
    )
    return Composition(
        parts=parts,
        contexts=contexts,
        unit=unit,
        senders=senders,
        additive=additive,
        mixer=_mixer(stages, round_),
        hard=any(part.hard for part in parts),
        clients=_clients(parts, single) if senders > 1 else None,
        single=single() if senders > 1 and _few_messages(parts, contexts, probe) else None,
        noise=total_noise(
            noises,
            scales,
            MeanOver(batch=examples, steps=steps, senders=senders, of_clients=point.scope is Scope.AGGREGATE),
            probe,
        ),
    )


def _mixer(stages: Stages, round_: int) -> Mixer | None:
    transforms = tuple(each for each in stages.transforms.get("input", ()) if each.mixes_examples)
    return Mixer(transforms=transforms, setting=stages.setting, round=round_) if transforms else None


def _parts(
    stages: Stages, contexts: Mapping[Stage, Context], probe: Tensors, behind: Mapping[Stage, int], unit: float
) -> tuple[DescribedTransform, ...] | None:
    """Return the transforms before the point, each with its differentiable form and state. Each transform is tried on
    the gradient `probe`, after the transforms before it. `behind` is the number of draws averaged at each stage, and
    `unit` the factor from a mean gradient to an update. The result is None if a transform mixes clients without
    `expected`, or if a client's state depends on earlier rounds."""
    shapes = {name: tuple(value.shape) for name, value in probe.items()}
    places = [(stage, n) for stage in contexts for n in range(len(stages.transforms.get(stage, ())))]
    current = {name: value.detach()[None, None] for name, value in probe.items()}
    lead, parts, scale = 2, [], 1.0
    for number, (stage, position) in enumerate(places):
        transform = stages.transforms[stage][position]
        if transform.mixes_clients and behind[stage] == 1 and transform.expected(probe, {}, contexts[stage]) is None:
            return None  # the reading has no information on the other clients
        context = contexts[stage]
        if context.lead < lead:
            current, lead = {name: value[:, 0] for name, value in current.items()}, 1
        if stage not in STEP_STAGES and scale != unit:
            current, scale = {name: unit * value for name, value in current.items()}, unit
        state = stages.states.get((stage, position), {})
        if state and transform.owner == "client":
            if context.round:
                return None  # only the client knows its state from earlier rounds
            state = transform.initial_of(shapes, 1)
        later = [stages.transforms[s][p] for s, p in places[number + 1 :]]
        if stage == "example":
            context = replace(context, local=_public(stages))
        if stage == "step":
            alone = {n: v[:, None] for n, v in current.items()}
            context = replace(context, norms=norms(alone, 2), examples=alone if transform.needs_examples else None)
        code = straight_through(transform, current, state, context)
        rule = recognised(transform, current, state, context) if behind[stage] == 1 else None
        if rule is not None and not _passes(rule.reads, later):
            rule = None
        shown = behind[stage] == 1 and _passes(transform.reads if rule is None else rule.reads, later)
        read_off = rule is not None or (shown and transform.simulate(current, current, context) is not None)
        hard = not read_off and code.smoothed(current, state, context, 1.0) is not None
        parts.append(DescribedTransform(stage=stage, code=code, state=state, shown=shown, hard=hard, rule=rule))
        current = {name: value.detach() for name, value in code(current, state, context)[0].items()}
    return tuple(parts)


def _of_single_clients(parts: Sequence[DescribedTransform]) -> bool:
    """Return whether the reading is a mean of messages, each made from a single client's update."""
    return all(p.stage in UPDATE_STAGES and not p.transform.mixes_clients and p.rule is None for p in parts)


def _few_messages(parts: Sequence[DescribedTransform], contexts: Mapping[Stage, Context], probe: Tensors) -> bool:
    """Return whether each client's update determines its message, up to a few values per coordinate."""
    if not parts or not _of_single_clients(parts) or any(part.transform.random for part in parts[:-1]):
        return False
    last = parts[-1]
    rows = {name: value[None] for name, value in probe.items()}
    return not last.transform.random or last.transform.outcomes(rows, contexts[last.stage]) is not None


def _clients(parts: tuple[DescribedTransform, ...], alone: Callable[[], Composition | None]) -> Clients | None:
    """Return the description of single clients if the last transform before the mean quantises; `alone` makes it."""
    last = parts[-1] if parts else None
    if last is None or last.stage not in UPDATE_STAGES or last.transform.quantises is None:
        return None
    if any(part.stage in STEP_STAGES for part in parts):
        return None  # a defense inside local steps needs whole gradients
    single = alone()
    return None if single is None else Clients(values=last.transform.quantises, alone=single)


def _passes(reads: Shown, later: Sequence[Transform]) -> bool:
    """Return whether the reading still shows the property `reads` of a transform's output, after the `later`
    transforms."""
    return all(reads != "values" and reads in each.keeps for each in later)


def _noises(parts: tuple[DescribedTransform, ...], contexts: Mapping[Stage, Context]) -> tuple[list[Added], bool]:
    """Return each additive noise of `parts` in stage order, and whether these noises are the only randomness. If a
    transform follows the first noise, the second result is False; the noise can then only shrink, and its variance is a
    bound. Draws that `Transform.simulate` finds in the reading do not count. `contexts` holds a context for each stage.
    """
    added: list[Added] = []
    additive = True
    for part in parts:
        simulates = type(part.transform).simulate is not Transform.simulate
        explains = part.shown and part.transform.reads == "values" and simulates
        noise = part.transform.noise(contexts[part.stage], part.state)
        if noise is not None and not explains:
            added.append((part.stage, noise))
            continue
        if part.transform.random or added:
            additive = False
            added = [(stage, replace(each, bound=True)) for stage, each in added]
    return added, additive


def _public(stages: Stages) -> Local | None:
    public = stages.setting.public
    if public is None or not len(public.inputs):
        return None
    return Local(
        model=public.model,
        weights={name: value[None] for name, value in public.weights.items()},
        inputs=public.inputs[None, :1],
        labels=public.labels[None, :1],
    )


def _local(contexts: Mapping[Stage, Context], candidates: Candidates) -> Local | None:
    public = contexts["example"].setting.public
    if public is None:
        return None
    rows = len(candidates.inputs)
    shared = contexts["example"].weights or public.weights
    weights = {
        name: value if value.dim() > shared[name].dim() else value.expand(rows, *value.shape)
        for name, value in candidates.weights.items()
    }
    return Local(
        model=public.model,
        weights=weights,
        inputs=candidates.inputs.detach(),
        labels=candidates.targets.detach().argmax(-1),
    )
