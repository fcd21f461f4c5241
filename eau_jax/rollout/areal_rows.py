"""Filters the conversations of the published AReaL-tau2-data by their structure: `tau2_sft_train.jsonl`.

    {"messages": [...], "answer": {"content", "thinking", "tool_calls"}, "metadata": {"source_dialog_id", "turn_index",
     "correct", "reward", ...}}       one row per assistant turn

The file also holds conversations that failed, and labels that disagree. No judge is asked: what is left out here is wrong
by its form, or was never a success. What is kept is written as it stands, for sft.source = dialogues, where the answer
alone is learned.
"""

import collections
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple

from eau_jax.envs import file
from eau_jax.envs.file import TaskFileError, shown
from eau_jax.envs.tau2.airline_tools import airline_tools
from eau_jax.envs.tau2.call import Refused, Tool, checked
from eau_jax.envs.tau2.retail_tools import retail_tools
from eau_jax.envs.telecom.schema import KNOWN
from eau_jax.rollout import dialogue_file

FILE = "tau2_sft_train.jsonl"
MARKS = {"airline": ("seed_pattern_task_id",), "retail": ("scenario_id",), "telecom": ("difficulty", "num_subtasks")}
REASONS = {
    "failed": "correct and reward both say so", "labels disagree": "of correct and reward one is 1",
    "empty": "neither words nor a tool call", "words and calls": "both in one message",
    "several calls": "more than one, where one is allowed", "user's tool": "the agent calls a tool of the user",
    "unknown tool": "no such tool", "bad arguments": "they do not fit the tool",
    "schema in arguments": "a tool's description in place of a value",
    "dependent calls": "an id that nobody had named yet, beside other calls",
    "broken order": "a result without a call, or a call without a result", "too long": "more characters than allowed",
    "duplicate": "the same messages and answer again", "unreadable": "no conversation"}
_HARD = re.compile(r"\d|[A-Z].*[A-Z]|_")      # in a string: no word that an agent would choose by itself
Owned = Mapping[str, Mapping[str, Tool]]      # "assistant" and "user" -> name -> tool
Record = Mapping[str, Any]
Counts = dict[str, collections.Counter]       # domain -> "read", "kept" and reason -> rows


class Filter(NamedTuple):
    """What is left out besides what is wrong by its form."""

    one_call: bool = False      # our worlds take one tool call a message; tau2-bench takes several
    longest: int = 0            # characters of a row's messages and answer; 0: any. Count what it costs each domain


def tools() -> dict[str, Owned]:
    """Domain -> its tools, as this package knows them."""
    return {"airline": {"assistant": airline_tools(), "user": {}}, "retail": {"assistant": retail_tools(), "user": {}},
            "telecom": KNOWN.tools}


