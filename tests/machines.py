"""Machines, as far as one has several: a network and a view of the disk of their own (Linux namespaces, as root).

Each is joined to this one by a cable that can be cut: packets are lost then, and nobody is told.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Machine:
    """`here` is this machine's address as seen from there, `address` its own; both of RFC 2544's range for tests."""

    name: str
    number: int

    @property
    def here(self) -> str:
        return f"198.18.{self.number}.1"

    @property
    def address(self) -> str:
        return f"198.18.{self.number}.2"

    def inside(self, hidden: Path | None = None) -> list[str]:
        """What a command is begun with, to run there; the folder `hidden` is empty for it."""
        there = ["ip", "netns", "exec", self.name]
        if hidden is None:
            return there
        return [*there, "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(hidden)]

    def cut(self) -> None:
        self._cable("down")

    def mend(self) -> None:
        self._cable("up")

    def _cable(self, state: str) -> None:
        subprocess.run(["ip", "-n", self.name, "link", "set", f"{self.name}w", state], check=True)


@contextmanager
def machine(number: int) -> Iterator[Machine]:
    """A machine beside this one; the test is skipped where none can be had."""
    there = Machine(f"b{os.getpid()}n{number}", number)
    ip, name = shutil.which("ip"), there.name
    if ip is None or subprocess.run([ip, "netns", "add", name], capture_output=True, check=False).returncode:
        pytest.skip("a machine beside this one needs a network of its own: this user may not make one")
    try:
        for line in (
            f"link add {name}h type veth peer name {name}w netns {name}",
            f"address add {there.here}/30 dev {name}h",
            f"link set {name}h up",
            f"-n {name} address add {there.address}/30 dev {name}w",
            f"-n {name} link set {name}w up",
            f"-n {name} link set lo up",
        ):
            subprocess.run([ip, *line.split()], check=True)
        yield there
    finally:
        # first the cable: the kernel removes it with the machine, but later, and the next machine has the same names
        subprocess.run([ip, "link", "delete", f"{name}h"], capture_output=True, check=False)
        subprocess.run([ip, "netns", "delete", name], check=True)
