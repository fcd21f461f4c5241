"""Telepathy, for the tests that every environment has to pass."""

import itertools

import numpy as np

from eau_jax.core.part import Kind
from eau_jax.envs.gyms import telepathy_tasks as generator
from eau_jax.envs.message import act
from eau_jax.envs.gyms.telepathy import telepathy as env
from eau_jax.envs.gyms.telepathy_match import ATTRIBUTES, INDEX, MAYBE, YES
from eau_jax.envs.gyms.telepathy_text import Do
from eau_jax.envs.gyms.yes_no import fingerprint
from nulls import pick
from worlds import draw_acts

CODES = Do
MOVED = {}

_PARTS = (*generator.OPTIONS.values(), *generator.THINGS.values())
_EVERY = [word for words in _PARTS for word in words]
NULLS = {"everything": {"every word": lambda seen, n: f"[answer] {' '.join(_EVERY)}",
                        "every question": lambda seen, n: f"[action] Is it {' or '.join(_EVERY)}?"},
         "guesses": {"thing by thing": lambda seen, n: f"[answer] {' '.join(pick(_fitting(seen[1]), n))}"}}


def _fitting(description):
    """Every thing that a description allows."""
    told = description.rstrip(".").split()
    sort = next((things if kind in told else set(things) & set(told) for kind, things in generator.THINGS.items()
                 if {kind, *things} & set(told)), ())
    parts = [[word for word in words if word in told] or words for words in generator.OPTIONS.values()]
    return list(itertools.product(*parts, sort))


def random_acts(tasks, shape, rng):
    """Questions about any attribute, some negated; a guess is right now and then."""
    acts = draw_acts(Do, Do.ASK, shape, rng)
    acts = acts.replace(mask=np.zeros(shape, np.int32), flags=(rng.random(shape) < 0.2).astype(np.int32))
    acts.values[..., 0] = np.where(acts.code == Do.ASK, rng.integers(0, len(ATTRIBUTES), shape), acts.values[..., 0])
    acts.values[..., 0] = np.where(acts.code == Do.GUESS, rng.random(shape) < 0.3, acts.values[..., 0])
    return acts


def sayable_acts(task, rng):
    """Acts of every code that the agent can put into words."""
    colour = INDEX[task.data["title"].split()[1]]
    said = [act(Kind.ACTION, Do.ASK, values=(colour,)), act(Kind.ACTION, Do.ASK_OTHER, values=(YES,)),
            act(Kind.ACTION, Do.ASK_OTHER, values=(MAYBE,)), act(Kind.ACTION, Do.OPEN),
            act(Kind.ANSWER, Do.GUESS, values=(1,)), act(Kind.ANSWER, Do.GUESS)]
    for one in [said[0].replace(flags=np.int32(1), values=said[0].values.copy()), *said]:
        one.values[3] = fingerprint(agent_text(task, one).partition("] ")[2])
        yield one
    for kind, code in ((Kind.MALFORMED, Do.MALFORMED), (Kind.SEARCH, Do.NOT_OFFERED), (Kind.FINISH, Do.FINISH)):
        yield act(kind, code)


def agent_text(task, act):
    """Words for an act: `parse` must give the act back."""
    name = ATTRIBUTES[int(act.values[0])].name
    other = task.data["title"] if act.values[0] == YES else "on the menu"
    return {Do.MALFORMED: "hello", Do.ASK: f"[action] Is it {'not ' if act.flags else ''}{name}?",
            Do.ASK_OTHER: f"[action] Is it {other}?", Do.OPEN: "[action] What is it?",
            Do.GUESS: f"[answer] It is a {task.data['title'] if act.values[0] else 'small pink cup'}!",
            Do.NOT_OFFERED: "[search] x", Do.FINISH: "[finish]"}[int(act.code)]
