"""Turtle: a puzzling text has a hidden story; the agent asks yes-or-no questions and tells what it makes of it.

The array simulator. A task has up to five weighted statements, each told by a story fully (1), partly (half) or not;
sets of statements travel as bit masks. Rewards follow UserRL's TurtleGym (Qian et al. 2025): a story's score is the
weighted sum over the statements, it earns what it adds to the best score so far, and the task ends when the score
reaches the threshold, when the agent finishes, or at the turn limit. There any number of stories may be told; here two, and
the second has a price, or guessing stories part by part would need no question. The step penalty grows with the turn.
"""

from importlib import resources
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import Act, Env, Floor, Reply, TimeStep
from eau_jax.core.types import Array, StopReason, Task
from eau_jax.envs.gyms import turtle_text as text
from eau_jax.envs.ending import absorb, first, stop_code, total_return
from eau_jax.envs.message import with_reward
from eau_jax.envs.gyms.turtle_match import BITS, LEVELS
from eau_jax.envs.gyms.turtle_tasks import STATEMENTS, check
from eau_jax.envs.gyms.turtle_text import Do, Say

FEATURES = (
    "ask",            # 1: the message is a yes-or-no question
    "open",           # 1: it is a question that cannot be answered with yes or no
    "story",          # 1: it tells a story
    "malformed",      # 1: it cannot be read, or uses an act that this world does not offer
    "truth",          # of a question: 0 no, 1 maybe, 2 yes; 0 otherwise
    "better",         # 1: a story with a higher score than any before
    "full",           # statements that the story tells fully
    "turn",           # number of this message, from 1
    "best",           # best score before this message, in percent
    "remaining",      # statements not told to the agent before this message
    "fruitless_run",  # messages in a row without a yes or a better story, this one included
    "repeat_run",     # messages in a row with the same words as the one before, this one included
    "invalid",        # malformed messages so far, this one included
    "hint_due",       # 1: fruitless_run is a multiple of env.hint_after
    "patience",       # env.patience less the useless messages so far, this one included
)


@struct.dataclass
class Knobs:
    """Defaults are upstream's rewards and endings, except for `max_stories` and `answer_cost`; there a model judges."""

    max_turns: int = knob(16, 1, 64, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "unreadable agent messages after which the task ends as PARSE_ERROR")
    patience: int = knob(64, 1, 64, "useless messages the user bears; the default rules leave when none is left")
    hint_after: int = knob(64, 1, 64, "fruitless messages in a row after which the default rules give a statement away")
    threshold: float = knob(1.0, 0.1, 1.0, "score of a story that ends the task; upstream's class default is 0.9")
    half_at: float = knob(0.35, 0.05, 0.5, "share of a statement's words from which a story tells it partly", reward=True)
    full_at: float = knob(0.6, 0.55, 1.0, "share of a statement's words from which a story tells it fully", reward=True)
    half_credit: float = knob(0.5, 0.0, 1.0, "share of its weight that a partly told statement earns", reward=True)
    no_at: float = knob(0.25, 0.0, 0.45, "a question with at most this share of true words is answered with no")
    yes_at: float = knob(0.6, 0.55, 1.0, "a question with at least this share of true words is answered with yes")
    show_statements: int = knob(1, 0, 1, "1: the reply to a story shows the statements that it tells fully")
    ask_bonus: float = knob(0.0, 0.0, 1.0, "reward for each statement that a question first asks for fully", reward=True)
    max_stories: int = knob(2, 1, 64, "stories after which the task ends; upstream: 64, more than there are messages")
    answer_cost: float = knob(0.2, 0.0, 1.0, "reward lost for each story after the first; upstream: 0", reward=True)
    step_penalty: float = knob(0.0, 0.0, 1.0, "reward lost in each message, times its number", reward=True)
    invalid_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for an unreadable message", reward=True)
    repeat_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for repeating the message before", reward=True)
    finish_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for finishing, times what the best score lacks to 1",
                                 reward=True)
    show_reward_in_text: int = knob(0, 0, 1, "1: the reply states the reward, as in upstream's training")


@struct.dataclass(kw_only=True)
class Table:
    weights: Array        # [tasks, STATEMENTS] f32: they sum to 1
    statements: Array     # [tasks] i32: mask of the statements that there are


@struct.dataclass(kw_only=True)
class State:
    task: Array           # [] i32: row of the table
    turn: Array           # [] i32: messages so far
    done: Array           # [] bool
    stop: Array           # [] i32, as in TimeStep
    stories: Array        # [] i32: stories so far
    best: Array           # [] f32: best score of a story so far
    told: Array           # [] i32: mask of the statements shown to the agent so far
    confirmed: Array      # [] i32: mask of the statements that questions asked for fully and the user affirmed
    last_code: Array      # [] i32: act of the message before, -1 at the start
    last_print: Array     # [] f32: fingerprint of its words
    fruitless_run: Array  # [] i32
    repeat_run: Array     # [] i32
    invalid: Array        # [] i32: unreadable messages so far
    useless: Array        # [] i32: messages so far that could not teach the agent anything


