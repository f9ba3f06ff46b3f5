"""Run the contracts of one entry: what `bench check` prints, and what a plug-in's own tests can call."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.contracts import attacks, datasets, defenses, models
from bench.contracts.base import Contract, ContractBroken, ContractSkipped, Outcome
from bench.contracts.datasets import Loaded, reload
from bench.datasets.base import Dataset
from bench.datasets.files import MissingDataError
from bench.datasets.loading import read
from bench.registry import entries as registry
from bench.registry.plugins import error_line

_CONTRACTS: dict[str, tuple[Contract, ...]] = {
    "attacks": attacks.CONTRACTS,
    "defenses": defenses.CONTRACTS,
    "datasets": datasets.CONTRACTS,
    "models": models.CONTRACTS,
}


def contracts(kind: str) -> tuple[Contract, ...]:
    """The contracts of a kind of entry, in the order in which they are checked."""
    return _CONTRACTS[kind]


def check(
    kind: str, name: str, params: Mapping[str, Any] | None = None, *, data_dir: Path | None = None
) -> list[Outcome]:
    """Check a registered entry with these parameters; the first that is broken stops none of the others.

    Raises `UnknownName`, `PluginError` and `BenchError` where there is no such entry or instance.
    """
    return check_instance(
        kind, registry.instance(kind, name, dict(params or {})), name=name, data_dir=data_dir
    )


def check_instance(
    kind: str, instance: Any, *, name: str | None = None, data_dir: Path | None = None
) -> list[Outcome]:
    """The same for an instance that need not be registered."""
    chosen = contracts(kind)
    subject = instance
    if kind == "datasets":
        name = name or type(instance).__name__
        try:
            subject = _loaded(instance, name, data_dir)
        except MissingDataError as error:
            return [_declared(chosen[0], instance), *(_skipped(one, error) for one in chosen[1:])]
        except Exception as error:
            first = Outcome(
                contract=chosen[1], status="broken", reason=f"cannot be loaded: {error_line(error)}"
            )
            return [
                _declared(chosen[0], instance), first,
                *(_skipped(one, "it cannot be loaded") for one in chosen[2:]),
            ]  # fmt: skip
    outcomes = [_declared(chosen[0], instance)]
    return outcomes + [_outcome(one, subject) for one in chosen[1:]]


def _loaded(dataset: Dataset, name: str, data_dir: Path | None) -> Loaded:
    return Loaded(
        dataset=dataset,
        raw=read(dataset, name, data_dir),
        again=reload(lambda: read(dataset, name, data_dir)),
    )


def _declared(contract: Contract, instance: Any) -> Outcome:
    return _outcome(contract, instance)


def _outcome(contract: Contract, subject: Any) -> Outcome:
    try:
        contract.function(subject)
    except ContractSkipped as reason:
        return Outcome(contract=contract, status="skipped", reason=str(reason))
    except ContractBroken as broken:
        return Outcome(contract=contract, status="broken", reason=str(broken))
    except Exception as error:  # an entry that raises breaks the contract in which it does
        return Outcome(contract=contract, status="broken", reason=f"raises {error_line(error)}")
    return Outcome(contract=contract, status="ok")


def _skipped(contract: Contract, reason: object) -> Outcome:
    return Outcome(contract=contract, status="skipped", reason=str(reason))
