"""LoRA in the learner: the start, gradients against those of the full weights, what moves and what does not, checkpoints."""

import dataclasses

import jax
import numpy as np
import pytest
import small_learner as small
from flax import traverse_util

from eau_jax.algorithms import kl
from eau_jax.core.sharding import make_mesh
from eau_jax.learner import critic, rows, sft
from eau_jax.learner.annotate import annotate
from eau_jax.learner.checkpoint import Checkpoints
from eau_jax.learner.state import abstract_state, default_knobs, init_tower, place, policy_weights
from eau_jax.learner.update import gradients, minibatch, update
from eau_jax.models import lora
from eau_jax.models.config import Lora

ADAPTED = dataclasses.replace(small.MODEL, lora=Lora(rank=3, alpha=5.0))
SCALE = 5.0 / 3.0


def make(**changes):
    return small.learner(**({"model": ADAPTED} | changes))


def fast(learner, rate=1e-2):
    knobs = default_knobs(learner)
    optimizers = "policy_optimizer", "critic_optimizer"
    return knobs | {name: knobs[name].replace(learning_rate=np.float32(rate)) for name in optimizers}


def copy(tree):
    return jax.tree.map(np.array, tree)


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def names(tree):
    return {"/".join(path) for path in traverse_util.flatten_dict(tree)}


