"""Contracts for detectors: a score for every received model, repeatable, without a change to the model."""

import math
from collections.abc import Iterator

import torch
from torch import nn

from bench.contracts.base import DECLARED, Contract, require
from bench.detectors.base import Detector, ReceivedModel
from bench.gradients import one_hot

CLASSES = 5


def gives_scores(detector: Detector) -> None:
    """Check that the detector's score for a received model is a number or infinity, not NaN, for clients with 1 and 8
    examples, and for fully connected and convolutional nets. Raises `ContractBroken` otherwise."""
    for received in _received():
        score, count = detector.score(received), len(received.inputs)
        require(isinstance(score, int | float), f"the score is no float but {type(score).__name__}")
        require(not math.isnan(score), f"the score is NaN for a client with {count} examples")


def repeatable(detector: Detector) -> None:
    """Check that the detector gives equal scores if a received model is scored twice. Raises `ContractBroken`
    otherwise."""
    for received in _received():
        first, again = detector.score(received), detector.score(received)
        require(first == again, f"two scores of the same model differ: {first:g}, {again:g}")


def leaves_the_model(detector: Detector) -> None:
    """Check that the detector does not change the received weights or the client's examples. Raises `ContractBroken`
    otherwise."""
    for received in _received():
        kept = [received.weights, received.previous, {"inputs": received.inputs, "targets": received.targets}]
        before = [{name: value.clone() for name, value in each.items()} for each in kept]
        detector.score(received)
        same = all(
            torch.equal(value, old[name])
            for each, old in zip(kept, before, strict=True)
            for name, value in each.items()
        )
        require(same, "the detector writes to the received weights or to the client's examples")


def _received() -> Iterator[ReceivedModel]:
    """Yield received models of two architectures, for clients with 1 and 8 examples."""
    nets = (
        nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, CLASSES)),
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, CLASSES)),
    )
    draw = torch.Generator().manual_seed(0)
    for net in nets:
        weights, previous = (
            {name: 0.2 * torch.randn(value.shape, generator=draw) for name, value in net.named_parameters()}
            for _ in range(2)
        )
        for count in (1, 8):
            labels = torch.randint(CLASSES, (count,), generator=draw)
            yield ReceivedModel(
                model=net.eval(),
                weights=weights,
                previous=previous,
                inputs=torch.rand(count, 1, 6, 6, generator=draw),
                targets=one_hot(labels, CLASSES, torch.float32),
            )


CONTRACTS = (
    DECLARED,
    Contract("scores", "a score that is no NaN, also for a client with a single example", gives_scores),
    Contract("repeatable", "the same score for the same model", repeatable),
    Contract("untouched", "received weights and the client's examples stay as they are", leaves_the_model),
)
