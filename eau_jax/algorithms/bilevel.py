"""Bi-level GAE: one recursion over actions, then one over the tokens inside each action.

Use it under `by_token`. Under `by_action` an action is one step and only the first recursion is left.

Unbiased under the conditions of `gae.py`: both gammas 1, and lambdas 1 or an exact critic. The published gamma of 0.95 per
action biases the gradient by 0.05 of its norm in the game of `tests/algorithms/test_bias.py` (0.06 with RAGEN's boundaries).
"""

from typing import Callable

import chex
import jax
import jax.numpy as jnp
from flax import struct

from eau_jax.algorithms.advantage import Advantage
from eau_jax.core.knobs import knob
from eau_jax.core.masking import masked
from eau_jax.core.types import Array, Estimate, Steps


@struct.dataclass
class Knobs:
    action_gamma: float = knob(0.95, 0.0, 1.0, "discount per action", reward=True)
    action_lambda: float = knob(1.0, 0.0, 1.0, "decay per action of later errors")
    token_gamma: float = knob(1.0, 0.0, 1.0, "discount per token inside an action", reward=True)
    token_lambda: float = knob(1.0, 0.0, 1.0, "decay per token of later errors inside an action")


def explicit(steps: Steps) -> Array:
    """The actions' own boundaries: an action without a reward counts as well."""
    return steps.ends & steps.mask


def by_reward(steps: Steps) -> Array:
    """RAGEN's boundaries: steps with a reward other than 0, and the episode's last. With a terminal reward alone this
    is token GAE of the whole episode."""
    after = jnp.pad(steps.mask, ((0, 0), (0, 1)))[:, 1:]
    return steps.mask & ((masked(steps.rewards, steps.mask) != 0) | ~after)


def estimate(steps: Steps, knobs: Knobs, boundaries: Callable[[Steps], Array] = explicit) -> Estimate:
    """With e the last step of an action, e′ that of the next, and k′ = k + 1 inside the action:

        δ_e = r_e + γ_a d_e V_{e′} − V_e;      H_e = δ_e + γ_a λ_a d_e H_{e′}
        δ_k = γ_t V_{k′} − V_k  (k < e);       δ_e = (H_e + V_e) − V_e
        A_k = δ_k + γ_t λ_t A_{k′},  A_e = H_e;  target_k = A_k + V_k

    V_{e′} after the last action is the value after the episode where it was cut, 0 where the task ended. With both
    gammas and lambdas 1 every advantage is the return minus the step's value, as in plain GAE.

    Args:
      steps: [G, K].
      boundaries: steps [G, K] -> bool [G, K], `explicit` or `by_reward`.

    Returns:
      [G, K] float32; 0 where `steps.mask` is False.

    References: Wang et al. 2025 (VAGEN), arXiv:2510.16907; Wang et al. 2025 (RAGEN), arXiv:2504.20073, and its
    `compute_bi_level_gae_advantage_return`.
    """
    chex.assert_equal_shape([steps.rewards, steps.values[:, :-1], steps.discounts, steps.mask, steps.ends])
    chex.assert_type([steps.rewards, steps.values, steps.discounts, steps.mask], [float, float, float, bool])
    mask, closing = steps.mask, boundaries(steps)
    rewards, values = masked(steps.rewards, mask), masked(steps.values[:, :-1], mask)
    discounts = masked(steps.discounts, mask)
    count = mask.sum(axis=-1, keepdims=True)                                         # [G, 1]
    ended = (mask & (steps.discounts <= 0)).any(axis=-1)
    final = jnp.where(ended | (count[:, 0] == 0), 0.0, jnp.take_along_axis(steps.values, count, axis=-1)[:, 0])

    def over_actions(later, step):
        next_value, next_advantage = later                                           # [G]
        reward, value, discount, closes = step
        decay = knobs.action_gamma * discount
        here = reward + decay * next_value - value + decay * knobs.action_lambda * next_advantage
        return (jnp.where(closes, value, next_value), jnp.where(closes, here, next_advantage)), here

    def over_tokens(later, step):
        next_value, next_advantage = later
        value, high, closes, valid = step
        error = knobs.token_gamma * next_value - value
        here = jnp.where(closes, high, error + knobs.token_gamma * knobs.token_lambda * next_advantage)
        return (jnp.where(valid, value, next_value), jnp.where(valid, here, next_advantage)), jnp.where(valid, here, 0.0)

    zero = jnp.zeros_like(final)
    _, high = jax.lax.scan(over_actions, (final, zero), (rewards.T, values.T, discounts.T, closing.T), reverse=True)
    _, low = jax.lax.scan(over_tokens, (zero, zero), (values.T, high, closing.T, mask.T), reverse=True)
    return Estimate(advantages=low.T, targets=masked(low.T + values, mask))


def estimate_by_reward(steps: Steps, knobs: Knobs) -> Estimate:
    """`estimate` with RAGEN's boundaries."""
    return estimate(steps, knobs, by_reward)


bilevel = Advantage(Knobs(), estimate, "bilevel", needs_critic=True)
bilevel_by_reward = Advantage(Knobs(), estimate_by_reward, "bilevel_by_reward", needs_critic=True)
