"""Runs Python that nobody has checked, and says what share of a task's calls agrees with the reference solution.

Each run is a fresh interpreter (`executor_worker.py`) in a session of its own: limits on processor time, memory, file
size and processes, no network where the machine lets us take it away (`unshare`), an audit hook that refuses files,
processes and sockets, an unprivileged user where we are root and can become one, and a wall-clock limit after which the
whole process group is killed. The reference runs in another process, so a submission cannot read it, and results are
compared here as text. One process runs all calls of one submission; a call sees a fresh namespace.

This keeps mistakes and opportunism of a trained policy away from the host. It is no virtual machine: run strangers' code
inside a container.
"""

import dataclasses
import enum
import functools
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

from eau_jax.core.types import InfraError

WORKER = Path(__file__).with_name("executor_worker.py")
CODE_LIMIT = 100_000       # characters of a submission
_CALLED = re.compile(r"\s*([A-Za-z_]\w*)\s*\(")
_FENCE = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


class Outcome(enum.Enum):
    """What became of one call, or of a submission: the first call that is not AGREES."""

    AGREES = "agrees"          # the same value as the reference's
    WRONG = "wrong"            # another value
    RAISED = "raised"          # an exception, `sys.exit` included
    SYNTAX = "syntax"          # it is not Python
    TIMEOUT = "timeout"        # too much processor or wall-clock time
    MEMORY = "memory"
    RECURSION = "recursion"
    OUTPUT = "output"          # it printed or returned too much
    FORBIDDEN = "forbidden"    # it tried to use files, processes, sockets or the interpreter's insides
    CRASHED = "crashed"        # the process ended itself or was killed by a signal


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one submission may use."""

    call_seconds: float = 1.0       # processor time of one call, as upstream's alarm
    cpu_seconds: int = 4            # processor time of all calls together
    wall_seconds: float = 10.0      # from the start of the process to its end
    memory: int = 256 * 2**20       # bytes of address space
    output: int = 64 * 2**10        # characters printed in one call
    results: int = 2 * 2**20        # bytes of all results together


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


_LATE = Result(Outcome.TIMEOUT, "too much wall-clock time")


class Executor(NamedTuple):
    """Runs submissions. The same object may be used from many threads.

    `upstream_compatible` reproduces SWEET-RL's scores on Python 3.10 to 3.12, whatever Python runs here: definitions land
    in a local namespace, so that top-level imports, helper functions and recursion fail; text is taken as it stands, so a
    leading space is a syntax error; some words are refused even in a comment; and a call whose reference returns None
    never counts.
    """

    limits: Limits = Limits()
    upstream_compatible: bool = False
    python: str = sys.executable

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
        called = {match.group(1) for match in map(_CALLED.match, calls) if match}
        if called and not any(name in code for name in called):
            detail = f"nothing is named {', '.join(sorted(called))}"
            return Verdict(0.0, Outcome.RAISED, detail, (Outcome.RAISED,) * len(calls))
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
        job = {"code": source(code, self.upstream_compatible).encode("utf-8", "replace").decode(), "calls": list(calls),
               "upstream": self.upstream_compatible, "call_seconds": self.limits.call_seconds,
               "cpu_seconds": self.limits.cpu_seconds, "memory": self.limits.memory, "output": self.limits.output}
        lines, ended = _child(self.python, json.dumps(job).encode(), self.limits)
        results = [_result(line) for line in lines][:len(calls)]
        if results and results[0].outcome is Outcome.SYNTAX:
            return (results[0],) * len(calls)
        rest = results[-1] if results and results[-1].outcome is Outcome.FORBIDDEN else ended
        return tuple(results) + (rest,) * (len(calls) - len(results))

    def _remembered(self, code: str, calls: tuple[str, ...]) -> tuple[Result, ...]:
        """`run`, once for each program: a reference comes back with every submission, and young policies repeat themselves."""
        try:
            return _run_once(self, code, calls)
        except _Slow as slow:
            return slow.results

    def _compare(self, result: Result, expected: Result) -> Outcome:
        if result.outcome is not Outcome.AGREES:
            return result.outcome
        counts = expected.outcome is Outcome.AGREES and not (self.upstream_compatible and expected.text == "None")
        return Outcome.AGREES if counts and result.text == expected.text else Outcome.WRONG


def source(text: str, upstream_compatible: bool = False) -> str:
    """The program in an answer: without its code fence, and without indentation that all lines or the first one share."""
    if upstream_compatible:
        return "\n".join(line for line in text.split("\n") if not line.strip().startswith("```"))
    fenced = _FENCE.search(text)
    text = (fenced.group(1) if fenced else text).replace("\r\n", "\n").strip("\n")
    return textwrap.dedent(text.expandtabs(4)).lstrip() if text.strip() else ""


class _Slow(Exception):
    """Results that are not remembered: on a less busy machine they might be others."""

    def __init__(self, results: tuple[Result, ...]):
        super().__init__()
        self.results = results


@functools.lru_cache(maxsize=8192)
def _run_once(executor: Executor, code: str, calls: tuple[str, ...]) -> tuple[Result, ...]:
    results = executor.run(code, calls)
    if any(result.outcome is Outcome.TIMEOUT for result in results):
        raise _Slow(results)
    return results


@functools.cache
def _without_network() -> tuple[str, ...]:
    """The command that starts another one without a network; () where this machine does not let us."""
    for prefix in (("unshare", "-n", "--"), ("unshare", "-U", "-n", "--")):
        try:
            if subprocess.run([*prefix, "true"], capture_output=True, timeout=10).returncode == 0:
                return prefix
        except (OSError, subprocess.TimeoutExpired):
            pass
    return ()


def _child(python: str, job: bytes, limits: Limits) -> tuple[list[bytes], Result]:
    """(the lines that the child wrote after "ready", the result of every call that it did not come to)."""
    command = [*_without_network(), python, "-S", "-s", "-P", "-B", str(WORKER)]
    deadline = time.monotonic() + limits.wall_seconds
    try:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/",
                                 env={"PYTHONHASHSEED": "0", "PATH": os.defpath}, start_new_session=True)
    except OSError as error:
        raise InfraError(f"cannot start {python}: {error}") from None
    stopped: Result | None = _LATE
    try:
        try:
            child.stdin.write(job)
            child.stdin.close()
        except OSError:
            pass   # it died before it had read its job, which the missing "ready" tells
        data, stopped = _read(child.stdout, limits.results, deadline)
    finally:
        code = _end(child, 0.0 if stopped else 0.5)
    lines = data.split(b"\n")
    if lines[0] != b'["ready"]':
        raise InfraError(f"{python} did not come to run the submission (exit status {code}): the machine is overloaded, or "
                         "this is no Python 3.11 or newer")
    return lines[1:-1], stopped or _ending(code)


def _read(pipe: Any, limit: int, deadline: float) -> tuple[bytes, Result | None]:
    """What comes out of the pipe until it ends, or until it is too much or too late."""
    data = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return bytes(data), _LATE
            chunk = os.read(pipe.fileno(), 65536)
            if not chunk:
                return bytes(data), None
            data += chunk
            if len(data) > limit:
                return bytes(data), Result(Outcome.OUTPUT, "the results are too long")


def _end(child: subprocess.Popen, patience: float) -> int:
    """Kills the child, if it has not ended after `patience` seconds, and everything it started; its exit status."""
    try:
        child.wait(patience)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    code = child.wait()
    child.stdout.close()
    return code


def _ending(code: int) -> Result:
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return Result(Outcome.TIMEOUT, "too much processor time")
    what = f"signal {-code}" if code < 0 else f"exit status {code}"
    return Result(Outcome.CRASHED, f"the process ended itself or was ended ({what})")


def _result(line: bytes) -> Result:
    """A line of the child; what it cannot have written honestly is CRASHED."""
    try:
        name, text = json.loads(line)
        return Result(Outcome.AGREES if name == "OK" else Outcome[name], str(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        return Result(Outcome.CRASHED, "the process garbled its results")
