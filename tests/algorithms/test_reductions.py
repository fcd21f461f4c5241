"""What a method is when its own part is switched off, to the bit."""

import dataclasses
import hashlib
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_config
from algorithms.batches import random_batch, same
from algorithms.groups import advantages, drawn, random_group
from algorithms.test_contracts import CORRECTIONS
from algorithms.test_policy_losses import episode, inputs, value_and_grad
from oracles import methods

from eau_jax import train, trained
from eau_jax.algorithms import (adaptive, estimate, gae, group, infopo, loss, ratio, reduction, reinforce, shaping, userrl,
                                view, whiten)
from eau_jax.config import Algorithm, Learn
from eau_jax.core.records import read_lines
from eau_jax.envs.gyms.intention import intention
from eau_jax.users.mixture import mixture
from eau_jax.users.noisy import noisy
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

SHAKEN = {"rl.entropy.coef": 0.1}  # so small a model earns nothing: no weight would move
PLAIN_PPO = Algorithm(advantage=gae.gae, view=view.by_token, normalise=whiten.over_tokens, reduction=reduction.token_mean)


def played(root, name, user, knobs=(), algorithm=PLAIN_PPO):
    """Records and weights of three updates."""
    base = tiny_config.config()
    config = dataclasses.replace(base, root=str(root), name=name, user=user, algorithm=algorithm, swaps=(),
                                 learn=Learn(steps=3, rows=2, minibatches=1, chunk=64),
                                 knobs=base.knobs | SHAKEN | dict(knobs))
    train.train(config, Path(tiny_config.__file__).read_text(), resume=False)
    _, weights, _ = trained.load(str(root / name), "latest")
    bits = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(jax.device_get(weights))))
    return list(read_lines(root / name / "metrics.jsonl")), bits.hexdigest()


@pytest.mark.slow
def test_eau_without_symbolic_replies_and_with_token_steps_is_ppo(tmp_path, monkeypatch):
    """Epsilon 0, knobs that stay as they are, token steps: PPO against the other user, bit for bit."""
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)
    eau, ppo = mixture(symbolic, noisy), noisy._replace(respond=symbolic.respond)
    records, bits = played(tmp_path, "eau", eau, {"user.epsilon": 0.0})
    assert (records, bits) == played(tmp_path, "ppo", ppo)
    half, other = played(tmp_path, "half", eau, {"user.epsilon": 0.5})
    assert half != records and other != bits


def test_token_steps_and_action_steps_are_the_same_where_actions_are_tokens():
    trajectory, values = random_batch(0)
    first = np.concatenate([np.full_like(trajectory.action_ids[..., :1], -1), trajectory.action_ids[..., :-1]], axis=-1)
    short = trajectory.replace(action_ids=np.where(trajectory.action_ids != first, trajectory.action_ids, -1))
    one, two = (jax.jit(lambda t, v, seen=seen: estimate.targets(
        t, t.sampler_logprobs, v, gae.gae, seen, whiten.over_tokens, gae.Knobs())[0])(short, values)
        for seen in (view.by_token, view.by_action))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_symbolic_user_is_a_function_of_what_it_sees():
    """The same features give the same reply whatever the key, and after a swap to an identical rule file too."""
    rules, again = (compile_rules(text, intention.features) for text in (intention.rules, intention.rules + "\n# swapped\n"))
    features = np.random.default_rng(0).integers(-1, 4, (256, len(intention.features))).astype(np.int32)
    respond = jax.jit(jax.vmap(symbolic.respond, in_axes=(None, None, 0, 0)))
    one, two, three = (np.asarray(respond(r, symbolic.knobs, features, jax.random.split(jax.random.key(seed), 256)))
                       for r, seed in ((rules, 0), (rules, 1), (again, 0)))
    assert (one == two).all() and (one == three).all() and len(set(one.tolist())) > 1
    drifting = jax.vmap(noisy.respond, in_axes=(None, None, 0, 0))
    drifted = [np.asarray(drifting(rules, noisy.knobs, features, jax.random.split(jax.random.key(seed), 256)))
               for seed in (0, 1)]
    assert (drifted[0] != drifted[1]).any(), "the mutant: a user that draws"


# --- estimators ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("part, scoring", [
    (userrl.equalized_mean, "mean"), (userrl.equalized_total, "total"), (userrl.equalized_r2g, "r2g"),
    (userrl.paper_equalized_r2g, "r2g")], ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("seed", range(3))
def test_equal_credits_are_grpo_on_the_score(part, scoring, seed):
    """GRPO of episodes that earn their score at the end."""
    episodes = random_group(seed)
    scores = [methods.score(scoring, [reward for reward, _ in episode], .8) for episode in episodes]
    paid = [[(0.0, n) for _, n in episode[:-1]] + [(score, episode[-1][1])] for episode, score in zip(episodes, scores)]
    same(np.concatenate(advantages(part, drawn(episodes))), np.concatenate(advantages(group.grpo, drawn(paid))),
         tolerance=2e-5)


def test_informed_without_weight_is_its_external_advantage():
    """Whatever the estimator, to the bit; with a weight it is another one."""
    steps = drawn([[(0, 2, .5), (1, 3, -.2), (0, 1, 0)], [(0, 1, .3), (.5, 2, 0)], [(0, 4, 0)]])
    for outer in (group.grpo, group.dr_grpo, group.rloo, userrl.equalized_mean):
        part = infopo.informed("informed", outer, userrl.total)
        assert advantages(part, steps, beta=0) == advantages(outer, steps)
        assert advantages(part, steps, beta=.5) != advantages(outer, steps)


