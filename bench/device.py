"""Arithmetic settings of a device, equal for workers, clusters, commands and the library."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.utils.deterministic

from bench.sanitize import sanitize

_FEWEST, _MOST = 256, 4096  # rows: fewer do not fill a GPU, more do not make it faster


@contextmanager
def repeatable(device: torch.device | str) -> Iterator[None]:
    """Context for a GPU: deterministic algorithms, no TF32 (10-bit mantissa).  No effect on a CPU."""
    if torch.device(device).type == "cpu":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    precisions = [each.fp32_precision for each in _precise()]
    algorithms = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    filling: Any = torch.utils.deterministic  # which torch does not type
    filled = filling.fill_uninitialized_memory
    try:
        for each in _precise():
            each.fp32_precision = "ieee"
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        filling.fill_uninitialized_memory = False  # a kernel for each empty tensor
        yield
    finally:
        for each, precision in zip(_precise(), precisions, strict=True):
            each.fp32_precision = precision
        torch.use_deterministic_algorithms(algorithms[0])
        torch.backends.cudnn.benchmark = algorithms[1]
        filling.fill_uninitialized_memory = filled


def name_of(device: torch.device | str) -> str:
    """Name of a GPU; for a CPU its name, family, model and widest torch instructions.

    Sums are rounded in another order on another CPU, so last digits differ.
    """
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
    """Whether the device computes products in TF32; None on a CPU."""
    if torch.device(device).type == "cpu":
        return None
    with repeatable(device):
        return any(each.fp32_precision == "tf32" for each in _precise())


def _precise() -> tuple[Any, ...]:
    cudnn: Any = torch.backends.cudnn  # which torch does not type
    return cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul


def rows_that_fit(device: torch.device | str, row: int) -> int:
    """Rows of this size within half of a GPU's free memory, from 256 to 4096; 0 on a CPU."""
    if torch.device(device).type == "cpu":
        return 0
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    return max(_FEWEST, min(_MOST, free // (2 * row)))


def synchronize(device: torch.device | str) -> None:
    """Wait for queued work, so that timings include the work."""
    if torch.device(device).type != "cpu":
        torch.cuda.synchronize(torch.device(device))
