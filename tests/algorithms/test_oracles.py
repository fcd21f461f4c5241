"""Hand-computed cases of published recursions and losses: the numbers come from the formulas, not from our code."""

import functools
import math

import jax
import numpy as np
import pytest
from algorithms.batches import random_batch, run, same, single
from algorithms.checks import REDUCTIONS
from oracles import advantages as oracle
from oracles import losses

from eau_jax.algorithms import action, correction, estimate, gae, group, kl, loss, reduction, view, whiten
from eau_jax.core.masking import masked_mean, masked_var
from eau_jax.core.types import Mean, Steps

NAN = float("nan")


def steps(rewards, values, mask=None, ended=True) -> Steps:
    """One episode [1, K] of bare steps; the value after the last one is 7 unless given."""
    rewards = np.array(rewards, np.float32)[None]
    mask = np.ones(rewards.shape, bool) if mask is None else np.array(mask, bool)[None]
    discounts = np.ones_like(rewards)
    discounts[0, mask[0].nonzero()[0][-1]] = 0.0 if ended else 1.0
    values = np.array(values, np.float32)[None]
    values = np.concatenate([values, [[7]]], 1).astype(np.float32) if values.shape == rewards.shape else values
    return Steps(rewards=rewards, values=values, discounts=discounts, mask=mask, ends=mask, gains=np.zeros_like(rewards))


@functools.lru_cache(maxsize=None)
def compiled(function):
    return jax.jit(function)


def knobs(gamma, lam) -> gae.Knobs:
    return gae.Knobs(gamma=np.float32(gamma), policy_lambda=np.float32(lam), critic_lambda=np.float32(lam))


# --- actions ---------------------------------------------------------------------------------------------------------

def test_boundaries_of_actions():
    """A gap in the numbering, two actions without an observation between them, one action with forced tokens inside."""
    ids = np.array([[-1, 0, 0, -1, 0, 2, 2, -1, 3, -1], [-1] * 10], np.int32)
    assert action.first_tokens(ids)[0].tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 1, 0]
    assert action.last_tokens(ids)[0].tolist() == [0, 0, 0, 0, 1, 0, 1, 0, 1, 0]
    assert action.ranks(ids)[0].tolist() == [-1, 0, 0, -1, 0, 1, 1, -1, 2, -1]
    assert action.lengths(ids)[0].tolist() == [0, 3, 3, 0, 3, 2, 2, 0, 1, 0]
    assert not action.first_tokens(ids)[1].any() and not action.last_tokens(ids)[1].any()
    assert not action.lengths(ids)[1].any() and (action.ranks(ids)[1] == -1).all()


# --- advantages ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("rewards, values, mask, gamma, lam, advantages", [
    ([0, 0, 1, 0], [0] * 4, [1, 1, 1, 0], 1, .5, [.25, .5, 1, 0]),
    ([0, 0, 1, 0], [0] * 4, [1, 1, 1, 0], 1, 0, [0, 0, 1, 0]),
    ([.1, .1, .1, .1, 1], [4, 5, 6, 7, 9], [1] * 5, 1, 1, [-2.6, -3.7, -4.8, -5.9, -8]),
    ([.1, .1, .1, .1, 1], [4, 5, 6, 7, 9], [1] * 5, .9, .95, [-2.205239, -3.280981, -4.4222, -5.64, -8]),
    ([.3, 1.1], [4, 7], [1] * 2, 1, 1, [-2.6, -5.9]),
    ([.3, 1.1], [4, 7], [1] * 2, .9, .95, [-2.4445, -5.9]),
    ([0, 1], [0, 0], [1] * 2, .5, 1, [.5, 1]),
])
def test_gae_of_bare_steps(rewards, values, mask, gamma, lam, advantages):
    result = compiled(gae.estimate)(steps(rewards, values, mask), knobs(gamma, lam))
    same(result.advantages[0], advantages)
    same(result.targets[0], np.where(mask, np.add(advantages, values), 0))


