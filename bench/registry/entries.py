"""Registered attacks, defenses, data sets, models and detectors by name, loaded on request.

An entry is a line in an installed distribution's entry-point table (groups `bench.attacks` and so on), or a class in a
`--plugin` file.  Names come from installed metadata, and class attributes from the source text (`ast`); only `load` and
`add_plugin` import code."""

import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.errors import PluginError, UnknownName
from bench.parameters import build
from bench.registry import files, plugins, static

KINDS = ("attacks", "defenses", "datasets", "models", "detectors")
DISTRIBUTION = "gradient-leakage-bench"
SINGULAR = files.SINGULAR
_BASES = {
    "attacks": "bench.attacks.base:Attack",
    "defenses": "bench.defenses.base:Defense",
    "datasets": "bench.datasets.base:Dataset",
    "models": "bench.models.base:Model",
    "detectors": "bench.detectors.base:Detector",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Source of a registered entry (attack, defense, data set, model or detector): a distribution with its version, or
    a plug-in file."""

    kind: str
    """Kind of entry: attacks, defenses, datasets, models or detectors."""
    name: str
    """Name in the registry."""
    target: str
    """Place of the entry's class, as "module:Class"."""
    distribution: str | None
    """Name of the installed distribution; None for a plug-in."""
    version: str | None
    """Version of the distribution; None for a plug-in."""
    file: Path | None
    """Plug-in file; None for a distribution or a module."""

    @property
    def built_in(self) -> bool:
        """True if the attack, defense, data set, model or detector ships with bench."""
        return self.distribution == DISTRIBUTION

    def __str__(self) -> str:
        if self.distribution is None:
            return f"--plugin {self.file or self.target.partition(':')[0]}"
        return f"{self.distribution} {self.version} ({self.target})"


# a None class is declared, but not loaded in this process
_added: dict[tuple[str, str], tuple[Origin, type | None]] = {}


def names(kind: str) -> tuple[str, ...]:
    """Return the sorted registered names of a `kind`: attacks, defenses, datasets, models or detectors."""
    return tuple(sorted({*_claims(kind), *(name for plugin_kind, name in _added if plugin_kind == kind)}))


def origin(kind: str, name: str) -> Origin:
    """Return the source (distribution or plug-in file) of a registered entry; `kind` is its kind, such as "attacks",
    and `name` its name. Raises `UnknownName` with the nearest names, and `PluginError` for a name from two sources."""
    if (kind, name) in _added:
        return _added[kind, name][0]
    claims = _claims(kind).get(name, ())
    if not claims:
        raise UnknownName(_unknown(kind, name))
    if len(claims) > 1:
        raise PluginError(_twice(claims[0], claims[1]))
    return claims[0]


def literals(kind: str, name: str) -> dict[str, object]:
    """Return the documentation of a registered entry without importing its code: the constant class attributes
    (reference, stages, …) and `__doc__`, name → value. `kind` is the kind of entry, such as "attacks", and `name` its
    name. Raises `UnknownName` for an unknown name, and `PluginError` for a name from two sources or an entry point
    without a class."""
    source = origin(kind, name)
    module, _, attribute = source.target.partition(":")
    try:
        return static.read(module, attribute, source.file)
    except PluginError as error:
        raise PluginError(_broken(source, str(error))) from None


def load(kind: str, name: str) -> type:
    """Import the class of a registered entry; `kind` is its kind, such as "attacks", and `name` its name. Raises
    `UnknownName` for an unknown name, and `PluginError` for a name from two sources, a failed import, and a class that
    is abstract or of the wrong kind."""
    if (kind, name) not in _added:
        return _loaded(kind, name, origin(kind, name))
    source, entry = _added[kind, name]
    if entry is None:
        raise PluginError(f"{SINGULAR[kind]} {name!r} of {source} is not loaded in the process that scores")
    return entry


@lru_cache(maxsize=1024)  # a matrix's 10⁵ cells ask for the same few
def _loaded(kind: str, name: str, source: Origin) -> type:
    base = _base(kind)
    try:
        entry = metadata.EntryPoint(name, source.target, f"bench.{kind}").load()
    except (Exception, SystemExit) as error:
        raise PluginError(_broken(source, plugins.error_line(error))) from None
    if not isinstance(entry, type) or not issubclass(entry, base):
        raise PluginError(_broken(source, f"it is no {base.__name__}; derive it from {_BASES[kind]}"))
    if inspect.isabstract(entry):
        missing = ", ".join(sorted(getattr(entry, "__abstractmethods__", ())))
        raise PluginError(_broken(source, f"it is abstract; give it {missing}"))
    return entry


def instance(kind: str, name: str, params: Mapping[str, Any], *, where: str | None = None) -> Any:
    """Make an instance of a registered entry.

    - `kind`, `name`: kind of entry, such as "attacks", and its name.
    - `params`: the parameters of the instance.
    - `where`: beginning of error messages; None: kind and name.

    Raises `UnknownName` or `PluginError` for an entry that cannot be imported, and `BenchError` for wrong parameters.
    """
    return build(load(kind, name), params, where=where or f"{SINGULAR[kind]} {name!r}")


def of(kind: str, entry: Any) -> Any:
    """Make the attack, defense, data set or model that a cell (experiment) names: an instance of the `entry`, a name
    with parameters; `kind` is the kind of entry, such as "attacks". Raises `UnknownName` or `PluginError` for an entry
    that cannot be imported, and `BenchError` for wrong parameters."""
    return instance(kind, entry.name, entry.params)


def add_plugin(spec: str) -> tuple[Origin, ...]:
    """Register all attacks, defenses, data sets, models and detectors in the `.py` file or module `spec`, and return
    their sources; after an error, none is registered. Repeated calls have no effect. Raises `PluginError` for a failed
    import, a module without entries, or a name already registered."""
    module = plugins.module(spec)
    defined: dict[tuple[str, str], tuple[Origin, type | None]] = {}
    for kind, name, entry in plugins.entries(module, {kind: _base(kind) for kind in KINDS}):
        file = static.file_of(entry.__module__) or Path(inspect.getfile(entry)).resolve()
        claim = Origin(
            kind=kind,
            name=name,
            target=f"{entry.__module__}:{entry.__qualname__}",
            distribution=None,
            version=None,
            file=file,
        )
        if (kind, name) in defined:
            raise PluginError(_twice(defined[kind, name][0], claim))
        if name in names(kind) and not ((kind, name) in _added and _added[kind, name][0] == claim):
            raise PluginError(_twice(origin(kind, name), claim))
        defined[kind, name] = (claim, entry)
    if not defined:
        raise PluginError(
            f"--plugin {spec}: it defines no attack, defense, data set, model or detector; derive a class from "
            + ", ".join(_BASES.values())
        )
    _added.update(defined)
    return tuple(claim for claim, _ in defined.values())


def declare(origins: Iterable[Origin]) -> None:
    """Make the names of plug-in entries known in a process that must not run plug-in code (`bench.isolation`).
    `origins` are the sources of the plug-in attacks, defenses, data sets, models and detectors. Names are then valid in
    cells (experiments), but `load` refuses to import the classes."""
    _added.update({(origin.kind, origin.name): (origin, None) for origin in origins})


def drop_plugins() -> None:
    """Unregister all entries (attacks, defenses, …) added by `add_plugin` and `declare`."""
    _added.clear()


def _claims(kind: str) -> dict[str, tuple[Origin, ...]]:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return _installed()[kind]


@cache
def _installed() -> dict[str, dict[str, tuple[Origin, ...]]]:
    """Return kind → name → entries with this name, from installed metadata, which is read once in a process."""
    claims: dict[str, dict[str, tuple[Origin, ...]]] = {kind: {} for kind in KINDS}
    points = metadata.entry_points()
    known: dict[int, tuple[str, str]] = {}  # parsing a distribution's metadata again for each entry is slow
    for kind in KINDS:
        for point in points.select(group=f"bench.{kind}"):
            dist = point.dist
            if id(dist) not in known:
                known[id(dist)] = (dist.name, dist.version) if dist else ("an unknown distribution", "?")
            claim = _origin(kind, point, *known[id(dist)])
            claims[kind][point.name] = (*claims[kind].get(point.name, ()), claim)
    return claims


def _origin(kind: str, point: metadata.EntryPoint, distribution: str, version: str) -> Origin:
    file = static.file_of(point.module) if point.pattern.match(point.value) else None
    return Origin(
        kind=kind,
        name=point.name,
        target=point.value.replace(" ", ""),
        distribution=distribution,
        version=version,
        file=file,
    )


def _base(kind: str) -> type:
    module, _, attribute = _BASES[kind].partition(":")
    base: type = getattr(importlib.import_module(module), attribute)
    return base


def _unknown(kind: str, name: str) -> str:
    if (remedy := files.remedy(name, f"--{SINGULAR[kind].replace(' ', '')} NAME")) is not None:
        return remedy
    others = [SINGULAR[other] for other in KINDS if other != kind and name in names(other)]
    near = difflib.get_close_matches(name, names(kind), n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    hint = f"it is a {others[0]}; " if others else hint
    return f"unknown {SINGULAR[kind]} {name!r}; {hint}there are {', '.join(names(kind)) or 'none'}"


def _twice(first: Origin, second: Origin) -> str:
    remedy = "rename the plug-in's" if second.distribution is None else "uninstall one of them"
    return f"{SINGULAR[first.kind]} {first.name!r} is taken twice, by {first} and by {second}; {remedy}"


def _broken(source: Origin, reason: str) -> str:
    remedy = f"mend or uninstall {source.distribution}" if source.distribution else "mend the file"
    remedy = f"install {DISTRIBUTION} again" if source.built_in else remedy
    return f"{SINGULAR[source.kind]} {source.name!r} of {source} cannot be used: {reason}; {remedy}"
