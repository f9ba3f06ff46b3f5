"""A gradient or an update from one's own loop never ends in a silent "nothing leaks"."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.utils import prune

from bench import api
from bench.errors import BenchError

SHAPE = (1, 8, 8)
RATE = 0.5


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.from_numpy(data.images[:, None] / 16).float(), torch.from_numpy(data.target).long()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return api.build("dlg-lenet", shape=SHAPE, classes=10)


def read(model: nn.Module, digits: tuple[Tensor, Tensor], gradients: Any = None, **options: Any) -> Any:
    x, y = digits
    return api.reading(
        gradients, model=model, shape=SHAPE, classes=10, public=x[100:200], public_labels=y[100:200], **options
    )


def trained(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], **options: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """State before and after plain PyTorch's training on these batches."""
    mine = copy.deepcopy(model)
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    optimizer = torch.optim.SGD(mine.parameters(), lr=RATE, **options)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(mine(x), y).backward()
        optimizer.step()
    return before, mine.state_dict()


# --- mistakes, each with the line that names it ---------------------------------------------------------


def test_what_was_declared_is_confirmed(model: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits[0][:2], digits[1][:2]
    checked = api.check(read(model, digits, api.gradient(model, x, y), batch=2), x, y)
    assert checked.explained
    assert checked.line == "explains what was sent: cosine 1.0000, scale 1.000"
    assert api.check(read(model, digits, api.gradient(model, x, y), batch=2)).explained is None


def _moved(model: nn.Module, gradients: dict[str, Tensor], rate: float) -> nn.Module:
    after = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in after.named_parameters():
            parameter.sub_(rate * gradients[name])
    return after


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("sign", "cosine -1.0000, scale 1.000; the update has the opposite sign"),
        ("difference", "scale 0.100; the scale is the rate: a difference of weights, read as a gradient"),
        ("no rate", "scale 0.100; the direction is right, the length is not: .* divide by 0.1"),
        ("sum", "scale 3.000; the scale is the batch: a sum over it"),
        ("moved", "the model has already moved: these weights are from after a step of rate 0.05"),
        ("moved difference", "the model has already moved: these weights are from after the round"),
        ("steps", r"several local steps, read as one gradient: 3 of 1 at a rate near 0\.5"),
        ("one", "one gradient of all examples, read as several local steps"),
        ("class", "the gradient is of class 0, not 1"),
        ("scale of inputs", r"inputs in another scale \(-1..1\); normalise inside the model"),
        ("noise", "no known mistake explains the update: noise that was not declared"),
        ("pruned", "70% of '0.weight' is zero where the replay is not: a defense"),
        ("other", "no known mistake explains the update: other weights, another model or loss"),
    ],
)
def test_the_likeliest_mistake_is_named(case: str, line: str, model: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits[0][:1], digits[1][:1]
    sent, options, net = api.gradient(model, x, y), dict[str, Any](), model
    if case == "sign":
        sent = {name: -value for name, value in sent.items()}
    elif case in ("difference", "no rate"):
        sent = {name: 0.1 * value for name, value in sent.items()}
        options = {"rate": 0.1} if case == "difference" else {}
    elif case == "sum":
        x, y, options = digits[0][:3], digits[1][:3], {"batch": 3}
        sent = {name: 3 * value for name, value in api.gradient(model, x, y).items()}
    elif case == "moved":
        net = _moved(model, sent, 0.05)
    elif case == "moved difference":
        net, options = _moved(model, sent, 0.05), {"rate": 0.05, "unit": 0.05}
        sent = {name: 0.05 * value for name, value in sent.items()}
    elif case == "steps":
        x, y, options = digits[0][:3], digits[1][:3], {"batch": 3}
        before, after = trained(model, [(x[n : n + 1], y[n : n + 1]) for n in range(3)])
        sent = {name: before[name] - after[name] for name in before}
    elif case == "one":
        x, y = digits[0][:3], digits[1][:3]
        sent, options = api.gradient(model, x, y), {"batch": 1, "steps": 3, "rate": 2.0, "unit": 1 / 3}
    elif case == "class":
        y = y + 1
    elif case == "scale of inputs":
        sent = api.gradient(model, 2 * x - 1, y)
    elif case == "noise":
        draw = torch.Generator().manual_seed(0)
        sent = {n: v + 0.02 * torch.randn(v.shape, generator=draw) for n, v in sent.items()}
    elif case == "pruned":
        sent = {n: v * (v.abs() > v.abs().flatten().quantile(0.7)) for n, v in sent.items()}
    elif case == "other":
        x = digits[0][5:6]
        y = digits[1][5:6]
    reading = read(net, digits, sent, **options)
    checked = api.check(reading, x, y)
    assert checked.explained is False
    assert "\n" not in checked.line
    with pytest.raises(AssertionError if checked.explained else BenchError, match=line):
        raise BenchError(checked.line)
    with pytest.warns(UserWarning, match="the scores say nothing: the truth does not explain"):
        api.score(api.attack(reading, "prior-mean"), x, y)


def test_batch_statistics_are_named_or_refused(digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits[0][:4], digits[1][:4]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 10))
    with pytest.raises(
        BenchError, match="1 is BatchNorm2d in training mode: its gradients mix the examples.*batch_statistics=True"
    ):
        read(net, digits, [torch.zeros(1)])
    with pytest.raises(BenchError, match="1 is BatchNorm2d in training mode"):
        api.gradient(net, x, y)
    F.cross_entropy(net.train()(x), y).backward()
    sent = {name: parameter.grad for name, parameter in net.named_parameters()}
    checked = api.check(read(net.eval(), digits, sent, batch=4), x, y)
    assert checked.explained is False and "BatchNorm was in training mode" in checked.line


