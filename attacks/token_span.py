"""Recover texts from a transformer's gradients, by their row spaces."""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from bench.attacks.base import Attack, closed_form
from bench.attacks.labels.infer import infer_labels
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.attacks.texts.language import Language
from bench.attacks.texts.prefixes import continued, grown
from bench.gradients import group_gradients, one_hot
from bench.kinds.texts import PAD
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Status, StepRule, Tensors

_ROUNDING = 1e-7  # of the largest singular value: rounding of float32 sums
_MEMBER = 1e-4  # share of a vector's length outside the row space: rounding, if the vector belongs to it
_EXACT = 1e-9  # mean square of these shares over a text's tokens: certain
_ABOVE = 1.6  # of the median singular value: more than noise
_DRAWN = 256  # random texts that show in which directions vectors differ at all
_FIRST = 16  # directions outside the row space, for the first test of a token
_CHUNK = 64  # texts in a forward pass: their vectors stay in the processor's cache
_CLOSE = 4  # changed texts compared again in double precision, in single precision the nearest
_STARTS = 8  # texts improved in parallel
_MOVES = 32  # exchanges of a token tested exactly, by the derivative the best
_WIDER = 4  # times as many, before a start is given up
_LEARNED = 32  # public texts, before a language model is made of them
_PLAUSIBLE = 0.5  # of the starts: texts drawn by a language model of public texts; the others are uniform
_LEAST = 0.01  # of the mean share outside, in a position: bounds the weights of positions
_COMPLETIONS = 4  # of a text to each greater length, before a start is given up
_SPARE = 8  # directions left outside the row space and the vectors of found texts: no text lies in all directions
_GONE = 1e-6  # mean square of a text's shares outside, at least, after its gradient was subtracted
_DOUBT = 1e-4  # square of a vector's share outside: less may be rounding, so a text is continued by such a token
_NOTHING = 1e-4  # of the reading's length: rounding
_RIDGE = 1e-13  # square of a length: keeps products of dependent vectors invertible
_NEW = 1e-5  # of a vector's length: above rounding of the row space, if the vector is in it
_NOTES = ("starts of the search for texts count as restarts; no gradient is matched",)


@dataclass(frozen=True, kw_only=True)
class TokenSpan(Attack):
    """Recover texts from a transformer's gradients: test which vectors lie in the row space of a layer's gradient [dW |
    db] = Σ δ (h, 1)ᵀ. h are the layer's inputs and δ = ∂loss/∂z at its output z.

    - First attention layer: h depends on a token and its position only. All tokens at all positions are tested; zero
      rows in the token embedding's gradient exclude tokens. With LoRA, the layers are the matrices A (rank r: r rows of
      each A's gradient) and B (whose inputs have r values).
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
    language model of public texts. Dependence and subtraction are ours. Query, key and value gradients are tested
    together, with biases. Directions of the vectors h in which no two texts differ are left out of the test. If noise
    fills the row space, the rank counts singular values above 1.6 medians, and the nearest texts are the result,
    unconfirmed."""

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
        if _Net.of(reading) is None:
            return "its model has no linear layers on the vectors of single tokens, and of texts behind them"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        net, observed = _Net.of(reading), mean_observation(observations(reading))
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

    def _texts(self, net: "_Net", reading: Reading, observed: Tensors, row: int, key: Key) -> "_Result":
        gradients = {name: value[row].double().cpu() for name, value in observed.items()}
        count, index = reading.examples, reading.indices[row]
        nothing = reading.public_mean.double().cpu().expand(count, -1)
        if not all(bool(torch.isfinite(value).all()) for value in gradients.values()):
            return _Result(texts=nothing, loss=float("nan"), certain=0.0, status="nan")
        public = reading.public_inputs.cpu()
        language = Language.of(public, net.tokens) if len(public.unique(dim=0)) >= _LEARNED else None
        left = _Left(
            net=net,
            first=net,
            sent=gradients,
            rest=gradients,
            count=count,
            classes=reading.classes,
            steps=reading.steps,
            rate=reading.rate,
            ends=_ends(reading),
        )
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
        left: "_Left",
        language: Language | None,
        draws: Iterator[np.random.Generator],
        certain: "_Texts",
        others: "_Texts",
    ) -> tuple["_Left", "_Texts", "_Texts"]:
        """Search for the texts behind the rest of a reading, `left`. Return the rest without the certain texts, all
        certain texts, and the others.

        - `language`: a language model for starts; None: uniform starts only.
        - `draws`: a generator for each start.
        - `certain`, `others`: texts from earlier searches."""
        search, failed = left.search(language), 0
        if left.net.causal:
            left, search, certain, others = _by_tokens(left, search, certain, others)
        while not (certain and left.net.causal) and failed < self.starts * left.count and search.possible:
            ends = search.improve(list(itertools.islice(draws, _STARTS)), set(certain))
            others |= {text: loss for text, loss in ends.items() if text not in certain}
            if not search.whole.null.shape[1]:
                break  # all texts are equally near
            new = {text: loss for text, loss in others.items() if loss <= _EXACT}
            new |= search.dependent(sorted(others, key=lambda text: others[text]))
            if not new or left.net.causal:  # a beginning of a right text passes the same tests
                failed += _STARTS
                continue
            certain = certain | new
            if len(certain) >= left.count:
                break
            left, search = left.beyond(search, certain, language)
            others = search.losses([text for text in others if text not in new])
        return left, certain, others


