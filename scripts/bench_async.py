"""What collecting ahead of the learner is worth where a few episodes take far longer than the others.

    python scripts/bench_async.py                       # simulated: lognormal times whose 99 % quantile is 10 medians
    python scripts/bench_async.py --seconds times.txt   # simulated: recorded times, one episode's seconds a line
    python scripts/bench_async.py --real                # the training loop, its user answering after such times; minutes

The simulation has a clock of its own and neither model nor user, but the loop's own scheduler (`rollout/ahead.py`). Times in
it are multiples of the median episode. A sampler that slows down when more episodes are open is not simulated.
"""

import argparse
import asyncio
import functools
import math
import sys
import tempfile
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np

from eau_jax import train
from eau_jax.config import Config, Evaluation, Learn, Model, Rollout, Tasks
from eau_jax.config_file import replace
from eau_jax.core.part import User, Words
from eau_jax.core.records import read_lines
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.rollout.ahead import Ahead
from eau_jax.rollout.schedule import Schedule
from eau_jax.rollout.simulated_time import simulate
from eau_jax.rollout.template import TINY
from eau_jax.start import new_model
from eau_jax.users.symbolic import symbolic

SIGMA = math.log(10) / 2.3263   # of a lognormal distribution whose 99 % quantile is 10 medians
STALENESS = (0, 1, 2, 4)
CACHE = Path(tempfile.gettempdir()) / "eau_jax_bench_cache"   # of what --real compiles


class Outcome(NamedTuple):
    """Of one simulated run."""

    seconds: float          # in all
    stale: float            # mean staleness of a group's first token
    learner_idle: float     # shares of the time
    slots_idle: float
    dropped: float          # share of the groups


def simulated(staleness: int, seconds: np.ndarray, learn_s: float, slots: int, straggler_s: float = 0.0) -> Outcome:
    """A run of `updates` updates whose episodes take `seconds` [updates, tasks, group]."""
    updates, tasks, group = seconds.shape
    flat = seconds.reshape(updates * tasks, group)

    async def run() -> tuple[float, float, float, float]:
        begun: dict[int, int] = {}
        schedule = Schedule(tasks, staleness, [updates])

        async def play(number: int, g: int) -> float:
            begun.setdefault(number, schedule.version)
            await asyncio.sleep(flat[number, g])
            return flat[number, g]

        pool = Ahead(schedule, play, group=group, slots=slots, straggler_s=straggler_s)
        stale, waited, dropped, loop = [], 0.0, 0, asyncio.get_running_loop()
        for step in range(1, updates + 1):
            pool.publish(step - 1)
            began = loop.time()
            groups = await pool.take(step)
            waited += loop.time() - began
            stale += [step - 1 - begun[one.number] for one in groups]
            dropped += sum(not one.whole for one in groups)
            await asyncio.sleep(learn_s)
        return float(np.mean(stale)), waited, pool.idle(), dropped / len(flat)

    (stale, waited, idle, dropped), total = simulate(run())
    return Outcome(total, stale, waited / total, idle, dropped)


def lognormal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Seconds with median 1."""
    return np.exp(SIGMA * random.standard_normal(shape))


def recorded(path: Path, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Seconds drawn from a file, in multiples of its median."""
    try:
        found = np.array([float(line) for line in path.read_text(encoding="utf-8").split()])
    except (OSError, ValueError) as error:
        sys.exit(f"--seconds {path}: {error}; give a file with one episode's seconds a line")
    if not len(found) or not (np.isfinite(found) & (found > 0)).all():
        sys.exit(f"--seconds {path} has {len(found)} numbers, which must be one or more, each above 0")
    return random.choice(found / np.median(found), shape)


def simulate_all(draw: Callable[..., np.ndarray], settings: argparse.Namespace) -> None:
    """Prints throughput at each staleness against that of taking turns, by means over seeds."""
    shape = settings.updates, settings.tasks, settings.group
    slots = settings.slots or settings.tasks * settings.group
    print(f"{settings.tasks} x {settings.group} episodes an update, {slots} at a time, learning takes {settings.learn_s:g} "
          f"medians, {settings.updates} updates, {settings.seeds} seeds")
    print(f"{'max staleness':>13} {'medians/update':>15} {'throughput':>22} {'staleness':>10} {'learner idle':>13} "
          f"{'slots idle':>11} {'dropped':>8}")
    worlds = [draw(np.random.default_rng([seed, 6]), shape) for seed in range(settings.seeds)]
    in_turn = [simulated(0, world, settings.learn_s, slots).seconds for world in worlds]
    for staleness in STALENESS:
        limit = settings.straggler_s if staleness else 0.0
        found = [simulated(staleness, world, settings.learn_s, slots, limit) for world in worlds]
        gains = [before / one.seconds for before, one in zip(in_turn, found, strict=True)]
        mean = Outcome(*np.mean(found, axis=0))
        print(f"{staleness:>13} {mean.seconds / settings.updates:>15.2f} {np.mean(gains):>8.2f} x ({min(gains):.2f} to "
              f"{max(gains):.2f}) {mean.stale:>7.2f} {mean.learner_idle:>13.0%} {mean.slots_idle:>11.0%} "
              f"{mean.dropped:>8.1%}")


