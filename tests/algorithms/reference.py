"""Where each numeric oracle (T1 to T25) and each property (P1 to P14) of the reference, section 9, is tested, and a mistake
that its test must notice.

A row is a test and a mutant: `owner.name` is replaced by `wrong`, and the test must fail. Properties that are checks of
`checks.py` have their mutants in `mutants.py`.
"""

from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from algorithms import (checks, mutants, test_adaptive, test_bilevel, test_corrections, test_infopo, test_oracles,
                        test_policy_losses, test_reductions, test_reported, test_shaping, test_toy_learning, test_userrl)

from eau_jax.algorithms import (adaptive, bilevel, correction, dis, estimate, gae, group, infopo, keep, kl, loss, mismatch,
                                ratio, reduction, sapo, shaping, userrl, view, whiten)
from eau_jax.eval import numbers
from eau_jax.users.rules import decide


class Row(NamedTuple):
    """One test of a number, and one mutant that must fail it."""

    number: str
    test: Callable
    owner: Any = None    # None: the test is a check, and `mutants.py` has its mutants
    name: str = ""
    wrong: Any = None


# --- mistakes --------------------------------------------------------------------------------------------------------

TRUE_GAINS, TRUE_INFORMED, TRUE_AVERAGES, TRUE_HAT = infopo.gains, infopo.informed, numbers.averages, numbers.pass_hat
TRUE_DRAW = test_reported.draw
RECURSION, BILEVEL, GAE = gae.recursion, bilevel.estimate, gae.estimate
VALUE_LOSS, POLICY_LOSS, LOG_RATIO = loss.value_loss, loss.policy_loss, loss.log_ratio
LATE = view.by_action._replace(to_steps=lambda trajectory, values: view.first_token_steps(
    trajectory, jnp.concatenate([values[:, 1:], values[:, -1:]], axis=1)))


def lambda_ignored(steps, gamma, lambdas):
    return RECURSION(steps, gamma, jnp.ones_like(lambdas))


def reset_at_observations(steps, knobs):
    return GAE(steps.replace(discounts=jnp.where(steps.ends, 0.0, steps.discounts)), knobs)


def one_action(steps, knobs, boundaries=bilevel.explicit):
    """The carry runs on across the ends of actions."""
    return BILEVEL(steps.replace(ends=steps.mask & ~jnp.pad(steps.mask, ((0, 0), (0, 1)))[:, 1:]), knobs)


def discounted_actions(steps, knobs):
    return BILEVEL(steps, knobs.replace(action_gamma=np.float32(.95)))


def every_token_is_a_step(trajectory, values):
    """The unmasked recursion: observations have rewards of 0 and values, and the task ends with the row."""
    steps = mutants.observations_are_steps(trajectory, values)
    ended = (trajectory.discounts <= 0).any(axis=-1, keepdims=True)
    last = jnp.arange(steps.mask.shape[1])[None] == trajectory.length[:, None] - 1
    return steps.replace(discounts=jnp.where(last & ended, 0.0, 1.0))


def largest(values, mask, axis=None):
    return jnp.where(mask, values, 0).max(axis=axis)


def population_whiten(values, mask, weight_mask=None):
    counted = mask if weight_mask is None else weight_mask
    picked = np.asarray(values)[np.asarray(counted)]
    return jnp.where(mask, (values - picked.mean()) / (picked.std() + 1e-8), 0.0)


def population_std(scores, members):
    return group.centred(scores, members) / (jnp.std(scores, where=members) + group.STD_EPS)


def mean_over_the_row(action_ids):
    return jnp.full(action_ids.shape, 1.0 / action_ids.size)


def uncapped(old_logprobs, sampler_logprobs, mask, knobs):
    return correction.weigh_truncated(old_logprobs, sampler_logprobs, mask, knobs.replace(cap=np.float32(1e6)))


def with_replacement(successes, trials, k):
    return float(np.mean([(c / n) ** k for c, n in zip(successes, trials, strict=True)]))


def any_task(successes, trials, k):
    return float(np.mean([c > 0 for c in successes]))


def square_error(targets, values, mask):
    """1 - E[(R - V)^2] / Var(R), which a constant offset lowers."""
    error = jnp.where(mask, targets - values, 0.0)
    right = estimate.masked_var(targets, mask)
    return estimate.Mean(1 - jnp.square(error).sum() / mask.sum() / jnp.where(right > 0, right, 1.0), jnp.float32(1))


def dual_clip_off(*arguments):
    return POLICY_LOSS(*arguments[:-1], arguments[-1].replace(dual_clip=np.float32(1e9)))


def correction_ignored(logprobs, old_logprobs, advantages, weights, *rest):
    return POLICY_LOSS(logprobs, old_logprobs, advantages, jnp.ones_like(weights), *rest)


def descending(logprobs, old_logprobs, advantages, *rest):
    return POLICY_LOSS(logprobs, old_logprobs, -advantages, *rest)


