"""Wrong versions of the algorithms, each a mistake found in published code, and the checks that must reject it."""

import functools
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from algorithms import checks
from algorithms.checks import System

from eau_jax.algorithms import action, gae, loss, view, whiten
from eau_jax.core.types import Estimate, Steps


class Mutant(NamedTuple):
    """A system with one fault, and every check that has to notice it."""

    name: str
    system: System
    rejected_by: tuple[Callable, ...]


# --- estimators: one backward recursion with one fault each ----------------------------------------------------------

def _recursion(rewards, values, next_values, discounts, mask, lam):
    """Plain backward GAE, [G, K]."""
    def backward(later, step):
        reward, value, next_value, discount, valid = step
        here = reward + discount * next_value - value + lam * discount * later
        return jnp.where(valid, here, later), jnp.where(valid, here, 0.0)
    steps = [x.T for x in (rewards, values, next_values, discounts, mask)]
    return jax.lax.scan(backward, jnp.zeros(rewards.shape[0]), steps, reverse=True)[1].T


def _both(steps: Steps, knobs: gae.Knobs, next_values, discounts, mask) -> Estimate:
    values = steps.values[:, :-1]
    policy, critic = (_recursion(steps.rewards, values, next_values, discounts, mask, lam)
                      for lam in (knobs.policy_lambda, knobs.critic_lambda))
    return Estimate(policy, jnp.where(mask, critic + values, 0.0))


def right_by_loop(steps: Steps, knobs: gae.Knobs) -> Estimate:
    """The reference for the faults below; every check accepts it."""
    next_values = jnp.where(steps.mask & (steps.discounts > 0), steps.values[:, 1:], 0.0)
    return _both(steps, knobs, next_values, knobs.gamma * steps.discounts, steps.mask)


def mask_ignored(steps: Steps, knobs: gae.Knobs) -> Estimate:
    return _both(steps, knobs, steps.values[:, 1:], knobs.gamma * steps.discounts, jnp.ones_like(steps.mask))


def bootstrap_dropped(steps: Steps, knobs: gae.Knobs) -> Estimate:
    inside = jnp.concatenate([steps.mask[:, 1:], jnp.zeros_like(steps.mask[:, :1])], axis=1)
    next_values = jnp.where(inside, steps.values[:, 1:], 0.0)
    return _both(steps, knobs, next_values, knobs.gamma * steps.discounts, steps.mask)


def ended_is_bootstrapped(steps: Steps, knobs: gae.Knobs) -> Estimate:
    return _both(steps, knobs, steps.values[:, 1:], knobs.gamma * jnp.ones_like(steps.discounts), steps.mask)


def discount_one_step_late(steps: Steps, knobs: gae.Knobs) -> Estimate:
    late = jnp.concatenate([jnp.ones_like(steps.discounts[:, :1]), steps.discounts[:, :-1]], axis=1)
    return _both(steps, knobs, jnp.where(steps.mask, steps.values[:, 1:], 0.0), knobs.gamma * late, steps.mask)


def one_lambda_for_both(steps: Steps, knobs: gae.Knobs) -> Estimate:
    return right_by_loop(steps, knobs.replace(critic_lambda=knobs.policy_lambda))


# --- views -----------------------------------------------------------------------------------------------------------

def _view(to_steps: Callable, real: view.View = view.by_action) -> view.View:
    return real._replace(to_steps=functools.partial(to_steps, real))


def unshifted_values(real, trajectory, values):
    """The value after each token in place of the value before it."""
    return real.to_steps(trajectory, jnp.concatenate([values[:, 1:], values[:, -1:]], axis=1))


def observations_are_steps(trajectory, values):
    """The unmasked recursion: one step per token of the episode, observations included."""
    whole = jnp.arange(trajectory.action_ids.shape[1])[None] < trajectory.length[:, None]
    closing = action.last_tokens(trajectory.action_ids)
    return view._steps_at(trajectory, values, whole, closing, trajectory.action_ids.shape[1])


def observations_spread(trajectory, estimate, values):
    is_action = trajectory.action_ids >= 0
    position = jnp.broadcast_to(jnp.arange(is_action.shape[1])[None], is_action.shape)
    return view._spread(estimate, values, position, is_action, is_action)


def _taken(trajectory):
    """True at slots that have tokens, [G, A]."""
    slots = jnp.arange(trajectory.rewards.shape[1])
    return (trajectory.action_ids[:, :, None] == slots[None, None]).any(axis=1)


