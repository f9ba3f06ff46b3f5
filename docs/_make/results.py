"""RESULTS.md, an index with a headline for each page, and the page for a preset's run."""

from collections.abc import Collection, Mapping
from pathlib import Path

from _make import preset, report
from _make.exports import Export
from _make.markdown import COMMAND, HEAD, table, title


def index(
    version: str,
    opening: str,
    pages: Mapping[str, tuple[str, str]],
    linked: Collection[str],
    papers: Mapping[str, tuple[str, str]],
) -> str:
    """The index; `opening`: README's table; `pages` and `papers`: file name → title and headline; `linked`: pages with
    a file."""
    rows = [
        [f"[{head}](docs/results/{name})" if name in linked else f"`{head}`", headline]
        for name, (head, headline) in sorted(pages.items())
    ]
    parts = [
        HEAD.format(sources="docs/remarks/, docs/results/ or the reference results") + "# Results\n",
        "Each page has command, commit or fingerprint of the code, machine, intervals, and the papers' figures.\n",
        *([f"## {version}\n", opening] if opening else []),
        "## Pages\n",
        *([] if {*linked} >= pages.keys() else [f"Pages without a link are not in git: `{COMMAND}` writes them.\n"]),
        table(["page", "headline"], rows),
        "## Papers\n\nAccuracies of papers beside ours, at the paper's size.\n",
        table(
            ["paper", "headline"], [[f"[{head}](docs/papers/{name})", text] for name, (head, text) in papers.items()]
        ),
        "Claims of papers, each with our verdict: [docs/CLAIMS.md](docs/CLAIMS.md).\n",
    ]
    return "\n".join(parts)


def exported(export: Export, remarks: str) -> str:
    """A preset's page: command, remarks by hand, tables."""
    records = export.records
    minutes = sum(record.cost.cpu_seconds for record in records) / 60
    scale = f" --scale {export.scale}" if export.scale else ""
    facts = [
        f"`bench run --matrix {export.matrix}{scale}`",
        f"commit {export.commit}, {report.code(records)}",
        f"{len(records)} cells, {minutes:.0f} core-minutes",
        report.machines(records),
    ]
    sources = f"docs/remarks/{export.name}.md or export the run again"
    parts = [HEAD.format(sources=sources) + f"# {export.matrix}\n", f"{export.title}.\n", "; ".join(facts) + ".\n"]
    return "\n".join([*parts, *([remarks] if remarks else []), preset.page(records, export.published)])


def headline(remarks: str, otherwise: str) -> str:
    """The first bold text in the remarks, or `otherwise`."""
    _, bold, rest = remarks.partition("**")
    return " ".join(rest.partition("**")[0].split()) if bold else otherwise


def by_hand(folder: Path) -> dict[str, str]:
    """File name → text of pages written by hand."""
    pages = {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.md"))}
    return {name: text for name, text in pages.items() if not text.startswith("<!--")}


def listed(page: str) -> tuple[str, str]:
    """Title and first paragraph."""
    head, rest = title(page)
    return head, " ".join(rest.partition("\n\n")[0].split())
