"""Estimators of KL(policy || reference) from one sampled token, as functions of Δ = log π − log π_ref.

k1 and k3 are unbiased in value, k2 is not; only k2 has the gradient of the reverse KL on policy: the gradient of k1 has
mean zero and that of k3 belongs to the forward KL. Elementwise.

Reference: Schulman 2020, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html.
"""

import jax.numpy as jnp

from eau_jax.core.types import Array

K3_LIMIT = 10.0
STEP_LIMIT = 0.2  # of the relative error that one update of the coefficient follows


def k1(delta: Array) -> Array:
    """Δ; may be negative."""
    return delta


def k2(delta: Array) -> Array:
    """Δ² / 2."""
    return 0.5 * jnp.square(delta)


def k3(delta: Array) -> Array:
    """exp(−Δ) + Δ − 1, at most 10."""
    return jnp.minimum(jnp.expm1(-delta) + delta, K3_LIMIT)


def controlled(coef: float, measured: float, target: float, count: int, horizon: int) -> float:
    """The coefficient of a KL penalty after `count` episodes: coef (1 + clip(KL / target − 1, ±0.2) count / horizon).

    The loop holds the coefficient fixed, as a knob; this is the rule for whoever moves it towards a target KL (nats).

    Reference: Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
    """
    error = min(max(measured / target - 1.0, -STEP_LIMIT), STEP_LIMIT)
    return coef * (1.0 + error * count / horizon)
