"""Estimators of KL(policy || reference) from one sampled token, as functions of Δ = log π − log π_ref.

k1 and k3 are unbiased in value, k2 is not; only k2 has the gradient of the reverse KL on policy: the gradient of k1 has
mean zero and that of k3 belongs to the forward KL. Elementwise.

The KL is a term of the loss, never of the rewards: in a recursion over turns it would be a penalty on long turns. A KL in
the rewards that is kept out of that recursion, A_t − coef k1_t per token (AReaL), has on policy the gradient of k2 in the
loss: use k2 where a paper has k1 in the reward.

Reference: Schulman 2020, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html.
"""

import jax.numpy as jnp
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.types import Array

K3_LIMIT = 10.0
STEP_LIMIT = 0.2  # of the relative error that one update of the coefficient follows


@struct.dataclass
class ControlKnobs:
    target: float = knob(0.0, 0.0, 10.0, "KL in nats per token to which its coefficient is steered; 0: it stays", trust=0.05)
    horizon: int = knob(10_000, 1, 100_000_000, "episodes in which the coefficient follows a target", log=True)


def k1(delta: Array) -> Array:
    """Δ; may be negative."""
    return delta


def k2(delta: Array) -> Array:
    """Δ² / 2."""
    return 0.5 * jnp.square(delta)


def k3(delta: Array) -> Array:
    """exp(−Δ) + Δ − 1, at most 10."""
    return jnp.minimum(jnp.expm1(-delta) + delta, K3_LIMIT)


def controlled(coef: Array, measured: Array, count: Array, knobs: ControlKnobs) -> Array:
    """The coefficient of a KL penalty after `count` episodes: coef (1 + clip(KL / target − 1, ±0.2) count / horizon).

    More episodes than the horizon count as the horizon, so that the coefficient stays positive.

    Args:
      coef: [] f32, before; or its factor, since the rule is a product.
      measured: [] f32, KL to the reference in nats per token.

    Returns:
      [] f32; `coef` where the target is 0.

    Reference: Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
    """
    error = jnp.clip(measured / jnp.maximum(knobs.target, 1e-12) - 1.0, -STEP_LIMIT, STEP_LIMIT)
    return jnp.where(knobs.target > 0, coef * (1.0 + error * jnp.minimum(count / knobs.horizon, 1.0)), coef)
