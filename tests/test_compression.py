"""Compression, DP-SGD by its name, secure aggregation: closed forms in float64, and statistics with stated errors."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from bench.contracts.run import check_instance
from bench.contracts.trials import trial_of
from bench.defenses.base import Context, Defense, Setting, StageTransforms, Tensors
from bench.defenses.dp_sgd import DpSgd
from bench.defenses.fed_cdp import FedCdp
from bench.defenses.qsgd import Qsgd
from bench.defenses.secure_aggregation import SecureAggregation
from bench.defenses.sign import Sign
from bench.defenses.terngrad import TernGrad
from bench.defenses.top_k import TopK
from bench.defenses.transforms.feedback import RememberUnsent
from bench.defenses.transforms.levels import StochasticLevels
from bench.defenses.transforms.mask import KeepLargest
from bench.defenses.transforms.ring import MaskInRing, ReadSum, Ring
from bench.defenses.transforms.sign import ScaledSign
from bench.defenses.transforms.unambiguous import SendUnambiguous
from bench.defenses.variance_based import VarianceBased
from bench.federated.draws import KeyedDraws
from bench.federated.privacy import account
from bench.points import Stage

SHAPES = {"weight": (6, 5), "bias": (6,), "scale": ()}
SIGMAS = 5  # a true statement fails once in two million
ROWS = 4000


def setting(per_round: int = 8) -> Setting:
    return Setting(clients=100, per_round=per_round, rounds=20, steps=5, batch=4, client_examples=500, rate=0.1)


def context(
    rows: int,
    *,
    stage: Stage = "client",
    round_: int = 0,
    step: int = 0,
    seed: int = 1,
    lead: int = 1,
    examples: Tensors | None = None,
) -> Context:
    keys = tuple((n,) for n in range(rows)) if lead else ((),)
    draws = KeyedDraws(seed=seed, fields=("test", round_), rows=keys)
    return Context(lead=lead, stage=stage, round=round_, step=step, setting=setting(), draws=draws, examples=examples)


def gradients(*lead: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn((*lead, *shape), generator=source, dtype=torch.float64).to(dtype)
        for name, shape in SHAPES.items()
    }


def repeated(tensors: Tensors, rows: int) -> dict[str, Tensor]:
    return {name: value.expand(rows, *value.shape) for name, value in tensors.items()}


def joined(tensors: Tensors) -> Tensor:
    """(row, coordinate)."""
    return torch.cat([value.reshape(len(value), -1) for value in tensors.values()], 1)


def transform_of(defense: Defense, stage: Stage = "client") -> StochasticLevels:
    (transform,) = defense.transforms(setting())[stage]
    assert isinstance(transform, StochasticLevels)
    return transform


# ------------------------------------------------------------------ sign


def test_sign_sends_the_mean_magnitude_with_each_sign() -> None:
    given = {"a": torch.tensor([[3.0, -1.0, 0.0, 4.0]]), "b": torch.tensor([-5.0])}
    after = ScaledSign().apply(given, context(1))
    assert after["a"].tolist() == [[2.0, -2.0, 0.0, 2.0]]
    assert after["b"].tolist() == [-5.0]


def test_signs_of_the_reading_are_described_exactly_and_others_count() -> None:
    truth = gradients(3)
    observed = ScaledSign().apply(truth, context(3))
    said = ScaledSign().simulate(truth, observed, context(3))
    assert all(torch.equal(said[name], observed[name]) for name in truth)
    seen = {"a": torch.tensor([[2.0, -2.0, 0.0]])}
    guess = {"a": torch.tensor([[-4.0, -1.0, 1.0]])}  # its scale is 2; the first sign and the zero are wrong
    assert ScaledSign().simulate(guess, seen, context(1))["a"].tolist() == [[-2.0, -2.0, 1.0]]


# ------------------------------------------------------------------ stochastic levels


@pytest.mark.parametrize("defense", [Qsgd(), Qsgd(levels=1), Qsgd(levels=15), TernGrad(), TernGrad(clip=None)])
def test_levels_are_unbiased_and_of_their_variance(defense: Defense) -> None:
    """Each coordinate within five standard errors, of 4000 draws; and by closed form τ²p(1 - p)."""
    transform, one = transform_of(defense), gradients()
    given = repeated(one, ROWS)
    mean = transform.expected(given, {}, context(ROWS))[0]
    apart = joined(transform.apply(given, context(ROWS))) - joined(mean)
    variance = joined(transform.variance_at(given, context(ROWS)))[0]
    error = (variance / ROWS).sqrt()
    assert bool((apart.mean(0).abs() <= SIGMAS * error + 1e-12).all())
    fourth = apart.pow(4).mean(0)  # of the squares
    assert bool(((apart.square().mean(0) - variance).abs() <= SIGMAS * (fourth / ROWS).sqrt() + 1e-12).all())
    for name, value in one.items():
        limit = defense.clip * value.std(correction=0) if isinstance(defense, TernGrad) and defense.clip else math.inf
        value = value if limit == 0 else value.clamp(-float(limit), float(limit))
        count = value.numel()
        levels = getattr(defense, "levels", 1) or round(math.sqrt(count))
        tau = (value.norm() if isinstance(defense, Qsgd) else value.abs().max()) / levels
        p = (value / tau).frac().abs()
        torch.testing.assert_close(
            transform.variance_at(given, context(ROWS))[name][0], tau**2 * p * (1 - p), rtol=1e-9, atol=1e-15
        )


def test_qsgd_in_its_dense_regime_at_most_doubles_the_second_moment() -> None:
    """Corollary 3.3: E‖Q(v)‖² ≤ 2‖v‖² at s = √n; the mean over draws, and its five standard errors."""
    given = repeated(gradients(), ROWS)
    squares = transform_of(Qsgd()).apply(given, context(ROWS))["weight"].flatten(1).square().sum(1)
    error = float(squares.std()) / ROWS**0.5
    assert float(squares.mean()) <= 2 * float(given["weight"][0].square().sum()) + SIGMAS * error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_qsgd_sends_whole_levels_around_each_coordinate(dtype: torch.dtype) -> None:
    given = gradients(50, dtype=dtype)
    after = transform_of(Qsgd(levels=7)).apply(given, context(50))
    for name, value in given.items():
        flat = value.reshape(50, -1).double()
        level = after[name].reshape(50, -1).double() * 7 / flat.norm(dim=1, keepdim=True)
        assert bool(((level - level.round()).abs() < 1e-5).all())
        assert bool(((level - flat * 7 / flat.norm(dim=1, keepdim=True)).abs() < 1 + 1e-5).all())
        assert float(level.abs().max()) < 7 + 1e-5


def test_terngrad_sends_the_largest_limited_magnitude_or_nothing() -> None:
    given = gradients(20)
    given["weight"][:, 0, 0] = 50.0  # beyond 2.5 deviations
    after = transform_of(TernGrad()).apply(given, context(20))
    limit = 2.5 * given["weight"].flatten(1).std(1, correction=0)
    for row, value in enumerate(after["weight"].flatten(1)):
        assert {round(x, 9) for x in value.abs().tolist()} <= {0.0, round(float(limit[row]), 9)}
    assert bool((after["weight"][:, 0, 0] == limit).all())  # chance 1
    torch.testing.assert_close(after["scale"], given["scale"])  # one coordinate has no deviation


def test_the_law_of_levels_is_that_of_their_draws() -> None:
    """log p of a reading by closed form, with the step that it shows; zeros have none."""
    transform = StochasticLevels(levels=4, norm="l2")
    given = {"a": torch.tensor([[3.0, 0.4, -1.2, 0.0, 2.0]], dtype=torch.float64)}
    tau = float(given["a"].norm()) / 4
    levels = [math.floor(x / tau) for x in given["a"][0].tolist()]
    levels[1] += 1  # one of them went up
    observed = {"a": tau * torch.tensor([levels], dtype=torch.float64)}
    chances = [1 - abs(x / tau - m) for x, m in zip(given["a"][0].tolist(), levels, strict=True)]
    expected = sum(math.log(chance) for chance in chances)
    assert float(transform.log_density(given, observed, context(1))) == pytest.approx(expected, abs=1e-6)
    assert min(chances) > 0.1  # so that the tangent has no part
    assert float(transform.log_likelihood(given, observed, context(1))) == pytest.approx(expected, rel=1e-9)
    nothing = {"a": torch.zeros(1, 5, dtype=torch.float64)}
    assert float(transform.log_density(nothing, nothing, context(1))) == 0


def test_the_law_of_a_small_tensors_levels() -> None:
    """Two opposite coordinates, as for two classes: levels ±11 or ±12, so that equal levels show 11 or 12 steps as one;
    and levels 0 or ±1 with one level, so that zeros show no step. Every reading has its probability."""
    given = {"bias": torch.tensor([[0.3, -0.3]], dtype=torch.float64)}
    for count in (4096, 256, 16, 1):
        transform, tau = StochasticLevels(levels=count, norm="l2"), math.sqrt(0.18) / count
        below, up = math.floor(0.3 / tau), 0.3 / tau - math.floor(0.3 / tau)
        total = 0.0
        for first, p in ((below, 1 - up), (below + 1, up)):
            for second, q in ((below, 1 - up), (below + 1, up)):
                observed = {"bias": tau * torch.tensor([[first, -second]], dtype=torch.float64)}
                density = float(transform.log_density(given, observed, context(1)))
                assert density == pytest.approx(math.log(p * q), abs=1e-6), (count, first, second)
                total += math.exp(density)
        assert total == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("defense", [Qsgd(), TernGrad()])
def test_the_truth_is_more_likely_than_a_neighbour_or_another_scale(defense: Defense, dtype: torch.dtype) -> None:
    transform = transform_of(defense)
    source = torch.Generator().manual_seed(4)
    truth = {"weight": torch.randn((40, 30, 20), generator=source).to(dtype)}
    observed = transform.apply(truth, context(40))

    def density(scale: float, noise: float) -> Tensor:
        other = {"weight": scale * truth["weight"] + noise * torch.randn(truth["weight"].shape, generator=source)}
        return transform.log_density(transform.expected(other, {}, context(40))[0], observed, context(40))

    own = density(1.0, 0.0)
    assert bool((own > density(1.0, 0.3)).all())
    assert bool((own > density(1.01, 0.0)).all())
    assert bool((own <= 0).all())


def test_the_likelihood_has_a_derivative_where_a_candidate_is_impossible() -> None:
    transform = transform_of(Qsgd())
    observed = transform.apply(gradients(3), context(3))
    free = {name: (-2 * value).requires_grad_() for name, value in gradients(3).items()}
    total = transform.log_likelihood(free, observed, context(3)).sum()
    slopes = torch.autograd.grad(total, list(free.values()))
    assert all(bool(slope.isfinite().all()) for slope in slopes)
    assert all(bool((slope != 0).any()) for slope in slopes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overstated(StochasticLevels):
    """Says twice its variance."""

    def variance_at(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        own = StochasticLevels(levels=self.levels, norm=self.norm).variance_at(tensors, context)
        return {name: 2 * value for name, value in own.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broken(Defense):
    reference = "broken on purpose"
    stages = ("client",)

    def transforms(self, setting: Setting) -> StageTransforms:
        del setting
        return {"client": (_Overstated(levels=None, norm="l2"),)}


def test_a_variance_that_follows_from_what_passes_is_checked() -> None:
    outcomes = check_instance("defenses", _Broken(), only=("noise",))
    assert [outcome.status for outcome in outcomes] == ["broken"]
    assert "by what passes" in outcomes[0].reason


# ------------------------------------------------------------------ memory


def test_what_top_k_sent_and_remembers_is_the_sum_of_all_gradients() -> None:
    (transform,) = TopK(kept=0.1).transforms(setting())["client"]
    state: Tensors = {name: value.double() for name, value in transform.initial_of(SHAPES, 3).items()}
    total = {name: torch.zeros(3, *shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    sent = dict(total)
    for round_ in range(30):
        given = gradients(3, seed=round_)
        after, state = transform.update(given, state, context(3, round_=round_))
        assert bool(((joined(after) != 0).sum(1) == 4).all())  # round(.1 · 37)
        sent = {name: sent[name] + value for name, value in after.items()}
        total = {name: total[name] + value for name, value in given.items()}
        for name, value in total.items():
            torch.testing.assert_close(sent[name] + state[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_the_largest_coordinates_are_kept_as_by_a_stable_sort(share: float) -> None:
    """Few distinct magnitudes, so that most rows have equal scores at the limit; the first of equal scores is kept."""
    source = torch.Generator().manual_seed(4)
    given = {name: torch.randint(-2, 3, (50, *shape), generator=source).double() for name, shape in SHAPES.items()}
    flat = joined(given)
    order = flat.abs().argsort(dim=1, descending=True, stable=True)[:, : 37 - round(share * 37)]
    expected = torch.zeros_like(flat).scatter(1, order, flat.gather(1, order))
    assert torch.equal(joined(KeepLargest(share=share).apply(given, context(50))), expected)


def test_pruning_keeps_values_that_are_no_numbers() -> None:
    """A diverged update must not arrive as zeros."""
    given = {"weight": torch.tensor([[1.0, torch.nan, torch.inf, 2.0, torch.nan]])}
    sent = KeepLargest(share=0.8).apply(given, context(1))["weight"]
    assert not bool(sent.isfinite().all())


def test_top_k_is_pruning_in_the_first_round_and_undescribed_later() -> None:
    transform, given = RememberUnsent(share=0.9), gradients(3)
    after = transform.apply(given, context(3))
    pruned = KeepLargest(share=0.9).apply(given, context(3))
    assert all(torch.equal(after[name], pruned[name]) for name in given)
    said = transform.simulate(given, after, context(3))
    assert said is not None
    assert all(torch.equal(said[name], after[name]) for name in given)
    assert transform.simulate(given, after, context(3, round_=1)) is None


def test_a_candidate_that_was_held_back_counts_by_what_it_exceeds() -> None:
    observed = {"a": torch.tensor([[4.0, -3.0, 0.0, 0.0]])}
    guess = {"a": torch.tensor([[4.0, -3.0, -5.0, 2.0]])}
    said = RememberUnsent(share=0.5).simulate(guess, observed, context(1))
    assert said is not None
    assert said["a"].tolist() == [[4.0, -3.0, -2.0, 0.0]]


# ------------------------------------------------------------------ variance-based


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_variance_based_is_the_papers_loop(alpha: float) -> None:
    """Algorithm 1, a number at a time, over six steps; and nothing is lost: sent + r = Σ of the means."""
    transform = SendUnambiguous(threshold=alpha, decay=0.9)
    state: Tensors = {name: value.double() for name, value in transform.initial_of({"a": (7,)}, 2).items()}
    r, v = [[0.0] * 7 for _ in range(2)], [[0.0] * 7 for _ in range(2)]
    sent_sum, total = torch.zeros(2, 7, dtype=torch.float64), torch.zeros(2, 7, dtype=torch.float64)
    for step in range(6):
        source = torch.Generator().manual_seed(step)
        each = torch.randn((2, 3, 7), generator=source, dtype=torch.float64)
        each[:, 1:, 0] = 0  # one example alone
        mean = {"a": each.mean(1)}
        after, state = transform.update(mean, state, context(2, stage="step", step=step, examples={"a": each}))
        for client in range(2):
            for i in range(7):
                values = each[client, :, i].tolist()
                r[client][i] += sum(x / 3 for x in values)
                v[client][i] += sum((x / 3) ** 2 for x in values)
                expected = 0.0
                if r[client][i] ** 2 > alpha * v[client][i] * (1 + 1e-12):
                    expected, r[client][i], v[client][i] = r[client][i], 0.0, 0.0
                else:
                    v[client][i] *= 0.9
                assert float(after["a"][client, i]) == pytest.approx(expected, abs=1e-12)
        sent_sum, total = sent_sum + after["a"], total + mean["a"]
        torch.testing.assert_close(sent_sum + state["held/a"], total, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("alpha", "all_of_it"), [(0.99, True), (1.0, False), (2.0, False)])
def test_with_one_example_everything_or_nothing_is_sent_at_first(alpha: float, all_of_it: bool) -> None:
    given = gradients(2, dtype=torch.float32)
    transform = VarianceBased(threshold=alpha).transforms(setting())["step"][0]
    alone = {name: value[:, None] for name, value in given.items()}
    after = transform.apply(given, context(2, stage="step", examples=alone))
    for name, value in given.items():
        assert torch.equal(after[name], value if all_of_it else torch.zeros_like(value))


def test_variance_based_needs_the_examples() -> None:
    with pytest.raises(ValueError, match="told by each one's gradient; stage client has none"):
        SendUnambiguous(threshold=1.0, decay=0.999).apply(gradients(2), context(2))


# ------------------------------------------------------------------ DP-SGD


def test_dp_sgd_clips_each_example_whole_and_noises_their_sum() -> None:
    chain = DpSgd(clip=2.0, sigma=3.0).transforms(setting())
    large = {name: 100 * value for name, value in gradients(3, 4).items()}
    (clip,), (noise,) = chain["example"], chain["step"]
    clipped = clip.apply(large, context(3, stage="example", lead=2))
    norms = torch.cat([value.flatten(2) if value.dim() > 2 else value[..., None] for value in clipped.values()], 2)
    torch.testing.assert_close(norms.norm(dim=2), torch.full((3, 4), 2.0, dtype=torch.float64))
    zero = {"a": torch.zeros(1, 40_000, dtype=torch.float64)}
    drawn = noise.apply(zero, context(1, stage="step"))["a"]
    expected = (3.0 * 2.0 / 4) ** 2  # σC on the sum of 4, of which the step takes the mean
    assert abs(float(drawn.var()) - expected) <= SIGMAS * expected * math.sqrt(2 / drawn.numel())


def test_dp_sgd_is_fed_cdp_with_flat_clipping_and_the_codes_noise() -> None:
    same = FedCdp(clip=4.0, sigma=4.0, noise="code", clipping="flat")
    assert DpSgd().transforms(setting()) == same.transforms(setting())
    assert DpSgd().mechanism(setting()) == same.mechanism(setting())


def test_the_epsilon_of_dp_sgd_is_dp_accountings() -> None:
    """σ = 4, 20 rounds of 5 steps at B/|D_i| = 4/500, as if drawn by Poisson sampling."""
    accounting = pytest.importorskip("dp_accounting")
    known = account(DpSgd(), setting(), tensors=3, coordinates=37, examples=50_000)
    assert known is not None
    (ours,) = [each for each in known.released(20) if each.convention == "idealised"]
    accountant = accounting.pld.PLDAccountant(accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    step = accounting.PoissonSampledDpEvent(4 / 500, accounting.GaussianDpEvent(4.0))
    accountant.compose(accounting.SelfComposedDpEvent(step, 100))
    assert ours.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)


# ------------------------------------------------------------------ secure aggregation


def chain(clients: int, clip: float = 8.0, bits: int = 22) -> tuple[MaskInRing, ReadSum]:
    stages = SecureAggregation(clip=clip, bits=bits).transforms(setting(per_round=clients))
    (mask,), (read,) = stages["client"], stages["aggregate"]
    assert isinstance(mask, MaskInRing)
    assert isinstance(read, ReadSum)
    return mask, read


@pytest.mark.parametrize("clients", [2, 3, 8, 50])
def test_masks_fall_out_of_the_sum_to_the_rounding(clients: int) -> None:
    """In float64 the mean is a whole number of steps/K, and off by less than one step; even at ±c, where the sum is as
    large as it can be."""
    mask, read = chain(clients)
    given = gradients(clients)
    given["weight"][:, 0] = 9.0  # limited to 8
    given["weight"][:, 1] = -9.0
    masked = mask.apply(given, context(clients))
    mean = read.apply({name: value.mean(0) for name, value in masked.items()}, context(1, lead=0))
    step = mask.ring.step
    for name, value in given.items():
        apart = (mean[name] - value.clamp(-8, 8).mean(0)).abs()
        assert float(apart.max()) < step
        levels = mean[name] * clients / step
        assert float((levels - levels.round()).abs().max()) < 1e-3
    assert bool((mean["weight"][0] == 8).all())
    assert bool((mean["weight"][1] == -8).all())


def test_the_mean_is_unbiased_and_of_the_stated_variance() -> None:
    mask, read = chain(4, bits=10)  # coarse steps, which show
    given = {"a": gradients(4)["weight"][:, :1, :1].expand(4, 100, 200).clone()}
    masked = mask.apply(given, context(4))
    mean = read.apply({"a": masked["a"].mean(0)}, context(1, lead=0))["a"]
    apart = mean - given["a"].mean(0)
    said = mask.noise(context(4), {})
    assert said is not None
    assert said.of_mean is not None
    p = (given["a"][:, 0, 0] / mask.ring.step).frac().abs()
    expected = mask.ring.step**2 * float((p * (1 - p)).sum()) / 16
    assert abs(float(apart.mean())) <= SIGMAS * math.sqrt(expected / apart.numel())
    assert abs(float(apart.var()) - expected) <= SIGMAS * expected * math.sqrt(2 / apart.numel())
    assert expected <= said.of_mean


@pytest.mark.parametrize("clients", [4, 16, 64])
def test_in_single_precision_the_mean_is_off_by_few_steps(clients: int) -> None:
    """Readings and trainings run in float32; the docstring has the figure."""
    mask, read = chain(clients)
    source = torch.Generator().manual_seed(2)
    given = {"a": 0.1 * torch.randn((clients, 100, 100), generator=source)}
    masked = mask.apply(given, context(clients))["a"]
    found = read.apply({"a": masked.mean(0)}, context(1, lead=0))["a"]
    exact = read.apply({"a": mask.apply({"a": given["a"].double()}, context(clients))["a"].mean(0)}, context(1, lead=0))
    apart = (found.double() - exact["a"]) / mask.ring.step
    assert float(apart.square().mean().sqrt()) <= math.sqrt(clients) / 4


def test_an_upload_by_itself_is_uniform_in_the_ring_whatever_the_update() -> None:
    """Zeros, an update, and one at ±c: the distribution function is off by less than 1.95/√n (Kolmogorov, one in a
    thousand), the mask has all its bits, and no upload goes with its update or with another upload."""
    mask, _ = chain(3)
    size = 2.0**mask.ring.width
    count = 20_000
    source = torch.Generator().manual_seed(7)
    update = torch.randn((3, count), generator=source, dtype=torch.float64)
    shown = []
    for number, given in enumerate((torch.zeros_like(update), update, 8 * update.sign())):
        after = mask.apply({"a": given}, context(3, seed=number))["a"] / mask.ring.step
        assert torch.equal(after, after.round())
        assert float(after.min()) >= -size / 2
        assert float(after.max()) < size / 2
        for row in after:
            shares = (row.sort().values + size / 2) / size
            off = (shares - torch.arange(count, dtype=torch.float64) / count).abs().max()
            assert float(off) <= 1.95 / count**0.5
            parities = (row % 256 >= 128).double().mean(), (row % 2).mean()  # a middle bit, the lowest bit
            assert all(abs(float(share) - 0.5) <= SIGMAS * 0.5 / count**0.5 for share in parities)
        if number:
            related = torch.corrcoef(torch.cat([after, given]))
            own = torch.stack([related[k, 3 + k] for k in range(3)])
            assert float(own.abs().max()) <= SIGMAS / count**0.5
        shown.append(after)
    # two uploads of three are independent, and what all three sum to is the updates' sum
    assert abs(float(torch.corrcoef(shown[0][:2])[0, 1])) <= SIGMAS / count**0.5
    assert float(mask.ring.reduced(shown[0].sum(0)).abs().max()) == 0


def test_to_a_masked_upload_every_candidate_is_as_likely() -> None:
    """The reading tells attackers nothing: the law of each candidate is the same."""
    mask, _ = chain(3)
    given, observed = gradients(3), mask.apply(gradients(3, seed=1), context(3))
    assert mask.log_likelihood(given, observed, context(3)).tolist() == [0, 0, 0]
    said = mask.noise(context(3), {})
    assert said is not None
    assert said.variance == pytest.approx((mask.ring.step * 2.0**mask.ring.width) ** 2 / 12, rel=1e-9)


def test_secure_aggregation_states_no_epsilon_and_refuses_a_round_of_one() -> None:
    assert SecureAggregation().mechanism(setting()) is None
    with pytest.raises(ValueError, match="the sum of one client's update is that update"):
        SecureAggregation().transforms(setting(per_round=1))
    with pytest.raises(ValueError, match="a ring of 40 bits for 50000 clients"):
        SecureAggregation(bits=24).transforms(setting(per_round=50_000))


def test_a_part_of_a_round_is_masked_as_well() -> None:
    """One row of eight: the difference of two seeds would be that of one with itself."""
    given = {"a": torch.zeros(1, 20_000, dtype=torch.float64)}
    mask = MaskInRing(ring=Ring(clip=8.0, bits=22, clients=8))
    after = mask.apply(given, context(1))["a"]
    said = mask.noise(context(1), {})
    assert said is not None
    assert isinstance(said.variance, float)
    # the square of a uniform has the kurtosis 9/5
    assert abs(float(after.var()) - said.variance) <= SIGMAS * said.variance * math.sqrt(0.8 / 20_000)


def test_a_round_behind_secure_aggregation_has_the_undefended_mean() -> None:
    """The whole pipeline in float64: type-1 and type-0 are masked, the aggregate is the plain one to a step."""
    trial = trial_of(SecureAggregation())
    plain, defended = trial.taps(trial.stages.undefended), trial.taps(trial.stages)
    step = 16 / 2**22
    for name, value in plain.shown["aggregate"].items():
        assert float((defended.shown["aggregate"][name] - value).abs().max()) < step
        assert float(defended.shown["client"][name].std()) > 5  # of a ring of width 48 or 64
    masked = trial_of(SecureAggregation(at="exchange"))
    late = masked.taps(masked.stages)
    assert all(torch.equal(late.shown["client"][n], v) for n, v in plain.shown["client"].items())
    assert all(not torch.equal(late.shown["server"][n], v) for n, v in plain.shown["server"].items())


@pytest.mark.parametrize(
    "defense",
    [
        Sign(at="example"),
        pytest.param(Qsgd(at="example"), marks=pytest.mark.slow),
        pytest.param(TernGrad(at="example"), marks=pytest.mark.slow),
        SecureAggregation(at="exchange"),
    ],
)
def test_the_other_place_is_described_as_well(defense: Defense) -> None:
    outcomes = check_instance("defenses", defense, only=("noise", "description", "finite", "keyed"))
    assert [outcome.reason for outcome in outcomes if outcome.status == "broken"] == []
