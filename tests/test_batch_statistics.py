"""BatchNorm in training mode: a batch is attacked as a whole, with or without the client's running statistics."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bench import api
from bench.errors import BenchError
from bench.trip import Reading

_DATA = load_digits()
X = torch.from_numpy(_DATA.images[:, None] / 16).float()
Y = torch.from_numpy(_DATA.target).long()
KNOWN: dict[str, Any] = {"public": X[1000:1300], "public_labels": Y[1000:1300]}


def network(momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=momentum), nn.Sigmoid()),
        *(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8, momentum=momentum), nn.Sigmoid()),
        *(nn.Flatten(), nn.Linear(128, 10)),
    ).train()
    for n in range(5):
        model(X[1300 + 20 * n : 1320 + 20 * n])
    return model


def trained(model: nn.Module, batches: list[list[int]]) -> dict[str, Tensor]:
    """The state after plain PyTorch's steps on a copy of the model."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(X[batch]), Y[batch]).backward()
        optimizer.step()
    return model.state_dict()


def _uses(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def read(model: nn.Module, batches: list[list[int]], after: Any, **options: Any) -> Reading:
    local = api.SGD(lr=0.1, batch=len(batches[0]), steps=len(batches))
    known: dict[str, Any] = {"shape": (1, 8, 8), "classes": 10, "labels": Y[_uses(batches)], **KNOWN, **options}
    return api.reading(before=model.state_dict(), after=after, local=local, model=model, batch_statistics=True, **known)


@pytest.mark.parametrize("momentum", [0.1, 0.6, None])
@pytest.mark.parametrize("batches", [[[0, 1]], [[0, 1], [2, 3], [4, 5]]])
def test_the_objective_is_zero_at_the_truth_and_not_at_other_batches(
    momentum: float | None, batches: list[list[int]]
) -> None:
    """The statistics move as torch moves them, over steps and with a cumulative mean."""
    model = network(momentum)
    after = trained(model, batches)
    reading = read(model, batches, after)
    assert reading.statistics is not None and len(reading.statistics) == 4
    truth = _uses(batches)
    checked = api.check(reading, X[truth], Y[truth])
    assert checked.line == "explains what was sent: cosine 1.0000, scale 1.000"
    other = trained(model, [[n + 20 for n in batch] for batch in batches])
    wrong = read(model, batches, {name: other[name] if "running" in name else after[name] for name in after})
    checked = api.check(wrong, X[truth], Y[truth])
    assert checked.explained is False
    assert "; the running statistics are of other batches (off by" in checked.line


def test_statistics_come_with_a_gradient_too_and_for_several_readings() -> None:
    model, rows, states = network(), [[0, 1], [2, 3]], []
    gradients: list[dict[str, Tensor]] = []
    for row in rows:
        client = copy.deepcopy(model)
        F.cross_entropy(client(X[row]), Y[row]).backward()
        gradients.append({name: value.grad for name, value in client.named_parameters() if value.grad is not None})
        states.append(client.state_dict())

    def made(order: list[int]) -> Reading:
        statistics = {name: torch.stack([states[n][name] for n in order]) for name in states[0]}
        return api.reading(
            {name: torch.stack([each[name] for each in gradients]) for name in gradients[0]},
            model=model,
            shape=(1, 8, 8),
            classes=10,
            batch=2,
            labels=Y[torch.tensor(rows)],
            batch_statistics=True,
            statistics=statistics,
            **KNOWN,
        )

    assert api.check(made([0, 1]), X[:4], Y[:4]).explained
    line = api.check(made([1, 0]), X[:4], Y[:4]).line
    assert "the running statistics are of other batches" in line and "(reading" not in line.split("; give")[1]
    # rows of a search keep their statistics
    attacked = api.attack(made([0, 1]), "map", evaluations=16)
    alone = api.attack(made([0, 1]).of([1]), "map", evaluations=16)
    torch.testing.assert_close(attacked.inputs[1], alone.inputs[0], rtol=1e-3, atol=1e-3)


def test_the_statistics_show_what_the_gradient_of_a_bias_does_not() -> None:
    model = network()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == "7.bias")
    after = trained(model, [[0, 1]])
    parameters = {name: after[name] for name, _ in model.named_parameters()}
    with_them, without = read(model, [[0, 1]], after), read(model, [[0, 1]], parameters)
    assert with_them.statistics is not None and without.statistics is None
    found = [api.attack(reading, "map", evaluations=60) for reading in (with_them, without)]
    psnr = [api.score(claim, X[:2], Y[:2], **KNOWN).summary.medians["psnr_db"] or 0.0 for claim in found]
    assert psnr[0] > psnr[1] + 2
    note = "BatchNorm's running statistics, sent by the client, are a term of the objective"
    assert note in found[0].notes and note not in found[1].notes


