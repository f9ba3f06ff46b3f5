"""Models and weights from other projects: an explanation, or a line that names the fault."""

import copy
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bench import api
from bench.attacks.objective.local import momentum_gain, reaches
from bench.attacks.objective.mismatch import observations
from bench.errors import BenchError
from bench.gradients import group_gradients
from bench.own.replay import replayed
from bench.own.rounding import rounded

SHAPE = (1, 8, 8)
_DATA = load_digits()
X = torch.from_numpy(_DATA.images[:, None] / 16).float()
Y = torch.from_numpy(_DATA.target).long()
KNOWN: dict[str, Any] = {"public": X[1000:1300], "public_labels": Y[1000:1300]}


def sent(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor | None]:
    """The gradient of plain autograd, by name; None for a parameter without a gradient."""
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return {name: value.grad for name, value in model.named_parameters()}


def read(gradients: Any, model: nn.Module, **options: Any) -> Any:
    return api.reading(gradients, model=model, shape=SHAPE, classes=10, **KNOWN, **options)


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Sigmoid(), nn.Linear(32, 10)).eval()


@pytest.mark.parametrize("name", ["1.weight", "2.running_var", "2.running_mean", "4.bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e38])
@pytest.mark.parametrize("way", ["model", "weights", "before", "gradient"])
def test_weights_of_a_model_that_diverged_are_refused_by_name(name: str, value: float, way: str) -> None:
    model = plain()
    gradients = sent(model, X[:1], Y[:1])
    state = copy.deepcopy(model.state_dict())
    state[name].view(-1)[0] = value
    if way in ("model", "gradient"):
        model.load_state_dict(state)
    ways: dict[str, Callable[[], Any]] = {
        "model": lambda: read(gradients, model),
        "gradient": lambda: api.gradient(model, X[:1], Y[:1]),
        "weights": lambda: read(gradients, model, weights=state),
        "before": lambda: read(None, model, before=state, after=model.state_dict(), local=api.SGD(lr=0.1)),
    }
    with pytest.raises(BenchError, match=rf"{'the model' if way in ('gradient', 'model') else way}: {name} holds"):
        ways[way]()


class Behind(nn.Module):
    """Two linear layers, and an operation behind the last."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.kind = kind
        self.a, self.b = nn.Linear(64, 32), nn.Linear(32, 10, bias=kind != "negated without a bias")
        if kind == "auxiliary head":
            self.unused = nn.Linear(32, 10)
        if kind == "normalised weight":
            self.b = nn.utils.parametrizations.weight_norm(self.b)
        if kind == "convolution":
            self.b = nn.Conv2d(32, 10, 1)  # type: ignore[assignment]
        if kind == "its own parameter":
            self.w = nn.Parameter(0.2 * torch.randn(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sigmoid(self.a(x.flatten(1)))
        if self.kind == "convolution":
            return self.b(h[:, :, None, None]).flatten(1)
        if self.kind == "its own parameter":
            return h @ self.w
        if self.kind == "by function":
            return F.linear(h, self.b.weight, self.b.bias)
        z = self.b(h)
        turned = {"flipped": z.flip(1), "relu": z.relu(), "temperature": z / 5}
        return -z if self.kind.startswith("negated") else turned.get(self.kind, z)


LABEL_RULES = {  # kind → whether labels come from simulated gradients
    "plain": False,
    "temperature": False,
    "auxiliary head": False,
    "by function": False,
    "negated": True,
    "negated without a bias": False,
    "flipped": True,
    "normalised weight": True,
    "convolution": True,
    "its own parameter": True,
}


@pytest.mark.parametrize("kind", LABEL_RULES)
def test_labels_are_read_whatever_stands_behind_the_last_layer(kind: str) -> None:
    model = Behind(kind).eval()
    each = [sent(model, X[n : n + 1], Y[n : n + 1]) for n in range(10)]
    gradients = {
        n: torch.stack([torch.zeros_like(model.get_parameter(n)) if (v := g[n]) is None else v for g in each])
        for n in each[0]
    }  # type: ignore[misc]
    reading = read(gradients, model)
    assert torch.equal(api.attack(reading, "labels-only").labels[:, 0], Y[:10])
    claim = api.attack(reading.of([3]), "idlg", evaluations=60)
    assert any(note.startswith("labels: nearest to simulated") for note in claim.notes) == LABEL_RULES[kind]
    score = api.score(claim, X[3:4], Y[3:4], **KNOWN)
    assert score.summary.asr.value == 1


@pytest.mark.parametrize("kind", ["negated", "flipped", "convolution"])
def test_labels_of_a_batch_are_counted_by_simulation(kind: str) -> None:
    model = Behind(kind).eval()
    reading = read(sent(model, X[:3], Y[:3]), model, batch=3)
    assert torch.equal(api.attack(reading, "labels-only").labels[0], Y[:3].sort().values)


def test_a_label_that_the_gradient_does_not_show_is_not_guessed() -> None:
    """Behind a ReLU, all labels with a negative output have the same gradient."""
    model = Behind("relu").eval()
    reading = read(sent(model, X[:1], Y[:1]), model)
    assert api.attack(reading, "labels-only").labels.tolist() == [[-1]]
    for attack in ("idlg", "map"):
        with pytest.raises(BenchError, match="no rule reads the labels of public examples off this model's last layer"):
            api.attack(reading, attack)


# --- the protocol that was declared ---------------------------------------------------------------------


def small(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), *between, nn.Sigmoid(), nn.Linear(24, 10))


LOSSES: dict[str, tuple[Any, Callable[[Tensor, Tensor], Tensor]]] = {  # name → declared, computed by torch on labels
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1),) * 2,
    "class weights": (nn.CrossEntropyLoss(weight=torch.arange(1.0, 11)),) * 2,
    "both": (nn.CrossEntropyLoss(weight=torch.arange(1.0, 11), label_smoothing=0.2),) * 2,
    "a sum": (nn.CrossEntropyLoss(reduction="sum"),) * 2,
    "log probabilities": (nn.NLLLoss(weight=torch.arange(1.0, 11)),) * 2,
    "squares": (nn.MSELoss(), lambda z, y: F.mse_loss(z, F.one_hot(y, 10).to(z))),
    "each class": (
        nn.BCEWithLogitsLoss(pos_weight=torch.arange(1.0, 11)),
        lambda z, y: F.binary_cross_entropy_with_logits(
            z, F.one_hot(y, 10).to(z), pos_weight=torch.arange(1.0, 11).to(z)
        ),
    ),
    "a function": (
        lambda z, t: -(t * (1 - z.softmax(1)) ** 2 * z.log_softmax(1)).sum(1).mean(),
        lambda z, y: (
            (1 - z.softmax(1).gather(1, y[:, None])) ** 2 * F.cross_entropy(z, y, reduction="none")[:, None]
        ).mean(),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_declared_loss_is_autograds(name: str, tmp_path: Path) -> None:
    declared, computed = LOSSES[name]
    model = small(*[nn.LogSoftmax(1)] if name == "log probabilities" else []).double()
    if isinstance(computed, nn.Module):
        computed = copy.deepcopy(computed).double()
    computed(model(X[:4].double()), Y[:4]).backward()
    expected = {n: p.grad for n, p in model.named_parameters()}
    found = api.gradient(model, X[:4].double(), Y[:4], loss=declared)
    reading = read(expected, model, batch=4, loss=declared)
    assert api.check(reading, X[:4], Y[:4]).line == "explains what was sent: cosine 1.0000, scale 1.000"
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-12)
    file = tmp_path / "reading.npz"
    if name == "a function":
        with pytest.raises(BenchError, match=r"a reading file holds a loss of torch\.nn, not a function"):
            api.save_reading(file, reading)
        return
    api.save_reading(file, reading)
    opened = api.open_reading(file, model=model, **KNOWN)
    assert api.check(opened, X[:4], Y[:4]).line == "explains what was sent: cosine 1.0000, scale 1.000"


@pytest.mark.parametrize("loss", [lambda z, t: z, nn.CrossEntropyLoss(reduction="none"), lambda z: z.sum()])
def test_a_loss_that_gives_no_number_is_a_line(loss: Any) -> None:
    with pytest.raises(BenchError, match="^loss: "):
        read(sent(small(), X[:1], Y[:1]), small(), loss=loss)


def _gradient(loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy) -> dict[str, Tensor]:
    model = small()
    loss(model(X[:4]), Y[:4]).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def _weighted(smoothing: float = 0.0, decay: float = 0.0) -> dict[str, Tensor]:
    loss = nn.CrossEntropyLoss(weight=torch.arange(1.0, 11), label_smoothing=smoothing)
    return {n: value + decay * small().get_parameter(n).detach() for n, value in _gradient(loss).items()}


def _times(factor: float, **_: Any) -> dict[str, Tensor]:
    return {n: factor * value for n, value in _gradient().items()}


def _decayed(smoothing: float = 0.0) -> dict[str, Tensor]:
    loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
    return {n: value + 0.01 * small().get_parameter(n).detach() for n, value in _gradient(loss).items()}


@pytest.mark.parametrize(
    ("gradients", "line"),
    [
        (lambda: _gradient(nn.CrossEntropyLoss(label_smoothing=0.1)), r"label smoothing of 0\.1: declare"),
        (
            lambda: _gradient(nn.CrossEntropyLoss(weight=torch.arange(1.0, 11))),
            r"\(0: 1, 1: 2, 2: 3, 3: 4\): declare loss",
        ),
        (lambda: _gradient(lambda z, y: F.mse_loss(z, F.one_hot(y, 10).float())), "the loss is nn.MSELoss on one-hot"),
        (_decayed, r"weight decay of 0\.01 is in the gradient"),
        (lambda: _decayed(0.1), r"label smoothing of 0\.1 and weight decay of 0\.01 is in"),
        (
            lambda: _weighted(0.2),
            r"\(0: 1, 1: 2, .*, 9: 10\) and label smoothing of 0\.2: declare .*label_smoothing=0\.2",
        ),
        (lambda: _weighted(0.0, 0.01), r"\(0: 1, 1: 2, 2: 3, 3: 4\) and weight decay of 0\.01 is in the gradient"),
        (lambda: _weighted(0.2, 0.01), r"9: 10\) and label smoothing of 0\.2 and weight decay of 0\.01"),
        (lambda: _times(65536.0), r"2\^16: a loss scaler's"),
        (lambda: _times(2.0), "gradients of 2 parts of the batch, accumulated without a division"),
        (lambda: _times(0.9), r"divide by 0\.9"),
    ],
)
def test_options_of_the_loss_are_told_apart(gradients: Callable[[], dict[str, Tensor]], line: str) -> None:
    checked = api.check(read(gradients(), small(), batch=4), X[:4], Y[:4])
    with pytest.raises(BenchError, match=line):
        raise BenchError(checked.line)
    assert checked.explained is False


def trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[list[int]]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """State before and after plain PyTorch's training on batches of these examples."""
    before = copy.deepcopy(model.state_dict())
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(X[batch].to(next(model.parameters()).dtype)), Y[batch]).backward()
        optimizer.step()
    return before, model.state_dict()


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_is_torchs(decoupled: bool) -> None:
    model = small().double()
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    before, after = trained(model, optimizer, [[0, 1], [2, 3], [4, 5]])
    local = api.Adam(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, decoupled=decoupled, batch=2, steps=3)
    reading = read(None, small().double(), before=before, after=after, local=local)
    update = replayed(reading, X[None, :6].double(), Y[None, :6])
    for name, value in update.items():
        expected = (before[name] - after[name]) / (0.01 * 3)
        torch.testing.assert_close(value[0], expected, rtol=1e-9, atol=1e-11)
    assert api.check(reading, X[:6], Y[:6]).explained
    with pytest.warns(UserWarning, match="a low figure is no protection"):
        api.attack(reading, "prior-mean")
    undeclared = read(None, small().double(), before=before, after=after, local=api.SGD(lr=0.01, batch=2, steps=3))
    assert api.check(undeclared, X[:6], Y[:6]).explained is False


RULES: dict[str, dict[str, Any]] = {
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "schedule": {"momentum": 0.5, "schedule": (0.5, 1.0, 0.25)},
    "groups": {"factors": {"1.weight": 0.1}, "decays": {"1.weight": 0.2}},
    "proximal": {"proximal": 0.7},
    "clip": {"clip": 0.4, "weight_decay": 0.1},
    "kept": {"kept": True, "momentum": 0.5},
}


def by_hand(
    model: nn.Module, options: dict[str, Any], batches: Sequence[list[int]] = ([0, 1], [2, 3], [4, 5])
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """State before and after three steps at a rate of .1, by torch's optimizer and the options' definitions."""
    before, factors, decays = copy.deepcopy(model.state_dict()), options.get("factors", {}), options.get("decays", {})
    groups = [
        {"params": [p], "lr": 0.1 * factors.get(n, 1.0), "weight_decay": decays.get(n, options.get("weight_decay", 0))}
        for n, p in model.named_parameters()
    ]
    rates = [group["lr"] for group in groups]
    plain = {name: options[name] for name in ("momentum", "nesterov") if name in options}
    optimizer = torch.optim.SGD(groups, lr=0.1, **plain)
    for step, batch in enumerate(batches):
        if not options.get("kept"):
            optimizer.zero_grad()
        far = sum((p - before[n]).square().sum() for n, p in model.named_parameters())
        (
            F.cross_entropy(model(X[batch].to(next(model.parameters()))), Y[batch])
            + options.get("proximal", 0) / 2 * far
        ).backward()
        if "clip" in options:
            nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * options.get("schedule", (1.0,) * 3)[step]
        optimizer.step()
    return before, model.state_dict()


@pytest.mark.parametrize("name", RULES)
def test_options_of_local_steps_are_torchs(name: str) -> None:
    options = RULES[name]
    before, after = by_hand(small().double(), options)
    local = api.SGD(lr=0.1, batch=2, steps=3, **options)
    reading = read(None, small().double(), before=before, after=after, local=local)
    assert api.check(reading, X[:6], Y[:6]).line == "explains what was sent: cosine 1.0000, scale 1.000"
    for key, value in replayed(reading, X[None, :6].double(), Y[None, :6]).items():
        torch.testing.assert_close(value[0], observations(reading)[0][key][0], rtol=1e-8, atol=1e-10)
    reached = reaches(reading.momentum, 3, local.rule)[:, -1].mean()
    assert momentum_gain(reading.momentum, 3, local.rule) == pytest.approx(float(reached))


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_examples_behind_options_of_local_steps_come_back(name: str) -> None:
    torch.manual_seed(1)
    model, options = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10)), RULES[name]
    at_start = copy.deepcopy(model)
    before, after = by_hand(model, options, ([0], [1], [2]))
    reading = read(None, at_start, before=before, after=after, local=api.SGD(lr=0.1, steps=3, **options))
    scores = api.score(api.attack(reading, "map", evaluations=600), X[:3], Y[:3], **KNOWN)
    assert scores.summary.asr.value == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"nesterov": True}, "nesterov needs a momentum"),
        ({"schedule": (1.0,)}, "schedule has a factor of lr for each of 3 steps"),
        ({"clip": 0.0}, "clip is 0.0"),
        ({"proximal": -1.0}, "proximal is -1.0"),
        ({"factors": {"0.weight": 0.0}}, "the factor of '0.weight' is 0.0"),
    ],
)
def test_wrong_options_of_local_steps_are_a_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(BenchError, match=line):
        api.SGD(lr=0.1, steps=3, **options)


