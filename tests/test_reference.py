"""The reference results: files that a board reads back as they were, small, whole or refused; mine beside them."""

import json
import lzma
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.boards import scored, shipped, suite
from tests.records import attack_cell, attack_record, readings_of

from bench.cell import AttackCell, Entry, FileWeights
from bench.cli.words import estimate
from bench.errors import BenchError
from bench.leaderboard.board import board
from bench.leaderboard.standings import standings
from bench.matrix.read import read as read_matrix
from bench.matrix.suites import VERSIONS
from bench.record.names import entry_text
from bench.record.schema import Cost
from bench.reference import again, beside, store, summary
from bench.reference.costs import expected, span

MINE = ((0.5, "type-2", 1), (0.5, "type-0", 1), (0.2, "type-0", 2))  # what leaks of a setting of one's own
ROOT = Path(__file__).parent.parent
MOST_BYTES = 6_000_000  # of all that ships


def test_records_come_back_as_a_board_reads_them(tmp_path: Path) -> None:
    records = suite()
    written = store.write("v", records, {"none": b"a strip", "victims": b"the truth"}, tmp_path)
    assert {path.name for path in written} == {
        *(f"{name}.json.xz" for name in ("none", "prune", "noise", "cdp")),
        "none.webp",
        "victims.webp",
    }
    back = store.read("v", tmp_path)
    assert {record.id for record in back} == {record.id for record in records}
    assert all(record.cell.id == record.id for record in back)
    assert standings(board(back)) == standings(board(records))
    assert store.strips("v", ("victims", "none", "prune"), tmp_path) == {"none": b"a strip", "victims": b"the truth"}


def test_a_partial_reading_keeps_its_number(tmp_path: Path) -> None:
    """What a cascade left is told by number: without it an example would be taken for another."""
    first = attack_cell(readings=2)
    left = tuple(replace(each, number=1) for each in readings_of([[True]]))
    later = attack_cell(readings=2, attack="map", after=(first.id,))
    record = replace(attack_record(cell=later, readings=left), id=later.id, cell=later)
    store.write("v", [record], folder=tmp_path)
    (back,) = store.read("v", tmp_path)
    assert back.attack is not None
    assert [number for number, _ in back.attack.numbered()] == [1]


ABSOLUTE = re.compile(rb"(?<![\w/.:\\<>-])/(?:[\w.+-]+/)+[\w.+-]*")  # as "/somewhere/w.npz", and not "examples/second"


def test_a_weights_file_has_no_folder_of_the_machine(tmp_path: Path) -> None:
    weights = FileWeights(sha256="0" * 64, path="/somewhere/early-3.safetensors", series="early-{seed}.safetensors")
    cell = attack_cell(weights=weights)
    record = replace(attack_record(cell=cell, readings=readings_of([[True]])), id=cell.id, cell=cell)
    assert ABSOLUTE.search(record.cell.model_dump_json().encode()), "the test sees such a path"
    (path,) = store.write("v", [record], folder=tmp_path)
    (back,) = store.read("v", tmp_path)
    assert back.cell.id == record.id and isinstance(back.cell, AttackCell)
    assert back.cell.weights == weights.model_copy(update={"path": "early-3.safetensors"})
    assert ABSOLUTE.search(lzma.decompress(path.read_bytes())) is None


