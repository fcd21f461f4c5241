"""ColBench backend programming: a user wants a Python function and leaves out what it must do exactly.

The array simulator. Slot k of a task is the k-th fact that its user knows. The agent asks, then submits a program; the
executor runs it between parsing and stepping, so the share of tests that it passes arrives in the act. Rules follow
ColBench (Zhou et al. 2025, arXiv:2503.15478): at most ten messages, replies of at most two facts and 400 characters, the
submission ends the task, and Pass is the share of tests, Success all of them.
"""

from importlib import resources
from typing import Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import Act, Env, Floor, Reply, TimeStep
from eau_jax.core.types import Array, StopReason, Task
from eau_jax.envs.colbench import text
from eau_jax.envs.colbench.tasks import SLOTS, Execute, check, facts
from eau_jax.envs.colbench.text import Do, Say
from eau_jax.envs.ending import absorb, first, stop_code
from eau_jax.envs.message import with_reward

FEATURES = (
    "ask",           # 1: the message asks for at least one fact
    "unknown",       # 1: it asks for something the user knows nothing of
    "code_request",  # 1: it asks the user to write the program
    "draft",         # 1: it shows a program without submitting it
    "check",         # 1: it guesses one fact
    "answer",        # 1: it submits a program
    "malformed",     # 1: it cannot be read, or uses an act that this world does not offer
    "asked",         # facts asked for
    "fresh",         # facts asked for that were not yet told
    "untold",        # facts not told before this message
    "turn",          # number of this message, from 1
    "useless_run",   # messages in a row that asked for no fresh fact, this one included
    "due",           # 1: useless_run has reached env.volunteer_after
    "invalid",       # malformed messages so far, this one included
    "patience",      # env.patience less the useless messages so far, this one included
)


@struct.dataclass
class Knobs:
    """Upstream rewards nothing during the talk and trains on `mix` 0 (all tests or nothing)."""

    max_turns: int = knob(10, 1, 64, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "unreadable agent messages after which the task ends as PARSE_ERROR")
    patience: int = knob(64, 1, 64, "useless messages the user bears; the default rules leave when none is left")
    disclose_cap: int = knob(2, 1, 8, "facts the user tells in one reply")
    char_limit: int = knob(400, 20, 400, "characters of facts in one reply; the first fact is always told")
    cue_threshold: float = knob(0.5, 0.0, 4.0, "least score of a question that the user takes to ask for a fact")
    unknown_policy: int = knob(0, 0, 1, "a question that the user knows nothing of: 0 says so, 1 tells another fact instead")
    volunteer_after: int = knob(64, 1, 64, "useless messages in a row after which the default rules volunteer a fact")
    draft_feedback: int = knob(0, 0, 1, "1: a draft is compared with the facts, one that it misses is named")
    mix: float = knob(0.5, 0.0, 1.0, "reward of a submission: mix x share of tests + (1 - mix) x [all pass]", reward=True)
    info_bonus: float = knob(0.0, 0.0, 1.0, "reward for each newly told fact", reward=True)
    premature_penalty: float = knob(0.0, 0.0, 1.0, "reward lost in submitting, times the share of importance not told",
                                    reward=True)
    no_answer_penalty: float = knob(0.0, 0.0, 1.0, "reward lost where the task ends without a submission", reward=True)
    invalid_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for an unreadable message", reward=True)
    show_reward_in_text: int = knob(0, 0, 1, "1: the reply states the reward")


@struct.dataclass(kw_only=True)
class Table:
    everything: Array   # [tasks] i32: mask of the task's facts
    importance: Array   # [tasks, SLOTS] f32, sum 1 over a task's facts
    length: Array       # [tasks, SLOTS] i32: characters of each fact's sentence


@struct.dataclass(kw_only=True)
class State:
    task: Array         # [] i32: row of the table
    turn: Array         # [] i32: messages so far
    done: Array         # [] bool
    stop: Array         # [] i32, as in TimeStep
    final: Array        # [] bool: the next message is the last that the turn limit allows
    told: Array         # [] i32: mask of the facts told so far
    passed: Array       # [] f32: share of tests that the submission passes
    useless: Array      # [] i32: messages so far that could not teach the agent anything
    useless_run: Array  # [] i32
    invalid: Array      # [] i32: unreadable messages so far


class _Seen(NamedTuple):
    """What the act means in this state; counts include this message."""

    code: Array         # [] i32: the act code, with unclear questions as ASK_UNKNOWN
    everything: Array   # [] i32
    asked: Array        # [] i32: mask
    fresh: Array        # [] i32: mask of what is asked for and not told
    untold: Array       # [] i32: mask
    unreadable: Array   # [] bool
    invalid: Array      # [] i32
    useless: Array      # [] i32
    useless_run: Array  # [] i32


