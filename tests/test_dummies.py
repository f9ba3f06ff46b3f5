"""Dummies, the attacker's own clients: the attacker subtracts their messages, and their noise protects no other client.

A cell holds the difference directly, a round without the dummies' rows; a test computes the difference itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cells import MEMORY, RESOLVER, attack, entry, mate
from torch import Tensor

from bench.answer.context import Memory, RunContext
from bench.answer.observation import draw_and_observe
from bench.answer.run import run
from bench.cell import AttackCell, Federated, Grants
from bench.defenses.base import Context, Setting
from bench.defenses.secure_aggregation import SecureAggregation
from bench.defenses.transforms.ring import MaskInRing
from bench.errors import BenchError
from bench.federated.draws import KeyedDraws
from bench.federated.privacy import at_point
from bench.matrix.feasible import impossible
from bench.matrix.read import read
from bench.points import point as point_of
from bench.registry import entries as registry
from bench.trip import Reading

CLIENTS, READINGS = 4, 2
BITS = 10  # steps far above the rounding of gradients, in a ring that single precision holds
STEP = 8 / 2**BITS
MASKED = entry("defenses", "secure-aggregation", clip=4.0, bits=BITS)


def cell(dummies: int = 0, where: str = "aggregate", **changes: Any) -> AttackCell:
    return attack(
        **{
            "model": entry("models", "mlp", hidden=(8,)),
            "federated": Federated(clients=12, per_round=CLIENTS, batch=3),
            "point": where,
            "readings": READINGS,
            "grants": Grants(dummies=dummies),
        }
        | changes
    )


def reading(which: AttackCell, folder: Path) -> Reading:
    return draw_and_observe(which, RunContext(run=folder), MEMORY).reading


def seen(which: AttackCell, folder: Path) -> Tensor:
    """All values of each reading, (reading, coordinate)."""
    return torch.cat([value[:, 0].flatten(1) for value in reading(which, folder).values.values()], 1)


def test_all_clients_but_one_give_the_message_of_that_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unmasked, update = seen(cell(CLIENTS - 1, defense=MASKED), tmp_path), seen(cell(where="type-0"), tmp_path)
    assert 0 < float((unmasked - update).abs().max()) <= STEP * 1.001  # rounding in the ring
    masked = cell(where="type-0", defense=MASKED)
    assert float((seen(masked, tmp_path) - update).abs().median()) > 0.5  # masks hide an upload
    monkeypatch.setattr(MaskInRing, "_seeds", lambda self, name, like, context: torch.zeros_like(like).double())
    assert torch.equal(unmasked, seen(masked, tmp_path))


@pytest.mark.parametrize("dummies", [1, 2, 3])
def test_a_round_without_dummies_is_the_sum_minus_their_messages(dummies: int) -> None:
    """Four clients mask and send; the attacker unmasks the sum and subtracts the messages of its own clients."""
    rest, updates = (
        CLIENTS - dummies,
        torch.randn(CLIENTS, 500, generator=torch.Generator().manual_seed(0)).clamp(-3, 3),
    )
    messages = torch.stack([steps_of_sum(updates[n : n + 1], setting(CLIENTS - 1), first=n) for n in range(CLIENTS)])
    left = steps_of_sum(updates[:rest], setting(dummies))
    assert torch.equal(left, steps_of_sum(updates, setting()) - messages[rest:].sum(0))
    assert torch.equal(left, messages[:rest].sum(0))
    assert 0 < float((messages - updates / STEP).abs().max()) < 1


def setting(dummies: int = 0, **changes: Any) -> Setting:
    fields = {"clients": 12, "per_round": CLIENTS, "rounds": 4, "steps": 1, "batch": 3, "client_examples": 9}
    return Setting(rate=0.1, dummies=dummies, **(fields | changes))


def steps_of_sum(updates: Tensor, chosen: Setting, first: int = 0) -> Tensor:
    """The sum that the server reads, in whole steps, (coordinate,); the clients are `first`, `first` + 1, …."""
    stages = SecureAggregation(clip=4.0, bits=BITS).transforms(chosen)
    rows = tuple((first + n,) for n in range(len(updates)))
    draws = KeyedDraws(seed=0, fields=("client",), rows=rows)
    context = Context(lead=1, stage="client", round=0, step=0, setting=chosen, draws=draws)
    mean = stages["client"][0].apply({"a": updates}, context)["a"].double().mean(0)
    return (stages["aggregate"][0].apply({"a": mean}, context)["a"] * len(updates) / STEP).round()


@pytest.mark.parametrize("dummies", [1, 2])
def test_a_reading_is_the_mean_of_the_other_clients(tmp_path: Path, dummies: int) -> None:
    rest = CLIENTS - dummies
    each = seen(cell(where="type-0", readings=READINGS * rest), tmp_path).unflatten(0, (READINGS, rest))
    torch.testing.assert_close(seen(cell(dummies), tmp_path), each.mean(1), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(seen(cell(dummies, defense=MASKED), tmp_path), each.mean(1), rtol=0, atol=STEP)


@pytest.mark.parametrize("dummies", [1, CLIENTS - 1])
def test_an_adaptive_attacker_knows_the_rounding_of_the_others(tmp_path: Path, dummies: int) -> None:
    adaptive = cell(dummies, defense=MASKED, knowledge="adaptive", attack=entry("attacks", "cpl"))
    found = reading(adaptive, tmp_path)
    assert found.senders == CLIENTS - dummies and found.description is not None
    assert found.examples == 3 * found.senders
    assert found.description.noise.variance == pytest.approx(STEP**2 / (4 * found.senders))


def test_a_black_box_has_the_same_dummies(tmp_path: Path) -> None:
    changes = {"knowledge": "black-box", "attack": entry("attacks", "learned-inverter")}
    found = reading(cell(2, defense=MASKED, **changes), tmp_path)
    assert found.simulator is not None
    inputs, labels = found.public_inputs[:6].unflatten(0, (1, 6)), found.public_labels[:6].unflatten(0, (1, 6))
    simulated = found.simulator(inputs, labels, 0)
    free = reading(cell(2, **changes), tmp_path).simulator
    assert free is not None
    for name, value in free(inputs, labels, 0).items():
        torch.testing.assert_close(simulated[name], value, rtol=0, atol=STEP)


OF_CLIENTS = [
    ("dp-sgd", {}),
    ("fed-cdp", {"noise": "share"}),
    ("fed-sdp", {"at": "client"}),
    ("fed-sdp", {"at": "client", "noise": "each"}),
    ("adaclip", {"at": "client"}),
]


@pytest.mark.parametrize(("name", "params"), OF_CLIENTS)
@pytest.mark.parametrize("steps", [1, 3])
def test_dummies_add_no_noise_to_epsilon(name: str, params: dict[str, Any], steps: int) -> None:
    def multiplier(where: str, dummies: int) -> float:
        defense = registry.instance("defenses", name, params)
        chosen = setting(dummies, steps=steps)
        found, _ = at_point(defense, chosen, point_of(where), tensors=3, coordinates=9, round_=0, observations=1)
        assert found is not None and found.multiplier is not None
        return found.multiplier[0]

    alone, honest = multiplier("type-0", 0), multiplier("aggregate", 0)
    assert multiplier("aggregate", CLIENTS - 1) == pytest.approx(alone)  # the client's own noise only
    assert alone <= multiplier("aggregate", 2) <= honest
    if steps == 1 or (name != "dp-sgd" and name != "fed-cdp"):
        assert multiplier("aggregate", 2) == pytest.approx(honest * 2**-0.5)


def test_the_noise_of_a_reading_is_that_of_epsilon(tmp_path: Path) -> None:
    """Shares of noise: the sum of four clients has the noise σC, and one client has half of this deviation."""
    zero, noisy = (entry("defenses", "fed-sdp", at="client", clip=1.0, sigma=sigma) for sigma in (0.0, 8.0))
    for dummies in (0, 3):
        rest = CLIENTS - dummies
        clean, read = (seen(cell(dummies, defense=each), tmp_path) for each in (zero, noisy))
        deviation = float((rest * (read - clean)).std())
        assert deviation == pytest.approx(8 * (rest / CLIENTS) ** 0.5, rel=0.05)
        observed = draw_and_observe(cell(dummies, defense=noisy), RunContext(run=tmp_path), MEMORY)
        spent = observed.diagnosis.privacy.by("tap")
        assert spent is not None and spent.multiplier is not None
        assert spent.multiplier[0] == pytest.approx(deviation / 2, rel=0.05)  # a replaced update moves the sum by 2C


def test_the_default_keeps_every_id() -> None:
    assert Grants(dummies=0).configuration() == {} and cell().id != cell(2).id
    assert cell(2).grants.words() == ["2 of a round's clients are the attacker's"]


def test_no_reading_changes_or_no_victim_is_left() -> None:
    def reason(which: AttackCell) -> str | None:
        return impossible(which, RESOLVER.data("digits", {}))

    assert reason(cell(CLIENTS - 1)) is None
    assert reason(cell(CLIENTS)) == "4 dummies in a round of 4 clients leave no victim; take at most 3"
    for where in ("type-2", "type-1", "type-0"):
        assert reason(cell(1, where)) == (
            f"dummies change only a mean over clients, not what {where} shows; take point = aggregate"
        )
    known = mate(
        point="aggregate", grants=Grants(mates=True, gallery=60, dummies=3), attack=entry("attacks", "gallery")
    )
    assert reason(known) is None


def test_a_negative_number_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(
        'title = "dummies"\n[axes]\ndataset = ["digits"]\nmodel = ["mlp"]\nattack = ["cpl"]\npoint = ["aggregate"]\n'
        "grants = [[{ dummies = -1 }]]\n"
    )
    with pytest.raises(
        BenchError, match=r"grants\[0\].dummies: out of range, got -1; it must be greater than or equal"
    ):
        read(path)


@pytest.mark.parametrize(
    ("name", "params", "reason"),
    [
        ("niss", {}, "niss acts between clients; for their knowledge grant colluders at type-0"),
        ("fed-sdp", {"at": "server"}, "fed-sdp acts at the server, which has the dummies; choose a defense of clients"),
        ("fed-sdp", {"at": "client", "noise": "mean"}, "fed-sdp acts at the server, which has the dummies"),
    ],
)
def test_a_defense_that_dummies_would_change_is_not_applicable(
    tmp_path: Path, name: str, params: dict[str, Any], reason: str
) -> None:
    record = run(cell(1, defense=entry("defenses", name, **params)), RunContext(run=tmp_path), Memory())
    assert record.status == "n/a" and record.reason is not None
    assert record.reason.startswith(f"dummies: {reason}")
