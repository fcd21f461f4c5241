"""Coding agents as proposers: a real process that behaves like one, well and badly; recorded streams; a person."""

import json
import sys
import threading
import time

import psutil
import pytest
from fake_agent_of import fake_agent
from rounds import TURNS, proposal, round_of

from eau_jax.meta import snapshot
from eau_jax.meta.drivers import agent, claude, codex, mini, process
from eau_jax.meta.drivers.human import human
from eau_jax.meta.drivers.replay import replay
from eau_jax.meta.proposal import parse
from eau_jax.meta.proposer import Budget

KEY = "sk-test-0123456789abcdef"
VERSION = "9.9.9 (fake)"
SHORT = Budget(seconds=20, tokens=1000, proposals=2)
confined = pytest.mark.skipif("landlock" not in process.protections(), reason="Landlock is not available here")


@pytest.fixture
def play(monkeypatch):
    """Plays one round of the fake agent in a mode; (batch, transcript)."""
    monkeypatch.setenv(claude.KEY, KEY)

    def play(mode, idle_seconds=10.0, budget=SHORT):
        with round_of() as view:
            binary = fake_agent(view.root.parent, mode)
            batch = claude.claude(binary=str(binary), idle_seconds=idle_seconds).propose(view, budget)
            return batch, (view.root / agent.TRANSCRIPT).read_text()

    return play


def test_a_refused_and_an_accepted_proposal(play):
    batch, transcript = play("good")
    assert (batch.status, batch.problem, len(batch.texts)) == ("ok", "", 1)
    assert parse(batch.texts[0], "1", "claude").changes == {"env.max_turns": TURNS + 1}
    assert "out of range; allowed: 1 to 64" in transcript and "Accepted as proposal 1" in transcript
    facts = batch.agent
    assert [facts[name] for name in ("name", "model", "turns", "cost", "version")] == ["claude", "m", 3, 0.02, VERSION]
    assert facts["tokens"] == {"input": 30, "output": 6, "cached": 100} and facts["isolation"] == process.protections()
    assert len(facts["transcript_sha256"]) == 64 and facts["exit"] == 0


def test_no_change_is_a_full_answer(play):
    batch, _ = play("finding")
    assert (batch.status, batch.texts, batch.diagnosis.owner) == ("empty", (), "none")


@pytest.mark.parametrize("mode, status, said", [
    ("down", "agent_error", "exit status 1: success: API Error: 529"),
    ("error inside", "agent_error", "exit status 0: success: API Error: 500"),   # though a good proposal lies in the inbox
    ("cut", "agent_error", "without a result"),
    ("prose", "invalid", "prose is no proposal"),
    ("link", "invalid", "symbolic link"),
    ("giant", "invalid", "more than 65536 bytes"),
    ("flood", "agent_error", "wrote more than"),
    ("tokens", "agent_error", "used 1202 tokens; allowed: 1000"),
])
def test_what_goes_wrong_is_a_status(play, monkeypatch, mode, status, said):
    monkeypatch.setattr(agent, "OUTPUT_BYTES", 2_000_000)
    batch, _ = play(mode)
    assert (batch.status, batch.texts) == (status, ()) and said in batch.problem


def test_a_stalled_agent_is_ended_with_what_it_started(play):
    before, start = set(psutil.pids()), time.monotonic()
    batch, _ = play("stall", idle_seconds=2.0)
    assert batch.status == "timeout" and "without any output" in batch.problem and time.monotonic() - start < 15
    left = [found for found in psutil.process_iter(["pid", "cmdline"]) if found.info["pid"] not in before
            and "time.sleep(600)" in " ".join(found.info["cmdline"] or [])]
    assert not left or "processes" not in process.protections()


def test_time_is_limited(play):
    batch, _ = play("stall", idle_seconds=60.0, budget=Budget(seconds=2))
    assert batch.status == "timeout" and "beyond 2 s" in batch.problem


@confined
def test_nothing_outside_the_snapshot_is_read_and_nothing_in_it_written(play):
    batch, transcript = play("look")
    seen = json.loads(agent.events(transcript.splitlines())[-2]["result"])
    assert batch.status == "ok"
    assert seen["read"] == seen["write"] == seen["add"] == "Permission denied"
    allowed = {"PATH", "HOME", "TMPDIR", "LANG", "SHELL", claude.KEY, *claude.QUIET, "CLAUDE_CODE_MAX_RETRIES",
               "CLAUDE_CODE_TMPDIR", "LC_CTYPE"}
    assert set(seen["environment"]) <= allowed


def test_the_key_is_in_no_record(play):
    batch, transcript = play("key")
    assert KEY not in transcript and KEY not in str(batch) and "[secret]" in transcript and "[secret]" in batch.problem


def test_a_missing_program_and_a_missing_key_say_what_to_do(monkeypatch):
    monkeypatch.delenv(claude.KEY, raising=False)
    with round_of() as view:
        for propose, said in ((claude.claude(binary="/no/such").propose, "pip install 'eau-jax[meta]'"),
                              (codex.codex(binary="/no/such").propose, "npm install -g @openai/codex"),
                              (mini.mini("m", binary="/no/such").propose, "pip install mini-swe-agent"),
                              (claude.claude(binary=sys.executable).propose, f"{claude.KEY} is not set")):
            batch = propose(view, SHORT)
            assert batch.status == "agent_error" and said in batch.problem


def test_a_program_that_cannot_be_started(play, tmp_path):
    with round_of() as view:
        binary = view.root.parent / "claude"
        binary.write_text("not a program")
        binary.chmod(0o755)
        batch = claude.claude(binary=str(binary)).propose(view, SHORT)
    assert batch.status == "agent_error" and batch.problem


