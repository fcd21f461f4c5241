"""Tasks made to order for the tests of synthesis."""

import copy
import dataclasses

from eau_jax.synth.domain import Wish
from eau_jax.synth.gates import gate
from eau_jax.synth.ground import ground
from eau_jax.synth.realise import realise
from eau_jax.synth.record import Skeleton
from eau_jax.synth.replay import replayed

CELL = {"outcome": "fulfil", "size": 1, "persona": "plain", "distractors": 1, "split": "train"}


class Here:
    """Carries gold plans out again in this process."""

    def __init__(self, domain):
        self._domain = domain

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def digest(self, record, plan):
        return replayed(self._domain, record, [list(step) for step in plan])


def instance(domain, *atoms, seed=0, **cell):
    """A grounded task of these atoms; the first seed from `seed` on for which the world has room."""
    return ground(domain, Skeleton(atoms, {"domain": domain.name, **CELL, **cell}, seed))


def changed(made, rows=None, wishes=None, plan=None, criteria=None):
    """The instance with other rows, wishes, gold plan or criteria, each given as a function that changes a copy."""
    record, own, steps = copy.deepcopy((made.record, [dict(each) for each in made.wishes],
                                        [dict(each) for each in made.plan]))
    for change, value in ((rows, record["initial_state"]["initialization_data"] and record["initial_state"][
            "initialization_data"]["agent_data"]), (wishes, own), (plan, steps), (criteria, record["evaluation_criteria"])):
        if change is not None:
            change(value)
    if plan is not None:
        record["evaluation_criteria"]["actions"] = [
            {"action_id": str(place), "requestor": "assistant", "name": each["tool"], "arguments": each["arguments"]}
            for place, each in enumerate(steps)]
    return dataclasses.replace(made, record=record, wishes=tuple(own), plan=tuple(steps))


def code(domain, made):
    """The reject code of the gates on the grounded task."""
    return gate(domain, made).code


def whole(domain, made):
    """(record with texts, wishes)."""
    return realise(domain, made).record, [Wish(**each) for each in made.wishes]
