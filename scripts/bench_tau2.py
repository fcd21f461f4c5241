"""The array path of tau2-bench retail and airline on this machine: steps per second.

    python scripts/bench_tau2.py DATA/tau2 [--batch 16384] [--repeats 9]

BATCH conversations at once under jit(vmap): acts from a fixed pool, half of them the task's own gold calls, a quarter words
of every kind and a quarter writes with random arguments; the default rules of the user; and a new task wherever a
conversation has ended. The figure is the median over repeats of one compiled call of STEPS steps.

The floor is memory traffic: bytes of state (read and written), act, table row and result of one step, divided by the
bandwidth of a large copy measured in the same process.
"""

import argparse
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax.core.part import Act, Env
from eau_jax.envs import message
from eau_jax.envs.tau2 import data as tau2_data
from eau_jax.envs.tau2.airline_slice import airline_slice
from eau_jax.envs.tau2.retail_slice import retail_slice
from eau_jax.envs.tau2.agent import tool_call
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.arrays import WRITE
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

STEPS = 32       # steps of one compiled call
GOLD = 20        # gold calls of a task


def pool(domain: Domain, env: Env, batch: int, rng: np.random.Generator) -> tuple[Act, Act]:
    """(gold calls, leading axes [tasks, GOLD]; random acts, leading axes [STEPS, batch])."""
    gold = []
    for task in domain.tasks:
        calls = [env.parse(task, tool_call(action["name"], action["arguments"]), None).replace(call="")
                 for action in task.data["evaluation_criteria"]["actions"]]
        gold += (calls + [message.act(2, 1)] * GOLD)[:GOLD]
    gold = jax.tree.map(lambda *each: np.stack(each).reshape(len(domain.tasks), GOLD, *each[0].shape), *gold)
    shape = (STEPS, batch)
    writes = rng.random(shape) < 0.5
    code = np.where(writes, rng.integers(WRITE, WRITE + 7, shape), rng.integers(0, 8, shape))
    values = np.stack([rng.integers(0, 5, shape), rng.integers(-1, 3, shape), rng.integers(0, 2**24, shape),
                       rng.integers(0, 2**24, shape)], -1)
    return gold, Act(kind=np.zeros(shape, np.int32), code=code.astype(np.int32), values=values.astype(np.float32),
                     mask=rng.integers(0, 2**20, shape).astype(np.int32), flags=np.zeros(shape, np.int32))


def player(env: Env, tasks: int):
    """Compiled: (table, rules, states, gold, others) -> (states, time steps) over STEPS steps."""

    def one(table, rules, state, gold, other):
        own = jax.tree.map(lambda each: jnp.asarray(each)[state.task, state.turn % GOLD], gold)
        act = jax.tree.map(lambda left, right: jnp.where(state.turn % 2 == 0, left, right), own, other)
        features = env.observe(table, env.knobs, state, act)
        reply = symbolic.respond(rules, symbolic.knobs, features, None)
        new, time_step = env.step(table, env.knobs, state, act, reply, None)
        fresh = env.reset(table, env.knobs, (state.task + 1) % tasks, None)
        return jax.tree.map(lambda start, going: jnp.where(time_step.done, start, going), fresh, new), time_step

    def play(table, rules, states, gold, others):
        step = lambda states, other: jax.vmap(one, (None, None, 0, None, 0))(table, rules, states, gold, other)
        return jax.lax.scan(step, states, others)

    return jax.jit(play)


def bandwidth(repeats: int) -> float:
    """Bytes per second (read + written) of copying 256 MB."""
    block, seconds = jnp.zeros(2**26, jnp.float32), []
    copy = jax.jit(lambda x: x + 1)
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(copy(block))
        seconds.append(time.perf_counter() - start)
    return 2 * block.nbytes / statistics.median(seconds[1:])


def measure(domain: Domain, env: Env, batch: int, repeats: int, speed: float) -> str:
    table, rules = jax.device_put((env.table(domain.tasks), compile_rules(env.rules, env.features)))
    gold, others = jax.device_put(pool(domain, env, batch, np.random.default_rng(0)))
    index = jnp.arange(batch, dtype=jnp.int32) % len(domain.tasks)
    states = jax.vmap(lambda i: env.reset(table, env.knobs, i, None))(index)
    play, seconds = player(env, len(domain.tasks)), []
    for _ in range(repeats + 2):    # the first two calls compile and warm up
        start = time.perf_counter()
        states, steps = jax.block_until_ready(play(table, rules, states, gold, others))
        seconds.append(time.perf_counter() - start)
    size = lambda tree, axes: sum(x.nbytes // int(np.prod(x.shape[:axes])) for x in jax.tree.leaves(tree))
    touched = 2 * size(states, 1) + size(others, 2) + size(steps, 2) + size(table.replace(shared=None), 1)
    rate, floor = STEPS * batch / statistics.median(seconds[2:]), speed / touched
    return (f"{domain.name:8} {rate / 1e6:5.2f} M steps/s; {size(states, 1)} bytes of state; floor {floor / 1e6:.1f} M/s, "
            f"{100 * rate / floor:.0f} % reached; {100 * float(steps.done.mean()):.0f} % of steps end an episode, "
            f"{100 * float(steps.success.sum() / jnp.maximum(steps.done.sum(), 1)):.0f} % of them solved")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="upstream's files: retail/ and airline/ lie in it")
    parser.add_argument("--batch", type=int, default=16384, help="conversations at once")
    parser.add_argument("--repeats", type=int, default=9, help="timed calls of %d steps" % STEPS)
    chosen = parser.parse_args()
    speed = bandwidth(chosen.repeats)
    print(f"{jax.devices()[0].platform}, {jax.device_count()} device(s); copy {speed / 1e9:.1f} GB/s; batch {chosen.batch}")
    for name, make in (("retail", retail_slice), ("airline", airline_slice)):
        domain = tau2_data.load(chosen.folder / name)
        print(measure(domain, make(domain), chosen.batch, chosen.repeats, speed))


if __name__ == "__main__":
    main()
