"""MiniLM-L6, a pretrained encoder of sentences, with a classifier: all or a part of its layers are trained."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from bench.errors import DataError, MissingDataError, NotApplicable
from bench.folders import folders
from bench.minilm import WEIGHTS
from bench.models.base import Model
from bench.models.fine_tuned import train_part
from bench.models.transformer import Encoder, Layout
from bench.parameters import parameter

_LAYOUT = Layout(tokens=30522, width=384, heads=12, inner=1536, blocks=6, eps=1e-12)
_POSITIONS = 512
# BERT's names in the file, and ours
_EMBEDDINGS = {"word_embeddings": "token", "LayerNorm": "norm"}
_BLOCK = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "mixed",
    "attention.output.LayerNorm": "first_norm",
    "intermediate.dense": "inner",
    "output.dense": "outer",
    "output.LayerNorm": "second_norm",
}


@dataclass(frozen=True, kw_only=True)
class MiniLm(Model):
    """The pretrained encoder `all-MiniLM-L6-v2` (6 blocks, width 384, 30522 tokens, 22.7 million parameters) with a
    drawn linear classifier on the mean over a text's tokens. The file of weights comes with `bench data fetch reviews`;
    it is searched in BENCH_DATA, in the user's cache, and in the installed package. BERT's vector of the first segment
    is added to the position vectors: logits stay, and its gradient is left out."""

    reference = "Wang et al. 2020 (MiniLM); weights of sentence-transformers/all-MiniLM-L6-v2"
    takes = ("text",)
    work = 400.0

    part: Literal["all", "lora", "last-block", "blocks"] = parameter(
        "all",
        "trained part: all layers, LoRA on query and value of each block, the last block, or all blocks",
        source="ours",
    )
    rank: int = parameter(8, "rank of LoRA's matrices A and B", source="Hu et al. 2022", low=1)
    b0: Literal["zero", "drawn"] = parameter(
        "zero", "LoRA's matrix B at the start: zero as in the paper, or drawn as after some rounds", source="ours"
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if shape[0] > _POSITIONS:
            raise NotApplicable(f"minilm has {_POSITIONS} positions, a text has {shape[0]}")
        module = Encoder(_LAYOUT, positions=shape[0], classes=classes)
        if self.part != "all":
            if not module.classifier.weight.is_meta:  # a plan of a run needs shapes only
                module.load_state_dict(_weights(shape[0]), strict=False)
            train_part(module, self.part, self.rank)
        return module

    def bound(self, name: str, fan_in: int) -> float:
        """Return the half width of the initial uniform distribution for the parameter `name` with `fan_in` inputs; 0
        for LoRA's matrix B with `b0` zero."""
        return 0.0 if self.b0 == "zero" and name.endswith(".b.weight") else super().bound(name, fan_in)

    def initial(self, module: nn.Module, seed: int) -> dict[str, Tensor]:
        """Return initial weights for the parameters of `module`, name → (*shape): the pretrained ones, and drawn ones
        with a key from `seed` for the classifier and LoRA."""
        position = module.get_submodule("position").weight  # a buffer, if frozen
        assert isinstance(position, Tensor)
        pretrained = _weights(len(position))
        return {name: pretrained.get(name, drawn) for name, drawn in super().initial(module, seed).items()}


def _weights(positions: int) -> dict[str, Tensor]:
    """Return the file's weights for at most so many `positions`, under the names of `Encoder`. Raises `DataError` with
    the remedy for a missing or damaged file."""
    try:
        path = WEIGHTS.find(folders(None))
        stored = load_file(path)
    except MissingDataError as error:
        raise MissingDataError(
            f"minilm: {error}; run `bench data fetch reviews` (weights are not searched in --data-dir)"
        ) from None
    except (OSError, SafetensorError) as error:
        raise DataError(f"{WEIGHTS.path}: cannot be read ({error})") from None
    return dict(_renamed({name.removeprefix("bert."): value for name, value in stored.items()}, positions))


def _renamed(stored: Mapping[str, Tensor], positions: int) -> Iterator[tuple[str, Tensor]]:
    segment = stored["embeddings.token_type_embeddings.weight"][0]
    yield "position.weight", stored["embeddings.position_embeddings.weight"][:positions] + segment
    for name, value in stored.items():
        layer, _, kind = name.rpartition(".")
        match layer.split(".", 3):
            case ["embeddings", part] if part in _EMBEDDINGS:
                yield f"{_EMBEDDINGS[part]}.{kind}", value
            case ["encoder", "layer", number, part]:
                yield f"blocks.{number}.{_BLOCK[part]}.{kind}", value
