"""The board's rows in the store, and in MLflow's stock pages on the real server, in a real browser."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from playwright.sync_api import Browser
from tests.browser import browser, visit  # noqa: F401
from tests.records import TRAINING, attack_cell, attack_record, cell_ids, readings_of, training_record

from bench.cell import DataRef, Entry, Federated
from bench.cli.ui import command as ui
from bench.leaderboard.board import board
from bench.record import origin
from bench.record import store as records
from bench.record.schema import AttackConditions, Cost, Distortion, Privacy, TrainingCost
from bench.tracking import pages, pictures, row_upload, rows, server, store, upload, victims
from bench.tracking.sync import sync

FEDERATED = Federated(algorithm="fedsgd", clients=10, per_round=2, steps=1, batch=1)
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
        leaked=(1.0, 0.2, 0.1),
        accuracy=0.81,
        epsilon=8.5,
    ),
    Setting(
        defense=Entry(name="fed-cdp", params={"clip": 4, "sigma": 1.0}),
        leaked=(0.3, 0.2, 0.2),
        accuracy=0.79,
        epsilon=4.2,
    ),
    Setting(
        defense=Entry(name="fed-cdp", params={"clip": 4, "sigma": 3.0}),
        leaked=(0.0, 0.0, 0.0),
        accuracy=0.62,
        epsilon=1.1,
    ),
    Setting(defense=Entry(name="low-rank", params={"rank": 2}), leaked=(1.0, 0.6, 0.6)),
)


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
    cell = attack_cell(attack="cpl", model=MODEL, federated=FEDERATED, defense=setting.defense, point=point)
    arrays = {"truth": faces(count, 0, 0), "reconstruction": faces(count, 1 - leaked, POINTS.index(point) + 1)}
    hits = [[number < round(leaked * count)] for number in range(count)]
    scores = readings_of(hits, [[35.0 if hit else 8.0] for (hit,) in hits], prior_db=11.0)
    result: dict[str, Any] = {
        "privacy": Privacy(epsilon=setting.epsilon),
        "arrays": records.write_arrays(run, arrays),
        "conditions": AttackConditions(described=True),
        "distortion": Distortion(snr_db_least=120.0 if setting.defense.name == "none" else 3.0),
    }
    records.write(run, attack_record(cell=cell, readings=scores, result=result | changes))


def write_training(run: Path, setting: Setting) -> None:
    accuracy = setting.accuracy
    assert accuracy is not None
    cell = TRAINING.model_copy(update={"model": MODEL, "federated": FEDERATED, "defense": setting.defense})
    curve = tuple((step, accuracy * (1 - 0.8 ** (step + 1))) for step in range(0, 21, 5))
    result = {"curve": curve, "privacy": Privacy(epsilon=setting.epsilon)}
    cost = Cost(training=TrainingCost(overhead=1.1))
    records.write(run, replace(training_record(accuracy, cell=cell, result=result), cost=cost))


def write_run(run: Path, settings: tuple[Setting, ...] = SETTINGS) -> None:
    for setting in settings:
        for point, leaked in zip(POINTS, setting.leaked, strict=True):
            write_attack(run, setting, point, leaked)
        if setting.accuracy is not None:
            write_training(run, setting)


def there(run: Path, *, deleted: bool = False) -> list[Any]:
    """The runs of rows in the store of this run, the newest first."""
    board = upload.beside(upload.open_target(run), store.board_name(run, "digits"))
    return upload.search(board, "", deleted=deleted)


def send(run: Path, **options: Any) -> int:
    return row_upload.send(upload.open_target(run, **options), run)


@pytest.fixture
def run(store_folder: Path, request: pytest.FixtureRequest) -> Path:
    """A run of its own in that folder: undefended and pruned, attacked and trained."""
    folder = store_folder / request.node.name[:60]
    write_run(folder, SETTINGS[:2])
    return folder


def test_a_row_is_one_run_with_leakage_and_accuracy(run: Path) -> None:
    assert send(run) == 2
    found = {one.info.run_name: one for one in there(run)}
    assert set(found) == {"none", "prune"}
    pruned = found["prune"]
    assert pruned.data.metrics == {
        "worst leaked": 1.0,
        "inside leaked": 1.0,
        "client leaked": 29 / 32,
        "server leaked": 29 / 32,
        "recognised": 1.0,
        "psnr_db": 35.0,
        "accuracy": 0.92,
        "time over undefended": 1.1,
    }
    client = upload.open_target(run).client
    # the compare page opens on the first three by name; attack and listener are equal in both rows
    assert pruned.data.params == {"accuracy": "0.92", "defense": "prune", "parameter.share": "0.5"}
    assert pruned.info.end_time - pruned.info.start_time == 3000
    (data,) = pruned.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("digits", "0" * 8)
    expected = {
        "dataset": "digits",
        "model": "dlg-lenet(activation=sigmoid)",
        "defense": "prune",
        "rank": "2",
        "complete": "true",
        "worst_point": "type-2",
        "best_attack": "cpl",
        "run": run.name,
        "protocol": "1",
    }
    assert {key: pruned.data.tags.get(f"bench.{key}") for key in expected} == expected
    assert "- client (type-1): ASR 0.91 \\[0.76, 0.97\\] of 32 examples" in pruned.data.tags["mlflow.note.content"]
    pictures = [item.path for item in client.list_artifacts(pruned.info.run_id, "images")]
    assert any(path.endswith(".png") for path in pictures)
    assert pruned.data.tags["mlflow.loggedImages"]


def victims_of(run: Path, name: str) -> tuple[dict[str, list[Any]], Path]:
    """The table of victims of a row, column → cells, and the folder of its artifacts."""
    client = upload.open_target(run).client
    (found,) = (one for one in there(run) if one.info.run_name == name)
    folder = Path(client.download_artifacts(found.info.run_id, ""))
    table = json.loads((folder / upload.VICTIMS).read_text())
    columns = zip(*table["data"], strict=True)
    return dict(zip(table["columns"], map(list, columns), strict=True)), folder


def test_a_row_has_a_line_for_each_victim_with_truth_and_reconstruction(run: Path) -> None:
    send(run)
    (none, _), (pruned, folder) = victims_of(run, "none"), victims_of(run, "prune")
    assert none["victim"] == pruned["victim"], "MLflow compares line by line"
    assert pruned["victim"][:2] == ["inside, reading 0", "inside, reading 1"]
    assert len(pruned["victim"]) == 24 and set(pruned["attack"]) == {"cpl"}
    assert set(pruned["reconstructed"]) == {"yes"}
    with Image.open(folder / pruned["output"][0]["filepath"]) as image:
        assert image.width == image.height, "MLflow shows the upper half of a square"
        truth, guess = (np.asarray(image.convert("L"), float)[:96, part] for part in (slice(0, 96), slice(-96, None)))
    assert truth.std() > 50 and np.abs(truth - guess).mean() < 2, "behind type-2 all is reconstructed"
    assert (folder / pictures.GRID).is_file()


def test_victims_are_those_that_most_defenses_fail_to_hide(tmp_path: Path) -> None:
    write_run(tmp_path, (SETTINGS[0], Setting(defense=Entry(name="low-rank"), leaked=(0.0, 0.0, 0.0))))
    cell = attack_cell(attack="cpl", model=MODEL, federated=FEDERATED, defense="top-k", point="type-0")
    hits = [[number >= 30] for number in range(32)]
    records.write(tmp_path, attack_record(hits, cell=cell))
    found = {record.id: record for record in rows.readable(tmp_path)}
    board_rows = board(found.values())
    (chosen,) = victims.chosen(board_rows, [[found[each] for each in row.cells] for row in board_rows]).values()
    at_server = [key[2] for point, key in chosen if point == "type-0"]
    assert at_server == [30, 31, 0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_the_newest_run_is_the_best_row_also_after_a_change(run: Path) -> None:
    write_run(run, SETTINGS[2:])
    send(run)
    best_first = ["fed-cdp(sigma=3)", "fed-cdp(sigma=1)", "none"]
    names = [one.info.run_name for one in there(run)]
    assert [names[0], names[1]] == best_first[:2] and names[-1] == "low-rank"
    for point in POINTS:
        write_attack(run, SETTINGS[5], point, 1.0)
    send(run)
    changed = [one.info.run_name for one in there(run)]
    assert changed[0] == "fed-cdp(sigma=1)" and len(set(changed)) == len(changed) == 7
    assert changed == [row.shown.name for row in rows.of_run(run)]


def test_each_data_set_has_an_experiment(run: Path) -> None:
    cell = attack_cell(attack="cpl", model="mlp", dataset=DataRef(name="cancer", sha256="1" * 64))
    records.write(run, attack_record(cell=cell))
    assert send(run) == 3
    board = upload.beside(upload.open_target(run), store.board_name(run, "cancer"))
    (found,) = upload.search(board, "")
    assert (found.info.run_name, len(there(run))) == ("none", 2)


def test_source_and_commit_are_those_of_the_run(run: Path) -> None:
    origin.save(run, "bench run --matrix quickstart")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    send(run)
    tags = there(run)[0].data.tags
    assert tags["mlflow.source.name"] == "bench run --matrix quickstart"
    assert tags.get("mlflow.source.git.commit", "") == commit


HOSTILE = "|](javascript:alert(1))<img src=x onerror=alert(1)>\x1b[31m\u202e" + "x" * 5000


def test_hostile_names_are_keys_that_mlflow_takes_and_no_markup(store_folder: Path) -> None:
    run = store_folder / "hostile"
    defense = Entry(name=HOSTILE, params={HOSTILE: HOSTILE, "π|": 1, "..": 2})
    cell = attack_cell(defense=defense, attack=Entry(name=HOSTILE), dataset=DataRef(name=HOSTILE, sha256="1" * 64))
    written = records.write(run, attack_record(cell=cell, id="a1"))
    assert written.exists()
    done = sync(run)
    assert (done.count, done.rows, done.reason) == (1, 1, None)
    target = upload.open_target(run)
    (name,) = (name for name in upload.experiments(target) if name.startswith(store.board_name(run, "")))
    (found,) = upload.search(upload.beside(target, name), "")
    texts = [name, found.info.run_name, *found.data.tags.values(), *found.data.params, *found.data.params.values()]
    assert not [text for text in texts if re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text)]
    note = found.data.tags["mlflow.note.content"]
    assert "<img" not in note and not re.search(r"(?<!\\)\]\(javascript", note) and len(note) < 8000


def test_rows_follow_the_cells(run: Path) -> None:
    assert sync(run) == store.UploadResult(count=8, rows=2)
    assert len(there(run)) == 2


def test_names_tell_rows_apart_and_no_more(tmp_path: Path) -> None:
    write_run(tmp_path / "r")
    assert {row.shown.name for row in rows.of_run(tmp_path / "r")} == {
        "none",
        "prune(share=0.5)",
        "prune(share=0.9)",
        "fed-sdp",
        "fed-cdp(sigma=1)",
        "fed-cdp(sigma=3)",
        "low-rank",
    }


def test_again_adds_nothing_and_a_changed_row_takes_the_place_of_the_older(run: Path) -> None:
    assert (send(run), send(run)) == (2, 0)
    before = {one.info.run_name: one.info.run_id for one in there(run)}
    write_attack(run, SETTINGS[1], "type-1", 0.5)  # not the worst point: no other row's rank changes
    assert send(run) == 1
    after = {one.info.run_name: one.info.run_id for one in there(run)}
    changed = {name for name in after if after[name] != before[name]}
    assert (len(after), changed) == (2, {"prune"})
    write_attack(run, SETTINGS[1], "type-1", 0.9)
    assert send(run) == 1, "what it was before is in the trash, and no reason to leave it out"
    assert len(there(run)) == 2


def test_a_row_without_records_goes_and_one_deleted_in_the_ui_stays_away(run: Path) -> None:
    send(run)
    none, pruned = sorted(there(run), key=lambda one: str(one.info.run_name))
    upload.open_target(run).client.delete_run(none.info.run_id)
    assert send(run) == 0
    for path in (run / "records").glob("*.json"):
        if records.read(path).cell.defense.name == "prune":
            path.unlink()
    assert (send(run), there(run)) == (0, [])
    tags = {one.info.run_id: one.data.tags for one in there(run, deleted=True)}
    assert tags[pruned.info.run_id]["bench.superseded"] == "gone"


def test_a_row_cut_off_is_made_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = upload.open_target(run)
    with monkeypatch.context() as patch:
        patch.setattr(opened.client, "set_terminated", lambda *_, **__: 1 / 0)
        with pytest.raises(upload.StoreError, match="ZeroDivisionError"):
            row_upload.send(opened, run)
    assert send(run) == 2
    assert [one.info.status for one in there(run)] == ["FINISHED"] * 2


def test_private_pictures_stay_at_home_until_asked_for(store_folder: Path) -> None:
    run = store_folder / "private"
    undefended = Setting(defense=Entry(name="none"), leaked=(1, 1, 1))
    for leaked in (1.0, 0.5):
        write_attack(run, undefended, "type-2", leaked, private=True)
    assert send(run) == 1
    (found,) = there(run)
    client = upload.open_target(run).client
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
    assert row_upload.send(upload.open_target(other, store.default_uri(run)), other) == 2
    assert len(there(run)) == 4


def test_a_damaged_record_is_no_part_of_the_rows(run: Path) -> None:
    (run / "records" / "a1.json").write_text("{")
    assert len(rows.of_run(run)) == 2
    done = sync(run)
    assert (done.count, done.failed, done.rows) == (8, 1, 2)
    assert "a1.json: not a record" in str(done.reason)


class Older:
    """MLflow's client without what bench uses of it beside the documented."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        if name in ("log_image", "log_table", "_tracking_client"):
            raise AttributeError(name)
        return getattr(self._client, name)


