"""An episode of tau2-bench on the array path: the user's machine, the endings and the rewards of `tau2.world`, as arrays.

What a domain's tools do to the records is a function `write`, passed to `step`; the records are a slice of the database,
see `tau2.slice`.
"""

import functools
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from eau_jax.core.part import Act, Reply, TimeStep
from eau_jax.core.types import Array, StopReason, Task
from eau_jax.envs.ending import absorb, first, stop_code
from eau_jax.envs.tau2.plan import DETAILS, FIRST, GOALS
from eau_jax.envs.tau2.user import AGREED, CALLED, OPEN, REFUSED, SETTLED, Do, Say
from eau_jax.envs.tau2.episode import FEATURES, IDENTITY, Knobs

OUTSIDE = 8              # `Act.code` of a write to a record outside the slice; mask: digest of all such records
WRITE = 9                # first `Act.code` of a domain's own writes; the codes below are `tau2.user.Do`
FAILED, HANDOVER = 1, 2  # `Act.flags` of a tool call: it fails; the user is handed over
MATCH = 2                # bit MATCH + g: it is the write that goal g wants
SAID = 11                # bit SAID + k of words: they hold the string k that has to be communicated
STRINGS = 31 - SAID


@struct.dataclass(kw_only=True)
class Table:
    """One row a task, `shared` aside."""

    shared: Any         # what the tools read of every task: prices and the like
    fixed: Any          # what they read of this one
    start: Any          # the slice at the start
    gold: Any           # [tasks, 2, ...] the slice that the gold actions leave, by knob last_item_wins
    goals: Array        # [tasks] i32: how many
    writes: Array       # [tasks] i32: mask of the goals that want a write
    known: Array        # [tasks] i32: mask of the slots that the user can tell
    needed: Array       # [tasks] i32: mask of the strings to be communicated
    by_db: Array        # [tasks] bool: DB is part of the basis
    by_words: Array     # [tasks] bool: COMMUNICATE is


@struct.dataclass(kw_only=True)
class State:
    task: Array         # [] i32: row of the table
    turn: Array         # [] i32: messages so far
    done: Array         # [] bool
    stop: Array         # [] i32, as in TimeStep
    slice: Any          # the customer's records
    outside: Array      # [] i32: digest of the other records that were written to; 0: none
    told: Array         # [] i32: mask of the slots told so far
    status: Array       # [GOALS] i32; REFUSED where there is no such goal
    made: Array         # [] i32: mask of the goals whose write was called
    said: Array         # [] i32: mask of the strings communicated
    insisted: Array     # [] i32: on the current goal
    invalid: Array      # [] i32
    errors: Array       # [] i32
    useless: Array      # [] i32
    calls: Array        # [] i32: tool calls so far
    failed: Array       # [] bool: the last tool call failed
    transferred: Array  # [] bool
    solved: Array       # [] bool: the reward was 1


class _Answer(NamedTuple):
    """What the user does about words."""

    say: Array          # [] i32, a Say
    told: Array         # [] i32: mask
    status: Array       # [GOALS] i32
    insisted: Array     # [] i32
    useless: Array      # [] bool


def reset(table: Table, knobs: Knobs, index: Array, key: Array) -> State:
    """The state before the first message about task `index`. Nothing is drawn."""
    zero, off, index = jnp.int32(0), jnp.bool_(False), jnp.asarray(index, jnp.int32)
    status = jnp.where(jnp.arange(GOALS) < jnp.asarray(table.goals)[index], OPEN, REFUSED).astype(jnp.int32)
    return State(task=index, turn=zero, done=off, stop=zero, slice=_at(table.start, index), outside=zero, told=zero,
                 status=status, made=zero, said=zero, insisted=zero, invalid=zero, errors=zero, useless=zero, calls=zero,
                 failed=off, transferred=off, solved=off)


