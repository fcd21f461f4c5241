"""The array side of a conversation: an environment and a user fused into one compiled function per turn."""

import collections
from typing import Any, Callable, NamedTuple

import jax
import numpy as np

from eau_jax.core.part import Act, Env, TimeStep, User
from eau_jax.core.types import Array, Task


class Simulator(NamedTuple):
    """Made once per run. Knobs and rules are traced, so swapping their values compiles nothing."""

    env: Env
    user: User
    table: Any                                                      # the tasks' arrays, leading axis = task
    tasks: tuple[Task, ...]
    reset: Callable[[Any, int, int], Any]                           # (knobs, task index, seed) -> state
    step: Callable[..., tuple[Any, TimeStep, Array]]                # (knobs, rules, state, act, seed, turn)
    traces: collections.Counter                                     # how often "reset" and "step" were traced
    judge: Any = None                                               # a client as of `users.llm`, or None


def simulator(env: Env, user: User, tasks: tuple[Task, ...], judge: Any = None) -> Simulator:
    """Compiles `reset` and `observe + respond + step`; both return numpy arrays.

    Of a host world only the user's decision is compiled; its state is its own Python object.

    They run on the host's processor: one turn is a few microseconds of arithmetic on a handful of numbers, and the
    accelerator belongs to the sampler.
    """
    host = jax.local_devices(backend="cpu")[0]
    table = env.table(tasks) if env.host else jax.device_put(env.table(tasks), host)
    traces: collections.Counter = collections.Counter()

    @jax.jit
    def reset(table, knobs, index, seed):
        traces["reset"] += 1
        return env.reset(table, knobs["env"], index, jax.random.key(seed))

    @jax.jit
    def step(table, knobs, rules, state, act, seed, turn):
        traces["step"] += 1
        decide, advance = jax.random.split(jax.random.fold_in(jax.random.key(seed), turn))
        features = env.observe(table, knobs["env"], state, act)
        reply = user.respond(rules, knobs["user"], features, decide)
        state, time_step = env.step(table, knobs["env"], state, act, reply, advance)
        return state, time_step, reply

    @jax.jit
    def respond(knobs, rules, features, seed, turn):
        traces["respond"] += 1
        decide, _ = jax.random.split(jax.random.fold_in(jax.random.key(seed), turn))
        return user.respond(rules, knobs["user"], features, decide)

    def plain_step(knobs: Any, rules: Any, state: Any, act: Act, seed: int, turn: int) -> tuple[Any, TimeStep, Array]:
        features = np.asarray(env.observe(table, knobs["env"], state, act), np.int32)
        reply = np.asarray(respond(_live(knobs), rules, features, np.uint32(seed), np.int32(turn)))
        return (*env.step(table, knobs["env"], state, act, reply, None), reply)

    if env.host:
        return Simulator(env, user, table, tuple(tasks), lambda knobs, index, seed: env.reset(table, knobs["env"], index, seed),
                         plain_step, traces, judge)

    def reset_on_host(knobs: Any, index: int, seed: int) -> Any:
        return _numpy(reset(table, _live(knobs), np.int32(index), np.uint32(seed)))

    def step_on_host(knobs: Any, rules: Any, state: Any, act: Act, seed: int, turn: int) -> tuple[Any, TimeStep, Array]:
        return _numpy(step(table, _live(knobs), rules, state, act.replace(call=""), np.uint32(seed), np.int32(turn)))

    return Simulator(env, user, table, tuple(tasks), reset_on_host, step_on_host, traces, judge)


def _live(knobs: Any) -> dict[str, Any]:
    """The knobs that a conversation depends on."""
    return {"env": knobs["env"], "user": knobs["user"]}


def _numpy(tree: Any) -> Any:
    """Leaf by leaf: for arrays that lie in host memory this is three times as fast as `jax.device_get`."""
    return jax.tree.map(np.asarray, tree)
