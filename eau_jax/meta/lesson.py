"""A lesson of the experience pool: one short document that says what a change did about a fault, and how often.

    +++
    id = "L-0007"
    env = "intention"
    fault = "too_few_turns"
    owner = "env"
    advice = "do"                       # or "avoid"
    backbone = "Qwen3-4B"               # the model it was seen with
    helpful = 1                         # cases that speak for the advice
    harmful = 0                         # and against it
    last_used_run = "first-01"
    expires_after = 2                   # runs on `env` without use; 0: never
    changes = {"env.max_turns" = [8.0, 10.0]}
    task_mix = {}
    rules = ""
    cases = [
      {vote = "helpful", run = "first-01", audit = "3fa9c1d2e4b5a607", said = "rollout/truncated_rate went from 0.4 to 0.1"},
    ]
    +++
    Any text. It is kept as it is.

A person may write and edit lessons; what cannot be read, or names what is sealed, is refused with the file and the reason.
"""

import dataclasses
import json
import re
import tomllib
from typing import Any, Collection, Mapping, NamedTuple, Sequence

from eau_jax.core.knobs import OWNERS, nearest
from eau_jax.meta import document, watch
from eau_jax.meta.document import refuse
from eau_jax.meta.signals import FAULTS

ADVICE = ("do", "avoid")
VOTES = ("helpful", "harmful", "untried")   # untried: a restart begins with it, and nobody has seen yet what it does
MOST_TEXT, MOST_SAID = 4_000, 1_000         # characters
ALIKE = 0.8                                 # share of common words from which two texts say the same
EXPIRES_AFTER = 2
NEEDED = ("id", "env", "fault", "owner", "advice", "cases")


class Case(NamedTuple):
    """One time that the advice was followed, and how it went."""

    vote: str    # one of VOTES: for or against the lesson's advice
    run: str     # name of the run in the pool
    audit: str   # hash of the audit record, or of the anchor curve, that shows it
    said: str = ""


@dataclasses.dataclass(frozen=True)
class Lesson:
    """What the document holds. `id` is "" until the pool gives one."""

    id: str
    env: str
    fault: str                # a name of `signals.FAULTS`
    owner: str                # of what is changed: user, env or rl
    advice: str               # one of ADVICE
    cases: tuple[Case, ...]
    changes: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)    # {knob: (old, new)}
    task_mix: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)   # {bucket: (old, new)}
    rules: str = ""           # TOML of the symbolic user's decision list
    backbone: str = ""
    last_used_run: str = ""
    expires_after: int = EXPIRES_AFTER
    text: str = ""

    @property
    def helpful(self) -> int:
        return sum(case.vote == "helpful" for case in self.cases)

    @property
    def harmful(self) -> int:
        return sum(case.vote == "harmful" for case in self.cases)

    @property
    def moves(self) -> tuple[str, ...]:
        """What it changes and whither, as `watch.moves` names it; notes in rules are left out."""
        return watch.moves(self.changes, bare(self.rules), self.task_mix)

    def alike(self, other: "Lesson") -> bool:
        """Whether the other says the same: the same advice about the same moves, or without moves in nearly the same words.

        What learning needs depends on the model, so lessons about `rl` are of one backbone.
        """
        about = lambda lesson: (lesson.env, lesson.fault, lesson.owner, lesson.advice,
                                lesson.backbone if lesson.owner == "rl" else "", sorted(lesson.moves))
        return about(self) == about(other) and bool(self.moves or _overlap(self.text, other.text) >= ALIKE)

    def contradicts(self, other: "Lesson") -> bool:
        """Whether the other gives the opposite advice about the same moves."""
        opposite = dataclasses.replace(self, advice=other.advice)
        return self.advice != other.advice and bool(self.moves) and opposite.alike(other)

    def joined(self, other: "Lesson", order: Sequence[str]) -> "Lesson":
        """Both as one, whichever comes first: what the newer run shows stands, and all cases are kept.

        Args:
          order: names of the pool's runs, the oldest first.
        """
        place = {run: number for number, run in enumerate(order)}
        newest = lambda lesson: (max((place.get(case.run, -1) for case in lesson.cases), default=-1),
                                 dump(dataclasses.replace(lesson, id="")))
        older, newer = sorted((self, other), key=newest)
        cases = {(case.run, case.audit): case for case in (*older.cases, *newer.cases)}
        texts = [text for text in dict.fromkeys((older.text, newer.text)) if text]
        if len(texts) == 2 and _overlap(*texts) >= ALIKE:
            texts = texts[1:]
        return dataclasses.replace(
            newer, id=min(filter(None, (self.id, other.id)), default=""), text="\n\n".join(texts)[:MOST_TEXT],
            last_used_run=max(self.last_used_run, other.last_used_run, key=lambda run: (place.get(run, -1), run)),
            cases=tuple(sorted(cases.values(), key=lambda case: (place.get(case.run, -1), case))))