@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_servers_momentum_is_removed_from_global_weights(rounds: int) -> None:
    """FedAvgM by hand: a server with a single client, whose momentum starts empty."""
    model, velocity = small().double(), dict[str, Tensor]()
    sent = [copy.deepcopy(model.state_dict())]
    for number in range(rounds, 0, -1):
        start = sent[-1]
        model.load_state_dict(start)
        _, after = trained(model, torch.optim.SGD(model.parameters(), lr=0.1), [[4 * number], [4 * number + 1]])
        velocity = {name: 0.9 * velocity.get(name, 0) + start[name] - after[name] for name in start}
        sent.append({name: start[name] - 0.5 * velocity[name] for name in start})
    local = api.SGD(lr=0.1, steps=2)
    given: Any = api.before_server(sent, small().double(), momentum=0.9, lr=0.5)
    reading = api.reading(**given, local=local, shape=SHAPE, classes=10, **KNOWN)
    assert api.check(reading, X[4:6], Y[4:6]).line == "explains what was sent: cosine 1.0000, scale 1.000"
    plain = read(None, small().double(), before=sent[-2], after=sent[-1], local=local)
    checked = api.check(plain, X[4:6], Y[4:6])
    assert checked.explained is False
    if rounds == 3:
        assert "momentum of a server's optimizer (global weights need api.before_server)" in checked.line


