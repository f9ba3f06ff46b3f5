"""Promise: a mean shows the random choices of a client to an attacker with all other clients' updates."""

from pathlib import Path

import pytest
import torch
from tests.cells import entry
from tests.test_mates import cell, taken

from bench.attacks.objective.choices import few_sums, first_message
from bench.cell import Federated
from bench.gradients import example_gradients, one_hot


@pytest.mark.parametrize(
    ("name", "params", "least"),
    [
        ("qsgd", {}, 0.9),
        ("terngrad", {}, 0.9),
        ("random-prune", {"share": 0.9}, 0.9),
        ("random-prune", {"share": 0.5}, 0.5),
    ],
)
def test_the_choices_of_a_client_are_read_from_a_mean(
    tmp_path: Path, name: str, params: dict[str, float], least: float
) -> None:
    """The mean of four clients' actual messages; the attacker's guesses are 2 % from the update. Behind a mask, `least`
    of the sent values pass as certain."""
    which = cell(
        defense=entry("defenses", name, **params),
        point="aggregate",
        federated=Federated(clients=20, per_round=4, batch=4),
    )
    reading, inputs, labels = taken(which, tmp_path)
    assert reading.description is not None and reading.description.single is not None
    weights = {key: value[0] for key, value in reading.weights.items()}
    each = example_gradients(reading.model, weights, inputs[0], one_hot(labels[0], reading.classes, inputs.dtype))
    updates = {key: value.unflatten(0, (4, -1)).mean(1) for key, value in each.items()}
    outcomes = reading.description.outcomes(updates)
    assert outcomes is not None
    source, kept = torch.Generator().manual_seed(0), {}
    for key, value in outcomes.values.items():  # independent draws by the stated chances
        drawn = torch.rand(value.shape[1:], generator=source)
        kind = (drawn > outcomes.chances[key].cumsum(0)[:-1]).sum(0)
        kept[key] = value.gather(0, kind[None])[0]
    others = few_sums(reading.description, {key: value[1:] for key, value in updates.items()})
    assert others is not None
    noise = {key: torch.randn((24, *value.shape[1:]), generator=source) for key, value in updates.items()}
    guesses = {key: value[:1] * (1 + 0.02 * noise[key]) for key, value in updates.items()}
    found = first_message(
        reading.description, others, guesses, {key: value.mean(0)[None] for key, value in kept.items()}
    )
    flat = {key: (found[key][0], kept[key][0]) for key in found}
    right = torch.cat([((a - b).abs() <= 1e-4 * b.abs().max()).flatten() for a, b in flat.values()])
    shown = torch.cat([(a != 0).flatten() for a, _ in flat.values()])
    certain = shown if name == "random-prune" else torch.ones_like(shown)
    assert float(right[certain].float().mean()) >= 0.97
    assert float((shown & right).sum()) >= least * sum(int((b != 0).sum()) for _, b in flat.values())