def bare(rules: str) -> str:
    """What a decision list decides, without notes and layout: the same text for lists that differ in those alone."""
    given = _listed(rules)
    if given is None:
        return rules
    for rule in given.get("rule", []):
        rule.pop("note", None)
    return json.dumps(given, sort_keys=True, default=str) if given else ""


def _listed(rules: str) -> dict[str, Any] | None:
    """The tables of a decision list; None for a text that is none."""
    try:
        given = tomllib.loads(rules)
    except (ValueError, RecursionError):
        return None
    rule = given.get("rule", [])
    return given if isinstance(rule, list) and all(isinstance(one, dict) for one in rule) else None


def _overlap(left: str, right: str) -> float:
    one, two = (set(re.findall(r"[\w.]+", text.casefold())) for text in (left, right))
    return len(one & two) / len(one | two) if one | two else 1.0


def dump(lesson: Lesson) -> str:
    """The document."""
    fields = {name: getattr(lesson, name) for name in (
        "id", "env", "fault", "owner", "advice", "backbone", "helpful", "harmful", "last_used_run", "expires_after",
        "changes", "task_mix", "rules")}
    return document.dump(fields | {"cases": [case._asdict() for case in lesson.cases]}, lesson.text)


def parse(text: str, name: str) -> Lesson:
    """The lesson of the document `name`.

    Raises:
      DocumentError: for what is no lesson; it names the field, what was given and what is allowed.
    """
    given, body = document.read(text, name)
    known = [field.name for field in dataclasses.fields(Lesson) if field.name != "text"] + ["helpful", "harmful"]
    for field in given:
        if field not in known:
            refuse(name, f"unknown field {field!r}{nearest(field, known)}")
    for field in NEEDED:
        if field not in given:
            refuse(name, f"it has no field {field!r}; a lesson needs {', '.join(NEEDED)}")
    if len(body) > MOST_TEXT:
        refuse(name, f"its text has {len(body)} characters; allowed: {MOST_TEXT}")
    word = lambda field, allowed=(): _word(given, field, allowed, name)
    lesson = Lesson(word("id"), word("env"), word("fault", FAULTS), word("owner", OWNERS), word("advice", ADVICE),
                    _cases(given["cases"], name), _pairs(given, "changes", name), _pairs(given, "task_mix", name),
                    word("rules"), word("backbone"), word("last_used_run"), _runs(given, name), body)
    if _listed(lesson.rules) is None:
        refuse(name, f"rules is {lesson.rules[:80]!r}; it must be a decision list of the symbolic user as TOML, or empty")
    others = {path.split(".")[0] for path in lesson.changes} - {lesson.owner}
    if others:
        refuse(name, f"owner is {lesson.owner!r}, but it changes knobs of {', '.join(sorted(others))}; a lesson is about "
                     f"one owner")
    for counter in ("helpful", "harmful"):
        if given.get(counter, getattr(lesson, counter)) != getattr(lesson, counter):
            refuse(name, f"{counter} is {given[counter]}, but {getattr(lesson, counter)} of its cases say so; add the case, "
                         f"or leave {counter} out")
    return lesson


def _word(given: Mapping[str, Any], field: str, allowed: Collection[str], name: str) -> str:
    value = given.get(field, "")
    if not isinstance(value, str) or (allowed and value not in allowed) or (field in NEEDED and not value):
        refuse(name, f"{field} is {value!r}; allowed: {', '.join(allowed) if allowed else 'a text'}")
    return value


def _pairs(given: Mapping[str, Any], field: str, name: str) -> dict[str, tuple[float, float]]:
    value = given.get(field, {})
    number = lambda one: isinstance(one, (int, float)) and not isinstance(one, bool) and abs(one) < 1e12
    if not isinstance(value, dict) or not all(
            isinstance(pair, list) and len(pair) == 2 and all(map(number, pair)) for pair in value.values()):
        refuse(name, f"{field} is {str(value)[:80]}; it must be a table of pairs [old, new]")
    return {key: tuple(pair) for key, pair in value.items()}


def _cases(given: Any, name: str) -> tuple[Case, ...]:
    needed = {"vote", "run", "audit"}
    if not isinstance(given, list) or not given or not all(
            isinstance(case, dict) and needed <= case.keys() <= needed | {"said"} and case["vote"] in VOTES
            and all(isinstance(value, str) for value in case.values()) and case["run"] and case["audit"] for case in given):
        refuse(name, f"cases must be a list of at least one {{vote, run, audit, said}}, vote one of {', '.join(VOTES)}: a "
                     f"lesson cites what shows it")
    return tuple(Case(case["vote"], case["run"], case["audit"], case.get("said", "")[:MOST_SAID]) for case in given)


def _runs(given: Mapping[str, Any], name: str) -> int:
    value = given.get("expires_after", EXPIRES_AFTER)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        refuse(name, f"expires_after is {value!r}; allowed: 0 (never) or more runs")
    return value
