"""What a chat server's answer says: the model's words and how they ended, or why there are none. Reads anything."""

import json
import re
from typing import Any

from eau_jax.core.types import Said

_SURROGATE = re.compile("[\ud800-\udfff]")
_REFUSALS = (0, 400, 413, 422)    # 0: an error that came as an answer
_CONTEXT_FULL = re.compile(
    r"context[ _](?:length|size|window|limit)|max(?:imum)? (?:model|prompt|input|sequence) length|max_model_len"
    r"|too many (?:input )?tokens|(?:prompt|input|request|conversation|messages?) (?:is|are) too long"
    r"|reduce the (?:length|number of tokens)"
    r"|tokens? (?:count )?.{0,40}exceeds? (?:the )?(?:max|limit|configured)|input length.{0,40}exceeds?"
    r"|max_new_tokens`? must be|max_tokens must be at least 1, got -", re.IGNORECASE | re.DOTALL)
_FILTERED = re.compile(r"content_filter|content_policy_violation|data_inspection_failed", re.IGNORECASE)


def read(body: str) -> Said:
    """The words of a chat completion.

    Content in parts is joined. A call of the server's own format is written as the text form of one, after the words that
    came with it: <tool_call>{"name": ..., "arguments": {...}}</tool_call>. A refusal is what the model says.

    Raises:
      ValueError: for anything that is no chat completion; it says what came.
    """
    try:
        return _read(body)
    except RecursionError:
        raise ValueError(f"nested too deep to be a chat completion: {body[:200]}") from None


def _read(body: str) -> Said:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON, so base_url may be another page of the server: {body[:500] or 'nothing'}") from None
    if isinstance(found, dict) and found.get("error"):
        raise ValueError(f"an error in place of an answer: {json.dumps(found['error'])}")
    choices = found.get("choices") if isinstance(found, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise ValueError(f"not a chat completion: {body[:500]}")
    finish = choice.get("finish_reason") or "stop"
    if not isinstance(finish, str):
        raise ValueError(f"the finish_reason is no text: {_shown(finish)}")
    if finish in ("abort", "error"):
        raise ValueError(f"the server broke off (finish_reason {finish!r})")
    text = _text(message.get("content")) or _text(message.get("refusal"))
    calls = message.get("tool_calls") or [{"function": call} for call in [message.get("function_call")] if call]
    if not isinstance(calls, list):
        raise ValueError(f"the tool_calls are no list: {_shown(calls)}")
    return Said(whole("\n".join([text] * bool(text) + [_call(call) for call in calls])), finish,
                _tokens(found.get("usage")))


def whole(text: str) -> str:
    """The text with halves of surrogate pairs, which UTF-8 lacks, replaced by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def context_full(status: int, text: str) -> bool:
    """Whether a server (OpenAI, vLLM, SGLang, llama.cpp, TGI and the like) refused a request as too long for the model."""
    return status in _REFUSALS and "per minute" not in text and _CONTEXT_FULL.search(text) is not None


def filtered(status: int, text: str) -> bool:
    """Whether the provider's content filter refused the request."""
    return status in _REFUSALS and _FILTERED.search(text) is not None


def _tokens(usage: Any) -> tuple[int, int] | None:
    """(read, written), where the server counts them."""
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else [None]
    return tuple(counts) if all(type(count) is int and count >= 0 for count in counts) else None


def _text(content: Any) -> str:
    """Text as a string, as a list of parts, or none."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text") or "" for part in content if part.get("type", "text") in ("text", "output_text")]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise ValueError(f"the content is no text: {_shown(content)}")


def _call(call: Any) -> str:
    """A call of the server's own format in the text form."""
    function = call.get("function") if isinstance(call, dict) else None
    name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(arguments, (str, dict, type(None))):
        raise ValueError(f"a call that is none: {_shown(call)}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            pass    # the environment answers what cannot be read
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"


def _shown(value: Any) -> str:
    return json.dumps(value)[:200]
