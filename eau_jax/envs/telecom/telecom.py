"""Telecom: a customer whose phone does not work, an agent with a company's tools, and a phone that only the user can reach.

The array simulator of tau2-bench's telecom domain (Barres et al. 2025): dual control, so some faults are mended by the
agent's tool calls and some by what the user does on his phone when he is asked to. One step is one agent message: a tool
call, answered with the tool's output, or words, answered by the user. The user answers questions, carries out one phone
action a message and reports what the phone shows, tests whether his problem is solved, and ends the talk when it is, or
when he is told that he is being transferred. Reward comes at the end: 1 where every assertion of the task holds (and,
for what cannot be mended, the transfer tool was called), else 0; an end that the user did not choose earns 0.

`telecom_solo` is the same world without a user: the agent has both sets of tools and works on a ticket.
"""

import functools
from importlib import resources
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax.core.part import Act, Env, Floor, Reply, TimeStep
from eau_jax.core.types import Array, StopReason, Task
from eau_jax.envs.ending import absorb, first, stop_code
from eau_jax.envs.message import with_reward
from eau_jax.envs.tau2.message import ALONE
from eau_jax.envs.tau2.task_check import check_solo
from eau_jax.envs.telecom import agents, text
from eau_jax.envs.telecom.codes import FIRST_PHONE, LAST_PHONE, WRITES, Do
from eau_jax.envs.telecom.goal import TEST, Goal, content, faults, met
from eau_jax.envs.telecom.parse import FACTS, LOCATION, REFUEL, SEVERAL, parse, parse_solo
from eau_jax.envs.telecom.start import HARD, arrays, persona
from eau_jax.envs.telecom.state import FEATURES, Knobs, SoloKnobs, State, Table
from eau_jax.envs.telecom.task_check import check
from eau_jax.envs.telecom.text import Phase, Say
from eau_jax.envs.telecom.tools import World, agent_tool, is_any, phone_tool

class _Did(NamedTuple):
    """What came of the message."""

    answer: Array       # [] bool: the user does as asked
    declined: Array     # [] bool: he will not pay
    performs: Array     # [] bool: the phone action is carried out
    acted: Array        # [] bool: and changed or showed something
    failed: Array       # [] bool: the tool call failed
    satisfied: Array    # [] bool: he finds his problem solved
    handed: Array       # [] bool: he is transferred
    annoyed: Array      # [] bool: it was in vain again
    told: Array         # [] i32: mask of facts told because they were asked for
    offered: Array      # [] i32: mask of facts told unasked


class _Seen(NamedTuple):
    """What the act means in this state; counts include this message."""

    tool: Array         # [] bool: a call of an agent's tool, or of none that exists
    request: Array      # [] bool: a phone action
    several: Array      # [] bool
    puzzled: Array      # [] bool
    asked: Array        # [] i32: mask of facts
    malformed: Array    # [] bool
    repeat: Array       # [] bool
    repeat_run: Array   # [] i32
    invalid: Array      # [] i32
    useless: Array      # [] i32


def table(tasks: tuple[Task, ...]) -> Table:
    """Start states, goals and what is fixed, one row a task.

    Raises:
      ValueError: for a task that is not a telecom record; it names the task and the field.
    """
    for task in tasks:
        try:
            check(task.data)
        except ValueError as error:
            raise ValueError(f"task {task.id!r}, field {error}") from None
    fixed, world, goal = arrays([task.data for task in tasks])
    return Table(fixed=fixed, start=world, goal=goal, faults=faults(np, fixed, world, goal.intent).astype(np.int32),
                 hard=np.array([persona(task.data) == HARD for task in tasks]))


def reset(table: Table, knobs: Knobs, index: Array, key: Array) -> State:
    """The state before the first message about task `index`. Nothing is drawn: a task has one user."""
    zero, index = jnp.int32(0), jnp.asarray(index, jnp.int32)
    return State(task=index, turn=zero, done=jnp.bool_(False), stop=zero, world=_row(table.start, index),
                 phase=jnp.int32(Phase.WAITING), told=zero, tries=zero, tools=zero, phone=zero, last_code=jnp.int32(-1),
                 last_values=jnp.zeros(4, jnp.float32), repeat_run=zero, invalid=zero, errors=zero, useless=zero,
                 solved=jnp.bool_(False))


