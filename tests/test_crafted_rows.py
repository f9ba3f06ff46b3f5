"""Chosen rows of a first layer against closed forms: bins, trap weights, peeling, certificates, saturation."""

from collections.abc import Callable
from dataclasses import replace
from math import e, exp
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.attacks.bins import Bins
from bench.attacks.first_layer.ratios import mean_gradient
from bench.attacks.first_layer.rows import rows_of
from bench.attacks.first_layer.shaded import Shades, filled
from bench.attacks.fishing import Fishing
from bench.attacks.trap import Judge, Trap
from bench.contracts import attacks
from bench.contracts.base import Contract
from bench.contracts.situations import Situation, situation
from bench.defenses.base import Context, Setting, Transform
from bench.defenses.transforms.levels import StochasticLevels
from bench.defenses.transforms.sign import ScaledSign
from bench.errors import NotApplicable
from bench.federated.draws import StreamDraws
from bench.gradients import group_gradients, one_hot
from bench.kinds.images import IMAGE
from bench.models.base import Normalise
from bench.models.cnn import Cnn
from bench.models.mlp import Mlp
from bench.points import point
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Server, Tensors

SHAPE, CLASSES = (1, 6, 6), 10


def examples(count: int, seed: int) -> Tensor:
    """Independent Gaussian values around grey."""
    draw = torch.Generator().manual_seed(seed)
    return 0.5 + 0.15 * torch.randn(count, *SHAPE, generator=draw)


def server(rows: int, batch: int, *, public: int = 20000, model: nn.Module | None = None) -> Server:
    architecture = Mlp(hidden=(rows,), activation="relu")
    net = (model or architecture.build(SHAPE, CLASSES)).eval()
    return Server(
        model=net,
        weights=architecture.initial(net, 0),
        kind=IMAGE,
        shape=SHAPE,
        classes=CLASSES,
        steps=1,
        batch=batch,
        rate=1.0,
        examples=batch,
        public_inputs=examples(public, 1),
        public_labels=torch.zeros(public, dtype=torch.long),
    )


def read(known: Server, weights: Tensors, inputs: Tensor, noise: float = 0.0) -> Reading:
    """The mean gradient of each row of `inputs`, (reading, example, *shape), with random labels."""
    draw = torch.Generator().manual_seed(9)
    labels = torch.randint(known.classes, inputs.shape[:2], generator=draw)
    gradients = group_gradients(known.model, weights, inputs, one_hot(labels, known.classes, inputs.dtype))
    batch = inputs.shape[1]
    return Reading(
        point=point("type-1"),
        linked="vector",
        values={
            name: (value + noise * torch.randn(value.shape, generator=draw))[:, None]
            for name, value in gradients.items()
        },
        weights={name: value[None] for name, value in weights.items()},
        rounds=(0,),
        indices=tuple(range(len(inputs))),
        model=known.model,
        kind=known.kind,
        shape=known.shape,
        value_range=(0.0, 1.0),
        classes=known.classes,
        batch=batch,
        steps=1,
        rate=1.0,
        unit=1.0,
        client_examples=batch,
        senders=1,
        public_mean=known.public_inputs.mean(0),
        public_inputs=known.public_inputs,
        public_labels=known.public_labels,
    )


def attacked(attack: Bins | Trap, known: Server, inputs: Tensor, noise: float = 0.0) -> Reconstruction:
    reading = read(known, attack.craft(known, Key(seed=1)), inputs, noise)
    assert attack.refuses(reading) is None
    return attack.reconstruct(reading, Budget(evaluations=1000), Key(seed=0))


