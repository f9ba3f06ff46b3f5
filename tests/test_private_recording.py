"""Recorded trainings with Opacus: Poisson sampling, fixed batches, ghost clipping; ε of the engine and ours."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench import api

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


@pytest.mark.parametrize("ghost", [False, True])
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
