"""Write the generated documents from committed data: reference records, claims, exports of presets, the registry.

python docs/generate.py               # in git: README's table, RESULTS, docs/CLAIMS, docs/results/<suite>, the picture
python docs/generate.py --check       # write no file; exit 1 and name each differing file
python docs/generate.py --all FOLDER  # for the site: FOLDER/RESULTS.md, and FOLDER/<name> for docs/<name>

The site's: DEFENSES.md, CLAIMS.md, claims-cells.csv, RECORDS.md, board.html, results/*.md.  CLAIMS.md, RESULTS.md and
results/<suite>.md are longer than in git: a page in FOLDER replaces the page with the same name in docs/.
"""

import argparse
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from _make import again, defenses, exports, items, ledger, papers, records, report, results, survey, tradeoff
from _make.claims import Claim, Line, judged, read
from _make.exports import Export
from _make.opening import opening

from bench.cell import AttackCell
from bench.leaderboard.attack_ranks import attack_ranks
from bench.leaderboard.attackers import crossed
from bench.leaderboard.board import Row, board
from bench.leaderboard.forms import page, poster
from bench.leaderboard.forms.strips import VICTIMS_NAME
from bench.leaderboard.standings import Standing, standings
from bench.matrix.suites import ATTACKS, VERSIONS
from bench.record import tradeoff as tradeoffs
from bench.record.schema import Record
from bench.record.tradeoff import Tradeoff
from bench.reference import store
from bench.registry import entries

ATTACKS_VERSION = VERSIONS[ATTACKS]
DOCS = Path(__file__).parent
ROOT = DOCS.parent
MARKS = ("<!-- board -->", "<!-- /board -->")
PICTURE = (
    '<a href="docs/pictures/board.svg"><img src="docs/pictures/board.svg" width="600" '
    'alt="The standings on the suite {version}"></a>\n\n'
)
# Presets on the suite's examples, whose records count for the claims too.
SAME_EXAMPLES = ("post-processing", "mixup")
# Folder of presets → title; claims on reconstruction of each paper begin with its words.
PAPERS = {
    "fed-alpha-cdp": "Fed-αCDP",
    "bayesian-dp": "Bayesian DP",
    "ldp-fl": "LDP-FL",
    "niss": "NISS",
    "risk-balanced": "Risk-balanced",
}
OF_PAPER = {"bayesian-dp": "(Bayesian DP)", "niss": "(NISS)"}
CRAFTED = "server"  # preset whose records under chosen weights count for claims about such servers