def test_a_reading_is_doubted_without_its_truth(model: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits[0][:1], digits[1][:1]
    sent = api.gradient(model, x, y)
    flipped = api.check(read(model, digits, {name: -value for name, value in sent.items()}))
    assert flipped.explained is False and "signs of a negative gradient" in flipped.line
    short = api.check(read(model, digits, {name: 1e-3 * value for name, value in sent.items()}))
    assert "times as long as a public example's gradient" in short.line
    many = api.check(read(model, digits, api.gradient(model, digits[0][:5], digits[1][:5])))
    assert "rank 5, that of 1 examples at most 1" in many.line
    decayed = {name: value + 0.1 * dict(model.named_parameters())[name].detach() for name, value in sent.items()}
    assert "that of cross entropy to 0" in api.check(read(model, digits, decayed)).line


LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(20, 4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.words(x.long()).mean((1, 2, 3)))
        return out


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"shape": (8, 8)}, r"shape \(8, 8\) is neither \(channel, .*; give \(1, 8, 8\) for a picture of one channel"),
        ({"shape": (1, 8, 9)}, r"the model takes no inputs of shape \(1, 1, 8, 9\): "),
        ({"classes": 7}, r"the model gives \(1, 10\) for one example; expected logits \(1, 7\)"),
        ({"model": Embedded()}, "words is an Embedding, which takes integers"),
        ({"gradients": None}, "give either the gradients, or a client's weights before= and after="),
        ({"after": [1]}, "give either the gradients, or a client's weights before= and after="),
        ({"local": api.SGD(lr=1.0, steps=3)}, "3 local steps show in a difference of weights"),
        ({"local": api.SGD(lr=1.0), "batch": 2}, "local says what batch, steps, rate and unit would say"),
        ({"gradients": [p.detach() for p in LINEAR.parameters()]}, "the gradients are the model's weights"),
        ({"defense": "prun"}, "unknown defense 'prun'; did you mean 'prune'"),
        ({"defense": {"share": 1}}, 'defense: give its name, {"name": "prune"'),
        ({"defense": "none"}, "defense 'none' does nothing at type-1"),
    ],
)
def test_what_does_not_fit_is_one_line(options: dict[str, Any], line: str) -> None:
    fields = {"gradients": [torch.ones(10, 64), torch.ones(10)], "model": LINEAR, "shape": SHAPE, "classes": 10}
    with pytest.raises(BenchError, match=line) as caught:
        api.reading(**{**fields, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"lr": 0.0}, "SGD: lr is 0.0"),
        ({"lr": 1.0, "batch": 0}, "SGD: batch is 0"),
        ({"lr": 1.0, "momentum": 1.0}, "momentum is 1.0; it lies in 0 to below 1"),
        ({"lr": 1.0, "weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"lr": 1.0, "epochs": 2}, "epochs need `examples`"),
        ({"lr": 1.0, "epochs": 2, "steps": 2, "examples": 4}, "steps and epochs are both given"),
    ],
)
def test_a_protocol_that_does_not_fit_is_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(BenchError, match=line):
        api.SGD(**options)


