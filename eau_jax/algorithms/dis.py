"""Double-sided importance sampling: tokens whose ratio leaves a window are left out, whatever their advantage."""

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
    below: float = knob(0.8, 0.0, 1.0, "ratios up to 1 - below are left out", trust=0.1)
    above: float = knob(3.0, 0.0, 100.0, "ratios from 1 + above on are left out", trust=1.0)


def window(ratio: Array, knobs: Knobs) -> Array:
    """ρ where 1 − below < ρ < 1 + above, else 0."""
    return jnp.where((ratio > 1.0 - knobs.below) & (ratio < 1.0 + knobs.above), ratio, 0.0)


def loss(logprobs: Array, old_logprobs: Array, advantages: Array, correction: Array, weights: Array, mask: Array,
         units: Units, knobs: Knobs) -> tuple[Array, dict[str, Mean]]:
    """−Σ weight · correction · sg(f(ρ)) A log π. Arguments and result as in `loss.PolicyLoss`.

    SAO takes ρ over the sampler's policy; here it is over the learner's before the update, and the correction covers
    the rest. Only the gradient means something, not the value.

    Reference: SAO, arXiv:2607.07508; (0.8, 3) is its setting for agents, (0.3, 5) that for mathematics.
    """
    del units
    chex.assert_equal_shape([logprobs, old_logprobs, advantages, correction, weights, mask])
    log_ratios = log_ratio(logprobs, old_logprobs, mask)
    ratio = jnp.exp(log_ratios)
    kept = window(ratio, knobs)
    factor = jax.lax.stop_gradient(kept * masked(advantages, mask) * masked(correction, mask))
    metrics = {"approx_kl": Mean.of(-log_ratios, mask), "ratio": Mean.of(ratio, mask),
               "left_out": Mean.of(kept == 0, mask)}
    return weighted_sum(-factor * masked(logprobs, mask), weights, mask), metrics


dis = PolicyLoss(Knobs(), loss, "dis")
