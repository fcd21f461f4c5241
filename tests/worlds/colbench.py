"""ColBench, for the tests that every environment has to pass."""

import numpy as np

from eau_jax.clients.executor import Executor, Outcome
from eau_jax.core.part import Kind
from eau_jax.envs.colbench import tasks as generator
from eau_jax.envs.colbench.colbench import colbench
from eau_jax.envs.colbench.tasks import facts
from eau_jax.envs.colbench.text import Do, asked
from eau_jax.envs.message import act
from worlds import draw_acts

env = colbench(Executor())
CODES = Do
MOVED = {"cue_threshold": 4.0}   # the lowest one lets pass what the default does


def random_acts(tasks, shape, rng):
    """Half of the flags say that a guess is right."""
    acts = draw_acts(Do, Do.ASK, shape, rng)
    acts.values[..., 0] /= 2
    acts.flags[...] = rng.integers(0, 2, shape)
    acts.code[(acts.code == Do.ANSWER) & (rng.random(shape) < 0.3)] = Do.CHECK
    return acts


def sayable_acts(task, rng):
    """Acts of every code that the agent can put into words."""
    known = facts(task)
    mask = int(rng.integers(1, 2 ** len(known)))
    yield act(Kind.ACTION, Do.ASK, mask, (0.0, asked(known, _question(task, mask))[1]))
    for right in (0, 1):
        yield act(Kind.ACTION, Do.CHECK, 1 << int(rng.integers(len(known)))).replace(flags=np.int32(right))
    yield act(Kind.ACTION, Do.DRAFT, 2 ** len(known) - 1)
    if rng.random() < 0.1:   # runs a process
        yield act(Kind.ANSWER, Do.ANSWER, values=(1.0,))
    yield act(Kind.ANSWER, Do.ANSWER).replace(flags=np.int32(list(Outcome).index(Outcome.RAISED)))
    for kind, code in ((Kind.MALFORMED, Do.MALFORMED), (Kind.ACTION, Do.ASK_UNKNOWN), (Kind.ACTION, Do.ASK_CODE),
                       (Kind.SEARCH, Do.NOT_OFFERED), (Kind.FINISH, Do.FINISH)):
        yield act(kind, code)


def agent_text(task, act):
    """Words for an act: `parse` must give the act back."""
    code = int(act.code)
    if code == Do.CHECK:
        fact = facts(task)[int(act.mask).bit_length() - 1]
        return f"[action] Is the {fact.slot} {fact.values[0] if act.flags else 12345}?"
    if code == Do.ANSWER:
        return f"[answer] {task.data['ground_truth']}" if act.values[0] == 1 else "[answer] pass"
    return {Do.MALFORMED: "hello", Do.ASK: f"[action] {_question(task, int(act.mask))}", Do.ASK_UNKNOWN: "[action] Bananas!",
            Do.ASK_CODE: "[action] Please write the function.",
            Do.DRAFT: f"[action] Like this?\n{task.data['ground_truth']}",
            Do.NOT_OFFERED: "[search] x", Do.FINISH: "[finish]"}[code]


def _question(task, mask):
    return "".join(f"What is the {fact.slot}? " for k, fact in enumerate(facts(task)) if mask >> k & 1).strip()