def test_buffers_in_a_list_are_named(digits: tuple[Tensor, Tensor]) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10)).eval()
    state = list(net.state_dict().values())
    with pytest.raises(BenchError, match=r"9 gradients for 6 parameters: 3 of them are buffers \(1.running_mean, "):
        read(net, digits, state)
    moved = {name: value + 0.1 for name, value in net.state_dict().items()}
    reading = read(net, digits, before=state, after=moved, local=api.SGD(lr=0.1))
    assert reading.model.state_dict()["1.running_mean"].equal(net.state_dict()["1.running_mean"])
    with pytest.raises(BenchError, match="before and after are equal"):
        read(net, digits, before=state, after=state, local=api.SGD(lr=0.1))
    with pytest.raises(BenchError, match="after: 8 arrays; the model has 6 parameters, its state_dict"):
        read(net, digits, before=state, after=state[:8], local=api.SGD(lr=0.1))


def test_frozen_parameters_stay_where_they_are(digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits[0][:1], digits[1][:1]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Sigmoid(), nn.Linear(12, 10))
    net[1].bias.requires_grad_(False)
    F.cross_entropy(net(x), y).backward()
    sent = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    reading = read(net, digits, sent)
    assert set(reading.values) == {"1.weight", "3.weight", "3.bias"}
    assert api.check(reading, x, y).explained
    scores = api.score(api.attack(reading, "map", evaluations=300), x, y)
    assert scores.summary.asr.value == 1


# --- the client's protocol ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "local", "options"),
    [
        ((1, 1, 1), {"steps": 3}, {}),
        ((2, 2), {"batch": 2, "steps": 2}, {"momentum": 0.9}),
        ((1, 1, 1), {"steps": 3}, {"momentum": 0.5, "weight_decay": 0.05}),
        ((3,), {"batch": 3}, {"weight_decay": 0.1}),
        ((2, 2, 1), {"batch": 2, "epochs": 1, "examples": 5}, {}),
        ((2, 1, 2, 1), {"batch": 2, "epochs": 2, "examples": 3}, {"momentum": 0.9}),
        ((3, 3), {"batch": 8, "epochs": 2, "examples": 3}, {}),
    ],
)
def test_a_clients_training_is_read_as_it_was(
    sizes: tuple[int, ...],
    local: dict[str, Any],
    options: dict[str, Any],
    model: nn.Module,
    digits: tuple[Tensor, Tensor],
) -> None:
    """Against `torch.optim.SGD`, in float64: the replay is what was sent, to rounding."""
    distinct = local.get("examples", sum(sizes))
    x, y = digits[0][:distinct].double(), digits[1][:distinct]
    wide, at, batches = copy.deepcopy(model).double(), 0, []
    for size in sizes:
        rows = torch.arange(at, at + size) % distinct
        batches.append((x[rows], y[rows]))
        at += size
    before, after = trained(wide, batches, **options)
    reading = read(wide, digits, before=before, after=after, local=api.SGD(lr=RATE, **local, **options))
    assert reading.batches == sizes
    checked = api.check(reading, x, y)
    assert checked.explained, checked.line
    assert (checked.cosine, checked.scale) == pytest.approx((1, 1), abs=1e-9)


