"""Persuade, for the tests that every environment has to pass."""

import numpy as np

from eau_jax.core.part import Kind
from eau_jax.envs.gyms import persuade_tasks as generator
from eau_jax.envs.message import act
from eau_jax.envs.gyms.persuade import persuade as env
from eau_jax.envs.gyms.persuade_tasks import POINTS, points
from eau_jax.envs.gyms.persuade_text import Do
from nulls import pick
from worlds import draw_acts

CODES = Do
MOVED = {}
_COUNTERS = [words.split()[0] for words in generator.VIRTUES.values()]
NULLS = {"everything": {"every counter": lambda seen, n: f"[answer] But no: {', '.join(_COUNTERS)}."},
         "guesses": {"one counter": lambda seen, n: f"[answer] But think of the {pick(_COUNTERS, n)}.",
                     "two counters": lambda seen, n: f"[answer] But {' and '.join(_COUNTERS[2 * (n % 8):][:2])}.",
                     "four counters": lambda seen, n: f"[answer] But {' '.join(_COUNTERS[n % 4::4])}."}}


def random_acts(tasks, shape, rng):
    acts = draw_acts(Do, Do.ARGUE, shape, rng)
    acts.code[acts.code == Do.FINISH] = np.where(rng.random((acts.code == Do.FINISH).sum()) < 0.4, Do.FINISH, Do.RUDE)
    reasoned = np.where(rng.random(shape) < 0.8, acts.mask, 0)
    acts.values[...] = 0.0
    acts.values[..., 0] = rng.integers(0, 20, shape)   # a few reasons are given again
    acts = acts.replace(mask=(acts.mask | reasoned << POINTS).astype(np.int32))
    return acts.replace(flags=np.where(acts.code == Do.ARGUE, rng.integers(0, 4, shape), 0).astype(np.int32))


def sayable_acts(task, rng):
    """Acts of every code that the agent can put into words."""
    mask, flags = int(rng.integers(1, 2 ** len(points(task.data)))), int(rng.integers(0, 4))
    yield act(Kind.ANSWER, Do.ARGUE, mask).replace(flags=np.int32(flags))
    yield act(Kind.ANSWER, Do.ARGUE, mask | mask << POINTS).replace(flags=np.int32(flags))
    for kind, code in ((Kind.MALFORMED, Do.MALFORMED), (Kind.ANSWER, Do.ASSERT), (Kind.ACTION, Do.RUDE),
                       (Kind.ACTION, Do.ASK_BACK), (Kind.SEARCH, Do.NOT_OFFERED), (Kind.FINISH, Do.FINISH)):
        yield act(kind, code)


def agent_text(task, act):
    """Words for an act: `parse` must give the act back."""
    case = [point for k, point in enumerate(points(task.data)) if int(act.mask) >> k & 1]
    reasons = [words[0] for k, words in enumerate(task.data["counters"]) if int(act.mask) >> POINTS + k & 1]
    said = f"I doubt that. {' '.join(reasons or case)}."
    said += f"{' Research says so.' if act.flags & 1 else ''}{' Granted.' if act.flags & 2 else ''}"
    return {Do.MALFORMED: "hello", Do.ARGUE: f"[answer] {said}", Do.ASSERT: "[answer] That is wrong.",
            Do.RUDE: "[action] You fool!", Do.ASK_BACK: "[action] Why?", Do.NOT_OFFERED: "[search] x",
            Do.FINISH: "[finish]"}[int(act.code)]