@dataclass(frozen=True)
class Sources:
    """Committed data behind the documents, each loaded at first use."""

    folder: Path = store.FOLDER
    """Folder with the reference results."""

    @cached_property
    def version(self) -> str:
        return max(store.of_defenses(store.versions(self.folder)), default="")

    @cached_property
    def records(self) -> Sequence[Record]:
        return store.read(self.version, self.folder) if self.version else []

    @cached_property
    def rows(self) -> Sequence[Row]:
        return board(self.records)

    @cached_property
    def standings(self) -> Sequence[Standing]:
        return standings(self.rows)

    @cached_property
    def strips(self) -> dict[str, bytes]:
        """Defense → reconstructions, a WebP strip."""
        return store.strips(self.version, (VICTIMS_NAME, *(each.defense for each in self.standings)), self.folder)

    @cached_property
    def attacked(self) -> Sequence[Record]:
        """The reference records of the suite `attacks`; empty before the first reference."""
        return store.read(ATTACKS_VERSION, self.folder) if ATTACKS_VERSION in store.versions(self.folder) else []

    @property
    def of_attacks(self) -> dict[str, str]:
        """File name → page, for the board of attacks."""
        cross = crossed(self.attacked)
        return {f"{ATTACKS_VERSION}.md": report.of_attacks(ATTACKS_VERSION, self.attacked, cross)} if cross else {}

    @cached_property
    def tradeoff(self) -> Tradeoff | None:
        """The shipped accuracies at equal leakage; None before the first."""
        path = self.folder / tradeoffs.FILE
        return tradeoffs.read(path) if path.is_file() else None

    @cached_property
    def _exports(self) -> Sequence[Export]:
        return [*exports.every(DOCS / "exports")]

    @property
    def exports(self) -> Sequence[Export]:
        """The exports with pages by preset."""
        return [each for each in self._exports if not each.tables]

    def of_paper(self, paper: str) -> Sequence[Export]:
        """A paper's exports, trainings at the paper's own size first."""
        its = [each for each in self._exports if each.matrix.startswith(f"{paper}/")]
        return sorted(its, key=lambda each: (not each.tables, each.matrix))

    @cached_property
    def book(self) -> items.Book:
        return items.read(DOCS / "papers.toml")

    @cached_property
    def evidence(self) -> items.Evidence:
        """What exists for the items of the papers."""
        text = "\n".join(self.by_hand.values())
        return items.Evidence(
            records={each.matrix: each.records for each in self._exports},
            claims={claim.id: ledger.verdict(claim, self.lines[claim.id]) for claim in self.claims},
            sections=frozenset(re.findall(r"^#+ (.+)$", text, re.MULTILINE)),
            tests=ROOT / "tests",
        )

    @cached_property
    def rated(self) -> Sequence[items.Rated]:
        return self.book.rated(self.evidence)

    @cached_property
    def known(self) -> Sequence[Record]:
        """Records for the claims; a reference record replaces a preset's record with the same id."""
        others = [record for each in self.exports if each.matrix in SAME_EXAMPLES for record in each.records]
        others += [
            record for each in self.exports if each.matrix == CRAFTED for record in each.records if chosen(record)
        ]
        return [*{record.id: record for record in (*others, *self.records)}.values()]

    @cached_property
    def claims(self) -> Sequence[Claim]:
        return read(DOCS / "claims.toml")

    @cached_property
    def lines(self) -> dict[str, list[Line]]:
        lines = judged(self.claims, self.known, board(self.known))
        for claim in self.claims:
            if claim.records:
                its = [record for each in self._exports if each.matrix in claim.records for record in each.records]
                lines |= judged([claim], its, board(its))
        return lines

    @cached_property
    def opening(self) -> str:
        cells = [record.cell for record in self.records if isinstance(record.cell, AttackCell)]
        clients = {cell.federated.per_round for cell in cells if cell.point == "aggregate"}
        return opening(self.version, self.standings, max(clients, default=0)) if self.records else ""

    @property
    def by_hand(self) -> dict[str, str]:
        return results.by_hand(DOCS / "results")


def of_papers(of: Sources) -> dict[str, str]:
    """File name → page: each paper's, and the page of all items."""
    made = {f"{paper}.md": _of_paper(of, paper, title) for paper, title in PAPERS.items()}
    links = {each.matrix: f"{paper}.md" for paper in PAPERS for each in of.of_paper(paper) if each.tables}
    repeated = again.read(DOCS / "exports" / again.FILE)
    return {survey.NAME: survey.page(of.book, of.rated, of.evidence, PAPERS, links, repeated), **made}


def _of_paper(of: Sources, paper: str, title: str) -> str:
    its = of.of_paper(paper)
    own = [_text(paper), *(_remarks(each) for each in its if papers.SIZE in each.matrix)]
    remarks = "\n".join(text for text in own if text)
    word = OF_PAPER.get(paper, title)
    claims = [(claim.id, of.evidence.claims[claim.id]) for claim in of.claims if word in claim.paper]
    missing = survey.not_run([each for each in of.rated if each.item.paper == paper])
    return papers.page(title, its, remarks, claims, missing)


def _papers(of: Sources) -> dict[str, tuple[str, str]]:
    """File name → title and headline."""
    listed = {survey.NAME: ("All items", survey.headline(of.rated))}
    for paper, title in PAPERS.items():
        remarks = _text(paper) + "".join(map(_remarks, of.of_paper(paper)))
        listed[f"{paper}.md"] = (title, results.headline(remarks, "small scale alone"))
    return listed


def chosen(record: Record) -> bool:
    """Whether the server chose the weights behind the record's readings."""
    return isinstance(record.cell, AttackCell) and record.cell.grants.server != "listen"