def test_several_steps_are_unrolled_unless_told_otherwise(model: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    """Two steps with momentum: 0 by one gradient of both, all by the simulation."""
    x, y = digits[0][:2], digits[1][:2]
    before, after = trained(model, [(x[n : n + 1], y[n : n + 1]) for n in range(2)], momentum=0.9)
    reading = read(model, digits, before=before, after=after, local=api.SGD(lr=RATE, steps=2, momentum=0.9))
    found = api.attack(reading, "map", evaluations=1200)
    assert api.score(found, x, y).summary.asr.value == 1
    notes = [api.attack(reading, "cpl", evaluations=40, params=params).loss for params in ({}, {"local": "unrolled"})]
    assert torch.equal(*notes)


def test_examples_of_several_epochs_count_once(model: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits[0][:2], digits[1][:2]
    before, after = trained(model, [(x[n : n + 1], y[n : n + 1]) for n in (0, 1, 0, 1)])
    reading = read(model, digits, before=before, after=after, local=api.SGD(lr=RATE, epochs=2, examples=2), labels=y)
    assert (reading.examples, reading.labels.tolist()) == (4, [sorted([*y.tolist()] * 2)])
    for name, evaluations in (("map", 300), ("cpl", 40)):
        found = api.attack(reading, name, evaluations=evaluations)
        assert found.inputs.shape[:2] == (1, 2)
        scores = api.score(found, x, y)
        assert scores.summary.examples == 2
        if name == "map":
            assert scores.summary.asr.value == 1


def test_who_knows_the_defense_gets_more(model: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits[0][:2], digits[1][:2]
    sent: dict[str, list[Tensor]] = {}
    for n in range(2):
        for name, value in api.gradient(model, x[n : n + 1], y[n : n + 1]).items():
            cut = value.abs().flatten().quantile(0.7)
            sent.setdefault(name, []).append(value * (value.abs() > cut))
    gradients = {name: torch.stack(values) for name, values in sent.items()}
    leaked = []
    for defense in (None, {"name": "prune", "share": 0.7}):
        reading = read(model, digits, gradients, defense=defense)
        found = api.attack(reading, "map", evaluations=100)
        if defense is not None:
            assert api.check(reading, x, y).cosine == pytest.approx(1, abs=0.05)
        mse = (found.inputs[:, 0] - x).square().flatten(1).mean(1)
        leaked.append(int((mse < 1e-2).sum()))
    assert leaked[0] < leaked[1]


# --- models whose layers are not what they seem --------------------------------------------------------


def _computed(kind: str) -> nn.Module:
    """A network with a weight which is computed from other parameters before each call of its layer."""
    torch.manual_seed(1)
    first: nn.Module = nn.Linear(64, 16)
    if kind == "weight_norm":
        first = nn.utils.weight_norm(first)
    elif kind == "spectral_norm":
        first = nn.utils.spectral_norm(first)
    else:
        prune.l1_unstructured(first, "weight", 0.3)
    return nn.Sequential(nn.Flatten(), first, nn.Sigmoid(), nn.Linear(16, 10)).eval()


def _autograd(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    names, values = zip(*model.named_parameters(), strict=True)
    slopes = torch.autograd.grad(F.cross_entropy(model(x), y), values, materialize_grads=True)
    return dict(zip(names, slopes, strict=True))


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "pruned"])
@pytest.mark.parametrize("used", [False, True])
def test_a_computed_weight_is_copied(kind: str, used: bool, digits: tuple[Tensor, Tensor]) -> None:
    net, x, y = _computed(kind), digits[0][:1], digits[1][:1]
    if used:
        net(x)
    sent = api.gradient(net, x, y)
    torch.testing.assert_close(sent, _autograd(net, x, y))
    reading = read(net, digits, sent)
    assert api.check(reading, x, y).explained
    for _ in range(2):  # a pass leaves no graph behind
        assert api.attack(reading, "dlg", evaluations=3).inputs.shape == (1, 1, *SHAPE)


class _Elsewhere(nn.Module):
    """A head that is held by a closure; `way`: the layer, or its parameters."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.head = head = nn.Linear(64, 10)
        if way == "layer":
            self.use = lambda x: F.linear(x, head.weight, head.bias)
        else:
            self.use = partial(F.linear, weight=head.weight, bias=head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.use(x.flatten(1))


def test_a_parameter_that_a_copy_does_not_replace_is_refused(digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits[0][:2], digits[1][:2]
    line = (
        r"uses its parameter 'head.(weight|bias)' through a closure, so a copy does not replace it; read it from self"
    )
    net, copied = _Elsewhere("layer"), _Elsewhere("parameters")
    for refused in (lambda: api.gradient(net, x, y), lambda: read(net, digits, _autograd(net, x, y))):
        with pytest.raises(BenchError, match=line):
            refused()
    # `deepcopy` follows a partial, so the copy alone has the right gradient
    sent = api.gradient(copied, x, y)
    torch.testing.assert_close(sent, _autograd(copied, x, y))
    with pytest.raises(BenchError, match=line):
        read(copied, digits, sent)


class _Faint(nn.Module):
    """A body that is not trained, a faint use of the head by function, and logits that hang on the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x.flatten(1))).detach()
        logits: Tensor = self.head(h) + 1e-7 * F.linear(h, self.head.weight)
        return logits - 0.5 * logits.mean(0)


