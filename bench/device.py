"""A device's arithmetic settings, equal for every way to run a cell."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.utils.deterministic
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.sanitize import sanitize

_FEWEST, _MOST = 256, 4096  # rows: fewer do not fill a GPU, more do not make it faster


@contextmanager
def repeatable(device: torch.device | str) -> Iterator[None]:
    """Make torch's results on `device` repeatable inside a `with` statement: on a GPU deterministic algorithms, and no
    TF32 (short mantissas). Attention is computed by its plain formula, because fused kernels have no second
    derivatives."""
    with sdpa_kernel(SDPBackend.MATH), nullcontext() if torch.device(device).type == "cpu" else _on_gpu():
        yield


@contextmanager
def _on_gpu() -> Iterator[None]:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    precisions = [each.fp32_precision for each in _precise()]
    algorithms = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    filling: Any = torch.utils.deterministic  # torch has no types for it
    filled = filling.fill_uninitialized_memory
    try:
        for each in _precise():
            each.fp32_precision = "ieee"
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        filling.fill_uninitialized_memory = False  # filling would cost a kernel per empty tensor
        yield
    finally:
        for each, precision in zip(_precise(), precisions, strict=True):
            each.fp32_precision = precision
        torch.use_deterministic_algorithms(algorithms[0])
        torch.backends.cudnn.benchmark = algorithms[1]
        filling.fill_uninitialized_memory = filled


def name_of(device: torch.device | str) -> str:
    """Return a device's name for a record: a GPU's name; for a CPU its name, family and model, and the vector
    instructions that torch uses. The name tells on which machines a record's last digits can be repeated."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(torch.device(device))
    return _cpu_name()


@cache
def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = said.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{word} {said[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in said]
    return sanitize(", ".join([name, *numbers, torch.backends.cpu.get_cpu_capability()]))


def tf32(device: torch.device | str) -> bool | None:
    """Return whether the GPU `device` multiplies matrices in TF32 (10-bit mantissa) inside `with repeatable(device)`,
    for a record; None on a CPU."""
    if torch.device(device).type == "cpu":
        return None
    with repeatable(device):
        return any(each.fp32_precision == "tf32" for each in _precise())


def _precise() -> tuple[Any, ...]:
    cudnn: Any = torch.backends.cudnn  # torch has no types for it
    return cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul


def rows_that_fit(device: torch.device | str, row: int) -> int:
    """Return how many batch elements, each of `row` bytes, fit in half of the free memory of the GPU `device`: at least
    256 and at most 4096. 0 on a CPU."""
    if torch.device(device).type == "cpu":
        return 0
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    return max(_FEWEST, min(_MOST, free // (2 * row)))


def synchronize(device: torch.device | str) -> None:
    """Wait until the device has finished its queued work, so that timings include this work."""
    if torch.device(device).type != "cpu":
        torch.cuda.synchronize(torch.device(device))
