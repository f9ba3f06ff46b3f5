"""Comparison of submitted records with this machine's data sets: victims, true examples, chances of a blind guess.

All three are determined by the cell and its data set, independently of defense and attack."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import PROTOCOL
from bench.answer.gallery import naming_chance
from bench.answer.originals import other_originals
from bench.answer.scores import GALLERY
from bench.answer.setup import Source
from bench.answer.truth import truth_from
from bench.answer.victims import Truth, scored_once
from bench.cell import AttackCell, CheckpointWeights
from bench.datasets.base import Data
from bench.datasets.loading import load
from bench.errors import MALFORMED, BenchError, NotApplicable
from bench.federated.batches import clients_of
from bench.record.schema import AttackResult, Record
from bench.registry import entries as registry
from bench.sanitize import first_line
from bench.scoring.identify import chance_of
from bench.scoring.metrics import rmse
from bench.submission import arrays
from bench.submission.archive import opened

_NEAR = 1e-9
_ROUNDING = 1e-4  # relative: scores used float64, arrays keep float32


def findings(file: Path, records: Iterable[Record], data_dir: Path | None) -> Iterator[str]:
    """Yield a line of text for each contradiction between submitted records and the data sets on this machine, such as
    true examples that the record's seed does not draw.

    - `file`: submission with the arrays.
    - `records`: the submitted records; only those on built-in data sets with equal content on this machine are
      compared.
    - `data_dir`: folder for data sets; None for the default folder."""
    loaded: dict[str, Data | None] = {}
    with opened(file) as archive:
        inside = set(archive.names)
        for record in records:
            cell, result = record.cell, record.attack
            if not isinstance(cell, AttackCell) or result is None or record.protocol != PROTOCOL:
                continue
            data = _data(cell, data_dir, loaded)
            if data is None:
                continue
            name = f"arrays/{record.arrays}.npz"
            content = arrays.read(archive.read(name)) if name in inside else None
            try:
                faults = list(_findings(cell, result, data, content))
            except (BenchError, NotApplicable, *MALFORMED) as error:
                faults = [f"its cell draws no victims from the data here ({first_line(error)})"]
            yield from (f"records/{record.id}.json: {each}" for each in faults)


def _data(cell: AttackCell, data_dir: Path | None, loaded: dict[str, Data | None]) -> Data | None:
    """Return the cell's data set; None if it is not built-in, is missing on this machine, or has other content."""
    key = cell.dataset.model_dump_json()
    if key not in loaded:
        try:
            built_in = registry.origin("datasets", cell.dataset.name).built_in and not cell.dataset.params
            data = load(registry.of("datasets", cell.dataset), cell.dataset.name, data_dir) if built_in else None
        except BenchError:
            data = None
        loaded[key] = data if data is not None and data.sha256 == cell.dataset.sha256 else None
    return loaded[key]


def _findings(cell: AttackCell, result: AttackResult, data: Data, content: arrays.Arrays | None) -> Iterator[str]:
    round_ = cell.weights.round if isinstance(cell.weights, CheckpointWeights) else 0
    source = Source(data=data, clients=clients_of(cell, data), round=round_)
    if not result.readings:  # a cascade's cell: `check` compares it with the earlier cells
        return
    rows = tuple(number for number, _ in result.numbered())
    drawn = truth_from(cell, source, rows)
    truth, others = scored_once(drawn.examples.of(rows), len(result.readings[0].examples)), other_originals(cell, drawn)
    stated = [tuple(reading.indices) for reading in result.readings]
    if stated != [tuple(row.flatten().tolist()) for row in truth.indices]:
        yield "its examples are not those that its seed draws"
        return
    if content is not None:
        yield from _of_truth(result, content, [each.inputs.numpy() for each in (truth, *others)])
    summary = result.figures()
    for name, chance in (
        ("identification_chance", min(1.0, (1 + len(others)) * _identification(cell, truth, data))),
        (
            "naming_chance",
            None
            if drawn.gallery is None
            else naming_chance(drawn.gallery.labels, truth.labels, granted=cell.grants.labels),
        ),
    ):
        value = getattr(summary, name)
        if value is not None and (chance is None or abs(value - chance) > _NEAR):
            yield f"its {name} is {value}, its cell's is {chance}"


def _of_truth(result: AttackResult, content: arrays.Arrays, originals: list[NDArray[np.float32]]) -> Iterator[str]:
    """Yield contradictions between the true examples in a submission's arrays and the data set's examples. `content`
    holds the submission's arrays. `originals` holds arrays (reading, example, *shape): first the data set's examples at
    the result's indices. If a defense mixes pairs of examples, a second array holds the partner in each pair. A
    reading's submitted truth must equal its example in the first or the second array, and if it did not leak, the
    example nearer to the reconstruction."""
    stated, guess = content["truth"], content["reconstruction"]
    if stated.shape != originals[0].shape or guess.shape != stated.shape:
        yield "what its arrays call the truth is not in the data set at its indices"
        return
    for row, reading in enumerate(result.readings):
        if not any(np.array_equal(stated[row], each[row]) for each in originals):
            yield "what its arrays call the truth is not in the data set at its indices"
            return
        if len(originals) == 1 or reading.leaked:
            continue
        at = slice(row, row + 1)
        nearest = min(float(rmse(each[at], guess[at])[0, 0]) for each in originals)
        if float(rmse(stated[at], guess[at])[0, 0]) > nearest * (1 + _ROUNDING):
            yield f"reading {row}: it is scored against the farther of its mixed example's originals"
            return


def _identification(cell: AttackCell, truth: Truth, data: Data) -> float:
    crowd = data.gallery.labels[:GALLERY]
    labels = (truth.labels.numpy(), crowd) if cell.grants.labels else None
    return chance_of(truth.labels.shape[1], len(crowd), labels)
