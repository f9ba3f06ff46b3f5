"""CUDA graphs: kernels that are launched together, where single launches take longer than the kernels."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

Output = TypeVar("Output")


def possible(device: torch.device | str) -> bool:
    """Return whether kernels on `device` can be recorded as a CUDA graph."""
    return torch.device(device).type == "cuda"


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Warm up code for a recording (`recorded`): the kernels in the `with` statement run on the stream that recordings
    use. Libraries allocate their workspaces for a stream at its first use, which is not allowed during a recording."""
    side = _stream(device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)


def recorded(
    compute: Callable[[], Output], device: torch.device, generators: Sequence[torch.Generator] = ()
) -> tuple[Callable[[], None], Output] | None:
    """Record the kernels that `compute` launches on `device` as a CUDA graph, so that they can run again without
    Python. Return a function that runs them, and the result of `compute`, whose tensors get new values at each run. The
    recording itself runs no kernel. None if `compute` waits for the device, copies from the host, or lacks memory.
    `generators` are the device's generators from which `compute` draws: each run continues their streams."""
    graph = torch.cuda.CUDAGraph()
    try:
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=_stream(device)):
            result = compute()
    except RuntimeError:
        return None
    return graph.replay, result


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for recordings: a library's workspace for a stream is never freed."""
    return torch.cuda.Stream(device)
