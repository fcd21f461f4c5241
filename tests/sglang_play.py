"""What the tests of the SGLang sampler share: weights, episodes, and the scripted server's log-probabilities computed from
the parameters by another way than the server's."""

import asyncio
import warnings

import jax
import numpy as np

from eau_jax.clients.server import LocalServer
from eau_jax.samplers import fleet, sglang_sampler
from eau_jax.samplers.sglang import SGLang
from sampler_play import QWEN3, prompt, request, weights

PARAMS = {version: jax.device_get(weights(QWEN3, seed=10 * version)) for version in range(3)}
LENGTH = 64


def quick(monkeypatch):
    """A fixture: waits are short, and a capability that is missing where none should be is an error."""
    monkeypatch.setattr(sglang_sampler, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(fleet, "AGAIN_S", 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def sampler(*servers, slots=16, **settings):
    return SGLang(tuple(server if isinstance(server, LocalServer) else server.url for server in servers),
                  **settings)(QWEN3, slots=slots, length=LENGTH, top_p=1.0, top_k=0)


def run(made, play, *, version=0, temperature=1.0):
    """Pushes weights, plays, closes; returns what `play` does."""
    async def go():
        try:
            await made.push(PARAMS[version], version, temperature)
            return await play()
        finally:
            await made.close()
    return asyncio.run(go())


async def ask(made, *arguments, **settings):
    return (await made.generate([request(*arguments, **settings)]))[0]


def said(history, tokens, version=0, temperature=1.0) -> np.ndarray:
    """f64[a]: log-probability of each token after the one before it, as the scripted server defines it."""
    embed, head = (np.asarray(PARAMS[version][name], np.float64) for name in ("embed", "embed"))
    logits = 3 * np.einsum("vd,wd->vw", embed, head) / temperature
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    chain = [history[-1], *tokens]
    return np.array([logprobs[a, b] for a, b in zip(chain, chain[1:])])


async def episode(made, name: str, turns: int = 3):
    """Turns of one session; returns [(history, completion)]."""
    history, played = prompt(len(name) + 1, 5), []
    for turn in range(turns):
        completion = await ask(made, name, history, max_new_tokens=6, seed=sum(map(ord, name)))
        played.append((history, completion))
        history = np.concatenate([history, completion.tokens, prompt(turn, 3)])
    await made.release(name)
    return played
