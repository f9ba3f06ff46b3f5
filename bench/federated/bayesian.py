"""Bayesian accounting for a training: how far a mean moves without an example or client, relative to its noise."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bench import rng
from bench.cell import Bayesian, Federated
from bench.defenses.accounting import bayesian, masked, rdp
from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.accounting.report import RELEASED
from bench.defenses.base import Context, Tensors
from bench.defenses.transforms.noise import GaussianNoise
from bench.epsilon import Epsilon
from bench.federated.batches import Batches
from bench.federated.clients import Network
from bench.federated.draws import NoDraws, ZeroDraws
from bench.federated.stages import DrawKey, Stages
from bench.points import STEP_STAGES, UPDATE_STAGES, Stage
from bench.record.schema import BayesianRound
from bench.rows import flattened

CHUNK = 10  # clients whose examples' gradients are in memory at once
_BDP = "BDP is not DP: it speaks of rows like those seen, exchangeable and of one distribution"
_CLIENTS = "at the level of clients it says nothing of a single example"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Values of a training round from which the Bayesian accountant computes the round's privacy cost."""

    weights: Tensors
    """Weights at the start of the round, name → (*shape)."""
    stages: Stages
    """The defense's stages."""
    draw_key: DrawKey
    """Key of the defense's draws in this round."""
    batches: Batches
    """The clients' examples."""
    update: Tensors
    """The round's client updates before stage `client` (after local training), name → (client, *shape)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accountant:
    """Accountant that computes the Bayesian ε of a training round by round. Bayesian ε holds for protected data from
    the distribution of the training data; it follows from the change that such data make to the update, estimated from
    samples. Three levels are possible: "instance" protects an example by the noise in local steps, "client" protects a
    client by the noise on updates, and "joint" protects a client by both."""

    config: Bayesian
    """Options of the accounting: levels, estimator, δ."""
    federated: Federated
    """Federated setting: numbers of clients, clients per round, local steps, batch."""
    stages: Stages
    """The defense's stages, whose noise is counted."""
    examples: int
    """Number of examples in the whole training split, |D|."""
    absent: Mapping[str, str]
    """Reason for each level without ε, level → reason."""

    def costs(self, net: Network, round_: Round) -> dict[str, Tensor]:
        """Return the privacy cost of a round for each level (protected unit) that has an ε: level → (order,), the cost
        at each order of the moments of the privacy loss. Costs of several rounds add up; `reports` turns sums into ε.

        - `net`: computes the gradients for many clients.
        - `round_`: weights, batches, updates and draws of the round."""
        costs: dict[str, Tensor] = {}
        for level in (level for level in self.config.levels if level not in self.absent):
            variance = _variance(self.stages, level, self.federated, round_.draw_key.round)
            if level == "instance":
                moved = torch.cat([_distances(flattened(each, 2)) for each in _clipped(net, round_)])
                cost = self._joined(np.stack(self._estimates(moved / variance, level)), round_.draw_key)
            else:
                # at level `joint` only noise acts on the update (`_obstacle`)
                client = level == "client"
                sent = (
                    _without_noise(UPDATE_STAGES, round_.update, round_) if client else _noiseless_updates(net, round_)
                )
                moved = _distances(flattened(sent, 1)[None]) / variance
                (cost,) = self._estimates(moved, level, None if client else self._masks(level, round_.draw_key))
            costs[level] = torch.from_numpy(cost)
        return costs

    def reports(self, costs: Tensors, rounds: int) -> dict[str, Epsilon]:
        """Return Bayesian ε after the first `rounds` rounds, level (protected unit) → ε. `costs` are the rounds'
        privacy costs, level → (round, order)."""
        return {
            level: Epsilon(
                convention="bayesian",
                accountant=f"Bayesian, {level} level" + (f", {self.config.instances}" if level == "instance" else ""),
                unit="example" if level == "instance" else "client",
                adversary=RELEASED,
                epsilon=epsilon,
                delta=self.config.delta,
                q=self._rate(level),
                steps=rounds,
                multiplier=None,
                sampling="as Poisson",
                adjacency="one added or removed, at random",
                caveats=(_BDP,) if level == "instance" else (_BDP, _CLIENTS),
                absent="δ is used up by the estimates, or no order is finite" if epsilon is None else None,
            )
            for level, cost in costs.items()
            for epsilon in (self._epsilon(level, cost[:rounds]),)
        }

    def by_round(
        self, costs: Tensors, mechanism: Mechanism | None, tested: Iterable[int]
    ) -> dict[str, tuple[BayesianRound, ...]]:
        """Return the course of Bayesian ε over a training, for a plot: level (protected unit) → ε after each round
        number in `tested`. (`reports` gives a single ε with all its assumptions.)

        - `costs`: the rounds' privacy costs, level → (round, order).
        - `mechanism`: noise and sensitivity of the defense, from which the moments accountant computes an ε for
          comparison; None: no comparison.
        - `tested`: numbers of rounds after which ε is computed; numbers above the number of finished rounds are left
          out."""
        return {
            level: tuple(
                BayesianRound(
                    round=number,
                    epsilon=self._epsilon(level, cost[:number]),
                    moments_epsilon=self._moments(level, mechanism, number),
                )
                for number in tested
                if 0 < number <= len(cost)
            )
            for level, cost in costs.items()
        }

    def _joined(self, costs: np.ndarray, draw_key: DrawKey) -> np.ndarray:
        """Return the round's cost (order,) at level "instance", from the cost of each client's examples (client,
        order)."""
        parallel, random = self.config.instances == "parallel", self._masks("instance", draw_key)
        if random is not None:
            return masked.largest(costs, random) if parallel else masked.summed(costs, random)
        joined: np.ndarray = costs.max(0) if parallel else costs.sum(0)
        return joined

    def _masks(self, level: str, draw_key: DrawKey) -> np.random.Generator | None:
        """Return the source of a round's masks on messages about costs; None: the server reads each cost."""
        if not self.config.masked:
            return None
        return rng.generator(draw_key.seed, "masks of costs", draw_key.draw, draw_key.round, level)

    def _estimates(self, moved: Tensor, level: str, random: np.random.Generator | None = None) -> list[np.ndarray]:
        """Return the privacy cost (order,) of each group of rows: the examples in a client's batch, or all clients of
        the round. `moved` (group, row) is the squared change of a group's mean if the row is removed, divided by the
        noise variance. `level` gives the sampling rate. With `random`, rows send masked messages."""
        rounds = self.stages.setting.rounds if self.config.dependent else 1
        moments = bayesian.log_moments(
            moved.flatten().double().cpu().numpy(), q=self._rate(level), formula=self.config.formula
        ).reshape(*moved.shape, -1)
        estimator = self.config.estimator
        if random is not None:
            return [masked.cost(group, random, estimator=estimator, rounds=rounds) for group in moments]
        return [bayesian.cost(group, estimator=estimator, rounds=rounds) for group in moments]

    def _epsilon(self, level: str, costs: Tensor) -> float | None:
        estimates = len(costs) * (self.federated.per_round if level == "instance" else 1)
        return bayesian.epsilon(
            costs.sum(0).numpy(), self.config.delta, estimator=self.config.estimator, estimates=estimates
        )

    def _moments(self, level: str, mechanism: Mechanism | None, rounds: int) -> float | None:
        """Return the moments accountant's ε at `level` after `rounds` rounds, for the noise in `mechanism`. None
        without a mechanism for the level's protected unit, for a round without noise, or if ε is infinite."""
        unit = "client" if level == "client" else "example"
        if mechanism is None or mechanism.unit != unit:
            return None
        on_sum, each = mechanism.released, 1
        if level == "joint":  # noise σC·released/B on each of K updates with norm at most C
            on_sum *= math.sqrt(self.federated.per_round) / self.federated.batch
        if level == "instance" and self.config.instances == "sequential":
            each = self.federated.per_round
        multipliers = [sigma * on_sum for sigma in mechanism.sigmas[:rounds]]
        if min(multipliers) <= 0:
            return None
        counts = rdp.multiplicities(multipliers, each)
        epsilon = rdp.epsilon(counts, self.config.delta, q=self._rate(level), old=True)
        return epsilon if math.isfinite(epsilon) else None

    def _rate(self, level: str) -> float:
        """Return the probability that a training step uses a given example (level "instance") or a given client. For an
        example, the probability is the batch size divided by a number of examples: a client's number if
        `config.instances` is "parallel", and otherwise all clients' number."""
        federated = self.federated
        if level != "instance":
            return federated.per_round / federated.clients
        parallel = self.config.instances == "parallel"
        return min(1.0, federated.batch / (self.stages.setting.client_examples if parallel else self.examples))


