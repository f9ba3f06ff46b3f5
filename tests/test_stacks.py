"""Every client's gradients at its own weights, against plain float64 autograd and against opacus."""

import pytest
import torch
import torch.nn.functional as F
from opacus import GradSampleModule
from torch import Tensor, nn
from torch.func import functional_call

from bench.federated import stacks
from bench.federated.clients import ByFunc, network
from bench.federated.stacks import Stack, stack
from bench.models.base import Normalise
from bench.registry import entries as registry
from bench.training import predicts_tokens

CLIENTS, EXAMPLES, CLASSES = 3, 4, 5
OPTIONS = nn.Sequential(
    nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0)),
    nn.ReLU(inplace=True),
    nn.Conv2d(4, 6, 3, dilation=2, padding=2, bias=False),
    nn.MaxPool2d(3, stride=2, padding=1),
    nn.ReLU(),
    nn.Conv2d(6, 4, 1),
    nn.Tanh(),
    nn.MaxPool2d(2, ceil_mode=True),
    nn.Dropout(),
    nn.Flatten(),
    nn.Linear(36, 7),
    nn.Sigmoid(),
    nn.Linear(7, CLASSES, bias=False),
)


# as the last block of a pretrained network: its example gradients' norms come from positions
POINTWISE = nn.Sequential(
    nn.Flatten(),
    nn.Unflatten(1, (6, 2, 2)),
    Normalise((0.5,) * 6, (0.2,) * 6),
    nn.Conv2d(6, 9, 1, bias=False),
    Normalise((0.1,) * 9, (0.3,) * 9),
    nn.ReLU6(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(9, CLASSES),
)


def built(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    if name == "options":
        return OPTIONS.eval(), (2, 17, 10)
    if name == "pointwise":
        return POINTWISE.eval(), (24,)
    if name == "group norm":  # parameters outside convolutions and linear layers: by `torch.func`
        layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))
        return layers.eval(), (1, 8, 8)
    model = registry.instance("models", name, {"width": 4} if name == "convnet8" else {})
    shape = (3, 20, 20) if "image" in model.takes else (30,)
    return model.build(shape, CLASSES).eval(), shape


def case(name: str) -> tuple[nn.Module, dict[str, Tensor], Tensor, Tensor]:
    torch.manual_seed(1)
    model, shape = built(name)
    model = model.double()
    weights = {
        key: torch.stack([value.detach() * (1 + 0.1 * client) for client in range(CLIENTS)])
        for key, value in model.named_parameters()
    }
    inputs = torch.rand(CLIENTS, EXAMPLES, *shape, dtype=torch.float64)
    return model, weights, inputs, torch.randint(CLASSES, (CLIENTS, EXAMPLES))


