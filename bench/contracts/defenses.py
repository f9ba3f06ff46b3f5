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
from bench.contracts.situations import Tensors, data, differing, gap, model, setting_of, under_two_seeds
from bench.defenses.base import Context, Defense, Local, Transform
from bench.defenses.transforms.noise import Noise
from bench.defenses.transforms.rows import norms
from bench.federated.batches import Batches
from bench.federated.describe import describe
from bench.federated.draws import KeyedDraws
from bench.federated.pipeline import Taps, run_round, sent_unit
from bench.federated.stages import Moment, Stages, stages
from bench.gradients import group_gradients, one_hot
from bench.points import SENT, STAGES, Stage, point

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
            left = {name: value[_places(clients)] for name, value in norms(self.at("example"), 2).items()}
        examples = next(iter(tensors.values())).shape[1] if stage == "example" else 0
        return self.stages.apply(
            stage, tensors, moment, clients, norms=left, weights=self.weights,
            local=self.local(clients, examples) if stage == "example" else None,
        )[0]  # fmt: skip

    def local(self, clients: tuple[int, ...], examples: int) -> Local:
        """What these of `CLIENTS` compute their first step's first examples on."""
        rows = _places(clients)
        return Local(
            model=self.module,
            weights={n: v.expand(len(rows), *v.shape) for n, v in self.weights.items()},
            inputs=self.batches.inputs[rows, 0, :examples], labels=self.batches.labels[rows, 0, :examples],
        )  # fmt: skip

    @property
    def wired(self) -> tuple[Stage, ...]:
        return tuple(filter(self.stages.has, STAGES))


def _trial(defense: Defense, *, steps: int = 1, batch: int = 3) -> _Trial:
    """Raises ValueError where the defense refuses the setting."""
    try:
        hash(defense)
    except TypeError:  # a parameter that is a list
        return _new_trial(defense, steps, batch)
    return _kept_trial(defense, steps, batch)


def _places(clients: tuple[int, ...]) -> list[int]:
    return [CLIENTS.index(client) for client in clients]


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


def _wired(defense: Defense) -> Iterator[tuple[str, _Trial, Stage, dict[str, Tensor]]]:
    """Each stage of the first trial, with words for both, and the undefended tensors that it receives."""
    words, trial = next(_trials(defense))
    for stage in trial.wired:
        yield f"{words}, {stage}", trial, stage, trial.at(stage)


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
    pairs: list[Defense] = []  # with every choice of every two of its parameters
    for variant in (second for first in variants(defense) for second in variants(first)):
        if variant in pairs:
            continue
        pairs.append(variant)
        try:
            reached |= {*_trial(variant).wired, *_trial(variant, steps=2, batch=2).wired}
        except ValueError:
            continue
    beyond = reached - set(claimed)
    require(not beyond, f"acts at stage {', '.join(sorted(beyond))}, which `stages` does not claim")
    idle = [stage for stage in claimed if stage not in reached]
    require(not idle, f"claims stage {', '.join(idle)}, which no choice of its parameters wires")


def acts(defense: Defense) -> None:
    """Each stage that is wired changes what passes it: a bound never reached is found."""
    for words, trial, stage, before in _wired(defense):
        if _changes(trial, stage):
            continue
        lead = _lead(stage)
        norm = torch.cat([value.flatten(lead) for value in before.values()], lead).norm(dim=-1).max()
        what = f"{words}: changes nothing on an untrained dlg-lenet"
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
        acting = min(
            (STAGES.index(stage) for stage in trial.wired if _changes(trial, stage)), default=len(STAGES)
        )
        for place, stage in enumerate(STAGES):
            name = differing(plain.shown[stage], defended.shown[stage])
            if place < first:
                require(name is None, f"{words}: {name} is changed at {stage}, where nothing is claimed")
            elif place >= acting:
                require(name is not None, f"{words}: the reading after {stage} is `none`'s own")


def _changes(trial: _Trial, stage: Stage, *, scale: float = 1.0) -> bool:
    before = {name: scale * value for name, value in trial.at(stage).items()}
    return differing(before, trial.apply(stage, before)) is not None


def _lead(stage: Stage) -> int:
    return 2 if stage == "example" else 0 if stage == "aggregate" else 1


def shapes_kept(defense: Defense) -> None:
    """Names, shapes and dtypes are kept, in single and double precision."""
    for words, trial in _trials(defense):
        for stage in trial.wired:
            for dtype in (torch.float32, torch.float64):
                before = {name: value.to(dtype) for name, value in trial.at(stage).items()}
                after, where = trial.apply(stage, before), f"{words}, {stage}"
                require(list(after) == list(before), f"{where}: names {list(after)}, not {list(before)}")
                for name, value in after.items():
                    shape, expected = tuple(value.shape), tuple(before[name].shape)
                    same = shape == expected and value.dtype == dtype
                    require(same, f"{where}: {name} is {shape} {value.dtype}, expected {expected} {dtype}")


def finite(defense: Defense) -> None:
    """Finite gradients stay finite: zeros and 1e15 included."""
    for words, trial, stage, before in _wired(defense):
        for scale in (0.0, 1.0, 1e15):
            after = trial.apply(stage, {name: scale * value for name, value in before.items()})
            bad = [name for name, value in after.items() if not torch.isfinite(value).all()]
            require(not bad, f"{words}: {bad[:1]} is not finite for gradients times {scale:g}")


