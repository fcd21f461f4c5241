"""What the stages pass on: typed records in versioned envelopes, one JSON line each, named by their content.

    {"schema": 1, "kind": "plan_item", "id": "...", "parents": ["..."], "body": {...}}

The id is a SHA-256 of everything else in the line, so the same content has the same id in every process and on every
machine.
What made a file (domain, versions, digest of the code, seed, backend) is the same for all of its lines and stands in the
manifest beside it. No line holds a time: the same seed and version give the same bytes.
"""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any, Iterable, Mapping

from eau_jax.core.records import RunFolderError, check, read_lines

SCHEMA = 1
_ENVELOPE = {"schema": int, "kind": str, "id": str, "parents": [str], "body": dict}
Json = Any


@dataclasses.dataclass(frozen=True)
class PlanItem:
    """One task that is wanted."""

    index: int                     # place in the plan, from 0
    rank: int                      # place among the items of its cell, from 0
    cell: Mapping[str, Json]       # outcome, size, persona, distractors
    seed: int


@dataclasses.dataclass(frozen=True)
class Skeleton:
    """What happens in a task, before anything has a name."""

    atoms: tuple[str, ...]         # ids, in the order in which the user brings them up
    cell: Mapping[str, Json]
    seed: int


@dataclasses.dataclass(frozen=True)
class Instance:
    """A grounded task: a world, a gold plan and what the user wants, in symbols."""

    skeleton: Skeleton
    record: Mapping[str, Json]     # in tau2's task schema, texts aside
    wishes: tuple[Mapping[str, Json], ...]   # as of `domain.Wish`
    facts: Mapping[str, str]       # what the user knows of themself: name, zip, email or user_id -> value
    plan: tuple[Mapping[str, Json], ...]     # as of `domain.Step`, reads included
    signature: str                 # of the skeleton, see `signature.py`


