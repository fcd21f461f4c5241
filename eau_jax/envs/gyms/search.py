"""Search: a question is answered by looking things up; a few searches, then an answer.

The array simulator. The search engine runs between parsing and stepping, so a query's hits arrive in the act as passage
ids. Rewards follow UserRL's SearchGym (Qian et al. 2025): 1 for the right answer, which ends the task, else 0; at most five
searches. There wrong answers never end it; here the third does, or a list of candidates would be worth as much as a search.
Upstream searches the web; here it is a local index over given passages.
"""

from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import Act, Env, Floor, Reply, TimeStep
from eau_jax.core.types import Array, StopReason, Task
from eau_jax.envs.gyms import search_text as text
from eau_jax.envs.ending import absorb, first, stop_code, total_return
from eau_jax.envs.message import with_reward
from eau_jax.envs.gyms.search_index import Index
from eau_jax.envs.gyms.search_tasks import check
from eau_jax.envs.gyms.search_text import HITS, Do, Say

FEATURES = (
    "search",      # 1: the message searches
    "submit",      # 1: it answers
    "unusable",    # 1: it can be read, but is empty or not offered
    "malformed",   # 1: it cannot be read
    "hits",        # passages that the search brings
    "turn",        # number of this message, from 1
    "searches",    # searches made before this message
    "left",        # searches left before this message
    "invalid",     # malformed messages so far, this one included
    "patience",    # env.patience less the useless messages so far, this one included
)


@struct.dataclass
class Knobs:
    """Defaults are upstream's rewards and endings, except where a line names another value; `reveal` is 1 there."""

    max_turns: int = knob(16, 1, 64, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "unreadable agent messages after which the task ends as PARSE_ERROR")
    patience: int = knob(64, 1, 64, "useless messages the user bears; the default rules leave when none is left")
    max_searches: int = knob(5, 0, 64, "searches that are made; further ones are refused")
    top_k: int = knob(4, 1, 4, "passages that one search shows; upstream shows 5")
    r_correct: float = knob(1.0, -1.0, 1.0, "reward for a correct answer", reward=True)
    r_wrong: float = knob(0.0, -1.0, 1.0, "reward for a wrong answer", reward=True)
    max_wrong: int = knob(3, 1, 64, "wrong answers after which the task ends; upstream: 64, more than there are messages")
    search_cost: float = knob(0.0, 0.0, 1.0, "reward lost for each search that is made", reward=True)
    info_bonus: float = knob(0.0, 0.0, 1.0, "reward for each passage of the task's own that is shown for the first time",
                             reward=True)
    step_penalty: float = knob(0.0, 0.0, 1.0, "reward lost in each message, times its number", reward=True)
    invalid_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for a message that is unreadable, empty or not offered",
                                  reward=True)
    finish_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for finishing without a correct answer", reward=True)
    reveal: int = knob(0, 0, 1, "1: the reply to finishing states the answer")
    show_reward_in_text: int = knob(0, 0, 1, "1: the reply states the reward, as in upstream's training")


@struct.dataclass(kw_only=True)
class Table:
    passages: Array   # [tasks, HITS] f32: ids of the passages that answer the question, -1 for none


@struct.dataclass(kw_only=True)
class State:
    task: Array       # [] i32: row of the table
    turn: Array       # [] i32: messages so far
    done: Array       # [] bool
    stop: Array       # [] i32, as in TimeStep
    searches: Array   # [] i32: searches made so far
    wrong: Array      # [] i32: wrong answers so far
    found: Array      # [] i32: mask of the task's own passages shown so far
    useless: Array    # [] i32: messages so far that could not teach the agent anything
    invalid: Array    # [] i32: unreadable messages so far


def table(tasks: tuple[Task, ...]) -> Table:
    """The ids of each task's own passages, one row a task.

    Raises:
      ValueError: for a task that is not a search record; it names the task and the field.
    """
    rows = np.full((len(tasks), HITS), -1, np.float32)
    for row, task in zip(rows, tasks, strict=True):
        try:
            check(task.data)
        except ValueError as error:
            raise ValueError(f"task {task.id!r}, field {error}") from None
        places = task.data.get("passages", [])
        row[:len(places)] = places
    return Table(passages=rows)


def reset(table: Table, knobs: Knobs, index: Array, key: Array) -> State:
    """The state before the first message about task `index`. Nothing is drawn."""
    zero = jnp.int32(0)
    return State(task=jnp.asarray(index, jnp.int32), turn=zero, done=jnp.bool_(False), stop=zero, searches=zero, wrong=zero,
                 found=zero, useless=zero, invalid=zero)


