"""UserRL: what a turn earned shapes the advantage inside an episode, a score of the whole episode sets its size.

Two choices. The *score* S of an episode is compared within the group, f = (S − mean) / (std + 1e-6) as in GRPO. The
*credit* c of each action spreads f over the episode's steps:

    released code   A_k = f c_k N / Σ c      over the N steps with c ≠ 0; 0 where Σ c = 0
    paper           A_k = f c_k              our reading

The paper gives the credits, the scores and GRPO's form of an advantage, (r̃ − mean) / (std + η) over the group; it says
that turn rewards are scaled and put into what the score gives, but no formula for that. f c_k is the plainest one that is
GRPO with equal credits. The variants `paper_*` rest on it: none of the published results is known to.

In the released form the mean advantage over those steps is f itself, whatever the credits' scale. Reward-to-go credits
of an episode that earned nothing are all 0, so failures are never pushed down; exponential mapping keeps them at 1/2.
The released script trains on `equalized_mean`; the best published results are `equalized_r2g`. Under `by_token` the
sum runs over tokens, as in the released code; under `by_action` every action counts once. The released code rounds
scores and mapped rewards to four places; this one does not.

All are biased, as GRPO is and by the credits besides. In the game of `tests/algorithms/test_bias.py`, in groups of
three, by these shares of the gradient's norm: `equalized_total` 0.18, `equalized_r2g` 0.20 (by either formula),
`equalized_mean` 0.45; by the released code `r2g_r2g` 0.28, `em_r2g` 0.34; by the paper's formula `r2g_r2g` 0.37,
`em_r2g` 0.25, `naive_total` 0.72.

Reference: Qian et al. 2025 (UserRL), arXiv:2509.19736, section 4, and its `compute_grpo_multiturn_advantage`.
"""

from typing import Any, Callable

import chex
import jax
import jax.numpy as jnp
from flax import struct

from eau_jax.algorithms import group, span
from eau_jax.algorithms.advantage import Advantage
from eau_jax.core.knobs import knob
from eau_jax.core.masking import masked, masked_sum
from eau_jax.core.types import Array, Estimate, Steps

RATE = 2.0  # k of the exponential mapping


@struct.dataclass
class Knobs:
    gamma: float = knob(0.8, 0.0, 1.0, "discount per action of rewards to go", reward=True)


# --- credit of each step's action, (steps, knobs) -> [G, K] ---

def equalized(steps: Steps, knobs: Any) -> Array:
    """c = 1."""
    return jnp.ones_like(steps.rewards)


def naive(steps: Steps, knobs: Any) -> Array:
    """c_u = r_u. Most rewards are 0, so most actions learn nothing."""
    return span.at_end(masked(steps.rewards, steps.mask), steps.ends)


def reward_to_go(steps: Steps, knobs: Knobs) -> Array:
    """c_u = r_u + γ c_{u+1}, discounted once per action."""
    def backward(later, step):
        reward, closing = step                                                       # [G]
        here = jnp.where(closing, reward + knobs.gamma * later, later)
        return here, here
    closing = steps.ends & steps.mask
    by_step = masked(steps.rewards, closing).T, closing.T
    return jax.lax.scan(backward, jnp.zeros(steps.rewards.shape[0]), by_step, reverse=True)[1].T


def exponential(steps: Steps, knobs: Any) -> Array:
    """c_u = ½ + ½ (1 − exp(−2 r_u)) / (1 − exp(−2)): ½ for no reward, 1 for a reward of 1; rewards are not clipped."""
    return 0.5 + 0.5 * jnp.expm1(-RATE * naive(steps, knobs)) / jnp.expm1(-RATE)


# --- score of the episode, (steps, knobs) -> [G] ---

def total(steps: Steps, knobs: Any) -> Array:
    """S = Σ r: the paper's "Sum"."""
    return masked_sum(steps.rewards, steps.mask, axis=-1)


def mean(steps: Steps, knobs: Any) -> Array:
    """S = Σ r / number of actions: the released code's "Sum", which penalises long dialogues."""
    return total(steps, knobs) / jnp.maximum((steps.ends & steps.mask).sum(axis=-1), 1)


def discounted(steps: Steps, knobs: Knobs) -> Array:
    """S = Σ γ^u r_u, with u = 0 for the first action: "R2G"."""
    return reward_to_go(steps, knobs)[:, 0]


# --- how credits spread f, (f [G], credits [G, K], mask) -> [G, K] ---

def shared_out(size: Array, credits: Array, mask: Array) -> Array:
    """f c N / Σ c, the released code's."""
    credits = masked(credits, mask)
    whole = credits.sum(axis=-1)
    count = (credits != 0).sum(axis=-1)
    share = jnp.where(whole != 0, size * count / jnp.where(whole != 0, whole, 1.0), 0.0)
    return credits * share[:, None]


def product(size: Array, credits: Array, mask: Array) -> Array:
    """f c, our reading of the paper."""
    return masked(credits, mask) * size[:, None]


def estimator(name: str, credit: Callable, score: Callable, spread: Callable = shared_out) -> Advantage:
    """The estimator made of these choices. Its knob is there only if one of them reads it."""
    def estimate(steps: Steps, knobs: Any) -> Estimate:
        chex.assert_equal_shape([steps.rewards, steps.mask, steps.ends])
        chex.assert_type([steps.rewards, steps.mask, steps.ends], [float, bool, bool])
        size = group.standardised(score(steps, knobs), steps.mask.any(axis=-1))
        advantages = masked(spread(size, credit(steps, knobs), steps.mask), steps.mask)
        return Estimate(advantages=advantages, targets=jnp.zeros_like(advantages))

    reads_gamma = credit is reward_to_go or score is discounted
    return Advantage(Knobs() if reads_gamma else group.Knobs(), estimate, name, needs_critic=False)


equalized_mean = estimator("userrl_equalized_mean", equalized, mean)
equalized_total = estimator("userrl_equalized_total", equalized, total)
equalized_r2g = estimator("userrl_equalized_r2g", equalized, discounted)
r2g_r2g = estimator("userrl_r2g_r2g", reward_to_go, discounted)
em_r2g = estimator("userrl_em_r2g", exponential, discounted)
paper_naive_total = estimator("userrl_paper_naive_total", naive, total, product)
paper_equalized_r2g = estimator("userrl_paper_equalized_r2g", equalized, discounted, product)
paper_r2g_r2g = estimator("userrl_paper_r2g_r2g", reward_to_go, discounted, product)
paper_em_r2g = estimator("userrl_paper_em_r2g", exponential, discounted, product)
