"""The embedded sampler: continuous batching over a dense key-value cache that is kept across the turns of an episode.

A session (an episode) lives in one slot of the cache. A request feeds only the tokens of its history that the slot does
not hold yet, so a turn costs its observation and its action. What is held is compared token by token: where a history
differs from it, everything from the first difference on is fed again.

Scheduling is deterministic. A request whose session has a slot starts at once; others follow in the order of arrival as
slots become free. A session that does not ask again within two device calls (its user is slow) loses its slot to one
that waits, and so does the one used longest ago when nothing else can run; it is fed again when it returns. So more
sessions than slots is slower but cannot lock up. What is drawn depends on the history, the seed and the weights, not on
which requests share the batch. Device calls block the event loop; between them the other coroutines run.
"""

import asyncio
import collections
import dataclasses
import itertools
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from eau_jax.core.sharding import ROWS
from eau_jax.models import transformer
from eau_jax.models.config import ModelConfig
from eau_jax.samplers import decode
from eau_jax.samplers.slots import MAX_STOP_IDS, Slots
from eau_jax.samplers.types import Completion, Stop, TokenRequest, check_request

WINDOWS = (64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)
TURNS_OF_THE_LOOP = 8  # how often the event loop runs between device calls, so that answered episodes can ask again


@dataclasses.dataclass(eq=False)
class _Work:
    """A request that waits or runs."""

    request: TokenRequest
    future: asyncio.Future


@dataclasses.dataclass(eq=False)
class _Push:
    """New weights that wait for the requests before them."""

    params: Any
    version: int
    temperature: float
    future: asyncio.Future


