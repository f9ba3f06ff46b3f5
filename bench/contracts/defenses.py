"""Contracts of defenses: each acts where it says, by its key alone, and on each row as if it were alone."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from bench.cell import Federated
from bench.contracts.base import DECLARED, Contract, ContractSkipped, one_line, require
from bench.contracts.situations import Tensors, data, differing, gap, model, setting_of
from bench.defenses.base import Context, Defense, Local, Transform
from bench.defenses.transforms.noise import Noise
from bench.defenses.transforms.rows import norms
from bench.federated.batches import Batches
from bench.federated.describe import describe
from bench.federated.draws import KeyedDraws
from bench.federated.pipeline import Taps, run_round, sent_unit
from bench.federated.stages import Moment, Stages, stages
from bench.gradients import group_gradients, one_hot
from bench.points import SENT, Stage, point

STAGES: tuple[Stage, ...] = get_args(Stage)
CLIENTS = (1, 4, 7)
SETTINGS = (("FedSGD B=3", 1, 3), ("FedSGD B=1", 1, 1), ("FedAvg L=2 B=2", 2, 2))  # words, steps, batch
CLOSE = 1e-9  # float64
DRAWS = 64
SIGMAS = 5  # a true statement fails once in two million


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One round of three clients on digits, and a defense's stages before it."""

    federated: Federated
    module: nn.Module
    weights: dict[str, Tensor]
    batches: Batches
    stages: Stages

    def taps(self, chosen: Stages) -> Taps:
        moment = Moment(seed=3, draw=0, round=0)
        return run_round(self.module, self.weights, self.batches, self.federated, chosen, moment, classes=10)

    def undefended(self) -> Stages:
        return Stages(setting=self.stages.setting, transforms={}, states={})

    def at(self, stage: Stage) -> dict[str, Tensor]:
        """The undefended tensors that a stage receives: (client, example, *shape), (client, *shape), (*shape)."""
        inputs, labels = self.batches.inputs[:, 0], self.batches.labels[:, 0]
        targets = one_hot(labels, 10, inputs.dtype)
        flat = group_gradients(
            self.module, self.weights, inputs.flatten(0, 1)[:, None], targets.flatten(0, 1)[:, None]
        )
        tensors = {
            name: value.detach().reshape(*labels.shape, *value.shape[1:]) for name, value in flat.items()
        }
        if stage != "example":
            tensors = {name: value.mean(1) for name, value in tensors.items()}
        if stage in (*SENT, "aggregate"):
            tensors = {name: sent_unit(self.federated) * value for name, value in tensors.items()}
        return {name: value.mean(0) for name, value in tensors.items()} if stage == "aggregate" else tensors

    def apply(
        self, stage: Stage, tensors: Tensors, *, draw: int = 0, clients: tuple[int, ...] = CLIENTS
    ) -> dict[str, Tensor]:
        """At stage `step` the examples' norms are those of `at`, of these of `CLIENTS`."""
        moment, left = Moment(seed=3, draw=draw, round=0), None
        if stage == "step":
            rows = [CLIENTS.index(client) for client in clients]
            left = {name: value[rows] for name, value in norms(self.at("example"), 2).items()}
        examples = next(iter(tensors.values())).shape[1] if stage == "example" else 0
        return self.stages.apply(
            stage, tensors, moment, clients, norms=left, weights=self.weights,
            local=self.local(clients, examples) if stage == "example" else None,
        )[0]  # fmt: skip

    def local(self, clients: tuple[int, ...], examples: int) -> Local:
        """What these of `CLIENTS` compute their first step's first examples on."""
        rows = [CLIENTS.index(client) for client in clients]
        return Local(
            model=self.module,
            weights={n: v.expand(len(rows), *v.shape) for n, v in self.weights.items()},
            inputs=self.batches.inputs[rows, 0, :examples], labels=self.batches.labels[rows, 0, :examples],
        )  # fmt: skip

    @property
    def wired(self) -> tuple[Stage, ...]:
        return tuple(stage for stage in STAGES if self.stages.has(stage))


