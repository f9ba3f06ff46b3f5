"""Promise: distances have their closed forms; weights, exclusions and an unknown scale do one thing each."""

import pytest
import torch
from torch import Tensor

from bench.attacks.objective.distance import Distance

SHAPES = {"a.weight": (3, 4), "a.bias": (3,), "b.weight": (2, 5)}


def tensors(seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {n: scale * torch.randn((2, *s), generator=draw, dtype=torch.float64) for n, s in SHAPES.items()}


def flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([v.flatten(1) for v in values.values()], 1)


def test_the_closed_forms() -> None:
    c, o = tensors(0), tensors(1)
    fc, fo = flat(c), flat(o)
    assert torch.allclose(Distance(kind="l2")(c, o), ((fc - fo) ** 2).sum(1))
    assert torch.allclose(Distance(kind="l1")(c, o), (fc - fo).abs().sum(1))
    assert torch.allclose(Distance(kind="cosine")(c, o), 1 - torch.cosine_similarity(fc, fo))


@pytest.mark.parametrize("kind", ["l2", "l1", "cosine"])
@pytest.mark.parametrize("layers", ["equal", "normalised"])
@pytest.mark.parametrize("exclude", [(), ("a",)])
def test_the_truth_is_at_zero_and_a_zero_gradient_where_it_is_said_to_be(kind, layers, exclude) -> None:
    measure = Distance(kind=kind, layers=layers, exclude=exclude)
    o = tensors(1)
    assert measure(o, o).abs().max() < 1e-12
    zero = {n: torch.zeros_like(v) for n, v in o.items()}
    assert torch.allclose(measure(zero, o), measure.of_zero(o))


def test_an_excluded_tensor_does_not_count() -> None:
    c, o = tensors(0), tensors(1)
    measure = Distance(kind="l2", exclude=("a",))
    assert torch.allclose(measure(c, o), measure({**c, "a.bias": 9 * c["a.bias"]}, o))
    with pytest.raises(ValueError, match="leaves no tensor"):
        Distance(kind="l2", exclude=("a", "b"))(c, o)


def test_normalised_layers_count_alike_and_keep_the_total() -> None:
    o = {**tensors(1), "b.weight": 100 * tensors(1)["b.weight"]}
    measure = Distance(kind="l2", layers="normalised")
    assert torch.allclose(measure.of_zero(o), Distance(kind="l2").of_zero(o))
    shares = [measure({**o, n: torch.zeros_like(o[n])}, o) for n in o]
    assert all(torch.allclose(shares[0], share) for share in shares)


@pytest.mark.parametrize("kind", ["l2", "l1"])
def test_a_reading_shortened_by_an_unknown_factor_is_recognised(kind) -> None:
    o = tensors(1)
    short = {n: 0.01 * v for n, v in o.items()}
    assert Distance(kind=kind)(o, short).min() > 1
    assert Distance(kind=kind, unknown_scale=True)(o, short).max() < 1e-12
    # a factor below 1 would make a zero gradient explain everything
    zero = {n: torch.zeros_like(v) for n, v in o.items()}
    measure = Distance(kind=kind, unknown_scale=True)
    assert torch.allclose(measure(zero, o), measure.of_zero(o))
    longer = {n: 2 * v for n, v in o.items()}
    assert torch.allclose(measure(o, longer), Distance(kind=kind)(o, longer))
