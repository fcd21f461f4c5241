"""What all coding agents share: start it in a snapshot, follow it, and say what came of it.

A round counts when the program ended with status 0, reported a result, reported no error, left a proposal or a finding in
the inbox, and changed nothing of what it was shown. Exit status or result alone do not tell: both are known to say "success"
after a failure. Everything else is a batch without texts and with the reason.
"""

import dataclasses
import functools
import hashlib
import json
import os
import shutil
import stat
import sys
import urllib.parse
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from eau_jax import meta
from eau_jax.core import time_limit
from eau_jax.meta import snapshot
from eau_jax.meta.drivers import process
from eau_jax.meta.proposal import MOST_BYTES, Batch, ProposalError, finding
from eau_jax.meta.proposer import Budget, Proposer, View

TRANSCRIPT = "transcript.jsonl"   # beside view/
OUTPUT_BYTES = 32 * 2**20
IDLE_SECONDS = 300.0
NO_KEY = "none"                   # for a server that wants none, where a program insists on one
PROMPT = ("Read SKILL.md in the current folder and do what it says. You have {seconds:.0f} seconds and may hand in at most "
          "{proposals} proposals.")


class Launch(NamedTuple):
    """How a program is started in a snapshot."""

    command: Sequence[str]
    environment: Mapping[str, str]     # beside PATH, HOME, TMPDIR and LANG
    folder: Path
    read: Sequence[Path]               # the program's own folders


class Outcome(NamedTuple):
    """What a program's events say."""

    complete: bool                     # it reported a result
    error: str                         # that it reported, or ""
    facts: Mapping[str, Any]           # model, session, turns, tokens, cost, denials, as far as it says


class Program(NamedTuple):
    """One coding agent's command line."""

    name: str
    find: Callable[[], Path | None]    # the executable
    missing: str                       # what to do when there is none
    launch: Callable[[Path, View, Budget], Launch]
    read: Callable[[Sequence[str]], Outcome]           # lines of standard output; unknown events are passed over
    spent: Callable[[str], tuple[str, int]]            # one line: (message id, tokens of that message)
    key: str                           # environment variable that holds the API key
    base_url: str                      # of the API; "": the program's own, which wants a key


def proposer(program: Program, idle_seconds: float = IDLE_SECONDS) -> Proposer:
    """The proposer that runs `program` once a round. A second try, and what to do after it, are the caller's.

    Raises:
      ValueError: for `idle_seconds` that are no time.
    """
    if not time_limit.fits(idle_seconds):
        raise ValueError(f"{program.name}: idle_seconds is {idle_seconds!r}; allowed: {time_limit.ALLOWED}")

    def propose(view: View, budget: Budget) -> Batch:
        try:
            return _round(program, view, budget, idle_seconds)
        except Exception as error:    # training must not die of its adviser
            return Batch("agent_error", agent={"name": program.name}, problem=f"{type(error).__name__}: {error}")

    return Proposer(program.name, propose)


def _round(program: Program, view: View, budget: Budget, idle_seconds: float) -> Batch:
    binary = program.find()
    if binary is None:
        return Batch("agent_error", agent={"name": program.name}, problem=program.missing)
    secret = os.environ.get(program.key, "")
    if not (secret or program.base_url):
        return Batch("agent_error", agent={"name": program.name}, problem=f"the environment variable {program.key} is not "
                     f"set: it holds the key of the API that {program.name} talks with")
    before = snapshot.manifest(view.folder)
    serve(view)
    launch = program.launch(binary, view, budget)
    (view.home / "tmp").mkdir(exist_ok=True)
    environment = {"PATH": os.defpath, "HOME": str(view.home), "TMPDIR": str(view.home / "tmp"), "LANG": "C.UTF-8",
                   program.key: secret if secret else NO_KEY, **launch.environment}
    end = process.run(process.Job(
        launch.command, environment, launch.folder, read=[view.folder, view.root / "server", *_own(), *launch.read],
        write=[view.inbox, view.home], ports=ports(program.base_url), seconds=budget.seconds,
        idle_seconds=min(idle_seconds, budget.seconds), output=OUTPUT_BYTES), _limit(program, budget))
    end = end._replace(lines=tuple(scrubbed(line, secret) for line in end.lines), errors=scrubbed(end.errors, secret))
    digest = _keep(view, end)
    shutil.rmtree(view.home, ignore_errors=True)
    facts = {"version": version(binary, binary.stat().st_mtime), "isolation": process.protections(),
             "transcript_sha256": digest}
    batch = conclude(program, end, view, budget, before)
    return dataclasses.replace(batch, agent={**facts, **batch.agent})


