"""The user who follows the rules and speaks the environment's own words."""

from flax import struct

from eau_jax.core.part import User, Words
from eau_jax.core.types import Array
from eau_jax.users.rules import Rules, decide


@struct.dataclass
class Knobs:
    """None: all of its behaviour is in the rules and in the environment's knobs."""


def respond(rules: Rules, knobs: Knobs, features: Array, key: Array) -> Array:
    """The first matching rule's reply.  features i32[F] -> i32[]"""
    return decide(rules, features)


async def voice(knobs: Knobs, words: Words) -> tuple[str, str]:
    return words.draft, "symbolic"


symbolic = User(name="symbolic", knobs=Knobs(), respond=respond, voice=voice)
