"""Causal grouped-query attention over packed rows and over a key-value cache. Scores and softmax are float32.

Dimensions: R rows, S columns, N cache slots, C new tokens, W cache positions, H heads, K key-value heads, G = H / K,
h head_dim. Query head n reads key-value head n // G.
"""

import chex
import jax
import jax.numpy as jnp

from eau_jax.core.types import Array

HIDDEN = -1e30  # score of what may not be seen: exp() of it is 0, and no inf - inf can arise


def attend(q: Array, k: Array, v: Array, segment_ids: Array) -> Array:
    """Attention within the rows: column t reads columns s <= t with the same segment id.

    Args:
      q: [R, S, H, h]; k, v: [R, S, K, h].
      segment_ids: i32[R, S].

    Returns:
      [R, S, H, h].
    """
    chex.assert_rank([q, k, v], 4)
    S = q.shape[1]
    causal = jnp.arange(S)[:, None] >= jnp.arange(S)[None, :]                                # [S, S]
    visible = (segment_ids[:, :, None] == segment_ids[:, None, :]) & causal[None]            # [R, S, S]
    scores = _scores(q, k) + jnp.where(visible, 0.0, HIDDEN)[:, None, None]                  # [R, K, G, S, S]
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("rkgst,rtkh->rskgh", weights, v).reshape(q.shape)


def attend_cached(q: Array, k: Array, v: Array, old_k: Array, old_v: Array, start: Array) -> Array:
    """Attention of C new tokens to the first start[n] cached positions of their slot and, causally, to each other.

    Both parts share one softmax: their exponentials are taken against the common maximum and divided by the common sum
    after the mixing, so neither scores nor keys of the two parts are ever copied together.

    Args:
      q: [N, C, H, h]; k, v: [N, C, K, h], of the new tokens.
      old_k: [N, K, h, W]; old_v: [N, K, W, h], the cache.
      start: i32[N], at most W.

    Returns:
      [N, C, H, h].
    """
    chex.assert_rank([q, k, v, old_k, old_v], 4)
    N, C, K, h = k.shape
    W, G = old_v.shape[2], q.shape[2] // K
    # Rows of the products are (g, c): one matrix product per slot and key-value head, without a copy of the cache.
    q = jnp.einsum("nckgh->nkgch", q.reshape(N, C, K, G, h)).reshape(N, K, G * C, h)
    k, v = jnp.einsum("nckh->nkhc", k), jnp.einsum("nckh->nkch", v)
    cached = (jnp.arange(W)[None] < start[:, None])[:, None, None]                           # [N, 1, 1, W]
    causal = jnp.tile(jnp.arange(C)[:, None] >= jnp.arange(C)[None, :], (G, 1))[None, None]  # [1, 1, G C, C]
    old = jnp.where(cached, jnp.matmul(q, old_k, preferred_element_type=jnp.float32) * h ** -0.5, HIDDEN)
    new = jnp.where(causal, jnp.matmul(q, k, preferred_element_type=jnp.float32) * h ** -0.5, HIDDEN)
    highest = jnp.maximum(old.max(axis=-1, initial=HIDDEN), new.max(axis=-1))[..., None]     # [N, K, G C, 1]
    old, new = jnp.exp(old - highest), jnp.exp(new - highest)
    total = old.sum(axis=-1, keepdims=True) + new.sum(axis=-1, keepdims=True)
    mixed = jnp.matmul(old.astype(v.dtype), old_v, preferred_element_type=jnp.float32)
    mixed = mixed + jnp.matmul(new.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return jnp.einsum("nkgch->nckgh", (mixed / total).reshape(N, K, G, C, h)).reshape(N, C, K * G, h).astype(v.dtype)


def _scores(q: Array, k: Array) -> Array:
    """q k / sqrt(h): f32[R, K, G, S, T] of q [R, S, H, h] and k [R, T, K, h]."""
    R, S, H, h = q.shape
    q = q.reshape(R, S, k.shape[2], H // k.shape[2], h)
    return jnp.einsum("rskgh,rtkh->rkgst", q, k, preferred_element_type=jnp.float32) * h ** -0.5
