"""What a proposer may say: one bounded change of knobs, rules or task mix, why, and what should follow from it.

    {"base_generation": 3, "changes": {"env.max_turns": 20}, "diagnosis": {"owner": "env", "fault": "too_few_turns", ...},
     "prediction": {"metric": "rollout/truncated_rate", "direction": "down", "min_effect": 0.05, "within_updates": 5},
     "ttl_updates": 10, "why": "..."}

A proposal is text until `parse` has read it; nothing else of what a proposer writes is ever looked at.
"""

import dataclasses
import json
from typing import Any, Collection, Mapping

OWNERS = ("user", "env", "rl", "infra", "checker", "policy", "none")
MOST_BYTES = 65_536   # of a proposal's text
MOST_CHANGES = 2      # knobs in one proposal
MOST_CODE = 8192      # characters of a rule in Python
MOST_RULES = 8192     # bytes of a decision list
MOST_NAME = 100       # characters of a knob's, bucket's, feature's or metric's name
FIELDS = {"base_generation", "changes", "rules", "python", "task_mix", "diagnosis", "prediction", "ttl_updates", "why"}


LANES = ("rules", "task_mix")   # what is changed beside knobs


def is_fixed(what: str, fixed: Collection[str]) -> bool:
    """Whether a knob, or a lane, is among what no change may touch, by its own name or by its owner's."""
    owner = {"rules": "user", "task_mix": "env"}.get(what, what.split(".")[0])
    return what in fixed or owner in fixed


class ProposalError(ValueError):
    """A proposal that cannot be read; it names the field, what was given and what is allowed."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One number that speaks for a diagnosis."""

    metric: str
    first: int       # update at which its window begins
    last: int        # and ends
    value: float
    limit: float     # beyond which it is an alarm


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Who is at fault, and what speaks for it."""

    owner: str                            # one of OWNERS; "none": nothing is wrong
    fault: str                            # a name of `signals.FAULTS`, or "" with owner "none"
    confidence: float = 1.0               # in [0, 1]
    evidence: tuple[Evidence, ...] = ()
    tests: tuple[str, ...] = ()           # causal tests that were run, as sentences


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What the change should do, judged after `within_updates` updates."""

    metric: str                           # a name in metrics.jsonl
    direction: str                        # "up" or "down"
    min_effect: float                     # in the metric's unit, above 0
    within_updates: int


@dataclasses.dataclass(frozen=True)
class Python:
    """Rules of the symbolic user as a function; `python_code` says what it may be."""

    code: str
    reads: Mapping[str, tuple[int, int]]  # {feature: (low, high)}


@dataclasses.dataclass(frozen=True)
class Proposal:
    """One bounded change. It is of one owner: user, env or rl."""

    id: str                               # given by the host, never by the proposer
    author: str                           # name of the proposer
    base_generation: int
    diagnosis: Diagnosis
    prediction: Prediction
    changes: Mapping[str, float]          # {knob: new value}
    rules: str = ""                       # TOML of the symbolic user's decision list; "": as it is
    task_mix: Mapping[str, float] = dataclasses.field(default_factory=dict)   # {bucket: share}; {}: as it is
    python: Python | None = None          # in place of `rules`; once the gate has read it, `rules` holds what it comes to
    ttl_updates: int = 10                 # after which the change is judged
    why: str = ""

    @property
    def owner(self) -> str:
        """Who owns what is changed; rules are the user's, the task mix is the environment's."""
        owners = {path.split(".")[0] for path in self.changes}
        owners |= ({"user"} if self.steers else set()) | ({"env"} if self.task_mix else set())
        return owners.pop() if len(owners) == 1 else "+".join(sorted(owners))

    @property
    def steers(self) -> bool:
        """Whether it gives the user other rules, in whichever form."""
        return bool(self.rules or self.python)

    @property
    def count(self) -> int:
        """How many changes it makes: rules and task mix are one each."""
        return len(self.changes) + self.steers + bool(self.task_mix)

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Batch:
    """What came of one round of proposing. A proposer never raises: what went wrong is its status."""

    status: str                           # "ok" | "empty" (no change is needed) | "timeout" | "agent_error" | "invalid"
    texts: tuple[str, ...] = ()           # proposals as they were written, at most a few
    diagnosis: Diagnosis | None = None
    agent: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # name, version, model, turns, tokens, cost, seconds, ...
    problem: str = ""                     # what went wrong, for every status but "ok" and "empty"


