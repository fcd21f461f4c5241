"""Small learners and random batches for the learner's tests."""

import jax
import numpy as np

from eau_jax.algorithms.gae import gae
from eau_jax.core.sharding import make_mesh
from eau_jax.core.types import Trajectory
from eau_jax.learner import critic, state
from eau_jax.learner.parts import Learner
from eau_jax.models import transformer
from eau_jax.models.config import ModelConfig

MODEL = ModelConfig(family="qwen3", vocab_size=64, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=64,
                    qk_norm=True)
P, G, T, A, S = 4, 2, 24, 3, 32


def learner(**changes) -> Learner:
    """A learner on one device unless told otherwise."""
    choices = dict(model=MODEL, advantage=gae, critic=critic.own_tower, mesh=make_mesh(devices=jax.devices()[:1]), tasks=P,
                   group=G, tokens=T, actions=A, row_width=S, micro_rows=8)
    return Learner(**(choices | changes))


def params(seed: int = 0):
    return transformer.init(MODEL, jax.random.key(seed))


def start(learner: Learner, seed: int = 0):
    return state.init(learner, params(seed), jax.random.key(1))


def trajectory(seed: int = 0, tasks: int = P, group: int = G, tokens: int = T, actions: int = A) -> Trajectory:
    """Random episodes: observation, action, observation, action, ...; some truncated, some dropped, one with a final
    observation."""
    rng = np.random.default_rng(seed)
    shape = (tasks, group)
    out = Trajectory(
        tokens=np.zeros((*shape, tokens), np.int32), length=np.zeros(shape, np.int32),
        action_ids=np.full((*shape, tokens), -1, np.int32), sampler_logprobs=np.zeros((*shape, tokens), np.float32),
        rewards=np.zeros((*shape, actions), np.float32), discounts=np.ones((*shape, actions), np.float32),
        policy_version=np.zeros((*shape, actions), np.int32))
    for at in np.ndindex(shape):
        if at == (1, 0):
            continue  # dropped
        position, turns = 0, int(rng.integers(1, actions + 1))
        for number in range(turns):
            position += int(rng.integers(1, 5))
            size = int(rng.integers(1, 4))
            out.action_ids[at][position:position + size] = number
            position += size
            out.rewards[at][number] = rng.normal()
        out.discounts[at][turns - 1] = float(rng.random() < 0.3)
        out.length[at] = position + int(rng.integers(0, 3))
        out.tokens[at][:out.length[at]] = rng.integers(0, 64, out.length[at])
    mask = out.action_ids >= 0
    out.sampler_logprobs[mask] = rng.normal(-4.0, 0.3, mask.sum())
    return out
