"""Contracts for linkability: transforms with `unlinks` really unlink coordinates; others give no client another's
row."""

import torch
from torch import Tensor

from bench.contracts.base import ContractSkipped, require
from bench.contracts.descriptions import arriving_at
from bench.contracts.trials import CLIENTS, DRAWS, SIGMAS, context_of, first_trial, lead_of
from bench.defenses.base import Defense
from bench.rows import flattened

_LIKE = 0.3  # cosine with another client's row; by chance near 0 for thousands of coordinates


def unlinked(defense: Defense) -> None:
    """Check each transform (a defense's function on tensors) that declares `unlinks`: it must exchange coordinates
    between clients independently for each coordinate, so that nobody can tell which coordinates came from the same
    client. Raises `ContractBroken` otherwise.

    In the test, all coordinates of client number k (from 0) have the value k + 1. The mean over the n coordinates of an
    output row (the tensors under a client's number) must have the variance of a mean of n independent values; for a row
    from a single client, the variance would be up to n times larger."""
    words, trial = first_trial(defense)
    said = False
    for stage, transform, given, state in arriving_at(trial):
        if not transform.unlinks:
            continue
        said = True
        marks = torch.arange(1.0, len(CLIENTS) + 1, dtype=torch.float64)
        marked = {
            name: marks.reshape(-1, *[1] * (value.ndim - 1)).expand_as(value).clone() for name, value in given.items()
        }
        rows = []
        for draw in range(DRAWS):
            shown = transform.update(marked, state, context_of(trial, stage, draw=draw))[0]
            rows.append(flattened(shown, 1))
        drawn = torch.stack(rows)  # (draw, client, coordinate)
        spread = float(drawn.var())
        require(spread > 0, f"{words}, {stage}: {type(transform).__name__} makes all clients equal")
        ratio = float(drawn.mean(2).var()) * drawn.shape[2] / spread
        most = 1 + SIGMAS * (2 / (DRAWS * (len(CLIENTS) - 1))) ** 0.5
        require(
            ratio <= most,
            f"{words}, {stage}: {type(transform).__name__} says that it unlinks, and a row's coordinates stay "
            f"together (its mean varies {ratio:.3g} times as that of independent ones)",
        )
    if not said:
        raise ContractSkipped("nothing of it says that it unlinks")


def linked(defense: Defense) -> None:
    """Check that no transform (a defense's function on tensors) exchanges whole updates between clients, because an
    observed update would then be scored against the wrong client's examples. Transforms that declare `unlinks` are not
    tested. Raises `ContractBroken` otherwise."""
    words, trial = first_trial(defense)
    mixes = False
    for stage, transform, given, state in arriving_at(trial):
        if not transform.mixes_clients or transform.unlinks or lead_of(stage) != 1:
            continue
        mixes = True
        drawn = torch.Generator().manual_seed(0)
        rows = {name: torch.randn(v.shape, generator=drawn, dtype=v.dtype) for name, v in given.items()}
        after = [transform.update(rows, state, context_of(trial, stage, draw=n))[0] for n in range(DRAWS)]
        mean = flattened({name: torch.stack([each[name] for each in after]).mean(0) for name in rows}, 1)
        likeness = _unit(mean) @ _unit(flattened(rows, 1)).T  # (row after, row before)
        own = likeness.diagonal()
        others = (likeness - 2 * torch.eye(len(own), dtype=own.dtype)).amax(1)
        worst = int((others - own).argmax())
        require(
            not float(others[worst]) > max(_LIKE, float(own[worst])),
            f"{words}, {stage}: {type(transform).__name__} gives a client another's row (cosine "
            f"{float(others[worst]):.2g}, its own {float(own[worst]):.2g}); say unlinks, or keep rows apart",
        )
    if not mixes:
        raise ContractSkipped("its clients do not mix, or cannot be linked")


def _unit(rows: Tensor) -> Tensor:
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return unit
