"""Bayesian accounting of a round: how far its means move when one row is left out, over the noise that lies on them."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bench.cell import Bayesian, Federated
from bench.defenses.accounting import bayesian, rdp
from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.accounting.report import RELEASED, Spent
from bench.defenses.base import Context
from bench.defenses.transforms.noise import GaussianNoise
from bench.defenses.transforms.rows import joined
from bench.federated.clients import Network
from bench.federated.draws import NoDraws
from bench.federated.pipeline import Batches
from bench.federated.stages import Moment, Stages
from bench.points import SENT, Stage

Tensors = Mapping[str, Tensor]
CHUNK = 10  # clients whose examples' gradients are held at once
_INSIDE: tuple[Stage, ...] = ("example", "step")


class Quiet:
    """Draws that are nothing: what additive noise then leaves is what it lies on."""

    def normal(self, name: str, like: Tensor) -> Tensor:
        del name
        return torch.zeros_like(like)

    def uniform(self, name: str, like: Tensor) -> Tensor:
        raise RuntimeError(f"nothing may be drawn here ({name})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round as it is accounted: the weights it began with, who took part, on what, and what each would send
    before stage `client`, name → (client, *shape)."""

    weights: Tensors
    stages: Stages
    moment: Moment
    batches: Batches
    update: Tensors


def absent(asked: Bayesian, federated: Federated, stages: Stages) -> dict[str, str]:
    """Level → why it cannot be accounted under this defense and setting; those that can are left out."""
    found = {level: _absent(level, federated, stages) for level in asked.levels}
    return {level: reason for level, reason in found.items() if reason is not None}


def _absent(level: str, federated: Federated, stages: Stages) -> str | None:
    if level != "client" and federated.algorithm != "fedsgd":
        return "it is of one local step, and fedavg may take several"
    many, rows = (
        (federated.batch, "examples a batch")
        if level == "instance"
        else (federated.per_round, "clients a round")
    )
    if many < bayesian.LEAST_SAMPLES:
        return f"{many} {rows} are too few to estimate from; give {bayesian.LEAST_SAMPLES}"
    for transform in (t for stage in _seen(level) for t in stages.transforms.get(stage, ())):
        plain = isinstance(transform, GaussianNoise) and transform.on == "all"
        if transform.random and not plain:
            return f"it needs Gaussian noise on every coordinate, and {type(transform).__name__} is something else"
    if level == "joint" and any(not t.random for stage in SENT for t in stages.transforms.get(stage, ())):
        return "what is done to a client's noised update changes the noise that it counts on"
    return None if _variance(stages, level, federated, 0) else "no noise lies on what it speaks of"


def costs(
    asked: Bayesian, of: Network, federated: Federated, examples: int, round_: Round
) -> dict[str, Tensor]:
    """What this round costs at each level asked that can be accounted, (order,), float64; `examples` is |D|."""
    rounds = round_.stages.setting.rounds if asked.dependent else 1

    def estimated(x: Tensor, q: float) -> list[np.ndarray]:
        """(group, row) squared distances → one cost each group."""
        moments = bayesian.log_moments(x.flatten().double().cpu().numpy(), q=q, formula=asked.formula)
        groups = moments.reshape(*x.shape, -1)
        return [bayesian.cost(group, estimator=asked.estimator, rounds=rounds) for group in groups]

    found: dict[str, Tensor] = {}
    own = round_.stages.setting.client_examples
    reasons = absent(asked, federated, round_.stages)
    for level in (level for level in asked.levels if level not in reasons):
        variance = _variance(round_.stages, level, federated, round_.moment.round)
        q = _rate(asked, level, federated, examples=examples, own=own)
        if level == "instance":
            x = torch.cat([_apart(each) for each in _examples(of, round_)]) / variance
            of_clients = np.stack(estimated(x, q))
            cost = of_clients.max(0) if asked.instances == "parallel" else of_clients.sum(0)
        else:
            # jointly, nothing but noise acts on what is sent (`_absent`)
            sent = _through(SENT, round_.update, round_) if level == "client" else _quiet_updates(of, round_)
            (cost,) = estimated(_apart(joined(sent, 1)[None]) / variance, q)
        found[level] = torch.from_numpy(cost)
    return found


def spent(
    asked: Bayesian, federated: Federated, found: Tensors, rounds: int, *, examples: int, own: int
) -> dict[str, Spent]:
    """Level → ε of the first `rounds` rounds, with what it assumes; `own` is |D_i|."""
    return {
        level: Spent(
            convention="bayesian", accountant=f"Bayesian, {level} level" + _how(asked, level),
            unit="example" if level == "instance" else "client", adversary=RELEASED,
            epsilon=total, delta=asked.delta,
            q=_rate(asked, level, federated, examples=examples, own=own), steps=rounds,
            multiplier=None, sampling="as Poisson", adjacency="one added or removed, at random",
            caveats=_caveats(level),
            absent="δ is used up by the estimates, or no order is finite" if total is None else None,
        )
        for level, value in found.items()
        for total in (_epsilon(asked, level, value[:rounds], federated),)
    }  # fmt: skip


