"""PPO's clipped surrogate with one importance ratio for a whole action or a whole episode.

The ratio of a unit u is the geometric mean of its tokens' ratios, s_u = exp(mean over u of log π / π_old), so that its
size does not depend on the unit's length. Each token carries it with a gradient of its own,

    ρ_t = sg(s_u) π(t) / sg(π(t))

which is the gradient of the unit's loss when advantage and weight are the same all over the unit, and the sensible one
where they are not. Clip ranges belong to the unit: a mean over many tokens moves far less than a token.
"""

import chex
import jax
import jax.numpy as jnp
from flax import struct

from eau_jax.algorithms.loss import PolicyLoss, Units, clipped_surrogate, log_ratio
from eau_jax.core.knobs import knob
from eau_jax.core.masking import masked
from eau_jax.core.types import Array, Mean


@struct.dataclass
class TurnKnobs:
    clip_low: float = knob(0.2, 0.0, 1.0, "the action's ratio is clipped below 1 - clip_low", trust=0.1)
    clip_high: float = knob(0.2, 0.0, 10.0, "the action's ratio is clipped above 1 + clip_high", trust=0.1)
    dual_clip: float = knob(3.0, 1.0, 1e9, "bound on loss / -advantage where the advantage is negative", log=True)


@struct.dataclass
class SequenceKnobs:
    clip_low: float = knob(3e-4, 1e-6, 1.0, "the episode's ratio is clipped below 1 - clip_low", log=True)
    clip_high: float = knob(4e-4, 1e-6, 10.0, "the episode's ratio is clipped above 1 + clip_high", log=True)
    dual_clip: float = knob(3.0, 1.0, 1e9, "bound on loss / -advantage where the advantage is negative", log=True)


def unit_mean(values: Array, mask: Array, *keys: Array) -> Array:
    """Mean over the counted tokens of each token's unit; 0 off the mask.

    Args:
      values, mask: [..., T].
      keys: i32[..., T]; a unit is a run of counted tokens that agree in all of them, uncounted tokens between or not.
    """
    axis, size = mask.ndim - 1, mask.shape[-1]
    place = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), mask.shape)
    seen = jax.lax.cummax(jnp.where(mask, place, -1), axis=axis)
    before = jnp.concatenate([jnp.full_like(seen[..., :1], -1), seen[..., :-1]], axis=-1)
    differs = [jnp.take_along_axis(key, jnp.maximum(before, 0), axis=-1) != key for key in keys]
    first = mask & ((before < 0) | jnp.stack(differs).any(axis=0))
    unit = jnp.where(mask, jnp.cumsum(first, axis=-1, dtype=jnp.int32) - 1, size)    # `size` is dropped

    def row(values, unit):
        total = jax.ops.segment_sum(values, unit, size)
        count = jax.ops.segment_sum(jnp.ones_like(values), unit, size)
        return (total / jnp.maximum(count, 1))[jnp.minimum(unit, size - 1)]

    flat = masked(values, mask).reshape(-1, size), unit.reshape(-1, size)
    return masked(jax.vmap(row)(*flat).reshape(mask.shape), mask)


def _by_unit(logprobs: Array, old_logprobs: Array, advantages: Array, correction: Array, weights: Array, mask: Array,
             keys: tuple[Array, ...], knobs) -> tuple[Array, dict[str, Mean]]:
    chex.assert_equal_shape([logprobs, old_logprobs, advantages, correction, weights, mask, *keys])
    of_token = log_ratio(logprobs, old_logprobs, mask)
    of_unit = unit_mean(jax.lax.stop_gradient(of_token), mask, *keys)
    moving = masked(logprobs, mask) - jax.lax.stop_gradient(masked(logprobs, mask))  # 0, with the token's gradient
    return clipped_surrogate(of_unit + moving, advantages, correction, weights, mask, knobs)


def turn_loss(logprobs: Array, old_logprobs: Array, advantages: Array, correction: Array, weights: Array, mask: Array,
              units: Units, knobs: TurnKnobs) -> tuple[Array, dict[str, Mean]]:
    """One ratio for each action. Arguments and result as in `loss.PolicyLoss`.

    Reference: Turn-PPO, arXiv:2512.17008. Implementations differ between the sum and the mean of log-ratios; this is
    the mean.
    """
    return _by_unit(logprobs, old_logprobs, advantages, correction, weights, mask, (units.episodes, units.actions), knobs)


def sequence_loss(logprobs: Array, old_logprobs: Array, advantages: Array, correction: Array, weights: Array,
                  mask: Array, units: Units, knobs: SequenceKnobs) -> tuple[Array, dict[str, Mean]]:
    """One ratio for all action tokens of an episode. Arguments and result as in `loss.PolicyLoss`.

    Reference: GSPO, Zheng et al. 2025, arXiv:2507.18071, eq. 14 (the token form).
    """
    return _by_unit(logprobs, old_logprobs, advantages, correction, weights, mask, (units.episodes,), knobs)


turn_ratio = PolicyLoss(TurnKnobs(), turn_loss, "turn_ratio")
sequence_ratio = PolicyLoss(SequenceKnobs(), sequence_loss, "sequence_ratio")
