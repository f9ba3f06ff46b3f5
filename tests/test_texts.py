"""Promise: a text is a sequence of token ids, and its figures count tokens in their places."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call

from bench.answer.public import known_public
from bench.cell import DataRef, Entry, Federated, PublicKnowledge, TrainingCell
from bench.datasets.base import Split
from bench.datasets.loading import load
from bench.datasets.opinions import TOKENS, Opinions
from bench.errors import NotApplicable
from bench.federated.training import accuracy, perplexity
from bench.gradients import example_gradients, one_hot
from bench.kinds.known import of_shape
from bench.kinds.texts import TEXT, lengths
from bench.matrix.feasible import DatasetFacts, impossible
from bench.models.fine_tuned import FineTunedTransformer
from bench.models.language import TinyLanguageModel
from bench.models.transformer import TinyTransformer
from bench.scoring.metrics import measured
from bench.scoring.prior_only import prior_only_baselines
from bench.trip import Tensors


@pytest.fixture(scope="module")
def opinions():
    return load(Opinions(), "opinions")


def figures(truth: list[float], guess: list[float]) -> dict[str, float]:
    found = measured(np.array([[truth]], np.float64), np.array([[guess]], np.float64), TEXT, ())
    return {name: float(value[0, 0]) for name, value in found.items()}


@pytest.mark.parametrize(
    ("guess", "right", "recall", "precision"),
    [
        ([5, 6, 5, 7, 0, 0], 1, 1, 1),
        ([5.4, 6, 4.6, 7, -3, 0], 1, 1, 1),  # moved to the nearest id
        ([7, 5, 6, 5, 0, 0], 0, 1, 1),  # a shift by one place
        ([5, 6, 5, 5, 0, 0], 0.75, 0.75, 0.75),  # a token counts as often as it occurs
        ([5, 6, 0, 0, 0, 0], 0.5, 0.5, 1),
        ([5, 6, 5, 7, 9, 9], 4 / 6, 1, 4 / 6),  # a longer guess is no better for its length
        ([0, 0, 0, 0, 0, 0], 0, 0, 0),
    ],
)
def test_tokens_count_in_place_and_with_repeats(
    guess: list[float], right: float, recall: float, precision: float
) -> None:
    expected = {"tokens_right": right, "token_recall": recall, "token_precision": precision}
    found = figures([5, 6, 5, 7, 0, 0], guess)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


@pytest.mark.slow
def test_rouge_equals_the_library() -> None:
    """The package splits strings; ids with spaces between them are its words."""
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rouge1", "rouge2"])
    random = np.random.default_rng(0)
    truth, guess = TEXT.values.draw(random, (40, 5, 9)), TEXT.values.draw(random, (40, 5, 9))
    found = measured(truth, guess, TEXT, ())
    for at in np.ndindex(40, 5):
        said = scorer.score(*(" ".join(f"{each:.0f}" for each in text[at] if each) for text in (truth, guess)))
        assert found["rouge_1"][at] == pytest.approx(said["rouge1"].fmeasure)
        assert found["rouge_2"][at] == pytest.approx(said["rouge2"].fmeasure)


def test_rouge_counts_runs_of_tokens() -> None:
    found = figures([5, 6, 5, 7, 0, 0], [5, 6, 7, 7, 6, 0])  # shared: 5, 6, 7; the pair 5 6
    assert (found["rouge_1"], found["rouge_2"]) == pytest.approx((2 * 3 / 9, 2 * 1 / 7))
    one = figures([5, 0], [5, 0])
    assert (one["rouge_1"], one["rouge_2"]) == (1, 0)  # no pair


def test_a_guess_without_numbers_has_no_figure() -> None:
    assert all(np.isnan(value) for value in figures([5, 6], [np.nan, 6]).values())


def test_distances_agree_with_the_metric() -> None:
    random = np.random.default_rng(0)
    first, second = TEXT.values.draw(random, (4, 9)), TEXT.values.draw(random, (5, 9))
    table = TEXT.values.distances(first, second)
    for row, column in np.ndindex(4, 5):
        right = figures(list(first[row]), list(second[column]))["tokens_right"]
        assert table[row, column] == pytest.approx(1 - right)
    assert (TEXT.values.apart(first[None], first[None]) == 0).all()


@pytest.mark.parametrize(
    ("right", "over", "leaked", "exact"),
    [(0.9, 0.1, 1, 0), (0.89, 0.5, 0, 0), (1.0, 0.05, 0, 0), (1.0, 0.5, 1, 1), (np.nan, np.nan, 0, 0)],
)
def test_texts_leak_by_tokens_and_margin(right: float, over: float, leaked: int, exact: int) -> None:
    values = {"tokens_right": right, "over_prior_tokens": over}
    strictly = TEXT.success.leaked_strictly(values)
    assert [bool(TEXT.success.leaked(values)), bool(strictly)] == [leaked, exact]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([[1.0, 2.0]]), "token ids are float64; integers expected"),
        (np.array([[1, -2]]), "token ids must be 0 .* got -2"),
        (np.array([[1, 2], [0, 0]]), "a text has no token"),
        (np.array([[1, 0, 2]]), "padding .* between its tokens"),
        (np.array([[[1, 2]]]), r"a text has the axes \(position,\)"),
    ],
)
def test_ids_that_are_no_text_are_refused_in_one_line(ids: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        raise ValueError(TEXT.fault(ids))


def test_an_axis_of_numbers_is_no_text_unless_named() -> None:
    assert of_shape((13,)) is not TEXT
    assert of_shape((13,), "text", integers="public") is TEXT


def test_the_guess_without_gradient_is_the_most_frequent_token_of_each_place() -> None:
    public = np.array([[1, 2, 0], [1, 3, 4], [5, 3, 0], [6, 3, 0]], np.float64)
    labels = np.array([0, 0, 1, 1])
    found = prior_only_baselines(public, labels, np.array([[1]]), TEXT.values)
    assert found["mean"].tolist() == [[[1, 3, 0]]]
    assert found["class-mean"].tolist() == [[[5, 3, 0]]]
    assert found["nearest"].tolist() == [[[1, 3, 4]]]  # 2 of 3 places, as the third and fourth 1 of 2
    assert TEXT.values.centre(torch.from_numpy(public)).tolist() == [1, 3, 0]


def test_equal_ids_have_equal_colours() -> None:
    pixels = TEXT.pixels(np.array([[7.0, 8, 7, 0, np.nan]]))[0].reshape(-1, 3)
    assert (pixels[0] == pixels[2]).all() and not (pixels[0] == pixels[1]).all()
    assert (pixels[3] == 1).all() and np.isnan(pixels[4]).all() and (pixels[5:] == 1).all()


def test_sentences_are_distinct_and_their_ids_are_words(opinions) -> None:
    everything = np.concatenate([opinions.training.inputs, opinions.test.inputs])
    assert len(np.unique(everything, axis=0)) == len(everything)
    assert everything.max() < len(TOKENS) == len(set(TOKENS)) and opinions.tokens == TOKENS
    assert (lengths(everything).min(), lengths(everything).max()) == (6, 16)
    assert opinions.training.labels.mean() == pytest.approx(0.5, abs=0.02)


def logits(weights: Tensors, positions: int, ids: list[int]) -> torch.Tensor:
    module = TinyTransformer().build((positions,), 2)
    own = {name: value[:positions] if name == "position.weight" else value for name, value in weights.items()}
    padded = torch.tensor([ids + [0] * (positions - len(ids))], dtype=torch.float32)
    return torch.func.functional_call(module, own, (padded,))


def test_padding_takes_no_part_in_a_text() -> None:
    architecture = TinyTransformer()
    weights = architecture.initial(architecture.build((12,), 2), 0)
    torch.testing.assert_close(logits(weights, 12, [3, 4, 5]), logits(weights, 3, [3, 4, 5]))
    assert not torch.allclose(logits(weights, 3, [3, 4, 5]), logits(weights, 3, [4, 3, 5])), "order counts"


def refused(defense: str = "none", **params: int) -> str | None:
    model = {"tokens": 512, "width": 128, "heads": 4, "blocks": 2} | params
    cell = TrainingCell(
        dataset=DataRef(name="opinions", sha256="0" * 64),
        model=Entry(name="tiny-transformer", params=model),
        federated=Federated(),
        defense=Entry(name=defense),
        rounds=1,
    )
    facts = DatasetFacts(sha256="", subset=None, kind=TEXT, shape=(20,), classes=2, training=5000, tokens=TOKENS)
    return impossible(cell, facts)


def test_what_cannot_run_on_texts_says_so_before_the_run() -> None:
    assert refused() is None
    assert refused(tokens=100) == "tiny-transformer has 100 tokens, opinions has 307; set tokens = 307"
    assert refused(heads=3) == "tiny-transformer does not fit 20: width 128 is no multiple of 3 heads"
    assert refused("mixup") == "mixup changes example values, and the values of a text are no quantities"


@pytest.mark.parametrize("known", ["statistics", "none"])
def test_ids_have_no_statistics(opinions, known: PublicKnowledge) -> None:
    with pytest.raises(NotApplicable, match='a text has no mean and no covariance; grant public = "distribution"'):
        known_public(opinions, known)


@pytest.mark.parametrize(
    ("params", "trained"),
    [
        ({"part": "lora", "rank": 3}, {"query.a", "query.b", "value.a", "value.b", "classifier"}),
        ({"part": "last-block"}, {"blocks.1", "classifier"}),
        ({"part": "blocks"}, {"blocks.0", "blocks.1", "classifier"}),
    ],
)
def test_only_the_fine_tuned_part_has_weights_and_the_rest_is_public(params: dict[str, Any], trained: set[str]) -> None:
    architecture = FineTunedTransformer(tokens=20, width=8, **params)
    module, again = architecture.build((6,), 2), architecture.build((6,), 2)
    weights = architecture.initial(module, 3)
    assert {name for name in weights if not any(part in name for part in trained)} == set()
    assert all(any(part in name for name in weights) for part in trained)
    assert all(torch.equal(value, other) for value, other in zip(module.buffers(), again.buffers(), strict=True))
    x = torch.tensor([[5, 5, 7, 0, 0, 0], [5, 9, 5, 1, 2, 3]])
    plain = TinyTransformer(tokens=20, width=8)
    full = plain.build((6,), 2)
    public = plain.initial(full, 0)
    if params["part"] == "lora":  # with B = 0, LoRA adds nothing
        public |= {name: weights[name] for name in ("classifier.weight", "classifier.bias")}
        assert torch.equal(
            torch.func.functional_call(module, weights, (x,)), torch.func.functional_call(full, public, (x,))
        )
        drawn = FineTunedTransformer(tokens=20, width=8, b0="drawn", **params)
        assert drawn.initial(module, 3)["blocks.0.query.b.weight"].any()


def test_a_repeated_token_counts_in_its_own_examples_gradient_alone() -> None:
    """Clipping bounds an example only if all uses of its tokens are in the example's gradient."""
    architecture = TinyTransformer(tokens=20, width=8, blocks=1)
    module = architecture.build((6,), 2).double()
    weights = {name: value.double() for name, value in architecture.initial(module, 0).items()}
    x = torch.tensor([[5, 5, 5, 7, 5, 0], [5, 9, 5, 0, 0, 0]], dtype=torch.float64)
    y = one_hot(torch.tensor([0, 1]), 2, torch.float64)
    each = example_gradients(module, weights, x, y)["token.weight"]
    for row in range(2):
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        loss = -(torch.func.functional_call(module, leaves, (x[row : row + 1],)).log_softmax(-1) * y[row]).sum()
        torch.testing.assert_close(each[row], torch.autograd.grad(loss, leaves["token.weight"])[0])
    assert each[0].any(1).nonzero()[:, 0].tolist() == [5, 7] and each[1].any(1).nonzero()[:, 0].tolist() == [5, 9]