@pytest.mark.parametrize("lam, advantages", [(.5, [2, 2, 2, 2]), (0, [1, 1, 2, 2])])
def test_turn_gae(lam, advantages):
    batch = single([0, 0, 1, 1], [1, 2], ended=True), np.zeros((1, 1, 5), np.float32)
    same(run(gae.estimate, view.by_action, batch, gamma=1, policy_lambda=lam)[0][0, 0], advantages)


def test_turn_gae_of_a_truncated_episode_with_a_gap_in_the_numbering():
    batch = single([0, 0, -1, 2, 2], [3, 0, 4], ended=False), np.array([1, 5, 9, 2, 8, 8], np.float32)[None, None]
    advantages, targets, mask = run(gae.estimate, view.by_action, batch, gamma=.5, policy_lambda=.25, critic_lambda=.25)
    same(advantages[0, 0], [3.75, 3.75, 0, 6, 6])
    same(targets[0, 0], [4.75, 4.75, 9, 8, 8])
    assert mask[0, 0].tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("gamma, lam, by_token, by_action, by_action_end", [
    (1, 1, [.8, .7, 0, 0, .5, .4], [.8, .8, 0, 0, .5, .5], [.7, .7, 0, 0, .4, .4]),
    (1, .5, [.275, .35, 0, 0, .3, .4], [.55, .55, 0, 0, .5, .5], [.5, .5, 0, 0, .4, .4]),
    (.9, .5, [.18205, .249, 0, 0, .22, .4], [.475, .475, 0, 0, .5, .5], [.42, .42, 0, 0, .4, .4]),
])
def test_three_views_of_one_row(gamma, lam, by_token, by_action, by_action_end):
    values = np.array([.2, .3, .9, -.4, .5, .6, NAN], np.float32)[None, None]
    batch = single([0, 0, -1, -1, 1, 1], [0, 1], ended=True), values
    for seen, expected in ((view.by_token, by_token), (view.by_action, by_action), (view.by_action_end, by_action_end)):
        same(run(gae.estimate, seen, batch, gamma=gamma, policy_lambda=lam)[0][0, 0], expected)


def test_a_value_on_an_observation_does_not_leak():
    batch = single([0, 0, -1], [1], ended=True), np.array([0, 0, 100, 100], np.float32)[None, None]
    advantages, _, _ = run(gae.estimate, view.by_token, batch, gamma=1, policy_lambda=.95)
    same(advantages[0, 0], [.95, 1, 0])


def test_row_of_eleven_tokens_with_garbage_between_the_actions():
    ids = [-1, -1, 0, 0, 0, -1, -1, 1, 1, -1, -1]
    values = np.array([NAN, NAN, 4, 5, 6, NAN, NAN, 7, 9, NAN, NAN, NAN], np.float32)[None, None]
    batch = single(ids, [.3, 1.1], ended=True), values
    advantages, targets, _ = run(gae.estimate, view.by_action, batch, gamma=.9, policy_lambda=.95, critic_lambda=.95)
    same(advantages[0, 0], [0, 0, -2.4445, -2.4445, -2.4445, 0, 0, -5.9, -5.9, 0, 0])
    same(targets[0, 0], np.where(np.array(ids) == 0, 1.5555, 1.1), np.array(ids) >= 0)


def test_return_to_go_is_not_reset_at_an_observation():
    batch = single([0, -1, 1], [0, 1], ended=True), np.zeros((1, 1, 4), np.float32)
    advantages, _, _ = run(gae.estimate, view.by_token, batch, gamma=.5, policy_lambda=1)
    same(advantages[0, 0], [.5, 0, 1])


