"""The whole way from a batch to its loss: on one device or eight, padded or packed, and what the metrics say."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.batches import T, knobs, random_batch, run, same
from algorithms.checks import REDUCTIONS
from jax.sharding import NamedSharding, PartitionSpec

from eau_jax.algorithms import estimate, gae, group, loss, reduction, view, whiten
from eau_jax.core import batching

VOCABULARY = 7


def objective(theta, trajectory, values, reduce, normalise, seen):
    """Loss of a one-parameter-per-token policy and critic: everything between a batch and its gradient."""
    logprobs = jax.nn.log_softmax(theta["policy"])[trajectory.tokens]
    predicted = theta["critic"][trajectory.tokens]
    targets, _ = estimate.targets(trajectory, trajectory.sampler_logprobs, values, gae.gae, seen, normalise, knobs())
    on = trajectory.action_ids >= 0
    policy, _ = loss.policy_loss(logprobs, targets.old_logprobs, targets.advantages, jnp.ones_like(logprobs),
                                 reduce(trajectory.action_ids), on, loss.PolicyKnobs())
    critic, _ = loss.value_loss(predicted, targets.old_values, targets.value_targets,
                                reduce(jnp.where(targets.value_mask, trajectory.action_ids, -1)), targets.value_mask,
                                loss.ValueKnobs())
    return policy + critic


def parameters():
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=VOCABULARY).astype(np.float32) for name in ("policy", "critic")}


@pytest.mark.parametrize("reduce, normalise, seen", [
    (reduction.action_mean_token_mean, whiten.over_actions, view.by_action),
    pytest.param(reduction.prompt_mean, whiten.over_tokens, view.by_token, marks=pytest.mark.slow),
    pytest.param(reduction.sequence_mean_token_mean, whiten.over_actions, view.by_action_end, marks=pytest.mark.slow),
], ids=["by_action", "by_token", "by_action_end"])
def test_eight_devices_give_the_loss_and_gradient_of_one(reduce, normalise, seen):
    assert len(jax.devices()) == 8
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    batch = random_batch(0, P=8, G=2)
    of = jax.value_and_grad(functools.partial(objective, reduce=reduce, normalise=normalise, seen=seen))
    one = jax.jit(of)(parameters(), *batch)
    spread = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
    eight = jax.jit(of)(jax.device_put(parameters(), NamedSharding(mesh, PartitionSpec())), *spread)
    assert len(spread[1].sharding.device_set) == 8
    jax.tree.map(same, eight, one)
    assert all(np.abs(g).max() > 1e-3 for g in one[1].values())


@pytest.mark.parametrize("mode", REDUCTIONS)
def test_packed_rows_give_the_loss_of_the_padded_batch(mode):
    trajectory, values = random_batch(1)
    targets, _ = jax.jit(functools.partial(estimate.targets, advantage=gae.gae, view=view.by_action,
                                           normalise=whiten.over_actions, knobs=knobs()))(
        trajectory, trajectory.sampler_logprobs, values)
    weights = np.asarray(REDUCTIONS[mode](trajectory.action_ids))
    logprobs = np.random.default_rng(0).normal(size=weights.shape).astype(np.float32) - 2
    on = trajectory.action_ids >= 0
    arrays = [logprobs, targets.old_logprobs, targets.advantages, np.ones_like(logprobs), weights, on]
    flat = [np.asarray(x).reshape(-1, T) for x in arrays]
    packing = batching.pack(trajectory.length.reshape(-1), width=2 * T)
    assert packing.rows < len(flat[0])
    packed = [batching.to_rows(x, packing, 0) for x in flat]
    of = jax.jit(functools.partial(loss.policy_loss, knobs=loss.PolicyKnobs()))
    (padded_loss, padded_metrics), (packed_loss, packed_metrics) = of(*flat), of(*packed)
    same(packed_loss, padded_loss)
    for name, metric in padded_metrics.items():
        same(packed_metrics[name].result(), metric.result())


def test_metrics_of_a_cut_minibatch_add_up():
    trajectory, _ = random_batch(2)
    rng, shape = np.random.default_rng(0), (6, T)
    arrays = [rng.normal(size=shape).astype(np.float32) for _ in range(5)]
    arrays.append((trajectory.action_ids >= 0).reshape(shape))
    of = jax.jit(functools.partial(loss.policy_loss, knobs=loss.PolicyKnobs()))
    whole, parts = of(*arrays)[1], [of(*(x[rows] for x in arrays))[1] for rows in (slice(0, 1), slice(1, 6))]
    for name, metric in whole.items():
        same((parts[0][name] + parts[1][name]).result(), metric.result())


def test_targets_and_metrics_of_a_batch():
    trajectory, values = random_batch(3)
    of = jax.jit(functools.partial(estimate.targets, advantage=gae.gae, view=view.by_action,
                                   normalise=whiten.over_actions, knobs=knobs()))
    targets, metrics = of(trajectory, trajectory.sampler_logprobs, values)
    advantages, value_targets, mask = run(gae.estimate, view.by_action, (trajectory, values))
    on = trajectory.action_ids >= 0
    first = np.zeros_like(on)
    before_first = []
    for at in np.ndindex(on.shape[:2]):
        ids = trajectory.action_ids[at]
        for number in sorted(set(ids[ids >= 0].tolist())):
            first[at][ids.tolist().index(number)] = True
        if on[at].any():
            before_first.append(values[at][on[at].argmax()])
    same(targets.advantages, jax.jit(whiten.over_actions)(advantages, trajectory.action_ids))
    same(targets.value_targets, value_targets)
    same(targets.old_values, values[..., :-1])
    assert (np.asarray(targets.value_mask) == on).all() and (mask == on).all()
    same(metrics["advantage"].result(), advantages[first].mean())
    same(metrics["advantage_square"].result(), np.square(advantages[first]).mean())
    same(metrics["first_value"].result(), np.mean(before_first))
    residual = (value_targets - values[..., :-1])[on]
    same(metrics["explained_variance"].result(), 1 - residual.var() / value_targets[on].var(), tolerance=1e-4)


def test_a_critic_free_estimator_has_no_critic_metrics():
    trajectory, values = random_batch(4)
    of = jax.jit(functools.partial(estimate.targets, advantage=group.rloo, view=view.by_action, normalise=whiten.none,
                                   knobs=group.Knobs()))
    targets, metrics = of(trajectory, trajectory.sampler_logprobs, np.full_like(values, np.nan))
    assert set(metrics) == {"advantage", "advantage_square"}
    assert np.isfinite(targets.advantages).all() and math.isfinite(metrics["advantage"].result())
