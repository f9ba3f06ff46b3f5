"""Shared transforms: slow loops as oracles, promises as properties, noise as statistics."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import rng
from bench.defenses.base import Context, Setting
from bench.defenses.schedules import Linear
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.low_rank import TopDirections, _spaces
from bench.defenses.transforms.mask import KeepLargest, KeepRandom
from bench.defenses.transforms.noise import GaussianNoise, LaplaceNoise

SHAPES = {"conv.weight": (3, 2, 2, 2), "conv.bias": (3,), "fc.weight": (4, 5), "scale": ()}
LEADS = ((), (3,), (2, 3))
SETTING = Setting(clients=100, per_round=10, rounds=20, steps=1, batch=3, client_examples=50, rate=0.1)
TRANSFORMS = (
    Clip(bound=0.7, per="flat"),
    Clip(bound=0.7, per="tensor"),
    GaussianNoise(deviation=0.3),
    GaussianNoise(deviation=0.3, on="nonzero"),
    LaplaceNoise(scale=0.3),
    KeepLargest(share=0.6),
    KeepRandom(share=0.6, threshold=0.2),
    TopDirections(rank=1),
    TopDirections(share=0.5),
)


@dataclass(frozen=True)
class Draws:
    """Draws keyed by seed, law, variable and, along the first leading axis, each row's own number."""

    lead: int
    seed: int = 0
    rows: tuple[int, ...] | None = None

    def normal(self, name, like):
        return self._draw("normal", name, like, lambda source, shape: source.standard_normal(shape))

    def uniform(self, name, like):
        return self._draw("uniform", name, like, lambda source, shape: source.random(shape))

    def _draw(self, law, name, like, sample):
        if self.lead == 0:
            return torch.as_tensor(sample(rng.generator(self.seed, law, name), tuple(like.shape))).to(like)
        numbers = range(len(like)) if self.rows is None else self.rows
        parts = [sample(rng.generator(self.seed, law, name, row), tuple(like.shape[1:])) for row in numbers]
        return torch.as_tensor(np.stack(parts)).to(like)


@dataclass(frozen=True)
class Fixed:
    """Every uniform is this one number, and no normal is drawn."""

    number: float

    def uniform(self, name, like):
        del name
        return torch.full_like(like, self.number)


def context(lead, *, seed=0, rows=None, round_=0, draws=None):
    draws = draws or Draws(lead, seed, rows)
    return Context(lead=lead, stage="client", round=round_, step=0, setting=SETTING, draws=draws)


def example(lead=(), *, seed=0, dtype=torch.float64, shapes=SHAPES, scale=1.0):
    source = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn((*lead, *shape), generator=source, dtype=dtype) for name, shape in shapes.items()}


def each_row(tensors, lead):
    """(index, the tensors of that row), over all leading indices."""
    for index in np.ndindex(*lead):
        yield index, {name: tensor[index] for name, tensor in tensors.items()}


def numbers(row):
    """All coordinates of one row, as a list of Python floats."""
    return [float(x) for tensor in row.values() for x in tensor.flatten()]


def norm(row):
    return math.sqrt(sum(x * x for x in numbers(row)))


def assert_rows(actual, lead, expected, atol=1e-12):
    for index, row in each_row(actual, lead):
        for name, tensor in expected(index).items():
            torch.testing.assert_close(row[name], tensor, rtol=0, atol=atol)


