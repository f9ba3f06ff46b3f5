"""Promise: who holds an example among candidates names it where the reading tells, and that counts in nothing else."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cells import GALLERY, named_cells, prepared
from tests.records import attack_cell, attack_record, example

from bench.answer.attack import attack
from bench.answer.context import Memory, RunContext
from bench.answer.gallery import naming
from bench.answer.readings import take_reading
from bench.answer.truth import truth_from
from bench.answer.victims import batches_of
from bench.attacks.candidates.single import likelihoods
from bench.attacks.gallery import LIST
from bench.cell import AttackCell, Entry, Federated, Grants
from bench.errors import NotApplicable
from bench.gradients import group_gradients, one_hot
from bench.leaderboard.board import board
from bench.record.metrics import NAMED_LIST
from bench.record.schema import AttackConditions, Distortion, ReadingScore
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Budget


def named(cell: AttackCell, run: Path) -> float:
    result, _ = attack(cell, RunContext(run=run), Memory())
    summary = result.figures()
    assert summary.naming is not None and summary.asr.value == 0
    return summary.naming.value


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("labels", [False, True])
def test_without_a_defense_every_example_is_named(tmp_path: Path, batch: int, labels: bool) -> None:
    for cell in named_cells(tmp_path, batch=batch, labels=labels):
        assert named(cell, tmp_path) == 1


@pytest.mark.parametrize(
    ("defense", "least", "most"),
    [
        ('{ name = "prune", at = "client", share = 0.99 }', 1.0, 1.0),
        ('{ name = "gaussian", at = "client", variance = 1e-3 }', 0.8, 1.0),
        ('{ name = "fed-cdp", clip = 4.0, sigma = 6.0 }', 0.0, 0.34),  # two of six by chance: .004
    ],
)
def test_who_knows_the_defense_names_what_noise_does_not_hide(
    tmp_path: Path, defense: str, least: float, most: float
) -> None:
    adaptive = next(cell for cell in named_cells(tmp_path, defense=defense) if cell.knowledge == "adaptive")
    assert least <= named(adaptive, tmp_path) <= most


@pytest.mark.parametrize("granted", [{}, {"labels": True}, {"labels": True, "mates": True}])
def test_after_several_local_steps_every_example_is_named(tmp_path: Path, granted: dict[str, Any]) -> None:
    """The first step's gradient is a third of the update, and later ones are at weights that move with it."""
    plain = named_cells(tmp_path, readings=1, size=30)[0]
    several = Federated(algorithm="fedavg", clients=10, per_round=4, steps=3, batch=1, rate=2.0)
    grants = Grants(gallery=30, **granted)
    assert named(plain.model_copy(update={"federated": several, "grants": grants}), tmp_path) == 1


def test_behind_a_mean_over_clients_several_local_steps_are_refused(tmp_path: Path) -> None:
    plain = named_cells(tmp_path, readings=1, size=30, where="aggregate")[0]
    several = Federated(algorithm="fedavg", clients=10, per_round=2, steps=2, batch=1)
    with pytest.raises(NotApplicable, match="behind a mean over clients"):
        named(plain.model_copy(update={"federated": several}), tmp_path)


@pytest.mark.parametrize("knowledge", ["plain", "adaptive"])
def test_a_batch_of_which_fewer_values_are_shown_than_there_are_candidates_is_named(
    tmp_path: Path, knowledge: str
) -> None:
    """Then the candidates' Gram matrix is singular, and rounding may make it indefinite."""
    every = named_cells(tmp_path, batch=3, size=80, labels=True, defense='{ name = "top-k", kept = 0.01 }')
    cell = next(cell for cell in every if cell.knowledge == knowledge)
    assert named(cell, tmp_path) >= 0.5  # by chance: .1


@pytest.mark.parametrize(
    ("defense", "least"),
    [
        ('{ name = "prune", at = "example", share = 0.99 }', 0.9),
        ('{ name = "sign", at = "client" }', 0.9),
        ('{ name = "low-rank", at = "client" }', 0.9),
        ('{ name = "terngrad", at = "client" }', 0.8),  # its draws may favour others
    ],
)
@pytest.mark.parametrize(
    ("where", "batch", "per_round"),
    [pytest.param("type-1", 3, 10, marks=pytest.mark.slow), ("type-1", 8, 10), ("aggregate", 1, 8)],
)
def test_of_several_examples_too_a_defense_that_is_known_hides_no_name(
    tmp_path: Path, defense: str, least: float, where: str, batch: int, per_round: int
) -> None:
    """What a set of candidates would send is compared whole: clipped, masked or rounded gradients add up to no
    combination of the plain ones."""
    every = named_cells(
        tmp_path, batch=batch, labels=True, defense=defense, where=where, readings=2, per_round=per_round
    )
    adaptive = next(cell for cell in every if cell.knowledge == "adaptive")
    assert named(adaptive, tmp_path) >= least


def test_the_gallery_is_the_same_for_all_and_holds_the_truth_once(tmp_path: Path) -> None:
    plain = named_cells(tmp_path, batch=3)[0]
    pruned = named_cells(tmp_path, batch=3, defense='"prune"')[0]
    galleries = []
    for cell in (plain, pruned):
        drawn = truth_from(cell, prepared(cell, RunContext(run=tmp_path), Memory()).source)
        truth, gallery = drawn.examples, drawn.gallery
        assert gallery is not None and len(gallery.inputs) == len(gallery.labels) == GALLERY
        assert torch.equal(gallery.inputs[gallery.positions], truth.inputs)
        assert torch.equal(gallery.labels[gallery.positions], truth.labels)
        assert len(gallery.positions.unique()) == truth.labels.numel()
        assert not torch.equal(gallery.positions.flatten().sort().values, torch.arange(truth.labels.numel()))
        galleries.append(gallery)
    assert torch.equal(galleries[0].inputs, galleries[1].inputs)


