"""Promise: a kind of data is decided in one place, and every kind names what the other rooms need of it."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from tests.records import attack_record

from bench.attacks.base import Attack
from bench.cell import AttackCell, DataRef, Entry, Federated
from bench.datasets.base import Raw, split
from bench.errors import BenchError, DataError, RecordError
from bench.isolation import wire
from bench.kinds.base import Kind
from bench.kinds.images import IMAGE
from bench.kinds.known import KINDS, named, of_shape
from bench.kinds.tables import TABLE
from bench.matrix.feasible import DatasetFacts, impossible
from bench.record import metrics
from bench.record.equality import differences
from bench.record.schema import AttackResult, adapter
from bench.registry import entries as registry

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)


@every_kind
def test_a_kind_names_metrics_that_it_has(kind: Kind) -> None:
    own = {metric.name for metric in metrics.of_kind(kind)}
    assert {kind.success.closeness, kind.success.over} <= own


@every_kind
def test_the_default_model_takes_the_default_data(kind: Kind) -> None:
    assert registry.literals("datasets", kind.default_dataset)["kind"] == kind.name
    takes = registry.literals("models", kind.default_model)["takes"]
    assert isinstance(takes, tuple) and kind.name in takes


@every_kind
def test_every_shape_of_a_kind_is_drawn(kind: Kind) -> None:
    for shape in kind.shapes:
        assert len(shape) == len(kind.axes)
        pixels = kind.pixels(kind.values.draw(np.random.default_rng(0), (2, *shape)))
        assert pixels.shape[0] == 2 and pixels.shape[3:] == (3,) and ((pixels >= 0) & (pixels <= 1)).all()


@every_kind
def test_a_kind_stays_equal_on_its_way_to_another_process(kind: Kind) -> None:
    assert wire.load(wire.dump(kind)) == kind == copy.deepcopy(kind)


def test_an_attack_names_kinds_that_exist() -> None:
    for name in registry.names("attacks"):
        takes = registry.literals("attacks", name)["takes"]
        assert isinstance(takes, tuple) and set(takes) <= set(KINDS)


@pytest.mark.parametrize(
    ("psnr", "over", "leaked", "strict"), [(20.0, 3.0, 1, 0), (19.9, 9.0, 0, 0), (30.0, 2.9, 0, 0)]
)
def test_images_leak_by_psnr_and_margin(psnr: float, over: float, leaked: bool, strict: bool) -> None:
    figures = {"psnr_db": psnr, "over_prior_db": over}
    found = IMAGE.success.leaked(figures), IMAGE.success.leaked_strictly(figures)
    assert [bool(value) for value in found] == [leaked, strict]
    assert IMAGE.success.leaked(figures | {"over_prior_db": np.nan}) == (psnr >= 20), "no prior, no margin"


def test_tables_have_no_strict_rate() -> None:
    figures = {"rmse": 0.1, "numeric_rmse": 0.2, "groups_right": np.nan, "over_prior_db": 3.0}
    assert TABLE.success.leaked(figures) and TABLE.success.leaked_strictly(figures) is None
    assert not TABLE.success.leaked(figures | {"rmse": np.nan})


@pytest.mark.parametrize(
    ("shape", "name", "integers", "message"),
    [
        ((13,), None, "public", r'public holds integers: .*; give kind="table", or floats'),
        ((8, 8), None, "", r"neither \(channel, height, width\) nor \(feature,\); give \(1, 8, 8\)"),
        ((2, 3, 4, 5), None, "", r"is neither \(channel, height, width\) nor \(feature,\)$"),
        ((13,), "image", "", r"shape \(13,\) is not \(channel, height, width\)"),
        ((13,), "sound", "", "unknown kind of data 'sound'; there are image, table"),
    ],
)
def test_arrays_of_no_certain_kind_ask_for_it(shape: tuple[int, ...], name: str, integers: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        of_shape(shape, name, integers=integers)


def test_arrays_are_told_apart_by_their_axes() -> None:
    assert (of_shape((3, 8, 8), integers="public"), of_shape((13,))) == (IMAGE, TABLE)
    assert of_shape((13,), "table", integers="public") == TABLE


@pytest.mark.parametrize(
    ("kind", "inputs", "message"),
    [
        ("image", np.zeros((60, 4), np.float32), r"an image has the axes \(channel, height, width\), .* shape \(4,\)"),
        ("table", np.zeros((60, 1, 4, 4), np.float32), r"a table has the axes \(feature,\), .* shape \(1, 4, 4\)"),
        ("table", np.zeros((60, 4), np.int64), "values are int64; uint8 levels"),
        ("sound", np.zeros((60, 4), np.float32), "unknown kind of data 'sound'"),
        (None, np.zeros((60, 4), np.float32), "no kind of data is declared"),
    ],
)
def test_data_that_are_not_of_their_kind_are_refused(kind: str | None, inputs: np.ndarray, message: str) -> None:
    labels = np.arange(60) % 2
    raw = Raw(
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=inputs,
        test_labels=labels,
        class_names=("a", "b"),
        kind=kind,
    )
    with pytest.raises((DataError, BenchError), match=message):
        split(raw, name="mine", private=True)


def test_an_attack_meets_only_the_kinds_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = AttackCell(
        dataset=DataRef(name="cancer", sha256="0" * 64),
        model=Entry(name="mlp"),
        federated=Federated(),
        defense=Entry(name="none"),
        attack=Entry(name="dlg"),
        point="type-2",
        readings=2,
    )
    facts = DatasetFacts(sha256="", subset=None, kind=TABLE, shape=(3,), classes=2, training=4000)
    assert impossible(cell, facts) is None
    monkeypatch.setattr(Attack, "takes", ("image",))
    assert impossible(cell, facts) == "dlg takes image, cancer is a table"


def test_a_record_says_its_kind_of_data() -> None:
    result = attack_record().attack
    assert result is not None and result.data_kind == IMAGE
    with pytest.raises(RecordError, match="unknown kind of data 'sound'"):
        replace(result, data="sound").data_kind  # noqa: B018
    with pytest.raises(RecordError, match="nothing to attack"):
        AttackResult(readings=()).data_kind  # noqa: B018


def test_a_record_from_before_kinds_is_of_images_or_of_a_table() -> None:
    summary = attack_record().attack.figures()  # type: ignore[union-attr]
    assert AttackResult(readings=(), summary=replace(summary, asr_strict=None)).data_kind == TABLE
    assert AttackResult(readings=(), summary=replace(summary, asr_strict=summary.asr)).data_kind == IMAGE
    assert named("image") is IMAGE


def test_older_records_stay_as_they_are_and_agree_with_new_ones() -> None:
    new = attack_record()
    assert new.attack is not None
    old = replace(new, result=replace(new.attack, data=None))
    assert "data" not in adapter().dump_python(old, mode="json")["result"]
    assert adapter().dump_python(new, mode="json")["result"]["data"] == "image"
    assert differences(old, new) == []
