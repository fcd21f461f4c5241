"""tau2-bench's solo mode of a host world: no user; the agent works on a ticket with both sets of tools.

    env = solo(load("data/tau2/mock"));  tasks = playable(load("data/tau2/mock"))

Upstream has it for mock and telecom (`telecom.telecom.telecom_solo`). An episode is scored when the agent calls `done`;
every other ending is worth 0. Nothing can be said, so a task whose basis asks for words (COMMUNICATE) is never solved, as
upstream, unless the knob basis_communicate is 0; and statements (NL_ASSERTION) are not judged.
"""

import dataclasses
import functools
import json
from typing import Any

import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import Act, Env, Kind, TimeStep
from eau_jax.core.types import StopReason, Task
from eau_jax.envs import message
from eau_jax.envs.tau2.agent import tool_call
from eau_jax.envs.tau2.call import Tool, parameters
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.episode import Row, State, begun, called, ended, malformed, time_step
from eau_jax.envs.tau2.floor import floor
from eau_jax.envs.tau2.message import ALONE, DONE, read_solo
from eau_jax.envs.tau2.ruling import described
from eau_jax.envs.tau2.task_check import check_solo
from eau_jax.envs.tau2.user import Do, Say
from eau_jax.envs.tau2.world import Rows, as_act, rows, score, system_text

SYSTEM = ("You are a customer service agent and work on a ticket; there is nobody to talk to. Follow the policy. In each "
          "turn make one tool call:\n<tool_call>{\"name\": ..., \"arguments\": {...}}</tool_call>\nCall done when the "
          "ticket is dealt with.")
FEATURES = ("turn",)    # number of this message, from 1
_DONE = Tool(DONE, "generic", "The ticket is dealt with; this ends the task.", parameters(), lambda view, args: "Done.")


@struct.dataclass
class Knobs:
    """Those of `tau2.episode` that mean something without a user."""

    max_turns: int = knob(50, 1, 200, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "messages that are no tool call after which the task ends as PARSE_ERROR; upstream: 1")
    error_limit: int = knob(10, 1, 64, "failed tool calls after which the task ends as TOOL_ERROR")
    basis_db: int = knob(1, 0, 1, "0: the final records do not count", reward=True)
    basis_communicate: int = knob(1, 0, 1, "0: what the agent has to say does not count", reward=True)
    partial_credit: float = knob(0.0, 0.0, 1.0, "reward for the share of goals called, where the task is not solved",
                                 reward=True)


def solo(domain: Domain, system: str | None = None) -> Env:
    """The solo environment of a domain.

    Args:
      system: the whole system text; None: how to write, the policy of solo mode, and every tool's schema.

    Raises:
      ValueError: for a domain that has no policy of solo mode.
    """
    if not domain.policy_solo:
        raise ValueError(f"{domain.name} has no solo mode; tau2-bench has one for mock and for telecom "
                         "(eau_jax.envs.telecom.telecom.telecom_solo)")
    alone = domain._replace(tools=domain.tools | domain.user_tools)    # the agent's hands are the user's too
    row = rows(domain, (domain.tools, domain.tools))
    text = system_text(SYSTEM, domain.policy_solo, alone.tools | {DONE: _DONE}) if system is None else system

    def table(tasks: tuple[Task, ...]) -> tuple[Row, ...]:
        for task in tasks:
            try:
                check_solo(task.data)
            except ValueError as error:
                raise ValueError(f"task {task.id!r}, field {error}; it has no solo mode; "
                                 "eau_jax.envs.tau2.solo.playable(domain) has the tasks that need no user") from None
        return tuple(map(row, tasks))

    nothing = lambda task, mask, seed: ()
    return Env(
        name=f"tau2_{domain.name}_solo", knobs=Knobs(), features=FEATURES, rules=ALONE, table=table,
        reset=lambda table, knobs, index, key: begun(int(index), table[int(index)]),
        observe=lambda table, knobs, state, act: np.array([state.turn + 1], np.int32), step=functools.partial(_step, alone),
        prompt=lambda task: (text, task.data["ticket"]), parse=_parse,
        render=lambda task, act, step, state, seed: state.output, disclosed=nothing, secrets=nothing, score=score,
        metric=score, expert=functools.partial(_expert, row), novice=functools.partial(_novice, row),
        basis=described, floor=floor(domain, playable(domain)), host=True)


def playable(domain: Domain) -> tuple[Task, ...]:
    """The tasks of a domain that can be played without a user."""
    return tuple(task for task in domain.tasks if _fits(task))


def _fits(task: Task) -> bool:
    try:
        check_solo(task.data)
    except ValueError:
        return False
    return True


def _parse(task: Task, text: str, state: State | None) -> Act:
    act = as_act(read_solo(text))
    ends = act.code == Do.CALL and json.loads(act.call)["name"] == DONE
    return message.act(Kind.FINISH, Do.NEXT) if ends else act


def _step(alone: Domain, table: tuple[Row, ...], knobs: Knobs, state: State, act: Act, reply: Any,
          key: Any) -> tuple[State, TimeStep]:
    """One message. What the user decides does not matter: there is none."""
    if state.done:
        return state, time_step(state, Say.TOOL, 0.0)
    here, code = table[state.task], Do(int(act.code))
    state, end = dataclasses.replace(state, turn=state.turn + 1), None
    if code is Do.CALL:
        state = called(alone, alone.tools, here, state, json.loads(act.call))
        end = StopReason.TOOL_ERROR if state.errors >= int(knobs.error_limit) else None
    elif code is Do.NEXT:
        state, end = dataclasses.replace(state, output="Done."), StopReason.COMPLETED
    else:
        state = malformed(state, json.loads(act.call or '"I cannot read that."'))
        end = StopReason.PARSE_ERROR if state.invalid >= int(knobs.max_invalid) else None
    if end is None and state.turn >= int(knobs.max_turns):
        end = StopReason.MAX_TURNS
    state, reward = ended(alone, here, knobs, state, end, here.gold[0]) if end else (state, 0.0)
    return state, time_step(state, Say.MALFORMED if code is Do.MALFORMED else Say.TOOL, reward)


def _expert(row: Rows, task: Task, state: State, rng: np.random.Generator) -> str:
    """Makes the gold calls in order, and what the user would do, then ends."""
    wanted = [(action["name"], action["arguments"]) for action in task.data["evaluation_criteria"]["actions"]]
    wanted += [("dismiss_notification", {"notification_id": each}) for each in row(task).plan.dismisses]
    left = [call for call in wanted if call not in state.calls]
    return tool_call(*left[0]) if left else tool_call(DONE, {})


def _novice(row: Rows, task: Task, state: State, rng: np.random.Generator) -> str:
    """Does what the expert does most of the time; else it ends too early, chats, or makes a wrong call."""
    others = (tool_call(DONE, {}), "Let me see.", tool_call("get_users", {}), tool_call("update_task_status", {}))
    return _expert(row, task, state, rng) if rng.random() < 0.65 else others[int(rng.integers(len(others)))]