@pytest.mark.parametrize(("rule", "beta"), [("adam", 0.9), ("yogi", 0.9), ("adagrad", 0.0)])
def test_an_adaptive_server_is_removed_from_global_weights(rule: Any, beta: float) -> None:
    """FedAdam, FedYogi and FedAdagrad by hand, as in Flower: three rounds of a server with a single client."""
    model = small().double()
    sent = [copy.deepcopy(model.state_dict())]
    m = {name: torch.zeros_like(value) for name, value in sent[0].items()}
    v, true = copy.deepcopy(m), sent[0]
    for number in (1, 2, 3):
        start = sent[-1]
        model.load_state_dict(start)
        _, true = trained(model, torch.optim.SGD(model.parameters(), lr=0.1), [[4 * number], [4 * number + 1]])
        rate, new = 0.1, {}
        if rule == "adam":
            rate *= (1 - 0.99 ** (number + 1)) ** 0.5 / (1 - 0.9 ** (number + 1))
        for name, value in start.items():
            delta = true[name] - value
            m[name] = beta * m[name] + (1 - beta) * delta
            square = delta**2
            v[name] = {
                "adam": 0.99 * v[name] + 0.01 * square,
                "yogi": v[name] - 0.01 * square * torch.sign(v[name] - square),
                "adagrad": v[name] + square,
            }[rule]
            new[name] = value + rate * m[name] / (v[name].sqrt() + 1e-3)
        sent.append(new)
        if number == 1 or rule == "adagrad":
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # one solution
                given: Any = api.before_server(sent, small().double(), momentum=beta, lr=0.1, rule=rule)
            for name, value in true.items():
                torch.testing.assert_close(given["after"][name], value, rtol=0, atol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = api.before_server(sent, small().double(), momentum=beta, lr=0.1, rule=rule)
    far = torch.cat([((given["after"][n] - t).abs() > 1e-7).flatten() for n, t in true.items()])
    assert far.double().mean() < 0.01  # of the coordinates with two solutions, the wrong one
    reading = api.reading(**given, local=api.SGD(lr=0.1, steps=2), shape=SHAPE, classes=10, **KNOWN)
    assert api.check(reading, X[12:14], Y[12:14]).line == "explains what was sent: cosine 1.0000, scale 1.000"


def test_wrong_global_weights_are_a_line() -> None:
    state = small().state_dict()
    with pytest.raises(BenchError, match="rounds has the global weights before and after a round"):
        api.before_server([state], small(), momentum=0.9)
    with pytest.raises(BenchError, match="momentum lies in 0 to below 1"):
        api.before_server([state, state], small(), momentum=1.0)
    wrong: Any = "adamw"
    with pytest.raises(BenchError, match="rule 'adamw': it is momentum, adam, yogi, adagrad"):
        api.before_server([state, state], small(), momentum=0.9, rule=wrong)
    with pytest.raises(BenchError, match="tau above 0"):
        api.before_server([state, state], small(), momentum=0.9, rule="adam", tau=0.0)
    with pytest.raises(BenchError, match=r"rounds\[1\]"):
        api.before_server([state, {}], small(), momentum=0.9)


def test_another_optimizer_is_named_first() -> None:
    model = small()
    before, after = trained(model, torch.optim.Adam(model.parameters(), lr=0.01), [[0, 1], [2, 3]])
    line = api.check(
        read(None, small(), before=before, after=after, local=api.SGD(lr=0.01, batch=2, steps=2)), X[:4], Y[:4]
    ).line
    assert "; the optimizer is Adam, not SGD: declare local=api.Adam(lr=…)" in line
    model = small()
    before, after = trained(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), [[0, 1], [2, 3]])
    line = api.check(
        read(None, small(), before=before, after=after, local=api.SGD(lr=0.1, batch=2, steps=2)), X[:4], Y[:4]
    ).line
    assert "; the client's SGD has a momentum of 0.9: declare momentum=0.9" in line


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "the optimizer is SGD with nesterov=True"),
        (lambda p: torch.optim.RMSprop(p, lr=0.1), "the optimizer is RMSprop, which no attack simulates"),
        (
            lambda p: torch.optim.SGD(p, lr=0.05),
            "the client's learning rate is near 0.05, and the declared rate is 0.1",
        ),
    ],
)
def test_what_moves_the_weights_otherwise_is_no_question_of_the_order(make: Any, words: str) -> None:
    model = small()
    before, after = trained(model, make(model.parameters()), [[0, 1], [2, 3], [4, 5]])
    reading = read(None, small(), before=before, after=after, local=api.SGD(lr=0.1, batch=2, steps=3))
    checked = api.check(reading, X[:6], Y[:6])
    assert checked.explained is False and words in checked.line


