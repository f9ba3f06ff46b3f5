"""Promise: a calibrated strength hides examples at trained weights, too, measured on own victims and trainings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.records import attack_record, training_record
from tests.test_calibration import best_decoder
from tests.test_tradeoff import MATRIX, RECONSTRUCTION

from bench.calibration.later import TRAINED, hold_later
from bench.calibration.measure import SCORING, TUNING, federations
from bench.calibration.result import row
from bench.calibration.run import Listener, calibrate
from bench.calibration.score import SCORED, calibrated_strengths, scored
from bench.cell import AttackCell, CheckpointWeights, Entry
from bench.matrix.expand import PlannedCell
from bench.matrix.read import read
from bench.record.schema import Record, Share
from bench.record.tradeoff import Row
from bench.registry import entries as registry
from bench.sweep.plan import Resolver

ROUNDS = 6
PIXELS = 4.0  # the factor by which less noise hides pixels
WEAKER_LATER = 3.0  # the factor by which gradients at trained weights are larger


class Law:
    """Answers cells by a closed form: the best decoder against Gaussian noise, 3 times weaker at trained weights."""

    def __init__(self, later: float = WEAKER_LATER, diverges: float = math.inf) -> None:
        self.later, self.diverges = later, diverges
        self.cells: list[AttackCell] = []

    def __call__(self, cells: Sequence[PlannedCell]) -> Mapping[str, Record]:
        return {item.cell.id: self.record(item) for item in cells}

    def record(self, item: PlannedCell) -> Record:
        cell = item.cell
        sigma = 200 * math.sqrt(float(cell.defense.params.get("variance", 0.0)))
        if not isinstance(cell, AttackCell):
            lost = sigma > self.diverges
            checkpoints = {} if lost else dict.fromkeys(cell.checkpoints, "0" * 64)
            return training_record(0.9, cell=cell, result={"diverged": lost, "checkpoints": checkpoints})
        self.cells.append(cell)
        trained = isinstance(cell.weights, CheckpointWeights)
        pixels = cell.attack.name == "map"
        share = best_decoder(sigma * (PIXELS if pixels else 1.0) / (self.later if trained else 1.0))
        random = np.random.default_rng([cell.seed, round(1e9 * sigma), trained, cell.victims == TUNING])
        named = random.binomial(cell.readings, share) / cell.readings
        back = round(named * cell.readings) if pixels else 0
        record = attack_record([(True,)] * back + [(False,)] * (cell.readings - back), cell=cell)
        if pixels:
            return record
        assert record.attack is not None and record.attack.summary is not None
        summary = replace(record.attack.summary, naming=Share(value=named, low=0.0, high=1.0), naming_chance=0.01)
        return replace(record, result=replace(record.attack, summary=summary))


def calibration(tmp_path: Path, law: Law) -> tuple[Listener, Row]:
    """Gaussian noise at the client with the strengths of all steps: its listener for named examples, and its row."""
    (tmp_path / "m.toml").write_text(
        MATRIX.replace("[[train]]", RECONSTRUCTION)
        .replace("seed = [0, 1]", f"seed = {[*range(16)]}")
        .replace("readings = 3", "readings = 24")
        .replace("clients = 48", "clients = 120")  # a third of the clients has a reading at trained weights
        .replace("20, client_examples = 20", "8, client_examples = 8")
    )
    matrix = read(str(tmp_path / "m.toml"))
    (federation,) = federations(matrix)
    defense = registry.instance("defenses", "gaussian", {"at": "client"})
    facts = Resolver(None).data
    family = (Entry(name="gaussian", params={"at": "client"}), defense, {"type-1": ()})
    listeners = calibrate(matrix, federation, [family], facts, law, lambda *_: None)
    assert [each.question for each in listeners] == ["named", "reconstructed"]
    hold_later(matrix, federation, listeners, facts, law)
    scores = scored(matrix, federation, calibrated_strengths(listeners), facts, law)
    return listeners[0], row(federation, listeners[::-1], scores, type(defense), lambda *_: None)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Law, Listener, Row]:
    law = Law()
    return (law, *calibration(tmp_path_factory.mktemp("law"), law))


def test_the_strength_grows_by_the_factor_of_later_gradients(measured: tuple[Law, Listener, Row]) -> None:
    """Variances are 9 times as large, from 1 to 3 times by the bands of two measurements."""
    _, listener, own = measured
    first = {name: each for name, each in own_strengths(own).items() if name in ("L1", "L2")}
    assert set(first) == {"L1", "L2"}
    for name, value in first.items():
        share = best_decoder(200 * math.sqrt(value) / WEAKER_LATER)
        assert share <= {"L1": 0.06, "L2": 0.2}[name] * 1.1
        weaker = best_decoder(200 * math.sqrt(value / 4) / WEAKER_LATER)
        assert weaker > {"L1": 0.06, "L2": 0.2}[name], "half of the deviation leaks more than the level"


def own_strengths(own: Row) -> dict[str, float]:
    return {each.level: each.value for each in own.at_levels if each.value is not None}


def test_a_weaker_strength_hides_pixels(measured: tuple[Law, Listener, Row]) -> None:
    """By the closed form, less noise than for L2, and at most 5 % reconstructed in both moments."""
    _, _, own = measured
    assert own.reconstructed is not None and own.reconstructed.at is not None
    at = own.reconstructed.at
    assert (at.level, at.most) == ("L3", 0.05) and own.at("L3") is at and not at.leaks_later
    assert at.value is not None and at.value < own_strengths(own)["L2"]
    share = best_decoder(200 * math.sqrt(at.value) * PIXELS / WEAKER_LATER)
    assert share <= 0.05 * 1.1 < best_decoder(200 * math.sqrt(at.value / 4) * PIXELS / WEAKER_LATER)
    assert len(own.reconstructed.curve) >= 3 and own.reconstructed.trained_curve


def test_no_level_that_counts_leaks_later(measured: tuple[Law, Listener, Row]) -> None:
    _, _, own = measured
    assert not any(each.leaks_later for each in own.at_levels if each.level in ("L1", "L2"))
    assert [each.value for each in own.trained_curve] == sorted(each.value for each in own.trained_curve if each.value)


def test_tuning_and_scoring_share_no_training_no_seed_and_no_victims(measured: tuple[Law, Listener, Row]) -> None:
    law, _, _ = measured
    trained = [cell for cell in law.cells if isinstance(cell.weights, CheckpointWeights)]
    seeds = {half: {cell.seed for cell in trained if cell.victims == half} for half in (TUNING, SCORING)}
    assert seeds == {TUNING: {*TRAINED}, SCORING: {*SCORED}} and not {*TRAINED} & {*SCORED}
    first = [cell for cell in law.cells if not isinstance(cell.weights, CheckpointWeights)]
    assert not {c.seed for c in first if c.victims == TUNING} & {c.seed for c in first if c.victims == SCORING}


def test_strengths_have_separate_noise(measured: tuple[Law, Listener, Row]) -> None:
    law, _, _ = measured
    draws: dict[str, set[int]] = {}
    for cell in law.cells:
        if cell.victims == TUNING and not isinstance(cell.weights, CheckpointWeights):
            draws.setdefault(cell.defense.model_dump_json(), set()).add(cell.draw)
    assert all(len(each) == 1 for each in draws.values()) and len({*map(tuple, draws.values())}) == len(draws) > 3


def test_a_defense_that_leaks_no_more_later_keeps_its_first_strengths(
    tmp_path: Path, measured: tuple[Law, Listener, Row]
) -> None:
    _, listener, _ = measured
    kept, own = calibration(tmp_path, Law(later=0.2))
    assert len(own.trained_curve) == 2
    assert all(low < high for low, high in (kept.calibrated[level].interval for level in ("L1", "L2")))
    assert kept.strengths.keys() == listener.strengths.keys(), "the first round is measured in the same way"


def test_diverged_trainings_end_the_search(tmp_path: Path) -> None:
    """Every training with noise diverges: the first round's strengths stay, with accuracy 0 and no later figure."""
    _, own = calibration(tmp_path, Law(diverges=1e-9))
    assert not own.trained_curve
    for each in own.at_levels:
        assert each.accuracy == 0.0 and each.trained is None


