"""Partitions: sizes, label diversity, disjointness where it is promised, and one draw a client."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bench.datasets.partition import client_indices
from bench.errors import BenchError

_KINDS = ("iid", "two-shard", "two-class")


def _labels(count: int, classes: int) -> NDArray[np.int64]:
    return np.random.default_rng(count).permutation(np.arange(count) % classes)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(_KINDS),
    clients=st.integers(1, 60),
    half=st.integers(1, 10),
    classes=st.integers(2, 12),
    seed=st.integers(0, 2**32),
)
def test_every_client_holds_its_number_of_different_examples(
    kind: str, clients: int, half: int, classes: int, seed: int
) -> None:
    labels = _labels(240, classes)
    held = client_indices(labels, kind=kind, clients=clients, client_examples=2 * half, seed=seed)
    assert held.shape == (clients, 2 * half)
    assert held.dtype == np.int64
    assert held.min() >= 0 and held.max() < len(labels)
    assert all(len(set(row)) == 2 * half for row in held.tolist())
    again = client_indices(labels, kind=kind, clients=clients, client_examples=2 * half, seed=seed)
    assert np.array_equal(held, again)
    if kind == "two-class":
        assert all(sorted(np.bincount(labels[row])[np.unique(labels[row])]) == [half, half] for row in held)
    elif clients * 2 * half <= len(labels):
        assert len(np.unique(held)) == held.size, "disjoint while the split suffices"


@settings(max_examples=40, deadline=None)
@given(clients=st.integers(1, 100), half=st.integers(1, 10))
def test_two_shards_hold_at_most_two_classes_each(clients: int, half: int) -> None:
    labels = _labels(300, 10)  # 30 of each: a shard of at most 10 crosses one border at most
    held = client_indices(labels, kind="two-shard", clients=clients, client_examples=2 * half, seed=1)
    assert max(len(np.unique(labels[row])) for row in held) <= 4


def test_two_shard_is_far_less_diverse_than_iid() -> None:
    labels = _labels(6000, 10)
    diversity = {
        kind: np.mean([len(np.unique(labels[row])) for row in held])
        for kind in ("iid", "two-shard")
        for held in [client_indices(labels, kind=kind, clients=100, client_examples=None, seed=3)]
    }
    assert diversity["iid"] > 9.9
    assert diversity["two-shard"] <= 2, "60 examples a client, 30 a shard, 600 a class: no border is crossed"


def test_at_ten_times_the_size_every_example_sits_with_ten_clients() -> None:
    labels = _labels(5000, 10)
    for kind in ("iid", "two-shard"):
        held = client_indices(labels, kind=kind, clients=1000, client_examples=50, seed=0)
        assert set(np.bincount(held.ravel(), minlength=5000).tolist()) == {10}, kind


def test_two_shard_cuts_no_class_off_where_shards_do_not_fill_the_split() -> None:
    labels = _labels(1000, 10)
    held = client_indices(labels, kind="two-shard", clients=30, client_examples=20, seed=0)
    assert len(np.unique(labels[held])) == 10


@pytest.mark.parametrize("kind", ["iid", "two-class"])
def test_a_client_does_not_depend_on_how_many_come_after_it(kind: str) -> None:
    labels = _labels(1000, 10)
    few = client_indices(labels, kind=kind, clients=7, client_examples=20, seed=5)
    many = client_indices(labels, kind=kind, clients=200, client_examples=20, seed=5)
    assert np.array_equal(few, many[:7])


@pytest.mark.parametrize("kind", _KINDS)
def test_another_seed_gives_another_partition(kind: str) -> None:
    first, second = (
        client_indices(_labels(1000, 10), kind=kind, clients=10, client_examples=20, seed=seed) for seed in (0, 1)
    )
    assert not np.array_equal(first, second)


def test_iid_shares_are_the_splits_own() -> None:
    labels = np.repeat(np.arange(4), [4000, 3000, 2000, 1000])
    held = client_indices(labels, kind="iid", clients=20, client_examples=500, seed=0)
    shares = np.stack([np.bincount(labels[row], minlength=4) / 500 for row in held])
    # One client's share of a class has deviation ≤ √(.25/500) = .0224; four of them over 80 figures.
    assert np.abs(shares - [0.4, 0.3, 0.2, 0.1]).max() < 4 * 0.0224


def test_two_class_takes_every_class_about_as_often() -> None:
    held = client_indices(_labels(1000, 10), kind="two-class", clients=2000, client_examples=2, seed=0)
    taken = np.bincount(_labels(1000, 10)[held].ravel(), minlength=10)
    # Each of 2000 clients takes a class with probability .2: deviation √(2000·.2·.8) = 17.9.
    assert np.abs(taken - 400).max() < 4 * 17.9


def test_sizes_default_to_an_equal_share_even_where_there_are_two_parts() -> None:
    labels = _labels(155, 5)
    shapes = [client_indices(labels, kind=k, clients=10, client_examples=None, seed=0).shape for k in _KINDS]
    assert shapes == [(10, 15), (10, 14), (10, 14)]


@pytest.mark.parametrize(
    ("kind", "clients", "size", "message"),
    [
        ("dirichlet", 2, 2, "unknown partition 'dirichlet'; there are iid, two-shard, two-class"),
        ("two-shard", 2, 5, "two equal parts, 5 examples are odd; set partition, clients or client_examples"),
        ("iid", 2, 101, "no client can hold 101 examples, of 100"),
        ("iid", 200, None, "no examples for 200 clients, of 100"),
        ("two-class", 2, 60, "30 examples of each class, the smallest has 10"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(kind: str, clients: int, size: int | None, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        client_indices(_labels(100, 10), kind=kind, clients=clients, client_examples=size, seed=0)