class OwnMode(nn.Module):
    """A layer with another computation in training mode: `F.batch_norm` with own buffers, or a factor."""

    mean: Tensor
    var: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("mean", torch.zeros(24))
        self.register_buffer("var", torch.ones(24))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "batch_norm":
            return F.batch_norm(x, self.mean, self.var, training=self.training)
        return 2 * x if self.training else x


@pytest.mark.parametrize("kind", ["batch_norm", "factor"])
def test_an_own_layer_in_training_mode_is_named_and_declared(kind: str) -> None:
    model = small(OwnMode(kind)).train()
    gradients = sent(model, X[:4], Y[:4])
    line = api.check(read(gradients, model, batch=4), X[:4], Y[:4]).line
    assert "the model was in training mode, and computes otherwise there; give batch_statistics=True" in line
    declared = read(gradients, model, batch=4, batch_statistics=True)
    assert api.check(declared, X[:4], Y[:4]).line == "explains what was sent: cosine 1.0000, scale 1.000"
    for name, value in api.gradient(model, X[:4], Y[:4], batch_statistics=True).items():
        torch.testing.assert_close(value, gradients[name])


@pytest.mark.slow
def test_the_order_of_shuffled_examples_is_sought_or_declared() -> None:
    """A shuffled `DataLoader`, two epochs, momentum and GroupNorm; the truth in the order of the data."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    start = copy.deepcopy(model)
    order = [4, 1, 0, 5, 3, 2, 2, 5, 1, 3, 4, 0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    before, after = trained(model, optimizer, [order[n : n + 2] for n in range(0, 12, 2)])
    local = api.SGD(lr=0.2, momentum=0.9, batch=2, epochs=2, examples=6)
    reading = read(None, start, before=before, after=after, local=local)
    declared = api.check(reading, X[:6], Y[:6], order=order)
    assert declared.line == "explains what was sent: cosine 1.0000, scale 1.000"
    assert api.check(reading, X[order[:6]], Y[order[:6]], order=[0, 1, 2, 3, 4, 5, 5, 3, 1, 4, 0, 2]).explained
    found = api.check(reading, X[:6], Y[:6])
    assert found.explained and "in another order than given" in found.line
    assert api.score(api.attack(reading, "prior-mean"), X[:6], Y[:6]).doubt is None
    assert not api.check(reading, X[:6], (Y[:6] + 1) % 10).explained
    for wrong in ([0], [0] * 12, [6, *order[1:]]):
        with pytest.raises(BenchError, match="order: give 12 numbers of examples, 0 to 5"):
            api.check(reading, X[:6], Y[:6], order=wrong)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_training_in_16_bits_agrees_up_to_its_rounding(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(3)
    with torch.autocast("cpu", kind):
        loss = F.cross_entropy(model(8 * X[:2]), Y[:2])
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    reading = api.reading(gradients, model=model, shape=SHAPE, classes=10, batch=2, value_range=(0, 8))
    assert api.check(reading, 8 * X[:2], Y[:2]).explained
    exact = replayed(reading, 8 * X[None, :2], Y[None, :2])
    observed = {n: v[None] for n, v in gradients.items() if v is not None}
    words = f"the training was in {str(kind).removeprefix('torch.')}"
    assert rounded(reading, observed, exact, 8 * X[None, :2], Y[None, :2]) == words
    draw = torch.Generator().manual_seed(0)
    noise = {n: torch.randn(v.shape, generator=draw) for n, v in observed.items()}
    other = {n: exact[n] + (v - exact[n]).norm() / noise[n].norm() * noise[n] for n, v in observed.items()}
    assert rounded(reading, other, exact, 8 * X[None, :2], Y[None, :2]) is None


def test_weights_in_16_bits_in_transport_agree_up_to_their_rounding() -> None:
    model = plain()
    before, after = trained(model, torch.optim.SGD(model.parameters(), lr=0.1), [[0, 1]])
    half = ({n: v.half() if v.is_floating_point() else v for n, v in state.items()} for state in (before, after))
    reading = read(None, plain(), **dict(zip(("before", "after"), half, strict=True)), local=api.SGD(lr=0.1, batch=2))
    line = api.check(reading, X[:2], Y[:2]).line
    assert line.startswith(
        ("agrees up to 16-bit rounding (the weights were rounded to float16", "explains what was sent")
    )
    assert api.check(reading, X[2:4], Y[:2]).explained is False


def test_missing_running_statistics_are_named() -> None:
    model = plain()
    model.train()
    model(3 * X[100:160])
    state = model.eval().state_dict()
    before, after = trained(model, torch.optim.SGD(model.parameters(), lr=0.1), [[0, 1]])
    parameters = [
        [value.clone().numpy() for n, value in each.items() if n in dict(model.named_parameters())]
        for each in (before, after)
    ]
    local = api.SGD(lr=0.1, batch=2)
    line = api.check(read(None, plain(), before=parameters[0], after=parameters[1], local=local), X[:2], Y[:2]).line
    assert "the running statistics of 2 are missing: it has the initial ones; give the whole state_dict()" in line
    model.load_state_dict({**state, **before})
    assert api.check(read(None, model, before=parameters[0], after=parameters[1], local=local), X[:2], Y[:2]).explained


def test_batch_statistics_are_simulated_where_they_are_declared() -> None:
    model = small(nn.BatchNorm1d(24)).train()
    gradients = sent(copy.deepcopy(model), X[:4], Y[:4])
    with pytest.raises(BenchError, match="2 is BatchNorm1d in training mode.*give batch_statistics=True"):
        read(gradients, model, batch=4)
    reading = read(gradients, model, batch=4, batch_statistics=True)
    assert api.check(reading, X[:4], Y[:4]).line == "explains what was sent: cosine 1.0000, scale 1.000"
    found = api.gradient(model.double(), X[:4].double(), Y[:4], batch_statistics=True)
    expected = sent(copy.deepcopy(model), X[:4].double(), Y[:4])
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-12)
    attacked = api.attack(reading, "cpl", evaluations=40)
    assert float(attacked.loss[0]) < 0.5 * float(sum(value.square().sum() for value in reading.values.values()))
    assert not any(value.any() for name, value in reading.model.named_buffers() if name.endswith("running_mean"))


class Heads(nn.Module):
    """A trunk with two heads, of which one is used, and an adapter of rank 2 at the trunk."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.head, self.other = nn.Linear(64, 24), nn.Linear(24, 10), nn.Linear(24, 5)
        self.down, self.up = nn.Linear(64, 2, bias=False), nn.Linear(2, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.head(torch.sigmoid(self.a(x) + self.up(self.down(x))))


@pytest.mark.parametrize("frozen", [(), ("a.weight", "a.bias"), ("head.weight", "head.bias")])
@pytest.mark.parametrize("form", ["mapping", "list"])
def test_a_gradient_that_is_none_was_not_sent(frozen: tuple[str, ...], form: str) -> None:
    model = Heads()
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    gradients: Any = sent(model, X[:1], Y[:1])
    used = {name for name, value in gradients.items() if value is not None}
    for value in model.parameters():
        value.requires_grad_(True)  # None says what is not sent
    reading = read(gradients if form == "mapping" else list(gradients.values()), model)
    assert set(reading.values) == used and not used & {"other.weight", *frozen}
    assert api.check(reading, X[:1], Y[:1]).explained
    assert torch.equal(api.attack(reading, "labels-only").labels[:, 0], Y[:1])


def test_an_update_may_hold_the_adapters_alone() -> None:
    model = Heads()
    for name, value in model.named_parameters():
        value.requires_grad_(name.startswith(("up", "down", "head")))
    start = copy.deepcopy(model)
    whole = trained(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), [[0]])
    for pick in (dict, lambda state: list(state.values())):
        before, after = (
            pick({n: v for n, v in each.items() if n.startswith(("up", "down", "head"))}) for each in whole
        )
        reading = read(None, start, before=before, after=after, local=api.SGD(lr=0.1))
        assert set(reading.values) == {"up.weight", "down.weight", "head.weight", "head.bias"}
        assert api.check(reading, X[:1], Y[:1]).explained
    with pytest.raises(
        BenchError, match="after: no 'up.weight'; give the whole state_dict.., or freeze what is not sent"
    ):
        read(
            None,
            start,
            before=whole[0],
            after={n: v for n, v in whole[1].items() if n != "up.weight"},
            local=api.SGD(lr=0.1),
        )


