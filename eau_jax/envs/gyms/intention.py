"""Intention: a user asks for something and leaves details out; the agent asks for them, best one at a time.

The array simulator. Slot k of a task is its k-th missing detail; sets of slots travel as bit masks. Rewards follow
UserRL's IntentionGym (Qian et al. 2025): for M newly covered details,

    w(highest importance in M) - multi_penalty * (|M| - 1), floored at 0, minus step_penalty, clipped to 0..1

and the task ends when all details are covered, when the agent finishes (reward 0), or at the turn limit.
"""

from importlib import resources
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import Act, Env, Floor, Reply, TimeStep
from eau_jax.core.types import Array, StopReason, Task
from eau_jax.envs.gyms import intention_text as text
from eau_jax.envs.ending import absorb, first, stop_code, total_return
from eau_jax.envs.gyms.intention_tasks import SLOTS, ceiling, check
from eau_jax.envs.gyms.intention_text import Do, Say
from eau_jax.envs.message import with_reward

FEATURES = (
    "ask",         # 1: the message asks for at least one of the task's details
    "vague",       # 1: it asks for nothing in particular
    "off_topic",   # 1: it asks for something that is not among the details
    "solve",       # 1: it tries to solve the task already
    "malformed",   # 1: it cannot be read, or uses an act that this world does not offer
    "asked",       # details asked for
    "excess",      # details asked for beyond env.ask_cap
    "fresh",       # details asked for that were not yet covered
    "known",       # details asked for that were already covered
    "importance",  # highest importance among the fresh ones, 0 where there are none
    "turn",        # number of this message, from 1
    "remaining",   # details not covered before this message
    "vague_run",   # vague or off-topic messages in a row, this one included
    "repeat_run",  # messages in a row that asked only for known details, this one included
    "invalid",     # malformed messages so far, this one included
    "patience",    # env.patience less the useless messages so far, this one included
)


@struct.dataclass
class Knobs:
    """Defaults are upstream's rewards and endings, except for `ask_cap` and `patience`: there a message may ask for
    everything at once, and the user answers questions out of a fixed list for as long as there are turns.

    Upstream's evaluator alone ends at the first unreadable message.
    """

    max_turns: int = knob(16, 1, 64, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "unreadable agent messages after which the task ends as PARSE_ERROR")
    patience: int = knob(6, 1, 64, "useless messages the user bears before the default rules leave; upstream: 64")
    ask_cap: int = knob(2, 1, 16, "details one message may ask for before the default rules call for less; upstream: 16")
    disclose_cap: int = knob(16, 1, 16, "details the user tells in one reply")
    weight_1: float = knob(0.4, 0.0, 1.0, "reward for a detail of importance 1", reward=True)
    weight_2: float = knob(0.7, 0.0, 1.0, "reward for a detail of importance 2", reward=True)
    weight_3: float = knob(1.0, 0.0, 1.0, "reward for a detail of importance 3", reward=True)
    multi_penalty: float = knob(0.2, 0.0, 1.0, "reward lost for each further uncovered detail asked for at once",
                                reward=True)
    step_penalty: float = knob(0.0, 0.0, 1.0, "reward lost in each message, before clipping at 0", reward=True)
    invalid_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for an unreadable message, after clipping", reward=True)
    repeat_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for asking only for known details, after clipping", reward=True)
    finish_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for each uncovered detail when the agent finishes", reward=True)
    done_bonus: float = knob(0.0, 0.0, 1.0, "reward for covering the last detail", reward=True)
    show_reward_in_text: int = knob(0, 0, 1, "1: the reply states the reward, as in upstream's training")


@struct.dataclass(kw_only=True)
class Table:
    slots: Array        # [tasks, 3] i32: mask of the slots of importance 1, 2 and 3


@struct.dataclass(kw_only=True)
class State:
    task: Array         # [] i32: row of the table
    turn: Array         # [] i32: messages so far
    done: Array         # [] bool
    stop: Array         # [] i32, as in TimeStep
    covered: Array      # [] i32: mask of the slots told so far
    useless: Array      # [] i32: messages so far that could not teach the agent anything
    vague_run: Array    # [] i32
    repeat_run: Array   # [] i32
    invalid: Array      # [] i32: unreadable messages so far


