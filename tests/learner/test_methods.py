"""Every policy loss in the learner: packing does not matter, an update learns, text that was not sampled is out."""

import dataclasses

import jax
import numpy as np
import pytest
import small_learner as small

from eau_jax.algorithms import dis, loss, ratio, sapo, shaping
from eau_jax.learner import rows
from eau_jax.learner.annotate import annotate
from eau_jax.learner.state import default_knobs
from eau_jax.learner.update import gradients, minibatch, update

ALL = np.ones(small.P, bool)
LOSSES = [ratio.turn_ratio, ratio.sequence_ratio, sapo.sapo, dis.dis]


def moved(params, seed=3):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: np.asarray(x + 0.02 * rng.normal(size=x.shape), np.float32), params)


@pytest.fixture(scope="module")
def annotated():
    learner = small.learner()
    trajectory = rows.fit(learner, small.trajectory())
    state = small.start(learner)
    annotation, _ = annotate(learner, state, trajectory, default_knobs(learner))
    return trajectory, annotation, {"policy": moved(state.policy.params), "critic": state.critic.params, "frozen": {}}


def result(learner, case):
    trajectory, annotation, params = case
    packed = minibatch(learner, trajectory, annotation, ALL)
    return gradients(learner, learner.critic.together, params, packed, default_knobs(learner))


@pytest.mark.slow
@pytest.mark.parametrize("part", LOSSES[:1] + [pytest.param(part, marks=pytest.mark.slow) for part in LOSSES[1:]],
                         ids=lambda part: part.name)
def test_packing_does_not_matter(annotated, part):
    one = result(small.learner(policy_loss=part), annotated)
    two = result(small.learner(policy_loss=part, row_width=small.T, micro_rows=2), annotated)
    for a, b in zip(jax.tree.leaves(one[:2]), jax.tree.leaves(two[:2]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4)
    plain = result(small.learner(), annotated)
    assert abs(one[0] - plain[0]) > 1e-6, "another loss than PPO's"


def test_knobs_are_those_of_the_loss():
    for part in (loss.token_ratio, *LOSSES):
        assert default_knobs(small.learner(policy_loss=part))["policy_loss"] is part.knobs
    assert "shaping" not in default_knobs(small.learner())
    assert default_knobs(small.learner(shaping=shaping.scaled))["shaping"] is shaping.scaled.knobs


@pytest.mark.slow
def test_shaped_rewards_reach_the_targets():
    plain, shaped = small.learner(), small.learner(shaping=shaping.scaled)
    state, trajectory = small.start(plain), small.trajectory()
    one, _ = annotate(plain, state, trajectory, default_knobs(plain))
    two, _ = annotate(shaped, state, trajectory, default_knobs(shaped))
    by_hand = dataclasses.replace(trajectory, rewards=np.asarray(
        shaping.shape_scaled(trajectory, shaping.ScaledKnobs()).rewards))
    three, _ = annotate(plain, state, by_hand, default_knobs(plain))
    np.testing.assert_allclose(two.targets.value_targets, three.targets.value_targets, atol=1e-5)
    assert np.abs(one.targets.value_targets - two.targets.value_targets).max() > 1


def test_retrieved_text_is_out_of_the_loss():
    """Search-R1's masking: passages that a tool returned are conditioned on but not learned. The same tokens marked as
    sampled would be (the mutant)."""
    learner = small.learner()
    trajectory = rows.fit(learner, small.trajectory(2))
    state, knobs = small.start(learner), default_knobs(learner)
    annotation, _ = annotate(learner, state, trajectory, knobs)
    params = {"policy": state.policy.params, "critic": state.critic.params, "frozen": {}}
    packed = minibatch(learner, trajectory, annotation, ALL)
    retrieved = (packed.segment_ids > 0) & ~packed.mask
    assert retrieved.any() and not packed.weights[retrieved].any() and not packed.advantages[retrieved].any()
    of = lambda rows: gradients(learner, learner.critic.together, params, rows, knobs)
    poison = packed.replace(old_logprobs=np.where(retrieved, np.float32(np.nan), packed.old_logprobs),
                            advantages=np.where(retrieved, np.float32(np.nan), packed.advantages))
    for a, b in zip(jax.tree.leaves(of(packed)[:2]), jax.tree.leaves(of(poison)[:2]), strict=True):
        np.testing.assert_array_equal(a, b)
    learned = packed.replace(mask=packed.mask | retrieved, weights=np.where(retrieved, np.float32(.1), packed.weights),
                             advantages=np.where(retrieved, np.float32(1), packed.advantages))
    assert abs(of(learned)[0] - of(packed)[0]) > 1e-3


@pytest.mark.slow
def test_equal_policies_have_nothing_to_correct():
    """theta = theta_old = theta_sampler: ratios are 1, nothing is clipped, every weight is 1."""
    learner = small.learner()
    trajectory, state, knobs = rows.fit(learner, small.trajectory()), small.start(learner), default_knobs(learner)
    first, _ = annotate(learner, state, trajectory, knobs)
    same = trajectory.replace(sampler_logprobs=np.asarray(first.targets.old_logprobs))
    annotation, before = annotate(learner, state, same, knobs)
    assert (np.asarray(annotation.correction) == 1).all() and before["sampler_gap_max"].result() == 0
    _, after = update(learner, state, same, annotation, knobs, seed=0)
    np.testing.assert_allclose([after["ratio"].result(), after["approx_kl"].result()], [1, 0], atol=1e-6)
    assert after["clip_fraction_high"].result() == after["clip_fraction_low"].result() == 0
