"""The reconstruction grid: truth above, reconstruction below, in the records' own order."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.records import attack_record, unfinished

from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE
from bench.pictures import grid, recorded
from bench.record import store as records


def pixels(image: Image.Image | None) -> np.ndarray:
    assert image is not None
    return np.asarray(image)


def tile(page: np.ndarray, row: int, column: int, side: int = 96, gap: int = 6) -> np.ndarray:
    """The (side, side, 3) block that stands in this row and column."""
    top, left = gap + row * (side + gap), gap + column * (side + gap)
    return page[top : top + side, left : left + side]


def flat(*shades: float, channels: int = 1) -> np.ndarray:
    """One reading for each shade, one 8×8 example each, all of that shade."""
    return np.stack([np.full((1, channels, 8, 8), shade) for shade in shades])


def test_truth_stands_above_the_reconstruction() -> None:
    page = pixels(grid.grid(flat(0.0, 1.0), flat(0.2, 0.4), IMAGE))
    assert page.shape == (2 * 96 + 3 * 6, 2 * 96 + 3 * 6, 3)
    for row, column, shade in ((0, 0, 0), (0, 1, 255), (1, 0, 51), (1, 1, 102)):
        assert (tile(page, row, column) == shade).all()


def test_enlarged_by_whole_squares_and_nothing_between() -> None:
    picture = np.arange(64).reshape(1, 1, 1, 8, 8) / 63
    drawn = tile(pixels(grid.grid(picture, picture, IMAGE)), 0, 0)
    expected = np.round(picture[0, 0, 0] * 255)
    assert (drawn[:, :, 0] == np.kron(expected, np.ones((12, 12)))).all()


def test_colour_keeps_its_channels() -> None:
    red = np.zeros((1, 1, 3, 8, 8))
    red[:, :, 0] = 1
    assert (tile(pixels(grid.grid(red, red, IMAGE)), 1, 0) == (255, 0, 0)).all()


def test_values_out_of_range_are_clipped_and_broken_ones_marked() -> None:
    page = pixels(grid.grid(flat(-3.0, 7.0, 0.0), flat(0.0, 0.0, float("nan")), IMAGE))
    assert (tile(page, 0, 0) == 0).all()
    assert (tile(page, 0, 1) == 255).all()
    broken = tile(page, 1, 2)
    assert len(set(broken[0, 0].tolist())) > 1, "a shade of grey would pass for a value"


def test_first_examples_of_all_readings_come_first_and_eight_at_most() -> None:
    shades = np.arange(10 * 3).reshape(10, 3) / 255
    values = np.broadcast_to(shades[:, :, None, None, None], (10, 3, 1, 8, 8))
    page = pixels(grid.grid(values, values, IMAGE))
    assert page.shape[1] == 8 * (96 + 6) + 6
    assert [tile(page, 0, column)[0, 0, 0] for column in range(8)] == [3 * reading for reading in range(8)]

    page = pixels(grid.grid(values[:2], values[:2], IMAGE))
    assert [tile(page, 0, column)[0, 0, 0] for column in range(6)] == [0, 3, 1, 4, 2, 5]


def test_a_table_row_is_a_block_of_cells() -> None:
    rows = np.array([0.0, 0.2, 0.4, 0.6, 0.8]).reshape(1, 1, 5)
    drawn = tile(pixels(grid.grid(rows, rows, TABLE)), 0, 0)
    assert drawn[16::32, 16::32, 0].tolist() == [[0, 51, 102], [153, 204, 255], [255, 255, 255]]


def test_refuses_what_is_not_paired() -> None:
    with pytest.raises(ValueError, match=r"\(reading, example, \*shape\) alike, got \(2, 1, 1, 8, 8\) and"):
        grid.grid(flat(0.0, 1.0), flat(0.0), IMAGE)


def test_nothing_to_show_is_none() -> None:
    empty = np.zeros((0, 1, 1, 8, 8))
    assert grid.grid(empty, empty, IMAGE) is None


def test_from_a_record_to_a_file(tmp_path: Path) -> None:
    arrays = records.write_arrays(tmp_path, {"truth": flat(0.0), "reconstruction": flat(0.4)})
    record = attack_record(result={"arrays": arrays})
    image = recorded.of_record(tmp_path, record)
    assert image is not None
    grid.save(image, tmp_path / "pictures" / "a.png")
    with Image.open(tmp_path / "pictures" / "a.png") as read:
        assert (np.asarray(read) == pixels(image)).all()
    assert recorded.of_record(tmp_path, unfinished(record, "n/a", "because")) is None
