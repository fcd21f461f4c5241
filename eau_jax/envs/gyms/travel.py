"""Travel: the agent searches options for each aspect of a trip, finds out what the user wishes, and recommends one.

The array simulator. Slot k of a task is its k-th preference; sets of slots and of aspects travel as bit masks, and
`TimeStep.disclosed` holds preferences in bits 0 to 11 and the aspects whose options are shown in bits 12 to 16. Checks,
rewards and endings follow UserRL's TravelGym (Qian et al. 2025; UserBench), which was published with three settings of
(r_search, r_pref): the class's own (0.2, 0.2), the default here; (0.0, 0.8) in training; (0.2, 0.6) in evaluation. There
an option counts at any time, so that blind answers hit; here only once the agent has looked and asked (`look_first`).
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
from eau_jax.envs.gyms import travel_text as text
from eau_jax.envs.ending import absorb, first, stop_code
from eau_jax.envs.message import with_reward
from eau_jax.envs.gyms.travel_tasks import ASPECTS, OPTIONS, PREFERENCES, check, preferences, shown_options
from eau_jax.envs.gyms.travel_text import Do, Say

ABSENT, WRONG, CORRECT, BEST = 0, 1, 2, 3   # what an option is; noise is wrong
VALUE = (0.0, 0.0, 0.8, 1.0)                # what the metric gives for it

FEATURES = (
    "ask",            # 1: the message asks for at least one of the task's preferences
    "no_such",        # 1: it asks for something in particular that the user does not care about
    "vague",          # 1: it asks for nothing in particular
    "chat",           # 1: it asks for nothing
    "search",         # 1: it searches
    "pick",           # 1: it recommends one option
    "unusable",       # 1: it recommends several options, or none
    "malformed",      # 1: it cannot be read
    "asked",          # preferences asked for
    "excess",         # preferences asked for beyond env.ask_cap
    "fresh",          # preferences asked for that can still be told
    "known",          # preferences asked for that cannot: told, or of an aspect that was answered
    "turn",           # number of this message, from 1
    "remaining",      # preferences that could be told before this message
    "off_topic_run",  # [action] messages in a row that asked for no preference that could be told, this one included
    "due",            # 1: this is one of them, env.volunteer_after is reached, and there is something left to tell
    "invalid",        # malformed messages so far, this one included
    "patience",       # env.patience less the useless messages so far, this one included
)


@struct.dataclass
class Knobs:
    """Defaults are upstream's except where a line says so."""

    max_turns: int = knob(16, 1, 64, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "unreadable agent messages after which the task ends as PARSE_ERROR")
    patience: int = knob(64, 1, 64, "useless messages the user bears; the default rules leave when none is left")
    ask_cap: int = knob(2, 1, 12, "preferences one message may ask for before the default rules call for less; upstream: 12")
    search_fail_every: int = knob(5, 0, 64, "every so many searches one fails on purpose; 0: none")
    volunteer_after: int = knob(3, 1, 64, "the off-topic message in a row that makes the default rules volunteer a "
                                          "preference; upstream's asynchronous step: 4")
    look_first: int = knob(1, 0, 1, "1: an option counts only after the options of its aspect were shown and a wish for it "
                                    "was told; 0, upstream: at once")
    one_choice: int = knob(1, 0, 1, "1: one answer for each aspect, which drops its untold preferences")
    end_when_all_chosen: int = knob(1, 0, 1, "1: the task ends when each aspect has an answer; 0, upstream in training and "
                                             "evaluation: only when each best option was answered")
    plain: int = knob(0, 0, 1, "1: the user states preferences plainly; 0, upstream: by implication")
    r_search: float = knob(0.2, 0.0, 1.0, "reward for the first right search of an aspect", reward=True)
    r_pref: float = knob(0.2, 0.0, 1.0, "reward for a preference told on request", reward=True)
    r_best: float = knob(1.0, 0.0, 1.0, "reward for answering the best option of an aspect", reward=True)
    r_correct: float = knob(0.8, 0.0, 1.0, "reward for answering a correct option that is not the best", reward=True)
    wrong_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for answering a wrong option; upstream clips the loss away",
                                reward=True)
    step_penalty: float = knob(0.0, 0.0, 1.0, "reward lost in each message", reward=True)
    invalid_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for a message that is unreadable or of wrong content",
                                  reward=True)
    repeat_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for asking, searching or answering again", reward=True)
    finish_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for each aspect without an answer when the agent finishes",
                                 reward=True)
    show_reward_in_text: int = knob(0, 0, 1, "1: the reply states the reward, as in upstream's training")


