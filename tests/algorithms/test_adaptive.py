"""Length-adaptive lambda and REINFORCE++: published numbers, and GAE with the lambda that each episode should have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.batches import run, same, single
from algorithms.groups import advantages, drawn, random_group
from oracles import advantages as oracle

from eau_jax.algorithms import adaptive, gae, reinforce, view

NAN = np.nan


@pytest.mark.parametrize("alpha, lengths, expected", [
    (1, [4, 2, 0], [.75, .5, 0]), (.05, [10, 100, 1000], [0, .8, .98]), (1.5, [10, 100], [.933333, .993333])])
def test_vapo_lambda(alpha, lengths, expected):
    same(adaptive.vapo_lambda(np.array(lengths, np.float32), np.float32(alpha)), expected)


def test_relative_lambda():
    same(adaptive.relative_lambda(np.array([0, 1, 2, 5], np.float32), np.float32(.5)), [0, 1, .5, .840896])


def agrees_with_the_formula(part) -> None:
    """Rows of different lengths, each by an explicit sum with its own lambda, counted in its own valid steps."""
    rng = np.random.default_rng(0)
    group = [[(r, 1) for r, _ in episode] for episode in random_group(1, 6)]
    values = [rng.normal(size=len(episode)) for episode in group]
    for row, episode, v in zip(advantages(part, drawn(group, values), gamma=.9), group, values, strict=True):
        n = len(episode)
        lam = {"vapo": max(0, 1 - 1 / (1.5 * n)), "relative": .5 ** (1 / (n - 1)) if n > 1 else 1.0}[part.name]
        same(row, oracle.gae([r for r, _ in episode], v, 0.0, .9, lam))


@pytest.mark.parametrize("part", [adaptive.vapo, adaptive.relative], ids=lambda p: p.name)
def test_formula(part):
    agrees_with_the_formula(part)


@pytest.mark.parametrize("part", [adaptive.vapo, adaptive.relative], ids=lambda p: p.name)
def test_the_critic_regresses_to_the_return(part):
    steps = drawn([[(1, 1), (2, 1), (4, 1)], [(3, 1)]], [[.3, .5, -.2], [.1]])
    targets = np.asarray(jax.jit(part.estimate)(steps, part.knobs).targets)
    same(targets[steps.mask], [7, 6, 4, 3])


@pytest.mark.parametrize("part", [adaptive.vapo, adaptive.relative], ids=lambda p: p.name)
def test_formula_rejects_the_padded_length(part):
    def wrong(steps, knobs):
        lam = {"vapo": adaptive.vapo_lambda, "relative": adaptive.relative_lambda}[part.name]
        length = jnp.full(steps.mask.shape[0], steps.mask.shape[1], jnp.float32)
        second = knobs.alpha if part.name == "vapo" else knobs.reach
        return gae.recursion(steps, knobs.gamma, jnp.stack([lam(length, second), jnp.ones_like(length)]))
    with pytest.raises(AssertionError):
        agrees_with_the_formula(part._replace(estimate=wrong))


# --- REINFORCE++ -----------------------------------------------------------------------------------------------------

def to_go(part) -> list[float]:
    """r = [0, -, 1] with an observation in between."""
    batch = single([0, -1, 1], [0, 1], ended=True), np.full((1, 1, 4), NAN, np.float32)
    estimate = lambda steps, knobs: part.estimate(steps, part.knobs.replace(gamma=knobs.gamma))
    return run(estimate, view.by_token, batch, gamma=.5)[0][0, 0].tolist()


def test_rewards_to_go_run_over_observations():
    assert to_go(reinforce.reinforce) == [.5, 0, 1]


def test_a_reset_at_an_observation_is_rejected():
    def wrong(steps, knobs):
        return reinforce.estimate(steps.replace(discounts=jnp.where(steps.ends, 0.0, 1.0)), knobs)
    assert to_go(reinforce.reinforce._replace(estimate=wrong)) == [0, 0, 1]


def test_an_episode_that_was_cut_counts_with_what_it_earned():
    steps = drawn([[(1, 2), (2, 1)]], [[9, 9, 9]], [7])
    assert advantages(reinforce.reinforce, steps, gamma=.5) == [[.5 + .25 * 2, 1 + .5 * 2, 2]]
