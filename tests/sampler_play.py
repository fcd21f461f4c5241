"""Multi-turn sessions over a sampler, for the tests of samplers: tiny models, seeded observations, what came out."""

import asyncio
import dataclasses

import jax
import numpy as np

from eau_jax.models import heads, transformer
from eau_jax.models.config import ModelConfig
from eau_jax.samplers.jax_engine import JaxEngine
from eau_jax.samplers.types import Completion, TokenRequest

V, LENGTH = 61, 64
QWEN3 = ModelConfig(family="qwen3", vocab_size=V, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                    d_ff=48, qk_norm=True)
QWEN2 = ModelConfig(family="qwen2", vocab_size=V, d_model=32, num_layers=2, num_heads=4, num_kv_heads=1, head_dim=8,
                    d_ff=48, qkv_bias=True, tie_embeddings=False)
FILTERED = {"top_p": 0.9, "top_k": 20}
STOP = 3


@dataclasses.dataclass(frozen=True)
class Played:
    """One session: its whole history and the actions in it."""

    tokens: np.ndarray                             # i32[T]
    actions: tuple[tuple[int, Completion], ...]    # (index of the action's first token, action)


def weights(config: ModelConfig, seed: int = 0):
    """Random weights, large enough that the distributions are far from uniform."""
    params = transformer.init(config, jax.random.key(seed))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    return tree.unflatten([x + 0.2 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys)])


def engine(config: ModelConfig = QWEN3, slots: int = 4, kind=JaxEngine, **settings) -> JaxEngine:
    """Small sizes throughout, so that a history spans several chunks, windows and calls."""
    return kind(config, slots=slots, length=LENGTH, steps=4, prefill_rows=2, chunks=(6,), windows=(24,), **settings)


def request(session: str, tokens, max_new_tokens: int = 8, seed: int = 0, stop_ids=(STOP,)) -> TokenRequest:
    return TokenRequest(session, np.asarray(tokens, np.int32), max_new_tokens, seed, stop_ids)


async def ask(sampler, *arguments, **settings) -> Completion:
    [completion] = await sampler.generate([request(*arguments, **settings)])
    return completion


def prompt(number: int, size: int = 0) -> np.ndarray:
    return np.random.default_rng(number).integers(4, V, size if size else 3 + 4 * (number % 4)).astype(np.int32)


async def session(sampler, number: int, turns: int = 3) -> Played:
    """Turns of different lengths with observations of different lengths between them."""
    name, history, actions = f"session-{number}", prompt(number), []
    for turn in range(turns):
        action = await ask(sampler, name, history, max_new_tokens=4 + number % 5, seed=1000 + number)
        actions.append((len(history), action))
        history = np.concatenate([history, action.tokens, prompt(100 * turn + number, 1 + number % 6)])
    await sampler.release(name)
    return Played(history, tuple(actions))


def play(sampler, params, temperature: float, numbers) -> list[Played]:
    """Sessions side by side on new weights."""
    async def run():
        await sampler.push(params, 0, temperature)
        return list(await asyncio.gather(*(session(sampler, number) for number in numbers)))
    return asyncio.run(run())


def trainer_logprobs(config: ModelConfig, params, played: list[Played], temperature: float, top_p=1.0, top_k=0):
    """What the trainer says of the same tokens: one padded full forward, the head on action tokens. f32[R, LENGTH]."""
    R = len(played)
    tokens, segments, mask = (np.zeros((R, LENGTH), dtype) for dtype in (np.int32, np.int32, bool))
    for row, one in enumerate(played):
        tokens[row, :len(one.tokens)], segments[row, :len(one.tokens)] = one.tokens, 1
        for begin, action in one.actions:
            mask[row, begin:begin + len(action.tokens)] = True
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (R, 1))

    @jax.jit
    def run(params, tokens, mask):
        hidden = transformer.forward(params, config, tokens, positions, segments)
        return heads.token_logprobs(params, config, hidden, tokens, mask, np.float32(temperature), top_p=top_p,
                                    top_k=top_k)

    return np.asarray(run(params, tokens, mask)[0])


def assert_equal(found: list[Played], expected: list[Played], atol: float = 1e-5):
    """The same tokens and stops, and log-probabilities equal to rounding."""
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        for (_, a), (_, b) in zip(one.actions, other.actions, strict=True):
            assert a.stop == b.stop
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=atol)