def observe(table: Table, knobs: Knobs, state: State, act: Act) -> Array:
    """The features that the rules read, in the order of FEATURES.  -> i32[F]"""
    code, count = act.code, jax.lax.population_count
    known, (current, none) = jnp.asarray(table.known)[state.task], _current(state.status)
    status = jnp.where(none, OPEN, state.status[current])
    values = dict(
        call=_is_call(code), ask=code == Do.ASK, propose=code == Do.PROPOSE, refuse=code == Do.REFUSE, next=code == Do.NEXT,
        transfer=code == Do.TRANSFER, other=code == Do.OTHER, malformed=code == Do.MALFORMED,
        asked=jnp.where(_is_call(code), 0, count(act.mask)),
        fresh=jnp.where(_is_call(code), 0, count(act.mask & known & ~state.told)),
        fit=jnp.where(_is_call(code), 0, act.values[1]), strict=knobs.confirm_strict, turn=state.turn + 1,
        open=jnp.sum(state.status < SETTLED), agreed=status == AGREED, called=status == CALLED, insisted=state.insisted,
        errors=state.errors, invalid=state.invalid + (code == Do.MALFORMED), patience=knobs.patience - state.useless)
    return jnp.stack([jnp.asarray(values[name], jnp.int32) for name in FEATURES])


def score(task: Task, state: State, total: float) -> float:
    """1 where the task is solved, else 0, whatever the knobs pay."""
    return float(state.solved)


def step(write: Callable[..., tuple[Any, Array]], table: Table, knobs: Knobs, state: State, act: Act, reply: Array,
          key: Array) -> tuple[State, TimeStep]:
    """One message and the reply to it, as `tau2.world` has it. Nothing is drawn. A tool call does its work whatever the
    user decides."""
    code, is_call = act.code, _is_call(act.code)
    malformed = code == Do.MALFORMED
    talks = ~is_call & ~malformed
    records, failed = write(table.shared, _at(table.fixed, state.task), state.slice, knobs, act)
    failed = is_call & jnp.where(code >= WRITE, failed, act.flags & FAILED != 0)
    answer = _answer(table, knobs, state, act, reply)
    fits = jnp.where(is_call, act.flags >> MATCH, 0) & (1 << jnp.asarray(table.goals)[state.task]) - 1
    waits = (fits >> jnp.arange(GOALS) & 1 == 1) & (state.status < CALLED)
    called = jnp.where(waits & (jnp.cumsum(waits) == 1), CALLED, state.status)
    current, _ = _current(state.status)
    told = jnp.where(talks, answer.told, 0)
    new = state.replace(
        turn=state.turn + 1, slice=records, outside=jnp.where(code == OUTSIDE, act.mask, state.outside),
        told=state.told | told,
        status=jnp.where(talks, answer.status, called).astype(jnp.int32), made=state.made | fits,
        said=state.said | jnp.where(talks, act.flags >> SAID, 0),
        insisted=jnp.where(talks, jnp.where(_current(answer.status)[0] == current, answer.insisted, 0), state.insisted),
        invalid=state.invalid + malformed, errors=state.errors + failed,
        useless=state.useless + (malformed | talks & answer.useless), calls=state.calls + is_call,
        failed=jnp.where(is_call, failed, state.failed),
        transferred=state.transferred | is_call & (act.flags & HANDOVER != 0))
    say = first((is_call, Say.TOOL), (malformed, Say.MALFORMED), otherwise=answer.say)
    completed = (say == Say.STOP) | (say == Say.TRANSFERRED)
    stop = first(
        (is_call & (new.errors >= knobs.error_limit), stop_code(StopReason.TOOL_ERROR)),
        (malformed & (new.invalid >= knobs.max_invalid), stop_code(StopReason.PARSE_ERROR)),
        (completed, stop_code(StopReason.COMPLETED)), (say == Say.LEFT, stop_code(StopReason.USER_LEFT)),
        (new.turn >= knobs.max_turns, stop_code(StopReason.MAX_TURNS)), otherwise=0)
    solved, share = _outcome(table, knobs, new)
    solved = completed & solved
    reward = jnp.where(solved, 1.0, jnp.where(completed, knobs.partial_credit * share, 0.0)).astype(jnp.float32)
    new = new.replace(done=stop != 0, stop=stop, solved=solved)
    return absorb(state, new, TimeStep(
        code=say, disclosed=told, reward=reward, discount=jnp.where(stop != 0, 0.0, 1.0).astype(jnp.float32), done=stop != 0,
        success=solved, stop=stop, tool=is_call | malformed))


