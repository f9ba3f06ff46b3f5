"""The test for whole texts: the deciding layer, and the vectors' shares outside its row space."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.spans.layers import LayeredModel
from bench.attacks.spans.outside import Outside
from bench.attacks.spans.remainder import Remainder
from bench.kinds.texts import PAD

Texts = dict[tuple[int, ...], float]  # token ids → loss


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTexts:
    """Test for whole texts by a layer whose inputs h depend on the whole text: all vectors in a right text lie in the
    row space."""

    net: LayeredModel
    """The model."""
    space: Outside
    """Directions outside the layer's row space."""

    @classmethod
    def of(cls, left: Remainder) -> "WholeTexts":
        """Select the layer whose gradient decides best whether a whole text is right: the next attention layer, or
        without such a layer, the layer with the greatest rank. Layers with a full row space are the last choice. `left`
        is the reading's rest."""
        net = left.net
        size = len(net.single[0]) if net.single else 2
        layers = left.seen(net.whole) or net.whole
        last = next((n for n, paths in enumerate(layers) if len(paths) >= size > 1), None)
        several = [Outside.of(left, paths) for paths in layers[: None if last is None else last + 1]]
        if last is not None and several[last].exact:
            return cls(net=net, space=several[last])
        several += [Outside.of(left, paths) for paths in layers[len(several) :]]
        # of equal ones, the first
        return cls(net=net, space=max(several, key=lambda one: (one.exact, min(one.rank, one.null.shape[1]))))

    def vectors(self, texts: Tensor) -> Tensor:
        """Return the vectors for all tokens in `texts` (text, position), without padding: (vector, value + 1)."""
        with torch.no_grad():
            return self.net.inputs(self.space.path, texts.double())[texts != PAD]

    def squares(self, texts: Tensor) -> Tensor:
        """Return the share of each token's squared length outside the gradient's row space, for `texts` (text,
        position): (text, position), 0 for padding, without the positions behind the longest text if `net.crops`."""
        present = texts != PAD
        if self.net.crops:
            longest = int(present.sum(1).max())
            texts, present = texts[:, :longest], present[:, :longest]
        vectors = self.net.inputs(self.space.path, texts.to(self.net.table.dtype))[present]
        return vectors.new_zeros(texts.shape).masked_scatter(present, self.space.squares(vectors))

    def loss(self, texts: Tensor, weights: Tensor) -> Tensor:
        """Return each text's loss, in the model's precision: (text,). The loss is the share of a vector's squared
        length outside the row space, averaged over the text's tokens with weights.

        - `texts` (text, position): the texts.
        - `weights` (position,): weight at each position."""
        squares = self.squares(texts)
        return (squares * weights[: squares.shape[1]].to(squares)).sum(1) / (texts != PAD).sum(1)

    def with_known(self, texts: Iterable[tuple[int, ...]]) -> "WholeTexts":
        """Return the test for further texts, with the right `texts` (token ids) known."""
        return replace(self, space=self.space.with_known(self.vectors(torch.tensor(list(texts)))))

    def single_precision(self) -> "WholeTexts":
        """Return the test in single precision."""
        return replace(self, net=self.net.single_precision(), space=self.space.single_precision())