@struct.dataclass(kw_only=True)
class Table:
    held: Array         # [tasks, 5] i32: mask of each aspect's preferences
    options: Array      # [tasks, 5, OPTIONS] i32: ABSENT, WRONG, CORRECT or BEST, in the order shown
    wanted: Array       # [tasks] i32: mask of the task's aspects


@struct.dataclass(kw_only=True)
class State:
    task: Array         # [] i32: row of the table
    turn: Array         # [] i32: messages so far
    done: Array         # [] bool
    stop: Array         # [] i32, as in TimeStep
    elicited: Array     # [] i32: mask of the preferences told so far
    dropped: Array      # [] i32: mask of the preferences that will not be told any more
    searched: Array     # [] i32: mask of the aspects whose options were shown
    searches: Array     # [] i32: searches so far
    picked: Array       # [] i32: mask of the aspects that have an answer
    chosen: Array       # [5] i32: mask of the options answered, by aspect
    best: Array         # [5] i32: the best class answered, by aspect
    off_topic: Array    # [] i32: off-topic messages in a row
    invalid: Array      # [] i32: unreadable messages so far
    useless: Array      # [] i32: messages so far that brought the task no further


class _Seen(NamedTuple):
    """What the act means in this state; counts include this message."""

    held: Array         # [5] i32: mask of each aspect's preferences
    wanted: Array       # [] i32: mask of the task's aspects
    remaining: Array    # [] i32: mask of the preferences that can still be told
    fresh: Array        # [] i32: mask of those asked for
    known: Array        # [] i32: mask of the others asked for
    talk: Array         # [] bool: an [action]
    no_such: Array      # [] bool
    bit: Array          # [] i32: mask of the aspect searched or answered
    searches: Array     # [] i32
    down: Array         # [] bool: the search fails on purpose
    found: Array        # [] bool: the aspect's options are shown for the first time
    again: Array        # [] bool: they were shown before
    blocked: Array      # [] bool: the aspect has an answer already
    early: Array        # [] bool: an answer before its options and a wish are known, which does not count
    choice: Array       # [] i32: class of the option answered, ABSENT where no answer counts
    chosen: Array       # [5] i32: mask of the options answered, this one included
    off_topic: Array    # [] i32
    unusable: Array     # [] bool
    repeat: Array       # [] bool
    invalid: Array      # [] i32
    useless: Array      # [] i32


def table(tasks: tuple[Task, ...]) -> Table:
    """Masks of preferences and classes of options, one row a task.

    Raises:
      ValueError: for a task that is not a whole travel record; it names the task and the field.
    """
    held = np.zeros((len(tasks), len(ASPECTS)), np.int32)
    options = np.zeros((len(tasks), len(ASPECTS), OPTIONS), np.int32)
    wanted = np.zeros(len(tasks), np.int32)
    for row, task in enumerate(tasks):
        try:
            check(task.data)
        except ValueError as error:
            raise ValueError(f"task {task.id!r}, field {error}") from None
        for slot, (aspect, *_) in enumerate(preferences(task.data)):
            held[row, ASPECTS.index(aspect)] |= 1 << slot
        for aspect in task.data["dimensions"]:
            column, record = ASPECTS.index(aspect), task.data[aspect]
            wanted[row] |= 1 << column
            for place, option in enumerate(shown_options(task, aspect)):
                options[row, column, place] = (BEST if option["id"] == record["best_id"] else
                                               CORRECT if option["id"] in record["correct_ids"] else WRONG)
    return Table(held=held, options=options, wanted=wanted)


