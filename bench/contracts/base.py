"""A contract: a promise in words, and a function that raises `ContractBroken` if an entry breaks the promise."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from json import dumps
from typing import Any, Literal

from bench.parameters import values


class ContractBroken(AssertionError):
    """Error that a contract's test raises if the tested entry (such as an attack or a defense) breaks the contract; the
    message is a single line with the reason."""


class ContractSkipped(Exception):
    """Error that a contract's test raises if the contract does not apply to the tested entry (such as an attack or a
    defense); the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Contract:
    """A promise that every entry of a kind (every attack, defense, data set, model or detector) must keep, with its
    test."""

    name: str
    """Name of the contract."""
    promise: str
    """The promise in words."""
    function: Callable[[Any], None]
    """Test: `function(subject)` returns if the promise is kept, otherwise raises `ContractBroken` or `ContractSkipped`.
    The subject is the tested instance; for a data set, `datasets.LoadedDataset`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a contract's test on an entry, such as an attack."""

    contract: Contract
    """The tested contract."""
    status: Literal["ok", "broken", "skipped"]
    """Result: kept, broken, or not testable on this entry."""
    reason: str = ""
    """Reason for a broken or skipped contract; empty if kept."""


def require(kept: bool, reason: str) -> None:
    """Fail the running test of a contract: raise `ContractBroken` with the text `reason` if the condition `kept` is
    False."""
    if not kept:
        raise ContractBroken(reason)


def one_line(text: object) -> bool:
    """Return whether `text`, such as an entry's reason or reference, is a string with a single, non-empty line."""
    return isinstance(text, str) and bool(text.strip()) and "\n" not in text


def declared(entry: Any) -> None:
    """Check that the class of `entry` (an attack, defense, data set, model or detector) is a frozen dataclass, with a
    one-line `reference` to its source. Parameters need a meaning, and values that JSON can hold. Raises
    `ContractBroken` otherwise."""
    kind = type(entry)
    # only a dataclass has these parameters
    frozen = is_dataclass(entry) and getattr(kind, "__dataclass_params__").frozen  # noqa: B009
    require(frozen, f"{kind.__name__} is no frozen dataclass; write @dataclass(frozen=True, kw_only=True)")
    reference = getattr(kind, "reference", None)
    require(one_line(reference), f"reference must be one line saying where it comes from, got {reference!r}")
    try:
        dumps(values(entry), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ContractBroken(f"parameters cannot be written as JSON: {error}") from None
    for item in fields(entry):
        meaning = item.metadata.get("meaning")
        require(not item.init or bool(meaning), f"parameter {item.name} says no meaning; use `parameter(…)`")


DECLARED = Contract("declared", "a frozen dataclass with a reference and parameters that say what they mean", declared)
