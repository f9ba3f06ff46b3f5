"""The action and the workflow that posts the comment, without the service: faked variables, an event from a fork, and a
stub of the endpoints on loopback. What only the service can show is rehearsed here, not seen."""

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.test_gate_base import MAIN, commit, rewrite, run
from tests.test_gate_base import project as project

ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
WORKFLOWS = {path.name: path for path in (ROOT / "docs" / "ci").glob("*.yml")}
# Everything that the service sets for a job of a fork's pull request; no token.
FORK = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_EVENT_NAME": "pull_request",
    "GITHUB_BASE_REF": MAIN,
    "GITHUB_HEAD_REF": "feature",
    "GITHUB_REPOSITORY": "org/project",
}


def step(name: str) -> dict[str, Any]:
    return next(one for one in ACTION["runs"]["steps"] if one.get("name") == name)


def gate(folder: Path, bench: str, inputs: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run the action's step in `folder` with `bench` as the text of the program, as the service would."""
    there = folder.parent / "runner"
    (there / "bin").mkdir(parents=True, exist_ok=True)
    program = there / "bin" / "bench"
    program.write_text(f"#!/usr/bin/env bash\n{bench}\n")
    program.chmod(0o755)
    defaults = {name: str(given.get("default", "")) for name, given in ACTION["inputs"].items()}
    given = {**defaults, "baseline": "gate.json", **inputs}
    named = {key: re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", value) for key, value in step("Gate")["env"].items()}
    env = {key: given[found[1]] for key, found in named.items() if found}
    keep = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "OMP_NUM_THREADS", "TMPDIR") if key in os.environ}
    files = {"GITHUB_OUTPUT": str(there / "output"), "GITHUB_STEP_SUMMARY": str(there / "summary.md")}
    everything = {**keep, **FORK, **files, **env, "RUNNER_TEMP": str(there)}
    everything["PATH"] = f"{program.parent}:{keep['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step("Gate")["run"]],
        cwd=folder,
        env=everything,
        capture_output=True,
        text=True,
        check=False,
    )


def outputs(folder: Path) -> dict[str, str]:
    lines = (folder.parent / "runner" / "output").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(
    ("status", "fail_on", "code", "outcome"),
    [
        (0, "weaker", 0, "pass"),
        (1, "weaker", 1, "weaker"),
        (3, "weaker", 0, "inconclusive"),
        (3, "inconclusive", 3, "inconclusive"),
        (2, "weaker", 2, "mistake"),
    ],
)
def test_the_exit_code_is_the_gates_except_for_an_inconclusive_verdict(
    tmp_path: Path, status: int, fail_on: str, code: int, outcome: str
) -> None:
    folder = tmp_path / "checkout"
    folder.mkdir()
    done = gate(folder, f'printf "%s\\n" "$@" > "$RUNNER_TEMP/asked"\nexit {status}', {"fail-on": fail_on})
    assert (done.returncode, outputs(folder)["outcome"]) == (code, outcome), done.stderr
    asked = (tmp_path / "runner" / "asked").read_text().splitlines()
    assert asked[asked.index("--base") + 1] == f"origin/{MAIN}"
    assert "--accept-baseline" not in asked and "--jobs" not in asked
    marks = {"pass": 0, "inconclusive": done.stdout.count("::warning" if code == 0 else "::error")}
    assert done.stdout.count("::") // 2 == marks.get(outcome, 1)


def test_inputs_are_never_part_of_the_script(tmp_path: Path) -> None:
    folder = tmp_path / "checkout"
    folder.mkdir()
    hostile = '"; touch owned; echo "$(touch owned)'
    inputs = {"baseline": hostile, "base": hostile, "accept-baseline": hostile, "jobs": hostile, "data-dir": hostile}
    done = gate(folder, 'printf "%s\\n" "$@" > "$RUNNER_TEMP/asked"', inputs)
    assert done.returncode == 0 and not (folder / "owned").exists()
    assert (tmp_path / "runner" / "asked").read_text().splitlines().count(hostile) == 5
    assert gate(folder, "exit 0", {"fail-on": "never"}).returncode == 2
    for one in [*ACTION["runs"]["steps"]]:
        assert "${{" not in one.get("run", "")


