"""A tabular policy and critic under the losses: the critic fits a fixed batch, an action that is worth something becomes
likelier at every step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax.algorithms import estimate, loss

TOKENS = 12
VALID = np.arange(TOKENS) < 10


def fitted() -> float:
    """Explained variance of a critic with one value a token, after 40 steps down the value loss."""
    targets = np.where(VALID, np.random.default_rng(0).normal(size=TOKENS), np.nan).astype(np.float32)
    weights = np.where(VALID, np.float32(.2), np.nan).astype(np.float32)
    of = jax.jit(jax.grad(lambda values: loss.value_loss(values, jnp.zeros(TOKENS), targets, weights, VALID,
                                                         loss.ValueKnobs(clip=np.float32(1e6)))[0]))
    values = jnp.zeros(TOKENS)
    for _ in range(40):
        values = values - of(values)
    return float(estimate.explained_variance(targets, values, VALID).result())


def likelier() -> list[float]:
    """Log-probability of the second of three tokens over five small steps with advantage 1 on it."""
    mask, one = np.array([True, False]), functools.partial(np.full, (2,), dtype=np.float32)

    def objective(logits):
        logprobs = jnp.stack([jax.nn.log_softmax(logits)[1], 0.0])
        return loss.policy_loss(logprobs, jax.lax.stop_gradient(logprobs), one(1), one(1), one(1), mask,
                                loss.PolicyKnobs())[0]

    gradient, logits, seen = jax.jit(jax.grad(objective)), jnp.array([.5, -.5, 0]), []
    for _ in range(5):
        seen.append(float(jax.nn.log_softmax(logits)[1]))
        logits = logits - .1 * gradient(logits)
    return seen


def test_the_critic_overfits_a_fixed_batch():
    assert fitted() > .95


def test_an_action_with_a_positive_advantage_becomes_likelier_at_every_step():
    assert (np.diff(likelier()) > 0).all()
