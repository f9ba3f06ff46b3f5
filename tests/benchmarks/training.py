"""What a client's local step costs: ours beside opacus, a per-client `vmap(grad)` and a plain loop, taken in turn.

`python -P tests/benchmarks/training.py`: Fed-αCDP's model on MNIST, B = 5, one thread; ratios of one run.
"""

import argparse
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.func import grad, vmap

from bench.cell import Federated
from bench.defenses.base import Setting
from bench.federated.batches import Batches
from bench.federated.clients import local_updates, network
from bench.federated.draws import StreamDraws
from bench.federated.stages import DrawKey, stages
from bench.gradients import example_loss, group_gradients
from bench.registry import entries as registry

CLIP, SIGMA, RATE, BATCH = 4.0, 0.5, 0.05, 5
FLOPS = 14.2e6 * BATCH  # of one step: 7.1 million multiply-adds an example, forward and backward
DEFENSES: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", {}),
    "fed-sdp": ("fed-sdp", {"at": "client"}),
    "fed-cdp": ("fed-cdp", {"sigma": SIGMA, "noise": "code"}),
    "fed-cdp on each example": ("fed-cdp", {"sigma": SIGMA}),
    "fed-alpha-cdp": ("fed-alpha-cdp", {"sigma": SIGMA, "noise": "code"}),
    "quantile, per example": ("quantile", {"sigma": SIGMA, "at": "example", "correction": "none"}),
    "adaclip, per example": ("adaclip", {"sigma": SIGMA, "at": "example"}),
}
Once = Callable[[], None]


def case(steps: int, clients: int) -> tuple[nn.Module, dict[str, Tensor], Batches, Federated]:
    model = registry.instance("models", "fed-cnn", {})
    module = model.build((1, 28, 28), 10).eval()
    source = torch.Generator().manual_seed(0)
    shape = (clients, steps, BATCH)
    batches = Batches(
        clients=tuple(range(clients)),
        inputs=torch.rand((*shape, 1, 28, 28), generator=source),
        labels=torch.randint(10, shape, generator=source),
    )
    federated = Federated(
        algorithm="fedavg", clients=1000, per_round=100, steps=steps, batch=BATCH, rate=RATE, client_examples=500
    )
    return module, model.initial(module, 0), batches, federated


def ours(name: str, steps: int, clients: int) -> Once:
    module, weights, batches, federated = case(steps, clients)
    entry, params = DEFENSES[name]
    setting = Setting(clients=1000, per_round=100, rounds=100, steps=steps, batch=BATCH, client_examples=500, rate=RATE)
    shapes = {key: tuple(value.shape) for key, value in weights.items()}
    defended = stages(registry.instance("defenses", entry, params), setting, shapes).of(batches.clients)
    net, draw_key = network(module), DrawKey(seed=0, draw=0, round=0)

    def once() -> None:
        draws = StreamDraws.of(0, 0, 0, batches.clients, torch.device("cpu"))
        local_updates(net, module, weights, batches, federated, defended, draw_key, draws, classes=10)

    return once


def one_by_one(steps: int, clients: int, step: Callable[[nn.Module, Tensor, Tensor], None]) -> Once:
    """Client after client, each from the shared weights."""
    module, weights, batches, _ = case(steps, clients)
    held = module if step is not opacus_step else GradSampleModule(module.train(), loss_reduction="sum")

    def once() -> None:
        for client in range(clients):
            module.load_state_dict(weights)
            for n in range(steps):
                step(held, batches.inputs[client, n], batches.labels[client, n])

    return once


def plain_step(module: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    loss = nn.functional.cross_entropy(module(inputs), labels)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(module.parameters(), gradients, strict=True):
            parameter.sub_(gradient, alpha=RATE)


def opacus_step(module: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    """Per-example gradients by opacus' hooks, clipped tensor by tensor, noise over B."""
    module.zero_grad()
    nn.functional.cross_entropy(module(inputs), labels, reduction="sum").backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(clipped(parameter.grad_sample), alpha=RATE)  # type: ignore[attr-defined]
            parameter.grad_sample = None  # type: ignore[attr-defined]


def with_optimizer(steps: int, clients: int) -> Once:
    """opacus as its users have it: hooks and `DPOptimizer`, which clips the whole gradient."""
    module, weights, batches, _ = case(steps, clients)
    held = GradSampleModule(module.train())
    optimizer = DPOptimizer(
        torch.optim.SGD(held.parameters(), lr=RATE),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        expected_batch_size=BATCH,
    )

    def once() -> None:
        for client in range(clients):
            module.load_state_dict(weights)
            for n in range(steps):
                optimizer.zero_grad()
                outputs = held(batches.inputs[client, n])
                nn.functional.cross_entropy(outputs, batches.labels[client, n]).backward()
                optimizer.step()

    return once


def vmap_step(module: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    weights = {name: value.detach() for name, value in module.named_parameters()}
    gradients = vmap(grad(example_loss(module)), in_dims=(None, 0, 0))(weights, inputs, labels)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.sub_(clipped(gradients[name]), alpha=RATE)


def clipped(each: Tensor) -> Tensor:
    factor = CLIP / each.flatten(1).norm(dim=1).clamp(min=CLIP)
    mean = torch.einsum("b,b...->...", factor, each) / len(each)
    return mean + SIGMA * CLIP / len(each) * torch.randn_like(mean)


def contenders(steps: int, clients: int) -> dict[str, Once]:
    runs = {name: ours(name, steps, clients) for name in DEFENSES}
    runs["a plain loop, no defense"] = one_by_one(steps, clients, plain_step)
    runs["opacus, fed-cdp"] = one_by_one(steps, clients, opacus_step)
    runs["opacus' optimizer, flat"] = with_optimizer(steps, clients)
    runs["vmap(grad), fed-cdp"] = one_by_one(steps, clients, vmap_step)
    return runs


def on_request(pipe: "Connection[Any, Any]") -> None:
    """Compute ten clients' gradients over 120 examples each, without a defense, at each request in `pipe`."""
    torch.set_num_threads(1)
    module = registry.instance("models", "fed-cnn", {}).build((1, 28, 28), 10)
    weights = {name: value.detach() for name, value in module.named_parameters()}
    inputs, targets = torch.rand(10, 120, 1, 28, 28), torch.full((10, 120, 10), 0.1)
    while pipe.recv():
        group_gradients(module, weights, inputs, targets)
        pipe.send(True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--clients", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = contenders(args.steps, args.clients)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(args.rounds + 1):
        for name, once in runs.items():
            began = time.perf_counter()
            once()
            if number:  # the first calls of the library are slow
                taken[name].append((time.perf_counter() - began) / args.steps / args.clients * 1e3)
    large = torch.rand(1000, 1000)
    began = time.perf_counter()
    for _ in range(5):
        large @ large
    peak = 5 * 2e9 / (time.perf_counter() - began)
    for name, values in taken.items():
        ratios = [value / base for value, base in zip(values, taken["none"], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        share = FLOPS / (median(values) * 1e-3) / peak
        print(
            f"{name:26} {median(values):7.3f} ms a client-step, {median(ratios):5.2f} times none "
            f"[{low:.2f}, {high:.2f}], {share:4.0%} of a large product's rate",
            flush=True,
        )
    for peer in ("opacus, fed-cdp", "opacus' optimizer, flat", "vmap(grad), fed-cdp"):
        pairs = [theirs / mine for theirs, mine in zip(taken[peer], taken["fed-cdp"], strict=True)]
        print(f"{peer}: {median(pairs):.1f} times ours")


if __name__ == "__main__":
    main()
