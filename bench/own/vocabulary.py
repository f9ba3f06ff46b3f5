"""Token ids of users' texts, compared with the model's vocabulary."""

import torch
from torch import Tensor, nn

from bench.attacks.texts.embedding import token_embedding
from bench.errors import BenchError
from bench.kinds.base import Kind
from bench.kinds.texts import TEXT
from bench.sanitize import sanitize

BEYOND = "; an embedding has fewer rows: shorten the texts, or take the model's own tokenizer"


def refuse_texts(module: nn.Module, texts: Tensor, what: str, kind: Kind = TEXT) -> None:
    """Raise `BenchError` if the user's `texts` (..., position) are no texts, or hold an id beyond the vocabulary of
    `module`. `what` is the texts' name in the message. Another `kind` of data is not checked."""
    if kind.name != TEXT.name:
        return
    try:
        TEXT.values.checked(texts.double().cpu().numpy())
    except ValueError as error:
        raise BenchError(f"{what}: {error}") from None
    refuse_unknown_tokens(module, texts, what)


def refuse_unknown_tokens(module: nn.Module, texts: Tensor, what: str) -> None:
    """Raise `BenchError` if `texts` (..., position) hold an id beyond the token embedding of `module`. `what` is the
    texts' name in the message. A model without a token embedding is not checked."""
    if not any(isinstance(layer, nn.Embedding) for layer in module.modules()):
        return
    ids = torch.zeros(1, *texts.shape[-1:]).to(texts)
    try:
        path = token_embedding(module, {}, ids)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return  # a sequence of this length does not fit: the model's own pass says so
    layer = None if path is None else module.get_submodule(path)
    if isinstance(layer, nn.Embedding) and int(texts.max()) >= layer.num_embeddings:
        raise BenchError(
            f"{what}: token id {int(texts.max())}, and the model's embedding {sanitize(str(path))!r} has "
            f"{layer.num_embeddings} tokens; take the model's own tokenizer"
        )
