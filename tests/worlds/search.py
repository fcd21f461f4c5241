"""Search, for the tests that every environment has to pass."""

import numpy as np

from eau_jax.core.part import Kind
from eau_jax.envs.gyms import search_tasks as generator
from eau_jax.envs.message import act
from eau_jax.envs.gyms.search import search
from eau_jax.envs.gyms.search_index import index
from eau_jax.envs.gyms.search_text import HITS, Do
from nulls import pick
from worlds import draw_acts

INDEX = index(generator.corpus())
env = search(INDEX)
CODES = Do
MOVED = {}
_EVERY = [value for values in generator.VALUES.values() for value in values]
_VALUES = lambda seen: next((values for name, values in generator.VALUES.items() if name in seen[1]), _EVERY)
NULLS = {"everything": {"every value": lambda seen, n: f"[answer] {' '.join(_VALUES(seen))}"},
         "guesses": {"value by value": lambda seen, n: f"[answer] {pick(_VALUES(seen), n)}"}}


def random_acts(tasks, shape, rng):
    """Some searches hit the task's own passages or nothing, and half of the answers are right."""
    acts = draw_acts(Do, Do.QUERY, shape, rng)
    acts.values[...] -= 1
    acts.flags[...] = rng.integers(0, 2, shape)
    if len(shape) == 2:
        acts.values[::3, :, 1] = [tasks[b % len(tasks)].data["passages"][0] for b in range(shape[1])]
    return acts


def sayable_acts(task, rng):
    """Acts of every code that the agent can put into words."""
    hits = INDEX.find(task.data["queries"][0], HITS)
    yield act(Kind.SEARCH, Do.QUERY, values=hits)
    yield act(Kind.SEARCH, Do.QUERY, values=(-1,) * HITS)
    for right in (0, 1):
        yield act(Kind.ANSWER, Do.SUBMIT).replace(flags=np.int32(right))
    for kind, code in ((Kind.MALFORMED, Do.MALFORMED), (Kind.SEARCH, Do.EMPTY), (Kind.ACTION, Do.NOT_OFFERED),
                       (Kind.FINISH, Do.FINISH)):
        yield act(kind, code)


def agent_text(task, act):
    """Words for an act: `parse` must give the act back."""
    return {Do.MALFORMED: "hello", Do.QUERY: f"[search] {task.data['queries'][0] if act.values[0] >= 0 else 'zzz'}",
            Do.SUBMIT: f"[answer] {task.data['answer'].upper() if act.flags else 'granite'}.", Do.EMPTY: "[search]",
            Do.NOT_OFFERED: "[action] Tell me.", Do.FINISH: "[finish]"}[int(act.code)]
