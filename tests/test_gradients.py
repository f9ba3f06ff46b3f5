"""`bench.gradients` against slow oracles in float64: one group at a time, by autograd alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from bench import gradients
from bench.errors import NotApplicable
from bench.gradients import batch_gradient, conv_weight_gradient, example_gradients, group_gradients, one_hot
from bench.models.resnet20 import Resnet20
from bench.training import soft_cross_entropy

CLASSES = 4
Case = tuple[Callable[[], nn.Module], tuple[int, ...], bool]  # model, input shape, whether hooks serve it


class _Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return hidden


class _Twice(nn.Module):
    """One layer used twice in a pass, and another that is not used at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused, self.last = nn.Linear(5, 5), nn.Linear(5, 2), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.tanh(self.layer(torch.tanh(self.layer(x)))))
        return logits


class _Tokens(nn.Module):
    """Linear layers on (example, token, feature)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Linear(3, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.sigmoid(self.embed(x)).mean(1))
        return logits


class _Bare(nn.Module):
    """A parameter that is in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.last = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.scale * x)
        return logits


def _convolution(**options: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layer = nn.Conv2d(2, 3, 3, **options)  # type: ignore[arg-type]
        out = layer(torch.zeros(1, 2, 7, 6)).numel()
        return nn.Sequential(layer, nn.Sigmoid(), nn.Flatten(), nn.Linear(out, CLASSES))

    return build


class _DoubledInPlace(nn.Module):
    """A layer's output, doubled where it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.sigmoid(self.first(x).mul_(2)))
        return logits


def _mixed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5, 2, padding=2),
        nn.Tanh(),
        nn.Conv2d(4, 3, (3, 2), (1, 2), bias=False),
        nn.Sigmoid(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(3, 6),
        nn.Sigmoid(),
        nn.Linear(6, CLASSES, bias=False),
    )


def _instance_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.InstanceNorm2d(3, affine=True), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, CLASSES)
    )


def _frozen_statistics() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))
    model(torch.rand(20, 5))  # sets the running statistics
    return model.eval()


def _frozen_statistics_of_images() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(48, CLASSES))
    model(torch.rand(20, 1, 6, 6))
    return model.eval()


def _other_convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 2, 2),
        nn.Sigmoid(),
        nn.Flatten(2),
        nn.Conv1d(2, 3, 2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(21, CLASSES),
    )


S = nn.Sequential
CASES: dict[str, Case] = {
    "linear": (lambda: nn.Linear(5, CLASSES), (5,), True),
    "linear without bias": (lambda: nn.Linear(5, CLASSES, bias=False), (5,), True),
    "linear on tokens": (_Tokens, (7, 3), True),
    "conv": (_convolution(), (2, 7, 6), True),
    "conv with stride": (_convolution(stride=(2, 3)), (2, 7, 6), True),
    "conv with padding": (_convolution(padding=(2, 1)), (2, 7, 6), True),
    "conv with dilation": (_convolution(dilation=2), (2, 7, 6), True),
    "conv with stride, padding, dilation, no bias": (
        _convolution(stride=2, padding=2, dilation=(2, 1), bias=False),
        (2, 7, 6),
        True,
    ),
    "conv with padding by name": (_convolution(padding="same"), (2, 7, 6), False),
    "conv with circular padding": (_convolution(padding=1, padding_mode="circular"), (2, 7, 6), False),
    "depthwise conv": (
        lambda: S(nn.Conv2d(2, 4, 3, groups=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(80, CLASSES)),
        (2, 7, 6),
        False,
    ),
    "mixed": (_mixed, (1, 9, 9), True),
    "in-place relu": (lambda: S(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, CLASSES)), (5,), False),
    "in-place scaling": (_DoubledInPlace, (5,), False),
    "in-place clamp of the input": (lambda: S(nn.Hardtanh(0.2, 0.8, inplace=True), nn.Linear(5, CLASSES)), (5,), True),
    "in-place clamp of the input, LayerNorm": (
        lambda: S(nn.Hardtanh(0.2, 0.8, inplace=True), nn.LayerNorm(5), nn.Linear(5, CLASSES)),
        (5,),
        False,
    ),
    "a layer used twice, another unused": (_Twice, (5,), True),
    "tied weights": (_Tied, (5,), False),
    "LayerNorm": (lambda: S(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, CLASSES)), (5,), False),
    "InstanceNorm": (_instance_norm, (1, 6, 6), False),
    "BatchNorm in eval mode": (_frozen_statistics, (5,), False),
    "BatchNorm of images in eval mode": (_frozen_statistics_of_images, (1, 6, 6), False),
    "conv in one and three dimensions": (_other_convolutions, (1, 3, 3, 3), False),
    "GroupNorm": (
        lambda: S(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, CLASSES)),
        (1, 6, 6),
        False,
    ),
    "residual": (lambda: Resnet20(width=2, blocks=1, groups=2).build((1, 6, 6), CLASSES), (1, 6, 6), False),
    "a bare parameter": (_Bare, (5,), False),
}


def _problem(name: str, groups: int = 3, examples: int = 2) -> tuple[nn.Module, dict[str, Tensor], Tensor, Tensor]:
    torch.manual_seed(0)
    build, shape, _ = CASES[name]
    model = build().double()
    weights = {key: value.detach().clone() for key, value in model.named_parameters()}
    inputs = torch.rand(groups, examples, *shape, dtype=torch.float64)
    targets = torch.rand(groups, examples, CLASSES, dtype=torch.float64).softmax(-1)
    return model, weights, inputs, targets


def _oracle(
    model: nn.Module, weights: dict[str, Tensor], inputs: Tensor, targets: Tensor, *, graph: bool = False
) -> dict[str, Tensor]:
    """A loop over groups of `torch.autograd.grad` of the mean cross entropy."""
    rows = []
    for x, y in zip(inputs, targets, strict=True):
        live = {name: value.clone().requires_grad_() for name, value in weights.items()}
        loss = F.cross_entropy(functional_call(model, live, (x.clone(),)), y)
        slopes = torch.autograd.grad(loss, list(live.values()), create_graph=graph, allow_unused=True)
        rows.append([torch.zeros_like(v) if g is None else g for v, g in zip(live.values(), slopes, strict=True)])
    return {name: torch.stack([row[n] for row in rows]) for n, name in enumerate(weights)}


@pytest.fixture(params=[0, 10**6], ids=["grouped", "unfolded"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weight gradients of convolutions as groups of one library call, and as products of columns."""
    monkeypatch.setattr(gradients, "_FEW", request.param)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("name", CASES)
def test_each_groups_gradient_is_autograds(name: str) -> None:
    model, weights, inputs, targets = _problem(name)
    before = inputs.clone()
    result = group_gradients(model, weights, inputs, targets)
    assert torch.equal(inputs, before)
    expected = _oracle(model, weights, inputs, targets)
    assert list(result) == list(weights)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-13)
    assert not any(value.requires_grad for value in result.values())