def test_a_changed_snapshot_discards_the_round():
    with round_of() as view:
        before = snapshot.manifest(view.folder)
        (view.inbox / "proposal-1.json").write_text(json.dumps(proposal()))
        end = process.End("itself", 0, (json.dumps({"type": "result", "subtype": "success", "is_error": False}),), "", 1.0)
        assert agent.conclude(claude.program(), end, view, SHORT, before).status == "ok"
        (view.folder / "metrics.jsonl").chmod(0o644)
        (view.folder / "metrics.jsonl").write_text("{}\n")
        batch = agent.conclude(claude.program(), end, view, SHORT, before)
    assert (batch.status, batch.texts) == ("invalid", ()) and "metrics.jsonl was changed" in batch.problem


CODEX = ['{"type":"thread.started","thread_id":"t1"}', '{"type":"turn.started"}',
         '{"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `m` not found."}}',
         '{"type":"item.completed","item":{"id":"item_1","type":"command_execution","command":"ls","exit_code":0}}',
         '{"type":"item.completed","item":{"id":"item_2","type":"mcp_tool_call","server":"eau","tool":"submit_proposal",'
         '"result":{"content":[{"type":"text","text":"Refused: env.max_turns = 1000 is out of range"}]},"status":"failed"}}',
         '{"type":"item.completed","item":{"id":"item_3","type":"agent_message","text":"done"}}']
DONE = '{"type":"turn.completed","usage":{"input_tokens":500,"cached_input_tokens":400,"output_tokens":100}}'
FAILED = '{"type":"turn.failed","error":{"message":"exceeded retry limit, last status: 529"}}'
CLAUDE = ['{"type":"system","subtype":"init","session_id":"s1","model":"m","tools":["Read"],"mcp_servers":[]}',
          '{"type":"an event of a later version"}', 'a line that is no event']
RESULT = '{"type":"result","subtype":"success","is_error":false,"num_turns":5,"usage":{"input_tokens":600}}'
LIMIT = '{"type":"result","subtype":"error_max_turns","is_error":true,"num_turns":40}'
MINI = ["some text", "mini", mini.MARK + '{"info":{"exit_status":"Submitted","model_stats":{"api_calls":4}}}']
STEPS = mini.MARK + '{"info":{"exit_status":"LimitsExceeded","model_stats":{}}}'


@pytest.mark.parametrize("program, events, code, status, said", [
    ("claude", [*CLAUDE, RESULT], 0, "ok", ""),
    ("claude", [*CLAUDE, LIMIT], 1, "agent_error", "error_max_turns"),
    ("claude", [*CLAUDE, LIMIT], 0, "agent_error", "error_max_turns"),
    ("claude", CLAUDE, 0, "agent_error", "without a result"),
    ("claude", [*CLAUDE, RESULT[:60]], 0, "agent_error", "without a result"),
    ("claude", [*CLAUDE, RESULT], 143, "agent_error", "exit status 143"),
    ("codex", [*CODEX, DONE], 0, "ok", ""),
    ("codex", [*CODEX, FAILED], 1, "agent_error", "last status: 529"),
    ("codex", [*CODEX, FAILED], 0, "agent_error", "last status: 529"),
    ("codex", CODEX, 0, "agent_error", "without a result"),
    ("mini", MINI, 0, "ok", ""),
    ("mini", [*MINI[:2], STEPS], 0, "agent_error", "LimitsExceeded"),
    ("mini", MINI[:2], 0, "agent_error", "without a result"),
    ("mini", [mini.MARK + "{"], 1, "agent_error", "cannot be read"),
])
def test_recorded_streams_go_through_the_same_code(tmp_path, program, events, code, status, said):
    recording = tmp_path / "round.json"
    recording.write_text(json.dumps({"program": program, "exit": code, "events": events,
                                     "inbox": {"proposal-1.json": json.dumps(proposal())}}))
    with round_of() as view:
        batch = replay(recording).propose(view, SHORT)
    assert (batch.status, len(batch.texts)) == (status, status == "ok") and said in batch.problem
    if status == "ok":
        assert batch.agent["turns"] == {"claude": 5, "codex": 4, "mini": 4}[program]


def test_a_recording_without_a_proposal_and_one_that_is_none(tmp_path):
    recording = tmp_path / "round.json"
    recording.write_text(json.dumps({"program": "codex", "events": [*CODEX, DONE], "inbox": {}}))
    with round_of() as view:
        assert replay(recording).propose(view, SHORT).status == "invalid"
    for text in ("{}", '{"program": "other", "events": [], "inbox": {}}', "no json"):
        recording.write_text(text)
        with pytest.raises(ValueError, match="recording|recorded"):
            replay(recording)


def test_codex_tokens_count_without_the_cache():
    assert codex.spent(DONE) == ("turn", 200) and codex.spent(CODEX[0]) == ("", 0)


def test_a_person_is_told_what_is_wrong_and_tries_again():
    with round_of() as view:
        batches = []
        waiting = threading.Thread(target=lambda: batches.append(human(0.02).propose(view, SHORT)))
        waiting.start()
        answer = view.inbox / "proposal-1.json.answer.txt"
        for text, said in (("{", "not JSON"), (json.dumps(proposal(1000)), "out of range"),
                           (json.dumps(proposal()), "Accepted")):
            (view.inbox / "proposal-1.json").write_text(text)
            _until(lambda: answer.exists() and said in answer.read_text())
        waiting.join(5)
    assert batches[0].status == "ok" and json.loads(batches[0].texts[0]) == proposal()


def test_a_person_who_does_not_come():
    with round_of() as view:
        batch = human(0.02).propose(view, Budget(seconds=0.1))
    assert batch.status == "timeout" and "inbox" in batch.problem


def _until(holds, seconds=5.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)
