"""Agents that do not try, and plans that are wrong: what a task's checker must not let pass."""

import random
from typing import Any, Iterator, Sequence

from eau_jax.synth.domain import Case, Domain, State, Step

HANDS = "by hand: "
UNSAID = "without saying"
SUMMARY = "The customer needs help."


def null_scores(domain: Domain, case: Case, rng: random.Random, tries: int) -> dict[str, float]:
    """How often each kind of null agent passes: saying nothing, handing over, looking at everything, random writes. The
    random
    ones are strong: they draw their arguments from the task's own world."""
    passes = lambda steps: case.passes([steps], [SUMMARY])[0]
    handover = [Step(name, {param: SUMMARY for param in action.params}, action.who)
                for name, action in domain.actions.items() if action.kind == "generic"]
    reads = [_drawn(domain, case, case.start, name, rng) for name in domain.reads]
    scores = {"noop": float(passes(())), "handover": float(any(passes((step,)) for step in handover)),
              "reads": float(passes(reads))}
    plans = [[_drawn(domain, case, case.start, name, rng) for name in rng.sample(domain.writes, len(domain.writes))]
             for _ in range(tries)]
    return {**scores, "random": sum(case.passes(plans, [SUMMARY])) / max(tries, 1)}


def _drawn(domain: Domain, case: Case, state: State, name: str, rng: random.Random) -> Step:
    return Step(name, domain.arguments(case, state, name, rng), domain.actions[name].who)


def tried(domain: Domain, case: Case, plan: Sequence[Step], said: Sequence[str], final: str,
          rng: random.Random) -> Iterator[tuple[str, bool]]:
    """(name, whether the checker lets it pass) of every wrong plan.

    A mutant whose calls have the effect of the gold plan to the last digit is the gold plan in other words, not a wrong one,
    unless it leaves something unsaid. What the user's own hands do otherwise is another way where it is enough.
    """
    for name, mutant, words in mutants(domain, case, plan, said, rng):
        state = case.start
        for step in mutant:
            state = case.call(state, step).state
        if words == list(said) and case.digest(state) == final:
            continue
        solved = case.judge(state, mutant, words).solved
        if solved and name.startswith(HANDS):
            continue
        yield name, solved


def kind(name: str) -> str:
    """The name of a wrong plan without what is particular to one task."""
    return UNSAID if name.startswith(UNSAID) else name


def mutants(domain: Domain, case: Case, plan: Sequence[Step], said: Sequence[str],
            rng: random.Random) -> Iterator[tuple[str, tuple[Step, ...], list[str]]]:
    """(name, calls, words): wrong arguments and entities, missing and further writes, another order, something unsaid."""
    plan, said = tuple(plan), list(said)
    writes = [place for place, step in enumerate(plan) if domain.actions[step.tool].kind == "write"]
    for place in writes:
        step = plan[place]
        hands = HANDS if step.who == "user" else ""
        yield f"{hands}without {step.tool}", plan[:place] + plan[place + 1:], said
        for name in step.arguments:
            other = _other(domain, case, step, name, rng)
            if other is not None:
                yield f"{hands}{step.tool} with another {name}", (*plan[:place], other, *plan[place + 1:]), said
    for first, second in zip(writes, writes[1:]):
        swapped = list(plan)
        swapped[first], swapped[second] = plan[second], plan[first]
        hands = HANDS if "user" in (plan[first].who, plan[second].who) else ""
        yield f"{hands}{plan[second].tool} before {plan[first].tool}", tuple(swapped), said
    state = case.start
    for step in plan:
        state = case.call(state, step).state
    for name in domain.writes:
        extra = _drawn(domain, case, state, name, rng)
        if not case.call(state, extra).failed:
            yield f"{HANDS if extra.who == 'user' else ''}{name} besides", (*plan, extra), said
    for each in dict.fromkeys(said):
        yield f"{UNSAID} {each}", plan, [text for text in said if text != each]


def _other(domain: Domain, case: Case, step: Step, name: str, rng: random.Random) -> Step | None:
    """The step with another value of one argument; None where none is found."""
    for _ in range(8):
        value: Any = domain.arguments(case, case.start, step.tool, rng).get(name)
        if value is not None and value != step.arguments[name]:
            return step._replace(arguments={**step.arguments, name: value})
    return None
