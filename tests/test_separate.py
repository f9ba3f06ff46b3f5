"""Promise: a mean over clients of signs, ternary values or several levels hides no client's message."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bench import api
from bench.attacks.base import closed_form
from bench.attacks.objective.lattice import lattice
from bench.attacks.objective.separate import separate
from bench.attacks.search.clients import by_client
from bench.attacks.search.prior import NoiseModel
from bench.defenses.base import Setting, Transform
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.levels import StochasticLevels
from bench.defenses.transforms.mask import KeepLargest
from bench.defenses.transforms.sign import ScaledSign
from bench.federated.describe import describe
from bench.federated.stages import DrawKey, Stages
from bench.points import point
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Tensors

SETTING = Setting(clients=10, per_round=4, rounds=3, steps=1, batch=1, client_examples=9, rate=0.1)
TERNARY = StochasticLevels(levels=1, norm="max")


def sent(signs: bool, senders: int, seed: int, count: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Messages with shared structure (sender, coordinate), and their mean in single precision, as a server takes it."""
    random = np.random.default_rng(seed)
    common = random.standard_normal(count)
    values = 0.5 * common + random.standard_normal((senders, count))
    integers = np.sign(values) if signs else np.sign(values) * (random.random(values.shape) < np.abs(values) / 3)
    messages = (0.05 + 0.1 * random.random((senders, 1))) * integers
    mean = torch.from_numpy(messages).float().mean(0).double().numpy()
    return messages, mean


def farthest(messages: np.ndarray, found: np.ndarray) -> float:
    """The largest distance of a message from the nearest found message, as a share of its norm."""
    gaps = np.linalg.norm(messages[:, None] - found[None], axis=2)
    return float((gaps.min(1) / np.linalg.norm(messages, axis=1)).max())


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("senders", [2, 5, 8])
def test_each_message_is_read_off_the_mean(signs: bool, senders: int) -> None:
    messages, mean = sent(signs, senders, seed=senders)
    found = separate(mean, senders, signs=signs)
    assert found is not None
    assert found.shape == messages.shape
    assert farthest(messages, found) < 1e-4


def test_a_client_below_single_precision_does_not_hide_the_others() -> None:
    messages, _ = sent(True, 5, seed=1)
    messages[2] *= 1e-9
    found = separate(torch.from_numpy(messages).float().mean(0).double().numpy(), 5, signs=True)
    assert found is not None
    assert farthest(np.delete(messages, 2, 0), found) < 1e-4
    assert np.linalg.norm(found, axis=1).min() < 1e-3


def test_no_messages_are_made_up() -> None:
    random = np.random.default_rng(0)
    _, mean = sent(False, 4, seed=3)
    assert separate(random.standard_normal(500), 4, signs=False) is None
    assert separate(np.zeros(50), 4, signs=True) is None
    assert separate(np.full(50, np.nan), 4, signs=True) is None
    assert separate(mean + 1e-3 * random.standard_normal(len(mean)), 4, signs=False) is None
    assert separate(mean, 3, signs=False) is None  # another client's step is left over


