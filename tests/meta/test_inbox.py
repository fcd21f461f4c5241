"""The inbox server as a process of its own, over standard input and output, and what it says of wrong proposals."""

import json
import subprocess
import sys

import pytest
from rounds import KNOBS, PREDICTION, TURNS, proposal, round_of

from eau_jax.core import knobs as knob
from eau_jax.core.knobs import KnobError
from eau_jax.meta.inbox_server import answer, submit
from eau_jax.meta.proposal import parse
from eau_jax.meta.signals import FAULTS
from eau_jax.meta.snapshot import SKILL

INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2024-11-05"}}


@pytest.fixture
def view():
    with round_of() as view:
        yield view


def cites(value, metric="rollout/stop_max_turns"):
    return {"owner": "env", "fault": "too_few_turns", "evidence": [
        {"metric": metric, "first": 1, "last": 5, "value": value, "limit": 0.25}]}


def hand_in(view, given, most=3):
    """(accepted, what was said)."""
    return submit(given if isinstance(given, str) else json.dumps(given), view.folder, view.inbox, most)


def test_a_conversation_over_standard_input(view):
    messages = [INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"},
                {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {"jsonrpc": "2.0", "id": 2, "method": "no/such"},
                {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "other", "arguments": {}}},
                {"jsonrpc": "2.0", "id": 4, "method": "tools/call",
                 "params": {"name": "submit_proposal", "arguments": proposal(1000)}},
                {"jsonrpc": "2.0", "id": 5, "method": "tools/call",
                 "params": {"name": "submit_proposal", "arguments": proposal()}},
                {"jsonrpc": "2.0", "id": 6, "method": "ping"}]
    lines = [json.dumps(message) for message in messages[:2]] + ["no json", "[1]"] + [json.dumps(m) for m in messages[2:]]
    done = subprocess.run([sys.executable, "-m", "eau_jax.meta.inbox_server", view.folder, view.inbox, "3"],
                          input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [reply["id"] for reply in replies] == [0, None, None, 1, 2, 3, 4, 5, 6]
    assert replies[0]["result"]["protocolVersion"] == "2024-11-05"
    assert [tool["name"] for tool in replies[3]["result"]["tools"]] == ["submit_proposal"]
    assert replies[4]["error"]["code"] == replies[5]["error"]["code"] == -32601
    assert replies[6]["result"]["isError"] and "allowed: 1 to 64" in replies[6]["result"]["content"][0]["text"]
    assert not replies[7]["result"]["isError"]
    assert parse((view.inbox / "proposal-1.json").read_text(), "1", "x").changes == {"env.max_turns": TURNS + 1}


def test_the_server_starts_in_a_moment():
    code = "import sys, eau_jax.meta.inbox_server; print([n for n in ('jax', 'numpy', 'flax', 'mcp') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("given, said", [
    (proposal(generation=2), "base_generation is 2; the generation in force is 3"),
    (proposal(changes={"env.max_turn": 3}), "did you mean 'env.max_turns'"),
    (proposal(changes={"env.max_turns": 65}), "allowed: 1 to 64"),
    (proposal(changes={"env.max_turns": 16.5}), "not a whole number"),
    (proposal(changes={"env.max_turns": 60}), "in one swap"),
    (proposal(changes={"env.max_turns": "20"}), "must be a number"),
    (proposal(changes={"env.max_turns": float("nan")}), "NaN"),
    (proposal(rules="[[rule]"), "rules are not TOML"),
    (proposal(rules='default = "ANSWER"'), "belong to env+user"),
    (proposal() | {"changes": dict.fromkeys(["env.max_turns", "env.a", "env.b"], 17)}, "it makes 3 changes; allowed: 2"),
    (proposal(changes={}, task_mix={"easy": 0.5, "hard": 0.5}), "the tasks of this run have no buckets"),
    (proposal() | {"seal": 1}, "unknown field 'seal'"),
    (proposal(prediction={"metric": "x"}), "prediction has no field"),
    ({"diagnosis": {"owner": "moon", "fault": ""}}, "allowed: user, env, rl"),
    ({"why": "nothing"}, "has no field 'diagnosis'"),
    (proposal(prediction=PREDICTION | {"metric": "rollout/stop_max_turn"}), "did you mean 'rollout/stop_max_turns'"),
    (proposal(prediction=PREDICTION | {"min_effect": 0}), "above 0"),
    (proposal(prediction=PREDICTION | {"within_updates": 11}), "allowed: up to ttl_updates = 10"),
    (proposal(diagnosis=cites(0.9)), "was 0.9 in updates 1 to 5; it was 0.4"),
    (proposal(changes={}, rules="a" + ".a" * 16000 + "=1"), "allowed: 8192"),
    (proposal(changes={}, rules="a = " + "[" * 8000), "rules are not TOML"),
    (json.dumps(proposal()).replace('"env.max_turns"', '"env.max_turns": 1, "env.max_turns"'), "twice"),
    ("raise the limit", "not JSON"),
    ("[" * 100_000, "Refused"),
    (json.dumps(proposal(why="x" * 70_000)), "65536 bytes"),
])
def test_a_wrong_proposal_is_told_what_is_wrong_and_not_kept(view, given, said):
    accepted, told = hand_in(view, given)
    assert not accepted and said in told and list(view.inbox.iterdir()) == []


