"""The servers of an SGLang sampler: which one an episode lives on, the same weights on all of them, what to do when one
fails."""

import asyncio
import dataclasses
import time
import warnings
from pathlib import Path
from typing import Sequence

from eau_jax.clients.per_loop import PerLoop
from eau_jax.clients.server import ServerError, ServerProcess
from eau_jax.clients.sglang_http import CallError, Capabilities, Connection, probe, weight_version
from eau_jax.core.types import InfraError

TRIES = 3          # of a push on one server whose answers fail in passing
AGAIN_S = 0.5      # seconds before that
REST_S = 1.0       # a server that has failed gets no new episode for so long; doubled with each failure, up to a minute
HEALTH_S = 20.0    # a local server that runs but does not answer for so long is restarted
RESTARTS = 5       # of a local server between two pushes


class PushError(InfraError):
    """A server does not hold the weights it was given. It stays paused where it can be, and draws nothing for us."""


@dataclasses.dataclass(eq=False)
class Server:
    """One server, a process of ours where `process` is there."""

    connection: Connection | None
    process: ServerProcess | None = None
    capabilities: Capabilities | None = None
    rests_until: float = 0.0    # time.monotonic()
    failures: int = 0           # since it last answered
    doubtful: bool = False      # it failed: whether it is there and holds our weights is to be seen
    restarts: int = 0           # since the last push
    sessions: int = 0           # episodes that live on it
    mending: asyncio.Task | None = None
    locks: PerLoop[asyncio.Lock] = dataclasses.field(default_factory=lambda: PerLoop(asyncio.Lock))

    @property
    def name(self) -> str:
        return self.connection.url if self.connection is not None else "local server"