def table(tasks: tuple[Task, ...]) -> Table:
    """Facts as masks, weights and lengths, one row a task.

    Raises:
      ValueError: for a task that is not a ColBench record; it names the task and the field.
    """
    everything = np.zeros(len(tasks), np.int32)
    importance, length = np.zeros((len(tasks), SLOTS), np.float32), np.zeros((len(tasks), SLOTS), np.int32)
    for row, task in enumerate(tasks):
        try:
            check(task.data)
        except ValueError as error:
            raise ValueError(f"task {task.id!r}, field {error}") from None
        known = facts(task)
        everything[row] = 2 ** len(known) - 1
        weights = np.array([fact.importance for fact in known])
        importance[row, :len(known)] = weights / max(weights.sum(), 1e-9)
        length[row, :len(known)] = [len(fact.answer) + 1 for fact in known]
    return Table(everything=everything, importance=importance, length=length)


def reset(table: Table, knobs: Knobs, index: Array, key: Array) -> State:
    """The state before the first message about task `index`. Nothing is drawn: a task has one user."""
    zero, no = jnp.int32(0), jnp.bool_(False)
    return State(task=jnp.asarray(index, jnp.int32), turn=zero, done=no, stop=zero, final=knobs.max_turns <= zero + 1,
                 told=zero, passed=jnp.float32(0), useless=zero, useless_run=zero, invalid=zero)


def observe(table: Table, knobs: Knobs, state: State, act: Act) -> Array:
    """The features that the rules read, in the order of FEATURES.  -> i32[F]"""
    seen, count = _look(table, knobs, state, act), jax.lax.population_count
    values = dict(
        ask=seen.asked != 0, unknown=seen.code == Do.ASK_UNKNOWN, code_request=seen.code == Do.ASK_CODE,
        draft=seen.code == Do.DRAFT, check=seen.code == Do.CHECK, answer=seen.code == Do.ANSWER, malformed=seen.unreadable,
        asked=count(seen.asked), fresh=count(seen.fresh), untold=count(seen.untold), turn=state.turn + 1,
        useless_run=seen.useless_run, due=seen.useless_run >= knobs.volunteer_after, invalid=seen.invalid,
        patience=knobs.patience - seen.useless)
    return jnp.stack([jnp.asarray(values[name], jnp.int32) for name in FEATURES])


def step(table: Table, knobs: Knobs, state: State, act: Act, reply: Array, key: Array) -> tuple[State, TimeStep]:
    """One message and the user's reply to it. Nothing is drawn. A submission counts whatever the user decides."""
    seen = _look(table, knobs, state, act)
    answered, finish = seen.code == Do.ANSWER, seen.code == Do.FINISH
    talks = ~answered & ~finish & ~seen.unreadable
    leave = (reply == Reply.LEAVE) & ~answered & ~finish
    volunteer = (reply == Reply.VOLUNTEER) & talks & (seen.untold != 0)
    helped = (reply == Reply.ANSWER) & (seen.code == Do.ASK_UNKNOWN) & (knobs.unknown_policy != 0)
    asked = jnp.where((reply == Reply.ANSWER) & talks, seen.asked, 0)
    wanted = asked | jnp.where(volunteer | helped, seen.untold & -seen.untold, 0)
    told = _said(wanted, seen.untold, jnp.asarray(table.length)[state.task], knobs)
    passed = jnp.where(answered, jnp.clip(act.values[0], 0.0, 1.0), 0.0)
    success, turn = answered & (passed >= 1.0), state.turn + 1
    stop = first((answered | finish, stop_code(StopReason.COMPLETED)),
                 (seen.invalid >= knobs.max_invalid, stop_code(StopReason.PARSE_ERROR)),
                 (leave, stop_code(StopReason.USER_LEFT)),
                 (turn >= knobs.max_turns, stop_code(StopReason.MAX_TURNS)), otherwise=0)
    weight = jnp.asarray(table.importance)[state.task] * ((seen.untold >> jnp.arange(SLOTS, dtype=jnp.int32)) & 1)
    fresh = jax.lax.population_count(told & seen.untold)
    reward = (jnp.where(answered, knobs.mix * passed + (1.0 - knobs.mix) * success, 0.0)
              - jnp.where(answered, knobs.premature_penalty * weight.sum(), 0.0) + knobs.info_bonus * fresh
              - jnp.where((stop != 0) & ~answered, knobs.no_answer_penalty, 0.0)
              - jnp.where(seen.unreadable, knobs.invalid_penalty, 0.0))
    new = State(task=state.task, turn=turn, done=stop != 0, stop=stop, final=turn + 1 >= knobs.max_turns,
                told=state.told | told, passed=passed, useless=seen.useless, useless_run=seen.useless_run,
                invalid=seen.invalid)
    code = _say(knobs, seen, act, reply, told, volunteer, leave)
    time_step = TimeStep(
        code=with_reward(code, knobs.show_reward_in_text), disclosed=told, reward=reward.astype(jnp.float32),
        discount=jnp.where(stop != 0, 0.0, 1.0).astype(jnp.float32), done=stop != 0, success=success, stop=stop,
        tool=jnp.bool_(False))
    return absorb(state, new, time_step)


