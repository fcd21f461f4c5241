"""Critic-free baselines: an episode is compared with the other episodes of its task.

The score S of an episode is the sum of its rewards and every step of it gets the same advantage. Episodes without a
valid step (dropped, or never acted) are not members of the group. A group of one has nothing to compare with and keeps
A = S. A group whose scores are all equal carries no signal and gets exactly 0: rounding is never divided by a vanishing
std.

Of the three only `rloo` has the policy gradient as its mean. `dr_grpo` has (n − 1) / n of it, a bias of 1 / n: 0.33 in
groups of three. `grpo` divides by a std that knows the member's own score, which changes its direction as well: 0.18 of
the gradient's norm in the game of `tests/algorithms/test_bias.py`, in groups of three.
"""

import chex
import jax.numpy as jnp
from flax import struct

from eau_jax.algorithms.advantage import Advantage
from eau_jax.core.masking import masked_mean, masked_sum, masked_var
from eau_jax.core.types import Array, Estimate, Steps

STD_EPS = 1e-6   # GRPO's own
TIE_EPS = 1e-6   # scores within this share of the largest are equal up to the rounding of a sum of rewards


@struct.dataclass
class Knobs:
    """Group baselines have nothing to tune."""


def estimate_grpo(steps: Steps, knobs: Knobs) -> Estimate:
    """A_g = (S_g − mean(S)) / (std(S) + 1e-6), with the unbiased std.

    Args:
      steps: [G, K]; values and discounts are not read.

    Returns:
      advantages [G, K] float32, 0 where `steps.mask` is False; targets 0.

    Reference: Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300, section 4.1.
    """
    del knobs
    return spread(standardised(*scored(steps)), steps)


def estimate_dr_grpo(steps: Steps, knobs: Knobs) -> Estimate:
    """A_g = S_g − mean(S): without the std, which overweighs tasks that are nearly always or nearly never solved.

    Reference: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783. Arguments and result as in `estimate_grpo`.
    """
    del knobs
    return spread(centred(*scored(steps)), steps)


def estimate_rloo(steps: Steps, knobs: Knobs) -> Estimate:
    """A_g = S_g − mean(S of the other members) = n / (n − 1) · (S_g − mean(S)).

    Reference: Ahmadian et al. 2024, arXiv:2402.14740. Arguments and result as in `estimate_grpo`.
    """
    del knobs
    scores, members = scored(steps)
    count = members.sum()
    scale = jnp.where(count > 1, count / jnp.maximum(count - 1, 1), 1.0)
    return spread(centred(scores, members) * scale, steps)


grpo = Advantage(Knobs(), estimate_grpo, "grpo", needs_critic=False)
dr_grpo = Advantage(Knobs(), estimate_dr_grpo, "dr_grpo", needs_critic=False)
rloo = Advantage(Knobs(), estimate_rloo, "rloo", needs_critic=False)


def scored(steps: Steps) -> tuple[Array, Array]:
    """Score f32[G] and membership bool[G] of each episode."""
    chex.assert_rank([steps.rewards, steps.mask], 2)
    chex.assert_equal_shape([steps.rewards, steps.mask])
    chex.assert_type([steps.rewards, steps.mask], [float, bool])
    return masked_sum(steps.rewards, steps.mask, axis=-1), steps.mask.any(axis=-1)


def centred(scores: Array, members: Array) -> Array:
    """S − mean(S), [G]; 0 in a group without spread, S itself in a group of one."""
    high = jnp.where(members, scores, -jnp.inf).max()
    low = jnp.where(members, scores, jnp.inf).min()
    tie = high - low <= TIE_EPS * jnp.maximum(jnp.abs(high), jnp.abs(low))
    apart = jnp.where(tie, 0.0, scores - masked_mean(scores, members))
    return jnp.where(members.sum() > 1, apart, scores)


def standardised(scores: Array, members: Array) -> Array:
    """(S − mean(S)) / (std(S) + 1e-6), [G], with the unbiased std; S itself in a group of one."""
    std = jnp.where(members.sum() > 1, jnp.sqrt(masked_var(scores, members)), 1.0)
    return centred(scores, members) / (std + STD_EPS)


def spread(advantages: Array, steps: Steps) -> Estimate:
    """One advantage per episode [G] to all its valid steps [G, K]."""
    by_step = jnp.where(steps.mask, advantages[:, None], 0.0)
    return Estimate(advantages=by_step, targets=jnp.zeros_like(by_step))
