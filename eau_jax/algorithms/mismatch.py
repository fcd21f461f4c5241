"""Further corrections of the gap between sampler and learner: by whole episodes, by windows, by rejection.

Every weight is a function of ρ_t = π_old(t) / π_sampler(t), with |log ρ| at most 20. A weight of 0 leaves a token out of
the gradient but not out of the loss's denominator, which was fixed by the action tokens. With any of them the policy
loss is decoupled PPO (Hilton et al. 2022, arXiv:2110.00641): L = −w min(ρ A, clip(ρ) A), w = sg(π_old / π_sampler).

Metrics beside those of `correction.weigh_none`: `correction_ess`, (Σw)² / (n Σw²) over action tokens, and
`correction_dropped`, the share of action tokens whose weight is 0; with a cap, `correction_capped`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from eau_jax.algorithms.correction import Correction, effective_sample_size, measured_gap
from eau_jax.algorithms.loss import LOG_RATIO_LIMIT
from eau_jax.core.knobs import knob
from eau_jax.core.masking import masked_mean, masked_sum
from eau_jax.core.types import Array, Mean


@struct.dataclass
class SequenceKnobs:
    cap: float = knob(2.0, 1.0, 100.0, "largest importance weight of one episode", log=True)


@struct.dataclass
class WindowKnobs:
    low: float = knob(0.5, 0.0, 1.0, "tokens whose ratio lies below are left out", trust=0.2)
    high: float = knob(5.0, 1.0, 100.0, "tokens whose ratio lies above are left out", log=True)


@struct.dataclass
class RejectKnobs:
    low: float = knob(0.999, 0.0, 1.0, "episodes whose geometric mean ratio lies below are left out", trust=0.1)
    high: float = knob(1.001, 1.0, 100.0, "episodes whose geometric mean ratio lies above are left out", log=True)
    veto: float = knob(1e-4, 0.0, 1.0, "an episode with any token ratio below this is left out; 0 turns it off", trust=1e-3)


def weigh_sequence(old_logprobs: Array, sampler_logprobs: Array, mask: Array,
                   knobs: SequenceKnobs) -> tuple[Array, dict[str, Mean]]:
    """w = min(Π ρ_t over the episode's action tokens, cap), the same on all of them.

    The product is the episode's true importance weight, but a ratio of 1.1 on each of 100 tokens makes 13 781 of it.
    """
    gap, metrics = measured_gap(old_logprobs, sampler_logprobs, mask)
    product = jnp.exp(_limited(masked_sum(gap, mask, axis=-1)))[..., None]
    weights = jnp.broadcast_to(jnp.minimum(product, knobs.cap), gap.shape)
    capped = Mean.of(jnp.broadcast_to(product > knobs.cap, gap.shape), mask)
    return _finish(weights, mask, metrics | {"correction_capped": capped})


def weigh_window(old_logprobs: Array, sampler_logprobs: Array, mask: Array,
                 knobs: WindowKnobs) -> tuple[Array, dict[str, Mean]]:
    """w = ρ_t where low ≤ ρ_t ≤ high, else 0 (IcePop; masked importance sampling).

    Reference: Ling team 2025 (Ring-1T), arXiv:2510.18855.
    """
    gap, metrics = measured_gap(old_logprobs, sampler_logprobs, mask)
    ratio = jnp.exp(_limited(gap))
    return _finish(jnp.where((ratio >= knobs.low) & (ratio <= knobs.high), ratio, 0.0), mask, metrics)


def weigh_reject(old_logprobs: Array, sampler_logprobs: Array, mask: Array,
                 knobs: RejectKnobs) -> tuple[Array, dict[str, Mean]]:
    """w = 1 for episodes with low ≤ (Π ρ_t)^(1/n) ≤ high and no ρ_t below veto, else 0 on all their tokens.

    The geometric mean does not grow with the length of the episode, so one window fits all. Window and veto are those that
    verl's documentation of rollout correction advises.
    """
    gap, metrics = measured_gap(old_logprobs, sampler_logprobs, mask)
    geometric = jnp.exp(_limited(masked_mean(gap, mask, axis=-1)))[..., None]
    worst = jnp.exp(_limited(jnp.where(mask, gap, jnp.inf).min(axis=-1)))[..., None]
    kept = (geometric >= knobs.low) & (geometric <= knobs.high) & (worst >= knobs.veto)
    return _finish(jnp.broadcast_to(kept, gap.shape).astype(jnp.float32), mask, metrics)


sequence = Correction(SequenceKnobs(), weigh_sequence, "sequence")
icepop = Correction(WindowKnobs(), weigh_window, "icepop")
reject = Correction(RejectKnobs(), weigh_reject, "reject")


def _limited(log_ratio: Array) -> Array:
    return jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _finish(weights: Array, mask: Array, metrics: dict[str, Any]) -> tuple[Array, dict[str, Mean]]:
    weights = jax.lax.stop_gradient(jnp.where(mask, weights, 1.0))
    return weights, metrics | {"correction_dropped": Mean.of(weights == 0, mask),
                               "correction_ess": effective_sample_size(weights, mask)}
