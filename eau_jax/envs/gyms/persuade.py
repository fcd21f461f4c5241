"""Persuade: a user holds a claim and gives a case for it; the agent attacks the points that carry it.

The array simulator. Slot k of a task is the k-th point of the case. The stance runs from 0 (strongly agrees, at the
start) to 6 (strongly disagrees). A reason against new points pushes it by what they carry, by evidence and concessions:

    push = pressure + openness * (1 - fatigue_rate * turns before) * (points + evidence + concession)
    levels = floor(push), at least 0, at most max_jump;  the rest of the push is kept as pressure

A point counts once, so a message against all of them spends them for `max_jump` levels. Naming a point and opposing gives
no reason, or "But" before the persuadee's own sentences would convince him (`reasons` = 0). The reward follows UserRL's
PersuadeGym (Qian et al. 2025): levels won / 6. Upstream counts them from the stance before the message, so a stance that
swings back and forth pays again and again; the default counts from the best stance so far. There a model judges; here a
judge may be asked which points a message attacks.
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
from eau_jax.envs.gyms import persuade_text as text
from eau_jax.envs.ending import absorb, first, stop_code, total_return
from eau_jax.envs.message import with_reward
from eau_jax.envs.gyms.persuade_tasks import POINTS, check, weights
from eau_jax.envs.gyms.persuade_text import Do, Flag, Say

LAST = 6            # the stance that is furthest from the claim
LOWEST = -2.0       # least pressure: what rudeness and repetition can cost
ROUNDING = 1e-4     # added before rounding down, so that 0.9999999 counts as 1

FEATURES = (
    "argue",       # 1: the message attacks at least one point
    "assert",      # 1: it attacks none, or without a reason, and asks nothing
    "rude",        # 1: it is rude
    "ask_back",    # 1: it asks what counts
    "malformed",   # 1: it cannot be read, or uses an act that this world does not offer
    "fresh",       # points attacked for the first time
    "known",       # points attacked that were attacked before, or with the words of an earlier reason
    "evidence",    # 1: an attack that names evidence
    "concession",  # 1: an attack that grants something
    "stance",      # before this message, 0 to 6
    "turn",        # number of this message, from 1
    "remaining",   # points not attacked before this message
    "repeat_run",  # messages in a row that attacked only known points, this one included
    "rudeness",    # rude messages so far, this one included
    "invalid",     # malformed messages so far, this one included
    "patience",    # env.patience less the useless messages so far, this one included
)


@struct.dataclass
class Knobs:
    """Rewards and endings are upstream's except for `reward_mode` and `patience`; the persuadee himself is ours."""

    max_turns: int = knob(16, 1, 64, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "unreadable agent messages after which the task ends as PARSE_ERROR")
    patience: int = knob(6, 1, 64, "useless messages the persuadee bears before the default rules leave; upstream: 64")
    reasons: int = knob(1, 0, 1, "1: only a reason attacks a point, a new one each time; 0: naming and opposing it does")
    openness: float = knob(1.0, 0.0, 3.0, "factor on what an argument pushes")
    max_jump: int = knob(2, 1, 6, "levels the stance may move in one message")
    evidence_w: float = knob(0.25, 0.0, 2.0, "levels added to an attack on a new point that names evidence")
    concession_w: float = knob(0.25, 0.0, 2.0, "levels added to one that grants something")
    rude_w: float = knob(1.0, 0.0, 2.0, "pressure lost for a rude message, in levels")
    repeat_w: float = knob(0.25, 0.0, 2.0, "pressure lost for attacking only known points, in levels")
    fatigue_rate: float = knob(0.0, 0.0, 1.0, "share of the push lost with each message before")
    backslide: int = knob(1, 0, 6, "levels the stance falls back after a rude message")
    start_stance: int = knob(0, 0, 5, "stance at the start, 0 strongly agrees")
    goal_stance: int = knob(6, 1, 6, "stance at which the task is solved")
    reward_mode: int = knob(0, 0, 1, "levels won count from 0: the best stance so far; 1, upstream: the stance before",
                            reward=True)
    step_penalty: float = knob(0.0, 0.0, 1.0, "reward lost in each message, before clipping at 0", reward=True)
    invalid_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for an unreadable message", reward=True)
    repeat_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for attacking only known points", reward=True)
    rude_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for a rude message", reward=True)
    finish_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for each level short of the goal when the agent finishes",
                                 reward=True)
    show_reward_in_text: int = knob(0, 0, 1, "1: the reply states the reward, as in upstream's training")