def observe(table: Table, knobs: Knobs, state: State, act: Act) -> Array:
    """The features that the rules read, in the order of FEATURES.  -> i32[F]"""
    seen, count = _look(table, knobs, state, act), jax.lax.population_count
    values = dict(
        request=seen.request, several=seen.several, puzzled=seen.puzzled, ask=count(seen.asked),
        fresh=count(seen.asked & ~state.told), question=act.code == Do.ASK_SOLVED, announce=act.code == Do.ANNOUNCE,
        chat=act.code == Do.CHAT, tool=seen.tool, malformed=seen.malformed, turn=state.turn + 1, tries=state.tries,
        tries_left=knobs.max_tries - state.tries, repeat_run=seen.repeat_run, invalid=seen.invalid,
        patience=knobs.patience - seen.useless)
    return jnp.stack([jnp.asarray(values[name], jnp.int32) for name in FEATURES])


def _step(solo: bool, table: Table, knobs: Knobs, state: State, act: Act, reply: Array,
          key: Array) -> tuple[State, TimeStep]:
    """One message and the reply to it. Nothing is drawn.

    Of the user's decisions, ANSWER does or tells what was asked; WITHHOLD and CLARIFY do nothing; VOLUNTEER tells the first
    fact that was not told; LEAVE ends the talk. A tool call does its work whatever the user decides.
    """
    reply, code = jnp.asarray(reply, jnp.int32), jnp.asarray(act.code, jnp.int32)
    seen = _look(table, knobs, state, act)
    fixed, goal = _row(table.fixed, state.task), _row(table.goal, state.task)
    a, b, c = (act.values[k].astype(jnp.int32) for k in range(3))
    answer = (reply == Reply.ANSWER) | solo
    declined = (code == Do.MAKE_PAYMENT) & (knobs.pay_ok == 0) & (not solo)
    performs = seen.request & answer & ~declined

    def use(world: World) -> tuple[World, Array, Array]:
        world, failed = agent_tool(jnp, fixed, world, code, a, act.values[3])
        world, acted = phone_tool(jnp, fixed, world, jnp.where(performs, code, 0), a, b, c)
        return world, failed | (code == Do.BAD_CALL), acted

    world, failed, acted = _once(knobs, use, state.world, (jnp.bool_(False), jnp.bool_(False)))
    called = seen.tool & ~failed
    tools = state.tools | jnp.where(called, 1 << code, 0)
    phone = state.phone | jnp.where(performs, 1 << jnp.clip(code - FIRST_PHONE, 0, 31), 0)
    transferred = tools >> Do.TRANSFER_TO_HUMAN_AGENTS & 1 == 1
    judge = lambda world: (world, content(jnp, fixed, world, goal.intent), met(jnp, fixed, world, goal, transferred),
                           faults(jnp, fixed, world, goal.intent))
    world, happy, holds, left = _once(knobs, judge, world, (jnp.bool_(False), jnp.bool_(False), jnp.int32(0)))
    happy = happy & (not solo)
    test = first(*((goal.intent == intent, own) for intent, own in TEST.items()), otherwise=0)
    tests = performs & ((knobs.self_check == 2) | ((knobs.self_check == 1) & (code == test)))
    satisfied = (tests | ((code == Do.ASK_SOLVED) & answer)) & happy
    handed = (code == Do.ANNOUNCE) & (not solo)
    in_vain = performs & acted & is_any(code, WRITES) & ~happy
    tries = state.tries + in_vain
    told, offered = _telling(knobs, state, seen, reply, solo)
    turn, errors, leave = state.turn + 1, state.errors + failed, reply == Reply.LEAVE
    complete = satisfied | handed | ((code == Do.FINISH) & solo)
    solved = complete & holds
    stop = first((complete, stop_code(StopReason.COMPLETED)),
                 (seen.invalid >= knobs.max_invalid, stop_code(StopReason.PARSE_ERROR)),
                 (errors >= knobs.max_errors, stop_code(StopReason.TOOL_ERROR)),
                 (leave, stop_code(StopReason.USER_LEFT)),
                 (turn >= knobs.max_turns, stop_code(StopReason.MAX_TURNS)), otherwise=0)
    annoyed = in_vain & (tries >= knobs.frustration_after) & (not solo)
    phase = first((satisfied, Phase.SATISFIED), (handed, Phase.HANDED_OVER), (leave, Phase.LEFT),
                  (annoyed, Phase.FRUSTRATED), otherwise=state.phase)
    new = State(task=state.task, turn=turn, done=stop != 0, stop=stop, world=world, phase=phase,
                told=state.told | told | offered, tries=tries, tools=tools, phone=phone, last_code=code,
                last_values=act.values, repeat_run=seen.repeat_run, invalid=seen.invalid, errors=errors,
                useless=seen.useless, solved=solved)
    did = _Did(answer=answer, declined=declined, performs=performs, acted=acted, failed=failed, satisfied=satisfied,
               handed=handed, annoyed=annoyed & (knobs.self_check == 2), told=told, offered=offered)
    time_step = TimeStep(
        code=with_reward(_say(solo, seen, act, reply, did), knobs.show_reward_in_text), disclosed=told | offered,
        reward=_reward(table, knobs, state, new, seen, failed, left, goal), done=stop != 0, success=solved, stop=stop,
        discount=jnp.where(stop != 0, 0.0, 1.0).astype(jnp.float32), tool=seen.tool | (seen.request & solo))
    return absorb(state, new, time_step)


