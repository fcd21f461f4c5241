"""What a method is when its own part is switched off, to the bit."""

import dataclasses
import hashlib
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_config
from algorithms.batches import random_batch

from eau_jax import train, trained
from eau_jax.algorithms import estimate, gae, reduction, view, whiten
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
                                 learn=Learn(steps=3, rows=2, minibatches=1, chunk=64), knobs=base.knobs | SHAKEN | dict(knobs))
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
