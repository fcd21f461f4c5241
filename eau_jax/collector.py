"""Where an update's batch comes from. Either collection and learning take turns, or collection runs ahead in a thread of its
own and an update takes what is over.

Both give the same `Batch`. Running ahead, bits depend on how long episodes and updates take, so no two runs are the same;
what is counted is exact all the same.
"""

import functools
import time
from typing import Any, Coroutine, Mapping, Protocol, Sequence, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax.assemble import Parts, drawer
from eau_jax.config import Config, ConfigError
from eau_jax.core.records import RunFolder
from eau_jax.core.types import Episode, InfraError, StopReason, Task
from eau_jax.journal import Generation, following
from eau_jax.learner.parts import LearnerState
from eau_jax.learner.state import policy_weights
from eau_jax.loop_thread import LoopThread
from eau_jax.progress import Watch
from eau_jax.rollout import kept as store
from eau_jax.rollout.agent import policy
from eau_jax.rollout.ahead import Ahead, Group
from eau_jax.rollout.collect import Groups, collect, play_one, run, staleness, statistics
from eau_jax.rollout.refill import Batch, fill
from eau_jax.rollout.schedule import Schedule
from eau_jax.rollout.seeds import episode_seed

T = TypeVar("T")


class NothingCollectedError(InfraError):
    """Every episode of a batch failed outside the agent's control."""


def dropped(groups: Groups, watch: Watch) -> None:
    """Says how many episodes were dropped and why.

    Raises:
      NothingCollectedError: when all of them were; there is nothing to learn from or to score.
    """
    failed = [episode.error for group in groups for episode in group if not episode.stop.usable]
    total = sum(map(len, groups))
    if failed:
        watch.say(f"{len(failed)} of {total} episodes dropped, the first because: {failed[0]}")
    if len(failed) == total:
        raise NothingCollectedError(f"all {total} episodes failed outside the agent's control, the first because: "
                                    f"{failed[0]}. Check the server, or raise rollout.deadline_s, or rollout.straggler_s "
                                    f"where that was too short; then continue with --resume")


