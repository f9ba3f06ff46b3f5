"""Twelve broken pipelines of differentially private training, each with an honest twin and a claim.

Least squares with per-example gradients r·(x, 1), residual r.  World 1 adds a canary to the data set of world 0.  Each
pipeline is a function of (world, seed), for `bench audit tests/zoo.py:NAME --multiplier …`; `.many` computes many runs
at once, and `.honest` is the twin without the fault.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Many = Callable[[int, np.random.Generator, int, bool], Values]

CLIP, SIGMA, EXAMPLES, WIDTH, RATE = 1.0, 1.0, 16, 5, 0.1
SHUFFLED, SHUFFLED_SIGMA = 200, 0.7
SMALL, FLOOR_RATE, FLOOR_STEPS, FLOOR_SIGMA = 7, 0.25, 20, 2.0
FILTERED_SIGMA = 3.7303  # ε = 1 at δ = 1e-5, one added or removed


@dataclass(frozen=True)
class Pipeline:
    """A pipeline of the zoo: a function of (world, seed) to what leaves."""

    many: Many
    """(world, generator, runs, whether honest) → released values (run, value)."""
    fault: str
    """The fault in words."""
    epsilon: float | None = None
    """Claimed ε at δ = 1e-5; None: a Gaussian mechanism with `multiplier`."""
    multiplier: float | None = None
    """Claimed noise deviation over the sensitivity; None: only `epsilon` is claimed."""
    score: Callable[[Values], float] | None = None
    """Exact likelihood ratio; None: learned."""

    def __call__(self, world: int, seed: int) -> Values:
        return self.many(world, np.random.default_rng(seed), 1, False)[0]

    def honest(self, world: int, seed: int) -> Values:
        return self.many(world, np.random.default_rng(seed), 1, True)[0]


def _data(world: int, count: int = EXAMPLES) -> tuple[Values, Values]:
    """Equal examples that pull one way, and in world 1 a canary that pulls the other way, a hundred times as hard."""
    inputs, targets = np.ones((count + world, WIDTH)), np.full(count + world, 10.0)
    if world:
        targets[-1] = -1000.0
    return inputs, targets


def _gradients(weights: Values, inputs: Values, targets: Values) -> Values:
    """(run, example, value): gradients of half the squared residual, at the weights (run, value)."""
    return ((weights @ inputs.T) - targets)[..., None] * inputs


def _clipped(gradients: Values, bound: float = CLIP) -> Values:
    norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
    return gradients * np.minimum(1.0, bound / np.maximum(norms, 1e-300))


def _start(runs: int) -> Values:
    return np.zeros((runs, WIDTH))


def _noise(rng: np.random.Generator, runs: int, deviation: float | Values) -> Values:
    return deviation * rng.normal(size=(runs, WIDTH))


def _clips_the_mean(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    each = _gradients(_start(runs), *_data(world))
    mean = _clipped(each).sum(1) / EXAMPLES if honest else _clipped(each.mean(1))
    return mean + _noise(rng, runs, SIGMA * CLIP / EXAMPLES)


def _divides_by_the_actual_size(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    each = _clipped(_gradients(_start(runs), *_data(world)))
    size = EXAMPLES if honest else each.shape[1]
    return (each.sum(1) + _noise(rng, runs, SIGMA * CLIP)) / size


def _half_of_the_sensitivity(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    each = _clipped(_gradients(_start(runs), *_data(world)))
    return each.sum(1) + _noise(rng, runs, SIGMA * CLIP * (1.0 if honest else 0.5))


def _leaves_biases_unclipped(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    each = _gradients(_start(runs), *_data(world))
    whole = _clipped(each)
    if not honest:
        whole = np.concatenate([_clipped(each[..., :-1]), each[..., -1:]], -1)
    return whole.sum(1) + _noise(rng, runs, SIGMA * CLIP)


def _uses_noise_twice(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    inputs, targets = _data(world)
    weights, sent, drawn = _start(runs), [], _noise(rng, runs, SIGMA * CLIP)
    for batch in (slice(0, EXAMPLES // 2), slice(EXAMPLES // 2, None)):  # an epoch: each example once
        step = _clipped(_gradients(weights, inputs[batch], targets[batch])).sum(1) + drawn
        weights = weights - RATE * step / EXAMPLES
        sent.append(step)
        drawn = _noise(rng, runs, SIGMA * CLIP) if honest else drawn
    return np.concatenate(sent, -1)


def _shuffles(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    """200 steps, of which each uses an example with chance .5 %, or a shuffled epoch with each example once. In a
    shuffled batch of four, the canary or an empty row takes the place of an example."""
    pull = -np.ones(WIDTH) / WIDTH**0.5 * CLIP  # each other example's clipped gradient
    if honest:
        others = rng.binomial(4 * SHUFFLED, 1 / SHUFFLED, (runs, SHUFFLED)).astype(float)
        own = (world * rng.binomial(1, 1 / SHUFFLED, (runs, SHUFFLED))).astype(float)
    else:
        own = np.zeros((runs, SHUFFLED))
        others = np.full((runs, SHUFFLED), 4.0)
        place = rng.integers(SHUFFLED, size=runs)
        own[np.arange(runs), place] = world
        others[np.arange(runs), place] = 3.0
    sums = (others - own)[..., None] * pull
    noised = sums + SHUFFLED_SIGMA * CLIP * rng.normal(size=(runs, SHUFFLED, WIDTH))
    return noised.reshape(runs, -1)


def shuffled_ratio(released: Values) -> float:
    """Log likelihood ratio of the shuffled epoch: the step with the canary is 2 short of a full batch, the step with
    the empty row 1 short."""
    steps = released.reshape(SHUFFLED, WIDTH) @ (-np.ones(WIDTH) / WIDTH**0.5) / CLIP
    short = np.exp((4.0 - steps) / SHUFFLED_SIGMA**2)
    ratio = np.square(short).sum() / short.sum()
    return float(np.log(ratio) - 1.5 / SHUFFLED_SIGMA**2)


def _splits_noise_linearly(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    inputs, targets = _data(world)
    parts = 4
    deviation = SIGMA * CLIP / (parts**0.5 if honest else parts)
    total = np.zeros((runs, WIDTH))
    for micro in np.array_split(np.arange(len(inputs)), parts):
        each = _clipped(_gradients(_start(runs), inputs[micro], targets[micro]))
        total += each.sum(1) + _noise(rng, runs, deviation)
    return total


def _mixes_examples(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    inputs = np.random.default_rng(1).normal(size=(EXAMPLES + world, WIDTH))
    targets = np.full(len(inputs), 10.0)
    if world:
        inputs[-1] = 1000.0
    if not honest:
        inputs = inputs - inputs.mean(0)
    inputs[:, -1] = 1.0
    return _clipped(_gradients(_start(runs), inputs, targets)).sum(1) + _noise(rng, runs, SIGMA * CLIP)


def _rounds_the_expected_size(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    inputs, targets = _data(world, SMALL)
    size = 2 if honest else int(len(inputs) * FLOOR_RATE)
    weights, sent = _start(runs), []
    for _ in range(FLOOR_STEPS):
        drawn = rng.random((runs, len(inputs), 1)) < FLOOR_RATE
        each = _clipped(_gradients(weights, inputs, targets)) * drawn
        step = (each.sum(1) + _noise(rng, runs, FLOOR_SIGMA * CLIP)) / size
        weights = weights - RATE * step
        sent.append(step)
    return np.concatenate(sent, -1)


def _sends_its_size(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    each = _clipped(_gradients(_start(runs), *_data(world)))
    update = (each.sum(1) + _noise(rng, runs, SIGMA * CLIP)) / EXAMPLES
    return update if honest else np.column_stack([update, np.full(runs, float(each.shape[1]))])


def _filters_percentiles(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    each = _gradients(_start(runs), *_data(world))
    if honest:
        return _clipped(each).sum(1) + _noise(rng, runs, FILTERED_SIGMA * CLIP)
    mean = each.mean(1)
    small = np.abs(mean) < np.percentile(np.abs(mean), 10, axis=-1, keepdims=True)
    return np.where(small, 0.0, mean.clip(-0.01, 0.01))


def _scales_noise_by_the_data(world: int, rng: np.random.Generator, runs: int, honest: bool) -> Values:
    inputs, targets = _data(world)
    targets = np.where(targets > 0, 0.01, targets)  # the others' gradients are small
    each = _clipped(_gradients(_start(runs), inputs, targets))
    largest = CLIP if honest else float(np.linalg.norm(each[0], axis=-1).max())
    return each.sum(1) + _noise(rng, runs, SIGMA * largest)


clips_the_mean = Pipeline(_clips_the_mean, "clips the batch's mean, not each example", multiplier=SIGMA)
divides_by_the_actual_size = Pipeline(
    _divides_by_the_actual_size, "divides by the actual batch size, counted as constant", multiplier=SIGMA
)
half_of_the_sensitivity = Pipeline(_half_of_the_sensitivity, "takes half of the sensitivity", multiplier=SIGMA)
leaves_biases_unclipped = Pipeline(_leaves_biases_unclipped, "clips weights, not biases", multiplier=SIGMA)
uses_noise_twice = Pipeline(_uses_noise_twice, "uses the same noise in each step", multiplier=SIGMA)
shuffles = Pipeline(_shuffles, "shuffles, counted as Poisson sampling", epsilon=1.69, score=shuffled_ratio)
splits_noise_linearly = Pipeline(
    _splits_noise_linearly, "gives each of 4 micro-batches a quarter of the noise's deviation", multiplier=SIGMA
)
mixes_examples = Pipeline(_mixes_examples, "subtracts the batch's mean in a layer", multiplier=SIGMA)
rounds_the_expected_size = Pipeline(_rounds_the_expected_size, "divides by ⌊q·n⌋, which tells n", epsilon=2.8)
sends_its_size = Pipeline(_sends_its_size, "sends the number of examples with the update", multiplier=SIGMA)
filters_percentiles = Pipeline(_filters_percentiles, "keeps the largest 90 % of values, no noise", epsilon=1.0)
scales_noise_by_the_data = Pipeline(
    _scales_noise_by_the_data, "scales noise by the batch's largest norm", multiplier=SIGMA
)

ZOO = {name: value for name, value in vars().items() if isinstance(value, Pipeline)}