@struct.dataclass(kw_only=True)
class Table:
    weights: Array      # [tasks, POINTS] i32: levels that each point is worth, -1: no such point


@struct.dataclass(kw_only=True)
class State:
    task: Array         # [] i32: row of the table
    turn: Array         # [] i32: messages so far
    done: Array         # [] bool
    stop: Array         # [] i32, as in TimeStep
    start: Array        # [] i32: stance at the start
    stance: Array       # [] i32: 0 to 6
    best: Array         # [] i32: highest stance so far
    pressure: Array     # [] f32: push that has not become a level, LOWEST to 1
    hit: Array          # [] i32: mask of the points attacked so far
    given: Array        # [POINTS] f32: fingerprints of the reasons that were weighed, 0 where there are none
    repeat_run: Array   # [] i32
    rudeness: Array     # [] i32: rude messages so far
    invalid: Array      # [] i32: unreadable messages so far
    useless: Array      # [] i32: messages so far that could not move the persuadee


class _Seen(NamedTuple):
    """What the act means in this state; counts include this message."""

    worth: Array        # [POINTS] i32
    bare: Array         # [] bool: names points, but gives no reason
    remaining: Array    # [] i32: mask of the points not attacked before
    fresh: Array        # [] i32: mask of those attacked now
    known: Array        # [] i32: mask of the others attacked now
    evidence: Array     # [] bool
    concession: Array   # [] bool
    rude: Array         # [] bool
    malformed: Array    # [] bool
    repeat: Array       # [] bool
    repeat_run: Array   # [] i32
    rudeness: Array     # [] i32
    invalid: Array      # [] i32
    useless: Array      # [] i32


def table(tasks: tuple[Task, ...]) -> Table:
    """What each point is worth, one row a task.

    Raises:
      ValueError: for a task that is not a persuade record; it names the task and the field.
    """
    rows = np.full((len(tasks), POINTS), -1, np.int32)
    for row, task in zip(rows, tasks, strict=True):
        try:
            check(task.data)
        except ValueError as error:
            raise ValueError(f"task {task.id!r}, field {error}") from None
        worth = weights(task)
        row[:len(worth)] = worth
    return Table(weights=rows)


def reset(table: Table, knobs: Knobs, index: Array, key: Array) -> State:
    """The state before the first message about task `index`. Nothing is drawn: a task has one user."""
    zero, start = jnp.int32(0), jnp.asarray(knobs.start_stance, jnp.int32)
    return State(task=jnp.asarray(index, jnp.int32), turn=zero, done=jnp.bool_(False), stop=zero, start=start, stance=start,
                 best=start, pressure=jnp.float32(0), hit=zero, given=jnp.zeros(POINTS, jnp.float32),
                 repeat_run=zero, rudeness=zero, invalid=zero, useless=zero)


def observe(table: Table, knobs: Knobs, state: State, act: Act) -> Array:
    """The features that the rules read, in the order of FEATURES.  -> i32[F]"""
    seen, count = _look(table, knobs, state, act), jax.lax.population_count
    values = {
        "argue": (seen.fresh | seen.known) != 0, "assert": (act.code == Do.ASSERT) | seen.bare, "rude": seen.rude,
        "ask_back": act.code == Do.ASK_BACK, "malformed": seen.malformed, "fresh": count(seen.fresh),
        "known": count(seen.known), "evidence": seen.evidence, "concession": seen.concession, "stance": state.stance,
        "turn": state.turn + 1, "remaining": count(seen.remaining), "repeat_run": seen.repeat_run,
        "rudeness": seen.rudeness, "invalid": seen.invalid, "patience": knobs.patience - seen.useless}
    return jnp.stack([jnp.asarray(values[name], jnp.int32) for name in FEATURES])