def accountant(config: Bayesian, federated: Federated, stages: Stages, *, examples: int) -> Accountant:
    """Return the accountant of Bayesian ε for a training, which computes the privacy cost of each round.

    - `config`: levels, estimator and δ of the accounting.
    - `federated`: federated setting.
    - `stages`: the defense, whose noise counts; the states (memory between rounds) may be from any round.
    - `examples`: number of examples in the training split.

    A protected unit (`config.levels`: example or client) without Bayesian ε has a reason in the result's `absent`."""
    obstacles = {level: _obstacle(level, federated, stages) for level in config.levels}
    if config.masked and "instance" in obstacles and federated.per_round < 2:
        obstacles["instance"] = "the sum of one client's cost is that cost; give the round two clients at least"
    return Accountant(
        config=config,
        federated=federated,
        stages=stages,
        examples=examples,
        absent={level: reason for level, reason in obstacles.items() if reason is not None},
    )


def _obstacle(level: str, federated: Federated, stages: Stages) -> str | None:
    if level != "client" and federated.algorithm != "fedsgd":
        return "it is of one local step, and fedavg may take several"
    if level != "client" and stages.has("input"):
        return "what it measures are gradients of the examples as they are, and a step's are transformed before"
    many, rows = federated.per_round, "clients a round"
    if level == "instance":
        many, rows = federated.batch, "examples a batch"
    if many < bayesian.LEAST_SAMPLES:
        return f"{many} {rows} are too few to estimate from; give {bayesian.LEAST_SAMPLES}"
    for transform in (t for stage in _counted(level) for t in stages.transforms.get(stage, ())):
        plain = isinstance(transform, GaussianNoise) and transform.on == "all"
        if transform.random and not plain:
            return f"it needs Gaussian noise on every coordinate, and {type(transform).__name__} is something else"
    if level == "joint" and any(not t.random for stage in UPDATE_STAGES for t in stages.transforms.get(stage, ())):
        return "what is done to a client's noised update changes the noise that it counts on"
    return None if _variance(stages, level, federated, 0) else "no noise lies on what it speaks of"