@pytest.mark.parametrize("name", CASES)
def test_which_models_the_hooks_serve(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights, inputs, targets = _problem(name)
    calls: list[str] = []
    by_func = gradients._by_func

    def counted(*arguments: Any) -> dict[str, Tensor]:
        calls.append(name)
        return by_func(*arguments)

    monkeypatch.setattr(gradients, "_by_func", counted)
    group_gradients(model, weights, inputs, targets)
    assert bool(calls) != CASES[name][2]


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("name", CASES)
def test_derivatives_to_inputs_and_targets_are_autograds(name: str) -> None:
    model, weights, inputs, targets = _problem(name)
    x, y = inputs.clone().requires_grad_(), targets.clone().requires_grad_()
    result = group_gradients(model, weights, x, y, differentiable=True)
    expected = _oracle(model, weights, x, y, graph=True)
    torch.manual_seed(1)
    directions = {key: torch.rand_like(value) for key, value in expected.items()}

    def derivatives(values: dict[str, Tensor]) -> tuple[Tensor, ...]:
        # linear and square parts, so that a constant factor is noticed
        total = torch.stack([(directions[k] * v + v.square()).sum() for k, v in values.items()]).sum()
        return torch.autograd.grad(total, (x, y))

    for ours, theirs in zip(derivatives(result), derivatives(expected), strict=True):
        assert theirs.abs().max() > 1e-6  # the oracle is not constant
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_a_group_alone_is_as_in_a_batch(name: str) -> None:
    model, weights, inputs, targets = _problem(name)
    x, y = inputs.clone().requires_grad_(), targets
    together = group_gradients(model, weights, x, y, differentiable=True)
    alone = group_gradients(model, weights, x[:1], y[:1], differentiable=True)
    beside = {key: value[:1] for key, value in together.items()}
    torch.testing.assert_close(alone, beside, rtol=1e-9, atol=1e-13)
    totals = [torch.stack([v[:1].square().sum() for v in result.values()]).sum() for result in (together, alone)]
    ours, theirs = (torch.autograd.grad(total, x)[0] for total in totals)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("name", ["mixed", pytest.param("GroupNorm", marks=pytest.mark.slow), "LayerNorm"])
def test_the_whole_map_passes_gradcheck(name: str) -> None:
    model, weights, inputs, targets = _problem(name, groups=2, examples=1)

    def gradient_values(x: Tensor, y: Tensor) -> Tensor:
        result = group_gradients(model, weights, x, y, differentiable=True)
        # a few coordinates of each tensor: numeric differences need a pass for each input value
        return torch.cat([value.flatten(1)[:, :5].flatten() for value in result.values()])

    assert torch.autograd.gradcheck(gradient_values, (inputs.requires_grad_(), targets.requires_grad_()))


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2}, {"padding": 1}, {"dilation": 2}, {"stride": 2, "padding": 2, "dilation": 2, "bias": False}],
    ids=str,
)
def test_the_grouped_correlation_passes_gradcheck(options: dict[str, int]) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 2, **options).double()  # type: ignore[arg-type]
    a = torch.rand(4, 2, 4, 5, dtype=torch.float64)
    delta = torch.rand_like(layer(a)).requires_grad_()
    a.requires_grad_()

    def correlate(x: Tensor, z: Tensor) -> Tensor:
        return conv_weight_gradient(x, z, layer, groups=2)

    assert torch.autograd.gradcheck(correlate, (a, delta))
    # bilinear: the sum over an example's groups is the library's own weight gradient
    whole = torch.autograd.grad((layer(a) * delta.detach()).sum(), layer.weight)[0]
    torch.testing.assert_close(correlate(a, delta).sum(0), whole)


