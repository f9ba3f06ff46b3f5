"""What each attacker got, condition by condition, as the Markdown of RESULTS.md: one row for all weight seeds.

`python -P tests/benchmarks/attackers.py runs/map`; PSNR is the median of all examples, CPU seconds are of whole cells.
"""

import argparse
import re
from pathlib import Path
from typing import Any

import pandas as pd

from bench import api
from bench.scoring.intervals import clustered_share, wilson

COLUMNS = (
    "data", "model", "point", "defense", "attack", "public data", "ASR, 95 % over seeds", "by weight seed", "dB",
    "identified", "CPU s a reading",
)  # fmt: skip
MODEL = re.compile(r"activation=(\w+)")
PARAMETER = re.compile(r"(\w+)=((?:\[[^\]]*\]|[^,\[\]])*)")
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
        for point, batch, steps in zip(
            cells["point"], cells["federated.batch"], cells["federated.steps"], strict=True
        )
    ]
    return {
        "data": cells["dataset"].str.partition(" ")[0], "model": activation + stage,
        "point": cells["point"] + setting, "defense": _distinguished(cells["defense"]),
        "attack": _distinguished(cells["attack"]) + ", " + cells["knowledge"], "public data": cells["grants.public"],
    }  # fmt: skip


def _distinguished(names: pd.Series) -> pd.Series:
    """ "name(a=1, b=2)" with the parameters alone that vary among those of this name."""

    def parts(text: str) -> tuple[str, dict[str, str]]:
        name, _, rest = text.partition("(")
        return name, dict(PARAMETER.findall(rest.removesuffix(")")))

    values: dict[str, dict[str, set[str]]] = {}
    for text in names.unique():
        name, parameters = parts(text)
        for key, value in parameters.items():
            values.setdefault(name, {}).setdefault(key, set()).add(value)

    def short(text: str) -> str:
        name, parameters = parts(text)
        varying = [f"{key}={value}" for key, value in parameters.items() if len(values[name][key]) > 1]
        return f"{name} {', '.join(varying)}".strip()

    return names.map(short)


def _figures(group: pd.DataFrame, examples: pd.DataFrame) -> tuple[str, ...]:
    """The figures of one row, as text."""
    group = group.sort_values("seed")
    mine = examples.loc[group.index].join(group["seed"], on="cell")
    success, seeds = mine["success"].astype(float), mine["seed"]
    several = seeds.nunique() > 1
    low, high = (
        clustered_share(success, seeds) if several else wilson(float(success.sum()), len(success))
    )  # fmt: skip
    by_seed = success.groupby(seeds).mean()
    return (
        f"{_share(success.mean())} [{_share(low)}, {_share(high)}] of {len(success)}",
        ", ".join(map(_share, by_seed)), f"{mine['psnr_db'].median():.0f}",
        _share(mine["identified"].astype(float).mean()),
        f"{group['cpu_seconds'].sum() / group['readings'].sum():.1f}",
    )  # fmt: skip


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0") if round(value, 2) < 1 else "1.00"


if __name__ == "__main__":
    main()
