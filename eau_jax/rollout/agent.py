"""Who speaks for the agent: the policy that is trained, or a script that sees the environment's state."""

from typing import Any, Awaitable, Callable, NamedTuple

import numpy as np

from eau_jax.core.types import Task
from eau_jax.rollout.template import Chat
from eau_jax.samplers.types import Completion, Sampler, TokenRequest


class Agent(NamedTuple):
    """One call per turn; `release` when the episode is over."""

    speak: Callable[[TokenRequest, Task, Any], Awaitable[Completion]]   # (request, task, environment state)
    release: Callable[[str], Awaitable[None]]                           # (session)


def policy(sampler: Sampler) -> Agent:
    """The sampler's policy. It sees tokens only."""
    async def speak(request: TokenRequest, task: Task, state: Any) -> Completion:
        return (await sampler.generate([request]))[0]

    return Agent(speak, sampler.release)


def demonstrator(speech: Callable[[Task, Any, np.random.Generator], str], chat: Chat) -> Agent:
    """An environment's `expert` or `novice`: its episodes are data for a cold start, in the very tokens of a rollout.

    Log-probabilities are 0 and the policy version is -1: no policy sampled them.
    """
    async def speak(request: TokenRequest, task: Task, state: Any) -> Completion:
        random = np.random.default_rng((request.seed, len(request.tokens)))
        tokens = chat.write(speech(task, state, random))
        stop = "length" if len(tokens) > request.max_new_tokens else "end_of_turn"
        tokens = tokens[:request.max_new_tokens]
        return Completion(tokens, np.zeros(len(tokens), np.float32), stop, -1)

    async def release(session: str) -> None:
        """Nothing is kept per session."""

    return Agent(speak, release)
