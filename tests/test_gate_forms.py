"""Each form of the gate's verdict says the same, fits its service, and takes strangers' names."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from tests.records import printed
from tests.test_gate import run

from bench.gate import reports
from bench.gate.markdown import MOST, code, comment, markdown
from bench.gate.occasion import Occasion, Place
from bench.gate.services import annotations, junit, sarif
from bench.gate.verdict import Verdict, on_occasion, verdict

HOSTILE = (
    "@org/team",
    "a|b",
    "`code`",
    "<img src=x onerror=alert(1)>",
    "](javascript:alert(1))",
    "\x1b[31mred",
    "\u202etxt.exe",
    "x" * 5000,
    "https://example.org #1 **b** ~~s~~",
)
PLACE = Place(path="defenses/my round.py", line=12)
OCCASION = Occasion(
    baseline="ci/gate.json",
    base="origin/main",
    command="bench gate --baseline ci/gate.json --base origin/main",
    places={"prune": PLACE},
)
FORMS: dict[str, Callable[[Verdict], str]] = {
    "terminal": lambda result: printed(reports.render(result)),
    "markdown": markdown,
    "comment": comment,
    "sarif": sarif,
    "junit": junit,
    "annotations": annotations,
}


def weaker() -> Verdict:
    return on_occasion(verdict(run(0.1), run(0.9, draw=1)), OCCASION)


def passing() -> Verdict:
    return on_occasion(verdict(run(0.3), run(0.3)), OCCASION)


def hostile(count: int = 1) -> Verdict:
    """A verdict with strangers' texts in every place, `count` times each."""
    row = next(row for row in weaker().comparisons if row.outcome == "weaker")
    rows = [
        replace(row, defense=f"{name}{n}", title=name, point=name, attacks=(name,), outcome=outcome, reason=name)
        for n in range(count)
        for name in HOSTILE
        for outcome in ("weaker", "inconclusive")
    ]
    texts = HOSTILE * count
    return Verdict(
        outcome="weaker",
        comparisons=tuple(rows),
        unpaired=tuple((name, name) for name in texts),
        changes=texts,
        cells=count,
        faults=tuple(("broken", name, name) for name in texts),
        since_oldest=tuple(rows[:5]),
        parameters=texts,
        occasion=replace(OCCASION, altered=texts, accepted=HOSTILE[0], notes=texts, base=HOSTILE[2]),
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_same_verdict_gives_the_same_bytes(form: str) -> None:
    assert FORMS[form](weaker()) == FORMS[form](weaker())


@pytest.mark.parametrize("form", FORMS)
def test_no_name_reaches_a_form_as_markup_mention_link_or_control(form: str) -> None:
    text = FORMS[form](hostile())
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert "x" * 2100 not in text
    if form in ("markdown", "comment"):
        body = text.removeprefix("<!-- bench-gate:ci/gate.json -->")
        assert not set("@<>") & set(body)
        outside = re.sub(r"`[^`\n]*`", "", body)
        for part in ("org", "img", "javascript", "https", "txt.exe", "#1", "31m", "**b**"):
            assert part not in outside, part


@pytest.mark.slow
def test_a_comment_of_ten_thousand_comparisons_stays_below_the_limit() -> None:
    text = comment(hostile(10_000 // len(HOSTILE) // 2 + 1))
    assert 1_000 < len(text) <= MOST
    assert OCCASION.command in text and "more rows" in text
    assert text.startswith("<!-- bench-gate:ci/gate.json -->\n### Leakage gate: ")


def test_a_comment_says_what_got_weaker_by_how_much_how_sure_and_what_to_type() -> None:
    result = weaker()
    text = comment(result)
    row = reports.worst(result)
    assert row is not None
    heading = text.splitlines()[1]
    assert "`prune` is weaker" in heading and f"{row.before:.0%} → {row.after:.0%}".replace("%", " %") in heading
    assert f"[≥ {100 * row.lower:.0f} points]" in text and "8 weight seeds" in text
    assert f"`{OCCASION.command}`" in text
    assert "holds" in comment(passing()).splitlines()[1]


def test_an_altered_baseline_comes_first_in_every_form() -> None:
    occasion = replace(OCCASION, altered=("margin asr 0.1 → 0.9",))
    result = on_occasion(verdict(run(0.3), run(0.3)), occasion)
    assert (result.outcome, result.exit_code) == ("changed", 1)
    for form, make in FORMS.items():
        assert "margin asr 0.1 → 0.9" in make(result), form
    assert comment(result).splitlines()[1] == "### Leakage gate: the baseline was changed, and nobody accepted this"
    both = comment(on_occasion(verdict(run(0.1), run(0.9, draw=1)), occasion)).splitlines()[1]
    assert both.startswith("### Leakage gate: the baseline was changed, and `prune` is weaker")
    accepted = on_occasion(verdict(run(0.3), run(0.3)), replace(occasion, accepted="agreed"))
    assert accepted.exit_code == 0 and "agreed" in comment(accepted)
    assert json.loads(sarif(accepted))["runs"][0]["results"] == [] and not annotations(accepted)


def test_sarif_names_a_rule_a_place_and_a_stable_subject() -> None:
    model = pytest.importorskip("sarif_pydantic").Sarif
    for result, count in ((weaker(), None), (passing(), 0), (hostile(), None)):
        text = sarif(result)
        model.model_validate_json(text)
        (one,) = json.loads(text)["runs"]
        assert count is None or len(one["results"]) == count
        for item in one["results"]:
            place = item["locations"][0]["physicalLocation"]
            assert not place["artifactLocation"]["uri"].startswith("/") and place["region"]["startLine"] >= 1
            assert one["tool"]["driver"]["rules"][item["ruleIndex"]]["id"] == item["ruleId"]
        prints = [item["partialFingerprints"]["benchGate/v1"] for item in one["results"]]
        assert len(set(prints)) == len(prints) or result.cells == 1
    first, later = (
        json.loads(sarif(on_occasion(verdict(run(0.1), run(rate, draw=1)), OCCASION)))["runs"][0]["results"]
        for rate in (0.9, 0.8)
    )
    assert first[0]["partialFingerprints"] == later[0]["partialFingerprints"] and first[0] != later[0]
    uri = first[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "defenses/my%20round.py"


def test_what_is_inconclusive_is_a_notification_and_no_result() -> None:
    few = run(0.3)[:2]
    result = on_occasion(verdict(few, few), OCCASION)
    (one,) = json.loads(sarif(result))["runs"]
    assert result.outcome == "inconclusive" and one["results"] == []
    assert one["invocations"][0]["toolExecutionNotifications"]
    assert annotations(result).startswith("::warning file=defenses/my round.py,line=12,")


def test_annotations_and_junit_name_the_line_of_the_class() -> None:
    result = weaker()
    lines = annotations(result).splitlines()
    assert 1 <= len(lines) <= 8
    assert lines[0].startswith("::error file=defenses/my round.py,line=12,title=leakage gate%3A weaker::")
    assert not annotations(passing())
    cases = ElementTree.fromstring(junit(result)).findall(".//testcase")
    assert {(case.get("file"), case.get("line")) for case in cases} == {(PLACE.path, "12")}
    for line in annotations(hostile(3)).splitlines():
        assert line.startswith(("::error ", "::warning ")) and line.count("::") >= 2


def test_a_code_span_holds_any_text() -> None:
    assert code("") == "–" and code("a\nb") == "`a b`"
    for name in HOSTILE:
        shown = code(name)
        assert shown[0] == shown[-1] == "`" and "`" not in shown[1:-1] and len(shown) <= 162
