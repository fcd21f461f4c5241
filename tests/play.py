"""Plays environments in tests: random acts as arrays, scripted agents as text, and text for any act."""

from typing import Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax.core.part import Act, Kind
from eau_jax.envs import function_tasks, function_text, intention_tasks, intention_text
from eau_jax.envs.function import function
from eau_jax.envs.intention import intention
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

ENVS = {"function": (function, function_tasks), "intention": (intention, intention_tasks)}
CODES = {"function": function_text.Do, "intention": intention_text.Do}


class Line(NamedTuple):
    agent: str
    act: Act
    reply: str
    reward: float
    stop: int
    success: bool
    disclosed: int


def turn(env, user=symbolic):
    """(table, knobs, rules, state, act, key) -> (state, time step, features, reply): what a rollout does in a turn."""
    def one(table, knobs, rules, state, act, key):
        features = env.observe(table, knobs, state, act)
        reply = user.respond(rules, user.knobs, features, key)
        state, time_step = env.step(table, knobs, state, act, reply, key)
        return state, time_step, features, reply
    return one


def random_acts(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Act:
    """Acts of all codes; the common ones often, with small numbers so that test cases and answers are hit at times."""
    codes = CODES[name]
    common = codes.PROBE if name == "function" else codes.ASK
    code = np.where(rng.random(shape) < 0.5, int(common), rng.integers(0, len(codes), shape)).astype(np.int32)
    mask = (rng.integers(0, 32, shape) & rng.integers(0, 32, shape)).astype(np.int32)
    values = rng.integers(0, 3, (*shape, 4)).astype(np.float32)
    return Act(kind=np.zeros(shape, np.int32), code=code, mask=mask, values=values, flags=np.zeros(shape, np.int32))


_COMPILED = {name: jax.jit(turn(env)) for name, (env, _) in ENVS.items()}


def play(env, task, agent: Callable, knobs=None, rules: str | None = None, seed: int = 0) -> list[Line]:
    """One text episode; `agent(task, state, rng)` writes the messages."""
    knobs = env.knobs if knobs is None else knobs
    table = env.table((task,))
    compiled = compile_rules(env.rules if rules is None else rules, env.features)
    state = jax.device_get(env.reset(table, knobs, 0, jax.random.key(seed)))
    rng, lines = np.random.default_rng(seed), []
    while not state.done:
        text = agent(task, state, rng)
        act = env.parse(task, text, state)
        moved = _COMPILED[env.name](table, knobs, compiled, state, act, jax.random.key(seed))
        state, step, _, _ = jax.device_get(moved)
        lines.append(Line(text, act, env.render(task, act, step, seed + len(lines)), float(step.reward), int(step.stop),
                          bool(step.success), int(step.disclosed)))
        assert len(lines) <= 64, "the episode does not end"
    return lines


def script(*messages: str) -> Callable:
    """An agent that says these messages in order, then finishes."""
    return lambda task, state, rng: messages[int(state.turn)] if int(state.turn) < len(messages) else "[finish]"


def agent_text(task, act: Act) -> str:
    """Words for an act: `parse` must give the act back."""
    kind, code = Kind(int(act.kind)), int(act.code)
    if kind is Kind.FINISH:
        return "[finish]"
    if task.env == "intention":
        names = [task.data["missing_details"][k]["description"] for k in range(16) if int(act.mask) >> k & 1]
        return {intention_text.Do.MALFORMED: "hello", intention_text.Do.ASK: f"[action] What {' and '.join(names)}?",
                intention_text.Do.VAGUE: "[action] Tell me more.", intention_text.Do.OFF_TOPIC: "[action] Bananas!",
                intention_text.Do.SOLVE: "[answer] Done.", intention_text.Do.NOT_OFFERED: "[search] x"}[code]
    do, numbers = function_text.Do, [float(value) for value in act.values]
    return {do.MALFORMED: "hello", do.PROBE: "[action] " + " ".join(f"{number:.9f}" for number in numbers),
            do.BAD_COUNT: "[action] 1 2 3", do.GET_CASE: "[search] test", do.BAD_SEARCH: "[search] rule",
            do.SUBMIT: f"[answer] {numbers[0] + numbers[1]!r}", do.BAD_NUMBER: "[answer] seven",
            do.EMPTY: "[answer]"}[code]


def states(env, table, knobs, count: int):
    """`count` fresh states, one after the other through the tasks."""
    rows = len(jax.tree.leaves(table)[0])
    return jax.vmap(lambda index: env.reset(table, knobs, index, None))(jnp.arange(count, dtype=jnp.int32) % rows)


def built_in(name: str, count: int = 8):
    env, generator = ENVS[name]
    return env, generator.generate("train", count, 0)

