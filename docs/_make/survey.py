"""The page of all items of the papers: counts, main claims, a rating for each item."""

from collections.abc import Mapping, Sequence

from _make import again, headlines
from _make.again import Again
from _make.items import FULL, PARTLY, RATINGS, Book, Evidence, Rated, counts
from _make.markdown import HEAD, plain, table
from bench.reference import store

NAME = "index.md"


def page(
    book: Book,
    rated: Sequence[Rated],
    evidence: Evidence,
    titles: Mapping[str, str],
    pages: Mapping[str, str],
    repeated: Sequence[Again] = (),
) -> str:
    """The page; `rated`: the items with their evidence; `titles`: folder of presets → paper; `pages`: matrix → file
    with its records, from docs/papers/; `repeated`: cells run again."""
    by_paper = [[titles[paper], *_row([each for each in rated if each.item.paper == paper])] for paper in titles]
    settings = dict(book.settings)
    claims = [headlines.row(each, settings, evidence, titles[each.paper]) for each in book.headlines]
    parts = [
        HEAD.format(sources="docs/papers.toml or export a run again") + "# Five papers, item by item\n",
        f"{headline(rated)}  One seed a training.  Commands and hours of open parts: each paper's page; "
        "*subset*: of the data set.\n",
        "\n".join(f"- *{word}*: {said}." for word, said in RATINGS.items()) + "\n",
        table(["paper", "items", *RATINGS], [*by_paper, ["all", *_row(rated)]]),
        "## Main claims\n\nBrackets: 95 % interval over test examples or victims, or quartiles.\n",
        table(["paper", "claim", "paper's figure", "ours", "verdict"], claims),
        *([f"## Cells run again\n\n{again.section(repeated, book.reasons)}"] if repeated else []),
        *(
            f"## {title}\n\n{_items([each for each in rated if each.item.paper == paper], pages)}"
            for paper, title in titles.items()
        ),
    ]
    return "\n".join(parts)


def headline(rated: Sequence[Rated]) -> str:
    """Counts in a sentence."""
    said = ", ".join(f"{count} {word}" for word, count in counts(rated).items())
    of_subsets = sum(each.rating == FULL and bool(each.subsets) for each in rated)
    return f"{len(rated)} tables, figures and claims: {said}; {of_subsets} at full scale with a subset of a data set."


def not_run(rated: Sequence[Rated]) -> str:
    """A table of what has not run, with the command and hours of one core."""
    rows = [
        [each.item.place, f"`{each.item.run}`", f"{each.item.hours:g}"]
        for each in rated
        if each.item.run and each.met < each.wanted
    ]
    return table(["item", "`bench run --matrix`", "hours of a core, estimated"], rows) if rows else ""


def _row(rated: Sequence[Rated]) -> list[str]:
    return [str(len(rated)), *(str(count) for count in counts(rated).values())]


def _items(rated: Sequence[Rated], pages: Mapping[str, str]) -> str:
    rows = [
        [
            f"{each.item.place}: {plain(each.item.text)}",
            f"partly ({each.met}/{each.wanted})" if each.rating == PARTLY else each.rating,
            _where(each, pages),
        ]
        for each in rated
    ]
    return table(["item", "rating", "evidence; open parts"], rows)


def _where(each: Rated, pages: Mapping[str, str]) -> str:
    """Links to the records, else what serves the item at a smaller scale; what is lacking."""
    records = [f"[{name}]({pages[name]})" if name in pages else f"`{name}`" for name in each.sources]
    code = ["tests"] if each.item.tests else ["code"] if each.item.code else []
    smaller = [] if each.sources else [_smaller(name) for name in each.small]
    evidence = ", ".join(dict.fromkeys([*records, *code, *smaller]))
    subset = "subset" if each.subsets else ""
    lacking = f"open: {', '.join(each.item.lacking)}" if each.item.lacking else ""
    return "; ".join(part for part in (evidence, subset, lacking) if part)


def _smaller(name: str) -> str:
    if name.startswith("claim:"):
        return f"[{name.removeprefix('claim:')}](../CLAIMS.md)"
    return f"`{store.slug(name)}`" if "/" in name or " " not in name else "[by hand](../results/by-hand.md)"
