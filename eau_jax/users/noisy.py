"""A seeded stand-in for an LLM user, for tests and offline experiments: it drifts, leaves, paraphrases and leaks.

What it decides (`drift`, `leave`) is drawn from the key of the step, what it says (`paraphrase`, `leak`) from the seed
of the reply. Inside a mixture only its words are heard: there the state advances by the first user's decisions. `fickle` has
noisy's decisions and the symbolic user's words: as the first of a mixture with `noisy` it makes a user who drifts and
leaves whoever words the replies.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import Reply, User, Words
from eau_jax.core.types import Array
from eau_jax.users.rules import Rules, decide
from eau_jax.users.symbolic import Knobs as SymbolicKnobs, symbolic

_OPENINGS = ("Well, ", "Hm, ", "Let me see. ", "Good question. ", "So, ")
_CLOSINGS = (" Thanks.", " I hope that helps.", " All right?", "")


@struct.dataclass
class Whims:
    drift: float = knob(0.1, 0.0, 1.0, "probability of another reply than the rules' (LEAVE is never drifted to)")
    leave: float = knob(0.02, 0.0, 1.0, "probability of leaving at a reply")


@struct.dataclass
class FickleKnobs(SymbolicKnobs, Whims):
    """Noisy's decisions, the symbolic user's words."""


@struct.dataclass
class Knobs(Whims):
    paraphrase: float = knob(0.5, 0.0, 1.0, "probability of other words around the draft")
    leak: float = knob(0.05, 0.0, 1.0, "probability of saying one undisclosed value, where there is one")


def respond(rules: Rules, knobs: Whims, features: Array, key: Array) -> Array:
    """The rules' reply, or with probability `drift` one of the other replies; LEAVE with probability `leave`.

    features i32[F] -> i32[]
    """
    reply = decide(rules, features)
    drifts, leaves, which = jax.random.split(key, 3)
    other = jax.random.randint(which, (), 1, Reply.LEAVE)  # a shift of 1..3 among the four replies that stay
    drifted = jnp.where(jax.random.uniform(drifts) < knobs.drift, (reply + other) % Reply.LEAVE, reply)
    drifted = jnp.where(reply == Reply.LEAVE, reply, drifted)
    return jnp.where(jax.random.uniform(leaves) < knobs.leave, Reply.LEAVE, drifted).astype(jnp.int32)


async def voice(knobs: Knobs, words: Words) -> tuple[str, str]:
    """The draft, perhaps between other words, perhaps followed by a secret: the same for the same seed."""
    rng = np.random.default_rng(words.seed % 2**64)
    paraphrases, leaks, opening, closing, which = rng.random(5)
    text = words.draft
    if paraphrases < knobs.paraphrase:
        text = _pick(_OPENINGS, opening) + text[:1].lower() + text[1:] + _pick(_CLOSINGS, closing)
    if words.secrets and leaks < knobs.leak:
        text += f" And {_pick(words.secrets, which)}."
    return text, "noisy"


def _pick(choices: tuple[str, ...], draw: float) -> str:
    return choices[int(draw * len(choices))]


noisy = User(name="noisy", knobs=Knobs(), respond=respond, voice=voice)
fickle = User(name="fickle", knobs=FickleKnobs(), respond=respond, voice=symbolic.voice)
