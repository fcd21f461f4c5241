"""Device code of the embedded sampler: fill the key-value cache, then draw tokens, several per call.

Every function is compiled once per combination of its static arguments and never depends on what the other rows hold.
Dimensions: N cache slots, R rows of one prefill call, C new tokens, K tokens drawn per call, M stop ids, V vocabulary.
"""

import collections
import functools
import math
from typing import Callable

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Sharding

from eau_jax.core.types import Array
from eau_jax.models import heads, transformer
from eau_jax.models.config import ModelConfig

TRACES: collections.Counter[str] = collections.Counter()  # how often each function has been traced in this process
NO_STOP = -1  # fills unused stop ids; no token has it


@struct.dataclass(kw_only=True)
class Rows:
    """What each slot of the cache is doing. Its history has `held + 1` tokens, of which the last is not cached yet."""

    last: Array      # [N] i32: the last token of the history
    held: Array      # [N] i32: tokens in the cache, which is also the index of `last`
    left: Array      # [N] i32: tokens that may still be drawn; 0 for an idle slot
    seeds: Array     # [N, 2] u32: high and low half of the request's seed
    stop_ids: Array  # [N, M] i32, NO_STOP where unused


@functools.lru_cache(maxsize=8)
def empty_cache(config: ModelConfig, slots: int, length: int, placement: Sharding) -> Callable[[], transformer.KVCache]:
    """Makes an empty cache where it is to live. Kept, so that it is compiled once."""
    return jax.jit(functools.partial(transformer.init_cache, config, slots, length), out_shardings=placement)


@functools.partial(jax.jit, static_argnames=("config", "window", "placement"), donate_argnames=("cache",))
def prefill(params, cache: transformer.KVCache, slots: Array, tokens: Array, start: Array, count: Array, *,
            config: ModelConfig, window: int, placement: Sharding) -> transformer.KVCache:
    """Writes keys and values of `count[r]` further tokens of slot `slots[r]`.

    Args:
      slots: i32[R], distinct where count > 0.
      tokens: i32[R, C]; columns from count[r] on are ignored.
      start: i32[R], tokens that the slot already holds, at most `window`.
      count: i32[R].
      placement: where the cache lives.
    """
    TRACES["prefill"] += 1
    chex.assert_rank([tokens, slots], [2, 1])
    _, cache = transformer.extend(params, config, cache, tokens, start, count, window=window, slots=slots)
    return jax.lax.with_sharding_constraint(cache, placement)


@functools.partial(jax.jit, static_argnames=("config", "window", "steps", "top_p", "top_k", "placement"),
                   donate_argnames=("cache",))
def decode(params, cache: transformer.KVCache, rows: Rows, temperature: Array, fewest: Array, *, config: ModelConfig,
           window: int, steps: int, top_p: float, top_k: int,
           placement: Sharding) -> tuple[transformer.KVCache, Array, Array, Array]:
    """Draws up to `steps` tokens in every slot with `left > 0`.

    Args:
      temperature: f32[], see `draw`.
      fewest: i32[], at least 1: ends early when fewer slots than this are still drawing.
      window: cache positions that are read; held + steps - 1 of an active slot must not pass it.

    Returns:
      the cache, tokens i32[N, steps], log-probabilities f32[N, steps], and count i32[N] of tokens drawn per slot.
    """
    TRACES["decode"] += 1
    N = rows.last.shape[0]
    chex.assert_shape([rows.held, rows.left], (N,))

    def running(carry):
        step, rows = carry[:2]
        return (step < steps) & ((rows.left > 0).sum() >= fewest)

    def body(carry):
        step, rows, cache, tokens, logprobs = carry
        active = rows.left > 0
        hidden, cache = transformer.extend(params, config, cache, rows.last[:, None], rows.held,
                                           active.astype(jnp.int32), window=window)
        logits = heads.logits(params, config, hidden[:, 0])                                  # [N, V]
        token, logprob = draw(logits, temperature, uniforms(rows.seeds, rows.held + 1), top_p, top_k)
        stopped = (token[:, None] == rows.stop_ids).any(axis=-1)
        rows = rows.replace(last=jnp.where(active, token, rows.last), held=rows.held + active,
                            left=jnp.where(stopped, 0, jnp.maximum(rows.left - 1, 0)))
        return step + 1, rows, cache, tokens.at[:, step].set(token), logprobs.at[:, step].set(logprob)

    empty = jnp.zeros((N, steps), jnp.int32), jnp.zeros((N, steps), jnp.float32)
    _, after, cache, tokens, logprobs = jax.lax.while_loop(running, body, (jnp.int32(0), rows, cache, *empty))
    cache = jax.lax.with_sharding_constraint(cache, placement)
    return cache, tokens, logprobs, after.held - rows.held


