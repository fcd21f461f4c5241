"""Function, for the tests that every environment has to pass."""

import numpy as np

from eau_jax.core.part import Kind
from eau_jax.envs.gyms import function_tasks as generator
from eau_jax.envs.gyms.function import function as env
from eau_jax.envs.gyms.function_text import Do
from eau_jax.envs.message import act
from worlds import draw_acts

CODES = Do
MOVED = {"tol": 10.0, "block_radius": 10.0}   # knobs for which an end of the range cannot show, and what to move them to
TELLS = False           # its replies disclose by their codes, not by slots
NULLS = {"guesses": {"small results": lambda seen, n: f"[answer] {(3, 10, 2, 7, 5, 12, 1, 9)[n % 8]}"}}


def random_acts(tasks, shape, rng):
    """Small numbers, so that test cases are hit at times; late in the episode answers that are right, and near misses."""
    acts = draw_acts(Do, Do.PROBE, shape, rng)
    if len(shape) == 2:
        right = np.array([tasks[b % len(tasks)].data["expected_result"] for b in range(shape[1])], np.float32)
        acts.values[8::3, :, 0] = right[None] + np.arange(shape[1])[None] % 3
        acts.values[8::3, :, 1] = 0.0
    return acts


def sayable_acts(task, rng):
    """Acts of every code that the agent can put into words."""
    number = float(rng.choice([225.0, -17.5, 1 / 3, 2.0**20 + 0.1]))
    high = float(np.float32(number))
    yield act(Kind.ACTION, Do.PROBE, values=tuple(float(np.float32(v)) for v in rng.uniform(-9, 9, 4)))
    yield act(Kind.ANSWER, Do.SUBMIT, values=(high, float(np.float32(number - high))))
    for kind, code in ((Kind.MALFORMED, Do.MALFORMED), (Kind.ACTION, Do.BAD_COUNT), (Kind.SEARCH, Do.GET_CASE),
                       (Kind.SEARCH, Do.BAD_SEARCH), (Kind.ANSWER, Do.BAD_NUMBER), (Kind.ANSWER, Do.EMPTY),
                       (Kind.FINISH, Do.FINISH)):
        yield act(kind, code)


def agent_text(task, act):
    """Words for an act: `parse` must give the act back."""
    numbers = [float(value) for value in act.values]
    return {Do.MALFORMED: "hello", Do.PROBE: "[action] " + " ".join(f"{number:.20f}" for number in numbers),
            Do.BAD_COUNT: "[action] 1 2 3", Do.GET_CASE: "[search] test", Do.BAD_SEARCH: "[search] rule",
            Do.SUBMIT: f"[answer] {numbers[0] + numbers[1]!r}", Do.BAD_NUMBER: "[answer] seven",
            Do.EMPTY: "[answer]", Do.FINISH: "[finish]"}[int(act.code)]
