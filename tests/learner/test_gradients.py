"""Loss and gradients of one minibatch against a dense reference, and their independence of every way to cut it."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_learner as small

from eau_jax.algorithms import action, kl, reduction, view
from eau_jax.core.sharding import make_mesh
from eau_jax.core.types import Mean
from eau_jax.learner import critic, rows
from eau_jax.learner.annotate import annotate
from eau_jax.learner.state import default_knobs
from eau_jax.learner.update import gradients, minibatch
from eau_jax.models import transformer

REDUCTIONS = {
    "token_mean": reduction.token_mean,
    "sequence_mean_token_sum": reduction.sequence_mean_token_sum,
    "sequence_mean_token_mean": reduction.sequence_mean_token_mean,
    "sequence_mean_token_sum_norm": lambda ids: reduction.sequence_mean_token_sum_norm(ids, constant=96.0),
    "prompt_mean": reduction.prompt_mean,
    "action_mean_token_mean": reduction.action_mean_token_mean,
    "action_mean_token_sum": reduction.action_mean_token_sum,
}
ALL = np.ones(small.P, bool)


@pytest.fixture(scope="module")
def base():
    return small.learner()


@pytest.fixture(scope="module")
def case(base):
    """One annotated batch, and params that have moved since: ratios differ from 1 and some are clipped."""
    state = small.start(base)
    trajectory = rows.fit(base, small.trajectory())
    knobs = default_knobs(base)
    annotation, _ = annotate(base, state, trajectory, knobs)
    rng = np.random.default_rng(3)
    moved = lambda tree: jax.tree.map(lambda x: np.asarray(x + 0.1 * rng.normal(size=x.shape), np.float32), tree)
    params = {"policy": moved(state.policy.params), "critic": moved(state.critic.params), "frozen": {}}
    return trajectory, annotation, params, knobs


def result(learner, phase, case, member=ALL):
    trajectory, annotation, params, knobs = case
    packed = minibatch(learner, trajectory, annotation, member)
    return gradients(learner, phase, params, packed, knobs)


def assert_same(one, other, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=1e-4)


def dense_weights(name, action_ids):
    """The reduction's formula, written out over Python lists of units; [B, T]."""
    ids = action_ids.reshape(-1, small.T)
    weights = np.zeros(ids.shape)
    episodes = [b for b in range(len(ids)) if (ids[b] >= 0).any()]
    units = {
        "token_mean": [[(b, t) for b in episodes for t in np.flatnonzero(ids[b] >= 0)]],
        "sequence": [[(b, t) for t in np.flatnonzero(ids[b] >= 0)] for b in episodes],
        "prompt": [[(b, t) for b in episodes if b // small.G == p for t in np.flatnonzero(ids[b] >= 0)]
                   for p in range(small.P)],
        "action": [[(b, t) for t in np.flatnonzero(ids[b] == a)] for b in episodes for a in range(small.A)],
    }
    kind = next(kind for kind in units if name.startswith(kind))
    groups = [unit for unit in units[kind] if unit]
    for unit in groups:
        for at in unit:
            if name.endswith("norm"):
                weights[at] = 1 / 96
            elif name.endswith("token_sum"):
                weights[at] = 1 / len(groups)
            else:
                weights[at] = 1 / len(groups) / len(unit)
    return weights.astype(np.float32)


def dense_policy_loss(params, trajectory, annotation, weights, knobs, ref=None, coef=0.0, entropy_coef=0.0):
    """PPO over one unpacked row per episode, all logits at once, written from the formulas."""
    tokens = trajectory.tokens.reshape(-1, small.T)
    length = trajectory.length.reshape(-1)
    ids = trajectory.action_ids.reshape(-1, small.T)
    flat = lambda x: jnp.asarray(x).reshape(-1, small.T)
    inside = np.arange(small.T)[None] < length[:, None]
    positions = np.broadcast_to(np.arange(small.T, dtype=np.int32), tokens.shape)
    hidden = transformer.forward(params["policy"], small.MODEL, tokens, positions, inside.astype(np.int32))
    logp = jax.nn.log_softmax(hidden[:, :-1] @ params["policy"]["embed"].T, axis=-1)         # of the next token
    chosen = jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1)[..., 0]
    mask = ids[:, 1:] >= 0
    entropy = -(jnp.exp(logp) * logp).sum(-1)
    ratio = jnp.exp(chosen - flat(annotation.targets.old_logprobs)[:, 1:])
    A = flat(annotation.targets.advantages)[:, 1:]
    low, high, dual = 1 - knobs["policy_loss"].clip_low, 1 + knobs["policy_loss"].clip_high, knobs["policy_loss"].dual_clip
    loss = jnp.maximum(-A * ratio, -A * jnp.clip(ratio, low, high))
    loss = jnp.where(A < 0, jnp.minimum(loss, -A * dual), loss) * flat(annotation.correction)[:, 1:]
    loss = loss - entropy_coef * entropy
    if ref is not None:
        delta = chosen - flat(ref)[:, 1:]
        loss = loss + coef * (jnp.exp(-delta) + delta - 1)
    return jnp.where(mask, loss * weights[:, 1:], 0.0).sum()


