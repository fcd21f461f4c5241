"""Masked moments never see what lies at masked positions, forwards or backwards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eau_jax.core.masking import masked_mean, masked_sum, masked_var, whiten

X = jnp.array([1.0, 2.0, jnp.nan, jnp.inf, 5.0])
M = jnp.array([True, True, False, False, True])


def test_mean_and_unbiased_variance_of_the_valid():
    assert masked_sum(X, M) == 8
    np.testing.assert_allclose(masked_mean(X, M), 2.666667, rtol=1e-6)
    np.testing.assert_allclose(masked_var(X, M), 4.333333, rtol=1e-6)


def test_whitening_oracle():
    np.testing.assert_allclose(whiten(jnp.arange(1.0, 5.0), jnp.ones(4, bool)), [-1.161895, -0.387298, 0.387298, 1.161895],
                               atol=1e-6)


@pytest.mark.parametrize("function", [masked_sum, masked_mean, masked_var, lambda x, m: whiten(x, m)[0]])
def test_gradients_are_finite_and_zero_where_masked(function):
    gradient = jax.grad(function)(X, M)
    assert np.isfinite(gradient).all() and (np.asarray(gradient)[2:4] == 0).all()


@pytest.mark.parametrize("function", [masked_mean, masked_var, whiten])
def test_nothing_valid(function):
    assert np.all(np.asarray(function(X, jnp.zeros(5, bool))) == 0)


def test_one_valid_value_is_left_as_it_is():
    assert whiten(X, jnp.array([True, False, False, False, False])).tolist() == [1, 0, 0, 0, 0]
