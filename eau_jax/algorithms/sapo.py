"""Soft adaptive policy optimisation: a smooth gate in place of the clip."""

import chex
import jax
import jax.numpy as jnp
from flax import struct

from eau_jax.algorithms.loss import PolicyLoss, Units, log_ratio, weighted_sum
from eau_jax.core.knobs import knob
from eau_jax.core.masking import masked
from eau_jax.core.types import Array, Mean


@struct.dataclass
class Knobs:
    rise: float = knob(1.0, 0.1, 10.0, "temperature of the gate where the advantage is positive", log=True)
    fall: float = knob(1.05, 0.1, 10.0, "temperature where it is negative; higher closes the gate sooner", log=True)


def gate(ratio: Array, temperature: Array) -> Array:
    """f(ρ) = 4/τ σ(τ (ρ − 1)): slope 1 at ρ = 1, flat far from it."""
    return 4.0 / temperature * jax.nn.sigmoid(temperature * (ratio - 1.0))


def loss(logprobs: Array, old_logprobs: Array, advantages: Array, correction: Array, weights: Array, mask: Array,
         units: Units, knobs: Knobs) -> tuple[Array, dict[str, Mean]]:
    """−Σ weight · correction · A f(ρ), with τ by the sign of A. Arguments and result as in `loss.PolicyLoss`.

    At ρ = 1 the gradient is that of the policy gradient. Metrics: mean ratio, approximate KL, and the gate's mean slope
    relative to that at ρ = 1.

    Reference: Gao et al. 2025 (SAPO), arXiv:2511.20347.
    """
    del units
    chex.assert_equal_shape([logprobs, old_logprobs, advantages, correction, weights, mask])
    log_ratios = log_ratio(logprobs, old_logprobs, mask)
    ratio = jnp.exp(log_ratios)
    advantages = jax.lax.stop_gradient(masked(advantages, mask))
    temperature = jnp.where(advantages > 0, knobs.rise, knobs.fall)
    opened = gate(ratio, temperature)
    share = opened * temperature / 4.0
    metrics = {"approx_kl": Mean.of(-log_ratios, mask), "ratio": Mean.of(ratio, mask),
               "gate_slope": Mean.of(4.0 * share * (1.0 - share), mask)}
    per_token = -advantages * opened * jax.lax.stop_gradient(masked(correction, mask))
    return weighted_sum(per_token, weights, mask), metrics


sapo = PolicyLoss(Knobs(), loss, "sapo")
