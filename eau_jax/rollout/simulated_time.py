"""An event loop whose clock jumps: sleeping takes no time, and everything happens in the order that it would have."""

import asyncio
import selectors
from typing import Any, Coroutine, TypeVar

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Lets the loop's clock pass where it would wait."""

    def __init__(self, loop: "SimulatedLoop"):
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("everything waits for something that never comes: nothing sleeps and nothing is ready")
        if not found:
            self._loop.now += max(timeout, 0.0)
        return found


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Seconds are simulated ones, from 0. For coroutines that sleep and wait for each other: nothing real is waited for."""

    def __init__(self):
        self.now = 0.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.now


def simulate(coroutine: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """The coroutine's result, and how long it took in simulated seconds.

    Raises:
      RuntimeError: when everything waits and nothing can come.
    """
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        result = runner.run(coroutine)
        return result, runner.get_loop().time()
