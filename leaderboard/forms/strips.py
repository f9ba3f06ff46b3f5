"""Draw a strip of images for each defense on a suite: each victim's nearest reconstruction by any attack.

The attacks are pooled, because later attacks saw only some of the readings. All strips show the same victims."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from bench.cell import AttackCell
from bench.errors import RecordError
from bench.kinds.base import Kind
from bench.leaderboard.conditions import condition_key
from bench.pictures.grid import Floats, drawn, encoded, sheet
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.record.store import read_arrays

VICTIMS = 8
VICTIMS_NAME = "victims"  # of the strip of the truth
_SHOWN = {"dataset": "mnist", "model": "dlg-lenet", "weights": "init", "batch": 1, "point": "type-0", "seed": 0}


def strips(records: Iterable[Record], runs: Mapping[str, Path]) -> dict[str, bytes]:
    """Return a strip of images for each defense on a suite: each victim's nearest reconstruction by any attack. The
    result maps a defense's name to its strip as WebP, and `victims` to the true examples.

    - `records`: results of the suite's experiments.
    - `runs`: map from the id of a cell (a configured run) to its run folder, which holds the reconstructions.

    Strips show the suite's easiest condition at the server: a single MNIST image per client and an untrained sigmoid
    network. Defenses with fewer than eight stored reconstructions are left out. The result is empty if the records hold
    no such condition, more than one, or fewer than eight victims."""
    best: dict[str, dict[int, tuple[float, Floats]]] = {}
    truths: dict[int, Floats] = {}
    kinds: set[Kind] = set()
    conditions: set[str] = set()
    for record in records:
        if not _shown(record) or record.attack is None or record.arrays is None:
            continue
        assert isinstance(record.cell, AttackCell)
        try:
            arrays = read_arrays(runs[record.id], record.arrays)
        except (RecordError, KeyError):
            continue
        conditions.add(condition_key(record))
        kinds.add(record.attack.data_kind)
        mine = best.setdefault(entry_text(record.cell.defense), {})
        for row, (number, reading) in enumerate(record.attack.numbered()):
            if number >= VICTIMS:
                continue
            truths[number] = arrays["truth"][row, 0]
            near = reading.examples[0].psnr_db
            if near is not None and near > mine.get(number, (-np.inf,))[0]:
                mine[number] = near, arrays["reconstruction"][row, 0]
    if len(conditions) != 1 or len(truths) < VICTIMS:
        return {}
    (kind,) = kinds
    made = {VICTIMS_NAME: _image([truths[n] for n in range(VICTIMS)], kind)}
    for defense, its in best.items():
        if len(its) == VICTIMS:
            made[defense] = _image([its[n][1] for n in range(VICTIMS)], kind)
    return made


def _shown(record: Record) -> bool:
    cell = record.cell
    if not isinstance(cell, AttackCell) or cell.grants.gallery:
        return False
    sigmoid = cell.model.params.get("activation") == "sigmoid"
    about = {
        "dataset": cell.dataset.name,
        "model": cell.model.name,
        "weights": cell.weights.kind,
        "batch": cell.federated.batch,
        "point": cell.point,
        "seed": cell.seed,
    }
    return sigmoid and cell.federated.steps == 1 and about == _SHOWN


def _image(examples: list[Floats], kind: Kind) -> bytes:
    tiles = drawn(np.stack(examples), kind, side=1)
    return encoded(Image.fromarray(sheet(np.array([list(tiles)]), 1)), "WEBP", lossless=True, method=6)