_Texts = dict[tuple[int, ...], float]  # token ids → loss


def _ends(reading: Reading) -> frozenset[int]:
    """Return the numbers of texts after which a further local step begins, if the weights of this step follow from the
    gradients of earlier texts; otherwise an empty set."""
    plain = reading.senders == 1 and not reading.ragged and not reading.momentum and not reading.weight_decay
    if not plain or reading.rule not in (None, StepRule()):
        return frozenset()
    return frozenset(itertools.accumulate(reading.batches[:-1]))


def _by_tokens(
    left: "_Left", search: "_Search", certain: _Texts, others: _Texts
) -> tuple["_Left", "_Search", _Texts, _Texts]:
    """Find texts token by token, for a model whose vectors depend on earlier tokens only, and subtract the gradients of
    recovered texts until no new text comes. Return the rest, a search in the rest, the certain texts and the others. A
    text is certain if its vectors leave the row space with the gradient, and all texts are certain if the reading is
    used up. `certain` and `others` are texts from earlier searches."""
    while len(left.gone) < left.count:
        longest, extended = search.grown({*certain, *others})
        after = left.without(search, sorted(longest, key=lambda text: longest[text])[: left.room])
        new = {text: longest[text] for text in after.gone - left.gone}
        others = others | {text: loss for text, loss in longest.items() if text not in new and text in after.kept}
        if not new:
            break
        exact = {text: loss for text, loss in new.items() if loss <= _EXACT and not extended}
        certain = certain | exact
        others = others | {text: loss for text, loss in new.items() if text not in exact}
        left = replace(after, kept=()).advanced()
        search = left.search(None)
    if len(left.gone) == left.count and left.remains() <= _NOTHING:
        return left, search, {text: (certain | others)[text] for text in left.gone}, {}
    return left, search, certain, others


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    texts: Tensor  # (example, position)
    loss: float  # mean of the texts' `_Search.loss`
    certain: float  # share of examples with a certificate
    status: Status = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """A gradient's information about unknown texts."""

    net: "_Net"  # at the weights of the local step whose texts are unknown
    first: "_Net"  # at the reading's weights
    sent: Tensors  # the reading, name → (*shape)
    rest: Tensors  # the reading without the gradients of known texts
    count: int  # examples behind the reading
    classes: int
    gone: frozenset[tuple[int, ...]] = frozenset()  # known texts, whose gradients are subtracted
    kept: tuple[tuple[int, ...], ...] = ()  # known texts whose gradients could not be subtracted
    steps: int = 1  # local steps behind the reading
    rate: float = 0.0  # learning rate of these steps
    ends: frozenset[int] = frozenset()  # numbers of known texts at which the next step's weights follow
    drifted: bool = False  # the first test has a tolerance for texts of later steps

    @property
    def limit(self) -> int:
        return (self.count - len(self.gone)) * self.net.positions

    @property
    def room(self) -> int:
        """Largest number of texts to subtract at these weights: the unknown texts of this local step."""
        return min(end for end in (*self.ends, self.count) if end > len(self.gone)) - len(self.gone)

    def advanced(self) -> "_Left":
        """Return the same reading at the weights of the next local step, if all texts of this step are known."""
        if len(self.gone) not in self.ends:
            return self
        known = {name: value - self.rest[name] for name, value in self.sent.items()}
        return replace(self, net=self.first.moved(known, self.steps * self.rate))

    @property
    def last(self) -> "_Net | None":
        """The model at the weights after all local steps; None if the first test needs no tolerance."""
        return self.first.moved(self.sent, self.steps * self.rate) if self.drifted and self.later > 1 else None

    @property
    def later(self) -> int:
        """Number of local steps whose texts are unknown."""
        return self.steps - sum(end <= len(self.gone) for end in self.ends)

    def remains(self) -> float:
        """Return the length of the rest, relative to the reading's."""
        sent, rest = (torch.cat([value.flatten() for value in each.values()]).norm() for each in (self.sent, self.rest))
        return float(rest / sent)

    def search(self, language: Language | None) -> "_Search":
        """Return a search for the unknown texts; known texts that are still in the rest extend its row space."""
        whole = self.net.telling(self, self.limit)
        candidates = _candidates(self, whole)
        search = _Search(self.net, whole, candidates, language)
        return search if not self.kept else _Search(self.net, search.with_known(self.kept), candidates, language)

    def beyond(self, search: "_Search", certain: _Texts, language: Language | None) -> tuple["_Left", "_Search"]:
        """Subtract the gradients of the `certain` texts, the nearest to the row space first, local step by local step.
        Return the rest and a search in the rest. `search` is the present search; `language` is as for `search`."""
        left = self
        while True:
            waiting = sorted(certain.keys() - left.gone, key=lambda text: certain[text])
            after = left.without(search, waiting[: left.room])
            left = after.advanced()
            search = left.search(language)
            if left is after or not certain.keys() - left.gone:
                return left, search

    def without(self, search: "_Search", certain: Iterable[tuple[int, ...]]) -> "_Left":
        """Subtract the gradients of `certain` texts. A label and the weight 1 / examples are right if the text's
        vectors leave the span of the row space and the other texts' vectors."""
        rest, gone, kept = dict(self.rest), set(self.gone), []
        waiting = [text for text in certain if text not in gone]
        for text in waiting:
            others = [other for other in waiting if other not in gone and other != text]
            tries = []
            for label in range(self.classes):
                gradient = self.net.gradient(text, label, self.classes)
                less = {name: value - gradient[name] / self.count for name, value in rest.items()}
                outside = _Outside.of(self.net, search.whole.paths, replace(self, rest=less), self.limit)
                tries.append((search.share(text, others, outside), label, less))
            share, _, less = max(tries, key=lambda each: each[0])
            if share > _GONE:
                rest = less
                gone.add(text)
            else:
                kept.append(text)
        return replace(self, rest=rest, gone=frozenset(gone), kept=tuple(kept))


