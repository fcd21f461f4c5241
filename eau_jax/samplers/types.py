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
    policy_version: int           # of the weights that sampled it; of the oldest ones where `versions` names several
    versions: tuple[tuple[int, int], ...] = ()   # (version, number of tokens) in order, where new weights came in between


class Sampler(Protocol):
    """Turns histories into actions. `generate` may be called by many coroutines at once."""

    async def generate(self, requests: list[TokenRequest]) -> list[Completion]:
        """One completion per request, in the order of the requests."""
        ...

    async def push(self, params: Any, version: int, temperature: float) -> None:
        """Replaces the weights: later requests use the new ones. Open ones have finished before, or go on with the new ones,
        and then `Completion.versions` says which tokens are whose."""
        ...

    async def release(self, session: str) -> None:
        """The episode is over: frees what is kept for it. Unknown sessions are ignored."""
        ...

    async def close(self) -> None:
        """Ends every open request with stop "aborted" and frees the memory."""
        ...


class Engine(Sampler, Protocol):
    """The sampler of a run's policy."""

    by_reference: bool   # whether it goes on reading the arrays that `push` was given

    def warm_up(self) -> None:
        """Compiles, or makes the servers compile, what later calls use; after the first `push`, outside an event loop."""
        ...

    def drop_cache(self) -> None:
        """Frees memory that the learner may need; no request may run."""
        ...


def check_request(request: TokenRequest, length: int, vocab_size: int) -> None:
    """Raises ValueError for a request that a sampler of `length` tokens over `vocab_size` token ids cannot serve."""
    tokens, name = np.asarray(request.tokens), f"session {request.session!r}"
    if tokens.ndim != 1 or tokens.size == 0:
        raise ValueError(f"{name}: the history has shape {tokens.shape}; it must be a list of at least one token")
    if tokens.size >= length:
        raise ValueError(f"{name}: a history of {tokens.size} tokens leaves no room for an action in a cache of length "
                         f"{length}; raise the sampler's length or end episodes earlier")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"{name}: token ids span {tokens.min()}..{tokens.max()}; the model's are 0..{vocab_size - 1}")
    if request.max_new_tokens < 1:
        raise ValueError(f"{name}: max_new_tokens is {request.max_new_tokens}; it must be at least 1")
    if not 0 <= request.seed < 2 ** 64:
        raise ValueError(f"{name}: seed is {request.seed}; it must lie in 0..2**64 - 1")
