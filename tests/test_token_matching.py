"""Promise: texts that explain a reading come back also under noise and from low ranks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.texts import trained_on
from torch import Tensor, nn

from bench import api
from bench.attacks import token_matching
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.attacks.texts.fit import Fit
from bench.attacks.texts.language import Language
from bench.attacks.texts.moves import crossed, shifted, together
from bench.attacks.texts.starts import label_lists
from bench.attacks.token_matching import TokenMatching, _mismatch
from bench.contracts.situations import Situation, situation
from bench.kinds.texts import TEXT, lengths
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

POSITIONS = 8
PUBLIC = torch.from_numpy(TEXT.values.draw(np.random.default_rng(1), (40, POSITIONS))).long()


def ids(rows: list[list[int]]) -> Tensor:
    return torch.tensor([row + [0] * (POSITIONS - len(row)) for row in rows])


def attacked(reading: Reading, evaluations: int = 100) -> Reconstruction:
    return TokenMatching(starts=2).reconstruct(reading, Budget(evaluations=evaluations), Key(seed=0))


def texts(inputs: Tensor) -> list[tuple[float, ...]]:
    return sorted(tuple(text) for text in inputs.tolist())


def read(model: nn.Module, sentences: Tensor, noise: float = 0.0) -> Reading:
    gradients = api.gradient(model, sentences, [n % 2 for n in range(len(sentences))])
    draws = torch.Generator().manual_seed(0)
    gradients = {
        name: value + noise**0.5 * torch.randn(value.shape, generator=draws) for name, value in gradients.items()
    }
    shape, batch = (POSITIONS,), len(sentences)
    return api.reading(gradients, model=model, shape=shape, classes=2, batch=batch, kind="text", public=PUBLIC)


def build(name: str, **params: Any) -> nn.Module:
    torch.manual_seed(0)
    return api.build(name, shape=(POSITIONS,), classes=2, params={"tokens": 16, "width": 16, "blocks": 1, **params})


@pytest.mark.parametrize(
    ("params", "noise"),
    [
        ({"name": "tiny-transformer"}, 1e-3),  # noise of the size of the gradient
        ({"name": "fine-tuned-transformer", "rank": 1, "b0": "drawn"}, 0.0),
        ({"name": "fine-tuned-transformer", "part": "blocks"}, 0.0),
    ],
)
def test_a_text_comes_back_where_no_row_space_shows_it(params: dict[str, Any], noise: float) -> None:
    sentence = ids([[3, 9, 14, 3, 7, 11]])
    result = attacked(read(build(**params), sentence, noise))
    assert texts(result.inputs[0]) == texts(sentence)
    assert result.certificate is None
    assert 0 < int(result.evaluations[0]) <= 100
    assert int(attacked(read(build(**params), sentence, noise), 1).evaluations[0]) == 1


FOUR = ids([[3, 9, 14, 3, 7], [12, 5, 8], [4, 4, 10, 2], [6, 15, 1, 9, 11, 13]])


@pytest.mark.parametrize("count", [1, 4])
def test_texts_and_labels_come_back_also_from_wrong_labels(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single and joint search find the labels themselves."""
    wrong = torch.tensor([[1, 0, 0, 0][:count]])
    monkeypatch.setattr(token_matching, "infer_labels", lambda reading, observed: wrong)
    result = attacked(read(build("tiny-transformer"), FOUR[:count]))
    assert texts(result.inputs[0]) == texts(FOUR[:count])
    assert sorted(result.labels[0].tolist()) == [0, 0, 1, 1][:: 4 // count]


def test_lists_of_labels_differ_from_the_inferred_one_in_a_single_label() -> None:
    lists = label_lists(torch.tensor([0, 1, 1]), 2)
    assert [sorted(each.tolist()) for each in lists] == [[0, 1, 1], [1, 1, 1], [0, 0, 1]]
    assert [each.tolist() for each in label_lists(torch.tensor([2]), 4)] == [[2], [0], [1], [3]]


def test_texts_of_several_local_steps_come_back_with_their_order() -> None:
    result = attacked(trained_on(build("tiny-transformer"), FOUR[2:], rate=0.1, public=PUBLIC))
    assert result.inputs[0].tolist() == FOUR[2:].tolist() and result.labels[0].tolist() == [0, 1]


def test_granted_labels_are_kept() -> None:
    reading = replace(read(build("tiny-transformer"), FOUR), labels=torch.tensor([[0, 0, 0, 1]]))
    assert sorted(attacked(reading, 3).labels[0].tolist()) == [0, 0, 0, 1]


@pytest.fixture(scope="module")
def described() -> Situation:
    return situation("type-1", batch=2, readings=1, kind=TEXT, defense="dp-sgd", knowledge="adaptive")


def test_distances_of_near_texts_equal_those_from_the_beginning(described: Situation) -> None:
    """Only changed texts get a new gradient; a clip and noise are simulated."""
    for case in (described, situation("type-1", batch=2, readings=1, kind=TEXT)):
        reading, mismatch = case.reading, _mismatch(case.reading)
        observed = mean_observation(observations(reading))
        labels = torch.tensor([0, 1])
        fit = replace(Fit.of(mismatch, observed, labels), scale=0.0)
        truth = case.truth[0].long()
        moves = torch.cat([truth[None], crossed(truth)[:3], shifted(truth)[:3]])
        objective = TokenMatching().objective(reading)
        targets = torch.nn.functional.one_hot(labels, reading.classes).to(case.truth)
        like = next(iter(observed.values())).dtype
        expected = [float(objective(move[None].to(like), targets[None].to(like))) for move in moves]
        assert fit.losses(fit.state(truth), moves).tolist() == pytest.approx(expected, rel=1e-3)


def test_the_noise_weighs_the_language(described: Situation) -> None:
    observed = mean_observation(observations(described.reading))
    fit = Fit.of(_mismatch(described.reading), observed, torch.tensor([0, 1]))
    assert described.reading.description is not None
    assert fit.scale == pytest.approx(2 * described.reading.description.noise.variance) and fit.scale > 0


@pytest.mark.parametrize("tokens", [16, 30_000])
def test_a_language_model_prefers_texts_like_the_public_ones(tokens: int) -> None:
    language = Language.of(ids([[1, 2, 3], [1, 2, 4], [5, 2, 3]]), tokens)
    assert language.log.numel() == (6 + 1) ** 2  # whatever the vocabulary
    torch.testing.assert_close(
        language.following(torch.tensor([0, 1, 2])).exp().sum(1), torch.ones(3, dtype=torch.float64)
    )
    likely, shuffled, longer = language.log_probability(ids([[1, 2, 3], [3, 2, 1], [1, 2, 3, 7]])).tolist()
    assert likely > shuffled and likely > longer


def test_moves_leave_no_padding_between_tokens() -> None:
    batch = ids([[3, 9, 14], [12, 5, 8, 6, 2]])
    moves = torch.cat([crossed(batch), shifted(batch)])
    joined = together(batch, moves)
    for made in (moves, joined):
        assert len(made) and ((made != 0).sum(-1).numpy() == lengths(made.numpy())).all()


def test_what_the_attack_cannot_read_it_refuses() -> None:
    reading, attack = situation(kind=TEXT).reading, TokenMatching()
    assert attack.refuses(reading) is None
    unlinked, stepwise = replace(reading, linked="coordinate"), replace(reading, steps=2, senders=2)
    assert attack.refuses(unlinked) == "it compares whole gradients, and this reading's coordinates are not linked"
    assert attack.refuses(stepwise) == "behind a mean over clients, it does not handle several local steps"
