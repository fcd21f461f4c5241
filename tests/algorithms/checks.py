"""What any right implementation must satisfy, as functions of the implementation.

The property tests run them on the package, the mutant tests on wrong versions of it that they must reject. A check
takes (system, seed) and raises AssertionError.
"""

import functools
import inspect
from typing import Any, Callable, NamedTuple

import jax
import numpy as np
from algorithms.batches import A, T, compiled_steps, random_batch, run, same, single
from oracles import advantages as oracle

from eau_jax.algorithms import action, gae, loss, reduction, view, whiten
from eau_jax.core.types import Trajectory


def total_loss(inputs: dict[str, Any], weights: Any, policy: Any) -> Any:
    """The policy loss of one micro-batch; `inputs` as `token_inputs` makes them."""
    return loss.policy_loss(**inputs, weights=weights, knobs=policy)[0]


def accumulated(reduce: Callable, action_ids: Any, parts: list) -> tuple[list, Callable]:
    """Weights of each part's tokens, and how the losses of the parts become one: flat row numbers in, weights out."""
    weights = np.asarray(jax.jit(reduce)(action_ids)).reshape(-1, action_ids.shape[-1])
    return [weights[rows] for rows in parts], sum


class System(NamedTuple):
    """The pieces under test; a mutant replaces one of them."""

    estimate: Callable = gae.estimate
    views: tuple[view.View, ...] = (view.by_token, view.by_action, view.by_action_end)
    over_actions: Callable = whiten.over_actions
    over_tokens: Callable = whiten.over_tokens
    total_loss: Callable = total_loss
    accumulated: Callable = accumulated

    def view(self, name: str) -> view.View:
        return next(v for v in self.views if v.name == name)


REDUCTIONS = {
    "token_mean": reduction.token_mean,
    "sequence_mean_token_sum": reduction.sequence_mean_token_sum,
    "sequence_mean_token_mean": reduction.sequence_mean_token_mean,
    "sequence_mean_token_sum_norm": functools.partial(reduction.sequence_mean_token_sum_norm, constant=30.0),
    "prompt_mean": reduction.prompt_mean,
    "action_mean_token_mean": reduction.action_mean_token_mean,
    "action_mean_token_sum": reduction.action_mean_token_sum,
}


def first_tokens(action_ids: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(action.first_tokens)(action_ids))


def padded(batch, tokens: int = 3, slots: int = 2):
    """The batch with more padding on the right of tokens (garbage values) and of slots."""
    trajectory, values = batch

    def pad(x, n, fill):
        return np.concatenate([x, np.full((*x.shape[:-1], n), fill, x.dtype)], -1)

    end = trajectory.replace(
        tokens=pad(trajectory.tokens, tokens, 0), action_ids=pad(trajectory.action_ids, tokens, -1),
        sampler_logprobs=pad(trajectory.sampler_logprobs, tokens, 0), rewards=pad(trajectory.rewards, slots, 0),
        discounts=pad(trajectory.discounts, slots, 1), policy_version=pad(trajectory.policy_version, slots, 0))
    return end, pad(values, tokens, 70.0)


# --- estimates -------------------------------------------------------------------------------------------------------

def agrees_with_the_formula(system: System, seed: int) -> None:
    trajectory, values = random_batch(seed)
    for v in system.views:
        advantages, targets, mask = run(system.estimate, v, (trajectory, values))
        for at in np.ndindex(advantages.shape[:2]):
            ended = trajectory.discounts[at].min() == 0
            expected = oracle.episode(v.name, trajectory.action_ids[at], trajectory.rewards[at], ended, values[at],
                                      trajectory.length[at], gamma=0.9, policy_lambda=0.7, critic_lambda=0.8)
            for got, wanted in zip((advantages[at], targets[at], mask[at]), expected, strict=True):
                same(got, wanted)