def write(source: str | Path, target: str | Path, chosen: Filter = Filter(), left_out: list[str] | None = None) -> Counts:
    """Writes the rows of `source` that pass to `target`, a .jsonl file, whole or not at all, and counts the others.

    Args:
      left_out: takes what is wrong with rows that cannot be read as conversations; None: the first such row is refused.

    Raises:
      TaskFileError: for a row that is no such row; it names file, line, field, what was expected and what was found. Broken
        JSON, missing fields and turns that occur twice with different content are refused whatever `left_out` is.
    """
    counts: Counts = collections.defaultdict(collections.Counter)
    temporary = Path(target).with_name(f".{Path(target).name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as out:
            for record in kept(Path(source), chosen, counts, left_out):
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return dict(counts)


def kept(source: Path, chosen: Filter, counts: Counts, left_out: list[str] | None) -> Iterator[Record]:
    """The rows that pass, in their order; `counts` is filled on the way."""
    owned, turns, contents = tools(), {}, set()
    for place, record in _lines(source):
        try:
            domain, key = _identity(record)
        except ValueError as error:
            raise TaskFileError(f"{place}, field {error}") from None
        text = json.dumps([record["messages"], record["answer"]], sort_keys=True)
        content = hashlib.sha256(text.encode()).digest()[:16]
        counts[domain]["read"] += 1
        if key in turns and turns[key][0] != content:
            raise TaskFileError(f"{place}, field metadata.turn_index: expected each turn of conversation {key[0]!r} once, "
                                f"found turn {key[1]} again with other content (first at {turns[key][1]})")
        reason = fault(record, owned[domain], chosen) or ("duplicate" if content in contents else "")
        turns.setdefault(key, (content, place))
        if not reason and (complaint := _unreadable(record, place)):
            if left_out is None:
                raise TaskFileError(complaint)
            left_out.append(complaint)
            reason = "unreadable"
        counts[domain][reason or "kept"] += 1
        if not reason:
            contents.add(content)
            yield record


def _unreadable(record: Record, place: str) -> str:
    """What keeps a row from being read as a conversation; "" where nothing does."""
    try:
        dialogue_file.to_row(record, place)
    except ValueError as error:
        return f"{place}, field {error}"
    return ""


def fault(record: Record, owned: Owned, chosen: Filter) -> str:
    """Why a row is left out, one of REASONS; "" where it is kept."""
    answer, labels = record["answer"], record["metadata"]
    good = [float(labels[name]) == 1.0 for name in ("correct", "reward")]
    if not all(good):
        return "labels disagree" if any(good) else "failed"
    words, calls = str(answer.get("content") or "").strip(), answer.get("tool_calls") or []
    if not words and not calls:
        return "empty"
    if words and calls:
        return "words and calls"
    if chosen.one_call and len(calls) > 1:
        return "several calls"
    whole = json.dumps([record["messages"], answer], ensure_ascii=False)
    if chosen.longest and len(whole) > chosen.longest:
        return "too long"
    if not in_order(record["messages"]):
        return "broken order"
    earlier = json.dumps(record["messages"], ensure_ascii=False)
    return next(filter(None, (_call_fault(call, owned, earlier if len(calls) > 1 else None) for call in calls)), "")


def in_order(messages: list[Record]) -> bool:
    """Whether every call is followed by its result, and every result follows a call."""
    waiting = 0
    for message in messages:
        if message.get("role") == "tool":
            waiting -= 1
        elif waiting:
            return False
        else:
            waiting = len(message.get("tool_calls") or ())
        if waiting < 0:
            return False
    return waiting == 0


def _call_fault(call: Any, owned: Owned, earlier: str | None) -> str:
    """What is wrong with a tool call. `earlier`: the text before it, where it stands beside other calls."""
    call = call.get("function", call) if isinstance(call, Mapping) else {}
    name, arguments = call.get("name"), call.get("arguments")
    if name in owned["user"] and name not in owned["assistant"]:
        return "user's tool"
    if name not in owned["assistant"]:
        return "unknown tool"
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else {} if arguments is None else arguments
    except (ValueError, RecursionError):
        return "bad arguments"
    schema = owned["assistant"][name].parameters
    if _is_schema(arguments) or any(value in _descriptions(schema) for value in _strings(arguments)):
        return "schema in arguments"
    try:
        checked(schema, arguments)
    except Refused:
        return "bad arguments"
    if earlier is not None and any(_HARD.search(value) and value not in earlier for value in _strings(arguments)):
        return "dependent calls"
    return ""


def _is_schema(value: Any) -> bool:
    """Whether some part describes a value in place of giving it."""
    if isinstance(value, Mapping):
        own = "type" in value and bool({"description", "properties", "enum"} & value.keys())
        return own or any(map(_is_schema, value.values()))
    return isinstance(value, list) and any(map(_is_schema, value))


def _descriptions(schema: Record) -> frozenset[str]:
    own = [schema["description"]] if isinstance(schema.get("description"), str) else []
    inner = list(schema.get("properties", {}).values()) + ([schema["items"]] if "items" in schema else [])
    return frozenset(own).union(*map(_descriptions, inner))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


def _identity(record: Any) -> tuple[str, tuple[str, str]]:
    """(domain, (conversation, turn)) of a row whose parts are there."""
    if not isinstance(record, Mapping):
        raise ValueError(f"row: expected an object, found {shown(record)}")
    for name, kind, what in (("messages", list, "a list of messages"), ("answer", Mapping, "an object"),
                             ("metadata", Mapping, "an object")):
        if not isinstance(record.get(name), kind) or kind is list and not record[name]:
            raise ValueError(f"{name}: expected {what}, found {shown(record.get(name))}")
    for place, message in enumerate(record["messages"]):
        if not isinstance(message, Mapping):
            raise ValueError(f"messages[{place}]: expected an object, found {shown(message)}")
    said = [("answer", record["answer"]), *((f"messages[{at}]", each) for at, each in enumerate(record["messages"]))]
    for where, holder in said:
        if not isinstance(holder.get("tool_calls") or [], list):
            raise ValueError(f"{where}.tool_calls: expected a list, found {shown(holder['tool_calls'])}")
    about = record["metadata"]
    for name in ("correct", "reward"):
        if not isinstance(about.get(name), bool) and not file.is_number(about.get(name)):
            raise ValueError(f"metadata.{name}: expected a number, found {shown(about.get(name))}")
    for name in ("source_dialog_id", "turn_index"):
        if about.get(name) is None:
            raise ValueError(f"metadata.{name}: expected an id, found nothing")
    domain = next((domain for domain, marks in MARKS.items() if any(mark in about for mark in marks)), None)
    if domain is None:
        marks = ", ".join(mark for marks in MARKS.values() for mark in marks)
        raise ValueError(f"metadata: expected one of {marks}, which tell the domain, found {shown(sorted(about))}")
    return domain, (f"{domain} {about['source_dialog_id']}", str(about["turn_index"]))


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(file and line, value) of each line, one at a time: the published file has 874 MB."""
    if not path.is_file():
        raise TaskFileError(f"{path}: no such file; expected {FILE} of AReaL-tau2-data")
    found = False
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            found, place = True, f"{path}, line {number}"
            try:
                value = json.loads(line)
                file.check_text(value)
            except RecursionError:
                raise TaskFileError(f"{place}: not JSON that can be read: it is nested too deep") from None
            except json.JSONDecodeError as error:
                raise TaskFileError(f"{place}: not JSON: {error}") from None
            except UnicodeDecodeError as error:
                raise TaskFileError(f"{place}: expected UTF-8 text, found byte {error.object[error.start]:#04x}") from None
            except ValueError as error:
                raise TaskFileError(f"{place}, field {error}") from None
            yield place, value
    if not found:
        raise TaskFileError(f"{path}: expected at least one row, found none")