def keyed(defense: Defense) -> None:
    """The same key gives the same output, bit for bit; another draw differs exactly if it says it is random."""
    for words, trial, stage, before in _wired(defense):
        first, second = under_two_seeds(lambda: trial.apply(stage, before))  # noqa: B023
        name = differing(first, second)
        require(name is None, f"{words}: {name} differs between two runs with one key")
        random = any(item.random for item in trial.stages.transforms[stage])
        moved = differing(first, trial.apply(stage, before, draw=1)) is not None
        require(not moved or random, f"{words}: depends on the draw, yet no transform says `random`")
        require(moved or not random, f"{words}: says `random`, yet two draws are equal")


def inputs_untouched(defense: Defense) -> None:
    """A stage leaves its input tensors as they were."""
    for words, trial, stage, before in _wired(defense):
        kept = {name: value.clone() for name, value in before.items()}
        trial.apply(stage, before)
        name = differing(kept, before)
        require(name is None, f"{words}: {name} of the input was changed in place")


def row_alone(defense: Defense) -> None:
    """A client (or an example) gets the same alone and beside others, to 1e-9, unless it says it acts `across`
    clients."""
    for words, trial, stage, before in _wired(defense):
        if stage == "aggregate" or any(item.across for item in trial.stages.transforms[stage]):
            continue
        together = trial.apply(stage, before)
        for row, client in enumerate(CLIENTS):
            alone = trial.apply(stage, _rows(before, row), clients=(client,))
            _near(alone, _rows(together, row), f"{words}: client {client} alone and in company")
        if stage == "example" and not any(t.batchwise for t in trial.stages.transforms[stage]):
            first = trial.apply(stage, {name: value[:, :1] for name, value in before.items()})
            beside = {name: value[:, :1] for name, value in together.items()}
            _near(first, beside, f"{words}: the first example alone and in company")


def bias(defense: Defense) -> None:
    """Where the class says `unbiased = True` or `False`, the mean over draws agrees with it."""
    says = vars(type(defense)).get("unbiased")
    if says is None:
        raise ContractSkipped("it does not say whether it is unbiased")
    biased = False
    for _, trial, stage, tensors in _wired(defense):
        before = _joined(tensors)
        apart = torch.stack(
            [_joined(trial.apply(stage, tensors, draw=draw)) - before for draw in range(DRAWS)]
        )
        for direction in (before / before.norm(), torch.ones_like(before) / len(before) ** 0.5):
            along = apart @ direction
            error = float(along.std() / DRAWS**0.5) + CLOSE
            biased = biased or abs(float(along.mean())) > SIGMAS * error
    require(biased != says, f"says unbiased = {says}, and over {DRAWS} draws it is the other")


def noise(defense: Defense) -> None:
    """Noise has the mean 0 and the variance that it states, within five standard errors."""
    stated = [
        (words, trial, stage, before, item)
        for words, trial, stage, before in _wired(defense)
        for item in trial.stages.transforms[stage]
        if isinstance(item, Noise)
    ]
    if not stated:
        raise ContractSkipped("it adds no noise of a stated variance")
    for words, trial, stage, before, item in stated:
        ones = {name: torch.ones_like(value) for name, value in before.items()}
        context = _context(trial, stage)
        drawn = _joined(item.apply(ones, context)) - 1
        variance, count = item.variance(context), len(drawn)
        # the variance of a sample variance is (kurtosis - 1)·variance²/n: 2 for a normal, 5 for Laplace
        spread = (2.0 if item.law == "gaussian" else 5.0) ** 0.5 * variance
        off = abs(float(drawn.mean())), abs(float(drawn.var()) - variance)
        allowed = SIGMAS * (variance / count) ** 0.5, SIGMAS * spread / count**0.5
        require(off[0] <= allowed[0], f"{words}: the noise's mean is off 0 by {off[0]:.3g}")
        measured = f"variance {float(drawn.var()):.4g}, stated {variance:.4g} ± {allowed[1]:.2g}"
        require(off[1] <= allowed[1], f"{words}: {measured}")


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
            got, expected = tuple(value.shape), tuple(observed[key].shape)
            require(got == expected, f"{name}: candidate {key} is {got}, not {expected}")
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
    Contract("settings", "takes a federated setting, or refuses it in one line", settings),
    Contract("transforms", "every stage is a sequence of transforms", transforms_only),
    Contract("stages", "wires the stages it claims and no others", stages_claimed),
    Contract("acts", "every wired stage changes what passes it", acts),
    Contract("readings", "points before its first stage are bit-equal to `none`'s", readings),
    Contract("shapes", "names, shapes and dtypes are kept", shapes_kept),
    Contract("finite", "finite gradients stay finite", finite),
    Contract("keyed", "draws by its key alone, and only if it says `random`", keyed),
    Contract("inputs untouched", "leaves its inputs as they were", inputs_untouched),
    Contract("alone = in company", "a client gets what it gets alone", row_alone),
    Contract("bias", "unbiased or biased, as it says", bias),
    Contract("noise", "noise has the variance it states", noise),
    Contract("description", "what it tells attackers is true", description),
)