def test_an_mlflow_without_the_names_that_are_not_documented_has_the_rows(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documented = upload._client
    monkeypatch.setattr(upload, "_client", lambda uri: Older(documented(uri)))
    assert sync(run) == store.UploadResult(count=8, rows=2)
    assert "mlflow.loggedImages" not in there(run)[0].data.tags
    assert there(run)[0].data.tags["bench.picture"].endswith(".png")


def test_an_mlflow_of_other_names_is_a_reason(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    opened = upload.open_target(run)
    monkeypatch.delattr("mlflow.entities.RunTag")
    result = upload.send(opened, run, cell_ids(run))
    assert (result.failed, "ImportError" in str(result.reason)) == (8, True)


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
        sync(folder / name)
    port = server.free_port(5177)
    with server.serving(store.default_uri(folder / "demo"), port, folder / "ui.log"):
        yield Served(port, folder / "demo")


@pytest.mark.slow
def test_the_stock_page_charts_the_rows_and_their_pictures(browser: Browser, served: Served) -> None:  # noqa: F811
    addresses, problem = pages.pages(served.port, "demo", store.board_name(served.run, ""))
    assert (list(addresses), problem) == (["digits", "compare", "cells"], None)
    with visit(browser, addresses["digits"], width=1400, height=3200) as seen:
        page = seen.page
        page.get_by_text("7 matching runs").wait_for(timeout=60_000)  # the rows and none of the 28 cells
        names = {row.shown.name for row in rows.of_run(served.run)}
        assert all(page.get_by_text(name, exact=True).count() for name in names)
        for title in (rows.WORST, rows.ACCURACY, "inside leaked", "server leaked"):
            page.get_by_text(title, exact=True).first.wait_for(timeout=30_000)
        drawn = page.locator("img[src*='get-artifact']").first
        drawn.wait_for(timeout=30_000)
        page.wait_for_function("image => image.naturalWidth > 100", arg=drawn.element_handle(), timeout=30_000)
        own = f"http://127.0.0.1:{served.port}/"
        assert [asked for asked in seen.outside if not asked.startswith(own)] == []
        assert not [said for said in seen.complaints if said.startswith(("exception", "dialog"))]
    client = upload.open_target(served.run).client
    for name in ("demo", store.board_name(served.run, "digits")):
        experiment = client.get_experiment_by_name(name)
        assert not [key for key in experiment.tags if "View" in key], "the store keeps no state of the page"


@pytest.mark.slow
def test_the_page_of_artifacts_compares_victims_over_defenses(browser: Browser, served: Served) -> None:  # noqa: F811
    addresses, _ = pages.pages(served.port, "demo", store.board_name(served.run, ""))
    with visit(browser, addresses["digits"].replace("CHART", "ARTIFACT"), width=1400, height=1200) as seen:
        page = seen.page
        page.get_by_text("inside, reading 0", exact=True).wait_for(timeout=60_000)
        page.locator("img").nth(3).wait_for(timeout=30_000)  # side by side
        assert "Compare:output" in "".join(page.inner_text("body").split()), "the column that the page compares"


@pytest.mark.slow
def test_a_run_without_a_board_has_the_page_of_cells(served: Served) -> None:
    for name, expected in (("single", ["digits", "cells"]), ("bare", ["cells"])):
        addresses, problem = pages.pages(served.port, name, store.board_name(served.run.with_name(name), ""))
        assert (list(addresses), problem) == (expected, None)
        assert "/runs?" in addresses["cells"]


@pytest.mark.parametrize("answer", [{}, [], {"experiments": [{}]}, {"experiments": 1}, None])
def test_a_server_that_answers_otherwise_leaves_a_page(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(pages, "_call", lambda *_: answer)
    addresses, problem = pages.pages(5077, "demo", "demo · board · ")
    assert list(addresses) == ["cells"]
    assert problem is not None and "\n" not in problem


def test_ui_says_in_a_line_what_it_opens_instead(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        def wait(self) -> int:
            return 0

    upload.open_target(run)
    monkeypatch.setattr(server, "serving", lambda *_: nullcontext(Server()))
    monkeypatch.setattr(pages, "pages", lambda *_: ({"cells": "http://x/r"}, "no answer"))
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    output = CliRunner().invoke(ui, [str(run)]).output
    assert "no answer; it opens on cells\n" in output
    assert opened == ["http://x/r"]


@pytest.mark.slow
def test_the_compare_page_has_the_rows_of_the_board_the_best_first(served: Served) -> None:
    compared = pages.pages(served.port, "demo", store.board_name(served.run, ""))[0]["compare"]
    places = [compared.index(row.info.run_id) for row in there(served.run)]
    assert len(places) == 7 and places == sorted(places)
