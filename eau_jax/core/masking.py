"""Sums and moments over the positions where a mask holds.

Values at masked positions may be anything, NaN and inf included: `where` comes before any arithmetic, so neither the
result nor its gradient can see them. `n` is the number of valid positions.
"""

import jax
import jax.numpy as jnp

from eau_jax.core.types import Array


def masked(values: Array, mask: Array) -> Array:
    """`values` where the mask holds, 0 elsewhere."""
    return jnp.where(mask, values, 0)


def masked_sum(values: Array, mask: Array, axis=None) -> Array:
    return masked(values, mask).sum(axis=axis)


def masked_mean(values: Array, mask: Array, axis=None) -> Array:
    """Mean over valid positions; 0 where there are none."""
    return masked_sum(values, mask, axis) / jnp.maximum(mask.sum(axis=axis), 1)


def masked_var(values: Array, mask: Array, axis=None) -> Array:
    """Unbiased variance over valid positions, sum((x - mean)^2) / (n - 1); 0 where n < 2."""
    mean = masked_mean(values, mask, axis)
    mean = mean if axis is None else jnp.expand_dims(mean, axis)
    count = mask.sum(axis=axis)
    return masked_sum(jnp.square(masked(values, mask) - mean), mask, axis) / jnp.maximum(count - 1, 1)


def whiten(values: Array, mask: Array, weight_mask: Array | None = None) -> Array:
    """(x - mean) * rsqrt(var + 1e-8) over the whole array, 0 at masked positions.

    The moments are taken where `weight_mask` holds (`mask` unless given): pass the first token of each action there to
    weigh every action once. Unbiased variance; with fewer than two counted positions the values are returned as they are.
    """
    weight_mask = mask if weight_mask is None else weight_mask
    mean, var = masked_mean(values, weight_mask), masked_var(values, weight_mask)
    white = (masked(values, mask) - mean) * jax.lax.rsqrt(var + 1e-8)
    return masked(jnp.where(weight_mask.sum() < 2, masked(values, mask), white), mask)