def conclude(program: Program, end: process.End, view: View, budget: Budget, before: Mapping[str, str]) -> Batch:
    """What came of a round.

    Args:
      end: how the program ended and what it wrote.
      before: `snapshot.manifest` of the view before the program ran.
    """
    outcome = program.read(end.lines)
    agent = {"name": program.name, **outcome.facts, "seconds": round(end.seconds, 3), "exit": end.code}
    touched = snapshot.tampered(view.folder, before)
    if touched:
        return Batch("invalid", agent=agent, problem=f"the round is discarded, its snapshot was tampered with: {touched[0]}")
    if end.why in ("late", "idle"):
        limit = f"{budget.seconds:g} s" if end.why == "late" else "the time allowed without any output"
        return Batch("timeout", agent=agent, problem=f"{program.name} was ended after {end.seconds:.1f} s, beyond {limit}")
    problem = _failure(program, end, outcome)
    if problem:
        return Batch("agent_error", agent=agent, problem=problem)
    texts, found, problem = handed_in(view.inbox, budget.proposals)
    if problem:
        return Batch("invalid", agent=agent, problem=problem)
    if texts:
        return Batch("ok", texts, found, agent)
    if found is not None:
        return Batch("empty", (), found, agent)
    return Batch("invalid", agent=agent, problem=f"{program.name} ended well and handed nothing in: prose is no proposal")


def _failure(program: Program, end: process.End, outcome: Outcome) -> str:
    if end.why == "unstarted":
        return end.problem
    if end.why == "stopped":
        return f"{program.name} was stopped: {end.problem}"
    if end.why == "flood":
        return f"{program.name} was stopped: it wrote more than {OUTPUT_BYTES} bytes"
    if end.code != 0 or outcome.error:
        said = outcome.error or end.errors.strip()[-500:] or "nothing said why"
        return f"{program.name} failed with exit status {end.code}: {said}"
    return "" if outcome.complete else f"{program.name} ended with status 0 and without a result: its output was cut"


def handed_in(inbox: Path, most: int) -> tuple[tuple[str, ...], Any, str]:
    """(proposals' texts, the finding without a change, what is wrong). Only regular files of a sane size are read."""
    texts, found = [], None
    try:
        names = sorted(os.listdir(inbox))
    except OSError as error:
        return (), None, f"the inbox cannot be read: {error.strerror}"
    wanted = [name for name in names if name.startswith("proposal-") and name.endswith(".json")][:most]
    for name in [*wanted, *(["finding.json"] if "finding.json" in names else [])]:
        try:
            with open(os.open(inbox / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return (), None, f"{name} in the inbox is no regular file"
                data = file.read(MOST_BYTES + 1)
        except OSError as error:
            return (), None, f"{name} in the inbox cannot be read, a symbolic link perhaps: {error.strerror}"
        if len(data) > MOST_BYTES:
            return (), None, f"{name} in the inbox has more than {MOST_BYTES} bytes"
        text = data.decode("utf-8", "replace")
        if name == "finding.json":
            try:
                found = finding(text)
            except ProposalError as error:
                return (), None, f"{name}: {error}"
        else:
            texts.append(text)
    return tuple(texts), found, ""


def serve(view: View) -> None:
    """A folder from which `python -m eau_jax.meta.inbox_server` runs, and that shows no more of this package."""
    package = view.root / "server" / "eau_jax"
    package.mkdir(parents=True)
    own = Path(meta.__file__).parent
    (package / "__init__.py").symlink_to(own.parent / "__init__.py")
    (package / "meta").symlink_to(own, target_is_directory=True)


def server(view: View, budget: Budget) -> tuple[str, list[str], dict[str, str]]:
    """(command, arguments, environment) of the inbox server of a view."""
    arguments = ["-s", "-B", "-m", "eau_jax.meta.inbox_server", str(view.folder), str(view.inbox), str(budget.proposals)]
    return sys.executable, arguments, {"PYTHONPATH": str(view.root / "server")}


def prompt(budget: Budget) -> str:
    """What the agent is told at first."""
    return PROMPT.format(seconds=budget.seconds, proposals=budget.proposals)


def ports(base_url: str) -> list[int]:
    """TCP ports of an API."""
    parts = urllib.parse.urlsplit(base_url)
    return [parts.port or (80 if parts.scheme == "http" else 443)]


def events(lines: Sequence[str]) -> list[dict[str, Any]]:
    """The JSON objects among the lines; a line that was cut off is passed over."""
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def scrubbed(text: str, secret: str) -> str:
    """The text without the secret."""
    return text.replace(secret, "[secret]") if secret else text


@functools.lru_cache
def version(binary: Path, changed: float) -> str:
    """What the program, last `changed` at that time, says of its version; "" when it does not."""
    job = process.Job([str(binary), "--version"], {"PATH": os.defpath, "HOME": "/nonexistent"}, Path("/"),
                      read=[binary.resolve().parent], write=[], ports=[], seconds=20, idle_seconds=20, output=10_000)
    return next(iter(process.run(job).lines), "")[:100]


def _own() -> list[Path]:
    own = Path(meta.__file__).parent
    return [own, own.parent / "__init__.py"]


def _limit(program: Program, budget: Budget) -> Callable[[str], str]:
    used: dict[str, int] = {}

    def watch(line: str) -> str:
        message, tokens = program.spent(line)
        used[message] = max(tokens, used.get(message, 0))
        total = sum(used.values())
        return f"it used {total} tokens; allowed: {budget.tokens}" if total > budget.tokens else ""

    return watch


def _keep(view: View, end: process.End) -> str:
    """Writes the transcript; its SHA-256."""
    last = json.dumps({"stderr": end.errors, "end": end.why, "exit": end.code})
    text = "".join(line + "\n" for line in (*end.lines, last))
    (view.root / TRANSCRIPT).write_text(text, encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()
