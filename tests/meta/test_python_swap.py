"""Rules in Python while training runs: adopted, taken back, killed and resumed to the bit; same decisions, same tokens."""

import jax
import pytest
from test_coevolve import CHANGES, META, files, killed_and_resumed, lines, parts, quickly, record, text
from test_python_rules import OWN, OWN_READS, pytestmark as held
from test_train import launch

from eau_jax.meta.proposal import Batch
from eau_jax.meta.proposer import Proposer

pytestmark = [held, pytest.mark.slow]
LEAVES = OWN.replace("off_topic):", "off_topic, malformed, turn):").replace(
    "    if patience", "    if malformed and turn >= 2:\n        return 'LEAVE'\n    if patience", 1)
STEPS = 11


def script(view, budget):
    """Early: the environment's own rules in other words. Later: a user who leaves, with a wrong prediction."""
    now = view.json("knobs/current.json")
    assert now["python_rules"] is True
    if now["step"] == 2:
        python, metric = {"code": OWN, "reads": OWN_READS}, "rollout/turns_mean"
    elif now["step"] == 6:
        python = {"code": LEAVES, "reads": OWN_READS | {"malformed": [0, 1], "turn": [1, 3]}}
        metric = "rollout/stop_user_left"
    else:
        return Batch("empty")
    return Batch("ok", (text(now["generation"], "user", metric, "down", 2, python=python),))


def made(**more):
    return parts(Proposer("script", script, at_once=True), META | {"blast": 1.0, "python_rules": True}, **more)


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    return quickly(tmp_path_factory, {**CHANGES, "learn.steps": STEPS}, parts=made())


def test_a_function_goes_the_way_of_any_change(story):
    way = {id: [line["event"] for line in lines(story, "audit.jsonl") if line.get("id") == id] for id in ("3-1", "7-1")}
    assert way == {"3-1": ["gate", "canary", "adopted", "kept"], "7-1": ["gate", "canary", "adopted", "rolled_back"]}
    assert "python" in [stage["stage"] for stage in record(story, "proposals/3-1/gate.json")["stages"]]
    assert "# def reply(patience," in (story / "rules/1.toml").read_text()
    assert record(story, "proposals/7-1/verdict.json")["result"] == "harmful"
    assert (story / "rules/3.toml").read_text() == (story / "rules/1.toml").read_text()
    left = {line["step"]: line["rollout/stop_user_left"] for line in lines(story)}
    assert left[8] == left[9] == 1 > max(left[step] for step in left if step not in (8, 9)), "it decides in these two alone"


def test_the_same_decisions_give_the_same_tokens(story, tmp_path):
    run = launch(tmp_path, {**CHANGES, "learn.steps": 7}, parts=parts(None))
    for step in range(1, 8):
        one, other = ([{**episode, "generation": 0} for episode in lines(side, f"episodes/{step}.jsonl")]
                      for side in (story, run))
        assert one == other, f"update {step}"
    assert [line["generation"] for line in lines(story)] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3]


def test_killed_in_a_canary_and_under_watch_it_goes_on_as_it_was(story, tmp_path, monkeypatch):
    run = killed_and_resumed(tmp_path, monkeypatch, (3, 5, 7, 9), {**CHANGES, "learn.steps": STEPS}, made)
    assert files(run) == files(story)
