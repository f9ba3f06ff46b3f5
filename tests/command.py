"""Commands called in this process: what they print, or the mistake that they name."""

import click
from click.testing import CliRunner

from bench.errors import BenchError


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