def noisy(tree, seed=3):
    """Every number moved, so that B is not 0."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: np.asarray(x + 0.1 * rng.normal(size=x.shape), np.float32), tree)


@pytest.fixture(scope="module")
def learner():
    return make()


@pytest.fixture(scope="module")
def batch():
    return rows.fit(make(), small.trajectory())


def test_the_start_is_the_base(learner, batch):
    full = small.learner()
    adapted, _ = annotate(learner, small.start(learner), batch, default_knobs(learner))
    plain, _ = annotate(full, small.start(full), batch, default_knobs(full))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), adapted, plain)


def case(learner, batch, tower):
    """One packed minibatch, and params whose adapters are not 0."""
    state = small.start(learner)
    annotation, _ = annotate(learner, state, batch, default_knobs(learner))
    params = {"policy": noisy(state.policy.params), "critic": noisy(state.critic.params, 4), "frozen": state.frozen}
    phase = {"policy": learner.critic.together, "critic": learner.critic.alone}[tower]
    return phase, params, minibatch(learner, batch, annotation, np.ones(small.P, bool))


def merged(params):
    """The same policy and critic as full weights, W + scale * A B by numpy."""
    def tower(adapters):
        base = copy(params["frozen"])
        for name in ADAPTED.lora.targets:
            a, b = (np.asarray(adapters["layers"][f"{name}_{letter}"]) for letter in "ab")
            W = base["layers"][name]
            L, r = len(W), 3
            W += SCALE * (a.reshape(L, -1, r) @ b.reshape(L, r, -1)).reshape(W.shape)
        return base
    return {"policy": tower(params["policy"]), "frozen": {},
            "critic": {"model": tower(params["critic"]["model"]), "head": params["critic"]["head"]}}


@pytest.mark.parametrize("tower", ["policy", "critic"])
def test_gradients_follow_from_those_of_the_merged_weights(learner, batch, tower):
    """dA = scale G B^T, dB = scale A^T G, with G the gradient of the merged weight."""
    phase, params, packed = case(learner, batch, tower)
    full = small.learner()
    loss, found, _ = gradients(learner, phase, params, packed, default_knobs(learner))
    expected_loss, expected, _ = gradients(full, phase, merged(params), packed, default_knobs(full))
    own = lambda tree: tree["model"] if tower == "critic" else tree
    errors = [abs(loss - expected_loss)]
    for name in ADAPTED.lora.targets:
        a, b = (np.asarray(own(params[tower])["layers"][f"{name}_{letter}"]) for letter in "ab")
        G, L, r = np.asarray(own(expected[tower])["layers"][name]), len(a), 3
        G, A, B = G.reshape(L, a.size // (L * r), -1), a.reshape(L, -1, r), b.reshape(L, r, -1)
        found_a, found_b = (np.asarray(own(found[tower])["layers"][f"{name}_{letter}"]) for letter in "ab")
        errors += [np.abs(found_a.reshape(A.shape) - SCALE * G @ B.swapaxes(1, 2)).max(),
                   np.abs(found_b.reshape(B.shape) - SCALE * A.swapaxes(1, 2) @ G).max()]
        assert np.abs(found_a).max() > 1e-4 and np.abs(found_b).max() > 1e-4
    if tower == "critic":
        assert names(found["critic"]["head"]) == {"kernel", "bias"}
        errors.append(np.abs(np.asarray(found["critic"]["head"]["kernel"]) - expected["critic"]["head"]["kernel"]).max())
    assert max(errors) < 2e-5


def reference_and_policy(batch):
    """Log-probabilities of the reference at the start, and of the reference and the policy once its adapters have moved."""
    learner = make(kl=kl.k3)
    knobs, state = default_knobs(learner), small.start(learner)
    first, _ = annotate(learner, state, batch, knobs)
    np.testing.assert_allclose(first.ref_logprobs, first.targets.old_logprobs, atol=1e-6)
    moved = state.replace(policy=state.policy.replace(params=noisy(state.policy.params)))
    second, _ = annotate(learner, moved, batch, knobs)
    return first.ref_logprobs, second.ref_logprobs, second.targets.old_logprobs


def test_the_reference_is_the_base_without_adapters(batch):
    before, after, policy = reference_and_policy(batch)
    np.testing.assert_array_equal(before, after)
    assert np.abs(policy - after).max() > 1e-2


@pytest.mark.slow
def test_a_reference_that_sees_the_adapter_would_be_seen(batch, monkeypatch):
    real = critic.weights_of
    monkeypatch.setattr(critic, "weights_of", lambda params, name: real(params, "policy" if name == "reference" else name))
    before, after, _ = reference_and_policy(batch)
    assert np.abs(before - after).max() > 1e-2


@pytest.mark.slow
def test_only_adapters_and_the_value_head_are_trained(learner, batch):
    """Frozen weights keep their bits and their buffers; moments exist for what is trained and for nothing else."""
    own = {f"layers/{name}_{letter}" for name in ADAPTED.lora.targets for letter in "ab"}
    state, knobs = small.start(learner), fast(learner)
    before, buffers = copy(state.frozen), [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state.frozen)]
    adapters = copy((state.policy.params, state.critic.params))
    assert state.reference == {} and names(state.frozen) == names(small.params())
    assert names(state.policy.params) == own
    assert names(state.critic.params) == {f"model/{name}" for name in own} | {"head/kernel", "head/bias"}
    for _ in range(4):  # the value head moves first, then B, then A
        annotation, _ = annotate(learner, state, batch, knobs)
        state, _ = update(learner, state, batch, annotation, knobs, seed=1)
    assert_equal(before, copy(state.frozen))
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state.frozen)] == buffers
    jax.tree.map(lambda old, new: np.testing.assert_(not np.array_equal(old, new)), adapters,
                 (state.policy.params, state.critic.params))
    for tower in (state.policy, state.critic):
        moments = [leaf.size for leaf in jax.tree.leaves(tower.opt_state) if leaf.ndim]
        assert sum(moments) == 2 * sum(leaf.size for leaf in jax.tree.leaves(tower.params) if leaf.ndim)


def test_both_factors_are_decayed_and_start_apart(learner):
    """Weight decay alone moves A; the policy's and the critic's adapters are drawn from keys of their own."""
    from eau_jax.learner.optimizer import decayed
    from eau_jax.learner.state import axes
    assert all(jax.tree.leaves(decayed(axes(learner)["policy"])))
    state = small.start(learner)
    policy, values = state.policy.params["layers"], state.critic.params["model"]["layers"]
    for name in ADAPTED.lora.targets:
        assert not np.array_equal(policy[f"{name}_a"], values[f"{name}_a"]) and not np.any(policy[f"{name}_b"])
        bound = ADAPTED.lora.rank ** 0.5 * policy[f"{name}_a"][0].size ** -0.5                # 1 / sqrt(in)
        assert 0.8 * bound < np.abs(policy[f"{name}_a"]).max() <= bound


@pytest.mark.slow
@pytest.mark.parametrize("tower", ["policy", "critic"])
def test_eight_devices_give_the_same_loss_and_gradients(learner, batch, tower):
    many = make(mesh=make_mesh(2, 2, 2))
    places = abstract_state(many)
    assert places.policy.params["layers"]["q_b"].sharding.spec[2] == "tensor"
    assert places.policy.params["layers"]["q_a"].sharding.spec[1] == "fsdp"
    phase, params, packed = case(learner, batch, tower)
    one = gradients(learner, phase, params, packed, default_knobs(learner))
    placed = params | {"frozen": place(many, copy(params["frozen"]))}
    other = gradients(many, phase, placed, packed, default_knobs(many))
    for a, b in zip(jax.tree.leaves(one[:2]), jax.tree.leaves(other[:2]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4)


def test_a_checkpoint_holds_adapters_only_and_resumes_to_the_bit(learner, batch, tmp_path):
    knobs = fast(learner)

    def step(state):
        annotation, _ = annotate(learner, state, batch, knobs)
        return update(learner, state, batch, annotation, knobs, seed=1)[0]

    state = step(small.start(learner))
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, state, {}, 0.0)
    whole = copy(step(state))
    restored = checkpoints.restore_latest(abstract_state(learner)).state
    checkpoints.close()
    assert restored.frozen == {} and restored.reference == {}
    stored = {leaf.shape for leaf in jax.tree.leaves(restored)}
    assert small.params()["embed"].shape not in stored and small.params()["layers"]["up"].shape not in stored
    again = step(restored.replace(frozen=place(learner, small.params())))
    assert_equal(whole, copy(again))


@pytest.mark.slow
def test_with_a_shared_trunk_the_critic_is_a_head(batch):
    learner = make(critic=critic.shared_trunk)
    state, knobs = small.start(learner), fast(learner)
    assert names(state.critic.params) == {"head/kernel", "head/bias"}
    frozen = copy(state.frozen)
    annotation, _ = annotate(learner, state, batch, knobs)
    state, metrics = update(learner, state, batch, annotation, knobs, seed=1)
    assert_equal(frozen, copy(state.frozen))
    assert metrics["policy_grad_norm"].result() > 0 and np.any(state.policy.params["layers"]["down_b"])


@pytest.mark.slow
def test_fine_tuning_learns_through_adapters_and_merges(learner, batch):
    tower, frozen = init_tower(learner, small.params(), jax.random.key(0))
    knobs, losses = fast(learner), []
    for _ in range(60):
        tower, metrics = sft.update(learner, tower, frozen, batch, knobs)
        losses.append(metrics["nll"].result())
    assert losses[-1] < losses[0] - 0.4, losses[::10]   # the frozen random head bounds the logits
    fitted = lora.merge(ADAPTED, lora.join(frozen, tower.params))
    full = small.learner()
    (plain, nothing), knobs = init_tower(full, fitted, jax.random.key(0)), default_knobs(full)
    _, metrics = sft.update(full, plain, nothing, batch, knobs)
    _, kept = sft.update(learner, tower, frozen, batch, knobs)
    assert metrics["nll"].result() == pytest.approx(kept["nll"].result(), abs=1e-4)


@pytest.mark.slow
def test_updates_learn_through_adapters(learner):
    """The batch's better half becomes likelier and the critic explains its returns."""
    trajectory = small.trajectory()
    state, knobs = small.start(learner), fast(learner, 5e-3)
    knobs["value_loss"] = knobs["value_loss"].replace(clip=np.float32(1e6))
    annotation, _ = annotate(learner, state, trajectory, knobs)
    first, advantages = annotation.targets.old_logprobs, annotation.targets.advantages
    for _ in range(30):
        state, _ = update(learner, state, trajectory, annotation, knobs, seed=0)
    after, metrics = annotate(learner, state, trajectory, knobs)
    change = after.targets.old_logprobs - first
    assert change[advantages > 0.2].mean() > 0.05 > -0.05 > change[advantages < -0.2].mean()
    assert metrics["explained_variance"].result() > 0.8
    assert names(policy_weights(state)) == names(state.frozen) | names(state.policy.params)