def observations_are_inert(system: System, seed: int) -> None:
    """NaN in every value that no step may read, and in the bootstrap of episodes that ended, changes nothing."""
    trajectory, values = random_batch(seed)
    spoilt = np.where(np.abs(values) > 25, np.nan, values)
    assert np.isnan(spoilt).any()
    for v in system.views:
        before = run(system.estimate, v, (trajectory, values))
        after = run(system.estimate, v, (trajectory, spoilt))
        same(after[0], before[0])
        same(after[1], before[1], before[2])


def padding_is_inert(system: System, seed: int) -> None:
    batch = random_batch(seed)
    assert (batch[0].discounts.min(-1) > 0).any(), "without truncated episodes the discount hides the padding"
    for v in system.views:
        before, after = run(system.estimate, v, batch), run(system.estimate, v, padded(batch))
        for b, a in zip(before, after, strict=True):
            same(a[..., :T], b, before[2])
        assert not after[0][..., T:].any() and not after[2][..., T:].any()


def observations_may_be_of_any_length(system: System, seed: int) -> None:
    """With the values at action tokens held, inserting observation tokens leaves every action's advantage unchanged."""
    trajectory, values = random_batch(seed)
    wide = 2 * T
    ids = np.full((*trajectory.action_ids.shape[:2], wide), -1, np.int32)
    moved_values = np.full((*ids.shape[:2], wide + 1), 90.0, np.float32)
    length = np.zeros_like(trajectory.length)
    kept = np.zeros((*ids.shape[:2], T), np.int64)
    rng = np.random.default_rng(seed)
    for at in np.ndindex(ids.shape[:2]):
        if not trajectory.length[at]:
            continue
        starts = first_tokens(trajectory.action_ids)[at]
        shift = np.cumsum(np.where(starts, rng.integers(0, 5, T), 0))
        kept[at] = np.arange(T) + shift
        on = trajectory.action_ids[at] >= 0
        ids[at][kept[at][on]] = trajectory.action_ids[at][on]
        moved_values[at][kept[at][on]] = values[at][:-1][on]
        length[at] = trajectory.length[at] + shift[-1]
        moved_values[at][length[at]] = values[at][trajectory.length[at]]
    moved = Trajectory(tokens=np.zeros_like(ids), length=length, action_ids=ids,
                       sampler_logprobs=np.zeros(ids.shape, np.float32), rewards=trajectory.rewards,
                       discounts=trajectory.discounts, policy_version=trajectory.policy_version)
    on = trajectory.action_ids >= 0
    for v in system.views:
        before, after = run(system.estimate, v, (trajectory, values)), run(system.estimate, v, (moved, moved_values))
        same(np.take_along_axis(after[0], kept, -1), before[0], on)
        same(np.take_along_axis(after[1], kept, -1), before[1], before[2])


def skipping_observations_is_deleting_them(system: System, seed: int) -> None:
    """The token view of a row is plain GAE of the row without its observations."""
    trajectory, values = random_batch(seed)
    advantages, _, _ = run(system.estimate, system.view("by_token"), (trajectory, values))
    for at in np.ndindex(advantages.shape[:2]):
        on = trajectory.action_ids[at] >= 0
        rewards = np.zeros(T)
        for span, paid in zip(oracle.actions(trajectory.action_ids[at]),
                              oracle.action_rewards(trajectory.action_ids[at], trajectory.rewards[at]), strict=True):
            rewards[span[-1]] = paid
        cut = trajectory.discounts[at].min() > 0
        final = values[at][trajectory.length[at]] if cut else 0.0
        if on.any():
            same(advantages[at][on], oracle.gae(rewards[on], values[at][:-1][on], final, 0.9, 0.7))


