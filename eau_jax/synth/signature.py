"""Signatures: what two tasks have in common when only names and numbers differ."""

from typing import Any, Mapping, Sequence

from eau_jax.synth.domain import Action, Domain, Step, Wish
from eau_jax.synth.record import digest


def signature(domain: Domain, plan: Sequence[Step], wishes: Sequence[Wish]) -> str:
    """Of a skeleton: the writes with the sources of their arguments and what they consume of one another, and what is
    refused or told."""
    writes = [step for step in plan if domain.actions[step.tool].kind == "write"]
    outcome = [wish.refused or "asked" for wish in wishes if not wish.steps]
    return digest([written(domain.actions, writes), sorted(outcome), sum(bool(wish.tell) for wish in wishes)])


def written(actions: Mapping[str, Action], writes: Sequence[Step]) -> list[Any]:
    """[tool, sources, tools of the earlier writes that share a looked-up argument with it] of each write, sorted."""
    shape = []
    for place, step in enumerate(writes):
        params = actions[step.tool].params
        sources = sorted(params[name].source for name in step.arguments if name in params)
        ids = {value for name, value in step.arguments.items() if name in params and params[name].source == "lookup"
               and isinstance(value, str)}
        shares = sorted(other.tool for other in writes[:place] if ids & {
            value for value in other.arguments.values() if isinstance(value, str)})
        shape.append([step.tool, sources, shares])
    return sorted(shape)


def of_record(actions: Mapping[str, Action], record: Mapping[str, Any]) -> str:
    """The signature of the writes of any task in tau2's schema, for comparing with sealed ones; "" where nothing is written:
    two tasks have nothing in common by that."""
    steps = [Step(each["name"], each["arguments"]) for each in record["evaluation_criteria"].get("actions") or ()]
    writes = [step for step in steps if step.tool in actions and actions[step.tool].kind == "write"]
    return digest(written(actions, writes)) if writes else ""
