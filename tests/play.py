"""Plays environments in tests: random acts as arrays, scripted agents as text, and text for any act."""

from typing import Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import worlds
from eau_jax.core.part import Act
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

WORLDS = worlds.every()
ENVS = {name: world.env for name, world in WORLDS.items()}


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


_COMPILED = {name: jax.jit(turn(env)) for name, env in ENVS.items()}


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
        moved = _COMPILED[env.name](table, knobs, compiled, state, act.replace(call=""), jax.random.key(seed))
        state, step, _, _ = jax.device_get(moved)
        reply = env.render(task, act, step, state, seed + len(lines))
        lines.append(Line(text, act, reply, float(step.reward), int(step.stop), bool(step.success), int(step.disclosed)))
        assert len(lines) <= 64, "the episode does not end"
    return lines


def script(*messages: str) -> Callable:
    """An agent that says these messages in order, then finishes."""
    return lambda task, state, rng: messages[int(state.turn)] if int(state.turn) < len(messages) else "[finish]"


def states(env, table, knobs, count: int):
    """`count` fresh states, one after the other through the tasks."""
    rows = len(jax.tree.leaves(table)[0])
    return jax.vmap(lambda index: env.reset(table, knobs, index, None))(jnp.arange(count, dtype=jnp.int32) % rows)


def built_in(name: str, count: int = 8):
    return ENVS[name], WORLDS[name].generator.generate("train", count, 0)

