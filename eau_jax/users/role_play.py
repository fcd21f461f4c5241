"""A user whose words are those of a model that was fine-tuned to be the user (EigenData, arXiv:2601.22607).

Such a model sees the conversation, or the last few exchanges of it, with the roles exchanged: what the assistant said comes
as the user's messages, and it writes the user's side. As with every user, the rules decide and the state follows them. So
the model is told only what the rules have disclosed so far and what the next reply has to state, such as what a screen
shows, which no scenario holds; how to say it, and what to say where nothing has to be stated, is the model's. Out of
records it is trained on the same prompt, one example a turn (`rollout/recorded.py`, `synth/rows.py`).

What has to be said word for word is numbered, and the model writes [1] for the first of it, so that it need not copy long
readings to the letter. A model that copies them nevertheless is heard as well.
"""

import re
from typing import Sequence

from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import User, Words
from eau_jax.core.types import Said
from eau_jax.users import faithful
from eau_jax.users.llm import Client, checked, fault, plain, respond

STOP = "###STOP###"                           # what the model writes when it has nothing more to say
GREETING = "Hello! How can I help you today?"  # stands before a conversation that the user opens

_SYSTEM = ("You are the user. Tell the assistant only what is asked for; [1] stands for Say [1]. Once all is settled, write "
           f"{STOP}.\n\n{{scenario}}")    # short, since it comes with every reply
_SIGN = re.compile(r"###\w+###")
_NUMBER = re.compile(r"\[(\d+)\]")
_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)


@struct.dataclass
class Knobs:
    word_limit: int = knob(60, 5, 400, "the draft stands for a reply of over twice as many words, and over twice its own")


def role_play(client: Client, recent: int = 0) -> User:
    """A user who speaks through a fine-tuned user model. A reply that would not do, by the standard of `users.llm`, or that
    only ends the conversation, is replaced by the draft.

    Args:
      recent: exchanges that the model sees, the last, as `sft.recent` when it was trained; 0: the whole conversation.

    Raises:
      ValueError: when `client` is none, or `recent` no whole number of 0 or more.
    """
    checked(client)
    if type(recent) is not int or recent < 0:
        raise ValueError(f"recent = {recent!r}; allowed: whole numbers of 0 or more; 0: the whole conversation")

    async def voice(knobs: Knobs, words: Words) -> tuple[str, str]:
        said = await client.complete(request(words, recent))
        text = spelled(plain(said), words.draft, words.known)
        text = text.replace(STOP, "").strip()   # the rules decide when the conversation ends
        wrong = fault(knobs, words, text, isinstance(said, Said) and said.finish == "length")
        return (words.draft, "draft") if wrong else (text, "llm")

    return User(name="role_play", knobs=Knobs(), respond=respond, voice=voice,
                identity={"kind": "role_play", "recent": recent} | dict(client.identity))


def request(words: Words, recent: int = 0) -> list[dict[str, str]]:
    """The conversation so far as the user's model sees it, ending with the assistant's message; of `recent` exchanges, where
    that is not 0."""
    said = [("user", GREETING), *(("assistant", text) if role == "user" else ("user", spoken(text))
                                  for role, text in (*words.history, ("agent", words.agent_text)))]
    seen = said[1 - 2 * recent:] if recent else said
    return [{"role": role, "content": text} for role, text in
            (("system", system(scenario(words.opening, words.known, words.draft))), *seen)]


def system(scenario: str) -> str:
    """The system prompt of a user's model."""
    return _SYSTEM.format(scenario=scenario)


def scenario(opening: str, known: Sequence[str], reply: str = "") -> str:
    """What the user wants and knows before a turn, where nothing but the conversation tells it.

    Args:
      opening: the user's first message.
      known: every value told so far and those that may be told in this turn.
      reply: of this turn, the draft or what was said. Told of it: what has to be said word for word and is not known, and
        whether it answers yes, no or maybe; see `users.faithful`.
    """
    answer = faithful.verdict(faithful.opening(reply))
    lines = [f"Request: {opening}", *(f"Known: {value}" for value in dict.fromkeys(known)),
             *(f"Say [{number}]: {fact}" for number, fact in enumerate(_exact(reply, known), 1))]
    return "\n".join([*lines, f"Answer: {answer}"] if answer else lines)


def numbered(reply: str, known: Sequence[str]) -> str:
    """A reply as the model learns it: [1], [2] and so on in place of what its scenario has under these numbers."""
    exact = _exact(reply, known)
    found = "|".join(map(re.escape, sorted(exact, key=len, reverse=True)))
    number = lambda match: f"[{exact.index(match[0]) + 1}]"
    return re.sub(rf"(?<!\w)(?:{found})(?!\w)", number, reply) if exact else reply


def spelled(text: str, draft: str, known: Sequence[str]) -> str:
    """What a model says, with the words that its numbers stand for; a number that stands for nothing stays."""
    exact = _exact(draft, known)
    return _NUMBER.sub(lambda match: exact[int(match[1]) - 1] if 0 < int(match[1]) <= len(exact) else match[0], text)


def _exact(reply: str, known: Sequence[str]) -> list[str]:
    """What a reply has to state word for word and nobody has told yet; signs such as STOP are none of it."""
    return faithful.facts(_SIGN.sub(" ", reply), known)[1]


def spoken(text: str) -> str:
    """What a user hears of an assistant's message: no thinking, no tool calls."""
    _, closed, tail = text.rpartition("</think>")
    return _CALL.sub("", tail if closed else text.partition("<think>")[0]).strip()
