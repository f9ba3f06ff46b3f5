"""Run the contracts (required properties) of an entry, for `bench check` and for plug-in tests."""

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.cell import Entry
from bench.contracts import attacks, datasets, defenses, detectors, models
from bench.contracts.base import Contract, ContractBroken, ContractSkipped, Outcome
from bench.contracts.datasets import LoadedDataset, reload
from bench.datasets.loading import read
from bench.errors import MissingDataError
from bench.registry import entries as registry
from bench.registry.plugins import error_line

_CONTRACTS: dict[str, tuple[Contract, ...]] = {
    "attacks": attacks.CONTRACTS,
    "defenses": defenses.CONTRACTS,
    "datasets": datasets.CONTRACTS,
    "models": models.CONTRACTS,
    "detectors": detectors.CONTRACTS,
}


def contracts(kind: str) -> tuple[Contract, ...]:
    """Return the contracts (required properties with tests) for a kind of entry, such as "attacks" or "detectors", in
    test order."""
    return _CONTRACTS[kind]


def check(
    kind: str, name: str, params: Mapping[str, Any] | None = None, *, data_dir: Path | None = None
) -> list[Outcome]:
    """Test a registered entry against all contracts (required properties) of its kind, and return an outcome per
    contract. A broken contract does not stop the test.

    - `kind`: "attacks", "defenses", "datasets", "models" or "detectors".
    - `name`: the entry's name.
    - `params`: the entry's parameters; None takes the defaults.
    - `data_dir`: folder for data sets; None for the default folder.

    Raises `UnknownName`, `PluginError` or `BenchError` for an unknown entry or an invalid instance."""
    entry = registry.instance(kind, name, dict(params or {}))
    return check_instance(kind, entry, name=name, data_dir=data_dir)


def broken_contracts(kind: str, entry: Entry, state: object = None) -> tuple[str, ...]:
    """Return the contracts (required properties) that `entry` breaks, each as text `name: reason`. `kind` is the kind
    of entry, such as "defenses". A plug-in's process calls this function through `bench.isolation.Isolation.ask`, which
    passes `state`; it is not used."""
    outcomes = check_instance(kind, registry.of(kind, entry), name=entry.name)
    return tuple(f"{each.contract.name}: {each.reason}" for each in outcomes if each.status == "broken")


def check_instance(
    kind: str,
    instance: Any,
    *,
    name: str | None = None,
    data_dir: Path | None = None,
    only: Collection[str] | None = None,
) -> list[Outcome]:
    """Test an `instance` of an attack, defense, data set, model or detector, registered or not, against the contracts
    (required properties) of its kind; return an outcome per contract.

    - `kind`: "attacks", "defenses", "datasets", "models" or "detectors".
    - `name`: registered name of a data set; ignored for other kinds.
    - `data_dir`: folder of data sets; None for the default folder. A data set is loaded once for all contracts.
    - `only`: names of the contracts to test; None tests all."""
    if kind != "datasets":
        return [_outcome(item, instance) for item in contracts(kind) if only is None or item.name in only]
    declared, *others = contracts(kind)
    outcomes = [_outcome(declared, instance)]
    name = name or type(instance).__name__
    try:
        load = partial(read, instance, name, data_dir)
        loaded = LoadedDataset(dataset=instance, raw=load(), again=reload(load))
    except MissingDataError as error:
        return [*outcomes, *(_skipped(item, error) for item in others)]
    except Exception as error:
        reason = f"cannot be loaded: {error_line(error)}"
        outcomes.append(Outcome(contract=others[0], status="broken", reason=reason))
        return [*outcomes, *(_skipped(item, "it cannot be loaded") for item in others[1:])]
    return [*outcomes, *(_outcome(item, loaded) for item in others)]


def _outcome(contract: Contract, subject: Any) -> Outcome:
    try:
        contract.function(subject)
    except ContractSkipped as reason:
        return Outcome(contract=contract, status="skipped", reason=str(reason))
    except ContractBroken as broken:
        return Outcome(contract=contract, status="broken", reason=str(broken))
    except Exception as error:  # an entry that raises breaks the tested contract
        return Outcome(contract=contract, status="broken", reason=f"raises {error_line(error)}")
    return Outcome(contract=contract, status="ok")


def _skipped(contract: Contract, reason: object) -> Outcome:
    return Outcome(contract=contract, status="skipped", reason=str(reason))
