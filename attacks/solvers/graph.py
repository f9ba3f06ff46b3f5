"""An evaluation's kernels as a CUDA graph: launched together, where single launches take longer than the kernels."""

from functools import cache

import torch
from torch import Tensor

from bench.attacks.solvers.base import Evaluate
from bench.device import graphs

_STEADY = 4  # evaluations of the same rows before a recording, which costs about as many


def replayed(evaluate: Evaluate, device: torch.device) -> Evaluate:
    """Return `evaluate` in a form that is faster on a GPU: after a few calls, a CUDA graph of its kernels. Each call
    must have points (row, variable) of the same shape. Equal to `evaluate` on other devices."""
    return _Replayed(evaluate) if graphs(device) else evaluate


class _Replayed:
    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._x = self._loss = self._gradient = torch.empty(0)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self._calls += 1
        if self._calls == _STEADY + 1:
            self._record(x)
        if self._graph is None:
            return self._evaluate(x)
        self._x.copy_(x)
        self._graph.replay()
        return self._loss.clone(), self._gradient.clone()

    def _record(self, x: Tensor) -> None:
        """Record the kernels; without a graph if the evaluation waits for the device or memory is short."""
        self._x = x.detach().clone()
        graph, side = torch.cuda.CUDAGraph(), _stream(x.device)
        try:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._evaluate(self._x)  # libraries allocate their workspaces for this stream
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph, stream=side):
                self._loss, self._gradient = self._evaluate(self._x)
        except RuntimeError:
            return
        self._graph = graph


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for recordings: a library's workspace for a stream is never freed."""
    return torch.cuda.Stream(device)
