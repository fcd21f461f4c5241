"""Groups of episodes that are played while the learner learns, as a `Schedule` says. It knows neither weights nor episodes:
what is played and whose clock runs is the caller's, so that a simulation drives this very code."""

import asyncio
import functools
from typing import Awaitable, Callable, Generic, Mapping, NamedTuple, TypeVar

from eau_jax.rollout.schedule import Schedule

T = TypeVar("T")


class Group(NamedTuple, Generic[T]):
    """A group that was taken."""

    number: int
    results: list[T | None]   # [G]; None: it was given up before this one was over

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return None not in self.results


class Ahead(Generic[T]):
    """Use it inside one event loop."""

    def __init__(self, schedule: Schedule, play: Callable[[int, int], Awaitable[T]], *, group: int, slots: int,
                 straggler_s: float = 0.0, kept: Mapping[int, tuple[int, Mapping[int, T]]] = {},
                 over: Callable[[int, int, T], None] = lambda number, g, result: None):
        """
        Args:
          play: (group, member) -> its result; what it raises is raised by `take`.
          group: G, the members of a group.
          slots: members that are played at a time, in the order of groups.
          straggler_s: seconds after its first member's begin at which a group that is not whole is given up; 0: never.
          kept: {group: (version of its oldest token, {member: result})}, which are not played again.
          over: called with each result.
        """
        self._schedule, self._play, self._group, self._slots = schedule, play, group, slots
        self._straggler_s, self._kept, self._told = straggler_s, kept, over
        self._places = asyncio.Semaphore(slots)
        self._results: dict[int, list[T | None]] = {}
        self._tasks: dict[int, set[asyncio.Task]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._changed, self._error = asyncio.Event(), None
        self._open, self._busy, self._since, self._asked = 0, 0.0, None, None

    def publish(self, version: int) -> None:
        """Weights of this version are there: begins the groups that they admit."""
        loop = asyncio.get_running_loop()
        for number in self._schedule.admit(version):
            oldest, kept = self._kept.get(number, (version, {}))
            self._results[number] = [kept.get(g) for g in range(self._group)]
            if kept:
                self._schedule.begin(number, oldest)
            for g in range(self._group):
                if g not in kept:
                    task = loop.create_task(self._member(number, g))
                    self._tasks.setdefault(number, set()).add(task)
                    task.add_done_callback(functools.partial(self._ended, number))
            self._finish(number)

    async def take(self, step: int) -> list[Group[T]]:
        """The groups that update `step` learns from, once they are over."""
        while True:
            if self._error is not None:
                raise self._error
            chosen = self._schedule.take(step)
            if chosen is not None:
                return [Group(number, self._results.pop(number)) for number in chosen]
            if not self._tasks:
                raise RuntimeError(f"update {step} waits for groups, but none is being played; publish its weights first")
            self._changed.clear()
            await self._changed.wait()

    async def drain(self) -> None:
        """Waits until nothing is being played; nothing begins before the next `publish`."""
        while self._tasks and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Ends what is being played and waits for it."""
        running = [task for tasks in self._tasks.values() for task in tasks]
        for handle in [*self._timers.values(), *running]:
            handle.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def idle(self) -> float:
        """The share of the slots' time, since it was last asked, in which they were empty."""
        self._count(0)
        began, self._asked = self._asked, self._since
        busy, self._busy = self._busy, 0.0
        passed = self._since - began if began is not None else 0.0
        return 1.0 - busy / (passed * self._slots) if passed else 1.0

    async def _member(self, number: int, g: int) -> None:
        async with self._places:
            self._schedule.begin(number)
            if self._straggler_s and number not in self._timers:
                self._timers[number] = asyncio.get_running_loop().call_later(self._straggler_s, self._give_up, number)
            self._count(+1)
            try:
                result = await self._play(number, g)
            finally:
                self._count(-1)
        if number in self._results:   # not given up and taken meanwhile
            self._results[number][g] = result
            self._told(number, g, result)
            self._finish(number)

    def _finish(self, number: int) -> None:
        """Notes a group that has become whole."""
        if None not in self._results[number]:
            if number in self._timers:
                self._timers.pop(number).cancel()
            self._schedule.over(number)
            self._changed.set()

    def _give_up(self, number: int) -> None:
        """The group takes too long: what is not over of it is ended, and it is taken as it is."""
        del self._timers[number]
        for task in self._tasks.get(number, ()):
            task.cancel()
        self._schedule.over(number)
        self._changed.set()

    def _ended(self, number: int, task: asyncio.Task) -> None:
        self._tasks[number].discard(task)
        if not self._tasks[number]:
            del self._tasks[number]
        if not task.cancelled() and task.exception() is not None and self._error is None:
            self._error = task.exception()
        if self._error is not None or not self._tasks:
            self._changed.set()

    def _count(self, change: int) -> None:
        """Adds up how many slots were in use for how long."""
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._asked = self._since = now
        self._busy += self._open * (now - self._since)
        self._open, self._since = self._open + change, now
