"""What a record says of the machine that answered."""

from pathlib import Path

import pytest
import torch

from bench import device

_CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC\x1b[31m 9004

processor\t: 1
model name\t: another
"""


@pytest.fixture(autouse=True)
def _unread():
    device._cpu_name.cache_clear()
    yield
    device._cpu_name.cache_clear()


def test_processors_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two EPYCs round in another order: family and model say which, and the instructions that torch uses."""
    monkeypatch.setattr(Path, "read_text", lambda *at, **named: _CPUINFO)
    used = torch.backends.cpu.get_cpu_capability()
    assert device.name_of("cpu") == f"AMD EPYC\ufffd[31m 9004, family 25, model 17, {used}"


def test_a_system_without_proc_has_a_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*at: object, **named: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert torch.backends.cpu.get_cpu_capability() in device.name_of("cpu")
