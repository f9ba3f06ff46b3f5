"""Promise: who knows all other examples behind a reading names the first by the exact likelihood."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from tests.cells import LATER, attack, entry, prepared

from bench.answer.attack import attack as run_attack
from bench.answer.context import Memory, RunContext
from bench.answer.readings import take_reading
from bench.answer.setup import load_data
from bench.answer.truth import draw_truth, truth_from
from bench.answer.victims import HALVES, batches_of
from bench.attacks.candidates.single import likelihoods
from bench.attacks.candidates.sums import by_sums
from bench.attacks.objective.known import of_unknown, with_gaussian_rounding
from bench.attacks.objective.mismatch import observations
from bench.attacks.objective.public import public_of
from bench.cell import AttackCell, Federated, Grants
from bench.errors import NotApplicable
from bench.federated.describe import Composition
from bench.gradients import example_gradients, group_gradients, one_hot
from bench.record.metrics import PSNR_DB
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Candidates, Description, Outcomes, Reading

CANDIDATES = 40
FEW_VALUES = ("qsgd", "random-prune", "terngrad")  # defenses whose clients send one of a few values per coordinate
ALIKE = ("dp-sgd", "fed-alpha-cdp", "fed-split", "laplace")  # as fed-cdp, fed-sdp and gaussian
KNOWN = Grants(labels=True, gallery=CANDIDATES, mates=True)


def cell(**changes: object) -> AttackCell:
    fields = {
        "attack": entry("attacks", "gallery"),
        "knowledge": "adaptive",
        "grants": KNOWN,
        "federated": Federated(clients=20, per_round=3, batch=4),
        "point": "type-1",
        "readings": 3,
    }
    return attack(**(fields | changes))


def taken(which: AttackCell, run: Path) -> tuple[Reading, torch.Tensor, torch.Tensor]:
    """A reading with all its examples, the unknown first."""
    context, memory = RunContext(run=run), Memory()
    setup = prepared(which, context, memory)
    truth = truth_from(which, setup.source)
    reading = take_reading(which, setup, truth, batches_of(which, setup, truth.victims, truth.point))
    assert truth.mates is not None
    inputs = torch.cat([truth.examples.inputs, truth.mates.inputs], 1)
    labels = torch.cat([truth.examples.labels, truth.mates.labels], 1)
    return reading, inputs, labels


def random_defenses() -> list[str]:
    return sorted(name for name in registry.names("defenses") if name != "none")


@pytest.mark.parametrize("where", ["type-1", "aggregate"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in {*LATER, *ALIKE})) for name in random_defenses()]
)
def test_known_examples_are_simulated_as_the_whole_batch_is(tmp_path: Path, name: str, where: str) -> None:
    """For each registered defense with a description: `with_mates` gives what `simulate` gives for the whole batch."""
    try:
        reading, inputs, labels = taken(cell(defense=entry("defenses", name), point=where), tmp_path)
    except NotApplicable as refused:
        pytest.skip(str(refused))
    description = reading.description
    if description is None or reading.linked != "vector":
        pytest.skip("no description")
    weights = {key: value[0] for key, value in reading.weights.items()}
    targets = one_hot(labels, reading.classes, inputs.dtype)
    flat = example_gradients(reading.model, weights, inputs.flatten(0, 1), targets.flatten(0, 1))
    each = {key: value.unflatten(0, labels.shape) for key, value in flat.items()}
    updates = {key: value[0].unflatten(0, (reading.senders, -1)).mean(1) for key, value in each.items()}
    assert (not description.inside_steps and description.outcomes(updates) is not None) == (name in FEW_VALUES)
    if name in FEW_VALUES:
        check_values(reading, updates, {key: value[:1] for key, value in observations(reading)[0].items()})
    for row in range(len(reading)):
        observed = {key: value[row : row + 1] for key, value in observations(reading)[0].items()}
        behind = Candidates(inputs=inputs[row : row + 1], targets=targets[row : row + 1], weights=weights)
        of_row = {key: value[row : row + 1] for key, value in each.items()}
        whole = description.simulate(of_row, observed, behind)
        mates = Candidates(inputs=behind.inputs[:, 1:], targets=behind.targets[:, 1:], weights=weights)
        first = Candidates(inputs=behind.inputs[:, :1], targets=behind.targets[:, :1], weights=weights)
        given = description.with_mates({key: value[:, 1:] for key, value in of_row.items()}, observed, mates)
        again = given({key: value[:, 0] for key, value in of_row.items()}, first)
        scale = torch.stack([value.norm() for value in whole.values()]).norm()
        for key, value in whole.items():
            assert float((again[key] - value).norm()) <= 1e-5 * float(scale), key


@pytest.mark.parametrize(("where", "batch"), [("type-1", 1), ("type-1", 16), ("type-0", 16), ("aggregate", 16)])
def test_without_a_defense_the_unknown_example_is_named(tmp_path: Path, where: str, batch: int) -> None:
    which = cell(point=where, federated=Federated(clients=20, per_round=3, batch=batch), readings=6)
    result, _ = run_attack(which, RunContext(run=tmp_path), Memory())
    naming = result.figures().naming
    assert naming is not None and naming.value == 1
    assert [len(reading.examples) for reading in result.readings] == [1] * 6


def test_the_score_is_the_gaussian_likelihood(tmp_path: Path) -> None:
    """Against a float64 oracle: ‖reading - mean gradient with the candidate‖² up to a constant."""
    noisy = entry("defenses", "gaussian", at="client", variance=1e-4)
    reading, inputs, labels = taken(cell(defense=noisy), tmp_path)
    assert reading.gallery_inputs is not None and reading.gallery_labels is not None
    scores = likelihoods(reading, Key.of_attacker(0))
    weights = {key: value[0].double() for key, value in reading.weights.items()}
    model = reading.model.double()
    for row in range(len(reading)):
        own = int(labels[row, 0])
        of_label = torch.nonzero(reading.gallery_labels == own)[:, 0]
        assert set(torch.nonzero(scores[row].isfinite())[:, 0].tolist()) == set(of_label.tolist())
        expected = []
        for candidate in of_label:
            x = torch.cat([reading.gallery_inputs[candidate][None], inputs[row, 1:]]).double()
            y = one_hot(labels[row], reading.classes, torch.float64)
            mean = {key: value.mean(0) for key, value in example_gradients(model, weights, x, y).items()}
            observed = {key: value[row, 0].double() for key, value in reading.values.items()}
            expected.append(-float(sum((observed[key] - value).square().sum() for key, value in mean.items())))
        found = scores[row, of_label].double().numpy()
        assert np.allclose(found - found.max(), np.array(expected) - max(expected), atol=1e-4 * abs(max(expected)))


def test_an_attack_that_cannot_use_known_examples_refuses(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable, match="cannot use known examples"):
        run_attack(cell(attack=entry("attacks", "cpl")), RunContext(run=tmp_path), Memory())


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *product(["none", "prune", "sign", "gaussian", "dp-sgd", "fed-sdp"], ["type-1", "aggregate"]),
        ("qsgd", "type-1"),  # behind a mean: tests/test_choices.py
    ],
)
def test_the_own_part_of_the_unknown_example_is_simulated_as_in_the_whole(
    tmp_path: Path, name: str, where: str
) -> None:
    """The difference to an example without gradient, times the number of examples; without a defense the gradient."""
    reading, inputs, labels = taken(cell(defense=entry("defenses", name), point=where), tmp_path)
    weights = {key: value[0] for key, value in reading.weights.items()}
    part = of_unknown(reading, 1)
    if reading.description is not None and reading.description.hard:
        reading, inputs, labels = of_first_client(reading, inputs, labels)
    targets = one_hot(labels, reading.classes, inputs.dtype)
    assert (len(part), part.examples, part.unknown, part.batches) == (1, 1, 1, (1,))
    flat = example_gradients(reading.model, weights, inputs[1], targets[1])
    gradient = {key: value[:1] for key, value in flat.items()}
    own = observations(part)[0]
    if reading.description is None:
        assert part.description is None
        for key, value in gradient.items():
            assert float((own[key] - value).norm()) <= 1e-4 * float(value.norm())
        return
    observed = {key: value[1:2] for key, value in observations(reading)[0].items()}
    behind = Candidates(inputs=inputs[1:2], targets=targets[1:2], weights=weights)
    each = {key: value[None] for key, value in flat.items()}
    whole = reading.description.simulate(each, observed, behind)
    each = {key: torch.cat([torch.zeros_like(value[:, :1]), value[:, 1:]], 1) for key, value in each.items()}
    without = reading.description.simulate(each, observed, behind)
    assert part.description is not None
    first = Candidates(inputs=inputs[1:2, :1], targets=targets[1:2, :1], weights=weights)
    found = part.description.simulate({key: value[None] for key, value in gradient.items()}, own, first)
    scale = float(torch.cat([value.flatten() for value in whole.values()]).norm()) * reading.examples
    for key, value in found.items():
        assert float((value - reading.examples * (whole[key] - without[key])).norm()) <= 1e-5 * scale, key
    assert part.description.noise.variance == pytest.approx(reading.examples**2 * reading.description.noise.variance)
    ours, theirs = (
        d.log_density(a, b) for d, a, b in ((part.description, found, own), (reading.description, whole, observed))
    )
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        assert torch.allclose(ours, theirs, rtol=1e-3)


@pytest.mark.parametrize("name", ["qsgd", "terngrad"])
def test_the_gaussian_in_place_of_a_rounding_has_its_variance(tmp_path: Path, name: str) -> None:
    """Per coordinate, at the client's update with a public example in the unknown's place: τ²·p(1 - p)."""
    reading, inputs, labels = taken(cell(defense=entry("defenses", name)), tmp_path)
    part = of_unknown(reading, 1)
    gaussian = with_gaussian_rounding(part)
    assert gaussian is not None and gaussian.description is not None and part.description is not None
    own = observations(part)[0]
    assert gaussian.description.log_likelihood(own, own) is None
    assert part.description.log_likelihood(own, own) is not None
    description = reading.description
    assert isinstance(description, Composition)
    (levels,) = (made.transform for made in description.parts)
    weights = {key: value[0] for key, value in reading.weights.items()}
    guesses, their_labels = public_of(part, int(labels[1, 0]))
    batches = torch.cat([guesses[:, None], inputs[1, 1:][None].expand(len(guesses), -1, *inputs.shape[2:])], 1)
    targets = torch.cat([their_labels[:, None], labels[1, 1:][None].expand(len(guesses), -1)], 1)
    targets = one_hot(targets, reading.classes, inputs.dtype)
    updates = group_gradients(reading.model, weights, batches, targets, differentiable=False)
    exact = levels.variance_at(updates, description.contexts["client"])
    noise = gaussian.description.noise
    assert exact is not None and noise.variances is not None and not noise.bound
    for key, value in exact.items():
        expected = reading.examples**2 * value.mean(0)
        assert torch.allclose(noise.variances[key], expected, rtol=1e-3, atol=1e-4 * float(expected.mean())), key
    mean = torch.cat([value.flatten() for value in noise.variances.values()]).mean()
    assert noise.variance == pytest.approx(float(mean), rel=1e-5)


def message(description: Description, update: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A client's message by the code of the defense."""
    single = description.single
    assert isinstance(single, Composition) and single.unit == 1
    for part in single.parts:
        update, _ = part.transform.update(update, part.of_rows(1), single.contexts[part.stage])
    return update