def _look(table: Table, knobs: Knobs, state: State, act: Act) -> _Seen:
    everything = jnp.asarray(table.everything)[state.task]
    unclear = (act.code == Do.ASK) & ((act.mask & everything == 0) | (act.values[1] < knobs.cue_threshold))
    unclear = unclear | ((act.code == Do.CHECK) & (act.mask & everything == 0))
    code = jnp.where(unclear, jnp.int32(Do.ASK_UNKNOWN), act.code)
    asked = jnp.where((code == Do.ASK) | (code == Do.CHECK), act.mask & everything, 0)
    asked = jnp.where(code == Do.CHECK, asked & -asked, asked)   # a guess is about one fact
    fresh = asked & ~state.told
    useless = (fresh == 0) & (code != Do.FINISH) & (code != Do.ANSWER)
    unreadable = (code == Do.MALFORMED) | (code == Do.NOT_OFFERED)
    return _Seen(code=code, everything=everything, asked=asked, fresh=fresh, untold=everything & ~state.told,
                 unreadable=unreadable, invalid=state.invalid + unreadable, useless=state.useless + useless,
                 useless_run=jnp.where(useless, state.useless_run + 1, 0))


def _said(wanted: Array, untold: Array, length: Array, knobs: Knobs) -> Array:
    """The facts of mask `wanted` that fit into one reply: those not told before first, then in order."""
    said, count, used = jnp.zeros_like(wanted), jnp.int32(0), jnp.int32(0)
    for group in (wanted & untold, wanted & ~untold):
        for slot in range(SLOTS):
            fits = (count == 0) | ((count < knobs.disclose_cap) & (used + length[slot] <= knobs.char_limit))
            take = (group >> slot & 1 == 1) & fits
            said, count = said | jnp.where(take, 1 << slot, 0), count + take
            used = used + jnp.where(take, length[slot], 0)
    return said


def _say(knobs: Knobs, seen: _Seen, act: Act, reply: Array, told: Array, volunteer: Array, leave: Array) -> Array:
    answers, check = reply == Reply.ANSWER, seen.code == Do.CHECK
    judged = (seen.code == Do.DRAFT) & answers & (knobs.draft_feedback != 0)
    return first(
        (seen.code == Do.ANSWER, Say.ANSWERED), (seen.code == Do.FINISH, Say.ENDED),
        (seen.code == Do.MALFORMED, Say.MALFORMED), (seen.code == Do.NOT_OFFERED, Say.NOT_OFFERED),
        (leave, Say.LEFT), (volunteer, Say.VOLUNTEERED),
        (check & answers & (act.flags != 0), Say.CONFIRM), (check & answers, Say.CORRECTED),
        (told != 0, Say.FACTS),
        (seen.code == Do.ASK_CODE, Say.WONT_CODE),
        (judged & (seen.everything & ~act.mask == 0), Say.LOOKS_OK), (judged, Say.LOOKS_OFF),
        (seen.code == Do.DRAFT, Say.NO_DRAFTS), (reply == Reply.CLARIFY, Say.BE_SPECIFIC),
        otherwise=Say.DONT_KNOW)


def passed(task: Task, state: State, total: float) -> float:
    """Pass: the share of tests that the submission passes, 0 without one. Upstream's number, and the score."""
    return float(state.passed)


def colbench(execute: Execute, basis: Callable[[], str] = lambda: "share of tests passed") -> Env:
    """The environment with an executor, for example `clients.executor.Executor()`.

    Args:
      execute: (code, reference, calls) -> (share of the calls that agree, number of the outcome); see `tasks.Execute`.
      basis: what a score is made of, for the record of an evaluation; `Executor.basis` says it of that executor.
    """
    return Env(
        name="colbench", knobs=Knobs(), features=FEATURES,
        rules=resources.files("eau_jax.envs").joinpath("rules/colbench.toml").read_text(encoding="utf-8"),
        table=table, reset=reset, observe=observe, step=step, prompt=text.prompt, parse=text.parser(execute),
        render=text.render, disclosed=text.disclosed, secrets=text.secrets, score=passed, metric=passed, expert=text.expert,
        novice=text.novice, basis=lambda task, knobs, judged: basis(), slow_parse=True,
        floor=Floor(guesses=0.25))   # a stub or a guess passes some tests
