"""Turtle, for the tests that every environment has to pass."""

import numpy as np

from eau_jax.core.part import Kind
from eau_jax.envs.gyms import turtle_tasks as generator
from eau_jax.envs.message import act
from eau_jax.envs.gyms.turtle import turtle as env
from eau_jax.envs.gyms.turtle_match import LEVELS, pack
from eau_jax.envs.gyms.turtle_text import Do
from eau_jax.envs.gyms.yes_no import fingerprint
from nulls import pick
from worlds import draw_acts

CODES = Do
MOVED = {}
_EVERY = [form.format(option) for form, options in generator.PARTS.values() for option in options]
NULLS = {"everything": {"every story": lambda seen, n: f"[answer] {' '.join(_EVERY)}",
                        "every question": lambda seen, n: f"[action] {' '.join(_EVERY)}"},
         "guesses": {"story by story": lambda seen, n: f"[answer] {_story(seen, n)}"}}


def _story(seen, n):
    """One that fits the event; it keeps what was said to be right and changes the rest."""
    parts = [generator.PARTS[name] for name in generator.EVENTS.get(seen[1].partition(":")[0], ("", ()))[1]]
    told = [[form.format(option) for option in options] for form, options in parts]
    return " ".join(next((text for text in texts if text in " ".join(seen[2:])), pick(texts, n)) for texts in told)


def random_acts(tasks, shape, rng):
    """Questions of any share of truth, some negated, and stories that tell some statements fully and some partly."""
    acts = draw_acts(Do, Do.STORY, shape, rng)
    if len(shape) == 2:   # every other episode gets long
        even = acts.code[:, ::2]
        even[((even == Do.STORY) | (even == Do.FINISH)) & (rng.random(even.shape) < 0.9)] = Do.ASK
    levels = np.moveaxis(rng.choice([0, 10, 25, 36, 50, LEVELS], (*shape, 5)), -1, 0)
    worded = (acts.code == Do.STORY) | (acts.code == Do.ASK)
    acts = acts.replace(mask=np.where(worded, pack(levels), 0).astype(np.int32),
                        flags=(rng.random(shape) < 0.2).astype(np.int32))
    acts.values[..., 0] = rng.choice([0.0, 0.1, 0.3, 0.5, 0.58, 0.8, 1.0], shape)
    return acts


def sayable_acts(task, rng):
    """Acts of every code that the agent can put into words."""
    told = rng.random(len(task.data["evaluation"])) < 0.5
    told[0] = True
    story = act(Kind.ANSWER, Do.STORY, pack(tuple(LEVELS * told)))
    yes = act(Kind.ACTION, Do.ASK, LEVELS, (1.0,))
    denied = yes.replace(flags=np.int32(1), values=yes.values.copy())
    for said in (story, yes, denied, act(Kind.ACTION, Do.ASK), act(Kind.ACTION, Do.OPEN)):
        said.values[3] = fingerprint(agent_text(task, said).partition("] ")[2])
        yield said
    for kind, code in ((Kind.MALFORMED, Do.MALFORMED), (Kind.SEARCH, Do.NOT_OFFERED), (Kind.FINISH, Do.FINISH)):
        yield act(kind, code)


def agent_text(task, act):
    """Words for an act: `parse` must give the act back."""
    told = [entry["statement"] for slot, entry in enumerate(task.data["evaluation"]) if int(act.mask) >> 6 * slot & 63]
    asked = told[0] if told else "a horse"
    return {Do.MALFORMED: "hello", Do.ASK: f"[action] Was it {'not ' if act.flags else ''}so: {asked}",
            Do.OPEN: "[action] What happened?", Do.STORY: f"[answer] {' '.join(told)}", Do.NOT_OFFERED: "[search] x",
            Do.FINISH: "[finish]"}[int(act.code)]
