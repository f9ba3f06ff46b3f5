"""Recorded trainings with Opacus: Poisson sampling, fixed batches, ghost clipping; ε of the engine and ours."""

import copy
from pathlib import Path

import pytest
import torch
from scipy.stats import kstest
from tests import cells, foreign
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench import api
from bench.errors import BenchError

pytest.importorskip("opacus")
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]  # Opacus' own


def recorded(*, poisson: bool, ghost: bool = False, sigma: float = 0.5, undeclared: float = 0.0) -> api.Recording:
    from opacus import PrivacyEngine

    torch.manual_seed(4)
    source = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.rand(60, 1, 6, 6, generator=source), torch.randint(4, (60,), generator=source))
    model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.Tanh(), nn.Linear(16, 4))
    engine, criterion = PrivacyEngine(accountant="rdp"), nn.CrossEntropyLoss()
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=sigma,
        max_grad_norm=0.7,
        data_loader=DataLoader(data, batch_size=12),
        criterion=criterion,
        poisson_sampling=poisson,
        grad_sample_mode="ghost" if ghost else "hooks",
    )
    model, optimizer, *loss, loader = made
    with api.recording(model, optimizer, engine=engine) as sent:
        optimizer.noise_multiplier += undeclared
        for x, y in loader:
            optimizer.zero_grad()
            (loss[0] if loss else criterion)(model(x), y).backward()
            optimizer.step()
        optimizer.noise_multiplier -= undeclared
    return sent


@pytest.mark.parametrize("ghost", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_poisson_steps_are_explained_by_clip_and_noise(ghost: bool) -> None:
    sent = recorded(poisson=True, ghost=ghost)
    x, y = sent.truth
    assert len({len(step.inputs) for step in sent._recorded.steps}) > 1  # drawn, not expected
    assert sent.explained, sent.line
    assert f"{len(x)} examples drawn, 12 expected, clip 0.7" in sent.line
    reading = sent.reading()
    assert reading.batch == len(x)
    assert api.check(reading, x, y).line.startswith("explains what was sent")
    (said,) = sent.notes
    stated, valid = (float(said.split(before)[0].split()[-1]) for before in (" by Opacus", " valid"))
    assert valid == pytest.approx(stated, rel=0.25) and valid <= stated  # the engine's RDP is an upper bound


def test_fixed_batches_part_from_the_engine() -> None:
    """A shuffled loader draws no Poisson samples: the engine's ε is too small."""
    sent = recorded(poisson=False, sigma=2.0)
    assert sent.explained, sent.line
    (said,) = sent.notes
    stated, valid = (float(said.split(before)[0].split()[-1]) for before in (" by Opacus", " valid"))
    assert valid > stated
    assert said.endswith("the engine assumes Poisson sampling, which this loader does not do.")


def test_another_noise_than_described_is_no_explanation() -> None:
    sent = recorded(poisson=True, undeclared=0.5)
    assert not sent.explained
    assert sent.line.startswith("does not explain what was sent: Opacus")


def of_opacus(victims: foreign.Own, *, clip: float, sigma: float) -> api.Recording:
    """A step of Opacus on the cell's victims, at the cell's weights."""
    from opacus import PrivacyEngine

    model, criterion = copy.deepcopy(victims.model), nn.CrossEntropyLoss()
    x, y = victims.inputs[0], victims.labels[0]
    made, optimizer, loader = PrivacyEngine().make_private(
        module=model.train(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=sigma,
        max_grad_norm=clip,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
        poisson_sampling=False,
    )
    with api.recording(made, optimizer) as sent:
        for inputs, labels in loader:
            criterion(made(inputs), labels).backward()
            optimizer.step()
    return sent


def test_opacus_sends_what_dp_sgd_of_the_bench_sends(tmp_path: Path) -> None:
    """Equal updates without noise, an equal noise law, and an equal verdict on the same victims."""
    quiet = foreign.own(cells.entry("defenses", "dp-sgd", clip=0.5, sigma=0.0), tmp_path)
    plain = foreign.own(cells.NONE, tmp_path)
    sent = of_opacus(quiet, clip=0.5, sigma=0.0).reading(**quiet.public)
    assert foreign.distance(quiet.reading, plain.reading) > 0.1  # the clip acts
    assert foreign.distance(quiet.reading, sent) <= 1e-6
    ours, theirs = quiet.verdict(tmp_path), quiet.verdict_on(sent)
    assert ours.asr == theirs.asr
    assert ours.medians["psnr_db"] == pytest.approx(theirs.medians["psnr_db"], abs=0.5)  # the search enlarges 1e-7

    noisy = foreign.own(cells.entry("defenses", "dp-sgd", clip=0.5, sigma=0.8), tmp_path)
    torch.manual_seed(5)
    sent = of_opacus(noisy, clip=0.5, sigma=0.8).reading(**noisy.public)
    assert foreign.variance(sent) == pytest.approx(foreign.variance(noisy.reading), rel=1e-6)
    for reading in (sent, noisy.reading):
        noise = (foreign.flat(reading) - foreign.flat(quiet.reading)) / foreign.variance(noisy.reading) ** 0.5
        assert kstest(noise.numpy(), "norm").pvalue > 0.01


def test_a_step_is_read_before_the_optimizer_uses_its_gradients() -> None:
    from opacus import PrivacyEngine

    torch.manual_seed(4)
    data = TensorDataset(torch.rand(90, 36), torch.randint(4, (90,)))
    linear = nn.Linear(36, 4)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=linear,
        optimizer=torch.optim.SGD(linear.parameters(), lr=0.1),
        noise_multiplier=0.5,
        max_grad_norm=1.0,
        data_loader=DataLoader(data, batch_size=15),
    )
    x, y = next(each for each in loader if len(each[0]))
    nn.functional.cross_entropy(model(x), y).backward()
    step = api.from_opacus(model, optimizer)
    assert f"{len(x)} examples drawn, 15 expected" in repr(step) and len(repr(step)) < 100
    optimizer.step()
    with pytest.raises(BenchError, match=r"has used these gradients; call from_opacus before optimizer.step\(\)"):
        api.from_opacus(model, optimizer)