def rewards_after_the_last_action_lost(real, trajectory, values):
    """A reward paid after the agent's last words, in a slot without tokens, is forgotten."""
    taken = _taken(trajectory)
    slots = jnp.arange(taken.shape[1])[None]
    last = jnp.where(taken, slots, -1).max(axis=1, keepdims=True)
    return real.to_steps(trajectory.replace(rewards=jnp.where(slots <= last, trajectory.rewards, 0.0)), values)


def reward_of_the_last_action_lost(real, trajectory, values):
    """The reward of the action in the very last slot is forgotten, as by a loop that ends one too early."""
    return real.to_steps(trajectory.replace(rewards=trajectory.rewards.at[:, -1].set(0.0)), values)


def reward_on_the_next_observation(real, trajectory, values):
    """A reward is placed on the token after the action; only the next action would collect it."""
    steps = real.to_steps(trajectory, values)
    late = jnp.concatenate([jnp.zeros_like(steps.rewards[:, :1]), steps.rewards[:, :-1]], axis=1)
    return steps.replace(rewards=late)


def boundaries_from_rewards(real, trajectory, values):
    """An action that earns nothing is no step of its own: its tokens join the next action that earns something."""
    slots = trajectory.rewards.shape[1]
    number = jnp.where(trajectory.rewards != 0, jnp.arange(slots)[None], slots - 1)
    number = jax.lax.cummin(number, axis=1, reverse=True)
    ids = jnp.take_along_axis(number, jnp.maximum(trajectory.action_ids, 0), axis=1)
    return real.to_steps(trajectory.replace(action_ids=jnp.where(trajectory.action_ids >= 0, ids, -1)), values)


def gaps_are_steps(real, trajectory, values):
    """The slot number is taken for the step number, so a slot without tokens decays the credit of those before it."""
    steps, taken = real.to_steps(trajectory, values), _taken(trajectory)
    return steps.replace(rewards=trajectory.rewards, mask=jnp.cumsum(taken[:, ::-1], axis=1)[:, ::-1] > 0)


def bootstrap_from_the_end_of_the_row(real, trajectory, values):
    return real.to_steps(trajectory.replace(length=jnp.full_like(trajectory.length, values.shape[1] - 1)), values)


# --- normalisation and losses ----------------------------------------------------------------------------------------

def whitened_over_padding(advantages, action_ids):
    counted = jnp.where(action_ids >= 0, advantages, 0.0)
    white = (counted - counted.mean()) / jnp.sqrt(counted.var(ddof=1) + 1e-8)
    return jnp.where(action_ids >= 0, white, 0.0)


def whitened_by_multiplied_mask(advantages, action_ids):
    """x * mask in place of where: NaN * 0 is NaN."""
    mask = jnp.clip(action_ids + 1, 0, 1)  # not a bool: XLA turns a product with one into a select
    mean = (advantages * mask).sum() / mask.sum()
    var = (jnp.square(advantages - mean) * mask).sum() / (mask.sum() - 1)
    return (advantages - mean) * jax.lax.rsqrt(var + 1e-8) * mask


def biased_variance(advantages, action_ids):
    first = action.first_tokens(action_ids)
    n = first.sum()
    return whiten.over_actions(advantages, action_ids) * jnp.sqrt(n / (n - 1))


def masked_by_multiplication(inputs: dict[str, Any], weights, policy):
    """x * mask in place of where: NaN * 0 is NaN."""
    ratio = jnp.exp(inputs["logprobs"] - inputs["old_logprobs"])
    plain = -inputs["advantages"] * ratio
    clipped = -inputs["advantages"] * jnp.clip(ratio, 1 - policy.clip_low, 1 + policy.clip_high)
    return (jnp.maximum(plain, clipped) * inputs["correction"] * weights * inputs["mask"]).sum()


def correction_is_differentiated(inputs: dict[str, Any], weights, policy):
    """The importance weight computed inside the loss, without a stop: it doubles the gradient."""
    moving = inputs["correction"] * jnp.exp(inputs["logprobs"] - jax.lax.stop_gradient(inputs["logprobs"]))
    mask = inputs["mask"]
    ratio = jnp.exp(jnp.where(mask, inputs["logprobs"] - inputs["old_logprobs"], 0.0))
    return jnp.where(mask, -inputs["advantages"] * ratio * moving * weights, 0.0).sum()


def masked_tokens_count(inputs: dict[str, Any], weights, policy):
    """The mean over the padded length."""
    uniform = jnp.full_like(inputs["logprobs"], 1.0 / inputs["mask"].size)
    return loss.policy_loss(**{**inputs, "mask": jnp.ones_like(inputs["mask"])}, weights=uniform, knobs=policy)[0]


