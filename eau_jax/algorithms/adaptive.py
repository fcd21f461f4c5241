"""GAE whose policy lambda depends on the length of the episode, so that long ones keep some credit for early steps.

The length is not known when a step is taken: later errors are weighed by what came of them, so the gradient is slightly
biased even with an exact critic: by 0.03 (`vapo`) and 0.05 (`relative`) of its norm in the game of
`tests/algorithms/test_bias.py`, and by 0.76 and 0.92 with a random critic.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct

from eau_jax.algorithms import gae
from eau_jax.algorithms.advantage import Advantage
from eau_jax.core.knobs import knob
from eau_jax.core.types import Array, Estimate, Steps


@struct.dataclass
class VapoKnobs:
    gamma: float = knob(1.0, 0.0, 1.0, "discount per step", reward=True)
    alpha: float = knob(1.5, 0.01, 100.0, "lambda is 1 - 1 / (alpha steps); VAPO uses 0.05 on thousands of tokens, which "
                                          "is lambda 0 for fewer than 20 steps", log=True)
    critic_lambda: float = knob(1.0, 0.0, 1.0, "of the critic's targets; 1 is the discounted return")


@struct.dataclass
class RelativeKnobs:
    gamma: float = knob(1.0, 0.0, 1.0, "discount per step", reward=True)
    reach: float = knob(0.5, 0.01, 1.0, "share of the last step's error that the first step's advantage keeps")
    critic_lambda: float = knob(1.0, 0.0, 1.0, "of the critic's targets; 1 is the discounted return")


def vapo_lambda(length: Array, alpha: Array) -> Array:
    """λ = 1 − 1 / max(α L, 1), so between 0 and 1."""
    return 1.0 - 1.0 / jnp.maximum(alpha * length, 1.0)


def relative_lambda(length: Array, reach: Array) -> Array:
    """λ = q^(1 / (L − 1)): λ^(L − 1) = q whatever the length. 1 for one step, 0 for none."""
    several = jnp.power(reach, 1.0 / jnp.maximum(length - 1.0, 1.0))
    return jnp.where(length > 1, several, jnp.where(length == 1, 1.0, 0.0))


def estimate_vapo(steps: Steps, knobs: VapoKnobs) -> Estimate:
    """`gae.estimate` with λ = max(0, 1 − 1 / (α L)) in the advantages of an episode of L steps.

    Args:
      steps: [G, K].

    Returns:
      [G, K] float32; 0 where `steps.mask` is False.

    Reference: Yue et al. 2025 (VAPO), arXiv:2504.05118, section 4.2.
    """
    return _estimate(steps, vapo_lambda(_length(steps), knobs.alpha), knobs)


def estimate_relative(steps: Steps, knobs: RelativeKnobs) -> Estimate:
    """`gae.estimate` with λ = q^(1 / (L − 1)) in the advantages of an episode of L steps.

    Arguments and result as in `estimate_vapo`. Reference: AReaL's turn-level GAE (pull request 1600), dynamic lambda.
    """
    return _estimate(steps, relative_lambda(_length(steps), knobs.reach), knobs)


vapo = Advantage(VapoKnobs(), estimate_vapo, "vapo", needs_critic=True)
relative = Advantage(RelativeKnobs(), estimate_relative, "relative", needs_critic=True)


def _length(steps: Steps) -> Array:
    return steps.mask.sum(axis=-1).astype(jnp.float32)                               # [G]


def _estimate(steps: Steps, policy_lambda: Array, knobs: Any) -> Estimate:
    critic_lambda = jnp.broadcast_to(knobs.critic_lambda, policy_lambda.shape)
    return gae.recursion(steps, knobs.gamma, jnp.stack([policy_lambda, critic_lambda]))