def _trial(defense: Defense, *, steps: int = 1, batch: int = 3) -> _Trial:
    """Raises ValueError where the defense refuses the setting."""
    return (_kept_trial if _hashable(defense) else _new_trial)(defense, steps, batch)


def _hashable(defense: Defense) -> bool:
    try:
        hash(defense)
    except TypeError:  # a parameter that is a list
        return False
    return True


def _federated(steps: int, batch: int) -> Federated:
    return Federated(
        algorithm="fedsgd" if steps == 1 else "fedavg", clients=12, per_round=3, steps=steps, batch=batch
    )


def _new_trial(defense: Defense, steps: int, batch: int) -> _Trial:
    federated = _federated(steps, batch)
    module, weights = model()
    shape = (len(CLIENTS), steps, batch)
    training = data().training
    count = math.prod(shape)
    batches = Batches(
        clients=CLIENTS,
        inputs=torch.from_numpy(training.floats(slice(0, count))).double().reshape(*shape, *data().shape),
        labels=torch.from_numpy(training.labels[:count]).reshape(shape),
    )
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    chosen = stages(defense, setting_of(federated), shapes)
    return _Trial(federated=federated, module=module, weights=weights, batches=batches, stages=chosen)


_kept_trial = lru_cache(maxsize=32)(_new_trial)  # a defense's stages may take seconds, and each contract asks


def _trials(defense: Defense) -> Iterator[tuple[str, _Trial]]:
    """FedSGD with batches and with single examples, and FedAvg: those that the defense takes, or that the first
    of its variants takes which takes any.  Each is built when it is asked for."""
    reasons = []
    for variant in variants(defense):
        taken = False
        for words, steps, batch in SETTINGS:
            try:
                trial = _trial(variant, steps=steps, batch=batch)
            except ValueError as error:
                reasons.append(str(error))
            else:
                taken = True
                yield words, trial
        if taken:
            return
    raise ContractSkipped(f"it refuses every setting: {reasons[0]}")


def _first_trial(defense: Defense) -> tuple[str, _Trial]:
    return next(_trials(defense))


def settings(defense: Defense) -> None:
    """Every federated setting is taken, or refused with one clear line."""
    for words, steps, batch in SETTINGS:
        try:
            _trial(defense, steps=steps, batch=batch)
        except ValueError as error:
            require(one_line(str(error)), f"{words}: refuses with {str(error)!r}, not one line")


def stages_claimed(defense: Defense) -> None:
    """`stages` names what some choice of parameters wires, and nothing else is wired."""
    claimed = type(defense).stages
    unknown = set(claimed) - set(STAGES)
    require(not unknown, f"claims stage {sorted(unknown)}; there are {', '.join(STAGES)}")
    reached: set[str] = set()
    for variant in _pairs(defense):
        try:
            reached |= {*_trial(variant).wired, *_trial(variant, steps=2, batch=2).wired}
        except ValueError:
            continue
    beyond = reached - set(claimed)
    require(not beyond, f"acts at stage {', '.join(sorted(beyond))}, which `stages` does not claim")
    idle = [stage for stage in claimed if stage not in reached]
    require(not idle, f"claims stage {', '.join(idle)}, which no choice of its parameters wires")


def _pairs(defense: Defense) -> list[Defense]:
    """The defense with every choice of every two of its parameters, each once."""
    pairs: list[Defense] = []
    for variant in (second for first in variants(defense) for second in variants(first)):
        if variant not in pairs:
            pairs.append(variant)
    return pairs


def acts(defense: Defense) -> None:
    """Each stage that is wired changes what passes it: a bound never reached is found."""
    words, trial = _first_trial(defense)
    for stage in trial.wired:
        if _changes(trial, stage):
            continue
        given = trial.at(stage)
        lead = _lead(stage)
        norm = torch.cat([value.flatten(lead) for value in given.values()], lead).norm(dim=-1).max()
        what = f"{words}: stage {stage} changes nothing on an untrained dlg-lenet"
        larger = _changes(trial, stage, scale=1e4)
        require(
            not larger,
            f"{what}, whose gradients have joint norms up to {float(norm):.3g}: a bound never reached",
        )
        require(False, f"{what}, nor on gradients 10000 times larger")


