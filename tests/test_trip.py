"""Promise: what a reading or a reconstruction holds for each reading goes along with its rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import torch
from tests.cells import NOISE, NONE, PRUNE, mate
from tests.records import attack_record
from torch import Tensor

from bench import trip
from bench.answer import company, observation
from bench.answer.context import Memory, RunContext
from bench.answer.observation import draw_and_observe
from bench.answer.readings import take_reading
from bench.answer.reconstruct import reading_key
from bench.answer.victims import Truth
from bench.cell import AttackCell
from bench.contracts.situations import situation
from bench.isolation import served
from bench.record.store import write
from bench.trip import MARK, OBSERVATION, READING, SHARED, Reading, Reconstruction

AXES = {each["axis"] for each in (READING, MARK, OBSERVATION, SHARED)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown(Reading):
    """A reading with a grant that has a value per reading."""

    first_mean: Tensor | None = field(default=None, metadata=READING)


Grown.__module__ = "bench.trip"  # as data between processes are


@dataclass(frozen=True, slots=True, kw_only=True)
class Careless(Reading):
    """A reading with a grant that says no axis."""

    first_mean: Tensor | None = None
    means: Mapping[str, Tensor] | None = None
    places: tuple[int, ...] = ()


def has_rows(hint: Any) -> bool:
    """Whether a field of this type may have an axis of readings: tensors, mappings of them, tuples of any length."""
    arguments = get_args(hint)
    return hint is Tensor or Ellipsis in arguments or any(map(has_rows, arguments))


def silent(kind: type) -> list[str]:
    """The fields that may have an axis of readings and say none."""
    hints = get_type_hints(kind)
    return [each.name for each in fields(kind) if has_rows(hints[each.name]) and each.metadata.get("axis") not in AXES]


def test_every_field_says_its_axis() -> None:
    for kind in (Reading, Reconstruction, Truth):
        assert silent(kind) == []
    assert silent(Grown) == []
    assert silent(Careless) == ["first_mean", "means", "places"]
    assert get_origin(get_type_hints(Reading)["values"]) is Mapping


def first_mean(reading: Reading) -> Tensor:
    return next(iter(reading.values.values())).flatten(1).mean(1)


def grown(reading: Reading) -> Grown:
    """The reading with the mean of its first tensor granted, reading by reading."""
    known = {each.name: getattr(reading, each.name) for each in fields(reading)}
    return Grown(**known, first_mean=first_mean(reading))


def aligned(reading: Reading) -> bool:
    assert isinstance(reading, Grown) and reading.first_mean is not None
    return torch.equal(reading.first_mean, first_mean(reading)) and len(reading.first_mean) == len(reading)


def test_some_readings_are_those_rows_of_every_field() -> None:
    reading = grown(situation("type-1", readings=4, batch=2, labels=True).reading)
    some = reading.of((3, 1))
    assert some.indices == (3, 1) and aligned(some)
    assert reading.labels is not None and some.labels is not None
    assert torch.equal(some.labels, reading.labels[[3, 1]])
    for name, value in reading.values.items():
        assert torch.equal(some.values[name], value[[3, 1]])
        assert torch.equal(some.weights[name], reading.weights[name])
    assert some.public_inputs is reading.public_inputs and some.rounds == reading.rounds
    assert len(reading.of(())) == 0 and reading.of(()).values.keys() == reading.values.keys()


def test_joined_readings_are_taken_apart_by_their_rows() -> None:
    """First readings first, whichever cell they are of."""
    whole = grown(situation("type-1", readings=4, batch=2, labels=True).reading)
    parts = [whole.of((0, 1, 3)), whole.of((2,)), whole.of((0, 3))]
    joined, rows = Reading.joined(parts)
    assert joined.indices == (0, 0, 1, 2, 3, 3) and aligned(joined)
    assert rows == ((0, 2, 4), (3,), (1, 5))
    for part, own in zip(parts, rows, strict=True):
        again = joined.of(own)
        assert again.indices == part.indices and aligned(again)
        assert part.labels is not None and again.labels is not None and torch.equal(again.labels, part.labels)
        assert all(torch.equal(again.values[name], value) for name, value in part.values.items())
    with pytest.raises(TypeError):
        Reading.joined([whole, replace(whole, labels=None)])


def test_some_of_a_reconstruction() -> None:
    """A trajectory is of the first readings; each mark has a loss of every reading."""
    count = torch.arange(4)
    whole = Reconstruction(
        inputs=count[:, None, None].double(),
        labels=count[:, None],
        loss=count.double(),
        evaluations=10 * count,
        outer=count,
        restarts=count,
        status=("ok", "nan", "ok", "diverged"),
        history=((1, (0.0, 0.1, 0.2, 0.3)), (5, (1.0, 1.1, 1.2, 1.3))),
        trajectory=(10 * torch.arange(2)[:, None] + count[:3])[:, :, None, None],
        named=count[:, None],
        notes=("a note",),
    )
    some = whole.of((1, 3))
    for name in ("labels", "loss", "outer", "restarts", "named"):
        assert getattr(some, name).flatten().tolist() == [1, 3], name
    assert some.evaluations.tolist() == [10, 30] and some.status == ("nan", "diverged")
    assert some.history == ((1, (0.1, 0.3)), (5, (1.1, 1.3)))
    assert some.trajectory is not None and some.trajectory.flatten(1).tolist() == [[1], [11]]
    assert some.certificate is None and some.notes == ("a note",)


@pytest.fixture
def _granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell grants a value per reading."""
    monkeypatch.setattr(observation, "take_reading", lambda *given: grown(take_reading(*given)))
    monkeypatch.setattr(trip, "Grown", Grown, raising=False)


