"""Function tasks: the upstream record, its rule as a postfix program, a generator and a loader.

A record is {`id`, `rule` (an expression in which each of a, b, c, d occurs once), `test_case` [4 numbers],
`expected_result`}. Rules use + - * / and ** with 2 or a variable as exponent: 7 to 9 postfix codes, a stack of at most
4.
"""

import ast
import enum
import functools
import hashlib
import math
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.envs.generator import draw

LENGTH = 9        # codes of a program, padded with PAD
VARIABLES = "abcd"
BESIDE = "functions.json"
GYM = "FunctionGym"    # what its rows in upstream's files are named
RESULT_ERROR = 1e-6   # that an expected result may have, relative where it is above 1; upstream's 538 have none


class Op(enum.IntEnum):
    """Postfix codes; A to D push a variable."""

    A = 0
    B = 1
    C = 2
    D = 3
    ADD = 4
    SUB = 5
    MUL = 6
    DIV = 7
    POW = 8
    SQUARE = 9
    PAD = 10


_POINTS = ((1.31, 2.17, 1.73, 2.83), (2.39, 1.07, 2.71, 1.49), (1.91, 2.57, 1.13, 2.03))  # tell functions apart
_OPS = {ast.Add: Op.ADD, ast.Sub: Op.SUB, ast.Mult: Op.MUL, ast.Div: Op.DIV, ast.Pow: Op.POW}


@functools.lru_cache(maxsize=8192)
def program(rule: str) -> tuple[int, ...]:
    """The rule as LENGTH postfix codes.

    Raises:
      ValueError: for anything but four variables, + - * / and **, each variable once.
    """
    try:
        codes = _codes(ast.parse(rule.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"expected an expression in a, b, c, d, found {file.shown(rule)}") from None
    names = sorted(code for code in codes if code <= Op.D)
    if names != [Op.A, Op.B, Op.C, Op.D] or len(codes) > LENGTH:
        raise ValueError(f"expected each of a, b, c, d once and at most {LENGTH} postfix codes, "
                         f"found {file.shown(rule)}")
    return tuple(codes) + (int(Op.PAD),) * (LENGTH - len(codes))


def evaluate(rule: str, numbers: tuple[float, ...]) -> float | None:
    """The rule's value in float64; None where it has none (division by zero, overflow, not a real number)."""
    stack: list[float] = []
    try:
        for code in program(rule):
            if code <= Op.D:
                stack.append(float(numbers[code]))
            elif code == Op.SQUARE:
                stack.append(stack.pop() ** 2)
            elif code != Op.PAD:
                right, left = stack.pop(), stack.pop()
                stack.append(left + right if code == Op.ADD else left - right if code == Op.SUB else
                             left * right if code == Op.MUL else left / right if code == Op.DIV else left ** right)
            if stack and (isinstance(stack[-1], complex) or not math.isfinite(stack[-1])):
                return None
    except (ZeroDivisionError, OverflowError):
        return None
    return stack[-1]


def generate(split: str, count: int, seed: int) -> tuple[Task, ...]:
    """`count` different tasks of "train" or "test".

    The split is decided by a hash of the function itself (its values at fixed points), so that "a + b" and "b + a" lie
    on the same side; a function may occur with several test cases.

    Raises:
      ValueError: for an unknown split, or a count that is not positive or more than there are.
    """
    return draw("function", _record, split, count, seed, content=lambda record: int(_fingerprint(record["rule"]), 16))


def bucket(task: Task) -> str:
    """How many of the rule's operations are neither + nor -, none to three or more: a bucket of `config.Tasks`."""
    harder = (Op.MUL, Op.DIV, Op.POW, Op.SQUARE)
    return f"operations_{min(sum(code in harder for code in program(task.data['rule'])), 3)}"


def load(path: str | Path) -> tuple[Task, ...]:
    """Tasks of an upstream `.json` or `.parquet` file; the latter needs upstream's JSON files beside it.

    Raises:
      ValueError: for a corrupt file; it names file, line or row, field, what was expected and what was found.
    """
    records = file.read(path, check, BESIDE, gym=GYM)
    return tuple(Task(id=record["id"], env="function", data=record) for record in records)


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a function task with the result of its rule."""
    file.text_field(record, "id")
    try:
        program(file.text_field(record, "rule"))
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith("rule:") else f"rule: {error}") from None
    case = record.get("test_case")
    if not isinstance(case, list) or len(case) != 4 or not all(map(_number, case)):
        raise ValueError(f"test_case: expected a list of 4 numbers, found {file.shown(case)}")
    if not _number(record.get("expected_result")):
        raise ValueError(f"expected_result: expected a number, found {file.shown(record.get('expected_result'))}")
    value, result = evaluate(record["rule"], tuple(case)), record["expected_result"]
    if value is None:
        raise ValueError(f"test_case: expected numbers at which {record['rule']} has a value, found {file.shown(case)}")
    if abs(value - result) > RESULT_ERROR * max(1.0, abs(value)):
        raise ValueError(f"expected_result: expected {value:.12g}, which {record['rule']} gives at {case}, found {result}")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30


def _codes(node: ast.AST) -> list[int]:
    if isinstance(node, ast.Name) and node.id in tuple(VARIABLES):
        return [VARIABLES.index(node.id)]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPS:
        if isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant) and node.right.value == 2:
            return [*_codes(node.left), int(Op.SQUARE)]
        return [*_codes(node.left), *_codes(node.right), int(_OPS[type(node.op)])]
    raise ValueError(f"expected only a, b, c, d, + - * / ** and the exponent 2, found {file.shown(ast.unparse(node))}")


def _rule(rng: np.random.Generator) -> str:
    """An expression over the four variables in random order; one in three has a square."""
    names = [VARIABLES[i] for i in rng.permutation(4)]
    if rng.random() < 1 / 3:
        squared = rng.integers(4)
        names[squared] = f"{names[squared]} ** 2"
    x, y, z = rng.choice(["+", "-", "*", "/"], 3, p=[0.35, 0.25, 0.3, 0.1])
    p, q, r, s = names
    shapes = (f"{p} {x} {q} {y} {r} {z} {s}", f"({p} {x} {q}) {y} {r} {z} {s}", f"({p} {x} {q}) {y} ({r} {z} {s})",
              f"{p} {x} ({q} {y} {r}) {z} {s}", f"{p} {x} {q} {y} ({r} {z} {s})")
    return shapes[rng.integers(len(shapes))]


@functools.lru_cache(maxsize=65536)
def _fingerprint(rule: str) -> str:
    values = [evaluate(rule, point) for point in _POINTS]
    return hashlib.sha256(" ".join(f"{value:.6e}" for value in values).encode()).hexdigest()[:8]


def _case(rule: str, rng: np.random.Generator) -> tuple[int, ...]:
    """Four numbers from 1 to 10 at which the rule has a whole value below 1000; empty where 20 draws find none."""
    for case in rng.integers(1, 11, (20, 4)).tolist():
        value = evaluate(rule, tuple(case))
        if value is not None and value == int(value) and abs(value) < 1000:
            return tuple(case)
    return ()


def _record(rng: np.random.Generator) -> dict[str, Any] | None:
    rule = _rule(rng)
    case = _case(rule, rng)
    if not case:
        return None
    name = f"function-{_fingerprint(rule)}-{'-'.join(map(str, case))}"
    return {"id": name, "rule": rule, "test_case": list(case), "expected_result": evaluate(rule, case)}
