"""Function: rules as programs, rewards by hand, precision, texts, and the upstream tasks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from play import built_in, play, script

from eau_jax.core.types import StopReason, Task
from eau_jax.envs.gyms import function_tasks
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.gyms.function import function, run
from eau_jax.envs.gyms.function_tasks import evaluate, program

RECORD = {"id": "f-1", "rule": "(a + b) * c - d", "test_case": [2, 3, 4, 5], "expected_result": 15.0}
TASK = Task(id="f-1", env="function", data=RECORD)


def knobs(**changes):
    return function.knobs.replace(**{k: np.asarray(v, getattr(function.knobs, k).dtype) for k, v in changes.items()})


def ends(lines):
    return stop_reason(lines[-1].stop), lines[-1].success, [line.reward for line in lines]


@pytest.mark.parametrize("messages, replies, rewards, stop", [
    (["[search] test", "[action] 1 1 1 1", "[answer] 15"],
     ["The test case is a=2, b=3, c=4, d=5.", "The value is 1.", "Correct."], [0, 0, 1], StopReason.COMPLETED),
    (["[action] 2, 3, 4, 5", "[action] 3-5 2 1", "[action] 1 2 3", "[search] rule", "[finish]"],
     ["You cannot try the test case itself, nor come so near.", "The value is -5.", "Give exactly four numbers.",
      "Only [search] test is possible.",
      "Goodbye."], [0, 0, 0, 0, 0], StopReason.COMPLETED),
    (["[answer] 14", "[answer]", "[answer] many", "[answer] nan", "[answer] 15.0000005"],
     ["Wrong. Try again.", "The answer is empty.", "That is not a number.", "That is not a number.", "Correct."],
     [0, 0, 0, 0, 1], StopReason.COMPLETED),
    (["[answer] 15.00001"] * 3, ["Wrong. Try again.", "Wrong. Try again.", "Wrong."], [0] * 3, StopReason.COMPLETED),
    (["[answer] 1"] * 2 + ["[answer] 15"], ["Wrong. Try again."] * 2 + ["Correct."], [0, 0, 1], StopReason.COMPLETED),
    (["[action] 1 1 1 1"] * 16, ["The value is 1."] * 16, [0] * 16, StopReason.MAX_TURNS),
    (["hello", "[action] 1.5 1 1 0.25", "hm", "what"],
     ["I cannot read that. Write [action], [search], [answer] or [finish].", "The value is 2.25."]
     + ["I cannot read that. Write [action], [search], [answer] or [finish]."] * 2, [0] * 4, StopReason.PARSE_ERROR),
])
def test_episodes_by_hand_at_the_default_knobs(messages, replies, rewards, stop):
    lines = play(function, TASK, script(*messages))
    assert [line.reply for line in lines] == replies
    assert ends(lines) == (stop, rewards[-1] == 1, rewards)


@pytest.mark.parametrize("changes, messages, rewards", [
    (dict(step_penalty=0.1), ["[search] test", "[answer] 1", "[answer] 15"], [-0.1, -0.2, 1 - 0.3]),
    (dict(r_correct=0.5, r_wrong=-0.25, max_wrong=1), ["[search] test", "[answer] 1"], [0, -0.25]),
    (dict(probe_cost=0.2), ["[action] 1 1 1 1", "[action] 2 3 4 5", "[answer] 15"], [-0.2, 0, 1]),
    (dict(invalid_penalty=0.3, max_invalid=1), ["[action] 1", "hello"], [-0.3, -0.3]),
    (dict(repeat_penalty=0.3, finish_penalty=0.5), ["[search] test", "[search] test", "[finish]"], [0, -0.3, -0.5]),
    (dict(tol=1.0), ["[answer] 14"], [1]),
    (dict(probe_cost=0.2), ["[action] 2.001 3 4 5", "[action] 2.6 3 4 5", "[finish]"], [0, -0.2, 0]),
    (dict(probe_cost=0.2, block_radius=0), ["[action] 2.001 3 4 5", "[finish]"], [-0.2, 0]),
    (dict(max_wrong=64), ["[answer] 1"] * 5 + ["[answer] 15"], [0] * 5 + [1]),
    (dict(patience=2), ["[search] test", "[search] test", "[action] 1"], [0, 0, 0]),
])
def test_rewards_by_hand_with_other_knobs(changes, messages, rewards):
    lines = play(function, TASK, script(*messages), knobs(**changes))
    np.testing.assert_allclose([line.reward for line in lines], rewards, rtol=1e-6)
    assert len(lines) == len(messages)


def test_probes_run_out_and_the_reward_can_be_shown():
    lines = play(function, TASK, script("[action] 1 1 1 1", "[action] 1 1 1 2", "[answer] 15"),
                 knobs(max_probe=1, show_reward_in_text=1))
    assert [line.reply for line in lines] == ["The value is 1. Reward: 0.00.", "No tries left. Reward: 0.00.",
                                              "Correct. Reward: 1.00."]


def test_the_user_can_withhold_volunteer_and_leave_but_not_judge():
    withhold = play(function, TASK, script("[search] test", "[action] 1 1 1 1", "[answer] 15"),
                    rules='default = "WITHHOLD"')
    assert [line.reply for line in withhold] == ["Not now.", "Not now.", "Correct."]
    volunteer = play(function, TASK, script("[action] 1 1 1 1", "[answer] 3"), rules='default = "VOLUNTEER"')
    assert [line.reply for line in volunteer][:2] == ["The test case is a=2, b=3, c=4, d=5.", "Wrong. Try again."]
    assert ends(play(function, TASK, script("[action] 1 1 1 1"), rules='default = "LEAVE"'))[0] is StopReason.USER_LEFT
    right = play(function, TASK, script("[answer] 15"), rules='default = "LEAVE"')
    assert ends(right) == (StopReason.COMPLETED, True, [1.0])


@pytest.mark.parametrize("expected", [15.0, -2934.0, 4896.0, 123456.0, 1 / 3, 1000.1])
@pytest.mark.parametrize("error, correct", [(0.0, True), (9e-7, True), (-9e-7, True), (1.1e-6, False),
                                            (-1.1e-6, False), (0.5, False)])
def test_the_tolerance_is_decided_right_in_float32(expected, error, correct):
    task = Task(id="x", env="function", data={
        "id": "x", "rule": "a + b + c + d", "test_case": [expected, 0, 0, 0], "expected_result": expected})
    assert play(function, task, script(f"[answer] {expected + error!r}"))[0].success is correct


@pytest.mark.parametrize("rule, numbers, value", [
    ("a + b * c - d", (1, 2, 3, 4), 3), ("(a - b) / (c - d)", (1, 2, 3, 3), None),
    ("a / (b / (c - d))", (1, 2, 3, 3), None),
    ("c - b - d ** a", (2, 6, 5, 4), -17), ("a ** b + c - d", (-2, 3, 0, 0), -8),
    ("a ** b + c - d", (-2, 0.5, 0, 0), None),
    ("a ** b ** c + d", (2, 3, 2, 1), 513), ("a * b * c * d", (1e20, 1e20, 1e20, 1e20), None),
    ("a ** 2 + b ** 2 - c - d", (3, 4, 5, 6), 14),
    ("a ** b + c + d", (0, -1, 0, 0), None), ("a ** b + c + d", (10, 400, 0, 0), None),
])
def test_programs_on_the_host_and_in_arrays(rule, numbers, value):
    host = evaluate(rule, numbers)
    top, exists = run(jnp.asarray(program(rule), jnp.int32), jnp.asarray(numbers, jnp.float32))
    if value is None:
        assert not exists and (host is None or host > 3e38)  # float64 reaches further than float32
    else:
        assert exists and host == value
        np.testing.assert_allclose(top, value, rtol=1e-5)


@pytest.mark.parametrize("rule", ["a + b + c", "a + a + b + c + d", "a + b + c + e", "a + b + c + d + 1",
                                  "f(a) + b + c + d", "a +", "",
                                  "a ** 3 + b + c + d", "-a + b + c + d", "a ** 2 + b ** 2 + c ** 2 + d",
                                  "__import__('os')", "(" * 500])
def test_other_rules_are_refused(rule):
    with pytest.raises(ValueError, match="expected"):
        program(rule)


def test_all_expected_results_upstream(shared_data):
    tasks = function_tasks.load(shared_data / "usergym/function/functions.json")
    assert len(tasks) == 538
    table = function.table(tasks)
    value, exists = jax.jit(jax.vmap(run))(table.program, table.case)
    expected = np.array([task.data["expected_result"] for task in tasks])
    assert exists.all()
    np.testing.assert_allclose(value, expected, rtol=2e-6, atol=2e-4)
    for task, result in zip(tasks, expected):
        assert evaluate(task.data["rule"], tuple(task.data["test_case"])) == pytest.approx(result, abs=1e-9)
    assert (np.asarray(table.expected, np.float64).sum(axis=1) == expected).all()


@pytest.mark.parametrize("split, rows", [("train", 460), ("test", 78)])
def test_the_upstream_parquet_is_read(shared_data, split, rows):
    pytest.importorskip("pyarrow")
    tasks = function_tasks.load(shared_data / f"usergym/function/{split}.parquet")
    by_id = {task.id: task for task in function_tasks.load(shared_data / "usergym/function/functions.json")}
    assert len(tasks) == rows
    assert all(by_id[task.id].data["expected_result"] == task.data["expected_result"] for task in tasks)
    assert len(function.table(tasks).program) == rows


def test_agents():
    env, tasks = built_in("function", 40)
    total = lambda task, agent, seed: sum(line.reward for line in play(env, task, agent, seed=seed))
    score = lambda agent, seed: [env.score(t, None, total(t, agent, seed + i)) for i, t in enumerate(tasks)]
    assert np.mean(score(env.expert, 0)) == 1.0
    assert 0.25 <= np.mean(score(env.novice, 0) + score(env.novice, 100)) <= 0.65


def test_nothing_hidden_is_in_the_prompt_or_the_replies():
    env, tasks = built_in("function", 20)
    for task in tasks:
        assert task.data["rule"] not in " ".join(env.prompt(task))
        shown = " ".join(line.reply for line in play(env, task, env.novice))
        assert task.data["rule"] not in shown and env.secrets(task, 0, 0) == (task.data["rule"],)
    assert math.isclose(env.score(tasks[0], None, 1.7), 1.0) and env.score(tasks[0], None, -3.0) == 0.0
