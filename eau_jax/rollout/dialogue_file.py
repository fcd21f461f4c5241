"""Reads files of conversations: ShareGPT, OpenAI messages, and AReaL's rows of one assistant turn.

    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}], "system": "...", "tools": "..."}
    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": null, "tool_calls": [...]}, ...]}
    {"messages": [...], "answer": {"content": "...", "thinking": "...", "tool_calls": [...]}, "metadata": {...}}

A row may say how it went (`score` or `reward`, `success` or `correct`; without the latter, a score above 0 is a conversation
that the user ended because it was settled), who the user is (`user_scenario`, or the whole
prompt of its model as `user_system`) and which tools the user has (`user_tools`), at its top or in `metadata`.
"""

import json
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple

from eau_jax.envs import file
from eau_jax.envs.file import TaskFileError, shown
from eau_jax.rollout.dialogue import Dialogue, Message
from eau_jax.users import role_play

ROLES = {"system": "system", "user": "user", "human": "user", "agent": "agent", "assistant": "agent", "gpt": "agent",
         "model": "agent", "chatgpt": "agent", "function_call": "call", "tool_call": "call", "observation": "tool",
         "tool": "tool", "function": "tool", "function_response": "tool", "tool_response": "tool"}
SCENARIOS = ("user_scenario", "scenario", "reason_for_call")
_CALL_FORM = 'Call a tool with <tool_call>{"name": "...", "arguments": {...}}</tool_call>.'


class Row(NamedTuple):
    """One row of a file."""

    dialogue: Dialogue
    score: float | None      # None: not told
    success: bool | None
    group: str               # rows of one group are prefixes of one conversation; "" where a row is a whole one
    place: str               # file and line


def read(path: Path) -> Iterator[Row]:
    """The rows of a `.json`, `.jsonl` or `.parquet` file.

    Raises:
      TaskFileError: names the file, the line or row, the field, what was expected and what was found.
      ImportError: for a parquet file without pyarrow.
    """
    if not path.is_file():
        raise TaskFileError(f"{path}: no such file; pass a .json, .jsonl or .parquet file of conversations")
    table = enumerate(file.table(path)) if path.suffix == ".parquet" else file.objects(path)
    found = False
    for place, record in table:
        found = True
        place = f"{path}, {f'row {place}' if isinstance(place, int) else place}"
        try:
            if not isinstance(record, Mapping):
                raise ValueError(f"row: expected an object, found {shown(record)}")
            row = to_row(record, place)
        except ValueError as error:
            raise TaskFileError(f"{place}, field {error}") from None
        yield row
    if not found:
        raise TaskFileError(f"{path}: expected at least one conversation, found none")


def to_row(record: Mapping[str, Any], place: str) -> Row:
    """One row of a file.

    Raises:
      ValueError: "field: expected ..., found ...".
    """
    facts = {**_mapping(record, "metadata"), **{key: value for key, value in record.items() if value is not None}}
    name = next((name for name in ("conversations", "messages") if record.get(name) is not None), None)
    if name is None:
        raise ValueError(f"conversations or messages: expected a list of messages, found {shown(sorted(record))}")
    systems, messages = _messages(_listed(record, name), name)
    if facts.get("system") is not None:
        systems = [file.text_field(facts, "system"), *systems]
    if isinstance(record.get("answer"), Mapping):
        answer = {"role": "assistant", **record["answer"]}
        earlier = [message._replace(learned=message.role != "agent" and message.learned) for message in messages]
        messages = earlier + _message(answer, "answer", {})
    if not any(message.role == "agent" for message in messages):
        raise ValueError(f"{name}: expected at least one message of the agent, found none")
    score, success = _number(facts, "score", "reward"), _number(facts, "success", "correct")
    settled = score if success is None else success
    dialogue = Dialogue(_with_tools("\n\n".join(systems), facts, "tools"), tuple(messages), _user_system(facts, messages),
                        ended=settled is None or settled > 0)
    return Row(dialogue, score, None if success is None else success > 0,
               str(facts["source_dialog_id"]) if "source_dialog_id" in facts else "", place)


def _messages(listed: list[Any], name: str) -> tuple[list[str], list[Message]]:
    """System texts at the start, and the other messages."""
    systems: list[str] = []
    messages: list[Message] = []
    callers: dict[str, str] = {"": "agent"}   # by call id; "": the last caller
    for number, entry in enumerate(listed):
        where = f"{name}[{number}]"
        if not isinstance(entry, Mapping):
            raise ValueError(f"{where}: expected an object, found {shown(entry)}")
        if _role(entry, where) != "system":
            messages += _message(entry, where, callers)
        elif messages:
            raise ValueError(f"{where}: expected the system's text before every other message, found it here")
        elif (text := _text(entry, where)[0]):
            systems.append(text)
    return systems, messages


def _message(entry: Mapping[str, Any], where: str, callers: dict[str, str]) -> list[Message]:
    """The message of an entry; none where a user's or tool's message is empty and nobody called."""
    role, (text, thought) = _role(entry, where), _text(entry, where)
    if role == "tool":
        caller = {"user": "user", "assistant": "agent", "agent": "agent"}.get(
            entry.get("requestor"), callers.get(str(entry.get("tool_call_id")), callers.get("", "agent")))
        return [Message("tool", text, caller=caller)]
    calls = _calls(entry, where) if role != "call" else _called(_json(text, f"{where}: its text"), f"{where}: its text")
    role, text = ("agent", "") if role == "call" else (role, text)
    if role == "agent" and not text and not calls:
        raise ValueError(f"{where}: expected words or a tool call of the agent, found nothing")
    if calls:
        ids = [call.get("id") for call in entry.get("tool_calls") or [] if isinstance(call, Mapping)]
        callers |= {"": role} | {str(name): role for name in ids if name}
    weight = entry.get("weight")
    if weight not in (None, 0, 1):
        raise ValueError(f"{where}.weight: expected 0 or 1, found {shown(weight)}")
    return [Message(role, text, calls, thought if role == "agent" else "", learned=weight != 0)] if text or calls else []


