"""From steps to the actions they belong to, for estimators that treat the two differently.

`Steps.ends` marks the last step of each action: every valid step under `by_action`, the action's last token under
`by_token`. All functions take and return [G, K].
"""

import jax
import jax.numpy as jnp

from eau_jax.core.types import Array


def at_end(values: Array, ends: Array) -> Array:
    """At each step, the value that stands at the last step of its action; anything after the last action."""
    last = ends.shape[-1] - 1
    where = jnp.where(ends, jnp.arange(last + 1, dtype=jnp.int32)[None], last)
    return jnp.take_along_axis(values, jax.lax.cummin(where, axis=1, reverse=True), axis=-1)


def lengths(ends: Array, mask: Array) -> Array:
    """Number of steps of the step's action, i32; 0 where the mask does not hold."""
    count = jnp.cumsum(mask, axis=-1, dtype=jnp.int32)
    until = jnp.where(ends & mask, count, 0)
    before = jnp.pad(jax.lax.cummax(until, axis=1), ((0, 0), (1, 0)))[:, :-1]        # steps before this action
    return jnp.where(mask, at_end(count, ends & mask) - before, 0)