def test_a_batchs_gradient_is_autograds_for_every_model(digits: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    net, x, y = _Faint().double(), digits[0][:3].double(), digits[1][:3]
    torch.testing.assert_close(api.gradient(net, x, y), _autograd(net, x, y), rtol=1e-12, atol=1e-15)


def test_readings_of_a_model_that_mixes_examples_do_not_disturb_each_other(digits: tuple[Tensor, Tensor]) -> None:
    class Mixing(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = super().forward(x)
            return logits - 0.5 * logits.softmax(0)

    net, x, y = Mixing(*deep()), digits[0][:6].unflatten(0, (3, 2)), digits[1][:6].unflatten(0, (3, 2))
    each = [_autograd(net, *pair) for pair in zip(x, y, strict=True)]
    sent = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    checked = api.check(read(net, digits, sent, batch=2), x, y)
    assert checked.explained, checked.line
    assert checked.cosine == pytest.approx(1, abs=1e-5)


# --- what an adversary got past the check, each now told ------------------------------------------------


def deep() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 32), nn.Sigmoid(), nn.Linear(32, 10)
    )


def test_a_layer_that_is_withheld_is_named_though_the_sum_is_right(digits: tuple[Tensor, Tensor]) -> None:
    net, x, y = deep(), digits[0][:1], digits[1][:1]
    sent = api.gradient(net, x, y)
    assert api.check(read(net, digits, sent), x, y).explained
    sent["1.weight"] = 0 * sent["1.weight"]
    checked = api.check(read(net, digits, sent), x, y)
    assert checked.cosine is not None and checked.cosine > 0.999 and checked.explained is False
    assert "all but '1.weight', which is zero: frozen or withheld" in checked.line


DP = {"name": "fed-cdp", "clip": 1.0, "noise": "code", "clipping": "flat"}


