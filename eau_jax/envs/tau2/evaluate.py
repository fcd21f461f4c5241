"""Scores a tau2-bench episode, as upstream does, and says by which basis.

The reward is the product of the components of the task's basis (Barres et al. 2025, tau2-bench 1.0.1):

    DB             the final records equal those that the gold actions leave, replayed on the task's start
    ENV_ASSERTION  every assertion holds on the final records
    COMMUNICATE    every string occurs in some message of the agent, in any case, commas left out of the message
    ACTION         every gold action was called
    NL_ASSERTION   a judge finds every statement true

Without a judge NL_ASSERTION cannot be had: the basis is then the task's other components with DB and COMMUNICATE.
"""

import math
from typing import Any, Container, Mapping, NamedTuple, Sequence

from eau_jax.core.types import Task
from eau_jax.envs.tau2.call import Refused, call, checked
from eau_jax.envs.tau2.database import NOTHING, Changed, View, merged, same
from eau_jax.envs.tau2.domain import USER_TABLES, Domain

Calls = Sequence[tuple[str, Mapping[str, Any]]]
DEFAULT_BASIS = ("DB", "COMMUNICATE")


class Start(NamedTuple):
    """Where an episode begins."""

    changed: Changed
    calls: tuple[tuple[str, Mapping[str, Any]], ...]    # the agent's, of the task's message history
    said: tuple[str, ...]                               # the agent's words, of the same
    talk: tuple[tuple[str, str], ...]                   # (role, words) of the same


class Outcome(NamedTuple):
    reward: float
    basis: tuple[str, ...]
    components: Mapping[str, float]    # of the basis

    @property
    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {"reward": self.reward, "basis": list(self.basis), "components": dict(self.components)}


def start(domain: Domain, task: Task) -> Start:
    """The records after the task's set-up and its message history.

    Raises:
      ValueError: ("field: expected ..., found ...") for a set-up call that is declined.
    """
    initial = task.data.get("initial_state") or {}
    view = View(domain.base, NOTHING)
    data = initial.get("initialization_data") or {}
    for part in ("agent_data", "user_data"):
        merged(view, data.get(part) or {})
    for place, action in enumerate(initial.get("initialization_actions") or ()):
        try:
            _run(domain, view, action)
        except Refused as refused:
            raise ValueError(f"initial_state.initialization_actions[{place}]: expected a call that succeeds, found "
                             f"{action['func_name']}: {refused}") from None
    changed, calls, said, talk = view.changed, [], [], []
    for message in initial.get("message_history") or ():
        agents = message["role"] == "assistant"
        for each in message.get("tool_calls") or ():
            calls += [(each["name"], each["arguments"])] if agents else []
            changed = call(domain.tools if agents else domain.user_tools, domain.base, changed, each["name"],
                           each["arguments"]).changed
        if message.get("content") and message["role"] in ("user", "assistant"):
            talk.append((message["role"], message["content"]))
            said += [message["content"]] if agents else []
    return Start(changed, tuple(calls), tuple(said), tuple(talk))


def gold(domain: Domain, task: Task, begin: Start) -> Changed | None:
    """The records that the gold actions leave; None where the task has neither actions nor assertions to meet.

    A gold action that fails leaves no trace, as upstream.
    """
    criteria = task.data["evaluation_criteria"]
    if criteria.get("actions") is None and criteria.get("env_assertions") is None:
        return None
    changed = begin.changed
    for action in criteria.get("actions") or ():
        tools = domain.user_tools if action.get("requestor") == "user" else domain.tools
        changed = call(tools, domain.base, changed, action["name"], action["arguments"]).changed
    return changed


def basis(task: Task, judged: bool) -> tuple[str, ...]:
    """The components that count."""
    named = tuple(task.data["evaluation_criteria"].get("reward_basis") or DEFAULT_BASIS)
    if judged or "NL_ASSERTION" not in named:
        return named
    return tuple(dict.fromkeys([*(name for name in named if name != "NL_ASSERTION"), *DEFAULT_BASIS]))


def evaluate(domain: Domain, task: Task, wanted: Changed | None, final: Changed, calls: Calls, said: Sequence[str],
             off: Container[str] = (), verdicts: Sequence[bool] | None = None) -> Outcome:
    """The reward of an episode that the user ended; any other ending is worth 0 and is not evaluated.

    Args:
      wanted: as of `gold`.
      final: the records at the end.
      calls: the agent's tool calls, with those of the message history.
      said: the agent's words, with those of the message history.
      off: components that shall not count.
      verdicts: a judge's, whether each statement is true; None: there is no judge.
    """
    criteria = task.data["evaluation_criteria"]
    names = tuple(name for name in basis(task, verdicts is not None) if name not in off)
    components = {}
    for name in names:
        if name == "DB":
            met = wanted is None or same(domain.base, wanted, final, _not_compared(criteria))
        elif name == "COMMUNICATE":
            met = not missing(criteria, said)
        elif name == "ACTION":
            met = all(any(_matches(action, *each) for each in calls) for action in criteria.get("actions") or ())
        elif name == "ENV_ASSERTION":
            met = all(_holds(domain, each, final) for each in criteria.get("env_assertions") or ())
        else:
            met = all(verdicts)
        components[name] = float(met)
    return Outcome(math.prod(components.values()) if components else 0.0, names, components)


def missing(criteria: Mapping[str, Any], said: Sequence[str]) -> tuple[str, ...]:
    """The strings that the agent still has to say."""
    heard = [text.lower().replace(",", "") for text in said]
    return tuple(each for each in criteria.get("communicate_info") or () if not any(each.lower() in text for text in heard))


def equal_call(domain: Domain, action: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call is this gold action, whole floats taken as integers."""
    if name != action["name"] or name not in domain.tools:
        return False
    schema = domain.tools[name].parameters
    try:
        return checked(schema, arguments) == checked(schema, action["arguments"])
    except Refused:
        return False


def _not_compared(criteria: Mapping[str, Any]) -> frozenset[str]:
    """The user's tables where an assertion is about them: gold actions are the agent's, so upstream's comparison of a
    table that the user has to change can never hold."""
    asserted = any(each["env_type"] == "user" for each in criteria.get("env_assertions") or ())
    return USER_TABLES if asserted else frozenset()


def _matches(action: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> bool:
    """Upstream's comparison: without `compare_args` only the arguments that the call gives are compared."""
    names = action.get("compare_args")
    names = arguments.keys() if names is None else names
    given = {key: value for key, value in arguments.items() if key in names}
    return name == action["name"] and given == {key: v for key, v in action["arguments"].items() if key in names}


def _holds(domain: Domain, assertion: Mapping[str, Any], final: Changed) -> bool:
    return _run(domain, View(domain.base, final), assertion) == assertion.get("assert_value", True)


def _run(domain: Domain, view: View, call: Mapping[str, Any]) -> Any:
    """What a function or tool returns that a task calls."""
    tools = {"assistant": domain.tools, "user": domain.user_tools}[call["env_type"]]
    tool = (tools | domain.functions[call["env_type"]])[call["func_name"]]
    return tool.run(view, checked(tool.parameters, call["arguments"]))
