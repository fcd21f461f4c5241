"""What belongs to one event loop: connections, locks, tasks. Those of another loop cannot be used in this one."""

import asyncio
import weakref
from typing import AsyncIterator, Awaitable, Callable, Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One value for each event loop, made when it is first asked for there.

    Args:
      make: makes the value; it is called inside the loop.
      close: called with the value before its loop closes; None: nothing is to be closed.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]] | None = None):
        self._make, self._close = make, close
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[T, AsyncIterator[None] | None]] = (
            weakref.WeakKeyDictionary())

    async def get(self) -> T:
        """The running loop's value."""
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            value = self._make()
            closer = self._closer(value) if self._close is not None else None   # kept: the loop ends it before it closes
            self._made[loop] = value, closer
            if closer is not None:
                await anext(closer)
        return self._made[loop][0]

    async def _closer(self, value: T) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._close(value)
