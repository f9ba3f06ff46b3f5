"""A matrix file is checked whole: every error is one line with file, key and remedy, all at once."""

import copy
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.cell import AttackCell, DataRef, Entry, Federated, TrainingCell
from bench.errors import BenchError, MatrixError, NotApplicable
from bench.matrix.published import PublishedFigures, beside
from bench.matrix.read import Matrix, read
from bench.parameters import parameter


@dataclass(frozen=True, kw_only=True)
class Plain:
    takes = ("image",)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    share: float = parameter(0.5, "a share", low=0, high=1)
    restarts: int = parameter(0, "restarts", low=0)
    signed: bool = parameter(True, "a switch")
    at: Literal["server", "client"] = parameter("server", "where")
    low: int = parameter(1, "below `high`")
    high: int = parameter(2, "above `low`")

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low must be at most high={self.high}, got {self.low}")
        if self.restarts == 13:
            raise NotApplicable("it never runs 13 times")


@dataclass(frozen=True, kw_only=True)
class Scaled:
    unknown_scale: bool = parameter(False, "a switch that had another name")


NAMES: dict[str, dict[str, type]] = {
    "attacks": {"dlg": Tuned, "cpl": Tuned, "gradinv": Scaled},
    "defenses": {"none": Plain, "prune": Tuned, "noise": Plain},
    "datasets": {"cancer": Plain, "digits": Plain},
    "models": {"mlp": Plain, "dlg-lenet": Plain, "broken": Plain},
}


def load(kind: str, name: str) -> type:
    if name == "broken":
        raise BenchError("model 'broken' of a plug-in cannot be used: no module; mend the file")
    return NAMES[kind][name]


REGISTRY = SimpleNamespace(names=lambda kind: tuple(sorted(NAMES[kind])), load=load)
VALID = """
title = "a valid matrix"
readings = 4
[axes]
dataset = ["digits", "cancer"]
model = ["mlp"]
weights = ["init", { train = { rounds = 20 }, sweep = { round = [0, 5] } }]
attack = ["dlg", { name = "cpl", share = 0.25, sweep = { restarts = [1, 4] } }]
knowledge = ["plain"]
grants = [[], ["labels", { repeated-readings = 100 }]]
point = ["type-2"]
defense = ["none", { name = "prune", at = "client" }]
federated = [{ clients = 100, per_round = 10, batch = 3 }]
seed = [0]
[[attack]]
dataset = ["digits"]
[[attack]]
dataset = ["cancer"]
attack = ["gradinv"]
evaluations = 1200
[[train]]
dataset = ["digits"]
model = ["mlp"]
rounds = [20]
checkpoints = [5]
[[published]]
source = "a paper"
columns = ["dataset", "defense", "asr"]
rows = [["digits", "none", 0.5], ["cancer", { name = "prune", share = 0.5 }, 0.25]]
"""
LEAST = 'dataset = ["digits"]\nmodel = ["mlp"]\nattack = ["dlg"]\npoint = ["type-2"]\n'


@pytest.fixture
def parse(tmp_path: Path) -> Any:
    def parsed(text: str | bytes) -> Matrix:
        path = tmp_path / "m.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read(path, registry=REGISTRY)

    return parsed


@pytest.fixture
def errors(parse: Any, tmp_path: Path) -> Any:
    def lines_of(text: str | bytes) -> list[str]:
        with pytest.raises(MatrixError) as caught:
            parse(text)
        start = f"{tmp_path / 'm.toml'}: "
        lines = str(caught.value).splitlines()
        assert all(line.startswith(start) for line in lines)
        return [line.removeprefix(start) for line in lines]

    return lines_of


def axes(**changed: str) -> str:
    """A minimal matrix with these axes changed or added, as TOML."""
    table = {**dict(line.split(" = ", 1) for line in LEAST.splitlines()), **changed}
    return "[axes]\n" + "\n".join(f"{name} = {text}" for name, text in table.items())