@pytest.mark.parametrize("advantage, scores, expected", [
    (group.grpo, [1, 0, 0, 0], [1.499997, -.499999, -.499999, -.499999]),
    (group.dr_grpo, [1, 0, 0, 0], [.75, -.25, -.25, -.25]),
    (group.rloo, [1, 0, 0, 0], [1, -.333333, -.333333, -.333333]),
    (group.grpo, [1, 1, 0, 0], [.866024, .866024, -.866024, -.866024]),
    (group.grpo, [.001, 0, 0, 0], [1.497006, -.499002, -.499002, -.499002]),   # the 1e-6 beside a small std
    (group.dr_grpo, [100, 100.0625], [-.03125, .03125]),                         # close, but no tie
    (group.grpo, [.3, .3, .3, .3], [0, 0, 0, 0]),
    (group.grpo, [.7], [.7]),
    (group.dr_grpo, [.7], [.7]),
    (group.rloo, [.7], [.7]),
])
def test_group_baselines(advantage, scores, expected):
    G = len(scores)
    one_step = Steps(rewards=np.array(scores, np.float32)[:, None], values=np.full((G, 2), NAN, np.float32),
                     discounts=np.zeros((G, 1), np.float32), mask=np.ones((G, 1), bool), ends=np.ones((G, 1), bool),
                     gains=np.full((G, 1), NAN, np.float32))
    result = compiled(advantage.estimate)(one_step, advantage.knobs)
    same(result.advantages[:, 0], expected)
    if len(set(scores)) == 1 < G:
        assert not np.asarray(result.advantages).any()


@pytest.mark.parametrize("advantage", [group.grpo, group.dr_grpo, group.rloo], ids=lambda a: a.name)
@pytest.mark.parametrize("seed", range(3))
def test_group_baselines_leave_dropped_members_out(advantage, seed):
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(5, 3)).astype(np.float32)
    mask = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]], bool)
    members = mask.any(1)
    batch = Steps(rewards=np.where(mask, rewards, NAN).astype(np.float32), values=np.full((5, 4), NAN, np.float32),
                  discounts=np.ones((5, 3), np.float32), mask=mask, ends=mask, gains=np.full((5, 3), NAN, np.float32))
    expected = np.zeros(5)
    expected[members] = oracle.group(advantage.name, np.where(mask, rewards, 0).sum(1)[members].tolist())
    result = compiled(advantage.estimate)(batch, advantage.knobs)
    same(result.advantages, np.where(mask, expected[:, None], 0))
    assert not np.asarray(result.targets).any()


def test_equal_scores_that_differ_by_rounding_carry_no_signal():
    rewards = np.zeros((3, 10), np.float32)
    rewards[0], rewards[1, 0], rewards[2, 9] = .1, 1, 1
    batch = Steps(rewards=rewards, values=np.zeros((3, 11), np.float32), discounts=np.ones((3, 10), np.float32),
                  mask=np.ones((3, 10), bool), ends=np.ones((3, 10), bool), gains=np.zeros((3, 10), np.float32))
    scores = np.cumsum(rewards, 1)[:, -1]
    assert 0 < np.ptp(scores) < 1e-6 and abs(oracle.group("grpo", scores.tolist())[0]) > .01
    for advantage in (group.grpo, group.dr_grpo, group.rloo):
        assert not np.asarray(compiled(advantage.estimate)(batch, advantage.knobs).advantages).any()


# --- normalisation ---------------------------------------------------------------------------------------------------

def test_whitening():
    ids = np.arange(4, dtype=np.int32)[None, None]
    for normalise in (whiten.over_actions, whiten.over_tokens):
        same(normalise(np.array([[[1, 2, 3, 4]]], np.float32), ids)[0, 0], [-1.161895, -.387298, .387298, 1.161895])
    advantages = np.array([[[-2.6, -3.7, -4.8, -5.9, -8]]], np.float32)
    white = whiten.over_tokens(advantages, np.array([[[0, 0, 0, 1, 1]]], np.int32))
    same(white[0, 0], [1.154033, .625101, .096169, -.432762, -1.442541])