def slow_user(median_s: float) -> User:
    """The symbolic user, who takes a time from the distribution above for his first answer in an episode."""
    return symbolic._replace(name="slow", voice=functools.partial(_slow_voice, median_s))


async def _slow_voice(median_s: float, knobs: object, words: Words) -> tuple[str, str]:
    if len(words.history) == 1:
        await asyncio.sleep(median_s * float(lognormal(np.random.default_rng(words.seed), ())))
    return words.draft, "symbolic"


def small(median_s: float, updates: int) -> Config:
    """A real run whose learner takes a fraction of what its users take."""
    return Config(
        name="bench", env=intention, template=TINY, user=slow_user(median_s),
        tasks=Tasks(generate=intention_tasks.generate, train=64, test=1),
        model=Model(make=new_model, vocab_size=300, d_model=16, num_layers=1, num_heads=2, num_kv_heads=1, d_ff=32),
        rollout=Rollout(tasks=8, group=4, max_tokens=256, max_new_tokens=8, slots=32),
        learn=Learn(steps=updates, rows=8, minibatches=1, chunk=256), eval=Evaluation(samples=1),
        knobs={"env.max_turns": 3})


def real(median_s: float, updates: int, skipped: int = 3) -> None:
    """Prints seconds an update of the training loop, taking turns and running ahead, after the first ones, which compile."""
    before = 0.0
    for staleness in STALENESS[:3]:
        with tempfile.TemporaryDirectory() as root:
            (Path(root) / ".jax_cache").symlink_to(CACHE, target_is_directory=True)
            config = replace(small(median_s, updates), {"root": root, "rollout.max_staleness": staleness})
            train.train(config, "", resume=False)
            run = Path(root) / "bench"
            times = [row for row in read_lines(run / "timings.jsonl") if row["step"] > skipped]
            rows = [row for row in read_lines(run / "metrics.jsonl") if row["step"] > skipped]
        whole = [row["rollout_s"] + row["annotate_s"] + row["update_s"] for row in times]
        took, idle = float(np.mean(whole)), sum(row["rollout_s"] for row in times) / sum(whole)
        before = before or took
        stale = [float(np.mean([row.get(f"rollout/staleness_{name}", 0.0) for row in rows])) for name in ("mean", "max")]
        print(f"max staleness {staleness}: {took:.2f} s an update, {before / took:.2f} x; learner idle {idle:.0%}; "
              f"staleness {stale[0]:.2f} mean, {stale[1]:.0f} at most", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=Path, help="file of recorded episode times")
    parser.add_argument("--real", action="store_true", help="the training loop, with a slow user")
    parser.add_argument("--median-s", type=float, default=0.5, help="of --real: seconds of the median episode")
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--slots", type=int, default=0, help="episodes at a time; 0: a batch")
    parser.add_argument("--learn-s", type=float, default=2.0, help="time of the learner's part of an update, in medians")
    parser.add_argument("--straggler-s", type=float, default=0.0,
                        help="time after which a group is dropped, in medians; 0: never")
    parser.add_argument("--updates", type=int, default=0, help="0: 60 simulated or 12 real ones")
    parser.add_argument("--seeds", type=int, default=3)
    settings = parser.parse_args()
    for name in ("tasks", "group", "seeds"):
        if getattr(settings, name) < 1:
            parser.error(f"--{name} {getattr(settings, name)}; give 1 or more")
    if not (0 <= settings.learn_s < math.inf and 0 <= settings.straggler_s < math.inf and 0 < settings.median_s < math.inf
            and min(settings.slots, settings.updates) >= 0):
        parser.error("times and counts must be 0 or more and finite, the median above 0")
    if settings.real:
        idle = ("seconds", "tasks", "group", "slots", "learn_s", "straggler_s", "seeds")
        given = [name for name in idle if getattr(settings, name) != parser.get_default(name)]
        if given:
            parser.error(f"--{given[0].replace('_', '-')} would do nothing with --real; leave it out")
        CACHE.mkdir(exist_ok=True)
        return real(settings.median_s, max(settings.updates or 12, 4))
    settings.updates = settings.updates or 60
    draw = functools.partial(recorded, settings.seconds) if settings.seconds else lognormal
    simulate_all(draw, settings)


if __name__ == "__main__":
    main()
