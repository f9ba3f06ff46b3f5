"""Promise: a search space whitens public examples, and its energy is their -log density."""

import copy
from dataclasses import replace
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

from bench import api
from bench.attacks.search.curvature import _probes, equal_curvature
from bench.attacks.search.soften import has_relu, softened
from bench.attacks.search.space import Dense, Diagonal, Space, Spectrum, cosines, dense, public_space, spectrum
from bench.attacks.search.tiles import Tiles, block_covariance, in_variables, tiles_of
from bench.kinds.base import Kind
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE
from bench.models.mlp import Mlp
from bench.rng import Key
from bench.trip import Reading

KEY = Key(seed=0)


def pictures(count: int, generator: torch.Generator) -> torch.Tensor:
    """Draws of a known law: three colours that go together, low frequencies stronger, (count, 3, 6, 5) float64."""
    u = torch.randn(count, 3, 6, 5, dtype=torch.float64, generator=generator)
    return LAW.inputs(u.flatten(1)).unflatten(1, (3, 6, 5))


LAW = Spectrum(
    mean=torch.full((3, 6, 5), 0.5, dtype=torch.float64),
    channels=torch.linalg.qr(torch.tensor([[1.0, 1, 1], [1, -1, 0], [1, 1, -2]], dtype=torch.float64).T).Q.T,
    deviation=0.2
    * torch.tensor([0.1, 0.2, 1.0], dtype=torch.float64)[:, None, None]
    / (1 + torch.arange(6)[:, None] + torch.arange(5)),
    down=cosines(6),
    across=cosines(5),
)


def spaces() -> list[Space]:
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(90, 90, dtype=torch.float64, generator=generator).tril() + 9 * torch.eye(90)
    return [
        LAW,
        Dense(torch.rand(90, dtype=torch.float64, generator=generator), factor),
        Diagonal(torch.arange(1.0, 91)),
    ]


@pytest.mark.parametrize("space", spaces(), ids=lambda space: type(space).__name__)
def test_variables_are_the_inverse_of_inputs(space: Space) -> None:
    u = torch.randn(2, 3, 90, dtype=torch.float64)
    assert torch.allclose(space.variables(space.inputs(u)), u, atol=1e-10)


@pytest.mark.parametrize("space", spaces()[:2], ids=lambda space: type(space).__name__)
def test_energy_is_the_gaussian_density_and_transposed_the_derivative(space: Spectrum | Dense) -> None:
    zero, eye = torch.zeros(90, dtype=torch.float64), torch.eye(90, dtype=torch.float64)
    columns = space.inputs(eye) - space.inputs(zero)
    law = torch.distributions.MultivariateNormal(space.inputs(zero), columns.T @ columns)
    x = law.sample(torch.Size([4]))
    _, energies = space.with_energy(space.variables(x))
    assert torch.allclose(energies[1:] - energies[0], law.log_prob(x)[0] - law.log_prob(x)[1:], rtol=1e-6)
    gradient = torch.randn(2, 90, dtype=torch.float64)
    assert torch.allclose(space.transposed(gradient), gradient @ columns.T, atol=1e-9)


def test_cosines_are_orthonormal() -> None:
    assert torch.allclose(cosines(7) @ cosines(7).T, torch.eye(7, dtype=torch.float64), atol=1e-12)


def test_a_spectrum_is_recovered_from_draws() -> None:
    """Each variance of 4000 draws (and their mirror images) is good to 1/√4000 = 2 %; smoothing takes the greater of
    itself and its neighbours' mean."""
    estimate = spectrum(pictures(4000, torch.Generator().manual_seed(1)))
    ratio = estimate.deviation.sort(0).values / LAW.deviation.sort(0).values
    assert (ratio > 0.94).all()
    assert abs(float(ratio[:, 0, 0].median()) - 1) < 0.08


def reading(public: torch.Tensor, kind: Kind = IMAGE) -> Reading:
    shape = tuple(public.shape[1:])
    net = Mlp(hidden=(8,), activation="tanh").build((public[0].numel(),), 3)
    model = torch.nn.Sequential(torch.nn.Flatten(), *net.children()) if kind == IMAGE else net
    made = api.reading(
        api.gradient(model, public[:1].float(), torch.tensor([1])),
        model=model,
        shape=shape,
        classes=3,
        public=public.float(),
    )
    assert made.kind == kind
    return made


def test_held_out_examples_choose_the_covariance() -> None:
    """Few pictures: their spectrum; many of a law that differs from place to place: a full covariance."""
    generator = torch.Generator().manual_seed(2)
    assert isinstance(public_space(reading(pictures(40, generator))), Spectrum)
    places = torch.rand(1, 90, generator=generator) * 0.3
    many = (
        0.5
        + (torch.randn(800, 90, generator=generator) * places)
        @ torch.linalg.qr(torch.randn(90, 90, generator=generator)).Q
    )
    assert isinstance(public_space(reading(many.reshape(-1, 3, 6, 5))), Dense)