def decibels(found: Tensor, inputs: Tensor) -> Tensor:
    """Of each example against the nearest reconstruction, (reading, example)."""
    pairs = zip(found.flatten(2).double(), inputs.flatten(2).double(), strict=True)
    gaps = [torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").min(0).values for a, b in pairs]
    return -20 * (torch.stack(gaps) / inputs[0, 0].numel() ** 0.5).clamp_min(1e-9).log10()


def share(found: Reconstruction, inputs: Tensor, least: float = 30) -> float:
    return float((decibels(found.inputs, inputs) >= least).float().mean())


@pytest.mark.parametrize("direction", ["brightness", "random"])
@pytest.mark.parametrize(("rows", "batch"), [(64, 16), (256, 64), (100, 63)])
def test_bins_meet_their_closed_form(direction: str, rows: int, batch: int) -> None:
    """Against the occupancy law; 20 000 public examples stand for the true quantiles.

    A pair in a bin may count if a member dominates: a share above the form is no fault up to .06."""
    readings = 40
    inputs = examples(readings * batch, 2).unflatten(0, (readings, batch))
    form = (1 - 1 / rows) ** (batch - 1)
    load = batch / rows
    single = load * exp(-load)
    spread = (rows * (single - single**2 * (1 + (load - 1) ** 2 / load)) / readings) ** 0.5 / batch
    value = share(attacked(Bins(direction=direction), server(rows, batch), inputs), inputs, least=60)  # type: ignore[arg-type]
    assert 0.99 * form - 3 * spread <= value <= form + 3 * spread


@pytest.mark.parametrize(("rows", "batch"), [(250, 25), (250, 100), (100, 50)])
def test_equal_shares_meet_their_recall(rows: int, batch: int) -> None:
    """The first pass over the rows: an example that is the only one in some row. Survey: +3, -10 points."""
    inputs = examples(20 * batch, 3).unflatten(0, (20, batch))
    known = server(rows, batch)
    reading = read(known, Trap(shares="equal").craft(known, Key(seed=1)), inputs)
    rows_read = rows_of(reading)
    assert rows_read is not None
    judge = Judge.of(reading, rows_read)
    counts = [
        len(judge.peeled(each, reading, 0.05, most=10**6, passes=1)[0]) for each in mean_gradient(reading, rows_read)
    ]
    form = 1 - exp(-rows / (e * batch))
    assert form - 0.1 <= sum(counts) / (20 * batch) <= form + 0.03


def test_peeling_and_spread_shares_recover_more() -> None:
    inputs = examples(4 * 100, 4).unflatten(0, (4, 100))
    known = server(400, 100)
    equal, spread = (attacked(Trap(shares=each), known, inputs) for each in ("equal", "spread"))  # type: ignore[arg-type]
    assert 1 - exp(-400 / (e * 100)) < share(equal, inputs) < share(spread, inputs)
    assert share(spread, inputs) > 0.95


@pytest.mark.parametrize(
    ("rows", "batch", "readings"),
    [
        (200, 100, 6),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((256, 64, 80), (200, 100, 40), (300, 128, 40))),
    ],
)
def test_no_certificate_is_wrong(rows: int, batch: int, readings: int) -> None:
    """Every certain example is an example behind its reading, once: 10 000 with the slow loads."""
    inputs = examples(readings * batch, 5 + rows).unflatten(0, (readings, batch))
    result = attacked(Trap(), server(rows, batch, public=2000), inputs)
    assert result.certificate is not None and float(result.certificate.mean()) > 0.4
    for row, part in enumerate(result.certificate):
        count = round(float(part) * batch)
        found = result.inputs[row, :count].flatten(1).double()
        gaps = torch.cdist(found, inputs[row].flatten(1).double(), compute_mode="donot_use_mm_for_euclid_dist")
        nearest = gaps.min(1)
        assert float(nearest.values.max()) / 6 < 0.01 and len(nearest.indices.unique()) == count


def test_a_certificate_asks_for_the_likeness_of_the_second_layer() -> None:
    """Ratios that are mixtures are not certain."""
    known = server(100, 8)
    inputs = examples(8, 6)[None]
    reading = read(known, Trap().craft(known, Key(seed=1)), inputs)
    rows = rows_of(reading)
    assert rows is not None
    judge = Judge.of(reading, rows)
    gradient = next(mean_gradient(reading, rows))
    at = torch.nonzero((rows.outputs(inputs[0].flatten(1).double()) > 0).sum(0) == 2)[:, 0]
    mixtures = rows.first.undo(gradient.of_first[at, :-1] / gradient.of_first[at, -1:])
    assert len(at) > 10 and not judge._certain(gradient, at, mixtures)[0].any()


def test_two_classes_give_no_certificate() -> None:
    known = replace(server(64, 4), classes=2, model=Mlp(hidden=(64,), activation="relu").build(SHAPE, 2).eval())
    known = replace(known, weights=Mlp().initial(known.model, 0))
    inputs = examples(4, 7)[None]
    result = attacked(Trap(), known, inputs)
    assert result.certificate is None and share(result, inputs) > 0.7


@pytest.mark.parametrize("gain", [1e-3, 1.0, 1e6, 1e12])
def test_no_gain_saturates_the_loss(gain: float) -> None:
    inputs = examples(4 * 32, 8).unflatten(0, (4, 32))
    known = server(128, 32)
    shares = [share(attacked(each(gain=gain), known, inputs), inputs) for each in (Bins, Trap)]
    assert shares == [share(attacked(each(gain=10.0), known, inputs), inputs) for each in (Bins, Trap)]