def reset(table: Table, knobs: Knobs, index: Array, key: Array) -> State:
    """The state before the first message about task `index`. Nothing is drawn: a task has one user."""
    zero, none = jnp.int32(0), jnp.zeros(len(ASPECTS), jnp.int32)
    return State(task=jnp.asarray(index, jnp.int32), turn=zero, done=jnp.bool_(False), stop=zero, elicited=zero,
                 dropped=zero, searched=zero, searches=zero, picked=zero, chosen=none, best=none, off_topic=zero,
                 invalid=zero, useless=zero)


def observe(table: Table, knobs: Knobs, state: State, act: Act) -> Array:
    """The features that the rules read, in the order of FEATURES.  -> i32[F]"""
    seen, count, code = _look(table, knobs, state, act), jax.lax.population_count, act.code
    asked = count(seen.fresh | seen.known)
    due = (seen.off_topic >= knobs.volunteer_after) & seen.talk & (seen.fresh == 0) & (seen.remaining != 0)
    values = dict(
        ask=asked > 0, no_such=seen.no_such, vague=code == Do.VAGUE, chat=code == Do.CHAT,
        search=(code == Do.SEARCH) | (code == Do.SEARCH_BAD), pick=code == Do.PICK, unusable=seen.unusable,
        malformed=code == Do.MALFORMED, asked=asked, excess=jnp.maximum(asked - knobs.ask_cap, 0),
        fresh=count(seen.fresh), known=count(seen.known), turn=state.turn + 1, remaining=count(seen.remaining),
        off_topic_run=seen.off_topic, due=due, invalid=seen.invalid, patience=knobs.patience - seen.useless)
    return jnp.stack([jnp.asarray(values[name], jnp.int32) for name in FEATURES])


def step(table: Table, knobs: Knobs, state: State, act: Act, reply: Array, key: Array) -> tuple[State, TimeStep]:
    """One message and the reply to it.

    Search and verdict are the task's own and do not depend on the user, unless he leaves. A volunteered preference is
    picked by a hash of task and turn. Nothing is drawn.
    """
    seen = _look(table, knobs, state, act)
    finish, leave = act.code == Do.FINISH, reply == Reply.LEAVE
    told = jnp.where((reply == Reply.ANSWER), seen.fresh & -seen.fresh, 0)
    offered = jnp.where((reply == Reply.VOLUNTEER) & seen.talk, _one(seen.remaining, state.task * 7 + state.turn), 0)
    picks = seen.choice != ABSENT
    picked = state.picked | jnp.where(picks, seen.bit, 0)
    best = jnp.where(_rows(seen.bit) & picks, jnp.maximum(state.best, seen.choice), state.best)
    complete = ((seen.wanted & ~_mask(best == BEST)) == 0) & picks & (seen.choice == BEST)
    chosen_all = (seen.wanted & ~picked) == 0
    turn = state.turn + 1
    stop = first((complete | finish | (chosen_all & (knobs.end_when_all_chosen != 0)), stop_code(StopReason.COMPLETED)),
                 (seen.invalid >= knobs.max_invalid, stop_code(StopReason.PARSE_ERROR)),
                 (leave, stop_code(StopReason.USER_LEFT)),
                 (turn >= knobs.max_turns, stop_code(StopReason.MAX_TURNS)), otherwise=0)
    gone = jnp.where(picks & (knobs.one_choice != 0), _held_by(seen), 0)
    new = State(task=state.task, turn=turn, done=stop != 0, stop=stop, elicited=state.elicited | told | offered,
                dropped=state.dropped | gone & ~state.elicited, searched=state.searched | jnp.where(seen.found, seen.bit, 0),
                searches=seen.searches, picked=picked, chosen=seen.chosen, best=best,
                off_topic=jnp.where((told | offered) != 0, 0, seen.off_topic), invalid=seen.invalid,
                useless=seen.useless)
    said = _say(knobs, seen, act, reply, told, offered)
    shown = jnp.where(said == Say.OPTIONS, seen.bit << PREFERENCES, 0)
    left = jax.lax.population_count(seen.wanted & ~state.picked)
    reward = (jnp.where(told != 0, knobs.r_pref, 0.0) + jnp.where(seen.found, knobs.r_search, 0.0)
              + jnp.where(seen.choice == BEST, knobs.r_best, 0.0) + jnp.where(seen.choice == CORRECT, knobs.r_correct, 0.0)
              - jnp.where(seen.choice == WRONG, knobs.wrong_penalty, 0.0) - knobs.step_penalty
              - jnp.where(seen.unusable | (act.code == Do.MALFORMED), knobs.invalid_penalty, 0.0)
              - jnp.where(seen.repeat, knobs.repeat_penalty, 0.0) - jnp.where(finish, knobs.finish_penalty * left, 0.0))
    time_step = TimeStep(
        code=with_reward(said, knobs.show_reward_in_text), disclosed=told | offered | shown,
        reward=reward.astype(jnp.float32), discount=jnp.where(stop != 0, 0.0, 1.0).astype(jnp.float32), done=stop != 0,
        success=complete, stop=stop, tool=(said >= Say.OPTIONS) & (said <= Say.SEARCH_DOWN))
    return absorb(state, new, time_step)