def test_a_missing_figure_at_trained_weights_ends_the_calibration_with_its_reason(tmp_path: Path) -> None:
    """Too few clients for the victims of a half, for example: another turn would ask for the same cells again."""

    class Refusing(Law):
        def record(self, item: PlannedCell) -> Record:
            record = super().record(item)
            if isinstance(item.cell, AttackCell) and isinstance(item.cell.weights, CheckpointWeights):
                return replace(record, status="n/a", reason="take fewer readings", result=None)
            return record

    listener, own = calibration(tmp_path, Refusing())
    assert listener.absent == "take fewer readings" == own.absent
    assert own.at_levels == () and own.chance is None


def test_a_refused_attack_leaves_the_row_without_figures(tmp_path: Path) -> None:
    """An unlinked reading, for example: neither question has a record, and the reasons are kept."""

    class Refusing(Law):
        def record(self, item: PlannedCell) -> Record:
            record = super().record(item)
            attacks = isinstance(item.cell, AttackCell)
            return replace(record, status="n/a", reason="not linked", result=None) if attacks else record

    _, own = calibration(tmp_path, Refusing())
    assert (own.absent, own.chance, own.at_levels, own.curve) == ("not linked", None, (), ())
    assert own.reconstructed is not None and own.reconstructed.absent == "not linked"