def test_a_group_of_several_is_the_mean_of_its_examples() -> None:
    model, weights, inputs, targets = _problem("mixed", groups=2, examples=3)
    whole = group_gradients(model, weights, inputs, targets)
    single = example_gradients(model, weights, inputs.flatten(0, 1), targets.flatten(0, 1))
    means = {key: value.unflatten(0, (2, 3)).mean(1) for key, value in single.items()}
    torch.testing.assert_close(whole, means, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["conv", "GroupNorm"])
def test_the_weights_passed_count_and_those_of_the_module_do_not(name: str) -> None:
    model, weights, inputs, targets = _problem(name)
    before = group_gradients(model, weights, inputs, targets)
    for parameter in model.parameters():
        parameter.data.fill_(9.0)
    after = group_gradients(model, weights, inputs, targets)
    assert all(torch.equal(before[key], after[key]) for key in weights)
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_no_hook_is_left_behind_even_after_an_error() -> None:
    model, weights, inputs, targets = _problem("linear")
    with pytest.raises(RuntimeError):
        group_gradients(model, weights, inputs[..., :3], targets)
    assert not any(layer._forward_hooks for layer in model.modules())


def test_without_grad_the_fallback_and_the_hooks_still_work() -> None:
    for name in ("linear", "GroupNorm"):
        model, weights, inputs, targets = _problem(name)
        with torch.no_grad():
            result = group_gradients(model, weights, inputs, targets)
        expected = _oracle(model, weights, inputs, targets)
        assert all(torch.allclose(result[key], expected[key]) for key in weights)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(8), nn.SyncBatchNorm(8)], ids=["1d", "sync"])