class JaxEngine:
    """A `Sampler` that runs the trainer's own forward code.

    `push` gives it weights before the first request. They are held by reference: do not donate them while requests run.
    The cache lives where the weights do, its slots split over the mesh's rows and its heads over `tensor`.
    """

    by_reference = True

    def __init__(self, config: ModelConfig, *, slots: int, length: int, top_p: float = 1.0, top_k: int = 0,
                 steps: int = 16, prefill_rows: int = 16, chunks: tuple[int, ...] = (8, 32, 128),
                 windows: tuple[int, ...] = WINDOWS):
        """
        Args:
          slots: sessions held at once.
          length: longest history in tokens, the action that is being drawn included.
          top_p, top_k: as for `heads.filter_logits`; 1.0 and 0 switch them off.
          steps: tokens drawn per device call; a request waits for a running call to end.
          prefill_rows: sessions fed per device call.
          chunks: sizes in which histories are fed, in tokens per session and call.
          windows: cache positions attended to, rounded up to one of these or to `length`. Feeding uses three of them.

        Raises:
          ValueError: when a size is not positive or top_p or top_k is out of range.
        """
        if not chunks:
            raise ValueError("chunks is empty; it needs at least one size in tokens")
        for name, value in (("slots", slots), ("length", length), ("steps", steps), ("prefill_rows", prefill_rows),
                            *(("chunks", chunk) for chunk in chunks), *(("windows", window) for window in windows)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if not 0.0 < top_p <= 1.0 or top_k < 0:
            raise ValueError(f"top_p is {top_p} and top_k is {top_k}; top_p must lie in (0, 1] and top_k be at least 0")
        self.config, self.length = config, length
        self.steps, self.top_p, self.top_k = steps, float(top_p), int(top_k)
        self.prefill_rows = min(prefill_rows, slots)
        self.chunks = tuple(sorted({min(chunk, length) for chunk in chunks}))
        self.windows = tuple(sorted({*(window for window in windows if window < length), length}))
        self.prefill_windows = tuple(sorted({0, self.windows[(len(self.windows) - 1) // 2], length}))
        self.version = -1
        self._params = self._cache = self._placement = None
        self._temperature = np.float32(1.0)
        self._slots = Slots(slots, length)
        self._running: dict[int, _Work] = {}  # by slot
        self._queue: collections.deque[_Work | _Push] = collections.deque()
        self._driver: asyncio.Task | None = None

    async def generate(self, requests: list[TokenRequest]) -> list[Completion]:
        """One completion per request. An action ends with a stop token, or with stop "length" after `max_new_tokens`
        or when history and action together reach `length`.

        Raises:
          ValueError: for an empty or too long history, a token outside the vocabulary, a session with an open request.
          RuntimeError: before the first `push` and after `close`.
        """
        open_sessions = {work.request.session for work in self._open()}
        for request in requests:
            self._check(request, open_sessions)
            open_sessions.add(request.session)
        works = [_Work(request, asyncio.get_running_loop().create_future()) for request in requests]
        self._enqueue(*works)
        return list(await asyncio.gather(*(work.future for work in works)))

    async def push(self, params: Any, version: int, temperature: float) -> None:
        """Replaces the weights and drops every cached history, after the requests accepted before have finished.

        Raises:
          ValueError: when the temperature is negative or not a number; 0 takes the likeliest token.
        """
        if not 0.0 <= temperature < math.inf:
            raise ValueError(f"temperature is {temperature}; it must be at least 0 and finite")
        item = _Push(params, version, temperature, asyncio.get_running_loop().create_future())
        self._enqueue(item)
        await item.future

    async def release(self, session: str) -> None:
        """Frees the session's slot. A request of it that is still open ends with stop "aborted"."""
        for work in self._open():
            if work.request.session == session:
                self._finish(work, "aborted")
        if session in self._slots.session:
            self._clear(self._slots.session.index(session))

    async def close(self) -> None:
        """Ends every open request with stop "aborted" and lets go of the weights and the cache."""
        for work in self._open():
            self._finish(work, "aborted")
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
            await asyncio.wait([self._driver])
        self._params = self._cache = None

    def warm_up(self) -> None:
        """Compiles everything that later calls use. Cached histories stay as they are.

        Raises:
          RuntimeError: before the first `push`.
        """
        self._check_weights()
        none = np.zeros(self.prefill_rows, np.int32)
        for window, chunk in itertools.product(self.prefill_windows, self.chunks):
            self._run_prefill(none, np.zeros((self.prefill_rows, chunk), np.int32), none, none, window)
        for window in self.windows:
            self._run_decode(np.zeros_like(self._slots.left), window)

    # What is asked for

    def _check_weights(self):
        if self._params is None:
            raise RuntimeError("the sampler has no weights; call push(params, version, temperature) first")

    def _check(self, request: TokenRequest, open_sessions: set[str]):
        if not any(isinstance(item, _Push) for item in self._queue):
            self._check_weights()
        check_request(request, self.length, self.config.vocab_size)
        name = f"session {request.session!r}"
        if len(request.stop_ids) > MAX_STOP_IDS:
            raise ValueError(f"{name}: {len(request.stop_ids)} stop ids; at most {MAX_STOP_IDS} are supported")
        if request.session in open_sessions:
            raise ValueError(f"{name} has an open request already; requests of one session come one after the other")

    def _open(self) -> list[_Work]:
        """Requests that are not answered yet."""
        works = [*self._running.values(), *(item for item in self._queue if isinstance(item, _Work))]
        return [work for work in works if not work.future.done()]

    def _enqueue(self, *items: _Work | _Push):
        self._queue.extend(items)
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not asyncio.get_running_loop():
            self._driver = asyncio.get_running_loop().create_task(self._drive())

    # Scheduling

    async def _drive(self):
        """Serves until nothing is left to do. It lives no longer than that, so each event loop gets its own."""
        try:
            while self._queue or self._open():
                for _ in range(TURNS_OF_THE_LOOP):
                    await asyncio.sleep(0)
                self._abandon()
                self._admit()
                self._prefill()
                self._decode()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _fail(self, error: BaseException):
        """Whoever still waits gets the error. The cache is not trusted after it."""
        items = [*self._running.values(), *self._queue]
        self._queue.clear()
        for slot in range(len(self._slots.session)):
            self._clear(slot)
        self._cache = None
        for item in items:
            if not item.future.done():
                item.future.set_exception(error) if isinstance(error, Exception) else item.future.cancel()

    def _abandon(self):
        """Ends the work that nobody waits for any more: a deadline has passed."""
        for slot in [slot for slot, work in self._running.items() if work.future.done()]:
            del self._running[slot]
            self._slots.rest(slot)

    def _admit(self):
        """Starts what can run of the requests before the first push; that one follows when they are all done."""
        while True:
            ahead = list(itertools.takewhile(lambda item: isinstance(item, _Work), self._queue))
            for work in sorted(ahead, key=lambda work: work.request.session not in self._slots.session):
                if not work.future.done():
                    slot = self._slots.place(work.request.session)
                    if slot is None:
                        break
                    self._slots.start(slot, work.request)
                    self._running[slot] = work
                self._queue.remove(work)
            if not self._queue or isinstance(self._queue[0], _Work) or self._running:
                return
            push = self._queue.popleft()
            if not push.future.done():
                self._replace_weights(push)

    def _replace_weights(self, push: _Push):
        self._placement = placement(self.config, len(self._slots.session), jax.tree.leaves(push.params)[0].sharding)
        # Committed to where they are: weights that are not would be compiled for a second time.
        self._params = jax.tree.map(lambda x: jax.device_put(x, x.sharding), push.params)
        self._temperature, self.version = np.float32(push.temperature), push.version
        self.drop_cache()  # nothing of the old weights may be read again, by value or (a NaN under a mask) by accident
        push.future.set_result(None)

    def drop_cache(self) -> None:
        """Frees the cache's memory until the next request; histories that return are fed again. No request may run."""
        self._slots.held[:] = 0
        self._cache = None

    def _clear(self, slot: int):
        self._running.pop(slot, None)
        self._slots.clear(slot)

    def _finish(self, work: _Work, stop: Stop):
        """Answers a request with what has been drawn for it."""
        tokens, logprobs = np.zeros(0, np.int32), np.zeros(0, np.float32)
        for slot in [slot for slot, running in self._running.items() if running is work]:
            tokens, logprobs = self._slots.action(slot)
            del self._running[slot]
            self._slots.rest(slot)
        if not work.future.done():
            work.future.set_result(Completion(tokens, logprobs, stop, self.version))

    # Device calls

    def _prefill(self):
        """Feeds what the admitted histories lack, all but the last token; longest first, so that like shares a call."""
        table, rows = self._slots, self.prefill_rows
        while (lacking := table.lacking()).any():
            chosen = np.argsort(-lacking, kind="stable")[:min(rows, np.count_nonzero(lacking))]
            chunk = _chunk(int(lacking[chosen[0]]), self.chunks)
            tokens, (slots, start, count) = np.zeros((rows, chunk), np.int32), np.zeros((3, rows), np.int32)
            for row, slot in enumerate(chosen):
                slots[row], start[row], count[row] = slot, table.held[slot], min(lacking[slot], chunk)
                tokens[row, :count[row]] = table.tokens[slot, start[row]:start[row] + count[row]]
            self._run_prefill(slots, tokens, start, count, _round_up(int(start.max()), self.prefill_windows))
            table.held[chosen] += count[:len(chosen)]

    def _decode(self):
        if self._running:
            table = self._slots
            longest = int(table.held[table.left > 0].max())
            drawn = self._run_decode(table.left, _round_up(longest + self.steps - 1, self.windows))
            for slot in table.record(*drawn):
                self._finish(self._running[slot], "end_of_turn" if table.stopped(slot) else "length")

    def _run_prefill(self, slots, tokens, start, count, window: int):
        self._cache = decode.prefill(self._params, self._device_cache(), slots, tokens, start, count,
                                     config=self.config, window=window, placement=self._placement)

    def _run_decode(self, left: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Ends when a quarter of the slots has stopped: their episodes may ask again, and a slot that has stopped costs
        # what a running one does.
        fewest = np.int32(np.count_nonzero(left) * 3 // 4 + 1)
        self._cache, *drawn = decode.decode(
            self._params, self._device_cache(), self._slots.rows(left), self._temperature, fewest, config=self.config,
            window=window, steps=self.steps, top_p=self.top_p, top_k=self.top_k, placement=self._placement)
        return jax.device_get(tuple(drawn))

    def _device_cache(self) -> transformer.KVCache:
        if self._cache is None:
            self._cache = decode.empty_cache(self.config, len(self._slots.session), self.length, self._placement)()
        return self._cache


def _round_up(size: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds `size`; the largest when none does."""
    return next((bucket for bucket in buckets if bucket >= size), buckets[-1])


def _chunk(lacking: int, chunks: tuple[int, ...]) -> int:
    """The size to feed `lacking` tokens in: rounded up where that wastes at most a quarter, else down."""
    up = _round_up(lacking, chunks)
    return up if 4 * lacking >= 3 * up else max((chunk for chunk in chunks if chunk <= lacking), default=up)


def placement(config: ModelConfig, slots: int, weights: Sharding) -> Sharding:
    """Where the cache [L, N, K, ...] lives: beside the weights. An axis that its mesh axes do not divide stays whole."""
    if not isinstance(weights, NamedSharding):
        return weights
    mesh = weights.mesh
    rows = ROWS[0] if slots % math.prod(mesh.shape[axis] for axis in ROWS[0]) == 0 else None
    heads = "tensor" if config.num_kv_heads % mesh.shape["tensor"] == 0 else None
    return NamedSharding(mesh, PartitionSpec(None, rows, heads, None, None))
