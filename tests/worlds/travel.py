"""Travel, for the tests that every environment has to pass."""

import numpy as np

from eau_jax.core.part import Kind
from eau_jax.envs.gyms import travel_tasks as generator
from eau_jax.envs.message import act
from eau_jax.envs.gyms.travel import travel as env
from eau_jax.envs.gyms.travel_tasks import ASPECTS, LETTERS, NOUNS, preferences, shown_options
from eau_jax.envs.gyms.travel_text import Do
from eau_jax.envs.gyms.travel_match import request
from nulls import SAID, ask, pick
from worlds import draw_acts

CODES = Do
MOVED = {}
_WISHES = [(thing, NOUNS[aspect]) for aspect in ASPECTS for thing in generator.WISHES[aspect]]
NULLS = {"everything": {"every wish": lambda seen, n: f"[action] {ask([' for the '.join(wish) for wish in _WISHES])}"},
         "guesses": {"look, ask, answer": lambda seen, n: _blind(seen, n, 10, lambda k: ask([" for the ".join(
                         pick([wish for wish in _WISHES if wish[1] in seen[1]], k))])),
                     "look, chat, answer": lambda seen, n: _blind(seen, n, 3, lambda k: "Nice.")}}


def _blind(seen, n, count, say):
    """Searches with the opening, says something `count` times, then answers the first option it was shown."""
    if n == 0:
        return f"[search] {seen[1]}"
    return f"[action] {say(n)}" if n <= count else f"[answer] {SAID['guesses']['id shown'](seen, n)}"


def random_acts(tasks, shape, rng):
    """Aspects of the task and options that are shown, most of the time."""
    acts = draw_acts(Do, Do.ASK, shape, rng)
    acts.values[..., 1] = rng.integers(-1, 7, shape)
    if len(shape) == 2:
        for b in range(shape[1]):
            names = tasks[b % len(tasks)].data["dimensions"]
            acts.values[:, b, 0] = [ASPECTS.index(names[k]) for k in rng.integers(0, len(names), shape[0])]
        often = rng.random(shape) < 0.4
        acts.code[often] = rng.choice([Do.SEARCH, Do.PICK, Do.CHAT], shape)[often]
        acts.code[acts.code == Do.FINISH] = np.where(rng.random((acts.code == Do.FINISH).sum()) < 0.3, Do.FINISH, Do.ASK)
    return acts


def sayable_acts(task, rng):
    """Acts of every code that the agent can put into words."""
    aspect = str(rng.choice(task.data["dimensions"]))
    column = ASPECTS.index(aspect)
    yield act(Kind.ACTION, Do.ASK, int(rng.integers(1, 2 ** len(preferences(task.data)))))
    yield act(Kind.SEARCH, Do.SEARCH, values=(column,))
    yield act(Kind.ANSWER, Do.PICK, values=(column, int(rng.integers(-1, len(shown_options(task, aspect))))))
    for kind, code in ((Kind.MALFORMED, Do.MALFORMED), (Kind.ACTION, Do.ASK_NONE), (Kind.ACTION, Do.VAGUE),
                       (Kind.ACTION, Do.CHAT), (Kind.SEARCH, Do.SEARCH_BAD), (Kind.ANSWER, Do.PICK_MANY),
                       (Kind.ANSWER, Do.PICK_BAD_ID), (Kind.FINISH, Do.FINISH)):
        yield act(kind, code)


def agent_text(task, act):
    """Words for an act: `parse` must give the act back."""
    code, column, place = int(act.code), int(act.values[0]), int(act.values[1])
    if code == Do.ASK:
        wishes = [f"{thing} for the {NOUNS[aspect]}" for k, (aspect, thing, *_) in enumerate(preferences(task.data))
                  if int(act.mask) >> k & 1]
        return f"[action] What about {' and '.join(wishes)}?"
    if code == Do.SEARCH:
        return f"[search] {request(task, ASPECTS[column])}"
    if code == Do.PICK:
        return f"[answer] {shown_options(task, ASPECTS[column])[place]['id'] if place >= 0 else LETTERS[column] + '99'}"
    return {Do.MALFORMED: "hello", Do.ASK_NONE: "[action] Do you like bananas?", Do.VAGUE: "[action] Tell me more.",
            Do.CHAT: "[action] Sun shines.", Do.SEARCH_BAD: "[search] moon", Do.PICK_MANY: "[answer] H1, F2",
            Do.PICK_BAD_ID: "[answer] the cheap one", Do.FINISH: "[finish]"}[code]
