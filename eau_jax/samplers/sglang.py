"""Chooses SGLang servers to draw the policy's tokens: `Rollout(sampler=SGLang(("http://10.0.0.5:30000",)))` in a config.

Weights reach the servers as files: update-from-tensor and update-from-distributed need torch and CUDA in this process and
are not offered.
"""

import dataclasses
from typing import Any

from eau_jax.clients.address import address
from eau_jax.clients.server import LocalServer
from eau_jax.core import time_limit
from eau_jax.models.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class SGLang:
    """What a run asks of its servers. `rollout.slots` is the number of requests in flight, on all servers together."""

    servers: tuple[str | LocalServer, ...]
    """addresses of servers that run already, and servers that are to be started here"""
    router: str = ""
    """address of SGLang's router, which generation goes through; weights go to `servers` directly. Start it with
    `--policy consistent_hashing`, so that all turns of an episode reach the same server"""
    weights: str = ""
    """folder for weights that all servers can read under the same path; empty: shared memory of this machine"""
    timeout_s: float = 300.0
    """seconds for one attempt at an action; rollout.deadline_s limits all of them"""
    push_s: float = 1800.0
    """seconds for new weights to reach every server, the start of a local one included"""
    retries: int = 3
    """attempts at an action after the first"""
    key_variable: str = "SGLANG_API_KEY"
    """environment variable that holds the servers' key (--api-key); unset: they want none"""

    def __post_init__(self):
        if not isinstance(self.servers, tuple) or not self.servers or not all(
                isinstance(server, (str, LocalServer)) for server in self.servers):
            raise ValueError(f"SGLang: servers is {self.servers!r}; give a tuple of addresses or of LocalServer(...), such "
                             f'as ("http://localhost:30000",)')
        addresses = [address(server) for server in self.servers if isinstance(server, str)]
        if self.router:
            address(self.router)
        if len(set(addresses)) < len(addresses):
            raise ValueError(f"SGLang: an address occurs twice in {addresses}")
        if self.router and len(addresses) < len(self.servers):
            raise ValueError("SGLang: a router does not know the servers that are started here; give addresses alone, or "
                             "leave the router out")
        for name in ("timeout_s", "push_s"):
            if not time_limit.fits(getattr(self, name)):
                raise ValueError(f"SGLang: {name} is {getattr(self, name)!r}; allowed: {time_limit.ALLOWED}")
        slow = max((server.start_s for server in self.servers if isinstance(server, LocalServer)), default=0.0)
        if slow > self.push_s:
            raise ValueError(f"SGLang: a LocalServer's start_s is {slow:g} and push_s {self.push_s:g}; a push includes the "
                             "start, so the server would be given up before: raise push_s")
        if not self.retries >= 0:
            raise ValueError(f"SGLang: retries is {self.retries!r}; allowed: 0 or more")

    def __call__(self, config: ModelConfig, *, slots: int, length: int, top_p: float, top_k: int) -> Any:
        """The sampler; servers are reached, or started, with the first weights.

        Raises:
          ValueError: when tokens are to be drawn from a restricted distribution.
        """
        from eau_jax.samplers.sglang_sampler import SGLangSampler   # loads an HTTP client, which configs do not need

        refuse_filters(top_p, top_k)
        return SGLangSampler(self, config, slots=slots, length=length)


def refuse_filters(top_p: float, top_k: int) -> None:
    """SGLang's log-probabilities are of the whole distribution, so nothing else may be sampled from."""
    if top_p < 1 or top_k > 0:
        raise ValueError(f"rollout.top_p = {top_p} and rollout.top_k = {top_k} cannot be used with SGLang, which tells the "
                         "log-probabilities of the whole distribution: set them to 1 and 0, or sample with JaxEngine")
