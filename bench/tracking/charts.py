"""The prepared comparison: a chart view of MLflow's run page over a run's rows, as that page reads it.

MLflow does not document it; this is what the page of 3.17 stores when one arranges charts and saves a view. Other
versions may read it otherwise: a test looks at the page, and `bench ui` names plainer pages as well. No mlflow here.
"""

import base64
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bench.points import POINTS
from bench.tracking import rows

NAME = "bench: ε, accuracy, ASR"  # in the page's menu of views
_RUNS = 100  # shown in a chart; MLflow's own limit is ten
_COLUMNS = (
    f"metrics.`{rows.ASR}`",
    f"metrics.`{rows.ACCURACY}`",
    f"metrics.`{rows.EPSILON}`",
    "tags.`bench.rank`",
    "tags.`bench.flags`",
)
_TALL, _GRID = 320, 700  # pixels: of a chart's card, of the pictures' card


def comparison(measured: Sequence[Collection[str]], *, grid_key: str | None) -> dict[str, Any]:
    """The state of the page for rows with these metrics each; `grid_key` that of their pictures, if any.

    Parallel coordinates leave out every run that lacks one of their axes: an axis is there only where two
    rows have it with the others, and the section's name says how many of the rows it shows.
    """
    page = _Page()
    axes = _axes(measured)
    if len(axes) > 1:
        parallel = {"type": "PARALLEL", "selectedParams": [], "selectedMetrics": axes, "showAllRuns": False}
        page.section(_title(axes, measured), parallel, height=_TALL)
    if _together([rows.ACCURACY, rows.ASR], measured) > 1:
        x, y = ({"key": name, "type": "METRIC"} for name in (rows.ACCURACY, rows.ASR))
        page.section("ASR against accuracy", {"type": "SCATTER", "xaxis": x, "yaxis": y}, height=_TALL)
    at_points = (f"{rows.ASR_AT}{name}" for name in POINTS)
    page.section("ASR at each point", *(_bar(name) for name in at_points if _together([name], measured)))
    if any(rows.CURVE in row for row in measured):
        page.section("Accuracy by round", _line(rows.CURVE), height=_TALL)
    if grid_key is not None:
        images = {"type": "IMAGE", "imageKeys": [grid_key], "step": 0, "showRunParams": False}
        page.section("Reconstructions", images, height=_GRID)
    page.hide(sorted({name for row in measured for name in row}))
    return {
        "searchFilter": f"tags.`bench.kind` = '{rows.KIND}'",
        "orderByKey": f"metrics.`{rows.ASR}`",
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "selectedColumns": _COLUMNS,
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,  # else the page sorts the sections by name
        "compareRunSections": page.sections,
        "compareRunCharts": page.charts,
    }


def named(name: str, state: Mapping[str, Any], created_ms: int) -> str:
    """The state as a view of the page's menu."""
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode(), 9)).decode()
    return json.dumps({"name": name, "createdAt": created_ms, "state": f"deflate;{packed}"})


def _axes(measured: Sequence[Collection[str]]) -> list[str]:
    """ε, accuracy, ASR: those that two rows have together; where no training has an ε, that at the point where
    most rows have one."""
    accuracy = [rows.ACCURACY] if _together([rows.ACCURACY, rows.ASR], measured) > 1 else []
    whole = [rows.EPSILON, *accuracy, rows.ASR]
    at_points = [[f"{rows.EPSILON_AT}{name}", *accuracy, f"{rows.ASR_AT}{name}"] for name in POINTS]
    best = max(at_points, key=lambda axes: _together(axes, measured))  # of equal ones the innermost
    for axes in (whole, best):
        if _together(axes, measured) > 1:
            return axes
    if accuracy:
        return [*accuracy, rows.ASR]
    asr = [f"{rows.ASR_AT}{name}" for name in POINTS]
    return [name for name in asr if _together([name], measured) > 1]


def _title(axes: Sequence[str], measured: Sequence[Collection[str]]) -> str:
    words = {rows.EPSILON: "ε", rows.ACCURACY: "accuracy", rows.ASR: "ASR"}
    shown, count = _together(axes, measured), len(measured)
    title = " – ".join(words.get(name, name) for name in axes)
    return title if shown == count else f"{title}, {shown} of {count} rows"


def _together(axes: Iterable[str], measured: Iterable[Collection[str]]) -> int:
    return sum(all(name in row for name in axes) for row in measured)


class _Page:
    """Sections and the charts in them, as the page keeps them: two lists, tied by ids."""

    def __init__(self) -> None:
        self.sections: list[dict[str, Any]] = []
        self.charts: list[dict[str, Any]] = []

    def section(self, name: str, *charts: Mapping[str, Any], height: int = 320) -> None:
        number = f"bench-section-{len(self.sections)}"
        self.sections.append(
            {
                "uuid": number,
                "name": name,
                "display": True,
                "isReordered": True,
                "deleted": False,
                "isGenerated": False,
                "columns": max(1, len(charts)),
                "cardHeight": height,
            }
        )
        for chart in charts:
            self._add(number, chart)

    def hide(self, metrics: Iterable[str]) -> None:
        """The page makes a chart for every metric that no chart is of, unless one of it was deleted."""
        shown = {chart.get("metricKey") for chart in self.charts}
        for name in metrics:
            if name not in shown:
                self._add("bench-section-0", {**_bar(name), "deleted": True})

    def _add(self, section: str, chart: Mapping[str, Any]) -> None:
        self.charts.append(
            {
                "uuid": f"bench-chart-{len(self.charts)}",
                "metricSectionId": section,
                "deleted": False,
                "isGenerated": False,
                "runsCountToCompare": _RUNS,
                **chart,
            }
        )


def _bar(metric: str) -> dict[str, Any]:
    return {"type": "BAR", "metricKey": metric}


def _line(metric: str) -> dict[str, Any]:
    return {
        "type": "LINE",
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "lineSmoothness": 0,
        "range": {},
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "selectedXAxisMetricKey": "",
        "ignoreOutliers": False,
        "useGlobalXaxisKey": False,
        "useGlobalLineSmoothing": False,
    }
