"""An OpenAI-compatible chat client for LLM users, judges and API models."""

import asyncio
import dataclasses
import email.utils
import os
import random
import time
import urllib.parse
from typing import Any, NamedTuple

import openai

from eau_jax.clients import address, answer
from eau_jax.clients.per_loop import PerLoop
from eau_jax.core import time_limit
from eau_jax.core.types import ContextFull, InfraError, Said

FIRST_DELAY_S = 0.5   # back-off before the first retry; doubles with each
LONGEST_DELAY_S = 30.0
SHOWN = 300           # characters of a server's answer that an error shows


class _Link(NamedTuple):
    """What belongs to one event loop."""

    api: openai.AsyncOpenAI
    slots: asyncio.Semaphore


@dataclasses.dataclass(eq=False, kw_only=True)
class ChatClient:
    """Chat completions with a deadline, retries and a concurrency limit.

        ChatClient("http://localhost:8000/v1", "Qwen/Qwen3-8B", max_tokens=4096, timeout_s=300.0, deadline_s=900.0)

    Rate limits (429), time-outs (408 or no answer), server errors, broken connections and answers that are no completion
    are retried with exponential back-off and jitter, or after the server's Retry-After. Anything else, and a call that
    runs out of retries or of time, ends as InfraError.

    Raises:
      ValueError: for a setting that cannot be used.
    """

    base_url: str = dataclasses.field(kw_only=False)
    """of the server, ending in /v1 as a rule"""
    model: str = dataclasses.field(kw_only=False)
    """name sent to the server"""
    api_key_variable: str = "OPENAI_API_KEY"
    """environment variable that holds the key; unset or empty means a server that wants none"""
    timeout_s: float = 30.0
    """seconds for one attempt"""
    deadline_s: float = 120.0
    """seconds for the whole call, waiting for a free slot and all retries included"""
    max_retries: int = 4
    """attempts after the first"""
    max_concurrency: int = 32
    """calls in flight at once"""
    temperature: float = 0.7
    """of every completion"""
    max_tokens: int = 256
    """of every completion, thinking included"""

    def __post_init__(self):
        for name in ("timeout_s", "deadline_s"):
            if not time_limit.fits(getattr(self, name)):
                raise ValueError(f"ChatClient: {name} is {getattr(self, name)!r}; allowed: {time_limit.ALLOWED}")
        for name, least, kind in (("max_retries", 0, int), ("max_concurrency", 1, int), ("temperature", 0.0, float),
                                  ("max_tokens", 1, int)):
            value = getattr(self, name)
            if not isinstance(value, (int, kind)) or not value >= least:
                allowed = f"{'an integer, ' * (kind is int)}{least:g} or more"
                raise ValueError(f"ChatClient: {name} is {value!r}; allowed: {allowed}")
        if self.timeout_s > self.deadline_s:
            raise ValueError(f"ChatClient: timeout_s is {self.timeout_s:g} and deadline_s {self.deadline_s:g}; one attempt "
                             "cannot take longer than the whole call: raise deadline_s, to a few times timeout_s")
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"ChatClient: model is {self.model!r}; give the name that the server knows it by")
        self._url = address.split(self.base_url)
        if self._url is None:
            raise ValueError(f"ChatClient: base_url is {self.base_url!r}; it must begin with http:// or https:// and name a "
                             "server, such as http://localhost:8000/v1")
        self._limit = "max_tokens"    # what the server calls it
        self._links = PerLoop(self._open, lambda link: link.api.close())

    @property
    def identity(self) -> dict[str, Any]:
        """For records, without key and password: what the words depend on, and under "service" how they are fetched."""
        return {"model": self.model, "temperature": self.temperature, "max_tokens": self.max_tokens,
                "service": {"server": _host(self._url), "timeout_s": self.timeout_s, "deadline_s": self.deadline_s,
                            "max_retries": self.max_retries, "max_concurrency": self.max_concurrency}}

    async def complete(self, messages: list[dict[str, str]]) -> Said:
        """The model's words after `messages` ({"role", "content"} each); "" when it says nothing. A tool's output is sent as a
        user message that says so: a server takes a tool message only after a call of its own format.

        Raises:
          ContextFull: the messages, or they and `max_tokens`, do not fit into the model's context.
          InfraError: no usable answer came; it names the server, the number of attempts and the last failure.
        """
        messages = [{name: answer.whole(text) for name, text in _sent(message).items()} for message in messages]
        end, attempts, last = time.monotonic() + self.deadline_s, 0, "all slots are taken (max_concurrency)"
        link = await self._links.get()
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + self.deadline_s), link.slots:
                while True:
                    attempts, limit = attempts + 1, self._limit
                    try:
                        return await self._attempt(link.api, messages)
                    except (openai.OpenAIError, TimeoutError, ValueError) as error:
                        last = self._described(error)
                        status, text = _server_said(error)
                        if answer.context_full(status, text):
                            raise ContextFull(f"{self._failure(attempts, last)}; the conversation, or it and max_tokens "
                                              f"({self.max_tokens}), does not fit into the model's context: serve it with a "
                                              "longer one, or lower max_tokens") from None
                        if answer.filtered(status, text):
                            return Said("", "content_filter")
                        if status == 400 and "max_completion_tokens" in text and limit == "max_tokens":
                            self._limit = "max_completion_tokens"   # the only name that newer models of OpenAI take
                            continue
                        delay = _delay(error, attempts)
                        if not _retryable(status, text) or attempts > self.max_retries or time.monotonic() + delay > end:
                            raise InfraError(self._failure(attempts, last)) from None
                        await asyncio.sleep(delay)
        except TimeoutError:
            raise InfraError(self._failure(attempts, f"no answer within deadline_s = {self.deadline_s:g} s; before that: "
                                                     f"{last}")) from None

    async def _attempt(self, api: openai.AsyncOpenAI, messages: list[dict[str, str]]) -> Said:
        async with asyncio.timeout(self.timeout_s):
            raw = await api.chat.completions.with_raw_response.create(
                model=self.model, messages=messages, temperature=self.temperature, **{self._limit: self.max_tokens})
            return answer.read(raw.text)

    def _open(self) -> _Link:
        key = address.key(self.api_key_variable)
        api = openai.AsyncOpenAI(base_url=self.base_url.strip(), api_key=key if key else "none", max_retries=0,
                                 timeout=self.timeout_s)
        return _Link(api, asyncio.Semaphore(self.max_concurrency))

    def _described(self, error: Exception) -> str:
        """What failed and, where it is known, what mends it."""
        status, text = _server_said(error)
        shown = self._redacted(" ".join(text.split()))[:SHOWN]
        if status:
            mend = {401: f"; set the environment variable {self.api_key_variable} to a valid key",
                    403: f"; set the environment variable {self.api_key_variable} to a key that may use this model",
                    404: "; check base_url, which ends in /v1 as a rule, and the model's name"}
            return f"HTTP {status}: {shown}{mend.get(status, '')}"
        if isinstance(error, (TimeoutError, openai.APITimeoutError)):
            return f"no answer within timeout_s = {self.timeout_s:g} s; a model that writes long answers needs more"
        if isinstance(error, openai.APIConnectionError):
            return f"no connection: {self._redacted(str(error.__cause__ or error))[:SHOWN]}"
        return f"unusable answer: {shown}"

    def _redacted(self, text: str) -> str:
        """A server may echo the key, and errors are recorded."""
        for secret in (os.environ.get(self.api_key_variable, "").strip(), self._url.password, self._url.query):
            text = text.replace(secret, "[key]") if secret else text
        return text

    def _failure(self, attempts: int, last: str) -> str:
        shown = urllib.parse.urlunsplit((self._url.scheme, _host(self._url), self._url.path, "", ""))
        return f"chat server {shown} (model {self.model}): gave up after {attempts} attempt(s): {last}"


