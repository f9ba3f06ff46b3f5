"""The families of a calibration in MLflow: strengths as steps, own among shipped, private victims withheld."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.records import attack_cell, attack_record, readings_of

from bench.cell import Entry, Grants
from bench.cli.main import cli
from bench.record import store as records
from bench.record import tradeoff as values
from bench.record.tradeoff import AtLevel, Leaked, Row, Tradeoff
from bench.reference import store as reference
from bench.tracking import families, row_upload, store, upload
from bench.tracking.sync import sync


def at(level: str, value: float, share: float, accuracy: float) -> AtLevel:
    return AtLevel(
        level=level,
        most=values.permitted(level, 0.01),
        value=value,
        interval=None,
        share=share,
        low=share / 2,
        high=1.5 * share,
        trained=None,
        accuracies=(accuracy,),
        rate=1.0,
        epsilon=None,
        ceiling=None,
        ceiling_all=None,
        released=None,
        released_of=None,
    )


def family(name: str, accuracy: float, **changes: Any) -> Row:
    """Two tried strengths, and levels at a third and a fourth."""
    curve = tuple(
        Leaked(value=value, share=share, hits=(1,), readings=(4,)) for value, share in ((0.1, 1.0), (9.0, 0.0))
    )
    fields: dict[str, Any] = {
        "dataset": "digits",
        "model": "mlp",
        "point": "type-1",
        "also": ("type-0",),
        "family": name,
        "parameter": "sigma",
        "chance": 0.01,
        "code": None,
        "uploads": 60,
        "curve": curve,
        "at_levels": (at("L1", 2.0, 0.05, accuracy), at("L2", 1.0, 0.2, 0.9)),
        "missed": (),
    }
    return Row(**(fields | changes))


OWN = Tradeoff(
    machine=None,
    undefended={"digits · mlp": (1.0,)},
    commonest={"digits · mlp": 0.1},
    rows=(family("mine(clip=4.0)", 0.6), family("mine(clip=4.0)", 0.8, point="aggregate", also=())),
)
SHIPPED = replace(
    OWN,
    undefended={"digits · mlp": (1.0,), "mnist · mlp": (1.0,)},
    commonest={"digits · mlp": 0.1, "mnist · mlp": 0.1},
    rows=(family("theirs", 0.8), family("elsewhere", 0.9, dataset="mnist")),
)


def write_victims(run: Path, value: float, named: int, seed: int = 0, *, private: bool = False) -> None:
    """A reading of each of four victims at this strength."""
    defense = Entry(name="mine", params={"clip": 4.0, "sigma": value})
    cell = attack_cell(defense=defense, point="type-1", attack="gallery", grants=Grants(gallery=9), seed=seed)
    scores = readings_of([[False]] * 4)
    scores = tuple(
        replace(each, examples=(replace(each.examples[0], named=number < named),)) for number, each in enumerate(scores)
    )
    arrays = {"truth": np.ones((4, 1, 1, 8, 8), np.float32), "reconstruction": np.zeros((4, 1, 1, 8, 8), np.float32)}
    result = {"arrays": records.write_arrays(run, arrays), "private": private}
    records.write(run, attack_record(cell=cell, readings=scores, result=result))


@pytest.fixture
def run(store_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    values.write(tmp_path, SHIPPED)
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    folder = store_folder / request.node.name
    for value, named in ((0.1, 4), (9.0, 0)):
        write_victims(folder, value, named)
        write_victims(folder, value, named, seed=1)
    values.write(folder, OWN)
    return folder


def board(run: Path) -> upload.Target:
    return upload.beside(upload.open_target(run), store.board_name(run, "trade-off digits mlp"))


def test_a_family_is_a_run_with_its_strengths_as_steps(run: Path) -> None:
    assert row_upload.send(upload.open_target(run), run) == 2, "the other federation's family is left out"
    theirs, mine = upload.search(board(run), "")
    assert [theirs.info.run_name, mine.info.run_name] == ["theirs · shipped", "mine"], "the more accurate is newer"
    client = board(run).client

    def curve(name: str) -> list[tuple[int, float]]:
        return [(each.step, each.value) for each in client.get_metric_history(mine.info.run_id, name)]

    assert curve("server/named") == [(1, 1.0), (2, 0.2), (3, 0.05), (4, 0.0)]
    assert curve("server/accuracy kept") == [(2, 0.9), (3, 0.6)]
    assert mine.data.metrics["mean/kept at L1"] == 0.8
    assert not [name for name in mine.data.metrics if name.startswith("client")], "the server has the same reading"
    assert mine.data.params == {"defense": "mine", "L1 mean": "sigma = 2"}, "the server's strength is equal in all"
    assert "steps of sigma: 1 = 0.1, 2 = 1, 3 = 2, 4 = 9" in mine.data.tags["mlflow.note.content"]
    assert mine.info.end_time and not theirs.info.end_time
    assert "mlflow.source.name" in mine.data.tags and "mlflow.source.name" not in theirs.data.tags
    assert [each.dataset.name for each in theirs.inputs.dataset_inputs] == ["digits"]
    assert row_upload.send(upload.open_target(run), run) == 0


def test_a_slider_walks_the_same_victims_faded_if_not_named(run: Path) -> None:
    (mine,) = (each for each in families.of_run(run) if each.shown.name == "mine")
    found = mine.attached().images
    assert [(name, step) for name, step, _ in sorted(found, key=lambda each: each[1])] == [
        ("server named victims", 1),
        ("server named victims", 4),
    ]
    weak, strong = (np.asarray(image.convert("L")) for _, _, image in sorted(found, key=lambda each: each[1]))
    assert weak.shape == strong.shape
    write_victims(run, 0.1, 2)
    (mine,) = (each for each in families.of_run(run) if each.shown.name == "mine")
    half = np.asarray(next(image for _, step, image in mine.attached().images if step == 1).convert("L"))
    width = half.shape[1] // 8
    assert (half[:, : 2 * width] == weak[:, : 2 * width]).all() and (
        half[:, 3 * width :] == strong[:, 3 * width :]
    ).all()


def test_private_victims_stay_at_home(run: Path) -> None:
    write_victims(run, 0.1, 4, private=True)
    row_upload.send(upload.open_target(run), run)
    (mine,) = (each for each in upload.search(board(run), "") if each.info.run_name == "mine")
    assert mine.data.tags["bench.picture"] == "withheld: private data"
    assert board(run).client.list_artifacts(mine.info.run_id) == []


def test_a_damaged_calibration_has_no_board(run: Path) -> None:
    (run / values.FILE).write_text(json.dumps({"rows": 1}))
    assert families.of_run(run) == []


class InProcess:
    """The follower of a run, without a process."""

    def __init__(self, run: Path, tracking_uri: str | None = None) -> None:
        self._run, self._uri = run, tracking_uri
        self.uploaded: store.UploadResult | None = None

    def start(self) -> None:
        assert (self._run / values.FILE).is_file(), "the upload reads the result"

    def finish(self) -> str | None:
        self.uploaded = sync(self._run, self._uri)
        return self.uploaded.reason

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("more", "names"), [([], ["theirs · shipped", "mine"]), (["--no-tracking"], [])])
def test_calibrate_uploads_its_families(
    run: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], names: list[str]
) -> None:
    (run / values.FILE).unlink()
    monkeypatch.setattr("bench.cli.calibrating.run", lambda *_, **__: OWN)
    monkeypatch.setattr("bench.tracking.following.Follower", InProcess)
    output = CliRunner().invoke(cli, ["calibrate", "--defense", "mine", "--out", str(run), *more])
    assert output.exit_code == 0, output.output
    assert [each.info.run_name for each in upload.search(board(run), "")] == names
    assert ("not requested; `bench sync" in output.output) == bool(more)