def readings(defense: Defense) -> None:
    """What points show changes from the first stage that acts on, and is bit-equal to `none`'s before it."""
    for words, trial in _trials(defense):
        plain, defended = trial.taps(trial.undefended()), trial.taps(trial.stages)
        first = min((STAGES.index(stage) for stage in trial.wired), default=len(STAGES))
        acting = next((place for place, stage in enumerate(STAGES) if _acting(trial, stage)), len(STAGES))
        for place, stage in enumerate(STAGES):
            name = differing(plain.shown[stage], defended.shown[stage])
            if place < first:
                require(name is None, f"{words}: {name} is changed at {stage}, where nothing is claimed")
            elif place >= acting:
                require(name is not None, f"{words}: the reading after {stage} is `none`'s own")


def _acting(trial: _Trial, stage: Stage) -> bool:
    return stage in trial.wired and _changes(trial, stage)


def _changes(trial: _Trial, stage: Stage, *, scale: float = 1.0) -> bool:
    given = {name: scale * value for name, value in trial.at(stage).items()}
    return differing(given, trial.apply(stage, given)) is not None


def _lead(stage: Stage) -> int:
    return 2 if stage == "example" else 0 if stage == "aggregate" else 1


def shapes_kept(defense: Defense) -> None:
    """Names, shapes and dtypes are kept, in single and double precision."""
    for words, trial in _trials(defense):
        for stage in trial.wired:
            for dtype in (torch.float32, torch.float64):
                given = {name: value.to(dtype) for name, value in trial.at(stage).items()}
                after = trial.apply(stage, given)
                require(
                    list(after) == list(given), f"{words}, {stage}: names {list(after)}, not {list(given)}"
                )
                for name, value in after.items():
                    same = value.shape == given[name].shape and value.dtype == dtype
                    require(
                        same,
                        f"{words}, {stage}: {name} is {tuple(value.shape)} {value.dtype}, "
                        f"expected {tuple(given[name].shape)} {dtype}",
                    )


def finite(defense: Defense) -> None:
    """Finite gradients stay finite: zeros and 1e15 included."""
    words, trial = _first_trial(defense)
    for stage in trial.wired:
        for scale in (0.0, 1.0, 1e15):
            after = trial.apply(stage, {name: scale * value for name, value in trial.at(stage).items()})
            bad = [name for name, value in after.items() if not torch.isfinite(value).all()]
            require(not bad, f"{words}, {stage}: {bad[:1]} is not finite for gradients times {scale:g}")


def keyed(defense: Defense) -> None:
    """The same key gives the same output, bit for bit; another draw differs exactly if it says it is random."""
    words, trial = _first_trial(defense)
    for stage in trial.wired:
        given = trial.at(stage)
        state = torch.get_rng_state()
        try:
            torch.manual_seed(1)
            first = trial.apply(stage, given)
            torch.manual_seed(2)
            second = trial.apply(stage, given)
        finally:
            torch.set_rng_state(state)
        name = differing(first, second)
        require(name is None, f"{words}, {stage}: {name} differs between two runs with one key")
        random = any(item.random for item in trial.stages.transforms[stage])
        moved = differing(first, trial.apply(stage, given, draw=1)) is not None
        require(not moved or random, f"{words}, {stage}: depends on the draw, yet no transform says `random`")
        require(moved or not random, f"{words}, {stage}: says `random`, yet two draws are equal")


def inputs_untouched(defense: Defense) -> None:
    """A stage leaves the tensors it is given as they were."""
    words, trial = _first_trial(defense)
    for stage in trial.wired:
        given = trial.at(stage)
        kept = {name: value.clone() for name, value in given.items()}
        trial.apply(stage, given)
        name = differing(kept, given)
        require(name is None, f"{words}, {stage}: {name} of the input was changed in place")