def _counted(level: str) -> tuple[Stage, ...]:
    if level == "instance":
        return STEP_STAGES
    sent: tuple[Stage, ...] = (*UPDATE_STAGES, "aggregate")
    return sent if level == "client" else (*STEP_STAGES, *sent)


def _variance(stages: Stages, level: str, federated: Federated, round_: int) -> float:
    """Return the variance per coordinate of the Gaussian noise on a mean in round `round_`, summed over the stages that
    `level` counts. At "instance" the mean is over a batch's example gradients, at "client" and "joint" over the updates
    of a round's clients. `federated` gives the batch size and the number of clients."""
    total = 0.0
    for stage in _counted(level):
        context = Context(lead=1, stage=stage, round=round_, step=0, setting=stages.setting, draws=NoDraws())
        noises = (t for t in stages.transforms.get(stage, ()) if isinstance(t, GaussianNoise))
        each = sum(noise.variance(context) for noise in noises)
        over = federated.batch if stage == "example" else 1
        over *= federated.per_round if level != "instance" and stage != "aggregate" else 1
        total += each / over
    return total


def _distances(rows: Tensor) -> Tensor:
    """Return, for each row u_i, the squared distance that its group's mean ū moves without the row: (group, row). The
    distance is ‖u_i - ū‖²/(n - 1)² for n rows. `rows` is (group, row, coordinate)."""
    centred = rows - rows.mean(1, keepdim=True)
    distances: Tensor = centred.square().sum(-1) / (rows.shape[1] - 1) ** 2
    return distances


def _without_noise(stages: Iterable[Stage], tensors: Tensors, round_: Round) -> Tensors:
    for stage in stages:
        tensors, _ = round_.stages.apply(
            stage, tensors, round_.draw_key, round_.batches.clients, ZeroDraws(), weights=round_.weights
        )
    return tensors


def _clipped(net: Network, round_: Round) -> Iterator[Tensors]:
    """Yield chunks of example gradients after stage `example`, but without noise, name → (client, example, *shape)."""
    for start in range(0, len(round_.batches.clients), CHUNK):
        part = round_.batches[start : start + CHUNK]
        local = {n: v.expand(len(part.clients), *v.shape) for n, v in round_.weights.items()}
        each: Tensors = net.gradients(local, part.inputs[:, 0], part.labels[:, 0]).each()
        yield _without_noise(("example",), each, replace(round_, batches=part))


def _noiseless_updates(net: Network, round_: Round) -> dict[str, Tensor]:
    parts = [{n: v.mean(1) for n, v in each.items()} for each in _clipped(net, round_)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
