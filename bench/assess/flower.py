"""Run the client of a Flower app in this process: the server's first message, the client's training, and its reply.

The app's own `ServerApp` makes the message, with a grid that sends no message. The app's own `ClientApp` answers; its
reply is recorded before and after its mods (Flower's processing of messages)."""

import importlib
import logging
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite, sqrt
from pathlib import Path
from typing import Any
from unittest.mock import patch

import flwr.clientapp.client_app as client_app
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from bench.defenses.accounting.composition import classic, gaussian
from bench.errors import BenchError
from bench.own.frames import flat
from bench.own.recorded import Recording
from bench.own.recording import recorder
from bench.own.weights import named_state
from bench.sanitize import first_line

_NODE = 1
_HELD = re.compile(r"(flwr|torch|torchvision)\b(?!-)")
_MASKS = ("secagg_mod", "secaggplus_mod")
_NOISE = 0.1  # largest relative difference between the noise of a message and of its mod
_EQUAL = 1e-6  # largest relative difference of two updates that count as equal


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerClient:
    """A client of a Flower app after a round, with its recorded training."""

    recording: Recording
    """The recorded training; its message that left the client holds the weights of the app's reply."""
    notes: tuple[str, ...]
    """Sentences for the report about the app's mods (Flower's functions that change messages): which mods are known
    defenses, and whether their stated sensitivity is true."""


@dataclass(slots=True, kw_only=True)
class _Taps:
    """Replies of a training before and after the app's own mods, and these mods."""

    mods: list[Any] = field(default_factory=list)
    inner: dict[str, Tensor] = field(default_factory=dict)
    outer: dict[str, Tensor] = field(default_factory=dict)


