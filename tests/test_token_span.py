"""Promise: sentences come back from a transformer's gradient, and a certificate is never wrong."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.texts import trained_on
from torch import Tensor, nn

from bench import api
from bench.attacks.spans import search
from bench.attacks.spans.candidates import candidates
from bench.attacks.spans.dependence import dependent
from bench.attacks.spans.layers import LayeredModel
from bench.attacks.spans.positions import lengths
from bench.attacks.spans.remainder import Remainder
from bench.attacks.spans.search import Search
from bench.attacks.spans.starts import Choices
from bench.attacks.spans.subtraction import without
from bench.attacks.spans.whole import WholeTexts
from bench.attacks.token_span import TokenSpan
from bench.contracts.situations import situation
from bench.errors import BenchError
from bench.kinds.texts import TEXT
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction


def attacked(reading: Reading, starts: int = 16) -> Reconstruction:
    return TokenSpan(starts=starts).reconstruct(reading, Budget(evaluations=1), Key(seed=0))


def right(truth: Tensor, result: Reconstruction) -> list[int]:
    """How many of a reading's texts came back word for word."""
    return [
        len({tuple(text) for text in true.tolist()} & {tuple(text) for text in guess.tolist()})
        for true, guess in zip(truth, result.inputs, strict=True)
    ]


@pytest.mark.parametrize(("batch", "readings"), [(1, 3), (3, 2)])
def test_every_sentence_comes_back_with_a_certificate(batch: int, readings: int) -> None:
    case = situation("type-1", batch=batch, readings=readings, kind=TEXT)
    single = replace(case.reading, values={name: value.float() for name, value in case.reading.values.items()})
    result = attacked(single)  # as sent: in single precision
    assert right(case.truth, result) == [batch] * readings
    assert result.certificate is not None and result.certificate.tolist() == [1] * readings
    assert float(result.loss.max()) < 1e-9


def test_a_row_space_that_holds_everything_certifies_nothing() -> None:
    """With a vector of 8 values per token, every vector lies in the row space of a few tokens."""
    sentences, known = ids([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [3, 1, 12, 9, 11, 2, 6, 5, 4, 13]]), ids([[1, 2, 3]])
    model = api.build("tiny-transformer", shape=(12,), classes=2, params={"tokens": 40, "width": 8})
    reading = read(model, sentences, public=known)
    result = attacked(reading, starts=4)
    assert result.certificate is not None and float(result.certificate[0]) == 0
    assert result.inputs.shape == (1, 2, 12)


BITS = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]


@pytest.mark.parametrize(
    ("width", "rows"),
    [
        (64, [[4, 17, 2, 9], [4, 17], [4, 17, 8, 3, 5], [6, 2, 9]]),  # a text begins another, found first
        (16, [[1 + a, 3 + b, 5 + c, 7 + a] for a, b, c in BITS]),  # more beginnings than rows of the widest layer
    ],
)
def test_a_language_models_texts_grow_token_by_token(width: int, rows: list[list[int]]) -> None:
    model = api.build("tiny-language-model", shape=(12,), classes=2, params={"tokens": 40, "width": width, "heads": 2})
    sentences = ids(rows)
    result = attacked(read(model, sentences, public=ids([[1, 2, 3]])), starts=1)
    assert right(sentences[None], result) == [len(rows)]
    assert result.certificate is not None and result.certificate.tolist() == [1]


def after_steps(sentences: Tensor, *, rate: float, entry: str = "tiny-transformer") -> Reading:
    """An update of a local step for each sentence, in double precision."""
    model = api.build(entry, shape=(12,), classes=2, params={"tokens": 40, "width": 64}).double()
    return trained_on(model, sentences, rate, public=ids([[1, 2, 3]]))


@pytest.mark.parametrize(
    ("entry", "rate"), [("tiny-transformer", 0.01), ("tiny-transformer", 1.0), ("tiny-language-model", 1.0)]
)
def test_known_texts_give_the_weights_of_the_next_local_step(entry: str, rate: float) -> None:
    sentences = ids([[4, 17, 2, 9], [6, 2, 31, 8, 5], [4, 8, 17]])
    result = attacked(after_steps(sentences, rate=rate, entry=entry), starts=2)
    assert right(sentences[None], result) == [3]
    assert result.certificate is not None and result.certificate.tolist() == [1]


