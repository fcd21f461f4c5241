"""Whether a tau2-bench task can be played and scored.

A task names tools and functions with arguments. A slip in one of these names would make a task that nobody can solve, or
that everybody solves; so every name and every argument is checked when a file is read. A gold call that the tools decline
is no slip: upstream ships a few.
"""

from typing import Any, Mapping, NamedTuple

from eau_jax.core.knobs import nearest
from eau_jax.envs import file
from eau_jax.envs.tau2.call import Refused, Tool, checked

WHO = ("assistant", "user")    # "requestor" of an action, "env_type" of a function: the agent's side and the user's
BASIS = ("DB", "ENV_ASSERTION", "ACTION", "COMMUNICATE", "NL_ASSERTION")
_CRITERIA = ("actions", "env_assertions", "communicate_info", "nl_assertions", "reward_basis")
_INITIAL = ("initialization_data", "initialization_actions", "message_history")
_ACTION = ("action_id", "requestor", "name", "arguments", "info", "compare_args")
_FUNCTION = ("env_type", "func_name", "arguments")
_ASSERTION = (*_FUNCTION, "assert_value", "message")
_INSTRUCTIONS = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
Owned = Mapping[str, Mapping[str, Tool]]    # one of WHO -> name -> tool; of a tool its kind and parameters are read


class Known(NamedTuple):
    """What a task may name."""

    tools: Owned
    functions: Owned                        # besides tools: of kind "set-up" or "assertion"
    tables: Mapping[str, tuple[str, ...]]   # "agent_data" and "user_data" -> tables that a task may add to


def check_scenario(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless the user's part of a task is sound."""
    scenario = record.get("user_scenario")
    if not isinstance(scenario, Mapping) or not isinstance(scenario.get("instructions"), (str, Mapping)):
        raise ValueError(f"user_scenario.instructions: expected a string or an object, found {file.shown(scenario)}")
    brief = scenario["instructions"]
    if isinstance(brief, str):
        return
    file.text_field(brief, "reason_for_call", "user_scenario.instructions.")
    for name in _INSTRUCTIONS:
        if brief.get(name) is not None and not isinstance(brief[name], str):
            raise ValueError(f"user_scenario.instructions.{name}: expected a string, found {file.shown(brief[name])}")


def check_initial_state(record: Mapping[str, Any], known: Known) -> None:
    """The same of the start: data, set-up calls and message history."""
    state, where = record.get("initial_state"), "initial_state"
    if state is None:
        return
    _fields(state, where, _INITIAL)
    data = state.get("initialization_data")
    if data is not None:
        _fields(data, f"{where}.initialization_data", ("agent_data", "user_data"))
        for part, tables in known.tables.items():
            _data(data.get(part), f"{where}.initialization_data.{part}", tables)
    for place, action in _listed(state, "initialization_actions", where):
        _fields(action, place, _FUNCTION)
        _function(action, place, known, "set-up")
    for place, message in _listed(state, "message_history", where):
        _message(message, place, known)


def check_criteria(record: Mapping[str, Any], known: Known) -> None:
    """The same of what is scored: gold actions, assertions, strings and basis."""
    criteria, where = record.get("evaluation_criteria"), "evaluation_criteria"
    _fields(criteria, where, _CRITERIA)
    for place, action in _listed(criteria, "actions", where):
        _action(action, place, known)
    for place, assertion in _listed(criteria, "env_assertions", where):
        _fields(assertion, place, _ASSERTION)
        _function(assertion, place, known, "assertion")
        if not isinstance(assertion.get("assert_value", True), bool):
            raise ValueError(f"{place}.assert_value: expected true or false, found {file.shown(assertion['assert_value'])}")
    for name in ("communicate_info", "nl_assertions"):
        for place, text in _listed(criteria, name, where):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"{place}: expected a non-empty string, found {file.shown(text)}")
    basis = criteria.get("reward_basis")
    if basis is not None and (not isinstance(basis, list) or not basis or any(name not in BASIS for name in basis)):
        raise ValueError(f"{where}.reward_basis: expected a list of one or more of {', '.join(BASIS)}, found "
                         f"{file.shown(basis)}")


def check_solo(record: Mapping[str, Any]) -> None:
    """The same of what solo mode needs besides: a ticket, gold actions, and no words before the start. Upstream's rule."""
    file.text_field(record, "ticket")
    if not record["evaluation_criteria"].get("actions"):
        raise ValueError("evaluation_criteria.actions: expected one or more, found none")
    history = (record.get("initial_state") or {}).get("message_history") or ()
    if any(each["role"] == "user" or each["role"] == "assistant" and not each.get("tool_calls") for each in history):
        raise ValueError("initial_state.message_history: expected tool calls and their results alone, found words")