class _Captured(BaseException):
    """The server's first messages; no `except Exception` of an app stops it."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self.messages = list(messages)


class _NoGrid(Grid):  # type: ignore[misc]
    """A grid with many nodes that ends the server at its first messages."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def set_run(self, run: Any) -> None:
        pass

    @property
    def run(self) -> Any:
        raise BenchError("the ServerApp asks for its run, which only a started federation has")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return range(_NODE, _NODE + self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise _Captured(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise _Captured(messages)


def run_client(
    folder: Path, *, partition: int = 0, clients: int = 10, config: Mapping[str, Any] | None = None
) -> FlowerClient:
    """Run a round of the Flower app in `folder` for a single client, in this process; return the client's recorded
    training.

    - `partition`, `clients`: the client's number (from 0), and the number of all clients.
    - `config`: name → value, to replace values of the app's run configuration; None replaces none.

    Raises `BenchError` for a folder without an app, for an app of the old interface (`client_fn`), for an unknown name
    in `config`, and for an app that fails, with the app's message."""
    components, values, remedy = _pyproject(folder)
    unknown = [name for name in config or {} if name not in values]
    if unknown:
        raise BenchError(f"{folder}: the app has no setting {unknown[0]!r}; it has {', '.join(values) or 'none'}")
    run_config = {**values, **(config or {})}
    node_config = {"partition-id": partition, "num-partitions": clients}
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, _NODE, 1  # as the runtime sets them
    taps = _Taps()
    logging.getLogger("flwr").setLevel(logging.WARNING)  # the log of rounds that do not take place
    with _importing(folder), _tapped(taps):
        server = _load(components, "serverapp", ServerApp, remedy)
        client = _load(components, "clientapp", ClientApp, remedy)
        if client._call is not None:
            raise BenchError(f"{folder}: the client has a client_fn; only @app.train() of the Message API is called")
        message = _first_message(server, run_config, clients)
        context = _context(run_config, node_config)
        with recorder() as recorded:
            _answer(client, message, context, "train")
            notes = [_evaluate(client, message, context)]
    sent = Recording.of(recorded)
    module = sent.at_start()
    before = named_state(_tensors(message), module, "the server's message")
    gap = _distance(before, {name: recorded.before[name] for name in before})
    if gap > _EQUAL:
        notes.append("The client did not start from the server's weights: the update is the reply minus its own start.")
    inner, outer = (named_state(each, module, "the reply") for each in (taps.inner, taps.outer))
    if _distance(inner, {name: recorded.after[name] for name in inner}) > _EQUAL:
        notes.append("The reply holds other weights than the trained model.")
    defense, said = _of_mods(taps.mods, before, inner, outer)
    sent.sent_as(outer, defense)
    return FlowerClient(recording=sent, notes=tuple(each for each in (*notes, *said) if each))


def sensitivity(mod: Any) -> str:
    """Return a sentence for the report about `mod`, an instance of Flower's `LocalDpMod` (clip and noise): its noise,
    the largest change of a clipped update in comparison with the stated sensitivity, and the ε that follows."""
    clip, stated, epsilon, delta = (
        float(getattr(mod, name)) for name in ("clipping_norm", "sensitivity", "epsilon", "delta")
    )
    if epsilon == 0 or delta == 0 or stated == 0:
        return f"LocalDpMod: epsilon {epsilon:g}, delta {delta:g} and sensitivity {stated:g} give no finite noise."
    deviation = stated * classic(epsilon, delta)
    shift = 2 * clip / deviation
    proved = gaussian(1 / shift, delta)
    bound = f"ε = {proved:.3g}" if isfinite(proved) else "no finite ε"
    noise = f"clip {clip:g} and noise of standard deviation {deviation:.2g}"
    if stated < clip:
        return (
            f"LocalDpMod states the sensitivity {stated:g}, but a replaced client changes its clipped update by up to "
            f"{2 * clip:g}, a removed client by up to {clip:g}: {noise} give μ = {shift:.3g} for a replaced client, "
            f"{bound} at δ = {delta:g} in place of the stated {epsilon:g}."
        )
    return (
        f"LocalDpMod: {noise}; a replaced client changes its clipped update by up to {2 * clip:g}: μ = {shift:.3g}, "
        f"{bound} at δ = {delta:g}; stated: {epsilon:g}."
    )


def _of_mods(
    mods: list[Any], before: Mapping[str, Tensor], inner: Mapping[str, Tensor], outer: Mapping[str, Tensor]
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the mods' joint effect as a declared defense (None: no effect, or unknown), and sentences."""
    said, noisy = [], [each for each in mods if isinstance(each, LocalDpMod)]
    said += [
        f"{_name(each)} masks the message of a single client: the server sees the sum over clients. The figures below "
        "are for the update before the mask."
        for each in mods
        if _name(each) in _MASKS
    ]
    others = [_name(each) for each in mods if _name(each) not in _MASKS and each not in noisy]
    moved, shown = ({name: each[name] - before[name] for name in before} for each in (inner, outer))
    a, b = _vectors(moved, shown)
    if noisy:
        said += [sensitivity(each) for each in noisy]
        mod = noisy[0]
        deviation = mod.sensitivity * classic(mod.epsilon, mod.delta)
        clip = float(mod.clipping_norm)
        clipped = a * min(1.0, clip / float(a.norm().clamp_min(1e-300)))
        measured = float((b - clipped).norm()) / sqrt(len(b))
        if len(noisy) == 1 and deviation > 0 and abs(measured / deviation - 1) < _NOISE:
            sigma = deviation / clip
            return {"name": "fed-sdp", "at": "client", "clip": clip, "sigma": sigma, "noise": "each"}, said
        said.append(f"The message differs from the clipped update by {measured:.2g} a coordinate: other mods act, too.")
        return None, said
    if float((a - b).norm() / a.norm().clamp_min(1e-300)) <= _EQUAL:
        if others:
            said.append(f"Mods without an effect on the update: {', '.join(others)}.")
        return None, said
    scale = float((a @ b) / (a @ a).clamp_min(1e-300))
    if float((b - scale * a).norm() / b.norm().clamp_min(1e-300)) <= 1e-4 and 0 < scale < 1:
        said.append(f"{', '.join(others)}: the update is clipped to length {float(b.norm()):.4g}, {scale:.3g} of it.")
        return {"name": "fed-sdp", "at": "client", "clip": float(b.norm()), "sigma": 0.0, "noise": "each"}, said
    cosine = float(a @ b / (a.norm() * b.norm()).clamp_min(1e-300))
    said.append(
        f"{', '.join(others) or 'The app'} changes the update (cosine {cosine:.3f}) in a way that no attack knows: an "
        "attacker who knows the mod may get more."
    )
    return None, said


def _pyproject(folder: Path) -> tuple[dict[str, str], dict[str, Any], str]:
    """Return the app's components, its configuration, and a remedy for a missing package: its dependencies without the
    packages whose versions the bench sets."""
    path = folder / "pyproject.toml"
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BenchError(f"{path}: {first_line(error)}; give the folder of a Flower app") from None
    app = content.get("tool", {}).get("flwr", {}).get("app", {})
    components = app.get("components", {})
    for name in ("serverapp", "clientapp"):
        if ":" not in str(components.get(name, "")):
            raise BenchError(f"{path}: no tool.flwr.app.components.{name} = 'package.module:app'")
    own = [f"'{each}'" for each in content.get("project", {}).get("dependencies", []) if not _HELD.match(each)]
    remedy = f"pip install {' '.join(own)}" if own else f"install the app's packages; {path} names none"
    return components, flat(app.get("config", {})), remedy


@contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Import from `folder` first; afterwards the app's modules are forgotten, as another app may have equal names."""
    place = str(folder.resolve())
    known = set(sys.modules)
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)
        for name in set(sys.modules) - known:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(place):
                del sys.modules[name]


@contextmanager
def _tapped(taps: _Taps) -> Iterator[None]:
    """Put a tap before and after the mods of every function that the app registers meanwhile; masks are left out."""
    chain = client_app.make_ffn

    def tap(kept: str) -> Callable[..., Message]:
        def read(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
            reply = call_next(message, context)
            if message.metadata.message_type.startswith("train") and reply.has_content():
                setattr(taps, kept, _tensors(reply))
            return reply

        return read

    def in_training(mod: Callable[..., Message]) -> Callable[..., Message]:
        def call(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
            if message.metadata.message_type.startswith("train"):
                return mod(message, context, call_next)
            return call_next(message, context)  # mods for updates answer an evaluation with an error

        return call

    def with_taps(function: Callable[..., Message], mods: list[Any]) -> Callable[..., Message]:
        taps.mods += [each for each in mods if each not in taps.mods]
        own = [in_training(each) for each in mods if _name(each) not in _MASKS]
        chained: Callable[..., Message] = chain(function, [tap("outer"), *own, tap("inner")])
        return chained

    with patch.object(client_app, "make_ffn", with_taps):
        yield


def _load(components: Mapping[str, str], name: str, kind: type, remedy: str) -> Any:
    module, _, attribute = components[name].partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the app's own code
        said = f"{name} {components[name]!r}: {type(error).__name__}: {first_line(error)}"
        raise BenchError(said + (f"; {remedy}" if isinstance(error, ModuleNotFoundError) else "")) from error
    if not isinstance(found, kind):
        raise BenchError(f"{name} {components[name]!r} is a {type(found).__name__}, not a {kind.__name__}")
    return found


def _context(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> Context:
    return Context(
        run_id=1, node_id=_NODE, node_config=dict(node_config), state=RecordDict(), run_config=dict(run_config)
    )


def _first_message(server: Any, run_config: Mapping[str, Any], clients: int) -> Message:
    try:
        server(_NoGrid(clients), _context(run_config, {}))
    except _Captured as captured:
        for message in captured.messages:
            if message.metadata.message_type.startswith("train"):
                return message
    except Exception as error:  # the app's own code
        raise BenchError(f"the ServerApp failed: {type(error).__name__}: {first_line(error)}") from error
    raise BenchError("the ServerApp sent no training message; its first messages must ask for a training")


def _answer(client: Any, message: Message, context: Context, kind: str) -> Message:
    try:
        reply = client(message, context)
    except Exception as error:  # the app's own code
        raise BenchError(f"the ClientApp failed: {type(error).__name__}: {first_line(error)}") from error
    if not reply.has_content():
        raise BenchError(f"the ClientApp answered {kind} with an error: {first_line(reply.error.reason)}")
    return reply


def _evaluate(client: Any, message: Message, context: Context) -> str:
    """Let the client evaluate the same weights: the passes without gradients give public examples."""
    asked = Message(message.content, _NODE, "evaluate")
    try:
        _answer(client, asked, context, "evaluate")
    except BenchError as error:
        return f"No public examples from the client's evaluation: {error}."
    return "Public examples: those of the client's evaluation."


def _tensors(message: Message) -> dict[str, Tensor]:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise BenchError(f"a message with {len(records)} ArrayRecords; the weights must stand in a single record")
    record: ArrayRecord = records[0]
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    a, b = _vectors(one, other)
    return float((a - b).norm() / a.norm().clamp_min(1e-300))


def _vectors(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the floating-point values of two messages, each as a vector."""
    floats = [name for name, value in one.items() if value.is_floating_point()]
    a, b = (torch.cat([each[name].double().flatten() for name in floats]) for each in (one, other))
    return a, b


def _name(mod: Any) -> str:
    return getattr(mod, "__name__", type(mod).__name__)
