"""The verdict for services that read files: SARIF 2.1.0, JUnit XML, and GitHub's annotations of lines."""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

from bench import __version__
from bench.gate.occasion import Place
from bench.gate.reports import openings, sentence
from bench.gate.verdict import GATE_METRICS, Comparison, Outcome, Verdict
from bench.record.groups import grouped
from bench.sanitize import LONGEST, sanitize

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MOST_RESULTS = 5000  # GitHub shows no more
_MOST_LINES = 8  # annotations of a step; GitHub keeps ten
_BASELINE = "baseline-changed"
_NO_LINKS = str.maketrans({"[": "(", "]": ")"})  # in a message of SARIF, brackets are links


class _Finding(NamedTuple):
    """A line of the verdict: `rule` (a metric or flag), `subject` (defense, point and condition), and `message`."""

    rule: str
    outcome: Outcome
    suite: str
    subject: str
    defense: str
    message: str


def _findings(verdict: Verdict) -> Iterator[_Finding]:
    occasion = verdict.occasion
    if occasion.altered:
        outcome: Outcome = "weaker" if occasion.accepted is None else "pass"
        yield _Finding(_BASELINE, outcome, "baseline", occasion.baseline, "", "; ".join(openings(verdict)))
    for row in verdict.comparisons:
        yield _of_row(row, row.title)
    for row in verdict.since_oldest:
        yield _of_row(row, "against the oldest baseline")
    for code, subject, reason in verdict.faults:
        yield _Finding(code, "weaker", "faults", subject, subject, reason)
    for subject, reason in verdict.unpaired:
        yield _Finding("not-compared", "inconclusive", "not compared", subject, "", reason)


def _of_row(row: Comparison, suite: str) -> _Finding:
    where = f"{row.defense}, {row.point}, {row.title}"
    return _Finding(row.metric, row.outcome, suite, where, row.defense, sentence(row))


def sarif(verdict: Verdict) -> str:
    """Return the gate's `verdict` as SARIF 2.1.0, a JSON format for code scanning: a result for each weaker comparison,
    fault and unaccepted change of the baseline. Inconclusive comparisons are notifications. Without a result the run is
    empty, so that a service closes its alerts. Each result has a location: the line of the defense's class, or the
    baseline file."""
    found = [*_findings(verdict)]
    weaker = [one for one in found if one.outcome == "weaker"][:_MOST_RESULTS]
    words = {name: metric.words for name, metric in GATE_METRICS.items()} | {_BASELINE: "the baseline was changed"}
    rules = sorted({*words, *(one.rule for one in weaker)})
    place = verdict.occasion.place
    run = {
        "tool": {
            "driver": {
                "name": "bench gate",
                "version": __version__,
                "rules": [{"id": rule, "shortDescription": {"text": words.get(rule, rule)}} for rule in rules],
            }
        },
        "invocations": [
            {
                "executionSuccessful": True,
                "exitCode": verdict.exit_code,
                "toolExecutionNotifications": [
                    {"level": "warning", "message": {"text": _message(one)}}
                    for one in found
                    if one.outcome == "inconclusive"
                ][:_MOST_RESULTS],
            }
        ],
        "columnKind": "utf16CodeUnits",
        "results": [
            {
                "ruleId": one.rule,
                "ruleIndex": rules.index(one.rule),
                "level": "error",
                "message": {"text": _message(one)},
                "locations": [_location(place(one.defense))],
                "partialFingerprints": {"benchGate/v1": _fingerprint(one)},
            }
            for one in weaker
        ],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False) + "\n"


def _location(place: Place) -> dict[str, Any]:
    artifact = {"uri": quote(place.path), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": place.line}}}


def _fingerprint(one: _Finding) -> str:
    """Identify a finding over several runs: figures and lines change, the subject does not."""
    return hashlib.sha256("\0".join((one.rule, one.suite, one.subject)).encode(errors="replace")).hexdigest()


def _message(one: _Finding) -> str:
    return sanitize(f"{one.subject}: {one.message}", LONGEST).translate(_NO_LINKS)


def annotations(verdict: Verdict) -> str:
    """Return the gate's `verdict` as GitHub's workflow commands `::error file=…,line=…::…`, one per line, for at most
    eight findings; an empty text for a pass."""
    found = sorted(
        (one for one in _findings(verdict) if one.outcome != "pass"), key=lambda one: one.outcome != "weaker"
    )
    lines = []
    for one in found[:_MOST_LINES]:
        place = verdict.occasion.place(one.defense)
        kind, title = ("error" if one.outcome == "weaker" else "warning"), f"leakage gate: {one.outcome}"
        where = f"file={_property(place.path)},line={place.line},title={_property(title)}"
        lines.append(f"::{kind} {where}::{_data(_message(one))}\n")
    return "".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def junit(verdict: Verdict) -> str:
    """Return the gate's `verdict` as JUnit XML: a test case for each comparison, fault, and defense that could not be
    compared, with its file and line. The outcome *weaker* is a failure. *Inconclusive* is an error, never a pass."""
    root = ElementTree.Element("testsuites", name="bench gate")
    for title, cases in grouped(_findings(verdict), lambda one: one.suite).items():
        outcomes = [one.outcome for one in cases]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_xml(title),
            tests=str(len(cases)),
            failures=str(outcomes.count("weaker")),
            errors=str(outcomes.count("inconclusive")),
            skipped="0",
            time="0",
        )
        for one in cases:
            place = verdict.occasion.place(one.defense)
            element = ElementTree.SubElement(
                suite,
                "testcase",
                classname=_xml(one.subject),
                name=_xml(one.rule),
                file=_xml(place.path),
                line=str(place.line),
                time="0",
            )
            if one.outcome != "pass":
                kind = "failure" if one.outcome == "weaker" else "error"
                ElementTree.SubElement(element, kind, message=_xml(one.message), type=one.outcome)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", sanitize(text, LONGEST))