@pytest.mark.parametrize("size", [6, 5000])
def test_a_size_without_strangers_or_with_too_many_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(NotApplicable, match=f"a gallery of {size}: 6 examples are victims and there are"):
        attack(named_cells(tmp_path, size=size)[0], RunContext(run=tmp_path), Memory())


def test_chance_is_what_blind_guesses_get(tmp_path: Path) -> None:
    """Guesses at random among the candidates of the granted labels, 4000 times over six readings of three."""
    cell = named_cells(tmp_path, batch=3, labels=True)[0]
    setup = prepared(cell, RunContext(run=tmp_path), Memory())
    drawn = truth_from(cell, setup.source)
    truth, gallery = drawn.examples, drawn.gallery
    assert gallery is not None
    reading = take_reading(cell, setup, drawn, batches_of(cell, setup, drawn.victims, drawn.point))
    made = registry.instance("attacks", "gallery", {}).reconstruct(reading, Budget(evaluations=1), Key(seed=0))
    found = naming(gallery, truth, made, labels=True)
    assert found is not None and reading.labels is not None
    draw, hits = torch.Generator().manual_seed(0), 0
    for row, labels in enumerate(reading.labels):
        for label, count in zip(*labels.unique(return_counts=True), strict=True):
            members = torch.nonzero(gallery.labels == label)[:, 0]
            own = set(gallery.positions[row][truth.labels[row] == label].tolist())
            for _ in range(4000):
                guess = members[torch.randperm(len(members), generator=draw)[:count]].tolist()
                hits += len(own & set(guess))
    mean, trials = hits / 4000 / 18, 4000 * 18
    assert abs(mean - found.chance) < 5 * (found.chance / trials) ** 0.5


def test_repeated_laplace_noise_is_ranked_by_the_sum_of_absolute_distances(tmp_path: Path) -> None:
    """A float64 oracle; the mean of several Laplace draws is no sufficient statistic."""
    cell = named_cells(tmp_path, defense='{ name = "laplace", at = "client", variance = 0.1 }', readings=2)[1]
    cell = cell.model_copy(update={"grants": cell.grants.model_copy(update={"repeated_readings": 5})})
    setup = prepared(cell, RunContext(run=tmp_path), Memory())
    drawn = truth_from(cell, setup.source)
    reading = take_reading(cell, setup, drawn, batches_of(cell, setup, drawn.victims, drawn.point))
    assert cell.knowledge == "adaptive" and reading.gallery_inputs is not None and reading.gallery_labels is not None
    weights = {name: value[0].double() for name, value in reading.weights.items()}
    x = reading.gallery_inputs.double()[:, None]
    y = one_hot(reading.gallery_labels[:, None], reading.classes, torch.float64)
    gradients = group_gradients(copy.deepcopy(reading.model).double(), weights, x, y)
    far = torch.zeros(len(reading), len(x), dtype=torch.float64)
    for name, value in gradients.items():
        seen = reading.values[name].double()[:, None]  # (reading, 1, observation, *shape)
        far += (seen - value[None, :, None]).abs().flatten(2).sum(2)
    ours = likelihoods(reading, Key(seed=0)).double()
    for row in range(len(reading)):
        assert torch.equal(ours[row].argsort(), (-far[row]).argsort())
        ratio = (ours[row] - ours[row, 0]) / (far[row, 0] - far[row]).where(torch.arange(len(x)) > 0, 1.0)
        assert torch.allclose(ratio[1:], ratio[1].expand(len(x) - 1), rtol=1e-2)


def test_without_a_gallery_it_says_what_to_grant(tmp_path: Path) -> None:
    cell = named_cells(tmp_path)[0].model_copy(update={"grants": Grants()})
    with pytest.raises(NotApplicable, match="grant a gallery"):
        attack(cell, RunContext(run=tmp_path), Memory())


def test_it_stands_in_the_row_of_its_defense_and_counts_in_no_rate() -> None:
    def record(name: str, *, named: bool | None = None, success: bool = False, gallery: int = 0):  # type: ignore[no-untyped-def]
        cell = attack_cell(
            defense="prune",
            attack=name,
            knowledge="adaptive",
            grants=Grants(gallery=gallery),
            readings=32,
            federated=Federated(batch=1),
        )
        scores = [ReadingScore(status="ok", examples=(example(success, named=named),)) for _ in range(32)]
        return attack_record(
            readings=scores,
            cell=cell,
            result={"conditions": AttackConditions(described=True), "distortion": Distortion(snr_db_least=1.0)},
        )

    (row,) = board([record("cpl"), record("gallery", named=True, success=True, gallery=GALLERY)])
    at = row.points[next(iter(row.points))]
    assert at.asr == 0 and at.examples == 32 and set(at.by_attack) == {next(iter(at.by_attack))}
    assert at.named is not None and at.named.value == 1 and at.identified is not None and at.identified.value == 0
    assert row.complete and "gallery" not in row.title
    assert Entry(name="gallery").name not in {name.partition("(")[0] for name in at.by_attack}


def test_the_list_is_as_long_as_the_board_takes_it() -> None:
    """Attacks do not import records, and boards no attack."""
    assert LIST == NAMED_LIST
