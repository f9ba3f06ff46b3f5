"""A Flower app's client, called in this process: `tests/flower_app` with other mods (`tox -e flower`)."""

import json
import shutil
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from scipy.stats import kstest
from tests import cells, foreign

from bench import api
from bench.cell import Federated
from bench.cli.assess import command
from bench.errors import BenchError

pytest.importorskip("flwr", reason="tox -e flower")
pytestmark = [pytest.mark.filterwarnings("ignore")]  # Flower's own

APP = Path(__file__).parent / "flower_app"
LOCAL = "from flwr.clientapp.mod import LocalDpMod\nMODS = [LocalDpMod({clip}, {sensitivity}, {epsilon}, 1e-5)]\n"
PLAIN = "def strategy(plain):\n    return plain\n"


def app(folder: Path, chosen: str = "MODS = []\n" + PLAIN, **files: str) -> Path:
    made = folder / "app"
    shutil.copytree(APP, made, ignore=shutil.ignore_patterns("__pycache__"))
    (made / "quickapp" / "chosen.py").write_text(chosen, "utf-8")
    for name, text in files.items():
        (made / "quickapp" / f"{name}.py").write_text(text, "utf-8")
    return made


def client(folder: Path, **options: Any) -> Any:
    from bench.assess.flower import run_client

    torch.manual_seed(0)
    return run_client(folder, **options)


def test_a_shuffled_training_with_momentum_is_replayed(tmp_path: Path) -> None:
    made = client(app(tmp_path))
    sent = made.recording
    assert sent.error is not None and sent.error <= 1e-6 and sent.seen == ()
    reading = sent.reading()
    assert (reading.steps, reading.batch, reading.client_examples, reading.momentum) == (4, 4, 8, 0.9)
    held, labels = sent.held_out
    assert held.shape == (172, 1, 8, 8) and labels.shape == (172,)
    assert made.notes == ("Public examples: those of the client's evaluation.",)
    other = client(tmp_path / "app", partition=3, config={"local-epochs": 1})
    assert other.recording.reading().steps == 2
    assert not torch.equal(other.recording.truth[0], sent.truth[0])


def test_a_misdeclared_sensitivity_is_said_in_a_sentence(tmp_path: Path) -> None:
    """A hospital's values: clip 1, sensitivity 1e-4."""
    chosen = LOCAL.format(clip=1.0, sensitivity=1e-4, epsilon=10.0) + PLAIN
    made = client(app(tmp_path, chosen), config={"local-epochs": 1})  # the order of later epochs is not declared
    (said,) = [each for each in made.notes if "LocalDpMod" in each]
    shift = 2 / (1e-4 * sqrt(2 * log(1.25 / 1e-5)) / 10)
    assert shift == pytest.approx(41_000, rel=0.01)
    assert said.startswith("LocalDpMod states the sensitivity 0.0001, but a replaced client changes its clipped update")
    assert f"μ = {shift:.3g} for a replaced client" in said
    sent = made.recording
    assert sent.defense["clip"] == 1.0
    x, y = sent.truth
    assert api.check(sent.reading(), x, y).line.startswith("explains what was sent")


def test_a_right_sensitivity_and_clipping_are_recognised(tmp_path: Path) -> None:
    made = client(app(tmp_path / "a", LOCAL.format(clip=0.5, sensitivity=1.0, epsilon=5.0) + PLAIN))
    (said,) = [each for each in made.notes if "LocalDpMod" in each]
    assert said.startswith("LocalDpMod: clip 0.5 and noise of standard deviation 0.97")
    clipped = (
        "from flwr.clientapp.mod import fixedclipping_mod, message_size_mod\n"
        "from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping as Clipped\n"
        "MODS = [message_size_mod, fixedclipping_mod]\n"
        "def strategy(plain):\n"
        "    return Clipped(plain, noise_multiplier=0.0, clipping_norm=0.01, num_sampled_clients=5)\n"
    )
    made = client(app(tmp_path / "b", clipped))
    assert any("fixedclipping_mod: the update is clipped to length 0.01" in each for each in made.notes)
    assert made.recording.defense["clip"] == pytest.approx(0.01, rel=1e-3)