def test_a_fit_is_kept_for_equal_examples_alone() -> None:
    """The examples that decide are the values: an equal copy shares a fit, and a change in place makes another."""
    public = torch.rand(20, 10)
    first = public_space(reading(public, TABLE))
    again, exact = public_space(reading(public.clone(), TABLE)), dense(public.double(), 1.0, images=False)
    assert isinstance(first, Dense) and isinstance(again, Dense)
    assert first.factor.equal(again.factor)
    public[0] += 1
    changed = public_space(reading(public, TABLE))
    assert isinstance(changed, Dense)
    assert not changed.mean.equal(first.mean)
    assert torch.allclose(changed.mean, public.mean(0))
    assert torch.allclose(exact.mean.float(), first.mean)


def test_a_class_has_its_own_mean_and_covariance() -> None:
    """Classes of another law are fitted alone; of the same law, or with few examples, all classes together."""
    generator = torch.Generator().manual_seed(3)
    draws, labels = torch.rand(300, 10, generator=generator), torch.arange(300) % 3
    alike = replace(reading(draws, TABLE), public_labels=labels)
    apart = replace(alike, public_inputs=draws + labels[:, None] * torch.linspace(0, 3, 10))
    for made, own in ((alike, False), (apart, True)):
        pooled = public_space(made)
        for label in range(3):
            space, of_class = public_space(made, label), made.public_inputs[labels == label].mean(0)
            assert isinstance(space, Dense)
            if own:
                assert torch.allclose(space.mean, of_class, atol=1e-5)
                assert float(space.factor.det()) < 0.1 * float(cast(Dense, pooled).factor.det())
            else:
                assert float((space.mean - pooled.mean).norm()) < 0.2
    few = replace(apart, public_labels=torch.where(torch.arange(300) < 295, labels, 7))
    assert public_space(few, 7).mean.equal(public_space(few).mean)
    assert public_space(few, 8).mean.equal(public_space(few).mean)


def test_tables_shrink_towards_their_variances() -> None:
    few = torch.rand(6, 10)
    space = public_space(reading(few, TABLE))
    assert isinstance(space, Dense)
    expected = dense(few.double(), 1.0, images=False)
    assert space.factor.shape == (10, 10)
    assert torch.allclose(expected.factor, expected.factor.diagonal().diag())


def test_curvature_is_alike_in_every_direction() -> None:
    """E[JᵀJ] by exact Jacobians over the same public examples; 2048 probes of 10 values are good to a few percent."""
    torch.manual_seed(0)
    public = torch.rand(32, 10).double()
    made = reading(public, TABLE)
    made = replace(
        made,
        model=made.model.double(),
        values={n: v.double() for n, v in made.values.items()},
        weights={n: v.double() for n, v in made.weights.items()},
    )
    space = public_space(made)
    alike = equal_curvature(space, made, KEY)
    weights = {name: value[0] for name, value in made.weights.items()}

    def gradient(x: torch.Tensor, label: int) -> torch.Tensor:
        def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
            logits = torch.func.functional_call(made.model, values, (x[None],))
            return torch.nn.functional.cross_entropy(logits, torch.tensor([label]))

        return torch.cat([v.flatten() for v in torch.func.grad(loss)(weights).values()])

    jacobians = [torch.func.jacrev(gradient)(x, n % 3) for n, x in enumerate(made.public_inputs.double())]
    curvature = torch.stack([j.T @ j for j in jacobians]).mean(0)
    in_w = alike.to_prior.T @ space.factor.T @ curvature @ space.factor @ alike.to_prior  # type: ignore[union-attr]
    in_u = space.factor.T @ curvature @ space.factor  # type: ignore[union-attr]
    values, before = torch.linalg.eigvalsh(in_w), torch.linalg.eigvalsh(in_u)
    strong = before > 0.01 * before.mean()  # the damping leaves weak directions flat
    assert values[strong].max() / values[strong].min() < 1.5 < before[strong].max() / before[strong].min()
    w = torch.randn(2, 10, dtype=torch.float64)
    assert torch.allclose(alike.variables(alike.inputs(w)), w, atol=1e-8)
    inputs, energy = alike.with_energy(w)
    assert torch.equal(inputs, alike.inputs(w))
    assert torch.allclose(energy, space.with_energy(space.variables(inputs))[1], rtol=1e-6)


