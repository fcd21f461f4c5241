"""The sampler over SGLang servers: tokens in, tokens out, over HTTP.

An action is drawn in as many parts as it takes. A part that was interrupted, by new weights or by its server, is kept and
fed as history of the next one, with the version of the weights that drew it. What fails is tried again, elsewhere where
there is another server; an action that runs out of attempts raises InfraError.
"""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import math
import random
import secrets
import weakref
from typing import Any

import jax
import numpy as np

from eau_jax.clients import sglang_answer
from eau_jax.clients.per_loop import PerLoop
from eau_jax.clients.server import LocalServer, ServerError, ServerProcess
from eau_jax.clients.sglang_http import CallError, Connection
from eau_jax.core.types import InfraError
from eau_jax.models.config import ModelConfig
from eau_jax.samplers.fleet import Fleet, PushError, Server
from eau_jax.samplers.places import Places
from eau_jax.samplers.sglang import SGLang
from eau_jax.samplers.types import Completion, Stop, TokenRequest, check_request
from eau_jax.samplers.weights import WeightStore

FIRST_DELAY_S, LONGEST_DELAY_S = 0.25, 8.0   # before another attempt; doubled with each
ABORT_S = 5.0                                # seconds for telling a server that nobody waits any more


class Unusable(Exception):
    """An answer that cannot be used; another may be."""


@dataclasses.dataclass(eq=False)
class _Open:
    """A request that is not answered yet, and what has been drawn for it."""

    request: TokenRequest
    ended: asyncio.Future            # done when nobody waits for more: its session was released, or the sampler closed
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)

    def completion(self, stop: Stop, version: int) -> Completion:
        spans = tuple((number, len(list(same))) for number, same in itertools.groupby(self.versions))
        return Completion(np.array(self.tokens, np.int32), np.array(self.logprobs, np.float32), stop,
                          min(self.versions, default=version), spans if len(spans) > 1 else ())