@pytest.mark.parametrize("flat", [False, True])
def test_a_single_logit_is_two_classes(flat: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, 1), *[nn.Flatten(0)] if flat else []
    )
    binary = Y < 2
    x, y = X[binary], Y[binary]
    known: dict[str, Any] = {"public": x[100:200], "public_labels": y[100:200]}
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0]))
    for rows in ([0], [1], [0, 1, 2]):
        model.zero_grad()
        loss(model(x[rows]).flatten(), y[rows].float()).backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        for name, value in api.gradient(model, x[rows], y[rows], loss=loss).items():
            torch.testing.assert_close(value, gradients[name])
        reading = api.reading(gradients, model=model, shape=SHAPE, classes=2, batch=len(rows), loss=loss, **known)
        assert api.check(reading, x[rows], y[rows]).explained
        api.save_reading(tmp_path / "reading.npz", reading)
        opened = api.open_reading(tmp_path / "reading.npz", model=model, **known)
        assert api.check(opened, x[rows], y[rows]).explained
        assert api.attack(reading, "labels-only").labels[0].tolist() == sorted(y[rows].tolist())


# --- layers and names -----------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """An LSTM over the rows of a picture: `vmap` has no rule for its kernel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cells, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x.squeeze(1))[0][:, -1])


def test_gradients_of_several_readings_of_an_lstm_are_autograds() -> None:
    model = Recurrent().double().eval()
    each = [sent(copy.deepcopy(model), X[n : n + 1].double(), Y[n : n + 1]) for n in range(3)]
    weights = {name: value.detach() for name, value in model.named_parameters()}
    found = group_gradients(model, weights, X[:3, None].double(), F.one_hot(Y[:3, None], 10).double())
    for name, value in found.items():
        torch.testing.assert_close(value, torch.stack([row[name] for row in each]), rtol=1e-9, atol=1e-12)  # type: ignore[misc]


