"""Learned inversion: a regression from simulated readings of public examples to the examples.

The attacker runs the round with its defense on public examples and learns to undo it.  He needs no description of the
defense and no optimisation at the reading.  Whatever there is to choose is chosen on held-out public examples.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.base import Attack
from bench.attacks.parts import ridge
from bench.attacks.parts.features import Balance, Scaling, Sketch, Units, learn, principal
from bench.attacks.parts.objective import mean_observation, observations
from bench.gradients import group_gradients, one_hot
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Simulator, Status

LEAST = 100  # public examples: with fewer the choice on held-out ones is by chance
EXAMPLES = (
    20_000  # behind all simulated readings together, at most: readings of large batches are simulated less
)
CHOSEN_ON = 1500  # simulated readings on which kernel, ridge and features are chosen
HELD_OUT = 300  # and on which they are judged
CHUNK = 250  # readings simulated in one call
PLAIN = 2000  # undefended gradients whose principal components are taken
AGAIN = 5  # simulated readings for each public example, at most
TRIED = list(range(4))  # rows that are simulated twice, to see whether the defense is random

_SCALINGS: tuple[tuple[Units, Balance], ...] = (
    ("tensor", "values"), ("tensor", "tensors"), ("coordinate", "values"), ("direction", "values"),
)  # fmt: skip
_WIDTHS = (0.0, 0.2, 1.0)
_RIDGES = (1e-3, 1e-1)  # first, of every kernel; then of the best around its own
_FINER = (1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Simulated readings: `vectors` (row, value), and what is behind them: `inputs` (row, example, *shape), `labels`
    (row, example), in the order in which they are sought.  The last `held` are judged by."""

    vectors: Tensor
    inputs: Tensor
    labels: Tensor
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen on held-out examples, and its mean square `error` there."""

    scaling: Scaling
    words: str
    kernel: ridge.Kernel
    ridge: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverter:
    """A learned map from gradients to examples; `error` is the mean square error on held-out public examples."""

    sketch: Sketch
    choice: Choice
    regression: ridge.Ridge
    shape: tuple[int, ...]
    classes: int
    simulations: int

    def __call__(self, gradients: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Gradients, name → (reading, *shape), to examples (reading, example, *shape) and the scores of their classes
        in all, (reading, class)."""
        targets = self.regression(self.choice.scaling(self.sketch(gradients)))
        inputs, scores = targets[:, : -self.classes], targets[:, -self.classes :]
        return inputs.reshape(len(targets), -1, *self.shape), scores

    def residuals(self) -> Tensor:
        """Errors on simulated readings that were left out, (row, example·value), for `ridge.residual_covariance`."""
        assert self.regression.left_out is not None
        return self.regression.left_out[:, : -self.classes]