@pytest.mark.parametrize(
    "folder",
    [
        "bench/reference/attacks-v1",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("bench/reference", "docs/exports")),
    ],
)
def test_no_shipped_record_has_a_path_of_a_machine(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.json.xz"))
    assert files
    found = {path.name: ABSOLUTE.findall(lzma.decompress(path.read_bytes())) for path in files}
    assert {name: paths[:1] for name, paths in found.items() if paths} == {}


def test_files_are_the_same_each_time(tmp_path: Path) -> None:
    first, second = (store.write("v", suite(), folder=tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.parametrize("content", [b"", b"no xz", b"\xfd7zXZ\x00 broken"])
def test_a_damaged_file_is_named_in_one_line(content: bytes, tmp_path: Path) -> None:
    (path, *_) = store.write("v", suite(), folder=tmp_path)
    path.write_bytes(content)
    with pytest.raises(BenchError, match=rf"^{path}: not reference results .*get it from the repository again$"):
        store.read("v", tmp_path)


def test_a_version_that_is_not_there_is_named(tmp_path: Path) -> None:
    store.write("v1", suite(), folder=tmp_path)
    with pytest.raises(BenchError, match="no reference results of v2; there are v1"):
        store.read("v2", tmp_path)


def test_settings_have_files_of_their_own() -> None:
    matrix = read_matrix("reference")
    settings = {entry_text(row["defense"]) for row in matrix.attacks}
    assert len({store.slug(each) for each in settings}) == len(settings) <= 35


def test_what_ships_is_small_and_of_this_suite() -> None:
    files = [path for path in store.FOLDER.rglob("*") if path.suffix in (".xz", ".webp")]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert set(store.versions()) <= set(VERSIONS.values())


@pytest.mark.slow
def test_what_ships_is_whole_and_of_a_single_commit() -> None:
    for version in store.of_defenses(store.versions()):
        records = store.read(version)
        assert {record.status for record in records} <= {"done", "n/a"}
        assert {record.protocol for record in records} == {3}
        assert len({record.provenance.bench.sha256 for record in records}) == 1, "one commit's code"
        lacking = [each for each in standings(board(records)) if each.missing]
        whys = {each.defense.partition("(")[0]: {absent.why for absent in each.absent} for each in lacking}
        # what a shuffle sends, parameter by parameter, is no attack's to read; of one example there is no variance
        assert whys.get("ldp-fl", set()) <= {"not-attacked", "no figure of recognition"}
        assert whys.get("variance-based", set()) <= {"nothing-sent"}
        assert whys.keys() <= {"ldp-fl", "variance-based"}


def test_a_run_stands_beside_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped(tmp_path / "reference", monkeypatch)
    mine = [scored(0.5, "mine", "type-2", 1), scored(0.5, "mine", "type-0", 1), scored(0.2, "mine", "type-0", 2)]
    joined = beside.joined("v", mine)
    assert joined.own == ("mine",)
    said = dict(summary.lines(joined, "mine"))
    assert list(said) == ["rank", "leaks", "costs", "nearest"]
    assert said["rank"] == "2 of 5 on v, between cdp and noise"
    assert said["leaks"].startswith("type-2 50 %")
    assert said["nearest"].startswith("noise: no difference shown on the same")
    run = tmp_path / "run"
    run.mkdir()
    assert beside.suite_of([run]) is None
    (run / "suite-standard.json").write_text(json.dumps({"suite": "v", "ranked": True}), "utf-8")
    assert beside.suite_of([run]) == "v"
    (run / "suite-standard.json").write_text(json.dumps({"suite": "v", "ranked": False}), "utf-8")
    assert beside.suite_of([run]) is None


def test_my_records_change_nothing_of_what_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they open conditions, or replace a cell of a published setting."""
    shipped(tmp_path / "reference", monkeypatch)
    mine = [scored(0.5, "mine", "type-2", 1), scored(0.5, "mine", "type-0", 1), scored(0.2, "mine", "type-0", 2)]
    before = {each.defense: (each.leaked, each.missing) for each in beside.joined("v").standings}
    others = [
        scored(0.9, "none", "type-0", 16),
        scored(0.0, "mine", "type-0", 16),
        scored(0.0, "prune", "type-0", 1),
        replace(scored(1.0, "none", "type-0", 1), status="crashed", reason="a reason", result=None),
    ]
    after = beside.joined("v", [*mine, *others]).standings
    assert {each.defense: (each.leaked, each.missing) for each in after if not each.own} == before
    (own,) = (each for each in after if each.own)
    assert own.missing == 0


def test_published_records_made_again_say_which_examples_leak_in_one_run_alone() -> None:
    """Of 40 examples 20 leaked before and others leak now: half of them in one run alone, on two machines."""
    same_again, before = scored(0.5, "prune", "type-2", 1), scored(0.5, "prune", "type-0", 1)
    other = [[n >= 0.25 * len(before.attack.readings) and n < 30] for n in range(40)]
    now = replace(
        before,
        result=replace(before.attack, readings=readings_of(other)),
        environment=replace(before.environment, device_name="another"),
    )
    rows = again.compared([same_again, now, scored(0.5, "mine", "type-0", 1)], [same_again, before])
    (row,) = rows.values()
    assert (row.equal, row.differ, row.examples) == (1, [before.id[:8]], 40)
    assert (row.only_now, row.only_before) == (10, 10)
    assert list(again.lines(rows)) == [
        "prune: 1 of 2 records are equal, arrays bit for bit",
        f"1 differ, {before.id[:8]}: of their 40 examples 10 leak now alone, 10 leaked before alone",
        "now on another, before on x86_64",
    ]


def test_equal_outcomes_of_other_arrays_differ() -> None:
    """The hash of truth and reconstruction counts, not the rates alone."""
    before = scored(0.5, "prune", "type-0", 1)
    (row,) = again.compared([replace(before, result=replace(before.attack, arrays="0" * 64))], [before]).values()
    assert (row.equal, row.only_now, row.only_before) == (0, 0, 0)


def test_a_cell_takes_what_it_took_others_and_alone_what_they_shared() -> None:
    """A reading that a defense leaves as it is was attacked once for all; who runs alone pays for it."""
    first = scored(1.0, "none", "type-2", 1)
    first = replace(first, cost=Cost(cpu_seconds=60.0))
    sharing = [
        replace(scored(1.0, name, "type-2", 1), cost=Cost(cpu_seconds=0.1, reused_from=first.id)) for name in "abc"
    ]
    mine = scored(0.0, "mine", "type-2", 1).cell
    assert expected([first, *sharing])(mine) == 0.1
    assert expected([first, *sharing], alone=True)(mine) == 60.0
    assert expected([first])(scored(0.0, "mine", "type-0", 1).cell) is None


def test_a_published_setting_takes_what_it_took_and_another_what_the_middle_one_of_its_kind_did() -> None:
    """Of three settings that act on updates, each slow in another cell, the sum of medians is 30 and the middle whole
    50; one that acts on examples is no measure for them, and the other way round."""
    points = ("type-2", "type-1", "type-0")
    taken = {
        ("prune", "client"): (10.0, 10.0, 20.0),
        ("gaussian", "client"): (10.0, 30.0, 10.0),
        ("laplace", "client"): (40.0, 10.0, 10.0),
        ("gaussian", "example"): (1.0, 1.0, 1.0),
    }
    published = [
        replace(scored(0.0, "none", point, 1), cell=cell, id=cell.id, cost=Cost(cpu_seconds=spent))
        for (name, at), each in taken.items()
        for point, spent in zip(points, each, strict=True)
        if (cell := _of(name, at, point))
    ]
    seconds = expected(published)
    assert [seconds(_of("gaussian", "client", point)) for point in points] == [10.0, 30.0, 10.0]
    assert sum(seconds(_of("top-k", "client", point)) or 0.0 for point in points) == pytest.approx(50.0)
    assert [seconds(_of("prune", "example", point)) for point in points] == [1.0, 1.0, 1.0]


def _of(name: str, at: str, point: str) -> AttackCell:
    defense = Entry(name=name, params={"at": at})
    return scored(0.0, "none", point, 1).cell.model_copy(update={"defense": defense})


def test_a_run_takes_between_what_published_settings_took() -> None:
    """Those that have all its cells, and pay for what another setting's reading lent them."""
    cells = [scored(0.0, "mine", point, 1).cell for point in ("type-1", "type-0")]
    taken = {"fast": (10.0, 20.0), "slow": (40.0, 60.0), "half": (500.0,)}
    published = [
        replace(scored(0.0, name, cell.point, 1), cost=Cost(cpu_seconds=spent))
        for name, each in taken.items()
        for cell, spent in zip(cells, each, strict=False)
    ]
    assert span(published, cells) == (30.0, 100.0)
    lender = replace(scored(0.0, "none", "type-1", 1), cost=Cost(cpu_seconds=35.0))
    cheap = replace(published[0], cost=Cost(cpu_seconds=0.1, reused_from=lender.id))
    assert span([lender, cheap, *published[1:]], cells) == (20.1, 100.0)
    assert span([lender, cheap, *published[1:]], cells, alone=True) == (55.0, 100.0)
    assert span(published, [*cells, scored(0.0, "mine", "type-2", 1).cell]) is None
    assert estimate(90.0, (30.0, 100.0), 1) == "2 min (published defenses: 30 s to 2 min)"