def numbering_of_actions_is_inert(system: System, seed: int) -> None:
    """Renumbering actions without gaps, rewards moved along, changes nothing."""
    trajectory, values = random_batch(seed)
    ids, rewards = np.full_like(trajectory.action_ids, -1), np.zeros_like(trajectory.rewards)
    for at in np.ndindex(ids.shape[:2]):
        for k, span in enumerate(oracle.actions(trajectory.action_ids[at])):
            ids[at][span] = k
            rewards[at][k] = oracle.action_rewards(trajectory.action_ids[at], trajectory.rewards[at])[k]
    discounts = np.ones_like(trajectory.discounts)
    for at in np.ndindex(ids.shape[:2]):
        discounts[at][ids[at].max()] = trajectory.discounts[at].min()
    tidy = trajectory.replace(action_ids=ids, rewards=rewards, discounts=discounts)
    for v in system.views:
        before, after = run(system.estimate, v, (trajectory, values)), run(system.estimate, v, (tidy, values))
        for b, a in zip(before, after, strict=True):
            same(a, b)


def one_token_actions_make_all_views_equal(system: System, seed: int) -> None:
    trajectory, values = random_batch(seed)
    short = trajectory.replace(action_ids=np.where(first_tokens(trajectory.action_ids),
                                                   trajectory.action_ids, -1))
    by_token = run(system.estimate, system.view("by_token"), (short, values))
    for v in system.views:
        for b, a in zip(by_token, run(system.estimate, v, (short, values)), strict=True):
            same(a, b)


def lambda_one_is_the_return_minus_the_value(system: System, seed: int) -> None:
    trajectory, values = random_batch(seed)
    for v in system.views:
        advantages, targets, mask = run(system.estimate, v, (trajectory, values), gamma=1.0, policy_lambda=1.0,
                                        critic_lambda=1.0)
        for at in np.ndindex(advantages.shape[:2]):
            spans = oracle.actions(trajectory.action_ids[at])
            paid = oracle.action_rewards(trajectory.action_ids[at], trajectory.rewards[at])
            final = values[at][trajectory.length[at]] if trajectory.discounts[at].min() > 0 else 0.0
            for u, span in enumerate(spans):
                for t in span:
                    read = {"by_token": t, "by_action": span[0], "by_action_end": span[-1]}[v.name]
                    same(advantages[at][t], sum(paid[u:]) + final - values[at][read])
                    if mask[at][t]:
                        same(targets[at][t], sum(paid[u:]) + final)


def lambda_zero_is_the_one_step_error(system: System, seed: int) -> None:
    trajectory, values = random_batch(seed)
    advantages, _, _ = run(system.estimate, system.view("by_action"), (trajectory, values), policy_lambda=0.0)
    for at in np.ndindex(advantages.shape[:2]):
        spans = oracle.actions(trajectory.action_ids[at])
        paid = oracle.action_rewards(trajectory.action_ids[at], trajectory.rewards[at])
        final = values[at][trajectory.length[at]] if trajectory.discounts[at].min() > 0 else 0.0
        after = [values[at][span[0]] for span in spans[1:]] + [final]
        for span, reward, next_value in zip(spans, paid, after):
            same(advantages[at][span], reward + 0.9 * next_value - values[at][span[0]])


def a_terminal_reward_reaches_every_token_whole(system: System, seed: int) -> None:
    trajectory, values = random_batch(seed)
    rewards = np.zeros_like(trajectory.rewards)
    rewards[..., A - 1] = np.random.default_rng(seed).normal(size=rewards.shape[:2])
    final = trajectory.replace(rewards=rewards)
    on = trajectory.action_ids >= 0
    whole = np.broadcast_to(rewards.sum(-1, keepdims=True), on.shape)
    for v in system.views:
        advantages, _, _ = run(system.estimate, v, (final, np.zeros_like(values)), gamma=1.0, policy_lambda=1.0)
        same(advantages, whole, on)


def rewards_are_conserved(system: System, seed: int) -> None:
    """Every slot's reward is some step's reward, in a slot without tokens and in the last slot too."""
    trajectory, values = random_batch(seed)
    acted = (trajectory.action_ids >= 0).any(-1)
    for v in system.views:
        steps = compiled_steps(v)(trajectory, values)
        placed = np.where(steps.mask, steps.rewards, 0).sum(-1)
        same(placed, trajectory.rewards.sum(-1), acted)
        valid = np.asarray(steps.mask).astype(int)
        assert (np.diff(valid, axis=-1) <= 0).all(), "valid steps come first"