class _Seen(NamedTuple):
    """What the act means in this state; counts include this message."""

    story: Array          # [] bool
    full: Array           # [] i32: mask of the statements that the story tells fully
    fresh: Array          # [] i32: mask of the statements that a true question asks for fully, not confirmed before
    score: Array          # [] f32: of the story, 0 where there is none
    gain: Array           # [] f32: what it adds to the best score
    truth: Array          # [] i32: 0 no, 1 maybe, 2 yes
    malformed: Array      # [] bool
    repeat: Array         # [] bool
    fruitless_run: Array  # [] i32
    repeat_run: Array     # [] i32
    invalid: Array        # [] i32
    useless: Array        # [] i32


def table(tasks: tuple[Task, ...]) -> Table:
    """Weights of the statements, one row a task.

    Raises:
      ValueError: for a task that is not a turtle record; it names the task and the field.
    """
    weights, statements = np.zeros((len(tasks), STATEMENTS), np.float32), np.zeros(len(tasks), np.int32)
    for row, task in enumerate(tasks):
        try:
            check(task.data)
        except ValueError as error:
            raise ValueError(f"task {task.id!r}, field {error}") from None
        scores = [float(entry["score"]) for entry in task.data["evaluation"]]
        weights[row, :len(scores)] = scores
        statements[row] = 2 ** len(scores) - 1
    return Table(weights=weights, statements=statements)


def reset(table: Table, knobs: Knobs, index: Array, key: Array) -> State:
    """The state before the first message about task `index`. Nothing is drawn: a task has one user."""
    zero = jnp.int32(0)
    return State(task=jnp.asarray(index, jnp.int32), turn=zero, done=jnp.bool_(False), stop=zero, stories=zero,
                 best=jnp.float32(0), told=zero, confirmed=zero, last_code=jnp.int32(-1), last_print=jnp.float32(0),
                 fruitless_run=zero, repeat_run=zero, invalid=zero, useless=zero)


def observe(table: Table, knobs: Knobs, state: State, act: Act) -> Array:
    """The features that the rules read, in the order of FEATURES.  -> i32[F]"""
    seen = _look(table, knobs, state, act)
    untold = jnp.asarray(table.statements)[state.task] & ~state.told
    values = dict(
        ask=act.code == Do.ASK, open=act.code == Do.OPEN, story=seen.story, malformed=seen.malformed, truth=seen.truth,
        better=seen.gain > 0, full=_count(seen.full), turn=state.turn + 1, best=jnp.round(100 * state.best),
        remaining=_count(untold), fruitless_run=seen.fruitless_run, repeat_run=seen.repeat_run, invalid=seen.invalid,
        hint_due=(seen.fruitless_run > 0) & (seen.fruitless_run % knobs.hint_after == 0),
        patience=knobs.patience - seen.useless)
    return jnp.stack([jnp.asarray(values[name], jnp.int32) for name in FEATURES])


