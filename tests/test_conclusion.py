"""The last lines of `bench run`: each condition has a name that tells it from the others."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.records import attack_cell, attack_record, readings_of

from bench.cell import Grants
from bench.cli.conclusion import Ending, conclude
from bench.record.request import Request
from bench.record.schema import Distortion, Record
from bench.scoring.reading import SNR_CAP_DB


def record(
    leaked: bool,
    *,
    dataset: str = "digits",
    grants: Grants | None = None,
    snr_db: float | None = None,
    **cell_fields: Any,
) -> Record:
    cell = attack_cell(grants=grants or Grants(), **cell_fields)
    cell = cell.model_copy(update={"dataset": cell.dataset.model_copy(update={"name": dataset})})
    distortion = Distortion(snr_db_least=snr_db)
    return attack_record(cell=cell, readings=readings_of([[leaked]]), result={"distortion": distortion})


def said(*records: Record) -> list[str]:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    request = Request(matrix="quickstart")
    conclude(console, Ending(records=records, run=Path("r"), request=request, published=(), mlflow="none"))
    assert isinstance(console.file, io.StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines()]


def test_conditions_that_differ_in_a_grant_have_two_names() -> None:
    lines = said(record(True), record(False, grants=Grants(labels=True)))
    at = lines.index("what leaks   digits")
    # a lower bound has no upper end
    assert lines[at + 1 : at + 4] == [
        "- none: 100 % inside the client",
        "digits · granted the true labels",
        "- none: ≥ 0 % inside the client",
    ]


def test_conditions_of_two_data_sets_have_these_names_alone() -> None:
    lines = said(record(True), record(True, dataset="mnist"))
    at = lines.index("what leaks   digits")
    assert lines[at + 2] == "mnist"


def test_each_listener_has_its_figure_and_a_defense_without_effect_is_told() -> None:
    """No figure without its listener: the defense acts on the update, not inside the client."""
    at = {"type-2": (True, SNR_CAP_DB), "type-1": (False, 3.0), "type-0": (False, 3.0)}
    lines = said(*(record(leaked, point=point, snr_db=snr, defense="prune") for point, (leaked, snr) in at.items()))
    assert "- prune: ≥ 0 % in the client's update, at the server; no effect inside the client" in lines


def test_a_defense_without_any_effect_has_its_figures() -> None:
    lines = said(record(True, snr_db=SNR_CAP_DB), record(True, point="type-1", snr_db=SNR_CAP_DB))
    assert "- none: 100 % inside the client, in the client's update" in lines


def test_named_examples_are_reported_where_nothing_is_reconstructed() -> None:
    """An attack that only chooses among candidates has no success rate, and its shares are a leak."""
    cell = attack_cell(grants=Grants(gallery=100))
    lines = said(attack_record(cell=cell, readings=readings_of([[False], [False]], named=True)))
    assert "- none: named among candidates: 100 % inside the client" in lines
    unnamed = said(attack_record(cell=cell, readings=readings_of([[False], [False]])))
    assert any(line.endswith("nothing was attacked") for line in unnamed)