@dataclass(frozen=True, kw_only=True)
class LearnedInverter(Attack):
    """Kernel ridge regression from simulated, defended gradients to public examples.

    Examples of a batch are sought in the order of their labels, and of their brightness within a label.
    """

    reference = "Wu et al. 2023 (Learning to Invert), §3, with a network; kernel ridge regression: ours"
    knowledge = ("black-box",)
    iterative = False

    simulations: int = parameter(5000, "readings that it simulates", source="ours", low=LEAST)
    components: int = parameter(
        256, "principal components of undefended gradients that are tried as features; 0: none", source="ours",
        low=0,
    )  # fmt: skip

    def refuses(self, reading: Reading) -> str | None:
        if reading.simulator is None:
            return 'it learns from simulated readings: give it knowledge = ["black-box"]'
        count = len(reading.public_inputs)
        if count < LEAST:
            return f"it learns from public examples: {count} are too few, at least {LEAST}"
        if bool((reading.public_labels < 0).any()):
            return "it simulates readings of public examples, and their labels are not known"
        if held_examples(count) < reading.examples:
            return f"{count} public examples are too few for readings of {reading.examples} examples each"
        rows = self._rows(reading, reading.simulator)
        if rows < LEAST:
            return f"it can simulate {rows} readings; at least {LEAST} are needed"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        del budget
        inverter = self.inverter(reading, key)
        observed = mean_observation(observations(reading))
        inputs, scores = inverter(observed)
        sound = torch.isfinite(inputs).flatten(1).all(1) & torch.isfinite(scores).all(1)
        inputs[~sound] = reading.public_mean.to(inputs)
        learned = counted(scores.nan_to_num(0, 0, 0), reading.examples)
        labels = reading.labels if reading.labels is not None else learned
        zero = torch.zeros(len(reading), dtype=torch.long)
        loss = torch.full((len(reading),), inverter.choice.error, dtype=inputs.dtype)
        ok: Status = "ok"
        nan: Status = "nan"
        return Reconstruction(
            inputs=inputs.cpu(), labels=labels.cpu(), loss=loss.where(sound.cpu(), torch.nan), evaluations=zero,
            outer=zero, restarts=zero, status=tuple(ok if good else nan for good in sound.tolist()),
            notes=(self._note(inverter),),
        )  # fmt: skip

    def inverter(self, reading: Reading, key: Key, *, left_out: bool = False) -> Inverter:
        """The map from readings like this one to examples, learned from its simulator and its public examples alone;
        `left_out`: with its errors on examples that it was not fitted on."""
        simulator = reading.simulator
        assert simulator is not None
        shapes = {name: tuple(value.shape[2:]) for name, value in reading.values.items()}
        sketch = Sketch.of(shapes, key)
        simulated = simulate(reading, simulator, sketch, self._rows(reading, simulator), key)
        targets = _targets(simulated, reading.classes)
        choice = min(self._choices(reading, sketch, simulated, targets, key), key=lambda each: each.error)
        choice = _finer(choice, simulated, targets, reading.classes)
        regression = ridge.fit(
            choice.scaling(simulated.vectors), targets, choice.kernel, choice.ridge, left_out=left_out
        )
        return Inverter(
            sketch=sketch, choice=choice, regression=regression, shape=reading.shape, classes=reading.classes,
            simulations=len(targets),
        )  # fmt: skip

    def _rows(self, reading: Reading, simulator: Simulator) -> int:
        affordable = simulator.budget // len(reading.rounds)
        fresh = AGAIN * len(reading.public_inputs)
        return min(self.simulations, affordable, fresh, max(LEAST, EXAMPLES // reading.examples))

    def _choices(
        self, reading: Reading, sketch: Sketch, simulated: Simulated, targets: Tensor, key: Key
    ) -> Iterator[Choice]:
        """Every way of scaling, with each kernel and its better ridge, judged on held-out examples."""
        fitted, _ = _split(simulated)
        vectors = simulated.vectors[fitted]
        for units, balance in _SCALINGS:
            scaling = learn(vectors, sketch.slices, units, balance)
            words = f"{units}s scaled" + (", tensors alike" if balance == "tensors" else "")
            yield from _judged(scaling, words, simulated, targets, reading.classes, _WIDTHS, _RIDGES)
        if self.components:
            rows = slice(0, min(PLAIN, len(vectors)))
            plain = sketch(_undefended(reading, simulated.inputs[rows], simulated.labels[rows])).to(vectors)
            for units in ("tensor", "coordinate"):
                scaling = learn(plain, sketch.slices, units, "values")
                basis = principal(scaling(plain), self.components, key)
                scaling = replace(scaling, mean=vectors.mean(0), basis=basis)
                words = f"{units}s scaled, {basis.shape[1]} principal components of undefended gradients"
                yield from _judged(scaling, words, simulated, targets, reading.classes, _WIDTHS, _RIDGES)

    def _note(self, inverter: Inverter) -> str:
        choice = inverter.choice
        decibels = float(-10 * torch.tensor(choice.error).clamp_min(1e-30).log10())
        return (
            f"learned from {inverter.simulations} simulated readings: {choice.words}, {choice.kernel} kernel, ridge "
            f"{inverter.regression.ridge:g}; {decibels:.1f} dB on held-out public examples"
        )


def held_examples(public: int) -> int:
    """How many of the public examples are held out."""
    return min(HELD_OUT, public // 5)


def simulate(reading: Reading, simulator: Simulator, sketch: Sketch, rows: int, key: Key) -> Simulated:
    """Simulated readings of public examples; those held out stand in no other.

    One example each: every public example once, and where the defense is random again with new draws.  Batches are
    drawn anew for every row.
    """
    count = len(reading.public_inputs)
    order = torch.from_numpy(key.generator("public").permutation(count))
    held = held_examples(count)
    fitted, kept = order[held:], order[:held]
    judged = min(held, rows // 4)
    draws = itertools.count()

    def shown(members: Tensor) -> Tensor:
        return _shown(reading, simulator, sketch, members, draws)

    batches = reading.examples > 1
    members = (
        _batches(fitted, rows - judged, reading.examples, key, "batches") if batches else fitted[:, None]
    )
    last = _batches(kept, judged, reading.examples, key, "held") if batches else kept[:, None]
    members, last = members[: rows - judged], last[:judged]
    vectors = shown(members)
    left = rows - len(last) - len(members)
    if left > len(TRIED) and not torch.allclose(shown(members[TRIED]), vectors[TRIED], rtol=1e-3, atol=1e-7):
        again = members.repeat(-(-left // len(members)), 1)[: left - len(TRIED)]
        members, vectors = torch.cat([members, again]), torch.cat([vectors, shown(again)])
    inputs, labels = _sought(reading, torch.cat([members, last]))
    return Simulated(vectors=torch.cat([vectors, shown(last)]), inputs=inputs, labels=labels, held=len(last))


def counted(scores: Tensor, examples: int) -> Tensor:
    """Labels, (reading, example) ascending, from the scores of the classes (reading, class): each next example goes
    where the score is farthest above what the class has."""
    counts = torch.zeros_like(scores)
    rows = torch.arange(len(scores))
    for _ in range(examples):
        counts[rows, (scores - counts).argmax(1)] += 1
    return torch.stack([
        torch.repeat_interleave(torch.arange(scores.shape[1]), row.long()) for row in counts.cpu()
    ])  # fmt: skip


def _batches(pool: Tensor, rows: int, examples: int, key: Key, purpose: str) -> Tensor:
    """Public examples of each batch, (row, example), none twice in it."""
    draw = key.generator(purpose)
    return torch.stack([pool[draw.permutation(len(pool))[:examples]] for _ in range(rows)])


def _shown(
    reading: Reading, simulator: Simulator, sketch: Sketch, members: Tensor, draws: Iterator[int]
) -> Tensor:
    """What the reading would show of these public examples, (row, value); observations as their mean."""
    parts = []
    for rows in members.split(CHUNK):
        shown = simulator(reading.public_inputs[rows], reading.public_labels[rows], next(draws))
        like = next(iter(reading.values.values()))
        parts.append(sketch({name: value.mean(1).to(like) for name, value in shown.items()}))
    return torch.cat(parts)


def _sought(reading: Reading, members: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and labels of public examples (row, example), each row by label and, of one label, by brightness: a
    reading does not show in which order its examples came."""
    inputs, labels = reading.public_inputs[members], reading.public_labels[members]
    brightness = inputs.flatten(2).mean(2)
    order = (labels + brightness.clamp(0, 1) / 2).argsort(1)
    rows = torch.arange(len(members))[:, None]
    return inputs[rows, order], labels[rows, order]


def _undefended(reading: Reading, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Gradients of batches of public examples without the defense, name → (row, *shape)."""
    like = next(iter(reading.values.values()))
    weights = {name: value[0] for name, value in reading.weights.items()}
    parts = [
        group_gradients(reading.model, weights, x.to(like), one_hot(y, reading.classes, like.dtype).to(like))
        for x, y in zip(inputs.split(CHUNK), labels.split(CHUNK), strict=True)
    ]
    return {name: torch.cat([part[name].detach() for part in parts]) for name in weights}


def _targets(simulated: Simulated, classes: int) -> Tensor:
    """What is regressed on: the examples' values, then how often each class is there, (row, target)."""
    counts = one_hot(simulated.labels, classes, simulated.vectors.dtype).sum(1)
    return torch.cat([simulated.inputs.flatten(1).to(simulated.vectors), counts.to(simulated.vectors)], 1)


def _split(simulated: Simulated) -> tuple[slice, slice]:
    """The rows on which a choice is fitted, and those on which it is judged."""
    last = len(simulated.vectors) - simulated.held
    return slice(0, min(CHOSEN_ON, last)), slice(last, None)


def _judged(
    scaling: Scaling, words: str, simulated: Simulated, targets: Tensor, classes: int,
    widths: tuple[float, ...], ridges: tuple[float, ...],
) -> Iterator[Choice]:  # fmt: skip
    """These kernels and ridges on one scaling's features, each with its error on held-out examples."""
    fitted, judged = _split(simulated)
    features, others = scaling(simulated.vectors[fitted]), scaling(simulated.vectors[judged])
    products, across = features @ features.T, others @ features.T
    norms, norms_of_others = products.diagonal().clone(), others.square().sum(1)
    median, offset = ridge.median_distance(products), targets[fitted].mean(0)
    for width in widths:
        kernel = ridge.Kernel(width=width)
        between = kernel(products, norms, norms, median)
        towards = kernel(across, norms_of_others, norms, median)
        for amount in ridges:
            factor, stable = ridge.factorise(between, amount)
            found = offset + towards @ torch.cholesky_solve(targets[fitted] - offset, factor)
            values = found[:, :-classes].clamp(0, 1) - targets[judged][:, :-classes]
            yield Choice(
                scaling=scaling, words=words, kernel=kernel, ridge=stable, error=float(values.square().mean())
            )


def _finer(choice: Choice, simulated: Simulated, targets: Tensor, classes: int) -> Choice:
    """The best ridge around the chosen one, and for a kernel with a width the best of neighbouring widths."""
    ridges = tuple(choice.ridge * factor for factor in _FINER)
    widths = tuple({choice.kernel.width, choice.kernel.width / 2, choice.kernel.width * 2})
    tried = _judged(choice.scaling, choice.words, simulated, targets, classes, widths, ridges)
    return min((choice, *tried), key=lambda each: each.error)