class _Seen(NamedTuple):
    """What the act means in this state; counts include this message."""

    slots: Array        # [3] i32: mask of the task's slots by importance
    remaining: Array    # [] i32: mask of the slots not covered before
    fresh: Array        # [] i32: mask of the slots asked for and not covered
    known: Array        # [] i32: mask of the slots asked for and covered
    repeat: Array       # [] bool
    vague_run: Array    # [] i32
    repeat_run: Array   # [] i32
    invalid: Array      # [] i32
    useless: Array      # [] i32


def table(tasks: tuple[Task, ...]) -> Table:
    """Masks of the slots of each importance, one row a task.

    Raises:
      ValueError: for a task that is not an intention record; it names the task and the field.
    """
    rows = np.zeros((len(tasks), 3), np.int32)
    for row, task in zip(rows, tasks, strict=True):
        try:
            check(task.data)
        except ValueError as error:
            raise ValueError(f"task {task.id!r}, field {error}") from None
        for slot, detail in enumerate(task.data["missing_details"]):
            row[int(detail["importance"]) - 1] |= 1 << slot
    return Table(slots=rows)


def reset(table: Table, knobs: Knobs, index: Array, key: Array) -> State:
    """The state before the first message about task `index`. Nothing is drawn: a task has one user."""
    zero = jnp.int32(0)
    return State(task=jnp.asarray(index, jnp.int32), turn=zero, done=jnp.bool_(False), stop=zero, covered=zero,
                 useless=zero, vague_run=zero, repeat_run=zero, invalid=zero)


def observe(table: Table, knobs: Knobs, state: State, act: Act) -> Array:
    """The features that the rules read, in the order of FEATURES.  -> i32[F]"""
    seen, count = _look(table, state, act), jax.lax.population_count
    asked = count(seen.fresh | seen.known)
    importance = first(*((seen.fresh & seen.slots[level] != 0, level + 1) for level in (2, 1, 0)), otherwise=0)
    values = dict(
        ask=asked > 0, vague=act.code == Do.VAGUE, off_topic=act.code == Do.OFF_TOPIC, solve=act.code == Do.SOLVE,
        malformed=_unreadable(act), asked=asked, excess=jnp.maximum(asked - knobs.ask_cap, 0), fresh=count(seen.fresh),
        known=count(seen.known), importance=importance, turn=state.turn + 1, remaining=count(seen.remaining),
        vague_run=seen.vague_run, repeat_run=seen.repeat_run, invalid=seen.invalid,
        patience=knobs.patience - seen.useless)
    return jnp.stack([jnp.asarray(values[name], jnp.int32) for name in FEATURES])


def step(table: Table, knobs: Knobs, state: State, act: Act, reply: Array, key: Array) -> tuple[State, TimeStep]:
    """One message and the user's reply to it. Nothing is drawn."""
    seen = _look(table, state, act)
    finish, malformed, leave = act.code == Do.FINISH, _unreadable(act), reply == Reply.LEAVE
    answer = (reply == Reply.ANSWER) & ~finish & ~malformed
    volunteer = (reply == Reply.VOLUNTEER) & ~finish & ~malformed
    told = jnp.where(answer, _lowest(seen.fresh, knobs.disclose_cap), 0)                # newly covered on request
    offered = jnp.where(volunteer, seen.remaining & -seen.remaining, 0)                 # newly covered unasked
    covered = state.covered | told | offered
    complete = (seen.remaining & ~covered) == 0
    turn = state.turn + 1
    stop = first((complete | finish, stop_code(StopReason.COMPLETED)),
                 (seen.invalid >= knobs.max_invalid, stop_code(StopReason.PARSE_ERROR)),
                 (leave, stop_code(StopReason.USER_LEFT)),
                 (turn >= knobs.max_turns, stop_code(StopReason.MAX_TURNS)), otherwise=0)
    new = State(task=state.task, turn=turn, done=stop != 0, stop=stop, covered=covered, useless=seen.useless,
                vague_run=seen.vague_run, repeat_run=seen.repeat_run, invalid=seen.invalid)
    code = _say(seen, act, reply, told, offered, complete)
    time_step = TimeStep(
        code=with_reward(code, knobs.show_reward_in_text), disclosed=told | offered | jnp.where(answer, seen.known, 0),
        reward=_reward(knobs, seen, act, told, complete), discount=jnp.where(stop != 0, 0.0, 1.0).astype(jnp.float32),
        done=stop != 0, success=complete, stop=stop, tool=jnp.bool_(False))
    return absorb(state, new, time_step)


