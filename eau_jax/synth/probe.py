"""Probe: compares what a domain declares with what its tools do, on random states with random arguments.

    needs     a call succeeds exactly where all preconditions hold
    effects   it changes exactly the places that are declared, to the values declared; a read changes nothing
    invariants hold before and after
    schema    the declared parameters are those of the tool
"""

import random
from typing import Any, Iterator, NamedTuple

from eau_jax.synth.domain import Case, Domain, Look, State, Step

STATES = 200             # random states of each tool


class Mismatch(NamedTuple):
    """A declaration that is not what the tool does."""

    tool: str
    kind: str                # "needs", "effects", "invariant" or "schema"
    detail: str


def probe(domain: Domain, seed: int = 0, states: int = STATES) -> list[Mismatch]:
    """The first mismatch of each kind of each tool; none where the declarations are right."""
    rng, found = random.Random(seed), {}
    for _ in range(states):
        case, state = domain.samples(rng)
        for name in domain.actions:
            step = Step(name, domain.arguments(case, state, name, rng), domain.actions[name].who)
            for mismatch in compare(domain, case, state, step):
                found.setdefault((mismatch.tool, mismatch.kind), mismatch)
    return list(found.values())


def compare(domain: Domain, case: Case, state: State, step: Step) -> Iterator[Mismatch]:
    """What a call shows to be wrong."""
    action = domain.actions[step.tool]
    if set(step.arguments) - set(action.params):
        yield Mismatch(step.tool, "schema", f"{', '.join(sorted(set(step.arguments) - set(action.params)))} is not declared")
        return
    look = Look(case, state, step, {})
    unmet = [need.id for need in action.needs if not need.holds(look)]
    result = case.call(state, step)
    if bool(unmet) != result.failed:
        expected = f"fail: {unmet[0]}" if unmet else "succeed"
        yield Mismatch(step.tool, "needs",
                       f"{dict(step.arguments)}: declared to {expected}, but it says {result.text[:200]}")
        return
    yield from _effects(domain, case, state, look, result.state, unmet)
    for invariant in domain.invariants:
        if invariant.holds(case, state) and not invariant.holds(case, result.state):
            yield Mismatch(step.tool, "invariant", f"{dict(step.arguments)}: it does not hold any more that {invariant.id}")


def _effects(domain: Domain, case: Case, state: State, look: Look, after: State, unmet: list[str]) -> Iterator[Mismatch]:
    action = domain.actions[look.step.tool]
    declared: dict[Any, Any] = {} if unmet or action.kind != "write" else dict(action.effects(look))
    wanted = {place: value for place, value in declared.items() if case.value(state, place) != value}
    changed = case.changes(state, after)
    for place in sorted({*wanted, *changed}):
        if place not in changed or place not in wanted or wanted[place] != changed[place]:
            yield Mismatch(look.step.tool, "effects", f"{'.'.join(place)}: declared {wanted.get(place, 'no change')!r}, "
                                                      f"found {changed.get(place, 'no change')!r}")
            return