def _once(knobs: Knobs, does: Any, world: World, empty: tuple) -> Any:
    """`does(world)`, computed once. XLA would otherwise repeat its arithmetic in each output that depends on it, and the
    step would take twice as long: a loop, of one round, is what it does not look into.

    Args:
      does: world -> (world, ...); what follows the world has the types of `empty`.
    """
    return jax.lax.fori_loop(0, jnp.minimum(knobs.max_turns, 1), lambda _, last: does(last[0]), (world, *empty))


def _look(table: Table, knobs: Knobs, state: State, act: Act) -> _Seen:
    code = act.code
    request = (code >= FIRST_PHONE) & (code <= LAST_PHONE)
    tool = ((code > 0) & (code < FIRST_PHONE)) | (code == Do.BAD_CALL)
    several = request & (act.flags & SEVERAL != 0) & (knobs.one_action != 0)
    hard = jnp.asarray(table.hard)[state.task] & (knobs.hard_clarifies != 0)
    done_before = state.phone >> jnp.clip(code - FIRST_PHONE, 0, 31) & 1 == 1
    asked = jnp.where(code == Do.ASK, act.mask & FACTS, 0)
    repeat = (code == state.last_code) & (act.values == state.last_values).all()
    malformed = (code == Do.MALFORMED) | (code > Do.FINISH) | (code < 0)
    useless = (malformed | several | (code == Do.CHAT) | (code == Do.BAD_CALL) | (repeat & ~request)
               | ((code == Do.ASK) & (asked & ~state.told == 0)))
    return _Seen(tool=tool, request=request, several=several, puzzled=request & hard & ~done_before & ~repeat, asked=asked,
                 malformed=malformed, repeat=repeat, repeat_run=jnp.where(repeat, state.repeat_run + 1, 0),
                 invalid=state.invalid + malformed, useless=state.useless + useless)


def _telling(knobs: Knobs, state: State, seen: _Seen, reply: Array, solo: bool) -> tuple[Array, Array]:
    """Masks of the facts told because they were asked for, and unasked."""
    if solo:
        return jnp.int32(0), jnp.int32(0)
    known = jnp.where(knobs.refuel_ok != 0, FACTS, FACTS & ~REFUEL)
    told = jnp.where(reply == Reply.ANSWER, seen.asked & known, 0)
    told = jnp.where((told != 0) & (knobs.volunteer_location != 0), told | LOCATION, told)
    left = known & ~state.told
    offers = (reply == Reply.VOLUNTEER) & ~seen.tool & ~seen.malformed
    return told, jnp.where(offers, left & -left, 0)