def observe(table: Table, knobs: Knobs, state: State, act: Act) -> Array:
    """The features that the rules read, in the order of FEATURES.  -> i32[F]"""
    unusable, malformed = _unusable(act), act.code == Do.MALFORMED
    values = dict(
        search=act.code == Do.QUERY, submit=act.code == Do.SUBMIT, unusable=unusable, malformed=malformed,
        hits=jnp.where(act.code == Do.QUERY, (act.values >= 0).sum(), 0), turn=state.turn + 1, searches=state.searches,
        left=knobs.max_searches - state.searches, invalid=state.invalid + malformed,
        patience=knobs.patience - state.useless - _useless(knobs, state, act))
    return jnp.stack([jnp.asarray(values[name], jnp.int32) for name in FEATURES])


def step(table: Table, knobs: Knobs, state: State, act: Act, reply: Array, key: Array) -> tuple[State, TimeStep]:
    """One message and the reply to it. Nothing is drawn. Hits and verdicts do not depend on the user, who may only leave."""
    query, submit, finish = act.code == Do.QUERY, act.code == Do.SUBMIT, act.code == Do.FINISH
    malformed, unusable, leave = act.code == Do.MALFORMED, _unusable(act), reply == Reply.LEAVE
    correct = submit & (act.flags == 1)
    wrong = submit & ~correct
    failed = state.wrong + wrong
    made = query & (state.searches < knobs.max_searches)
    place = jnp.arange(HITS, dtype=jnp.int32)
    show = made & ~leave & (place < knobs.top_k) & (act.values >= 0)                             # [HITS]
    shown = jnp.where(show, 1 << place, 0).sum().astype(jnp.int32)
    gold = jnp.asarray(table.passages)[state.task]                                               # [HITS]
    matches = ((gold[:, None] == act.values[None, :]) & show[None, :]).any(axis=1) & (gold >= 0)
    found = state.found | jnp.where(matches, 1 << place, 0).sum().astype(jnp.int32)
    turn, invalid = state.turn + 1, state.invalid + malformed
    stop = first((correct | finish | (wrong & (failed >= knobs.max_wrong)), stop_code(StopReason.COMPLETED)),
                 (invalid >= knobs.max_invalid, stop_code(StopReason.PARSE_ERROR)),
                 (leave, stop_code(StopReason.USER_LEFT)),
                 (turn >= knobs.max_turns, stop_code(StopReason.MAX_TURNS)), otherwise=0)
    said = first((finish & (knobs.reveal != 0), Say.REVEALED), (finish, Say.ENDED), (malformed, Say.MALFORMED),
                 (correct, Say.CORRECT), (leave, Say.LEFT), (wrong, Say.WRONG), (act.code == Do.EMPTY, Say.EMPTY),
                 (act.code == Do.NOT_OFFERED, Say.NOT_OFFERED), (~made, Say.SPENT), (shown == 0, Say.NO_HITS),
                 otherwise=Say.HITS)
    reward = (jnp.where(correct, knobs.r_correct, 0.0) + jnp.where(wrong, knobs.r_wrong, 0.0)
              - jnp.where(made, knobs.search_cost, 0.0) - knobs.step_penalty * turn
              + knobs.info_bonus * jax.lax.population_count(found & ~state.found)
              - jnp.where(unusable | malformed, knobs.invalid_penalty, 0.0) - jnp.where(finish, knobs.finish_penalty, 0.0))
    new = State(task=state.task, turn=turn, done=stop != 0, stop=stop, searches=state.searches + made, wrong=failed,
                found=found, useless=state.useless + _useless(knobs, state, act), invalid=invalid)
    time_step = TimeStep(
        code=with_reward(said, knobs.show_reward_in_text), disclosed=shown, reward=reward.astype(jnp.float32),
        discount=jnp.where(stop != 0, 0.0, 1.0).astype(jnp.float32), done=stop != 0, success=correct, stop=stop,
        tool=query & ~leave)
    return absorb(state, new, time_step)


def _unusable(act: Act) -> Array:
    return (act.code == Do.EMPTY) | (act.code == Do.NOT_OFFERED)


def _useless(knobs: Knobs, state: State, act: Act) -> Array:
    blank = (act.code == Do.QUERY) & ((state.searches >= knobs.max_searches) | (act.values < 0).all())
    return blank | _unusable(act) | (act.code == Do.MALFORMED)


def score(task: Task, state: State, total: float) -> float:
    """The return clipped to 0..1; 1 means solved under upstream's rewards."""
    return float(np.clip(total, 0.0, 1.0))


def search(index: Index) -> Env:
    """The environment over an index, for example `search_index.index(search_tasks.corpus())`."""
    return Env(
        name="search", knobs=Knobs(), features=FEATURES,
        rules=resources.files("eau_jax.envs").joinpath("rules/search.toml").read_text(encoding="utf-8"),
        table=table, reset=reset, observe=observe, step=step, prompt=text.prompt, parse=text.parser(index),
        render=text.renderer(index), disclosed=text.disclosed, secrets=text.secrets, score=score, metric=total_return,
        expert=text.expert, novice=text.novice, question=text.question,
        floor=Floor(guesses=0.55))   # the last words of what the question itself finds
