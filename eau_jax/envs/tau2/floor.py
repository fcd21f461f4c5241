"""What an agent that does not try earns on a tau2-bench domain, computed from the domain's tasks."""

import math
from typing import Sequence

from eau_jax.core.part import Floor
from eau_jax.core.types import Task
from eau_jax.envs.tau2.call import TRANSFER, call
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.evaluate import Calls, evaluate, gold, start
from eau_jax.envs.tau2.plan import plan

_HANDOVER = ((TRANSFER.name, {"summary": "x"}),)


def floor(domain: Domain, tasks: Sequence[Task]) -> Floor:
    """The floor on `tasks`: what doing nothing earns, or handing over at once, whichever is more. It holds on each split of
    the domain and on all of its tasks together: the largest of their means, rounded up to two places."""
    best = []
    for calls in ((), _HANDOVER):
        earned = {task.id: _untouched(domain.at(task), task, calls) for task in tasks}
        for names in (earned, *domain.splits.values()):
            found = [earned[name] for name in names if name in earned]
            best += [sum(found) / len(found)] if found else []
    return Floor(idle=math.ceil(100 * max(best, default=0.0) - 1e-9) / 100)


def _untouched(domain: Domain, task: Task, calls: Calls) -> float:
    """The reward where the agent made these calls, which change no record, said nothing, and the user ended the talk."""
    begin = start(domain, task)
    final = begin.changed
    for each in plan(domain, task).dismisses if domain.user_tools else ():
        final = call(domain.user_tools, domain.base, final, "dismiss_notification", {"notification_id": each}).changed
    return evaluate(domain, task, gold(domain, task, begin), final, (*begin.calls, *calls), begin.said).reward