def levels(senders: int, seed: int, count: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients in units of the clients' steps and messages of several levels, both (sender, coordinate), and the mean
    in single precision."""
    random = np.random.default_rng(seed)
    values = 0.6 * random.standard_normal(count) + 0.8 * random.standard_normal((senders, count))
    below = np.floor(values)
    messages = below + (random.random(values.shape) < values - below)
    messages *= 0.05 + 0.1 * random.random((senders, 1))
    return values, messages, torch.from_numpy(messages).float().mean(0).double().numpy()


def test_a_mean_of_levels_gives_each_message_to_an_approximate_gradient() -> None:
    """Differences of the mean leave integer combinations of the clients' columns; a gradient with 30 % noise selects
    the client's column."""
    values, messages, mean = levels(5, seed=0)
    found = lattice(mean, 5)
    assert found is not None
    noisy = values + 0.3 * np.random.default_rng(1).standard_normal(values.shape)
    combinations = found.combinations()
    along, squares = found.along(combinations, noisy)
    chosen = found.chosen(combinations, 2 * along.T - squares, noisy)
    assert chosen is not None
    separated = chosen[0].messages(chosen[1])
    assert chosen[1].tolist() == [0, 1, 2, 3, 4]
    apart = np.abs(separated - messages) > 1e-4 * np.abs(messages).max()
    assert apart.mean() < 1e-3


def test_no_levels_are_made_up() -> None:
    _, _, mean = levels(5, seed=2, count=1000)
    random = np.random.default_rng(0)
    assert lattice(random.standard_normal(1000), 5) is None
    assert lattice(np.zeros(1000), 5) is None
    assert lattice(np.full(1000, np.nan), 5) is None
    assert lattice(mean + 1e-3 * random.standard_normal(len(mean)), 5) is None


@pytest.mark.parametrize(
    ("transforms", "values"),
    [
        ((ScaledSign(),), "signs"),
        ((Clip(bound=1.0), TERNARY), "ternary"),
        ((StochasticLevels(levels=None, norm="l2"),), "levels"),
        ((ScaledSign(), Clip(bound=1.0)), None),
        ((KeepLargest(share=0.7),), None),
    ],
)
def test_a_quantised_mean_describes_single_clients(transforms: tuple[Transform, ...], values: str | None) -> None:
    made = torch.Generator().manual_seed(0)
    shapes = {"a": (30, 5), "b": (60,)}
    updates = {name: torch.randn((4, *shape), generator=made) for name, shape in shapes.items()}
    found = Stages(setting=SETTING, transforms={"client": transforms}, states={})
    messages, _ = found.apply("client", updates, DrawKey(seed=1, draw=0, round=0), (0, 1, 2, 3))
    probe = {name: value[0] for name, value in updates.items()}
    description = describe(found, point("aggregate"), round_=0, unit=1.0, probe=probe)
    assert description is not None
    clients = description.clients
    assert (clients and clients.values) == values
    if clients is not None and values == "signs":
        alone = {"a": messages["a"][:1]}  # a tensor is missing
        simulated = clients.alone.sent({name: value[:1, None] for name, value in updates.items()}, alone)
        assert set(simulated) == {"a"}
        assert torch.allclose(simulated["a"], alone["a"])


def behind_a_mean(transform: Transform, client: int | None) -> tuple[Reading, Tensors, torch.Tensor, torch.Tensor]:
    """A mean over four clients, or a client's message alone, without its last layer; messages, inputs, labels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 10))
    public, labels = torch.rand(200, 1, 5, 8), torch.arange(200) % 10
    x, y = torch.rand(4, 1, 5, 8), torch.tensor([1, 2, 4, 7])
    each = [api.gradient(model, x[n : n + 1], y[n : n + 1]) for n in range(4)]
    updates = {name: torch.stack([gradient[name] for gradient in each]) for name in each[0]}
    found = Stages(setting=SETTING, transforms={"client": (transform,)}, states={})
    messages, _ = found.apply("client", updates, DrawKey(seed=1, draw=0, round=0), (0, 1, 2, 3))
    means = {name: value.mean(0, keepdim=True) for name, value in messages.items()}
    alone = api.reading(means, model=model, shape=(1, 5, 8), classes=10, public=public)
    probe = {name: value[0] for name, value in updates.items()}
    reading = replace(
        alone,
        labels=y[None],
        public_labels=labels,
        point=point("aggregate"),
        senders=4,
        batch=1,
        description=describe(found, point("aggregate"), round_=0, unit=1.0, probe=probe),
    )
    if client is None:
        return reading, messages, x, y
    assert reading.description is not None
    assert reading.description.clients is not None
    one = replace(
        reading,
        values={name: messages[name][client][None, None] for name in ("1.weight", "3.weight")},
        labels=y[client][None, None],
        senders=1,
        description=reading.description.clients.alone,
    )
    return one, messages, x, y


def test_a_message_without_the_last_layer_has_a_noise_estimate() -> None:
    one, _, _, _ = behind_a_mean(TERNARY, 0)
    noise = NoiseModel.of(one, 1)
    assert noise.bound
    observed = {name: value[:, 0] for name, value in one.values.items()}
    assert 0 < float(noise.of_rows(observed)[0]) <= noise.variance


def test_all_tensors_of_a_client_meet_in_one_search() -> None:
    """The search sees a reading for each client: all of the client's messages and its label."""
    reading, messages, x, y = behind_a_mean(ScaledSign(), None)
    seen = list[Reading]()

    def search(part: Reading, budget: Budget) -> Reconstruction:
        """Answer with the client whose message the reading holds."""
        seen.append(part)
        sent = messages["1.weight"].flatten(1)
        client = torch.cdist(part.values["1.weight"].flatten(1), sent).argmin(1)
        evaluations = torch.full((4,), budget.evaluations)
        return replace(closed_form(part, x[client][:, None], part.labels), evaluations=evaluations)

    result = by_client(reading, Budget(evaluations=100), Key(seed=0), search)
    assert result is not None
    assert [set(part.values) for part in seen] == [{"1.weight"}, {"1.weight", "3.weight"}]
    for part in seen:
        assert part.senders == part.examples == 1
        assert part.labels is not None
        for row, client in enumerate(
            torch.cdist(part.values["1.weight"].flatten(1), messages["1.weight"].flatten(1)).argmin(1)
        ):
            assert part.labels[row, 0] == y[client]
            for name, value in part.values.items():
                assert torch.allclose(value[row, 0], messages[name][client], rtol=1e-3)
    assert result.evaluations.tolist() == [100]
    assert torch.equal(result.inputs[0].flatten(1).sort(0).values, x.flatten(1).sort(0).values)
