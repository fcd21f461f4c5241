"""InfoPO: an action is also rewarded for what the user's answer to it told, by a counterfactual.

The *information gain* of an action is how much likelier its answer made what the policy did next:

    gain(u) = mean over the tokens y of action u+1 of log π_old(y | history, answer) − log π_old(y | history, placeholder)

where the placeholder overwrites the answer in place, so that no position moves. Its expectation is the mutual
information between the answer and the next action. The last action, and one whose answer is blank, have gain 0. The
learner measures it with one more forward pass (`learner/counterfactual.py`); here is the mathematics.

Two things of the released code are not here, because they do nothing. It multiplies the information advantage by
min(1, max(σ_ext, 1) / σ_info), with the stds of both advantages over the batch's action tokens; values that were
standardised, with zeros between, have a std of at most 1, so the factor is 1. And its beta decays by epoch at a rate that
every script sets to 0; here beta is a knob.

It follows another objective than the return, on top of an external advantage that is biased itself. In the game of
`tests/algorithms/test_bias.py`, in groups of three, the bias is 0.18 of the gradient's norm for `infopo`, little more
than GRPO's; 0.25 with beta 10; and 0.45 for `infopo_mean`.

Reference: InfoPO, arXiv:2603.00656.
"""

from typing import Any, Callable

import chex
import jax
import jax.numpy as jnp
from flax import struct

from eau_jax.algorithms import group, span, userrl
from eau_jax.algorithms.advantage import Advantage
from eau_jax.core.knobs import knob
from eau_jax.core.masking import masked, masked_var
from eau_jax.core.types import Array, Estimate, Steps

PLACEHOLDER = "No information found."  # what the authors put in place of an answer


@struct.dataclass
class Knobs:
    beta: float = knob(0.5, 0.0, 10.0, "weight of the information advantage; the authors use 0.5 on UserGym, 0.3 on "
                                       "ColBench, 0.1 on tau2-bench", trust=0.5)
    temperature: float = knob(0.5, 0.01, 10.0, "of the gate, in score units: the smaller, the more the information "
                                               "advantage is kept for groups whose scores tie", log=True)


def gains(logprobs: Array, counterfactual: Array, action_ids: Array, actions: int) -> Array:
    """Information gain of each action, f32[..., A] in nats per token.

    Args:
      logprobs: [..., T], the policy's before the update.
      counterfactual: [..., T], of the same tokens after the placeholder; equal to `logprobs` where there was no answer.
      action_ids: i32[..., T].
      actions: A.
    """
    chex.assert_equal_shape([logprobs, counterfactual, action_ids])

    def episode(difference, ids):
        slot = jnp.where(ids >= 0, ids, actions)                                     # `actions` is dropped
        count = jax.ops.segment_sum(jnp.ones_like(difference), slot, actions)        # [A]
        mean = jax.ops.segment_sum(difference, slot, actions) / jnp.maximum(count, 1)
        after = jax.lax.cummin(jnp.where(count > 0, jnp.arange(actions), actions), reverse=True)
        following = jnp.append(after[1:], actions)                                   # the next slot with tokens
        known = (count > 0) & (following < actions)
        return jnp.where(known, mean[jnp.minimum(following, actions - 1)], 0.0)

    mask = action_ids >= 0
    difference = masked(logprobs, mask) - masked(counterfactual, mask)
    flat = difference.reshape(-1, difference.shape[-1]), action_ids.reshape(-1, action_ids.shape[-1])
    return jax.vmap(episode)(*flat).reshape(*difference.shape[:-1], actions)


def gate(spread: Array, temperature: Array) -> Array:
    """σ(−spread / temperature): ½ where all scores tie, towards 0 where they tell the episodes apart."""
    return jax.nn.sigmoid(-spread / temperature)


def information(steps: Steps) -> Array:
    """The information advantage, [G, K]: gain / steps of the action on each of its steps, standardised over the group's
    values other than 0. Those stay 0, as does a single one."""
    mask = steps.mask
    length = span.lengths(steps.ends, mask)
    each = jnp.where(mask, span.at_end(masked(steps.gains, mask), steps.ends & mask) / jnp.maximum(length, 1), 0.0)
    counted = each != 0
    standard = group.standardised(each.reshape(-1), counted.reshape(-1)).reshape(each.shape)
    return jnp.where(counted & (counted.sum() > 1), standard, 0.0)


def informed(name: str, external: Advantage, score: Callable[[Steps, Any], Array]) -> Advantage:
    """A = A_external + β σ(−std(S) / T) A_information.

    Args:
      external: a critic-free estimator without knobs.
      score: (steps, knobs) -> S [G], the scores whose unbiased std closes the gate.
    """
    def estimate(steps: Steps, knobs: Knobs) -> Estimate:
        outer = external.estimate(steps, external.knobs)
        spread = jnp.sqrt(masked_var(score(steps, knobs), steps.mask.any(axis=-1)))
        inner = knobs.beta * gate(spread, knobs.temperature) * information(steps)
        return outer._replace(advantages=outer.advantages + inner)

    return Advantage(Knobs(), estimate, name, needs_critic=False, needs_gain=True)


infopo = informed("infopo", group.grpo, userrl.total)                      # the score is the sum, as in the released code
infopo_mean = informed("infopo_mean", userrl.equalized_mean, userrl.mean)  # UserRL's released code has the sum per turn