def in_git(of: Sources) -> dict[str, str]:
    """Path from the root → text, for documents in git."""
    made = {"docs/CLAIMS.md": ledger.verdicts(of.version, of.known, of.claims, of.lines)}
    if of.records:
        made |= {
            f"docs/results/{of.version}.md": report.summary(of.version, of.records, of.standings),
            "docs/pictures/board.svg": poster.svg(of.standings, of.strips, f"Gradient leakage, {of.version}").decode(),
        }
    made |= {f"docs/results/{name}": text for name, text in of.of_attacks.items()}
    made |= {f"docs/papers/{name}": text for name, text in of_papers(of).items()}
    if of.tradeoff is not None:
        made |= {
            "docs/results/tradeoff.md": tradeoff.page(of.tradeoff),
            "docs/pictures/tradeoff.svg": tradeoff.picture(of.tradeoff),
        }
    linked = {*of.by_hand, *(Path(name).name for name in made if name.startswith("docs/results/"))}
    made["RESULTS.md"] = results.index(of.version, of.opening, _listed(of), linked, _papers(of))
    picture = PICTURE.format(version=of.version) if of.records else ""
    opening = picture + of.opening if of.tradeoff is None else tradeoff.opening(of.tradeoff)
    made["README.md"] = _between((ROOT / "README.md").read_text("utf-8"), opening)
    return made


def for_the_site(of: Sources) -> dict[str, str]:
    """Path from docs/ → text, for site pages that git does not have, or has shortened."""
    pages = {f"{each.name}.md": results.exported(each, _remarks(each)) for each in of.exports} | of.of_attacks
    presets = [each.name for each in of.exports if each.matrix in (*SAME_EXAMPLES, CRAFTED)]
    made = {
        "CLAIMS.md": ledger.page(of.version, of.known, of.claims, of.lines, of.by_hand | pages, presets),
        ledger.CELLS: ledger.cells(of.lines),
        "DEFENSES.md": defenses.page(DOCS / "literature.toml", of.version, of.records, of.standings),
        "RECORDS.md": records.page(),
    }
    if of.records:
        ranks = attack_ranks(of.records)
        pages[f"{of.version}.md"] = report.page(of.version, of.records, of.rows, of.standings, ranks)
        made["board.html"] = page.render(
            of.rows,
            thumbnails={},
            title="Gradient leakage leaderboard",
            context=[f"Reference: {of.version}"],
            standings=of.standings,
            strips=of.strips,
        )
    made["RESULTS.md"] = results.index(of.version, of.opening, _listed(of), {*of.by_hand, *pages}, _papers(of))
    return made | {f"results/{name}": text for name, text in pages.items()}


def _listed(of: Sources) -> dict[str, tuple[str, str]]:
    """File name → title and headline."""
    listed = {name: results.listed(text) for name, text in of.by_hand.items()}
    listed |= {f"{each.name}.md": (each.matrix, results.headline(_remarks(each), each.title)) for each in of.exports}
    if of.tradeoff is not None:
        listed["tradeoff.md"] = ("Accuracy at equal leakage", "strength, accuracy and proof for each listener")
    listed |= dict.fromkeys(of.of_attacks, (ATTACKS_VERSION, "the board of attacks: a full cross on twelve conditions"))
    return listed | ({f"{of.version}.md": (of.version, "the standings of the reference board")} if of.records else {})


def _remarks(export: Export) -> str:
    return _text(export.name)


def _text(name: str) -> str:
    """Remarks by hand; empty without a file."""
    path = DOCS / "remarks" / f"{name}.md"
    return path.read_text("utf-8") if path.is_file() else ""


def _between(text: str, content: str) -> str:
    """Replace the content between the two marks; raises `SystemExit` if a mark is missing."""
    before, start, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not start or not end:
        raise SystemExit(f"README.md: lacks {MARKS[0]} … {MARKS[1]}")
    return f"{before}{start}\n{content}{end}{after}"


def stale(made: dict[str, str]) -> list[Path]:
    """Documents in git that differ or are missing."""
    paths = {ROOT / name: text for name, text in made.items()}
    return [path for path, text in paths.items() if not path.is_file() or path.read_text("utf-8") != text]


def _write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def uninstalled(project: Path) -> list[str]:
    """Return the entry points in the file `project` (pyproject.toml) that the installed package lacks. Without them, a
    document would count fewer entries."""
    groups = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"]
    return [
        name
        for group, listed in groups.items()
        for name in sorted(set(listed) - set(entries.names(group.removeprefix("bench."))))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="write the site's documents into FOLDER")
    options = parser.parse_args()
    if missing := uninstalled(DOCS.parent / "pyproject.toml"):
        parser.error(f"the environment lacks {', '.join(missing)}; run `pip install --no-deps -e .`")
    if options.all:
        _write(options.all, for_the_site(Sources()))
        return 0
    made = in_git(Sources())
    if not options.check:
        _write(ROOT, made)
        return 0
    for path in (differing := stale(made)):
        print(f"{path}: not what docs/generate.py writes; run `python docs/generate.py`")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
