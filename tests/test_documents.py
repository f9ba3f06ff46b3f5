"""Promises: generated documents equal the output of `docs/generate.py`; the literature and the claims name registered
entries; verdicts follow from the figures by one rule, in which zero leakage never proves a claim."""

import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import generate
import pytest
from _make import claims, defenses, exports, ledger, records, results
from _make.claims import Claim, Figures, Line, judged, read, tally, verdict
from tests.records import attack_cell, attack_record, with_result

import bench
from bench.cell import Entry, Federated, Grants
from bench.leaderboard.board import board
from bench.leaderboard.recognition import Rate
from bench.matrix.entries import registered
from bench.record.schema import ReadingScore, Record
from bench.reference import store
from bench.registry import entries

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CLAIMS = read(DOCS / "claims.toml")
LITERATURE = tomllib.loads((DOCS / "literature.toml").read_text("utf-8"))
STATUS = ("broken", "broken in part", "unbroken", "no adaptive evaluation seen", "no defense")
AT_CHANCE = Rate(value=0.0, interval=(0.0, 0.05), chance=0.01)


def rate(**changes: Any) -> Rate:
    return Rate(**{"value": 0.0, "interval": (0.0, 0.05), "chance": 0.01, **changes})


def figures(**changes: Any) -> Figures:
    """A setting behind which nothing came back to anyone, of examples that leak without it."""
    return Figures(**{"undefended": 1.0, "plain": 0.0, "adaptive": 0.0, "named": AT_CHANCE, **changes})


@pytest.mark.slow
def test_the_committed_documents_are_what_is_written() -> None:
    assert generate.stale(generate.in_git(generate.Sources())) == []


def test_a_stale_document_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "in_git", lambda sources: {"CLAIMS.md": "today's"})
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["generate.py", "--check"])
    (tmp_path / "CLAIMS.md").write_text("yesterday's")
    assert generate.main() == 1
    assert "CLAIMS.md" in capsys.readouterr().out
    assert (tmp_path / "CLAIMS.md").read_text() == "yesterday's"
    monkeypatch.setattr("sys.argv", ["generate.py"])
    assert generate.main() == 0
    monkeypatch.setattr("sys.argv", ["generate.py", "--check"])
    assert generate.main() == 0


def test_all_pages_go_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "for_the_site", lambda sources: {"results/a.md": "text"})
    monkeypatch.setattr("sys.argv", ["generate.py", "--all", str(tmp_path / "pages")])
    assert generate.main() == 0
    assert (tmp_path / "pages" / "results" / "a.md").read_text() == "text"


def test_the_literature_is_of_registered_defenses() -> None:
    own = {name for name in entries.names("defenses") if entries.origin("defenses", name).built_in}
    assert set(LITERATURE) <= own
    for name, entry in LITERATURE.items():
        assert entry.keys() == {"status", "text"}, name
        assert entry["status"] in STATUS and entry["text"], name


def test_claims_name_what_is_registered() -> None:
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    points = {"type-2", "type-1", "type-0", "aggregate"}
    for claim in CLAIMS:
        assert claim.paper and claim.claim and set(claim.point) <= points, claim.id
        assert claim.federated.keys() <= Federated.model_fields.keys(), claim.id
        for setting in claim.defense:  # raises with what is wrong
            built = registered("defense", dict(setting), entries).params
            assert {key: value for key, value in setting.items() if key != "name"}.items() <= built.items()


