"""The real programs, where they are installed, against a scripted server: read, look where they may not, propose."""

import json
import os
import shlex

import pytest

from api_server import Call, api_server
from rounds import proposal, round_of

from eau_jax.meta.drivers import agent as agent_module
from eau_jax.meta.drivers import claude, codex, mini, process
from eau_jax.meta.proposer import Budget

pytestmark = pytest.mark.slow
SECRET = "sk-test-0123456789abcdef"
SUBMIT = "submit_proposal"


@pytest.fixture(params=["claude", "codex"])
def agent(request, monkeypatch):
    """(proposer of a server's url, call of its shell, call of the tool submit_proposal)."""
    found = {"claude": claude.find, "codex": codex.find}[request.param]()
    if found is None:
        pytest.skip(f"{request.param} is not installed")
    monkeypatch.setenv(claude.KEY, SECRET)
    monkeypatch.setenv(codex.KEY, SECRET)
    if request.param == "claude":
        return (lambda url: claude.claude("test-model", base_url=url, idle_seconds=20),
                lambda command: Call("Bash", {"command": command, "description": "look"}),
                lambda given: Call(f"mcp__eau__{SUBMIT}", given))
    return (lambda url: codex.codex("test-model", base_url=f"{url}/v1", idle_seconds=20),
            lambda command: Call("exec_command", {"cmd": command}),
            lambda given: Call(SUBMIT, given, "mcp__eau"))


def test_reads_diagnoses_and_proposes(agent):
    make, shell, submit = agent
    if "landlock" not in process.protections():
        pytest.skip("a shell is given to the program under Landlock only")
    with round_of() as view:
        outside = view.root.parent / "run" / "metrics.jsonl"
        script = [shell("head -1 SKILL.md"), shell(f"cat {outside}; touch {view.folder}/metrics.jsonl; id -u; env"),
                  submit(proposal(turns=1000)), submit(proposal()), "I have proposed."]
        with api_server(script) as server:
            batch = make(server.url).propose(view, Budget(seconds=60))
        results = server.results()
        transcript = (view.root / "transcript.jsonl").read_text()
    assert (batch.status, len(batch.texts), batch.problem) == ("ok", 1, "")
    assert "holds this training run back" in results[0]
    assert "Permission denied" in results[1] and "eval/score" not in results[1]
    assert ("65534" in results[1]) == (os.geteuid() == 0)
    assert "out of range; allowed: 1 to 64" in results[2] and "Accepted" in results[3]
    assert SECRET in server.keys[0]
    assert SECRET not in transcript and SECRET not in str(batch)
    assert batch.agent["version"] and batch.agent["tokens"]["input"] > 0 and batch.agent["isolation"]


def test_finds_that_no_change_is_needed(agent):
    make, _, submit = agent
    with round_of() as view, api_server([submit({"diagnosis": {"owner": "none", "fault": ""}}), "All is well."]) as server:
        batch = make(server.url).propose(view, Budget(seconds=60))
    assert (batch.status, batch.diagnosis.owner, batch.texts) == ("empty", "none", ())


@pytest.mark.parametrize("mode, status", [("down", "agent_error"), ("cut", "agent_error"), ("stall", "timeout")])
def test_a_server_that_fails(agent, mode, status):
    make, _, _ = agent
    with round_of() as view, api_server(["never said"], mode) as server:
        batch = make(server.url).propose(view, Budget(seconds=25 if mode == "stall" else 60))
    assert batch.status == status and batch.problem and not batch.texts


def test_prose_is_no_proposal(agent):
    make, _, _ = agent
    with round_of() as view, api_server(["I would raise env.max_turns to 20."]) as server:
        batch = make(server.url).propose(view, Budget(seconds=60))
    assert batch.status == "invalid" and "prose" in batch.problem


@pytest.mark.skipif(mini.find() is None or "landlock" not in process.protections(), reason="mini-swe-agent is not installed")
def test_mini_swe_agent_hands_in_by_a_command(monkeypatch):
    monkeypatch.setenv(mini.KEY, SECRET)
    with round_of() as view:
        home, outside = view.home, view.root.parent / "run" / "metrics.jsonl"

        def submit(given):
            command, arguments, environment = agent_module.server(view, Budget(proposals=2))
            line = shlex.join(["env", *(f"{name}={value}" for name, value in environment.items()), command, *arguments])
            return Call("bash", {"command": f"cat > {home}/p.json <<'EOF'\n{json.dumps(given)}\nEOF\n{line} {home}/p.json"})

        script = [Call("bash", {"command": f"head -1 SKILL.md; cat {outside}"}), submit(proposal(turns=1000)),
                  submit(proposal()), Call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})]
        with api_server(script) as server:
            batch = mini.mini("test-model", base_url=f"{server.url}/v1").propose(view, Budget(seconds=100, proposals=2))
        results, told = server.results(), json.dumps(server.requests[0])
    assert (batch.status, len(batch.texts), batch.problem) == ("ok", 1, "")
    assert "holds this training run back" in results[0] and "Permission denied" in results[0]
    assert "out of range; allowed: 1 to 64" in results[1] and "Accepted" in results[2]
    assert "eau_jax.meta.inbox_server" in told and "2.4" in batch.agent["version"]
