"""The axis `weights`: untrained, from a file beside the matrix (one for each seed), or round t of a training."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cell import Entry, Federated, FileWeights, InitialWeights, TrainingCell
from bench.matrix.border import Border, entry, whole
from bench.matrix.combine import Choice
from bench.matrix.faults import Faults, quoted
from bench.matrix.federated import federated

SEED = "{seed}"  # in a file's name
# Of a training: how it is measured, not how it runs.
OPTIONS = {name: TrainingCell.model_fields[name].default for name in ("test_every", "test_examples")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Weights after round `round` of a training; `federated` None: the attack cell's own."""

    rounds: int
    round: int
    defense: Entry
    federated: Federated | None
    options: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededFile:
    """A file for each seed: `raw` has `{seed}` in it, which the seed of a cell stands for; `key` is where
    the matrix has it, `folder` the matrix's."""

    raw: str
    key: str
    folder: Path

    def of(self, seed: int, faults: Faults) -> FileWeights | None:
        """The file of one seed, or None and a fault."""
        found = _found(faults, self.folder, self.key, self.raw.replace(SEED, str(seed)))
        return None if found is None else found.model_copy(update={"series": self.raw})


def weights(border: Border, key: str, raw: Any) -> Choice | None:
    """The weights of one item, or None and a fault."""
    if raw == "init":
        return Choice({"name": "init"}, InitialWeights())
    if isinstance(raw, dict) and "file" in raw:
        border.known(key, raw, ("file",))
        return _file(border, f"{key}.file", raw["file"])
    if isinstance(raw, dict) and ("train" in raw or "round" in raw):
        return _trained(border, key, raw)
    border.bad(
        key, "weights", raw, '"init", { file = "w.safetensors" } or { train = { rounds = 20 }, round = 5 }'
    )
    return None


def _file(border: Border, key: str, raw: Any) -> Choice | None:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        border.bad(key, "a path", raw, '"w.safetensors"')
        return None
    plain = {"name": "file", "file": raw}
    if SEED in raw:
        return Choice(plain, SeededFile(raw=raw, key=key, folder=border.folder))
    found = _found(border.faults, border.folder, key, raw)
    return None if found is None else Choice(plain, found)


def _found(faults: Faults, beside: Path, key: str, raw: str) -> FileWeights | None:
    """The file by content, below the folder `beside`; None and a fault where it is not or lies elsewhere."""
    folder = beside.resolve()
    try:
        path = (folder / raw).resolve()
        if not path.is_relative_to(folder):
            what = f"{quoted(raw)} lies outside the matrix's folder"
            faults.add(key, what, "copy it beside the matrix")
            return None
        if not path.is_file():
            faults.add(key, f"{quoted(raw)} is not a file", f"mend the path, below {folder}")
            return None
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, RuntimeError) as error:  # not readable, a name too long, a circle of links
        faults.add(key, f"{quoted(raw)} cannot be read ({error})", "mend the path")
        return None
    return FileWeights(sha256=sha256, path=str(path))


def _trained(border: Border, key: str, raw: Mapping[str, Any]) -> Choice | None:
    train, where = raw.get("train", {}), f"{key}.train"
    if not isinstance(train, dict):
        border.bad(where, "a table", train, '{ rounds = 20, defense = "none" }')
        return None
    border.known(key, raw, ("train", "round"))
    border.known(where, train, ("rounds", "defense", "federated", *OPTIONS))
    if not border.part:
        for path, table, name in ((where, train, "rounds"), (key, raw, "round")):
            if name not in table:
                border.faults.add(path, f"lacks {name}", f"add e.g. {name} = 20")
    given = {**OPTIONS, "rounds": 1, **train}
    counts = {name: whole(border, f"{where}.{name}", given[name], 1) for name in ("rounds", *OPTIONS)}
    at = whole(border, f"{key}.round", raw.get("round", 0), 0)
    defense = entry(border, "defense", f"{where}.defense", given.get("defense", "none"))
    nested = f"{where}.federated"
    setting = federated(border, nested, given["federated"]) if "federated" in given else Choice({}, None)
    numbers = {name: value for name, value in counts.items() if value is not None}
    if at is None or defense is None or setting is None or len(numbers) < len(counts):
        return None
    plain = {"train": {**numbers, "defense": defense.plain, "federated": setting.plain}, "round": at}
    if border.part:
        return Choice(plain, None)
    rounds = numbers.pop("rounds")
    if at > rounds:
        border.faults.add(f"{key}.round", f"{at} is after the last of {rounds} rounds", f"give 0 to {rounds}")
        return None
    return Choice(
        plain,
        Trained(rounds=rounds, round=at, defense=defense.value, federated=setting.value, options=numbers),
    )
