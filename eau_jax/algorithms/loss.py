"""Losses per token, each weighted by a number that is fixed beforehand and then summed.

`weights` come from `reduction.py`, computed over the whole minibatch. So the sum over micro-batches, packed rows or
devices is the loss of the minibatch, whichever way it was cut. Nothing here takes a mean over a batch; metrics are
`Mean`s, which add up as well.

Every function takes arrays of one shape [..., T]; `mask` is True on the tokens that count. Values elsewhere may be
anything, NaN included: neither loss nor gradient sees them. The result is (loss f32[], {name: Mean}).
"""

from typing import Any, Callable, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.masking import masked, masked_sum
from eau_jax.core.types import Array, Mean

LOG_RATIO_LIMIT = 20.0  # exp(20) = 4.9e8 is the largest ratio


@struct.dataclass
class PolicyKnobs:
    clip_low: float = knob(0.2, 0.0, 1.0, "the ratio is clipped below 1 - clip_low; 1 never clips")
    clip_high: float = knob(0.28, 0.0, 10.0, "the ratio is clipped above 1 + clip_high", trust=0.2)
    dual_clip: float = knob(3.0, 1.0, 1e9, "bound on loss / -advantage where the advantage is negative; "
                                           "from 5e8 on it never binds, because the ratio cannot be larger", log=True)


@struct.dataclass
class ValueKnobs:
    clip: float = knob(0.5, 1e-3, 1e6, "how far a value may usefully move from its old one, in reward units; "
                                       "values far above the largest return never clip", log=True)


@struct.dataclass
class EntropyKnobs:
    coef: float = knob(0.0, 0.0, 0.1, "weight of the entropy bonus; 0 turns it off", trust=0.005)


@struct.dataclass
class KlKnobs:
    coef: float = knob(0.001, 0.0, 1.0, "weight of the KL to the reference policy; 0 turns it off", trust=0.01)


class Units(NamedTuple):
    """What each token belongs to, for ratios over more than a token; i32, the shape of the loss's other arrays.

    Along the last axis the tokens of an episode lie together, whole.
    """

    episodes: Array   # a number of its own for each episode of a row
    actions: Array    # `action_ids`: -1 off the mask


class PolicyLoss(NamedTuple):
    """What the policy descends: `token_ratio` below, or a file of its own (`ratio.py`, `sapo.py`, `dis.py`).

    `loss(logprobs, old_logprobs, advantages, correction, weights, mask, units, knobs) -> (f32[], {name: Mean})`: as
    `policy_loss`, with the tokens' units.
    """

    knobs: Any        # a knob dataclass, owner "rl"
    loss: Callable[..., tuple[Array, dict[str, Mean]]]
    name: str


def policy_loss(logprobs: Array, old_logprobs: Array, advantages: Array, correction: Array, weights: Array, mask: Array,
                knobs: PolicyKnobs) -> tuple[Array, dict[str, Mean]]:
    """PPO's clipped surrogate with separate ends and a second clip for negative advantages.

        ρ = exp(clamp(log π − log π_old, ±20))
        L = max(−A ρ, −A clip(ρ, 1 − clip_low, 1 + clip_high));   L ← min(L, −A dual_clip) where A < 0
        loss = Σ weight · correction · L

    Args:
      logprobs: of the policy being differentiated.
      old_logprobs: of the learner's policy before the update.
      advantages: normalised; no gradient.
      correction: importance weight of learner over sampler (`correction.py`); no gradient.

    References: Schulman et al. 2017, arXiv:1707.06347, eq. 7; Ye et al. 2020, arXiv:1912.09729 (dual clip);
    Yu et al. 2025 (DAPO), arXiv:2503.14476, section 3.1 (separate ends).
    """
    chex.assert_equal_shape([logprobs, old_logprobs, advantages, correction, weights, mask])
    return clipped_surrogate(log_ratio(logprobs, old_logprobs, mask), advantages, correction, weights, mask, knobs)