def only_truncated_episodes_are_bootstrapped(system: System, seed: int) -> None:
    trajectory, values = random_batch(seed)
    moved = values.copy()
    for at in np.ndindex(trajectory.length.shape):
        moved[at][trajectory.length[at]] += 1.0
    on = (trajectory.action_ids >= 0).any(-1)
    cut = on & (trajectory.discounts.min(-1) > 0)
    for v in system.views:
        change = (run(system.estimate, v, (trajectory, moved))[0] - run(system.estimate, v, (trajectory, values))[0])
        assert (np.abs(change).max(-1)[cut] > 1e-3).all()
        assert not change[~cut].any()


def credit_goes_to_the_token_that_earned_it(system: System, seed: int) -> None:
    """Two turns, the very first token decides the reward: with exact values and lambda 0 turn two gets no credit."""
    won = float(np.random.default_rng(seed).integers(0, 2))
    trajectory = single([-1, 0, 0, -1, 1, 1, -1], [0.0, won], ended=True)
    values = np.array([40., .5, won, 40., won, won, 40., 40.], np.float32)[None, None]
    credit = {"by_token": [0, won - .5, 0, 0, 0, 0, 0], "by_action": [0, won - .5, won - .5, 0, 0, 0, 0],
              "by_action_end": [0, 0, 0, 0, 0, 0, 0]}
    for v in system.views:
        advantages, _, _ = run(system.estimate, v, (trajectory, values), gamma=1.0, policy_lambda=0.0)
        same(advantages[0, 0], credit[v.name])


# --- normalisation ---------------------------------------------------------------------------------------------------

def _spread(seed: int):
    trajectory, values = random_batch(seed)
    advantages, _, _ = run(gae.estimate, view.by_action, (trajectory, values))
    return advantages, trajectory.action_ids


def whitened_actions_have_unit_moments(system: System, seed: int) -> None:
    advantages, ids = _spread(seed)
    white = np.asarray(jax.jit(system.over_actions)(advantages, ids))
    first = [span[0] + n * T for n, row in enumerate(ids.reshape(-1, T)) for span in oracle.actions(row)]
    picked = white.reshape(-1)[first]
    same([picked.mean(), picked.var(ddof=1)], [0.0, 1.0], tolerance=1e-4)
    counted = np.zeros(white.size, bool)
    counted[first] = True
    same(white.reshape(-1), oracle.whiten(advantages.reshape(-1), counted), (ids >= 0).reshape(-1))


def whitened_tokens_have_unit_moments(system: System, seed: int) -> None:
    advantages, ids = _spread(seed)
    white = np.asarray(jax.jit(system.over_tokens)(advantages, ids))
    same(white.reshape(-1), oracle.whiten(advantages.reshape(-1), (ids >= 0).reshape(-1)), (ids >= 0).reshape(-1))
    assert not white[ids < 0].any()


def whitening_ignores_padding(system: System, seed: int) -> None:
    """More padding, and garbage in it, changes nothing; the result is 0 there."""
    advantages, ids = _spread(seed)
    wide_ids = np.concatenate([ids, np.full((*ids.shape[:2], 6), -1, np.int32)], -1)
    wide = np.where(wide_ids < 0, np.nan, np.concatenate([advantages, np.zeros((*ids.shape[:2], 6), np.float32)], -1))
    for normalise in (system.over_actions, system.over_tokens):
        before = np.asarray(jax.jit(normalise)(advantages, ids))
        after = np.asarray(jax.jit(normalise)(wide, wide_ids))
        same(after[..., :T], before)
        assert not after[..., T:].any()


# --- losses ----------------------------------------------------------------------------------------------------------

