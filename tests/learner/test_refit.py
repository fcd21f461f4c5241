"""The critic after rewards changed their meaning, and the KL coefficient that is steered."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_learner as small
from test_learning import FAST, assert_equal, copy, differs, patch

from eau_jax.algorithms import kl
from eau_jax.algorithms.group import grpo
from eau_jax.learner import critic, refit
from eau_jax.learner.annotate import annotate
from eau_jax.learner.state import default_knobs
from eau_jax.learner.update import gradients, minibatch, update
from eau_jax.models.config import Lora


def learn(learner, state, knobs, trajectory, critic_only=False):
    annotation, before = annotate(learner, state, trajectory, knobs)
    state, after = update(learner, state, trajectory, annotation, knobs, 7, critic_only)
    return state, before | after


LORA = dict(model=dataclasses.replace(small.MODEL, lora=Lora(2, 4.0)))


@pytest.mark.parametrize("changes", [
    {}, pytest.param(dict(critic=critic.shared_trunk), marks=pytest.mark.slow), pytest.param(LORA, marks=pytest.mark.slow)],
    ids=["own_tower", "shared_trunk", "lora"])
def test_a_restarted_critic_knows_nothing_of_the_old_rewards(changes):
    """The head is zeros and the optimizer new; trunk, policy and the number of updates are kept. In the updates that
    follow the policy stands still to the bit, and the critic comes nearer to rewards of another size."""
    learner = small.learner(**changes)
    knobs = patch(default_knobs(learner), FAST)
    trajectory = small.trajectory()
    state = small.start(learner)
    for _ in range(2):
        state, _ = learn(learner, state, knobs, trajectory)
    before = copy(state)
    restarted = refit.restart_critic(learner, state)
    assert_equal(before.policy, restarted.policy)
    kept = lambda state: {name: leaf for name, leaf in state.critic.params.items() if name != "head"}
    assert_equal(kept(before), kept(restarted))
    assert int(restarted.step) == 2 and int(restarted.critic.step) == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves((restarted.critic.params["head"], restarted.critic.opt_state)))
    assert np.any(before.critic.params["head"]["kernel"]) and any(map(np.any, jax.tree.leaves(before.critic.opt_state)))

    scaled = trajectory.replace(rewards=np.float32(-3) * trajectory.rewards)
    state, errors = restarted, []
    for _ in range(3):
        state, metrics = learn(learner, state, knobs, scaled, critic_only=True)
        errors.append(metrics["value_error_square"].result())
        assert metrics["policy_steps"].result() == 0 and metrics["critic_steps"].result() == 1
    assert_equal(before.policy, state.policy)
    assert errors[2] < errors[0]
    state, metrics = learn(learner, state, knobs, scaled)
    assert metrics["policy_steps"].result() == 1 and differs(before.policy.params, state.policy.params)
    assert learner.traces["restart"] == 1


@pytest.fixture(scope="module")
def moved():
    learner = small.learner(advantage=grpo, critic=critic.no_critic, kl=kl.k2)
    knobs = patch(default_knobs(learner), {"policy_optimizer.learning_rate": 3e-3, "kl.coef": 0.1})
    state, _ = learn(learner, small.start(learner), knobs, small.trajectory())
    return learner, knobs, state


@pytest.fixture
def referred(moved):
    """A learner with a reference policy, its knobs, and a state one update away from it, which may be donated."""
    learner, knobs, state = moved
    return learner, knobs, jax.tree.map(jnp.copy, state)


def test_the_coefficient_is_steered_to_its_target(referred):
    """By the rule, once an update: KL / target - 1, within 0.2, times episodes / horizon."""
    learner, knobs, state = referred
    knobs = patch(knobs, {"policy_optimizer.learning_rate": 0.0, "kl_control.horizon": 70})
    state, metrics = learn(learner, state, knobs, small.trajectory())
    measured = metrics["kl_to_reference"].result()
    assert measured > 0 and metrics["kl_coef"].result() == pytest.approx(.1) and float(state.kl_scale) == 1, "no target"
    for target, factor in ((measured / 1.1, 1 + .1 * 7 / 70), (measured / 9, 1 + .2 * 7 / 70), (measured * 9, 1 - .2 * 7 / 70)):
        scale = float(state.kl_scale)
        state, metrics = learn(learner, state, patch(knobs, {"kl_control.target": target}), small.trajectory())
        assert metrics["kl_coef"].result() == pytest.approx(.1 * scale), "the update itself uses the one before"
        assert float(state.kl_scale) / scale == pytest.approx(factor, rel=1e-4)


def test_the_reference_is_scored_at_the_samplers_temperature(referred):
    learner, knobs, state = referred
    knobs = patch(knobs, {"sampler.temperature": .5})
    itself, _ = annotate(learner, state.replace(reference=state.policy.params), small.trajectory(), knobs)
    np.testing.assert_array_equal(itself.ref_logprobs, itself.targets.old_logprobs)
    other, _ = annotate(learner, state, small.trajectory(), knobs)
    assert np.abs(other.ref_logprobs - other.targets.old_logprobs).max() > 1e-4


def test_a_small_horizon_leaves_the_coefficient_positive():
    knobs = kl.ControlKnobs(target=np.float32(1), horizon=np.int32(1))
    assert float(kl.controlled(np.float32(1), np.float32(.001), 512, knobs)) == pytest.approx(.8)
    assert 1 + -.2 * 512 < 0, "the mutant: episodes beyond the horizon count"


def test_kl_outside_the_recursion_is_k2_in_the_loss(referred):
    """A_t - coef k1_t for each token, after the estimator, has the gradient of coef k2 in the loss on policy. k1 in the
    loss has another one, and so has a KL that is summed over the turn as a reward would be."""
    learner, knobs, state = referred
    trajectory = small.trajectory()
    annotation, _ = annotate(learner, state, trajectory, knobs)
    params = {"policy": state.policy.params, "critic": state.critic.params, "frozen": state.frozen}
    targets = annotation.targets

    def gradient(advantages, coef):
        rows = minibatch(learner, trajectory, annotation.replace(
            targets=targets.replace(advantages=np.asarray(advantages, np.float32)),
            correction=np.ones_like(annotation.correction)), np.ones(small.P, bool))
        grads = gradients(learner, learner.critic.together, params, rows, patch(knobs, {"kl.coef": coef}))[1]
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads["policy"])])

    mask = np.asarray(trajectory.action_ids) >= 0
    delta = np.where(mask, np.asarray(targets.old_logprobs) - np.asarray(annotation.ref_logprobs), 0)
    in_loss, outside = gradient(targets.advantages, .5), gradient(targets.advantages - .5 * delta, 0.)
    np.testing.assert_allclose(in_loss, outside, atol=2e-5)
    by_turn = np.zeros_like(delta)
    for number in range(small.A):
        turn = trajectory.action_ids == number
        by_turn += turn * np.where(turn, delta, 0).sum(axis=-1, keepdims=True)
    assert np.abs(gradient(targets.advantages - .5 * by_turn, 0.) - in_loss).max() > 1e-3