@pytest.mark.parametrize(
    ("sigma", "case", "explained"),
    [
        (0.01, "right", True),
        (0.01, "rate", False),
        (0.01, "sign", False),
        (0.01, "bare", False),
        (0.01, "others", False),
        (0.01, "zero", False),
        (10.0, "right", None),
        (10.0, "zero", False),
    ],
)
def test_noise_that_was_declared_is_no_excuse(
    sigma: float, case: str, explained: bool | None, digits: tuple[Tensor, Tensor]
) -> None:
    net, x, y = deep(), digits[0][:1], digits[1][:1]
    bare = api.gradient(net, x, y)
    norm = torch.stack([value.square().sum() for value in bare.values()]).sum().sqrt()
    draw = torch.Generator().manual_seed(0)
    sent = {n: v / norm.clamp_min(1) + sigma * torch.randn(v.shape, generator=draw) for n, v in bare.items()}
    if case == "rate":
        sent = {name: 0.05 * value for name, value in sent.items()}
    elif case == "sign":
        sent = {name: -value for name, value in sent.items()}
    elif case == "bare":
        sent = {name: value / norm.clamp_min(1) for name, value in bare.items()}
    elif case == "zero":
        sent = {name: 0 * value for name, value in bare.items()}
    elif case == "others":
        x, y = digits[0][5:6], digits[1][5:6]
    reading = read(net, digits, sent, defense={**DP, "sigma": sigma})
    checked = api.check(reading, x, y)
    assert checked.explained is explained, checked.line


def test_what_the_attacker_was_given_must_be_right(digits: tuple[Tensor, Tensor]) -> None:
    net, x, y = deep(), digits[0][:1], digits[1][:1]
    sent = api.gradient(net, x, y)
    with pytest.raises(BenchError, match="public lies in 0..255, inputs in 0..1; scale it"):
        api.reading(sent, model=net, shape=SHAPE, classes=10, public=digits[0][100:] * 255)
    with pytest.raises(BenchError, match="public has values that are not finite"):
        api.reading(sent, model=net, shape=SHAPE, classes=10, public=digits[0][100:] * float("nan"))
    with pytest.raises(BenchError, match="labels are classes, whole numbers from 0; got 0.7"):
        read(net, digits, sent, labels=[0.7])
    wrong = read(net, digits, sent, labels=(y + 3) % 10)
    assert "the labels that the attacker has are not those of the truth" in api.check(wrong, x, y).line
    bare = api.reading(sent, model=net, shape=SHAPE, classes=10)
    with pytest.raises(BenchError, match="map cannot take this reading: .* give at least 3"):
        api.attack(bare, "map", evaluations=20)


@pytest.mark.parametrize(("examples", "batch", "epochs", "momentum"), [(12, 4, 2, 0.0), (10, 3, 3, 0.9)])
def test_epochs_in_an_order_that_nobody_declared_are_explained(
    examples: int, batch: int, epochs: int, momentum: float, digits: tuple[Tensor, Tensor]
) -> None:
    net, (x, y) = deep(), (digits[0][:examples], digits[1][:examples])
    draw = torch.Generator().manual_seed(5)
    orders = [torch.arange(examples), *(torch.randperm(examples, generator=draw) for _ in range(epochs - 1))]
    batches = [(x[at], y[at]) for order in orders for at in order.split(batch)]
    before, after = trained(net, batches, momentum=momentum)
    local = api.SGD(lr=RATE, batch=batch, epochs=epochs, examples=examples, momentum=momentum)
    checked = api.check(read(net, digits, before=before, after=after, local=local), x, y)
    assert checked.explained, checked.line
    swapped = api.check(read(net, digits, before=after, after=before, local=local), x, y)
    assert swapped.explained is False


def test_each_reading_is_looked_at(model: nn.Module, digits: tuple[Tensor, Tensor]) -> None:
    """One in which a rate was left hides behind none that is noisier; the one that is off is numbered."""
    x, y = digits[0][:2], digits[1][:2]
    each = [api.gradient(model, x[n : n + 1], y[n : n + 1]) for n in range(2)]
    draw = torch.Generator().manual_seed(0)
    sent = {
        name: torch.stack([0.1 * each[0][name], value + 1e-4 * torch.randn(value.shape, generator=draw)])
        for name, value in each[1].items()
    }
    checked = api.check(read(model, digits, sent), x, y)
    assert checked.explained is False
    assert "scale 0.100 (reading 0)" in checked.line


