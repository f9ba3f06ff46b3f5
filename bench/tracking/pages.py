"""Addresses of the MLflow pages on which `bench ui` opens: a sorted list or a comparison of MLflow runs.

MLflow does not document these addresses.  A version with other addresses still shows an MLflow page."""

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

from bench.sanitize import first_line
from bench.tracking import rows
from bench.tracking.server import HOST, direct

_COMPARED = 12  # runs which the compare page draws well, by observation
_IS_ROW = f"tags.`bench.kind` = '{rows.KIND}'"
_BEST_FIRST = f"metrics.`{rows.ASR}`"  # ascending


def pages(port: int, experiment: str) -> tuple[dict[str, str], str | None]:
    """Return page name → address, most informative first, and a line about unexpected server answers, or None. The
    server is on `port`. `experiment` names the MLflow experiment. `charts` draws the board's rows with a chart per
    metric, `compare` shows rows or cells side by side, and `runs` lists the cells, or is MLflow's first page. `charts`
    and `compare` need at least two MLflow runs."""
    addresses, problems = {}, []
    for name, page in (("charts", _charts), ("compare", _compare), ("runs", _runs)):
        try:
            number = _experiment_id(port, experiment)
            address = None if number is None else page(port, number)
        except Exception as error:  # another version's answer may be anything
            problems.append(f"{name} ({type(error).__name__}: {first_line(error)})")
            continue
        if address is not None:
            addresses[name] = address
    addresses.setdefault("runs", f"http://{HOST}:{port}/")
    return addresses, f"this MLflow does not take the page of {', '.join(problems)}" if problems else None


def _charts(port: int, number: str) -> str | None:
    finished = _search(port, number, f"{_IS_ROW} and attributes.status = 'FINISHED'", _BEST_FIRST)
    if len({run["info"]["run_id"] for run in finished}) < 2:
        return None
    return _table(
        port, number, compareRunsMode="CHART", searchFilter=_IS_ROW, orderByKey=_BEST_FIRST, orderByAsc="true"
    )


def _compare(port: int, number: str) -> str | None:
    """Return the address of a page that compares board rows under the most frequent condition. With fewer than two such
    rows, the page compares the cells with the highest success rates; None if fewer than two cells exist. The server is
    on `port`, and `number` is the id of the MLflow experiment."""
    of_board = _search(port, number, f"{_IS_ROW} and attributes.status = 'FINISHED'", _BEST_FIRST)
    conditions = [_tag(run, "bench.condition") for run in of_board]
    ranked = [_tag(run, "bench.condition") for run in of_board if _tag(run, "bench.complete") == "true"]
    alike = [
        run["info"]["run_id"]
        for run, condition in zip(of_board, conditions, strict=True)
        if condition == max(ranked or conditions, key=(ranked or conditions).count)
    ]
    if len(alike) > 1:
        return _side_by_side(port, number, alike[:_COMPARED])
    cells = f"attributes.status = 'FINISHED' and tags.`bench.kind` != '{rows.KIND}'"
    runs = _search(port, number, cells, "metrics.`leak/asr` DESC", "attributes.start_time DESC")
    current = [run["info"] for run in runs if _tag(run, "bench.superseded") is None]
    worst: dict[str, str] = {}  # rest of a run's name after the attack → run id
    for info in current:
        worst.setdefault(info.get("run_name", "").partition(" × ")[2], info["run_id"])
    chosen = list(dict.fromkeys([*worst.values(), *(info["run_id"] for info in current)]))[:_COMPARED]
    return None if len(chosen) < 2 else _side_by_side(port, number, chosen)


def _runs(port: int, number: str) -> str:
    return _table(port, number, searchFilter=f"tags.`bench.kind` != '{rows.KIND}'")


def _table(port: int, number: str, **state: str) -> str:
    # without `workflowType` MLflow shows an empty page of traces
    query = urlencode({"workflowType": "machine_learning", **state}, quote_via=quote)
    return f"http://{HOST}:{port}/#/experiments/{number}/runs?{query}"


def _side_by_side(port: int, number: str, chosen: list[str]) -> str:
    query = urlencode({"runs": json.dumps(chosen), "experiments": json.dumps([number])}, quote_via=quote)
    return f"http://{HOST}:{port}/#/compare-runs?{query}&workflowType=machine_learning"


def _tag(run: dict[str, Any], key: str) -> str | None:
    return next((tag["value"] for tag in run["data"].get("tags", []) if tag["key"] == key), None)


def _search(port: int, number: str, condition: str, *order: str) -> list[dict[str, Any]]:
    query = {"experiment_ids": [number], "filter": condition, "max_results": 1000, "order_by": order}
    runs: list[dict[str, Any]] = _call(port, "runs/search", query).get("runs", [])
    return runs


def _experiment_id(port: int, name: str) -> str | None:
    try:
        answer = _call(port, f"experiments/get-by-name?{urlencode({'experiment_name': name})}")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    return str(answer["experiment"]["experiment_id"])


def _call(port: int, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://{HOST}:{port}/api/2.0/mlflow/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with direct.open(request, timeout=30) as answer:
        content: dict[str, Any] = json.load(answer)
    return content
