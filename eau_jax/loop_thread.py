"""An event loop that goes on while other code runs."""

import asyncio
import threading
from typing import Any, Coroutine, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread. What it runs is asked for from another."""

    def __init__(self):
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="collector", daemon=True)

    def result(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Of a coroutine that runs in the loop."""
        if self._loop is None:
            self._thread.start()
            self._started.wait()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """Ends everything that runs in it."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._stop.wait()
