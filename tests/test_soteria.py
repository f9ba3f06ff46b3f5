"""Soteria: the right features go, and only in the defended layer's weight gradient."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from bench.cell import Federated
from bench.contracts.situations import data, model, setting_of
from bench.defenses.base import Context, Local
from bench.defenses.soteria import Soteria
from bench.defenses.transforms.features import feature_sensitivity, sensitivity_about
from bench.defenses.transforms.representation import PruneRepresentation
from bench.federated.draws import NoDraws
from bench.gradients import example_gradients, one_hot
from bench.models.lenet import DlgLenet

SETTING = setting_of(Federated(clients=12, per_round=3, batch=2))


def situation(clients: int = 2, examples: int = 2) -> tuple[Local, dict[str, Tensor], Context]:
    module, weights = model("cpl-lenet")
    training, count = data().training, clients * examples
    inputs = torch.from_numpy(training.floats(slice(0, count))).double()
    labels = torch.from_numpy(training.labels[:count])
    flat = example_gradients(module, weights, inputs, one_hot(labels, 10, inputs.dtype))
    local = Local(
        model=module,
        weights={n: v.expand(clients, *v.shape) for n, v in weights.items()},
        inputs=inputs.unflatten(0, (clients, examples)),
        labels=labels.unflatten(0, (clients, examples)),
    )
    gradients = {name: value.detach().unflatten(0, (clients, examples)) for name, value in flat.items()}
    context = Context(
        lead=2, stage="example", round=0, step=0, setting=SETTING, draws=NoDraws(), weights=weights, local=local
    )
    return local, gradients, context


def features(local: Local, x: Tensor) -> Tensor:
    """What the last layer takes in, from the layers before it."""
    *before, _ = local.model.children()
    weights = {n: v[0] for n, v in local.weights.items()}
    kept = {n: v for n, v in weights.items() if int(n.split(".")[0]) < len(before)}
    found: Tensor = functional_call(torch.nn.Sequential(*before), kept, (x[None],))
    return found[0]


def test_sensitivity_is_the_jacobians_row_norm_over_the_feature() -> None:
    """Against autograd, one feature and one example after another."""
    local, _, _ = situation()
    found = feature_sensitivity(local, "")
    for client, example in ((0, 1), (1, 0)):
        x = local.inputs[client, example].clone().requires_grad_()
        r = features(local, x)
        assert found.shape == (2, 2, len(r))
        for feature in range(0, len(r), 7):
            (slope,) = torch.autograd.grad(r[feature], x, retain_graph=True)
            expected = float(slope.norm() / r[feature].detach().abs())
            assert float(found[client, example, feature]) == pytest.approx(expected, rel=1e-9)


def test_each_client_has_its_own_weights() -> None:
    local, _, _ = situation()
    later = {n: torch.stack([v[0], 1.1 * v[0]]) for n, v in local.weights.items()}
    found = feature_sensitivity(replace(local, weights=later), "")
    for client in range(2):
        alone = {n: v[client].expand_as(v) for n, v in later.items()}
        of_one = feature_sensitivity(replace(local, weights=alone), "")
        assert torch.allclose(found[client], of_one[client], rtol=1e-9)
    assert not torch.allclose(found[1], feature_sensitivity(local, "")[1], rtol=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_the_least_sensitive_features_columns_are_zeroed_and_nothing_else(share: float) -> None:
    local, gradients, context = situation()
    found = PruneRepresentation(share=share).apply(gradients, context)
    *rest, weight, bias = gradients
    for name in (*rest, bias):
        assert torch.equal(found[name], gradients[name])
    sensitivity = feature_sensitivity(local, "")
    count = round(share * sensitivity.shape[-1])
    for client in range(2):
        for example in range(2):
            order = sensitivity[client, example].argsort(stable=True)
            assert (found[weight][client, example][:, order[:count]] == 0).all()
            assert torch.equal(
                found[weight][client, example][:, order[count:]], gradients[weight][client, example][:, order[count:]]
            )


def test_an_adaptive_attacker_drops_the_columns_that_are_missing() -> None:
    _, gradients, context = situation()
    transform = PruneRepresentation(share=0.6)
    sent = transform.apply(gradients, context)
    candidate = transform.simulate(gradients, sent, context)
    for name, value in sent.items():
        assert torch.equal(candidate[name], value), "at the truth, the reading itself"


def test_a_layer_is_named_or_the_last() -> None:
    assert set(Soteria().transforms(SETTING)) == {"example"}
    with pytest.raises(ValueError, match="no linear layer 'fc9'; there are"):
        Soteria(layer="fc9").transforms(SETTING)
    _, gradients, context = situation()
    with pytest.raises(ValueError, match="prune it at stage example"):
        PruneRepresentation(share=0.5).apply(gradients, replace(context, stage="client", local=None))


def net(activation: str, examples: int) -> Local:
    """`dlg-lenet` on pictures of MNIST's size, smooth ones and noise, in turn."""
    built = DlgLenet(activation=activation, width=0.5 if activation == "sigmoid" else 0.1)  # type: ignore[arg-type]
    module = built.build((1, 28, 28), 10)
    weights = {name: value.double() for name, value in built.initial(module, 3).items()}
    draw = torch.Generator().manual_seed(5)
    noise = torch.rand(1, examples, 1, 28, 28, generator=draw, dtype=torch.float64)
    smooth = torch.nn.functional.interpolate(noise[0, :, :, ::7, ::7], scale_factor=7, mode="bilinear")
    inputs = torch.where(torch.arange(examples).reshape(1, -1, 1, 1, 1) % 2 == 0, noise, smooth)
    return Local(
        model=module.double(),
        weights={name: value.expand(1, *value.shape) for name, value in weights.items()},
        inputs=inputs,
        labels=torch.zeros(1, examples, dtype=torch.long),
    )


@cache
def with_jacobian(activation: str) -> tuple[Local, Tensor]:
    """`net` and its features' sensitivity, by the whole Jacobian."""
    local = net(activation, 8)
    return local, feature_sensitivity(local, "")


@pytest.mark.parametrize(
    ("activation", "own", "share"),
    [
        pytest.param(activation, own, share, marks=[pytest.mark.slow] * (activation == "relu"))
        for activation in ("sigmoid", "relu")
        for own in (False, True)
        for share in (0.02, 0.6, 0.99)
    ],
)
def test_a_screened_search_prunes_the_columns_of_the_whole_jacobian(activation: str, own: bool, share: float) -> None:
    local, whole = with_jacobian(activation)
    if own:
        local = replace(local, weights={name: value.clone() for name, value in local.weights.items()})
    count = round(share * whole.shape[-1])
    found = sensitivity_about(local, "", count)
    assert found.shape == whole.shape

    def pruned(sensitivity: Tensor) -> Tensor:
        order = sensitivity.argsort(dim=-1, stable=True)[..., :count]
        return torch.zeros_like(whole, dtype=torch.bool).scatter(-1, order, True) & whole.isfinite()

    wrong = (pruned(found) ^ pruned(whole)).sum() / whole.isfinite().sum()
    assert wrong <= 0.005
    known = (found > 0) & found.isfinite()
    assert torch.allclose(found[known], whole[known], rtol=1e-9), "exact about the cut"
    assert known.any() or activation == "relu", "of a ReLU's features most are 0 there"


def test_few_features_are_never_screened() -> None:
    local, _, _ = situation()
    assert torch.equal(sensitivity_about(local, "", 10), feature_sensitivity(local, ""))
