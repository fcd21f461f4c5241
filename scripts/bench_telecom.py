"""Telecom's array simulator on this machine: steps per second, and complete episodes per second.

    python scripts/bench_telecom.py [--batch 16384] [--repeats 9]

Steps: BATCH conversations at once under jit(vmap), random acts of every kind from a fixed pool, the default rules of the
user, and a new task wherever a conversation has ended. Episodes: the same, each conversation playing its task's own
workflow from the first message to the user's goodbye (gold calls with the questions and look-ups around them). Figures are
medians over repeats of one compiled call of STEPS steps.

The floor is memory traffic: bytes of state (read and written), act, table row and result of one step, divided by the
bandwidth of a large copy measured in the same process.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax.core.part import Act
from eau_jax.envs.telecom import tasks as telecom_tasks
from eau_jax.envs.telecom.telecom import telecom
from eau_jax.envs.telecom.parse import LOCATION, PHONE
from eau_jax.envs.telecom.records import Call
from eau_jax.envs.telecom.start import gold, padded
from eau_jax.envs.telecom.codes import Do
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

STEPS = 32              # steps of one compiled call
TASKS = 512
STEPS_REQUIRED, EPISODES_REQUIRED = 5e6, 5e4


def random_acts(batch: int, rng: np.random.Generator) -> Act:
    """A pool of acts, leading axes [STEPS, batch]: every code, phone actions most often."""
    shape = (STEPS, batch)
    code = np.where(rng.random(shape) < 0.5, rng.integers(Do.CHECK_STATUS_BAR, Do.BAD_CALL, shape),
                    rng.integers(1, len(Do), shape))
    values = rng.integers(0, 3, (*shape, 4)).astype(np.float32)
    return Act(kind=np.zeros(shape, np.int32), code=code.astype(np.int32), values=values,
               mask=rng.integers(0, 16, shape).astype(np.int32), flags=np.zeros(shape, np.int32))


def workflows(tasks) -> Act:
    """[tasks, longest]: each task's whole conversation; the last act stands on."""
    scripts = []
    for task in tasks:
        calls = gold(task.data)
        hopeless = any(call.code == Do.TRANSFER_TO_HUMAN_AGENTS for call in calls)
        end = Call(Do.ANNOUNCE) if hopeless else Call(Do.ASK_SOLVED)
        begin = (Call(Do.ASK), Call(Do.GET_CUSTOMER_BY_PHONE), Call(Do.CHECK_NETWORK_STATUS), Call(Do.ASK))
        scripts.append([*begin, *calls, end])
    longest = max(map(len, scripts))
    code, a, b, c, amount = padded([[*script, *[script[-1]] * (longest - len(script))] for script in scripts])
    mask = np.zeros_like(code)
    mask[:, 0], mask[:, 3] = PHONE, LOCATION
    return Act(kind=np.zeros_like(code), code=code, mask=mask, flags=np.zeros_like(code),
               values=np.stack([a, b, c, amount], -1).astype(np.float32))


def player(pick):
    """Compiled: (table, knobs, rules, states, acts) -> (states, [solved, ended]) over STEPS steps; `pick` chooses an act."""

    def one(table, knobs, rules, state, act):
        features = telecom.observe(table, knobs, state, act)
        reply = symbolic.respond(rules, symbolic.knobs, features, None)
        new, time_step = telecom.step(table, knobs, state, act, reply, None)
        fresh = telecom.reset(table, knobs, (state.task + 1) % TASKS, None)
        restarted = jax.tree.map(lambda start, going: jnp.where(time_step.done, start, going), fresh, new)
        return restarted, time_step

    def play(table, knobs, rules, states, acts):
        def body(states, t):
            return jax.vmap(one, (None, None, None, 0, 0))(table, knobs, rules, states, pick(acts, states, t))
        return jax.lax.scan(body, states, jnp.arange(STEPS))

    return jax.jit(play)


def measure(pick, acts: Act, table, knobs, rules, batch: int, repeats: int):
    """(median seconds of a call, last time steps, states)."""
    index = jnp.arange(batch, dtype=jnp.int32) % TASKS
    states = jax.vmap(lambda i: telecom.reset(table, knobs, i, None))(index)
    play, seconds = player(pick), []
    for _ in range(repeats + 2):  # the first two calls compile and warm up
        start = time.perf_counter()
        states, time_steps = jax.block_until_ready(play(table, knobs, rules, states, acts))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:]), time_steps, states


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
    parser.add_argument("--batch", type=int, default=16384, help="conversations at once")
    parser.add_argument("--repeats", type=int, default=9, help="timed calls of %d steps" % STEPS)
    chosen = parser.parse_args()
    speed = bandwidth(chosen.repeats)
    tasks = telecom_tasks.generate("train", TASKS, 0)
    table, knobs, rules = jax.device_put(
        (telecom.table(tasks), telecom.knobs, compile_rules(telecom.rules, telecom.features)))
    print(f"{jax.devices()[0].platform}, {jax.device_count()} device(s); copy {speed / 1e9:.1f} GB/s; batch {chosen.batch}")

    pool = jax.device_put(random_acts(chosen.batch, np.random.default_rng(0)))
    seconds, steps, states = measure(lambda acts, states, t: jax.tree.map(lambda x: x[t], acts), pool, table, knobs, rules,
                                     chosen.batch, chosen.repeats)
    size = lambda tree, axes: sum(x.nbytes // int(np.prod(x.shape[:axes])) for x in jax.tree.leaves(tree))
    touched = 2 * size(states, 1) + size(pool, 2) + size(table, 1) + size(steps, 2)
    rate, floor = STEPS * chosen.batch / seconds, speed / touched
    print(f"steps     {rate / 1e6:6.2f} M/s (required {STEPS_REQUIRED / 1e6:g}); {touched} bytes a step, floor "
          f"{floor / 1e6:.1f} M/s, {100 * rate / floor:.1f} % reached; {100 * float(steps.done.mean()):.0f} % of steps end")

    script = jax.device_put(workflows(tasks))
    longest = script.code.shape[1]
    follow = lambda acts, states, t: jax.tree.map(lambda x: x[states.task, jnp.minimum(states.turn, longest - 1)], acts)
    seconds, steps, _ = measure(follow, script, table, knobs, rules, chosen.batch, chosen.repeats)
    ended, solved = float(steps.done.sum()), float(steps.success.sum())
    episodes = ended / seconds
    print(f"episodes  {episodes / 1e3:6.0f} k/s (required {EPISODES_REQUIRED / 1e3:g}); {STEPS * chosen.batch / ended:.1f} "
          f"messages each, {100 * solved / ended:.1f} % solved")
    if rate < STEPS_REQUIRED or episodes < EPISODES_REQUIRED:
        raise SystemExit("below what is required")
    print("the bar is met")


if __name__ == "__main__":
    main()