def _fields(value: Any, where: str, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected an object, found {file.shown(value)}")
    for name in value:
        if name not in allowed:
            raise ValueError(f"{where}: expected the fields {', '.join(allowed)}, found {file.shown(name)}")


def _listed(holder: Mapping[str, Any], name: str, where: str) -> list[tuple[str, Any]]:
    """[(place, element)] of a list that may be left out."""
    value = holder.get(name)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{where}.{name}: expected a list, found {file.shown(value)}")
    return [(f"{where}.{name}[{place}]", each) for place, each in enumerate(value or ())]


def _action(action: Any, where: str, known: Known) -> None:
    """A gold call."""
    _fields(action, where, _ACTION)
    who = "assistant" if action.get("requestor") is None else action["requestor"]
    if who not in WHO:
        raise ValueError(f"{where}.requestor: expected {' or '.join(WHO)}, found {file.shown(who)}")
    tool = _tool(action, where, who, known)
    names = action.get("compare_args")
    if names is not None and (not isinstance(names, list)
                              or any(name not in tool.parameters["properties"] for name in names)):
        raise ValueError(f"{where}.compare_args: expected a list of arguments of {tool.name} "
                         f"({', '.join(tool.parameters['properties']) or 'it has none'}), found {file.shown(names)}")


def _tool(call: Mapping[str, Any], where: str, who: str, known: Known) -> Tool:
    """The tool that a call names, once name and arguments are sound."""
    name = file.text_field(call, "name", f"{where}.")
    if name not in known.tools[who]:
        other = next((other for other in WHO if name in known.tools[other]), None)
        hint = f", which is a tool of the {other}" if other else nearest(name, known.tools[who])
        raise ValueError(f"{where}.name: expected a tool of the {who}, found {file.shown(name)}{hint}")
    _arguments(call, where, known.tools[who][name])
    return known.tools[who][name]


def _function(call: Mapping[str, Any], where: str, known: Known, kind: str) -> None:
    """A call of set-up, which may be a tool's, or an assertion."""
    who = call.get("env_type")
    if who not in WHO:
        raise ValueError(f"{where}.env_type: expected {' or '.join(WHO)}, found {file.shown(who)}")
    name = file.text_field(call, "func_name", f"{where}.")
    allowed = {name: tool for name, tool in known.functions[who].items() if tool.kind == kind}
    allowed |= known.tools[who] if kind == "set-up" else {}
    if name not in allowed:
        what = "a function or tool" if kind == "set-up" else "an assertion"
        raise ValueError(f"{where}.func_name: expected {what} of the {who}, found {file.shown(name)}"
                         f"{nearest(name, allowed) if allowed else '; there is none here'}")
    _arguments(call, where, allowed[name])


def _arguments(call: Mapping[str, Any], where: str, tool: Tool) -> None:
    if not isinstance(call.get("arguments"), Mapping):
        raise ValueError(f"{where}.arguments: expected an object, found {file.shown(call.get('arguments'))}")
    try:
        checked(tool.parameters, call["arguments"])
    except Refused as refused:
        raise ValueError(f"{where}.arguments, of {tool.name}: {refused}") from None


def _data(data: Any, where: str, tables: tuple[str, ...]) -> None:
    """Records, or fields of records, that a task's start adds."""
    if data is None:
        return
    if not tables:
        raise ValueError(f"{where}: expected nothing, found {file.shown(data)}")
    _fields(data, where, tables)
    for table, records in data.items():
        if not isinstance(records, Mapping) or not all(isinstance(each, Mapping) for each in records.values()):
            raise ValueError(f"{where}.{table}: expected an object of records, found {file.shown(records)}")


def _message(message: Any, where: str, known: Known) -> None:
    if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant", "tool"):
        raise ValueError(f"{where}.role: expected user, assistant or tool, found {file.shown(message)}")
    if message.get("content") is not None and not isinstance(message["content"], str):
        raise ValueError(f"{where}.content: expected a string, found {file.shown(message['content'])}")
    for place, call in _listed(message, "tool_calls", where):
        if message["role"] == "tool" or not isinstance(call, Mapping):
            raise ValueError(f"{place}: expected a call by the user or the assistant, found {file.shown(call)}")
        _tool(call, place, message["role"], known)