@pytest.mark.parametrize("evidence", [cites(0.4), cites(0.7, "truncated_progressing")])
def test_what_was_recorded_or_signalled_may_be_cited(view, evidence):
    assert hand_in(view, proposal(diagnosis=evidence))[0]


def test_no_more_than_the_budget_is_kept(view):
    assert [hand_in(view, proposal(), most=2)[0] for _ in range(3)] == [True, True, False]
    assert sorted(path.name for path in view.inbox.iterdir()) == ["proposal-1.json", "proposal-2.json"]


def test_a_diagnosis_alone_is_a_finding(view):
    accepted, told = hand_in(view, {"diagnosis": {"owner": "checker", "fault": "broken_checker_negative"}})
    assert accepted and "no change" in told and (view.inbox / "finding.json").exists()


@pytest.mark.parametrize("value", [1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 0, -1, 16.5, 1e9])
def test_bounds_and_steps_are_those_of_the_trainer(view, value):
    changes = {"env.max_turns": value}
    try:
        right = not knob.outside_trust(KNOBS, changes)
    except KnobError:
        right = False
    assert hand_in(view, proposal(changes=changes))[0] == right


def test_the_way_back_to_the_first_value_is_open(view):
    """In one step, which is larger than one swap may make otherwise; not beyond."""
    path = view.folder / "knobs/current.json"
    path.chmod(0o644)
    now = json.loads(path.read_text())
    path.write_text(json.dumps(now | {"first": {"env.max_turns": 60}}))
    assert hand_in(view, proposal(changes={"env.max_turns": 60}))[0]
    assert not hand_in(view, proposal(changes={"env.max_turns": 61}))[0]


def test_a_notification_is_not_answered(view):
    assert answer({"jsonrpc": "2.0", "method": "tools/list"}, view.folder, view.inbox, 1) is None


def test_a_file_is_handed_in_by_a_command(view):
    for number, (given, status) in enumerate([(proposal(1000), 1), (proposal(), 0)]):
        file = view.home / f"{number}.json"
        file.write_text(json.dumps(given))
        done = subprocess.run([sys.executable, "-m", "eau_jax.meta.inbox_server", view.folder, view.inbox, "3", file],
                              capture_output=True, text=True, timeout=20)
        assert done.returncode == status and done.stdout.startswith(("Accepted", "Refused")[status])
    assert [path.name for path in view.inbox.iterdir()] == ["proposal-1.json"]


def test_the_skill_names_every_fault():
    told = SKILL.read_text()
    assert [fault for fault in FAULTS if fault != "none" and f"`{fault}`" not in told] == []