def test_a_valid_matrix_is_read_with_defaults_written_out(parse: Any) -> None:
    matrix = parse(VALID)
    assert matrix.title == "a valid matrix"
    # weights 3 × attacks 3 × grants 2 × defenses 2 of the first block, the second with one attack
    assert len(matrix.attacks) == 36 + 12
    assert {(row["dataset"].name, row.get("evaluations"), row["readings"]) for row in matrix.attacks} == {
        ("digits", None, 4),
        ("cancer", 1200, 4),
    }
    assert matrix.attacks[0]["attack"].params == {
        "share": 0.5,
        "restarts": 0,
        "signed": True,
        "at": "server",
        "low": 1,
        "high": 2,
    }
    assert len(matrix.trainings) == 1
    assert matrix.trainings[0]["checkpoints"] == [5]
    assert matrix.published == (
        PublishedFigures(
            where={"dataset": {"name": "digits"}, "defense": {"name": "none"}}, figures={"asr": 0.5}, source="a paper"
        ),
        PublishedFigures(
            where={"dataset": {"name": "cancer"}, "defense": {"name": "prune", "share": 0.5}},
            figures={"asr": 0.25},
            source="a paper",
        ),
    )


def published(text: str) -> str:
    return axes() + '\n[[published]]\nsource = "a paper"\n' + text