@pytest.mark.parametrize(
    ("statistics", "options", "line"),
    [
        (lambda model: model.state_dict(), {}, "the model's own; give a copy of the model from before"),
        (lambda model: {}, {}, "no '1.running_mean'; give the client's state_dict"),
        (
            lambda model: {name: torch.ones(3) for name in model.state_dict()},
            {},
            r"'1.running_mean' has shape \(3,\), expected \(8,\), or a row per reading",
        ),
        (lambda model: model.state_dict(), {"batch_statistics": False}, "give batch_statistics=True"),
        (lambda model: trained(model, [[0, 1]]), {"defense": "prune"}, "leave statistics or defense out"),
    ],
)
def test_statistics_that_do_not_fit_are_one_line(statistics: Any, options: dict[str, Any], line: str) -> None:
    model = network()
    gradients = {name: torch.ones_like(value) for name, value in model.named_parameters()}
    given = statistics(model)
    if options.get("batch_statistics") is False:
        model.eval()
    known: dict[str, Any] = {"batch": 2, "batch_statistics": True, **KNOWN, **options}
    with pytest.raises(BenchError, match=f"^statistics.*{line}"):
        api.reading(gradients, model=model, shape=(1, 8, 8), classes=10, statistics=given, **known)


def test_a_reading_of_batchnorm1d_is_checked_and_attacked_without_its_truth() -> None:
    """A single example has no batch statistics behind a vector: public examples come in batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Sigmoid(), nn.Linear(32, 10)).train()
    batches = [[0, 1, 2]]
    reading = read(model, batches, trained(model, batches))
    assert api.check(reading).line == "nothing in the reading contradicts what was declared"
    attacked = api.attack(reading, "map", evaluations=220, params={"starts": 1})
    assert float(attacked.loss[0]) < 0.1 * float(
        sum(v.square().sum() for v in reading.values.values()) / reading.unit**2
    )


@pytest.mark.slow
def test_resnet18_is_explained_and_attacked_as_a_batch() -> None:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    model = resnet18(num_classes=10).train()
    x, y = torch.rand(2, 3, 64, 64), torch.tensor([3, 7])
    client = copy.deepcopy(model)
    F.cross_entropy(client(x), y).backward()
    gradients = {name: value.grad for name, value in client.named_parameters()}
    reading = api.reading(
        gradients,
        model=model,
        shape=(3, 64, 64),
        classes=10,
        batch=2,
        batch_statistics=True,
        statistics=client.state_dict(),
        public=torch.rand(8, 3, 64, 64),
        public_labels=torch.arange(8),
    )
    assert reading.statistics is not None and len(reading.statistics) == 40
    assert api.check(reading, x, y).line == "explains what was sent: cosine 1.0000, scale 1.000"
    attacked = api.attack(reading, "cpl", evaluations=30)
    assert sorted(attacked.labels[0].tolist()) == [3, 7]
    losses = [loss[0] for _, loss in attacked.history]
    assert losses[-1] < 0.5 * losses[0]