class _Stop(Exception):
    """Ends a forward pass at the layer whose input is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Net:
    model: nn.Module  # with the reading's weights
    positions: int
    crops: bool  # padding may be cut off: the vectors of the tokens stay equal
    embedding: str  # path of the token embedding
    table: Tensor  # (token, value): its weights, trained or frozen
    weights: Tensors  # of the model, name → (*shape)
    single: tuple[tuple[str, ...], ...]  # trained linear layers on the vectors of single tokens, by input
    whole: tuple[tuple[str, ...], ...]  # trained linear layers on vectors that depend on the whole text, by input
    causal: bool  # vectors depend on earlier tokens only

    @property
    def tokens(self) -> int:
        return len(self.table)

    @classmethod
    def of(cls, reading: Reading) -> "_Net | None":
        model = copy.deepcopy(reading.model).double().cpu()
        for module in model.modules():
            module._forward_pre_hooks.clear()  # passes of the copy are no evaluations
        weights = {name: value[0].detach().double().cpu() for name, value in reading.weights.items()}
        model.requires_grad_(False).load_state_dict(weights, strict=False)
        # texts with a common first token, and with a common last token: equal vectors there depend on no other token
        ids = torch.full((3, *reading.shape), 1.0, dtype=torch.float64)
        ids[1, 1:] = ids[2, :-1] = 2
        embeddings, groups = _layers(model, frozenset(weights), ids)
        forward, backward = (
            [bool(torch.allclose(h[0, at], h[other, at], rtol=0, atol=1e-12)) for h, _ in groups]
            for at, other in ((0, 1), (-1, 2))
        )
        alone = [first and last for first, last in zip(forward, backward, strict=True)]
        if len(embeddings) < 1 or all(alone):
            return None
        single, whole = (
            tuple(tuple(paths) for (_, paths), same in zip(groups, alone, strict=True) if same == first)
            for first in (True, False)
        )
        embedding = model.get_submodule(embeddings[0])
        assert isinstance(embedding, nn.Embedding)
        return cls(
            model=model,
            positions=reading.shape[0],
            crops=_crops(model, frozenset(weights), reading.shape[0]),
            embedding=embeddings[0],
            table=weights.get(f"{embeddings[0]}.weight", embedding.weight).detach(),
            weights=weights,
            single=single,
            whole=whole,
            causal=all(forward),
        )

    def gradient(self, text: tuple[int, ...], label: int, classes: int) -> Tensors:
        """Return the model's gradient for the `text` (token ids) with the class number `label`, name → (*shape)."""
        inputs = torch.tensor(text, dtype=torch.float64)[None, None]
        targets = one_hot(torch.tensor([[label]]), classes, torch.float64)
        each = group_gradients(self.model, self.weights, inputs, targets)
        return {name: value[0] for name, value in each.items()}

    def inputs(self, path: str, texts: Tensor) -> Tensor:
        """Return the inputs of the layer at `path` for `texts` (text, position), each followed by 1: (text, position,
        value + 1)."""
        kept: list[Tensor] = []

        def keep(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            kept.append(arguments[0])
            raise _Stop

        handle = self.model.get_submodule(path).register_forward_pre_hook(keep)
        try:
            with suppress(_Stop):
                self.model(texts)
        finally:
            handle.remove()
        return torch.cat([kept[0], kept[0].new_ones(*kept[0].shape[:-1], 1)], -1)

    def moved(self, gradient: Tensors, rate: float) -> "_Net":
        """Return a copy at the weights after a step by the `gradient`, name → (*shape), with the learning `rate`."""
        weights = {name: value - rate * gradient[name] for name, value in self.weights.items()}
        model = copy.deepcopy(self.model)
        model.load_state_dict(weights, strict=False)
        return replace(self, model=model, weights=weights, table=weights.get(f"{self.embedding}.weight", self.table))

    def single_precision(self) -> "_Net":
        """Return a copy whose vectors have single precision."""
        return replace(self, model=copy.deepcopy(self.model).float(), table=self.table.float())

    def telling(self, left: _Left, limit: int) -> "_Outside":
        """Select the layer whose gradient decides best whether a whole text is right: the next attention layer, or
        without such a layer, the layer with the greatest rank. Layers with a full row space are the last choice. Return
        the directions outside the row space of the layer's gradient.

        - `left`: the reading.
        - `limit`: largest possible rank, the number of tokens behind the reading."""
        size = len(self.single[0]) if self.single else 2
        layers = _seen(self.whole, left.rest) or self.whole
        last = next((n for n, paths in enumerate(layers) if len(paths) >= size > 1), None)
        several = [_Outside.of(self, paths, left, limit) for paths in layers[: None if last is None else last + 1]]
        if last is not None and several[last].exact:
            return several[last]
        several += [_Outside.of(self, paths, left, limit) for paths in layers[len(several) :]]
        return max(several, key=lambda one: (one.exact, min(one.rank, one.null.shape[1])))  # of equal ones, the first

    @contextmanager
    def vectors(self) -> Iterator[list[Tensor]]:
        """Collect the token embedding's outputs (text, position, value) during forward passes inside the `with`
        statement. The outputs are leaves for autograd."""
        leaves: list[Tensor] = []

        def leaf(layer: nn.Module, arguments: tuple[Tensor, ...], out: Tensor) -> Tensor:
            leaves.append(out.detach().requires_grad_())
            return leaves[-1]

        handle = self.model.get_submodule(self.embedding).register_forward_hook(leaf)
        try:
            yield leaves
        finally:
            handle.remove()


def _layers(model: nn.Module, trained: frozenset[str], ids: Tensor) -> tuple[list[str], list[tuple[Tensor, list[str]]]]:
    """Return the paths to embeddings that take the `ids` (text, position), and the `trained` linear layers per position
    in call order: pairs (input (text, position, value), paths to the layers with this input)."""
    embeddings: list[str] = []
    groups: list[tuple[Tensor, list[str]]] = []

    def watch(path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            given = arguments[0]
            if isinstance(layer, nn.Embedding) and given.shape == ids.shape and bool((given == ids).all()):
                embeddings.append(path)
            elif isinstance(layer, nn.Linear) and given.shape[:-1] == ids.shape and f"{path}.weight" in trained:
                same = next((paths for known, paths in groups if known is given), None)
                if same is None:
                    groups.append((given, [path]))
                else:
                    same.append(path)

        return hook

    handles = [
        layer.register_forward_pre_hook(watch(path))
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Embedding | nn.Linear)  # other layers of a user's model may take keywords only
    ]
    try:
        with torch.no_grad():
            model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return embeddings, groups


def _crops(model: nn.Module, trained: frozenset[str], positions: int) -> bool:
    """Return whether the layers' inputs for a text stay equal without the padding behind the text."""
    short = (positions + 1) // 2
    ids = torch.full((1, positions), float(PAD), dtype=torch.float64)
    ids[:, :short] = 1
    whole = _layers(model, trained, ids)[1]
    try:
        cut = _layers(model, trained, ids[:, :short])[1]
    except Exception:  # a model of a user may refuse other lengths by any error
        return False
    return [paths for _, paths in cut] == [paths for _, paths in whole] and all(
        bool(torch.allclose(less, more[:, :short], rtol=0, atol=1e-12))
        for (less, _), (more, _) in zip(cut, whole, strict=True)
    )


def _seen(layers: tuple[tuple[str, ...], ...], gradients: Tensors) -> tuple[tuple[str, ...], ...]:
    """Return the layers with a gradient: matrix A of LoRA has none as long as B is zero."""
    return tuple(paths for paths in layers if any(bool(gradients[f"{path}.weight"].any()) for path in paths))


def _rest(parts: Tensor) -> Tensor:
    """Return orthogonal directions outside the span of the rows in `parts` (vector, value): (value, direction)."""
    singular, right = _spectrum(parts)
    return right[int((singular > _NEW).sum()) :].mT


def _spectrum(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the singular values (direction,), also zeros, and the right singular vectors (direction, direction)."""
    _, singular, right = torch.linalg.svd(matrix)
    return torch.cat([singular, singular.new_zeros(len(right) - len(singular))]), right


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outside:
    """Directions outside the gradients' row space, for layers with a common input."""

    paths: tuple[str, ...]  # layers with the same input
    null: Tensor  # (value used, outside): directions outside the row space
    idle: Tensor  # (value used, idle): directions in which inputs do not differ
    rank: int  # of the row space
    exact: bool  # False if noise fills the row space

    @property
    def path(self) -> str:
        return self.paths[0]

    @classmethod
    def of(cls, net: _Net, paths: tuple[str, ...], left: _Left, limit: int) -> "_Outside":
        gradients = left.rest
        draws = torch.Generator().manual_seed(0)
        texts = torch.randint(1, net.tokens, (_DRAWN, net.positions), generator=draws).double()
        with torch.no_grad():
            vectors = torch.cat([net.inputs(paths[0], part) for part in texts.split(_CHUNK)]).flatten(0, 1)
        if not any(f"{path}.bias" in gradients for path in paths):
            vectors = vectors[:, :-1]  # the gradients say nothing about the constant
        values, directions = torch.linalg.eigh(vectors.mT @ vectors)
        differ = values > 1e-12 * values[-1]
        basis = directions[:, differ]
        rows, fewer = [], 1.0  # how much less is left than was sent: rounding stays
        for path in paths:
            bias = gradients.get(f"{path}.bias")
            weight = gradients[f"{path}.weight"]
            row = torch.cat([weight, (weight.new_zeros(len(weight)) if bias is None else bias)[:, None]], 1)
            rows.append(row[:, : len(basis)] @ basis)
            fewer = max(fewer, float(left.sent[f"{path}.weight"].norm() / weight.norm().clamp_min(1e-300)))
        alike = torch.cat([row / row.norm().clamp_min(1e-300) for row in rows])
        singular, right = _spectrum(alike)
        rounding = _ROUNDING * singular[0] * fewer
        exact = bool(singular[-1] <= rounding)
        if not exact:
            singular, right = _spectrum(torch.cat(rows))  # the noise is the same in all layers
        floor = rounding if exact else _ABOVE * singular.median()
        rank = max(1, min(limit, int((singular > floor).sum())))
        null = basis @ right[rank:].mT
        return cls(paths=paths, null=null, idle=directions[:, ~differ], rank=rank, exact=exact)

    def parts(self, inputs: Tensor) -> Tensor:
        """Return each vector's part outside the row space, in units equal to the vector's length: (vector, outside).
        `inputs` (vector, value + 1) are the vectors."""
        return (inputs[:, : len(self.null)] @ self.null) / self.lengths(inputs).sqrt()[:, None]

    def lengths(self, inputs: Tensor) -> Tensor:
        """Return each vector's squared length in the directions in which inputs differ, (...,). `inputs` (..., value +
        1) are the vectors."""
        used = inputs[..., : len(self.null)]
        return used.square().sum(-1) - (used @ self.idle).square().sum(-1)

    def with_known(self, inputs: Tensor) -> "_Outside":
        """Return the directions outside the row space and outside known texts' vectors `inputs` (vector, value + 1).
        These add to the row space, where it has too few directions for all texts."""
        null = self.null @ _rest(self.parts(inputs))
        return replace(self, null=null, rank=self.rank + self.null.shape[1] - null.shape[1])

    def single_precision(self) -> "_Outside":
        """Return the directions in single precision."""
        return replace(self, null=self.null.float(), idle=self.idle.float())

    def some(self, count: int) -> "_Outside":
        """Return `count` random orthogonal directions outside the row space: the share of a vector's squared length in
        them is at most the share in all directions."""
        drawn = torch.randn(self.null.shape[1], count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        return replace(self, null=self.null @ torch.linalg.qr(drawn).Q) if count < len(drawn) else self

    def squares(self, inputs: Tensor) -> Tensor:
        """Return the share of each vector's squared length that is outside the gradient's row space: (...,); 1 if
        the row space holds every vector. `inputs` (..., value + 1) are the vectors."""
        outside = (inputs[..., : len(self.null)] @ self.null).square().sum(-1) / self.lengths(inputs)
        return outside if self.null.shape[1] else outside + 1


def _candidates(left: _Left, whole: "_Outside") -> Tensor:
    """Return which tokens may stand at which positions, (token, position), by the row spaces of the first layers. Under
    noise, and if the row spaces hold no token, each position has its nearest tokens. If only later layers are trained,
    texts of a repeated token tell the nearest tokens in `whole`."""
    net, count = left.net, left.count - len(left.gone)
    table = left.sent.get(f"{net.embedding}.weight")
    rows = torch.ones(net.tokens, dtype=torch.bool) if table is None else table.flatten(1).any(1)
    allowed = rows.clone() if rows.any() else torch.ones_like(rows)
    allowed[PAD] = False
    ids = allowed.nonzero()[:, 0].double()
    result = torch.zeros(net.tokens, net.positions, dtype=torch.bool)
    inside, exact = torch.ones(len(ids), net.positions, dtype=torch.bool), False
    # the layers on a token's whole vector come first: LoRA's B has few inputs, and tests the tokens that are left
    spaces = [_Outside.of(net, paths, left, left.limit) for paths in _seen(net.single, left.rest)] or [whole]
    for space in spaces:
        if space.exact and (members := _members(left, space, ids, inside))[:, 0].any():
            inside, exact = members, True
    result[allowed] = inside if exact else _nearest(net, spaces[0], ids, 2 * count)
    return result


def _members(left: _Left, space: "_Outside", ids: Tensor, inside: Tensor) -> Tensor:
    """Return which tokens' vectors lie in the row space of `space`, (token, position). Tokens `ids` (token,) are tested
    at the positions in `inside` (token, position): first in some directions outside the row space, so that a large
    vocabulary takes seconds, then in all directions."""
    net, last, some, members = left.net, left.last, space.some(_FIRST), torch.zeros_like(inside)
    for part in inside.any(1).nonzero()[:, 0].split(_CHUNK):
        texts = ids[part, None].expand(-1, net.positions)
        with torch.no_grad():
            inputs = net.inputs(space.path, texts)
            tolerance = torch.full(texts.shape, _MEMBER, dtype=torch.float64)
            if last is not None:  # vectors move in later steps, by up to 1 - 1/L of their way to the last weights
                way = torch.linalg.vector_norm(last.inputs(space.path, texts) - inputs, dim=-1)
                tolerance += (1 - 1 / left.later) * way / space.lengths(inputs).sqrt()
            near = inside[part] & (some.squares(inputs) <= tolerance.square())
            near[near.clone()] = space.squares(inputs[near]) <= tolerance[near].square()
        members[part] = near
    return members


def _nearest(net: _Net, space: "_Outside", ids: Tensor, count: int) -> Tensor:
    """Return for each position the `count` tokens of `ids` (token,) that are nearest to the row space of `space`:
    (token, position)."""
    with torch.no_grad():
        texts = (part[:, None].expand(-1, net.positions) for part in ids.split(_CHUNK))
        far = torch.cat([space.squares(net.inputs(space.path, each)) for each in texts])
    closest = far.topk(min(count, len(far)), 0, largest=False).indices
    return torch.zeros(far.shape, dtype=torch.bool).scatter_(0, closest, True)


class _Search:
    """Search for texts whose vectors lie in the row space for whole texts."""

    def __init__(self, net: _Net, whole: _Outside, candidates: Tensor, language: Language | None) -> None:
        self._net, self.whole, self._candidates = net, whole, candidates
        self._language = language
        self._rough = net.single_precision(), whole.single_precision()
        filled = candidates.any(0)
        self._longest = int(filled.long().cumprod(0).sum())
        self._lists = [column.nonzero()[:, 0] for column in candidates.mT[: self._longest]]
        self._weights = torch.ones(net.positions, dtype=torch.float64)
        if self._longest:
            self._weights = self._weights_of(torch.full((1, net.positions), PAD))

    def _weights_of(self, empty: Tensor) -> Tensor:
        """Return a weight for each position, (position,): random candidates then have equal losses on average. Without
        weights, a text of only a first token that hardly changes between texts (such as [CLS]) is nearest."""
        texts = self._completed(empty[0], 0, np.random.default_rng(0))
        with torch.no_grad():
            parts = [_squares(self._net, self.whole, part) for part in texts.split(_CHUNK)]
        total = torch.cat([torch.nn.functional.pad(part, (0, texts.shape[1] - part.shape[1])) for part in parts]).sum(0)
        mean = total / (texts != PAD).sum(0).clamp_min(1)
        overall = mean[: self._longest].mean()
        return overall / (mean + _LEAST * overall) if float(overall) > 0 else torch.ones_like(mean)

    def loss(self, texts: Tensor) -> Tensor:
        """Return the loss of each text in `texts` (text, position): (text,). The loss is the share of a token vector's
        squared length outside the gradient's row space, averaged over the text's tokens with weights."""
        return _loss(self._net, self.whole, texts, self._weights)

    def _nearest(self, moves: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the text with the lowest loss in each of `moves` (text, position), and its loss. Losses in single
        precision select the texts whose losses are computed in double precision."""
        with torch.no_grad():
            texts = torch.cat(moves)
            order = (texts != PAD).sum(1).argsort()  # texts of equal length in a pass
            rough = torch.cat([_loss(*self._rough, texts[part], self._weights) for part in order.split(_CHUNK)])[
                order.argsort()
            ]
            each = zip(moves, rough.split([len(move) for move in moves]), strict=True)
            close = [move[loss.topk(min(_CLOSE, len(loss)), largest=False).indices] for move, loss in each]
            losses = self.loss(torch.cat(close)).split([len(move) for move in close])
        best = [int(loss.argmin()) for loss in losses]
        return [(move[n], loss[n]) for move, loss, n in zip(close, losses, best, strict=True)]

    def losses(self, texts: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
        """Return a map from `texts` (token ids) to losses."""
        keys = list(texts)
        losses: list[float] = []
        with torch.no_grad():
            for start in range(0, len(keys), _CHUNK):
                losses += self.loss(torch.tensor(keys[start : start + _CHUNK])).tolist()
        return dict(zip(keys, losses, strict=True))

    def dependent(self, ranked: list[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
        """Find right texts by their linear dependence, although the row space has too few directions for
        all tokens: each vector of such a text lies in the span of the row space and of the other found texts' vectors.
        Wrong vectors are independent, as long as the span has fewer directions than a vector has values. Right vectors
        become dependent if there are more found ones than the row space lacks (subspace augmentation, Lee et al. 2012).
        The values are losses, as of the method `loss`.

        - `ranked`: found texts (token ids), the most probable first; as many are compared as fit."""
        if not ranked:
            return {}
        whole, texts = self.whole, torch.tensor(ranked)
        fits = int(((texts != PAD).sum(1).cumsum(0) <= whole.null.shape[1] - _SPARE).sum()) if whole.exact else 0
        texts = texts[:fits]
        if fits < 2:
            return {}
        parts, owner = whole.parts(self._vectors(texts)), (texts != PAD).nonzero()[:, 0]
        if not _rest(parts.mT).shape[1]:
            return {}  # all are independent
        each = [parts[owner == text] @ _rest(parts[owner != text]) for text in range(fits)]
        shares = [float(outside.square().sum(1).mean()) for outside in each]
        return {text: share for text, share in zip(ranked, shares, strict=False) if share <= _EXACT}

    def grown(self, known: set[tuple[int, ...]]) -> tuple[_Texts, bool]:
        """Find the longest texts, except the `known` ones (token ids), whose beginnings all lie in the row space, for a
        model whose vectors depend on earlier tokens only; the values are losses. If there is none, the row space is
        extended by beginnings that are linearly dependent together with it. Return the texts, and whether the row space
        was extended. Without texts if noise fills the row space."""
        if self.whole.exact and self.whole.null.shape[1]:
            for extended in (False, True):
                outside = self._extended() if extended else self.whole
                longest = self._longest_inside(outside, known)
                if new := {text: loss for text, loss in longest.items() if extended or loss <= _EXACT}:
                    return new, extended
        return {}, True

    def _longest_inside(self, outside: _Outside, known: set[tuple[int, ...]]) -> _Texts:
        texts = grown(lambda some: outside.squares(self._lasts(some)), self._lists, _DOUBT)
        padded = (text + (PAD,) * (self._net.positions - len(text)) for text in texts)
        new = [text for text in padded if text not in known]
        return {text: float(outside.squares(self._vectors(torch.tensor([text]))).mean()) for text in new}

    def _lasts(self, beginnings: Tensor) -> Tensor:
        """Return the vector of the last token of each beginning (beginning, position): (beginning, value + 1)."""
        length = beginnings.shape[1]
        texts = torch.nn.functional.pad(beginnings, (0, self._net.positions - length), value=PAD).double()
        with torch.no_grad():
            return torch.cat([self._net.inputs(self.whole.path, part)[:, length - 1] for part in texts.split(_CHUNK)])

    def _extended(self) -> _Outside:
        """Return the test with the row space extended by vectors of beginnings. The nearest beginnings of each length
        are compared; each that lies in the span of the row space and of the others is right (see `dependent`)."""
        whole, most = self.whole, self.whole.null.shape[1] - _SPARE
        beginnings, pool = torch.empty(1, 0, dtype=torch.long), list[Tensor]()
        for candidates in self._lists:
            beginnings = continued(beginnings, candidates)
            vectors = self._lasts(beginnings)
            near = whole.squares(vectors).topk(min(max(most // 2, 1), len(vectors)), largest=False).indices
            beginnings = beginnings[near]
            pool.append(vectors[near])
        vectors = torch.cat(pool)
        vectors = vectors[whole.squares(vectors).topk(min(max(most, 0), len(vectors)), largest=False).indices]
        parts = whole.parts(vectors)
        if len(parts) < 2 or not _rest(parts.mT).shape[1]:
            return whole  # all are independent
        products = parts @ parts.mT + _RIDGE * torch.eye(len(parts), dtype=parts.dtype)
        shares = 1 / torch.linalg.inv(products).diagonal()  # of each vector outside the others' span
        return whole.with_known(vectors[shares <= _EXACT])

    @property
    def possible(self) -> bool:
        """Whether any token passed the tests at the first position."""
        return self._longest > 0

    def with_known(self, texts: Iterable[tuple[int, ...]]) -> _Outside:
        """Return the test for further texts, with the right `texts` (token ids) known."""
        return self.whole.with_known(self._vectors(torch.tensor(list(texts))))

    def share(self, text: tuple[int, ...], others: list[tuple[int, ...]], outside: _Outside) -> float:
        """Return the mean share by which the squared lengths in `text` are outside the row space and outside the
        vectors in `others` (token ids)."""
        parts = outside.parts(self._vectors(torch.tensor([text])))
        if others:
            parts = parts @ _rest(outside.parts(self._vectors(torch.tensor(others))))
        return float(parts.square().sum(1).mean())

    def _vectors(self, texts: Tensor) -> Tensor:
        with torch.no_grad():
            return self._net.inputs(self.whole.path, texts.double())[texts != PAD]

    def improve(self, draws: list[np.random.Generator], known: set[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
        """Search for texts with a low loss: from a random text, exchange tokens until no exchange lowers the loss.
        Return a map from the last text of each search (token ids) to its loss.

        - `draws`: random generators, one for each search.
        - `known`: texts from earlier searches; random texts prefer tokens that are in none of them."""
        texts = torch.stack([self._start(random, known) for random in draws])
        with torch.no_grad():
            losses = self.loss(texts)
        wide, ended = [False] * len(texts), {}
        active = list(range(len(texts)))
        while active:
            scores = self._promising(texts[active])
            moves = [
                self._moves(texts[row], score, wide[row], draws[row]) for row, score in zip(active, scores, strict=True)
            ]
            for row, (text, loss) in zip(list(active), self._nearest(moves), strict=True):
                better = float(loss) < float(losses[row]) * (1 - _ROUNDING)
                if better:
                    texts[row], losses[row] = text, loss
                if float(losses[row]) <= _EXACT or (not better and wide[row]):
                    ended[tuple(texts[row].tolist())] = float(losses[row])
                    active.remove(row)
                wide[row] = not better
        return ended

    def _start(self, random: np.random.Generator, known: set[tuple[int, ...]]) -> Tensor:
        text = torch.full((self._net.positions,), PAD)
        if self._language is not None and random.random() < _PLAUSIBLE:
            return self._plausible(self._language, random)
        for position in range(int(random.integers(1, self._longest + 1))):
            choice = self._lists[position]
            fresh = [token for token in choice.tolist() if all(token not in other for other in known)]
            if fresh and random.random() < 0.5:
                choice = torch.tensor(fresh)
            text[position] = choice[int(random.integers(len(choice)))]
        return text

    def _plausible(self, language: Language, random: np.random.Generator) -> Tensor:
        """Draw a text (position,) of candidates, each as probable as the `language` model expects the token after the
        token before."""
        text, before = torch.full((self._net.positions,), PAD), torch.tensor(PAD)
        for position in range(self._longest):
            choice = self._lists[position]
            chances = language.between(before, choice).exp().numpy().cumsum()
            end = float(language.between(before, torch.tensor(PAD)).exp()) if position else 0.0
            drawn = int(np.searchsorted(chances, random.random() * (chances[-1] + end), side="right"))
            if drawn == len(choice):
                break
            text[position] = before = choice[drawn]
        return text

    def _promising(self, texts: Tensor) -> Tensor:
        """Return how much each token exchange lowers the loss to first order, (text, position, token)."""
        with torch.enable_grad(), self._net.vectors() as leaves:
            slopes = torch.autograd.grad(self.loss(texts).sum(), leaves[0])[0]
        slopes = torch.nn.functional.pad(slopes, (0, 0, 0, texts.shape[1] - slopes.shape[1]))
        drop = (slopes * self._net.table[texts]).sum(-1, keepdim=True) - slopes @ self._net.table.mT
        other = self._candidates.mT & (texts != PAD)[..., None]
        return drop.masked_fill(~other, -torch.inf).scatter(2, texts[..., None], -torch.inf)

    def _moves(self, text: Tensor, score: Tensor, wide: bool, random: np.random.Generator) -> Tensor:
        """Return texts near `text`, (neighbour, position): the most promising exchanges, all beginnings, and some
        continuations by a token."""
        most = _MOVES * (_WIDER if wide else 1)
        best = score.flatten().topk(min(most, score.numel()))
        chosen = best.indices[best.values > -torch.inf]
        exchanged = text.repeat(len(chosen), 1)
        exchanged[torch.arange(len(chosen)), chosen // self._net.tokens] = chosen % self._net.tokens
        length = int((text != PAD).sum())
        shorter = text.repeat(length - 1, 1) * (torch.arange(self._net.positions) < torch.arange(1, length)[:, None])
        moves = [text[None], exchanged, shorter]
        if length < self._longest:
            following = torch.from_numpy(random.permutation(self._lists[length].numpy()))[: most // 2]
            longer = text.repeat(len(following), 1)
            longer[:, length] = following
            moves.append(longer)
        if wide:
            moves.append(self._completed(text, length, random))
        return torch.cat(moves)

    def _completed(self, text: Tensor, length: int, random: np.random.Generator) -> Tensor:
        """Return `text` (position,) with its first `length` tokens and random candidates behind them, for each greater
        length: (neighbour, position). A pretrained model's vectors may lie outside the row space until the text is
        complete."""
        ends = torch.arange(length, self._longest).repeat_interleave(_COMPLETIONS)
        longer = text.repeat(len(ends), 1)
        for position in range(length, self._longest):
            choice = self._lists[position]
            drawn = choice[torch.from_numpy(random.integers(len(choice), size=len(ends)))]
            longer[:, position] = torch.where(ends >= position, drawn, PAD)
        return longer


def _loss(net: _Net, whole: _Outside, texts: Tensor, weights: Tensor) -> Tensor:
    """Return the loss of each text in `texts` (text, position), in the precision of `net`, with the `weights`
    (position,): (text,)."""
    squares = _squares(net, whole, texts)
    return (squares * weights[: squares.shape[1]].to(squares)).sum(1) / (texts != PAD).sum(1)


def _squares(net: _Net, whole: _Outside, texts: Tensor) -> Tensor:
    """Return the share of each token's squared length outside the gradient's row space, for `texts` (text, position):
    (text, position), 0 for padding, without the positions behind the longest text if `net.crops`."""
    present = texts != PAD
    if net.crops:
        longest = int(present.sum(1).max())
        texts, present = texts[:, :longest], present[:, :longest]
    vectors = net.inputs(whole.path, texts.to(net.table.dtype))[present]
    return vectors.new_zeros(texts.shape).masked_scatter(present, whole.squares(vectors))
