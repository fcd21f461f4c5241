"""The scripted agent that carries out the gold plan, and says nothing that it has not been told or shown.

It finds out who the user is, then takes one wish after the other: it looks up what its plan says, asks for what the user can
tell, proposes the write, makes it, and reports. What it does next follows from the state of the episode alone.
"""

import json
from typing import Any

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs.tau2.agent import tool_call
from eau_jax.envs.tau2.plan import DETAILS, EMAIL, FIRST, NAME, PAYMENT, RECORD, ZIP, told
from eau_jax.envs.tau2.user import AGREED, CALLED, first_open

_ASKS = {RECORD: "what is the order number", DETAILS: "what exactly are the details", PAYMENT: "how would you like to pay"}
_WHO = {EMAIL: "your e-mail address", NAME: "your name", ZIP: "your zip code"}


def oracle(task: Task, state: Any, rng: np.random.Generator) -> str:
    """The next message."""
    plan = told(task.data["user"])
    who = [slot for slot in (EMAIL, NAME, ZIP) if slot in plan.says and (slot == EMAIL or EMAIL not in plan.says)]
    missing = [slot for slot in who if not state.told >> slot & 1]
    if missing:
        return f"Could you tell me {' and '.join(_WHO[slot] for slot in missing)}, please?"
    current = first_open(state.status)
    if current is None:
        return "It is done. Is there anything else?"
    goal = plan.goals[current]
    slots = [FIRST + 3 * current + part for part in (RECORD, DETAILS, PAYMENT) if goal.says[part]]
    left = [slot for slot in slots if not state.told >> slot & 1]
    if left:
        asks = " and ".join(_ASKS[(slot - FIRST) % 3] for slot in left)
        return f"{asks[0].upper()}{asks[1:]}, please?"
    return _deals(task, state, goal, current)


def _deals(task: Task, state: Any, goal: Any, current: int) -> str:
    actions = task.data["evaluation_criteria"]["actions"]
    step = _next_read(task, state, goal, actions)
    if step is not None:
        return tool_call(step["name"], step["arguments"])
    if goal.tool:
        if state.status[current] == CALLED:
            return "It is done. Is there anything else?"
        if state.status[current] == AGREED:
            return tool_call(goal.tool, goal.arguments)
        return f"I would do this: {goal.tool} {json.dumps(goal.arguments)}. Do you confirm (yes/no)?"
    wish = task.data["wishes"][current]
    found = "; ".join(wish["tell"])
    if wish["refused"]:
        return f"I am sorry, that is not possible. What you need at the counter: {found}."
    return f"You wanted to know: {found}. It is done. Is there anything else?"


def _next_read(task: Task, state: Any, goal: Any, actions: Any) -> Any:
    """The next look-up of the plan before the goal's write; for a goal without one, the next look-up of all that follow."""
    made = [name_and(call) for call in state.calls]
    for step in actions:
        key = name_and((step["name"], step["arguments"]))
        if goal.tool and key == name_and((goal.tool, goal.arguments)):
            return None
        if key in made:
            continue
        if step["name"] in {each.tool for each in told(task.data["user"]).goals}:
            if not goal.tool:
                return None
            continue
        return step
    return None


def name_and(call: tuple[str, Any]) -> str:
    """A call as text, for comparing."""
    return call[0] + json.dumps(call[1], sort_keys=True)