def without_the_half(*arguments):
    value, metrics = VALUE_LOSS(*arguments)
    return 2 * value, metrics


def towards_the_old_values(values, old_values, targets, *rest):
    return VALUE_LOSS(values, old_values, 0 * targets + old_values, *rest)


def the_other_way(logprobs, other, mask):
    return -LOG_RATIO(logprobs, other, mask)


def shared_weight(name, external, score):
    """The information's weight is taken from the external advantage."""
    part = TRUE_INFORMED(name, external, score)

    def estimate(steps, knobs):
        outer = external.estimate(steps, external.knobs).advantages
        both = part.estimate(steps, knobs)
        return both._replace(advantages=both.advantages - 0.5 * infopo.gate(0.0, knobs.temperature) * outer)

    return part._replace(estimate=estimate)


def drawn_reply(rules, knobs, features, key):
    return decide(rules, features) + jax.random.randint(key, (), 0, 2)


def every_group_of_a_spread(amounts, share):
    return amounts > 0


def oracle(number: str, *rows: tuple) -> list[Row]:
    return [Row(number, *row) for row in rows]


ORACLES = [
    *oracle("T1", (test_oracles.test_turn_gae, gae, "recursion", lambda_ignored)),
    *oracle("T2", (test_oracles.test_turn_gae_of_a_truncated_episode_with_a_gap_in_the_numbering, gae, "estimate",
                   mutants.bootstrap_dropped)),
    *oracle("T3", (test_oracles.test_gae_of_bare_steps, gae, "estimate", mutants.mask_ignored)),
    *oracle("T4", (test_oracles.test_three_views_of_one_row, view, "by_token", mutants.OBSERVED),
            (test_oracles.test_three_views_of_one_row, view, "by_action_end", view.by_action)),
    *oracle("T5", (test_oracles.test_row_of_eleven_tokens_with_garbage_between_the_actions, view, "by_action", LATE),
            (test_oracles.test_gae_of_bare_steps, gae, "recursion", lambda_ignored),
            (test_oracles.test_whitening, whiten, "whiten", population_whiten)),
    *oracle("T6", (test_bilevel.test_ten_tokens, bilevel, "estimate", one_action)),
    *oracle("T7", (test_oracles.test_a_value_on_an_observation_does_not_leak, view, "by_token",
                    mutants.OBSERVED._replace(to_steps=every_token_is_a_step))),
    *oracle("T8", (test_adaptive.test_vapo_lambda, adaptive, "vapo_lambda",
                   lambda length, alpha: 1 - 1 / (alpha * np.maximum(length, 1))),
            (test_adaptive.test_relative_lambda, adaptive, "relative_lambda",
             lambda length, reach: reach ** (1 / np.maximum(length, 1)))),
    *oracle("T9", (test_oracles.test_whitening, whiten, "whiten", population_whiten),
            (test_oracles.test_moments_of_masked_values, test_oracles, "masked_var",
             lambda values, mask: jnp.var(values, where=mask))),
    *oracle("T10", (test_oracles.test_return_to_go_is_not_reset_at_an_observation, gae, "estimate", reset_at_observations)),
    *oracle("T11", (test_oracles.test_a_masked_loss_is_not_averaged_over_the_row, reduction, "token_mean",
                    mean_over_the_row),
            (test_oracles.test_reduction, reduction, "_where", lambda counted, weight: mean_over_the_row(counted)),
            (checks.losses_do_not_depend_on_the_cut,)),
    *oracle("T12", (test_oracles.test_policy_loss, loss, "policy_loss", dual_clip_off)),
    *oracle("T13", (test_oracles.test_value_loss, loss, "value_loss", without_the_half)),
    *oracle("T14", (test_oracles.test_kl, loss, "log_ratio", the_other_way)),
    *oracle("T15", (test_reported.test_controlled_kl_coefficient, kl, "STEP_LIMIT", 10.0)),
    *oracle("T16", (test_oracles.test_group_baselines, group, "standardised", population_std)),
    *oracle("T17", (test_userrl.test_credits_and_scores, userrl, "mean", userrl.total),
            (test_userrl.test_credits_and_scores, userrl, "RATE", 1.0)),
    *oracle("T18", (test_userrl.test_a_group_of_two, userrl, "RATE", 1.0),
            (test_userrl.test_the_mean_over_steps_is_the_score, group, "standardised", population_std)),
    *oracle("T19", (test_infopo.test_gate, infopo, "gate", test_infopo._gate_open),
            (test_infopo.test_values_other_than_zero_are_standardised, infopo, "information", test_infopo._zeros_count),
            (test_infopo.test_gain_goes_to_the_action_that_was_answered, infopo, "gains",
             lambda full, other, ids, slots: jnp.roll(TRUE_GAINS(full, other, ids, slots), 1, axis=-1))),
    *oracle("T20", (test_reported.test_pass_hat_and_pass_at, numbers, "pass_hat", with_replacement),
            (test_reported.test_pass_hat_and_pass_at, numbers, "pass_at", any_task)),
    *oracle("T21", (test_corrections.test_truncation_by_token, correction, "truncated",
                    correction.truncated._replace(weigh=uncapped)),
            (test_corrections.test_window_by_token, mismatch, "icepop", mismatch.icepop._replace(
                weigh=lambda old, sampler, mask, knobs: uncapped(old, sampler, mask, correction.Knobs()))),
            (test_corrections.test_product_over_the_episode, mismatch, "masked_sum", mismatch.masked_mean),
            (test_policy_losses.test_ratio_of_an_episode, ratio, "unit_mean", lambda d, mask, *keys: d),
            (test_policy_losses.test_window, dis, "window",
             lambda rho, knobs: jnp.clip(rho, 1 - knobs.below, 1 + knobs.above))),
    *oracle("T22", (test_corrections.test_decoupled_loss, loss, "policy_loss", correction_ignored),
            (test_policy_losses.test_gate, sapo, "gate", lambda rho, tau: 4.0 / (1 + jnp.exp(-tau * (rho - 1))))),
    *oracle("T23", (test_shaping.test_penalty_of_overlong_episodes, shaping, "penalty",
                    lambda length, limit, margin: jnp.where(length > limit, -1.0, 0.0)),
            (test_shaping.test_signal_to_noise, keep, "top_share", every_group_of_a_spread)),
    *oracle("T24", (test_oracles.test_unit_of_whitening, whiten, "over_actions", whiten.over_tokens)),
    *oracle("T25", (test_reported.test_the_average_of_nine_columns, numbers, "averages",
                    lambda means, counts: dict(zip(("macro", "micro"), TRUE_AVERAGES(means, counts).values()))),
            (test_reported.test_userrl_averages_over_test_items, numbers, "averages",
             lambda means, counts: dict(zip(("macro", "micro"), TRUE_AVERAGES(means, counts).values()))),
            (test_oracles.test_explained_variance, estimate, "explained_variance", square_error),
            (test_reported.test_four_symbolic_replies_in_a_row, test_reported, "draw",
             lambda seed: TRUE_DRAW(seed // 4 * 4))),
]

PROPERTIES = [
    *oracle("P1", (checks.observations_are_inert,), (checks.observations_may_be_of_any_length,),
            (checks.nothing_leaks_from_masked_tokens,), (checks.whitening_ignores_padding,)),
    *oracle("P2", (checks.skipping_observations_is_deleting_them,)),
    *oracle("P3", (checks.one_token_actions_make_all_views_equal,), (checks.numbering_of_actions_is_inert,),
            (checks.padding_is_inert,)),
    *oracle("P4", (checks.lambda_one_is_the_return_minus_the_value,), (checks.lambda_zero_is_the_one_step_error,)),
    *oracle("P5", (checks.a_terminal_reward_reaches_every_token_whole,),
            (test_bilevel.test_a_terminal_reward_reaches_every_step_whole, bilevel, "bilevel",
             bilevel.bilevel._replace(estimate=discounted_actions))),
    *oracle("P6", (checks.rewards_are_conserved,)),
    *oracle("P7", (checks.losses_do_not_depend_on_the_cut,)),
    *oracle("P8", (checks.equal_policies_give_the_policy_gradient,),
            (test_oracles.test_equal_policies_have_nothing_to_clip, loss, "policy_loss",
             lambda logprobs, old, *rest: POLICY_LOSS(logprobs + 0.5, old, *rest))),
    *oracle("P9", (checks.an_empty_minibatch_costs_nothing,),
            (test_oracles.test_equal_scores_that_differ_by_rounding_carry_no_signal, group, "TIE_EPS", 0.0)),
    *oracle("P10", (test_userrl.test_equalized_is_grpo_on_the_score, userrl, "masked_sum", largest),
            (test_reductions.test_equal_credits_are_grpo_on_the_score, userrl, "masked_sum", largest),
            (test_reductions.test_informed_without_weight_is_its_external_advantage, infopo, "informed", shared_weight)),
    *oracle("P11", (test_reductions.test_the_symbolic_user_is_a_function_of_what_it_sees, test_reductions, "symbolic",
                    test_reductions.symbolic._replace(respond=drawn_reply))),
    *oracle("P12", (test_reported.test_pass_hat_falls_and_pass_at_rises_with_k, numbers, "pass_hat",
                    lambda successes, trials, k: TRUE_HAT(successes, trials, 6 - k))),
    *oracle("P13", (test_toy_learning.test_the_critic_overfits_a_fixed_batch, loss, "value_loss", towards_the_old_values),
            (test_toy_learning.test_an_action_with_a_positive_advantage_becomes_likelier_at_every_step, loss, "policy_loss",
             descending)),
    *oracle("P14", (checks.credit_goes_to_the_token_that_earned_it,)),
]