def test_the_tolerance_admits_tokens_of_later_local_steps() -> None:
    """Without the weights of a later step, its vectors are off the row space by as much as they have moved."""
    sentences = ids([[4, 17, 2, 9], [6, 2, 31, 8, 5]])
    reading = after_steps(sentences, rate=1.0)
    net = LayeredModel.of(reading)
    assert net is not None
    sent = {name: value[0, 0] / 2 for name, value in reading.values.items()}
    left = Remainder(net=net, first=net, sent=sent, rest=sent, count=2, classes=2, steps=2, rate=1.0)
    space = WholeTexts.of(left).space
    exact, tolerant = (candidates(replace(left, drifted=drifted), space)[0] for drifted in (False, True))
    assert [bool(exact[token, place]) for place, token in enumerate([4, 17, 2, 9])] == [True] * 4
    assert [bool(exact[token, place]) for place, token in enumerate([6, 2, 31, 8, 5])] == [False] * 5
    assert all(bool(tolerant[token, place]) for place, token in enumerate([6, 2, 31, 8, 5]))


class ByKeyword(nn.Module):
    """As models of transformers: the module inside takes keywords only."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner(x=x)
        return logits


def test_a_module_may_call_its_layers_by_keyword() -> None:
    inner = api.build("tiny-transformer", shape=(12,), classes=2, params={"tokens": 40, "width": 32})
    sentences = ids([[4, 17, 2, 9]])
    reading = read(ByKeyword(inner), sentences, public=ids([[1, 2, 3]]))
    assert right(sentences[None], attacked(reading, starts=4)) == [1]


@pytest.mark.slow
def test_certificates_are_right_under_noise_and_pruning() -> None:
    for defense in ("gaussian", "sign"):
        case = situation("type-1", batch=2, readings=2, kind=TEXT, defense=defense)
        result = attacked(case.reading, starts=2)
        assert result.certificate is not None
        for found, certain in zip(right(case.truth, result), result.certificate.tolist(), strict=True):
            assert 2 * certain <= found, defense


def tuned(length: int, **params: Any) -> Reconstruction:
    """The attack on a fine-tuned transformer's gradient of a text with so many distinct tokens."""
    torch.manual_seed(0)
    model = api.build("fine-tuned-transformer", shape=(12,), classes=2, params={"tokens": 60, "width": 64, **params})
    return attacked(read(model, text(length)))


def text(length: int) -> Tensor:
    return ids([[3 * place + 7 for place in range(length)]])


@pytest.mark.parametrize(
    ("length", "params"),
    [
        (8, {"rank": 4, "b0": "drawn"}),  # rank times two adapted matrices = distinct tokens
        (11, {"rank": 12, "b0": "zero"}),  # the first round: rank above distinct tokens
        (9, {"part": "last-block"}),
        (9, {"part": "blocks"}),
    ],
)
def test_a_sentence_comes_back_from_a_fine_tuned_part(length: int, params: dict[str, Any]) -> None:
    result = tuned(length, **params)
    assert right(text(length)[None].double(), result) == [1]
    assert result.certificate is not None and float(result.certificate[0]) == 1


def test_right_texts_are_dependent_and_their_gradients_are_subtracted() -> None:
    """Five texts of 8 tokens behind a transformer of width 36: 40 vectors, more than a row space has directions."""
    torch.manual_seed(1)
    params = {"tokens": 40, "width": 36, "part": "blocks"}
    model = api.build("fine-tuned-transformer", shape=(8,), classes=2, params=params)
    first, second, wrong, *others = (tuple((torch.randperm(39)[:8] + 1).tolist()) for _ in range(6))
    sentences, labels = torch.tensor([first, second, *others]), [0, 1, 1, 0, 1]
    gradients = api.gradient(model, sentences, labels)
    reading = api.reading(gradients, model=model, shape=(8,), classes=2, batch=5, kind="text")
    net = LayeredModel.of(reading)
    assert net is not None
    sent = {name: value[0, 0].double() for name, value in reading.values.items()}
    left = Remainder(net=net, first=net, sent=sent, rest=sent, count=5, classes=2)
    search = Search.of(left, None)
    assert search.whole.space.rank < 40 and max(search.losses([first, second]).values()) > 1e-6
    assert set(dependent(search.whole, [first, wrong, second])) == {first, second}
    assert dependent(search.whole, [first, wrong]) == {}  # fewer vectors than the row space lacks
    after = without(left, search.whole, [first, second])
    assert after.gone == {first, second} and after.kept == ()
    rest = api.gradient(model, torch.tensor(others), labels[2:])
    assert all(torch.allclose(value, rest[name].double() * 3 / 5, atol=1e-6) for name, value in after.rest.items())


@pytest.mark.parametrize(
    ("length", "params", "back"),
    [
        (9, {"rank": 4, "b0": "drawn"}, 1),  # a row too few: the nearest text is right, without proof
        (12, {"rank": 4, "b0": "drawn"}, 0),
        (8, {"rank": 1, "b0": "drawn"}, 0),
        (12, {"rank": 12}, 0),
        (4, {"rank": 1}, 0),
    ],
)
def test_below_the_rank_no_sentence_is_certified(length: int, params: dict[str, Any], back: int) -> None:
    result = tuned(length, **params)
    assert result.certificate is not None and float(result.certificate[0]) == 0
    assert right(text(length)[None].double(), result) == [back]


