"""The scripted agent that carries out the gold plan, and says nothing that it has not been told or shown; and a mediocre
one.

It finds out who the user is, then takes one wish after the other: it looks up what its plan says, asks for what the user can
tell, proposes the write, makes it, and reports. What it does next follows from the state of the episode alone.
"""

import json
from typing import Any, Callable, Mapping

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs.tau2.agent import tool_call
from eau_jax.envs.tau2.plan import DETAILS, EMAIL, FIRST, NAME, PAYMENT, RECORD, USER, ZIP, Goal, Plan, told
from eau_jax.envs.tau2.user import AGREED, CALLED, first_open

_ASKS = {RECORD: "what is the order number", DETAILS: "what exactly are the details", PAYMENT: "how would you like to pay"}
_WHO = {USER: "your user id", EMAIL: "your e-mail address", NAME: "your name", ZIP: "your zip code"}
_ENOUGH = ((USER,), (EMAIL,), (NAME, ZIP))    # what says who somebody is; the first of which all can be told is asked


Agent = Callable[[Task, Any, np.random.Generator], str]
CARE = 0.7               # how often the novice does what the oracle would


class _Last:
    """The plan of the last task: conversations come one task after the other."""

    def __init__(self):
        self._data: Any = None
        self._plan: Plan | None = None

    def plan(self, task: Task) -> Plan:
        """Of a task, which is the last one from now on."""
        if self._data is not task.data:
            self._data, self._plan = task.data, told(task.data["user"])
        return self._plan


def agents() -> tuple[Agent, Agent]:
    """(oracle, novice)."""
    last = _Last()

    def oracle(task: Task, state: Any, rng: np.random.Generator) -> str:
        """The next message."""
        return _next(task, last.plan(task), state)

    def novice(task: Task, state: Any, rng: np.random.Generator) -> str:
        """Does what the oracle does most of the time; else it claims to be done, refuses, chats, or skips to a write that
        nobody
        has agreed to, now and then with a wrong argument."""
        if rng.random() < CARE:
            return oracle(task, state, rng)
        goals = [goal for goal in last.plan(task).goals if goal.tool]
        slips = ["It is done. Is there anything else?", "I am sorry, that is not possible.",
                 "Let me see what I can do for you."]
        if goals:
            goal = goals[int(rng.integers(len(goals)))]
            slips += [tool_call(goal.tool, goal.arguments), tool_call(goal.tool, _slipped(goal, goals, rng))]
        return slips[int(rng.integers(len(slips)))]

    return oracle, novice


def _slipped(goal: Goal, goals: list[Goal], rng: np.random.Generator) -> dict[str, Any]:
    """The goal's arguments, one of them taken from another goal where there is one that has it."""
    others = [(name, other.arguments[name]) for other in goals for name in goal.arguments
              if name in other.arguments and other.arguments[name] != goal.arguments[name]]
    name, value = others[int(rng.integers(len(others)))] if others else (next(iter(goal.arguments)), "R00000")
    return {**goal.arguments, name: value}


def _next(task: Task, plan: Plan, state: Any) -> str:
    who = next((slots for slots in _ENOUGH if plan.says.keys() >= set(slots)), ())
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
    step = _next_read(task, plan, state, goal)
    if step is not None:
        return tool_call(step["name"], step["arguments"])
    if not goal.tool:
        return _answers(task.data["wishes"][current])
    if state.status[current] == AGREED:
        return tool_call(goal.tool, goal.arguments)
    if state.status[current] == CALLED:
        return "It is done. Is there anything else?"
    return f"I would do this: {goal.tool} {json.dumps(goal.arguments)}. Do you confirm (yes/no)?"


def _answers(wish: Mapping[str, Any]) -> str:
    """What is said about a wish that needs no write."""
    found = "; ".join(wish["tell"])
    if wish["refused"]:
        return f"I am sorry, that is not possible.{f' What you need at the counter: {found}.' if found else ''}"
    return f"You wanted to know: {found}. It is done. Is there anything else?"


def _next_read(task: Task, plan: Plan, state: Any, goal: Goal) -> Mapping[str, Any] | None:
    """The next look-up of the gold plan before the goal's write; for a goal without one, before the next write."""
    made = [_named(*call) for call in state.calls]
    writes = {goal.tool for goal in plan.goals}
    for step in task.data["evaluation_criteria"]["actions"]:
        key = _named(step["name"], step["arguments"])
        if goal.tool and key == _named(goal.tool, goal.arguments):
            return None
        if key in made:
            continue
        if step["name"] not in writes:
            return step
        if not goal.tool:
            return None
    return None


def _named(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as text, for comparing."""
    return name + json.dumps(arguments, sort_keys=True)