def row_alone(defense: Defense) -> None:
    """A client (or an example) gets the same alone and beside others, to 1e-9, unless it says it acts `across`
    clients."""
    words, trial = _first_trial(defense)
    for stage in trial.wired:
        if stage == "aggregate" or any(item.across for item in trial.stages.transforms[stage]):
            continue
        given = trial.at(stage)
        together = trial.apply(stage, given)
        for row, client in enumerate(CLIENTS):
            alone = trial.apply(stage, _rows(given, row), clients=(client,))
            _near(alone, _rows(together, row), f"{words}, {stage}: client {client} alone and in company")
        if stage == "example" and not any(t.batchwise for t in trial.stages.transforms[stage]):
            first = trial.apply(stage, {name: value[:, :1] for name, value in given.items()})
            beside = {name: value[:, :1] for name, value in together.items()}
            _near(first, beside, f"{words}, {stage}: the first example alone and in company")


def bias(defense: Defense) -> None:
    """Where the class says `unbiased = True` or `False`, the mean over draws agrees with it."""
    says = vars(type(defense)).get("unbiased")
    if says is None:
        raise ContractSkipped("it does not say whether it is unbiased")
    words, trial = _first_trial(defense)
    given = {stage: _joined(trial.at(stage)) for stage in trial.wired}
    biased = False
    for stage, before in given.items():
        apart = torch.stack(
            [_joined(trial.apply(stage, trial.at(stage), draw=draw)) - before for draw in range(DRAWS)]
        )
        for direction in (before / before.norm(), torch.ones_like(before) / len(before) ** 0.5):
            along = apart @ direction
            error = float(along.std() / DRAWS**0.5) + CLOSE
            biased = biased or abs(float(along.mean())) > SIGMAS * error
    require(biased != says, f"{words}: says unbiased = {says}, and over {DRAWS} draws it is the other")


def noise(defense: Defense) -> None:
    """Noise has the mean 0 and the variance that it states, within five standard errors."""
    words, trial = _first_trial(defense)
    stated = [
        (stage, item)
        for stage in trial.wired
        for item in trial.stages.transforms[stage]
        if isinstance(item, Noise)
    ]
    if not stated:
        raise ContractSkipped("it adds no noise of a stated variance")
    for stage, item in stated:
        ones = {name: torch.ones_like(value) for name, value in trial.at(stage).items()}
        context = _context(trial, stage)
        drawn = _joined(item.apply(ones, context)) - 1
        variance, count = item.variance(context), len(drawn)
        # the variance of a sample variance is (kurtosis - 1)·variance²/n: 2 for a normal, 5 for Laplace
        spread = (2.0 if item.law == "gaussian" else 5.0) ** 0.5 * variance
        off = abs(float(drawn.mean())), abs(float(drawn.var()) - variance)
        allowed = SIGMAS * (variance / count) ** 0.5, SIGMAS * spread / count**0.5
        require(off[0] <= allowed[0], f"{words}, {stage}: the noise's mean is off 0 by {off[0]:.3g}")
        require(
            off[1] <= allowed[1],
            f"{words}, {stage}: variance {float(drawn.var()):.4g}, stated {variance:.4g} ± {allowed[1]:.2g}",
        )


def description(defense: Defense) -> None:
    """What it tells attackers is differentiable, draws nothing, and for a deterministic defense maps the
    true gradient to the reading (at B = 1)."""
    try:
        trial = _trial(defense, batch=1)
    except ValueError as error:
        raise ContractSkipped(f"it refuses B=1: {error}") from None
    for name in ("type-2", "type-1", "type-0"):
        where = point(name)
        truth = trial.at("example")
        probe = {key: value[0, 0] for key, value in truth.items()}
        said = describe(trial.stages, where, round_=0, unit=1.0, probe=probe, weights=trial.weights)
        if said is None:
            raise ContractSkipped("a transform describes nothing: attackers stay plain, with a flag")
        observed = trial.taps(trial.stages).shown[where.after]
        free = {key: value.clone().requires_grad_() for key, value in truth.items()}
        after = said.simulate(free, observed)
        for key, value in after.items():
            expected = observed[key].shape
            require(
                value.shape == expected,
                f"{name}: candidate {key} is {tuple(value.shape)}, not {tuple(expected)}",
            )
        total = torch.stack([value.sum() for value in after.values()]).sum()
        require(total.requires_grad, f"{name}: the candidate is not differentiable in the dummy's gradient")
        slopes = torch.autograd.grad(total, list(free.values()), allow_unused=True)
        sound = all(slope is None or bool(torch.isfinite(slope).all()) for slope in slopes)
        require(sound, f"{name}: the derivative of the candidate is not finite at the truth")
        seen = [stage for stage in trial.wired if where.sees(stage)]
        if not any(item.random for stage in seen for item in trial.stages.transforms[stage]):
            exact = {key: value.detach() for key, value in after.items()}
            _near(exact, observed, f"{name}: the described candidate at the truth and the reading", 1e-6)