def _sent(message: dict[str, str]) -> dict[str, str]:
    return {"role": "user", "content": f"Tool output:\n{message['content']}"} if message["role"] == "tool" else message


def _host(url: urllib.parse.SplitResult) -> str:
    return url.netloc.rpartition("@")[2]


def _server_said(error: Exception) -> tuple[int, str]:
    """The status (0: none) and the text of the server's answer, or of what is wrong with it."""
    if isinstance(error, openai.APIStatusError):
        return error.status_code, error.response.text
    return 0, str(error)


def _retryable(status: int, text: str) -> bool:
    """A used-up quota comes as 429 too, and waiting does not help."""
    return status == 0 or status == 408 or status >= 500 or status == 429 and "insufficient_quota" not in text


def _delay(error: Exception, attempts: int) -> float:
    """Seconds before the next attempt: the server's Retry-After (seconds or a date), else doubling from FIRST_DELAY_S, half
    of it drawn."""
    if isinstance(error, openai.APIStatusError):
        asked = error.response.headers.get("retry-after", "")
        try:
            return max(0.0, float(asked))
        except ValueError:
            pass
        try:
            return max(0.0, email.utils.parsedate_to_datetime(asked).timestamp() - time.time())
        except (ValueError, TypeError):
            pass
    return min(FIRST_DELAY_S * 2 ** (attempts - 1), LONGEST_DELAY_S) * random.uniform(0.5, 1.0)
