"""Calls to one server that speaks SGLang's HTTP interface, and what that server offers.

Requests go straight to the address, never through a proxy that the environment names. Nothing is retried here.
"""

import asyncio
import json
from typing import Any, Mapping, NamedTuple

import openai

from eau_jax.clients.address import address, key
from eau_jax.clients.per_loop import PerLoop
from eau_jax.core.types import InfraError

SHOWN = 300   # characters of a server's answer that an error shows
NEEDED = {
    "/generate": "it draws no tokens",
    "/update_weights_from_disk": "it takes no new weights (sglang-jax takes them when it is started as "
                                 "LocalServer(kind='sglang-jax') or by eau_jax/clients/sglang_jax_serve.py)",
}
WANTED = {
    "/pause_generation": "requests of other clients are not held while weights change",
    "/continue_generation": "requests of other clients are not held while weights change",
    "/abort_request": "a request that nobody waits for any more runs to its end",
}


class CallError(InfraError):
    """One call failed. `status` is that of the server's answer, 0 where no usable answer came."""

    def __init__(self, message: str, status: int = 0):
        super().__init__(message)
        self.status = status

    @property
    def passing(self) -> bool:
        """Whether the same call may go through later."""
        return self.status in (0, 408, 409, 429) or self.status >= 500


class Connection:
    """Calls to the server at `url`; `key_variable` names the environment variable that holds its key, if it has one."""

    def __init__(self, url: str, key_variable: str):
        self.url, self._key_variable = address(url), key_variable
        self._api = PerLoop(self._open, lambda api: api.close())

    def _open(self) -> openai.AsyncOpenAI:
        held = key(self._key_variable)
        return openai.AsyncOpenAI(base_url=self.url, api_key=held if held else "none", max_retries=0, timeout=None,
                                  http_client=openai.DefaultAsyncHttpxClient(trust_env=False, timeout=None))

    async def get(self, path: str, *, seconds: float) -> Any:
        """The JSON value that `path` answers with; None where the answer is empty."""
        return await self._call("get", path, None, seconds, {})

    async def post(self, path: str, body: Mapping[str, Any], *, seconds: float, headers: Mapping[str, str] = {}) -> Any:
        """The JSON value that `path` answers `body` with; None where the answer is empty.

        Raises:
          CallError: no answer within `seconds`, a broken connection, an error status, or no JSON.
        """
        return await self._call("post", path, body, seconds, headers)

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float,
                    headers: Mapping[str, str]) -> Any:
        api = await self._api.get()
        given = {"options": {"headers": dict(headers)}} | ({"body": body} if body is not None else {})
        try:
            async with asyncio.timeout(seconds):
                text = await getattr(api, method)(path, cast_to=str, **given)
                return json.loads(text) if text.strip() else None
        except TimeoutError:
            raise CallError(f"{self.url}{path}: no answer within {seconds:g} s") from None
        except openai.APIStatusError as error:
            fix = {401: self._wants_key(), 403: self._wants_key(), 404: "; it has no such path"}.get(error.status_code, "")
            raise CallError(f"{self.url}{path}: HTTP {error.status_code}: {self._shown(error.response.text)}{fix}",
                            error.status_code) from None
        except openai.OpenAIError as error:
            raise CallError(f"{self.url}{path}: no connection: {self._shown(str(error.__cause__ or error))}") from None
        except ValueError:
            raise CallError(f"{self.url}{path}: the answer is no JSON: {self._shown(text)}") from None

    def _wants_key(self) -> str:
        return f"; set the environment variable {self._key_variable} to the server's key"

    def _shown(self, text: str) -> str:
        held = key(self._key_variable)
        text = text.replace(held, "[key]") if held else text
        return " ".join(text.split())[:SHOWN]


class Capabilities(NamedTuple):
    """What a server offers, told by its own description of its paths; its version number decides nothing."""

    url: str
    paths: frozenset[str]
    model: Mapping[str, Any]     # of its model, weight_version among it where it keeps one
    settings: Mapping[str, Any]  # it was started with

    @property
    def jax(self) -> bool:
        """Whether it is sglang-jax."""
        return "disable_precompile" in self.settings

    @property
    def pauses(self) -> bool:
        return {"/pause_generation", "/continue_generation"} <= self.paths

    def unusable(self, length: int) -> list[str]:
        """Why it cannot serve histories of `length` tokens; empty when it can."""
        why = [f"it has no {path}: {lost}" for path, lost in NEEDED.items() if path not in self.paths]
        context = self.settings.get("context_length")
        if isinstance(context, int) and context < length:
            why.append(f"its context is {context} tokens and an episode's budget (rollout.max_tokens) {length}: start it "
                       f"with --context-length {length + 8}")
        if self.jax and self.settings.get("device") == "cpu" and not self.settings.get("disable_overlap_schedule", True):
            why.append("sglang-jax on a CPU mixes up requests in its overlapped schedule: start it with "
                       "--disable-overlap-schedule")
        return why

    def missing(self) -> list[str]:
        """What it lacks and what that costs; the sampler works without."""
        lost = {lost: path for path, lost in WANTED.items() if path not in self.paths}
        if "weight_version" not in self.model:
            lost["which weights it holds cannot be read back"] = "weight_version"
        return [f"no {path}: {text}" for text, path in lost.items()]


async def probe(connection: Connection, *, seconds: float = 30.0) -> Capabilities:
    """Asks a server what it offers.

    Raises:
      CallError: when it does not answer, or is no SGLang-shaped server.
    """
    described = await connection.get("/openapi.json", seconds=seconds)
    if not isinstance(described, dict) or not isinstance(described.get("paths"), dict):
        raise CallError(f"{connection.url}/openapi.json lists no paths; is there an SGLang server at this address?", 404)
    paths = frozenset(described["paths"])

    async def first(*names: str) -> Mapping[str, Any]:
        for name in names:
            if name in paths:
                try:
                    answer = await connection.get(name, seconds=seconds)
                except CallError as error:
                    if error.status < 400:
                        raise
                    continue   # described, but broken: as good as not there
                if isinstance(answer, dict):
                    return answer
        return {}

    return Capabilities(connection.url, paths, await first("/model_info", "/get_model_info"),
                        await first("/server_info", "/get_server_info"))


async def weight_version(connection: Connection, capabilities: Capabilities, *, seconds: float = 30.0) -> str | None:
    """The label of the weights that the server holds; None where it keeps none."""
    if "weight_version" not in capabilities.model:
        return None
    name = "/model_info" if "/model_info" in capabilities.paths else "/get_model_info"
    answer = await connection.get(name, seconds=seconds)
    return str(answer.get("weight_version")) if isinstance(answer, dict) else None
