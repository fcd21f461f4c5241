"""Scripted agents for the tau2-bench worlds: one that knows the gold actions, and a mediocre one."""

import json
from typing import Any, Callable, Mapping

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.evaluate import missing
from eau_jax.envs.tau2.message import CALL, CALL_END
from eau_jax.envs.tau2.plan import EMAIL, NAME, USER, ZIP, Plan
from eau_jax.envs.tau2.user import AGREED, CALLED, first_open

Agent = Callable[[Task, Any, np.random.Generator], str]
HANDOVER = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
REFUSAL = "I am sorry, that is not possible."
_IDENTIFY = {"retail": "What is your e-mail address? If you do not know it: your name and zip code?",
             "airline": "What is your user id?"}


def tool_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call as the agent writes it."""
    return f"{CALL}{json.dumps({'name': name, 'arguments': dict(arguments)})}{CALL_END}"


def agents(domain: Domain, plan_of: Callable[[Task], Plan]) -> tuple[Agent, Agent]:
    """(expert, novice)."""

    def expert(task: Task, state: Any, rng: np.random.Generator) -> str:
        """Asks who the user is, looks the user up, then proposes, makes and reports each gold write."""
        plan, criteria = plan_of(task), task.data["evaluation_criteria"]
        if state.transferred:
            return HANDOVER
        if domain.name in _IDENTIFY and not state.told & 0b1111:
            return _IDENTIFY[domain.name]
        if domain.name in _IDENTIFY and not state.calls:
            return _look_up(domain, plan)
        current = first_open(state.status)
        transfer = next((action for action in criteria.get("actions") or ()
                         if action["name"] == "transfer_to_human_agents"), None)
        if transfer and (current is None or not plan.goals[current].tool):
            return tool_call(transfer["name"], transfer["arguments"])
        goal = plan.goals[current] if current is not None else None
        if goal is not None and goal.tool and state.status[current] < CALLED:
            if state.status[current] == AGREED:
                return tool_call(goal.tool, goal.arguments)
            return f"I would do this: {goal.tool} {json.dumps(goal.arguments)}. Do you confirm (yes/no)?"
        say = missing(criteria, state.said)
        if say:
            return f"You wanted to know: {'; '.join(say)}. It is done. Is there anything else?"
        if goal is not None and not goal.tool and current == 0:
            return REFUSAL
        return "It is done. Is there anything else?"

    def novice(task: Task, state: Any, rng: np.random.Generator) -> str:
        """Does what the expert does most of the time; else refuses, chats, calls a wrong tool or claims to be done."""
        draw = rng.random()
        if draw < 0.65:
            return expert(task, state, rng)
        if draw < 0.75:
            return REFUSAL
        if draw < 0.85:
            return "Let me see what I can do for you."
        if draw < 0.93:
            return tool_call("get_user_details", {"user_id": "unknown"})
        return "It is done. Is there anything else?"

    return expert, novice


def _look_up(domain: Domain, plan: Plan) -> str:
    value = {slot: plan.values[slot][0] for slot in (NAME, ZIP, EMAIL, USER) if slot in plan.values}
    if domain.name == "retail" and EMAIL in value:
        return tool_call("find_user_id_by_email", {"email": value[EMAIL]})
    if domain.name == "retail" and ZIP in value:
        first, _, last = value[NAME].partition(" ")
        return tool_call("find_user_id_by_name_zip", {"first_name": first, "last_name": last, "zip": value[ZIP]})
    return tool_call("get_user_details", {"user_id": value.get(USER, plan.user_id)})