def step(table: Table, knobs: Knobs, state: State, act: Act, reply: Array, key: Array) -> tuple[State, TimeStep]:
    """One message and the persuadee's reply to it. Nothing is drawn.

    He weighs the argument where he decides to ANSWER; VOLUNTEER names the weightiest point that was not attacked.
    Otherwise he is not moved, and the points can be attacked again.
    """
    seen = _look(table, knobs, state, act)
    finish, leave = act.code == Do.FINISH, reply == Reply.LEAVE
    weighed = (reply == Reply.ANSWER) & (seen.fresh != 0)
    alert = jnp.maximum(1.0 - knobs.fatigue_rate * state.turn, 0.0)
    force = (_worth(seen, seen.fresh) + jnp.where(seen.evidence, knobs.evidence_w, 0.0)
             + jnp.where(seen.concession, knobs.concession_w, 0.0))
    push = (state.pressure + jnp.where(weighed, knobs.openness * alert * force, 0.0)
            - jnp.where(seen.rude, knobs.rude_w, 0.0) - jnp.where(seen.repeat, knobs.repeat_w, 0.0))
    whole = jnp.floor(push + ROUNDING)
    levels = jnp.where(weighed, jnp.clip(whole, 0.0, knobs.max_jump), 0.0).astype(jnp.int32)
    pressure = jnp.clip(push - jnp.where(weighed, jnp.maximum(whole, 0.0), 0.0), LOWEST, 1.0).astype(jnp.float32)
    stance = jnp.clip(state.stance + levels - jnp.where(seen.rude, knobs.backslide, 0), 0, LAST).astype(jnp.int32)
    place = jnp.arange(POINTS) == jax.lax.population_count(state.hit)   # each reason that is weighed has a point of its own
    hint = jnp.where((reply == Reply.VOLUNTEER) & (act.code == Do.ASK_BACK), _heaviest(seen), 0)
    complete = (stance >= knobs.goal_stance) & (stance > state.stance)
    turn = state.turn + 1
    stop = first((complete | finish, stop_code(StopReason.COMPLETED)),
                 (seen.invalid >= knobs.max_invalid, stop_code(StopReason.PARSE_ERROR)),
                 (leave, stop_code(StopReason.USER_LEFT)),
                 (turn >= knobs.max_turns, stop_code(StopReason.MAX_TURNS)), otherwise=0)
    new = State(task=state.task, turn=turn, done=stop != 0, stop=stop, start=state.start, stance=stance,
                best=jnp.maximum(state.best, stance), pressure=pressure, hit=state.hit | jnp.where(weighed, seen.fresh, 0),
                given=jnp.where(place & weighed, act.values[0], state.given),
                repeat_run=seen.repeat_run, rudeness=seen.rudeness, invalid=seen.invalid, useless=seen.useless)
    said = first(
        (finish, Say.ENDED), (act.code == Do.MALFORMED, Say.MALFORMED), (act.code == Do.NOT_OFFERED, Say.NOT_OFFERED),
        (leave, Say.LEFT), (complete, Say.CONVINCED), (stance < state.stance, Say.BACKSLID), (seen.rude, Say.OFFENDED),
        (hint != 0, Say.HINT), (levels > 0, Say.CONCEDED), (weighed, Say.WEAK_HOLD),
        (reply == Reply.CLARIFY, Say.ASK_EVIDENCE), (seen.repeat, Say.REPEATED), otherwise=Say.STRONG_HOLD)
    time_step = TimeStep(
        code=with_reward(said, knobs.show_reward_in_text), disclosed=jnp.where(said == Say.HINT, hint, 0),
        reward=_reward(knobs, state, seen, stance, finish), discount=jnp.where(stop != 0, 0.0, 1.0).astype(jnp.float32),
        done=stop != 0, success=complete, stop=stop, tool=jnp.bool_(False))
    return absorb(state, new, time_step)