def test_moments_of_masked_values():
    values, mask = np.array([1, 2, 3, 4, 5], np.float32), np.array([1, 1, 0, 0, 1], bool)
    same([masked_mean(values, mask), masked_var(values, mask)], [2.666667, 4.333333])


def test_unit_of_whitening():
    ids = np.array([[[0, 0, 0, -1, 1]]], np.int32)
    advantages = np.array([[[1, 1, 1, NAN, -1]]], np.float32)
    same(whiten.over_tokens(advantages, ids)[0, 0], [.5, .5, .5, 0, -1.5])
    same(whiten.over_actions(advantages, ids)[0, 0], [.707107, .707107, .707107, 0, -.707107])
    same(whiten.none(advantages, ids)[0, 0], [1, 1, 1, 0, -1])


def test_the_first_token_stands_for_its_action():
    """Under by_token the advantages inside an action differ; the moments are those of 1 and 3."""
    white = whiten.over_actions(np.array([[[1, 5, 3, -2]]], np.float32), np.array([[[0, 0, 1, 1]]], np.int32))
    same(white[0, 0], np.array([-1, 3, 1, -4]) / math.sqrt(2))


def test_one_action_is_not_whitened():
    same(whiten.over_actions(np.array([[[2, 2, 0]]], np.float32), np.array([[[0, 0, -1]]], np.int32))[0, 0], [2, 2, 0])


@pytest.mark.parametrize("targets, values, expected", [
    ([1, 0, 1, 0], [.8, .2, .6, .4], .6),
    ([1, 0, 1, 0], [1, 0, 1, 0], 1),
    ([1, 0, 1, 0], [5, 5, 5, 5], 0),
    ([1, 1, 1, 1], [.8, .2, .6, .4], NAN),
])
def test_explained_variance(targets, values, expected):
    mask = np.array([1, 1, 1, 1, 0], bool)
    got = estimate.explained_variance(np.array([*targets, NAN], np.float32), np.array([*values, 3], np.float32), mask)
    same(got.result(), expected)


# --- losses ----------------------------------------------------------------------------------------------------------

one = functools.partial(np.full, (1,), dtype=np.float32)
valid = np.ones(1, bool)


@jax.jit
def _policy_loss(log_ratio, advantage, knobs):
    def of(log_ratio):
        value, metrics = loss.policy_loss(log_ratio, one(0), advantage, one(1), one(1), valid, knobs)
        return value, metrics
    (value, metrics), gradient = jax.value_and_grad(of, has_aux=True)(log_ratio)
    return value, metrics, gradient


def _policy(ratio, advantage, **settings):
    """(loss, metrics, gradient in the log-probability) of one token."""
    return _policy_loss(one(math.log(ratio)), one(advantage),
                        loss.PolicyKnobs(**{name: np.float32(value) for name, value in settings.items()}))


@pytest.mark.parametrize("ratio, advantage, expected, clipped", [
    (1.5, 1, -1.28, "high"), (.5, 1, -.5, None), (1.5, -1, 1.5, None), (.5, -1, .8, "low"), (5, -1, 3.0, "dual"),
    (1.1, 2, -2.2, None), (.7, -2, 1.6, "low"),
])
def test_policy_loss(ratio, advantage, expected, clipped):
    value, metrics, gradient = _policy(ratio, advantage)
    same(value, expected)
    same(gradient[0], 0 if clipped else expected)  # d rho / d log pi = rho
    same(value, losses.policy(ratio, advantage))
    for end in ("high", "low", "dual"):
        assert metrics[f"clip_fraction_{end}"].result() == (end == clipped)
    same([metrics["ratio"].result(), metrics["approx_kl"].result()], [ratio, -math.log(ratio)])