def parse(text: str, id: str, author: str) -> Proposal:
    """A proposal from what a proposer wrote. Only its form is checked here; `gate` decides whether it may be done.

    Raises:
      ProposalError: for text that is too long, is no JSON object, or has a wrong, missing or unknown field.
    """
    fields = _object(_read(text), "proposal", FIELDS, {"base_generation", "diagnosis", "prediction"})
    changes = {path: _number(value, f"changes[{path!r}]") for path, value in _named(fields.get("changes", {}), "changes")}
    mix = {name: _number(value, f"task_mix[{name!r}]", 0, 1)
           for name, value in _named(fields.get("task_mix", {}), "task_mix")}
    rules = _text(fields.get("rules", ""), "rules", MOST_BYTES)
    python = _python(fields["python"]) if "python" in fields else None
    if not (changes or rules or python or mix):
        raise ProposalError("the proposal changes nothing; give changes, rules, python or task_mix, or propose nothing at "
                            "all")
    if rules and python:
        raise ProposalError("the proposal has rules and python; give one of the two: it stands for all rules of the user")
    return Proposal(
        id=id, author=author, base_generation=_whole(fields["base_generation"], "base_generation", 0, 10**9),
        diagnosis=_diagnosis(fields["diagnosis"]), prediction=_prediction(fields["prediction"]), changes=changes, rules=rules,
        python=python, task_mix=mix, ttl_updates=_whole(fields.get("ttl_updates", 10), "ttl_updates", 1, 100),
        why=_text(fields.get("why", ""), "why", 4000))


def finding(text: str) -> Diagnosis:
    """The diagnosis of what was written without any change: its author finds that none is needed, or possible.

    Raises:
      ProposalError: as `parse`.
    """
    return _diagnosis(_object(_read(text), "proposal", FIELDS, {"diagnosis"})["diagnosis"])


def _read(text: str) -> Any:
    if len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise ProposalError(f"the proposal has {len(text)} characters; allowed: {MOST_BYTES} bytes")
    try:
        given = json.loads(text, parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_once)
        json.dumps(given, ensure_ascii=False).encode()
    except (json.JSONDecodeError, RecursionError) as error:
        raise ProposalError(f"the proposal is not JSON: {error}") from None
    except UnicodeEncodeError as error:
        raise ProposalError(f"the proposal holds half a character, which no file can keep: {error.reason}; write a "
                            f"character beyond \\uffff as a pair") from None
    return given


def _diagnosis(given: Any) -> Diagnosis:
    fields = _object(given, "diagnosis", {"owner", "fault", "confidence", "evidence", "tests"}, {"owner", "fault"})
    owner = _text(fields["owner"], "diagnosis.owner", 20)
    if owner not in OWNERS:
        raise ProposalError(f"diagnosis.owner is {owner!r}; allowed: {', '.join(OWNERS)}")
    evidence = []
    for place, item in enumerate(_list(fields.get("evidence", []), "diagnosis.evidence", 20)):
        name = f"diagnosis.evidence[{place}]"
        keys = {"metric", "first", "last", "value", "limit"}
        part = _object(item, name, keys, keys)
        first = _whole(part["first"], f"{name}.first", 0, 10**9)
        evidence.append(Evidence(_text(part["metric"], f"{name}.metric", MOST_NAME), first,
                                 _whole(part["last"], f"{name}.last", first, 10**9), _number(part["value"], f"{name}.value"),
                                 _number(part["limit"], f"{name}.limit")))
    tests = tuple(_text(item, f"diagnosis.tests[{place}]", 400) for place, item in
                  enumerate(_list(fields.get("tests", []), "diagnosis.tests", 20)))
    return Diagnosis(owner, _text(fields["fault"], "diagnosis.fault", 60),
                     _number(fields.get("confidence", 1.0), "diagnosis.confidence", 0, 1), tuple(evidence), tests)


