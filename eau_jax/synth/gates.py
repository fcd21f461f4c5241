"""The gates that judge a grounded task by executing it. Each returns a complaint, or None; the first complaint rejects.

    SCHEMA      the task is unsound, or an invariant does not hold
    TRIVIAL0    a goal holds at the start, or the checker passes there
    UNSOLVABLE  a gold step fails, or the checker does not pass after the last
    REDUNDANT   a step could be left out
    TRIVIAL1    an agent that does not try passes more often than once in a hundred times
    WEAKCHECK   the checker lets wrong plans pass
    UNGUESSABLE an argument, or what has to be said, was neither told nor shown
    AMBIG       the user's description fits more than one record, or none
    POLICY      the gold plan breaks a rule, or what is refused breaks none

The order of the steps (G6) rejects nothing: it is written down. `replay` has the gate that needs another process (NONDET),
`gates_text` those on texts and conversations (LEAK, CONTAM, USERBLOCK).
"""

import random
from typing import Any, Callable, Mapping, NamedTuple

from eau_jax.synth.domain import Case, Domain, Look, Step, Verdict, Wish, steps_of
from eau_jax.synth.ground import gold
from eau_jax.synth.mutants import null_scores, tried
from eau_jax.synth.record import Instance, Report
from eau_jax.synth.search import Seen, note, underivable


class Limits(NamedTuple):
    """How strict the gates are."""

    null: float = 0.01             # a null agent passes so often at most
    tries: int = 100               # random agents
    killed: float = 0.95           # share of the wrong plans that the checker rejects at least
    time: float = 0.8              # share of the turn limit that a conversation of the oracle takes at most


class Reject(NamedTuple):
    code: str
    detail: str


class Subject(NamedTuple):
    """A task under test."""

    domain: Domain
    instance: Instance
    case: Case
    plan: tuple[Step, ...]
    wishes: tuple[Wish, ...]
    measures: dict[str, Any]
    limits: Limits = Limits()

    @property
    def tells(self) -> list[str]:
        """What a perfect agent says."""
        return [each for wish in self.wishes for each in wish.tell]

    def run(self, plan: tuple[Step, ...], said: list[str] | None = None) -> tuple[Any, Verdict, str]:
        """(last state, verdict, the first failure or "") of a plan and words; None: a perfect agent's."""
        state, failure = self.case.start, ""
        for step in plan:
            result = self.case.call(state, step)
            state, failure = result.state, failure or (f"{step.tool}: {result.text}" if result.failed else "")
        return state, self.case.judge(state, plan, self.tells if said is None else said), failure


def subject(domain: Domain, instance: Instance, limits: Limits = Limits()) -> Subject:
    """Raises ValueError("field: expected ..., found ...") for an unsound task."""
    return Subject(domain, instance, domain.case(instance.record), gold(instance),
                   tuple(Wish(**each) for each in instance.wishes), {}, limits)


def is_sound(this: Subject) -> Reject | None:
    """G1: ids are unique, and the invariants hold at the start and after every gold step."""
    state = this.case.start
    for place in range(len(this.plan) + 1):
        for invariant in this.domain.invariants:
            if not invariant.holds(this.case, state):
                return Reject("SCHEMA", f"after {place} steps it does not hold that {invariant.id}")
        if place < len(this.plan):
            state = this.case.call(state, this.plan[place]).state
    return None


def compiles(this: Subject) -> Reject | None:
    """G3, before anything is compared with the gold state: there is one."""
    try:
        this.measures["checker"] = this.case.described["version"]
    except ValueError as error:
        return Reject("UNSOLVABLE", str(error))
    return None


def is_open(this: Subject) -> Reject | None:
    """G2: nothing that the user wants holds at the start."""
    for wish in this.wishes:
        if wish.goal and all(this.case.value(this.case.start, tuple(place)) == value for place, value in wish.goal):
            return Reject("TRIVIAL0", f"{wish.atom} is granted at the start")
    if this.run((), [])[1].solved:
        return Reject("TRIVIAL0", "the checker passes at the start")
    return None


def is_solvable(this: Subject) -> Reject | None:
    """G3: the gold plan passes, without a failing call, and every goal holds in the end."""
    state, verdict, failure = this.run(this.plan)
    if failure or not verdict.solved:
        return Reject("UNSOLVABLE", failure or "; ".join(verdict.evidence))
    for wish in this.wishes:
        for place, value in wish.goal:
            if this.case.value(state, tuple(place)) != value:
                return Reject("UNSOLVABLE", f"{wish.atom}: {'.'.join(place)} is not {value!r} in the end")
    this.measures["final"] = this.case.digest(state)
    return None


