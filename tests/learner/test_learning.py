"""What updates do to a policy and a critic: they learn, they leave alone what they must, and they fail loudly."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_learner as small

from eau_jax.algorithms.group import grpo
from eau_jax.core import knobs as knob_tree
from eau_jax.core.sharding import make_mesh
from eau_jax.core.types import Trajectory
from eau_jax.learner import critic, optimizer, sft
from eau_jax.learner.annotate import annotate
from eau_jax.learner.parts import NonFiniteError
from eau_jax.learner.state import abstract_state, axes, default_knobs, init_tower
from eau_jax.learner.update import _plan, update
from eau_jax.models import heads, transformer


def patch(knobs, changes):
    return knob_tree.patch({"rl": knobs}, {f"rl.{path}": value for path, value in changes.items()})["rl"]


def copy(tree):
    return jax.tree.map(np.array, tree)


def assert_equal(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def differs(one, other):
    return any(not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def run(learner, state, knobs, updates, trajectory=None):
    """`updates` steps on one batch, annotated anew before each."""
    for _ in range(updates):
        batch = small.trajectory() if trajectory is None else trajectory
        annotation, before = annotate(learner, state, batch, knobs)
        state, after = update(learner, state, batch, annotation, knobs, seed=7)
    return state, before | after


FAST = {"policy_optimizer.learning_rate": 3e-3, "critic_optimizer.learning_rate": 3e-3, "value_loss.clip": 1e6}


@pytest.fixture(scope="module")
def base():
    return small.learner()


@pytest.fixture(scope="module")
def knobs(base):
    return patch(default_knobs(base), FAST)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [
    critic.own_tower, pytest.param(critic.shared_trunk, marks=pytest.mark.slow)], ids=lambda kind: kind.name)
def test_the_critic_overfits_a_fixed_batch(kind):
    learner = small.learner(critic=kind, critic_warmup=0 if kind is critic.shared_trunk else 1000)
    knobs = patch(default_knobs(learner), FAST)
    if kind is critic.shared_trunk:
        knobs = patch(knobs, {"critic.coef": 5.0})
    state = small.start(learner)
    annotation, first = annotate(learner, state, small.trajectory(), knobs)
    for _ in range(150):
        state, _ = update(learner, state, small.trajectory(), annotation, knobs, seed=0)
    _, last = annotate(learner, state, small.trajectory(), knobs)
    assert abs(first["explained_variance"].result()) < 1e-3 and first["first_value"].result() == 0
    assert last["explained_variance"].result() > 0.95


@pytest.mark.slow
def test_an_action_with_a_positive_advantage_becomes_likelier_at_every_step(base, knobs):
    """A = 1 on the first action of one episode and 0 elsewhere, small learning rate."""
    small_steps = patch(knobs, {"policy_optimizer.learning_rate": 1e-4})
    state, trajectory = small.start(base), small.trajectory()
    annotation, _ = annotate(base, state, trajectory, small_steps)
    chosen = np.zeros(trajectory.action_ids.shape, bool)
    chosen[0, 0] = trajectory.action_ids[0, 0] == 0
    seen = []
    for _ in range(6):
        fresh, _ = annotate(base, state, trajectory, small_steps)
        seen.append(fresh.targets.old_logprobs[chosen].sum())
        fresh = fresh.replace(targets=fresh.targets.replace(advantages=chosen.astype(np.float32)),
                              correction=np.ones_like(annotation.correction))
        state, _ = update(base, state, trajectory, fresh, small_steps, seed=0)
    assert np.all(np.diff(seen) > 0)


@pytest.mark.parametrize("kind", [
    critic.own_tower, pytest.param(critic.shared_trunk, marks=pytest.mark.slow)], ids=lambda kind: kind.name)
def test_warm_up_leaves_the_policy_untouched(kind):
    learner = small.learner(critic=kind, critic_warmup=2)
    knobs = patch(default_knobs(learner), FAST)
    state = small.start(learner)
    policy, values = copy(state.policy), copy(state.critic)
    state, metrics = run(learner, state, knobs, 2)
    assert_equal(policy, state.policy)
    assert differs(values, state.critic)
    assert metrics["policy_steps"].result() == 0 and metrics["critic_steps"].result() == 1
    state, metrics = run(learner, state, knobs, 1)
    assert differs(policy.params, state.policy.params) and metrics["policy_steps"].result() == 1


def test_counts_of_steps_are_what_the_config_says():
    learner = small.learner(epochs=2, minibatches=2, critic_updates=3)
    state, metrics = run(learner, small.start(learner), default_knobs(learner), 1)
    assert metrics["policy_steps"].result() == int(state.policy.step) == 4
    assert metrics["critic_steps"].result() == int(state.critic.step) == 12
    assert int(state.step) == 1 and metrics["episodes"].result() == 7


@pytest.mark.parametrize("kind", [critic.own_tower, critic.shared_trunk], ids=lambda kind: kind.name)
@pytest.mark.parametrize("critic_only", [False, True])
def test_a_pass_takes_every_group_once_and_the_critic_comes_first(kind, critic_only):
    learner, usable = small.learner(critic=kind, epochs=2, minibatches=2, critic_updates=3), np.array([0, 2, 3])
    plan = list(_plan(learner, critic_only, usable, np.random.default_rng(0)))
    towers = [phase.towers for phase, _, _ in plan]
    assert [sum(name in trained for trained in towers) for name in ("critic", "policy")] == [12, 0 if critic_only else 4]
    assert towers == sorted(towers, key=lambda trained: "policy" in trained)
    assert [number for _, number, _ in plan] == list(range(len(plan)))
    for one, other in zip(plan[::2], plan[1::2], strict=True):
        assert sorted([*one[2], *other[2]]) == usable.tolist() and len(one[2]) == 2
    assert len({tuple(groups) for _, _, groups in plan[::2]}) > 1, "drawn anew in each pass"


def test_how_far_an_update_moves_the_policy_by_hand():
    """In a batch of one step every ratio is 1 and approx_kl 0, however large the step."""
    learner = small.learner(micro_rows=8)
    knobs, state, trajectory = default_knobs(learner), small.start(learner), small.trajectory()
    knobs = patch(knobs, {"sampler.temperature": 0.6})
    before, measured = annotate(learner, state, trajectory, knobs)
    assert (measured["row_use"].total, measured["row_use"].count) == (trajectory.length.sum(), 8 * small.S)
    for rate in (0.0, 3e-3):
        knobs = patch(knobs, {"policy_optimizer.learning_rate": rate})
        state, metrics = update(learner, state, trajectory, before, knobs, seed=7)
        after, _ = annotate(learner, state, trajectory, knobs)
        moved = (before.targets.old_logprobs - after.targets.old_logprobs)[trajectory.action_ids >= 0]
        assert metrics["approx_kl"].result() == pytest.approx(0, abs=1e-6) and metrics["policy_steps"].result() == 1
        assert metrics["update_kl"].result() == pytest.approx(np.mean(np.expm1(-moved) + moved), rel=1e-3, abs=1e-7)
        assert (metrics["update_kl"].result() > 1e-3) is (rate > 0)
        assert metrics["update_kl"].count == (trajectory.action_ids >= 0).sum()
    warming = small.learner(critic_warmup=1)
    assert "update_kl" not in run(warming, small.start(warming), default_knobs(warming), 1)[1], "the policy stayed"


def test_knobs_and_row_counts_change_without_a_new_trace(base, knobs):
    learner = dataclasses.replace(base, micro_rows=1, minibatches=2)
    state = small.start(learner)
    for seed in range(4):
        knobs = patch(knobs, {"sampler.temperature": 0.5 + 0.3 * seed, "advantage.gamma": 1 - 0.1 * seed,
                              "policy_optimizer.learning_rate": 1e-4 * (seed + 1), "policy_optimizer.warmup_steps": seed,
                              "policy_loss.clip_low": 0.1 * (seed + 1), "critic_optimizer.max_grad_norm": 1.0 + seed})
        state, _ = run(learner, state, knobs, 1, small.trajectory(seed, tasks=2 + seed % 3))
    assert "policy_zeros" in learner.traces and set(learner.traces.values()) == {1}, learner.traces


@pytest.mark.slow
def test_eight_devices_train_as_one_does(base, knobs):
    """Same losses and gradient norms, and still one trace each: the state comes back where it lay."""
    many = small.learner(mesh=make_mesh(2, 2, 2))
    states = [small.start(learner) for learner in (base, many)]
    for step in range(3):
        results = [run(learner, state, knobs, 1, small.trajectory(step))
                   for learner, state in zip((base, many), states, strict=True)]
        states = [state for state, _ in results]
        one, other = (metrics for _, metrics in results)
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].result() == pytest.approx(other[name].result(), rel=1e-2, abs=1e-3), (step, name)
    assert set(many.traces.values()) == {1}
    for leaf, place in zip(jax.tree.leaves(states[1]), jax.tree.leaves(abstract_state(many)), strict=True):
        assert leaf.sharding.is_equivalent_to(place.sharding, leaf.ndim)


def test_learning_rate_zero_leaves_every_bit(base, knobs):
    frozen = patch(knobs, {"policy_optimizer.learning_rate": 0.0, "critic_optimizer.learning_rate": 0.0,
                           "policy_optimizer.weight_decay": 0.5})
    state = small.start(base)
    before = copy((state.policy.params, state.critic.params))
    traces = dict(base.traces)
    state, _ = run(base, state, frozen, 2)
    assert_equal(before, (state.policy.params, state.critic.params))
    state, _ = run(base, state, knobs, 1)
    assert differs(before, (state.policy.params, state.critic.params))
    assert all(count == 1 for count in base.traces.values()), (traces, base.traces)


@pytest.mark.parametrize("path, value", [
    ("sampler.temperature", 0.6), ("advantage.gamma", 0.5), ("advantage.policy_lambda", 0.1), ("advantage.critic_lambda", 0.1),
    ("correction.cap", 1.01), ("policy_loss.clip_low", 0.001), ("policy_loss.clip_high", 0.001), ("policy_loss.dual_clip", 1.01),
    ("entropy.coef", 0.05), ("value_loss.clip", 0.001), ("policy_optimizer.learning_rate", 1e-3),
    ("policy_optimizer.warmup_steps", 9), ("policy_optimizer.beta1", 0.5), ("policy_optimizer.beta2", 0.5),
    ("policy_optimizer.eps", 1e-3), ("policy_optimizer.weight_decay", 0.5), ("policy_optimizer.max_grad_norm", 1e-4),
    ("critic_optimizer.learning_rate", 1e-3)])
def test_every_knob_moves_something(base, knobs, path, value):
    def outcome(knobs):
        state = small.start(base)
        for seed in range(2):
            annotation, _ = annotate(base, state, small.trajectory(), knobs)
            if seed:  # another policy and critic, so that every clip binds somewhere
                noise, targets = np.random.default_rng(0).normal(size=(2, small.P, small.G, small.T)), annotation.targets
                annotation = annotation.replace(targets=targets.replace(
                    old_logprobs=(targets.old_logprobs + 0.5 * noise[0]).astype(np.float32),
                    old_values=(targets.old_values + 0.5 * noise[1]).astype(np.float32)))
            state, _ = update(base, state, small.trajectory(), annotation, knobs, seed=0)
        return copy((state.policy.params, state.critic.params))
    assert differs(outcome(knobs), outcome(patch(knobs, {path: value})))


def test_a_batch_without_episodes_changes_nothing(base, knobs):
    state = small.start(base)
    before = copy(state)
    empty = small.trajectory()
    empty = empty.replace(length=np.zeros_like(empty.length), action_ids=np.full_like(empty.action_ids, -1))
    state, metrics = run(base, state, knobs, 1, empty)
    assert_equal(before.replace(step=1), state)
    assert metrics["episodes"].result() == metrics["policy_steps"].result() == metrics["critic_steps"].result() == 0
    assert all(np.isfinite([metric.total, metric.count]).all() for metric in metrics.values())


def test_dropped_and_missing_episodes_do_not_matter(base, knobs):
    """A batch of fewer groups equals the full-size batch whose other groups are empty."""
    short = small.trajectory(tasks=3)
    state, _ = run(base, small.start(base), knobs, 1, short)
    blank = lambda x, fill: np.concatenate([x, np.full((1, *x.shape[1:]), fill, x.dtype)])
    padded = Trajectory(**{name: blank(getattr(short, name), {"action_ids": -1, "discounts": 1, "tokens": 9}.get(name, 0))
                           for name in ("tokens", "length", "action_ids", "sampler_logprobs", "rewards", "discounts",
                                        "policy_version")})
    other, _ = run(base, small.start(base), knobs, 1, padded)
    assert_equal(state, other)


def test_a_loss_that_is_not_finite_stops_before_the_state_is_replaced(base, knobs):
    state, trajectory = small.start(base), small.trajectory()
    state, _ = run(base, state, knobs, 1)
    before = copy(state)
    annotation, _ = annotate(base, state, trajectory, knobs)
    bad = annotation.replace(targets=annotation.targets.replace(
        value_targets=np.where(annotation.targets.value_mask, np.inf, annotation.targets.value_targets)))
    with pytest.raises(NonFiniteError, match="update 1, critic minibatch 0: loss inf.*not applied") as caught:
        update(base, state, trajectory, bad, knobs, seed=0)
    assert_equal(before, state)
    bad = annotation.replace(targets=annotation.targets.replace(
        advantages=np.where(trajectory.action_ids >= 0, np.nan, annotation.targets.advantages)))
    with pytest.raises(NonFiniteError, match="update 1, policy minibatch 1") as caught:
        update(base, state, trajectory, bad, knobs, seed=0)
    assert_equal(before.policy, caught.value.towers["policy"])
    assert int(caught.value.towers["critic"].step) == 2


def test_without_a_critic(base):
    learner = small.learner(advantage=grpo, critic=critic.no_critic)
    knobs = patch(default_knobs(learner), {"policy_optimizer.learning_rate": 1e-3})
    assert not {"value_loss", "critic", "critic_optimizer", "kl"} & knobs.keys()
    state, metrics = run(learner, small.start(learner), knobs, 2)
    assert metrics["policy_steps"].result() == 1 and metrics["critic_steps"].result() == 0
    assert "explained_variance" not in metrics and state.critic.params == {}


@pytest.mark.parametrize("changes, message", [
    (dict(row_width=16), "row_width is 16"), (dict(micro_rows=0), "micro_rows is 0"), (dict(minibatches=5), "allowed: 1 to 4"),
    (dict(advantage=grpo), "reads no values"), (dict(critic=critic.no_critic), "needs a critic"),
    (dict(advantage=grpo, critic=critic.no_critic, critic_warmup=3), "no effect"), (dict(critic_warmup=-1), "at least 0"),
    (dict(advantage=grpo, critic=critic.no_critic, critic_updates=2), "no effect"), (dict(balance=-.1), "balance is -0.1"),
    (dict(mesh=make_mesh(expert=2)), "mesh.expert is 2, but the model has 0 experts"),
    (dict(mesh=make_mesh(2, 2, 2), micro_rows=6), "mesh.data . mesh.fsdp . mesh.expert = 4"),
    (dict(model=dataclasses.replace(small.MODEL, attention="splash")), "attention 'splash' cannot run: it needs a TPU")])
def test_choices_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small.learner(**changes)


def test_a_batch_that_does_not_fit_is_refused(base, knobs):
    with pytest.raises(ValueError, match="the batch has 5 tasks"):
        annotate(base, small.start(base), small.trajectory(tasks=5), knobs)
    naked = small.trajectory()
    naked.action_ids[0, 0, 0] = 0
    with pytest.raises(ValueError, match="put a prompt before it"):
        annotate(base, small.start(base), naked, knobs)


def test_the_optimizer_equals_a_static_one_that_warms_up():
    names = {"matrix": ("embed", "mlp"), "norm": ("embed",)}
    params = {"matrix": jnp.arange(6.0).reshape(2, 3), "norm": jnp.ones(2)}
    knobs = optimizer.Knobs(learning_rate=np.float32(.01), weight_decay=np.float32(.1), max_grad_norm=np.float32(.5),
                            warmup_steps=np.int32(3))
    static = optax.chain(optax.clip_by_global_norm(.5), optax.adamw(
        lambda count: .01 * jnp.minimum((count + 1) / 3, 1), weight_decay=.1, mask={"matrix": True, "norm": False}))
    tower, expected, moments = optimizer.start(params, names, "float32"), params, static.init(params)
    ours = jax.jit(lambda tower, grads: optimizer.apply(tower, grads, knobs, names, "float32"))
    theirs = jax.jit(static.update)
    for step in range(5):
        grads = jax.tree.map(lambda x: jnp.cos(x + step), params)
        tower = ours(tower, grads)
        updates, moments = theirs(grads, moments, expected)
        expected = optax.apply_updates(expected, updates)
        for a, b in zip(jax.tree.leaves(tower.params), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("filters", [dict(top_k=1), dict(top_p=1e-6)], ids=["top_k", "top_p"])
def test_probabilities_are_those_of_the_filtered_distribution(filters):
    """With one token left, it is certain; another has less than half of what it and the likeliest have."""
    rows, hidden = np.ones((1, 8), bool), np.random.default_rng(0).normal(size=(1, 8, 32)).astype(np.float32)
    best = np.argmax(hidden @ np.asarray(small.params()["embed"]).T, axis=-1)
    tokens = np.where(np.arange(8) % 2, np.roll(best, 1, axis=1), 5).astype(np.int32)
    score = jax.jit(lambda hidden: critic.logprobs(small.params(), small.learner(**filters), hidden, SimpleNamespace(
        tokens=tokens, mask=rows & (np.arange(8) > 0)), np.float32(1))[0])
    got = np.asarray(score(hidden))[0]
    np.testing.assert_allclose(got[1::2], 0, atol=1e-6)
    assert (got[2::2] < np.log(.5)).all()


@pytest.mark.slow
def test_the_optimizer_equals_a_static_one_and_decays_matrices_only(base):
    names = axes(base)["policy"]
    params = small.params()
    grads = jax.tree.map(lambda x: jnp.cos(x), params)
    knobs = optimizer.Knobs(learning_rate=np.float32(0.01), weight_decay=np.float32(0.1), max_grad_norm=np.float32(0.5))
    tower = optimizer.start(params, names, "float32")
    decayed = optimizer.decayed(names)
    assert decayed["embed"] and decayed["layers"]["q"] and decayed["layers"]["down"]
    assert not (decayed["final_norm"] or decayed["layers"]["q_norm"] or decayed["layers"]["attn_norm"])
    static = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.01, weight_decay=0.1, mask=decayed))
    moments, expected = static.init(params), params
    step = jax.jit(lambda tower, knobs: optimizer.apply(tower, grads, knobs, names, "float32"))
    for _ in range(3):
        tower = step(tower, knobs)
        updates, moments = static.update(grads, moments, expected)
        expected = optax.apply_updates(expected, updates)
    for a, b in zip(jax.tree.leaves(tower.params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    slow = optimizer.apply(optimizer.start(params, names, "float32"), grads, knobs.replace(warmup_steps=np.int32(10)), names, "float32")
    fast = optimizer.apply(optimizer.start(params, names, "float32"), grads, knobs, names, "float32")
    ratio = (slow.params["embed"] - params["embed"]) / (fast.params["embed"] - params["embed"])
    np.testing.assert_allclose(ratio, 0.1, rtol=1e-2)


@pytest.mark.slow
def test_fine_tuning_learns_the_agents_tokens_and_only_those(base):
    trajectory = small.trajectory()
    knobs = {"policy_optimizer": optimizer.Knobs(learning_rate=np.float32(3e-3))}
    (tower, frozen), losses = init_tower(base, small.params(), jax.random.key(0)), []
    for _ in range(40):
        tower, metrics = sft.update(base, tower, frozen, trajectory, knobs)
        losses.append(metrics["nll"].result())
    assert losses[0] == pytest.approx(metrics_of_a_uniform_guess(), abs=0.5) and losses[-1] < 0.3 * losses[0]
    assert losses[0] == pytest.approx(dense_nll(small.params(), trajectory), abs=1e-4)
    assert base.traces["sft_gradients"] == 1
    empty = trajectory.replace(action_ids=np.full_like(trajectory.action_ids, -1))
    same, metrics = sft.update(base, tower, frozen, empty, knobs)
    assert same is tower and metrics["action_tokens"].result() == 0


def metrics_of_a_uniform_guess():
    return float(np.log(small.MODEL.vocab_size))


def dense_nll(params, trajectory):
    tokens = trajectory.tokens.reshape(-1, small.T)
    positions = np.broadcast_to(np.arange(small.T, dtype=np.int32), tokens.shape)
    hidden = transformer.forward(params, small.MODEL, tokens, positions, np.ones_like(tokens))
    logp = jax.nn.log_softmax(hidden[:, :-1] @ params["embed"].T, axis=-1)
    chosen = np.take_along_axis(np.asarray(logp), tokens[:, 1:, None], axis=-1)[..., 0]
    return -chosen[trajectory.action_ids.reshape(-1, small.T)[:, 1:] >= 0].mean()


@pytest.mark.slow
def test_a_two_turn_bandit_is_learned():
    """The first action alone decides: reward 1, paid at the end, if its token is below 32."""
    learner = small.learner(tasks=16, group=4, micro_rows=16, minibatches=2, critic_updates=2)
    knobs = patch(default_knobs(learner), {"policy_optimizer.learning_rate": 2e-3, "critic_optimizer.learning_rate": 3e-3})
    state = small.start(learner)
    score = jax.jit(lambda params, tokens: heads.logits(params, small.MODEL, transformer.forward(
        params, small.MODEL, tokens, jnp.broadcast_to(jnp.arange(4, dtype=jnp.int32)[None], tokens.shape),
        jnp.ones_like(tokens)).reshape(-1, 32)).reshape(*tokens.shape, -1))
    rates = []
    for step in range(25):
        key = jax.random.key(step)
        tokens = np.zeros((64, 4), np.int32)
        tokens[:, 0], tokens[:, 2] = 1, 2
        logprobs = np.zeros((64, 4), np.float32)
        for column in (1, 3):
            logp = jax.nn.log_softmax(score(state.policy.params, tokens)[:, column - 1])
            tokens[:, column] = jax.random.categorical(jax.random.fold_in(key, column), logp)
            logprobs[:, column] = np.take_along_axis(np.asarray(logp), tokens[:, column:column + 1], axis=1)[:, 0]
        won = (tokens[:, 1] < 32).astype(np.float32)
        rates.append(won.mean())
        pad = lambda x, fill=0: np.pad(x, ((0, 0), (0, small.T - 4)), constant_values=fill).reshape(16, 4, -1)
        ids = np.broadcast_to(np.array([-1, 0, -1, 1], np.int32), (64, 4))
        rewards = np.stack([0 * won, won, 0 * won], 1)
        discounts = np.broadcast_to(np.array([1, 0, 1], np.float32), (64, 3))
        batch = Trajectory(tokens=pad(tokens), length=np.full((16, 4), 4, np.int32), action_ids=pad(ids, -1),
                           sampler_logprobs=pad(logprobs), rewards=rewards.reshape(16, 4, 3),
                           discounts=discounts.reshape(16, 4, 3), policy_version=np.zeros((16, 4, 3), np.int32))
        annotation, before = annotate(learner, state, batch, knobs)
        assert before["sampler_gap_max"].result() < 1e-4
        state, _ = update(learner, state, batch, annotation, knobs, seed=1)
    assert np.mean(rates[:3]) < 0.65 and np.mean(rates[-5:]) > 0.9
