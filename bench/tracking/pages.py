"""Addresses of MLflow's own pages for a run: the charts of each board, a comparison of its best rows, and the cells.

MLflow does not document these addresses.  A version with other addresses still shows an MLflow page."""

import json
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

from bench.sanitize import first_line
from bench.tracking.server import HOST, direct

_COMPARED = 10  # MLflow runs on the compare page: as many as a page of charts draws
_EXPERIMENTS = 5000


def pages(port: int, experiment: str, boards: str) -> tuple[dict[str, str], str | None]:
    """List the addresses of MLflow's pages for a run, to print for the user. Return (addresses, warning): page name →
    address, most informative first; and a line if MLflow's server answered unexpectedly, otherwise None.

    - `port`: port of MLflow's server on this machine.
    - `experiment`: name of the MLflow experiment with the run's records.
    - `boards`: common beginning of the names of the boards' experiments; a board is a table of defenses.

    Each board has a page of charts; the first board with two rows also has a page that compares the best rows."""
    addresses, problem = {}, None
    try:
        found = _call(port, "experiments/search", {"max_results": _EXPERIMENTS})["experiments"]
        numbers = {str(each["name"]): str(each["experiment_id"]) for each in found}
        for name in sorted((name for name in numbers if name.startswith(boards)), key=lambda name: int(numbers[name])):
            addresses[name.removeprefix(boards)] = _table(port, numbers[name], compareRunsMode="CHART")
            if "compare" not in addresses and (address := _compare(port, numbers[name])):
                addresses["compare"] = address
        if experiment in numbers:
            addresses["cells"] = _table(port, numbers[experiment])
    except Exception as error:  # another version's answer may be anything
        problem = f"this MLflow answers otherwise ({type(error).__name__}: {first_line(error)})"
    addresses.setdefault("cells", f"http://{HOST}:{port}/")
    return addresses, problem


def _compare(port: int, number: str) -> str | None:
    query = {"experiment_ids": [number], "max_results": _COMPARED, "order_by": ["attributes.start_time DESC"]}
    chosen = [run["info"]["run_id"] for run in _call(port, "runs/search", query).get("runs", [])]
    words = urlencode({"runs": json.dumps(chosen), "experiments": json.dumps([number])}, quote_via=quote)
    return f"http://{HOST}:{port}/#/compare-runs?{words}&workflowType=machine_learning" if len(chosen) > 1 else None


def _table(port: int, number: str, **state: str) -> str:
    # without `workflowType` MLflow shows an empty page of traces
    query = urlencode({"workflowType": "machine_learning", **state}, quote_via=quote)
    return f"http://{HOST}:{port}/#/experiments/{number}/runs?{query}"


def _call(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://{HOST}:{port}/api/2.0/mlflow/{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with direct.open(request, timeout=30) as answer:
        content: dict[str, Any] = json.load(answer)
    return content
