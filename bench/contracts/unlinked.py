"""Contract of a transform that says `unlinks`: who sent a coordinate really cannot be told."""

import torch

from bench.contracts.base import ContractSkipped, require
from bench.contracts.descriptions import arriving_at
from bench.contracts.trials import CLIENTS, DRAWS, SIGMAS, context_of, first_trial
from bench.defenses.base import Defense


def unlinked(defense: Defense) -> None:
    """Each client's coordinates all have one value, another for each client.  Where rows say nothing of who sent them,
    the mean of a row's n coordinates varies as that of n independent values does; where coordinates stay together, up
    to n times as much."""
    words, trial = first_trial(defense)
    said = False
    for stage, transform, given, state in arriving_at(trial):
        if not transform.unlinks:
            continue
        said = True
        marks = torch.arange(1.0, len(CLIENTS) + 1, dtype=torch.float64)
        marked = {
            name: marks.reshape(-1, *[1] * (value.ndim - 1)).expand_as(value).clone()
            for name, value in given.items()
        }
        rows = []
        for draw in range(DRAWS):
            shown = transform.update(marked, state, context_of(trial, stage, draw=draw))[0]
            rows.append(torch.cat([value.flatten(1) for value in shown.values()], 1))
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