class _Link:
    """What belongs to one event loop."""

    def __init__(self, slots: int):
        self.places = Places(slots)             # for requests in flight
        self.free = asyncio.Event()             # no push is going on
        self.free.set()
        self.pushing = asyncio.Lock()
        self.tasks: set[asyncio.Task] = set()   # that nobody waits for

    async def settle(self) -> None:
        """Waits for those tasks, but not for long."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=ABORT_S)


class SGLangSampler:
    """A `Sampler`. `push` gives the servers weights before the first request. New weights do not wait for open requests:
    these are interrupted, and go on with the new ones. `counts` says what happened so far."""

    by_reference = False

    def __init__(self, settings: SGLang, config: ModelConfig, *, slots: int, length: int):
        self._settings, self._config, self.length = settings, config, length
        servers = [Server(None, ServerProcess(target, slots=slots, length=length, dtype=config.compute_dtype))
                   if isinstance(target, LocalServer) else Server(Connection(target, settings.key_variable))
                   for target in settings.servers]
        router = Connection(settings.router, settings.key_variable) if settings.router else None
        self._fleet = Fleet(servers, router, length=length, key_variable=settings.key_variable, push_s=settings.push_s)
        self._store = WeightStore(config, settings.weights)
        self._links = PerLoop(lambda: _Link(slots), _Link.settle)
        self._open: dict[str, _Open] = {}
        self._begun: set[str] = set()            # sessions that have asked before and are not released
        self._versions: dict[str, int] = {}      # of every label that was pushed
        self._label, self.version, self._temperature = "", -1, 1.0
        self._pushed: list[weakref.ref] = []     # the arrays that the servers hold
        self._broken = "the sampler has no weights; call push(params, version, temperature) first"
        self._closed, self._numbers, self._run = False, itertools.count(1), secrets.token_hex(3)
        self.counts: collections.Counter[str] = collections.Counter()

    # The interface of a sampler

    async def generate(self, requests: list[TokenRequest]) -> list[Completion]:
        """One completion per request. An action ends with a stop token, or with stop "length" after `max_new_tokens` or when
        history and action together reach the sampler's length.

        Raises:
          ValueError: for what `check_request` refuses, or a session with an open request.
          RuntimeError: before the first `push` and after `close`. InfraError: when no server gives a usable answer.
        """
        if self._closed or not self._label:
            raise RuntimeError("the sampler is closed" if self._closed else self._broken)
        names = [request.session for request in requests]
        for request in requests:
            check_request(request, self.length, self._config.vocab_size)
            if request.session in self._open or names.count(request.session) > 1:
                raise ValueError(f"session {request.session!r} has an open request already; requests of one session come "
                                 f"one after the other")
        ended = asyncio.get_running_loop().create_future
        opened = [self._open.setdefault(request.session, _Open(request, ended())) for request in requests]
        return list(await asyncio.gather(*(self._answer(one) for one in opened)))

    async def push(self, params: Any, version: int, temperature: float) -> None:
        """Gives every server new weights and checks that it holds them. Open requests go on with them.

        Raises:
          ValueError: when the temperature is negative or not a number; 0 takes the likeliest token.
          InfraError: when the weights could not be written or a server did not take them; nothing is drawn until a push
            succeeds.
        """
        if not 0.0 <= temperature < math.inf:
            raise ValueError(f"temperature is {temperature}; it must be at least 0 and finite")
        if self._closed:
            raise RuntimeError("the sampler is closed")
        link, leaves = await self._links.get(), jax.tree.leaves(params)
        async with link.pushing:
            if not self._broken and version == self.version and _are(self._pushed, leaves):
                self._temperature = float(temperature)   # the servers hold these weights
                return
            label = f"{version}.{next(self._numbers)}-{self._run}"
            folder = await asyncio.to_thread(self._store.write, params, label)
            link.free.clear()
            try:
                self._label, self._versions[label] = label, version
                await self._fleet.push(label, folder)
                self.version, self._temperature, self._broken = version, float(temperature), ""
                self._pushed = [weakref.ref(leaf) for leaf in leaves] if all(
                    isinstance(leaf, jax.Array) for leaf in leaves) else []
            except BaseException as error:
                self._broken = f"the last push of weights failed, so nothing is drawn: {error or type(error).__name__}"
                raise
            finally:
                link.free.set()

    async def release(self, session: str) -> None:
        """Forgets which server the session lived on. A request of it that is still open ends with stop "aborted"."""
        if session in self._open and not self._open[session].ended.done():
            self._open[session].ended.set_result(None)
        self._begun.discard(session)
        self._fleet.forget(session)

    async def close(self) -> None:
        """Ends every open request with stop "aborted", stops the local servers and removes the weights' files."""
        self._closed = True
        for session in list(self._open):
            await self.release(session)
        await (await self._links.get()).settle()
        await self._fleet.close()
        self._store.clear()

    def warm_up(self) -> None:
        """Draws a token from each server: what it compiles with its first request does not eat into a deadline, and one that
        tells no log-probabilities is found out. Not for use inside an event loop."""
        names = [f"warm-up/{number}" for number in range(len(self._settings.servers))]

        async def draw() -> None:
            await self.generate([TokenRequest(name, np.zeros(1, np.int32), 1, 0, ()) for name in names])
            for name in names:
                await self.release(name)

        asyncio.run(draw())

    def drop_cache(self) -> None:
        """Nothing: the servers' caches are their own, and new weights empty them."""

    # One action

    async def _answer(self, one: _Open) -> Completion:
        drawing = asyncio.ensure_future(self._draw_all(one))
        try:
            await asyncio.wait([drawing, one.ended], return_when=asyncio.FIRST_COMPLETED)
            return drawing.result() if drawing.done() else one.completion("aborted", self.version)
        finally:
            drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await drawing
            del self._open[one.request.session]

    async def _draw_all(self, one: _Open) -> Completion:
        """Part after part until the action has ended."""
        request = one.request
        room = min(request.max_new_tokens, self.length - len(request.tokens))
        link, failures = await self._links.get(), 0
        while True:
            try:
                async with link.places.place(request.session in self._begun):
                    self._begun.add(request.session)
                    await self._ready(link)
                    server = await self._fleet.home(request.session)
                    await self._ready(link)
                    finish = await self._draw(link, server, one, room - len(one.tokens))
            except (CallError, PushError, ServerError, Unusable) as error:
                failures += 1
                self.counts["failures"] += 1
                if failures > self._settings.retries or isinstance(error, CallError) and not error.passing:
                    raise InfraError(f"gave up after {failures} attempt(s): {error}") from None
                await asyncio.sleep(min(FIRST_DELAY_S * 2 ** (failures - 1), LONGEST_DELAY_S) * random.uniform(0.5, 1.0))
                continue
            if one.tokens and one.tokens[-1] in request.stop_ids:
                return one.completion("end_of_turn", self.version)
            if len(one.tokens) >= room:
                return one.completion("length", self.version)
            self.counts[f"resumed after {finish}"] += 1   # interrupted, or at a stop token that is none of ours

    async def _ready(self, link: _Link) -> None:
        """Waits for a push to end; raises InfraError when it has failed."""
        await link.free.wait()
        if self._broken:
            raise InfraError(self._broken)

    async def _draw(self, link: _Link, server: Server, one: _Open, room: int) -> str:
        """Adds the tokens of one call to the action; returns how it ended.

        Raises:
          CallError: when no usable answer came; Unusable: when an answer is not to be used.
        """
        request, label, temperature = one.request, self._label, self._temperature
        rid = f"{self._run}.{next(self._numbers)}"
        body = {
            "rid": rid, "input_ids": [*np.asarray(request.tokens).tolist(), *one.tokens], "return_logprob": True,
            "sampling_params": {
                "temperature": temperature, "top_p": 1.0, "top_k": -1, "max_new_tokens": room,
                "stop_token_ids": list(request.stop_ids), "sampling_seed": request.seed & 0x7FFFFFFF,
                "skip_special_tokens": False, "no_stop_trim": True}}
        self.counts["requests"] += 1
        try:
            answer = await server.connection.post("/generate", body, seconds=self._settings.timeout_s,
                                                  headers={"X-SMG-Routing-Key": request.session})
            part = sglang_answer.read(answer, self._config.vocab_size)
            versions = self._told(part, label)
        except asyncio.CancelledError:
            self._abort(link, server, rid)
            raise
        except (CallError, ValueError, Unusable) as error:
            if isinstance(error, ValueError):
                error = Unusable(f"{server.name}: unusable answer: {error}")
            if isinstance(error, Unusable) or error.passing:
                self._fleet.failed(server)
            if isinstance(error, CallError) and not error.status:
                self._abort(link, server, rid)
            raise error from None
        if not len(part.tokens) and label == self._label:
            raise Unusable(f"{server.name}: the request was aborted before it had drawn a token")
        self._fleet.answered(server)
        one.tokens += part.tokens.tolist()
        # At temperature 0 the distribution is a single point.
        one.logprobs += part.logprobs.tolist() if temperature else [0.0] * len(part.tokens)
        one.versions += versions
        self.counts.update(tokens=len(part.tokens), prompt_tokens=part.prompt, cached_tokens=part.cached)
        return part.finish

    def _told(self, part: sglang_answer.Drawn, submitted: str) -> list[int]:
        """The version of the weights that drew each token.

        Raises:
          Unusable: where these are none of ours, or cannot be told.
        """
        if not len(part.tokens):
            return []
        last = part.labels[-1]
        if last is None and submitted != self._label and part.finish != "abort":
            raise Unusable("the weights changed while the request ran, and the server does not say which ones drew it")
        known = [submitted if label is None else label for label in part.labels]
        if known[-1] not in (submitted, self._label) or any(label not in self._versions for label in known):
            raise Unusable(f"the tokens were drawn by the weights {known[-1]!r}, but the server was given {self._label!r}")
        return [self._versions[label] for label in known]

    def _abort(self, link: _Link, server: Server, rid: str) -> None:
        """Tells the server, on the side, that nobody waits for the request."""
        async def tell() -> None:
            with contextlib.suppress(Exception):
                await server.connection.post("/abort_request", {"rid": rid}, seconds=ABORT_S)

        task = asyncio.ensure_future(tell())
        link.tasks.add(task)
        task.add_done_callback(link.tasks.discard)


def _are(pushed: list[weakref.ref], leaves: list[Any]) -> bool:
    """Whether the leaves are the very arrays that were pushed."""
    return len(pushed) == len(leaves) > 0 and all(ref() is leaf for ref, leaf in zip(pushed, leaves))
