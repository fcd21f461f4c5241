"""Telepathy: the user thinks of something; the agent asks yes-or-no questions and guesses what it is.

The array simulator. What is true of an entity is a row of a table of attributes. Rewards follow UserRL's TelepathyGym
(Qian et al. 2025): 1 for the first correct guess, which ends the task, else 0. There wrong guesses never end it; here the
third does, or going through what the description allows would need no question. The step penalty grows with the turn.
"""

from importlib import resources
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import Act, Env, Floor, Reply, TimeStep
from eau_jax.core.types import Array, StopReason, Task
from eau_jax.envs.gyms import telepathy_text as text
from eau_jax.envs.ending import absorb, first, stop_code, total_return
from eau_jax.envs.message import with_reward
from eau_jax.envs.gyms.telepathy_match import ATTRIBUTES, MAYBE, NO, YES, entity
from eau_jax.envs.gyms.telepathy_tasks import check
from eau_jax.envs.gyms.telepathy_text import Do, Say

FEATURES = (
    "ask",            # 1: the message is a yes-or-no question
    "open",           # 1: it is a question that cannot be answered with yes or no
    "guess",          # 1: it names something
    "malformed",      # 1: it cannot be read, or uses an act that this world does not offer
    "truth",          # of a question: 0 no, 1 maybe, 2 yes; 0 otherwise
    "known",          # 1: the question's attribute was asked for or told before
    "turn",           # number of this message, from 1
    "asked",          # attributes asked for or told before this message
    "guesses",        # guesses before this message
    "fruitless_run",  # messages in a row without a yes, this one included
    "repeat_run",     # messages in a row with the same words as the one before, this one included
    "invalid",        # malformed messages so far, this one included
    "hint_due",       # 1: fruitless_run is a multiple of env.hint_after
    "patience",       # env.patience less the useless messages so far, this one included
)


@struct.dataclass
class Knobs:
    """Defaults are upstream's rewards and endings, except for `max_wrong`; there a language model knows the answers."""

    max_turns: int = knob(16, 1, 64, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "unreadable agent messages after which the task ends as PARSE_ERROR")
    patience: int = knob(64, 1, 64, "useless messages the user bears; the default rules leave when none is left")
    hint_after: int = knob(64, 1, 64, "messages in a row without a yes after which the default rules give a hint")
    max_wrong: int = knob(3, 1, 64, "wrong guesses after which the task ends; upstream: 64, more than there are messages")
    unknown_is_no: int = knob(0, 0, 1, "1: what nobody knows of the entity is answered with no instead of maybe")
    r_correct: float = knob(1.0, -1.0, 1.0, "reward for the correct guess", reward=True)
    r_wrong: float = knob(0.0, -1.0, 1.0, "reward for a wrong guess", reward=True)
    ask_bonus: float = knob(0.0, 0.0, 1.0, "reward for a question about an attribute not asked for before, if yes or no",
                            reward=True)
    step_penalty: float = knob(0.0, 0.0, 1.0, "reward lost in each message, times its number", reward=True)
    invalid_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for an unreadable message", reward=True)
    repeat_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for repeating the message before", reward=True)
    finish_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for finishing without the correct guess", reward=True)
    show_reward_in_text: int = knob(0, 0, 1, "1: the reply states the reward, as in upstream's training")


@struct.dataclass(kw_only=True)
class Table:
    truth: Array          # [tasks, A] i8: NO, YES or MAYBE for each of the A attributes
    hintable: Array       # [tasks, A] bool: true, and not told by the description


@struct.dataclass(kw_only=True)
class State:
    task: Array           # [] i32: row of the table
    turn: Array           # [] i32: messages so far
    done: Array           # [] bool
    stop: Array           # [] i32, as in TimeStep
    asked: Array          # [A] bool: attributes that the agent knows from answers and hints
    hint: Array           # [] i32: attribute of the last hint, -1 before the first
    guesses: Array        # [] i32: guesses so far
    last_code: Array      # [] i32: act of the message before, -1 at the start
    last_print: Array     # [] f32: fingerprint of its words
    fruitless_run: Array  # [] i32
    repeat_run: Array     # [] i32
    invalid: Array        # [] i32: unreadable messages so far
    useless: Array        # [] i32: messages so far that could not teach the agent anything


