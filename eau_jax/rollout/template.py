"""Chat templates that only ever append: what was fed or sampled keeps its tokens for good.

A template says what stands before the agent's first turn and what is appended after each of its turns. It never sees
the agent's text, so nothing that was sampled is tokenised again. Official templates agree wherever they are append-only
too; Qwen3's drops the thinking of earlier turns and its empty think block, here both are kept.
"""

import functools
import re
from typing import Callable, NamedTuple, Sequence

import numpy as np

from eau_jax.rollout.tokenizer import Tokenizer


class Tag(NamedTuple):
    """A special token by its text. Where the vocabulary lacks an optional one, its text stands in plain."""

    text: str


Pieces = tuple[Tag | str, ...]
AGENT_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # tags inside a message of the agent


class Template(NamedTuple):
    """The glue of one chat format."""

    name: str
    stops: tuple[str, ...]                    # special tokens that end a turn, the end of turn first
    required: tuple[str, ...]                 # special tokens without which the format cannot be written
    opening: Callable[[str, str], Pieces]     # (system text, first user message) -> prompt up to the agent's turn
    reply: Callable[[str, str], Pieces]       # (text, role "user" | "tool") -> from the end of turn to the next turn


class Chat(NamedTuple):
    """A template bound to a tokenizer: what an episode needs to know of text."""

    opening: Callable[[str, str], np.ndarray]            # (system, user) -> i32[o]
    reply: Callable[[str, str, np.ndarray], np.ndarray]  # (text, role, action i32[a]) -> i32[o]
    closing: Callable[[np.ndarray], np.ndarray]          # action i32[a] -> i32[0 or 1]: the end of turn if missing
    read: Callable[[np.ndarray], str]                    # action i32[a] -> the agent's text
    write: Callable[[str], np.ndarray]                   # text -> i32[a]: an action that says it, end of turn included
    stop_ids: tuple[int, ...]


def bind(template: Template, tokenizer: Tokenizer) -> Chat:
    """The template over this tokenizer's ids.

    Raises:
      ValueError: when the vocabulary lacks a special token that the template requires.
    """
    missing = [name for name in template.required if name not in tokenizer.special]
    if missing:
        raise ValueError(f"template {template.name!r} needs the special tokens {missing}, which this tokenizer lacks; "
                         f"it has {sorted(tokenizer.special)}; choose the template of the model's family")
    end = np.array([tokenizer.special[template.stops[0]]], np.int32)
    # What a model of the family writes as one token that is also read back; all others stay text.
    known = [mark for mark in AGENT_MARKS if mark in tokenizer.special]
    marks = [mark for mark in known if tokenizer.decode([tokenizer.special[mark]]) == mark]
    marked = re.compile(f"({'|'.join(map(re.escape, marks))})") if marks else None

    def write(text: str) -> np.ndarray:
        parts = [text] if marked is None else [part for part in marked.split(text) if part]
        pieces = tuple(Tag(part) if part in marks else part for part in parts)
        return np.concatenate([tokenize(pieces, tokenizer), end])

    def closing(action: np.ndarray) -> np.ndarray:
        return end[:0] if len(action) and action[-1] == end[0] else end

    def reply(text: str, role: str, action: np.ndarray) -> np.ndarray:
        return np.concatenate([closing(action), tokenize(template.reply(text, role), tokenizer)])

    return Chat(
        opening=lambda system, user: tokenize(template.opening(system, user), tokenizer),
        reply=reply,
        closing=closing,
        read=lambda action: tokenizer.decode(action),
        write=write,
        stop_ids=tuple(tokenizer.special[name] for name in template.stops if name in tokenizer.special))


def tokenize(pieces: Pieces, tokenizer: Tokenizer) -> np.ndarray:
    """i32[n]: tags as their ids, all text between two tags encoded as one string and never as a special token."""
    ids: list[int] = []
    run = ""
    for piece in pieces:
        text = piece.text if isinstance(piece, Tag) else piece
        if isinstance(piece, Tag) and text in tokenizer.special:
            ids += [*tokenizer.encode(run), tokenizer.special[text]] if run else [tokenizer.special[text]]
            run = ""
        else:
            run += text
    return np.array([*ids, *tokenizer.encode(run)] if run else ids, np.int32)


def show(pieces: Pieces) -> str:
    """The pieces as one string, tags by their text."""
    return "".join(piece.text if isinstance(piece, Tag) else piece for piece in pieces)


def closes_thinking(template: Template) -> bool:
    """Whether the glue before the agent's turn already holds its reasoning, an empty one."""
    return Tag("</think>") in template.opening("", "")


def visible(text: str) -> str:
    """What others see of the agent's message: what follows its thinking, or precedes one left open."""
    _, closed, tail = text.rpartition("</think>")
    return tail.strip() if closed else text.partition("<think>")[0].strip()


