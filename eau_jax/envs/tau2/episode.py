"""An episode of a tau2-bench host world: its state, and what a message, the user's decision and an ending do to it.

Plain Python over an immutable state whose database is a few changed records (`tau2.database`).
"""

import dataclasses
import json
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import Act, Reply, TimeStep
from eau_jax.core.types import StopReason, Task
from eau_jax.envs.ending import stop_code
from eau_jax.envs.tau2.call import Tool, call
from eau_jax.envs.tau2.database import Changed
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.evaluate import Outcome, Start, equal_call, evaluate
from eau_jax.envs.tau2.plan import DETAILS, FIRST, Plan
from eau_jax.envs.tau2.user import (AGREED, CALLED, OPEN, REFUSED, SETTLED, Do, Say, first_open, goal_mask, words)

FEATURES = (
    "call", "ask", "propose", "refuse", "next", "transfer", "other", "malformed",  # 1: what the message is
    "asked",       # facts asked for
    "fresh",       # facts asked for that the user knows and has not told
    "fit",         # of a proposal: 1 fits the goal, 0 names nothing, -1 something is wrong
    "strict",      # env.confirm_strict
    "turn",        # number of this message, from 1
    "open",        # goals that are neither settled nor refused
    "agreed",      # 1: the user has agreed to the current goal's proposal
    "called",      # 1: the current goal's write has been made
    "insisted",    # times the user has insisted on the current goal
    "errors",      # failed tool calls before this message
    "invalid",     # unreadable messages so far, this one included
    "patience",    # env.patience less the useless messages before this one
)
IDENTITY = 0b1111    # the slots of the person's own facts


@struct.dataclass
class Knobs:
    """Rewards and limits are upstream's."""

    max_turns: int = knob(50, 1, 200, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "unreadable agent messages after which the task ends as PARSE_ERROR")
    error_limit: int = knob(10, 1, 64, "failed tool calls after which the task ends as TOOL_ERROR")
    patience: int = knob(8, 1, 64, "useless messages the user bears; the default rules leave when none is left")
    insist_n: int = knob(1, 0, 8, "times the user does not take no for an answer, for each goal")
    reveal_goals: int = knob(0, 0, 1, "1: asked for details, the user tells those of every goal at once")
    confirm_strict: int = knob(0, 0, 1, "1: the default rules agree to no proposal that names nothing")
    correct_on_mismatch: int = knob(1, 0, 1, "0: a wrong proposal is answered by a bare no")
    volunteer_id: int = knob(0, 0, 1, "1: the first reply tells who the user is, unasked")
    basis_db: int = knob(1, 0, 1, "0: the final records do not count", reward=True)
    basis_communicate: int = knob(1, 0, 1, "0: what the agent has to say does not count", reward=True)
    partial_credit: float = knob(0.0, 0.0, 1.0, "reward for the share of goals called, where the task is not solved",
                                 reward=True)
    last_item_wins: int = knob(0, 0, 1, "1: modified items all get the last one's price and options, as upstream")


class Row(NamedTuple):
    """A task, made ready once."""

    task: Task
    plan: Plan
    start: Start
    gold: tuple[Changed | None, Changed | None]    # by knob last_item_wins


@dataclasses.dataclass(frozen=True)
class State:
    task: int                        # row of the table
    turn: int                        # messages so far
    done: bool
    stop: int                        # as in TimeStep
    changed: Changed                 # records that differ from the domain's
    told: int                        # mask of the slots told so far
    tells: int                       # mask of the slots that the last reply tells
    status: tuple[int, ...]          # of each goal
    insisted: int = 0                # on the current goal
    invalid: int = 0
    errors: int = 0
    useless: int = 0
    transferred: bool = False
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()    # those that succeeded or failed, in order
    said: tuple[str, ...] = ()                               # the agent's words
    talk: tuple[Mapping[str, str], ...] = ()                 # everything, for a judge of statements
    output: str = ""                                         # of the last tool call, or why the message was refused
    outcome: Outcome | None = None                           # once the user has ended the talk