def cascade(run: Path, **changes: Any) -> AttackCell:
    """A cell to which readings 2 and 3 of four are left."""
    before = mate(PRUNE, attack=mate().attack.model_copy(update={"name": "prior-mean"}), readings=4)
    write(run, attack_record([[True] * 2, [True] * 2, [False] * 2, [False] * 2], cell=before))
    return mate(PRUNE, after=(before.id,), readings=4, **changes)


@pytest.mark.usefixtures("_granted")
def test_a_grant_with_a_value_per_reading_in_a_cascade(tmp_path: Path) -> None:
    reading = draw_and_observe(cascade(tmp_path), RunContext(run=tmp_path), Memory()).reading
    assert reading.indices == (2, 3) and aligned(reading)


@pytest.mark.usefixtures("_granted")
def test_a_grant_with_a_value_per_reading_in_company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Reading] = []

    def attacked(attacker: Any, reading: Reading, *given: Any) -> Reconstruction:
        seen.append(reading)
        raise RuntimeError("it is enough to have seen it")

    monkeypatch.setattr(company, "attack_readings", attacked)
    first, *others = (mate(defense) for defense in (PRUNE, NOISE, NONE))
    company.attack_together(first, others, RunContext(run=tmp_path, rows=100), Memory())
    (whole,) = seen
    assert whole.indices == (0, 0, 0, 1, 1, 1, 2, 2, 2) and aligned(whole)
    assert isinstance(whole, Grown) and whole.first_mean is not None and len(whole.first_mean.unique()) == 9


@pytest.mark.usefixtures("_granted")
@pytest.mark.parametrize("knowledge", ["plain", "adaptive"])
def test_a_grant_with_a_value_per_reading_between_processes(tmp_path: Path, knowledge: str) -> None:
    """A plain reading goes as data, an adaptive one with code."""
    wanted, context = cascade(tmp_path, knowledge=knowledge), RunContext(run=tmp_path)
    state = served.State()
    sent, _ = served.observe(wanted, context, (), served.State())
    served.hold(sent, wanted, state)
    assert state.held is not None
    received, _ = state.held
    assert received.indices == (2, 3) and aligned(received)
    other = replace(received, first_mean=received.first_mean + 1)  # type: ignore[attr-defined,call-arg]
    assert reading_key(other, wanted) != state.held[1]  # it counts, where equal readings are attacked once
