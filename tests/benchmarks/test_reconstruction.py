"""How long one evaluation of a reconstruction takes, against the published one-at-a-time way.

`tox -e benchmark` prints the table; quote ratios within one run, medians.  One thread.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from bench import api
from bench.gradients import group_gradients, one_hot

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
VICTIMS = 32

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def problem(name: str) -> tuple[torch.nn.Module, dict[str, Tensor], Tensor, Tensor]:
    model = api.build("dlg-lenet", shape=SHAPES[name], classes=10)
    weights = {key: value.detach() for key, value in model.named_parameters()}
    draw = torch.Generator().manual_seed(0)
    inputs = torch.rand((VICTIMS, 1, *SHAPES[name]), generator=draw)
    labels = torch.randint(10, (VICTIMS, 1), generator=draw)
    return model, weights, inputs, one_hot(labels, 10, inputs.dtype)


def batched(name: str) -> Callable[[], Tensor]:
    """All victims at once, by forward hooks and grouped convolutions."""
    model, weights, inputs, targets = problem(name)
    observed = group_gradients(model, weights, inputs, targets)
    dummies = torch.rand(inputs.shape, generator=torch.Generator().manual_seed(1))

    def evaluate() -> Tensor:
        x = dummies.clone().requires_grad_()
        sent = group_gradients(model, weights, x, targets, differentiable=True)
        loss = sum(((sent[key] - observed[key]) ** 2).sum() for key in sent)
        return torch.autograd.grad(loss, x)[0]  # type: ignore[arg-type]

    return evaluate


def one_at_a_time(name: str) -> Callable[[], Tensor]:
    """As the published loops: victim by victim, autograd through autograd."""
    model, weights, inputs, targets = problem(name)
    leaves = {key: value.requires_grad_() for key, value in weights.items()}
    observed = group_gradients(model, weights, inputs, targets)
    dummies = torch.rand(inputs.shape, generator=torch.Generator().manual_seed(1))

    def evaluate() -> Tensor:
        slopes = []
        for victim in range(VICTIMS):
            x = dummies[victim].clone().requires_grad_()
            logits = functional_call(model, leaves, (x,))
            loss = -(targets[victim] * logits.log_softmax(-1)).sum()
            sent = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
            gap = sum(((value - observed[key][victim]) ** 2).sum() for key, value in zip(leaves, sent, strict=True))
            slopes.append(torch.autograd.grad(gap, x)[0])  # type: ignore[arg-type]
        return torch.stack(slopes)

    return evaluate


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("way", [one_at_a_time, batched])
@pytest.mark.benchmark(group="evaluation, 32 victims", warmup=True)
def test_one_evaluation(benchmark: Callable[..., Tensor], name: str, way: Callable[..., object]) -> None:
    evaluate = way(name)
    assert callable(evaluate)
    batch = benchmark(evaluate)
    expected = one_at_a_time(name)()
    # Single precision: errors are relative to the largest value (tests/test_gradients.py is in float64).
    gap = (batch.reshape(expected.shape) - expected).abs().max()
    assert float(gap) < 1e-5 * float(expected.abs().max())
