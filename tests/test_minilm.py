"""Promise: reviews and MiniLM are read from packages' files; small files of the same layout stand in for them here."""

import bz2
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from bench import api
from bench.cli.data import examine
from bench.contracts.run import check, check_instance
from bench.datasets import reviews
from bench.datasets.loading import load
from bench.datasets.reviews import Reviews
from bench.errors import DataError, MissingDataError, MissingExtraError, NotApplicable
from bench.gradients import example_gradients, one_hot
from bench.minilm import TOKENIZER, WEIGHTS
from bench.models import minilm
from bench.models.minilm import MiniLm
from bench.models.transformer import Encoder, Layout
from bench.packaged import PackagedFile
from bench.registry import entries as registry

TINY = Layout(tokens=40, width=24, heads=12, inner=48, blocks=2, eps=1e-12)
POSITIONS = 16
NAMES = {ours: theirs for theirs, ours in minilm._BLOCK.items()}


def _packaged(root: Path, like: PackagedFile, content: bytes) -> PackagedFile:
    path = root / like.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return PackagedFile(package=like.package, path=like.path, size=len(content), sha256=digest)


def _stored(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An encoder's weights under BERT's names."""
    made = {
        "embeddings.word_embeddings.weight": state["token.weight"],
        "embeddings.position_embeddings.weight": state["position.weight"],
        "embeddings.token_type_embeddings.weight": torch.zeros(2, TINY.width),
        "embeddings.position_ids": torch.arange(POSITIONS)[None],
        "pooler.dense.weight": torch.zeros(TINY.width, TINY.width),
    } | {f"embeddings.LayerNorm.{kind}": state[f"norm.{kind}"] for kind in ("weight", "bias")}
    for name, value in state.items():
        if name.startswith("blocks."):
            _, number, layer, kind = name.split(".")
            made[f"encoder.layer.{number}.{NAMES[layer]}.{kind}"] = value
    return made


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Encoder:
    """A tiny encoder, whose weights are in the data folder as MiniLM's."""
    torch.manual_seed(0)
    made = Encoder(TINY, positions=POSITIONS, classes=2).eval()
    file = tmp_path / "tiny.safetensors"
    save_file({name: value.contiguous() for name, value in _stored(made.state_dict()).items()}, file)
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(minilm, "WEIGHTS", _packaged(tmp_path / "data", WEIGHTS, file.read_bytes()))
    monkeypatch.setattr(minilm, "_LAYOUT", TINY)
    return made


@pytest.mark.parametrize("part", ["all", "blocks", "last-block", "lora"])
def test_parts_start_from_the_files_weights(encoder: Encoder, part: Any) -> None:
    model = MiniLm(part=part)
    module = model.build((12,), 2).eval()
    with torch.no_grad():
        for name, value in model.initial(module, 3).items():
            module.get_parameter(name).copy_(value)
        texts = torch.tensor([[1.0, 7, 9, 2, 0, 0, 0, 0, 0, 0, 0, 0], [3.0] * 12])
        encoder.get_submodule("classifier").load_state_dict(module.get_submodule("classifier").state_dict())
        torch.testing.assert_close(module(texts), encoder(texts))  # B₀ = 0: LoRA starts from the frozen model
    trained = {name.split(".")[0] if part != "lora" else name.split(".")[-2] for name, _ in module.named_parameters()}
    whole = {"token", "position", "norm", "blocks", "classifier"}
    assert trained == {"all": whole, "lora": {"a", "b", "classifier"}}.get(part, {"blocks", "classifier"})
    assert {"blocks.0.query.weight"} <= {name for name, _ in module.named_parameters()} or part not in ("all", "blocks")


def test_contracts_hold_for_a_part(encoder: Encoder) -> None:
    for model, only in ((MiniLm(), {"initial weights"}), (MiniLm(part="lora", b0="drawn", rank=2), {"gradients"})):
        outcomes = check_instance("models", model, only=only)
        assert [one.reason for one in outcomes if one.status != "ok"] == []


def test_longer_texts_and_missing_or_damaged_weights_are_a_line(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotApplicable, match="minilm has 512 positions, a text has 513"):
        MiniLm().build((513,), 2)
    path = tmp_path / "data" / WEIGHTS.path
    path.write_bytes(b"?" * path.stat().st_size)
    with pytest.raises(DataError, match="sha256"):
        MiniLm(part="lora").build((12,), 2)
    path.unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingDataError, match=r"^minilm: gt_all_.* is not there: .*; run `bench data fetch reviews`"):
        MiniLm(part="lora").build((12,), 2)


WORDS = ["[PAD]", "[CLS]", "[SEP]", "a", "dull", "fine", "film", "plot", "very"]
ROWS = [("fresh", "a fine film"), ("rotten", "a dull film"), ("plot", "a film"), ("fresh", "a fine film")]


def _by_words(content: bytes, positions: int) -> tuple[Callable[[list[str]], list[list[int]]], tuple[str, ...]]:
    tokens = json.loads(content)

    def encode(texts: list[str]) -> list[list[int]]:
        return [[1, *[tokens.index(word) for word in text.split()][: positions - 2], 2] for text in texts]

    return encode, ("", *tokens[1:])