def clipped_surrogate(log_ratios: Array, advantages: Array, correction: Array, weights: Array, mask: Array,
                      knobs: Any) -> tuple[Array, dict[str, Mean]]:
    """The loss of `policy_loss` for given log ρ, from which the gradient comes; knobs as `PolicyKnobs`."""
    advantages = jax.lax.stop_gradient(masked(advantages, mask))
    correction = jax.lax.stop_gradient(masked(correction, mask))
    ratio = jnp.exp(log_ratios)
    plain = -advantages * ratio
    clipped = -advantages * jnp.clip(ratio, 1 - knobs.clip_low, 1 + knobs.clip_high)
    single = jnp.maximum(plain, clipped)
    dual = -advantages * knobs.dual_clip
    per_token = jnp.where(advantages < 0, jnp.minimum(single, dual), single)
    metrics = {
        "clip_fraction_high": Mean.of((clipped > plain) & (advantages > 0), mask),
        "clip_fraction_low": Mean.of((clipped > plain) & (advantages < 0), mask),
        "clip_fraction_dual": Mean.of((single > dual) & (advantages < 0), mask),
        "approx_kl": Mean.of(-log_ratios, mask),
        "ratio": Mean.of(ratio, mask),
    }
    return weighted_sum(correction * per_token, weights, mask), metrics


def _token_ratio(logprobs: Array, old_logprobs: Array, advantages: Array, correction: Array, weights: Array, mask: Array,
                 units: Units, knobs: PolicyKnobs) -> tuple[Array, dict[str, Mean]]:
    del units
    return policy_loss(logprobs, old_logprobs, advantages, correction, weights, mask, knobs)


token_ratio = PolicyLoss(PolicyKnobs(), _token_ratio, "token_ratio")


def entropy_loss(entropy: Array, weights: Array, mask: Array, knobs: EntropyKnobs) -> tuple[Array, dict[str, Mean]]:
    """−coef Σ weight · H, with H the entropy in nats of the distribution that the token was drawn from."""
    chex.assert_equal_shape([entropy, weights, mask])
    return -knobs.coef * weighted_sum(entropy, weights, mask), {"entropy": Mean.of(entropy, mask)}


def kl_loss(logprobs: Array, ref_logprobs: Array, weights: Array, mask: Array, estimator: Callable[[Array], Array],
            knobs: KlKnobs) -> tuple[Array, dict[str, Mean]]:
    """coef Σ weight · k(log π − log π_ref), with `estimator` one of `kl.k1`, `kl.k2`, `kl.k3`; Δ is clamped to ±20.

    The metric is k1's mean, the unbiased one, whichever estimator is trained on.
    """
    chex.assert_equal_shape([logprobs, ref_logprobs, weights, mask])
    delta = log_ratio(logprobs, ref_logprobs, mask)
    return knobs.coef * weighted_sum(estimator(delta), weights, mask), {"kl_to_reference": Mean.of(delta, mask)}


def value_loss(values: Array, old_values: Array, targets: Array, weights: Array, mask: Array,
               knobs: ValueKnobs) -> tuple[Array, dict[str, Mean]]:
    """½ Σ weight · max((V − R)², (clip(V, V_old ± clip) − R)²).

    Args:
      values: of the critic being differentiated.
      old_values: before the update.
      targets: what the critic regresses to; no gradient.
      mask: `Targets.value_mask`.

    Reference: Schulman et al. 2017's code; Huang et al. 2022, "The 37 Implementation Details of PPO", detail 9.
    """
    chex.assert_equal_shape([values, old_values, targets, weights, mask])
    values, old_values = masked(values, mask), jax.lax.stop_gradient(masked(old_values, mask))
    targets = jax.lax.stop_gradient(masked(targets, mask))
    plain = jnp.square(values - targets)
    clipped = jnp.square(jnp.clip(values, old_values - knobs.clip, old_values + knobs.clip) - targets)
    metrics = {
        "value_clip_fraction": Mean.of(clipped > plain, mask),
        "value_error_square": Mean.of(plain, mask),
        "value": Mean.of(values, mask),
    }
    return weighted_sum(0.5 * jnp.maximum(plain, clipped), weights, mask), metrics


def log_ratio(logprobs: Array, other: Array, mask: Array) -> Array:
    """clamp(log π − log π_other, ±20), 0 off the mask; the other has no gradient."""
    difference = masked(logprobs, mask) - jax.lax.stop_gradient(masked(other, mask))
    return jnp.clip(difference, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def weighted_sum(per_token: Array, weights: Array, mask: Array) -> Array:
    """Σ weight · loss over the mask, f32[]."""
    return masked_sum(masked(per_token, mask) * masked(weights, mask), mask)