class PreNorm(nn.Module):
    """A user's layout: one block, the norm before attention, vectors of positions without parameters, the last token's
    output classified; other names, a key without bias."""

    def __init__(self, tokens: int, positions: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(tokens, width)
        self.register_buffer("places", torch.randn(positions, width))
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.k, self.q, self.v = nn.Linear(width, width, bias=False), nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down, self.out = nn.Linear(width, 64), nn.Linear(64, width), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        present = x != 0
        z = self.words(x.long()) + self.get_buffer("places").to(self.out.weight)
        h = self.before(z)
        scores = (self.q(h) @ self.k(h).mT / 5).masked_fill(~present[:, None], -1e9)
        z = z + scores.softmax(-1) @ self.v(h)
        z = z + self.down(torch.relu(self.up(self.behind(z))))
        shares = present / present.sum(-1, keepdim=True).clamp_min(1)
        out: Tensor = self.out((z * shares[..., None]).sum(-2))
        return out


def ids(rows: list[list[int]], positions: int = 12) -> Tensor:
    return torch.tensor([row + [0] * (positions - len(row)) for row in rows])


def read(model: nn.Module, sentences: Tensor, public: Tensor | None = None) -> Reading:
    labels = torch.arange(len(sentences)) % 2
    gradients = api.gradient(model, sentences, labels)
    return api.reading(
        gradients,
        model=model,
        shape=tuple(sentences.shape[1:]),
        classes=2,
        batch=len(sentences),
        kind="text",
        public=public,
    )


def test_the_layers_are_found_in_a_model_of_another_layout() -> None:
    torch.manual_seed(0)
    model = PreNorm(60, 12, 32)
    sentences = ids([[7, 8, 9, 8, 7, 30], [1, 2, 3], [50, 8, 40, 41, 42]])
    result = attacked(read(model, sentences))
    assert right(sentences[None].double(), result) == [3]
    assert result.certificate is not None and float(result.certificate[0]) == 1


def test_a_first_token_that_hardly_changes_does_not_end_the_search() -> None:
    """[CLS] of a pretrained model: its vector is nearly in the row space, whatever follows."""
    torch.manual_seed(0)
    model = PreNorm(60, 12, 64)
    with torch.no_grad():
        model.words.weight[7] *= 8
    sentences = ids([[7, 8, 9, 8, 7, 30], [7, 2, 3, 12, 13], [7, 50, 8, 40, 41, 42, 11]])
    assert right(sentences[None].double(), attacked(read(model, sentences), starts=4)) == [3]


def test_frozen_parameters_of_a_users_model_send_nothing() -> None:
    torch.manual_seed(0)
    model = api.build("tiny-transformer", shape=(12,), classes=2, params={"tokens": 60, "width": 64})
    frozen = {name for name, _ in model.named_parameters() if not name.startswith(("blocks.1.", "classifier."))}
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    sent = {name: value for name, value in api.gradient(model, text(7), [0]).items() if name not in frozen}
    reading = api.reading(sent, model=model, shape=(12,), classes=2, batch=1, kind="text")
    result = attacked(reading)
    assert right(text(7)[None].double(), result) == [1]


def test_single_precision_and_cut_padding_change_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = api.build("tiny-transformer", shape=(12,), classes=2, params={"tokens": 60, "width": 24})
    reading = read(model, ids([[7, 8, 9, 8, 7, 30], [1, 2, 3], [50, 8, 40, 41, 42]]))  # too many for its rank
    quick = attacked(reading, starts=3)
    monkeypatch.setattr("bench.attacks.spans.search._CLOSE", 10**6)  # every text in double precision
    monkeypatch.setattr("bench.attacks.spans.layers._crops", lambda *_: False)
    slow = attacked(reading, starts=3)
    assert torch.equal(quick.inputs, slow.inputs)
    assert quick.loss is not None and float(quick.loss[0]) == pytest.approx(float(slow.loss[0]), rel=1e-9)


def test_what_the_attack_cannot_read_it_refuses() -> None:
    reading = situation(kind=TEXT).reading
    attack = TokenSpan()
    assert attack.refuses(reading) is None
    assert attack.refuses(replace(reading, linked="coordinate")) is not None
    assert attack.refuses(replace(reading, steps=2)) is None
    bag = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(48, 2))
    line = "its model has no linear layers on the vectors of single tokens, and of texts behind them"
    weights = {name: value[None].detach() for name, value in bag.named_parameters()}
    assert attack.refuses(replace(reading, model=Whole(bag), shape=(12,), weights=prefixed(weights))) == line


class Whole(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.long())
        return out