class _Seen(NamedTuple):
    """What the act means in this state; counts include this message."""

    ask: Array            # [] bool
    named: Array          # [A] bool: the attribute that is asked for
    known: Array          # [] bool: it was known before
    truth: Array          # [] i32: 0 no, 1 maybe, 2 yes
    malformed: Array      # [] bool
    repeat: Array         # [] bool
    fruitless_run: Array  # [] i32
    repeat_run: Array     # [] i32
    invalid: Array        # [] i32
    useless: Array        # [] i32


def table(tasks: tuple[Task, ...]) -> Table:
    """What is true of each task's entity, one row a task.

    Raises:
      ValueError: for a task that is not a telepathy record; it names the task and the field.
    """
    for task in tasks:
        try:
            check(task.data)
        except ValueError as error:
            raise ValueError(f"task {task.id!r}, field {error}") from None
    return Table(truth=np.array([entity(task).truth for task in tasks], np.int8),
                 hintable=np.array([entity(task).hintable for task in tasks], np.bool_))


def reset(table: Table, knobs: Knobs, index: Array, key: Array) -> State:
    """The state before the first message about task `index`. Nothing is drawn: a task has one user."""
    zero = jnp.int32(0)
    return State(task=jnp.asarray(index, jnp.int32), turn=zero, done=jnp.bool_(False), stop=zero,
                 asked=jnp.zeros(len(ATTRIBUTES), jnp.bool_), hint=jnp.int32(-1), guesses=zero, last_code=jnp.int32(-1),
                 last_print=jnp.float32(0), fruitless_run=zero, repeat_run=zero, invalid=zero, useless=zero)


def observe(table: Table, knobs: Knobs, state: State, act: Act) -> Array:
    """The features that the rules read, in the order of FEATURES.  -> i32[F]"""
    seen = _look(table, knobs, state, act)
    values = dict(
        ask=seen.ask, open=act.code == Do.OPEN, guess=act.code == Do.GUESS, malformed=seen.malformed, truth=seen.truth,
        known=seen.known, turn=state.turn + 1, asked=state.asked.sum(), guesses=state.guesses,
        fruitless_run=seen.fruitless_run, repeat_run=seen.repeat_run, invalid=seen.invalid,
        hint_due=(seen.fruitless_run > 0) & (seen.fruitless_run % knobs.hint_after == 0),
        patience=knobs.patience - seen.useless)
    return jnp.stack([jnp.asarray(values[name], jnp.int32) for name in FEATURES])


