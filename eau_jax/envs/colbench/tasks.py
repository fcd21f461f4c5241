"""ColBench backend tasks: the upstream record, a generator of small programs with hidden facts, and a loader.

A record is {`problem_description`, `ground_truth` (Python), `test_cases` {name: call}} as in SWEET-RL (Zhou et al. 2025,
arXiv:2503.15478), and may have `facts`: [{`slot`, `cues` [words], `answer`, `values` [strings], `importance`}], what the
user can tell. Without them the facts are read off the reference (`colbench.facts`). The generator writes a request that
says what a function does and leaves its numbers and words out: these are the facts.
"""

import ast
import builtins
import functools
import hashlib
import re
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.envs.generator import draw
from eau_jax.envs.colbench.facts import Fact, read_facts

SLOTS = 8         # facts a user knows
# (code, reference, calls) -> (share of the calls that agree 0..1, number of the outcome). It never raises because of the
# code; what fails outside the agent's control is an InfraError. `clients.executor.Executor` is one.
Execute = Callable[[str, str, tuple[str, ...]], tuple[float, int]]

NAMES = ("fee", "fine", "price", "cost", "bonus", "score", "points", "tax", "rent", "toll", "tip", "wage", "value", "total")


class Shape(NamedTuple):
    """One kind of program."""

    about: str                                  # what it does, as the request says it
    body: str                                   # its return expression with {slot} for each fact
    slots: dict[str, tuple[Any, ...]]           # what each fact may be
    inputs: Callable[[dict[str, Any]], Any]     # arguments that tell facts apart; the first ten different ones count


_SMALL, _TENS = (2, 3, 5, 7, 9), (10, 20, 40, 60, 90)
_TEXTS = (*("watermelon" + "s" * k for k in range(4)), "strawberry jam", "encyclopedia", "photographer", "a long winter",
          "ten green hats", "mountain top")


def _beside(*edges: int) -> list[int]:
    """Numbers at and around each edge, then some that are far from all."""
    return [edge + step for edge in edges for step in (0, -1, 1)] + [100, 150, 3, 55, 200, 1, 75, 250, 2, 31]


