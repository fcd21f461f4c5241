"""Views: what one decision step is. A view turns a trajectory into steps and spreads an estimate back over its tokens.

Observation tokens are never steps: neither their number nor their values can reach an advantage. A step's reward and
discount are those of its action, at the action's last step. Every slot of `Trajectory.rewards` counts: a slot without
tokens adds its reward, and its end of the task, to the action before it (to the first action where none is before).
Slots that pad the array therefore hold reward 0 and discount 1.
"""

from typing import Callable, NamedTuple

import chex
import jax
import jax.numpy as jnp

from eau_jax.algorithms import action
from eau_jax.core.types import Array, Estimate, Steps, Trajectory


class View(NamedTuple):
    """Two pure functions over one group, leading axis [G].

    `to_steps(trajectory, values f32[G, T+1]) -> Steps`: values[g, t] = V(tokens[:t]), so column `length` is the value
    after the last token, which bootstraps a truncated episode.
    `to_tokens(trajectory, estimate, values) -> (advantages f32[G, T], value_targets f32[G, T], value_mask bool[G, T])`:
    advantages are 0 off action tokens; a target is the value itself where there is none.
    """

    to_steps: Callable[[Trajectory, Array], Steps]
    to_tokens: Callable[[Trajectory, Estimate, Array], tuple[Array, Array, Array]]
    name: str


def token_steps(trajectory: Trajectory, values: Array) -> Steps:
    """K = T: one step per action token; γ and λ count tokens. Reward and discount sit on the action's last token."""
    ids = trajectory.action_ids
    return _steps_at(trajectory, values, ids >= 0, action.last_tokens(ids), ids.shape[-1])


def first_token_steps(trajectory: Trajectory, values: Array) -> Steps:
    """K = A: one step per action, with the value of the state before it, read at its first token."""
    first = action.first_tokens(trajectory.action_ids)
    return _steps_at(trajectory, values, first, first, trajectory.rewards.shape[-1])


def last_token_steps(trajectory: Trajectory, values: Array) -> Steps:
    """K = A: one step per action, with the value just before its last token is emitted."""
    last = action.last_tokens(trajectory.action_ids)
    return _steps_at(trajectory, values, last, last, trajectory.rewards.shape[-1])


def per_token(trajectory: Trajectory, estimate: Estimate, values: Array) -> tuple[Array, Array, Array]:
    """Step k belongs to the k-th action token."""
    is_action = trajectory.action_ids >= 0
    return _spread(estimate, values, jnp.cumsum(is_action, axis=-1) - 1, is_action, is_action)


def per_action(trajectory: Trajectory, estimate: Estimate, values: Array) -> tuple[Array, Array, Array]:
    """Step k belongs to all tokens of the k-th action; each of them is a target of the critic."""
    is_action = trajectory.action_ids >= 0
    return _spread(estimate, values, action.ranks(trajectory.action_ids), is_action, is_action)


def per_action_end(trajectory: Trajectory, estimate: Estimate, values: Array) -> tuple[Array, Array, Array]:
    """As `per_action`, but the critic has a target only at the action's last token, the one whose value was used."""
    ids = trajectory.action_ids
    return _spread(estimate, values, action.ranks(ids), ids >= 0, action.last_tokens(ids))


by_token = View(token_steps, per_token, "by_token")
by_action = View(first_token_steps, per_action, "by_action")
by_action_end = View(last_token_steps, per_action_end, "by_action_end")


def _steps_at(trajectory: Trajectory, values: Array, chosen: Array, closing: Array, size: int) -> Steps:
    """A step at every `chosen` token, valid steps first.

    Args:
      trajectory: [G].
      values: [G, T+1] f32.
      chosen: [G, T] bool: tokens whose value is a step's value.
      closing: [G, T] bool: chosen tokens that take their action's reward and discount, one per action.
      size: K, at least the number of chosen tokens of any episode.
    """
    chex.assert_rank([trajectory.action_ids, values], 2)
    chex.assert_equal_shape([trajectory.action_ids, values[:, :-1]])
    chex.assert_equal_shape([trajectory.rewards, trajectory.discounts])
    chex.assert_type([trajectory.rewards, trajectory.discounts, values], float)

    def episode(trajectory, values, chosen, closing):
        target = jnp.where(chosen, jnp.cumsum(chosen) - 1, size + 1)                 # [T]; size + 1 is dropped
        rank = jnp.maximum(action.ranks(trajectory.action_ids), 0)                   # [T]
        rewards, discounts = _fold_slots(trajectory)                                 # [A]
        bootstrap = values[trajectory.length]
        return Steps(
            rewards=jnp.zeros(size).at[target].set(jnp.where(closing, rewards[rank], 0.0), mode="drop"),
            values=jnp.full(size + 1, bootstrap).at[target].set(values[:-1], mode="drop"),
            discounts=jnp.ones(size).at[target].set(jnp.where(closing, discounts[rank], 1.0), mode="drop"),
            mask=jnp.arange(size) < chosen.sum(),
            ends=jnp.zeros(size, bool).at[target].set(closing, mode="drop"),
            gains=jnp.zeros(size),
        )

    return jax.vmap(episode)(trajectory, values, chosen, closing)


def _fold_slots(trajectory: Trajectory) -> tuple[Array, Array]:
    """Reward and discount of the k-th action that has tokens, [A] each, for one episode."""
    ids, slots = trajectory.action_ids, trajectory.rewards.shape[-1]
    present = jnp.zeros(slots, jnp.int32).at[jnp.where(ids >= 0, ids, slots)].set(1, mode="drop")
    rank = jnp.maximum(jnp.cumsum(present) - 1, 0)
    rewards = jnp.zeros(slots).at[rank].add(trajectory.rewards)
    discounts = jnp.ones(slots).at[rank].min(trajectory.discounts)
    return rewards, discounts


def _spread(estimate: Estimate, values: Array, step: Array, is_action: Array, value_mask: Array):
    """Gathers each token's step; `step` [G, T] i32 is read where `is_action` holds."""
    chex.assert_equal_shape([estimate.advantages, estimate.targets])
    step = jnp.where(is_action, step, 0)
    advantages = jnp.take_along_axis(estimate.advantages, step, axis=-1)             # [G, T]
    targets = jnp.take_along_axis(estimate.targets, step, axis=-1)                   # [G, T]
    return jnp.where(is_action, advantages, 0.0), jnp.where(value_mask, targets, values[:, :-1]), value_mask