def step(table: Table, knobs: Knobs, state: State, act: Act, reply: Array, key: Array) -> tuple[State, TimeStep]:
    """One message and the user's reply to it. Nothing is drawn.

    A guess is judged whatever the user decides. VOLUNTEER says one attribute that the agent does not know yet.
    """
    seen, code = _look(table, knobs, state, act), act.code
    finish, leave, answer = code == Do.FINISH, reply == Reply.LEAVE, reply == Reply.ANSWER
    guess = code == Do.GUESS
    correct = guess & (act.values[0] == 1)
    wrong = guess & ~correct
    guesses = state.guesses + guess
    hints = jnp.asarray(table.hintable)[state.task] & ~state.asked
    hint = (reply == Reply.VOLUNTEER) & ~finish & ~seen.malformed & hints.any()
    hinted = jnp.where(hint, jnp.argmax(hints), state.hint).astype(jnp.int32)
    told = seen.ask & answer
    turn = state.turn + 1
    over = correct | finish | (wrong & (guesses >= knobs.max_wrong))
    stop = first((over, stop_code(StopReason.COMPLETED)),
                 (seen.invalid >= knobs.max_invalid, stop_code(StopReason.PARSE_ERROR)),
                 (leave, stop_code(StopReason.USER_LEFT)),
                 (turn >= knobs.max_turns, stop_code(StopReason.MAX_TURNS)), otherwise=0)
    said = first(
        (finish, Say.ENDED), (code == Do.MALFORMED, Say.MALFORMED), (code == Do.NOT_OFFERED, Say.NOT_OFFERED),
        (correct, Say.CORRECT), (leave, Say.LEFT), (hint, Say.HINT), (wrong, Say.WRONG),
        ((reply == Reply.CLARIFY) | (answer & (code == Do.OPEN)), Say.ASK_YES_NO),
        (~answer, Say.REFUSED), (seen.truth == 2, Say.YES), (seen.truth == 1, Say.MAYBE), otherwise=Say.NO)
    informed = told & (code == Do.ASK) & ~seen.known & (seen.truth != 1)
    reward = (jnp.where(correct, knobs.r_correct, 0.0) + jnp.where(wrong, knobs.r_wrong, 0.0)
              + jnp.where(informed, knobs.ask_bonus, 0.0) - knobs.step_penalty * turn
              - jnp.where(seen.malformed, knobs.invalid_penalty, 0.0)
              - jnp.where(seen.repeat, knobs.repeat_penalty, 0.0) - jnp.where(finish, knobs.finish_penalty, 0.0))
    asked = state.asked | (seen.named & told) | (hint & (jnp.arange(len(ATTRIBUTES)) == hinted))
    new = State(task=state.task, turn=turn, done=stop != 0, stop=stop, asked=asked, hint=hinted,
                guesses=guesses, last_code=code, last_print=act.values[3],
                fruitless_run=seen.fruitless_run, repeat_run=seen.repeat_run, invalid=seen.invalid, useless=seen.useless)
    time_step = TimeStep(
        code=with_reward(said, knobs.show_reward_in_text), disclosed=jnp.where(correct, 1, 0).astype(jnp.int32),
        reward=reward.astype(jnp.float32), discount=jnp.where(stop != 0, 0.0, 1.0).astype(jnp.float32), done=stop != 0,
        success=correct, stop=stop, tool=jnp.bool_(False))
    return absorb(state, new, time_step)


def _look(table: Table, knobs: Knobs, state: State, act: Act) -> _Seen:
    code = act.code
    about, ask = code == Do.ASK, (code == Do.ASK) | (code == Do.ASK_OTHER)
    named = about & (jnp.arange(len(ATTRIBUTES)) == act.values[0].astype(jnp.int32))
    row = jnp.asarray(table.truth)[state.task].astype(jnp.int32)  # [A]
    fact = jnp.where(about, jnp.sum(jnp.where(named, row, 0)), act.values[0].astype(jnp.int32))
    fact = jnp.where((fact == MAYBE) & (knobs.unknown_is_no != 0), NO, fact)
    yes = (fact == YES) != (act.flags != 0)  # a negated question turns yes and no round
    truth = jnp.where(~ask, 0, jnp.where(fact == MAYBE, 1, jnp.where(yes, 2, 0)))
    malformed = (code == Do.MALFORMED) | (code == Do.NOT_OFFERED)
    worded = ask | (code == Do.OPEN) | (code == Do.GUESS)
    repeat = worded & (code == state.last_code) & (act.values[3] == state.last_print)
    known = (named & state.asked).any()
    return _Seen(ask=ask, named=named, known=known, truth=truth, malformed=malformed, repeat=repeat,
                 fruitless_run=jnp.where(truth == 2, 0, state.fruitless_run + 1),
                 repeat_run=jnp.where(repeat, state.repeat_run + 1, 0), invalid=state.invalid + malformed,
                 useless=state.useless + (malformed | repeat | known | (code == Do.OPEN)))


def score(task: Task, state: State, total: float) -> float:
    """The return clipped to 0..1; 1 means found out under upstream's rewards."""
    return float(np.clip(total, 0.0, 1.0))


telepathy = Env(
    name="telepathy", knobs=Knobs(), features=FEATURES,
    rules=resources.files("eau_jax.envs").joinpath("rules/telepathy.toml").read_text(encoding="utf-8"),
    table=table, reset=reset, observe=observe, step=step, prompt=text.prompt, parse=text.parse, render=text.render,
    disclosed=text.disclosed, secrets=text.secrets, score=score, metric=total_return, expert=text.expert,
    novice=text.novice, question=text.question, floor=Floor(guesses=0.34))
