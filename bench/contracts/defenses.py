"""Contracts for defenses: they act at their claimed stages only, draw by key, and treat clients independently."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.contracts.base import DECLARED, Contract, ContractSkipped, one_line, require
from bench.contracts.descriptions import by_norms, description, gradual, noise
from bench.contracts.later import rounds, training_draws
from bench.contracts.law import law
from bench.contracts.outcomes import outcomes
from bench.contracts.precision import precision
from bench.contracts.reports import reports
from bench.contracts.sensitivity import sensitivity
from bench.contracts.situations import differing, setting_of, under_two_seeds
from bench.contracts.strength import strength
from bench.contracts.trials import (
    CLIENTS,
    CLOSE,
    DRAWS,
    SETTINGS,
    SIGMAS,
    Trial,
    federated_of,
    first_trial,
    lead_of,
    require_near,
    trial_of,
    trials,
    variants,
)
from bench.contracts.unlinked import linked, unlinked
from bench.defenses.base import Defense, Transform
from bench.federated.draws import StreamDraws
from bench.points import GRADIENT_STAGES, STAGES, STEP_STAGES, Stage
from bench.rows import flattened
from bench.trip import Tensors


def _wired(defense: Defense) -> Iterator[tuple[str, Trial, Stage, dict[str, Tensor]]]:
    words, trial = first_trial(defense)
    for stage in trial.wired:
        yield f"{words}, {stage}", trial, stage, trial.at(stage)


def settings(defense: Defense) -> None:
    """Check that the defense accepts each of three federated settings, or refuses the setting with a one-line reason.
    Raises `ContractBroken` otherwise."""
    for words, steps, batch in SETTINGS:
        try:
            trial_of(defense, steps=steps, batch=batch)
        except ValueError as error:
            require(one_line(str(error)), f"{words}: refuses with {str(error)!r}, not one line")


def stages_claimed(defense: Defense) -> None:
    """Check that the defense's attribute `stages` names exactly the stages (places in the round) at which the defense
    acts. At each of them, some choice of the defense's parameters must give transforms; at other stages, no choice may.
    Raises `ContractBroken` otherwise."""
    claimed = type(defense).stages
    unknown = set(claimed) - set(STAGES)
    require(not unknown, f"claims stage {sorted(unknown)}; there are {', '.join(STAGES)}")
    reached: set[str] = set()
    pairs: list[Defense] = []  # copies with all choices for every two parameters
    for variant in (second for first in variants(defense) for second in variants(first)):
        if variant in pairs:
            continue
        pairs.append(variant)
        try:
            reached |= {*trial_of(variant).wired, *trial_of(variant, steps=2, batch=2).wired}
        except ValueError:
            continue
    beyond = reached - set(claimed)
    require(not beyond, f"acts at stage {', '.join(sorted(beyond))}, which `stages` does not claim")
    idle = [stage for stage in claimed if stage not in reached]
    require(not idle, f"claims stage {', '.join(idle)}, which no choice of its parameters wires")


def acts(defense: Defense) -> None:
    """Check that the defense changes the tensors at each of its stages (places in the round). A clip with a bound above
    all gradient norms, for example, fails. Raises `ContractBroken` otherwise."""
    for words, trial, stage, before in _wired(defense):
        if _changes(trial, stage):
            continue
        lead = lead_of(stage)
        norm = flattened(before, lead).norm(dim=-1).max()
        what = f"{words}: changes nothing on an untrained dlg-lenet"
        larger = _changes(trial, stage, scale=1e4)
        require(not larger, f"{what}, whose gradients have joint norms up to {float(norm):.3g}: a bound never reached")
        require(False, f"{what}, nor on gradients 10000 times larger")


def readings(defense: Defense) -> None:
    """Check at which stages (places in a round) the defense acts, by the tensors that an attacker can observe after
    each stage. Before the first stage that the defense claims, they must equal the undefended tensors, bit for bit.
    After the first stage that changes its input, and after each later stage, they must differ. Raises `ContractBroken`
    otherwise."""
    for words, trial in trials(defense):
        plain, defended = trial.taps(trial.stages.undefended), trial.taps(trial.stages)
        first = min((STAGES.index(stage) for stage in trial.wired), default=len(STAGES))
        acting = min((STAGES.index(stage) for stage in trial.wired if _changes(trial, stage)), default=len(STAGES))
        for stage in GRADIENT_STAGES:
            place = STAGES.index(stage)
            name = differing(plain.shown[stage], defended.shown[stage])
            if place < first:
                require(name is None, f"{words}: {name} is changed at {stage}, where nothing is claimed")
            elif place >= acting:
                require(name is not None, f"{words}: the reading after {stage} is `none`'s own")


def _changes(trial: Trial, stage: Stage, *, scale: float = 1.0) -> bool:
    before = {name: scale * value for name, value in trial.at(stage).items()}
    return differing(before, trial.apply(stage, before)) is not None


def _rows(tensors: Tensors, row: int) -> dict[str, Tensor]:
    return {name: value[row : row + 1] for name, value in tensors.items()}


def shapes_kept(defense: Defense) -> None:
    """Check that the defense's transforms at each stage (place in the round) return tensors with the names, order,
    shapes and dtype of their input, in single and double precision. Raises `ContractBroken` otherwise."""
    for words, trial in trials(defense):
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
    """Check that the defense's output is finite for gradients scaled by 0, 1 and 1e15. Raises `ContractBroken`
    otherwise."""
    for words, trial, stage, before in _wired(defense):
        for scale in (0.0, 1.0, 1e15):
            after = trial.apply(stage, {name: scale * value for name, value in before.items()})
            bad = [name for name, value in after.items() if not torch.isfinite(value).all()]
            require(not bad, f"{words}: {bad[:1]} is not finite for gradients times {scale:g}")


def keyed(defense: Defense) -> None:
    """Check that the defense draws random numbers only by its key: equal keys must give equal output, bit for bit.
    Another draw number in the key must change the output if a transform (a function on tensors) declares `random`, and
    must not change it otherwise. Raises `ContractBroken` otherwise."""
    for words, trial, stage, before in _wired(defense):
        first, second = under_two_seeds(lambda: trial.apply(stage, before))  # noqa: B023
        name = differing(first, second)
        require(name is None, f"{words}: {name} differs between two runs with one key")
        random = any(item.random for item in trial.stages.transforms[stage])
        moved = differing(first, trial.apply(stage, before, draw=1)) is not None
        require(not moved or random, f"{words}: depends on the draw, yet no transform says `random`")
        require(moved or not random, f"{words}: says `random`, yet two draws are equal")


def inputs_untouched(defense: Defense) -> None:
    """Check that no stage of the defense changes its input tensors in place. Raises `ContractBroken` otherwise."""
    for words, trial, stage, before in _wired(defense):
        kept = {name: value.clone() for name, value in before.items()}
        trial.apply(stage, before)
        name = differing(kept, before)
        require(name is None, f"{words}: {name} of the input was changed in place")


def row_alone(defense: Defense) -> None:
    """Check that the defense's output for a row (a client's or an example's tensors) does not depend on the other rows
    in a batch, to 1e-9. Stages with a transform (a function on tensors) that declares `mixes_clients` are not tested.
    Raises `ContractBroken` otherwise."""
    for words, trial, stage, before in _wired(defense):
        if stage == "aggregate" or any(item.mixes_clients for item in trial.stages.transforms[stage]):
            continue
        together = trial.apply(stage, before)
        for row, client in enumerate(CLIENTS):
            alone = trial.apply(stage, _rows(before, row), clients=(client,))
            require_near(alone, _rows(together, row), f"{words}: client {client} alone and in company")
        if stage == "example" and not any(t.batchwise for t in trial.stages.transforms[stage]):
            first = trial.apply(stage, {name: value[:, :1] for name, value in before.items()})
            beside = {name: value[:, :1] for name, value in together.items()}
            require_near(first, beside, f"{words}: the first example alone and in company")


def steady(defense: Defense) -> None:
    """Check a defense that declares `steady`, which allows a faster training: its output inside local training must not
    depend on the number of the local step. With equal random draws, the output in two steps must be equal, bit for bit.
    Raises `ContractBroken` otherwise."""
    for words, trial, stage, before in _wired(defense):
        if stage not in ("input", *STEP_STAGES) or not all(t.steady for t in trial.stages.transforms[stage]):
            continue
        first, later = (
            trial.apply(stage, before, step=step, draws=StreamDraws.of(3, 0, 0, CLIENTS, torch.device("cpu")))
            for step in (0, 3)
        )
        name = differing(first, later)
        require(name is None, f"{words}: says `steady`, yet {name} depends on the number of the local step")


def originals(defense: Defense) -> None:
    """Check a defense that mixes training examples before the gradient (at stage `input`). A mixed example may depend
    only on the example itself and on the next example in its batch, because reconstructions are scored against these
    two. The mixed labels must be probabilities. Raises `ContractBroken` otherwise."""
    words, trial = first_trial(defense)
    if not trial.stages.has("input"):
        raise ContractSkipped("it leaves examples as they are")
    before = trial.at("input")
    after = trial.apply("input", before)
    targets = after["targets"]
    sums = float((targets.sum(-1) - 1).abs().max())
    require(sums <= CLOSE and bool((targets >= 0).all()), f"{words}, input: its targets are no probabilities")
    examples = targets.shape[1]
    for row in range(examples):
        others = torch.tensor([n for n in range(examples) if n not in (row, (row + 1) % examples)])
        changed = {name: value.index_fill(1, others, 0.5) for name, value in before.items()}
        require_near(
            {name: value[:, row] for name, value in trial.apply("input", changed).items()},
            {name: value[:, row] for name, value in after.items()},
            f"{words}, input: an example depends on others than itself and the next of its batch",
        )


def bias(defense: Defense) -> None:
    """Check the defense's attribute `unbiased`: True if the mean output over random draws equals the input, otherwise
    False. Raises `ContractBroken` for the wrong value."""
    says = vars(type(defense)).get("unbiased")
    if says is None:
        raise ContractSkipped("it does not say whether it is unbiased")
    biased = False
    for _, trial, stage, tensors in _wired(defense):
        before = flattened(tensors, 0)
        apart = torch.stack([flattened(trial.apply(stage, tensors, draw=draw), 0) - before for draw in range(DRAWS)])
        for direction in (before / before.norm(), torch.ones_like(before) / len(before) ** 0.5):
            along = apart @ direction
            error = float(along.std() / DRAWS**0.5) + CLOSE
            biased = biased or abs(float(along.mean())) > SIGMAS * error
    require(biased != says, f"says unbiased = {says}, and over {DRAWS} draws it is the other")


def transforms_only(defense: Defense) -> None:
    """Check that the defense lists a sequence of `Transform` instances (functions on tensors) for each of its stages
    (places in the round). The setting is the first that the defense accepts. Raises `ContractBroken` otherwise."""
    for words, steps, batch in SETTINGS:
        try:
            transforms = defense.transforms(setting_of(federated_of(steps, batch)))
        except ValueError:
            continue
        for stage, items in transforms.items():
            others = [type(item).__name__ for item in items if not isinstance(item, Transform)]
            require(not others, f"{words}, {stage}: {others[:1]} is no Transform")
        return


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
    Contract("steady", "depends on no local step's number, where it says so", steady),
    Contract("originals", "an example is mixed with the next of its batch, at most", originals),
    Contract("bias", "unbiased or biased, as it says", bias),
    Contract("noise", "noise has the variance it states", noise),
    Contract("law", "noise has the law it states, on every row, independently", law),
    Contract("outcomes", "takes the few values that it states, as often as it states", outcomes),
    Contract("precision", "in float32 it does what it does in float64", precision),
    Contract("sensitivity", "no crafted gradient moves what is seen by more than its ε counts", sensitivity),
    Contract("reports", "no update shows through a report by more than the report's ε", reports),
    Contract("rounds", "later rounds are protected as the first", rounds),
    Contract("draws", "a training's draws have the law of an attacked reading's", training_draws),
    Contract("unlinked", "coordinates that it says are unlinked cannot be linked", unlinked),
    Contract("linked", "a client's row is its own, not another's", linked),
    Contract("norms", "norms decide what it says they do", by_norms),
    Contract("strength", "a stronger value of its declared strength moves the reading further", strength),
    Contract("gradual", "a gradual version of its hard decisions tends to them", gradual),
    Contract("description", "what it tells attackers is the reading, at the truth", description),
)
