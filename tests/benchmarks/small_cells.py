"""Cells on digits that take a second: what is run on a GPU, and rehearsed without one (`tests/rehearsal.py`)."""

from dataclasses import replace
from typing import Any

from bench.attacks.base import Attack
from bench.attacks.search import refine
from bench.cell import AttackCell, DataRef, Entry, Federated, Grants, TrainingCell
from bench.datasets.digits import Digits
from bench.datasets.loading import load
from bench.datasets.opinions import Opinions
from bench.errors import BenchError
from bench.registry import entries as registry
from bench.trip import Reading

DIGITS = DataRef(name="digits", sha256=load(Digits(), "digits", None).sha256)
OPINIONS = DataRef(name="opinions", sha256=load(Opinions(), "opinions", None).sha256)
FEDERATED = Federated(clients=10, per_round=4, batch=1)
CRAFTED = {"bins", "trap"}
FULLY_CONNECTED = {"analytic", "cpa", "subspace", *CRAFTED}
QUICK: dict[str, dict[str, Any]] = {"token-matching": {"starts": 1}}  # an evaluation compares a hundred texts


def pictures() -> DataRef:
    """CIFAR-10 where it is at hand, else digits."""
    try:
        return DataRef(
            name="cifar10", sha256=load(registry.instance("datasets", "cifar10", {}), "cifar10", None).sha256
        )
    except BenchError:
        return DIGITS


def entry(value: str | Entry, **params: Any) -> Entry:
    return value if isinstance(value, Entry) else Entry(name=value, params=params)


def attack_cell(attack: str | Entry = "cpl", defense: str | Entry = "none", **changes: Any) -> AttackCell:
    """Two readings, twelve evaluations, of data and a model that the attack can attack."""
    of = attack if isinstance(attack, Entry) else entry(attack, **QUICK.get(attack, {}))
    kind: type[Attack] = registry.load("attacks", of.name)
    text, connected = "text" in kind.takes, of.name in FULLY_CONNECTED
    model = entry("tiny-transformer" if text else "mlp" if connected else "dlg-lenet")
    server: Any = "weights" if of.name in CRAFTED else kind.servers[0]
    if of.name in CRAFTED:
        model = entry("mlp", hidden=[64], activation="relu")
    params: dict[str, Any] = {"at": "client", "variance": 1e-3} if defense == "gaussian" else {}
    return AttackCell(
        **{
            "dataset": OPINIONS if text else DIGITS,
            "model": model,
            "attack": of,
            "federated": FEDERATED.model_copy(update={"batch": 2}) if connected or of.name == "demix" else FEDERATED,
            "defense": entry(defense, **params),
            "point": "type-1",
            "readings": 2,
            "evaluations": 12,
            "grants": Grants(labels=True, gallery=20 if of.name == "gallery" else 0, server=server),
            **changes,
        }
    )


def training_cell(defense: str | Entry = "none", **changes: Any) -> TrainingCell:
    """Three rounds."""
    return TrainingCell(
        **{
            "dataset": DIGITS,
            "model": Entry(name="dlg-lenet"),
            "defense": entry(defense),
            "rounds": 3,
            "federated": Federated(clients=10, per_round=4, batch=3),
            "test_every": 2,
            "test_examples": 50,
            **changes,
        }
    )


def in_double(reading: Reading) -> Reading:
    """A reading in double precision, its public data too; tokens are integers."""
    if not reading.public_inputs.is_floating_point():
        return refine.in_double(reading)
    return replace(
        refine.in_double(reading),
        public_mean=reading.public_mean.double(),
        public_inputs=reading.public_inputs.double(),
    )
