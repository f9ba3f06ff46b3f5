"""The strip of victims: truth, the baseline's reconstruction, the reconstruction now."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image
from tests.records import with_result
from tests.test_gate import READINGS, SEEDS, attacked

from bench.cli.main import cli
from bench.errors import BenchError
from bench.gate import baseline, strip
from bench.gate.verdict import verdict
from bench.kinds.images import IMAGE
from bench.pictures import grid
from bench.record import store
from bench.record.schema import Record


def pixels(seed: int, number: int, part: int) -> NDArray[np.float32]:
    return np.random.default_rng((seed, number, part)).random((1, 8, 8)).astype(np.float32)


def stored(run: Path, leaks: set[tuple[int, int]], part: int, *, private: bool = False) -> list[Record]:
    """Write a run in which the examples `leaks` (seed, reading) are reconstructed; reconstructions depend on `part`."""
    records = []
    for seed in range(SEEDS):
        made = attacked([[(seed, number) in leaks] for number in range(READINGS)], seed=seed)
        arrays = {
            name: np.stack([pixels(seed, number, which)[None] for number in range(READINGS)])
            for name, which in (("truth", 0), ("reconstruction", part))
        }
        made = with_result(made, arrays=store.write_arrays(run, arrays), private=private)
        code = replace(made.provenance, defense=replace(made.provenance.bench, sha256=f"{part}" * 64))
        records.append(replace(made, provenance=code))
        store.write(run, records[-1])
    return records


def tile(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    drawn: NDArray[np.uint8] = grid.drawn(values[None], IMAGE)[0]
    return drawn


def holds(page: Image.Image, picture: NDArray[np.uint8]) -> bool:
    """Whether the page shows the picture somewhere."""
    pixels, (height, width, _) = np.asarray(page), picture.shape
    last = pixels[height - 1 :, width - 1 :]
    first = pixels[: last.shape[0], : last.shape[1]]
    places = np.argwhere((first == picture[0, 0]).all(-1) & (last == picture[-1, -1]).all(-1))
    return any((pixels[y : y + height, x : x + width] == picture).all() for y, x in places)


def test_the_strip_shows_three_examples_that_leak_only_now(tmp_path: Path) -> None:
    run = tmp_path / "run"
    before = baseline.of_run(stored(run, {(0, 0)}, 1), None, {}).records
    after = stored(run, {(0, 0), (2, 3), (5, 1), (6, 6), (7, 7)}, 2)
    pairs = list(zip(before, after, strict=True))
    victims = strip.worst(pairs, verdict(before, after))
    assert [one.example for one in victims] == [(2, 0, 3, 0), (5, 0, 1, 0), (6, 0, 6, 0)]
    assert all(one.fall == pytest.approx(0.3) for one in victims)
    page = strip.picture(victims, run)
    for seed, _, number, _ in (one.example for one in victims):
        assert all(holds(page, tile(pixels(seed, number, part))) for part in (0, 1, 2)), "truth, then, now"
    assert not holds(page, tile(pixels(7, 7, 2)))


def test_a_missing_earlier_picture_is_grey_and_another_folder_may_hold_it(tmp_path: Path) -> None:
    before = baseline.of_run(stored(tmp_path / "old", set(), 1), None, {}).records
    after = stored(tmp_path / "new", {(1, 1)}, 2)
    victims = strip.worst(list(zip(before, after, strict=True)), verdict(before, after))
    page = strip.picture(victims, tmp_path / "new")
    assert not holds(page, tile(pixels(1, 1, 1))) and holds(page, np.full((96, 96, 3), 225, np.uint8))
    assert holds(strip.picture(victims, tmp_path / "new", tmp_path / "old"), tile(pixels(1, 1, 1)))
    (after_of_victim,) = [record for record in after if record.cell.seed == 1]
    (tmp_path / "new" / "arrays" / f"{after_of_victim.arrays}.npz").unlink()
    with pytest.raises(BenchError, match="run the cell again"):
        strip.picture(victims, tmp_path / "new")


def test_private_examples_and_examples_that_came_no_nearer_are_never_drawn(tmp_path: Path) -> None:
    before = baseline.of_run(stored(tmp_path, {(0, 0), (3, 3)}, 1), None, {}).records
    private = stored(tmp_path / "p", {(0, 0), (2, 2)}, 2, private=True)
    assert strip.worst(list(zip(before, private, strict=True)), verdict(before, private)) == ()
    better = stored(tmp_path / "b", {(3, 3)}, 2)
    assert strip.worst(list(zip(before, better, strict=True)), verdict(before, better)) == ()


def test_the_command_draws_the_strip_or_says_why_not(tmp_path: Path) -> None:
    run, file, png = tmp_path / "run", tmp_path / "gate.json", tmp_path / "strip.png"
    baseline.write(file, baseline.of_run(stored(run, set(), 1), None, {}))
    typed = ["gate", str(run), "--baseline", str(file), "--strip", str(png)]
    same = CliRunner().invoke(cli, typed)
    assert same.exit_code == 0 and "not drawn, no reconstruction came nearer" in same.stderr, same.output
    stored(run, {(seed, seed) for seed in range(SEEDS)}, 2)
    weak = CliRunner().invoke(cli, typed)
    assert weak.exit_code == 1, weak.output
    with Image.open(png) as page:
        assert page.width > 300
    lone = CliRunner().invoke(cli, ["gate", str(run), "--baseline", str(file), "--then", str(run)])
    assert lone.exit_code == 2 and "--then needs --strip FILE" in lone.output
