"""Intention, for the tests that every environment has to pass."""

from eau_jax.core.part import Kind
from eau_jax.envs.gyms import intention_tasks as generator
from eau_jax.envs.gyms.intention import intention as env
from eau_jax.envs.gyms.intention_text import Do
from eau_jax.envs.message import act
from nulls import ask, pick
from worlds import draw_acts

CODES = Do
MOVED = {}
_NAMES = list(generator.OPTIONS)
NULLS = {"everything": {"every name": lambda seen, n: f"[action] {ask(_NAMES)}"},
         "guesses": {"name by name": lambda seen, n: f"[action] {ask([pick(_NAMES, n)])}",
                     "two names": lambda seen, n: f"[action] {ask([pick(_NAMES, 2 * n), pick(_NAMES, 2 * n + 1)])}"}}


def random_acts(tasks, shape, rng):
    return draw_acts(Do, Do.ASK, shape, rng)


def sayable_acts(task, rng):
    """Acts of every code that the agent can put into words."""
    yield act(Kind.ACTION, Do.ASK, int(rng.integers(1, 2 ** len(task.data["missing_details"]))))
    for kind, code in ((Kind.MALFORMED, Do.MALFORMED), (Kind.ACTION, Do.VAGUE), (Kind.ACTION, Do.OFF_TOPIC),
                       (Kind.ANSWER, Do.SOLVE), (Kind.SEARCH, Do.NOT_OFFERED), (Kind.FINISH, Do.FINISH)):
        yield act(kind, code)


def agent_text(task, act):
    """Words for an act: `parse` must give the act back."""
    names = [task.data["missing_details"][k]["description"] for k in range(16) if int(act.mask) >> k & 1]
    return {Do.MALFORMED: "hello", Do.ASK: f"[action] What {' and '.join(names)}?", Do.VAGUE: "[action] Tell me more.",
            Do.OFF_TOPIC: "[action] Bananas!", Do.SOLVE: "[answer] Done.", Do.NOT_OFFERED: "[search] x",
            Do.FINISH: "[finish]"}[int(act.code)]