# --- what all of them promise


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("lead", LEADS, ids=str)
@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_keeps_names_shapes_dtypes_and_its_inputs(transform, lead, dtype):
    tensors = example(lead, dtype=dtype)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    after = transform.apply(tensors, context(len(lead)))
    assert list(after) == list(tensors)
    for name, tensor in after.items():
        assert (tensor.shape, tensor.dtype) == (tensors[name].shape, dtype)
        assert torch.equal(tensors[name], before[name])
    assert any(not torch.equal(after[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_a_row_alone_is_the_row_in_company(transform):
    tensors = example((4,), dtype=torch.float32)
    together = transform.apply(tensors, context(1))
    for row in range(4):
        one = {name: tensor[row : row + 1] for name, tensor in tensors.items()}
        alone = transform.apply(one, context(1, rows=(row,)))
        for name in tensors:
            torch.testing.assert_close(alone[name][0], together[name][row], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_depends_on_the_draws_alone_and_on_them_only_if_it_says_so(transform):
    tensors = example((2, 3))
    first, again = (transform.apply(tensors, context(2)) for _ in range(2))
    other = transform.apply(tensors, context(2, seed=1))
    assert all(torch.equal(first[name], again[name]) for name in tensors)
    assert all(torch.equal(first[name], other[name]) for name in tensors) is not transform.random


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_a_gradient_of_zeros_stays_finite(transform):
    zeros = {name: torch.zeros(2, *shape) for name, shape in SHAPES.items()}
    assert all(tensor.isfinite().all() for tensor in transform.apply(zeros, context(1)).values())


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_candidates_are_differentiable(transform):
    lead = (2, 3)
    tensors = example(lead, seed=1)
    observed = transform.apply(example(lead), context(2))

    def mapped(*values):
        given_ = dict(zip(tensors, values, strict=True))
        shown = transform.simulate(given_, observed, context(2))
        return tuple((transform.expected(given_, {}, context(2))[0] if shown is None else shown).values())

    assert torch.autograd.gradcheck(mapped, tuple(t.clone().requires_grad_() for t in tensors.values()))


# --- clip


@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_flat_clip_is_a_loop_over_rows(lead):
    tensors = example(lead)
    after = Clip(bound=4.5, per="flat").apply(tensors, context(len(lead)))
    rows = dict(each_row(tensors, lead))
    assert_rows(after, lead, lambda i: {n: t * min(1.0, 4.5 / norm(rows[i])) for n, t in rows[i].items()})


@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_per_tensor_clip_is_a_loop_over_rows_and_tensors(lead):
    tensors = example(lead)
    after = Clip(bound=1.5, per="tensor").apply(tensors, context(len(lead)))
    rows = dict(each_row(tensors, lead))
    assert_rows(after, lead, lambda i: {n: t * min(1.0, 1.5 / norm({n: t})) for n, t in rows[i].items()})


@given(
    seed=st.integers(0, 999),
    bound=st.floats(1e-6, 1e6),
    scale=st.floats(0, 1e3),
    per=st.sampled_from(["flat", "tensor"]),
)
@settings(max_examples=60, deadline=None)
def test_clip_bounds_keeps_direction_and_twice_is_once(seed, bound, scale, per):
    tensors = example((2,), seed=seed, scale=scale)
    clip = Clip(bound=bound, per=per)
    once = clip.apply(tensors, context(1))
    twice = clip.apply(once, context(1))
    for index, row in each_row(once, (2,)):
        groups = [row] if per == "flat" else [{name: tensor} for name, tensor in row.items()]
        for group in groups:
            assert norm(group) <= bound * (1 + 1e-12)
            source = {name: tensors[name][index] for name in group}
            inner = sum(x * y for x, y in zip(numbers(group), numbers(source), strict=True))
            assert inner == pytest.approx(norm(group) * norm(source), rel=1e-9, abs=1e-300)
    for name in once:
        torch.testing.assert_close(twice[name], once[name], rtol=1e-12, atol=0)


@pytest.mark.parametrize("bound", [0.1, 0.3, 5.0, 1e4])
def test_a_row_within_the_bound_is_bit_equal(bound):
    tensors = example((3,), dtype=torch.float32)
    largest = max(norm(row) for _, row in each_row(tensors, (3,)))
    small = {name: tensor * (0.99 * bound / largest) for name, tensor in tensors.items()}
    for per in ("flat", "tensor"):
        after = Clip(bound=bound, per=per).apply(small, context(1))
        assert all(torch.equal(after[name], small[name]) for name in small)


def test_clip_has_a_finite_derivative_at_zero():
    for per in ("flat", "tensor"):
        zeros = {name: torch.zeros(shape, requires_grad=True) for name, shape in SHAPES.items()}
        after, _ = Clip(bound=1.0, per=per).expected(zeros, {}, context(0))
        torch.stack([tensor.sum() for tensor in after.values()]).sum().backward()
        assert all(zero.grad is not None and bool((zero.grad == 1).all()) for zero in zeros.values())


def test_a_bound_may_follow_the_rounds_down_to_where_it_must_be_refused():
    clip = Clip(bound=Linear(initial=2.0, slope=0.1))
    tensors = example(scale=100.0)
    assert norm(clip.apply(tensors, context(0, round_=5))) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="clip bound must be above 0 and finite, got 0"):
        clip.apply(tensors, context(0, round_=10))


# --- masks


@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_keep_largest_is_a_sort_of_each_row(lead):
    tensors = example(lead)
    after = KeepLargest(share=0.6).apply(tensors, context(len(lead)))
    rows = dict(each_row(tensors, lead))
    for index, row in each_row(after, lead):
        values = numbers(rows[index])
        ranked = sorted(range(len(values)), key=lambda i: -abs(values[i]))
        kept = set(ranked[: len(values) - round(0.6 * len(values))])
        assert numbers(row) == [v if i in kept else 0.0 for i, v in enumerate(values)]


@given(seed=st.integers(0, 999), share=st.floats(0, 1), coarse=st.booleans())
@settings(max_examples=60, deadline=None)
def test_keep_largest_keeps_an_exact_count_and_twice_is_once(seed, share, coarse):
    tensors = {name: tensor.abs() + 1 for name, tensor in example((2,), seed=seed).items()}
    if coarse:  # many ties
        tensors = {name: tensor.round() for name, tensor in tensors.items()}
    mask = KeepLargest(share=share)
    once = mask.apply(tensors, context(1))
    twice = mask.apply(once, context(1))
    for index, row in each_row(once, (2,)):
        values = numbers(row)
        assert sum(v != 0 for v in values) == len(values) - round(share * len(values))
        dropped = [x for x, v in zip(numbers({n: t[index] for n, t in tensors.items()}), values, strict=True) if v == 0]
        assert max(dropped, default=0) <= min((v for v in values if v), default=math.inf)
    assert all(torch.equal(twice[name], once[name]) for name in once)


def test_of_equal_magnitudes_the_first_stays():
    tensors = {"a": torch.tensor([1.0, -2.0, 2.0]), "b": torch.tensor([-2.0, 2.0, 1.0])}
    after = KeepLargest(share=0.5).apply(tensors, context(0))
    assert numbers(after) == [0, -2, 2, -2, 0, 0]


def test_a_pruned_coordinate_is_zero_even_if_it_was_not_finite():
    tensors = {"a": torch.tensor([3.0, math.inf, 1.0, 2.0])}
    assert numbers(KeepLargest(share=1.0).apply(tensors, context(0))) == [0, 0, 0, 0]


@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_keep_random_draws_lots_among_those_above_the_threshold(lead):
    tensors = example(lead)
    now = context(len(lead))
    after = KeepRandom(share=0.7, threshold=0.5).apply(tensors, now)
    rows = dict(each_row(tensors, lead))
    lots = dict(each_row({n: now.draws.uniform(f"{n}/mask", t) for n, t in tensors.items()}, lead))
    for index, row in each_row(after, lead):
        values, drawn = numbers(rows[index]), numbers(lots[index])
        above = sorted((i for i, v in enumerate(values) if abs(v) > 0.5), key=lambda i: -drawn[i])
        kept = set(above[: len(values) - round(0.7 * len(values))])
        assert numbers(row) == [v if i in kept else 0.0 for i, v in enumerate(values)]


@given(seed=st.integers(0, 999), share=st.floats(0, 1), threshold=st.floats(0, 3))
@settings(max_examples=60, deadline=None)
def test_keep_random_keeps_an_exact_count_of_those_above(seed, share, threshold):
    tensors = example((2,), seed=seed)
    after = KeepRandom(share=share, threshold=threshold).apply(tensors, context(1, seed=seed))
    for index, row in each_row(after, (2,)):
        values = numbers({name: tensor[index] for name, tensor in tensors.items()})
        above = sum(abs(v) > threshold for v in values)
        kept = [v for v in numbers(row) if v != 0]
        assert len(kept) == min(above, len(values) - round(share * len(values)))
        assert all(abs(v) > threshold for v in kept)


def test_every_coordinate_above_is_as_likely_to_be_kept():
    draws = 4000
    tensors = {"a": torch.arange(1.0, 6.0).expand(draws, 5), "b": torch.full((draws, 3), 9.0)}
    after = KeepRandom(share=0.75, threshold=2.5).apply(tensors, context(1))
    rates = torch.cat([(after[name] != 0).double().mean(0) for name in tensors])
    # 2 of the 6 above: 3, 4, 5 and the three nines; five standard errors of a share of draws
    error = 5 * math.sqrt(1 / 3 * 2 / 3 / draws)
    assert rates[:2].tolist() == [0, 0]
    assert (rates[2:] - 1 / 3).abs().max() < error


@pytest.mark.parametrize("mask", [KeepLargest(share=0.6), KeepRandom(share=0.6)], ids=repr)
def test_the_truth_as_candidate_of_a_mask_is_the_reading(mask):
    truth = example((2, 3))
    observed = mask.apply(truth, context(2))
    mapped = mask.simulate(truth, observed, context(2))
    assert all(torch.equal(mapped[name], observed[name]) for name in truth)


def test_a_dropped_coordinate_counts_by_what_it_exceeds_the_kept_ones():
    truth = {"w": torch.tensor([[4.0, -3.0, 0.5, 1.0]])}
    observed = KeepLargest(share=0.5).apply(truth, context(1))
    guess = {"w": torch.tensor([[4.0, -3.0, -5.0, 2.0]])}  # 5 is 2 above the least kept, 2 is not
    mapped = KeepLargest(share=0.5).simulate(guess, observed, context(1))
    assert mapped["w"].tolist() == [[4.0, -3.0, -2.0, 0.0]]


def test_a_clip_behind_the_mask_moves_the_bound_with_it():
    """Pruned to (4, -3), then clipped to norm 1: the least kept is .6 there, 3 in the candidate's units."""
    truth = {"w": torch.tensor([[4.0, -3.0, 0.5, 1.0]])}
    mask, clip = KeepLargest(share=0.5), Clip(bound=1.0)
    observed = clip.apply(mask.apply(truth, context(1)), context(1))
    guess = {"w": torch.tensor([[4.0, -3.0, -5.0, 2.0]])}
    torch.testing.assert_close(mask.simulate(guess, observed, context(1))["w"], torch.tensor([[4.0, -3, -2, 0]]))
    torch.testing.assert_close(mask.simulate(truth, observed, context(1))["w"], torch.tensor([[4.0, -3, 0, 0]]))


def test_a_random_mask_that_is_not_shown_counts_by_its_chance():
    truth = {"w": torch.tensor([[4.0, -3.0, 0.5, 0.0]])}
    mask = KeepRandom(share=0.5, threshold=0.1)  # two of the three above the threshold
    mapped, _ = mask.expected(truth, {}, context(1))
    torch.testing.assert_close(mapped["w"], truth["w"] * 2 / 3)


# --- low rank


@pytest.mark.parametrize("lead", LEADS, ids=str)
@pytest.mark.parametrize(("share", "rank"), [(0.1, None), (0.5, None), (0.1, 2), (1.0, None), (0.1, 99)])
def test_low_rank_is_the_best_approximation_by_eigenvectors(lead, share, rank):
    tensors = example(lead)
    after = TopDirections(share=share, rank=rank).apply(tensors, context(len(lead)))

    def expected(index):
        out = {}
        for name, tensor in tensors.items():
            matrix = tensor[index].numpy()
            if matrix.ndim >= 2:
                shape, matrix = matrix.shape, matrix.reshape(matrix.shape[0], -1)
                kept = max(1, round(share * min(matrix.shape))) if rank is None else min(rank, min(matrix.shape))
                vectors = np.linalg.eigh(matrix @ matrix.T)[1][:, -kept:]  # ascending eigenvalues
                matrix = (vectors @ vectors.T @ matrix).reshape(shape)
            out[name] = torch.as_tensor(matrix)
        return out

    assert_rows(after, lead, expected, atol=1e-9)


@given(seed=st.integers(0, 999), rank=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_low_rank_has_the_rank_loses_the_least_and_twice_is_once(seed, rank):
    tensors = example((2,), seed=seed, shapes={"w": (4, 6), "b": (6,)})
    low = TopDirections(rank=rank)
    once = low.apply(tensors, context(1))
    values = torch.linalg.svdvals(tensors["w"])
    loss = (tensors["w"] - once["w"]).pow(2).sum((-2, -1))
    torch.testing.assert_close(loss, values[:, rank:].pow(2).sum(-1), rtol=1e-9, atol=1e-12)
    assert (torch.linalg.matrix_rank(once["w"]) == rank).all()
    assert torch.equal(once["b"], tensors["b"])
    torch.testing.assert_close(low.apply(once, context(1))["w"], once["w"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_truth_as_candidate_of_low_rank_is_the_reading(rank):
    truth = example((2, 3))
    truth["fc.weight"][0] = truth["fc.weight"][0, :, :, :1]  # equal columns: rank 1
    low = TopDirections(rank=rank)
    observed = low.apply(truth, context(2))
    mapped = low.simulate(truth, observed, context(2))
    for name in truth:
        torch.testing.assert_close(mapped[name], observed[name], rtol=0, atol=1e-10)


def test_what_low_rank_describes_is_what_the_two_spaces_tell():
    """UUᵀG = R and GVVᵀ = R, and nothing else: a candidate counts by both, and is free outside both spaces."""
    truth, guess = (example((1,), seed=seed, shapes={"w": (8, 9)})["w"] for seed in (0, 5))
    low = TopDirections(rank=2)
    observed = low.apply({"w": truth}, context(1))
    u, _, v = torch.linalg.svd(truth[0])
    p, q = u[:, :2] @ u[:, :2].T, v[:2].T @ v[:2]
    mapped = low.simulate({"w": guess}, observed, context(1))["w"][0]
    torch.testing.assert_close(p @ mapped, p @ guess[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(mapped @ q, guess[0] @ q, rtol=0, atol=1e-10)
    outside = (torch.eye(8, dtype=p.dtype) - p) @ guess[0] @ (torch.eye(9, dtype=p.dtype) - q)
    moved = low.simulate({"w": guess + outside}, observed, context(1))["w"][0]
    torch.testing.assert_close(moved, mapped, rtol=0, atol=1e-10)


def test_low_rank_that_is_not_shown_is_each_candidates_own():
    rows = example((1, 3), shapes={"w": (8, 9)})
    low = TopDirections(rank=2)
    free = {"w": rows["w"].clone().requires_grad_()}
    mapped = low.expected(free, {}, context(2))[0]["w"]
    torch.testing.assert_close(mapped, low.apply(rows, context(2))["w"], rtol=0, atol=1e-10)
    (slope,) = torch.autograd.grad(mapped.sum(), free["w"])
    assert slope.isfinite().all()
    assert float(slope.norm()) > 0


def test_a_row_that_is_not_finite_harms_no_other():
    tensors = example((2,))
    tensors["fc.weight"][0, 1, 1] = math.nan
    after = TopDirections(rank=1).apply(tensors, context(1))
    assert after["fc.weight"][0].isnan().any()
    torch.testing.assert_close(
        after["fc.weight"][1], TopDirections(rank=1).apply(example((2,)), context(1))["fc.weight"][1]
    )
    mapped = TopDirections(rank=1).simulate(example((2,)), after, context(1))
    torch.testing.assert_close(mapped["fc.weight"][1], after["fc.weight"][1])


# --- noise


@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_gaussian_noise_is_its_draws_times_its_deviation(lead):
    tensors = example(lead)
    now = context(len(lead), round_=5)
    after = GaussianNoise(deviation=Linear(initial=6.0, slope=0.1), scale=0.5).apply(tensors, now)
    for name, tensor in tensors.items():
        torch.testing.assert_close(after[name], tensor + 1.5 * now.draws.normal(name, tensor))


@pytest.mark.parametrize(
    ("noise", "variance", "kurtosis", "law"),
    [
        (GaussianNoise(deviation=0.1), 0.01, 3.0, "gaussian"),
        (GaussianNoise(deviation=0.1, on="nonzero"), 0.01, 3.0, "gaussian"),
        (LaplaceNoise(scale=math.sqrt(0.005)), 0.01, 6.0, "laplace"),
    ],
    ids=repr,
)
def test_noise_has_the_mean_variance_and_law_that_it_states(noise, variance, kurtosis, law):
    count = 200_000
    zero = {"a": torch.ones(2, count // 2, dtype=torch.float64)}
    added = (noise.apply(zero, context(1))["a"] - 1).flatten()
    assert (noise.law, noise.variance(context(1))) == (law, pytest.approx(variance))
    # Five standard errors: of the mean √(v/n), of the variance v·√((kurtosis - 1)/n).
    assert abs(added.mean()) < 5 * math.sqrt(variance / count)
    assert abs(added.var() - variance) < 5 * variance * math.sqrt((kurtosis - 1) / count)
    # P(|x| > 2 deviations): 2Φ(-2) or exp(-2√2), with the standard error of a share.
    tail = math.erfc(math.sqrt(2)) if law == "gaussian" else math.exp(-2 * math.sqrt(2))
    beyond = (added.abs() > 2 * math.sqrt(variance)).double().mean()
    assert abs(beyond - tail) < 5 * math.sqrt(tail * (1 - tail) / count)


def test_noise_of_rows_and_of_variables_is_uncorrelated():
    count = 50_000
    zero = {name: torch.zeros(2, count, dtype=torch.float64) for name in ("a", "b")}
    for noise in (GaussianNoise(deviation=1.0), LaplaceNoise(scale=1.0)):
        drawn = noise.apply(zero, context(1))
        rows = torch.cat([drawn["a"], drawn["b"]])
        off = torch.corrcoef(rows) - torch.eye(4, dtype=torch.float64)
        assert off.abs().max() < 5 / math.sqrt(count)


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-24, 1.0])
def test_laplace_noise_is_finite_for_every_uniform(number):
    noise = LaplaceNoise(scale=1.0).apply({"a": torch.zeros(3)}, context(0, draws=Fixed(number)))
    assert noise["a"].isfinite().all()


def test_noise_on_what_is_not_zero_leaves_a_mask_a_mask():
    tensors = KeepLargest(share=0.5).apply(example((2,)), context(1))
    after = GaussianNoise(deviation=1.0, on="nonzero").apply(tensors, context(1))
    for name, tensor in tensors.items():
        assert torch.equal(after[name] == 0, tensor == 0)
        assert (after[name] != tensor)[tensor != 0].all()


# --- what they refuse


@pytest.mark.parametrize(
    ("kind", "given_", "message"),
    [
        (Clip, {"bound": 0.0}, "clip bound must be above 0 and finite, got 0.0"),
        (Clip, {"bound": math.nan}, "clip bound must be above 0 and finite, got nan"),
        (GaussianNoise, {"deviation": -1.0}, "noise deviation must be at least 0 and finite, got -1.0"),
        (GaussianNoise, {"deviation": 1.0, "scale": math.inf}, "noise scale must be at least 0 and finite, got inf"),
        (LaplaceNoise, {"scale": -1.0}, "noise scale must be at least 0"),
        (KeepLargest, {"share": 1.5}, r"share of coordinates set to zero must lie in \[0, 1\], got 1.5"),
        (KeepRandom, {"share": math.nan}, "share of coordinates set to zero must lie"),
        (KeepRandom, {"share": 0.5, "threshold": -1.0}, "threshold must be at least 0 and finite, got -1.0"),
        (TopDirections, {"share": 0.0}, r"share of singular directions kept must lie in \(0, 1\], got 0.0"),
        (TopDirections, {"rank": 0}, "rank must be at least 1, got 0"),
    ],
)
def test_refuses(kind, given_, message):
    with pytest.raises(ValueError, match=message):
        kind(**given_)


@pytest.mark.parametrize("shape", [(3, 12, 75), (3, 75, 12), (2, 5, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spaces_are_those_of_the_singular_vectors(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """And directions that a matrix of lower rank does not have are zero."""
    matrix = torch.from_numpy(np.random.default_rng(0).standard_normal(shape)).to(dtype)
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    low = (u[..., :2] * values[..., None, :2]) @ v[..., :2, :]
    for columns, rows in (_spaces(matrix, 2), _spaces(low, 4)):
        bound = 1e3 * torch.finfo(dtype).eps
        assert (columns @ columns.mT - u[..., :2] @ u[..., :2].mT).abs().max() < bound
        assert (rows.mT @ rows - v[..., :2, :].mT @ v[..., :2, :]).abs().max() < bound
