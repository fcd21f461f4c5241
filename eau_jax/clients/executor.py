"""Runs Python that nobody has checked, and says what share of a task's calls agrees with the reference solution.

Each run is a process of its own (`executor_process.py`), locked in before it runs the submission (`executor_lock.py`):
limits on processor time, memory, file size and threads; an audit hook that refuses files, processes and sockets; and what
the machine offers of Landlock (nothing but the standard library is readable, nothing writable), seccomp (no new process,
program, socket or signal), an empty network and, where we are root, a user of its own. `Executor.protections` says which
are in force. A wall-clock limit ends what is left. The reference runs in another process, so a submission cannot read
it, and results are compared here as text. One process runs all calls of one submission; a call sees a fresh namespace.

It is no virtual machine. Without seccomp and Landlock (a warning says so) it keeps mistakes and opportunism of a trained
policy away from the host, no more: run it inside a container then.
"""

import dataclasses
import enum
import functools
import json
import re
import signal
import sys
import textwrap
from typing import NamedTuple

from eau_jax.clients import executor_process as process
from eau_jax.core import time_limit

CODE_LIMIT = 100_000       # characters of a submission
PACKAGES = ("numpy", "numpy.fft", "numpy.linalg", "numpy.ma", "numpy.polynomial", "numpy.random")
_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)\Z")
_PYTHON = re.compile(r"\W*(?:i?python[\d.]*|py[\d.]*)\b", re.IGNORECASE)


class Outcome(enum.Enum):
    """What became of one call, or of a submission: the first call that is not AGREES."""

    AGREES = "agrees"          # the same value as the reference's
    WRONG = "wrong"            # another value
    RAISED = "raised"          # an exception
    SYNTAX = "syntax"          # it is not Python
    TIMEOUT = "timeout"        # too much processor or wall-clock time; SIGXCPU always
    MEMORY = "memory"
    RECURSION = "recursion"    # RecursionError, whatever limit the submission sets: the highest is `executor_lock.DEPTH`
    OUTPUT = "output"          # it printed or returned too much
    FORBIDDEN = "forbidden"    # it tried to use files, processes, sockets or the interpreter's insides
    CRASHED = "crashed"        # it ended the process (`sys.exit`, `os._exit`, a signal to itself) or brought it down
                               # (SIGSEGV: memory that is not its own, or the small stack of a thread that it started)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one submission may use."""

    call_seconds: float = 1.0       # processor time of one call, as upstream's alarm
    cpu_seconds: int = 4            # processor time of all calls together
    wall_seconds: float = 10.0      # from the start of the process to its end
    memory: int = 256 * 2**20       # bytes of address space beyond those of the interpreter
    output: int = 64 * 2**10        # characters printed in one call
    results: int = 2 * 2**20        # bytes of all results together

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, kinds = getattr(self, field.name), (int, float) if field.type is float else (int,)
            most = time_limit.LONGEST_S if field.name.endswith("_seconds") else 2**60
            if type(value) not in kinds or not 0 < value <= most:
                raise ValueError(f"Limits.{field.name}: expected a positive {field.type.__name__} up to {most:g}, found "
                                 f"{value!r}")


class Result(NamedTuple):
    """One call: its outcome (AGREES stands for "returned" here) and its value as text, or what went wrong."""

    outcome: Outcome
    text: str


class Verdict(NamedTuple):
    """A submission against the reference."""

    share: float                    # of the calls that agree, 0..1
    outcome: Outcome                # AGREES when all do, else that of the first that does not
    detail: str                     # what went wrong there, for people
    calls: tuple[Outcome, ...]      # one for each call