def _look(table: Table, knobs: Knobs, state: State, act: Act) -> _Seen:
    code, held = act.code, jnp.asarray(table.held)[state.task]  # held [5]
    wanted = jnp.asarray(table.wanted)[state.task]
    everything = held[0] | held[1] | held[2] | held[3] | held[4]
    remaining = everything & ~state.elicited & ~state.dropped
    asked = jnp.where(code == Do.ASK, act.mask & everything, 0)
    fresh, known = asked & remaining, asked & ~remaining
    talk = (code >= Do.ASK) & (code <= Do.CHAT)
    aspect = jnp.clip(act.values[0].astype(jnp.int32), 0, len(ASPECTS) - 1)
    bit = jnp.int32(1) << aspect
    search = (code == Do.SEARCH) | (code == Do.SEARCH_BAD)
    searches, every = state.searches + search, knobs.search_fail_every
    down = search & (every > 0) & (searches % jnp.maximum(every, 1) == 0)
    right = (code == Do.SEARCH) & ((bit & wanted) != 0) & ~down
    again = right & ((bit & state.searched) != 0)
    option, pick = act.values[1].astype(jnp.int32), code == Do.PICK
    place = jnp.clip(option, 0, OPTIONS - 1)
    blocked = pick & (knobs.one_choice != 0) & ((bit & state.picked) != 0)
    own = held[aspect]
    ready = ((bit & state.searched) != 0) & (((own & state.elicited) != 0) | (own == 0))
    early = pick & ~blocked & (knobs.look_first != 0) & ~ready
    counts = pick & ~blocked & ~early
    fits = (option == place) & ((state.chosen[aspect] >> place & 1) == 0)
    kind = jnp.where(fits, jnp.asarray(table.options)[state.task, aspect, place], ABSENT)
    choice = jnp.where(counts, jnp.maximum(kind, WRONG), ABSENT)
    chosen = jnp.where(_rows(bit) & counts & (option == place), state.chosen | jnp.int32(1) << place, state.chosen)
    repeat = again | blocked | ((fresh == 0) & (known != 0))
    useless = (fresh == 0) & ~(right & ~again) & (choice == ABSENT) & (code != Do.FINISH)
    return _Seen(held=held, wanted=wanted, remaining=remaining, fresh=fresh, known=known, talk=talk,
                 no_such=(code == Do.ASK_NONE) | ((code == Do.ASK) & (asked == 0)), bit=bit, searches=searches, down=down,
                 found=right & ~again, again=again, blocked=blocked, early=early, choice=choice, chosen=chosen,
                 off_topic=state.off_topic + (talk & (fresh == 0)),
                 unusable=(code == Do.PICK_MANY) | (code == Do.PICK_BAD_ID), repeat=repeat,
                 invalid=state.invalid + (code == Do.MALFORMED), useless=state.useless + useless)