NUMBER = "expected a whole number, got"
ERRORS = [
    # unknown keys
    ('tittle = "x"\n' + axes(), "tittle: unknown key; did you mean 'title'?"),
    (axes(atack='["dlg"]'), "axes.atack: unknown key; did you mean 'attack'?"),
    (axes() + '\n[[attack]]\ndatset = ["digits"]', "attack[0].datset: unknown key; did you mean 'dataset'?"),
    (axes(federated="[{ bach = 3 }]"), "axes.federated[0].bach: unknown key; did you mean 'batch'?"),
    (
        axes(federated="[{ bach = 3, sweep = { batch = [1, 2] } }]", seed="[0]"),
        "axes.federated[0].bach: unknown key; did you mean 'batch'?",
    ),
    (
        axes(weights="[{ train = { rounds = 2, roundz = 3 }, round = 1 }]"),
        "axes.weights[0].train.roundz: unknown key; did you mean 'rounds'?",
    ),
    (
        axes(attack='[{ name = "dlg", restart = 1 }]'),
        "axes.attack[0]: dlg: unknown parameter 'restart'; did you mean 'restarts'?",
    ),
    (
        axes(grants="[[{ repeated-reading = 3 }]]"),
        "axes.grants[0].repeated_reading: unknown key; did you mean 'repeated_readings'?",
    ),
    # unknown names
    (axes(attack='["dgl"]'), "axes.attack[0]: unknown attack 'dgl'; did you mean 'dlg'?"),
    (
        axes() + '\n[[attack]]\nattack = ["cpl", "dgl"]',
        "attack[0].attack[1]: unknown attack 'dgl'; did you mean 'dlg'?",
    ),
    (axes(model='["zzz"]'), "axes.model[0]: unknown model 'zzz'; there are broken, dlg-lenet, mlp"),
    (axes(point='["type2"]'), "axes.point[0]: unknown point 'type2'; did you mean 'type-2'?"),
    (
        axes(federated='[{ partition = "idd" }]'),
        "axes.federated[0].partition: unknown partition 'idd'; did you mean 'iid'?",
    ),
    (axes(knowledge='["adaptiv"]'), "axes.knowledge[0]: unknown knowledge 'adaptiv'; did you mean 'adaptive'?"),
    (axes(grants='[["label"]]'), "axes.grants[0].label: unknown key; did you mean 'labels'?"),
    (
        'scales = ["small", "full"]\n' + axes() + '\n[[attack]]\nscale = "ful"',
        "attack[0].scale: unknown scale 'ful'; did you mean 'full'?",
    ),
    ('suite = "standart"\n' + axes(), "suite: unknown suite 'standart'; did you mean 'standard'?"),
    # old words
    (
        axes() + "\n[[exclude]]\nseed = 3",
        "exclude: [[attack]] blocks replace include and exclude; "
        "write one [[attack]] block, with axes of its own, for each product that is wanted",
    ),
    # wrong types
    (axes(seed='["x"]'), f"axes.seed[0]: {NUMBER} 'x'; write e.g. 1"),
    (axes(seed="[true]"), f"axes.seed[0]: {NUMBER} True; write e.g. 1"),
    (axes(seed="0"), "axes.seed: expected a list, got 0; write e.g. seed = […]"),
    (axes(attack="[3]"), 'axes.attack[0]: expected a name, or a table with a name, got 3; write e.g. { name = "…" }'),
    ("axes = 3", "axes: expected a table, got 3; write e.g. [axes]"),
    (
        "title = 3\n" + axes(),
        'title: expected one line of at most 200 characters, got 3; write e.g. "what this compares"',
    ),
    ("readings = 1.5\n" + axes(), f"readings: {NUMBER} 1.5; write e.g. 1"),
    ("attack = 3\n" + axes(), "attack: expected a list, got 3; write e.g. [[attack]]"),
    ("train = [3]\n" + axes(), "train[0]: expected a table, got 3; write e.g. [[train]]"),
    ("suite = 3\n" + axes(), 'suite: expected text, got 3; write e.g. "…"'),
    (axes(federated="[{ batch = 1.5 }]"), f"axes.federated[0].batch: {NUMBER} 1.5; write e.g. 1"),
    (
        axes(grants="[[3]]"),
        "axes.grants[0]: expected a list of grants, got [3]; write e.g. "
        '[], ["labels"], [{ repeated-readings = 100 }] or [{ public = "none" }]',
    ),
    (
        axes(attack='[{ name = "dlg", signed = 1 }]'),
        "axes.attack[0]: dlg: signed: expected true or false, got 1; write true or false",
    ),
    (
        axes(attack='[{ name = "dlg", share = true }]'),
        "axes.attack[0]: dlg: share: expected float, got True; write a number or text",
    ),
    # out of bounds, contradictions
    (axes(attack='[{ name = "dlg", share = 2 }]'), "axes.attack[0]: dlg: share must be at most 1, got 2.0"),
    (axes(evaluations="[0]"), "axes.evaluations[0]: out of range, got 0; it must be greater than or equal to 1"),
    (axes(evaluations="0"), "axes.evaluations: out of range, got 0; it must be greater than or equal to 1"),
    (
        axes(grants="[[{ colluders = 2 }]]"),
        "axes.grants[0].colluders: out of range, got 2; it must be less than or equal to 1",
    ),
    (axes(attack='[{ name = "dlg", low = 5 }]'), "axes.attack[0]: dlg: low must be at most high=2, got 5"),
    (axes(attack='[{ name = "dlg", restarts = 13 }]'), "axes.attack[0]: dlg: it never runs 13 times"),
    (axes(federated="[{ steps = 5 }]"), "axes.federated[0]: fedsgd sends one step's gradient; for steps=5 say fedavg"),
    (
        axes(weights="[{ train = { rounds = 5 }, round = 6 }]"),
        "axes.weights[0].round: 6 is after the last of 5 rounds; give 0 to 5",
    ),
    (axes(weights="[{ train = { rounds = 5 } }]"), "axes.weights[0]: lacks round; add e.g. round = 20"),
    (axes(weights="[{ train = { }, round = 2 }]"), "axes.weights[0].train: lacks rounds; add e.g. rounds = [20]"),
    (axes(model='["broken"]'), "axes.model[0]: model 'broken' of a plug-in cannot be used: no module; mend the file"),
    ("readings = 3\n" + axes(readings="[3]"), "axes.readings: given here and at the top; keep one of the two"),
    # empty
    (axes(seed="[]"), "axes.seed: empty; give at least one value, or leave the key out"),
    ("", "there is nothing to run; give [axes], [[attack]] or [[train]]"),
    # sweeps
    (
        axes(attack='[{ name = "dlg", share = 0.1, sweep = { share = [0.2] } }]'),
        "axes.attack[0].sweep.share: fixed and swept; keep one of the two",
    ),
    (
        axes(attack='[{ name = "dlg", sweep = { share = [] } }]'),
        "axes.attack[0].sweep.share: expected a list with at least one value, got []; write e.g. [1, 2]",
    ),
    (
        axes(attack='[{ name = "dlg", sweep = 3 }]'),
        "axes.attack[0].sweep: expected a table of lists, got 3; write e.g. sweep = { share = [0.5, 0.7] }",
    ),
    (
        published('asr = 1\ndefense = { name = "prune", sweep = { share = [0.2] } }'),
        "published[0].defense: a sweep where one value is due; write one entry for each value",
    ),
    # incomplete
    (
        '[axes]\ndataset = ["digits"]\nmodel = ["mlp"]\npoint = ["type-2"]',
        'axes: lacks attack; add e.g. attack = ["dlg"]',
    ),
    (
        '[axes]\nmodel = ["mlp"]\npoint = ["type-2"]\n[[attack]]\ndataset = ["cancer"]',
        'attack[0]: lacks attack; add e.g. attack = ["dlg"]',
    ),
    ('[[train]]\ndataset = ["digits"]\nmodel = ["mlp"]', "train[0]: lacks rounds; add e.g. rounds = [20]"),
    (
        '[[train]]\ndataset = ["digits"]\nmodel = ["mlp"]\nrounds = [5]\ncheckpoints = [9]',
        "train[0].checkpoints: 9 is after the last of 5 rounds; give 0 to 5",
    ),
    (
        '[[train]]\ndataset = ["digits"]\nmodel = ["mlp"]\nrounds = [9]\nuntil_round = 5\ncheckpoints = [9]',
        "train[0].checkpoints: 9 is after the last of 5 rounds; give 0 to 5",
    ),
    # what others published
    (
        published('dataset = "digits"'),
        "published[0]: gives no figure; give one of asr, iterations, accuracy, epsilon, rounds, milliseconds, "
        "overhead, rmse, rmse_unclipped, psnr_db, ssim, lpips, st_lpips, numeric_rmse, groups_right, "
        "over_prior_db, tokens_right, token_recall, token_precision, rouge_1, rouge_2, over_prior_tokens",
    ),
    (
        published('columns = ["asr"]\nrows = [[1]]'),
        "published[0].rows[0]: names no axis; say which cells, by "
        "dataset, model, attack, knowledge, point, defense, federated",
    ),
    (
        published('dataset = "digits"\ncolumns = ["asrs"]\nrows = [[1]]'),
        "published[0].columns: unknown column 'asrs'; did you mean 'asr'?",
    ),
    (
        published('columns = ["dataset", "asr"]\nrows = [["digits", 1], ["digits"]]'),
        "published[0].rows[1]: 1 values for 2 columns; give one for each column",
    ),
    (
        published('columns = ["dataset", "asr"]\nrows = [["digits", 1], ["digitz", 1]]'),
        "published[0].rows[1].dataset: unknown dataset 'digitz'; did you mean 'digits'?",
    ),
    (
        axes() + '\n[[published]]\nattack = "cpl"\nasr = 1',
        'published[0]: lacks source; add e.g. source = "paper, table"',
    ),
    (
        published('attack = "cpl"\nasr = 1.5'),
        "published[0].asr: out of range, got 1.5; it must be less than or equal to 1",
    ),
    (
        published('attack = "cpl"\nlpips = -1'),
        "published[0].lpips: out of range, got -1; it must be greater than or equal to 0",
    ),
    (published('attack = "cpl"\nasr = true'), "published[0].asr: expected a number, got True; write e.g. 0.5"),
    (published('attack = "clp"\nasr = 1'), "published[0].attack: unknown attack 'clp'; did you mean 'cpl'?"),
    (published('attack = "cpl"\nasr = 1\nasrs = 1'), "published[0].asrs: unknown key; did you mean 'asr'?"),
    (
        published("federated = { clientz = 3 }\nasr = 1"),
        "published[0].federated.clientz: unknown key; did you mean 'clients'?",
    ),
    (
        published('asr = 1\ncolumns = ["dataset", "asr"]\nrows = []'),
        "published[0].columns: a name is given twice; name each column once, and not beside the rows",
    ),
    (
        published('columns = ["dataset", "asr"]'),
        'published[0].rows: expected a list of rows, got None; write e.g. rows = [["digits", 0.5]]',
    ),
    # what no key can mean
    (axes(federated="[{ rate = inf }]"), "axes.federated[0].rate: expected a number, got inf; give a finite one"),
    (axes(seed=f"[{2**70}]"), "axes.seed[0]: a number of more than 63 bits; give a smaller one"),
    # TOML
    ("[axes]\nseed = [0\nx", "line 3, column 1: not TOML: unclosed array; mend the line"),
    (b"title = '\xff'", "not UTF-8 at byte 9; save it as UTF-8"),
    # guards
    (
        axes(seed=str(list(range(1001))), draw=str(list(range(100)))),
        "axes: 100100 combinations, at most 100000 are allowed; split the matrix",
    ),
    (  # the sweep of a block times what it shares
        axes(seed=str(list(range(1000)))) + "\n[[attack]]\nseed = [1]\n[[attack]]\n"
        f"attack = [{{ name = 'dlg', sweep = {{ restarts = {list(range(101))} }} }}]",
        "attack[1]: 101001 combinations, at most 100000 are allowed; split the matrix",
    ),
    (axes() + "\n[[attack]]\nattack = ['dlg']" * 201, "attack: 201 entries; at most 200 are allowed; split the matrix"),
    ("#" * (2**20 + 1), "larger than 1048576 bytes; split the matrix into several files"),
]