def prefixed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"inner.{name}": value for name, value in weights.items()}


def test_ids_beyond_the_model_are_one_line() -> None:
    model = api.build("tiny-transformer", shape=(12,), classes=2, params={"tokens": 40})
    reading = read(model, ids([[1, 2, 3]]))
    result = api.attack(reading, "token-span")
    with pytest.raises(BenchError, match="texts are scored against guesses from public examples; give public="):
        api.score(result, ids([[1, 2, 3]]), [0])
    with pytest.raises(BenchError, match="truth: a text has padding"):
        api.score(result, ids([[1, 0, 3]]), [0], public=ids([[1, 2]]))
    with pytest.raises(BenchError, match="public: a text has no token"):
        api.score(result, ids([[1, 2, 3]]), [0], public=ids([[]]))
    assert api.score(result, ids([[1, 2, 3]]), [0], public=ids([[4, 5]])).summary.asr.value == 1


@pytest.mark.slow
def test_kicks_find_long_texts_that_single_exchanges_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    model = api.build("tiny-transformer", shape=(20,), classes=2, params={"tokens": 40, "width": 64})
    sentences = torch.zeros(3, 20, dtype=torch.long)
    for row, length in enumerate((20, 20, 15)):
        sentences[row, :length] = torch.randint(1, 40, (length,))
    sentences[:, 0] = 7  # a common first token, as [CLS]
    reading = read(model, sentences)
    with_kicks = attacked(reading, starts=2)
    assert right(sentences[None].double(), with_kicks) == [3]
    assert with_kicks.certificate is not None and with_kicks.certificate.tolist() == [1]
    monkeypatch.setattr(search, "_KICKS", 0)
    assert right(sentences[None].double(), attacked(reading, starts=2)) == [0]


def test_a_kick_changes_candidates_only_and_the_length_by_four_at_most() -> None:
    allowed = torch.zeros(10, 12, dtype=torch.bool)
    allowed[2:7, :9] = True
    choices, random = Choices.of(allowed), np.random.default_rng(0)
    text = torch.tensor([2, 3, 4, 5, 6, 2, 0, 0, 0, 0, 0, 0])
    lengths, changes = set(), set()
    for _ in range(400):
        other = choices.kicked(text, torch.rand(12), random)
        length = int((other != 0).sum())
        lengths.add(length)
        assert bool((other[:length] != 0).all()) and bool((other[length:] == 0).all())
        assert all(bool(allowed[token, place]) for place, token in enumerate(other[:length].tolist()))
        if length == 6:
            changes.add(int((other != text).sum()))
    assert lengths == set(range(2, 10)) and max(changes) == 2  # at most a third of six tokens


def placed(sentences: Tensor, noise: float = 0.0) -> tuple[Tensor | None, Tensor]:
    """Lengths by token and position, and the token embedding's gradient."""
    model = api.build("tiny-transformer", shape=(12,), classes=2, params={"tokens": 40, "width": 64})
    reading = read(model, sentences)
    net = LayeredModel.of(reading)
    assert net is not None
    draws = torch.Generator().manual_seed(0)
    sent = {name: value[0, 0].double() for name, value in reading.values.items()}
    sent = {name: value + noise * torch.randn(value.shape, generator=draws).double() for name, value in sent.items()}
    left = Remainder.of(net, reading, sent)
    return lengths(left, torch.ones(40, 12, dtype=torch.bool)), sent["token.weight"]


def test_gradients_of_both_embeddings_place_the_tokens() -> None:
    """Tokens that occur once: the least sum of lengths has each row of the token embedding's gradient at its position,
    by the triangle inequality."""
    once = ids([[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13], [14, 15, 16, 17, 18, 19]])
    found, table = placed(once)
    assert found is not None
    truth = torch.zeros(40, 12, dtype=torch.float64)
    for text in once.tolist():
        for place, token in enumerate(text):
            truth[token, place] = table[token].norm() if token else 0
    long = found > 0.1 * found.max()
    assert bool((long == (truth > 0)).all()) and int(long.sum()) == 19
    assert float((found[long] / truth[long] - 1.1).abs().max()) < 0.11  # truth, and up to a fifth from the first part

    repeated = ids([[7, 2, 3, 4, 5, 6, 2, 8], [7, 3, 11, 12, 2], [7, 15, 5, 17, 3, 19]])
    found, _ = placed(repeated)
    assert found is not None
    true = {(token, place) for text in repeated.tolist() for place, token in enumerate(text) if token}
    likely = set(map(tuple, Choices.of(torch.ones(40, 12, dtype=torch.bool), found).likely[:, :8].nonzero().tolist()))
    assert len(true - likely) <= 2 and len(likely - true) <= 32  # of 17 and 303 pairs

    assert placed(once, noise=1e-3)[0] is None
