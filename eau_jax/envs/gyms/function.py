"""Function: a hidden rule over a, b, c, d; the agent tries numbers and answers its value at a test case.

The array simulator. Rewards follow UserRL's FunctionGym (Qian et al. 2025): 1 for an answer within `tol` of the
expected result, which ends the task, else 0. There wrong answers never end it; here the third does, because counting up
finds one result in five. The step penalty grows with the turn.
"""

from importlib import resources
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import Act, Env, Floor, Reply, TimeStep
from eau_jax.core.types import Array, StopReason, Task
from eau_jax.envs.gyms import function_text as text
from eau_jax.envs.ending import absorb, first, stop_code, total_return
from eau_jax.envs.gyms.function_tasks import LENGTH, Op, check, program
from eau_jax.envs.gyms.function_text import Do, Say
from eau_jax.envs.message import with_reward

FEATURES = (
    "probe",       # 1: the message tries four numbers
    "get_case",    # 1: it asks for the test case
    "submit",      # 1: it answers a number
    "unusable",    # 1: it can be read, but its content is wrong (count, search, not a number, empty)
    "malformed",   # 1: it cannot be read
    "turn",        # number of this message, from 1
    "probes",      # probes evaluated before this message
    "seen_case",   # 1: the test case was shown before this message
    "repeat_run",  # messages in a row equal to the one before them, this one included
    "invalid",     # malformed messages so far, this one included
    "patience",    # env.patience less the useless messages so far, this one included
)


@struct.dataclass
class Knobs:
    """Defaults are upstream's rewards and endings, except where a line names another value.

    Upstream's evaluator alone ends at the first unreadable message.
    """

    max_turns: int = knob(16, 1, 64, "agent messages after which the task ends")
    max_invalid: int = knob(3, 1, 64, "unreadable agent messages after which the task ends as PARSE_ERROR")
    patience: int = knob(64, 1, 64, "useless messages the user bears; the default rules leave when none is left")
    max_probe: int = knob(64, 0, 64, "probes that are evaluated; further ones are refused")
    block_radius: float = knob(0.5, 0.0, 10.0, "probes whose four numbers are all this near the test case's are refused, "
                                              "because rounding their value gives the answer; upstream: 0")
    tol: float = knob(1e-6, 1e-9, 10.0, "largest absolute error of a correct answer", log=True, trust=10.0, reward=True)
    r_correct: float = knob(1.0, -1.0, 1.0, "reward for a correct answer", reward=True)
    r_wrong: float = knob(0.0, -1.0, 1.0, "reward for a wrong answer", reward=True)
    max_wrong: int = knob(3, 1, 64, "wrong answers after which the task ends; upstream: 64, more than there are messages")
    probe_cost: float = knob(0.0, 0.0, 1.0, "reward lost for each evaluated probe", reward=True)
    step_penalty: float = knob(0.0, 0.0, 1.0, "reward lost in each message, times its number", reward=True)
    invalid_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for a message that is unreadable or of wrong content",
                                  reward=True)
    repeat_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for repeating the message before", reward=True)
    finish_penalty: float = knob(0.0, 0.0, 1.0, "reward lost for finishing without a correct answer", reward=True)
    show_reward_in_text: int = knob(0, 0, 1, "1: the reply states the reward, as in upstream's training")


@struct.dataclass(kw_only=True)
class Table:
    program: Array      # [tasks, LENGTH] i32: postfix codes
    case: Array         # [tasks, 4] f32
    expected: Array     # [tasks, 2] f32: the expected result as a pair, see Act.values


@struct.dataclass(kw_only=True)
class State:
    task: Array         # [] i32: row of the table
    turn: Array         # [] i32: messages so far
    done: Array         # [] bool
    stop: Array         # [] i32, as in TimeStep
    probes: Array       # [] i32: probes evaluated so far
    wrong: Array        # [] i32: wrong answers so far
    seen_case: Array    # [] bool
    last_code: Array    # [] i32: act of the message before, -1 at the start
    last_values: Array  # [4] f32
    repeat_run: Array   # [] i32
    invalid: Array      # [] i32: unreadable messages so far
    useless: Array      # [] i32: messages so far that could not teach the agent anything