SHAPES: dict[str, Shape] = {
    "late": Shape("a rate for each day after some free days", "max(0, x - {free}) * {rate}",
                  dict(free=_SMALL, rate=_SMALL), lambda v: [v["free"] + k for k in (-1, 0, 1, 2, 3, 5, 8, 11, 20, 30)]),
    "flat": Shape("a base plus a rate for each item", "{base} + x * {rate}",
                  dict(base=_TENS, rate=_SMALL), lambda v: [1, 2, 3, 4, 5, 7, 10, 12, 20, 50]),
    "limit": Shape("a rate for each mile up to a maximum", "min(x * {rate}, {maximum})",
                   dict(rate=_SMALL, maximum=_TENS), lambda v: [1, 2, *_beside(v["maximum"] // v["rate"])]),
    "tier": Shape("a low price under a limit, else a high price", "{low} if x < {limit} else {high}",
                  dict(low=_SMALL, limit=_TENS, high=_TENS), lambda v: [v["limit"] + k for k in range(-5, 5)]),
    "sale": Shape("x less a discount from a limit on", "x - {discount} if x >= {limit} else x",
                  dict(discount=_SMALL, limit=_TENS), lambda v: [v["limit"] + k for k in range(-4, 6)]),
    "range": Shape("x, but not below a minimum or above a maximum", "max({minimum}, min(x, {maximum}))",
                   dict(minimum=_SMALL, maximum=_TENS), lambda v: [0, *_beside(v["minimum"], v["maximum"])]),
    "word": Shape("one word from a limit on, else another word", "'{first}' if x >= {limit} else '{second}'",
                  dict(limit=_TENS, first=("good", "high", "pass", "big"), second=("bad", "low", "fail", "small")),
                  lambda v: [v["limit"] + k for k in range(-5, 5)]),
    "total": Shape("the sum of the numbers above a limit, plus an extra", "sum(v for v in x if v > {limit}) + {extra}",
                   dict(limit=_TENS, extra=_SMALL),
                   lambda v: [[], [v["limit"]], [v["limit"] + 1], [9, 99], *([k, v["limit"] + k, 99] for k in range(1, 7))]),
    "best": Shape("the best numbers of a list", "sorted(x, reverse={largest})[:{count}]",
                  dict(largest=(True, False), count=(1, 2, 3, 4, 5)),
                  lambda v: [[k * 7 % 11 + n for k in range(1, 8)] for n in range(10)]),
    "label": Shape("a prefix and the start of a word", "'{prefix}' + x[:{length}]",
                   dict(prefix=("no", "id", "key", "tag", "box"), length=_SMALL), lambda v: _TEXTS),
}


def generate(split: str, count: int, seed: int) -> tuple[Task, ...]:
    """`count` different tasks of "train" or "test". The split is decided by a hash of the content, so they never meet.

    Raises:
      ValueError: for an unknown split, or a count that is not positive or more than there are.
    """
    return draw("colbench", _record, split, count, seed)


def load(path: str | Path, execute: Execute | None = None) -> tuple[Task, ...]:
    """Tasks of an upstream `.jsonl` file. A record without an id is named after its line.

    Args:
      execute: an executor, such as `clients.executor.Executor()`. Each reference is run on its own tests then (a child
        process a task), and a task whose reference fails one is refused: nobody can pass that test.

    Raises:
      ValueError: for a corrupt file; it names file, line, field, what was expected and what was found. With `execute` also
        for references that fail; it names every such task.
      InfraError: when the executor cannot run.
    """
    path = Path(path)
    records = file.read(path, check, beside="*.jsonl", name=lambda place: f"{path.stem}-{place.replace(' ', '-')}")
    tasks = tuple(Task(id=record["id"], env="colbench", data=record) for record in records)
    shares = {} if execute is None else {
        task.id: execute(task.data["ground_truth"], task.data["ground_truth"], calls(task))[0] for task in tasks}
    broken = [f"{name} ({share:.0%} of its tests)" for name, share in shares.items() if share < 1]
    if broken:
        raise file.TaskFileError(f"{path}, field ground_truth: expected references that return a value on every test, found "
                                 f"{len(broken)} that do not: {', '.join(broken)}; leave these tasks out")
    return tasks


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a ColBench backend task."""
    file.text_field(record, "problem_description")
    reference = file.text_field(record, "ground_truth")
    try:
        program = ast.parse(reference)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"ground_truth: expected Python, found {error}") from None
    calls = record.get("test_cases")
    if not isinstance(calls, Mapping) or not calls or not all(isinstance(c, str) and c.strip() for c in calls.values()):
        raise ValueError(f"test_cases: expected an object of one or more calls, found {file.shown(calls)}")
    defined = _defined(program)
    for name, each in calls.items():
        _check_call(each, f"test_cases.{name}", defined)
    known = record.get("facts", [])
    if not isinstance(known, list) or len(known) > SLOTS:
        raise ValueError(f"facts: expected a list of at most {SLOTS}, found {file.shown(known)}")
    for index, fact in enumerate(known):
        where = f"facts[{index}]"
        if not isinstance(fact, Mapping):
            raise ValueError(f"{where}: expected an object, found {file.shown(fact)}")
        file.text_field(fact, "slot", f"{where}.")
        file.text_field(fact, "answer", f"{where}.")
        for name in ("cues", "values"):
            words = fact.get(name, [])
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise ValueError(f"{where}.{name}: expected a list of strings, found {file.shown(words)}")


def _check_call(call: str, where: str, known: set[str]) -> None:
    """A test is one expression, and what it names is defined by the reference or built in. Nothing is run."""
    try:
        parts = list(ast.walk(ast.parse(call.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: expected a Python expression, found {file.shown(call)} ({error})") from None
    own = {part.arg for part in parts if isinstance(part, ast.arg)}
    own |= {part.id for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    for part in parts:
        if isinstance(part, ast.Name) and part.id not in own | known and not hasattr(builtins, part.id) and "*" not in known:
            raise ValueError(f"{where}: expected a call of what ground_truth defines "
                             f"({', '.join(sorted(known)) or 'nothing'}), found {file.shown(call)}, which names {part.id!r}")


def _defined(program: ast.Module) -> set[str]:
    """The names that a program binds outside of its functions; "*" among them where it imports whatever there is."""
    found, left = set(), list(program.body)
    while left:
        match left.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case node:
                left += [] if isinstance(node, ast.Lambda) else ast.iter_child_nodes(node)
    return found


def facts(task: Task) -> tuple[Fact, ...]:
    """What the user of this task knows, most important first; at most SLOTS."""
    given = task.data.get("facts")
    if given:
        return _given(tuple((f["slot"], tuple(f.get("cues", ())), f["answer"], tuple(f.get("values", ())),
                             float(f.get("importance", 1.0))) for f in given))
    return read_facts(task.data["ground_truth"])[:SLOTS]


def calls(task: Task) -> tuple[str, ...]:
    """The test calls."""
    return tuple(task.data["test_cases"].values())


def guess(task: Task, told: int, rng: np.random.Generator) -> str:
    """A program that is right about the facts in mask `told` and guesses the others; a stub for a loaded task."""
    shape = SHAPES.get(task.data.get("shape", ""))
    name = re.match(r"\s*(\w+)", calls(task)[0])
    if shape is None:
        return f"def {name.group(1) if name else 'f'}(*args):\n    return 0"
    values = {}
    for slot, (known, choices) in enumerate(zip(facts(task), shape.slots.values(), strict=True)):
        drawn = choices[int(rng.integers(len(choices)))]
        values[known.slot] = known.values[0] if told >> slot & 1 else drawn
    return _program(name.group(1), shape, values)


@functools.lru_cache(maxsize=16384)
def _given(records: tuple[tuple, ...]) -> tuple[Fact, ...]:
    return tuple(Fact(slot, cues, answer, values or tuple(re.findall(r"\d+(?:\.\d+)?", answer)), importance)
                 for slot, cues, answer, values, importance in records)


def _program(name: str, shape: Shape, values: Mapping[str, Any]) -> str:
    return f"def {name}(x):\n    return {shape.body.format(**values)}"


def _record(rng: np.random.Generator) -> dict[str, Any]:
    kind = list(SHAPES)[rng.integers(len(SHAPES))]
    shape, name = SHAPES[kind], NAMES[rng.integers(len(NAMES))]
    values = {slot: choices[int(rng.integers(len(choices)))] for slot, choices in shape.slots.items()}
    request, program = f"Write {name}(x): {shape.about}.", _program(name, shape, values)
    digest = hashlib.sha256(f"{request}\n{program}".encode()).hexdigest()[:8]
    known = [{"slot": slot, "cues": [slot], "answer": f"The {slot} is {value}." if slot != "largest" else
              f"Largest is {value}.", "values": [str(value)]} for slot, value in values.items()]
    arguments = list(dict.fromkeys(map(repr, shape.inputs(values))))[:10]
    cases = {f"test{k}": f"{name}({argument})" for k, argument in enumerate(arguments, start=1)}
    return {"id": f"{kind}-{name}-{digest}", "problem_description": request, "ground_truth": program, "test_cases": cases,
            "facts": known, "shape": kind}
