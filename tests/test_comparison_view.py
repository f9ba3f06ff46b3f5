"""The prepared comparison in MLflow's own page, on the real server, in a real browser."""

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from tests.browser import browser, visit  # noqa: F401

from bench.cell import AttackCell, DataRef, Entry, Federated, TrainingCell
from bench.errors import RecordError
from bench.record import store as records
from bench.record.store import Record
from bench.tracking import charts, row_upload, rows, server, store, upload
from bench.tracking.uploader import Uploader

FEDERATED = Federated(algorithm="fedsgd", clients=10, per_round=2, steps=1, batch=1)
DATA = DataRef(name="digits", sha256="0" * 64)
MODEL = Entry(name="dlg-lenet", params={"activation": "sigmoid"})
POINTS = ("type-2", "type-1", "type-0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A defense and what came of it: the share leaked at each point, and of its training, if it had one."""

    defense: Entry
    leaked: tuple[float, float, float]
    accuracy: float | None = None
    epsilon: float | None = None


SETTINGS = (
    Setting(defense=Entry(name="none"), leaked=(1.0, 1.0, 1.0), accuracy=0.93),
    Setting(defense=Entry(name="prune", params={"share": 0.5}), leaked=(1.0, 0.9, 0.9), accuracy=0.92),
    Setting(defense=Entry(name="prune", params={"share": 0.9}), leaked=(1.0, 0.4, 0.4), accuracy=0.86),
    Setting(
        defense=Entry(name="fed-sdp", params={"clip": 4, "sigma": 1.0}),
        leaked=(1.0, 0.2, 0.1), accuracy=0.81, epsilon=8.5,
    ),
    Setting(
        defense=Entry(name="fed-cdp", params={"clip": 4, "sigma": 1.0}),
        leaked=(0.3, 0.2, 0.2), accuracy=0.79, epsilon=4.2,
    ),
    Setting(
        defense=Entry(name="fed-cdp", params={"clip": 4, "sigma": 3.0}),
        leaked=(0.0, 0.0, 0.0), accuracy=0.62, epsilon=1.1,
    ),
    Setting(defense=Entry(name="low-rank", params={"rank": 2}), leaked=(1.0, 0.6, 0.6)),
)  # fmt: skip


def faces(count: int, blur: float, seed: int) -> np.ndarray[Any, Any]:
    """Pictures (reading, 1, 1, 16, 16) of a ring and a bar each, drowned in noise as much as `blur` says."""
    rows_, columns = np.mgrid[0:16, 0:16]
    found = []
    for number in range(count):
        ring = np.abs(np.hypot(rows_ - 7.5, columns - 7.5) - 3 - number % 4) < 1
        bar = np.abs(rows_ - 2 * (number % 7) - 2) < 1
        noise = np.random.default_rng(seed * 1000 + number).random((16, 16))
        found.append((1 - blur) * (ring | bar) + blur * noise)
    return np.array(found, np.float32).reshape(count, 1, 1, 16, 16)


def write_attack(run: Path, setting: Setting, point: str, leaked: float, **changes: Any) -> None:
    count = 32
    cell = AttackCell(
        dataset=DATA, model=MODEL, federated=FEDERATED, defense=setting.defense, attack=Entry(name="cpl"),
        point=point, readings=count, seed=0,
    )  # fmt: skip
    hits = [number < round(leaked * count) for number in range(count)]
    arrays = records.write_arrays(
        run,
        {"truth": faces(count, 0, 0), "reconstruction": faces(count, 1 - leaked, POINTS.index(point) + 1)},
    )
    pictures = [
        {"success": hit, "status": "ok", "psnr_db": 35.0 if hit else 8.0, "best_floor_db": 11.0}
        for hit in hits
    ]
    summary = {
        "asr": leaked, "reading_snr_db_least": 120.0 if setting.defense.name == "none" else 3.0,
        "epsilon": setting.epsilon, "psnr_db": {"median": 8.0 + 27 * (leaked > 0.5)},
    }  # fmt: skip
    given: dict[str, Any] = {
        "id": cell.id, "status": "done", "cell": cell.model_dump(mode="json"),
        "source": {"bench": {"protocol": 1}}, "summary": summary,
        "victims": [{"pictures": [picture]} for picture in pictures], "environment": {}, "cost": {},
        "arrays": arrays,
    }  # fmt: skip
    records.write(run, Record(**{**given, **changes}))


def write_training(run: Path, setting: Setting) -> None:
    assert setting.accuracy is not None
    cell = TrainingCell(
        dataset=DATA, model=MODEL, federated=FEDERATED, defense=setting.defense, rounds=20, seed=0
    )
    curve = [[step, setting.accuracy * (1 - 0.8 ** (step + 1))] for step in range(0, 21, 5)]
    summary = {
        "accuracy": setting.accuracy, "rounds": 20, "curve": curve, "diverged": False, "privacy": [],
        "epsilon": setting.epsilon, "epsilon_absent": None if setting.epsilon else "no noise",
    }  # fmt: skip
    records.write(
        run,
        Record(
            id=cell.id, status="done", cell=cell.model_dump(mode="json"), source={"bench": {"protocol": 1}},
            summary=summary, victims=[], environment={}, cost={"overhead": 1.1},
        ),
    )  # fmt: skip


def write_run(run: Path, settings: tuple[Setting, ...] = SETTINGS) -> None:
    for setting in settings:
        for point, leaked in zip(POINTS, setting.leaked, strict=True):
            write_attack(run, setting, point, leaked)
        if setting.accuracy is not None:
            write_training(run, setting)


def there(run: Path, *, deleted: bool = False) -> list[Any]:
    """The runs of rows in the store of this run."""
    opened = upload.open_target(run, store.default_uri(run))
    return upload.search(opened, f"tags.`bench.kind` = '{rows.KIND}'", deleted=deleted)


def send(run: Path, **options: Any) -> int:
    return row_upload.send(upload.open_target(run, store.default_uri(run), **options), run)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose store has its schema: making one takes seconds."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "first" / "records").mkdir(parents=True)
    upload.upload(folder / "first")
    return folder


@pytest.fixture
def run(shared: Path, request: pytest.FixtureRequest) -> Path:
    """A run of its own in that folder: undefended and pruned, attacked and trained."""
    folder = shared / request.node.name[:60]
    write_run(folder, SETTINGS[:2])
    return folder


def test_a_row_is_one_run_with_leakage_and_accuracy(run: Path) -> None:
    assert send(run) == 2
    found = {one.info.run_name: one for one in there(run)}
    assert set(found) == {"none × digits · dlg-lenet", "prune × digits · dlg-lenet"}
    pruned = found["prune × digits · dlg-lenet"]
    assert pruned.data.metrics == {
        "asr/worst": 1.0, "asr/type-2": 1.0, "asr/type-1": 29 / 32, "asr/type-0": 29 / 32, "psnr_db/best": 35.0,
        "accuracy/final": 0.92, "accuracy/lost": pytest.approx(0.01), "cost/overhead": 1.1,
        "accuracy/by_round": pytest.approx(0.92 * (1 - 0.8**21)),
    }  # fmt: skip
    client = upload.open_target(run, store.default_uri(run)).client
    curve = client.get_metric_history(pruned.info.run_id, rows.CURVE)
    assert [point.step for point in curve] == [0, 5, 10, 15, 20]
    assert pruned.data.params == {"defense": "prune", "defense.share": "0.5"}
    expected = {
        "dataset": "digits", "model": "dlg-lenet(activation=sigmoid)", "defense": "prune", "rank": "2",
        "complete": "true", "worst_point": "type-2", "best_attack": "cpl", "run": run.name, "protocol": "1",
    }  # fmt: skip
    assert {key: pruned.data.tags.get(f"bench.{key}") for key in expected} == expected
    assert "- type-1: ASR 0.91 [0.76, 0.97] of 32 pictures" in pruned.data.tags["mlflow.note.content"]
    pictures = [item.path for item in client.list_artifacts(pruned.info.run_id, "images")]
    assert any(path.endswith(".png") for path in pictures)
    assert pruned.data.tags["mlflow.loggedImages"]
    assert len({one.data.tags["mlflow.runColor"] for one in found.values()}) == 2


def test_the_writer_beside_a_run_leaves_its_rows(run: Path) -> None:
    with Uploader(run) as uploader:
        outcome = uploader.close()
    assert outcome == store.Uploaded(count=8, rows=2)
    assert len(there(run)) == 2
    assert uploader.log.read_text() == ""


def test_names_tell_rows_apart_and_no_more(tmp_path: Path) -> None:
    write_run(tmp_path / "r")
    assert {row.shown.name.partition(" × ")[0] for row in rows.of_run(tmp_path / "r")} == {
        "none", "prune(share=0.5)", "prune(share=0.9)", "fed-sdp", "fed-cdp(sigma=1)", "fed-cdp(sigma=3)",
        "low-rank",
    }  # fmt: skip


def test_again_adds_nothing_and_a_changed_row_takes_the_place_of_the_older(run: Path) -> None:
    assert (send(run), send(run)) == (2, 0)
    before = {one.info.run_name: one.info.run_id for one in there(run)}
    write_attack(run, SETTINGS[1], "type-1", 0.5)  # not the worst point: no other row's rank changes
    assert send(run) == 1
    after = {one.info.run_name: one.info.run_id for one in there(run)}
    changed = {name for name in after if after[name] != before[name]}
    assert (len(after), changed) == (2, {"prune × digits · dlg-lenet"})
    write_attack(run, SETTINGS[1], "type-1", 0.9)
    assert send(run) == 1, "what it was before is in the trash, and no reason to leave it out"
    assert len(there(run)) == 2


def test_a_row_without_records_goes_and_one_deleted_in_the_ui_stays_away(run: Path) -> None:
    send(run)
    none, pruned = sorted(there(run), key=lambda one: str(one.info.run_name))
    upload.open_target(run, store.default_uri(run)).client.delete_run(none.info.run_id)
    assert send(run) == 0
    for path in (run / "records").glob("*.json"):
        if records.read(path).cell["defense"]["name"] == "prune":
            path.unlink()
    assert (send(run), there(run)) == (0, [])
    tags = {one.info.run_id: one.data.tags for one in there(run, deleted=True)}
    assert tags[pruned.info.run_id]["bench.superseded"] == "gone"


def test_a_row_cut_off_is_made_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = upload.open_target(run, store.default_uri(run))
    with monkeypatch.context() as patch:
        patch.setattr(opened.client, "set_terminated", lambda *_, **__: 1 / 0)
        with pytest.raises(upload.StoreError, match="ZeroDivisionError"):
            row_upload.send(opened, run)
    assert send(run) == 2
    assert [one.info.status for one in there(run)] == ["FINISHED"] * 2


def test_private_pictures_stay_at_home_until_asked_for(shared: Path) -> None:
    run = shared / "private"
    summary = {"private": True, "reading_snr_db_least": 120.0}
    for leaked in (1.0, 0.5):
        write_attack(
            run, Setting(defense=Entry(name="none"), leaked=(1, 1, 1)), "type-2", leaked, summary=summary
        )
    assert send(run) == 1
    (found,) = there(run)
    client = upload.open_target(run, store.default_uri(run)).client
    assert found.data.tags["bench.picture"] == "withheld: private data"
    assert client.list_artifacts(found.info.run_id) == []
    assert send(run, include_pictures=True) == 1
    (shown,) = there(run)
    assert {item.path for item in client.list_artifacts(shown.info.run_id)} > {"images"}
    assert send(run) == 0, "once given it is not taken back"


def test_another_folder_of_this_name_keeps_its_rows(run: Path, tmp_path: Path) -> None:
    """As on a server, where runs of one name from two machines meet in one experiment."""
    send(run)
    other = tmp_path / run.name
    write_run(other, SETTINGS[3:5])
    opened = upload.open_target(other, store.default_uri(run))
    assert row_upload.send(opened, other) == 2
    assert len(there(run)) == 4


def test_records_of_other_fields_are_said_in_one_line(tmp_path: Path) -> None:
    write_attack(tmp_path, SETTINGS[0], "type-2", 1.0, victims=[{}])
    with pytest.raises(RecordError, match="no rows to compare"):
        rows.of_run(tmp_path)


ALL = {rows.ASR, rows.ACCURACY, rows.EPSILON}


@pytest.mark.parametrize(
    ("measured", "axes", "title"),
    [
        ([ALL, ALL], [rows.EPSILON, rows.ACCURACY, rows.ASR], "ε – accuracy – ASR"),
        ([ALL, ALL, ALL - {rows.EPSILON}], [rows.EPSILON, rows.ACCURACY, rows.ASR], "ε – accuracy – ASR, 2 of 3 rows"),
        ([ALL, ALL - {rows.EPSILON}], [rows.ACCURACY, rows.ASR], "accuracy – ASR"),
        ([{rows.ASR, rows.EPSILON}] * 2, [rows.EPSILON, rows.ASR], "ε – ASR"),
        (
            [{rows.ASR, "asr/type-1", "epsilon/type-1"}] * 2,
            ["epsilon/type-1", "asr/type-1"], "epsilon/type-1 – asr/type-1",
        ),
        (
            [{"asr/type-2", "epsilon/type-2", "asr/type-0", "epsilon/type-0"}] * 2 + [{"asr/type-0", "epsilon/type-0"}],
            ["epsilon/type-0", "asr/type-0"], "epsilon/type-0 – asr/type-0",
        ),
        ([{rows.ASR, "asr/type-2", "asr/type-1"}] * 2, ["asr/type-2", "asr/type-1"], "asr/type-2 – asr/type-1"),
    ],
)  # fmt: skip
def test_an_axis_is_there_where_two_rows_have_it(
    measured: list[set[str]], axes: list[str], title: str
) -> None:
    state = charts.comparison(measured, grid_key=None)
    (parallel,) = (chart for chart in state["compareRunCharts"] if chart["type"] == "PARALLEL")
    (section,) = (one for one in state["compareRunSections"] if one["uuid"] == parallel["metricSectionId"])
    assert (parallel["selectedMetrics"], section["name"]) == (axes, title)


def test_one_point_without_trainings_has_bars_and_pictures_alone() -> None:
    state = charts.comparison([{rows.ASR, "asr/type-2"}] * 2, grid_key="key")
    assert [one["name"] for one in state["compareRunSections"]] == ["ASR at each point", "Pictures"]


def test_every_metric_has_its_chart_or_a_deleted_one() -> None:
    """Else the page adds one for it, in a section of its own."""
    metrics = {*ALL, rows.CURVE, "asr/type-1", "cost/overhead"}
    found = charts.comparison([metrics, metrics], grid_key=None)["compareRunCharts"]
    assert {chart["metricKey"] for chart in found if "metricKey" in chart} == metrics
    shown = {chart["metricKey"] for chart in found if "metricKey" in chart and not chart["deleted"]}
    assert shown == {"asr/type-1", rows.CURVE}


def test_a_view_is_packed_as_the_page_unpacks_it() -> None:
    state = charts.comparison([ALL, ALL], grid_key="key")
    view = json.loads(charts.named("a name", state, 5))
    packed = view["state"].removeprefix("deflate;")
    assert (view["name"], view["createdAt"]) == ("a name", 5)
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == json.loads(json.dumps(state))
    everything = {*ALL, rows.CURVE, "cost/overhead", *(f"asr/{name}" for name in POINTS)}
    whole = charts.named(charts.NAME, charts.comparison([everything] * 500, grid_key="key"), 10**12)
    assert len(whole) < 5000  # of 20000 that the store's tag of an experiment takes


@dataclass(frozen=True, slots=True)
class Served:
    port: int
    run: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    for name, settings in (("demo", SETTINGS), ("single", SETTINGS[:1]), ("bare", ())):
        write_run(folder / name, settings)
        (folder / name / "records").mkdir(parents=True, exist_ok=True)
        upload.upload(folder / name)
        send(folder / name)
    port = server.free_port(5177)
    with server.serving(store.default_uri(folder / "demo"), port, folder / "ui.log"):
        yield Served(port, folder / "demo")


CHARTS = {
    "ε – accuracy – ASR, 3 of 7 rows": ["Parallel Coordinates"],
    "ASR against accuracy": ["accuracy/final vs. asr/worst"],
    "ASR at each point": ["asr/type-2", "asr/type-1", "asr/type-0"],
    "Accuracy by round": [rows.CURVE],
    "Pictures": [rows.GRID_KEY],
}


@pytest.mark.slow
def test_the_prepared_page_shows_charts_and_pictures(browser: Browser, served: Served) -> None:  # noqa: F811
    address = server.charts_page(served.port, "demo")
    assert address is not None
    with visit(browser, address, width=1400, height=1000) as seen:
        page = seen.page
        page.get_by_text("Parallel Coordinates", exact=True).wait_for(timeout=60_000)
        _close_assistant(page)
        for axis in ("epsilon/training", "accuracy/final", "asr/worst"):
            page.locator("svg .label", has_text=axis).wait_for(timeout=30_000)
        assert page.get_by_text(charts.NAME).is_visible()
        # The rows that are there, and none of the 28 cells.
        page.get_by_text("7 matching runs").wait_for(timeout=30_000)
        names = {row.shown.name for row in rows.of_run(served.run)}
        assert all(page.get_by_text(name, exact=True).count() for name in names)
        for section, drawn in CHARTS.items():
            header = page.get_by_text(section, exact=True)
            header.evaluate("element => element.scrollIntoView({block: 'start'})")  # drawn once in sight
            for title in drawn:
                page.get_by_text(title, exact=True).first.wait_for(timeout=30_000)
        assert page.get_by_text("cost/overhead").count() == 0, "the page added charts of its own"
        grid = page.locator("img[src*='get-artifact']")
        grid.nth(6).wait_for(timeout=30_000)
        assert grid.count() == 7
        page.wait_for_function(
            "image => image.naturalWidth > 100", arg=grid.first.element_handle(), timeout=30_000
        )
        own = f"http://127.0.0.1:{served.port}/"
        assert [asked for asked in seen.outside if not asked.startswith(own)] == []
        assert not [said for said in seen.complaints if said.startswith(("exception", "dialog"))]


def _close_assistant(page: Page) -> None:
    """MLflow's chat opens by itself on a browser's first visit, and takes a third of the page."""
    button = page.locator("button[aria-label*=lose i]").last
    if button.count():
        button.click()


@pytest.mark.slow
def test_fewer_than_two_rows_have_the_compare_page_or_that_of_runs(served: Served) -> None:
    assert server.charts_page(served.port, "single") is None
    assert "/#/compare-runs?" in str(server.compare_page(served.port, "single"))
    assert (server.charts_page(served.port, "bare"), server.compare_page(served.port, "bare")) == (None, None)
    assert "/runs?" in server.runs_page(served.port, "bare")


@pytest.mark.slow
def test_a_server_that_refuses_the_view_is_no_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "named", lambda *_: "x" * 30_000)
    assert server.charts_page(served.port, "demo") is None


@pytest.mark.slow
def test_rows_are_in_no_page_of_cells(served: Served) -> None:
    compared = str(server.compare_page(served.port, "demo"))
    assert not [one for one in there(served.run) if one.info.run_id in compared]