def test_noise_falls_to_the_gain() -> None:
    """Noise of the same size hides a batch from honest-sized weights, and nothing from large weights."""
    inputs = examples(4 * 32, 8).unflatten(0, (4, 32))
    known = server(256, 32)
    low, high, without = (
        share(attacked(Bins(gain=gain), known, inputs, noise), inputs)
        for gain, noise in ((1.0, 0.1), (1e6, 0.1), (1.0, 0.0))
    )
    assert low == 0 and high == without > 0.8


def test_few_bins_survive_pruning() -> None:
    """A tenth of the first layer's values arrives: 20 of 256 rows have their whole gradient there."""
    inputs = examples(4 * 8, 8).unflatten(0, (4, 8))
    known = server(256, 8)
    shares = []
    for bins in (None, 20):
        attack = Bins(rows=bins)
        reading = read(known, attack.craft(known, Key(seed=1)), inputs)
        weight = reading.values["1.weight"]
        least = weight.abs().flatten(1).quantile(0.9, dim=1)[:, None, None, None]
        pruned = {**reading.values, "1.weight": weight * (weight.abs() >= least)}
        found = attack.reconstruct(replace(reading, values=pruned), Budget(evaluations=1000), Key(seed=0))
        shares.append(share(found, inputs))
    assert shares[0] < 0.1 and shares[1] > (1 - 1 / 20) ** 7 - 0.15


def test_the_bin_gives_the_scale_behind_a_clip_by_tensor() -> None:
    """Each example's weight and bias gradients have a norm of 1: their ratio is the example divided by its norm."""
    inputs = examples(2 * 16, 8).unflatten(0, (2, 16))
    known = server(256, 16)
    reading = read(known, Bins().craft(known, Key(seed=1)), inputs)
    weights = {name: value[0] for name, value in reading.weights.items()}
    each = group_gradients(
        known.model, weights, inputs.flatten(0, 1)[:, None], one_hot(torch.zeros(32, 1).long(), CLASSES, torch.float32)
    )
    clipped = {
        name: value / value.flatten(1).norm(dim=1).reshape(-1, *[1] * (value.dim() - 1)) for name, value in each.items()
    }
    values = {name: value.unflatten(0, (2, 16)).mean(1)[:, None] for name, value in clipped.items()}
    found = Bins().reconstruct(replace(reading, values=values), Budget(evaluations=1000), Key(seed=0))
    assert share(found, inputs, least=30) > 0.8


def test_a_disguise_keeps_honest_sizes_and_hides_alike_rows() -> None:
    """Half of the values hardly vary: noise there costs few examples."""
    varied = torch.ones(SHAPE)
    varied[:, 3:] = 1e-4
    grey = replace(server(256, 32), public_inputs=0.5 + (examples(20000, 1) - 0.5) * varied)
    inputs = (0.5 + (examples(4 * 32, 8) - 0.5) * varied).unflatten(0, (4, 32))
    likeness, shares = [], []
    for disguise in (0.0, 0.5, 0.9):
        attack = Bins(gain=1.0, disguise=disguise)
        weights = attack.craft(grey, Key(seed=1))
        units = torch.nn.functional.normalize(weights["1.weight"])
        likeness.append(float((units @ units.T).fill_diagonal_(0).mean()))
        shares.append(share(attacked(attack, grey, inputs), inputs))
        if disguise:
            sizes = [float(each.norm() / grey.weights[name].norm()) for name, each in weights.items() if each.dim() > 1]
            assert sizes == pytest.approx([1, 1], abs=0.01)
            assert len({tuple(column) for column in weights["3.weight"].T.tolist()}) == 13  # blocks of 20 rows
    assert likeness == pytest.approx([1, 0.5, 0.1], abs=0.03)  # the direction's share of the squared norm
    assert shares[0] > shares[1] > 0.8 * shares[0] and shares[2] > 0.8 * shares[0]