def _say(solo: bool, seen: _Seen, act: Act, reply: Array, did: _Did) -> Array:
    clarify = reply == Reply.CLARIFY
    return first(
        (seen.malformed, Say.MALFORMED), (did.satisfied, Say.SOLVED), (did.handed, Say.TRANSFERRED),
        ((act.code == Do.FINISH) & solo, Say.ENDED), (reply == Reply.LEAVE, Say.LEFT),
        (act.code == Do.BAD_CALL, Say.BAD_CALL), (seen.tool & did.failed, Say.FAILED), (seen.tool, Say.OUTPUT),
        (did.offered != 0, Say.VOLUNTEERED), (clarify & seen.several, Say.ONE_AT_A_TIME),
        (clarify & seen.puzzled, Say.PUZZLED), (clarify & (not solo), Say.UNCLEAR),
        (~did.answer | did.declined, Say.REFUSED), (did.performs & ~did.acted, Say.UNCHANGED),
        (did.performs & did.annoyed, Say.ANNOYED), (did.performs, Say.REPORT),
        (did.told != 0, Say.TOLD), (seen.asked != 0, Say.REFUSED), (act.code == Do.ASK_SOLVED, Say.NOT_SOLVED),
        otherwise=Say.WAITING)


def _reward(table: Table, knobs: Knobs, state: State, new: State, seen: _Seen, failed: Array, left: Array,
            goal: Goal) -> Array:
    count = jax.lax.population_count
    before = jnp.asarray(table.faults)[state.task]
    mended = count(before & ~left) / jnp.maximum(count(before), 1)
    handed = (new.tools >> Do.TRANSFER_TO_HUMAN_AGENTS & 1).astype(jnp.float32)
    partial = knobs.partial_credit * jnp.where(goal.transfer, handed, mended)
    end = jnp.where(new.stop != 0, jnp.where(new.solved, 1.0, partial), 0.0)
    wrong = seen.malformed | (failed & seen.tool)
    return (end - knobs.step_penalty - jnp.where(wrong, knobs.invalid_penalty, 0.0)).astype(jnp.float32)


def _row(tree: Any, index: Array) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], tree)


def score(task: Task, state: State, total: float) -> float:
    """1 where the task is solved, else 0, whatever the knobs pay."""
    return float(state.solved)


step = functools.partial(_step, False)
telecom = Env(
    name="telecom", knobs=Knobs(), features=FEATURES,
    rules=resources.files("eau_jax.envs").joinpath("rules/telecom.toml").read_text(encoding="utf-8"),
    table=table, reset=reset, observe=observe, step=step, prompt=text.prompt, parse=parse, render=text.render,
    disclosed=text.disclosed, secrets=text.secrets, score=score, metric=score, expert=agents.expert, novice=agents.novice,
    floor=Floor(idle=0.30),   # a transfer solves what cannot be mended: 12 of the 40 test tasks
    basis=lambda task, knobs, judged: " x ".join(task.data["evaluation_criteria"]["reward_basis"]))


def _with_user(knobs: SoloKnobs) -> Knobs:
    """All knobs; those that are about a user stay at their defaults and mean nothing."""
    return Knobs().replace(**vars(knobs))


def _solo_table(tasks: tuple[Task, ...]) -> Table:
    made = table(tasks)
    for task in tasks:
        try:
            check_solo(task.data)
        except ValueError as error:
            raise ValueError(f"task {task.id!r}, field {error}; it has no solo mode") from None
    return made


telecom_solo = telecom._replace(
    name="telecom_solo", knobs=SoloKnobs(), rules=ALONE, table=_solo_table,
    observe=lambda table, knobs, state, act: observe(table, _with_user(knobs), state, act),
    step=lambda table, knobs, state, act, reply, key: _step(True, table, _with_user(knobs), state, act, reply, key),
    prompt=text.prompt_solo, parse=parse_solo, expert=agents.expert_solo, novice=agents.novice_solo)
