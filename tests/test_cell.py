"""Promise: an id names a configuration for ever; a new field with a default changes no id."""

from typing import Annotated

import pytest
from pydantic import Field

from bench.cell import (
    ATTACKER,
    NOT_AN_AXIS,
    AnyCell,
    AttackCell,
    Bayesian,
    CheckpointWeights,
    DataRef,
    Entry,
    Federated,
    FileWeights,
    Frozen,
    Grants,
    TrainingCell,
    axes,
    marked,
)

DATA = DataRef(name="digits", params={"size": 8}, sha256="a" * 64, subset="first 100")
PLAIN = AttackCell(
    dataset=DataRef(name="digits", sha256="a" * 64),
    model=Entry(name="dlg-lenet", params={"activation": "sigmoid"}),
    federated=Federated(),
    defense=Entry(name="none"),
    attack=Entry(name="cpl", params={"restarts": 0}),
    point="type-1",
)
FULL = AttackCell(
    dataset=DATA,
    model=Entry(name="mlp"),
    federated=Federated(algorithm="fedavg", steps=3, rate=0.1, partition="two-class", client_examples=20),
    defense=Entry(name="prune", params={"share": 0.7}),
    seed=3,
    weights=CheckpointWeights(training="b" * 64, round=5, series="c" * 64),
    attack=Entry(name="map"),
    knowledge="adaptive",
    grants=Grants(labels=True, colluders=0.5, gallery=100),
    point="aggregate",
    readings=8,
    evaluations=300,
    chunk=4,
    draw=2,
    reference=True,
    after=("d" * 64,),
)
FILE = FileWeights(sha256="e" * 64, path="/somewhere/w.safetensors", series="w-{seed}")
TRAINING = TrainingCell(
    dataset=DATA, model=Entry(name="mlp"), federated=Federated(), defense=Entry(name="none"), rounds=20
)
LIMITED = TrainingCell(
    dataset=DATA,
    model=Entry(name="mlp"),
    federated=Federated(),
    defense=Entry(name="fed-cdp", params={"sigma": 6.0}),
    seed=1,
    rounds=20,
    test_every=2,
    test_examples=100,
    until_accuracy=0.9,
    until_epsilon=8.0,
    bayesian=Bayesian(levels=("client", "joint"), formula="paper"),
)


@pytest.mark.parametrize(
    ("cell", "id_"),
    [
        (PLAIN, "2be8e1cfabb3af50c0372ad5881ee67e30444c73a9b97c609ee04d62644656ce"),
        (FULL, "c99669eed9bb7fbff918ed98f8b16e9fcf9d3c8a10937a3c610d1a4a66609d6b"),
        (
            PLAIN.model_copy(update={"weights": FILE}),
            "df10adc62ec4edd92096b9792abb6c1b59b5080e3b7494736308b86bfdadab89",
        ),
        (TRAINING, "3c2d3d27dc4efb0e6539a0c83d646840e8ed77acdd1913d045be0b5cf1885bc3"),
        (LIMITED, "a9c1e614cb19204d3c870e7c7f44d29a97c162db33781f8d232c75e435666b2c"),
    ],
)
def test_ids_stay(cell: AnyCell, id_: str) -> None:
    """Computed before the rule of `configuration`: shipped references, exports and claims pair by these."""
    assert cell.id == id_


class NewGrants(Grants):
    oracle: bool = False


class NewSetting(Federated):
    momentum: float = 0.0


class NewEntry(Entry):
    version: int | None = None


class NewAttack(AttackCell):
    federated: NewSetting
    defense: NewEntry
    grants: Annotated[NewGrants, *AttackCell.model_fields["grants"].metadata] = NewGrants()
    patience: Annotated[int, Field(ge=1), ATTACKER] = 7
    words: list[str] = Field(default_factory=list)


class NewTraining(TrainingCell):
    warmup: Annotated[int, NOT_AN_AXIS] = 3


def widened(part: Frozen, kind: type[Frozen], **fields: object) -> Frozen:
    """The same values in a class with more fields."""
    return kind(**{name: getattr(part, name) for name in type(part).model_fields} | fields)


@pytest.mark.parametrize("cell", [PLAIN, FULL])
def test_a_new_field_at_its_default_changes_no_id(cell: AttackCell) -> None:
    def new(**fields: object) -> AttackCell:
        parts = {
            "federated": widened(cell.federated, NewSetting),
            "defense": widened(cell.defense, NewEntry),
            "grants": widened(cell.grants, NewGrants),
        }
        made = widened(cell, NewAttack, **parts | fields)
        assert isinstance(made, AttackCell)
        return made

    assert new().id == cell.id
    changed = [
        new(patience=8),
        new(words=["a"]),
        new(federated=widened(cell.federated, NewSetting, momentum=0.9)),
        new(defense=widened(cell.defense, NewEntry, version=0)),
        new(grants=widened(cell.grants, NewGrants, oracle=True)),
    ]
    assert len({cell.id, *(each.id for each in changed)}) == 1 + len(changed)
    assert widened(TRAINING, NewTraining).configuration() == TRAINING.configuration()
    assert widened(TRAINING, NewTraining, warmup=0).configuration() != TRAINING.configuration()


def test_a_new_field_is_an_axis_unless_marked() -> None:
    assert axes(NewAttack) == (*axes(AttackCell), "patience", "words")
    assert axes(NewTraining) == axes(TrainingCell)
    assert {*marked(NewAttack, ATTACKER)} - {*marked(AttackCell, ATTACKER)} == {"patience"}


def test_storage_and_kept_rounds_are_no_part_of_an_id() -> None:
    moved = FILE.model_copy(update={"path": "/elsewhere", "series": ""})
    assert PLAIN.model_copy(update={"weights": moved}).id == PLAIN.model_copy(update={"weights": FILE}).id
    assert TRAINING.model_copy(update={"checkpoints": (5, 10)}).id == TRAINING.id
