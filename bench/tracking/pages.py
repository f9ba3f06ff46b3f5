"""The pages of a running MLflow server on which to begin, and the views of them that are kept in its store.

MLflow documents neither its page's addresses nor its shared views.  Whatever another version makes of them, a
page is left: `pages` says in a line what it did not take.
"""

import json
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

from bench.sanitize import first_line
from bench.tracking import charts, rows
from bench.tracking.server import HOST, direct

_COMPARED = 12  # runs in the compare view: as many as it was seen to draw well
# The columns of the table of runs: MLflow's own are a data set and a source that no record fills.
_COLUMNS = (
    "metrics.`leak/asr`",
    "metrics.`leak/psnr_db_median`",
    "metrics.`utility/accuracy`",
    "tags.`bench.defense`",
    "tags.`bench.attack`",
    "tags.`bench.point`",
    "tags.`bench.knowledge`",
    "tags.`bench.reason`",
)
_RUNS, _CHARTS = "bench", "bench-charts"  # names of views
_WITH_IMAGES = "mlflow.loggedImages"  # MLflow's own tag of a run with pictures for its grid


def pages(port: int, experiment: str) -> tuple[dict[str, str], str | None]:
    """Addresses by name, the most telling first, and what in a line MLflow did not answer as expected.

    `charts`: the run's rows in prepared charts; `compare`: cells side by side; `runs`: the table of cells, or
    MLflow's first page.  The first two need two runs.
    """
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
    """The run's rows in prepared charts: parallel coordinates, scatter, curves, pictures."""
    runs = _search(port, number, f"tags.`bench.kind` = '{rows.KIND}' and attributes.status = 'FINISHED'")
    if len(runs) < 2:
        return None
    measured = [{metric["key"] for metric in run["data"].get("metrics", [])} for run in runs]
    drawn = any(_WITH_IMAGES in _tags(run) for run in runs)
    state = charts.comparison(measured, grid_key=rows.GRID_KEY if drawn else None)
    return _shared(port, number, _CHARTS, charts.named(charts.NAME, state, int(time.time() * 1000)), "CHART")


def _compare(port: int, number: str) -> str | None:
    """The board's rows of one condition, the first with ranked ones, side by side; without rows finished cells, and of
    these, for each defense at each point, first the attack that leaked most."""
    of_board = _search(port, number, f"tags.`bench.kind` = '{rows.KIND}' and attributes.status = 'FINISHED'")
    conditions = [_tag(run, "bench.condition") for run in of_board]
    ranked = [_tag(run, "bench.condition") for run in of_board if _tag(run, "bench.complete") == "true"]
    alike = [
        run["info"]["run_id"]
        for run, condition in zip(of_board, conditions, strict=True)
        if condition == max(ranked or conditions, key=(ranked or conditions).count)
    ]
    if len(alike) > 1:
        return _side_by_side(port, number, alike[:_COMPARED])
    order = ["metrics.`leak/asr` DESC", "attributes.start_time DESC"]
    runs = _search(port, number, f"attributes.status = 'FINISHED' and tags.`bench.kind` != '{rows.KIND}'", order)
    current = [run["info"] for run in runs if "bench.superseded" not in _tags(run)]
    worst: dict[str, str] = {}  # by what stands after the attack in a run's name
    for info in current:
        worst.setdefault(info.get("run_name", "").partition(" × ")[2], info["run_id"])
    chosen = list(dict.fromkeys([*worst.values(), *(info["run_id"] for info in current)]))[:_COMPARED]
    return None if len(chosen) < 2 else _side_by_side(port, number, chosen)


def _side_by_side(port: int, number: str, chosen: list[str]) -> str:
    query = urlencode({"runs": json.dumps(chosen), "experiments": json.dumps([number])}, quote_via=quote)
    return f"http://{HOST}:{port}/#/compare-runs?{query}&workflowType=machine_learning"


def _runs(port: int, number: str) -> str:
    """The experiment's table of cells; without `workflowType` MLflow shows an empty page on traces."""
    state = {
        "searchFilter": f"tags.`bench.kind` != '{rows.KIND}'",
        "selectedColumns": _COLUMNS,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
    }
    return _shared(port, number, _RUNS, json.dumps(state))


def _shared(port: int, number: str, key: str, state: str, mode: str = "") -> str:
    """Keep a state of the experiment's page in the store, a tag; the address that opens it."""
    tag = {"experiment_id": number, "key": f"mlflow.sharedViewState.{key}", "value": state}
    _call(port, "experiments/set-experiment-tag", tag)
    query = {"workflowType": "machine_learning", "compareRunsMode": mode, "viewStateShareKey": key}
    chosen = urlencode({name: value for name, value in query.items() if value})
    return f"http://{HOST}:{port}/#/experiments/{number}/runs?{chosen}"


def _tag(run: dict[str, Any], key: str) -> str | None:
    return next((tag["value"] for tag in run["data"].get("tags", []) if tag["key"] == key), None)


def _tags(run: dict[str, Any]) -> set[str]:
    return {tag["key"] for tag in run["data"].get("tags", [])}


def _search(port: int, number: str, condition: str, order: list[str] | None = None) -> list[dict[str, Any]]:
    query = {"experiment_ids": [number], "filter": condition, "max_results": 1000, "order_by": order or []}
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
