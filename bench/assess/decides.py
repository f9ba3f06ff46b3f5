"""Facts that decide how much leaks from an update: examples behind the update, steps, rank, labels, noise."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from bench.assess.client import Client
from bench.attacks.first_layer.layer import first_layer
from bench.attacks.labels.head import last_layer
from bench.attacks.labels.infer import infer_labels
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.attacks.objective.repeats import distinct_examples
from bench.trip import Reading

_RANK = 1e-5  # singular values below this share of the largest are rounding


def decides(client: Client) -> Iterator[str]:
    """Yield sentences for the report, on the facts that decide how much leaks from the update of `client`: number of
    examples, rank of the layers' gradients, inferred labels, and noise. For a client without an update, the only
    sentence gives the number of examples."""
    if client.update is None:
        yield f"The client's {client.labels.shape[1]} examples were attacked inside the client only."
        return
    yield _counts(client.update)
    yield from _rank(client.update)
    yield _labels(client.update, client)
    noise = client.update.description.noise.variance if client.update.description else 0.0
    if noise:
        yield f"The defense adds noise of standard deviation {noise**0.5:.2g} to each coordinate of the mean gradient."
    else:
        yield "No noise protects the update: more evaluations or a better prior may bring back more."


def _counts(update: Reading) -> str:
    numbers = sum(value[0].numel() for value in update.values.values())
    distinct = distinct_examples(update)
    unknown = distinct * update.public_mean.numel()
    again = "" if distinct == update.examples else f", each about {update.examples / distinct:.2g} times"
    return (
        f"B = {update.batch}, L = {update.steps}: {distinct} distinct examples stand behind the update{again}; the "
        f"update shows {numbers} numbers about {unknown} unknown values."
    )


def _rank(update: Reading) -> Iterator[str]:
    observed = mean_observation(observations(update))
    distinct = distinct_examples(update)
    layer = first_layer(update)
    if layer is not None:
        rank = _rank_of(observed[f"{layer.prefix}weight"][0])
        words = "enough for" if rank >= distinct else "fewer than"
        yield (
            f"The first layer is fully connected: its update has rank {rank}, {words} {distinct} examples; closed "
            "forms read examples off such a layer."
        )
    path = last_layer(update)
    name = f"{path}.weight" if path else "weight"
    if path is not None and name in observed:
        yield f"The last layer's update has rank {_rank_of(observed[name][0])} for {distinct} examples."


def _rank_of(matrix: torch.Tensor) -> int:
    values = torch.linalg.svdvals(matrix.flatten(1).double())
    return int((values > _RANK * values[0]).sum())


def _labels(update: Reading, client: Client) -> str:
    plain = replace(update, labels=None)
    inferred = infer_labels(plain, mean_observation(observations(update)))
    true = client.labels.repeat(1, -(-update.examples // client.labels.shape[1]))[:, : update.examples]
    if inferred.shape != true.shape or bool((inferred < 0).any()):
        return "Labels: the model has no last layer from which labels are read off."
    hits = [
        int(torch.minimum(*(torch.bincount(row, minlength=client.classes) for row in pair)).sum())
        for pair in zip(inferred.cpu(), true, strict=True)
    ]
    return f"Labels: {sum(hits)} of {true.numel()} are read off the update by rule."