def step(table: Table, knobs: Knobs, state: State, act: Act, reply: Array, key: Array) -> tuple[State, TimeStep]:
    """One message and the user's reply to it. Nothing is drawn.

    A story is judged whatever the user decides; only ANSWER tells the agent which statements are right. VOLUNTEER gives
    one more statement away; that earns nothing before a story tells it.
    """
    seen, code = _look(table, knobs, state, act), act.code
    finish, leave, answer = code == Do.FINISH, reply == Reply.LEAVE, reply == Reply.ANSWER
    volunteer = (reply == Reply.VOLUNTEER) & ~finish & ~seen.malformed
    shown = jnp.where(answer & (knobs.show_statements != 0), seen.full, 0)
    untold = jnp.asarray(table.statements)[state.task] & ~state.told
    offered = jnp.where(volunteer, untold & -untold, 0)
    solved = seen.story & (seen.score >= knobs.threshold - 1e-5)
    turn, stories = state.turn + 1, state.stories + seen.story
    over = solved | finish | (seen.story & (stories >= knobs.max_stories))
    stop = first((over, stop_code(StopReason.COMPLETED)),
                 (seen.invalid >= knobs.max_invalid, stop_code(StopReason.PARSE_ERROR)),
                 (leave, stop_code(StopReason.USER_LEFT)),
                 (turn >= knobs.max_turns, stop_code(StopReason.MAX_TURNS)), otherwise=0)
    said = first(
        (finish, Say.ENDED), (code == Do.MALFORMED, Say.MALFORMED), (code == Do.NOT_OFFERED, Say.NOT_OFFERED),
        (solved, Say.SOLVED), (leave, Say.LEFT), (offered != 0, Say.HINT),
        (reply == Reply.CLARIFY, Say.ASK_YES_NO), (~answer, Say.REFUSED), (code == Do.OPEN, Say.ASK_YES_NO),
        (seen.story & (seen.full != 0), Say.COVERED), (seen.story, Say.NONE),
        (seen.truth == 2, Say.YES), (seen.truth == 1, Say.MAYBE), otherwise=Say.NO)
    fresh = jnp.where(answer, seen.fresh, 0)
    reward = (seen.gain + knobs.ask_bonus * _count(fresh) - jnp.where(seen.story & (stories > 1), knobs.answer_cost, 0.0)
              - knobs.step_penalty * turn - jnp.where(seen.malformed, knobs.invalid_penalty, 0.0)
              - jnp.where(seen.repeat, knobs.repeat_penalty, 0.0)
              - jnp.where(finish, knobs.finish_penalty * (1.0 - state.best), 0.0))
    new = State(task=state.task, turn=turn, done=stop != 0, stop=stop, stories=stories, best=state.best + seen.gain,
                told=state.told | shown | offered, confirmed=state.confirmed | fresh, last_code=code,
                last_print=act.values[3], fruitless_run=seen.fruitless_run, repeat_run=seen.repeat_run,
                invalid=seen.invalid, useless=seen.useless)
    time_step = TimeStep(
        code=with_reward(said, knobs.show_reward_in_text), disclosed=shown | offered, reward=reward.astype(jnp.float32),
        discount=jnp.where(stop != 0, 0.0, 1.0).astype(jnp.float32), done=stop != 0, success=solved, stop=stop,
        tool=jnp.bool_(False))
    return absorb(state, new, time_step)


def _look(table: Table, knobs: Knobs, state: State, act: Act) -> _Seen:
    code = act.code
    ask, story = code == Do.ASK, code == Do.STORY
    weights, slots = jnp.asarray(table.weights)[state.task], jnp.arange(STATEMENTS)  # [STATEMENTS]
    share = (act.mask >> BITS * slots & LEVELS) / LEVELS
    exists = jnp.asarray(table.statements)[state.task] >> slots & 1 != 0
    named = exists & (share >= knobs.full_at)
    full, half = story & named, story & exists & (share >= knobs.half_at)
    earned = jnp.where(full, weights, jnp.where(half, knobs.half_credit * weights, 0.0))
    score = sum(earned[slot] for slot in range(STATEMENTS))  # in this order, alone or in a batch: the same to the bit
    yes, no = act.values[0] >= knobs.yes_at, act.values[0] <= knobs.no_at
    truth = jnp.where(ask, jnp.where((yes & (act.flags == 0)) | (no & (act.flags != 0)), 2, jnp.where(yes | no, 0, 1)), 0)
    gain = jnp.maximum(score - state.best, 0.0)
    malformed = (code == Do.MALFORMED) | (code == Do.NOT_OFFERED)
    repeat = (ask | story | (code == Do.OPEN)) & (code == state.last_code) & (act.values[3] == state.last_print)
    return _Seen(story=story, full=_mask(full), fresh=_mask(named & (truth == 2)) & ~state.confirmed, score=score,
                 gain=gain, truth=truth, malformed=malformed, repeat=repeat,
                 fruitless_run=jnp.where((truth == 2) | (gain > 0), 0, state.fruitless_run + 1),
                 repeat_run=jnp.where(repeat, state.repeat_run + 1, 0), invalid=state.invalid + malformed,
                 useless=state.useless + (malformed | repeat | (code == Do.OPEN)))


def _mask(slots: Array) -> Array:
    return jnp.sum(jnp.where(slots, 1 << jnp.arange(STATEMENTS), 0)).astype(jnp.int32)


def _count(mask: Array) -> Array:
    return sum(mask >> slot & 1 for slot in range(STATEMENTS))


def score(task: Task, state: State, total: float) -> float:
    """The return clipped to 0..1; 1 means that the whole story was told, under upstream's rewards."""
    return float(np.clip(total, 0.0, 1.0))


turtle = Env(
    name="turtle", knobs=Knobs(), features=FEATURES,
    rules=resources.files("eau_jax.envs").joinpath("rules/turtle.toml").read_text(encoding="utf-8"),
    table=table, reset=reset, observe=observe, step=step, prompt=text.prompt, parse=text.parse, render=text.render,
    disclosed=text.disclosed, secrets=text.secrets, score=score, metric=total_return, expert=text.expert,
    novice=text.novice, question=text.question, floor=Floor(echo=0.02, everything=0.03, guesses=0.45))
