"""A server's optimizer: the clients' mean update behind the global weights of FedAvgM, FedAdam, FedYogi, FedAdagrad."""

import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite, sqrt
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bench.errors import BenchError
from bench.own.copies import unwrapped
from bench.own.given import Weights
from bench.own.weights import named_state

Rule = Literal["momentum", "adam", "yogi", "adagrad"]

_SAME = 1e-6  # relative difference of two roots that count as equal


def before_server(
    rounds: Sequence[Weights],
    model: nn.Module,
    *,
    momentum: float,
    lr: float = 1.0,
    rule: Rule = "momentum",
    decay: float = 0.99,
    tau: float = 1e-3,
) -> dict[str, dict[str, Tensor] | nn.Module]:
    """Recover the mean of the clients' weights in the last round, if the server changes this mean by an optimizer of
    its own (FedAvgM, FedAdam, …) and only the global weights are known. Return the arguments `before`, `after` (the
    recovered mean) and `model` for `api.reading`.

    - `rounds`: the global weights since the server's start; for FedAvgM, the last three rounds suffice. Each item is by
      name, or a list in the order of `model.state_dict()`. Two items are the first round, with an empty state.
    - `model`: the trained module, which gives names and shapes.
    - `momentum`, `lr`: momentum β and learning rate of the server: `server_momentum` and `server_learning_rate` of
      Flower's FedAvgM, v ← β v + Δ, then w ← w - lr v, for the mean update Δ; `beta_1` (0 for FedAdagrad) and `eta` of
      the other rules.
    - `rule`: `momentum` for FedAvgM; `adam`, `yogi` or `adagrad` for Flower's FedAdam, FedYogi and FedAdagrad.
    - `decay`, `tau`: `beta_2` and `tau` of FedAdam and FedYogi; FedAdagrad has `tau` only.

    Under FedAdam and FedYogi, two different updates of a coordinate may give equal weights. The smaller update is then
    taken, with a warning that holds the number of such coordinates.

    Raises `BenchError` for other numbers, for fewer than two items, and for weights that do not fit the model."""
    if rule not in get_args(Rule):
        raise BenchError(f"rule {rule!r}: it is {', '.join(get_args(Rule))}")
    if len(rounds) < 2:
        raise BenchError("rounds has the global weights before and after a round, and those of the round before")
    if not (0 <= momentum < 1 and isfinite(lr) and lr > 0):
        raise BenchError(f"the server's momentum lies in 0 to below 1 and lr above 0, got {momentum!r} and {lr!r}")
    if rule != "momentum" and not (0 <= decay < 1 and isfinite(tau) and tau > 0):
        raise BenchError(f"the server's decay lies in 0 to below 1 and tau above 0, got {decay!r} and {tau!r}")
    own = unwrapped(model)
    states = [named_state(state, own, f"rounds[{number}]") for number, state in enumerate(rounds)]
    before, mean = states[-2], dict(states[-1])
    unclear = 0
    for name in [name for name, _ in own.named_parameters()]:
        steps = [(after[name] - start[name]).double() for start, after in pairwise(states)]
        if rule == "momentum":
            change = steps[-1] - (momentum * steps[-2] if len(steps) > 1 else 0.0)
            moved = change / lr
        else:
            moved, doubts = _adaptive(steps, rule, momentum, lr, decay, tau)
            unclear += doubts
        mean[name] = (before[name].double() + moved).to(before[name])
    if unclear:
        warnings.warn(f"{unclear} coordinates of the update have two solutions: the smaller is taken", stacklevel=2)
    return {"before": before, "after": mean, "model": model}


def _adaptive(
    steps: Sequence[Tensor], rule: Rule, momentum: float, lr: float, decay: float, tau: float
) -> tuple[Tensor, int]:
    """Solve each round's step s = lr · m / (√v + τ) for the clients' mean update Δ, with m ← β m + (1 - β) Δ and v by
    the rule. Return the last round's Δ, and the number of its coordinates with two solutions."""
    m, v, update, unclear = *(torch.zeros_like(steps[0]) for _ in range(3)), 0
    for number, step in enumerate(steps, 1):
        rate = lr
        if rule == "adam":  # Flower corrects the bias with the round's number plus one
            rate *= sqrt(1 - decay ** (number + 1)) / (1 - momentum ** (number + 1))
        a, b = rate * momentum * m - tau * step, rate * (1 - momentum)  # a + b Δ = s √v
        update, unclear = _least(list(_roots(a, b, step, v, rule, decay)))
        m, v = momentum * m + (1 - momentum) * update, _second(v, update, rule, decay)
    return update, unclear


def _second(v: Tensor, update: Tensor, rule: Rule, decay: float) -> Tensor:
    square = update**2
    if rule == "yogi":
        return v - (1 - decay) * square * torch.sign(v - square)
    return v + square if rule == "adagrad" else decay * v + (1 - decay) * square


def _roots(a: Tensor, b: float, step: Tensor, v: Tensor, rule: Rule, decay: float) -> Iterator[Tensor]:
    """Yield the roots Δ of a + b Δ = s √(k + p Δ²), NaN where there is none, for each form of the rule's second moment
    k + p Δ²."""
    forms = {
        "adam": [(decay * v, 1 - decay)],
        "adagrad": [(v, 1.0)],
        "yogi": [(v, 1 - decay), (v, decay - 1)],  # for Δ² above v, and below v
    }
    for k, p in forms[rule]:
        square, half, rest = b**2 - step**2 * p, a * b, a**2 - step**2 * k
        spread = (half**2 - square * rest).clamp_min(0).sqrt()
        far = -(half + torch.where(half < 0, -spread, spread))
        for root in (far / square, torch.where(far == 0, far, rest / far)):
            fits = (a + b * root) * step >= -_SAME * b * root.abs() * step.abs()
            if rule == "yogi":
                fits &= (root**2 >= v) if p > 0 else (root**2 <= v)
            yield root.where(fits, torch.nan)


def _least(roots: Sequence[Tensor]) -> tuple[Tensor, int]:
    """Return the smallest root of each coordinate, 0 without a root, and the number of coordinates with another."""
    every = torch.stack(list(roots))
    size = every.abs().nan_to_num(nan=torch.inf)
    least = every.gather(0, size.argmin(0, keepdim=True))[0].nan_to_num(nan=0.0)
    other = (every.isfinite() & ((every - least).abs() > _SAME * size.where(size.isfinite(), 0.0))).any(0)
    return least, int(other.sum())