def test_reward_to_go_without_discount_is_the_sum_and_with_full_discount_the_reward():
    steps, knobs = drawn(random_group(0)), userrl.Knobs()
    same(userrl.discounted(steps, knobs.replace(gamma=np.float32(1))), userrl.total(steps, knobs))
    credits = [np.where(steps.mask, of(steps, knobs.replace(gamma=np.float32(0))), 0)
               for of in (userrl.reward_to_go, userrl.naive)]
    same(*credits)
    assert np.abs(np.where(steps.mask, userrl.reward_to_go(steps, knobs), 0) - credits[1]).max() > .01


@pytest.mark.parametrize("size", [2, 3, 5])
def test_leaving_oneself_out_is_the_mean_of_all_times_n_over_n_minus_1(size):
    steps = drawn(random_group(1, size))
    same(np.concatenate(advantages(group.rloo, steps)),
         np.concatenate(advantages(group.dr_grpo, steps)) * size / (size - 1))


def test_rewards_to_go_are_gae_with_a_critic_of_zeros():
    episodes = random_group(2)
    steps = drawn(episodes, [[0] * sum(n for _, n in episode) for episode in episodes])
    same(np.concatenate(advantages(reinforce.reinforce, steps, gamma=.9)),
         np.concatenate(advantages(gae.gae, steps, gamma=.9, policy_lambda=1)))


def test_a_full_reach_is_lambda_one_and_a_small_alpha_lambda_zero():
    rng, episodes = np.random.default_rng(3), random_group(3)
    steps = drawn(episodes, [rng.normal(size=sum(n for _, n in episode)) for episode in episodes])
    for part, setting, lam in ((adaptive.relative, dict(reach=1), 1), (adaptive.vapo, dict(alpha=.01), 0)):
        same(np.concatenate(advantages(part, steps, gamma=.9, **setting)),
             np.concatenate(advantages(gae.gae, steps, gamma=.9, policy_lambda=lam)))


# --- losses ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("part", CORRECTIONS.values(), ids=CORRECTIONS.keys())
def test_decoupled_ppo_of_one_policy_is_ppo(part):
    """To the bit where the sampler's policy is the learner's before the update; apart from it, it is not."""
    given = inputs(2)
    grouped = {name: x.reshape(2, 3, -1) for name, x in given.items() if name != "units"}
    weigh = lambda gap: np.asarray(part.weigh(grouped["old_logprobs"], grouped["old_logprobs"] - np.float32(gap),
                                              grouped["mask"], part.knobs)[0]).reshape(given["mask"].shape)
    plain = value_and_grad(loss.token_ratio, given | {"correction": np.ones_like(given["correction"])})
    same_policy = value_and_grad(loss.token_ratio, given | {"correction": weigh(0)})
    assert same_policy[0] == plain[0] and (same_policy[1] == plain[1]).all()
    if part.name != "none":
        assert value_and_grad(loss.token_ratio, given | {"correction": weigh(.5)})[0] != plain[0]


def test_the_ratio_of_an_episode_is_that_of_its_one_action_and_of_its_one_token():
    given, clip = episode([.1, -.05, .3], [0, 0, 0], [1, -1, 1]), dict(clip_low=.1, clip_high=.1)
    one, two = value_and_grad(ratio.turn_ratio, given, **clip), value_and_grad(ratio.sequence_ratio, given, **clip)
    same(one[0], two[0])
    same(one[1], two[1])
    single = episode([.1], [0], [1])
    same(value_and_grad(ratio.sequence_ratio, single, **clip)[0], value_and_grad(loss.token_ratio, single, **clip)[0])
    apart = episode([.1, -.05, .3], [0, 0, 1], [1, -1, 1])
    of_turns, of_episode = (value_and_grad(part, apart, **clip)[0] for part in (ratio.turn_ratio, ratio.sequence_ratio))
    assert abs(of_turns - of_episode) > .01


def test_means_agree_where_all_units_are_alike():
    """Actions of one token, episodes of one length, groups of one size."""
    ids = np.broadcast_to(np.array([0, -1, 1, -1], np.int32), (2, 3, 4))
    means = [np.asarray(of(ids)) for of in (reduction.token_mean, reduction.sequence_mean_token_mean, reduction.prompt_mean,
                                            reduction.action_mean_token_mean)]
    for other in means[1:]:
        same(other, means[0])
    uneven = np.where(np.arange(6).reshape(2, 3, 1) == 0, -1, ids) * (np.arange(4) < 2) - (np.arange(4) >= 2)
    assert np.abs(np.asarray(reduction.prompt_mean(uneven.astype(np.int32)))
                  - np.asarray(reduction.token_mean(uneven.astype(np.int32)))).max() > .01


def test_shaping_that_does_nothing():
    trajectory, _ = random_batch(1)
    short = shaping.overlong.shape(trajectory, shaping.overlong.knobs)
    same(short.rewards, trajectory.rewards)
    unit = shaping.scaled.knobs.replace(bias=np.float32(0), scale=np.float32(1))
    same(shaping.scaled.shape(trajectory, unit).rewards, trajectory.rewards)
    strict = shaping.overlong.knobs.replace(limit=np.int32(2), margin=np.int32(1))
    assert np.abs(np.asarray(shaping.overlong.shape(trajectory, strict).rewards) - trajectory.rewards).max() > .5