def uniforms(seeds: Array, index: Array) -> Array:
    """One number in [0, 1) per row, a function of the row's seed and the token's index in its history alone.

    seeds u32[N, 2], index i32[N] -> f32[N].
    """
    def one(seed, index):
        return jax.random.uniform(jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), index))
    return jax.vmap(one)(seeds, index)


def draw(logits: Array, temperature: Array, uniform: Array, top_p: float, top_k: int) -> tuple[Array, Array]:
    """One token per row and its log-probability under the distribution that it was drawn from.

    The distribution is softmax(logits / temperature) restricted by top-k, then top-p. Temperature 0 takes the likeliest
    token; that distribution is a single point, so the log-probability is 0.

    Args:
      logits: f32[N, V].
      temperature: f32[], at least 0.
      uniform: f32[N] in [0, 1).
      top_p, top_k: as for `heads.filter_logits`.

    Returns:
      i32[N] and f32[N].
    """
    chex.assert_rank([logits, uniform, temperature], [2, 1, 0])

    def greedy():
        return jnp.argmax(logits, axis=-1).astype(jnp.int32), jnp.zeros(logits.shape[0], jnp.float32)

    def sample():
        return _inverse_transform(heads.filter_logits(logits / temperature, top_p, top_k, None), uniform)

    return jax.lax.cond(temperature == 0, greedy, sample)


def _inverse_transform(logits: Array, uniform: Array) -> tuple[Array, Array]:
    """The token at which the cumulative probability passes `uniform`, and its log-probability; f32[N, V], f32[N] ->
    i32[N], f32[N].

    The tokens are laid out as a table and accumulated column by column: first over the columns' sums, then within one
    column. So V numbers are summed in about 2 sqrt(V) dependent steps.
    """
    N, V = logits.shape
    columns = math.isqrt(V - 1) + 1
    weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))                           # [N, V], 0 where filtered
    table = jnp.pad(weights, ((0, 0), (0, -V % columns))).reshape(N, -1, columns)            # [N, rows, columns]
    mass = table.sum(axis=1)
    edges = jnp.cumsum(mass, axis=-1)                                                        # [N, columns]
    target = uniform * edges[:, -1]
    column = jnp.argmax(edges > target[:, None], axis=-1)
    inside = jnp.cumsum(jax.vmap(lambda x, i: x[:, i])(table, column), axis=-1)              # [N, rows]
    # Clipped so that rounding picks neither a token of weight 0 before the column's first nor one after its last.
    rest = jnp.clip(target - (_pick(edges, column) - _pick(mass, column)), 0.0, inside[:, -1] * (1 - 2.0 ** -23))
    token = (jnp.argmax(inside > rest[:, None], axis=-1) * columns + column).astype(jnp.int32)
    return token, jnp.log(_pick(weights, token) / edges[:, -1])


def _pick(x: Array, index: Array) -> Array:
    """x[n, index[n]] for every n."""
    return jax.vmap(lambda row, i: row[i])(x, index)
