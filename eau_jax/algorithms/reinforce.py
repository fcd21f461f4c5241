"""REINFORCE++: discounted rewards to go, with no critic and no group, standardised over the whole batch.

The standardisation is the config's: `normalise=whiten.over_tokens`, under `by_token`. The KL stays in the loss.
Its variant with a group baseline is `group.dr_grpo` with the same standardisation.

Unbiased with gamma 1, before the standardisation. Gamma 0.8 biases the gradient by 0.42 of its norm in the game of
`tests/algorithms/test_bias.py`.

Reference: Hu et al. 2025 (REINFORCE++), arXiv:2501.03262.
"""

import jax.numpy as jnp
from flax import struct

from eau_jax.algorithms import gae
from eau_jax.algorithms.advantage import Advantage
from eau_jax.core.knobs import knob
from eau_jax.core.types import Array, Estimate, Steps


@struct.dataclass
class Knobs:
    gamma: float = knob(1.0, 0.0, 1.0, "discount per step", reward=True)


def rewards_to_go(steps: Steps, gamma: Array) -> Array:
    """Σ_{j ≥ k} γ^(j − k) r_j, [G, K]; 0 where the mask does not hold. Observations neither discount nor reset it."""
    blind = steps.replace(values=jnp.zeros_like(steps.values))
    return gae.recursion(blind, gamma, jnp.ones((2, 1))).advantages


def estimate(steps: Steps, knobs: Knobs) -> Estimate:
    """A_k = Σ_{j ≥ k} γ^(j − k) r_j.

    Args:
      steps: [G, K]; values are not read, so an episode that was cut counts with what it earned.

    Returns:
      advantages [G, K] float32, 0 where `steps.mask` is False; targets 0.
    """
    advantages = rewards_to_go(steps, knobs.gamma)
    return Estimate(advantages=advantages, targets=jnp.zeros_like(advantages))


reinforce = Advantage(Knobs(), estimate, "reinforce", needs_critic=False)