def _python(given: Any) -> Python:
    fields = _object(given, "python", {"code", "reads"}, {"code", "reads"})
    reads = {}
    for feature, ends in _named(fields["reads"], "python.reads"):
        name = f"python.reads[{feature!r}]"
        if not isinstance(ends, list) or len(ends) != 2:
            raise ProposalError(f"{name} is {_shown(ends)}; it must be a list of two whole numbers, low and high")
        reads[feature] = (_whole(ends[0], name, -10**9, 10**9), _whole(ends[1], name, -10**9, 10**9))
    return Python(_text(fields["code"], "python.code", MOST_CODE), reads)


def _prediction(given: Any) -> Prediction:
    keys = {"metric", "direction", "min_effect", "within_updates"}
    fields = _object(given, "prediction", keys, keys)
    if fields["direction"] not in ("up", "down"):
        raise ProposalError(f"prediction.direction is {_shown(fields['direction'])}; allowed: \"up\", \"down\"")
    return Prediction(_text(fields["metric"], "prediction.metric", MOST_NAME), fields["direction"],
                      _number(fields["min_effect"], "prediction.min_effect", 0), _whole(fields["within_updates"],
                                                                                     "prediction.within_updates", 1, 100))


def _object(given: Any, name: str, allowed: set[str], needed: set[str]) -> dict[str, Any]:
    fields = _mapping(given, name)
    for key in fields:
        if key not in allowed:
            raise ProposalError(f"{name} has the unknown field {key!r}; allowed: {', '.join(sorted(allowed))}")
    for key in sorted(needed):
        if key not in fields:
            raise ProposalError(f"{name} has no field {key!r}; it needs {', '.join(sorted(needed))}")
    return fields


def _named(given: Any, name: str) -> list[tuple[str, Any]]:
    """The items of an object whose keys are names of something."""
    long = next((key for key in _mapping(given, name) if len(key) > MOST_NAME), None)
    if long is not None:
        raise ProposalError(f"{name} has a name of {len(long)} characters, {_shown(long)}; allowed: {MOST_NAME}")
    return list(given.items())


def _mapping(given: Any, name: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ProposalError(f"{name} is {_shown(given)}; it must be a JSON object")
    return given


def _list(given: Any, name: str, most: int) -> list[Any]:
    if not isinstance(given, list) or len(given) > most:
        raise ProposalError(f"{name} is {_shown(given)}; it must be a list of at most {most}")
    return given


def _text(given: Any, name: str, most: int) -> str:
    if not isinstance(given, str) or len(given) > most:
        raise ProposalError(f"{name} is {_shown(given)}; it must be a text of at most {most} characters")
    return given


def _number(given: Any, name: str, low: float = -1e12, high: float = 1e12) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not low <= given <= high:
        raise ProposalError(f"{name} is {_shown(given)}; it must be a number from {low:g} to {high:g}")
    return given


def _whole(given: Any, name: str, low: int, high: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not low <= given <= high:
        raise ProposalError(f"{name} is {_shown(given)}; it must be a whole number from {low} to {high}")
    return given


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a key that stands there twice it is not known which value is meant."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ProposalError(f"the proposal gives {_shown(key)} twice in one object; give it once")
        found[key] = value
    return found


def _no_constant(name: str) -> float:
    raise ProposalError(f"the proposal contains {name}; give a number")


def _integer(text: str) -> int:
    if len(text) > 20:
        raise ProposalError(f"the proposal contains a number of {len(text)} digits; give a shorter one")
    return int(text)


def _shown(value: Any) -> str:
    return repr(value)[:80]
