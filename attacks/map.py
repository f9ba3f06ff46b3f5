"""MAP: find the most probable examples, given the reading and the distribution of public examples."""

from dataclasses import dataclass, replace

import torch

from bench.attacks.base import Attack, Objective
from bench.attacks.objective.known import inseparable, of_unknown, with_gaussian_rounding
from bench.attacks.objective.repeats import distinct_examples
from bench.attacks.objective.rescale import rescaled
from bench.attacks.search.activations import Start
from bench.attacks.search.chosen import by_choices
from bench.attacks.search.clients import by_client, joined
from bench.attacks.search.labelled import by_label
from bench.attacks.search.probable import most_probable, objective_of, unfit
from bench.attacks.search.scale import blind_to_scale, usual_brightness
from bench.attacks.search.space import Gaussian, Space, public_space
from bench.attacks.search.unmix import by_example
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

_GAUSSIAN = 0.5  # of the evaluations: search with Gaussian noise in place of a random rounding's likelihood
_SCALED = "the model does not see the scale of its inputs: each picture is as bright as public ones"


@dataclass(frozen=True, kw_only=True)
class Map(Attack):
    """Find the most probable examples behind a reading: minimise ‖D(∇L(x', y)) - g‖² + 2v·½‖u‖² over x' = mean + A u. L
    is the loss, D the described defense, g the reading (the observed update), v the variance of the described noise,
    and A Aᵀ the covariance of public examples. The search runs in stages, successive minimisations:

    - The first stages replace ReLUs by smooth functions, sharper from stage to stage. The last stage keeps ReLUs. A
      smoothed model's gradient has another length, so these stages minimise the angle to the reading, unless noise is
      described.
    - Without described noise, each stage sets v to a small share of ‖g‖². For a model without ReLUs, the last stage
      sets v to the squared distance left per coordinate.
    - For a single example at a model without ReLUs and without described noise, starts alternate: the first minimises
      the distance, the second begins with the angle. The reason: a confidently predicted example has a faint gradient,
      and its distance misleads.
    - For a single example's undefended gradient at a chain of convolutions with ReLUs, the first start has the values
      inside the net that the gradient shows (`search/layerwise.py`). Smoothed stages follow only if this start does not
      explain the reading.
    - A mean over clients of quantised messages (signs, ternary values, few levels) shows each message: the search then
      runs on each client's message separately (`search/clients.py`).
    - A mean over randomly masked messages has a known distribution for given examples: the search uses this likelihood
      (`search/chosen.py`).
    - For an undefended batch with fewer examples than classes at a net with ReLUs before the last layer, this layer's
      gradient shows each example's features. The search starts from the images with these features
      (`search/unmix.py`).
    - For a single example with a granted label, behind a described defense, mean and covariance are those of public
      examples with this label; for a batch, too, if the defense adds noise (`search/labelled.py`).
    - With the grant `mates`, only the first example behind a reading is unknown. The search takes the example's part in
      the reading (`objective/known.py`), and mean and covariance of public examples with the example's label. Behind
      a random rounding, a first search replaces the rounding's likelihood by Gaussian noise; a second search goes on
      with the likelihood, from the first result and from its own start."""

    reference = "ours; as an estimator: maximum a posteriori"
    knowledge = ("plain", "adaptive")
    mergeable = True
    takes_mates = True

    starts: int = parameter(3, "starts within the budget, until one explains the reading", source="ours", low=1)

    tolerance: float = parameter(
        1e-9, "share of the zero-gradient loss at which a reading is finished", source="ours", low=0.0, high=1.0
    )

    def refuses(self, reading: Reading) -> str | None:
        return unfit(reading) or (inseparable(reading) if _known(reading) else None)

    def objective(self, reading: Reading) -> Objective | None:
        return None if _known(reading) else objective_of(reading)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        if _known(reading):
            parts = (of_unknown(reading, row) for row in range(len(reading)))
            return joined([self._part(part, budget, key) for part in parts])
        return self._searched(reading, budget, key)

    def _part(self, part: Reading, budget: Budget, key: Key) -> Reconstruction:
        space, gaussian = _of_class(part), with_gaussian_rounding(part)
        if gaussian is None:
            return self._searched(part, budget, key, space)
        evaluations = max(1, round(_GAUSSIAN * budget.evaluations))
        first = self._searched(gaussian, replace(budget, evaluations=evaluations), key, space)
        start = Start(
            inputs=first.inputs.flatten(2),
            found=torch.ones(1, dtype=torch.bool),
            evaluations=torch.zeros_like(first.evaluations),
            settles=False,
        )
        rest = replace(budget, evaluations=max(1, budget.evaluations - evaluations))
        result = self._searched(part, rest, key, space, start)
        return replace(result, evaluations=result.evaluations + first.evaluations)

    def _searched(
        self, reading: Reading, budget: Budget, key: Key, space: Gaussian | None = None, known: Start | None = None
    ) -> Reconstruction:
        reading = rescaled(reading)

        def search(part: Reading, within: Budget, known: Start | None = known) -> Reconstruction:
            def within_space(rows: Reading, space: Space | None) -> Reconstruction:
                return most_probable(
                    rows,
                    within,
                    key,
                    starts=self.starts,
                    tolerance=self.tolerance,
                    distinct=distinct_examples(part),
                    space=space,
                    known=known,
                )

            labelled = by_label(part, within_space) if space is None and known is None else None
            return labelled or within_space(part, space)

        result = by_client(reading, budget, key, search) or by_choices(reading, budget, key)
        result = result or by_example(reading, budget, key, search) or search(reading, budget)
        if not blind_to_scale(reading):
            return result
        way = result.trajectory
        return replace(
            result,
            inputs=usual_brightness(result.inputs, reading),
            notes=(*result.notes, _SCALED),
            trajectory=None if way is None else usual_brightness(way, reading),
        )


def _of_class(part: Reading) -> Gaussian:
    assert part.labels is not None
    return public_space(part, int(part.labels[0, 0]))


def _known(reading: Reading) -> bool:
    return reading.mates_inputs is not None and reading.examples > 1
