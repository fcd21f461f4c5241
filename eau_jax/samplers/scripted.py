"""A sampler that says what a function tells it to: for tests, oracles and null agents. It has no weights."""

from typing import Any, Callable, Sequence

import numpy as np

from eau_jax.samplers.types import Completion, TokenRequest

Reply = Callable[[np.ndarray, str], Sequence[int]]  # (history i32[h], session) -> the action's tokens


def text_reply(reply: Callable[[str, str], str], encode: Callable[[str], Sequence[int]],
               decode: Callable[[Sequence[int]], str], end_of_turn: int) -> Reply:
    """A `Reply` made of a function over text: (history as text, session) -> text; the end-of-turn token is added."""
    def tokens(history: np.ndarray, session: str) -> list[int]:
        return [*encode(reply(decode(history.tolist()), session)), end_of_turn]
    return tokens


class Scripted:
    """Log-probabilities are 0: what is said is certain. Temperature and seeds have no effect."""

    def __init__(self, reply: Reply):
        self._reply = reply
        self._version = 0

    async def generate(self, requests: list[TokenRequest]) -> list[Completion]:
        return [self._complete(request) for request in requests]

    async def push(self, params: Any, version: int, temperature: float) -> None:
        """Records the version; there are no weights to replace."""
        self._version = version

    async def release(self, session: str) -> None:
        """Nothing is kept per session."""

    async def close(self) -> None:
        """There is nothing to free."""

    def _complete(self, request: TokenRequest) -> Completion:
        """The scripted action, cut after its first stop token or after `max_new_tokens`, whichever comes first.

        Raises:
          ValueError: when the script has no tokens: an action has at least one.
        """
        script = np.asarray(self._reply(np.asarray(request.tokens, np.int32), request.session), np.int32)  # [a]
        if script.ndim != 1 or script.size == 0:
            raise ValueError(f"the scripted reply for session {request.session!r} has shape {script.shape}; "
                             "it must be a list of at least one token id")
        stops = np.flatnonzero(np.isin(script, request.stop_ids))
        script = script[:stops[0] + 1] if stops.size else script
        stop = "length" if script.size > request.max_new_tokens else "end_of_turn"
        tokens = script[:request.max_new_tokens]
        return Completion(tokens, np.zeros(tokens.size, np.float32), stop, self._version)