def _look(table: Table, knobs: Knobs, state: State, act: Act) -> _Seen:
    worth = jnp.asarray(table.weights)[state.task]  # [POINTS]
    everything = ((worth >= 0).astype(jnp.int32) << jnp.arange(POINTS)).sum().astype(jnp.int32)
    named, strict = jnp.where(act.code == Do.ARGUE, act.mask, 0), knobs.reasons != 0
    attacked = jnp.where(strict, named >> POINTS, named) & everything
    worn = strict & (act.values[0] != 0) & (state.given == act.values[0]).any()
    fresh = jnp.where(worn, 0, attacked & ~state.hit)
    known = attacked & ~fresh
    repeat, rude = (fresh == 0) & (known != 0), act.code == Do.RUDE
    malformed = (act.code == Do.MALFORMED) | (act.code == Do.NOT_OFFERED)
    useless = (fresh == 0) & (act.code != Do.FINISH) & (act.code != Do.ASK_BACK)
    return _Seen(worth=worth, bare=(named & everything != 0) & (attacked == 0),
                 remaining=everything & ~state.hit, fresh=fresh, known=known,
                 evidence=(fresh != 0) & (act.flags & Flag.EVIDENCE != 0),
                 concession=(fresh != 0) & (act.flags & Flag.CONCESSION != 0), rude=rude, malformed=malformed,
                 repeat=repeat, repeat_run=jnp.where(repeat, state.repeat_run + 1, 0), rudeness=state.rudeness + rude,
                 invalid=state.invalid + malformed, useless=state.useless + useless)


def _worth(seen: _Seen, mask: Array) -> Array:
    """The levels that the points of a mask are worth together."""
    return jnp.where((mask >> jnp.arange(POINTS) & 1) != 0, seen.worth, 0).sum().astype(jnp.float32)


def _heaviest(seen: _Seen) -> Array:
    """Mask of the first of the weightiest points not attacked, 0 where none is left."""
    worth = jnp.where((seen.remaining >> jnp.arange(POINTS) & 1) != 0, seen.worth, -1)
    return jnp.where(seen.remaining != 0, jnp.int32(1) << jnp.argmax(worth).astype(jnp.int32), 0)


def _reward(knobs: Knobs, state: State, seen: _Seen, stance: Array, finish: Array) -> Array:
    before = jnp.where(knobs.reward_mode == 0, state.best, state.stance)
    gain = jnp.maximum(stance - before, 0) / LAST
    short = jnp.maximum(knobs.goal_stance - stance, 0)
    return (jnp.clip(gain - knobs.step_penalty, 0.0, 1.0)
            - jnp.where(seen.malformed, knobs.invalid_penalty, 0.0) - jnp.where(seen.repeat, knobs.repeat_penalty, 0.0)
            - jnp.where(seen.rude, knobs.rude_penalty, 0.0)
            - jnp.where(finish, knobs.finish_penalty * short, 0.0)).astype(jnp.float32)


def score(task: Task, state: State, total: float) -> float:
    """The best stance as a share of the way from the start to strong disagreement."""
    return float((int(state.best) - int(state.start)) / (LAST - int(state.start)))


persuade = Env(
    name="persuade", knobs=Knobs(), features=FEATURES,
    rules=resources.files("eau_jax.envs").joinpath("rules/persuade.toml").read_text(encoding="utf-8"),
    table=table, reset=reset, observe=observe, step=step, prompt=text.prompt, parse=text.parse, render=text.render,
    disclosed=text.disclosed, secrets=text.secrets, score=score, metric=total_return, expert=text.expert,
    novice=text.novice, question=text.question, floor=Floor(echo=0.09, guesses=0.47))