@pytest.mark.parametrize(("text", "line"), ERRORS, ids=[line[:60] for _, line in ERRORS])
def test_each_error_is_one_line_with_key_and_remedy(errors: Any, text: str | bytes, line: str) -> None:
    assert errors(text) == [line]


def test_all_errors_are_reported_at_once(errors: Any) -> None:
    text = 'tittle = "x"\n' + axes(
        attack='["dgl", { name = "dlg", restart = 1, share = 3, at = "moon" }]', seed="[]", model='["mpl"]'
    )
    assert errors(text) == [
        "axes.model[0]: unknown model 'mpl'; did you mean 'mlp'?",
        "axes.attack[0]: unknown attack 'dgl'; did you mean 'dlg'?",
        "axes.attack[1]: dlg: unknown parameter 'restart'; did you mean 'restarts'?",
        "axes.attack[1]: dlg: share must be at most 1, got 3.0",
        "axes.attack[1]: dlg: at input should be 'server' or 'client', got 'moon'",
        "axes.seed: empty; give at least one value, or leave the key out",
        "tittle: unknown key; did you mean 'title'?",
    ]


def test_missing_axes_are_reported_with_the_other_errors(errors: Any) -> None:
    assert errors('readngs = 3\n[axes]\ndataset = ["digits"]\nattack = ["dlg"]') == [
        'axes: lacks model; add e.g. model = ["dlg-lenet"]',
        'axes: lacks point; add e.g. point = ["type-2"]',
        "readngs: unknown key; did you mean 'readings'?",
    ]