def of_first_client(
    reading: Reading, inputs: torch.Tensor, labels: torch.Tensor
) -> tuple[Reading, torch.Tensor, torch.Tensor]:
    """The first clients' messages behind means, by the defense's own code, with their examples."""
    assert reading.description is not None
    weights = {key: value[0] for key, value in reading.weights.items()}
    batch = reading.examples // reading.senders
    targets = one_hot(labels, reading.classes, inputs.dtype)
    sent = []
    for x, y in zip(inputs, targets, strict=True):
        each = example_gradients(reading.model, weights, x, y)
        sent.append(message(reading.description, {key: value[:batch].mean(0)[None] for key, value in each.items()}))
    values = {key: torch.stack([one[key] for one in sent]) for key in reading.values}
    single = replace(reading, values=values, senders=1, description=reading.description.single)
    return single, inputs[:, :batch], labels[:, :batch]


@pytest.mark.parametrize("name", ["prune", "sign", "top-k"])
def test_a_mean_shows_the_only_unknown_message(tmp_path: Path, name: str) -> None:
    """The mean minus the messages of the known clients: the same zeros and signs, and values to rounding."""
    reading, inputs, labels = taken(cell(defense=entry("defenses", name), point="aggregate"), tmp_path)
    description = reading.description
    assert description is not None and description.hard
    weights = {key: value[0] for key, value in reading.weights.items()}
    targets = one_hot(labels, reading.classes, inputs.dtype)
    batch = reading.examples // reading.senders
    for row in range(len(reading)):
        each = example_gradients(reading.model, weights, inputs[row], targets[row])
        updates = {key: value.unflatten(0, (-1, batch)).mean(1) for key, value in each.items()}
        observed = {key: value[row, :1] for key, value in reading.values.items()}
        found = description.message({key: value[1:] for key, value in updates.items()}, observed)
        sent = message(description, {key: value[:1] for key, value in updates.items()})
        for key, value in found.items():
            assert value.sign().equal(sent[key].sign()), key
            assert float((value - sent[key]).abs().max()) <= 1e-5 * float(sent[key].abs().max()), key


