"""Requests in flight, a limited number of them."""

import asyncio
import contextlib
import heapq
import itertools
from typing import AsyncIterator


class Places:
    """`count` places. Those who wait get one in the order of arrival, but episodes that have begun go first: the more of
    them are open at a time, the fewer a server's cache still holds when they ask again."""

    def __init__(self, count: int):
        self._free, self._numbers = count, itertools.count()
        self._waiting: list[tuple[bool, int, asyncio.Future]] = []   # a heap

    @contextlib.asynccontextmanager
    async def place(self, begun: bool) -> AsyncIterator[None]:
        """Holds a place."""
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (not begun, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():   # the place came, and at once the one who waited was cancelled
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            turn = heapq.heappop(self._waiting)[-1]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