def dense_value_loss(params, trajectory, annotation, weights, clip):
    tokens, length = trajectory.tokens.reshape(-1, small.T), trajectory.length.reshape(-1)
    inside = np.arange(small.T)[None] < length[:, None]
    positions = np.broadcast_to(np.arange(small.T, dtype=np.int32), tokens.shape)
    critic = params["critic"]
    hidden = transformer.forward(critic["model"], small.MODEL, tokens, positions, inside.astype(np.int32))
    values = (hidden @ critic["head"]["kernel"] + critic["head"]["bias"])[:, :-1]
    flat = lambda x: jnp.asarray(x).reshape(-1, small.T)[:, 1:]
    old, target, mask = flat(annotation.targets.old_values), flat(annotation.targets.value_targets), flat(
        annotation.targets.value_mask)
    worst = jnp.maximum((values - target) ** 2, (jnp.clip(values, old - clip, old + clip) - target) ** 2)
    return jnp.where(mask, 0.5 * worst * weights[:, 1:], 0.0).sum()


def slow_but(names, *fast):
    """The names as parameters; all but `fast` are compiled anew at some cost and run with the slow tests."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow_but(REDUCTIONS, "action_mean_token_mean"))
def test_matches_the_dense_reference(base, case, name):
    trajectory, annotation, params, knobs = case
    learner = dataclasses.replace(base, reduction=REDUCTIONS[name])
    packed = minibatch(learner, trajectory, annotation, ALL)
    weights = dense_weights(name, trajectory.action_ids)
    loss, grads, metrics = gradients(base, base.critic.together, params, packed, knobs)
    expected = jax.value_and_grad(dense_policy_loss)(params, trajectory, annotation, weights, knobs)
    assert_same((loss, grads["policy"]), (expected[0], expected[1]["policy"]))
    assert 0 < metrics["clip_fraction_high"].result() + metrics["clip_fraction_low"].result() < 1
    loss, grads, _ = gradients(base, base.critic.alone, params, packed, knobs)
    expected = jax.value_and_grad(dense_value_loss)(params, trajectory, annotation, weights, 0.5)
    assert_same((loss, grads["critic"]), (expected[0], expected[1]["critic"]))


@pytest.mark.slow
def test_reference_kl_and_entropy_match_the_dense_reference(case):
    learner = small.learner(kl=kl.k3)
    trajectory, _, params, _ = case
    state = small.start(learner)
    state = state.replace(reference=jax.tree.map(lambda x: x * 1.1, state.reference))
    knobs = default_knobs(learner)
    knobs["kl"], knobs["entropy"] = knobs["kl"].replace(coef=np.float32(0.3)), knobs["entropy"].replace(coef=np.float32(0.05))
    annotation, _ = annotate(learner, state, trajectory, knobs)
    assert np.abs(annotation.ref_logprobs - annotation.targets.old_logprobs).max() > 1e-3
    packed = minibatch(learner, trajectory, annotation, ALL)
    loss, grads, _ = gradients(learner, learner.critic.together, params, packed, knobs)
    expected = jax.value_and_grad(dense_policy_loss)(
        params, trajectory, annotation, dense_weights("token_mean", trajectory.action_ids), knobs, annotation.ref_logprobs,
        0.3, 0.05)
    assert_same((loss, grads["policy"]), (expected[0], expected[1]["policy"]))


def test_the_value_loss_is_a_mean_over_the_tokens_that_have_a_target():
    """Under by_action_end the last of each action; the policy's weights are those of all action tokens."""
    learner = small.learner(view=view.by_action_end)
    trajectory = rows.fit(learner, small.trajectory())
    last = np.asarray(action.last_tokens(trajectory.action_ids))
    annotation = rows.unannotated(trajectory)
    annotation = annotation.replace(targets=annotation.targets.replace(value_mask=last))
    packed = minibatch(learner, trajectory, annotation, ALL)
    for weights, mask, count in ((packed.value_weights, packed.value_mask, last.sum()),
                                 (packed.weights, packed.mask, (trajectory.action_ids >= 0).sum())):
        np.testing.assert_allclose(weights, np.where(mask, 1 / count, 0), rtol=1e-6)
    assert 0 < packed.value_mask.sum() < packed.mask.sum()