def test_an_error_of_each_swept_value_is_reported_once(errors: Any) -> None:
    text = axes(attack='[{ name = "dlg", sweep = { share = [0.1, 5, 7], restarts = [1, 2] } }]')
    assert errors(text) == [
        "axes.attack[0]: dlg: share must be at most 1, got 5.0",
        "axes.attack[0]: dlg: share must be at most 1, got 7.0",
    ]


@pytest.mark.parametrize("name", ["a" * 5000, r"a\nb\u001b[31mc", r"a\u202eb"])
def test_names_in_messages_are_short_and_hold_no_control_character(errors: Any, name: str) -> None:
    places = (
        axes(attack=f'["{name}"]'),
        axes(attack=f'[{{ name = "dlg", "{name}" = 1 }}]'),
        axes(attack=f'[{{ name = "dlg", at = "{name}" }}]'),
        axes(federated=f'[{{ "{name}" = 1 }}]'),
        f'"{name}" = 1\n' + axes(),
    )
    for text in places:
        (line,) = errors(text)
        assert line.isprintable()
        assert len(line) < 500


def test_many_errors_are_counted_not_listed(errors: Any) -> None:
    lines = errors(axes(seed="[" + ", ".join(f'"{i}"' for i in range(500)) + "]"))
    assert len(lines) == 201
    assert lines[-1] == "300 more errors; mend these first"