def micro_batch_means_averaged(reduce, action_ids, parts):
    """Every micro-batch is reduced by itself and the results are averaged."""
    flat = np.asarray(action_ids).reshape(-1, action_ids.shape[-1])
    weights = [np.asarray(jax.jit(reduce)(flat[rows][:, None]))[:, 0] for rows in parts]
    return weights, lambda results: sum(results) / len(results)


OBSERVED = view.View(observations_are_steps, observations_spread, "by_token")
MUTANTS = [
    Mutant("mask_ignored", System(estimate=mask_ignored, views=(view.by_action,)), (checks.observations_are_inert,)),
    Mutant("bootstrap_dropped", System(estimate=bootstrap_dropped, views=(view.by_action,)),
           (checks.only_truncated_episodes_are_bootstrapped, checks.lambda_one_is_the_return_minus_the_value)),
    Mutant("ended_is_bootstrapped", System(estimate=ended_is_bootstrapped, views=(view.by_action,)),
           (checks.only_truncated_episodes_are_bootstrapped, checks.observations_are_inert)),
    Mutant("discount_one_step_late", System(estimate=discount_one_step_late, views=(view.by_action,)),
           (checks.only_truncated_episodes_are_bootstrapped,)),
    Mutant("one_lambda_for_both", System(estimate=one_lambda_for_both, views=(view.by_action,)),
           (checks.agrees_with_the_formula,)),
    Mutant("unshifted_values", System(views=(_view(unshifted_values),)),
           (checks.credit_goes_to_the_token_that_earned_it, checks.agrees_with_the_formula)),
    Mutant("unshifted_values_of_one_view", System(views=(_view(unshifted_values, view.by_token), view.by_action)),
           (checks.one_token_actions_make_all_views_equal,)),
    Mutant("observations_are_steps", System(views=(OBSERVED,)),
           (checks.observations_are_inert, checks.observations_may_be_of_any_length,
            checks.skipping_observations_is_deleting_them)),
    Mutant("rewards_after_the_last_action_lost", System(views=(_view(rewards_after_the_last_action_lost),)),
           (checks.rewards_are_conserved, checks.a_terminal_reward_reaches_every_token_whole)),
    Mutant("reward_of_the_last_action_lost", System(views=(_view(reward_of_the_last_action_lost),)),
           (checks.rewards_are_conserved, checks.a_terminal_reward_reaches_every_token_whole)),
    Mutant("reward_on_the_next_observation", System(views=(_view(reward_on_the_next_observation),)),
           (checks.rewards_are_conserved, checks.agrees_with_the_formula)),
    Mutant("boundaries_from_rewards", System(views=(_view(boundaries_from_rewards),)),
           (checks.lambda_zero_is_the_one_step_error,)),
    Mutant("gaps_are_steps", System(views=(_view(gaps_are_steps),)),
           (checks.numbering_of_actions_is_inert,)),
    Mutant("bootstrap_from_the_end_of_the_row", System(views=(_view(bootstrap_from_the_end_of_the_row),)),
           (checks.padding_is_inert,)),
    Mutant("whitened_over_padding", System(over_actions=whitened_over_padding),
           (checks.whitening_ignores_padding, checks.whitened_actions_have_unit_moments)),
    Mutant("tokens_whitened_over_padding", System(over_tokens=whitened_over_padding),
           (checks.whitening_ignores_padding, checks.whitened_tokens_have_unit_moments)),
    Mutant("whitened_by_multiplied_mask", System(over_tokens=whitened_by_multiplied_mask),
           (checks.whitening_ignores_padding,)),
    Mutant("action_counted_by_token", System(over_actions=whiten.over_tokens),
           (checks.whitened_actions_have_unit_moments,)),
    Mutant("biased_variance", System(over_actions=biased_variance), (checks.whitened_actions_have_unit_moments,)),
    Mutant("masked_by_multiplication", System(total_loss=masked_by_multiplication),
           (checks.nothing_leaks_from_masked_tokens,)),
    Mutant("correction_is_differentiated", System(total_loss=correction_is_differentiated),
           (checks.equal_policies_give_the_policy_gradient,)),
    Mutant("masked_tokens_count", System(total_loss=masked_tokens_count),
           (checks.an_empty_minibatch_costs_nothing, checks.nothing_leaks_from_masked_tokens)),
    Mutant("micro_batch_means_averaged", System(accumulated=micro_batch_means_averaged),
           (checks.losses_do_not_depend_on_the_cut,)),
]
