"""UserGym's Tau: its protocol, its endings, and every upstream task."""

import json
import random

import numpy as np
import pytest
from nulls import KINDS, agents

from eau_jax.core.part import Kind, Reply
from eau_jax.core.types import StopReason
from eau_jax.envs.gyms import tau as tau_gym
from eau_jax.envs.tau2 import data as tau2_data
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.file import TaskFileError
from eau_jax.envs.tau2.agent import REFUSAL
from eau_jax.envs.tau2.user import Do
from eau_jax.users.voice import leaks


@pytest.fixture(scope="module")
def gym(shared_data):
    if not (shared_data / "tau2").is_dir() or not (shared_data / "usergym/tau").is_dir():
        pytest.skip("the files of tau2-bench or of UserGym's Tau are not here")
    env = tau_gym.tau_gym({name: tau2_data.load(shared_data / "tau2" / name) for name in ("retail", "airline")})
    return env, {split: tau_gym.load(shared_data / f"usergym/tau/tau_{split}.json") for split in ("train", "test")}


def play(env, task, agent, knobs=None, seed=0, heard=None):
    """[(agent's text, act, time step, reply)], last state. Replies are added to the list `heard`."""
    table, rng, lines = env.table((task,)), np.random.default_rng(seed), []
    knobs = env.knobs if knobs is None else knobs
    state = env.reset(table, knobs, 0, seed)
    while not state.done:
        text = agent(task, state, rng)
        act = env.parse(task, text, state)
        patience = env.observe(table, knobs, state, act)[env.features.index("patience")]
        state, step = env.step(table, knobs, state, act, np.int32(Reply.LEAVE if patience <= 0 else Reply.ANSWER), None)
        lines.append((text, act, step, env.render(task, act, step, state, seed + len(lines))))
        if heard is not None:
            heard.append(lines[-1][3])
        assert len(lines) <= 64 and state.turn == len(lines)
    return lines, state


def saying(*messages):
    return lambda task, state, rng: messages[min(state.turn, len(messages) - 1)]


@pytest.mark.parametrize("split, count, refused", [pytest.param("train", 500, 11, marks=pytest.mark.slow), ("test", 165, 26)])
def test_every_task_is_solved_by_its_gold_writes_within_16_messages(gym, split, count, refused):
    """Gold writes that the tools decline leave nothing, so a few train tasks are solved by doing nothing."""
    env, tasks = gym[0], gym[1][split]
    score = lambda agent, seed=0: sum(env.score(task, play(env, task, agent, seed=seed + n)[1], 0.0)
                                      for n, task in enumerate(tasks))
    assert score(env.expert) == count == len(tasks)
    assert score(saying(f"[action] {REFUSAL}")) == refused
    assert 0.5 * count < score(env.novice) < 0.9 * count


def test_the_protocol(gym):
    env, task = gym[0], gym[1]["test"][0]
    system, opening = env.prompt(task)
    assert opening == task.data["obs"] and "policy" not in system.lower()
    lines, state = play(env, task, saying(
        "[search] tools", "[search] Tools.", "[search] help", "[search] orders",
        "[answer] get_user_details: {\"user_id\": \"x\"}",
        "[answer] {\"name\": \"get_user_details\", \"arguments\": {\"user_id\": \"yusuf_rossi_9620\"}}",
        "[action] What is your zip code?", "hello", "[answer] oops", "[finish]"))
    replies = [line[3] for line in lines]
    assert len(replies[0].splitlines()) == 16 and json.loads(replies[0].splitlines()[0])["name"] == "calculate"
    assert replies[1] == "The tools were shown already." and "[answer]" in replies[2] and "Only" in replies[3]
    assert replies[4] == "Error: User not found" and json.loads(replies[5])["name"]["first_name"] == "Yusuf"
    assert replies[6] == "My zip code is 19122." and replies[7] == replies[8] == replies[2]
    assert stop_reason(state.stop) is StopReason.COMPLETED and env.score(task, state, 0.0) == 0.0
    assert [int(line[1].kind) for line in lines] == [Kind.SEARCH] * 4 + [Kind.ANSWER] * 2 + [Kind.ACTION] + [
        Kind.MALFORMED] * 2 + [Kind.FINISH]
    assert [bool(line[2].tool) for line in lines] == [True] * 6 + [False] + [True] * 3