def slow(model: nn.Module, weights: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """One example after another: name → (client, example, *shape)."""
    rows: dict[str, list[Tensor]] = {name: [] for name in weights}
    for client in range(CLIENTS):
        own = {name: value[client].clone().requires_grad_() for name, value in weights.items()}
        for x, y in zip(inputs[client], labels[client], strict=True):
            outputs = functional_call(model, own, (x[None].clone(),))
            loss = outputs[0, 0] if predicts_tokens(model) else nn.functional.cross_entropy(outputs, y[None])
            for name, found in zip(own, torch.autograd.grad(loss, list(own.values())), strict=True):
                rows[name].append(found)
    return {name: torch.stack(found).unflatten(0, (CLIENTS, EXAMPLES)) for name, found in rows.items()}


FILES = {"minilm", "mobilenet-tail"}  # models with a file of weights
NAMES = [*sorted({*registry.names("models")} - FILES), "options", "pointwise", "group norm"]


@pytest.mark.parametrize(
    ("name", "gpu"), [*((name, False) for name in NAMES), *((name, True) for name in ("cnn", "options", "vgg-small"))]
)
def test_gradients_are_autograds_in_every_form(name: str, gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gpu`: convolutions in their form for a GPU."""
    monkeypatch.setattr(stacks, "on_gpu", lambda x: gpu)
    model, weights, inputs, labels = case(name)
    expected = slow(model, weights, inputs, labels)
    found = network(model).gradients(weights, inputs, labels)
    factors = {key: torch.rand(CLIENTS, EXAMPLES, dtype=torch.float64) for key in weights}
    forms = (
        (found.each(), expected),
        (found.mean(), {k: v.mean(1) for k, v in expected.items()}),
        (found.norms(), {k: v.flatten(2).norm(dim=-1) for k, v in expected.items()}),
        (
            found.weighted(factors),
            {k: torch.einsum("kb,kb...->k...", factors[k], v) / EXAMPLES for k, v in expected.items()},
        ),
    )
    for got, right in forms:
        assert list(got) == list(weights)
        torch.testing.assert_close(got, right, rtol=1e-10, atol=1e-13)


def test_models_of_the_project_are_stacks_and_others_fall_back() -> None:
    for name in sorted({*registry.names("models")} - FILES):
        # residual blocks and attention are no stacks
        assert isinstance(network(built(name)[0]), Stack) == (
            name not in ("resnet20", "tiny-transformer", "fine-tuned-transformer", "tiny-language-model")
        ), name
    assert isinstance(network(POINTWISE), Stack)
    assert isinstance(network(built("group norm")[0]), ByFunc)
    tied = nn.Linear(6, 6)
    assert stack(nn.Sequential(tied, nn.ReLU(), tied)) is None
    assert stack(nn.Sequential(nn.Linear(6, 6), nn.Dropout()).train()) is None


class _Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = super().forward(x)
        return z + x[:, :CLASSES]


class _Shifted(nn.MaxPool2d):
    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = super().forward(x)
        return z.sin()


class _Scaled(nn.Flatten):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class _Skipped(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return x.cos()


def _altered(way: str) -> nn.Module:
    head = nn.Linear(12, CLASSES)
    if way == "residual":
        return _Residual(nn.Flatten(), head)
    if way == "pooling":
        return nn.Sequential(_Shifted(1), nn.Flatten(), head)
    if way == "flattening":
        return nn.Sequential(_Scaled(), head)
    if way == "dropout":
        return nn.Sequential(nn.Flatten(), _Skipped(), head)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 12), nn.Tanh(), head)
    if way == "forward":
        head.forward = lambda x: F.linear(x.square(), head.weight, head.bias)  # type: ignore[method-assign, assignment]
    elif way == "hook":
        head.register_forward_hook(lambda layer, _, z: z * layer.weight.norm())
    elif way == "hook before the model":
        model.register_forward_pre_hook(lambda _, arguments: (arguments[0] * 2,))
    elif way == "weight norm":
        model[1] = nn.utils.weight_norm(nn.Linear(12, 12))
    return model


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize(
    "way", ["residual", "pooling", "flattening", "dropout", "forward", "hook", "hook before the model", "weight norm"]
)
def test_a_model_with_more_than_its_layers_is_no_stack(way: str) -> None:
    torch.manual_seed(1)
    model = _altered(way).double().eval()
    weights = {key: value.detach().expand(CLIENTS, *value.shape) for key, value in model.named_parameters()}
    shape = (12,) if way == "residual" else (1, 3, 4)
    inputs = torch.rand(CLIENTS, EXAMPLES, *shape, dtype=torch.float64)
    labels = torch.randint(CLASSES, (CLIENTS, EXAMPLES))
    expected = {key: value.mean(1) for key, value in slow(model, weights, inputs, labels).items()}
    found = network(model).gradients(weights, inputs, labels).mean()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ["fed-cnn", "mlp"])
def test_gradients_are_those_of_opacus(name: str) -> None:
    model, weights, inputs, labels = case(name)
    found = network(model).gradients(weights, inputs, labels).each()
    inputs.requires_grad_()  # its hooks ask for it
    for client in range(CLIENTS):
        model.load_state_dict({key: value[client] for key, value in weights.items()})
        watched = GradSampleModule(model.train(), loss_reduction="sum")
        nn.functional.cross_entropy(watched(inputs[client]), labels[client], reduction="sum").backward()
        for key, parameter in model.named_parameters():
            each = parameter.grad_sample  # type: ignore[attr-defined]
            torch.testing.assert_close(found[key][client], each, rtol=1e-10, atol=1e-13)
        watched.to_standard_module()
