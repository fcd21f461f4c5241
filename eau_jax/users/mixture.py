"""Two users in one: with probability epsilon a reply is worded by the first, else by the second.

The draw depends on task and turn only, so that all episodes of a group hear the same source at the same turn and their
advantages do not differ by luck of the draw. The state always advances by the first user's decision.
"""

from typing import Any

import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import User, Words
from eau_jax.core.types import Array
from eau_jax.users.rules import Rules


@struct.dataclass
class Knobs:
    first: Any
    second: Any
    epsilon: float = knob(0.5, 0.0, 1.0, "probability that a reply is worded by the first (symbolic) user")


def mixture(first: User, second: User) -> User:
    """`first` decides every reply; `first` or `second` words it."""

    def respond(rules: Rules, knobs: Knobs, features: Array, key: Array) -> Array:
        return first.respond(rules, knobs.first, features, key)

    async def voice(knobs: Knobs, words: Words) -> tuple[str, str]:
        if draw(words.group_seed) < knobs.epsilon:
            return await first.voice(knobs.first, words)
        return await second.voice(knobs.second, words)

    return User(name="mixture", knobs=Knobs(first=first.knobs, second=second.knobs), respond=respond, voice=voice,
                identity={"first": {"kind": first.name} | dict(first.identity),
                          "second": {"kind": second.name} | dict(second.identity)})


def draw(group_seed: int) -> float:
    """A number in [0, 1), the same for every episode of a group."""
    return float(np.random.default_rng([group_seed % 2**64, 0x6D6978]).random())