def test_agents_that_do_not_try_score_no_more_than_the_floor(gym):
    """Within two standard errors; what refusing and waiting earn is the share of tasks whose gold actions leave nothing."""
    env, tasks = gym[0], gym[1]["test"][::10]
    idle = agents("idle") | {"refuse": lambda seen, n: f"[action] {REFUSAL}", "stop": lambda seen, n: "[action] ###STOP###",
                             "hand over": lambda seen, n: '[answer] transfer_to_human_agents: {"summary": "x"}'}
    for kind, speakers in {"idle": idle, **{kind: agents(kind) for kind in KINDS[1:]}}.items():
        for name, agent in speakers.items():
            found = []
            for task in tasks:
                seen = list(env.prompt(task))
                lines, state = play(env, task, lambda task, state, rng: agent(seen, state.turn), heard=seen)
                found.append(env.score(task, state, 0.0))
            error = 2 * np.std(found) / len(found) ** 0.5
            assert np.mean(found) - error <= getattr(env.floor, kind), (kind, name, np.mean(found))
    assert env.floor.idle >= 26 / 165


@pytest.mark.parametrize("message, stop, turns", [
    ("[search] tools", StopReason.MAX_TURNS, 16), ("[answer] calculate: {\"expression\": \"1\"}", StopReason.MAX_TURNS, 16),
    ("x", StopReason.PARSE_ERROR, 3), ("[answer] x: {}", StopReason.TOOL_ERROR, 10),
    ("[action] hello", StopReason.USER_LEFT, 9),
    ("[finish]", StopReason.COMPLETED, 1)])
def test_endings_that_are_worth_nothing(gym, message, stop, turns):
    env = gym[0]
    for task in gym[1]["test"][:3] + gym[1]["test"][-3:]:
        lines, state = play(env, task, saying(message))
        assert stop_reason(state.stop) is stop and len(lines) == turns
        assert sum(float(line[2].reward) for line in lines) == 0 and float(lines[-1][2].discount) == 0


def test_nothing_untold_is_said_and_nothing_raises(gym):
    env, rng = gym[0], random.Random(0)
    pieces = ["[action] ", "[answer] ", "[search] ", "tools", "{", "}", '"name"', "get_user_details: ", "{}", "\ud800",
              "zip code?", "What is your name?", "order number?", "confirm?", "9" * 5000, "[[[", "e-mail?", "NaN", "how do you pay?"]
    for task in rng.sample(gym[1]["train"], 60) + rng.sample(gym[1]["test"], 60):
        told = 0
        for text, act, step, said in play(env, task, lambda *_: "".join(rng.choices(pieces, k=rng.randint(1, 6))))[0]:
            told |= int(step.disclosed)
            assert leaks(said, env.secrets(task, told, 0)) == () or act.code == Do.CALL, (task.id, said)
            assert np.isfinite(act.values).all()


def test_files(gym, shared_data, tmp_path):
    pytest.importorskip("pyarrow")
    rows = tau_gym.load(shared_data / "usergym/tau/test.parquet")
    assert [task.id for task in rows] == [task.id for task in gym[1]["test"]]
    record = {"id": "retail-000", "obs": "Hi", "info": {"task": {"instruction": "x", "actions": [{"name": "a"}]}}}
    for changed, said in ((record, r"info.task.actions\[0\].kwargs: expected an object"),
                          (record | {"id": "bank-1"}, "id: expected one that begins with retail or airline"),
                          (record | {"info": {}}, "info.task: expected an object, found nothing")):
        (tmp_path / "t.json").write_text(json.dumps([changed]))
        with pytest.raises(TaskFileError, match=said):
            tau_gym.load(tmp_path / "t.json")
    only = tau_gym.tau_gym({"retail": tau2_data.load(shared_data / "tau2/retail")})
    with pytest.raises(ValueError, match="is of 'airline'; loaded: retail"):
        only.table(gym[1]["test"][-1:])
