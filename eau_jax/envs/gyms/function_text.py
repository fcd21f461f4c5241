"""Function in words: what the agent may do and the reply may say, and how text becomes one and comes from the other."""

import enum
import math
import re
from typing import Any

import numpy as np

from eau_jax.core.part import Act, Kind, TimeStep
from eau_jax.core.types import Task
from eau_jax.envs import message
from eau_jax.envs.gyms.function_tasks import VARIABLES, evaluate


class Do(enum.IntEnum):
    """`Act.code`."""

    MALFORMED = 0    # no act could be read
    PROBE = 1        # evaluates the function at `values`
    BAD_COUNT = 2    # a probe without exactly four numbers
    GET_CASE = 3     # asks for the test case
    BAD_SEARCH = 4   # a search for anything else
    SUBMIT = 5       # answers the number that travels as the pair values[0] + values[1]
    BAD_NUMBER = 6   # an answer that is not a number
    EMPTY = 7        # an empty answer
    FINISH = 8


class Say(enum.IntEnum):
    """`TimeStep.code`."""

    MALFORMED = 0    # how to write
    VALUE = 1        # the function's value
    BLOCKED = 2      # the test case cannot be probed
    NEED_FOUR = 3
    MATH_ERROR = 4   # the function has no value there
    SPENT = 5        # no probes left
    CASE = 6         # the test case
    BAD_SEARCH = 7
    CORRECT = 8
    WRONG = 9
    BAD_NUMBER = 10
    EMPTY = 11
    WITHHELD = 12
    UNCLEAR = 13
    LEFT = 14
    ENDED = 15


SYSTEM = ("Find the hidden function of a, b, c and d, and its value at the test case. It uses each variable once with "
          "+ - * / or a square. Write one of: [action] four numbers, to see its value there. [search] test, to see the "
          "test case. [answer] a number; few tries. [finish] to stop.")
OPENING = "What is the value at the test case?"

_WORDS = {
    Say.MALFORMED: "I cannot read that. Write [action], [search], [answer] or [finish].",
    Say.BLOCKED: "You cannot try the test case itself, nor come so near.",
    Say.NEED_FOUR: "Give exactly four numbers.",
    Say.MATH_ERROR: "No value there.",
    Say.SPENT: "No tries left.",
    Say.BAD_SEARCH: "Only [search] test is possible.",
    Say.CORRECT: "Correct.",
    Say.WRONG: "Wrong. Try again.",
    Say.BAD_NUMBER: "That is not a number.",
    Say.EMPTY: "The answer is empty.",
    Say.WITHHELD: "Not now.",
    Say.UNCLEAR: "Please be clearer.",
    Say.LEFT: "I have to go. Goodbye.",
    Say.ENDED: "Goodbye.",
}
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_LARGEST = float(np.finfo(np.float32).max)


def prompt(task: Task) -> tuple[str, str]:
    """(system text, the first message). The rule and the test case stay hidden."""
    return SYSTEM, OPENING


def parse(task: Task, text: str, state: Any) -> Act:
    """The agent's text as an act. Never raises; what cannot be read is MALFORMED. `task` and `state` do not matter."""
    kind, content = message.split(text)
    if kind is Kind.ACTION:
        numbers = [float(number) for number in _NUMBER.findall(content)]
        if len(numbers) != 4:
            return message.act(kind, Do.BAD_COUNT)
        return message.act(kind, Do.PROBE, values=tuple(_single(number) for number in numbers))
    if kind is Kind.SEARCH:
        return message.act(kind, Do.GET_CASE if content.lower().rstrip(".") == "test" else Do.BAD_SEARCH)
    if kind is Kind.ANSWER:
        return _answer(content)
    if kind is Kind.FINISH:
        return message.act(kind, Do.FINISH)
    return message.act(Kind.MALFORMED, Do.MALFORMED)


def render(task: Task, act: Act, time_step: TimeStep, state: Any, seed: int) -> str:
    """The reply. Values are computed in float64 and rounded to four places."""
    say = Say(message.reply_code(time_step))
    if say is Say.VALUE:
        value = evaluate(task.data["rule"], tuple(float(number) for number in act.values))
        body = _WORDS[Say.MATH_ERROR] if value is None else f"The value is {_plain(round(value, 4))}."
    elif say is Say.CASE:
        pairs = zip(VARIABLES, task.data["test_case"], strict=True)
        body = f"The test case is {', '.join(f'{name}={_plain(number)}' for name, number in pairs)}."
    else:
        body = "Wrong." if say is Say.WRONG and time_step.done else _WORDS[say]
    return body + message.reward_note(time_step)


def disclosed(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """Nothing: this world has no slots."""
    return ()


def secrets(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """The rule's text, which no reply may contain."""
    return (task.data["rule"],)


def expert(task: Task, state: Any, rng: np.random.Generator) -> str:
    """Looks at the test case, tries one or two points of small numbers, then gives the right answer."""
    if not bool(state.seen_case):
        return "[search] test"
    wanted = 1 + int(task.data["test_case"][0]) % 2
    if int(state.probes) < wanted:
        return f"[action] {' '.join(map(str, _other_point(task, rng)))}"
    return f"[answer] {_plain(float(task.data['expected_result']))}"


def novice(task: Task, state: Any, rng: np.random.Generator) -> str:
    """A mediocre agent: random tries, wrong counts, early and near answers; about one answer in five is right."""
    draw = rng.random()
    if draw < 0.25:
        return "[search] test"
    if draw < 0.60:
        return f"[action] {' '.join(map(str, _other_point(task, rng)))}"
    if draw < 0.70:
        return f"[action] {' '.join(map(str, rng.integers(1, 11, 3)))}"
    if draw < 0.80:
        return "[finish]"
    error = 0 if rng.random() < 0.4 else int(rng.integers(-9, 10))
    return f"[answer] {_plain(float(task.data['expected_result']) + error)}"


def _answer(content: str) -> Act:
    if not content:
        return message.act(Kind.ANSWER, Do.EMPTY)
    try:
        number = float(content)
    except ValueError:
        return message.act(Kind.ANSWER, Do.BAD_NUMBER)
    if not math.isfinite(number):
        return message.act(Kind.ANSWER, Do.BAD_NUMBER)
    high = _single(number)
    return message.act(Kind.ANSWER, Do.SUBMIT, values=(high, _single(number - high)))


def _single(number: float) -> float:
    """The nearest float32 number, as a Python float; too large ones become the largest."""
    return float(np.float32(min(max(number, -_LARGEST), _LARGEST)))


def _other_point(task: Task, rng: np.random.Generator) -> list[int]:
    """Four numbers from 1 to 10 that are not the test case."""
    while True:
        point = rng.integers(1, 11, 4).tolist()
        if point != task.data["test_case"]:
            return point


def _plain(number: float) -> str:
    """A number without a needless ".0"."""
    return str(int(number)) if number == int(number) and abs(number) < 1e15 else repr(float(number))
