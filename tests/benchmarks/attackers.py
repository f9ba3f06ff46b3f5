"""What each attacker got, condition by condition, as the Markdown of RESULTS.md: one row for all weight seeds.

`python -P tests/benchmarks/attackers.py runs/map`; PSNR is the median of all examples, CPU seconds are of whole cells.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import pandas as pd

from bench import api
from bench.leaderboard.worst import share_interval
from bench.record.names import distinct

COLUMNS = (
    "data",
    "model",
    "point",
    "defense",
    "attack",
    "public data",
    "ASR, 95 % over seeds",
    "by weight seed",
    "dB",
    "identified",
    "CPU s a reading",
)
MODEL = re.compile(r"activation=(\w+)")
STAGE = re.compile(r"-(early|late)-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        print(table(*api.frame(run)))


def table(cells: pd.DataFrame, examples: pd.DataFrame) -> str:
    """The rows of a run's finished attack cells, in the order of their conditions."""
    done = cells[(cells["status"] == "done") & cells["attack"].notna()].copy()
    for name, values in _condition(done).items():
        done[name] = values
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for condition, group in done.groupby([*COLUMNS[:6]], sort=True):
        lines.append("| " + " | ".join((*condition, *_figures(group, examples))) + " |")
    return "\n".join(lines)


def _condition(cells: pd.DataFrame) -> dict[str, Any]:
    path = cells["weights.path"].fillna("") if "weights.path" in cells else pd.Series("", index=cells.index)
    stage = path.map(lambda text: f", {found[1]}" if (found := STAGE.search(str(text))) else "")
    activation = cells["model"].map(lambda text: found[1] if (found := MODEL.search(text)) else text)
    setting = [
        f", B = {batch}, L = {steps}" if point != "type-2" else ""
        for point, batch, steps in zip(cells["point"], cells["federated.batch"], cells["federated.steps"], strict=True)
    ]
    attack = cells["attack"].map(distinct(cells["attack"]))
    return {
        "data": cells["dataset"].str.partition(" ")[0],
        "model": activation + stage,
        "point": cells["point"] + setting,
        "defense": cells["defense"].map(distinct(cells["defense"])),
        "attack": attack + ", " + cells["knowledge"],
        "public data": cells["grants.public"],
    }


def _figures(group: pd.DataFrame, examples: pd.DataFrame) -> tuple[str, ...]:
    """The figures of one row, as text."""
    group = group.sort_values("seed")
    mine = examples.loc[group.index].join(group["seed"], on="cell")
    success = mine["success"].astype(bool)
    hits = {
        (seed, 0, reading, example): hit
        for (_, reading, example), seed, hit in zip(success.index, mine["seed"], success, strict=True)
    }
    ends = share_interval(hits)
    assert ends is not None and len(hits) == len(success)  # one cell a weight seed
    low, high = ends
    by_seed = success.groupby(mine["seed"]).mean()
    return (
        f"{_share(success.mean())} [{_share(low)}, {_share(high)}] of {len(success)}",
        ", ".join(map(_share, by_seed)),
        f"{mine['psnr_db'].median():.0f}",
        _share(mine["identified"].astype(float).mean()),
        f"{group['cpu_seconds'].sum() / group['readings'].sum():.1f}",
    )


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0") if round(value, 2) < 1 else "1.00"


if __name__ == "__main__":
    main()
