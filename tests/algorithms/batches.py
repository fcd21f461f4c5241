"""Random batches that hold everything that goes wrong in such code, and the small means to run a pipeline on them."""

import functools

import jax
import numpy as np

from eau_jax.algorithms import gae
from eau_jax.core.types import Trajectory

P, G, T, A = 2, 3, 24, 5
SEEDS = range(8)


def random_batch(seed: int, P: int = P, G: int = G, T: int = T, A: int = A) -> tuple[Trajectory, np.ndarray]:
    """(trajectory [P, G], values [P, G, T+1]).

    Terminated and truncated episodes, in turn; one dropped episode; actions that follow each other without an
    observation; tokens after the last action; slots without tokens in between and at the end, with rewards of their own;
    values on observations and padding far from those on actions.
    """
    rng = np.random.default_rng(seed)
    out = Trajectory(
        tokens=rng.integers(0, 7, (P, G, T)).astype(np.int32), length=np.zeros((P, G), np.int32),
        action_ids=np.full((P, G, T), -1, np.int32), sampler_logprobs=np.zeros((P, G, T), np.float32),
        rewards=np.zeros((P, G, A), np.float32), discounts=np.ones((P, G, A), np.float32),
        policy_version=np.zeros((P, G, A), np.int32))
    values = rng.normal(size=(P, G, T + 1)).astype(np.float32)
    for number, at in enumerate(np.ndindex(P, G)):
        if number == seed % (P * G) and number:
            continue  # dropped
        slots = sorted(rng.choice(A, size=rng.integers(1, A), replace=False))
        t = rng.integers(0, 3)
        for slot in slots:
            n = rng.integers(1, 4)
            out.action_ids[at][t:t + n] = slot
            t += n + rng.integers(0, 3)
        out.length[at] = T if number % 4 == 1 else t
        out.rewards[at] = rng.normal(size=A) * rng.integers(0, 3, A)  # a third of the slots earn nothing
        if (number + seed) % 2:
            out.discounts[at][slots[-1] if seed % 3 else A - 1] = 0.0
    on = out.action_ids >= 0
    out.sampler_logprobs[on] = -rng.exponential(size=on.sum())
    used = np.concatenate([on, np.zeros((P, G, 1), bool)], -1)
    for at in np.ndindex(P, G):  # a truncated episode also uses the value after its last token
        used[at][out.length[at]] |= out.discounts[at].min() > 0
    values[~used] += 50.0
    return out, values


def knobs(gamma: float = 0.9, policy_lambda: float = 0.7, critic_lambda: float = 0.8) -> gae.Knobs:
    return gae.Knobs(gamma=np.float32(gamma), policy_lambda=np.float32(policy_lambda),
                     critic_lambda=np.float32(critic_lambda))


@functools.lru_cache(maxsize=None)
def compiled(estimate, view):
    """(trajectory [P, G], values, knobs) -> (advantages, targets, mask), each [P, G, T]."""
    def run(trajectory, values, knobs):
        def group(trajectory, values):
            return view.to_tokens(trajectory, estimate(view.to_steps(trajectory, values), knobs), values)
        return jax.vmap(group)(trajectory, values)
    return jax.jit(run)


@functools.lru_cache(maxsize=None)
def compiled_steps(view):
    """(trajectory [P, G], values) -> Steps [P, G, K]."""
    return jax.jit(jax.vmap(view.to_steps))


def run(estimate, view, batch, **settings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(np.asarray(x) for x in compiled(estimate, view)(*batch, knobs(**settings)))


def single(action_ids, rewards, ended, length=None) -> Trajectory:
    """One episode as a batch [1, 1]; the task ends with its last action, or is cut."""
    ids = np.array(action_ids, np.int32)[None, None]
    discounts = np.ones((1, 1, len(rewards)), np.float32)
    discounts[..., ids.max()] = 0.0 if ended else 1.0
    return Trajectory(
        tokens=np.zeros_like(ids), length=np.full((1, 1), ids.shape[-1] if length is None else length, np.int32),
        action_ids=ids, sampler_logprobs=np.zeros(ids.shape, np.float32),
        rewards=np.array(rewards, np.float32)[None, None], discounts=discounts,
        policy_version=np.zeros((1, 1, len(rewards)), np.int32))


def same(actual, expected, where=None, tolerance: float = 1e-5) -> None:
    """Equal within 1e-5, absolute and relative, where the mask holds."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    if where is not None:
        actual, expected = actual[where], expected[where]
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