CUTS = {
    "micro_batches": dict(micro_rows=2),
    "one_episode_a_row": dict(row_width=small.T, micro_rows=2),
    "wide_rows": dict(row_width=128, micro_rows=1),
    "eight_devices": dict(mesh=(2, 2, 2), micro_rows=8),
    "eight_data_devices": dict(mesh=(8, 1, 1), micro_rows=8),
    "two_devices": dict(mesh=(1, 2), micro_rows=4),
    "four_devices": dict(mesh=(2, 1, 2), micro_rows=4),
}


@pytest.mark.parametrize("cut", slow_but(CUTS, "eight_devices"))
def test_the_cut_does_not_matter(base, case, cut):
    """Micro-batches, packing and devices, for every reduction."""
    changes = dict(CUTS[cut])
    if "mesh" in changes:
        changes["mesh"] = make_mesh(*changes["mesh"], devices=jax.devices()[:math.prod(changes["mesh"])])
    other = small.learner(**changes)
    trajectory, annotation, params, knobs = case
    for reduce in REDUCTIONS.values():
        weighed = dataclasses.replace(base, reduction=reduce), dataclasses.replace(other, reduction=reduce)
        for phase in (base.critic.together, base.critic.alone):
            one, two = (gradients(learner, phase, params, minibatch(weigher, trajectory, annotation, ALL), knobs)
                        for learner, weigher in zip((base, other), weighed, strict=True))
            assert_same(one[:2], two[:2])
            assert_same({k: m.total for k, m in one[2].items()}, {k: m.total for k, m in two[2].items()}, 1e-4)
            assert {k: float(m.count) for k, m in one[2].items()} == {k: float(m.count) for k, m in two[2].items()}


def test_a_mean_over_each_micro_batch_would_be_seen(base, case):
    """The mutant: weights from the rows of a micro-batch instead of the minibatch."""
    trajectory, annotation, params, knobs = case
    whole = minibatch(base, trajectory, annotation, ALL)
    parts = [jax.tree.map(lambda x: x[i:i + 2], whole) for i in (0, 2)]
    wrong = [part.replace(weights=np.where(part.mask, 1 / max(part.mask.sum(), 1) / 2, 0).astype(np.float32)) for part in parts]
    losses = [gradients(base, base.critic.together, params, jax.tree.map(lambda x: np.pad(x, ((0, 6), (0, 0))), part), knobs)[0]
              for part in wrong]
    assert abs(sum(losses) - result(base, base.critic.together, case)[0]) > 1e-3