def by_round(
    asked: Bayesian, federated: Federated, found: Tensors, mechanism: Mechanism | None, tested: Iterable[int],
    *, examples: int, own: int,
) -> dict[str, list[list[float | None]]]:  # fmt: skip
    """Level → [round, Bayesian ε, moments accountant's ε of the same run] at the rounds that were tested."""
    return {
        level: [
            [
                float(number),
                _epsilon(asked, level, value[:number], federated),
                _moments(asked, level, mechanism, federated, number, examples=examples, own=own),
            ]
            for number in tested
            if 0 < number <= len(value)
        ]
        for level, value in found.items()
    }


def _moments(
    asked: Bayesian, level: str, mechanism: Mechanism | None, federated: Federated, rounds: int, *, examples: int,
    own: int,
) -> float | None:  # fmt: skip
    """What the moments accountant says of the same rounds and rows, by the bound that rows are clipped to."""
    wanted = "client" if level == "client" else "example"
    if mechanism is None or mechanism.unit != wanted:
        return None
    on_sum, each = mechanism.released, 1
    if level == "joint":  # σC·released/B on each of K updates of norm C at most
        on_sum *= math.sqrt(federated.per_round) / federated.batch
    if level == "instance" and asked.instances == "sequential":
        each = federated.per_round
    q = _rate(asked, level, federated, examples=examples, own=own)
    multipliers = [sigma * on_sum for sigma in mechanism.sigmas[:rounds]]
    if min(multipliers) <= 0:
        return None
    found = rdp.epsilon(rdp.multiplicities(multipliers, each), asked.delta, q=q, old=True)
    return found if math.isfinite(found) else None


def _rate(asked: Bayesian, level: str, federated: Federated, *, examples: int, own: int) -> float:
    """q, the chance that the differing row takes part: a client in a round, an example in a batch of its client's
    `own` (parallel) or of all `examples`."""
    if level != "instance":
        return federated.per_round / federated.clients
    return min(1.0, federated.batch / (own if asked.instances == "parallel" else examples))


def _epsilon(asked: Bayesian, level: str, value: Tensor, federated: Federated) -> float | None:
    estimates = len(value) * (federated.per_round if level == "instance" else 1)
    return bayesian.epsilon(value.sum(0).numpy(), asked.delta, estimator=asked.estimator, estimates=estimates)


def _how(asked: Bayesian, level: str) -> str:
    return f", {asked.instances}" if level == "instance" else ""


def _caveats(level: str) -> tuple[str, ...]:
    says = "BDP is not DP: it speaks of rows like those seen, exchangeable and of one distribution"
    if level == "instance":
        return (says,)
    return says, "at the level of clients it says nothing of a single example"


def _seen(level: str) -> tuple[Stage, ...]:
    """The stages whose noise and clipping a level counts."""
    if level == "instance":
        return _INSIDE
    sent: tuple[Stage, ...] = (*SENT, "aggregate")
    return sent if level == "client" else (*_INSIDE, *sent)


def _variance(stages: Stages, level: str, federated: Federated, at: int) -> float:
    """s², the noise's variance in round `at` on each coordinate of the mean that a level speaks of: of a batch, or of
    K clients."""
    total = 0.0
    for stage in _seen(level):
        context = Context(
            lead=1, stage=stage, round=at, step=0, setting=stages.setting, draws=NoDraws()
        )  # fmt: skip
        each = sum(
            t.variance(context) for t in stages.transforms.get(stage, ()) if isinstance(t, GaussianNoise)
        )
        over = federated.batch if stage == "example" else 1
        over *= federated.per_round if level != "instance" and stage != "aggregate" else 1
        total += each / over
    return total


def _apart(rows: Tensor) -> Tensor:
    """(group, row, coordinate) → squared distance of each group's mean to its mean without the row: (group, row).

    That is ‖u_i - ū‖/(n - 1) for the mean ū of n rows.
    """
    centred = rows - rows.mean(1, keepdim=True)
    found: Tensor = centred.square().sum(-1) / (rows.shape[1] - 1) ** 2
    return found


def _through(stages: Iterable[Stage], tensors: Tensors, round_: Round) -> Tensors:
    """Tensors after these stages but for their noise."""
    for stage in stages:
        tensors, _ = round_.stages.apply(
            stage, tensors, round_.moment, round_.batches.clients, Quiet(), weights=round_.weights
        )
    return tensors


def _chunks(round_: Round) -> Iterator[Batches]:
    given = round_.batches
    for start in range(0, len(given.clients), CHUNK):
        rows = slice(start, start + CHUNK)
        yield Batches(clients=given.clients[rows], inputs=given.inputs[rows], labels=given.labels[rows])


def _clipped(of: Network, round_: Round) -> Iterator[Tensors]:
    """Each chunk's gradients of examples as they leave stage `example` but for its noise, (client, example, *shape)."""
    for part in _chunks(round_):
        local = {n: v.expand(len(part.clients), *v.shape) for n, v in round_.weights.items()}
        each: Tensors = of.gradients(local, part.inputs[:, 0], part.labels[:, 0]).each()
        yield _through(("example",), each, replace(round_, batches=part))


def _examples(of: Network, round_: Round) -> Iterator[Tensor]:
    """Chunks of (client, example, coordinate)."""
    return (joined(each, 2) for each in _clipped(of, round_))


def _quiet_updates(of: Network, round_: Round) -> dict[str, Tensor]:
    """What clients would send before stage `client` but for the noise of their step, (client, *shape)."""
    parts = [{n: v.mean(1) for n, v in each.items()} for each in _clipped(of, round_)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
