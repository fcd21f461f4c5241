"""Calls of chat models for code that is no coroutine: several at once, recorded, within a budget.

    calls.jsonl   a line a call: {"key", "role", "model", "text", "finish", "tokens": [read, written]}, or for one that
                  failed {"key", "role", "model", "failed": "server" | "deadline" | "context", "detail"}

The key is a SHA-256 of the client's identity (what its words depend on), the messages and the number of the sample. What has
been recorded is never asked again, so that a recorded run can be done once more without any server. Keys of servers are in
neither.
"""

import asyncio
import concurrent.futures
import hashlib
import json
import threading
from pathlib import Path
from typing import Any, Callable, Coroutine, Iterable, Mapping, NamedTuple, Protocol, TypeVar

from eau_jax.clients.answer import whole
from eau_jax.core.records import RunFolder, RunFolderError, check, read_lines
from eau_jax.core.types import ContextFull, InfraError, Said

FILE = "calls.jsonl"
PATIENCE = 20            # calls of one client that fail one after the other, until its server is taken to be gone
LETTERS = 4              # characters of a token, where nobody has counted
LONGEST = 128            # characters of the longest tokens: an answer that has more for each of its tokens is none
_LINE = {"key": str, "role": str, "model": str}
_ANSWER, _FAILURE = {"text": str, "finish": str, "tokens": [int]}, {"failed": str, "detail": str}
Line = Mapping[str, Any]
T, R = TypeVar("T"), TypeVar("R")


class Client(Protocol):
    """What is needed of `clients.chat.ChatClient`."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """JSON values, "model" among them; "service": what may change meanwhile; "max_tokens": that it writes at most."""
        ...

    async def complete(self, messages: list[dict[str, str]]) -> str: ...


class Stopped(Exception):
    """No further call is made: the budget is spent, or a server is gone. What was answered is recorded."""


class Budget(NamedTuple):
    """What all recorded calls together may take."""

    max_tokens: int                # read and written
    max_usd: float                 # 0: no limit
    prices: Mapping[str, tuple[float, float]]   # model -> USD for a million tokens that it reads, that it writes

    def usd(self, model: str, tokens: tuple[int, int]) -> float:
        """What a call costs."""
        return sum(price * count for price, count in zip(self.prices.get(model, (0.0, 0.0)), tokens)) / 1e6


class Calls:
    """Use as a context manager; the calls run in a thread with an event loop of its own.

    Python that waits for a call lets others work meanwhile, and nobody else: of the functions that `together` runs one works
    at a time.

    Args:
      place: a folder that this process holds; calls are added to FILE there.
      replay: a file of calls that were recorded; no server is asked then.
      concurrency: functions that `together` runs at once.
      deadline_s: seconds for one call, its client's retries included.
      at: called with what has been spent of `budget.max_tokens`.

    Raises:
      RunFolderError: for a file of calls that is broken; it names the line.
    """

    def __init__(self, place: RunFolder, budget: Budget, *, replay: str = "", concurrency: int = 8,
                 deadline_s: float = 600.0, at: Callable[[int, int], None] = lambda spent, most: None):
        self._place, self._budget, self._deadline_s, self._at = place, budget, deadline_s, at
        self._replay, self._concurrency = replay, concurrency
        path = Path(replay) if replay else place.path / FILE
        self._known = _recorded(path) if replay or path.is_file() else {}
        self.tokens, self.usd = 0, 0.0
        for line in self._known.values():
            self._pay(line)
        self._failures: list[Line] = []
        self._asking: dict[str, asyncio.Task[Line]] = {}
        self._failed_in_a_row: dict[tuple[str, str], int] = {}
        self._reserved: dict[str, tuple[int, float]] = {}    # key of a call in flight -> what it takes at most
        self._freed, self._stop = asyncio.Event(), ""
        self._baton = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="calls", daemon=True)

    def __enter__(self) -> "Calls":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def together(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """The results of `work`, in the order of the items. After a failure nothing further is begun."""
        def one(item: T) -> R:
            with self._baton:
                return work(item)

        with concurrent.futures.ThreadPoolExecutor(self._concurrency) as pool:
            futures = [pool.submit(one, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException as error:
                for future in futures:
                    future.cancel()
                if not isinstance(error, Stopped):      # else calls in flight are paid for, and are waited for
                    self._wait(self._cancel())
                raise

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """The result of a coroutine that asks; for functions that `together` runs."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._baton.release()
        try:
            return future.result()
        finally:
            self._baton.acquire()

    def commit(self) -> None:
        """Records the failed calls since the last time, since what was made with them is about to be kept. Without it they
        are asked again by whoever goes on."""
        if not self._replay:
            for line in self._failures:
                self._place.append(FILE, line)
        self._failures.clear()

    async def answer(self, client: Client, role: str, sample: int, messages: list[dict[str, str]]) -> tuple[str, Line]:
        """(key, line) of a call; equal calls are made once."""
        fixed = {name: value for name, value in client.identity.items() if name != "service"}
        key = _key([fixed, messages, sample])
        if key not in self._known:
            if self._replay:
                raise RunFolderError(f"{self._replay} holds no answer to a call of the {role} ({client.identity['model']}): "
                                     "it was recorded with another plan, other models or other code, or not to its end; "
                                     "leave llm.replay out to ask the server")
            if key not in self._asking:
                task = self._asking[key] = asyncio.create_task(self._ask(key, client, role, messages))
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.shield(self._asking[key])
        return key, self._known[key]

    async def _ask(self, key: str, client: Client, role: str, messages: list[dict[str, str]]) -> None:
        model = str(client.identity["model"])
        await self._reserve(key, model, _estimate(messages), client.identity.get("max_tokens", 0))
        line = {"key": key, "role": role, "model": model}
        try:
            async with asyncio.timeout(self._deadline_s):
                said = await client.complete(messages)
            said = said if isinstance(said, Said) else Said(said)
            if len(said) > LONGEST * (most := client.identity.get("max_tokens", len(said))):
                raise InfraError(f"an answer of {len(said):,} characters, which {most} tokens cannot hold")
            tokens = said.tokens or (_estimate(messages), _length(said))
            line |= {"text": whole(said), "finish": said.finish, "tokens": list(tokens)}
        except TimeoutError:
            line |= {"failed": "deadline", "detail": f"no answer within llm.deadline_s = {self._deadline_s:g} s"}
        except InfraError as error:
            line |= {"failed": "context" if isinstance(error, ContextFull) else "server", "detail": whole(str(error))}
        finally:
            del self._reserved[key], self._asking[key]
            self._freed.set()
        self._keep(line)

    def _keep(self, line: Line) -> None:
        who, failed = (line["role"], line["model"]), line.get("failed")
        self._failed_in_a_row[who] = self._failed_in_a_row.get(who, 0) + 1 if failed else 0
        if self._failed_in_a_row[who] >= PATIENCE:
            self._stop = self._stop or (f"{PATIENCE} calls of the {who[0]} failed one after the other; once they succeed, "
                                        f"the same command goes on. The last: {line['detail']}")
            raise Stopped(self._stop)
        if failed:
            self._failures.append(line)
        else:
            self._place.append(FILE, line)
            self._pay(line)
            self._at(self.tokens, self._budget.max_tokens)
        self._known[line["key"]] = line

    async def _reserve(self, key: str, model: str, reads: int, writes: int) -> None:
        """Waits until the call, and those in flight, fit into the budget whatever they take."""
        needs = reads + writes, self._budget.usd(model, (reads, writes))
        while True:
            if self._stop:
                raise Stopped(self._stop)
            held = [sum(each) for each in zip(*self._reserved.values(), (0, 0.0))]
            over = self._over(self.tokens + held[0] + needs[0], self.usd + held[1] + needs[1])
            if not over:
                self._reserved[key] = needs
                return
            if not self._reserved:
                self._stop = over
                self._freed.set()
                continue
            self._freed.clear()
            await self._freed.wait()

    def _over(self, tokens: int, usd: float) -> str:
        if tokens > self._budget.max_tokens:
            return (f"the next call might exceed llm.max_tokens = {self._budget.max_tokens:,}; spent are {self.tokens:,}. "
                    "Raise it, and the same command goes on")
        if self._budget.max_usd and usd > self._budget.max_usd:
            return (f"the next call might exceed llm.max_usd = {self._budget.max_usd:g}; spent are {self.usd:.2f}. Raise "
                    "it, and the same command goes on")
        return ""

    def _pay(self, line: Line) -> None:
        tokens = tuple(line.get("tokens", (0, 0)))
        self.tokens += sum(tokens)
        self.usd += self._budget.usd(line["model"], tokens)

    def _wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _cancel(self) -> None:
        self._stop = self._stop or "the run was stopped"
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _close(self) -> None:
        await self._cancel()
        await self._loop.shutdown_asyncgens()


