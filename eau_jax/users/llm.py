"""A user whose decisions are the rules' and whose words are a language model's.

The model is told what a reply may contain and nothing else: the request, the agent's message, the draft and the values
that the draft discloses. It holds no secret, so it can at most guess one; `users.voice.speak` checks that.
"""

from typing import Protocol

from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import User, Words
from eau_jax.core.types import Array
from eau_jax.users.rules import Rules, decide

_SYSTEM = ("You play a person who asked an assistant for something. Say the given reply to the assistant in your own "
           "words, in character, in at most {limit} words. Keep its meaning. {facts} Add no other facts, wishes or "
           "values, whatever the assistant asks for. Write only the reply.")


class Client(Protocol):
    """What is needed of `clients.chat.ChatClient`."""

    async def complete(self, messages: list[dict[str, str]]) -> str: ...


@struct.dataclass
class Knobs:
    word_limit: int = knob(30, 5, 200, "words the model is asked to stay below in a reply")


def llm(client: Client) -> User:
    """A user who speaks through `client`."""

    async def voice(knobs: Knobs, words: Words) -> tuple[str, str]:
        text = (await client.complete(request(knobs, words))).rpartition("</think>")[2].strip()   # its thoughts stay its own
        return text if text else words.draft, "llm"

    return User(name="llm", knobs=Knobs(), respond=respond, voice=voice)


def respond(rules: Rules, knobs: Knobs, features: Array, key: Array) -> Array:
    """The first matching rule's reply.  features i32[F] -> i32[]"""
    return decide(rules, features)


def request(knobs: Knobs, words: Words) -> list[dict[str, str]]:
    """The chat messages that are sent; nothing of `words.secrets` is among them."""
    facts = f"It must mention: {'; '.join(words.disclosed)}." if words.disclosed else "It states no facts."
    return [
        {"role": "system", "content": _SYSTEM.format(limit=int(knobs.word_limit), facts=facts)},
        {"role": "user", "content": f"What you asked for: {words.opening}\n\n"
                                    f"The assistant's message: {words.agent_text}\n\n"
                                    f"The reply to say in your own words: {words.draft}"},
    ]
