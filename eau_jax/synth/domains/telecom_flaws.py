"""Telecom with sub-tasks as a careless author writes them, so that validation has something to keep out.

The sub-tasks of `telecom` are sound: hardly a task of theirs is rejected, and a synthesis without gates makes nearly the
same tasks as one with them. A language model that writes tasks errs. These are two kinds of such errors:

    locked@I    unsatisfiable: the SIM card is locked, which nobody can mend, and the phone is expected to work in the end.
                Rejected as UNSOLVABLE. Played, it teaches nothing.
    offline@I   wrong gold: airplane mode is on, and the phone is expected to stay out of order. Rejected as TRIVIAL0.
                Played, it rewards handing the customer over, and does not reward mending the phone.

I is the letter of a complaint, as in the ids of telecom's sub-tasks.
"""

import random
from typing import Any, Mapping, Sequence

from eau_jax.synth.domain import Domain, Record, Step, Wish
from eau_jax.synth.domains.telecom import World

SOUND = "airplane"       # the sub-task that the wrong ones are made from
_LOCK = {"env_type": "user", "func_name": "lock_sim_card", "arguments": {"mode": "pin"}}
_OFFLINE = {"s": ("assert_service_status", "no_service"), "d": ("assert_mobile_data_status", False),
            "m": ("assert_can_send_mms", False)}


def flawed(domain: Domain) -> Domain:
    """Telecom, or a part of it, with the two wrong sub-tasks for every complaint of which it has `airplane`."""
    sound = [atom for atom in domain.atoms if atom.id.partition("@")[0] == SOUND]
    letters = [atom.id.partition("@")[2] for atom in sound]
    wrong = []
    for atom, letter in zip(sound, letters):
        others = frozenset(f"{kind}@{other}" for other in letters if other != letter for kind in ("locked", "offline"))
        wrong += [atom._replace(id=f"locked@{letter}", group=f"locked@{letter}", make=_locked(letter),
                                conflicts=atom.conflicts | others),
                  atom._replace(id=f"offline@{letter}", conflicts=atom.conflicts | others)]

    def record(world: World, plan: Sequence[Step], wishes: Sequence[Wish]) -> Record:
        return _spoiled(domain.record(world, plan, wishes), {tuple(wish.atom.split("@")) for wish in wishes})

    return domain._replace(atoms=(*domain.atoms, *wrong), record=record)


def _locked(letter: str) -> Any:
    def make(world: World, rng: random.Random) -> Wish:
        world.intent = letter
        return Wish("", [], [[["fault", "SIM_LOCKED"], False]], [], [], [], [], "", [], {})

    return make


def _spoiled(task: Record, names: set[tuple[str, ...]]) -> Record:
    """A task with the errors that its sub-tasks, (name, letter) each, stand for."""
    for name, letter in sorted(names):
        if name == "locked":
            start: Mapping[str, Any] = task["initial_state"]
            task = {**task, "initial_state": {**start, "initialization_actions": [*start["initialization_actions"], _LOCK]}}
        elif name == "offline":
            function, status = _OFFLINE[letter]
            expected = {"env_type": "user", "func_name": function, "arguments": {"expected_status": status},
                        "assert_value": True}
            task = {**task, "evaluation_criteria": {**task["evaluation_criteria"], "env_assertions": [expected]}}
    return task
