"""What a sampler is: tokens in, tokens out. It knows neither text nor templates nor rewards."""

import dataclasses
from typing import Any, Literal, Protocol

import numpy as np

Stop = Literal["end_of_turn", "length", "filtered", "aborted"]


@dataclasses.dataclass(frozen=True)
class TokenRequest:
    """One call for an action."""

    session: str                  # the episode; requests of one session come one after the other
    tokens: np.ndarray            # i32[h]: the whole history so far, h >= 1: prompt, observations and earlier actions
    max_new_tokens: int           # at least 1
    seed: int                     # 0 <= seed < 2**64; token t of the history is drawn with fold_in(key(seed), t)
    stop_ids: tuple[int, ...]     # sampling one of these ends the action


@dataclasses.dataclass(frozen=True)
class Completion:
    """One action."""

    tokens: np.ndarray            # i32[a], the stop token included when it was sampled
    logprobs: np.ndarray          # f32[a], of the distribution that was really sampled from
    stop: Stop                    # a stop token | max_new_tokens or the context length | its provider's filter | `close`
    policy_version: int           # of the weights that sampled every token of it


class Sampler(Protocol):
    """Turns histories into actions. `generate` may be called by many coroutines at once."""

    async def generate(self, requests: list[TokenRequest]) -> list[Completion]:
        """One completion per request, in the order of the requests."""
        ...

    async def push(self, params: Any, version: int, temperature: float) -> None:
        """Replaces the weights once every request accepted before has finished; later requests use the new ones."""
        ...

    async def release(self, session: str) -> None:
        """The episode is over: frees what is kept for it. Unknown sessions are ignored."""
        ...

    async def close(self) -> None:
        """Ends every open request with stop "aborted" and frees the memory."""
        ...
