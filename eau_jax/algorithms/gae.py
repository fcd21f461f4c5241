"""Generalised advantage estimation (Schulman et al. 2016), with a lambda of its own for the critic's targets.

The gradient is unbiased whatever the critic with gamma and lambda 1, and for any lambda with an exact critic, where the
value of a step is that of the state before it. Otherwise it is not. In the game of `tests/algorithms/test_bias.py` the
bias, in units of the gradient's norm, is 2.42 for lambda 0.5 with a random critic; 0.22 for gamma 0.8; and 0.52 for
lambda 1 under `by_action_end` with a random critic, whose value has seen most of the action that it is subtracted from.
"""

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
    gamma: float = knob(1.0, 0.0, 1.0, "discount per step", reward=True)
    policy_lambda: float = knob(0.95, 0.0, 1.0, "decay per step of later errors in the advantage: 0 trusts the critic, "
                                                "1 trusts the return")
    critic_lambda: float = knob(1.0, 0.0, 1.0, "the same for the critic's targets; 1 is the discounted return")


def estimate(steps: Steps, knobs: Knobs) -> Estimate:
    """Advantages and lambda-returns by one backward pass over the steps.

        δ_k = r_k + γ d_k V_{k+1} − V_k
        A_k = δ_k + γ λ d_k A_{k+1}          once with policy_lambda, once with critic_lambda
        target_k = A_k(critic_lambda) + V_k

    A truncated episode (d = 1 at its last step) is bootstrapped with the value column after that step; a terminated one
    (d = 0) is not, whatever that column holds. λ = 1 gives the discounted return minus V, λ = 0 the one-step error δ.
    Separate lambdas let the critic regress to the unbiased return while the policy's advantages keep a low variance
    (VC-PPO, Yuan et al. 2025, arXiv:2503.01491).

    Args:
      steps: [G, K].
      knobs: gamma and both lambdas in [0, 1], per step.

    Returns:
      [G, K] float32; 0 where `steps.mask` is False.

    Reference: Schulman et al. 2016, arXiv:1506.02438, eq. 16.
    """
    lambdas = jnp.stack([knobs.policy_lambda, knobs.critic_lambda])[:, None]         # [2, 1]
    return recursion(steps, knobs.gamma, lambdas)


def recursion(steps: Steps, gamma: Array, lambdas: Array) -> Estimate:
    """The two passes of `estimate`, for estimators that choose lambda otherwise.

    Args:
      lambdas: [2, 1] or [2, G] f32, of the advantages and of the critic's targets.
    """
    chex.assert_rank([steps.rewards, steps.values, lambdas], 2)
    chex.assert_equal_shape([steps.rewards, steps.values[:, :-1], steps.discounts, steps.mask])
    chex.assert_type([steps.rewards, steps.values, steps.discounts, steps.mask], [float, float, float, bool])
    mask = steps.mask
    values = masked(steps.values[:, :-1], mask)                                      # [G, K]
    next_values = masked(steps.values[:, 1:], mask & (steps.discounts > 0))          # [G, K]
    discounts = gamma * masked(steps.discounts, mask)                          # [G, K]
    errors = masked(steps.rewards, mask) + discounts * next_values - values          # [G, K]

    def backward(later, step):
        error, discount, valid = step                                                # [1, G]
        here = jnp.where(valid, error + lambdas * discount * later, later)           # [2, G]
        return here, jnp.where(valid, here, 0.0)

    by_step = [x.T[:, None] for x in (errors, discounts, mask)]                      # [K, 1, G]
    start = jnp.zeros((2, errors.shape[0]), jnp.float32)
    _, advantages = jax.lax.scan(backward, start, by_step, reverse=True)             # [K, 2, G]
    return Estimate(advantages=advantages[:, 0].T, targets=advantages[:, 1].T + values)


gae = Advantage(Knobs(), estimate, "gae", needs_critic=True)