def _corpus(root: Path, monkeypatch: pytest.MonkeyPatch, more: list[tuple[str, str]]) -> None:
    table = "category,text,movie_name\n" + "".join(f'{label},"{text}",x\n' for label, text in [*ROWS, *more])
    corpus = bz2.compress(table.encode())
    monkeypatch.setattr(reviews, "_CORPUS", _packaged(root, reviews._CORPUS, corpus))
    monkeypatch.setattr(reviews, "TOKENIZER", _packaged(root, TOKENIZER, json.dumps(WORDS).encode()))


def test_reviews_are_tokens_without_plots_and_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reviews, "_encoder", _by_words)
    more = [("rotten", " ".join(["very"] * n + ["dull", "plot"])) for n in range(60)]  # cut to 12 ids: ten words
    _corpus(tmp_path, monkeypatch, more)
    raw = Reviews(positions=12).load((tmp_path,))
    texts = {tuple(row) for part in (raw.train_inputs, raw.test_inputs) for row in part.tolist()}
    fine, dull = ([1, 3, word, 6, 2] + [0] * 7 for word in (5, 4))
    assert {tuple(fine), tuple(dull)} < texts
    assert len(texts) == len(raw.train_labels) + len(raw.test_labels) == 2 + 11  # the cut texts are equal
    assert (raw.class_names, raw.tokens[:3]) == (("rotten", "fresh"), ("", "[CLS]", "[SEP]"))
    labels = {tuple(row): int(label) for row, label in zip(raw.train_inputs.tolist(), raw.train_labels, strict=True)}
    assert labels.get(tuple(fine), 1) == 1 and labels.get(tuple(dull), 0) == 0
    assert load(Reviews(positions=30), "reviews", tmp_path).private  # 62 texts: enough for all splits


def test_without_the_extra_the_remedy_is_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _corpus(tmp_path, monkeypatch, [])
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    line = "reviews: no package tokenizers; pip install 'gradient-leakage-bench[text]'"
    with pytest.raises(MissingExtraError) as caught:
        load(Reviews(), "reviews", tmp_path)
    assert str(caught.value) == line
    row = examine("reviews", tmp_path)
    assert (row.state, row.remedy) == ("missing", "pip install 'gradient-leakage-bench[text]'")


@pytest.mark.slow
def test_the_real_files_give_the_published_corpus() -> None:
    """Needs `bench data fetch reviews` and the extra `text`."""
    pytest.importorskip("tokenizers")
    try:
        data = load(registry.instance("datasets", "reviews", {}), "reviews")
        MiniLm(part="last-block").build(data.shape, data.classes)
    except MissingDataError as error:
        pytest.skip(str(error))
    assert (len(data.tokens), data.tokens[101], data.tokens[102]) == (30522, "[CLS]", "[SEP]")
    assert data.training.inputs[:, 0].tolist() == [101] * len(data.training)
    assert not [one.reason for one in check("datasets", "reviews") if one.status == "broken"]


@pytest.mark.slow
def test_the_encoder_computes_what_transformers_computes(encoder: Encoder, tmp_path: Path) -> None:
    bert = _bert(pytest.importorskip("transformers"))
    file = tmp_path / "bert.safetensors"
    save_file({name: value.contiguous() for name, value in bert.state_dict().items()}, file)
    packaged = _packaged(tmp_path / "data", WEIGHTS, file.read_bytes())
    texts = torch.tensor([[1.0, 7, 9, 2, 0, 0], [3.0, 4, 5, 6, 7, 8]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minilm, "WEIGHTS", packaged)
        model = MiniLm()
        module = model.build((6,), 2).eval()
        weights = model.initial(module, 0)
    ids, mask = texts.long(), (texts != 0).float()
    hidden = bert(input_ids=ids, attention_mask=mask).last_hidden_state
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    expected = mean @ weights["classifier.weight"].mT + weights["classifier.bias"]
    torch.testing.assert_close(torch.func.functional_call(module, weights, (texts,)), expected, rtol=1e-4, atol=1e-5)
    gradients = example_gradients(module, weights, texts, one_hot(torch.tensor([0, 1]), 2, torch.float32))
    assert all(bool(torch.isfinite(value).all()) for value in gradients.values())


def _bert(transformers: Any) -> Any:
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=TINY.tokens,
        hidden_size=TINY.width,
        num_hidden_layers=TINY.blocks,
        num_attention_heads=TINY.heads,
        intermediate_size=TINY.inner,
        max_position_embeddings=POSITIONS,
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval()


@pytest.mark.slow
def test_a_users_module_of_transformers_gives_its_sentence_away() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    config = transformers.BertConfig(
        vocab_size=60,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=POSITIONS,
        num_labels=2,
    )
    bert = transformers.BertForSequenceClassification(config).eval()

    class Classifier(torch.nn.Module):
        """Ids of the bench (0 behind a text's end) to the arguments of transformers."""

        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ids = x.round().long()
            logits: torch.Tensor = self.bert(input_ids=ids, attention_mask=(ids != 0).long()).logits
            return logits

    model, texts = Classifier().eval(), [[1, 17, 33, 8, 52, 2], [1, 40, 21, 9, 2]]
    x = torch.tensor([text + [0] * (10 - len(text)) for text in texts])
    public = torch.randint(1, 60, (20, 10), generator=torch.Generator().manual_seed(0))
    gradients = api.gradient(model, x, [0, 1])
    reading = api.reading(gradients, model=model, shape=(10,), classes=2, batch=2, kind="text", public=public)
    found = api.attack(reading, "token-span").inputs[0].long()
    assert {tuple(text) for text in found.tolist()} == {tuple(text) for text in x.tolist()}
