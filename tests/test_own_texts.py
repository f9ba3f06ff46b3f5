"""Promise: texts that do not fit the model are refused in a line: what, where, remedy."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench import api
from bench.errors import BenchError

POSITIONS, TOKENS = 12, 40


class Bag(nn.Module):
    """A user's module: token and position embeddings, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place, self.out = nn.Embedding(TOKENS, 4), nn.Embedding(POSITIONS, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out((self.word(x.long()) + self.place(torch.arange(x.shape[-1]))).mean(-2))
        return out


def ids(row: list[int], positions: int = POSITIONS) -> Tensor:
    return torch.tensor([row + [0] * (positions - len(row))])


BEYOND = "token id 99, and the model's embedding '{}' has 40 tokens; take the model's own tokenizer"
TINY = {"tokens": TOKENS, "width": 8, "blocks": 1}


@pytest.mark.parametrize("own", [True, False])
def test_texts_beyond_the_model_are_refused_in_a_line(own: bool) -> None:
    model = Bag() if own else api.build("tiny-transformer", shape=(POSITIONS,), classes=2, params=TINY)
    beyond = BEYOND.format("word" if own else "token")
    given: dict[str, Any] = {"model": model, "classes": 2, "batch": 1, "kind": "text"}

    def refused(call: Callable[..., object], *args: object, **options: object) -> str:
        with pytest.raises(BenchError) as caught:
            call(*args, **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    long = refused(api.gradient, model, ids([1, 2], 20), [0])
    assert "takes no inputs of shape (1, 20)" in long and "shorten the texts, or take the model's own tokenizer" in long
    assert refused(api.gradient, model, ids([1, 99]), [0]) == f"inputs: {beyond}"
    gradients = api.gradient(model, ids([1, 2, 3]), [0])
    assert "shorten the texts" in refused(api.reading, gradients, shape=(20,), **given)
    for public, line in (
        (ids([1, 99]), f"public: {beyond}"),
        (ids([]), "public: a text has no token"),
        (ids([1, -7]), "public: token ids must be 0 (padding) or higher, got -7"),
        (ids([1, 0, 2]), "public: a text has padding (id 0) between its tokens; padding stands behind the last token"),
        (ids([1, 2], 20), "public: shape (1, 20); expected (example, 12)"),
    ):
        assert refused(api.reading, gradients, shape=(POSITIONS,), public=public, **given) == line
    reading = api.reading(gradients, shape=(POSITIONS,), public=ids([4]), **given)
    assert refused(api.check, reading, ids([1, 99]), [0]) == f"truth: {beyond}"
    assert refused(api.check, reading, ids([]), [0]) == "truth: a text has no token"