class Made(nn.Module):
    """Layers and a forward pass, given by the test."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor], **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def _unusual(kind: str) -> nn.Module:
    """A classifier of pictures that is ordinary elsewhere."""
    torch.manual_seed(0)
    head = nn.Linear(24, 10)
    if kind == "a layer used at two places":
        twice = nn.Sequential(nn.Linear(24, 24), nn.Tanh())
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), twice, twice, head)
    if kind == "a scalar parameter":
        return Made(
            lambda m, x: m.h(torch.tanh(m.a(x.flatten(1)))) * m.t.exp(),
            a=nn.Linear(64, 24),
            h=head,
            t=nn.Parameter(torch.tensor(0.3)),
        )
    if kind == "embedded positions":
        return Made(
            lambda m, x: m.h((m.a(x[:, 0]) + m.e(torch.arange(8))).tanh().flatten(1)),
            a=nn.Linear(8, 3),
            e=nn.Embedding(8, 3),
            h=head,
        )
    if kind == "attention":
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        return Made(lambda m, x: m.h(m.a(x[:, 0]).flatten(1)), a=layer, h=nn.Linear(64, 10))
    first = nn.Linear(64, 24)
    if kind == "a parametrised first layer":
        first = nn.utils.parametrizations.weight_norm(first)
    model = nn.Sequential(nn.Flatten(), first, nn.Tanh(), head)
    if kind == "a frozen first layer":
        first.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "kind",
    [
        "a layer used at two places",
        "a scalar parameter",
        "embedded positions",
        "attention",
        "a parametrised first layer",
        "a frozen first layer",
    ],
)
def test_unusual_models_are_attacked_as_they_are(kind: str) -> None:
    model = _unusual(kind).double().eval()
    gradients = sent(model, X[:3].double(), Y[:3])
    for name, value in api.gradient(model, X[:3].double(), Y[:3]).items():
        if (expected := gradients[name]) is not None:
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    reading = read(gradients, model, batch=3)
    assert api.check(reading, X[:3], Y[:3]).line == "explains what was sent: cosine 1.0000, scale 1.000"
    attacked = api.attack(reading, "cpl", evaluations=30)
    assert float(attacked.loss[0]) < 0.3 * float(sum(value.square().sum() for value in reading.values.values()))
    if kind.endswith(("two places", "scalar parameter")):
        api.attack(reading, "analytic")
    else:
        with pytest.raises(BenchError, match="its first layer is no fully connected layer with bias"):
            api.attack(reading, "analytic")
    for held in (model, reading.model):  # a call with other weights leaves the model as it was
        assert all(isinstance(value, nn.Parameter) for value in held.parameters())