def variants(defense: Defense) -> Iterator[Defense]:
    """The defense, and it with each choice of each parameter that is a choice, one at a time."""
    yield defense
    entry: Any = defense  # a dataclass, as the contract `declared` asks
    hints = get_type_hints(type(defense))
    for item in dataclasses.fields(entry):
        hint = hints[item.name]
        options: tuple[Any, ...] = get_args(hint) if get_origin(hint) is Literal else ()
        options = (True, False) if hint is bool else options
        for option in options:
            if option == getattr(defense, item.name):
                continue
            try:
                yield dataclasses.replace(entry, **{item.name: option})
            except ValueError:
                continue  # this choice asks for other parameters as well


def _context(trial: _Trial, stage: Stage) -> Context:
    rows: tuple[tuple[int, ...], ...] = tuple((client,) for client in CLIENTS)
    if stage == "example":
        rows = tuple((client, example) for client in CLIENTS for example in range(trial.federated.batch))
    lead = _lead(stage)
    return Context(
        lead=lead, stage=stage, round=0, step=0, setting=trial.stages.setting,
        draws=KeyedDraws(seed=3, fields=(0, 0, 0, stage), rows=rows if lead else ((),)),
        norms=norms(trial.at("example"), 2) if stage == "step" else None, weights=trial.weights,
        local=trial.local(CLIENTS, trial.federated.batch) if stage == "example" else None,
    )  # fmt: skip


def _rows(tensors: Tensors, row: int) -> dict[str, Tensor]:
    return {name: value[row : row + 1] for name, value in tensors.items()}


def _joined(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in tensors.values()])


def _near(first: Tensors, second: Tensors, words: str, close: float = CLOSE) -> None:
    for name, value in first.items():
        apart = gap(value, second[name])
        require(apart <= close, f"{words}: {name} differs by {apart:.1e}, allowed {close:.0e}")


def transforms_only(defense: Defense) -> None:
    """Every stage is a sequence of transforms, in the first setting that the defense takes."""
    for words, steps, batch in SETTINGS:
        try:
            transforms = defense.transforms(setting_of(_federated(steps, batch)))
        except ValueError:
            continue
        for stage, items in transforms.items():
            others = [type(item).__name__ for item in items if not isinstance(item, Transform)]
            require(not others, f"{words}, {stage}: {others[:1]} is no Transform")
        return


# What another choice of its parameters can change; the others concern the class, or all choices together.
OF_A_CHOICE = frozenset(
    {"acts", "finite", "keyed", "inputs untouched", "alone = in company", "bias", "noise", "description"}
)
CONTRACTS = (
    DECLARED,
    Contract(
        name="settings", promise="takes a federated setting, or refuses it in one line", function=settings
    ),
    Contract(name="transforms", promise="every stage is a sequence of transforms", function=transforms_only),
    Contract(name="stages", promise="wires the stages it claims and no others", function=stages_claimed),
    Contract(name="acts", promise="every wired stage changes what passes it", function=acts),
    Contract(
        name="readings", promise="points before its first stage are bit-equal to `none`'s", function=readings
    ),
    Contract(name="shapes", promise="names, shapes and dtypes are kept", function=shapes_kept),
    Contract(name="finite", promise="finite gradients stay finite", function=finite),
    Contract(name="keyed", promise="draws by its key alone, and only if it says `random`", function=keyed),
    Contract(name="inputs untouched", promise="leaves its inputs as they were", function=inputs_untouched),
    Contract(name="alone = in company", promise="a client gets what it gets alone", function=row_alone),
    Contract(name="bias", promise="unbiased or biased, as it says", function=bias),
    Contract(name="noise", promise="noise has the variance it states", function=noise),
    Contract(name="description", promise="what it tells attackers is true", function=description),
)
