"""Updates of a model trained on texts, for tests of attacks on texts."""

import torch
from torch import Tensor, nn

from bench import api
from bench.trip import Reading


def trained_on(model: nn.Module, sentences: Tensor, rate: float, public: Tensor) -> Reading:
    """The update of a local step for each of the `sentences` (example, position), with the labels 0, 1, 0, …"""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for row, sentence in enumerate(sentences):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(sentence[None]), torch.tensor([row % 2])).backward()
        optimizer.step()
    return api.reading(
        before=before,
        after={name: value.detach().clone() for name, value in model.named_parameters()},
        model=model,
        local=api.SGD(lr=rate, batch=1, steps=len(sentences)),
        shape=tuple(sentences.shape[1:]),
        classes=2,
        kind="text",
        public=public,
    )