def test_deep_nesting_is_refused(errors: Any) -> None:
    assert errors("x = " + "[" * 20 + "]" * 20)[0].endswith("nested deeper than 16 levels; flatten it")
    assert errors("x = " + "[" * 100_000)[0].endswith("flatten it")
    assert "nested deeper" in errors(".".join("a" * 5000) + " = 1")[0]


def test_weights_from_a_file_stay_in_the_folder_and_go_by_content(parse: Any, errors: Any, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"abc")
    matrix = parse(axes(weights='[{ file = "w.safetensors" }]'))
    assert matrix.attacks[0]["weights"].sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    outside = errors(axes(weights='[{ file = "../w" }, { file = "/etc/passwd" }, { file = "no" }]'))
    assert [line.partition(": ")[2].partition(";")[0] for line in outside] == [
        "'../w' lies outside the matrix's folder",
        "'/etc/passwd' lies outside the matrix's folder",
        "'no' is not a file",
    ]
    (tmp_path / "out").symlink_to("/etc/hostname")
    assert "lies outside" in errors(axes(weights='[{ file = "out" }]'))[0]


def test_a_matrix_may_be_a_suite(parse: Any) -> None:
    assert parse(axes()).suite is None
    assert parse('suite = "extra"\n' + axes()).suite == "extra"


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ('attack = "cpl"', True),
        ('attack = { name = "cpl", share = 0.25 }\npoint = "type-2"', True),
        ('attack = { name = "cpl", share = 0.5 }', False),
        ('attack = "dlg"', False),
        ('point = "type-1"', False),
        ('defense = "none"\nmodel = "mlp"\ndataset = "digits"\nknowledge = "plain"', True),
        ("federated = { steps = 5 }", True),
        ("federated = { steps = 5, batch = 1 }", False),
    ],
)
def test_what_is_published_stands_beside_the_cells_that_it_is_about(parse: Any, pattern: str, fits: bool) -> None:
    """A name fits any parameters, a table those that it has; an attack fits no training."""
    (entry,) = parse(published("asr = 1\n" + pattern)).published
    data = DataRef(name="digits", sha256="0" * 64)
    shared: dict[str, Any] = {
        "dataset": data,
        "model": Entry(name="mlp"),
        "defense": Entry(name="none"),
        "federated": Federated(algorithm="fedavg", steps=5),
    }
    attack = AttackCell(**shared, attack=Entry(name="cpl", params={"share": 0.25, "restarts": 0}), point="type-2")
    assert (beside([entry], attack) is entry) == fits
    training = TrainingCell(**shared, rounds=3)
    assert (beside([entry], training) is entry) == (pattern == "federated = { steps = 5 }")