@dataclasses.dataclass(frozen=True)
class Report:
    """What the gates said of one task."""

    code: str                      # "" where it passed, else the reject code of the first gate that did not let it pass
    detail: str
    measures: Mapping[str, Json]   # what was counted on the way


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A task in tau2's schema with its texts, and the machine of its user."""

    record: Mapping[str, Json]


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One conversation about a task."""

    agent: str                     # "oracle", "novice" or "teacher"
    persona: str
    stop: str                      # a StopReason's value
    success: bool
    turns: tuple[Mapping[str, Json], ...]    # {"agent", "reply", "by": "user" or "tool", "told", "act": of the reply, as of
                                             # `acts`, "call": None or a step}
    error: str = ""                # what failed, for "infra_error"
    user: str = "symbolic"         # whose words the replies are: "symbolic" or "llm"


@dataclasses.dataclass(frozen=True)
class Fault:
    """Whose fault a failure is, and why."""

    side: str                      # "none", "agent", "user", "task", "env", "checker" or "infra"
    label: str
    evidence: str
    turn: int = -1                 # from which on no success was possible; -1: none


@dataclasses.dataclass(frozen=True)
class Proposal:
    """What a language model contributed to one task in one role."""

    role: str                      # one of `llm.ROLES`, or "validator"
    model: str
    outcomes: Mapping[str, int]    # "used", or why it was not -> how often
    calls: tuple[str, ...]         # keys in calls.jsonl
    tokens: tuple[int, ...]        # read, written


@dataclasses.dataclass(frozen=True)
class Opinion:
    """What a validator thinks. It decides nothing."""

    about: str                     # "task" or "fault"
    model: str
    says: str                      # of a task "sound" or "unsound", of a failure a side as of Fault
    execution: str                 # the same as execution decided it
    why: str


@dataclasses.dataclass(frozen=True)
class Evolved:
    """What self-evolution has made of a plan; `evolved` says what it does. Nothing is changed where a name is missing."""

    version: int = 0               # changes that were adopted
    weights: Mapping[str, Json] = dataclasses.field(default_factory=dict)       # cell -> factor on its share
    parameters: Mapping[str, Json] = dataclasses.field(default_factory=dict)    # of the generator, see `evolved.PARAMETERS`
    gates: Mapping[str, Json] = dataclasses.field(default_factory=dict)         # field of `gates.Limits` -> value
    quarantine: Mapping[str, Json] = dataclasses.field(default_factory=dict)    # what is not used any more -> why


@dataclasses.dataclass(frozen=True)
class Diff:
    """A change of a plan that somebody proposes."""

    kind: str                      # a field of Evolved: "weights", "parameters", "gates" or "quarantine"
    changes: Mapping[str, Json]    # name -> [value now, value then]; of a quarantine [False, True]
    why: str
    author: str = "rules"


@dataclasses.dataclass(frozen=True)
class Ruling:
    """Whether a change was adopted."""

    adopted: bool
    code: str                      # "" where it was, else the first test that it failed, see `submit`
    detail: str
    version: int                   # of the plan afterwards
    measures: Mapping[str, Json]   # yield of the probe set before and after, and what the trial found


@dataclasses.dataclass(frozen=True)
class Observed:
    """What one round of a self-evolution came to, as counts."""

    round: int
    tried: int
    passed: int
    rejects: Mapping[str, Json]    # reject code -> tasks
    atoms: Mapping[str, Json]      # sub-task -> {"tried": tasks, reject code: tasks}
    cells: Mapping[str, Json]      # cell -> {"tried", "passed", "signatures", "played", "solved", "faults"}, of the novice
    faults: Mapping[str, Json]     # "side: label" -> conversations
    escaped: Mapping[str, Json]    # kind of wrong plan -> tasks whose checker let it pass
    extremes: Mapping[str, Json]   # of the tasks that passed: least "killed", most "null" and "turns", "top5_share"
    mismatches: tuple[tuple[str, str, str], ...]    # tool, kind, detail: declarations that are not what the tools do


KINDS = {"plan_item": PlanItem, "skeleton": Skeleton, "instance": Instance, "report": Report, "scenario": Scenario,
         "rollout": Rollout, "fault": Fault, "proposal": Proposal, "opinion": Opinion,
         "evolved": Evolved, "diff": Diff, "ruling": Ruling, "observed": Observed}
_NAMES = {kind: name for name, kind in KINDS.items()}


def canonical(value: Json) -> str:
    """A JSON value as text, the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Json, length: int = 16) -> str:
    """Hexadecimal digits of the SHA-256 of a JSON value; unlike `hash`, the same in every process."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def seed_of(*parts: Json) -> int:
    """A seed in [0, 2**63) that depends on all parts."""
    return int(digest(parts), 16) >> 1


def wrap(body: Any, parents: Iterable[str] = ()) -> dict[str, Json]:
    """The envelope of a record."""
    line = {"schema": SCHEMA, "kind": _NAMES[type(body)], "parents": list(parents), "body": dataclasses.asdict(body)}
    return {**line, "id": digest(line)}


def unwrap(line: Mapping[str, Json], kind: type) -> Any:
    """The record in an envelope.

    Raises:
      RunFolderError: for another kind or version, missing or unknown fields, or an id that is not that of the content.
    """
    check(line, _ENVELOPE, f"record {str(line.get('id'))[:40]!r}")
    where = f"record {line['id'][:40]!r}"
    if line["schema"] != SCHEMA or line["kind"] != _NAMES[kind]:
        raise RunFolderError(f"{where}: expected a {_NAMES[kind]} of version {SCHEMA}, found a {line['kind'][:40]} of "
                             f"version {line['schema']}; synthesise it again with this version")
    if digest({key: value for key, value in line.items() if key != "id"}) != line["id"]:
        raise RunFolderError(f"{where}: its content has been changed: the id is that of other content; restore the file "
                             f"from a copy")
    return _typed(kind, line["body"], where)


def read(path: str | Path, kind: type) -> list[Any]:
    """The records of one kind in a file, in its order.

    Raises:
      RunFolderError: for a line that is broken or changed, as `unwrap` does.
    """
    name = _NAMES[kind]
    return [unwrap(line, kind) for line in read_lines(path) if line.get("kind") == name]


def lines(records: Iterable[Mapping[str, Json]]) -> str:
    """JSON lines, keys sorted."""
    return "".join(canonical(record) + "\n" for record in records)


def listed(records: Iterable[Mapping[str, Json]]) -> str:
    """A JSON list, one record a line, keys sorted."""
    return "[\n" + ",\n".join(map(canonical, records)) + "\n]\n"


def _typed(kind: type, body: Mapping[str, Json], where: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    wrong = sorted(fields.keys() ^ body.keys())
    if wrong:
        raise RunFolderError(f"{where}: expected the fields {', '.join(fields)}, found {', '.join(sorted(body))}")
    shape = {str: str, int: int, bool: bool}
    values = {}
    for name, field in fields.items():
        value, named = body[name], str(field.type)
        check(value, shape.get(field.type, Mapping if "Mapping[" in named and "tuple" not in named else
                               Mapping if field.type is Skeleton else list), f"{where}: {name}")
        values[name] = _typed(Skeleton, value, where) if field.type is Skeleton else (
            tuple(value) if isinstance(value, list) else value)
    return kind(**values)


@functools.cache
def code_digest(*folders: str) -> str:
    """Of all Python files below the package's folders, so that data say which code made them."""
    package = Path(__file__).resolve().parent.parent
    files = sorted(path for folder in folders for path in (package / folder).rglob("*.py"))
    return digest([[path.relative_to(package).as_posix(), path.read_text(encoding="utf-8")] for path in files])
