"""What a contract is: a promise in words, and a function that raises where it is broken."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from json import dumps
from typing import Any, Literal

from bench.parameters import values


class ContractBroken(AssertionError):
    """A promise that an entry does not keep, in one line."""


class ContractSkipped(Exception):
    """A promise that cannot be looked at here, and why."""


@dataclass(frozen=True, slots=True)
class Contract:
    """`function(subject)` returns where `promise` is kept, and raises `ContractBroken` or
    `ContractSkipped`; the subject is an instance (of a data set: what it loaded, `datasets.LoadedDataset`)."""

    name: str
    promise: str
    function: Callable[[Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one contract went; `reason` is empty where it is kept."""

    contract: Contract
    status: Literal["ok", "broken", "skipped"]
    reason: str = ""


def require(kept: bool, reason: str) -> None:
    """Raises `ContractBroken` with the reason where a promise is not kept."""
    if not kept:
        raise ContractBroken(reason)


def one_line(text: object) -> bool:
    """Whether it is a message: one line of text that is not empty."""
    return isinstance(text, str) and bool(text.strip()) and "\n" not in text


def declared(entry: Any) -> None:
    """A frozen dataclass with a `reference`, whose parameters can be written to a record."""
    kind = type(entry)
    # nothing but a frozen dataclass has these, and a base class without one answers with None
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