def test_a_language_model_is_trained_on_next_tokens() -> None:
    """Loss, share and perplexity by hand; the derivative by finite differences."""
    model = TinyLanguageModel(tokens=40, width=16, heads=2)
    module = model.build((6,), 2).double().eval()
    weights = {name: value.double() for name, value in model.initial(module, 0).items()}
    texts = torch.tensor([[5.0, 9, 2, 0, 0, 0], [7, 5, 9, 2, 3, 1]], dtype=torch.float64)
    scores = []
    handle = module.get_submodule("classifier").register_forward_hook(lambda _, __, out: scores.append(out))
    outputs = functional_call(module, weights, (texts,))
    handle.remove()
    chances = scores[0].log_softmax(-1)
    following = [[9, 2, 0], [5, 9, 2, 3, 1, 0]]
    for row, tokens in enumerate(following):
        losses = [-float(chances[row, at, token]) for at, token in enumerate(tokens)]
        rights = [int(scores[0][row, at].argmax()) == token for at, token in enumerate(tokens)]
        assert outputs[row].tolist() == pytest.approx([np.mean(losses), np.mean(rights)])
    split = Split(texts.numpy().astype(np.int32), np.zeros(2, np.int64), TEXT)
    every = float((3 * outputs[0, 0] + 6 * outputs[1, 0]) / 9)  # each next token counts once
    assert perplexity(module, weights, split, 2) == pytest.approx(np.exp(every))
    assert accuracy(module, weights, split, 2) == pytest.approx(float(outputs[:, 1].mean()))
    gradient = example_gradients(module, weights, texts, one_hot(torch.tensor([0, 1]), 2, torch.float64))
    step = {
        name: torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).double()
        for name, value in weights.items()
    }
    slope = sum((gradient[name] * step[name]).flatten(1).sum(1) for name in step)
    moved = [
        functional_call(module, {name: weights[name] + sign * 1e-6 * step[name] for name in step}, (texts,))[:, 0]
        for sign in (1, -1)
    ]
    torch.testing.assert_close(slope, (moved[0] - moved[1]) / 2e-6, rtol=1e-6, atol=1e-8)
    assert perplexity(TinyTransformer(tokens=40, width=16).build((6,), 2), weights, split, 2) is None