def test_a_forks_pull_request_gets_summary_comment_and_sarif_without_a_token(project: Path) -> None:
    """The bench itself behind the step: a change that rewrites its baseline."""
    rewrite(run(0.9, draw=1, snr=16.0))
    commit()
    bench = f'shift\nexec {sys.executable} -c "from bench.cli.main import main; main()" gate runs/weak "$@"'
    done = gate(project, bench, {"base": MAIN, "sarif": "here.sarif"})
    assert done.returncode == 1, done.stderr
    assert "::error file=gate.json,line=1" in done.stderr
    made = project.parent / "runner" / "gate"
    assert outputs(project)["outcome"] == "weaker"
    comment = (made / "comment.md").read_text("utf-8")
    assert comment.startswith("<!-- bench-gate:gate.json -->") and "have other results" in comment
    assert json.loads((project / "here.sarif").read_text())["runs"][0]["results"]
    assert "Leakage gate" in (project.parent / "runner" / "summary.md").read_text("utf-8")
    assert {path.name for path in made.iterdir()} == {"gate.xml", "comment.md", "gate.sarif", "gate.json"}


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_workflow_reads_only_and_holds_no_expression_in_a_script(name: str) -> None:
    content = yaml.safe_load(WORKFLOWS[name].read_text("utf-8"))
    if name == "gitlab.yml":
        assert content["leakage gate"]["allow_failure"] == {"exit_codes": [3]}
        return
    steps = [one for job in content["jobs"].values() for one in job["steps"]]
    assert all("${{" not in one.get("run", "") for one in steps)
    if name == "gate.yml":
        assert content["permissions"] == {"contents": "read"}
    else:
        assert content["permissions"] == {} and not any("checkout" in one.get("uses", "") for one in steps)


class Service(BaseHTTPRequestHandler):
    """The endpoints that the comment needs: pull requests by head, and comments."""

    comments: list[dict[str, Any]]
    token = "secret"

    def answer(self, content: Any) -> None:
        assert self.headers["Authorization"] == f"Bearer {self.token}"
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if "/pulls?" in self.path:
            assert "head=fork%3Afeature" in self.path
            self.answer([{"number": 7, "head": {"sha": "abc"}}, {"number": 8, "head": {"sha": "other"}}])
        else:
            assert self.path.startswith("/repos/org/project/issues/7/comments")
            self.answer(self.comments if "page=1" in self.path.partition("&")[2] else [])

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def do_POST(self) -> None:
        assert self.path == "/repos/org/project/issues/7/comments"
        self.comments.append({"id": len(self.comments), "user": {"type": "Bot"}, **self.body()})
        self.answer({})

    def do_PATCH(self) -> None:
        self.comments[int(self.path.rpartition("/")[2])] |= self.body()
        self.answer({})

    def log_message(self, *_: Any) -> None:
        pass


def test_a_second_comment_replaces_the_first_and_a_gate_that_holds_adds_none(tmp_path: Path) -> None:
    comments: list[dict[str, Any]] = [
        {"id": 0, "user": {"type": "User"}, "body": "<!-- bench-gate:gate.json -->\nmine"}
    ]
    kind = type("Served", (Service,), {"comments": comments})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    workflow = yaml.safe_load(WORKFLOWS["comment.yml"].read_text("utf-8"))
    script = workflow["jobs"]["comment"]["steps"][-1]["run"]
    head = {"head_repository": {"owner": {"login": "fork"}}, "head_branch": "feature", "head_sha": "abc"}
    (tmp_path / "event.json").write_text(json.dumps({"workflow_run": head}))
    (tmp_path / "gate").mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}",
        "GITHUB_REPOSITORY": "org/project",
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "TOKEN": Service.token,
    }

    def post(text: str) -> int:
        (tmp_path / "gate" / "comment.md").write_text(text, "utf-8")
        return subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, check=False).returncode

    marker = "<!-- bench-gate:gate.json -->\n### Leakage gate: "
    try:
        assert post(f"{marker}holds") == 0 and len(comments) == 1
        assert post(f"{marker}`prune` is weaker, @org/team") == 0
        assert post(f"{marker}holds") == 0
        assert [each["body"] for each in comments[1:]] == [f"{marker}holds"]
        assert comments[0]["body"].endswith("mine"), "a person's comment is never replaced"
        assert post(f"{marker}weaker, @org/team") == 0 and "@" not in comments[1]["body"]
        assert post("no marker") == 1
    finally:
        server.shutdown()
        server.server_close()
