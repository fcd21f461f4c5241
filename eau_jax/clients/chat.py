"""An OpenAI-compatible chat client for LLM users, judges and API models. The only file that imports `openai`."""

import asyncio
import os
import random
import time
import weakref
from typing import AsyncIterator, NamedTuple

import openai

from eau_jax.core.types import InfraError

FIRST_DELAY_S = 0.5   # back-off before the first retry; doubles with each
LONGEST_DELAY_S = 30.0


class _Link(NamedTuple):
    """What belongs to one event loop."""

    api: openai.AsyncOpenAI
    slots: asyncio.Semaphore
    closer: AsyncIterator[None]   # kept alive: the loop ends it before it closes, and that closes the connections


async def _closer(api: openai.AsyncOpenAI) -> AsyncIterator[None]:
    """Closes the connections when the event loop shuts its generators down."""
    try:
        yield
    finally:
        await api.close()


class ChatClient:
    """Chat completions with a deadline, retries and a concurrency limit.

    Rate limits (429), time-outs (408 or no answer), server errors and broken connections are retried with exponential
    back-off and jitter, or after the server's Retry-After. Anything else, and a call that runs out of retries or of
    time, ends as InfraError.

    Args:
      base_url: of the server, ending in /v1 as a rule.
      model: name sent to the server.
      api_key_variable: environment variable that holds the key; unset or empty means a server that wants none.
      timeout_s: seconds for one attempt.
      deadline_s: seconds for the whole call, waiting for a free slot and all retries included.
      max_retries: attempts after the first.
      max_concurrency: calls in flight at once.
      temperature, max_tokens: of every completion.
    """

    def __init__(self, base_url: str, model: str, *, api_key_variable: str = "OPENAI_API_KEY", timeout_s: float = 30.0,
                 deadline_s: float = 120.0, max_retries: int = 4, max_concurrency: int = 32, temperature: float = 0.7,
                 max_tokens: int = 256):
        for name, value, least in (("timeout_s", timeout_s, 1e-3), ("deadline_s", deadline_s, 1e-3),
                                   ("max_retries", max_retries, 0), ("max_concurrency", max_concurrency, 1),
                                   ("temperature", temperature, 0.0), ("max_tokens", max_tokens, 1)):
            if not value >= least:
                raise ValueError(f"ChatClient: {name} is {value!r}; allowed: {least:g} or more")
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"ChatClient: base_url is {base_url!r}; it must begin with http:// or https://")
        self.base_url, self.model, self.api_key_variable = base_url, model, api_key_variable
        self.timeout_s, self.deadline_s, self.max_retries = timeout_s, deadline_s, max_retries
        self.max_concurrency, self.temperature, self.max_tokens = max_concurrency, temperature, max_tokens
        self._links: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Link] = weakref.WeakKeyDictionary()

    async def complete(self, messages: list[dict[str, str]]) -> str:
        """The model's reply to `messages` ({"role", "content"} each); "" when it says nothing.

        Raises:
          InfraError: no usable answer came; it names the server, the number of attempts and the last failure.
        """
        end, attempts, last = time.monotonic() + self.deadline_s, 0, "no free slot"
        link = await self._link()
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + self.deadline_s), link.slots:
                while True:
                    attempts += 1
                    try:
                        return await self._attempt(link.api, messages)
                    except (openai.APIStatusError, openai.APIConnectionError, TimeoutError, ValueError) as error:
                        last = _described(error, self.timeout_s)
                        delay = _delay(error, attempts)
                        if not _retryable(error) or attempts > self.max_retries or time.monotonic() + delay > end:
                            raise InfraError(self._failure(attempts, last)) from None
                        await asyncio.sleep(delay)
        except TimeoutError:
            last = f"no answer within {self.deadline_s:g} s; before that: {last}"
            raise InfraError(self._failure(attempts, last)) from None

    async def _attempt(self, api: openai.AsyncOpenAI, messages: list[dict[str, str]]) -> str:
        async with asyncio.timeout(self.timeout_s):
            answer = await api.chat.completions.create(
                model=self.model, messages=messages, temperature=self.temperature, max_tokens=self.max_tokens)
        choices = getattr(answer, "choices", None)  # a server may send anything
        if not choices or not hasattr(choices[0], "message"):
            raise ValueError("the answer is not a chat completion")
        content = getattr(choices[0].message, "content", None)
        return content if isinstance(content, str) else ""

    async def _link(self) -> _Link:
        """The connections of the running event loop; those of another loop cannot be used in this one."""
        loop = asyncio.get_running_loop()
        if loop not in self._links:
            key = os.environ.get(self.api_key_variable, "")
            api = openai.AsyncOpenAI(base_url=self.base_url, api_key=key if key else "none", max_retries=0,
                                     timeout=self.timeout_s)
            self._links[loop] = _Link(api, asyncio.Semaphore(self.max_concurrency), _closer(api))
            await anext(self._links[loop].closer)
        return self._links[loop]

    def _failure(self, attempts: int, last: str) -> str:
        key = os.environ.get(self.api_key_variable, "")
        last = last.replace(key, "[key]") if key else last   # a server may echo it, and errors are recorded
        return f"chat server {self.base_url} (model {self.model}): gave up after {attempts} attempt(s): {last}"


def _retryable(error: Exception) -> bool:
    if isinstance(error, openai.APIStatusError):
        return error.status_code in (408, 429) or error.status_code >= 500
    return True


def _delay(error: Exception, attempts: int) -> float:
    """Seconds before the next attempt: the server's Retry-After, else doubling from FIRST_DELAY_S, half of it drawn."""
    if isinstance(error, openai.APIStatusError):
        try:
            return max(0.0, float(error.response.headers["retry-after"]))
        except (KeyError, ValueError):
            pass
    return min(FIRST_DELAY_S * 2 ** (attempts - 1), LONGEST_DELAY_S) * random.uniform(0.5, 1.0)


def _described(error: Exception, timeout_s: float) -> str:
    if isinstance(error, openai.APIStatusError):
        return f"HTTP {error.status_code}: {error.response.text[:200]}"
    if isinstance(error, (TimeoutError, openai.APITimeoutError)):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, openai.APIConnectionError):
        return f"no connection: {error.__cause__ or error}"
    return f"unusable answer: {error}"
