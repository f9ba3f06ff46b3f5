"""A record as far as a board or a gate reads it: what makes 10⁵ of them fit into memory.

Equal parts (sources, machines, settings) are held once, and of each picture only the figures that are compared.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from bench.record.store import Record

_VICTIM = ("status", "clients", "examples", "reading_snr_db", "reading_cosine", "restarts")
_PICTURE = ("status", "success", "rmse", "psnr_db", "ssim", "lpips", "best_floor_db")
_WAY = ("trail_evaluations",)  # of a summary: what only pictures over iterations read


class Slim:
    """Cuts records; remembers the parts that it has seen."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}

    def __call__(self, record: Record) -> Record:
        """The record with less in it; one whose fields are not a record's as it is, for the reader to refuse."""
        try:
            victims = cut_victims(record, _VICTIM, _PICTURE)
            summary = {name: value for name, value in record.summary.items() if name not in _WAY}
            cell = {name: self._shared(value) for name, value in record.cell.items()}
        except (TypeError, KeyError, AttributeError, RecursionError):
            return record
        return replace(
            record, victims=victims, summary=summary, cell=cell, source=self._shared(record.source),
            environment=self._shared(record.environment),
        )  # fmt: skip

    def _shared(self, part: Any) -> Any:
        return self._seen.setdefault(json.dumps(part, sort_keys=True), part)


def cut_victims(record: Record, victim: Collection[str], picture: Collection[str]) -> list[dict[str, Any]]:
    """The record's victims and their pictures with these fields alone, where they have them."""
    return [
        {**only(one, victim), "pictures": [only(shown, picture) for shown in one["pictures"]]}
        for one in record.victims
    ]


def only(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """What `values` has of these names."""
    return {name: values[name] for name in names if name in values}