def test_masks_and_unknown_mods_are_named(tmp_path: Path) -> None:
    masked = "from flwr.client.mod import secaggplus_mod\nMODS = [secaggplus_mod]\n" + PLAIN
    made = client(app(tmp_path / "a", masked))
    assert any(each.startswith("secaggplus_mod masks the message") for each in made.notes)
    assert made.recording.explained
    own = (
        "from flwr.app import ArrayRecord\n"
        "def coarser(message, context, call_next):\n"
        "    reply = call_next(message, context)\n"
        "    if message.metadata.message_type == 'train':\n"
        "        state = reply.content['arrays'].to_torch_state_dict()\n"
        "        coarse = {name: value.round(decimals=2) for name, value in state.items()}\n"
        "        reply.content['arrays'] = ArrayRecord(coarse)\n"
        "    return reply\n"
        "MODS = [coarser]\n"
    )
    made = client(app(tmp_path / "b", own + PLAIN))
    assert any(each.startswith("coarser changes the update (cosine 0.") for each in made.notes)


def test_faults_of_an_app_are_lines(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="give the folder of a Flower app"):
        client(tmp_path)
    made = app(tmp_path)
    with pytest.raises(BenchError, match="no setting 'epochs'; it has num-server-rounds"):
        client(made, config={"epochs": 1})
    (made / "quickapp" / "task.py").write_text("import nothing_of_that_name\n", "utf-8")
    with pytest.raises(BenchError, match="No module named 'nothing_of_that_name'; install the app's packages"):
        client(made)
    project = made / "pyproject.toml"
    needs = 'dependencies = ["flwr>=1.38", "torch==2.8.0", "flwr-datasets[vision]>=0.6.0"]'
    project.write_text(project.read_text("utf-8").replace('version = "0.0.0"', f'version = "0.0.0"\n{needs}'), "utf-8")
    with pytest.raises(BenchError, match=r"; pip install 'flwr-datasets\[vision\]>=0.6.0'$"):
        client(made)
    old = "from flwr.clientapp import ClientApp\napp = ClientApp(client_fn=lambda context: None)\n"
    with pytest.raises(BenchError, match="only @app.train"):
        client(app(tmp_path / "old", client_app=old))
    failing = (
        (APP / "quickapp" / "client_app.py").read_text("utf-8").replace("loss = task", "loss = 1 / 0\n    loss = task")
    )
    with pytest.raises(BenchError, match="the ClientApp failed: ZeroDivisionError"):
        client(app(tmp_path / "bad", client_app=failing))


def test_the_command_reports_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.assess.plans.MOST", 40)
    monkeypatch.setattr("bench.assess.plans._PROBE", (1, 0.0))
    monkeypatch.setattr("bench.assess.remedies._LEAST", 1)
    monkeypatch.setattr("bench.assess.remedies.TRIALS", 1)
    chosen = LOCAL.format(clip=1.0, sensitivity=1e-4, epsilon=10.0) + PLAIN
    line = ["flower", str(app(tmp_path, chosen)), "--minutes", "0.5", "--out", str(tmp_path / "leak"), "--json"]
    said = CliRunner().invoke(command, line)
    assert said.exit_code == 0, said.output
    content = json.loads(said.stdout)
    assert [each["name"] for each in content["listeners"]] == ["update", "inside"]
    assert any("LocalDpMod states the sensitivity" in each for each in content["notes"])
    assert (tmp_path / "leak" / "report.html").is_file()


VICTIMS = """

FILE = {file!r}


def Net():
    return torch.load(FILE, weights_only=False)["model"]


def load_data(partition, partitions):
    held = torch.load(FILE, weights_only=False)
    own = TensorDataset(held["inputs"], held["labels"])
    return DataLoader(own, batch_size=2), DataLoader(own, batch_size=2)
"""


