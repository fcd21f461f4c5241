"""Splits what an agent wrote into the kind of its act and the content. Shared by all environments; never raises.

Two forms are read, the upstream tool call and a bracket form that costs a small model fewer tokens:

    <tool_call>{"name": "interact_with_env", "arguments": {"choice": "action", "content": "..."}}</tool_call>
    [action] ...      [search] ...      [answer] ...      [finish]

The first of them after the thinking part counts. What stands before it is ignored, and the content ends at the next tag
or control token, so a forged role tag or a second act in the same message changes nothing.
"""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax.core.part import Act, Kind, TimeStep

TOOL = "interact_with_env"
CONTENT_LIMIT = 4_000    # characters of content that are read; the rest of a longer message is ignored
CODE_LIMIT = 20_000      # the same where the content is program text
JSON_LIMIT = 20_000      # characters of a tool call; a longer one is malformed
SHOW_REWARD = 64         # added to `TimeStep.code` where the reply shall state the reward

_KINDS = {"action": Kind.ACTION, "search": Kind.SEARCH, "answer": Kind.ANSWER, "finish": Kind.FINISH}
_TAG = re.compile(r"\[(action|search|answer|finish)\]", re.IGNORECASE)
_TOKEN = re.compile(r"<\|[^<>|\n]{1,40}\|>|</?(?:think|tool_call|tool_response)>", re.IGNORECASE)
_CONTROL = re.compile(_TOKEN.pattern + r"|\[(?:action|search|answer|finish)\]", re.IGNORECASE)
_CALL, _CALL_END = "<tool_call>", "</tool_call>"


def said(text: str) -> str:
    """The message without its thinking part."""
    text = text[text.rfind("</think>") + len("</think>"):] if "</think>" in text else text
    return text.partition("<think>")[0]  # thinking that never ends says nothing


def split(text: str, code: bool = False) -> tuple[Kind, str]:
    """(kind, content) of the agent's message; (MALFORMED, "") when it holds no act.

    `code`: an answer is program text. It may be CODE_LIMIT characters long, its first line keeps its indentation, and a
    bracket tag in it is a subscript.
    """
    text = said(text)
    tag, call = _TAG.search(text), text.find(_CALL)
    if call >= 0 and (tag is None or call < tag.start()):
        return _tool_call(text[call + len(_CALL):].partition(_CALL_END)[0], code)
    if tag is None:
        return Kind.MALFORMED, ""
    kind = _KINDS[tag.group(1).lower()]
    return kind, cut(text[tag.end():], code and kind is Kind.ANSWER)


def act(kind: Kind, code: int, mask: int = 0, values: tuple[float, ...] = ()) -> Act:
    """An `Act` of numpy scalars; `values` are padded to four."""
    padded = np.zeros(4, np.float32)
    padded[:len(values)] = values
    return Act(kind=np.int32(kind), code=np.int32(code), mask=np.int32(mask), values=padded, flags=np.int32(0))


def with_reward(code: jax.Array, show: jax.Array) -> jax.Array:
    """The reply code, marked where the reward shall be shown."""
    return code + SHOW_REWARD * jnp.asarray(show, jnp.int32)


def reply_code(time_step: TimeStep) -> int:
    """The environment's reply code without the mark."""
    return int(time_step.code) % SHOW_REWARD


def reward_note(time_step: TimeStep) -> str:
    """" Reward: 0.70." where the reply is marked, else ""."""
    return f" Reward: {float(time_step.reward):.2f}." if int(time_step.code) >= SHOW_REWARD else ""


def _tool_call(body: str, code: bool) -> tuple[Kind, str]:
    if len(body) > JSON_LIMIT:
        return Kind.MALFORMED, ""
    try:
        call, _ = json.JSONDecoder().raw_decode(body.strip())
        arguments = call["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        name, choice = call["name"], arguments["choice"]
        content = "" if choice == "finish" else arguments["content"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Kind.MALFORMED, ""
    if isinstance(content, (int, float)) and not isinstance(content, bool):
        content = f"{content:.17g}" if abs(content) < 1e300 else "inf"
    if name != TOOL or not isinstance(choice, str) or choice not in _KINDS or not isinstance(content, str):
        return Kind.MALFORMED, ""
    return _KINDS[choice], cut(content.strip().removeprefix(f"[{choice}]"), code and choice == "answer")


def cut(content: str, code: bool = False) -> str:
    """The content up to the next tag or control token, at most CONTENT_LIMIT characters; `code` as in `split`."""
    if code:
        content = content[:CODE_LIMIT]
        control = _TOKEN.search(content)
        return (content[:control.start()] if control else content).strip("\n").rstrip()
    content = content.lstrip()[:CONTENT_LIMIT]
    control = _CONTROL.search(content)
    return (content[:control.start()] if control else content).strip()
