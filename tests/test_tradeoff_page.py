"""Promise: the page of a trade-off opens offline, shows one listener at a time, and repeats no stranger's markup."""

import dataclasses
import io
import re
from base64 import b64encode
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser
from tests.browser import browser, visit
from tests.test_tradeoff import BOARD, at, row

from bench.leaderboard.forms import tradeoff_page

__all__ = ["browser"]  # the fixture


@pytest.mark.parametrize("width", [1280, 400])
def test_a_listener_is_chosen_and_a_point_tells_its_command(browser: Browser, tmp_path: Path, width: int) -> None:
    file = tmp_path / "tradeoff.html"
    file.write_text(tradeoff_page.render(BOARD), "utf-8")
    with visit(browser, file, width=width) as seen:
        seen.page.wait_for_selector("html[data-ready]")
        shown = seen.page.locator("main > section:visible")
        assert shown.get_attribute("data-listener") == "server"
        assert shown.locator("svg").bounding_box()["width"] <= width  # type: ignore[index]
        shown.locator("svg .mark-symbol path").first.hover(force=True)
        told = seen.page.locator("#vg-tooltip-element")
        seen.page.wait_for_selector("#vg-tooltip-element.visible")
        assert "named in the first round" in told.inner_text()
        box = told.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
        seen.page.select_option("#listener", "mean")
        assert shown.get_attribute("data-listener") == "mean"
        assert "elsewhere" in shown.inner_text() and "useless" not in shown.inner_text()
        assert not seen.outside and not seen.complaints


def test_a_point_shows_truth_and_reconstruction(browser: Browser, tmp_path: Path) -> None:
    """The image is loaded within the page's policy; a point without an image shows none."""
    buffer = io.BytesIO()
    Image.new("L", (30, 17)).save(buffer, "WEBP")
    drawn = dataclasses.replace(at("L1", 1.0, 0.9), picture=b64encode(buffer.getvalue()).decode())
    for level, images in ((drawn, 1), (at("L1", 1.0, 0.9), 0)):
        file = tmp_path / "tradeoff.html"
        file.write_text(tradeoff_page.render(dataclasses.replace(BOARD, rows=(row("own", level),))), "utf-8")
        with visit(browser, file, width=1280) as seen:
            seen.page.wait_for_selector("html[data-ready]")
            seen.page.locator("section:visible svg .mark-symbol path").first.hover(force=True)
            seen.page.wait_for_selector("#vg-tooltip-element.visible")
            image = seen.page.locator("#vg-tooltip-element img")
            assert image.count() == images
            if images:
                seen.page.wait_for_function("document.querySelector('#vg-tooltip-element img').naturalWidth === 30")
            assert not seen.outside and not seen.complaints


def test_every_section_is_there_without_a_script() -> None:
    text = tradeoff_page.render(BOARD)
    sections = re.findall('<section data-listener="([a-z]+)"', text)
    assert sections == ["server", "mean", "client"], "the server is the listener that people ask for"
    assert "proved:clip=0.5,sigma=2" in text


def test_names_of_strangers_are_text() -> None:
    hostile = row("<script>alert(1)</script>", at("L1", 1.0, 0.9))
    text = tradeoff_page.render(dataclasses.replace(BOARD, rows=(hostile,)))
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