def test_a_file_or_preset_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"^no\.toml: there is no such file; give a TOML file"):
        read("no.toml", registry=REGISTRY)
    with pytest.raises(MatrixError, match="there is no such file"):
        read(tmp_path, registry=REGISTRY)
    with pytest.raises(MatrixError, match="there is no such file"):
        read("x" * 5000 + ".toml", registry=REGISTRY)
    with pytest.raises(MatrixError, match=r"^quickstat: unknown preset; did you mean 'quickstart'"):
        read("quickstat", registry=REGISTRY)
    with pytest.raises(MatrixError, match="unknown preset"):
        read("../presets/quickstart", registry=REGISTRY)


def defenses(path: Path, text: str, *more: str) -> list[tuple[Any, ...]]:
    path.write_text(text, "utf-8")
    rows = read(path, more_defenses=more, registry=REGISTRY).attacks
    return [(row["attack"].name, row["defense"].name, row["defense"].params.get("share")) for row in rows]


def test_an_entry_of_a_file_may_be_written_as_on_a_command_line(tmp_path: Path) -> None:
    text = axes(attack='["dlg"]', defense='["none", "prune:share=.9"]')
    assert defenses(tmp_path / "m.toml", text) == [("dlg", "none", None), ("dlg", "prune", 0.9)]


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("prune:share", "'prune:share' is no parameter; write defense NAME:PARAMETER=VALUE"),
        ("prune:share=.9,none", "'prune:share=.9,none' holds 2 names; write quotes around each"),
        ("prune:shares=.9", "prune: unknown parameter 'shares'"),
        (":share=.9", "an empty name; write defense NAME or defense NAME:PARAMETER=VALUE"),
    ],
)
def test_a_mistake_in_such_an_entry_is_one_line(tmp_path: Path, typed: str, error: str) -> None:
    with pytest.raises(MatrixError) as caught:
        defenses(tmp_path / "m.toml", axes(defense=f'["{typed}"]'))
    (line,) = str(caught.value).splitlines()
    assert error in line


def test_more_defenses_join_the_axis_at_its_end_with_their_defaults(tmp_path: Path) -> None:
    text = axes(attack='["dlg", "gradinv"]', defense='["none", { name = "prune", share = 0.7 }]')
    assert defenses(tmp_path / "m.toml", text, "noise", "prune", "noise", "none") == [
        (attack, *defense)
        for attack in ("dlg", "gradinv")
        for defense in (("none", None), ("prune", 0.7), ("noise", None), ("prune", 0.5))
    ]


def test_more_defenses_join_every_block_of_attacks(tmp_path: Path) -> None:
    """An axis that is left out holds `none`; a block may stand without [axes]."""
    more = '\n[[attack]]\nattack = ["cpl"]\n[[attack]]\nattack = ["gradinv"]\ndefense = ["prune"]\n'
    expected = [("cpl", "none", None), ("cpl", "noise", None), ("gradinv", "prune", 0.5), ("gradinv", "noise", None)]
    assert defenses(tmp_path / "m.toml", axes() + more, "noise") == expected
    alone = "[[attack]]\n" + LEAST.replace('dlg"]', 'cpl"]', 1).replace('["dlg-lenet"]', '["mlp"]')
    assert [row[1] for row in defenses(tmp_path / "m.toml", alone, "noise")] == ["none", "noise"]


