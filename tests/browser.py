"""A headless Chromium for tests of pages: `from tests.browser import browser, visit`.

One process a file of tests: playwright's loop runs as long as its browser does, and would be in the way of
other files' own.  A test asks for `browser` and opens files with `visit`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--disable-sync",
)


@dataclass(frozen=True, slots=True)
class Visit:
    """A page and what happened on it so far: `outside` addresses asked for beside the page's own, `complaints`
    errors and warnings of its console, exceptions nobody caught, and dialogs that scripts opened."""

    page: Page
    outside: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def chromium() -> str | None:
    """The program: `BENCH_CHROMIUM`, or the first of `NAMES` on the path."""
    return os.environ.get("BENCH_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for all tests of a file; skips where the machine has none."""
    program = chromium()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed and BENCH_CHROMIUM is not set")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=list(QUIET))
        yield launched
        launched.close()


@contextmanager
def visit(
    browser: Browser, address: Path | str, *, width: int = 1280, height: int = 900, dark: bool = False
) -> Iterator[Visit]:
    """Open a file or an address in a fresh context, and watch it from before its first byte."""
    url = address.resolve().as_uri() if isinstance(address, Path) else address
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    seen = Visit(context.new_page())
    page = seen.page
    page.on("request", lambda request: _note_address(seen, request.url, url))
    page.on("pageerror", lambda error: seen.complaints.append(f"exception: {error}"))
    page.on("console", lambda said: _note_console(seen, said))
    page.on("dialog", lambda dialog: _note_dialog(seen, dialog))
    try:
        page.goto(url, wait_until="load")
        yield seen
    finally:
        context.close()


def _note_address(seen: Visit, asked: str, own: str) -> None:
    """Pictures and modules inside the page are addressed as well, but nobody is asked for them."""
    if asked != own and not asked.startswith(("data:", "blob:")):
        seen.outside.append(asked)


def _note_console(seen: Visit, said: ConsoleMessage) -> None:
    if said.type in ("error", "warning"):
        seen.complaints.append(f"{said.type}: {said.text}")


def _note_dialog(seen: Visit, dialog: Dialog) -> None:
    seen.complaints.append(f"dialog: {dialog.message}")
    dialog.dismiss()