class Fleet:
    """Servers that hold the same weights.

    Args:
      servers: those that hold weights.
      router: what generation goes through instead, by its own choice of server; None: it goes to the servers.
      length: longest history in tokens, the action included.
      key_variable: see `Connection`; push_s: seconds that a push may take.
    """

    def __init__(self, servers: Sequence[Server], router: Connection | None, *, length: int, key_variable: str,
                 push_s: float):
        self.servers, self._router = list(servers), Server(router) if router is not None else None
        self._length, self._key_variable, self._push_s = length, key_variable, push_s
        self._homes: dict[str, Server] = {}
        self._folder, self._label = Path(), ""
        self.restarts = 0      # of local servers, in all

    # Where an episode lives

    async def home(self, session: str) -> Server:
        """The server of the session: the same one as long as it answers. Weights that it may have lost are given back first.

        Raises:
          CallError, PushError, ServerError: when it is not to be used.
        """
        if self._router is not None:
            looked_at = [server for server in self.servers if not _rests(server)] or self.servers
            results = await asyncio.gather(*(self._mend(server) for server in looked_at), return_exceptions=True)
            wrong = [result for result in results if isinstance(result, BaseException)]
            for error in wrong:
                if not isinstance(error, InfraError) or len(wrong) == len(results):
                    raise error
            return self._router   # which passes by the servers that do not answer
        home = self._homes.get(session)
        rested = [server for server in self.servers if not _rests(server)]
        if home is None or rested and home not in rested:
            self.forget(session)
            home = min(rested or self.servers, key=lambda server: server.sessions)
            self._homes[session] = home
            home.sessions += 1
        await self._mend(home)
        return home

    def forget(self, session: str) -> None:
        """The session needs no server any more."""
        home = self._homes.pop(session, None)
        if home is not None:
            home.sessions -= 1

    def failed(self, server: Server) -> None:
        """A call failed in passing: whoever can goes elsewhere, and the server is looked at before it is used again. All
        that fails while it rests already is one failure."""
        now = time.monotonic()
        for one in self.servers if server is self._router else [server]:
            if one.rests_until <= now:
                one.rests_until, one.failures = now + REST_S * 2 ** min(one.failures, 6), one.failures + 1
            one.doubtful = True

    def answered(self, server: Server) -> None:
        """A call went through."""
        server.failures, server.rests_until = 0, 0.0

    async def _mend(self, server: Server) -> None:
        """A server that has failed is looked at, and brought back where that is needed. Whoever waits may give up waiting: a
        start that has begun goes on."""
        if _sound(server):
            return
        if server.mending is None or server.mending.done():
            server.mending = asyncio.ensure_future(self._mend_now(server))
            server.mending.add_done_callback(lambda task: task.cancelled() or task.exception())   # it has been looked at
        await asyncio.shield(server.mending)

    async def _mend_now(self, server: Server) -> None:
        try:
            async with await server.locks.get():
                if server.process is not None:
                    if not server.process.running() or not await asyncio.to_thread(server.process.healthy, HEALTH_S):
                        await self._restart(server)
                elif await self._holds(server) not in (None, self._label):
                    await self._update(server)
                server.doubtful = False
        except InfraError:
            self.failed(server)
            raise

    async def _restart(self, server: Server) -> None:
        if server.restarts >= RESTARTS:
            raise ServerError(f"{server.name}: the local server went down {RESTARTS} times since the last push and is not "
                              f"started again: {server.process.last_words()}")
        server.restarts, self.restarts = server.restarts + 1, self.restarts + 1
        await self._start(server)

    # Weights

    async def push(self, label: str, folder: Path) -> None:
        """All servers get the weights of `folder` under the version `label`; those that are not there yet are started.

        Raises:
          PushError: names each server that does not hold them.
        """
        self._label, self._folder = label, folder
        results = await asyncio.gather(*(self._load(server) for server in self.servers), return_exceptions=True)
        wrong = [result for result in results if isinstance(result, BaseException)]
        for error in wrong:
            if not isinstance(error, (InfraError, TimeoutError)):
                raise error
        if wrong:
            said = "; ".join(str(error) or f"no end after push_s = {self._push_s:g} s" for error in wrong)
            raise PushError(f"{len(wrong)} of {len(self.servers)} servers did not take the weights {label}: {said}")

    async def _load(self, server: Server) -> None:
        async with asyncio.timeout(self._push_s), await server.locks.get():
            server.restarts, server.doubtful = 0, False
            if server.process is None:
                return await self._update(server)
            if server.process.running():
                try:
                    return await self._update(server)
                except InfraError as error:
                    warnings.warn(f"a push failed, so the local server is started again: {error}", stacklevel=2)
            await self._start(server)

    async def _start(self, server: Server) -> None:
        await asyncio.to_thread(server.process.start, self._folder, self._label)
        server.connection = Connection(server.process.url, self._key_variable)
        server.capabilities = None
        await self._look(server)
        if await self._holds(server) not in (None, self._label):
            raise PushError(f"{server.name} was started with the weights {self._label} and says that it holds others")

    async def _update(self, server: Server) -> None:
        """Pauses the server, which ends its open requests, lets it read the weights, checks them, and lets it go on."""
        for attempt in range(TRIES):
            try:
                capabilities = await self._look(server)
                if capabilities.pauses:
                    await self._control(server, "/pause_generation", {"mode": "abort"})
                answer = await self._control(server, "/update_weights_from_disk", {
                    "model_path": str(self._folder), "weight_version": self._label, "flush_cache": True,
                    "abort_all_requests": not capabilities.pauses})
                break
            except CallError as error:
                if not error.passing or attempt == TRIES - 1:
                    raise PushError(f"{error}{_hint(error)}") from error
                await asyncio.sleep(AGAIN_S)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise PushError(f"{server.name} could not read the weights in {self._folder}: {answer}")
        held = await self._holds(server)
        if held not in (None, self._label):
            raise PushError(f"{server.name} says that it has read the weights {self._label}, but it holds {held!r}")
        if capabilities.pauses:
            await self._control(server, "/continue_generation", {})

    async def _look(self, server: Server) -> Capabilities:
        """What the server offers; asked once, and said once where something is missing."""
        if server.capabilities is None:
            found = await probe(server.connection)
            unusable = found.unusable(self._length)
            if unusable:
                raise PushError(f"{server.name} cannot serve the policy: {'; '.join(unusable)}")
            if found.missing():
                warnings.warn(f"{server.name}: {'; '.join(found.missing())}", stacklevel=2)
            server.capabilities = found
        return server.capabilities

    async def _holds(self, server: Server) -> str | None:
        return await weight_version(server.connection, await self._look(server))

    async def _control(self, server: Server, path: str, body: dict) -> object:
        return await server.connection.post(path, body, seconds=self._push_s)

    async def close(self) -> None:
        """Stops the local servers. Others stay as they are."""
        for server in self.servers:
            if server.process is not None:
                await asyncio.to_thread(server.process.stop)


def _rests(server: Server) -> bool:
    """Whether it has failed a moment ago, or is being brought back."""
    return server.rests_until > time.monotonic() or server.mending is not None and not server.mending.done()


def _sound(server: Server) -> bool:
    return not server.doubtful and (server.process is None or server.process.running())


def _hint(error: CallError) -> str:
    """What mends a refused update."""
    return ("; a server on another machine needs SGLang(weights=FOLDER), a folder that it sees too"
            if error.status == 400 else "")