def test_more_defenses_join_trainings_that_compare_defenses_and_no_others(tmp_path: Path) -> None:
    block = '\n[[train]]\ndataset = ["digits"]\nmodel = ["mlp"]\nrounds = [{rounds}]\ndefense = {defense}\n'
    path = tmp_path / "m.toml"
    weights, costs = (block.format(rounds=1, defense='["none"]'), block.format(rounds=2, defense='["none", "prune"]'))
    path.write_text(axes() + weights + costs)
    rows = read(path, more_defenses=["noise"], registry=REGISTRY).trainings
    assert [(row["rounds"], row["defense"].name) for row in rows] == [
        (1, "none"),
        (2, "none"),
        (2, "prune"),
        (2, "noise"),
    ]
    path.write_text(costs)  # it has this one already
    assert len(read(path, more_defenses=["prune"], registry=REGISTRY).trainings) == 2
    path.write_text(weights)
    with pytest.raises(MatrixError, match="no \\[axes\\] to add to"):
        read(path, more_defenses=["noise"], registry=REGISTRY)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (axes(), ["--defense: unknown defense 'prun'; did you mean 'prune'?"]),
        (
            axes(defense="3"),
            [
                "--defense: unknown defense 'prun'; did you mean 'prune'?",
                "axes.defense: expected a list, got 3; write e.g. defense = […]",
            ],
        ),
        (
            '[[train]]\ndataset = ["digits"]\nmodel = ["mlp"]\nrounds = [5]',
            [
                "--defense: unknown defense 'prun'; did you mean 'prune'?",
                "--defense: the matrix has no [axes] to add to; leave it out, or add axes",
            ],
        ),
    ],
)
def test_an_error_of_an_added_defense_is_reported_with_the_others(tmp_path: Path, text: str, lines: list[str]) -> None:
    path = tmp_path / "m.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(MatrixError) as caught:
        read(path, more_defenses=["prun"], registry=REGISTRY)
    assert str(caught.value).splitlines() == [f"{path}: {line}" for line in lines]


# Any value that TOML can hold, with the words of the format mixed in.
WORDS = st.sampled_from(
    ["dlg", "cpl", "none", "prune", "digits", "mlp", "init", "type-2", "labels", "share", "x", "", "a\nb"]
)
LEAVES = WORDS | st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | st.text(max_size=4) | st.dates()
KEYS = st.sampled_from(
    [
        "name",
        "sweep",
        "train",
        "round",
        "rounds",
        "file",
        "share",
        "restarts",
        "steps",
        "batch",
        "clients",
        "defense",
        "federated",
        "repeated-readings",
        "dataset",
        "attack",
        "columns",
        "rows",
        "scale",
        "zzz",
    ]
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [path, *(found for key, inner in items for found in paths(inner, (*path, key)))]


def outcome(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, file: Path) -> list[str]:
    monkeypatch.setattr(tomllib, "loads", lambda text: copy.deepcopy(document))
    try:
        read(file, registry=REGISTRY)
    except MatrixError as error:
        return str(error).split("\n")
    return []


PATHS = [path for path in paths(tomllib.loads(VALID)) if path]
HARSH = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@HARSH
@given(changes=st.lists(st.tuples(st.sampled_from(PATHS), VALUES | st.none()), min_size=1, max_size=3))
def test_no_mutation_of_a_valid_file_raises_anything_else(
    changes: list[tuple[tuple[Any, ...], Any]], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any
) -> None:
    document = tomllib.loads(VALID)
    for path, value in changes:
        parent: Any = document
        try:
            for key in path[:-1]:
                parent = parent[key]
            if value is None:
                del parent[path[-1]]
            else:
                parent[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    file = tmp_path_factory.getbasetemp() / "mutant.toml"
    file.touch()
    for line in outcome(document, monkeypatch, file):
        assert line.startswith(f"{file}: ")
        assert line.isprintable()
        assert len(line) <= 1000


@HARSH
@given(
    document=st.dictionaries(
        st.sampled_from(["title", "readings", "scales", "axes", "attack", "train", "published", "exclude", "zzz"]),
        VALUES | st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=2),
        max_size=4,
    )
)
def test_no_structure_raises_anything_else(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "random.toml"
    file.touch()
    assert all(line.startswith(f"{file}: ") for line in outcome(document, monkeypatch, file))


@HARSH
@given(text=st.binary(max_size=60) | st.text("[]{}=\"'\n#.,ax1e_-", max_size=60).map(str.encode))
def test_no_bytes_raise_anything_else(text: bytes, tmp_path_factory: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.toml"
    file.write_bytes(text)
    with pytest.raises(MatrixError):
        read(file, registry=REGISTRY)