@dataclasses.dataclass(frozen=True)
class Executor:
    """Runs submissions. The same object may be used from many threads.

    `upstream_compatible` reproduces SWEET-RL's scores on Python 3.10 to 3.12, whatever Python runs here: definitions land
    in a local namespace, so that top-level imports, helper functions and recursion fail; text is taken as it stands but for
    lines that open or close a fence, so a leading space is a syntax error; some words are refused even in a comment; and a
    call whose reference returns None or NaN never counts.

    Raises:
      ValueError: for a protection in `require` that there is none of, or that this machine does not offer.
    """

    limits: Limits = Limits()
    upstream_compatible: bool = False
    python: str = sys.executable
    packages: tuple[str, ...] = PACKAGES   # modules beyond the standard library that a submission may import, where the
                                           # interpreter has them and seccomp is in force; loaded when one is named
    require: tuple[str, ...] = ()          # protections without which nothing runs, e.g. ("landlock", "seccomp")

    def __post_init__(self) -> None:
        for name in self.require:
            if name not in process.PROTECTIONS:
                raise ValueError(f"require: there is no protection {name!r}; there are {', '.join(process.PROTECTIONS)}")
        missing = [name for name in self.require if name not in self.protections]   # nothing is started for ()
        if missing:
            needs = "; ".join(f"{name}, which needs {process.PROTECTIONS[name]}" for name in missing)
            raise ValueError(f"require: not available here: {needs}. In force: {', '.join(self.protections)}")

    @property
    def protections(self) -> tuple[str, ...]:
        """What holds each submission on this machine: names of `executor_process.PROTECTIONS`. The first look tries them.

        Raises:
          InfraError: when `python` cannot be started.
        """
        return process.protections(self.python)

    def basis(self) -> str:
        """What a score is made of, in words: two evaluations that differ here are not compared."""
        limits = self.limits
        said = (f"share of tests passed; {limits.call_seconds:g} s of processor time a call, {limits.cpu_seconds} s in all, "
                f"{limits.wall_seconds:g} s of wall-clock time, {limits.memory / 2**20:g} MiB")
        said += "; upstream's reading and comparison" if self.upstream_compatible else ""
        return said if "seccomp" in self.protections else f"{said}; no threads, standard library only"

    def __call__(self, code: str, reference: str, calls: tuple[str, ...]) -> tuple[float, int]:
        """(share of the calls that agree, place of the outcome in `Outcome`), as `envs.colbench` takes it; see `judge`."""
        verdict = self.judge(code, reference, calls)
        return verdict.share, list(Outcome).index(verdict.outcome)

    def judge(self, code: str, reference: str, calls: tuple[str, ...]) -> Verdict:
        """Compares a submission with the reference on every call.

        A call on which the reference does not return a value never agrees.

        Raises:
          InfraError: when a process cannot be started or dies before the submission is reached.
          ValueError: without calls.
        """
        if not calls:
            raise ValueError("no calls; a submission is compared on one or more")
        expected, results = (self._remembered(program, tuple(calls)) for program in (reference, code))
        outcomes = tuple(map(self._compare, results, expected))
        bad = next((k for k, outcome in enumerate(outcomes) if outcome is not Outcome.AGREES), None)
        share = outcomes.count(Outcome.AGREES) / len(outcomes)
        if bad is None:
            return Verdict(share, Outcome.AGREES, "", outcomes)
        detail = results[bad].text if results[bad].outcome is not Outcome.AGREES else f"{calls[bad]} gives another value"
        return Verdict(share, outcomes[bad], detail, outcomes)

    def run(self, code: str, calls: tuple[str, ...]) -> tuple[Result, ...]:
        """One result for each call, whatever the code does.

        Raises:
          InfraError: as `judge`.
        """
        if len(code) > CODE_LIMIT:
            return (Result(Outcome.SYNTAX, f"{len(code)} characters; allowed: {CODE_LIMIT}"),) * len(calls)
        whole, blocks = source(code, self.upstream_compatible)
        job = {"whole": _sendable(whole), "blocks": list(map(_sendable, blocks)), "calls": list(calls),
               "upstream": self.upstream_compatible, "call_seconds": self.limits.call_seconds,
               "cpu_seconds": self.limits.cpu_seconds, "memory": self.limits.memory, "output": self.limits.output}
        words = set(re.findall(r"\w+", code))
        packages = tuple(name for name in self.packages if name.partition(".")[0] in words)
        lines, end = process.run(job, self.python, packages, self.limits.wall_seconds, self.limits.results)
        results = [_result(line) for line in lines][:len(calls)]
        if results and results[0].outcome is Outcome.SYNTAX:
            return (results[0],) * len(calls)
        rest = results[-1] if results and results[-1].outcome is Outcome.FORBIDDEN else _ending(end, self.limits)
        return tuple(results) + (rest,) * (len(calls) - len(results))

    def _remembered(self, code: str, calls: tuple[str, ...]) -> tuple[Result, ...]:
        """`run`, once a program: a reference comes back with every submission, and young policies repeat themselves."""
        try:
            return _run_once(self, code, calls)
        except _Unstable as unstable:
            return unstable.results

    def _compare(self, result: Result, expected: Result) -> Outcome:
        if result.outcome is not Outcome.AGREES:
            return result.outcome
        counts = expected.outcome is Outcome.AGREES and not (self.upstream_compatible and expected.text in ("None", "nan"))
        return Outcome.AGREES if counts and result.text == expected.text else Outcome.WRONG