def observe(table: tuple[Row, ...], knobs: Knobs, state: State, act: Act) -> np.ndarray:
    """The features that the rules read, in the order of FEATURES.  -> i32[F]"""
    who, code, current = table[state.task].plan, int(act.code), first_open(state.status)
    status = OPEN if current is None else state.status[current]
    seen = dict(
        call=code == Do.CALL, ask=code == Do.ASK, propose=code == Do.PROPOSE, refuse=code == Do.REFUSE, next=code == Do.NEXT,
        transfer=code == Do.TRANSFER, other=code == Do.OTHER, malformed=code == Do.MALFORMED,
        asked=int(act.mask).bit_count(), fresh=(int(act.mask) & who.known & ~state.told).bit_count(),
        fit=int(act.values[1]), strict=int(knobs.confirm_strict), turn=state.turn + 1,
        open=sum(each < SETTLED for each in state.status), agreed=status == AGREED, called=status == CALLED,
        insisted=state.insisted, errors=state.errors, invalid=state.invalid + (code == Do.MALFORMED),
        patience=int(knobs.patience) - state.useless)
    return np.array([int(seen[name]) for name in FEATURES], np.int32)


def begun(index: int, here: Row) -> State:
    """The state before the first message about row `index` of a table."""
    begin = here.start
    return State(task=index, turn=0, done=False, stop=0, changed=begin.changed, told=0, tells=0,
                 status=(OPEN,) * len(here.plan.goals), calls=begin.calls, said=begin.said,
                 talk=tuple({"role": role, "content": text} for role, text in begin.talk))


def called(domain: Domain, tools: Mapping[str, Tool], here: Row, state: State, request: Mapping[str, Any]) -> State:
    """After a tool call. The goal whose write it is counts as called, also where the tool declined it."""
    name, arguments = request["name"], request["arguments"]
    result = call(tools, domain.base, state.changed, name, arguments)
    status = list(state.status)
    for place, goal in enumerate(here.plan.goals):
        wanted = {"name": goal.tool, "arguments": goal.arguments}
        if goal.tool and status[place] < CALLED and equal_call(domain, wanted, name, arguments):
            status[place] = CALLED
            break
    heard = ({"role": "assistant", "content": json.dumps(request)}, {"role": "tool", "content": result.text})
    return dataclasses.replace(
        state, changed=result.changed, output=result.text, errors=state.errors + result.error, status=tuple(status),
        transferred=state.transferred or name == "transfer_to_human_agents" and not result.error,
        calls=(*state.calls, (name, arguments)), talk=(*state.talk, *heard))


def malformed(state: State, why: str) -> State:
    """After a message that is neither words nor one tool call."""
    return dataclasses.replace(state, invalid=state.invalid + 1, useless=state.useless + 1, output=why)


def answered(who: Plan, knobs: Knobs, state: State, act: Act, code: Do, reply: Reply) -> tuple[State, Say]:
    """After words to the user."""
    text, current = json.loads(act.call or '""'), first_open(state.status)
    say, told, status, insisted = _decided(who, knobs, state, act, code, reply)
    if int(knobs.volunteer_id) and state.told & IDENTITY == 0 and say in (Say.GIVE, Say.YES, Say.CORRECT, Say.CHANGE):
        told |= who.known & IDENTITY
    fresh = told & ~state.told
    useless = not fresh and (say in (Say.GIVE, Say.CORRECT, Say.NO, Say.UNCLEAR, Say.WITHHELD, Say.GO_ON))
    goal = int(act.values[0]) if say is Say.CORRECT else first_open(status)
    answer = words(who, say, int(act.mask), told, goal, 0)
    return dataclasses.replace(
        state, told=state.told | told, tells=told, status=status, insisted=insisted if first_open(status) == current else 0,
        useless=state.useless + useless, said=(*state.said, text),
        talk=(*state.talk, {"role": "assistant", "content": text}, {"role": "user", "content": answer})), say


