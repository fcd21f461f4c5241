"""Conversations as data for fine-tuning: as the agent saw them, or as its user did, in tokens of which some are learned.

    Message ... --agent_view or user_view--> Exchange ... --encode--> Example

An `Exchange` is what one side heard and then said. Only what it said is learned: words, tool calls and the end of turn.
"""

from typing import Iterable, Iterator, NamedTuple, Sequence

import numpy as np

from eau_jax.core.batching import Example
from eau_jax.rollout.template import Chat
from eau_jax.users.role_play import GREETING, STOP, spoken


class Message(NamedTuple):
    """One message of a conversation between an agent and a user, either of whom may call tools."""

    role: str                     # "agent" | "user" | "tool"
    text: str                     # words; of a tool, its result
    calls: tuple[str, ...] = ()   # tool calls, JSON {"name", "arguments"} each
    thought: str = ""             # the agent's reasoning, without its tags
    caller: str = "agent"         # of a tool's result: "agent" | "user", who had called it
    learned: bool = True          # of a message that was said: whether a model may learn it


class Dialogue(NamedTuple):
    """One conversation and what is known of it."""

    system: str                    # the agent's instructions, tools included
    messages: tuple[Message, ...]
    user_system: str               # the instructions of the user's model
    ended: bool = True             # the user has nothing more to say after the last message


class Exchange(NamedTuple):
    heard: str
    role: str      # whose message was heard: "user" (the other side) | "tool"
    said: str
    learned: bool


Piece = tuple[np.ndarray, np.ndarray, bool]


class View(NamedTuple):
    """A conversation from one side."""

    system: str
    exchanges: tuple[Exchange, ...]


def agent_view(dialogue: Dialogue, *, thoughts: bool) -> View:
    """The agent's side. The user's own tool traffic is not seen, nor is what the agent said before the user's first words.

    Args:
      thoughts: the agent's reasoning is part of what it said. A template that closes the thinking itself wants False.

    Raises:
      ValueError: for messages in an order that no template can write.
    """
    side = Side()
    for number, message in enumerate(dialogue.messages):
        if message.role == "agent":
            if side.began:
                thought = f"<think>\n{message.thought}\n</think>\n\n" if thoughts and message.thought else ""
                side.say(thought + _written(message), message.learned)
        elif message.role == "user" and message.text:
            side.hear(message.text, "user", number)
        elif message.role == "tool" and message.caller == "agent":
            side.hear(message.text, "tool", number)
    return View(dialogue.system, tuple(side.exchanges))


def user_view(dialogue: Dialogue) -> View:
    """The user's side, roles exchanged: it hears the agent's words and says the user's words and tool calls.

    The agent's reasoning, its tool calls and their results are not seen; what then stands together of one side becomes one
    message. A turn with both words and a tool call is context only, since a user does one of them at a time. A conversation
    that ended after the agent's words gets a last turn in which the user says STOP.

    Raises:
      ValueError: as `agent_view`.
    """
    side = Side()
    for number, message in enumerate(dialogue.messages):
        if message.role == "agent" and (words := spoken(message.text)):
            side.hear(words, "user", number)
        elif message.role == "tool" and message.caller == "user":
            side.hear(message.text, "tool", number)
        elif message.role == "user" and (message.text or message.calls):
            if not side.began:
                side.hear(GREETING, "user", number)
            side.say(_written(message), message.learned and not (message.text and message.calls), calls=bool(message.calls))
    if dialogue.ended and side.exchanges and side.heard:
        side.say(STOP, True)
    return View(dialogue.user_system, tuple(side.exchanges))


class Side:
    """Puts together what one side hears and says, in turns."""

    def __init__(self):
        self.exchanges: list[Exchange] = []
        self.heard: list[str] = []
        self.role = ""
        self.calls = False    # the last turn holds a tool call

    @property
    def began(self) -> bool:
        return bool(self.exchanges or self.heard)

    def hear(self, text: str, role: str, number: int) -> None:
        if not self.began and role == "tool":
            raise ValueError(f"message {number}: expected a message before the first tool result, found none")
        if self.heard and role != self.role:
            raise ValueError(f"message {number}: expected an answer between a tool's result and a message, found none")
        self.heard, self.role = [*self.heard, text], role

    def say(self, text: str, learned: bool, calls: bool = False) -> None:
        """What is said twice without hearing anything becomes one turn; one of words and then calls is not learned."""
        if self.heard:
            self.exchanges.append(Exchange("\n\n".join(self.heard), self.role, text, learned))
        else:
            last = self.exchanges[-1]
            self.exchanges[-1] = last._replace(said=f"{last.said}\n{text}", learned=last.learned and learned
                                               and calls == self.calls)
        self.heard, self.calls = [], calls


def _written(message: Message) -> str:
    """Words, then tool calls."""
    calls = [f"<tool_call>{call}</tool_call>" for call in message.calls]
    return "\n".join([message.text, *calls] if message.text else calls)


def encode(chat: Chat, view: View, limit: int) -> tuple[Example | None, bool]:
    """The conversation in the very tokens of a rollout; arguments and results of `join`."""
    return join(pieces(chat, view.system, view.exchanges), limit)


def pieces(chat: Chat, system: str, exchanges: Sequence[Exchange]) -> Iterator[Piece]:
    """(observation i32[o], action i32[a], learned) of each exchange."""
    action = np.zeros(0, np.int32)
    for number, exchange in enumerate(exchanges):
        observation = (chat.reply(exchange.heard, exchange.role, action) if number else chat.opening(system, exchange.heard))
        action = chat.write(exchange.said)
        yield observation, action, exchange.learned


def join(turns: Iterable[Piece], limit: int) -> tuple[Example | None, bool]:
    """One example of at most `limit` tokens, and whether it was cut.

    A longer one is cut after its last whole turn that fits: what stands before is right whatever follows. None where
    nothing is left to learn.
    """
    parts: list[np.ndarray] = []
    learned: list[np.ndarray] = []
    cut = False
    for observation, action, learn in turns:
        if sum(map(len, parts)) + len(observation) + len(action) > limit:
            cut = True
            break
        parts += [observation, action]
        learned += [np.zeros(len(observation), bool), np.full(len(action), learn)]
    if not any(mask.any() for mask in learned):
        return None, cut
    return Example(np.concatenate(parts).astype(np.int32), np.concatenate(learned)), cut