def source(text: str, upstream_compatible: bool = False) -> tuple[str, tuple[str, ...]]:
    """(an answer as it stands, the programs in its code fences).

    Fences are those of Markdown: three or more backticks or tildes, indented or not, closed by as many or by the end of the
    text. Where some say that they are Python, the others are left out; where none does, those without a name count, and
    where there are none of these either, all. Which text is the program is decided where it can be compiled: the whole
    answer where that is Python, else all fences together (`executor_worker.program`).
    """
    if upstream_compatible:
        return "\n".join(line for line in text.split("\n") if not line.strip().startswith("```")), ()
    lines, blocks, opened = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "").split("\n"), [], None
    for line in lines:
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                opened = fence["mark"]
                blocks.append((fence["info"].strip(), []))
        elif fence and not fence["info"].strip() and fence["mark"].startswith(opened):
            opened = None
        else:
            blocks[-1][1].append(line)
    python = [block for block in blocks if _PYTHON.match(block[0])] or [block for block in blocks if not block[0]] or blocks
    return _aligned(lines), tuple(_aligned(block) for _, block in python)


def _aligned(lines: list[str]) -> str:
    """The lines without indentation that all of them or the first one share, and without empty ones around them."""
    text = "\n".join(lines).strip("\n")
    while text and not text.partition("\n")[0].strip():
        text = text.partition("\n")[2]
    return textwrap.dedent(text).lstrip() if text[:1].isspace() else text


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class _Unstable(Exception):
    """Results that are not remembered: on a less busy machine they might be others."""

    def __init__(self, results: tuple[Result, ...]):
        super().__init__()
        self.results = results


@functools.lru_cache(maxsize=8192)
def _run_once(executor: Executor, code: str, calls: tuple[str, ...]) -> tuple[Result, ...]:
    results = executor.run(code, calls)
    if any(result.outcome in (Outcome.TIMEOUT, Outcome.CRASHED) for result in results):
        raise _Unstable(results)
    return results


def _ending(end: process.End, limits: Limits) -> Result:
    """The result of every call that the process did not come to."""
    if end.why == "late":
        return Result(Outcome.TIMEOUT, "too much wall-clock time")
    if end.why == "flood":
        return Result(Outcome.OUTPUT, "the results are too long")
    # SIGKILL is the kernel's too, a second after a SIGXCPU that was ignored; what it says of the time spent is coarse.
    if end.code == -signal.SIGXCPU or end.code == -signal.SIGKILL and end.seconds > limits.cpu_seconds / 2:
        return Result(Outcome.TIMEOUT, "too much processor time")
    what = f"signal {-end.code}" if end.code < 0 else f"exit status {end.code}"
    return Result(Outcome.CRASHED, f"the process ended itself or was ended ({what})")


def _result(line: bytes) -> Result:
    """A line of the child; what it cannot have written honestly is CRASHED."""
    try:
        name, text = json.loads(line)
        return Result(Outcome.AGREES if name == "OK" else Outcome[name], str(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        return Result(Outcome.CRASHED, "the process garbled its results")