def is_minimal(this: Subject) -> Reject | None:
    """G5: without any one of the steps the checker fails, or an argument cannot be known any more."""
    for place, step in enumerate(this.plan):
        rest = this.plan[:place] + this.plan[place + 1:]
        if this.run(rest)[1].solved and not underivable(this.domain, this.case, rest, this.wishes, this.instance.facts):
            return Reject("REDUNDANT", f"step {place + 1}, {step.tool}")
    this.measures["needed"] = len(this.plan)
    return None


def orders(this: Subject) -> None:
    """G6: which writes have to come one after the other; pairs that may be exchanged are left out."""
    writes = [step for step in this.plan if this.domain.actions[step.tool].kind == "write"]
    edges = []
    for place in range(len(writes) - 1):
        swapped = (*writes[:place], writes[place + 1], writes[place], *writes[place + 2:])
        _, verdict, failure = this.run(swapped)
        if failure or not verdict.solved:
            edges.append([place, place + 1])
    this.measures["order"] = edges


def resists(this: Subject) -> Reject | None:
    """G7: agents that do not try fail."""
    scores = null_scores(this.domain, this.case, random.Random(this.instance.skeleton.seed ^ 2), this.limits.tries)
    this.measures["null"] = max(scores.values())
    best = max(scores, key=scores.get)
    return Reject("TRIVIAL1", f"{best}: {scores[best]:.2f}") if scores[best] > this.limits.null else None


def discerns(this: Subject) -> Reject | None:
    """G8: wrong plans fail."""
    plans = list(tried(this.domain, this.case, this.plan, this.tells, this.measures["final"],
                       random.Random(this.instance.skeleton.seed ^ 3)))
    escaped = [name for name, solved in plans if solved]
    caught, total = len(plans) - len(escaped), len(plans)
    this.measures["mutants"], this.measures["escaped"] = [caught, total], escaped
    if caught >= this.limits.killed * total:
        return None
    return Reject("WEAKCHECK", f"{caught} of {total}; passes: {escaped[0]}")


def is_derivable(this: Subject) -> Reject | None:
    """G9: everything that the agent writes or says has been told or shown."""
    unknown = underivable(this.domain, this.case, this.plan, this.wishes, this.instance.facts)
    return Reject("UNGUESSABLE", unknown) if unknown else None


def is_unique(this: Subject) -> Reject | None:
    """G12: each description fits the record that is meant, and no other one."""
    for wish in this.wishes:
        for table, key, fields in wish.refers:
            fits = [name for name, row in this.case.rows(this.case.start, table)
                    if all(_has(row, field, value) for field, value in fields.items())]
            if fits != [key]:
                return Reject("AMBIG", f"{wish.atom}: {table} that fit: {', '.join(fits) or 'none'}; meant: {key}")
    return None


def _has(row: Mapping[str, Any], field: str, value: Any) -> bool:
    """Whether a field has a value; "items[].name": whether that of some item has."""
    name, several, inner = field.partition("[].")
    return any(item.get(inner) == value for item in row.get(name) or ()) if several else row.get(name) == value


def obeys(this: Subject) -> Reject | None:
    """G13: the gold plan breaks no rule, and what is refused breaks the rule that is named."""
    seen: Seen = {}
    state = this.case.start
    for step in this.plan:
        look = Look(this.case, state, step, seen)
        broken = [rule.id for rule in this.domain.rules if rule.breaks(look)]
        if broken:
            return Reject("POLICY", f"{step.tool} breaks {', '.join(broken)}")
        result = this.case.call(state, step)
        state = result.state
        note(this.domain, step, result.text, seen)
    rules = {rule.id: rule for rule in this.domain.rules}
    for wish in this.wishes:
        if wish.refused and not any(rules[wish.refused].breaks(Look(this.case, this.case.start, step, seen))
                                    for step in steps_of(wish.forbidden)):
            return Reject("POLICY", f"{wish.atom} is refused, but does not break {wish.refused}")
    return None


GATES: tuple[Callable[[Subject], Reject | None], ...] = (
    is_sound, compiles, is_open, is_solvable, is_derivable, is_minimal, orders, is_unique, obeys, resists, discerns)


def gate(domain: Domain, instance: Instance, limits: Limits = Limits()) -> Report:
    """The report of the gates on one task; `measures["final"]` is the digest of the gold state, for G4."""
    try:
        this = subject(domain, instance, limits)
    except ValueError as error:
        return Report("SCHEMA", str(error), {})
    for each in GATES:
        rejected = each(this)
        if rejected is not None:
            return Report(rejected.code, rejected.detail, this.measures)
    return Report("", "", this.measures)