def _role(entry: Mapping[str, Any], where: str) -> str:
    field = "from" if entry.get("from") is not None else "role"
    name = entry.get(field)
    role = ROLES.get(name.replace("-", "_").lower()) if isinstance(name, str) else None
    if role is None:
        raise ValueError(f"{where}.{field}: expected one of {', '.join(ROLES)}, found {shown(name)}")
    return role


def _text(entry: Mapping[str, Any], where: str) -> tuple[str, str]:
    """(words, reasoning) of an entry; the reasoning has a field of its own or stands between tags before the words. A tool
    has none."""
    field = "value" if entry.get("value") is not None else "content"
    text = entry.get(field)
    if isinstance(text, list):   # OpenAI's content parts
        for part in text:
            if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
                raise ValueError(f"{where}.{field}: expected text parts only, found {shown(part)}")
        text = "".join(part["text"] for part in text)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{where}.{field}: expected a string, found {shown(text)}")
    text = "" if text is None else text.strip()
    if _role(entry, where) == "tool":
        return text, ""
    before, closed, after = text.rpartition("</think>")
    if "<think>" in after:
        raise ValueError(f"{where}.{field}: expected </think> after <think>, found none; leave out rows that were cut off")
    inline = before.replace("<think>", "").replace("</think>", "") if closed else ""
    names = ("reasoning_content", "reasoning", "thinking")
    told = next((entry[name] for name in names if isinstance(entry.get(name), str)), inline)
    return (after if closed else text).strip(), told.strip()


def _calls(entry: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """OpenAI's `tool_calls` and its older `function_call`, or calls that are flat."""
    found = _called(entry["tool_calls"], f"{where}.tool_calls") if entry.get("tool_calls") is not None else ()
    older = _called(entry["function_call"], f"{where}.function_call") if entry.get("function_call") is not None else ()
    return found + older


def _called(value: Any, where: str) -> tuple[str, ...]:
    """Tool calls as JSON text, the way a rollout's agent writes them."""
    value = _json(value, where) if isinstance(value, str) else value
    written = []
    for call in value if isinstance(value, list) else [value]:
        call = call["function"] if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) else call
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str) or not call["name"]:
            raise ValueError(f'{where}: expected {{"name": ..., "arguments": {{...}}}}, found {shown(call)}')
        arguments = call.get("arguments", call.get("parameters", {}))
        arguments = _json(arguments, f"{where}.arguments") if isinstance(arguments, str) and arguments else arguments
        if arguments is not None and arguments != "" and not isinstance(arguments, Mapping):
            raise ValueError(f"{where}.arguments: expected an object, found {shown(arguments)}")
        call = {"name": call["name"], "arguments": dict(arguments) if arguments else {}}
        written.append(json.dumps(call, ensure_ascii=False))
    return tuple(written)


def _user_system(facts: Mapping[str, Any], messages: list[Message]) -> str:
    """What the user's model is told: the row's own prompt, or a scenario in ours; without one, the first words alone."""
    if facts.get("user_system") is not None:
        return _with_tools(file.text_field(facts, "user_system"), facts, "user_tools")
    told = next((facts[name] for name in SCENARIOS if facts.get(name) is not None), None)
    opening = next((message.text for message in messages if message.role == "user" and message.text), "")
    scenario = role_play.scenario(opening, ()) if told is None else "\n".join(_lines(told))
    return _with_tools(role_play.system(scenario), facts, "user_tools")


def _lines(value: Any, name: str = "") -> list[str]:
    """A scenario as lines of text; parts that are not there are left out."""
    if isinstance(value, Mapping):
        return [line for key, part in value.items() for line in _lines(part, str(key).replace("_", " "))]
    if isinstance(value, list):
        return [line for part in value for line in _lines(part, name)]
    return [] if value is None else [f"{name}: {value}".strip() if name else str(value).strip()]


def _with_tools(system: str, facts: Mapping[str, Any], field: str) -> str:
    """The instructions with the definitions of the tools, if there are any."""
    tools = facts.get(field)
    tools = _json(tools, field) if isinstance(tools, str) and tools.strip() else tools
    if not tools:
        return system
    if not isinstance(tools, list):
        raise ValueError(f"{field}: expected a list of tool definitions, found {shown(tools)}")
    text = "\n".join(tool if isinstance(tool, str) else json.dumps(tool, ensure_ascii=False) for tool in tools)
    return "\n\n".join([*([system] if system else []), f"Tools:\n{text}\n\n{_CALL_FORM}"])


def _number(facts: Mapping[str, Any], *names: str) -> float | None:
    """The first of the fields that is there, a finite number or a truth value."""
    for name in names:
        value = facts.get(name)
        if value is not None:
            if not (isinstance(value, bool) or file.is_number(value)):
                raise ValueError(f"{name}: expected a number, found {shown(value)}")
            return float(value)
    return None


def _mapping(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    value = _json(value, name) if isinstance(value, str) else {} if value is None else value
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: expected an object, found {shown(value)}")
    return value


def _listed(record: Mapping[str, Any], name: str) -> list[Any]:
    value = record[name]
    value = _json(value, name) if isinstance(value, str) else value
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name}: expected a list of messages, found {shown(value)}")
    return value


def _json(text: str, where: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{where}: expected JSON, found {shown(text)}") from None
    file.check_text(value, where)
    return value
