"""Environment steps per second of the array simulators on this machine, the user's rules included.

    python scripts/bench_env.py [--batch 16384] [--repeats 15]

Each environment plays BATCH episodes at once under jit(vmap): random acts from a fixed pool, the default rules, and a
new task wherever an episode has ended. The figure is the median over repeats of one compiled call of STEPS steps.

The floor is memory traffic: bytes of state (read and written), act, table row and result of one step, divided by the
bandwidth of a large copy measured in the same process. The share says how much of that bound is reached; the rest is
arithmetic (some thousand integer operations a step, most of them in the rules: R rules x F features).
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax.core.part import Act, Env
from eau_jax.envs.gyms import function_tasks, intention_tasks
from eau_jax.envs.gyms.function import function
from eau_jax.envs.gyms.function_text import Do as FunctionDo
from eau_jax.envs.gyms.intention import intention
from eau_jax.envs.gyms.intention_text import Do as IntentionDo
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

STEPS = 32          # steps of one compiled call
TASKS = 512
REQUIRED = 2e6      # steps per second


def acts(env: Env, batch: int, rng: np.random.Generator) -> Act:
    """A pool of random acts, leading axes [STEPS, batch]: every code, most often the ones that do something."""
    shape = (STEPS, batch)
    codes, common = (FunctionDo, FunctionDo.PROBE) if env is function else (IntentionDo, IntentionDo.ASK)
    code = np.where(rng.random(shape) < 0.7, int(common), rng.integers(0, len(codes), shape))
    mask = 1 << rng.integers(0, 5, shape) | (1 << rng.integers(0, 5, shape)) * (rng.random(shape) < 0.2)
    return Act(kind=np.zeros(shape, np.int32), code=code.astype(np.int32), mask=mask.astype(np.int32),
               values=rng.integers(1, 11, (*shape, 4)).astype(np.float32), flags=np.zeros(shape, np.int32))


def player(env: Env):
    """Compiled: (table, rules, states, acts) -> (states, [reward sum, episodes ended]) over STEPS steps."""

    def one(table, rules, state, act):
        features = env.observe(table, env.knobs, state, act)
        reply = symbolic.respond(rules, symbolic.knobs, features, None)
        new, time_step = env.step(table, env.knobs, state, act, reply, None)
        fresh = env.reset(table, env.knobs, (state.task + 1) % TASKS, None)
        restarted = jax.tree.map(lambda start, going: jnp.where(time_step.done, start, going), fresh, new)
        return restarted, time_step

    def play(table, rules, states, pool):
        def body(states, act):
            states, time_step = jax.vmap(one, (None, None, 0, 0))(table, rules, states, act)
            return states, time_step
        return jax.lax.scan(body, states, pool)

    return jax.jit(play)


def measure(env: Env, tasks, batch: int, repeats: int) -> tuple[float, float, int, float]:
    """(median steps/s, best steps/s, bytes touched per step, episodes ended per step)."""
    rng = np.random.default_rng(0)
    table, rules = jax.device_put((env.table(tasks), compile_rules(env.rules, env.features)))
    pool = jax.device_put(acts(env, batch, rng))
    index = jnp.asarray(rng.integers(0, TASKS, batch), jnp.int32)
    states = jax.vmap(lambda i: env.reset(table, env.knobs, i, None))(index)
    play, seconds = player(env), []
    for _ in range(repeats + 2):  # the first two calls compile and warm up
        start = time.perf_counter()
        states, time_steps = jax.block_until_ready(play(table, rules, states, pool))
        seconds.append(time.perf_counter() - start)
    size = lambda tree, axes: sum(x.nbytes // int(np.prod(x.shape[:axes])) for x in jax.tree.leaves(tree))
    touched = 2 * size(states, 1) + size(pool, 2) + size(table, 1) + size(time_steps, 2)
    rates = [STEPS * batch / s for s in seconds[2:]]
    return statistics.median(rates), max(rates), touched, float(time_steps.done.mean())


def bandwidth(repeats: int) -> float:
    """Bytes per second (read + written) of copying 256 MB."""
    block = jnp.zeros(2**26, jnp.float32)
    copy, seconds = jax.jit(lambda x: x + 1), []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(copy(block))
        seconds.append(time.perf_counter() - start)
    return 2 * block.nbytes / statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16384, help="episodes at once")
    parser.add_argument("--repeats", type=int, default=15, help="timed calls of %d steps" % STEPS)
    chosen = parser.parse_args()
    speed, failed = bandwidth(chosen.repeats), False
    print(f"{jax.devices()[0].platform}, {jax.device_count()} device(s); copy {speed / 1e9:.1f} GB/s; "
          f"batch {chosen.batch}")
    for env, generator in ((function, function_tasks), (intention, intention_tasks)):
        median, best, touched, ended = measure(env, generator.generate("train", TASKS, 0), chosen.batch, chosen.repeats)
        floor = speed / touched
        print(f"{env.name:10s} {median / 1e6:6.2f} M steps/s (best {best / 1e6:.2f}); {touched} bytes a step, "
              f"floor {floor / 1e6:.1f} M steps/s, {100 * median / floor:.1f} % reached; "
              f"{100 * ended:.0f} % of steps end")
        failed |= median < REQUIRED
    if failed:
        raise SystemExit(f"below the required {REQUIRED / 1e6:g} M steps/s")


if __name__ == "__main__":
    main()
