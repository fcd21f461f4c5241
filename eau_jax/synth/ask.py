"""Asking a language model for JSON. Whatever it answers, there is a value that fits or a reason why there is none."""

import json
import math
import re
from typing import Any, Callable, Mapping, NamedTuple, TypeVar

from eau_jax.clients.calls import Calls, Recorded
from eau_jax.core.types import InfraError, Said
from eau_jax.users.llm import Client, plain

USED = "used"
INVALID = "invalid"
NO_CHARACTER = "\ufffd"     # stands where bytes were none
_FENCE = re.compile(r"\A```\w*\s*|\s*```\Z")
T = TypeVar("T")


class Refused(ValueError):
    """An answer that will not do. `reason`: a word or two, for counting; the text is what the model is told."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason = reason


class Asker(NamedTuple):
    """One model in one role, for one task."""

    calls: Calls
    client: Recorded
    role: str
    repairs: int

    @classmethod
    def of(cls, calls: Calls, client: Client, role: str, repairs: int, sample: int = 0) -> "Asker":
        """`sample` tells calls with the same messages apart."""
        return cls(calls, Recorded(calls, client, role, sample), role, repairs)

    def json(self, system: str, wanted: str, read: Callable[[Mapping[str, Any]], T]) -> tuple[T | None, str]:
        """(what `read` makes of the model's JSON object, USED), or (None, why there is nothing).

        Args:
          read: raises Refused for an object that will not do; the model is told, and asked again.
        """
        messages = [{"role": "system", "content": system}, {"role": "user", "content": wanted}]
        reason = INVALID
        for _ in range(self.repairs + 1):
            try:
                said = self.calls.run(self.client.complete(messages))
            except InfraError:
                return None, self.client.failed
            try:
                return read(json_object(said)), USED
            except Refused as refused:
                reason = refused.reason
                messages = [*messages[:2], {"role": "assistant", "content": said or "(nothing)"},
                            {"role": "user", "content": f"That will not do: {refused}. Answer again, with JSON only."}]
        return None, reason


def json_object(said: str) -> dict[str, Any]:
    """The JSON object that a model wrote, whatever stands around it.

    Raises:
      Refused: for anything else.
    """
    text = _FENCE.sub("", plain(said))
    begin, end = text.find("{"), text.rfind("}")
    cut = "; it was cut off, so write less" if isinstance(said, Said) and said.finish == "length" else ""
    if NO_CHARACTER in text:
        raise Refused(INVALID, f"it holds a broken character{cut}")
    try:
        found = json.loads(text[begin:end + 1], parse_constant=_number, parse_float=_number) if 0 <= begin < end else None
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:     # halves of surrogate pairs among them
        raise Refused(INVALID, f"it is not JSON ({getattr(error, 'msg', error)}){cut}") from None
    if not isinstance(found, dict):
        raise Refused(INVALID, f"it holds no JSON object{cut}")
    return found


def field(found: Mapping[str, Any], name: str, kind: type, what: str) -> Any:
    """A field of an answer.

    Raises:
      Refused: when it is not there, or of another kind.
    """
    value = found.get(name)
    if not isinstance(value, kind) or isinstance(value, bool) > (kind is bool):
        raise Refused(INVALID, f'its field "{name}" is not {what}')
    return value


def _number(written: str) -> float:
    if not math.isfinite(float(written)):
        raise ValueError(f"{written} is no number")
    return float(written)