def test_batch_statistics_are_refused(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(5, 8), layer, nn.Linear(8, CLASSES)).double()
    _, _, inputs, targets = _problem("linear")
    weights = {key: value.detach() for key, value in model.named_parameters()}
    with pytest.raises(NotApplicable, match="1 is .*BatchNorm.* in training mode.*GroupNorm"):
        group_gradients(model, weights, inputs, targets)


def test_batch_norm_in_eval_mode_needs_running_statistics() -> None:
    _, _, inputs, targets = _problem("linear")
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)).double().eval()
    weights = {key: value.detach() for key, value in model.named_parameters()}
    result, expected = (group_gradients(model, weights, inputs, targets), _oracle(model, weights, inputs, targets))
    assert all(torch.allclose(result[key], expected[key]) for key in weights)
    model[1] = nn.BatchNorm1d(8, track_running_stats=False).double().eval()
    with pytest.raises(NotApplicable, match="without running statistics"):
        group_gradients(model, weights, inputs, targets)


def test_soft_cross_entropy_and_one_hot() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 4, 4, 2, 1, 0])
    result = soft_cross_entropy(logits, one_hot(labels, 5, torch.float64))
    torch.testing.assert_close(result, F.cross_entropy(logits, labels, reduction="none"))
    soft = torch.rand(6, 5, dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(soft_cross_entropy(logits, soft), F.cross_entropy(logits, soft, reduction="none"))


class _Own(nn.Module):
    """Layers whose weights the model uses without a call of the layer."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.first, self.last = way, nn.Linear(5, 5), nn.Linear(5, CLASSES)
        if way == "hidden":
            nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        h, w = torch.tanh(self.first(x)), self.last.weight
        if self.way == "by function":
            return F.linear(h, w, self.last.bias)
        if self.way == "transposed":
            return self.last(torch.tanh(F.linear(h, self.first.weight.t())))
        if self.way == "normalised":
            return 5 * F.linear(F.normalize(h, dim=1), F.normalize(w, dim=1)) + self.last.bias
        if self.way == "product":
            return h @ w.t() + self.last.bias
        if self.way == "gate":
            return self.last(h) / w.norm()
        if self.way == "penalty":
            return self.last(h) + self.first.weight.square().sum() * self.last.bias
        return self.last(torch.tanh(F.linear(h, self.first.weight)))  # "hidden": behind a zero weight


@pytest.mark.parametrize("way", ["by function", "transposed", "normalised", "product", "gate", "penalty", "hidden"])
@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_weights_used_outside_of_their_layer(way: str, differentiable: bool, groups: int) -> None:
    """Equal to autograd by groups, with and without a graph; the derivative is autograd's, too."""
    torch.manual_seed(0)
    model = _Own(way).double()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    inputs = torch.randn(groups, 2, 5, dtype=torch.float64, requires_grad=differentiable)
    targets = one_hot(torch.arange(groups * 2).reshape(groups, 2) % CLASSES, CLASSES, torch.float64)
    grouped = group_gradients(model, weights, inputs, targets, differentiable=differentiable)
    expected = gradients._one_by_one(model, weights, inputs, targets)
    for name, value in expected.items():
        assert torch.allclose(grouped[name], value, rtol=1e-9, atol=1e-12), name
    if differentiable:
        first, second = (
            torch.autograd.grad(torch.stack([value.square().sum() for value in each.values()]).sum(), inputs)[0]
            for each in (grouped, expected)
        )
        assert torch.allclose(first, second, rtol=1e-9, atol=1e-12)


class _Odd(nn.Module):
    """Linear layers, used in a way for which hooks on the layers would give wrong gradients."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.first, self.last = way, nn.Linear(1 if way == "time first" else 5, 8), nn.Linear(8, CLASSES)
        if way == "layer norm":
            self.norm = nn.GroupNorm(2, 8)
            nn.init.uniform_(self.norm.weight, 0.5, 2)
        if way in ("hook before", "faint hook before"):
            size = 1e-7 if way == "faint hook before" else 3e-4
            self.last.register_forward_pre_hook(lambda layer, h: h[0] * (1 + size * layer.weight.norm()))
        if way == "hook behind":
            self.last.register_forward_hook(lambda layer, _, z: z * (1 + 1e-7 * layer.weight.norm()))
        if way == "forward replaced":
            self.last.forward = self._faint_head  # type: ignore[method-assign, assignment]

    def _faint_head(self, h: Tensor) -> Tensor:
        return F.linear(h, self.last.weight * (1 + 1e-7 * self.last.weight.norm()), self.last.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self._behind(torch.tanh(self._hidden(x))))
        match self.way:
            case "faint":
                return logits + 1e-7 * F.linear(self._hidden(x), self.last.weight)
            case "forward called":
                return logits + 1e-7 * self.last.forward(self._hidden(x))
            case "neighbours":
                return logits + 1e-6 * logits.roll(1, 0)
        return logits

    def _hidden(self, x: Tensor) -> Tensor:
        hidden: Tensor
        match self.way:
            case "time first":  # (time, example, feature)
                hidden = self.first(x.t()[..., None]).sum(0)
            case "named argument":
                hidden = self.first(input=x)
            case _:
                hidden = self.first(x)
        return hidden

    def _behind(self, h: Tensor) -> Tensor:
        match self.way:
            case "layer norm":
                return F.layer_norm(h, (8,), self.norm.weight, self.norm.bias)
            case "mean taken off":
                return h - 1e-4 * h.mean(0)
            case "constant of the batch":
                return h / h.detach().std()
            case "detached":
                return h.detach()
        return h


ODD = (
    "time first",
    "faint",
    "forward called",
    "forward replaced",
    "faint hook before",
    "hook behind",
    "named argument",
    "layer norm",
    "mean taken off",
    "constant of the batch",
    "neighbours",
    "detached",
)


def _odd(way: str, groups: int, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Tensor], Tensor, Tensor]:
    torch.manual_seed(0)
    model = _Odd(way).to(dtype)
    inputs, targets = torch.randn(groups, 2, 5).to(dtype), torch.randn(groups, 2, CLASSES).softmax(-1).to(dtype)
    return model, {name: value.detach().clone() for name, value in model.named_parameters()}, inputs, targets


def _energy(gradients: dict[str, Tensor]) -> Tensor:
    return torch.stack([value.square().sum() for value in gradients.values()]).sum()


@pytest.mark.parametrize("way", ODD)
def test_odd_uses_of_layers_are_found(way: str) -> None:
    """Equal to autograd for one group and for three, with and without a graph; the derivatives are autograd's, too."""
    for groups, differentiable in ((1, False), (3, False), (1, True), (3, True)):
        model, weights, inputs, targets = _odd(way, groups, torch.float64)
        targets.requires_grad_(differentiable)
        inputs.requires_grad_(differentiable)
        result = group_gradients(model, weights, inputs, targets, differentiable=differentiable)
        expected = _oracle(model, weights, inputs, targets, graph=differentiable)
        torch.testing.assert_close(result, expected, rtol=1e-11, atol=1e-14)
        assert differentiable or not any(value.requires_grad for value in result.values())
        if differentiable:
            both = (
                torch.autograd.grad(_energy(each), (inputs, targets), materialize_grads=True)
                for each in (result, expected)
            )
            for ours, theirs in zip(*both, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)


def test_a_hook_that_uses_a_weight_is_found_in_single_precision() -> None:
    model, weights, inputs, targets = _odd("hook before", 3, torch.float32)
    result = group_gradients(model, weights, inputs, targets)
    exact = {name: value.double() for name, value in weights.items()}
    expected = _oracle(model.double(), exact, inputs.double(), targets.double())
    torch.testing.assert_close(result, {name: v.float() for name, v in expected.items()}, rtol=3e-5, atol=1e-7)


class _Recursive(nn.Linear):
    def forward(self, x: Tensor, deep: bool = True) -> Tensor:
        inner: Tensor = self(x, False) if deep else x
        return super().forward(torch.tanh(inner))


def test_the_test_of_a_model_leaves_it_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(_Recursive(5, 5), nn.Linear(5, CLASSES)).double()
    _, _, inputs, targets = _odd("plain", 3, torch.float64)
    trained = {name: value.detach() for name, value in model[1].named_parameters(prefix="1")}
    before = dict(model.named_parameters())
    result = group_gradients(model, trained, inputs, targets)
    torch.testing.assert_close(result, _oracle(model, trained, inputs, targets), rtol=1e-10, atol=1e-14)
    assert all(value is before[name] for name, value in model.named_parameters())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())