def test_a_normalisation_before_the_layer_is_undone() -> None:
    net = nn.Sequential(Normalise((0.3,), (0.2,)), nn.Flatten(), nn.Linear(36, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    inputs = examples(2 * 16, 8).unflatten(0, (2, 16))
    for attack in (Bins(), Trap()):
        assert share(attacked(attack, server(128, 16, model=net), inputs), inputs) > 0.8


def test_deeper_nets_keep_their_upper_layers() -> None:
    net = Mlp(hidden=(128, 30), activation="relu").build(SHAPE, CLASSES)
    inputs = examples(2 * 16, 8).unflatten(0, (2, 16))
    known = server(128, 16, model=net)
    for attack in (Bins(), Trap()):
        weights = attack.craft(known, Key(seed=1))
        assert torch.equal(weights["5.weight"], known.weights["5.weight"])
        assert share(attacked(attack, known, inputs), inputs) > 0.8


def behind_convolutions(hidden: int, batch: int, steps: int = 1) -> Server:
    """A server of a net with convolutions and maxima below its two fully connected layers; images of 8×8 pixels."""
    architecture, shape = Cnn(hidden=hidden), (1, 8, 8)
    net = architecture.build(shape, CLASSES).eval()
    draw = torch.Generator().manual_seed(1)
    smooth = torch.nn.functional.avg_pool2d(torch.rand(2000, 1, 10, 10, generator=draw), 3, 1)
    return replace(
        server(8, batch),
        model=net,
        weights=architecture.initial(net, 0),
        shape=shape,
        steps=steps,
        public_inputs=smooth,
        public_labels=torch.zeros(2000, dtype=torch.long),
    )


def test_bins_behind_convolutions_recover_images() -> None:
    known = behind_convolutions(256, 16)
    inputs = known.public_inputs[1000:1016][None]
    known = replace(known, public_inputs=known.public_inputs[:1000], public_labels=known.public_labels[:1000])
    result = attacked(Bins(), known, inputs)
    assert share(result, inputs) >= 0.8  # alone in a bin: .94
    assert result.evaluations.tolist() != [0]


def test_opened_convolutions_close_no_relu() -> None:
    known = behind_convolutions(64, 4)
    rows = rows_of(known, behind=True)
    assert rows is not None and rows.below is not None and rows_of(known) is None
    weights = rows.below.opened(known.public_inputs).weights
    x = known.public_inputs
    for path in ("0", "3"):
        x = torch.nn.functional.conv2d(x, weights[f"{path}.weight"], weights[f"{path}.bias"], padding=1)
        assert float(x.min()) >= -1e-5
        x = torch.nn.functional.max_pool2d(x, 2)


def test_bins_behind_convolutions_say_what_they_need() -> None:
    with pytest.raises(NotApplicable, match="several local steps move convolutions"):
        Bins().craft(behind_convolutions(64, 4, steps=2), Key(seed=1))
    layers = (
        nn.Conv2d(1, 4, 3, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )
    with pytest.raises(NotApplicable, match="no fully connected layer with bias"):
        Bins().craft(server(64, 4, model=nn.Sequential(*layers)), Key(seed=1))
    with pytest.raises(NotApplicable, match="no fully connected layer with bias"):
        Trap().craft(behind_convolutions(64, 4), Key(seed=1))


def test_other_weights_are_refused() -> None:
    known = server(64, 4)
    reading = read(known, known.weights, examples(4, 7)[None])
    assert "not alike" in str(Bins().refuses(reading)) and Trap().refuses(reading) is None
    assert "later local step" in str(Trap().refuses(replace(reading, steps=2)))


@pytest.mark.parametrize("attack", [Bins(), Trap()])
def test_an_empty_or_broken_reading_gives_finite_examples_or_says_so(attack: Bins | Trap) -> None:
    known = server(64, 4)
    reading = read(known, attack.craft(known, Key(seed=1)), examples(12, 7).unflatten(0, (3, 4)))
    for value in (0.0, torch.nan, torch.inf):
        values = {name: each.clone() for name, each in reading.values.items()}
        for each in values.values():
            each[1] = value
        result = attack.reconstruct(replace(reading, values=values), Budget(evaluations=1000), Key(seed=0))
        assert torch.isfinite(result.inputs).all() and result.status[0] == result.status[2] == "ok"
        assert torch.equal(result.inputs[1], reading.public_mean.expand(4, *SHAPE))
        assert (result.status[1] == "ok") == (value == 0.0)


def crafted(attack: Bins | Trap | Fishing) -> Callable[..., Situation]:
    """The contracts' readings of digits, under the attack's own weights of a net with ReLU."""

    def make(*where: str, **options: Any) -> Situation:
        case = situation(*where, **options)
        reading = case.reading
        if reading.steps > 1 or len(reading.rounds) > 1 or reading.kind is not IMAGE:
            return case  # refused
        architecture = Mlp(hidden=(40,), activation="relu")
        net = architecture.build(reading.shape, reading.classes).double().eval()
        known = Server(
            model=net,
            weights={name: value.double() for name, value in architecture.initial(net, 0).items()},
            kind=reading.kind,
            shape=reading.shape,
            classes=reading.classes,
            steps=1,
            batch=reading.batch,
            rate=reading.rate,
            examples=reading.examples,
            public_inputs=reading.public_inputs,
            public_labels=reading.public_labels,
        )
        weights = attack.craft(known, Key(seed=0))
        gradients = group_gradients(
            net, weights, case.truth.double(), one_hot(case.labels, reading.classes, torch.float64)
        )
        values = {name: value[:, None] for name, value in gradients.items()}
        return replace(
            case,
            reading=replace(
                reading, model=net, values=values, weights={name: value[None] for name, value in weights.items()}
            ),
        )

    return make


@pytest.mark.parametrize("contract", attacks.CONTRACTS, ids=lambda contract: contract.name)
@pytest.mark.parametrize(
    "attack", [Bins(), Trap(), pytest.param(Fishing(), marks=pytest.mark.slow)], ids=["bins", "trap", "fishing"]
)
def test_contracts_hold_under_chosen_weights(
    attack: Bins | Trap | Fishing, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attacks, "situation", crafted(attack))
    contract.function(attack)


def strokes(count: int, seed: int) -> Tensor:
    """Rectangles, brighter inside than at their edges: values follow from the places that are not 0."""
    draw = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, 6, (count, 2, 2), generator=draw).sort(-1).values[..., None]
    at = torch.arange(6)
    rows, columns = ((ends[:, axis, 0] <= at) & (at <= ends[:, axis, 1]) for axis in (0, 1))
    places = (rows[:, :, None] & columns[:, None, :]).float()[:, None]
    near = nn.functional.avg_pool2d(places, 3, 1, 1)
    return places * (0.3 + 0.7 * near)


def rounded(transform: Transform, known: Server, trap: Trap, inputs: Tensor) -> float:
    """Share of `inputs`, (reading, example, *shape), that `trap` finds at 20 dB behind a transform."""
    count, batch = inputs.shape[:2]
    reading = read(known, trap.craft(known, Key(seed=1)), inputs)
    setting = Setting(clients=count, per_round=1, rounds=1, steps=1, batch=batch, client_examples=batch, rate=1.0)
    draws = StreamDraws.of(0, 0, 0, tuple(range(count)), torch.device("cpu"))
    context = Context(lead=1, stage="client", round=0, step=0, setting=setting, draws=draws)
    sent = transform.apply({name: value[:, 0] for name, value in reading.values.items()}, context)
    coarse = replace(reading, values={name: value[:, None] for name, value in sent.items()})
    return share(trap.reconstruct(coarse, Budget(evaluations=1000), Key(seed=0)), inputs, least=20)


def test_equal_shares_read_signs() -> None:
    """Signs tell places; the values follow from public examples. Formula without a defense: 100 %."""
    known = replace(server(240, 8), public_inputs=strokes(4000, 1))
    inputs = strokes(10 * 8, 2).unflatten(0, (10, 8))
    trap = Trap(shares="equal", slack=0.2)
    assert rounded(ScaledSign(), known, trap, inputs) >= 0.6
    blind = replace(known, public_inputs=known.public_inputs.clamp_min(1e-6))  # without zeros: no estimate
    assert rounded(ScaledSign(), blind, trap, inputs) <= 0.3


ROUNDING = StochasticLevels(levels=1, norm="max", clip=2.5), StochasticLevels(levels=None, norm="l2")


@pytest.mark.parametrize(("transform", "most", "least"), [(ROUNDING[0], 0.05, 0.15), (ROUNDING[1], 0.4, 0.5)])
def test_equal_rows_average_random_rounding(transform: Transform, most: float, least: float) -> None:
    known, inputs = server(960, 8, public=4000), examples(20 * 8, 2).unflatten(0, (20, 8))
    assert rounded(transform, known, Trap(shares="equal", slack=0.2), inputs) <= most
    assert rounded(transform, known, Trap(shares="equal", repeats=24, slack=0.2), inputs) >= least


def test_shades_estimate_values_from_their_places() -> None:
    known, trap = replace(server(64, 8), public_inputs=strokes(4000, 1)), Trap()
    reading = read(known, trap.craft(known, Key(seed=1)), strokes(8, 2)[None])
    rows = rows_of(reading)
    assert rows is not None
    shades = Shades.of(reading, rows)
    assert shades is not None
    true = strokes(500, 3).flatten(1).double()
    places = (true > 0).double()
    by_mean = places * true.sum(0) / places.sum(0)
    assert (filled(0.1 * places, lambda: shades) - true).norm() < 0.5 * (by_mean - true).norm()
    several = true[:1] + torch.arange(36) / 36
    assert torch.equal(filled(several, lambda: shades), several)
    assert Shades.of(replace(reading, public_inputs=examples(100, 1)), rows) is None
