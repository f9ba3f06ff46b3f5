"""Sentences name their nouns: a bound on words such as *what*, *one* or *it* among the words of docstrings and pages.

Five model codebases of machine learning have 267 to 417 of these words in 10 000.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.trees import parsed

ROOT = Path(__file__).parent.parent
PACKAGE = ("bench", "attacks", "defenses", "datasets", "leaderboard")
PLACEHOLDERS = set(re.findall("[a-z]+", "what where there one of that it nothing alone else who own beside"))
EVERYWHERE = 700  # of 10 000 words
READ_FIRST = 450  # pages, and code that authors of entries read
PUBLIC = ("bench/trip.py", "bench/api.py", "attacks", "defenses")
_CODE = re.compile(r"```.*?```|`[^`]*`|<[^>]*>|\]\([^)]*\)|\|", re.DOTALL)


def sources(*places: str) -> list[Path]:
    paths = [ROOT / place for place in places]
    return sorted(file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path]))


def docstrings(files: Iterable[Path]) -> Iterator[str]:
    """Docstrings of modules, classes and functions, and the strings under fields."""
    for file in files:
        for node in ast.walk(parsed(file)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield node.value.value


def share(texts: Iterable[str]) -> float:
    words = [word for text in texts for word in re.findall(r"[a-z']+", text.lower())]
    return 1e4 * sum(word in PLACEHOLDERS for word in words) / len(words)


def test_the_share_counts_placeholders_and_skips_code() -> None:
    assert share(["The one that is what it was", "plain nouns, plain verbs"]) == pytest.approx(1e4 * 4 / 11)
    assert _CODE.sub(" ", "a `where` b ```\nwhat\n``` c [d](one.md)").split() == ["a", "b", "c", "[d"]


def test_docstrings_of_the_package() -> None:
    assert share(docstrings(sources(*PACKAGE))) <= EVERYWHERE


@pytest.mark.parametrize("place", PUBLIC)
def test_docstrings_that_authors_read(place: str) -> None:
    assert share(docstrings(sources(place))) <= READ_FIRST


@pytest.mark.parametrize(
    "page", [*sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")), "README.md"]
)
def test_pages(page: str) -> None:
    assert share([_CODE.sub(" ", (ROOT / page).read_text("utf-8"))]) <= READ_FIRST
