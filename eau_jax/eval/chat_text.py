"""Conversations as characters, so that an API model plays the same episodes as a policy that is trained.

Every character is a token of its own and every role tag a token above all characters: a history of tokens is a list of
messages again, and nothing that anybody writes can forge a role.
"""

import numpy as np

from eau_jax.rollout.template import TINY, TINY_SPECIALS, Chat, bind
from eau_jax.rollout.tokenizer import Tokenizer

SILENCE = "(nothing)"
_FIRST = 0x110000  # one above the last character
_SPECIAL = {name: _FIRST + place for place, name in enumerate(TINY_SPECIALS)}
_ROLES = {_SPECIAL["<|system|>"]: "system", _SPECIAL["<|user|>"]: "user", _SPECIAL["<|tool|>"]: "tool",
          _SPECIAL["<|agent|>"]: "assistant"}


def characters() -> Tokenizer:
    """The tokenizer whose tokens are characters."""
    return Tokenizer(encode=lambda text: [ord(letter) for letter in text],
                     decode=lambda ids: "".join(chr(i) for i in map(int, ids) if i < _FIRST),
                     special=_SPECIAL, vocab_size=_FIRST + len(_SPECIAL))


def chat() -> Chat:
    """The chat whose tokens are characters and role tags."""
    return bind(TINY, characters())


def messages(history: np.ndarray) -> list[dict[str, str]]:
    """The conversation that the tokens i32[h] hold, oldest first: {"role", "content"} each. A tool's output stands in a
    user message, marked as such, because an OpenAI-compatible server takes a tool message only after a call of its own
    format. A message of the agent that says nothing is SILENCE, because many a server takes no empty one and wants the
    roles to alternate; the last, which the agent is to fill, is left out."""
    history = np.asarray(history)
    starts = np.flatnonzero(np.isin(history, list(_ROLES)))
    found = []
    for start, end in zip(starts, [*starts[1:], len(history)]):
        role, text = _ROLES[int(history[start])], characters().decode(history[start + 1:end])
        if role == "tool":
            role, text = "user", f"Tool output:\n{text}"
        found.append({"role": role, "content": text or SILENCE})
    return found[:-1] if found and history[-1] in _ROLES and _ROLES[int(history[-1])] == "assistant" else found