class Collector(Protocol):
    """What the loop asks for."""

    def begin(self, step: int, generation: Generation, kept: Mapping[str, Any]) -> None:
        """The run goes on after update `step`, under this generation, with what `host` gave to its checkpoint."""

    def batch(self, step: int, state: LearnerState, generation: Generation) -> Batch:
        """What update `step` learns from."""

    def alone(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that has the sampler for itself."""

    def times(self) -> dict[str, float]:
        """How busy the collector was since it was last asked, for the record of times."""

    def host(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, JSON values."""

    def saved(self) -> None:
        """A checkpoint holds what `host` gave."""

    def close(self) -> None:
        """Ends what is being played."""


def collector(parts: Parts, folder: RunFolder, watch: Watch) -> Collector:
    """The one that the config asks for.

    Raises:
      ConfigError: where several processes would have to run ahead.
    """
    if not parts.config.rollout.max_staleness:
        return InTurn(parts, watch)
    if jax.process_count() > 1:
        raise ConfigError(f"rollout.max_staleness = {parts.config.rollout.max_staleness}, but this run has "
                          f"{jax.process_count()} processes, which must do everything in the same order; set it to 0, or "
                          f"use one process")
    return RunsAhead(parts, folder, watch)


class InTurn:
    """Collection and learning take turns: every token is drawn by the weights that learn from it."""

    def __init__(self, parts: Parts, watch: Watch):
        self._parts, self._watch = parts, watch

    def batch(self, step: int, state: LearnerState, generation: Generation) -> Batch:
        parts, config = self._parts, self._parts.config

        async def play(rows: Sequence[int]) -> tuple[Groups, dict[str, float]]:
            return await collect(parts.train, policy(parts.engine), parts.chat, generation.pinned(config.env), parts.budgets,
                                 indices=rows, group_size=config.rollout.group, run_seed=config.seed, step=step,
                                 retries=config.rollout.infra_retries, concurrency=config.rollout.slots,
                                 progress=lambda done, total: self._watch.at("episodes", done, total))

        async def roll_out() -> Batch:
            await parts.engine.push(policy_weights(state), step - 1, temperature(generation))
            return await fill(play, drawer(parts, generation, step), config.algorithm.keep_groups, config.rollout.tasks,
                              config.rollout.refill)

        batch = run(roll_out())
        parts.engine.drop_cache()  # its memory is the learner's until the next batch
        return batch

    def begin(self, step: int, generation: Generation, kept: Mapping[str, Any]) -> None:
        """Every update begins from nothing."""

    def alone(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run(coroutine)

    def times(self) -> dict[str, float]:
        return {}

    def host(self) -> dict[str, Any]:
        return {}

    def saved(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing runs."""


class RunsAhead:
    """Collection runs up to `rollout.max_staleness` updates ahead, in a thread whose event loop everything shares that talks
    to the sampler. An episode is drawn for an update: its task, seeds, knobs and rules are those that it would have in a run
    that takes turns, whichever update learns from it."""

    def __init__(self, parts: Parts, folder: RunFolder, watch: Watch):
        self._parts, self._folder, self._watch = parts, folder, watch
        self._again: dict[tuple[int, int], int] = {}   # {(group, member): times it was played again}
        self._generations: list[Generation] = []       # of the updates from the one on that the run goes on after
        self._step = 0                                 # that update
        self._rows = functools.cache(self._drawn)
        self._pinned = functools.cache(lambda cohort: self._generation(cohort).pinned(parts.config.env))
        self._loop = LoopThread()
        self._waited, self._asked = 0.0, time.perf_counter()

    def begin(self, step: int, generation: Generation, kept: Mapping[str, Any]) -> None:
        config = self._parts.config
        rollout, last = config.rollout, max(updates(config), step)
        changes = {swap.step - 1 for swap in config.swaps if step < swap.step <= last}
        self._step, self._generations = step, [generation]
        self._schedule = Schedule(rollout.tasks, rollout.max_staleness, sorted({*changes, last}), step=step,
                                  taken=kept.get("taken", ()))
        self._pool = Ahead(self._schedule, self._play, group=rollout.group, slots=rollout.slots,
                           straggler_s=rollout.straggler_s, kept=self._load(), over=self._over)

    def batch(self, step: int, state: LearnerState, generation: Generation) -> Batch:
        if self._parts.engine.by_reference:   # the update that comes gives the memory of these weights away
            state = state.replace(policy=state.policy.replace(params=jax.tree.map(jnp.copy, state.policy.params)))

        async def take() -> list[Group[Episode]]:
            await self._parts.engine.push(policy_weights(state), step - 1, temperature(generation))
            self._pool.publish(step - 1)
            return await self._pool.take(step)

        began = time.perf_counter()
        taken = self._loop.result(take())
        self._waited += time.perf_counter() - began
        return self._batch(step, taken)

    def _batch(self, step: int, taken: list[Group[Episode]]) -> Batch:
        config = self._parts.config
        collected = [[self._given_up(group.number, g) if episode is None else episode
                      for g, episode in enumerate(group.results)] for group in taken]
        chosen = config.algorithm.keep_groups(collected) & np.array([group.whole for group in taken])
        kept = [group if keep else [] for group, keep in zip(collected, chosen, strict=True)]
        again = sum(self._again.pop((group.number, g), 0) for group in taken for g in range(config.rollout.group))
        stragglers = sum(not group.whole for group in taken)
        return Batch(collected, kept, statistics(collected) | staleness(collected, step) | {
            "rollout/infra_retries": float(again), "rollout/refill_rounds": 0.0,
            "rollout/kept_groups": float(chosen.sum()), "rollout/dropped_groups": float((~chosen).sum()),
            "rollout/straggler_groups": float(stragglers),
            "rollout/carried_groups": float(sum(self._schedule.cohort(group.number) < step for group in taken))})

    def alone(self, coroutine: Coroutine[Any, Any, T]) -> T:
        async def drained() -> T:
            await self._pool.drain()
            return await coroutine

        return self._loop.result(drained())

    def times(self) -> dict[str, float]:
        async def idle() -> float:
            return self._pool.idle()

        now = time.perf_counter()
        shares = {"learner_idle": self._waited / (now - self._asked), "collector_idle": self._loop.result(idle())}
        self._waited, self._asked = 0.0, now
        return shares

    def host(self) -> dict[str, Any]:
        return {"ahead": {"taken": self._schedule.ahead}}

    def saved(self) -> None:
        store.forget(self._folder, self._schedule.cohort(self._schedule.first))

    def close(self) -> None:
        self._loop.close()

    # One episode

    async def _play(self, number: int, g: int) -> Episode:
        parts, cohort = self._parts, self._schedule.cohort(number)
        episode, self._again[number, g] = await play_one(
            parts.train, policy(parts.engine), parts.chat, self._pinned(cohort), parts.budgets, index=self._row(number), g=g,
            run_seed=parts.config.seed, step=cohort, retries=parts.config.rollout.infra_retries)
        return episode

    def _over(self, number: int, g: int, episode: Episode) -> None:
        if episode.stop.usable:
            again = self._again[number, g]
            store.keep(self._folder, self._schedule.cohort(number), store.Kept(number, g, episode, again))

    def _given_up(self, number: int, g: int) -> Episode:
        """Stands for an episode that was not over when its group was given up."""
        parts, cohort, row = self._parts, self._schedule.cohort(number), self._row(number)
        return Episode(task=parts.train.tasks[row], seed=episode_seed(parts.config.seed, cohort, row, g), turns=(),
                       final=np.zeros(0, np.int32), stop=StopReason.INFRA_ERROR, score=float("nan"), success=False,
                       generation=self._generation(cohort).number, user=parts.train.user.name,
                       error=f"its group took longer than rollout.straggler_s = {parts.config.rollout.straggler_s:g} s")

    def _generation(self, cohort: int) -> Generation:
        """Under which a cohort is played: that of the update that it was drawn for. What was carried over from before the
        run went on has the generation of then: a change waits until nothing of before it is left."""
        while len(self._generations) <= cohort - self._step:
            step = self._step + len(self._generations)
            newest = self._generations[-1]
            self._generations.append([newest, *following(newest, self._parts.config, step)][-1])
        return self._generations[max(cohort - self._step, 0)]

    def _row(self, number: int) -> int:
        """The group's task, as a row of the table."""
        return self._rows(self._schedule.cohort(number))[number % self._schedule.places]

    def _drawn(self, cohort: int) -> list[int]:
        parts = self._parts
        return list(drawer(parts, self._generation(cohort), cohort)(0, parts.config.rollout.tasks, ()))

    def _load(self) -> dict[int, tuple[int, dict[int, Episode]]]:
        """What was over before the run was stopped, as `Ahead` takes it."""
        group, step = self._parts.config.rollout.group, self._step

        def task(number: int, id: str) -> Task | None:
            if number < self._schedule.first or self._schedule.cohort(number) > updates(self._parts.config):
                return None
            found = self._parts.train.tasks[self._row(number)]
            return found if found.id == id else None

        wanted = lambda one: (one.newest <= step and one.g < group and one.number not in self._schedule.ahead
                              and one.oldest + self._schedule.max_staleness >= step)
        out: dict[int, tuple[int, dict[int, Episode]]] = {}
        for one in store.load(self._folder, task, wanted):
            oldest, members = out.get(one.number, (one.oldest, {}))
            out[one.number] = min(oldest, one.oldest), members | {one.g: one.episode}
            self._again[one.number, one.g] = one.again
        if out:
            self._watch.say(f"{sum(len(members) for _, members in out.values())} episodes were over when the run stopped, "
                            f"and are not played again")
        return out


def updates(config: Config) -> int:
    """The updates that a run makes, as long as it is asked for."""
    batch, episodes = config.rollout.tasks * config.rollout.group, config.learn.episodes
    return min(config.learn.steps, episodes // batch) if episodes else config.learn.steps


def temperature(generation: Generation) -> float:
    """At which the policy's tokens are drawn."""
    return float(generation.knobs["rl"]["sampler"].temperature)