def appended(template: Template, before: Sequence[tuple[str, str]], after: Sequence[tuple[str, str]]) -> Pieces:
    """What must be appended when a message list kept elsewhere grows from `before` to `after`.

    Args:
      before: (role, text) pairs that are already in the tokens, ending with the agent's turn; empty at the start.
      after: the longer list; it may add one user or tool message.

    Raises:
      ValueError: when the change would alter earlier tokens, or would tokenise what the agent sampled.
    """
    for number, (old, new) in enumerate(zip(before, after)):
        if old != new:
            raise ValueError(f"message {number} was {old!r} and now is {new!r}: its tokens were fed or sampled "
                             "already, and templates only append; start a new episode instead of changing the history")
    if len(after) < len(before):
        raise ValueError(f"the history shrank from {len(before)} to {len(after)} messages; templates only append")
    added = tuple(after[len(before):])
    roles = tuple(role for role, _ in added)
    if not before and roles in (("user",), ("system", "user")):
        return template.opening(added[0][1] if len(added) == 2 else "", added[-1][1])
    if before and before[-1][0] == "agent" and roles in (("user",), ("tool",)):
        return template.reply(added[0][1], added[0][0])
    last = before[-1][0] if before else "nothing"
    raise ValueError(f"cannot append messages of roles {list(roles)} after {last!r}; allowed: an optional system and a "
                     "user message at the start, then one user or tool message after each agent turn; the agent's own "
                     "tokens are kept as they were sampled")


# --- the ChatML family: Qwen2.5, Qwen3, SmolLM2 ---

_START, _END, _TEXT_END = Tag("<|im_start|>"), Tag("<|im_end|>"), "<|endoftext|>"


def _chatml_message(role: str, text: str) -> Pieces:
    return (_START, f"{role}\n{text}", _END, "\n")


def _chatml_opening(default: str, generate: Pieces, system: str, user: str) -> Pieces:
    system = system if system else default
    head = _chatml_message("system", system) if system else ()
    return (*head, *_chatml_message("user", user), *generate)


def _chatml_reply(generate: Pieces, text: str, role: str) -> Pieces:
    return ("\n", *_chatml_message(role, text), *generate)


def _qwen_reply(generate: Pieces, text: str, role: str) -> Pieces:
    """A tool's answer stands in a user message. Qwen2.5 has no token for its tags, so text may not spell them."""
    if role == "user":
        return _chatml_reply(generate, text.replace("tool_response>", "tool_response >"), role)
    text = text.replace("tool_response>", "tool_response >")
    return ("\n", _START, "user\n", Tag("<tool_response>"), f"\n{text}\n", Tag("</tool_response>"), _END, "\n",
            *generate)


_AGENT: Pieces = (_START, "assistant\n")
_NO_THOUGHT: Pieces = (*_AGENT, Tag("<think>"), "\n\n", Tag("</think>"), "\n\n")
_CHATML = dict(stops=("<|im_end|>", "<|im_start|>", _TEXT_END), required=("<|im_start|>", "<|im_end|>"))

QWEN3 = Template("qwen3", opening=functools.partial(_chatml_opening, "", _NO_THOUGHT),
                 reply=functools.partial(_qwen_reply, _NO_THOUGHT), **_CHATML)
QWEN3_THINKING = Template("qwen3_thinking", opening=functools.partial(_chatml_opening, "", _AGENT),
                          reply=functools.partial(_qwen_reply, _AGENT), **_CHATML)
QWEN25 = Template("qwen25", opening=functools.partial(
    _chatml_opening, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", _AGENT),
                  reply=functools.partial(_qwen_reply, _AGENT), **_CHATML)
SMOLLM2 = Template("smollm2", opening=functools.partial(
    _chatml_opening, "You are a helpful AI assistant named SmolLM, trained by Hugging Face", _AGENT),
                   reply=functools.partial(_chatml_reply, _AGENT), **_CHATML)


# --- Llama 3 ---

def _llama_message(role: str, text: str) -> Pieces:
    return (Tag("<|start_header_id|>"), role, Tag("<|end_header_id|>"), f"\n\n{text.strip()}", Tag("<|eot_id|>"))


_LLAMA_AGENT: Pieces = (Tag("<|start_header_id|>"), "assistant", Tag("<|end_header_id|>"), "\n\n")


def _llama_opening(system: str, user: str) -> Pieces:
    head = _llama_message("system", system) if system else ()
    return (Tag("<|begin_of_text|>"), *head, *_llama_message("user", user), *_LLAMA_AGENT)


def _llama_reply(text: str, role: str) -> Pieces:
    return (*_llama_message({"user": "user", "tool": "ipython"}[role], text), *_LLAMA_AGENT)


LLAMA3 = Template("llama3", opening=_llama_opening, reply=_llama_reply,
                  stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|start_header_id|>"),
                  required=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"))


# --- tiny: one token of glue per message, for small models of one's own ---

def _tiny_opening(system: str, user: str) -> Pieces:
    head = (Tag("<|system|>"), system) if system else ()
    return (*head, Tag("<|user|>"), user, Tag("<|agent|>"))


def _tiny_reply(text: str, role: str) -> Pieces:
    return (Tag({"user": "<|user|>", "tool": "<|tool|>"}[role]), text, Tag("<|agent|>"))


TINY_SPECIALS = ("<|system|>", "<|user|>", "<|tool|>", "<|agent|>", "<|end|>")
TINY = Template("tiny", opening=_tiny_opening, reply=_tiny_reply,
                stops=("<|end|>", "<|user|>", "<|tool|>", "<|agent|>", "<|system|>"), required=TINY_SPECIALS)