def test_dual_clip_can_be_turned_off():
    same(_policy(5, -1, dual_clip=1e9)[0], 5.0)
    extreme, metrics, _ = _policy(math.exp(30), -1, dual_clip=5e8)
    assert math.isclose(extreme, math.exp(20), rel_tol=1e-5) and metrics["clip_fraction_dual"].result() == 0


def test_correction_weighs_the_loss():
    value, _ = loss.policy_loss(one(math.log(1.3)), one(0), one(1), one(1.5), one(1), valid,
                                loss.PolicyKnobs(clip_high=np.float32(.2)))
    same(value, -1.8)


def test_equal_policies_have_nothing_to_clip():
    _, metrics, _ = _policy(1, 2)
    assert {name: metric.result() for name, metric in metrics.items()} == {
        "clip_fraction_high": 0, "clip_fraction_low": 0, "clip_fraction_dual": 0, "approx_kl": 0, "ratio": 1}
    assert [float(k(np.float32(0))) for k in (kl.k1, kl.k2, kl.k3)] == [0, 0, 0]


@pytest.mark.parametrize("value, old, target, clip, expected",
                         [(1, .2, 1, .5, .045), (.9, .2, 0, .5, .405), (.5, .2, 1, .2, .18)])
def test_value_loss(value, old, target, clip, expected):
    got, metrics = loss.value_loss(one(value), one(old), one(target), one(1), valid,
                                   loss.ValueKnobs(clip=np.float32(clip)))
    same(got, expected)
    same(got, losses.value(value, old, target, clip))
    same(metrics["value_error_square"].result(), (value - target) ** 2)
    assert metrics["value_clip_fraction"].result() == (2 * expected > (value - target) ** 2 + 1e-6)


@pytest.mark.parametrize("estimator, delta, expected", [
    (kl.k1, math.log(2), .693147), (kl.k2, math.log(2), .240227), (kl.k3, math.log(2), .193147),
    (kl.k1, -math.log(2), -.693147), (kl.k2, -math.log(2), .240227), (kl.k3, -math.log(2), .306853),
    (kl.k1, .1, .1), (kl.k2, .1, .005), (kl.k3, .1, .00483742),
])
def test_kl(estimator, delta, expected):
    same(estimator(np.float32(delta)), expected, tolerance=3e-6)
    got, metrics = loss.kl_loss(one(delta), one(0), one(2), valid, estimator, loss.KlKnobs(coef=np.float32(.5)))
    same(got, expected)
    same(got, losses.kl(estimator.__name__, delta))
    same(metrics["kl_to_reference"].result(), delta)


def test_one_token_far_from_the_reference_does_not_rule_the_batch():
    """k3 of -5 would be exp(5) - 6 = 142; nor does it have a gradient there."""
    same([kl.k3(np.float32(delta)) for delta in (-2, -5, -20, 5)], [math.exp(2) - 3, 10, 10, math.exp(-5) + 4])
    same([jax.grad(kl.k3)(delta) for delta in (-2., -5.)], [1 - math.exp(2), 0])


def test_entropy_loss():
    entropy, mask = np.array([2, 4, NAN], np.float32), np.array([1, 1, 0], bool)
    weights = np.array([.5, .25, NAN], np.float32)
    got, metrics = loss.entropy_loss(entropy, weights, mask, loss.EntropyKnobs(coef=np.float32(.1)))
    same([got, metrics["entropy"].result()], [-.2, 3])


# --- reductions ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("mode, expected", [
    ("token_mean", 2.5), ("sequence_mean_token_sum", 5.0), ("sequence_mean_token_mean", 3.0),
    ("sequence_mean_token_sum_norm", 10 / 3), ("prompt_mean", 2.5), ("action_mean_token_mean", (1.5 + 3 + 4) / 3),
    ("action_mean_token_sum", 10 / 3),
])
def test_reduction(mode, expected):
    ids = np.array([[[0, 0, 1], [0, -1, -1], [-1, -1, -1]]], np.int32)
    per_token = np.array([[[1, 2, 3], [4, NAN, NAN], [9, 9, 9]]], np.float32)
    normed = functools.partial(reduction.sequence_mean_token_sum_norm, constant=3)
    modes = REDUCTIONS | {"sequence_mean_token_sum_norm": normed}
    weights = np.asarray(compiled(modes[mode])(ids))
    same(np.where(ids >= 0, per_token * weights, 0).sum(), expected)
    assert not weights[ids < 0].any()