@pytest.mark.parametrize(
    ("name", "params", "where"),
    [
        ("none", {}, "type-1"),
        ("gaussian", {"variance": 1e-9}, "type-1"),
        pytest.param("prune", {"share": 0.7}, "type-1", marks=pytest.mark.slow),
        ("prune", {"share": 0.7}, "aggregate"),
    ],
)
def test_the_unknown_example_of_a_batch_is_reconstructed(
    tmp_path: Path, name: str, params: dict[str, float], where: str
) -> None:
    which = cell(
        attack=entry("attacks", "map"),
        grants=Grants(labels=True, mates=True),
        defense=entry("defenses", name, **params),
        federated=Federated(clients=20, per_round=3, batch=16),
        point=where,
        evaluations=120,
        readings=1,
    )
    result, _ = run_attack(which, RunContext(run=tmp_path), Memory())
    assert result.figures().asr.value == 1
    assert [len(reading.examples) for reading in result.readings] == [1]


@pytest.mark.parametrize("variance", [1e-10, pytest.param(1e-7, marks=pytest.mark.slow)])
def test_faint_noise_hides_no_pixels_of_a_relu_net(tmp_path: Path, variance: float) -> None:
    """Softened ReLUs add an error far above faint noise; a prior weighted by the noise alone got 1 of 2."""
    which = cell(
        attack=entry("attacks", "map"),
        model=entry("models", "mlp", hidden=[32], activation="relu"),
        grants=Grants(labels=True, mates=True),
        defense=entry("defenses", "gaussian", variance=variance),
        federated=Federated(clients=20, per_round=3, batch=16),
        evaluations=60,
        readings=4,
    )
    result, _ = run_attack(which, RunContext(run=tmp_path), Memory())
    assert result.figures().asr.value == 1
    psnr = result.figures().median(PSNR_DB)
    assert psnr is not None and psnr > 30


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"grants": Grants(mates=True)}, "not the label of the unknown example; grant labels"),
        ({"grants": Grants(labels=True, mates=True, repeated_readings=2)}, "set repeated_readings and steps to 1"),
        ({"defense": entry("defenses", "mixup")}, "mixtures of examples with secret partners; take gallery"),
        (
            {
                "defense": entry("defenses", "qsgd"),
                "point": "aggregate",
                "federated": Federated(clients=60, per_round=20, batch=2),
            },
            "behind a mean, it cannot separate",
        ),
        ({"defense": entry("defenses", "variance-based"), "point": "aggregate"}, "behind a mean, it cannot separate"),
    ],
)
def test_an_inseparable_reading_is_refused(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    which = cell(attack=entry("attacks", "map"), **({"grants": Grants(labels=True, mates=True)} | changes))
    with pytest.raises(NotApplicable, match=reason):
        run_attack(which, RunContext(run=tmp_path), Memory())


def test_tuning_and_scoring_share_no_victim(tmp_path: Path) -> None:
    """Over seeds, points and settings; the other examples may recur, the victim may not."""
    drawn: dict[str, set[int]] = {half: set() for half in HALVES}
    for half in HALVES:
        for seed in range(4):
            for where in ("type-2", "type-1", "aggregate"):
                which = cell(victims=half, seed=seed, point=where)
                truth = draw_truth(which, load_data(which, RunContext(run=tmp_path), Memory()), tmp_path)
                positions = truth.examples.indices[:, 0].tolist()
                assert len(set(positions)) == len(positions)
                drawn[half] |= set(positions)
    assert len(drawn["tuning"]) > 6 and len(drawn["scoring"]) > 6
    assert not drawn["tuning"] & drawn["scoring"]


def test_too_few_clients_for_a_half_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable, match="victims of the half tuning"):
        run_attack(cell(victims="tuning", readings=19), RunContext(run=tmp_path), Memory())


