"""The user who follows the rules. He speaks the environment's own words, which a persona says in its manner."""

import zlib
from typing import Mapping

import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import User, Words
from eau_jax.core.types import Array
from eau_jax.users.rules import Rules, decide

# What each persona may say before and after the environment's words, which stay as they are: no value is in any of it.
PERSONAS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "talkative": (("Oh, I was about to come to that. ", "You would not believe my week. ", "Nice that somebody asks. "),
                  (" But I am rambling.", " And that is the whole story.", "")),
    "hesitant": (("Hmm. ", "I had to look that up. ", "Bear with me. "),
                 (" As far as I know.", " I hope I got that right.", "")),
    "hurried": (("Briefly: ", "Quickly: ", ""), (" Go on.", " I am in a hurry.", " Next.")),
    "formal": (("In reply to your message: ", "As requested: ", "To answer you: "), (" With kind regards.", " Yours truly.", "")),
}


@struct.dataclass
class Knobs:
    persona_mix: float = knob(0.0, 0.0, 1.0, "share of the tasks whose user has a persona and words the draft in its manner")


def respond(rules: Rules, knobs: Knobs, features: Array, key: Array) -> Array:
    """The first matching rule's reply.  features i32[F] -> i32[]"""
    return decide(rules, features)


async def voice(knobs: Knobs, words: Words) -> tuple[str, str]:
    return in_character(knobs.persona_mix, words), "symbolic"


def in_character(share: float, words: Words) -> str:
    """The draft, worded by the task's persona if it has one.

    Who has which persona is a function of the task's opening: the same in every episode of a task, so that advantages within
    a group do not differ by it, and a task that has one keeps it when the share rises. What he says around the draft is
    drawn from the seed of the reply.
    """
    has, who = np.random.default_rng([zlib.crc32(words.opening.encode()), 0x706572]).random(2)
    if has >= share:
        return words.draft
    before, after = list(PERSONAS.values())[int(who * len(PERSONAS))]
    rng = np.random.default_rng([words.seed % 2**64, 0x706572])
    return before[rng.integers(len(before))] + words.draft + after[rng.integers(len(after))]


symbolic = User(name="symbolic", knobs=Knobs(), respond=respond, voice=voice)