def test_a_masked_loss_is_not_averaged_over_the_row():
    ids = np.array([[[0, -1]], [[0, -1]]], np.int32)
    per_token = np.array([[[1, 100]], [[1, -50]]], np.float32)
    same((per_token * np.asarray(reduction.token_mean(ids))).sum(), 1.0)


@pytest.mark.parametrize("mode", REDUCTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_reduction_of_random_minibatches(mode, seed):
    ids = random_batch(seed)[0].action_ids
    per_token = np.random.default_rng(seed).normal(size=ids.shape).astype(np.float32)
    got = (per_token * np.asarray(compiled(REDUCTIONS[mode])(ids))).sum()
    same(got, losses.reduce(mode, per_token.tolist(), ids.tolist(), constant=30.0))


def test_integer_rewards_are_refused():
    whole = steps([1, 0], [0, 0])
    with pytest.raises(AssertionError):
        gae.estimate(whole.replace(rewards=whole.rewards.astype(np.int32)), knobs(1, 1))


def test_a_normalising_constant_must_be_positive():
    with pytest.raises(ValueError, match="is 0.*above 0"):
        reduction.sequence_mean_token_sum_norm(np.zeros((1, 1, 2), np.int32), constant=0)


# --- correction ------------------------------------------------------------------------------------------------------

def test_truncated_importance_weights():
    ratios = np.array([[[1.11, .22, 2.23, 5e-5, 1.35, NAN]]], np.float32)
    mask = np.array([[[1, 1, 1, 1, 1, 0]]], bool)
    sampler = np.full_like(ratios, -1.0)
    weights, metrics = correction.weigh_truncated(np.log(ratios) - 1, sampler, mask, correction.Knobs())
    expected = np.array([1.11, .22, 2, 5e-5, 1.35])
    same(weights[0, 0], [*expected, 1])
    gaps = np.abs(np.log(ratios[mask]))
    same([metrics[name].result() for name in ("correction_capped", "correction_ess", "sampler_gap", "sampler_gap_max")],
         [.2, expected.sum() ** 2 / (5 * (expected ** 2).sum()), gaps.mean(), gaps.max()])


def test_equal_policies_need_no_correction():
    logprobs, mask = np.array([[[-1, -2, -3]]], np.float32), np.array([[[1, 1, 0]]], bool)
    weights, metrics = correction.weigh_truncated(logprobs, logprobs, mask, correction.Knobs())
    assert np.asarray(weights).tolist() == [[[1, 1, 1]]]
    assert [metrics[name].result() for name in ("correction_capped", "correction_ess", "sampler_gap")] == [0, 1, 0]


def test_no_correction_still_reports_the_gap():
    weights, metrics = correction.weigh_none(np.array([[[-1, NAN]]], np.float32), np.array([[[-3, NAN]]], np.float32),
                                             np.array([[[1, 0]]], bool), correction.NoKnobs())
    assert np.asarray(weights).tolist() == [[[1, 1]]]
    assert metrics["sampler_gap"].result() == metrics["sampler_gap_max"].result() == 2


def test_an_empty_batch_has_no_diagnostics():
    nothing = np.zeros((1, 1, 2), np.float32), np.zeros((1, 1, 2), np.float32), np.zeros((1, 1, 2), bool)
    weights, metrics = correction.weigh_truncated(*nothing, correction.Knobs())
    assert np.isfinite(weights).all()
    assert all(isinstance(metric, Mean) and math.isnan(metric.result()) for metric in metrics.values())
