"""Promise: a mean over clients of signs or ternary values hides no client's message."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.records import attack_cell

from bench.answer.context import Memory, RunContext
from bench.answer.readings import take_reading
from bench.answer.setup import prepare
from bench.answer.truth import truth_from
from bench.answer.victims import batches_of
from bench.attacks.objective.separate import separate
from bench.cell import DataRef, Federated, Grants
from bench.defenses.base import Setting, Transform
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.levels import StochasticLevels
from bench.defenses.transforms.mask import KeepLargest
from bench.defenses.transforms.sign import ScaledSign
from bench.federated.describe import describe
from bench.federated.stages import DrawKey, Stages
from bench.gradients import one_hot
from bench.points import point
from bench.registry import entries as registry
from bench.rng import Key
from bench.sweep.plan import Resolver
from bench.trip import Budget

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


@pytest.mark.parametrize(
    ("transforms", "signs"),
    [
        ((ScaledSign(),), True),
        ((Clip(bound=1.0), TERNARY), False),
        ((StochasticLevels(levels=None, norm="l2"),), None),
        ((ScaledSign(), Clip(bound=1.0)), None),
        ((KeepLargest(share=0.7),), None),
    ],
)
def test_a_quantised_mean_describes_single_clients(transforms: tuple[Transform, ...], signs: bool | None) -> None:
    made = torch.Generator().manual_seed(0)
    shapes = {"a": (30, 5), "b": (60,)}
    updates = {name: torch.randn((4, *shape), generator=made) for name, shape in shapes.items()}
    found = Stages(setting=SETTING, transforms={"client": transforms}, states={})
    messages, _ = found.apply("client", updates, DrawKey(seed=1, draw=0, round=0), (0, 1, 2, 3))
    probe = {name: value[0] for name, value in updates.items()}
    description = describe(found, point("aggregate"), round_=0, unit=1.0, probe=probe)
    assert description is not None
    clients = description.clients
    assert (clients and clients.signs) == signs
    if clients is not None and signs:
        alone = {"a": messages["a"][:1]}  # a tensor is missing
        simulated = clients.alone.sent({name: value[:1, None] for name, value in updates.items()}, alone)
        assert set(simulated) == {"a"}
        assert torch.allclose(simulated["a"], alone["a"])


@pytest.mark.slow
def test_map_searches_each_client_behind_a_mean_of_signs(tmp_path: Path) -> None:
    cell = attack_cell(
        dataset=DataRef(name="digits", sha256=Resolver(None).data("digits", {}).sha256),
        model="dlg-lenet",
        defense="sign",
        attack="map",
        knowledge="adaptive",
        grants=Grants(labels=True),
        point="aggregate",
        federated=Federated(batch=1, per_round=4, clients=20),
        readings=1,
    )
    setup = prepare(cell, RunContext(run=tmp_path), Memory())
    truth = truth_from(cell, setup.source)
    reading = take_reading(cell, setup, truth, batches_of(cell, setup, truth.victims, truth.point))
    attack = registry.of("attacks", cell.attack)
    found = attack.reconstruct(reading, Budget(evaluations=120), Key.of_attacker(0))
    assert any("each client's message" in note for note in found.notes)
    assert (found.evaluations <= 120).all()
    for row, examples in enumerate(truth.examples.inputs):
        errors = (examples[:, None] - found.inputs[row][None]).square().flatten(2).mean(2)
        assert float(errors.amin(1).median()) < 0.02  # 17 dB
    assert attack.objective(reading)(found.inputs, one_hot(found.labels, reading.classes, torch.float32)).shape == (1,)