def token_inputs(seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """action_ids [P, G, T] and the arguments of `policy_loss` but weights and knobs."""
    trajectory, _ = random_batch(seed)
    rng, shape = np.random.default_rng(seed), trajectory.action_ids.shape
    old = -rng.exponential(size=shape).astype(np.float32)
    return trajectory.action_ids, dict(
        logprobs=(old + 0.4 * rng.normal(size=shape)).astype(np.float32), old_logprobs=old,
        advantages=rng.normal(size=shape).astype(np.float32),
        correction=rng.uniform(0.5, 2, shape).astype(np.float32), mask=trajectory.action_ids >= 0)


@functools.lru_cache(maxsize=None)
def _compiled_loss(total_loss):
    def of(logprobs, inputs, weights):
        return total_loss({**inputs, "logprobs": logprobs}, weights, loss.PolicyKnobs())
    return jax.jit(jax.value_and_grad(of))


def _value_and_grad(system: System, inputs, weights):
    """Loss and its gradient in the log-probabilities."""
    value, gradient = _compiled_loss(system.total_loss)(inputs["logprobs"], inputs, weights)
    return float(value), np.asarray(gradient)


def losses_do_not_depend_on_the_cut(system: System, seed: int) -> None:
    """The minibatch at once, in two, in six: the same loss and gradient in every mode of reduction."""
    ids, inputs = token_inputs(seed)
    flat = {name: x.reshape(-1, T) for name, x in inputs.items()}
    order = np.random.default_rng(seed).permutation(len(flat["mask"]))
    for reduce in REDUCTIONS.values():
        results = []
        for parts in ([order], [order[:4], order[4:]], [[row] for row in order]):
            weights, combine = system.accumulated(reduce, ids, parts)
            done = [_value_and_grad(system, {name: x[rows] for name, x in flat.items()}, w)
                    for rows, w in zip(parts, weights, strict=True)]
            scale = combine([1.0] * len(parts)) / len(parts)  # a sum leaves gradients as they are, a mean divides them
            gradient = np.zeros_like(flat["logprobs"])
            for rows, (_, g) in zip(parts, done, strict=True):
                gradient[rows] = g * scale
            results.append((combine([value for value, _ in done]), gradient))
        for value, gradient in results[1:]:
            same(value, results[0][0])
            same(gradient, results[0][1])


def nothing_leaks_from_masked_tokens(system: System, seed: int) -> None:
    """NaN and inf at masked tokens change neither the loss nor the gradient, which is exactly 0 there."""
    ids, inputs = token_inputs(seed)
    weights = np.asarray(jax.jit(reduction.token_mean)(ids))
    before = _value_and_grad(system, inputs, weights)
    for poison in (np.nan, np.inf, -np.inf):
        spoilt = {name: x if name == "mask" else np.where(inputs["mask"], x, poison).astype(np.float32)
                  for name, x in inputs.items()}
        after = _value_and_grad(system, spoilt, np.where(inputs["mask"], weights, poison).astype(np.float32))
        same(after[0], before[0])
        same(after[1], before[1])
        assert not after[1][~inputs["mask"]].any()


def equal_policies_give_the_policy_gradient(system: System, seed: int) -> None:
    """Where the policy is the old one and the sampler's, the gradient is that of -sum(weight A log pi)."""
    ids, inputs = token_inputs(seed)
    inputs |= {"old_logprobs": inputs["logprobs"], "correction": np.ones_like(inputs["correction"])}
    weights = np.asarray(jax.jit(reduction.token_mean)(ids))
    _, gradient = _value_and_grad(system, inputs, weights)
    same(gradient, -weights * inputs["advantages"], inputs["mask"])


def an_empty_minibatch_costs_nothing(system: System, seed: int) -> None:
    ids, inputs = token_inputs(seed)
    inputs["mask"] = np.zeros_like(inputs["mask"])
    for reduce in REDUCTIONS.values():
        weights = np.asarray(jax.jit(reduce)(np.full_like(ids, -1)))
        value, gradient = _value_and_grad(system, inputs, weights)
        assert value == 0 and not gradient.any()


CHECKS = [value for name, value in list(globals().items())
          if inspect.isfunction(value) and not name.startswith("_") and "seed" in inspect.signature(value).parameters
          and "system" in inspect.signature(value).parameters]
