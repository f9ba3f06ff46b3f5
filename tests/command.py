"""Commands called in this process: what they print, or the mistake that they name."""

from collections.abc import Sequence
from types import ModuleType

import click
import pytest
from click.testing import CliRunner
from tests.cells import MEMORY
from tests.workers import ScriptedPool

from bench.answer.context import RunContext
from bench.cli import running
from bench.errors import BenchError
from bench.registry import entries as registry


def output(command: click.Command, *arguments: object) -> str:
    """What the command prints; fails the test where it fails."""
    result = CliRunner().invoke(command, [*map(str, arguments)])
    assert result.exit_code == 0, result.exception
    return result.output


def fault(command: click.Command, *arguments: object, kind: type[BenchError] = BenchError) -> str:
    """The message of the user's mistake, which `main` prints as one line with exit code 2."""
    result = CliRunner().invoke(command, [*map(str, arguments)])
    assert isinstance(result.exception, kind), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def in_this_process(patch: pytest.MonkeyPatch, module: ModuleType = running) -> None:
    """Let a module run cells by a `ScriptedPool`: a worker process costs seconds of imports.  Plug-ins' code runs here
    as well, until the test is over."""
    patch.setattr(registry, "_added", {})

    def start(context: RunContext, *, jobs: int, plugins: Sequence[str]) -> ScriptedPool:
        del jobs, plugins
        MEMORY.reconstructions.clear()  # as in a new process
        return ScriptedPool(context)

    patch.setattr(module, "ProcessPool", start)