def _answer(table: Table, knobs: Knobs, state: State, act: Act, reply: Array) -> _Answer:
    code, status, places = act.code, state.status, jnp.arange(GOALS)
    known, goals = jnp.asarray(table.known)[state.task], jnp.asarray(table.goals)[state.task]
    current, none = _current(status)
    here = status[current]
    tool = jnp.asarray(table.writes)[state.task] >> current & 1 == 1
    proposed = jnp.clip(act.values[0].astype(jnp.int32), 0, goals - 1)
    fits = act.values[1] >= 0
    settles = ((code == Do.NEXT) & ((here == AGREED) | (here == CALLED) | ~tool)
               | (code == Do.OTHER) & ((here == CALLED) | (current > 0) & ~tool))
    settled = jnp.where((status == CALLED) | (places == current), SETTLED, status)
    refused = jnp.where(places == current, REFUSED, status)
    agreed = jnp.where(places == proposed, jnp.maximum(status, AGREED), status)
    goes_on = lambda left: jnp.where(jnp.any(left < SETTLED), Say.CHANGE, Say.STOP)
    propose = (code == Do.PROPOSE) & ~none
    say = first(
        (reply == Reply.LEAVE, Say.LEFT), (code == Do.TRANSFER, Say.TRANSFERRED), (reply == Reply.WITHHOLD, Say.WITHHELD),
        (reply == Reply.CLARIFY, Say.UNCLEAR), (reply == Reply.VOLUNTEER, Say.VOLUNTEER), (code == Do.ASK, Say.GIVE),
        (propose & ~fits & (knobs.correct_on_mismatch != 0), Say.CORRECT), (propose & ~fits, Say.NO), (propose, Say.YES),
        (none, Say.STOP), (settles, goes_on(settled)), (code == Do.OTHER, Say.GO_ON),
        (state.insisted < knobs.insist_n, Say.INSIST), otherwise=goes_on(refused))
    moves = ~none & ((say == Say.CHANGE) | (say == Say.STOP))
    after = jnp.where(moves, jnp.where(settles, settled, refused), jnp.where(say == Say.YES, agreed, status))
    slots = lambda goal: jnp.left_shift(0b111, FIRST + 3 * goal)
    hidden = known & ~state.told & (IDENTITY | jnp.where(none, 0, slots(current)))
    every = (knobs.reveal_goals != 0) & ~none & (act.mask >> (FIRST + 3 * current + DETAILS) & 1 == 1)
    asked = act.mask | jnp.where(every, sum(1 << FIRST + 3 * place + DETAILS for place in range(GOALS)), 0)
    told = first((say == Say.VOLUNTEER, hidden & -hidden), (say == Say.GIVE, asked & known),
                 (say == Say.CORRECT, slots(proposed) & known), otherwise=0)
    is_one = lambda *says: functools.reduce(jnp.logical_or, [say == each for each in says])
    introduces = ((knobs.volunteer_id != 0) & (state.told & IDENTITY == 0)
                  & is_one(Say.GIVE, Say.YES, Say.CORRECT, Say.CHANGE))
    told = told | jnp.where(introduces, known & IDENTITY, 0)
    useless = (told & ~state.told == 0) & is_one(Say.GIVE, Say.CORRECT, Say.NO, Say.UNCLEAR, Say.WITHHELD, Say.GO_ON)
    insisted = jnp.where(moves, 0, state.insisted + (say == Say.INSIST))
    return _Answer(say, told, after, insisted, useless)


def _outcome(table: Table, knobs: Knobs, state: State) -> tuple[Array, Array]:
    """(the task is solved as things stand, share of the wanted writes that were called)."""
    count, task = jax.lax.population_count, state.task
    wins = (knobs.last_item_wins != 0).astype(jnp.int32)
    alike = jax.tree.map(lambda wanted, found: jnp.all(jnp.asarray(wanted)[task, wins] == found), table.gold, state.slice)
    db = functools.reduce(jnp.logical_and, jax.tree.leaves(alike)) & (state.outside == 0)
    said = jnp.asarray(table.needed)[task] & ~state.said == 0
    by_db = jnp.asarray(table.by_db)[task] & (knobs.basis_db != 0)
    by_words = jnp.asarray(table.by_words)[task] & (knobs.basis_communicate != 0)
    writes = jnp.asarray(table.writes)[task]
    share = count(writes & state.made) / jnp.maximum(count(writes), 1)
    return (by_db | by_words) & (db | ~by_db) & (said | ~by_words), share


def _is_call(code: Array) -> Array:
    return (code == Do.CALL) | (code >= OUTSIDE)


def _current(status: Array) -> tuple[Array, Array]:
    """(the goal that the talk is about, whether there is none)."""
    left = status < SETTLED
    return jnp.argmax(left).astype(jnp.int32), ~jnp.any(left)


def _at(tree: Any, index: Array) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], tree)