def test_mistakes_are_not_called_a_defense(digits: tuple[Tensor, Tensor]) -> None:
    """The border pixels of digits are zero in every honest gradient."""
    net, x, y = deep(), digits[0][:2], digits[1][:2]
    swapped = api.check(read(net, digits, api.gradient(net, x, y), batch=2), x, y.flip(0))
    assert swapped.explained is False and "a defense?" not in swapped.line
    before, after = trained(net, [(x, y)] * 3)
    back = read(net, digits, before=after, after=before, local=api.SGD(lr=RATE, batch=2, epochs=3, examples=2))
    assert "before and after are swapped" in api.check(back, x, y).line
    decayed, after = trained(net, [(x, y)] * 2, weight_decay=0.1)
    undeclared = read(net, digits, before=decayed, after=after, local=api.SGD(lr=RATE, batch=2, steps=2, examples=2))
    assert "weight decay near 0.1" in api.check(undeclared, x, y).line


def test_zero_gradients(digits: tuple[Tensor, Tensor]) -> None:
    net, x, y = deep(), digits[0][:1], digits[1][:1]
    sent = api.gradient(net, x, y)
    none = api.check(read(net, digits, {name: 0 * value for name, value in sent.items()}), x, y)
    assert "the gradient of reading 0 is zero" in none.line
    with torch.no_grad():
        net.get_parameter("5.bias")[int(y)] = 200.0
    sure = api.check(read(net, digits, api.gradient(net, x, y)), x, y)
    assert sure.explained and "both are zero" in sure.line


def test_frozen_parameters_may_come_as_none_and_are_kept_in_files(
    digits: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    net, x, y = deep(), digits[0][:1], digits[1][:1]
    net.get_parameter("1.weight").requires_grad_(False)
    F.cross_entropy(net(x), y).backward()
    for sent in (
        [p.grad for p in net.parameters()],
        {n: p.grad for n, p in net.named_parameters()},
        {f"module.{n}": p.grad for n, p in net.named_parameters() if p.grad is not None},
    ):
        reading = read(net, digits, sent)
        assert "1.weight" not in reading.values and api.check(reading, x, y).explained
    api.save_reading(tmp_path / "r.npz", reading)
    again = api.open_reading(tmp_path / "r.npz", model=deep().apply(lambda layer: None))
    assert set(again.values) == set(reading.values)
    assert api.check(again, x, y).explained


BOOLEAN = {"1.weight": torch.ones(10, 64, dtype=torch.bool), "1.bias": torch.ones(10)}


@pytest.mark.parametrize(
    "options",
    [
        {"shape": 64},
        {"value_range": None},
        {"model": None},
        {"model": nn.Linear},
        {"defense": 5},
        {"defense": ["prune"]},
    ],
)
def test_slips_of_arguments_are_one_line(options: dict[str, Any]) -> None:
    fields = {"gradients": [torch.ones(10, 64), torch.ones(10)], "model": LINEAR, "shape": SHAPE, "classes": 10}
    with pytest.raises(BenchError) as caught:
        api.reading(**{**fields, **options})
    assert "\n" not in str(caught.value)
    with pytest.raises(BenchError, match="check takes what api.reading returns, not a dict"):
        api.check({}, [], [])  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [5, iter(LINEAR.parameters()), BOOLEAN])
def test_slips_are_one_line(wrong: Any) -> None:
    with pytest.raises(BenchError) as caught:
        api.reading(wrong, model=LINEAR, shape=SHAPE, classes=10)
    assert "\n" not in str(caught.value)