class Functional(torch.nn.Module):
    """The same net as a sequence of modules, with ReLU as a function."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.last, self.way = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3), way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.first(x.flatten(1))
        by = {"F": F.relu, "torch": torch.relu, "method": torch.Tensor.relu, "in place": F.relu_}
        return self.last(by[self.way](z))


def test_softened_relus_near_the_kink_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Identity())
    soft = softened(model, 50.0)
    x = torch.linspace(-2, 2, 401, dtype=torch.float64)
    assert float((soft(x) - x.relu()).abs().max()) <= 0.6932 / 50 + 1e-9
    assert torch.equal(model(x), x.relu())
    assert has_relu(model, x) and not has_relu(soft, x)
    assert not has_relu(torch.nn.Sequential(torch.nn.Sigmoid()), x)
    normalised = torch.nn.Sequential(torch.nn.BatchNorm1d(3)).train()
    assert not has_relu(normalised, torch.ones(1, 3)) and int(normalised.state_dict()["0.num_batches_tracked"]) == 0


@pytest.mark.parametrize("way", ["F", "torch", "method", "in place"])
def test_a_relu_as_a_function_is_softened_too(way: str) -> None:
    """Outputs, gradients and second derivatives are those of the modules."""
    torch.manual_seed(0)
    net, x = Functional(way), torch.rand(4, 6)
    modules = torch.nn.Sequential(torch.nn.Flatten(), net.first, torch.nn.ReLU(), net.last)
    assert has_relu(net, x)
    soft, other = copy.deepcopy(softened(net, 5.0)), softened(modules, 5.0)
    assert not has_relu(soft, x) and list(dict(soft.named_parameters())) == list(dict(net.named_parameters()))
    own = {name: value.detach() for name, value in net.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(soft, weights, (x[None],)).logsumexp(1).sum()

    def mixed(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([g.square().sum() for g in vmap(grad(loss), (None, 0))(own, x).values()]).sum()

    y = x.clone().requires_grad_()
    weights = [*other.parameters()]
    single = [torch.autograd.grad(other(row[None]).logsumexp(1).sum(), weights, create_graph=True) for row in y]
    (expected,) = torch.autograd.grad(torch.stack([g.square().sum() for gs in single for g in gs]).sum(), y)
    torch.testing.assert_close(grad(mixed)(x), expected)
    torch.testing.assert_close(soft(x), other(x))
    assert torch.equal(net(x), modules(x))


def test_spectra_over_tiles_are_orthonormal() -> None:
    tiles = Tiles((3, 8, 12), 4)
    x = torch.randn(5, 288, dtype=torch.float64)
    spectra = tiles.spectra(x)
    assert spectra.shape == (6, 5, 48)
    assert torch.allclose(tiles.images(spectra), x, atol=1e-12)
    assert torch.allclose(spectra.square().sum((0, 2)), x.square().sum(1))


@pytest.mark.parametrize(("shape", "side"), [((3, 32, 32), 4), ((1, 30, 30), 2), ((1, 9, 6), 3), ((3, 6, 5), None)])
def test_sides_of_tiles_divide_the_image(shape: tuple[int, ...], side: int | None) -> None:
    tiles = tiles_of(shape)
    assert (None if tiles is None else tiles.side) == side


def _alike_tiles() -> tuple[Spectrum, Tiles, torch.Tensor]:
    """A prior, tiles, and a curvature that is block-diagonal over tiles."""
    generator = torch.Generator().manual_seed(3)
    space = spectrum(torch.rand(50, 1, 8, 8, dtype=torch.float64, generator=generator))
    roots = torch.randn(4, 16, 16, dtype=torch.float64, generator=generator)
    return space, Tiles((1, 8, 8), 4), roots.mT @ roots


def test_a_block_covariance_is_recovered_from_draws() -> None:
    """16 phases from 8000 draws: an element is good to about √(2/8000) = 1.6 % of the largest."""
    _, tiles, blocks = _alike_tiles()
    draws = torch.randn(4, 8000, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    estimate = block_covariance(tiles, tiles.images(draws @ torch.linalg.cholesky(blocks).mT))
    assert (estimate - blocks).abs().max() < 0.08 * blocks.abs().max()


def test_a_block_diagonal_curvature_in_the_priors_variables() -> None:
    space, tiles, blocks = _alike_tiles()
    factor = space.inputs(torch.eye(64, dtype=torch.float64)) - space.mean.flatten()  # not `linear_part`: an oracle
    spectra = tiles.spectra(factor)
    expected = torch.einsum("fnp,fpq,fmq->nm", spectra, blocks, spectra)
    assert torch.allclose(in_variables(space, blocks, tiles, factor), expected, atol=1e-9)


def test_small_images_get_an_even_curvature_from_few_products() -> None:
    """Smooth pictures of 12 x 12 pixels: curvatures in the prior's variables are far from even."""
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(64, 1, 3, 3, generator=generator)
    public = torch.nn.functional.interpolate(coarse, scale_factor=4, mode="bilinear")
    public = public + 0.02 * torch.randn(64, 1, 12, 12, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 5, 2, 2), torch.nn.Sigmoid(), torch.nn.Flatten(), torch.nn.Linear(144, 3)
        )
    gradient = api.gradient(net, public[:1], torch.tensor([1]))
    made = api.reading(gradient, model=net, shape=(1, 12, 12), classes=3, public=public)
    space = public_space(made)
    alike = equal_curvature(space, made, KEY)
    probes = torch.cat(list(_probes(made, made.public_inputs, Key(seed=1), 512)))  # other signs than the matrix's
    u = space.transposed(probes)
    assert _uneven(u @ alike.to_prior) < 2 < 10 < _uneven(u)


def _uneven(probes: torch.Tensor) -> float:
    """n tr(C²) / (tr C)² of the covariance C of `probes` (probe, n): 1 if all directions are alike."""
    products = (probes.double() @ probes.double().T) ** 2
    norms = products.diagonal().sqrt()
    between = (products.sum() - products.diagonal().sum()) / (len(probes) * (len(probes) - 1))
    return float(probes.shape[1] * between / norms.mean() ** 2)
