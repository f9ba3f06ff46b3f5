"""The last lines of `bench run`: each condition has a name that tells it from the others."""

import io
from pathlib import Path

from rich.console import Console
from tests.records import attack_cell, attack_record, readings_of

from bench.cell import Grants
from bench.cli.conclusion import Ending, conclude
from bench.record.request import Request
from bench.record.schema import Record


def record(leaked: bool, *, dataset: str = "digits", grants: Grants | None = None) -> Record:
    cell = attack_cell(grants=grants or Grants())
    cell = cell.model_copy(update={"dataset": cell.dataset.model_copy(update={"name": dataset})})
    return attack_record(cell=cell, readings=readings_of([[leaked]]))


def said(*records: Record) -> list[str]:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    request = Request(matrix="quickstart")
    conclude(console, Ending(records=records, run=Path("r"), request=request, published=(), mlflow="none"))
    assert isinstance(console.file, io.StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines()]


def test_conditions_that_differ_in_a_grant_have_two_names() -> None:
    lines = said(record(True), record(False, grants=Grants(labels=True)))
    assert "what leaks   digits: 100 % none" in lines
    # a lower bound has no upper end
    assert "digits · granted the true labels: ≥ 0 % none" in lines


def test_conditions_of_two_data_sets_have_these_names_alone() -> None:
    lines = said(record(True), record(True, dataset="mnist"))
    assert "what leaks   digits: 100 % none" in lines
    assert "mnist: 100 % none" in lines
