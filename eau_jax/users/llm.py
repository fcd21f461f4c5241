"""A user whose decisions are the rules' and whose words are a language model's.

The model is told what a reply may contain and nothing else: the request, the agent's message, the draft and the values
that the draft discloses. It holds no secret, so it can at most guess one; `users.voice.speak` checks that.

The state has advanced as if the draft had been said. So a reply that leaves out or turns round what the draft tells, or
makes something up (`users.faithful`), is cut off or empty, is far too long, or is not plain words, is asked for once more,
with what was wrong with it; then the draft stands, and the turn is recorded as spoken by "draft".
"""

from typing import Any, Mapping, Protocol

from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import User, Words
from eau_jax.core.types import Array, Said
from eau_jax.users import faithful
from eau_jax.users.rules import Rules, decide
from eau_jax.users.voice import leaks

SLACK = 2      # a reply may be as many times as long as it was asked to be, or as its draft, and no longer
LETTERS = 12   # in a word, at most, when length is counted: words without spaces are long

_SYSTEM = ("You play a person who asked an assistant for something. Say the given reply to the assistant in your own "
           "words, in character, in at most {limit} words. Keep its meaning. {facts} Add no other facts, wishes or "
           "values, whatever the assistant asks for. Write only the reply.")


class Client(Protocol):
    """What is needed of `clients.chat.ChatClient`."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What a record says of it, JSON values, the model's name among them; "service": what may change meanwhile."""
        ...

    async def complete(self, messages: list[dict[str, str]]) -> str:
        """The model's words, a `core.types.Said` where it is known how they ended."""
        ...


def checked(client: Any, where: str = "") -> Client:
    """The client, where it can be used as one; `where`: the setting that holds it, for the message.

    Raises:
      ValueError: names what a custom client lacks.
    """
    identity = getattr(client, "identity", None)
    lacks = ["an async method `complete`"] if not callable(getattr(client, "complete", None)) else []
    if not isinstance(identity, Mapping) or "model" not in identity:
        lacks.append('an attribute `identity`, a mapping of JSON values with the model\'s name under "model"')
    if lacks:
        raise ValueError(f"{where}{' = ' if where else ''}{client!r:.60} is no chat client; give one such as "
                         f"eau_jax.clients.chat.ChatClient(...), or give yours {' and '.join(lacks)}")
    return client


@struct.dataclass
class Knobs:
    word_limit: int = knob(30, 5, 200, "words that the model is asked for at most, or as many as the draft has; over "
                                       "twice as many are refused")


def llm(client: Client) -> User:
    """A user who speaks through `client`.

    Raises:
      ValueError: when `client` is none.
    """
    checked(client)

    async def voice(knobs: Knobs, words: Words) -> tuple[str, str]:
        wrong = ""
        for _ in range(2):
            said = await client.complete(request(knobs, words, wrong))
            text = plain(said)
            if leaks(text, words.secrets):
                return text, "llm"   # `speak` replaces it and counts it as a leak
            wrong = fault(knobs, words, text, isinstance(said, Said) and said.finish == "length")
            if not wrong:
                return text, "llm"
        return words.draft, "draft"

    return User(name="llm", knobs=Knobs(), respond=respond, voice=voice, identity={"kind": "llm"} | dict(client.identity))


def respond(rules: Rules, knobs: Knobs, features: Array, key: Array) -> Array:
    """The first matching rule's reply.  features i32[F] -> i32[]"""
    return decide(rules, features)


def request(knobs: Knobs, words: Words, wrong: str = "") -> list[dict[str, str]]:
    """The chat messages that are sent; nothing of `words.secrets` is among them. `wrong`: the fault of an earlier reply."""
    values, exact = faithful.facts(words.draft, words.disclosed)
    mentions = f"It must mention: {'; '.join(values + exact)}." if values or exact else "It states no facts."
    answer = faithful.verdict(faithful.opening(words.draft))
    mentions += f" It must answer {answer}." if answer else ""
    again = f"\n\nAn earlier try was refused: {wrong}. This time take care of that." if wrong else ""
    return [
        {"role": "system", "content": _SYSTEM.format(limit=_limit(knobs, words), facts=mentions)},
        {"role": "user", "content": f"What you asked for: {words.opening}\n\n"
                                    f"The assistant's message: {words.agent_text}{again}\n\n"
                                    f"The reply to say in your own words: {words.draft}"},
    ]


def plain(text: str) -> str:
    """The reply without thoughts, which stay the model's own."""
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()


def fault(knobs: Knobs, words: Words, text: str, cut: bool) -> str:
    """What is wrong with a reply, said to the model that wrote it; "" for nothing."""
    most = SLACK * _limit(knobs, words)
    if not text:
        return "it was empty"
    if cut or length(text) > most:
        return f"it was too long; write at most {_limit(knobs, words)} words and nothing else"
    if "<tool_call>" in text:
        return "it was a tool call; write words"
    said = (words.opening, words.agent_text, *words.known, *(each for _, each in words.history))
    return faithful.unfaithful(words.draft, words.disclosed, text, said)


def _limit(knobs: Any, words: Words) -> int:
    return max(int(knobs.word_limit), length(words.draft))


def length(text: str) -> int:
    """Words in a text; LETTERS letters count as one at least."""
    return max(len(text.split()), len(text) // LETTERS)
