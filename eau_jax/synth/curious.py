"""Conversations in which users say what they do not know, keep what they must not tell, and put an agent right.

The oracle asks for nothing but what the user can tell, so its conversations hold none of that. Here an agent does what the
oracle does most of the time, else asks for what nobody knows or for everything at once, or slips; and the user, where the
domain's rules read how much is asked, keeps to himself what is asked in a heap.
"""

from typing import Any, Callable

import numpy as np

from eau_jax.core.types import Task
from eau_jax.synth.domain import Domain
from eau_jax.synth.play import Stage

CARE = 0.55              # how often the agent does what the oracle would
_ASKS = ("What is your user id, please?", "What is your e-mail address, please?", "Could you tell me your zip code, please?",
         "Which payment method do you want to use?")
_HEAP = ("Please tell me your name, your zip code, your e-mail address and your user id.",
         "I need your e-mail address, your name, your zip code, the order number and how you would like to pay, please.")
_SLIPS = ("I am sorry, that is not possible.", "It is done. Is there anything else?", "Let me see what I can do for you.")
_RESERVED = """
[[rule]]
note = "more than two things are asked for at once"
when = { ask = 1, asked = { min = 3 }, patience = { min = 1 } }
reply = "WITHHOLD"
"""
Agent = Callable[[Task, Any, np.random.Generator], str]


def curious(oracle: Agent) -> Agent:
    """An agent that asks too much and slips now and then."""

    def agent(task: Task, state: Any, rng: np.random.Generator) -> str:
        draw = rng.random()
        if draw < CARE:
            return oracle(task, state, rng)
        ids = task.data.get("user", {}).get("ids", {}).get("record", ())
        wrong = tuple(f"I would change {each} for you. Do you confirm (yes/no)?" for each in ids)
        phrases = _ASKS if draw < 0.72 else _HEAP if draw < 0.85 else wrong if wrong and draw < 0.93 else _SLIPS
        return phrases[int(rng.integers(len(phrases)))]

    return agent


def reserves(domain: Domain) -> bool:
    """Whether the domain's rules read how much is asked, so that its user can keep to himself what is asked in a heap."""
    return {"ask", "asked", "patience"} <= set(domain.env.features)


def stage(domain: Domain) -> Stage:
    """Where such conversations are played."""
    env = domain.env
    if not reserves(domain):
        return Stage(domain)
    head, first, rest = env.rules.partition("[[rule]]")
    return Stage(domain._replace(env=env._replace(rules=f"{head}{_RESERVED}\n{first}{rest}")))
