"""A local step's kernels as a CUDA graph: the steps of a round are the same program on other examples."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bench import graphs
from bench.defenses.base import State
from bench.federated.stages import Place, Stages

_FEWEST = 8  # local steps of a round: a recording costs about two
# A step moves the clients' weights in place. Arguments: inputs (client, example, *shape), labels (client, example), the
# defense's stages, the step's number. Result: the stages with their next states.
Step = Callable[[Tensor, Tensor, Stages, int], Stages]


def replayed(
    step: Step, stages: Stages, steps: int, device: torch.device, generators: tuple[torch.Generator, ...]
) -> Step:
    """Make the local steps of a training faster on a GPU: return `step` as a function that records its kernels as a
    CUDA graph at the third call, and then replays them. The result is `step` itself on other devices, for few local
    steps (`steps`) in a round, and for a defense whose `stages` depend on the step's number. `generators` are the
    device's generators from which the defense draws."""
    if not graphs.possible(device) or steps < _FEWEST or not stages.steady:
        return step
    return _Replayed(step, device, generators)


class _Replayed:
    def __init__(self, step: Step, device: torch.device, generators: tuple[torch.Generator, ...]) -> None:
        self._step, self._device, self._generators = step, device, generators
        self._calls = 0
        self._replay: Callable[[], None] | None = None
        self._inputs = self._labels = torch.empty(0)
        self._stages: Stages | None = None  # with the tensors that a recording reads and writes

    def __call__(self, inputs: Tensor, labels: Tensor, stages: Stages, number: int) -> Stages:
        self._calls += 1
        if self._calls == 2:
            with graphs.aside(self._device):
                return self._step(inputs, labels, stages, number)
        if self._calls == 3:
            self._record(inputs, labels, stages, number)
        if self._replay is None or self._stages is None:
            return self._step(inputs, labels, stages, number)
        self._inputs.copy_(inputs)
        self._labels.copy_(labels)
        self._replay()
        return self._stages

    def _record(self, inputs: Tensor, labels: Tensor, stages: Stages, number: int) -> None:
        self._inputs, self._labels = inputs.clone(), labels.clone()
        states: dict[Place, State] = {
            place: {key: value.clone() for key, value in state.items()} for place, state in stages.states.items()
        }
        kept = replace(stages, states=states)

        def compute() -> None:
            after = self._step(self._inputs, self._labels, kept, number)
            for place, state in states.items():
                for key, value in state.items():
                    value.copy_(after.states[place][key])

        done = graphs.recorded(compute, self._device, self._generators)
        if done is not None:
            self._replay, self._stages = done[0], kept
