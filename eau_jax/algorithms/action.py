"""Where actions begin and end, read from `action_ids` alone: never from rewards, values or token ids.

`action_ids` is 0..A-1 on sampled tokens, in order, and -1 elsewhere. Numbers may be skipped, an action may follow
another without an observation between them, and tokens that were forced into an action (-1) do not split it.
All functions take [..., T] and return [..., T].
"""

import jax
import jax.numpy as jnp

from eau_jax.core.types import Array


def first_tokens(action_ids: Array) -> Array:
    """True at the first token of each action."""
    seen = jax.lax.cummax(action_ids, axis=action_ids.ndim - 1)
    before = jnp.concatenate([jnp.full_like(seen[..., :1], -1), seen[..., :-1]], axis=-1)
    return action_ids > before


def last_tokens(action_ids: Array) -> Array:
    """True at the last token of each action."""
    beyond = jnp.iinfo(action_ids.dtype).max
    ahead = jax.lax.cummin(jnp.where(action_ids < 0, beyond, action_ids), axis=action_ids.ndim - 1, reverse=True)
    after = jnp.concatenate([ahead[..., 1:], jnp.full_like(ahead[..., :1], beyond)], axis=-1)
    return (action_ids >= 0) & (action_ids < after)


def ranks(action_ids: Array) -> Array:
    """Number of the token's action among the actions that have tokens, i32; -1 on other tokens."""
    return jnp.where(action_ids >= 0, jnp.cumsum(first_tokens(action_ids), axis=-1, dtype=jnp.int32) - 1, -1)


def lengths(action_ids: Array) -> Array:
    """Number of tokens of the token's action, i32; 0 on other tokens."""
    axis = action_ids.ndim - 1
    is_action = action_ids >= 0
    order = jnp.cumsum(is_action, axis=axis, dtype=jnp.int32)  # 1, 2, ... over action tokens
    begin = jax.lax.cummax(jnp.where(first_tokens(action_ids), order, 0), axis=axis)
    beyond = jnp.iinfo(jnp.int32).max
    end = jax.lax.cummin(jnp.where(last_tokens(action_ids), order, beyond), axis=axis, reverse=True)
    return jnp.where(is_action, end - begin + 1, 0)
