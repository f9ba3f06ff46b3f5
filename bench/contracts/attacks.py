"""Contracts for attacks: promises without which an attack's figures have no meaning."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.attacks.base import Attack
from bench.contracts.base import DECLARED, Contract, ContractSkipped, one_line, require
from bench.contracts.situations import Situation, differing, gap, situation, under_two_seeds
from bench.federated.describe import Composition
from bench.gradients import group_gradients
from bench.kinds.known import named
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

KEY = Key(seed=1)
SHORT = 20  # evaluations after which rounding errors are still small
LONG = 60
CLOSE = 1e-9  # float64
SUCCESS = 0.01  # mean squared error at 20 dB
_STATUSES = ("ok", "diverged", "nan")


def takes_or_refuses(attack: Attack) -> None:
    """Check that at each interception point the attack either runs on a reading (observed update) there, or refuses the
    reading by `Attack.refuses` with a one-line reason. Raises `ContractBroken` otherwise, also for an exception."""
    single, untouched = situated(attack), Composition(parts=(), contexts={})
    for case in (
        single,
        situated(attack, "type-1", batch=3),
        situated(attack, "type-0", batch=1, readings=1),
        situated(attack, "type-1", batch=2, steps=2),
        situated(attack, "type-2-step", batch=2),
        situated(attack, "aggregate", batch=1, readings=2),
        situated(attack, observations=2),
        *(situated(attack, kind=named(name)) for name in attack.takes[1:]),
        replace(single, words="coordinates not linked", reading=replace(single.reading, linked="coordinate")),
        replace(single, words="labels granted", reading=replace(single.reading, labels=single.labels)),
        replace(single, words="described", reading=replace(single.reading, description=untouched)),
    ):
        reason = attack.refuses(case.reading)
        require(reason is None or one_line(reason), f"{case.words}: refuses with {reason!r}, not one line")
        if reason is None:
            _well_formed(_run(attack, case, evaluations=3), case.reading, 3, case.words)


def alone_in_company(attack: Attack) -> None:
    """Check that the reconstruction from a reading (observed update) does not depend on the other readings attacked at
    the same time. Results alone and together must agree to 1e-9 after 20 evaluations. Raises `ContractBroken`
    otherwise."""
    for case in _attackable(attack, situated(attack), situated(attack, "type-1", batch=2)):
        together = _run(attack, case, evaluations=SHORT)
        for row in (0, 2):
            alone = _attack(attack, case.reading.of((row,)), evaluations=SHORT)
            _equal(alone, together.of((row,)), f"{case.words}: reading {row} alone and in company")


def any_chunk(attack: Attack) -> None:
    """Check that the number of readings (observed updates) attacked at once (`Budget.chunk`) does not matter. It must
    change neither the results of a short attack, nor which readings a long attack reconstructs. Raises `ContractBroken`
    otherwise."""
    for case in _attackable(attack, situated(attack), situated(attack, "type-1", batch=2)):
        whole = _run(attack, case, evaluations=SHORT)
        parts = _run(attack, case, evaluations=SHORT, chunk=2)  # of three readings: two, then one alone
        _equal(parts, whole, f"{case.words}: chunk 2 and chunk 32")
    for case in _attackable(attack, situated(attack)):
        off = [_run(attack, case, evaluations=LONG, chunk=chunk).inputs - case.truth for chunk in (2, 32)]
        ends = [error.square().flatten(1).mean(1) < SUCCESS for error in off]
        require(torch.equal(*ends), f"other readings succeed with chunk 2 than with chunk 32: {ends}")


def _public(inputs: Tensor, reading: Reading) -> bool:
    """Whether the inputs of a forward pass are the reading's first public examples."""
    try:
        return torch.equal(inputs, reading.public_inputs[: len(inputs)].to(inputs))
    except RuntimeError:  # inside a transform such as vmap: candidates
        return False


def _decided(reading: Reading) -> None:
    """Compute a public example's gradient: the first gradient of a model tries how the model uses its parameters, by
    passes that belong to the bench, not to the attack."""
    like = next(iter(reading.weights.values()))
    weights = {name: value[0] for name, value in reading.weights.items()}
    targets = torch.full((1, 1, reading.classes), 1 / reading.classes).to(like)
    group_gradients(reading.model, weights, reading.public_inputs[:1][None].to(like), targets, differentiable=False)


