"""A server's optimizer: the clients' mean update behind the global weights of FedAvgM."""

from collections.abc import Sequence
from math import isfinite

from torch import Tensor, nn

from bench.errors import BenchError
from bench.own.copies import unwrapped
from bench.own.given import Weights
from bench.own.weights import named_state


def before_server(
    rounds: Sequence[Weights], model: nn.Module, *, momentum: float, lr: float = 1.0
) -> dict[str, dict[str, Tensor] | nn.Module]:
    """Remove the server's momentum from global weights: return `before`, `after` and `model` for `api.reading`, where
    `after` is the mean of the clients' weights in the last round.

    - `rounds`: the global weights since the server's start, or of the last three rounds: each by name, or as a list in
      the order of `model.state_dict()`. Two items are the first round, with an empty momentum.
    - `model`: the trained module, which gives names and shapes.
    - `momentum`, `lr`: momentum β and learning rate of the server's SGD (FedAvgM, as in Flower): v ← β v + Δ, then
      w ← w - lr v, for the mean update Δ.

    Raises `BenchError` for other numbers, for fewer than two items, and for weights that do not fit the model."""
    if len(rounds) < 2:
        raise BenchError("rounds has the global weights before and after a round, and those of the round before")
    if not (0 <= momentum < 1 and isfinite(lr) and lr > 0):
        raise BenchError(f"the server's momentum lies in 0 to below 1 and lr above 0, got {momentum!r} and {lr!r}")
    own = unwrapped(model)
    states = [named_state(state, own, f"rounds[{number}]") for number, state in enumerate(rounds)][-3:]
    before, sent = states[-2], states[-1]
    trained = {name for name, _ in own.named_parameters()}
    mean = dict(sent)
    for name in trained:
        change = (before[name] - sent[name]).double()
        if len(states) == 3:
            change = change - momentum * (states[0][name] - before[name]).double()
        mean[name] = (before[name].double() - change / lr).to(before[name])
    return {"before": before, "after": mean, "model": model}