class _Switched(nn.Module):
    """A head by its layer's call in eval mode, and by function in training mode or by a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.flag, self.first, self.last = False, nn.Linear(5, 8), nn.Linear(8, CLASSES)
        self.between = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.between(torch.tanh(self.first(x)))
        if self.training or self.flag:
            return F.linear(h, self.last.weight, self.last.bias)
        logits: Tensor = self.last(h)
        return logits


class _Mixing(nn.Identity):
    def forward(self, h: Tensor) -> Tensor:
        return h - h.mean(0)


def _train(model: _Switched) -> None:
    model.train()


def _flag(model: _Switched) -> None:
    model.flag = True


def _hook(model: _Switched) -> None:
    model.last.register_forward_pre_hook(lambda layer, h: h[0] * layer.weight.norm())


def _forward(model: _Switched) -> None:
    model.between.forward = lambda h: h * model.last.weight.norm()  # type: ignore[method-assign, assignment]


def _layer(model: _Switched) -> None:
    model.between = _Mixing()


@pytest.mark.parametrize("change", [_train, _flag, _hook, _forward, _layer])
def test_a_changed_model_is_tested_again(change: Callable[[_Switched], None]) -> None:
    torch.manual_seed(0)
    model = _Switched().double().eval()
    _, _, inputs, targets = _odd("faint", 3, torch.float64)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(2):
        result = group_gradients(model, weights, inputs, targets)
        torch.testing.assert_close(result, _oracle(model, weights, inputs, targets), rtol=1e-10, atol=1e-14)
        change(model)


def test_a_parameter_in_a_closure_is_refused() -> None:
    model, weights, inputs, targets = _odd("plain", 3, torch.float64)
    assert isinstance(model, _Odd)
    held = model.last.weight
    model.last.register_forward_hook(lambda _, arguments, z: z + arguments[0] @ held.t())
    with pytest.raises(NotApplicable, match=r"its parameter 'last.weight' through a closure.*read it from self"):
        group_gradients(model, weights, inputs, targets)


def test_a_batchs_gradient_takes_one_pass_at_the_models_own_weights() -> None:
    model, weights, inputs, targets = _odd("mean taken off", 1, torch.float64)
    passes: list[int] = []
    model.register_forward_hook(lambda *_: passes.append(1))
    result = batch_gradient(model, model(inputs[0]), targets[0])
    assert passes == [1]
    expected = _oracle(model, weights, inputs, targets)
    torch.testing.assert_close(result, {name: value[0] for name, value in expected.items()}, rtol=1e-12, atol=1e-15)


def test_ordinary_layers_keep_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of a model runs once; later calls use the hooks alone."""
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    weights = {name: value.detach() for name, value in model.named_parameters()}
    inputs, targets = torch.randn(3, 2, 5), one_hot(torch.zeros(3, 2, dtype=torch.int64), CLASSES, torch.float32)
    group_gradients(model, weights, inputs, targets)
    for slow in ("_one_by_one", "_by_func"):
        monkeypatch.setattr(gradients, slow, None)
    group_gradients(model, weights, inputs, targets)