def test_groups_in_another_order_give_the_same(base, case):
    trajectory, annotation, params, knobs = case
    order = np.array([2, 0, 3, 1])
    turned = jax.tree.map(lambda x: x[order], (trajectory, annotation))
    for phase in (base.critic.together, base.critic.alone):
        assert_same(result(base, phase, case)[:2], result(base, phase, (*turned, params, knobs))[:2])


def test_minibatches_with_a_common_denominator_add_up(base, case):
    """Sum-type weights: the gradient of the batch is the sum over any partition into groups."""
    constant = dataclasses.replace(base, reduction=REDUCTIONS["sequence_mean_token_sum_norm"])
    parts = [result(constant, base.critic.together, case, np.array(m)) for m in ([1, 0, 0, 1], [0, 1, 1, 0])]
    parts = [jax.tree.map(lambda a, b: a + b, *(part[:2] for part in parts))]
    assert_same(parts[0], result(constant, base.critic.together, case)[:2])


def test_annotation_is_the_same_on_one_and_eight_devices(base):
    state = small.start(base)
    other = small.learner(mesh=make_mesh(2, 2, 2))
    knobs = default_knobs(base)
    one, first = annotate(base, state, small.trajectory(), knobs)
    two, second = annotate(other, small.start(other), small.trajectory(), knobs)
    assert_same(one, two)
    assert first.keys() == second.keys()


def test_observations_are_not_in_the_loss(base, case):
    """NaN at every position that is not an action token, and other text after the last action: nothing moves."""
    trajectory, annotation, params, knobs = case
    rng = np.random.default_rng(0)
    action = trajectory.action_ids >= 0
    last = np.where(action, np.arange(small.T)[None, None], -1).max(-1, keepdims=True)
    after = (np.arange(small.T)[None, None] > last) & (last >= 0)
    tokens = np.where(after, rng.integers(0, 64, action.shape), trajectory.tokens).astype(np.int32)
    assert (after & (tokens != trajectory.tokens) & (np.arange(small.T)[None, None] < trajectory.length[..., None])).any()
    poison = lambda x: np.where(action, x, np.asarray(np.nan, x.dtype)) if x.dtype == np.float32 else x
    poisoned = jax.tree.map(poison, annotation)
    for phase in (base.critic.together, base.critic.alone):
        clean, dirty = result(base, phase, case)[:2], result(base, phase, (trajectory.replace(tokens=tokens), poisoned, params,
                                                                           knobs))[:2]
        assert_same(clean, dirty, 1e-7)


@pytest.mark.slow
def test_a_shared_trunk_adds_the_two_losses(base, case):
    shared = small.learner(critic=critic.shared_trunk)
    trajectory, annotation, params, _ = case
    knobs = default_knobs(shared)
    params = {"policy": params["policy"], "critic": {"head": params["critic"]["head"]}, "frozen": {}}
    packed = minibatch(shared, trajectory, annotation, ALL)
    weights = dense_weights("token_mean", trajectory.action_ids)

    def dense(params):
        value = dense_value_loss({"critic": {"model": params["policy"], "head": params["critic"]["head"]}}, trajectory, annotation,
                                 weights, 0.5)
        return dense_policy_loss(params, trajectory, annotation, weights, knobs) + 0.5 * value

    loss, grads, metrics = gradients(shared, shared.critic.together, params, packed, knobs)
    assert_same((loss, grads), jax.value_and_grad(dense)(params))
    assert isinstance(metrics["value"], Mean)
    loss, grads, _ = gradients(shared, shared.critic.alone, params, packed, knobs)
    assert set(grads) == {"critic"}
