"""Learned inversion: a regression from simulated readings to the public examples behind them.

The attacker simulates the training round with its defense on public examples and learns the inverse. The attack needs
neither a description of the defense nor optimisation. Held-out public examples choose kernel, ridge and features."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.inverter import ridge
from bench.attacks.inverter.scaling import Balance, Scaling, Units, learn, principal
from bench.attacks.inverter.sketch import Sketch
from bench.attacks.labels.rules import listed, whole_counts
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.attacks.objective.rescale import rescaled
from bench.gradients import group_gradients, one_hot
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Simulator, Status

LEAST = 100  # public examples: with fewer the choice on held-out examples is chance
EXAMPLES = 20_000  # behind all simulated readings together, at most: large batches are simulated less
CHOSEN_ON = 1000  # simulated readings for the choice of kernel, ridge and features
HELD_OUT = 300  # public examples, at most, held out as judges of this choice
CHUNK = 250  # readings simulated in one call
PLAIN = 2000  # undefended gradients for the principal components
AGAIN = 5  # simulated readings for each public example, at most
TRIED = list(range(4))  # rows simulated twice to find out whether the defense is random

_SCALINGS: tuple[tuple[Units, Balance], ...] = (
    ("tensor", "values"),
    ("tensor", "tensors"),
    ("coordinate", "values"),
    ("direction", "values"),
)
_PRINCIPAL: tuple[Units, ...] = ("tensor", "coordinate")
_WIDTHS = (0.0, 0.2, 1.0)
_RIDGES = (1e-3, 1e-1)  # for every kernel; `_FINER` and `_ON_ALL` multiply the best
_FINER = (1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
_ON_ALL = (0.1, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulations:
    """Training data for the attack `learned-inverter`: simulated readings (observed updates), and the public examples
    behind them. Examples are sorted within a reading by label, then by brightness."""

    vectors: Tensor
    """Simulated readings as vectors (simulation, value)."""
    inputs: Tensor
    """Inputs of the public examples (simulation, example, *shape)."""
    labels: Tensor
    """Labels of the public examples (simulation, example)."""
    held: int
    """Number of simulations held out to compare regressions; they are the last rows."""
    low: float
    """Smallest possible input value."""
    high: float
    """Largest possible input value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A fitted regression from gradients to examples, with the scaling of its features and its error on held-out
    simulations. The attack compares several, and keeps the regression with the least error."""

    scaling: Scaling
    """Map from gradient vectors to features."""
    words: str
    """Description of the scaling in words, for the record."""
    regression: ridge.Ridge
    """Regression from features to inputs and class counts."""
    error: float
    """Mean squared error on held-out public examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverter:
    """A learned map from gradients to the examples behind them: call it with gradients, name → (reading, *shape), to
    get inputs (reading, example, *shape) and class scores (reading, class)."""

    sketch: Sketch
    """Map from a gradient to a vector of bounded length."""
    choice: Choice
    """The scaling and the regression with the least error on held-out examples."""
    shape: tuple[int, ...]
    """Shape of an example."""
    classes: int
    """Number of classes."""
    simulations: int
    """Number of simulated readings behind the regression."""

    def __call__(self, gradients: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Predict examples (reading, example, *shape) and class scores (reading, class) from gradients.

        `gradients` name → (reading, *shape). A class score estimates the number of examples in the class."""
        targets = self.choice.regression(self.choice.scaling(self.sketch(gradients)))
        inputs, scores = targets[:, : -self.classes], targets[:, -self.classes :]
        return inputs.reshape(len(targets), -1, *self.shape), scores


@dataclass(frozen=True, kw_only=True)
class LearnedInverter(Attack):
    """Learn a kernel ridge regression from simulated, defended gradients to public examples; apply it to readings
    (observed updates).

    Features are scaled gradient values, or their principal components (`components`). Scaling, kernel width and ridge
    are chosen by the least error on held-out public examples. The regression sorts the examples in a batch by label,
    then by brightness, because a reading shows no order."""

    reference = "Wu et al. 2023 (Learning to Invert), §3, with a network; kernel ridge regression: ours"
    knowledge = ("black-box",)
    iterative = False

    simulations: int = parameter(5000, "simulated readings", source="ours", low=LEAST)
    components: int = parameter(
        256, "principal components of undefended gradients tried as features; 0: none", source="ours", low=0
    )

    def refuses(self, reading: Reading) -> str | None:
        if reading.simulator is None:
            return 'it learns from simulated readings: give it knowledge = ["black-box"]'
        count = len(reading.public_inputs)
        if count < LEAST:
            return f"it learns from public examples: {count} are too few, at least {LEAST}"
        if bool((reading.public_labels < 0).any()):
            return "it simulates readings of public examples, but their labels are not known"
        if held_examples(count) < reading.examples:
            return f"{count} public examples are too few for readings of {reading.examples} examples each"
        rows = self._rows(reading, reading.simulator)
        if rows < LEAST:
            return f"it can simulate {rows} readings; at least {LEAST} are needed"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        reading = rescaled(reading)
        inverter = self.inverter(reading, key)
        observed = mean_observation(observations(reading))
        inputs, scores = inverter(observed)
        sound = torch.isfinite(inputs).flatten(1).all(1) & torch.isfinite(scores).all(1)
        inputs[~sound] = reading.public_mean.to(inputs)
        counts = [whole_counts(row, reading.examples) for row in scores.nan_to_num(0, 0, 0).cpu()]
        learned = listed(torch.stack(counts))
        labels = reading.labels if reading.labels is not None else learned
        loss = torch.full((len(reading),), inverter.choice.error, dtype=inputs.dtype)
        ok: Status = "ok"
        nan: Status = "nan"
        return closed_form(
            reading,
            inputs.cpu(),
            labels.cpu(),
            loss=loss.where(sound.cpu(), torch.nan),
            status=tuple(ok if good else nan for good in sound.tolist()),
            notes=(self._note(inverter),),
        )

    def inverter(self, reading: Reading, key: Key) -> Inverter:
        """Learn a map from readings (observed updates) to the examples behind them, on simulated readings of public
        examples.

        - `reading`: the attacked readings, with the public examples and a simulator of the round.
        - `key`: draws the simulated batches.

        Fits on a few simulated readings select the best features twice: among all gradient values, and among principal
        components. Both selections are then fitted on all simulated readings. The smaller error on held-out readings
        decides."""
        simulator = reading.simulator
        assert simulator is not None
        shapes = {name: tuple(value.shape[2:]) for name, value in reading.values.items()}
        sketch = Sketch.of(shapes, key)
        simulated = simulate(reading, simulator, sketch, self._rows(reading, simulator), key)
        trial = Trial.of(simulated, reading.classes)
        finalists = []
        for scalings in (_whole(sketch, trial), self._principal(reading, sketch, trial, key)):
            tried = [trial.best(scaling, words, _WIDTHS, _RIDGES, CHOSEN_ON) for scaling, words in scalings]
            if tried:
                finalists.append(trial.final(min(tried, key=_error)))
        return Inverter(
            sketch=sketch,
            choice=min(finalists, key=_error),
            shape=reading.shape,
            classes=reading.classes,
            simulations=len(simulated.vectors),
        )

    def _rows(self, reading: Reading, simulator: Simulator) -> int:
        affordable = simulator.budget // len(reading.rounds)
        fresh = AGAIN * len(reading.public_inputs)
        return min(self.simulations, affordable, fresh, max(LEAST, EXAMPLES // reading.examples))

    def _principal(self, reading: Reading, sketch: Sketch, trial: "Trial", key: Key) -> Iterator[tuple[Scaling, str]]:
        """Yield scalings onto the principal components of undefended public gradients, each with a text. The projection
        removes noise in other directions."""
        if not self.components:
            return
        rows = slice(0, min(PLAIN, trial.fitted))
        inputs, labels = trial.simulated.inputs[rows], trial.simulated.labels[rows]
        plain = sketch(_undefended(reading, inputs, labels)).to(trial.simulated.vectors)
        mean = trial.simulated.vectors[: trial.fitted].mean(0)
        for units in _PRINCIPAL:
            scaling = learn(plain, sketch.slices, units, "values")
            basis = principal(scaling(plain), self.components, key)
            words = f"{units}s scaled, {basis.shape[1]} principal components of undefended gradients"
            yield replace(scaling, mean=mean, basis=basis), words

    def _note(self, inverter: Inverter) -> str:
        choice = inverter.choice
        decibels = float(-10 * torch.tensor(choice.error).clamp_min(1e-30).log10())
        kernel = f"{choice.regression.kernel} kernel, ridge {choice.regression.ridge:g}"
        return (
            f"learned from {inverter.simulations} simulated readings: {choice.words}, {kernel}; {decibels:.1f} dB on "
            "held-out public examples"
        )


def held_examples(public: int) -> int:
    """Return the number of public examples held out to compare regressions: a fifth of all, at most 300. `public` is
    the number of all public examples."""
    return min(HELD_OUT, public // 5)


def simulate(reading: Reading, simulator: Simulator, sketch: Sketch, rows: int, key: Key) -> Simulations:
    """Simulate readings of public examples, as training data for the regression.

    - `reading`: the attacked readings, with the public examples.
    - `simulator`: simulates the round with its defense.
    - `sketch`: turns a simulated gradient into a vector.
    - `rows`: largest number of simulated readings.
    - `key`: draws the batches.

    Held-out readings share no example with the other readings. For single examples, each public example is simulated
    once, then again with new draws if the defense is random. For batches, each simulation takes a random batch."""
    count = len(reading.public_inputs)
    order = torch.from_numpy(key.generator("public").permutation(count))
    held = held_examples(count)
    fitted, kept = order[held:], order[:held]
    judged = min(held, rows // 4)
    draws = itertools.count()

    def shown(members: Tensor) -> Tensor:
        return _shown(reading, simulator, sketch, members, draws)

    batches = reading.examples > 1
    members = _batches(fitted, rows - judged, reading.examples, key, "batches") if batches else fitted[:, None]
    last = _batches(kept, judged, reading.examples, key, "held") if batches else kept[:, None]
    members, last = members[: rows - judged], last[:judged]
    vectors = shown(members)
    left = rows - len(last) - len(members)
    if left > len(TRIED) and not torch.allclose(shown(members[TRIED]), vectors[TRIED], rtol=1e-3, atol=1e-7):
        again = members.repeat(-(-left // len(members)), 1)[: left - len(TRIED)]
        members, vectors = torch.cat([members, again]), torch.cat([vectors, shown(again)])
    inputs, labels = _sought(reading, torch.cat([members, last]))
    low, high = reading.value_range
    return Simulations(
        vectors=torch.cat([vectors, shown(last)]), inputs=inputs, labels=labels, held=len(last), low=low, high=high
    )


def _batches(pool: Tensor, rows: int, examples: int, key: Key, purpose: str) -> Tensor:
    random = key.generator(purpose)
    return torch.stack([pool[random.permutation(len(pool))[:examples]] for _ in range(rows)])


def _shown(reading: Reading, simulator: Simulator, sketch: Sketch, members: Tensor, draws: Iterator[int]) -> Tensor:
    parts = []
    for rows in members.split(CHUNK):
        shown = simulator(reading.public_inputs[rows], reading.public_labels[rows], next(draws))
        like = next(iter(reading.values.values()))
        parts.append(sketch({name: value.mean(1).to(like) for name, value in shown.items()}))
    return torch.cat(parts)


def _sought(reading: Reading, members: Tensor) -> tuple[Tensor, Tensor]:
    inputs, labels = reading.public_inputs[members], reading.public_labels[members]
    brightness = inputs.flatten(2).mean(2)
    brightest = (brightness - brightness.min()) / (brightness.max() - brightness.min()).clamp_min(1e-9)
    order = (labels + brightest / 2).argsort(1)
    rows = torch.arange(len(members))[:, None]
    return inputs[rows, order], labels[rows, order]


def _undefended(reading: Reading, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    like = next(iter(reading.values.values()))
    weights = {name: value[0] for name, value in reading.weights.items()}
    parts = [
        group_gradients(reading.model, weights, x.to(like), one_hot(y, reading.classes, like.dtype).to(like))
        for x, y in zip(inputs.split(CHUNK), labels.split(CHUNK), strict=True)
    ]
    return {name: torch.cat([part[name].detach() for part in parts]) for name in weights}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Data to fit and compare regressions from gradients to examples: simulated readings (observed updates) with
    regression targets. Most simulations fit a regression; the held-out rest measures its error."""

    simulated: Simulations
    """Simulated readings and their public examples."""
    targets: Tensor
    """Regression targets (simulation, target): input values, then the number of examples per class."""
    classes: int
    """Number of classes."""
    fitted: int
    """Number of simulations to fit regressions, the first rows; the other rows compare the regressions."""

    @classmethod
    def of(cls, simulated: Simulations, classes: int) -> "Trial":
        """Prepare the regression targets: input values and class counts of the simulated public examples. `simulated`:
        simulated readings with these examples; `classes`: number of classes."""
        vectors = simulated.vectors
        counts = one_hot(simulated.labels, classes, vectors.dtype).sum(1)
        targets = torch.cat([simulated.inputs.flatten(1).to(vectors), counts.to(vectors)], 1)
        return cls(simulated=simulated, targets=targets, classes=classes, fitted=len(vectors) - simulated.held)

    def final(self, choice: Choice) -> Choice:
        """Refine the kernel width and the ridge (regularisation) of `choice` on a few simulations. Return the variant
        with the least error, fitted on all simulations."""
        regression = choice.regression
        widths = tuple(sorted({regression.kernel.width * factor for factor in (0.5, 1.0, 2.0)}))
        ridges = tuple(regression.ridge * factor for factor in _FINER)
        finer = self.best(choice.scaling, choice.words, widths, ridges, CHOSEN_ON).regression
        # more rows need less of a ridge
        ridges = tuple(finer.ridge * factor for factor in _ON_ALL)
        return self.best(choice.scaling, choice.words, (finer.kernel.width,), ridges, self.fitted)

    def best(
        self, scaling: Scaling, words: str, widths: Iterable[float], ridges: Sequence[float], count: int
    ) -> Choice:
        """Fit a regression for every pair of a kernel width in `widths` and a ridge in `ridges`; return the fit with
        the least error on held-out simulations.

        - `scaling`: map from gradient vectors to features.
        - `words`: description of `scaling` for the record.
        - `count`: limit on the number of simulations fitted."""
        rows = slice(0, min(count, self.fitted))
        features, others = (scaling(self.simulated.vectors[at]) for at in (rows, slice(self.fitted, None)))
        products, across = features @ features.T, others @ features.T
        norms = others.square().sum(1)
        every = (
            regression
            for width in widths
            for regression in ridge.path(features, self.targets[rows], ridge.Kernel(width=width), ridges, products)
        )
        return min(
            (
                Choice(
                    scaling=scaling,
                    words=words,
                    regression=regression,
                    error=self._error(regression.from_products(across, norms)),
                )
                for regression in every
            ),
            key=_error,
        )

    def _error(self, predicted: Tensor) -> float:
        inputs = predicted[:, : -self.classes].clamp(self.simulated.low, self.simulated.high)
        error = (inputs - self.targets[self.fitted :, : -self.classes]).square().mean()
        return float(error.nan_to_num(torch.inf))


def _error(choice: Choice) -> float:
    return choice.error


def _whole(sketch: Sketch, trial: Trial) -> Iterator[tuple[Scaling, str]]:
    vectors = trial.simulated.vectors[: min(CHOSEN_ON, trial.fitted)]
    for units, balance in _SCALINGS:
        words = f"{units}s scaled" + (", tensors alike" if balance == "tensors" else "")
        yield learn(vectors, sketch.slices, units, balance), words
