"""Batch statistics of BatchNorm that a client's running statistics show, as a term of the matching objective."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bench.gradients import BATCH_NORM
from bench.trip import Reading

Calls = Mapping[str, list[tuple[Tensor, Tensor]]]


@contextmanager
def watched(model: nn.Module) -> Iterator[Calls]:
    """Collect the batch statistics of each forward pass of `model` inside the `with` statement. The context manager
    yields a dictionary from the path of each BatchNorm layer with running statistics to a list with a pair for each
    call: mean and unbiased variance, both (channel,)."""
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {path: [] for path, _ in layers(model)}

    def keep(path: str) -> Any:
        def hook(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            values = arguments[0].transpose(0, 1).flatten(1)
            calls[path].append((values.mean(1), values.var(1)))

        return hook

    handles = [layer.register_forward_pre_hook(keep(path)) for path, layer in layers(model)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the BatchNorm layers of `model` whose batch statistics an attack can match, as pairs (path, layer): those
    with running statistics."""
    for path, layer in model.named_modules():
        if isinstance(layer, BATCH_NORM) and layer.running_mean is not None:
            yield path, layer


def statistics_gap(reading: Reading, calls: Calls, *, simulated_steps: int) -> Tensor:
    """Return a distance (reading,) between the batch statistics of candidates and the client's batch statistics at its
    BatchNorm layers.

    - `reading`: the attacked readings; the client's statistics come from `reading.statistics`.
    - `calls`: batch statistics from `watched`, of local steps simulated on the candidates, in the order of the steps.
    - `simulated_steps`: number of simulated local steps.

    The distance is a mean over layers and channels: squared differences of means over the variance, and squared
    relative differences of variances. A batch without relation to the client's has a distance of about 1."""
    assert reading.statistics is not None
    gaps = []
    for path, layer in layers(reading.model):
        if not calls[path]:
            continue  # a layer that the model does not call
        mean, variance = (torch.stack([call[n] for call in calls[path]]) for n in (0, 1))
        count = len(mean) // (simulated_steps * len(reading))
        by_reading = (simulated_steps, len(reading), count, -1)
        mean, variance = (v.reshape(by_reading).transpose(0, 1).flatten(1, 2) for v in (mean, variance))
        true_mean, true_variance = (
            _behind(layer, start, reading.statistics[f"{path}.{name}"], count * reading.steps)
            for name, start in (("running_mean", layer.running_mean), ("running_var", layer.running_var))
        )
        scale = true_variance.clamp_min(0) + layer.eps
        shares = _shares(layer, mean.shape[1]).to(mean)
        mean, variance = (torch.einsum("c,rcv->rv", shares / shares.sum(), value) for value in (mean, variance))
        gaps += [(mean - true_mean).square() / scale, ((variance - true_variance) / scale).square()]
    return torch.stack([gap.mean(1) for gap in gaps]).mean(0)


def _behind(layer: Any, start: Tensor, after: Tensor, calls: int) -> Tensor:
    """Return the mean over `calls` calls of a batch statistic, weighted as in running statistics, from the values at
    the `start` (channel,) and `after` the calls (reading, channel)."""
    moved = float(_shares(layer, calls).sum())
    return (after.double() - (1 - moved) * start.double()).div(moved).to(after)


def _shares(layer: Any, calls: int) -> Tensor:
    """Return the share of each of `calls` calls in the running statistics after the last, (call,), float64."""
    seen = torch.arange(1, calls + 1, dtype=torch.float64)
    if layer.momentum is None:  # a mean over all calls so far
        taken = 1 / (seen + float(layer.num_batches_tracked))
    else:
        taken = torch.full_like(seen, layer.momentum)
    kept = (1 - taken).flip(0).cumprod(0).flip(0)
    return taken * torch.cat([kept[1:], kept.new_ones(1)])