def _look(table: Table, state: State, act: Act) -> _Seen:
    slots = jnp.asarray(table.slots)[state.task]  # [3]
    everything = slots[0] | slots[1] | slots[2]
    asked = jnp.where(act.code == Do.ASK, act.mask & everything, 0)
    fresh, known = asked & ~state.covered, asked & state.covered
    repeat = (fresh == 0) & (known != 0)
    vague = (act.code == Do.VAGUE) | (act.code == Do.OFF_TOPIC) | ((act.code == Do.ASK) & (asked == 0))
    useless = (fresh == 0) & (act.code != Do.FINISH)
    return _Seen(slots=slots, remaining=everything & ~state.covered, fresh=fresh, known=known, repeat=repeat,
                 vague_run=jnp.where(vague, state.vague_run + 1, 0),
                 repeat_run=jnp.where(repeat, state.repeat_run + 1, 0),
                 invalid=state.invalid + _unreadable(act), useless=state.useless + useless)


def _unreadable(act: Act) -> Array:
    return (act.code == Do.MALFORMED) | (act.code == Do.NOT_OFFERED)


def _lowest(mask: Array, count: Array) -> Array:
    """The first `count` slots of a mask."""
    kept = jnp.zeros_like(mask)
    for taken in range(SLOTS):
        kept = kept | jnp.where(taken < count, mask & -mask, 0)
        mask = mask & (mask - 1)
    return kept


def _reward(knobs: Knobs, seen: _Seen, act: Act, told: Array, complete: Array) -> Array:
    """Upstream's formula. The penalty is on what was asked for, so a disclosure cap makes asking for all no better."""
    weight = jnp.float32(0)
    for level, value in enumerate((knobs.weight_1, knobs.weight_2, knobs.weight_3)):
        weight = jnp.where(told & seen.slots[level] != 0, value, weight)
    extra = jax.lax.population_count(seen.fresh) - 1
    gain = jnp.where(told != 0, jnp.maximum(weight - knobs.multi_penalty * extra, 0.0), 0.0)
    left = jax.lax.population_count(seen.remaining)
    return (jnp.clip(gain - knobs.step_penalty, 0.0, 1.0)
            + jnp.where(complete, knobs.done_bonus, 0.0)
            - jnp.where(_unreadable(act), knobs.invalid_penalty, 0.0)
            - jnp.where(seen.repeat, knobs.repeat_penalty, 0.0)
            - jnp.where(act.code == Do.FINISH, knobs.finish_penalty * left, 0.0)).astype(jnp.float32)


def _say(seen: _Seen, act: Act, reply: Array, told: Array, offered: Array, complete: Array) -> Array:
    asked, several = seen.fresh | seen.known, jax.lax.population_count(seen.fresh | seen.known) > 1
    return first(
        (act.code == Do.FINISH, Say.ENDED),
        (act.code == Do.MALFORMED, Say.MALFORMED),
        (act.code == Do.NOT_OFFERED, Say.NOT_OFFERED),
        (reply == Reply.LEAVE, Say.LEFT),
        (offered != 0, Say.VOLUNTEERED),
        ((reply == Reply.CLARIFY) & several, Say.ONE_AT_A_TIME),
        (reply == Reply.CLARIFY, Say.TOO_VAGUE),
        ((reply == Reply.ANSWER) & (told != 0) & complete, Say.TOLD_ALL),
        ((reply == Reply.ANSWER) & (asked != 0), Say.TOLD),
        (seen.repeat, Say.ALREADY),
        (asked != 0, Say.REFUSED),
        (act.code == Do.SOLVE, Say.NOT_YET),
        (act.code == Do.VAGUE, Say.TOO_VAGUE),
        otherwise=Say.NO_PREFERENCE)


def score(task: Task, state: State, total: float) -> float:
    """The return as a share of the task's ceiling under upstream's rewards, clipped to 0..1."""
    return float(np.clip(total / ceiling(task), 0.0, 1.0))


intention = Env(
    name="intention", knobs=Knobs(), features=FEATURES,
    rules=resources.files("eau_jax.envs").joinpath("rules/intention.toml").read_text(encoding="utf-8"),
    table=table, reset=reset, observe=observe, step=step, prompt=text.prompt, parse=text.parse, render=text.render,
    disclosed=text.disclosed, secrets=text.secrets, score=score, metric=total_return, expert=text.expert,
    novice=text.novice, question=text.question, floor=Floor(idle=0.01, echo=0.06, everything=0.19, guesses=0.58))