def budget(attack: Attack) -> None:
    """Check that an attack stays within its budget, the number of gradient evaluations per reading (observed update),
    restarts included. The test counts the model's forward passes itself, and does not trust the attack's count. Raises
    `ContractBroken` otherwise."""
    for case in _attackable(attack, situated(attack), situated(attack, "type-1", batch=2)):
        for evaluations in (1, 7, 30):
            reading = case.reading.of((0,))
            seen = 0

            def count(module: Any, inputs: tuple[Tensor, ...]) -> None:
                nonlocal seen
                if torch.is_grad_enabled() and not _public(inputs[0], reading):  # noqa: B023
                    seen += len(inputs[0]) if inputs[0].dim() > len(reading.shape) else 1  # noqa: B023

            # an evaluation is a loss and its derivative: passes without a derivative are not counted, nor passes
            # of public examples, which look for the last layer
            handle = reading.model.register_forward_pre_hook(count)
            try:
                _decided(reading)
                seen = 0
                result = _attack(attack, reading, evaluations=evaluations)
            finally:
                handle.remove()
            used = int(result.evaluations.max())
            require(used <= evaluations, f"{case.words}: reports {used} evaluations of {evaluations}")
            if reading.simulator is not None:  # a simulated round is no evaluation: it has a budget of its own
                continue
            done = -(-seen // (reading.examples * len(reading.rounds)))
            require(done <= evaluations, f"{case.words}: makes {done} evaluations of {evaluations}")


def finite(attack: Attack) -> None:
    """Check that a reconstruction with NaN or infinity has a status other than "ok". A reading (observed update) of
    NaN, infinity, zeros or huge values must not affect other readings in the batch. Raises `ContractBroken`
    otherwise."""
    for case in _attackable(attack, situated(attack), situated(attack, "type-1", batch=2))[:1]:
        clean = _run(attack, case, evaluations=SHORT)
        _says_so(clean, case.words)
        for words, value in (("nan", torch.nan), ("infinite", torch.inf), ("zero", 0.0), ("1e150", 1e150)):
            values = {name: tensor.clone() for name, tensor in case.reading.values.items()}
            for tensor in values.values():
                tensor[1] = value
            hurt = _attack(attack, replace(case.reading, values=values), evaluations=SHORT)
            _says_so(hurt, f"{case.words}, a {words} reading")
            for row in (0, 2):
                what = f"{case.words}: reading {row} beside a {words} one and beside a sound one"
                _equal(hurt.of((row,)), clean.of((row,)), what)


def batch_of_one(attack: Attack) -> None:
    """Check that the attack runs on a batch with a single reading (observed update), and returns a reconstruction of
    the right form. Raises `ContractBroken` otherwise."""
    points = ("type-2", "type-1", "type-0")
    for case in _attackable(attack, *(situated(attack, where, readings=1) for where in points)):
        _well_formed(_run(attack, case, evaluations=5), case.reading, 5, case.words)


def repeated_labels(attack: Attack) -> None:
    """Check that the attack runs on a reading (observed update) whose four examples have the same label, and returns a
    reconstruction of the right form. Raises `ContractBroken` otherwise."""
    for case in _attackable(attack, situated(attack, "type-1", batch=4, same_label=True)):
        _well_formed(_run(attack, case, evaluations=5), case.reading, 5, case.words)


def reading_alone(attack: Attack) -> None:
    """Check that the attack uses only the reading (observed update), not the values stored in the model object. The
    test stores the true examples in the model's buffers and parameters, then noise; the attack must give the same
    output. Raises `ContractBroken` otherwise."""
    for case in _attackable(attack, situated(attack, "type-1", batch=2), situated(attack))[:1]:
        honest = _run(attack, _planted(case, case.truth), evaluations=SHORT)
        noise = torch.rand(case.truth.shape, generator=torch.Generator().manual_seed(5))
        scrambled = _run(attack, _planted(case, noise), evaluations=SHORT)
        _equal(honest, scrambled, f"{case.words}: with the truth in the module and with noise there", 0.0)


def keyed(attack: Attack) -> None:
    """Check that the attack draws random numbers only by its key: equal keys must give equal output, bit for bit, under
    any global seed. Raises `ContractBroken` otherwise."""
    for case in _attackable(attack, situated(attack, "type-1", batch=2), situated(attack))[:1]:
        first, second = under_two_seeds(lambda: _run(attack, case, evaluations=SHORT))  # noqa: B023
        _equal(first, second, f"{case.words}: two runs with one key", 0.0)


def reading_untouched(attack: Attack) -> None:
    """Check that the attack does not modify the tensors of its reading (observed update). Raises `ContractBroken`
    otherwise."""
    for case in _attackable(attack, situated(attack), situated(attack, "type-1", batch=2)):
        before = _tensors(case.reading)
        kept = {name: value.clone() for name, value in before.items()}
        _run(attack, case, evaluations=5)
        name = differing(kept, _tensors(case.reading))
        require(name is None, f"{case.words}: the attack changed {name} of the reading")


def situated(attack: Attack, where: str = "type-2", **changes: Any) -> Situation:
    """Return readings (observed updates) with their true examples, on which a contract (a test of a promised property)
    runs `attack`. `where` is the interception point; `changes` are further arguments of
    `bench.contracts.situations.situation`. If the attack states several levels of knowledge about the defense, such as
    `plain`, the first is used.

    The readings are undefended if the attack takes these. An attack on mixtures of examples refuses them, and gets
    readings behind the defense `mixup`, with granted labels: without labels, such an attack would first simulate
    rounds, whose forward passes would count as evaluations."""
    first: Any = attack.knowledge[0]
    changes = {"kind": named(attack.takes[0])} | changes
    case = situation(where, knowledge=first, **changes)
    if first != "adaptive" or attack.refuses(case.reading) is None:
        return case
    mixed = situation(where, knowledge=first, defense="mixup", labels=True, **changes)
    return mixed if attack.refuses(mixed.reading) is None else case


def _attackable(attack: Attack, *cases: Situation) -> list[Situation]:
    taken = [case for case in cases if attack.refuses(case.reading) is None]
    if not taken:
        raise ContractSkipped(f"it refuses: {attack.refuses(cases[0].reading)}")
    return taken


def _run(attack: Attack, case: Situation, *, evaluations: int, chunk: int = 32) -> Reconstruction:
    return _attack(attack, case.reading, evaluations=evaluations, chunk=chunk)


def _attack(attack: Attack, reading: Reading, *, evaluations: int, chunk: int = 32) -> Reconstruction:
    return attack.reconstruct(reading, Budget(evaluations=evaluations, chunk=chunk), KEY)


def _well_formed(result: Reconstruction, reading: Reading, evaluations: int, words: str) -> None:
    count, pictures = len(reading), reading.examples
    shapes = {
        "inputs": (count, pictures, *reading.shape),
        "labels": (count, pictures),
        "loss": (count,),
        "evaluations": (count,),
        "outer": (count,),
        "restarts": (count,),
    }
    for name, expected in shapes.items():
        got = tuple(getattr(result, name).shape)
        require(got == expected, f"{words}: {name} has shape {got}, expected {expected}")
    whole = not (result.labels.is_floating_point() or result.labels.is_complex())
    within = whole and bool(((result.labels >= -1) & (result.labels < reading.classes)).all())
    require(within, f"{words}: labels must be whole numbers from -1 to {reading.classes - 1}")
    require(len(result.status) == count, f"{words}: {len(result.status)} statuses for {count} readings")
    unknown = [status for status in result.status if status not in _STATUSES]
    require(not unknown, f"{words}: status {unknown[:1]}; there are {', '.join(_STATUSES)}")
    sure = result.certificate
    fits = sure is None or (tuple(sure.shape) == (count,) and bool(((sure >= 0) & (sure <= 1)).all()))
    require(fits, f"{words}: certificate must be {count} shares from 0 to 1")
    marks = [mark for mark, _ in result.history]
    require(marks == sorted(set(marks)), f"{words}: history is not in the order of evaluations: {marks}")
    require(not marks or marks[-1] <= evaluations, f"{words}: history goes beyond {evaluations} evaluations")
    wide = {len(losses) for _, losses in result.history} - {count}
    require(not wide, f"{words}: history holds {wide} losses for {count} readings")
    _says_so(result, words)


def _says_so(result: Reconstruction, words: str) -> None:
    for row, status in enumerate(result.status):
        sound = bool(torch.isfinite(result.inputs[row]).all() and torch.isfinite(result.loss[row]))
        require(sound or status != "ok", f"{words}: reading {row} is not finite, and its status says ok")


def _equal(first: Reconstruction, second: Reconstruction, words: str, close: float = CLOSE) -> None:
    for name in ("labels", "evaluations", "restarts", "loss", "inputs"):
        apart = gap(getattr(first, name), getattr(second, name))
        require(apart <= close, f"{words}: {name} differ by {apart:.1e}, allowed {close:.0e}")
    require(first.status == second.status, f"{words}: {first.status} and {second.status}")


def _planted(case: Situation, hidden: Tensor) -> Situation:
    """Plant `hidden` in the reading's module, where a victim's module would hold data."""
    module = copy.deepcopy(case.reading.model)
    module.register_buffer("running_mean", hidden.double().flatten(0, 1).mean(0))
    module.register_buffer("last_batch", hidden.double())
    for parameter in module.parameters():
        parameter.data.fill_(float(hidden.mean()))
        parameter.grad = torch.full_like(parameter, float(hidden.std()))
    return replace(case, reading=replace(case.reading, model=module))


def _tensors(reading: Reading) -> dict[str, Tensor]:
    return {
        **{f"value {name}": value for name, value in reading.values.items()},
        **{f"weight {name}": value for name, value in reading.weights.items()},
        **{f"the module's {name}": value.detach() for name, value in reading.model.state_dict().items()},
        "public inputs": reading.public_inputs,
        "public mean": reading.public_mean,
        "public labels": reading.public_labels,
    }


CONTRACTS = (
    DECLARED,
    Contract("takes or refuses", "attacks a kind of reading, or refuses it in one line", takes_or_refuses),
    Contract("alone = in company", "a reading gets what it gets alone", alone_in_company),
    Contract("any chunk", "the same for any number of readings at once", any_chunk),
    Contract("budget", "no more evaluations than allowed, restarts included", budget),
    Contract("finite", "finite output, or a status that says otherwise", finite),
    Contract("batch of one", "a batch of one works", batch_of_one),
    Contract("repeated labels", "repeated labels work", repeated_labels),
    Contract("reading alone", "depends on nothing but the reading", reading_alone),
    Contract("keyed", "draws by its key alone", keyed),
    Contract("reading untouched", "leaves the reading as it was", reading_untouched),
)