class _Seen(NamedTuple):
    """What the act means in this state; counts include this message."""

    unusable: Array     # [] bool
    malformed: Array    # [] bool
    repeat: Array       # [] bool
    repeat_run: Array   # [] i32
    invalid: Array      # [] i32
    useless: Array      # [] i32


def table(tasks: tuple[Task, ...]) -> Table:
    """Programs, test cases and expected results, one row a task.

    Raises:
      ValueError: for a task that is not a function record; it names the task and the field.
    """
    programs, cases, expected = [], [], []
    for task in tasks:
        try:
            check(task.data)
        except ValueError as error:
            raise ValueError(f"task {task.id!r}, field {error}") from None
        programs.append(program(task.data["rule"]))
        cases.append(task.data["test_case"])
        high = float(np.float32(task.data["expected_result"]))
        expected.append((high, float(task.data["expected_result"]) - high))
    return Table(program=np.array(programs, np.int32), case=np.array(cases, np.float32),
                 expected=np.array(expected, np.float32))


def reset(table: Table, knobs: Knobs, index: Array, key: Array) -> State:
    """The state before the first message about task `index`. Nothing is drawn: a task has one user."""
    zero, no = jnp.int32(0), jnp.bool_(False)
    return State(task=jnp.asarray(index, jnp.int32), turn=zero, done=no, stop=zero, probes=zero, wrong=zero, seen_case=no,
                 last_code=jnp.int32(-1), last_values=jnp.zeros(4, jnp.float32), repeat_run=zero, invalid=zero,
                 useless=zero)


def observe(table: Table, knobs: Knobs, state: State, act: Act) -> Array:
    """The features that the rules read, in the order of FEATURES.  -> i32[F]"""
    seen = _look(state, act)
    values = dict(
        probe=act.code == Do.PROBE, get_case=act.code == Do.GET_CASE, submit=act.code == Do.SUBMIT,
        unusable=seen.unusable, malformed=seen.malformed, turn=state.turn + 1, probes=state.probes,
        seen_case=state.seen_case, repeat_run=seen.repeat_run, invalid=seen.invalid,
        patience=knobs.patience - seen.useless)
    return jnp.stack([jnp.asarray(values[name], jnp.int32) for name in FEATURES])


def step(table: Table, knobs: Knobs, state: State, act: Act, reply: Array, key: Array) -> tuple[State, TimeStep]:
    """One message and the reply to it. Nothing is drawn.

    A user who does not ANSWER keeps values and the test case to himself; VOLUNTEER shows the test case. The verdict on
    a submitted number is the task's own and does not depend on him.
    """
    seen, code = _look(state, act), act.code
    case, expected = jnp.asarray(table.case)[state.task], jnp.asarray(table.expected)[state.task]  # [4], [2]
    error = (act.values[0] - expected[0]) + (act.values[1] - expected[1])  # exact where it is small
    submit, finish = code == Do.SUBMIT, code == Do.FINISH
    correct = submit & (jnp.abs(error) <= knobs.tol)
    wrong = submit & ~correct
    answers = state.wrong + wrong
    answer, leave = reply == Reply.ANSWER, reply == Reply.LEAVE
    blocked, spent = (jnp.abs(act.values - case) <= knobs.block_radius).all(), state.probes >= knobs.max_probe
    probed = (code == Do.PROBE) & answer & ~blocked & ~spent
    _, exists = run(jnp.asarray(table.program)[state.task], act.values)
    volunteer = (reply == Reply.VOLUNTEER) & ~submit & ~finish & ~seen.malformed
    shown = ((code == Do.GET_CASE) & answer) | volunteer
    turn = state.turn + 1
    stop = first((correct | finish | (wrong & (answers >= knobs.max_wrong)), stop_code(StopReason.COMPLETED)),
                 (seen.invalid >= knobs.max_invalid, stop_code(StopReason.PARSE_ERROR)),
                 (leave, stop_code(StopReason.USER_LEFT)),
                 (turn >= knobs.max_turns, stop_code(StopReason.MAX_TURNS)), otherwise=0)
    said = first(
        (finish, Say.ENDED), (seen.malformed, Say.MALFORMED), (correct, Say.CORRECT), (leave, Say.LEFT),
        (wrong, Say.WRONG), (shown, Say.CASE), (code == Do.BAD_COUNT, Say.NEED_FOUR),
        (code == Do.BAD_SEARCH, Say.BAD_SEARCH), (code == Do.BAD_NUMBER, Say.BAD_NUMBER),
        (code == Do.EMPTY, Say.EMPTY), (reply == Reply.CLARIFY, Say.UNCLEAR),
        (~answer, Say.WITHHELD), (blocked, Say.BLOCKED), (spent, Say.SPENT), (~exists, Say.MATH_ERROR),
        otherwise=Say.VALUE)
    reward = (jnp.where(correct, knobs.r_correct, 0.0) + jnp.where(wrong, knobs.r_wrong, 0.0)
              - jnp.where(probed, knobs.probe_cost, 0.0) - knobs.step_penalty * turn
              - jnp.where(seen.unusable | seen.malformed, knobs.invalid_penalty, 0.0)
              - jnp.where(seen.repeat, knobs.repeat_penalty, 0.0) - jnp.where(finish, knobs.finish_penalty, 0.0))
    new = State(task=state.task, turn=turn, done=stop != 0, stop=stop, probes=state.probes + probed, wrong=answers,
                seen_case=state.seen_case | shown, last_code=code, last_values=act.values, repeat_run=seen.repeat_run,
                invalid=seen.invalid, useless=seen.useless)
    time_step = TimeStep(code=with_reward(said, knobs.show_reward_in_text), disclosed=jnp.int32(0),
                         reward=reward.astype(jnp.float32), discount=jnp.where(stop != 0, 0.0, 1.0).astype(jnp.float32),
                         done=stop != 0, success=correct, stop=stop, tool=jnp.bool_(False))
    return absorb(state, new, time_step)


