"""The opt-in lane of rules in Python: a function of a few features becomes a decision list before anything is played.

What a function reads has few values (`python_code.MOST_CELLS` combinations at most), so all that it can ever do is a
table. A process of its own (`clients/executor.py`) makes the table once, at the gate, from the ranges alone: no task, state
or dialogue is within its reach, so whatever the code does, what comes back is one reply for each combination. The table is
then written as a decision list (`boxes.py`), which is checked, adopted, kept in the journal, replayed and taken back like
any other. While episodes run there is no Python of a proposer left to run, to fail or to be late.

A feature beyond its range is seen as the nearest end of it.
"""

import json
from typing import Sequence

import numpy as np

from eau_jax.clients.executor import Executor, Limits, Outcome, Result
from eau_jax.core.types import InfraError
from eau_jax.meta.boxes import Box, boxes
from eau_jax.meta.proposal import Python
from eau_jax.meta.python_code import NAME, REPLIES, PythonError, check
from eau_jax.users.rules import CAPACITY, HIGHEST, LOWEST, Rules, dump

LIMITS = Limits(call_seconds=0.25, cpu_seconds=2, wall_seconds=20.0, memory=64 * 2**20, output=1000, results=64 * 2**10)
WALLS = ("landlock", "seccomp")   # without the kernel's own, nothing is run
CHUNK = 1900                      # cells of one call: the executor gives longer texts back as a hash

_HARNESS = """
def _table(ranges, names, first, last):
    said = ""
    for cell in range(first, last):
        place, rest = [], cell
        for low, high in reversed(ranges):
            rest, step = divmod(rest, high - low + 1)
            place.insert(0, low + step)
        try:
            given = reply(*place)
        except Exception as error:
            return f"! {place} it raises {type(error).__name__}: {error}"[:300].rstrip(": ")
        if type(given) is not str or given not in names:
            return f"! {place} it returns {given!r:.80}; it must return one of {', '.join(names)}"
        said += str(names.index(given))
    return said
"""


def sandbox() -> Executor:
    """What runs the functions of proposers.

    Raises:
      ValueError: where this machine does not offer WALLS.
      InfraError: where no process can be started.
    """
    return Executor(LIMITS, packages=(), require=WALLS)


def compiled(python: Python, features: Sequence[str], executor: Executor) -> str:
    """The decision list that decides as the function does, as TOML text with the function above it as a comment.

    Raises:
      PythonError: for a function that is not allowed, raises, is late, takes too much memory, returns anything but the name
        of a reply, gives another table the second time, or needs more than CAPACITY rules.
      InfraError: when the machine failed, so that nothing is known of the function.
    """
    code, order = check(python.code, python.reads, features)
    ranges = [tuple(python.reads[feature]) for feature in order]
    first, second = (_table(code, order, ranges, executor) for _ in range(2))
    if (first != second).any():
        raise PythonError("it gives another table when it is run again; a rule must depend on what it reads alone")
    default, found = boxes(first)
    if len(found) > CAPACITY:
        raise PythonError(f"its table needs {len(found)} rules; at most {CAPACITY} fit. Read fewer features, narrower "
                          f"ranges, or make it more regular")
    head = ["Made from the table of this function:", "", *code.split("\n"), "",
            *(f"{feature} as {low} to {high}" for feature, (low, high) in zip(order, ranges, strict=True)), ""]
    text = dump(_rules(default, found, order, ranges, features), features)
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + text


def _table(code: str, order: Sequence[str], ranges: Sequence[tuple[int, int]], executor: Executor) -> np.ndarray:
    """The reply at each combination, i64[sizes of the ranges]."""
    sizes = [high - low + 1 for low, high in ranges]
    cells = int(np.prod(sizes))     # at most MOST_CELLS, see `check`
    calls = tuple(f"_table({tuple(ranges)!r}, {REPLIES!r}, {first}, {min(first + CHUNK, cells)})"
                  for first in range(0, cells, CHUNK))
    said = "".join(_text(result, order) for result in _run(code + _HARNESS, calls, executor))
    if len(said) != cells or set(said) - set("01234"[:len(REPLIES)]):
        raise PythonError("its table cannot be read")
    return np.array([int(letter) for letter in said]).reshape(sizes)


def _run(code: str, calls: tuple[str, ...], executor: Executor) -> tuple[Result, ...]:
    """Once more where the machine failed: no function within its processor time is late by the clock."""
    try:
        return _run_once(code, calls, executor)
    except InfraError:
        return _run_once(code, calls, executor)


def _run_once(code: str, calls: tuple[str, ...], executor: Executor) -> tuple[Result, ...]:
    results = executor.run(code, calls)
    if any(result.outcome is Outcome.TIMEOUT and "wall-clock" in result.text for result in results):
        raise InfraError(f"the process that runs {NAME} got no processor time: the machine is overloaded")
    return results


def _text(result: Result, order: Sequence[str]) -> str:
    """One letter for each combination of a call."""
    if result.outcome is not Outcome.AGREES:
        raise PythonError(f"running it ends with {result.outcome.value}: {result.text}"[:400])
    try:
        said = str(json.loads(result.text))
    except ValueError:
        raise PythonError("its table cannot be read") from None
    if said.startswith("! "):
        place, _, what = said[2:].partition("] ")
        at = ", ".join(f"{name} = {value}" for name, value in zip(order, place.lstrip("[").split(", ")))
        raise PythonError(f"at {at} {what}")
    return said


def _rules(default: int, found: Sequence[Box], order: Sequence[str], ranges: Sequence[tuple[int, int]],
           features: Sequence[str]) -> Rules:
    """Boxes over places in the table as rules over features; one that touches the end of a range goes on beyond it."""
    low = np.full((CAPACITY, len(features)), LOWEST, np.int32)
    high = np.full((CAPACITY, len(features)), HIGHEST, np.int32)
    reply = np.zeros(CAPACITY, np.int32)
    for row, box in enumerate(found):
        for axis, (feature, (least, most)) in enumerate(zip(order, ranges, strict=True)):
            column = list(features).index(feature)
            low[row, column] = least + box.low[axis] if box.low[axis] > 0 else LOWEST
            high[row, column] = least + box.high[axis] if least + box.high[axis] < most else HIGHEST
        reply[row] = box.value
    return Rules(low=low, high=high, reply=reply, count=np.int32(len(found)), default=np.int32(default))
