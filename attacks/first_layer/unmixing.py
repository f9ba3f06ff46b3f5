"""Examples from a fully connected first layer's gradient, by a matrix from its row space to the examples (`RowSpace`).

Attacks find this matrix by different methods; labels, certificate and failures are the same for all."""

from collections.abc import Callable

import torch
from torch import Tensor

from bench.attacks.base import closed_form
from bench.attacks.first_layer.certificate import Witness
from bench.attacks.first_layer.layer import FirstLayer, RowSpace, first_layer, row_space, table
from bench.attacks.labels.infer import infer_labels
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.trip import Reading, Reconstruction, Status

Mixing = Callable[[RowSpace, int], Tensor | None]


def unmixed_examples(reading: Reading, mixing: Mixing, notes: tuple[str, ...]) -> Reconstruction:
    """Return the examples behind the first layer's gradient of each reading, with labels and a certificate. Labels come
    from δ, ∂loss/∂z at the first layer's output z: the class for which δ simulated by the model is nearest to δ
    computed from the gradient. The loss of a reading is the mean share of δ's variance that this simulation does not
    explain. A reading without a result gets the public mean.

    - `reading`: the attacked batch, whose model has a fully connected first layer (`refusal` returned None).
    - `mixing`: finds the matrix (example, rank) from the row space to the examples, as a function of the row space and
      the reading's number; None without a result.
    - `notes`: remarks of the attack for the record."""
    layer = first_layer(reading)
    assert layer is not None
    observed, witness = observations(reading), Witness.of(reading, layer)
    inferred = infer_labels(reading, mean_observation(observed))
    rows = [
        _one_reading(reading, layer, witness, table(layer, observed, row), inferred[row], index, mixing)
        for row, index in enumerate(reading.indices)
    ]
    inputs, labels, loss, certain, status = zip(*rows, strict=True)
    return closed_form(
        reading,
        torch.stack(inputs).to(next(iter(reading.values.values())).dtype),
        torch.stack(labels),
        loss=torch.tensor(loss, dtype=torch.float64),
        status=status,
        certificate=torch.tensor(certain, dtype=torch.float64),
        notes=notes,
    )


def _one_reading(
    reading: Reading, layer: FirstLayer, witness: Witness, gradient: Tensor, labels: Tensor, index: int, mixing: Mixing
) -> tuple[Tensor, Tensor, float, float, Status]:
    public = reading.public_mean.double().cpu().expand(reading.examples, *reading.shape)
    if not torch.isfinite(gradient).all():
        return public, labels, float("nan"), 0.0, "nan"
    if not gradient[:, -1].any():
        return public, labels, 1.0, 0.0, "diverged"
    space = row_space(layer, gradient / gradient.abs().max(), reading.examples)
    found = mixing(space, index)
    if found is None or not torch.isfinite(found).all():
        return public, labels, 1.0, 0.0, "diverged"
    inputs = found @ space.right
    agreed = witness.agreement(inputs, space.deltas(found))
    missing = reading.examples - len(inputs)  # repeated examples, or more examples than neurons
    if missing == 0 and reading.labels is None:
        labels = agreed.labels
    inputs = torch.cat([inputs, inputs.mean(0).expand(missing, -1)])
    return (
        inputs.reshape(-1, *reading.shape),
        labels,
        float(1 - agreed.explained.clamp_min(0).mean()),
        agreed.certain / reading.examples,
        "ok",
    )