def _say(knobs: Knobs, seen: _Seen, act: Act, reply: Array, told: Array, offered: Array) -> Array:
    code, plain, several = act.code, knobs.plain != 0, jax.lax.population_count(seen.fresh | seen.known) > 1
    return first(
        (code == Do.FINISH, Say.ENDED), (code == Do.MALFORMED, Say.MALFORMED), (reply == Reply.LEAVE, Say.LEFT),
        (seen.down, Say.SEARCH_DOWN), (seen.again, Say.ALREADY_SEARCHED), (seen.found, Say.OPTIONS),
        ((code == Do.SEARCH) | (code == Do.SEARCH_BAD), Say.SEARCH_WRONG),
        (seen.blocked, Say.ALREADY_PICKED), (seen.early, Say.TOO_EARLY), (seen.choice == BEST, Say.BEST),
        (seen.choice == CORRECT, Say.CORRECT), (seen.choice == WRONG, Say.WRONG), (code == Do.PICK_MANY, Say.ONE_ONLY),
        (code == Do.PICK_BAD_ID, Say.BAD_ID),
        (offered != 0, jnp.where(plain, Say.VOLUNTEERED_PLAIN, Say.VOLUNTEERED)),
        (told != 0, jnp.where(plain, Say.REVEALED_PLAIN, Say.REVEALED)),
        ((reply == Reply.CLARIFY) & several, Say.ONE_AT_A_TIME), (reply == Reply.CLARIFY, Say.TOO_VAGUE),
        (seen.fresh != 0, Say.REFUSED), (seen.no_such | (seen.known != 0), Say.NO_SUCH),
        (code == Do.VAGUE, Say.TOO_VAGUE), otherwise=Say.NEUTRAL)


def _one(mask: Array, number: Array) -> Array:
    """The `number`-th slot of a mask, counted round and round; 0 for an empty mask."""
    turns = number % jnp.maximum(jax.lax.population_count(mask), 1)
    for taken in range(PREFERENCES):
        mask = jnp.where(taken < turns, mask & (mask - 1), mask)
    return mask & -mask


def _rows(bit: Array) -> Array:
    """A mask of aspects as bool[5]."""
    return (bit >> jnp.arange(len(ASPECTS)) & 1) != 0


def _mask(rows: Array) -> Array:
    """bool[5] as a mask of aspects."""
    return (rows.astype(jnp.int32) << jnp.arange(len(ASPECTS))).sum().astype(jnp.int32)


def _held_by(seen: _Seen) -> Array:
    """Mask of the preferences of the aspect searched or answered."""
    return jnp.where(_rows(seen.bit), seen.held, 0).sum().astype(jnp.int32)


def choices(task: Task, state: State, total: float) -> float:
    """Upstream's metric: the best answer of each aspect (best 1, correct 0.8), averaged over the task's aspects."""
    return float(sum(VALUE[int(state.best[ASPECTS.index(aspect)])] for aspect in task.data["dimensions"])
                 / len(task.data["dimensions"]))


travel = Env(
    name="travel", knobs=Knobs(), features=FEATURES,
    rules=resources.files("eau_jax.envs").joinpath("rules/travel.toml").read_text(encoding="utf-8"),
    table=table, reset=reset, observe=observe, step=step, prompt=text.prompt, parse=text.parse, render=text.render,
    disclosed=text.disclosed, secrets=text.secrets, score=choices, metric=choices, expert=text.expert, novice=text.novice,
    question=text.question, floor=Floor(guesses=0.16))
