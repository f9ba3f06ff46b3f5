"""Promise: the trade-off board shows stated, valid and audited ε of a reading, and names contradictions."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.test_tradeoff import BOARD, ROWS

from bench.audit import board
from bench.audit.measure import Plan
from bench.cli.main import cli
from bench.errors import RecordError
from bench.leaderboard.forms import tradeoff_page
from bench.leaderboard.tradeoff import epsilons, findings, setting, standings
from bench.record import audits, tradeoff
from bench.record.audits import Audited
from bench.reference.tradeoff import shipped_tradeoff, with_shipped
from bench.registry import entries as registry

AUDIT = Audited(
    dataset="mnist",
    model="mlp",
    point="type-1",
    setting="accurate:sigma=0.1",
    stated=1.2,
    valid=7.69,
    absent=None,
    least=5.31,
    gaussian=6.24,
    refuted=False,
    most=5.6,
    runs=2000,
    delta=1e-5,
    confidence=0.95,
    seed=0,
)
ROW = ROWS[1]  # of the family `accurate`
AT = ROW.at_levels[0]


def with_audit(**changed: Any) -> tradeoff.Tradeoff:
    return dataclasses.replace(BOARD, audits=(dataclasses.replace(AUDIT, **changed),))


def test_the_board_shows_three_figures() -> None:
    assert epsilons(with_audit(), ROW, AT) == "1.2 / 7.7 / ≥ 6.2"
    assert epsilons(with_audit(stated=None, valid=None, gaussian=None), ROW, AT) == "– / – / ≥ 5.3"
    assert epsilons(BOARD, ROW, AT) == "–"
    assert epsilons(with_audit(point="aggregate"), ROW, AT) == "–"
    assert "1.2 / 7.7 / ≥ 6.2" in tradeoff_page.render(with_audit())


def test_sentences_name_exceeded_and_missing_values() -> None:
    above = (
        "mnist, mlp: the audited ε (one reading, a replacement) exceeds the stated ε (often addition or "
        "removal): accurate (stated 1.2, audited ≥ 6.2)."
    )
    bare = "mnist, mlp: no ε is stated or valid: accurate."
    assert above in findings(with_audit(), "type-1")
    assert above not in findings(with_audit(stated=6.3), "type-1")
    missing = findings(with_audit(valid=None, gaussian=None, absent="the noise tells the norm"), "type-1")
    assert "mnist, mlp: accurate states ε 1.2 for a reading, and has no valid ε: the noise tells the norm." in missing
    assert bare in findings(with_audit(stated=None), "type-1")
    assert bare not in findings(with_audit(), "type-1")
    refuted = "mnist, mlp: the audit refutes the valid ε of accurate:sigma=0.1."
    assert refuted in findings(with_audit(refuted=True), "type-1")
    assert refuted not in findings(with_audit(), "type-1")


def test_audits_stand_beside_the_trade_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tradeoff.write(tmp_path, with_audit())
    assert tradeoff.read(tmp_path).audits == ()
    audits.write(tmp_path, (AUDIT,))
    assert tradeoff.read(tmp_path) == with_audit()
    own = with_audit(stated=3.0)
    monkeypatch.setattr("bench.reference.tradeoff.shipped_tradeoff", with_audit)
    joined = with_shipped(own)
    assert joined is not None and joined.audits == own.audits
    (tmp_path / audits.FILE).write_text("[{}]")
    with pytest.raises(RecordError, match=r"audits\.json: no audits .* `bench audit --board"):
        tradeoff.read(tmp_path)


def test_the_model_of_every_federation_fits_the_audited_digits() -> None:
    models = {where.model.name: where.model for _, where in board._federations()}
    assert {*models} == {"mlp", "linear"}
    for each in models.values():
        assert all(value.numel() for value in registry.of("models", each).build((1, 8, 8), 10).parameters()), each


def test_an_audit_of_the_board_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dp-sgd` on the board of CIFAR-10: ε is the board's, and a finished defense is not run again."""
    family = dataclasses.replace(
        ROW,
        dataset="cifar10-mobilenet",
        model="linear",
        family="dp-sgd(clip=0.5)",
        at_levels=(dataclasses.replace(AT, value=2.424),),
    )
    where = tradeoff.federation("cifar10-mobilenet", "linear")
    small = dataclasses.replace(BOARD, rows=(family,), undefended={where: (0.95,)}, commonest={where: 0.1})
    tradeoff.write(tmp_path, small)
    command = ["audit", "--board", str(tmp_path), "--runs", "20", "--delta", "0.01"]
    said = CliRunner().invoke(cli, command)
    assert said.exit_code == 0, said.output
    (found,) = audits.read(tmp_path)
    assert (found.setting, found.point, found.runs) == ("dp-sgd:clip=0.5,sigma=2.424", "type-1", 20)
    assert found.stated is not None and found.valid is not None and found.least <= found.most
    monkeypatch.setattr("bench.audit.planted.audit_defense", lambda *_: pytest.fail("run again"))
    said = CliRunner().invoke(cli, command)
    assert said.exit_code == 0 and audits.read(tmp_path) == (found,)
    refused = CliRunner().invoke(cli, [*command, "--epsilon", "1"])
    assert refused.exit_code == 1 and "--board audits the defenses of a trade-off" in str(refused.exception)


def test_shipped_audits_have_the_boards_epsilon() -> None:
    """The audited round has the noise multiplier of the board's federation: both ε agree to .1 %."""
    shipped = shipped_tradeoff()
    assert shipped is not None and shipped.audits
    for point in ("type-1", "type-0", "aggregate"):
        for ranked in standings(shipped, point).values():
            for each in ranked:
                at = each.at.get("L1")
                audit = None if at is None else shipped.audit(each.row, setting(each.row, at))
                if at is None or (at.epsilon is None and audit is None):
                    continue
                assert audit is not None, (each.row.family, point)
                assert audit.valid == (None if at.epsilon is None else pytest.approx(at.epsilon, rel=1e-3))
                assert not audit.refuted and audit.least <= audit.most * 1.001


def test_an_audit_for_another_plan_counts_for_none() -> None:
    plan = Plan(runs=2000)
    assert board._same(AUDIT, plan) and not board._same(AUDIT, dataclasses.replace(plan, runs=5000))