def check_values(reading: Reading, updates: dict[str, torch.Tensor], observed: dict[str, torch.Tensor]) -> None:
    """`outcomes` of clients' `updates` against the expected mean, and against an actual single message."""
    assert reading.description is not None
    stated = reading.description.outcomes(updates)
    assert stated is not None
    mean = reading.description.sent({key: value[None] for key, value in updates.items()}, observed)
    for key, message in observed.items():
        chances, values, scale = stated.chances[key], stated.values[key], float(message.abs().max())
        assert torch.allclose(chances.sum(0), torch.ones(1))
        if reading.senders > 1:
            assert float(((chances * values).sum(0).mean(0) - mean[key][0]).abs().max()) <= 1e-5 * scale
        else:
            apart = (values - message).abs().where(chances > 0, torch.inf).amin(0)
            assert float(apart.max()) <= 1e-5 * scale


def test_the_likelihood_of_a_sum_is_the_share_of_draws_that_make_it() -> None:
    """Against counting: three clients, two values each, two coordinates."""
    chances = torch.tensor([0.25, 0.5, 0.75])  # of each client's own value, else 0
    own = torch.tensor([[1.0, 10.0], [2.0, 20.0], [2.0, 40.0]])

    class Masks:
        def outcomes(self, updates: dict[str, torch.Tensor]) -> Outcomes:
            value = updates["w"]
            chance = chances[-len(value) :] if len(value) == 2 else chances[:1].expand(len(value))
            each = chance[:, None].expand_as(value)
            return Outcomes(
                values={"w": torch.stack([torch.zeros_like(value), value])},
                chances={"w": torch.stack([1 - each, each])},
            )

    # Coordinate 0: 2 is client 2's or client 3's value (the first sent nothing). Coordinate 1: 50 = 10 + 40.
    observed = {"w": torch.tensor([[2.0, 50.0]]) / 3}
    scores = by_sums(cast(Description, Masks()), {"w": own[1:]}, observed)
    assert scores is not None
    found = scores({"w": torch.stack([own[0], torch.tensor([1.5, 33.0]), torch.tensor([0.0, 10.0])])})
    first = 0.75 * (0.5 * 0.25 + 0.5 * 0.75)
    expected = [first * 0.25 * 0.5 * 0.75, first * 1e-6, (first / 0.75) * 0.25 * 0.5 * 0.75]
    assert torch.allclose(found, torch.tensor(expected).double().log(), atol=1e-6)