def test_quoted_figures_name_a_section_of_the_results() -> None:
    """A section of a page by hand, or a preset with an export."""
    text = "\n".join(results.by_hand(DOCS / "results").values())
    presets = {store.slug(quoted["section"]) for claim in CLAIMS for quoted in claim.measured}
    exported = {path.name.removesuffix(exports.SUFFIX) for path in (DOCS / "exports").iterdir()}
    headings = set(re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    assert presets & exported
    for claim in CLAIMS:
        for quoted in claim.measured:
            assert quoted.keys() == {"section", "text"}, claim.id
            section = quoted["section"]
            assert section in headings or store.slug(section) in exported, (claim.id, section)


@pytest.mark.parametrize(
    ("of", "word"),
    [
        (Figures(), claims.NOT_MEASURED),
        (Figures(adaptive=0.0), claims.NOT_MEASURED),  # the undefended reading is missing
        (Figures(applies=False), claims.NO_ATTACK),
        (figures(plain=0.9, adaptive=1.0), claims.FALLS),
        (figures(plain=0.0, adaptive=1.0), claims.TO_KNOWING),
        (figures(plain=None, adaptive=0.4), claims.TO_KNOWING),
        (figures(black_box=0.2, adaptive=None), claims.TO_KNOWING),
        (figures(adaptive=0.05), claims.IN_PART),
        (figures(undefended=0.1, adaptive=0.2), claims.TO_KNOWING),  # what leaks needs no baseline
        (figures(undefended=0.1), claims.NO_EVIDENCE),
        (figures(named=rate(value=0.9, interval=(0.8, 1.0))), claims.IDENTITIES),
        (figures(named=None, identified=rate(value=0.2, interval=(0.1, 0.3))), claims.IDENTITIES),
        (figures(), claims.LOWER_BOUND),
        (figures(named=None), claims.LOWER_BOUND),
        (figures(acts=False, plain=1.0), claims.UNTOUCHED),
        (figures(sent=False), claims.EMPTY),
        (figures(sent=False, plain=0.3), claims.FALLS),
        (figures(named=rate(ceiling=1.0, here=0.3)), claims.LOWER_BOUND),
        (figures(named=rate(here=0.06)), claims.HOLDS_HERE),
        (figures(named=rate(ceiling=1.0, here=0.06)), claims.HOLDS_HERE),
        (figures(named=rate(ceiling=0.03, here=0.06)), claims.HOLDS),
        # above chance by chance: what is proved is not in doubt for one of many figures
        (figures(named=rate(value=0.05, interval=(0.02, 0.1), ceiling=0.03)), claims.HOLDS),
        (figures(named=rate(value=0.5, interval=(0.4, 0.6), ceiling=0.03, violated=True)), claims.REFUTED),
    ],
)
def test_a_verdict_follows_from_the_figures(of: Figures, word: str) -> None:
    assert verdict(of) == word


def test_of_a_point_that_the_paper_calls_open_the_verdict_says_whether_it_is() -> None:
    assert verdict(figures(adaptive=1.0), protects=False) == claims.AS_CLAIMED
    assert verdict(figures(), protects=False) == claims.NOT_SHOWN
    assert verdict(Figures(), protects=False) == claims.NOT_MEASURED
    assert verdict(figures(sent=False), protects=False) == claims.EMPTY


def attacked(defense: str, hits: int, snr_db: float = 3.0, **cell: Any) -> Record:
    """Ten readings behind a defense, of which so many leaked; at 120 dB they are the undefended ones."""
    configured = attack_cell(defense=defense, **cell)
    record = attack_record([(number < hits,) for number in range(10)], cell=configured)
    assert record.attack
    return with_result(record, distortion=replace(record.attack.distortion, snr_db_least=snr_db))


def lines_of(records: list[Record], **claim: Any) -> list[Line]:
    made = Claim(**{"id": "it", "paper": "p", "claim": "c", "defense": ({"name": "sign"},), "federated": {}, **claim})
    return judged([made], records, board(records))["it"]


def test_a_claim_finds_its_records_by_defense_point_and_setting() -> None:
    records = [
        attacked("none", 10),
        attacked("sign", 2),
        attacked("sign", 5, knowledge="adaptive"),
        attacked("prune", 0),
        attacked("sign", 0, point="type-0"),
    ]
    (line,) = lines_of(records, point=("type-2",))
    assert (line.defense, line.point, line.verdict) == ("sign", "type-2", claims.FALLS)
    assert (line.figures.undefended, line.figures.plain, line.figures.adaptive) == (1.0, 0.2, 0.5)
    assert line.cells == {"plain": (records[1].id,), "adaptive": (records[2].id,)}
    assert lines_of(records, point=("type-2",), federated={"batch": 8}) == []
    assert lines_of(records, dataset="mnist") == [] and lines_of(records, weights="*-late") == []
    assert lines_of(records, defense=({"name": "sign", "at": "client"},)) == []


def test_parameters_that_a_claim_leaves_out_may_have_any_value() -> None:
    records = [
        attacked("none", 10),
        *(
            attack_record(cell=attack_cell(defense=Entry(name="prune", params={"at": "client", "share": share})))
            for share in (0.5, 0.9)
        ),
    ]
    assert len(lines_of(records, defense=({"name": "prune"},))) == 2
    (line,) = lines_of(records, defense=({"name": "prune", "share": 0.9},))
    assert line.defense == "prune(at=client, share=0.9)"


def test_an_attacker_with_a_gallery_reconstructs_nothing() -> None:
    gallery = attacked("sign", 10, attack="gallery", knowledge="adaptive", grants=Grants(gallery=100))
    (line,) = lines_of([attacked("none", 10), attacked("sign", 0), gallery], point=("type-2",))
    assert (line.figures.plain, line.figures.adaptive) == (0.0, None)
    assert line.cells["named"] == (gallery.id,)


def test_where_a_defense_does_not_act_no_claim_of_it_falls() -> None:
    untouched = attacked("sign", 10, snr_db=120.0, knowledge="adaptive")
    records = [attacked("none", 10), untouched]
    (line,) = lines_of(records, point=("type-2",))
    assert (line.figures.plain, line.verdict) == (1.0, claims.UNTOUCHED)
    (line,) = lines_of(records, point=("type-2",), protects=False)
    assert line.verdict == claims.AS_CLAIMED


def test_a_claim_of_no_defense_is_held_against_its_own_figures() -> None:
    """What a net leaks without a defense cannot be its own evidence of strong attackers."""
    (line,) = lines_of([attacked("none", 0)], defense=({"name": "none"},), point=("type-2",))
    assert line.verdict == claims.LOWER_BOUND
    (line,) = lines_of([attacked("none", 3)], defense=({"name": "none"},), point=("type-2",))
    assert line.verdict == claims.FALLS


def test_a_claim_covers_one_level_of_the_server() -> None:
    chosen = Grants(server="weights")
    records = [attacked("none", 10, grants=chosen), attacked("sign", 5, grants=chosen), attacked("sign", 0)]
    (line,) = lines_of(records, point=("type-2",), server="weights")
    assert (line.figures.undefended, line.figures.plain, line.verdict) == (1.0, 0.5, claims.FALLS)
    (line,) = lines_of(records, point=("type-2",))
    assert line.verdict == claims.NOT_MEASURED  # no undefended reading of honest weights
    assert [generate.chosen(record) for record in records] == [True, True, False]


def test_a_tally_has_every_verdict_the_worst_first() -> None:
    def of(word: str) -> Line:
        return Line(defense="d", condition="c", point="type-2", figures=Figures(), verdict=word, cells={})

    lines = [of(claims.HOLDS), of(claims.NO_EVIDENCE), of(claims.FALLS), of(claims.HOLDS)]
    assert list(tally(lines).items()) == [(claims.FALLS, 1), (claims.HOLDS, 2), (claims.NO_EVIDENCE, 1)]
    assert list(tally([])) == [claims.NOT_MEASURED]


def test_documents_of_a_partial_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is shown, what is not is said to be missing."""
    monkeypatch.setattr(exports, "every", lambda folder: [])
    setting = registered("defense", {"name": "soteria"}, entries)
    cells = [attack_cell(defense=each, federated=Federated(batch=1)) for each in ("none", setting)]
    store.write("standard-v1", [attack_record(((True,),), cell=cell) for cell in cells], folder=tmp_path)
    of = generate.Sources(tmp_path)
    made = defenses.page(DOCS / "literature.toml", of.version, of.records, of.standings)
    assert "2 records" in made and defenses.NOT_MEASURED in made
    assert cells[1].id[:8] in ledger.cells(of.lines)
    quoted = "\n".join(f"# {each['section']}\n" for claim in CLAIMS for each in claim.measured)
    made = ledger.page(of.version, of.known, of.claims, of.lines, {"p.md": quoted}, ())
    section = made.partition("## soteria\n")[2].partition("\n## ")[0]
    assert "**Verdict**: falls (1)." in section and "| `soteria` | type-2 | 100 % | 100 % |" in section
    assert "**Verdict**: not measured yet." in made.partition("## niss\n")[2]
    assert "**Verdict**: not about reconstruction." in made.partition("## bayesian-dp\n")[2]
    short = ledger.verdicts(of.version, of.known, of.claims, of.lines)
    (row,) = [line for line in short.splitlines() if line.startswith("| `soteria` ")]
    assert "| Sun et al. 2021 (Soteria) |" in row and row.endswith("| falls (1) |")


def test_a_defense_without_records_or_literature_is_listed_as_such(tmp_path: Path) -> None:
    text = re.sub(r"(?ms)^\[sign\]\n.*?(?=^\[)", "", (DOCS / "literature.toml").read_text("utf-8"))
    (tmp_path / "literature.toml").write_text(text, "utf-8")
    section = defenses.page(tmp_path / "literature.toml", "v", [], []).partition("## sign\n")[2].partition("\n## ")[0]
    assert "- **Literature**: no attack on it is known to us." in section
    assert f"Our verdict: {defenses.NOT_MEASURED}." in section


def test_the_page_of_records_has_each_field_with_its_type() -> None:
    made = records.page()
    assert made.index("## Record\n") < made.index("## Share\n") < made.index("## Federated\n")
    for field in fields(ReadingScore):
        assert f"| `{field.name}` |" in made
    rows = dict(re.findall(r"(?m)^\| `(\w+)` \| `(.+?)` \| .+ \|$", made))
    assert rows["clients"] == "int" and rows["weights"] == "Weights"


def test_an_environment_without_new_entries_writes_no_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = (
        (ROOT / "pyproject.toml")
        .read_text("utf-8")
        .replace(
            '[project.entry-points."bench.defenses"]\n', '[project.entry-points."bench.defenses"]\nlater = "m:Later"\n'
        )
    )
    (tmp_path / "pyproject.toml").write_text(later, "utf-8")
    (tmp_path / "docs").mkdir()
    assert generate.uninstalled(ROOT / "pyproject.toml") == []
    assert generate.uninstalled(tmp_path / "pyproject.toml") == ["later"]
    monkeypatch.setattr(generate, "DOCS", tmp_path / "docs")
    monkeypatch.setattr("sys.argv", ["generate.py"])
    with pytest.raises(SystemExit, match="2"):
        generate.main()
    assert "the environment lacks later; run `pip install" in capsys.readouterr().err


def test_the_citation_is_of_this_version() -> None:
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert cited["cff-version"] == "1.2.0" and cited["message"] and cited["title"] and cited["abstract"]
    assert cited["authors"] == [{"name": "The bench developers"}]
    assert str(cited["version"]) == bench.__version__
    assert cited["license"] == project["license"]
    assert (ROOT / "LICENSE").read_text("utf-8").startswith(f"{cited['license']} License")