def of_flower(folder: Path, victims: foreign.Own, chosen: str) -> api.Recording:
    """The app's client, whose local steps are those of the cell's client, with other mods."""
    folder.mkdir()
    file = folder / "victims.pt"
    rows = {"inputs": victims.inputs.flatten(0, 1), "labels": victims.labels.flatten()}
    torch.save({"model": victims.model, **rows}, file)
    task = (APP / "quickapp" / "task.py").read_text("utf-8").replace(", momentum=0.9", "")
    made = app(folder, chosen, task=task + VICTIMS.format(file=str(file)))
    sent: api.Recording = client(made, config={"local-epochs": 1, "learning-rate": 1.0}).recording
    return sent


def test_flowers_clip_and_noise_are_the_fed_sdp(tmp_path: Path) -> None:
    """Equal updates without noise, an equal noise law, and an equal verdict on the same victims."""
    federated = Federated(algorithm="fedavg", clients=10, per_round=1, steps=2, batch=2, rate=1.0, client_examples=4)
    clipped = {"at": "client", "clip": 0.5, "noise": "each"}
    still = cells.entry("defenses", "fed-sdp", **clipped, sigma=0.0)
    quiet = foreign.own(
        still, tmp_path, federated=federated, evaluations=15
    )  # later, rounding sends a search elsewhere
    plain = foreign.own(cells.NONE, tmp_path, federated=federated)
    assert foreign.distance(quiet.reading, plain.reading) > 0.1  # the clip acts
    fixed = (
        "from flwr.clientapp.mod import fixedclipping_mod\n"
        "from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping as Clipped\n"
        "MODS = [fixedclipping_mod]\n"
        "def strategy(plain):\n"
        "    return Clipped(plain, noise_multiplier=0.0, clipping_norm=0.5, num_sampled_clients=5)\n"
    )
    sent = of_flower(tmp_path / "quiet", quiet, fixed).reading(**quiet.public)
    assert foreign.distance(quiet.reading, sent) <= 1e-6
    ours, theirs = quiet.verdict(tmp_path), quiet.verdict_on(sent)
    assert ours.asr == theirs.asr
    assert ours.medians["psnr_db"] == pytest.approx(theirs.medians["psnr_db"], abs=0.5)

    sigma = sqrt(2 * log(1.25 / 1e-5)) / 5.0  # of LocalDpMod with the sensitivity C
    noisy = foreign.own(cells.entry("defenses", "fed-sdp", **clipped, sigma=sigma), tmp_path, federated=federated)
    local = LOCAL.format(clip=0.5, sensitivity=0.5, epsilon=5.0) + PLAIN
    sent = of_flower(tmp_path / "noisy", noisy, local).reading(**noisy.public)
    assert foreign.variance(sent) == pytest.approx(foreign.variance(noisy.reading), rel=1e-6)
    for reading in (sent, noisy.reading):
        noise = (foreign.flat(reading) - foreign.flat(quiet.reading)) / (sigma * 0.5)
        assert kstest(noise.numpy(), "norm").pvalue > 0.01


def test_the_registered_local_dp_mod_is_flowers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mod's own code on a message: equal clipped weights and an equal deviation of the noise."""
    import numpy as np
    from flwr.app import ArrayRecord, Message, RecordDict
    from flwr.clientapp.mod import LocalDpMod as Mod

    from bench.defenses.local_dp_mod import LocalDpMod

    drawn: list[float] = []

    def quiet(mean: float, deviation: float, shape: tuple[int, ...]) -> Any:
        drawn.append(deviation)
        return np.zeros(shape)

    monkeypatch.setattr(np.random, "normal", quiet)
    before, after = torch.zeros(50), torch.arange(50.0)
    message = Message(RecordDict({"arrays": ArrayRecord({"w": before})}), 1, "train")
    reply = Message(RecordDict({"arrays": ArrayRecord({"w": after})}), reply_to=message)
    out = Mod(0.7, 0.2, 3.0, 1e-6)(message, None, lambda *_: reply)
    sent = torch.from_numpy(out.content["arrays"].to_numpy_ndarrays()[0])
    ours = LocalDpMod(clipping_norm=0.7, sensitivity=0.2, epsilon=3.0, delta=1e-6)
    assert sent.numpy() == pytest.approx((after * 0.7 / after.norm()).numpy(), rel=1e-6)
    assert drawn == [pytest.approx(ours.deviation)]
