"""Recover texts from a transformer's gradients, by their row spaces."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.labels.infer import infer_labels
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.attacks.spans.dependence import dependent
from bench.attacks.spans.layers import LayeredModel
from bench.attacks.spans.outside import EXACT
from bench.attacks.spans.prefixes import longest
from bench.attacks.spans.remainder import Remainder
from bench.attacks.spans.search import Search
from bench.attacks.spans.subtraction import beyond, without
from bench.attacks.spans.whole import Texts
from bench.attacks.texts.language import Language
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Status, Tensors

_STARTS = 8  # texts improved in parallel
_LEARNED = 32  # public texts, before a language model is made of them
_NOTHING = 1e-4  # of the reading's length: rounding
_NOTES = ("starts of the search for texts count as restarts; no gradient is matched",)


@dataclass(frozen=True, kw_only=True)
class TokenSpan(Attack):
    """Recover texts from a transformer's gradients: test which vectors lie in the row space of a layer's gradient [dW |
    db] = Σ δ (h, 1)ᵀ. h are the layer's inputs and δ = ∂loss/∂z at its output z.

    - First attention layer: h depends on a token and its position only. All tokens at all positions are tested; zero
      rows in the token embedding's gradient exclude tokens, and the position embedding's gradient shows at which
      positions a token is likely. With LoRA, the layers are the matrices A (rank r: r rows of each A's gradient) and B
      (whose inputs have r values).
    - Next attention layer (without one, the layer with the greatest rank): h depends on the whole text. Exchanges of
      tokens improve texts made from the tokens that passed the first test, until all h lie in the row space. The
      derivative of the distance to the row space by token vectors selects the exchanges. Positions have weights, so
      that random texts of all lengths are equally near. A text whose vectors all lie in the row space is confirmed.
    - More tokens than rows: a layer with fewer output values than tokens has a row space that is too small, and right
      texts are only near to it. The vectors of right texts are linearly dependent together with the row space, as soon
      as there are more of them than directions are missing (subspace augmentation, Lee et al. 2012). Wrong texts stay
      independent. Dependent texts are certain.
    - A causal model (language models): vectors depend on earlier tokens only, so texts grow token by token, and the
      longest ones whose vectors all lie in the row space are certain.
    - Several local steps (plain SGD of a single client): the first step's gradient is at the given weights w, so its
      texts can be certain. Their gradient g_0 gives the next step's weights w - η g_0, at which the next step's texts
      can be certain, and so on. Texts of later steps are off the row space by the movement of their vectors h. Over L
      steps with the mean gradient ḡ, a vector moves by η (L - 1) ‖(∂h/∂w) ḡ‖ / ‖h‖ of its length, to first order. This
      is the tolerance of the first test if a step's texts are not all certain: the difference between h at w and at w -
      η L ḡ, times (L - 1) / L. With momentum, weight decay, schedules or several clients, only this tolerance is used.
    - A certain text's gradient is subtracted from the reading. The row spaces then hold the other texts only.

    Departures from DAGER: the search for texts is ours, in place of an enumeration; half of its starts are drawn by a
    language model of public texts. Likely positions, dependence and subtraction are ours. Query, key and value
    gradients are tested together, with biases. Directions of the vectors h in which no two texts differ are left out of
    the test. If noise fills the row space, the rank counts singular values above 1.6 medians, and the nearest texts are
    the result, unconfirmed."""

    reference = "Petrov et al. 2024 (DAGER)"
    takes = ("text",)
    iterative = False
    reading_seconds = 0.5
    most_examples = 32

    starts: int = parameter(
        16, "starts of the search, per example; those that find a certain text do not count", source="ours", low=1
    )

    def refuses(self, reading: Reading) -> str | None:
        if reading.linked != "vector":
            return "it needs whole gradients of layers, and this reading's coordinates are not linked"
        if reading.adam is not None or (reading.rule is not None and reading.rule.clip is not None):
            return "it does not handle Adam or clipping in local steps"
        if LayeredModel.of(reading) is None:
            return "its model has no linear layers on the vectors of single tokens, and of texts behind them"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        net, observed = LayeredModel.of(reading), mean_observation(observations(reading))
        assert net is not None
        results = [self._texts(net, reading, observed, row, key) for row in range(len(reading))]
        return closed_form(
            reading,
            torch.stack([result.texts for result in results]).to(next(iter(observed.values())).dtype),
            infer_labels(reading, observed),
            loss=torch.tensor([result.loss for result in results], dtype=torch.float64),
            certificate=torch.tensor([result.certain for result in results], dtype=torch.float64),
            status=tuple(result.status for result in results),
            notes=_NOTES,
        )

    def _texts(self, net: LayeredModel, reading: Reading, observed: Tensors, row: int, key: Key) -> "_Result":
        gradients = {name: value[row].double().cpu() for name, value in observed.items()}
        count, index = reading.examples, reading.indices[row]
        nothing = reading.public_mean.double().cpu().expand(count, -1)
        if not all(bool(torch.isfinite(value).all()) for value in gradients.values()):
            return _Result(texts=nothing, loss=float("nan"), certain=0.0, status="nan")
        public = reading.public_inputs.cpu()
        language = Language.of(public, net.tokens) if len(public.unique(dim=0)) >= _LEARNED else None
        left = Remainder.of(net, reading, gradients)
        draws = (key.generator("start", index, 0, start) for start in itertools.count())
        left, certain, others = self._searched(left, language, draws, {}, {})
        if left.steps > 1 and len(certain) < count:
            left = replace(left, drifted=True)
            left, certain, others = self._searched(left, language, draws, certain, others)
        ranked = [*sorted(certain, key=lambda text: certain[text]), *sorted(others, key=lambda text: others[text])]
        best = ranked[:count]
        texts = torch.tensor(best, dtype=torch.float64).reshape(-1, *reading.shape)
        losses = certain | others
        return _Result(
            texts=torch.cat([texts, nothing[len(best) :]]),
            loss=float(np.mean([losses[text] for text in best])) if best else 1.0,
            certain=min(len(certain), count) / count,
        )

    def _searched(
        self,
        left: Remainder,
        language: Language | None,
        draws: Iterator[np.random.Generator],
        certain: Texts,
        others: Texts,
    ) -> tuple[Remainder, Texts, Texts]:
        """Search for the texts behind the rest of a reading, `left`. Return the rest without the certain texts, all
        certain texts, and the others.

        - `language`: a language model for starts; None: uniform starts only.
        - `draws`: a generator for each start.
        - `certain`, `others`: texts from earlier searches."""
        search, failed = Search.of(left, language), 0
        if left.net.causal:
            left, search, certain, others = _by_tokens(left, search, certain, others)
        while not (certain and left.net.causal) and failed < self.starts * left.count and search.possible:
            ends = search.improve(list(itertools.islice(draws, _STARTS)), set(certain))
            others = others | {text: loss for text, loss in ends.items() if text not in certain}
            if not search.whole.space.null.shape[1]:
                break  # all texts are equally near
            new = {text: loss for text, loss in others.items() if loss <= EXACT}
            new |= dependent(search.whole, sorted(others, key=lambda text: others[text]))
            if not new or left.net.causal:  # a beginning of a right text passes the same tests
                failed += _STARTS
                continue
            certain = certain | new
            if len(certain) >= left.count:
                break
            left = beyond(left, search.whole, certain)
            search = Search.of(left, language)
            others = search.losses([text for text in others if text not in new])
        return left, certain, others


def _by_tokens(
    left: Remainder, search: Search, certain: Texts, others: Texts
) -> tuple[Remainder, Search, Texts, Texts]:
    """Find texts token by token, for a model whose vectors depend on earlier tokens only, and subtract the gradients of
    recovered texts until no new text comes. Return the rest, a search in the rest, the certain texts and the others. A
    text is certain if its vectors leave the row space with the gradient, and all texts are certain if the reading is
    used up. `certain` and `others` are texts from earlier searches."""
    while len(left.gone) < left.count:
        found, extended = longest(search.whole, search.choices.lists, {*certain, *others})
        after = without(left, search.whole, sorted(found, key=lambda text: found[text])[: left.room])
        new = {text: found[text] for text in after.gone - left.gone}
        others = others | {text: loss for text, loss in found.items() if text not in new and text in after.kept}
        if not new:
            break
        exact = {text: loss for text, loss in new.items() if loss <= EXACT and not extended}
        certain = certain | exact
        others = others | {text: loss for text, loss in new.items() if text not in exact}
        left = replace(after, kept=()).advanced()
        search = Search.of(left, None)
    if len(left.gone) == left.count and left.remains() <= _NOTHING:
        return left, search, {text: (certain | others)[text] for text in left.gone}, {}
    return left, search, certain, others


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    texts: Tensor  # (example, position)
    loss: float  # mean of the texts' losses
    certain: float  # share of examples with a certificate
    status: Status = "ok"
