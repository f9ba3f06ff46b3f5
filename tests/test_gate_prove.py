"""`bench gate --prove`: planted weakenings are seen, and the stated sensitivity is the gate's own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from tests.test_gate import MATRIX, attacked, run

from bench.cli.gate import command as gate
from bench.cli.main import cli
from bench.cli.proving import Planted, Proof, lines
from bench.contracts.plants import Plant, Weakened
from bench.defenses.base import Context, Setting
from bench.federated.draws import KeyedDraws
from bench.gate.sensitivity import sees, sentence
from bench.gate.verdict import verdict
from bench.record.schema import Record
from bench.registry import entries as registry

SETTING = Setting(clients=10, per_round=1, rounds=1, steps=1, batch=1, client_examples=50, rate=0.1)


def moved(defense: str, plant: Plant) -> torch.Tensor:
    """The change of a client's update of ones under a weakened defense."""
    weak = Weakened(of=defense, params="{}", plant=plant)
    draws = KeyedDraws(seed=3, fields=("test",), rows=((0,),))
    context = Context(lead=1, stage="client", round=0, step=0, setting=SETTING, draws=draws)
    update = {"w": torch.ones(1, 1000)}
    for transform in weak.transforms(SETTING).get("client", ()):
        update = dict(transform.update(update, {}, context)[0])
    return update["w"] - 1


def test_halved_noise_has_half_the_deviation_and_a_skipped_stage_does_nothing() -> None:
    deviation = registry.instance("defenses", "gaussian", {}).variance ** 0.5
    assert float(moved("gaussian", "noise halved").std()) == pytest.approx(deviation / 2, rel=0.1)
    assert not moved("gaussian", "stage skipped").any()
    assert moved("prune", "noise halved").any() and not moved("prune", "stage skipped").any()
    weak = Weakened(of="fed-sdp", params=json.dumps({"at": "client"}), plant="noise halved")
    (*_, noise) = weak.transforms(SETTING)["client"]
    (*_, whole) = registry.instance("defenses", "fed-sdp", {"at": "client"}).transforms(SETTING)["client"]
    assert isinstance(noise, type(whole)), "descriptions and contracts stay those of the transform"


def proof(*answers: tuple[str, bool, tuple[str, ...]]) -> Proof:
    plants = tuple(Planted(plant=plant, defense="d", acts=acts, metrics=seen) for plant, acts, seen in answers)
    return Proof(plants=plants, sees={"asr": 0.12})


def test_a_missed_plant_is_red_and_a_plant_that_acts_nowhere_is_inconclusive() -> None:
    seen = ("stage skipped", True, ("asr",))
    assert proof(("noise halved", True, ("reading_snr",)), seen).exit_code == 0
    assert proof(("noise halved", True, ()), seen).exit_code == 1
    assert proof(("noise halved", False, ()), seen).exit_code == 3
    assert "MISSED" in "".join(lines(proof(("noise halved", True, ()))))


def test_the_stated_sensitivity_is_seen_and_less_is_not() -> None:
    """The stated share of new leaks is weaker; the largest passed margin is stated for figures."""
    result = verdict(run(), run())
    seen = sees(result)
    assert seen["reading_snr"] == 3.0 and 0.10 <= seen["asr"] < 1.0
    assert sentence(seen).count("≥") == len(seen)

    def leaking(share: float) -> list[Record]:
        count = round(share * 64)
        hits = [[[place % 8 * 8 + place // 8 < 0] for place in range(8)] for _ in range(8)]
        for place in range(count):  # over all seeds in turn
            hits[place % 8][place // 8] = [True]
        return [attacked(row, seed=seed) for seed, row in enumerate(hits)]

    stated = verdict(run(), leaking(seen["asr"]))
    assert next(row for row in stated.comparisons if row.metric == "asr").outcome == "weaker"
    assert next(r for r in verdict(run(), leaking(0.05)).comparisons if r.metric == "asr").outcome != "weaker"
    assert "asr" not in sees(verdict(run(1.0), run(1.0))), "where all examples leak, no share can rise"
    clearer = [
        replace(row, outcome="weaker")
        for row in verdict(run(snr=0.0), run(snr=seen["reading_snr"])).comparisons
        if row.metric == "reading_snr" and row.outcome == "weaker"
    ]
    assert len(clearer) == 1


@pytest.mark.slow
def test_both_plants_are_seen_in_a_real_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_added", {})
    (tmp_path / "m.toml").write_text(MATRIX + 'defense = ["none", "prune", "gaussian"]\n')
    typed = "run --matrix m.toml --no-tracking --jobs 1 --out runs/first"
    assert CliRunner().invoke(cli, typed.split()).exit_code == 0
    assert CliRunner().invoke(gate, ["runs/first", "--write-baseline", "b.json"]).exit_code == 0
    result = CliRunner().invoke(gate, ["runs/first", "--baseline", "b.json", "--prove", "--jobs", "1", "--json"])
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["without"] == "pass"
    answers = {(one["plant"], one["defense"].partition("(")[0]): one for one in content["plants"]}
    assert answers["noise halved", "gaussian"]["metrics"] and answers["stage skipped", "prune"]["metrics"]
    assert not answers["noise halved", "prune"]["acts"]