def _decided(who: Plan, knobs: Knobs, state: State, act: Act, code: Do,
             reply: Reply) -> tuple[Say, int, tuple[int, ...], int]:
    """(what the user says, slots told, status of the goals, times insisted)."""
    status, current, insisted = list(state.status), first_open(state.status), state.insisted
    hold = tuple(status)
    if reply is Reply.LEAVE:
        return Say.LEFT, 0, hold, insisted
    if code is Do.TRANSFER:
        return Say.TRANSFERRED, 0, hold, insisted
    if reply is Reply.WITHHOLD:
        return Say.WITHHELD, 0, hold, insisted
    if reply is Reply.CLARIFY:
        return Say.UNCLEAR, 0, hold, insisted
    if reply is Reply.VOLUNTEER:
        left = who.known & ~state.told & (IDENTITY | (goal_mask(current) if current is not None else 0))
        return Say.VOLUNTEER, left & -left, hold, insisted
    if code is Do.ASK:
        asked = int(act.mask)
        if int(knobs.reveal_goals) and current is not None and asked >> (FIRST + 3 * current + DETAILS) & 1:
            asked |= sum(1 << (FIRST + 3 * place + DETAILS) for place in range(len(status)))
        return Say.GIVE, asked & who.known, hold, insisted
    if code is Do.PROPOSE and current is not None:
        goal = min(max(int(act.values[0]), 0), len(status) - 1)
        if act.values[1] < 0 and int(knobs.correct_on_mismatch):
            return Say.CORRECT, goal_mask(goal) & who.known, hold, insisted
        if act.values[1] < 0:
            return Say.NO, 0, hold, insisted
        status[goal] = max(status[goal], AGREED)
        return Say.YES, 0, tuple(status), insisted
    if current is None:
        return Say.STOP, 0, hold, insisted
    done = status[current] in (AGREED, CALLED) or not who.goals[current].tool
    question = current > 0 and not who.goals[current].tool
    if code is Do.NEXT and done or code is Do.OTHER and (status[current] == CALLED or question):
        status = [SETTLED if each == CALLED else each for each in status]
        status[current] = SETTLED
    elif code is Do.OTHER:
        return Say.GO_ON, 0, hold, insisted
    elif insisted < int(knobs.insist_n):
        return Say.INSIST, 0, hold, insisted + 1
    else:
        status[current] = REFUSED
    return (Say.STOP if first_open(status) is None else Say.CHANGE), 0, tuple(status), 0


def off(knobs: Any) -> set[str]:
    """Components of the basis that shall not count."""
    return {name for name, on in (("DB", knobs.basis_db), ("COMMUNICATE", knobs.basis_communicate)) if not int(on)}


def ended(domain: Domain, here: Row, knobs: Any, state: State, end: StopReason, wanted: Changed | None,
          verdicts: Sequence[bool] | None = None) -> tuple[State, float]:
    """The last state, with its outcome where the talk was ended as it should, and the reward. `wanted` is as of `gold`,
    `verdicts` as of `evaluate`."""
    state = dataclasses.replace(state, done=True, stop=stop_code(end))
    if end is not StopReason.COMPLETED:
        return state, 0.0
    outcome = evaluate(domain, here.task, wanted, state.changed, state.calls, state.said, off(knobs), verdicts)
    partial = float(knobs.partial_credit) * _share(domain, here.plan, state)
    return dataclasses.replace(state, outcome=outcome), max(outcome.reward, partial)


def _share(domain: Domain, who: Plan, state: State) -> float:
    """The share of the wanted writes that were called; 0 where none is wanted."""
    wanted = [{"name": goal.tool, "arguments": goal.arguments} for goal in who.goals if goal.tool]
    return sum(any(equal_call(domain, each, *made) for made in state.calls) for each in wanted) / max(len(wanted), 1)


def time_step(state: State, say: Say, reward: float) -> TimeStep:
    solved = state.outcome is not None and state.outcome.reward == 1.0
    return TimeStep(code=np.int32(say), disclosed=np.int32(state.tells), reward=np.float32(reward),
                    discount=np.float32(not state.done), done=np.bool_(state.done), success=np.bool_(solved),
                    stop=np.int32(state.stop), tool=np.bool_(say in (Say.TOOL, Say.MALFORMED)))
