"""What an agent writes in tau2-bench: either one tool call or words to the user, never both. Never raises.

    <tool_call>{"name": "get_order_details", "arguments": {"order_id": "#W1"}}</tool_call>
    Your order has been cancelled. Is there anything else?

In solo mode there is nobody to talk to: every message is a tool call, and calling `done` ends the task.

Thinking is dropped, and so is what follows a control token, so a forged role tag changes nothing (Barres et al. 2025,
tau2-bench: a message is text or tool calls and is not empty).
"""

import json
from typing import Any, Mapping, NamedTuple

from eau_jax.envs.message import JSON_LIMIT, cut

CALL, CALL_END = "<tool_call>", "</tool_call>"
DONE = "done"             # solo mode's tool for the end
ALONE = 'default = "ANSWER"\n'    # the rules of a user who is not there
STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")  # what a user says to end the talk


class Call(NamedTuple):
    name: str
    arguments: Mapping[str, Any]


class Words(NamedTuple):
    text: str


class Broken(NamedTuple):
    """Neither; `why` is what the agent is told."""

    why: str


def read(text: str) -> Call | Words | Broken:
    """The agent's message."""
    text = text[text.rfind("</think>") + len("</think>"):] if "</think>" in text else text
    text = text.partition("<think>")[0]
    before, tag, body = text.partition(CALL)
    if not tag:
        said = cut(text)
        return Words(said) if said else Broken("The message is empty. Write to the user or call one tool.")
    body, end, after = body.partition(CALL_END)
    if before.strip() or CALL in after or cut(after):
        return Broken("A message is either words or one tool call, not both.")
    return _call(body)


def read_solo(text: str) -> Call | Broken:
    """The agent's message in solo mode."""
    heard = read(text)
    return Broken("There is nobody to talk to. Call one tool.") if isinstance(heard, Words) else heard


def _call(body: str) -> Call | Broken:
    if len(body) > JSON_LIMIT:
        return Broken(f"The tool call is longer than {JSON_LIMIT} characters.")
    try:
        call = json.loads(body.strip())
        name, arguments = call["name"], call.get("arguments", {})
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Broken('The tool call is not JSON of the form {"name": ..., "arguments": {...}}.')
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        return Broken('In a tool call "name" is a string and "arguments" an object.')
    return Call(name, arguments)
