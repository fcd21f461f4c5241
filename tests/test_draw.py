"""The sampler's random draw: the right frequencies, never a filtered token, a function of seed and index alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eau_jax.models import heads
from eau_jax.samplers import decode

draw = jax.jit(decode.draw, static_argnums=(3, 4))
uniforms = jax.jit(decode.uniforms)


def logits(V, seed=0):
    return np.random.default_rng(seed).normal(0, 1.5, V).astype(np.float32)


def target(x, temperature, top_p, top_k):
    """The distribution by its definition, in float64: temperature, then the k likeliest, then the nucleus of those."""
    probs = np.exp((x.astype(np.float64) - x.max()) / temperature)
    order = np.argsort(-probs)
    keep = order[:top_k] if top_k else order
    mass = probs[keep] / probs[keep].sum()
    keep = keep[np.cumsum(mass) - mass < top_p]
    result = np.zeros(len(x))
    result[keep] = probs[keep] / probs[keep].sum()
    return result


def sweep(x, temperature, top_p, top_k, M=20000):
    """Tokens and log-probabilities over an even grid of uniform numbers in [0, 1)."""
    uniform = (np.arange(M, dtype=np.float32) + 0.5) / M
    return [np.asarray(y) for y in draw(jnp.broadcast_to(jnp.asarray(x), (M, len(x))), np.float32(temperature), uniform,
                                        top_p, top_k)]


@pytest.mark.parametrize("V", [1, 2, 7, 64, 65, 100])
@pytest.mark.parametrize("temperature, top_p, top_k", [(1.0, 1.0, 0), (0.6, 0.9, 20)])
def test_every_token_has_its_share_of_the_unit_interval(V, temperature, top_p, top_k):
    x = logits(V)
    expected = target(x, temperature, top_p, top_k)
    token, logprob = sweep(x, temperature, top_p, top_k)
    share = np.bincount(token, minlength=V) / len(token)
    np.testing.assert_allclose(share, expected, atol=1e-4)
    np.testing.assert_allclose(np.exp(logprob), expected[token], rtol=1e-5)


def chi_square(x, temperature, assumed):
    """Pearson's statistic of 8192 draws at `temperature` against the probabilities at temperature `assumed`."""
    M = 8192
    seeds = np.stack([np.zeros(M), np.arange(M) // 64], axis=1).astype(np.uint32)
    uniform = uniforms(seeds, np.arange(M, dtype=np.int32) % 64)
    token, _ = draw(jnp.broadcast_to(jnp.asarray(x), (M, len(x))), np.float32(temperature), uniform, 1.0, 0)
    expected = M * target(x, assumed, 1.0, 0)
    return ((np.bincount(token, minlength=len(x)) - expected) ** 2 / expected).sum()


def test_frequencies_follow_the_probabilities():
    """128 seeds at 64 places each. 22.46 is the 99.9 % quantile of chi-square with 6 degrees of freedom."""
    for temperature in (1.0, 0.6):
        assert chi_square(logits(7), temperature, temperature) < 22.46


def test_the_frequency_test_sees_an_ignored_temperature():
    assert chi_square(logits(7), 1.0, 0.6) > 100


@pytest.mark.parametrize("uniform", [0.0, 0.3, 0.5, 1 - 2.0 ** -23])
def test_a_filtered_token_is_never_drawn(uniform):
    """One token in every place of the table, the other 99 at weight 0, also at the ends of the unit interval."""
    x = np.where(np.eye(100, dtype=bool), np.float32(0), -np.inf).astype(np.float32)
    token, logprob = draw(x, np.float32(1), np.full(100, uniform, np.float32), 1.0, 0)
    np.testing.assert_array_equal(token, np.arange(100))
    np.testing.assert_array_equal(logprob, 0)


def test_the_logprob_is_the_models_own():
    """Equal to log-softmax of `heads.filter_logits`, which the trainer uses."""
    x = np.stack([logits(61, seed) for seed in range(32)])
    token, logprob = draw(x, np.float32(0.6), np.linspace(0, 0.99, 32, dtype=np.float32), 0.9, 20)
    expected = np.asarray(jax.nn.log_softmax(heads.filter_logits(x / np.float32(0.6), 0.9, 20, None)))
    np.testing.assert_allclose(logprob, expected[np.arange(32), np.asarray(token)], atol=1e-5)


def test_temperature_zero_takes_the_likeliest_with_logprob_zero():
    x = np.stack([logits(61, seed) for seed in range(8)])
    token, logprob = draw(x, np.float32(0), np.full(8, 0.999, np.float32), 1.0, 0)
    np.testing.assert_array_equal(token, x.argmax(-1))
    np.testing.assert_array_equal(logprob, 0)


def test_uniforms_depend_on_seed_and_index_alone():
    seeds = np.array([[0, 1], [1, 0], [0, 1], [0, 2]], np.uint32)
    index = np.array([5, 5, 6, 5], np.int32)
    together = np.asarray(uniforms(seeds, index))
    assert len(set(together.tolist())) == 4
    for n in range(4):
        assert uniforms(seeds[n:n + 1], index[n:n + 1])[0] == together[n]
