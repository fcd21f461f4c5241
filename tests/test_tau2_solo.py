"""tau2-bench's solo mode of the mock domain: no user, a ticket, both sets of tools. Telecom's is in test_telecom.py."""

import numpy as np
import pytest

from eau_jax.core.part import Floor, Kind
from eau_jax.core.types import StopReason
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.tau2 import data as tau2_data
from eau_jax.envs.tau2.agent import tool_call
from eau_jax.envs.tau2.message import DONE, read_solo
from eau_jax.envs.tau2.solo import playable, solo
from eau_jax.rollout.simulator import simulator
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

END = tool_call(DONE, {})


@pytest.fixture(scope="module")
def mock(shared_data):
    domain = tau2_data.load(shared_data / "tau2/mock")
    return domain, solo(domain)


def play(env, task, agent, knobs=None):
    """[(message, reply, reward)], last state; through the rollout's simulator."""
    played, lines, rng = simulator(env, symbolic, (task,)), [], np.random.default_rng(0)
    settings = {"env": env.knobs if knobs is None else knobs, "user": symbolic.knobs}
    rules, state = compile_rules(env.rules, env.features), played.reset(settings, 0, 0)
    while not state.done:
        text = agent(task, state, rng)
        act = env.parse(task, text, state)
        state, step, _ = played.step(settings, rules, state, act, 0, len(lines))
        lines.append((text, env.render(task, act, step, state, 0), float(step.reward)))
        assert bool(step.tool) and int(step.disclosed) == 0
    return lines, state


def script(*messages):
    return lambda task, state, rng: messages[min(state.turn, len(messages) - 1)]


def find(domain, name):
    return next(task for task in domain.tasks if task.id == name)


def test_the_gold_calls_solve_what_can_be_solved_without_words(mock):
    domain, env = mock
    scores = {task.id: env.score(task, play(env, task, env.expert)[1], 0.0) for task in playable(domain)}
    assert scores == {"create_task_1": 1, "create_task_1_with_env_assertions": 1, "update_task_1": 1, "impossible_task_1": 1,
                      "update_task_with_initialization_data": 0, "update_task_with_initialization_actions": 1,
                      "update_task_with_user_tools": 1}
    spoken = find(domain, "update_task_with_initialization_data")    # its basis asks for words
    assert play(env, spoken, env.expert, env.knobs.replace(basis_communicate=np.int32(0)))[0][-1][2] == 1.0
    idle = [task.id for task in playable(domain) if env.score(task, play(env, task, script(END))[1], 0.0)]
    assert idle == []


def test_the_agent_has_the_users_tools_too(mock):
    domain, env = mock
    task = find(domain, "update_task_with_user_tools")
    system, ticket = env.prompt(task)
    assert ticket == task.data["ticket"] and domain.policy_solo.strip() in system
    assert '"name": "dismiss_notification"' in system and '"name": "done"' in system
    update = tool_call("update_task_status", {"task_id": "task_1", "status": "completed"})
    lines, state = play(env, task, script(tool_call("check_notifications", {}), update, END))
    assert "notif_1" in lines[0][1] and state.outcome.components == {"DB": 1.0, "ACTION": 1.0, "ENV_ASSERTION": 0.0}
    lines, _ = play(env, task, script(update, tool_call("dismiss_notification", {"notification_id": "notif_1"}), END))
    assert [line[2] for line in lines] == [0, 0, 1] and lines[-1][1] == "Done."


@pytest.mark.parametrize("message, stop, turns", [
    ("Hello?", StopReason.PARSE_ERROR, 3), (tool_call("x", {}), StopReason.TOOL_ERROR, 10),
    (tool_call("get_users", {}), StopReason.MAX_TURNS, 50), (END, StopReason.COMPLETED, 1)])
def test_endings(mock, message, stop, turns):
    domain, env = mock
    lines, state = play(env, find(domain, "update_task_1"), script(message))
    assert stop_reason(state.stop) is stop and len(lines) == turns and sum(line[2] for line in lines) == 0
    if stop is StopReason.PARSE_ERROR:
        assert lines[0][1] == "There is nobody to talk to. Call one tool."


def test_the_floor_is_what_a_transfer_at_once_reaches(mock):
    domain, env = mock
    tasks, transfer = playable(domain), tool_call("transfer_to_human_agents", {"summary": "x"})
    won = {agent: np.mean([env.score(task, play(env, task, script(*agent))[1], 0.0) for task in tasks])
           for agent in ((END,), (transfer, END), ("Hello",), (transfer,))}
    assert list(won.values()) == [0, 1 / 7, 0, 0] and env.floor == Floor(idle=0.15)


def test_the_act_of_the_end(mock):
    domain, env = mock
    act = env.parse(domain.tasks[0], END, None)
    assert int(act.kind) == Kind.FINISH and read_solo("<tool_call>{").why.startswith("The tool call is not JSON")


def test_what_has_no_solo_mode_says_so(mock, shared_data):
    domain, env = mock
    for name, said in (("create_task_1_nl_eval", "evaluation_criteria.actions: expected one or more, found none"),
                       ("update_task_with_message_history", "ticket: expected a non-empty string, found nothing")):
        with pytest.raises(ValueError, match=f"^task '{name}', field {said}; it has no solo mode; .*playable"):
            env.table((find(domain, name),))
    for name in ("airline", "retail"):
        with pytest.raises(ValueError, match=f"^{name} has no solo mode; tau2-bench has one for mock and for telecom"):
            solo(tau2_data.load(shared_data / "tau2" / name))