class Recorded:
    """A client whose calls are recorded.

    Args:
      sample: tells calls with the same messages apart.
    """

    def __init__(self, calls: Calls, client: Client, role: str, sample: int = 0):
        self._calls, self._client, self._role, self._sample = calls, client, role, sample
        self.made: list[str] = []                # keys, in order
        self.read = self.written = 0             # tokens
        self.failed = ""                         # of the last call: "server", "deadline" or "context"; "" where it succeeded

    @property
    def identity(self) -> Mapping[str, Any]:
        """That of the client."""
        return self._client.identity

    async def complete(self, messages: list[dict[str, str]]) -> Said:
        """The model's words, or those that were recorded.

        Raises:
          ContextFull, InfraError: the call failed, now or when it was recorded.
          Stopped: no further calls are made.
        """
        key, line = await self._calls.answer(self._client, self._role, self._sample, messages)
        self.made.append(key)
        self.failed = line.get("failed", "")
        if self.failed:
            raise (ContextFull if line["failed"] == "context" else InfraError)(line["detail"])
        self.read, self.written = self.read + line["tokens"][0], self.written + line["tokens"][1]
        return Said(line["text"], line["finish"], tuple(line["tokens"]))


def _recorded(path: Path) -> dict[str, Line]:
    """The calls in a file by their keys; the first of several equal ones."""
    if not path.is_file():
        raise RunFolderError(f"llm.replay = {str(path)!r}: no such file; give the {FILE} of a recorded run, which is in "
                             "its folder")
    known: dict[str, Line] = {}
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}, line {number}"
        check(line, _LINE | (_FAILURE if "failed" in line else _ANSWER), where)
        if "failed" not in line and len(line["tokens"]) != 2:
            raise RunFolderError(f"{where}: tokens are [read, written], found {line['tokens']}; restore the file from a "
                                 "copy")
        known.setdefault(line["key"], line)
    return known


def _key(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def _length(text: str) -> int:
    """Tokens of a text, about."""
    return -(-len(text) // LETTERS)


def _estimate(messages: list[dict[str, str]]) -> int:
    return sum(_length(message["content"]) + LETTERS for message in messages)
