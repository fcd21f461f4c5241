"""Correction of the gap between the policy that sampled and the learner's own, for the same weights.

Two implementations of one network round differently, and a sampler may lag behind; the learner's gradient then holds
for a distribution that nothing was drawn from. Each token's loss is multiplied by the importance weight of the
difference.
`weigh` is called once on the whole batch: two of its metrics do not add up over parts.
"""

from typing import Any, Callable, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import struct

from eau_jax.algorithms.loss import LOG_RATIO_LIMIT
from eau_jax.core.knobs import knob
from eau_jax.core.masking import masked, masked_sum
from eau_jax.core.types import Array, Mean


class Correction(NamedTuple):
    """`weigh(old_logprobs, sampler_logprobs, mask, knobs) -> (weights, metrics)`, arrays [P, G, T].

    Weights are f32, at least 0, without gradient, and 1 where the mask is False.
    """

    knobs: Any                                            # a knob dataclass, owner "rl"
    weigh: Callable[..., tuple[Array, dict[str, Mean]]]
    name: str


@struct.dataclass
class Knobs:
    cap: float = knob(2.0, 1.0, 100.0, "largest importance weight of one token", log=True)


@struct.dataclass
class NoKnobs:
    """Nothing to tune."""


def weigh_truncated(old_logprobs: Array, sampler_logprobs: Array, mask: Array,
                    knobs: Knobs) -> tuple[Array, dict[str, Mean]]:
    """w = min(exp(clamp(log π_old − log π_sampler, ±20)), cap): token-level truncated importance sampling.

    The cap bounds the variance at the price of a bias; a product over the episode would grow without bound with its
    length.

    Metrics beside those of `weigh_none`: share of capped tokens and effective sample size (Σw)² / (n Σw²), 1 at best.

    Reference: Ionides 2008, "Truncated importance sampling"; Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training".
    """
    gap, metrics = measured_gap(old_logprobs, sampler_logprobs, mask)
    ratio = jnp.exp(jnp.clip(gap, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    weights = jax.lax.stop_gradient(jnp.where(mask, jnp.minimum(ratio, knobs.cap), 1.0))
    metrics |= {
        "correction_capped": Mean.of(ratio > knobs.cap, mask),
        "correction_ess": effective_sample_size(weights, mask),
    }
    return weights, metrics


def weigh_none(old_logprobs: Array, sampler_logprobs: Array, mask: Array,
               knobs: NoKnobs) -> tuple[Array, dict[str, Mean]]:
    """w = 1. Metrics: mean and maximum of |log π_old − log π_sampler| in nats."""
    del knobs
    gap, metrics = measured_gap(old_logprobs, sampler_logprobs, mask)
    return jnp.ones_like(gap), metrics


truncated = Correction(Knobs(), weigh_truncated, "truncated")
none = Correction(NoKnobs(), weigh_none, "none")


def effective_sample_size(weights: Array, mask: Array) -> Mean:
    """(Σw)² / (n Σw²) over the mask, 1 at best."""
    square = mask.sum() * masked_sum(jnp.square(weights), mask)
    return _single(jnp.square(masked_sum(weights, mask)) / jnp.where(square > 0, square, 1.0), mask)


def measured_gap(old_logprobs: Array, sampler_logprobs: Array, mask: Array) -> tuple[Array, dict[str, Mean]]:
    """log π_old − log π_sampler, 0 off the mask, and the metrics of `weigh_none`."""
    chex.assert_equal_shape([old_logprobs, sampler_logprobs, mask])
    chex.assert_type([old_logprobs, sampler_logprobs, mask], [float, float, bool])
    gap = masked(old_logprobs, mask) - masked(sampler_logprobs, mask)
    return gap, {"sampler_gap": Mean.of(jnp.abs(gap), mask), "sampler_gap_max": _single(jnp.abs(gap).max(), mask)}


def _single(value: Array, mask: Array) -> Mean:
    """A number for the whole batch as a Mean of one; of none where no token counts."""
    counted = mask.any()
    return Mean(jnp.where(counted, value, 0.0), counted.astype(jnp.float32))