def run(codes: Array, numbers: Array) -> tuple[Array, Array]:
    """A postfix program on a stack of four.  i32[LENGTH], f32[4] -> (value f32[], whether it exists bool[])

    A value exists where no intermediate result is infinite or not a number.
    """
    top, second, third, fourth = (jnp.float32(0),) * 4
    exists = jnp.bool_(True)
    for position in range(LENGTH):
        code = codes[position]
        pushed = numbers[3]
        for name in (Op.C, Op.B, Op.A):
            pushed = jnp.where(code == name, numbers[name], pushed)
        combined = _combine(code, second, top) if position >= 2 else top  # nothing can be combined before
        push, binary, square = code <= Op.D, (code >= Op.ADD) & (code <= Op.POW), code == Op.SQUARE
        new_top = jnp.where(push, pushed, jnp.where(binary, combined, jnp.where(square, top * top, top)))
        top, second, third, fourth = (new_top, jnp.where(push, top, jnp.where(binary, third, second)),
                                      jnp.where(push, second, jnp.where(binary, fourth, third)),
                                      jnp.where(push, third, fourth))
        exists = exists & jnp.isfinite(top)
    return top, exists


def _combine(code: Array, left: Array, right: Array) -> Array:
    combined = jnp.power(left, right)
    for name, value in ((Op.ADD, left + right), (Op.SUB, left - right), (Op.MUL, left * right), (Op.DIV, left / right)):
        combined = jnp.where(code == name, value, combined)
    return combined


def _look(state: State, act: Act) -> _Seen:
    code = act.code
    unusable = (code == Do.BAD_COUNT) | (code == Do.BAD_SEARCH) | (code == Do.BAD_NUMBER) | (code == Do.EMPTY)
    malformed = code == Do.MALFORMED
    repeat = (code == state.last_code) & (act.values == state.last_values).all()
    return _Seen(unusable=unusable, malformed=malformed, repeat=repeat,
                 repeat_run=jnp.where(repeat, state.repeat_run + 1, 0), invalid=state.invalid + malformed,
                 useless=state.useless + (unusable | malformed | repeat))


def score(task: Task, state: State, total: float) -> float:
    """The return clipped to 0..1; 1 means solved under upstream's rewards."""
    return float(np.clip(total, 0.0, 1.0))


function = Env(
    name="function", knobs=Knobs(), features=FEATURES,
    rules=resources.files("eau_jax.envs").joinpath("rules/function.toml").read_text(encoding="utf-8"),
    table=table, reset=reset, observe=observe, step=step, prompt=text.prompt, parse=text.parse, render=text.render,
    disclosed=text.disclosed, secrets=text.secrets, score=score, metric=total_return, expert=text.expert, novice=text.novice,
    floor=Floor(guesses=0.05))