@pytest.mark.parametrize("name", FEW_VALUES)
def test_a_mean_of_clients_shows_which_values_were_added(tmp_path: Path, name: str) -> None:
    """Who knows the other clients' updates names the example behind a mean, as behind a single client's message."""
    strong: dict[str, dict[str, float]]
    strong = {"qsgd": {"levels": 2}, "random-prune": {"share": 0.9, "threshold": 0.0}, "terngrad": {}}
    setting = Federated(clients=20, per_round=6, batch=16)
    which = cell(defense=entry("defenses", name, **strong[name]), point="aggregate", federated=setting)
    result, _ = run_attack(which, RunContext(run=tmp_path), Memory())
    naming = result.figures().naming
    assert naming is not None and naming.value == 1


@pytest.mark.parametrize("where", ["type-1", "aggregate"])
def test_mixing_with_known_examples_hides_nobody(tmp_path: Path, where: str) -> None:
    """48 and 16 mixed examples in 65 dimensions: what known originals cannot span is the unknown original."""
    setting = Federated(clients=20, per_round=3, batch=16)
    which = cell(
        defense=entry("defenses", "mixup"), model=entry("models", "mlp", hidden=[12]), point=where, federated=setting
    )
    result, _ = run_attack(which, RunContext(run=tmp_path), Memory())
    naming = result.figures().naming
    assert naming is not None and naming.value == 1


@pytest.mark.parametrize(("where", "batch"), [("type-1", 80), pytest.param("aggregate", 40, marks=pytest.mark.slow)])
def test_mixing_with_known_examples_of_all_directions_hides_nobody(tmp_path: Path, where: str, batch: int) -> None:
    """80 and 120 mixed examples in 65 dimensions: simulated mixtures name the unknown original."""
    which = cell(
        defense=entry("defenses", "mixup"),
        model=entry("models", "mlp", hidden=[12]),
        point=where,
        federated=Federated(clients=10, per_round=3, batch=batch),
    )
    result, _ = run_attack(which, RunContext(run=tmp_path), Memory())
    naming = result.figures().naming
    assert naming is not None and naming.value == 1
