"""Trap weights: random rows in the first layer, each open for few examples in a batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from math import log10
from typing import Literal

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.first_layer.certificate import Upper
from bench.attacks.first_layer.layer import FirstLayer, refusal
from bench.attacks.first_layer.ratios import Gradient, Ratios, by_agreement, honest_size, in_range, mean_gradient
from bench.attacks.first_layer.rows import NO_ROWS, Rows, draws, public, rows_of, rows_to_choose
from bench.attacks.first_layer.shaded import Shades, filled
from bench.attacks.objective.mismatch import by_weights
from bench.errors import NotApplicable
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Server

_SAME = 0.02  # root mean square difference of two certain ratios of the same example, in widths of the range
_SURE = 1e-3  # relative distance between the observed and the simulated gradient of the second layer
_NEAR = 0.05  # the same for uncertain ratios, which may have noise


@dataclass(frozen=True, kw_only=True)
class Trap(Attack):
    """Attack by a server that chooses the first layer's weights: each row (neuron) is a random direction that only few
    examples in a batch open (output above 0). A row with a single open example gives this example, by the ratio dW / db
    of the row's weight and bias gradients. The biases are quantiles of the row's output over public examples.

    Peeling finds certain examples. The second layer's gradient at a row must be δ h, with the row's output h and δ =
    ∂loss/∂(second layer's output), both simulated at the ratio. If simulation and reading agree, the ratio is certain:
    its gradient is subtracted from all rows, and more rows then belong to a single example. A common factor per
    example, such as a clip's, cancels. Certain ratios need more than two classes and no noise; otherwise the ratios
    shared by most rows are returned.

    With equal opening shares 1/B for B examples, and N rows that open independently, an example opens some row without
    another example with probability 1 - e^(-N/(eB)). Spread shares give fewer such rows, but enough for a start;
    peeling then continues with rows of more examples. As a listener (an attacker without chosen weights), the attack
    reads honest weights in the same way. In several rounds with other weights each round has other rows, and the
    examples of all rounds are united.

    A defense may send signs or randomly rounded values. Peeling then finds no certain example, and equal shares leave
    more rows with a single example than spread shares. Signs tell which values of an example are 0; public examples
    give the other values (`first_layer/shaded.py`). `repeats` equal rows average random rounding."""

    reference = "Boenisch et al. 2023, EuroS&P; equal shares: Nowak et al. 2024 (QBI); spread shares, peeling: ours"
    iterative = False
    most_examples = 1024
    servers = ("listen", "weights", "rounds", "inconsistent")

    shares: Literal["spread", "equal"] = parameter(
        "spread",
        "share of examples that opens a row: equal (1/B), or spread over the rows from 1/(4B) to 1/2, evenly in logs",
        source="ours",
    )
    gain: float = parameter(
        1e6,
        "size of the second layer's weights",
        unit="of the honest weights' root mean square",
        source="ours",
        above=0,
    )
    repeats: int = parameter(
        1, "number of equal rows for each direction, whose gradients are averaged: against random rounding", low=1
    )
    expected: int | None = parameter(
        None, "number of examples behind a reading for which the biases are chosen; none: the true number", low=2
    )
    slack: float = parameter(
        0.05,
        "root mean square distance outside the data's range allowed for an example",
        unit="widths of the range",
        source="ours",
        low=0,
    )

    def craft(self, server: Server, key: Key) -> dict[str, Tensor]:
        rows = rows_to_choose(server)
        known, (units, size) = public(server, rows), rows.above.shape
        draw, count = draws(server, key, "rows"), size // self.repeats
        if count < 2:
            raise NotApplicable(f"the first layer has {size} rows; take repeats of at most {size // 2}")
        weight = torch.from_numpy(draw.standard_normal((count, known.shape[1])))
        reached = weight @ known.T
        weight, reached = (each / reached.std(1, keepdim=True) for each in (weight, reached))
        examples = max(2, self.expected or server.examples)
        shares = torch.full((count,), 1 / examples, dtype=torch.float64)
        if self.shares == "spread":
            shares = torch.logspace(log10(0.25 / examples), log10(0.5), count, dtype=torch.float64)
        bias = -torch.stack([row.quantile(1 - share) for row, share in zip(reached, shares, strict=True)])
        above = self.gain * honest_size(rows) * torch.from_numpy(draw.standard_normal((units, count)))
        order = torch.arange(size) // self.repeats % count
        return rows.chosen(server, weight[order], bias[order], above[:, order], known)

    def refuses(self, reading: Reading) -> str | None:
        if reading.steps > 1:
            return "the weights of a later local step are not those of the server"
        return refusal(reading) or (NO_ROWS if rows_of(reading) is None else None)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        parts = by_weights(reading)
        most = -(-budget.evaluations * reading.examples // len(parts))
        rounds = [self._examples(part, most) for part in parts]
        mean = reading.public_mean.double().flatten().repeat(reading.examples, 1)
        inputs, shares, status, evaluations = [], [], [], []
        for own in zip(*rounds, strict=True):
            certain = _distinct(torch.cat([each for each, _, _ in own]), _SAME * _width(reading))[: reading.examples]
            rest = Ratios.united([each for _, each, _ in own])
            others, size = rest.values, rest.size
            if len(parts) > 1 and len(certain):  # this round's gradient still has the certain examples of others
                new = torch.cdist(others, certain).amin(1) > _NEAR * _width(reading) * others.shape[1] ** 0.5
                others, size = others[new], size[new]
            others, _ = by_agreement(others, size, _NEAR * _width(reading))
            inputs.append(torch.cat([certain, others, mean])[: reading.examples].reshape(-1, *reading.shape))
            shares.append(len(certain) / reading.examples)
            status.append(rest.status)
            evaluations.append(-(-sum(judged for _, _, judged in own) // reading.examples))
        result = closed_form(
            reading,
            torch.stack(inputs).to(reading.public_mean),
            status=tuple(status),
            certificate=torch.tensor(shares) if reading.classes > 2 else None,
        )
        return replace(result, evaluations=torch.tensor(evaluations))

    def _examples(self, reading: Reading, most: int) -> list[tuple[Tensor, Ratios, int]]:
        """Return the certain examples (example, input), other ratios that may be examples, and the number of ratios
        judged, at most `most`, for each of the readings `reading` of a single round."""
        rows = rows_of(reading)
        assert rows is not None
        judge = Judge.of(reading, rows) if reading.classes > 2 else None
        every, shades = torch.ones_like(rows.bias, dtype=torch.bool), cache(partial(Shades.of, reading, rows))
        examples = []
        for gradient in mean_gradient(reading, rows):
            certain, rest, judged = rows.weight.new_zeros(0, rows.weight.shape[1]), gradient, 0
            if judge is not None:
                certain, rest, judged = judge.peeled(gradient, reading, self.slack, most=most)
            mean = _averaged(rest, self.repeats)
            _, ratios, size = _single(rows, mean, reading, self.slack, every, shades)
            examples.append((certain, Ratios(values=ratios, size=size, status=gradient.status), judged))
        return examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judge of recovered examples: an example is certain if the second layer's gradient in the reading (the observed
    update) equals the gradient that the model simulates for the example."""

    rows: Rows
    """First two layers, with the server's weights."""
    upper: Upper
    """Model above the second layer, to simulate δ = ∂loss/∂(second layer's output)."""

    @classmethod
    def of(cls, reading: Reading, rows: Rows) -> "Judge":
        """Prepare the judge for the model in `reading`, whose first two layers are `rows`."""
        plain = torch.ones(rows.above.shape[1], dtype=torch.float64)
        return cls(rows=rows, upper=Upper.of(reading, FirstLayer(prefix=rows.second, factor=plain, offset=0 * plain)))

    def peeled(
        self, gradient: Gradient, reading: Reading, slack: float, *, most: int, passes: int | None = None
    ) -> tuple[Tensor, Gradient, int]:
        """Find the certain examples behind a reading, and subtract their gradients. Return the examples (example,
        input), the gradient without them, and the number of ratios (candidate examples) judged.

        - `gradient`: the reading's gradient at the first two layers.
        - `reading`: gives the number of examples and the data's range.
        - `slack`: distance outside the data's range allowed for an example, in widths of the range.
        - `most`: number of ratios to judge, at most; each judgement simulates the model.
        - `passes`: number of passes over the rows (neurons), at most; a pass starts from the gradient without the
          examples already certain. None: as many passes as examples."""
        certain = self.rows.weight.new_zeros(0, self.rows.weight.shape[1])
        changed = torch.ones(len(self.rows.weight), dtype=torch.bool)
        judged = 0
        for _ in range(reading.examples if passes is None else passes):
            at, ratios, _ = (each[: most - judged] for each in _single(self.rows, gradient, reading, slack, changed))
            judged += len(at)
            sure, deltas = self._certain(gradient, at, ratios)
            before = gradient.explained
            for row in torch.nonzero(sure)[:, 0]:
                x = ratios[row]
                if _new(x, certain, _SAME * _width(reading)):
                    certain = torch.cat([certain, x[None]])
                    gradient = self._without(gradient, int(at[row]), x, deltas[row])
            changed = gradient.explained != before
            if not changed.any() or judged >= most:
                break
        return certain[: reading.examples], gradient, judged

    def _certain(self, gradient: Gradient, at: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor]:
        """Return which `ratios` (ratio, input) at the rows `at` are certain examples, (ratio,), and each ratio's δ
        (ratio, unit) under its likeliest label."""
        h = self.rows.outputs(ratios).relu()
        each = self.upper.deltas(h)
        observed = gradient.of_second.T[at] / h[torch.arange(len(at)), at, None]
        factors = (each @ observed[:, :, None]) / each.square().sum(2, keepdim=True)
        gaps = (observed[:, None] - factors * each).norm(dim=2) / observed.norm(dim=1, keepdim=True)
        least, labels = gaps.where(factors[:, :, 0] > 0, torch.inf).nan_to_num(torch.inf).min(1)
        return least <= _SURE, each[torch.arange(len(at)), labels]

    def _without(self, gradient: Gradient, at: int, x: Tensor, delta: Tensor) -> Gradient:
        """Subtract the example `x` (input,), which row `at` shows as its ratio; `delta` (unit,) is its simulated δ."""
        z = self.rows.outputs(x)
        of_rows = (delta @ self.rows.above) * (z > 0)
        factor = (gradient.of_first[at, -1] / of_rows[at]).clamp_min(0)
        values = torch.cat([self.rows.first.apply(x), torch.ones(1).to(x)])
        return Gradient(
            of_first=gradient.of_first - factor * of_rows[:, None] * values,
            of_second=gradient.of_second - factor * delta[:, None] * z.relu(),
            explained=gradient.explained + (factor * of_rows).abs(),
        )


def _single(
    rows: Rows,
    gradient: Gradient,
    reading: Reading,
    slack: float,
    among: Tensor,
    shades: Callable[[], Shades | None] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows, in the mask `among` (row,), whose ratio dW / db may be a single example: their numbers, ratios
    (ratio, input), and sizes |db| (ratio,), the largest first. Such a ratio is in the data's range, up to `slack`
    widths, and opens its row."""
    size = gradient.of_first[:, -1].abs()
    at = torch.nonzero((size > gradient.rounding) & among)[:, 0]
    at = at[size[at].argsort(descending=True)]
    ratios = rows.first.undo(gradient.of_first[at, :-1] / gradient.of_first[at, -1:])
    if shades is not None:
        ratios = filled(ratios, shades)
    opens = (ratios * rows.weight[at]).sum(1) + rows.bias[at] > 0
    fits = in_range(ratios, reading.value_range, slack) & opens
    return at[fits], ratios[fits], size[at[fits]]


def _averaged(gradient: Gradient, repeats: int) -> Gradient:
    """Return the gradient with the mean over `repeats` equal rows at the first of them, and 0 at the others."""
    count = len(gradient.of_first) // repeats * repeats
    mean = torch.zeros_like(gradient.of_first)
    mean[:count:repeats] = gradient.of_first[:count].unflatten(0, (-1, repeats)).mean(1)
    return replace(gradient, of_first=mean)


def _distinct(examples: Tensor, near: float) -> Tensor:
    """Return the `examples` (example, input) without those closer than `near` (root mean square) to an earlier one."""
    kept = examples[:0]
    for x in examples:
        if _new(x, kept, near):
            kept = torch.cat([kept, x[None]])
    return kept


def _new(x: Tensor, known: Tensor, near: float) -> bool:
    """Return whether the example `x` (input,) is farther than `near` (root mean square) from each of the `known`
    examples (example, input)."""
    return bool(((known - x).square().mean(1).sqrt() > near).all())


def _width(reading: Reading) -> float:
    low, high = reading.value_range
    return high - low
