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

    Args:
      q: [N, C, H, h]; k, v: [N, C, K, h], of the new tokens.
      old_k, old_v: [N, W, K, h], the cache.
      start: i32[N], at most W.

    Returns:
      [N, C, H, h].
    """
    chex.assert_rank([q, k, v, old_k, old_v], 4)
    N, C, W = q.shape[0], q.shape[1], old_k.shape[1]
    cached = jnp.broadcast_to((jnp.arange(W)[None] < start[:, None])[:, None], (N, C, W))
    causal = jnp.broadcast_to((jnp.arange(C)[:, None] >= jnp.arange(C)[None, :])[None], (N, C, C))
    visible = jnp.concatenate([cached, causal], axis=-1)                                     # [N, C, W+C]
    scores = jnp.concatenate([_scores(q, old_k), _scores(q, k)], axis=-1)
    scores = scores + jnp.where(visible, 0.0, HIDDEN)[:, None, None]                         # [N, K, G, C, W+C]
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    mixed = jnp.einsum("nkgcw,nwkh->nckgh", weights[..., :W], old_v)
    mixed = mixed + jnp.einsum("nkgcd,ndkh->nckgh", weights[..., W:], v)
    return mixed.reshape(q.shape)


def _scores(q: Array, k: Array) -> Array:
    """q k / sqrt(h): f32[R, K, G, S, T] of q [R, S, H, h] and k [R, T, K, h]."""
    R, S, H, h = q.shape
    q = q.reshape(R, S, k.shape[2], H // k.shape[2], h)
    return jnp.einsum("rskgh,rtkh->rkgst", q, k, preferred_element_type=jnp.float32) * h ** -0.5
