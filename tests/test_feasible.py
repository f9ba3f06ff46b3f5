"""What the plan rules out is what the data refuse, and a client's share is counted as it is dealt."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cells import attack

from bench.cell import DataRef, Entry, Federated, Grants, TrainingCell
from bench.datasets.partition import client_indices
from bench.errors import BenchError
from bench.kinds.tables import TABLE
from bench.matrix.feasible import DatasetFacts, client_examples, examples, impossible


@pytest.mark.parametrize(
    ("point", "count"), [("type-2", 1), ("type-2-step", 3), ("type-1", 6), ("type-0", 6), ("aggregate", 24)]
)
def test_examples_behind_a_reading(point: str, count: int) -> None:
    setting = Federated(algorithm="fedavg", per_round=4, steps=2, batch=3)
    assert examples(attack(point=point, federated=setting)) == count
    few = attack(point=point, federated=setting, grants=Grants(dummies=3))
    assert examples(few) == (6 if point == "aggregate" else count)


def refused(federated: Federated, training: int, classes: int) -> str | None:
    cell = TrainingCell(
        dataset=DataRef(name="cancer", sha256="0" * 64),
        model=Entry(name="mlp"),
        federated=federated,
        defense=Entry(name="none"),
        rounds=1,
    )
    facts = DatasetFacts(sha256="", subset=None, kind=TABLE, shape=(3,), classes=classes, training=training)
    return impossible(cell, facts)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    partition=st.sampled_from(["iid", "two-shard", "two-class"]),
    clients=st.integers(1, 40),
    given_examples=st.none() | st.integers(1, 50),
    training=st.integers(2, 45),
    classes=st.integers(1, 3),
)
def test_a_setting_is_ruled_out_where_the_partition_refuses_it(
    partition: str, clients: int, given_examples: int | None, training: int, classes: int
) -> None:
    federated = Federated.model_validate(
        {"partition": partition, "clients": clients, "per_round": 1, "client_examples": given_examples, "batch": 1}
    )
    labels = np.arange(training) % min(classes, training)
    reason = refused(federated, training, classes)
    held, error = None, ""
    try:
        held = client_indices(labels, kind=partition, clients=clients, client_examples=given_examples, seed=0)
    except BenchError as fault:
        error = str(fault)
    # The size of the smallest class is not known to the plan: such a cell says so when it runs.
    assert (reason is None) == (held is not None or "the smallest has" in error)
    if held is not None:
        assert held.shape == (clients, client_examples(federated, training))


@pytest.mark.parametrize(("batch", "runs"), [(10, True), (11, False)])
def test_a_client_needs_a_whole_batch(batch: int, runs: bool) -> None:
    assert (refused(Federated(clients=10, batch=batch), 109, 2) is None) == runs
