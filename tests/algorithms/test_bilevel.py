"""Bi-level GAE: published numbers, the explicit sums, what it reduces to, and the boundaries it must not infer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.batches import same, single
from algorithms.groups import advantages, drawn, random_group
from oracles import methods

from eau_jax.algorithms import bilevel, gae, view, whiten

TEN = [.1, .2, .3, .4, .5, .6, .7, .8, .9, 1.0]


def random_case(seed):
    """(episodes, values, final): every other episode is cut."""
    rng = np.random.default_rng(seed)
    episodes = random_group(seed)
    values = [rng.normal(size=sum(n for _, n in episode)).tolist() for episode in episodes]
    return episodes, values, [float(rng.normal()) if g % 2 else None for g in range(len(episodes))]


def agrees_with_the_sums(part) -> None:
    knobs = dict(action_gamma=.9, action_lambda=.7, token_gamma=.95, token_lambda=.8)
    for seed in range(6):
        episodes, values, final = random_case(seed)
        got = advantages(part, drawn(episodes, values, final), **knobs)
        for row, episode, v, f in zip(got, episodes, values, final, strict=True):
            same(row, methods.bilevel(episode, v, f or 0.0, **knobs))


@pytest.mark.parametrize("lam, expected", [
    (1, [1.85, 1.75, 1.65, 1.55, 1.45, .4, .3, .2, .1, 0]),
    (.9, [1.295245, 1.32805, 1.3645, 1.405, 1.45, .3439, .271, .19, .1, 0]),
])
@pytest.mark.parametrize("part", [bilevel.bilevel, bilevel.bilevel_by_reward], ids=lambda p: p.name)
def test_ten_tokens(part, lam, expected):
    steps = drawn([[(1, 5), (1, 5)]], [TEN])
    same(advantages(part, steps, action_lambda=lam, token_lambda=lam)[0], expected)
    if lam == 1:
        targets = jax.jit(part.estimate)(steps, part.knobs).targets
        same(targets[0, :10], [1.95] * 5 + [1.0] * 5)
        white = whiten.over_tokens(np.array([[advantages(part, steps)[0]]], np.float32),
                                   np.array([[[0] * 5 + [1] * 5]], np.int32))[0, 0]
        same(white, [1.187998, 1.059566, .931134, .802702, .674269, -.674269, -.802702, -.931134, -1.059566, -1.187998])


def test_sums():
    agrees_with_the_sums(bilevel.bilevel)


def test_an_action_without_a_reward_counts():
    """RAGEN's rule sees one action in place of two; with a terminal reward alone it is token GAE."""
    steps = drawn([[(0, 5), (1, 5)]], [TEN])
    ours, theirs = advantages(bilevel.bilevel, steps)[0], advantages(bilevel.bilevel_by_reward, steps)[0]
    same(ours[4], .95 * 1.0 - .5)
    same(theirs, advantages(gae.gae, steps, gamma=1, policy_lambda=1)[0])
    assert abs(ours[0] - theirs[0]) > .01
    with pytest.raises(AssertionError):
        agrees_with_the_sums(bilevel.bilevel_by_reward)


def test_actions_of_one_token_leave_the_upper_level():
    episodes = [[(1.0, 1), (0.0, 1), (2.0, 1)]]
    steps = drawn(episodes, [[.3, -.2, .5]])
    same(advantages(bilevel.bilevel, steps, action_lambda=.7)[0],
         advantages(gae.gae, steps, gamma=.95, policy_lambda=.7)[0])


def test_without_discount_it_is_the_return_minus_the_value():
    for seed in range(3):
        episodes, values, final = random_case(seed)
        steps = drawn(episodes, values, final)
        same(np.concatenate(advantages(bilevel.bilevel, steps, action_gamma=1)),
             np.concatenate(advantages(gae.gae, steps, gamma=1, policy_lambda=1)))


def test_a_terminal_reward_reaches_every_step_whole():
    """Without discount and with a critic of zeros, as under the other views."""
    steps = drawn([[(0, 2), (0, 1), (.7, 3)], [(-.4, 4)]], [[0] * 6, [0] * 4])
    for part in (bilevel.bilevel, bilevel.bilevel_by_reward):
        first, second = advantages(part, steps, action_gamma=1)
        same(first + second, [.7] * 6 + [-.4] * 4)


def test_observations_between_the_actions_are_skipped():
    trajectory = single([-1, 0, 0, -1, -1, 1, 1, 1, -1], [0, 1], ended=True)
    values = np.array([9, .1, .2, 9, 9, .3, .4, .5, 9, 9], np.float32)[None]
    steps = jax.jit(view.by_token.to_steps)(jax.tree.map(lambda x: x[0], trajectory), values)
    expected = methods.bilevel([(0, 2), (1, 3)], [.1, .2, .3, .4, .5], 0.0, .95, 1, 1, 1)
    same(advantages(bilevel.bilevel, jax.tree.map(np.asarray, steps))[0], expected)


# --- mistakes that the sums must reject ------------------------------------------------------------------------------

def _carry_crosses(steps, knobs):
    """The lower level runs on across boundaries: everything is one action."""
    return bilevel.estimate(steps.replace(ends=steps.mask & ~jnp.pad(steps.mask, ((0, 0), (0, 1)))[:, 1:]), knobs)


def _bootstrap_dropped(steps, knobs):
    count = steps.mask.sum(1)
    inside = jnp.arange(steps.values.shape[1])[None] < count[:, None]
    return bilevel.estimate(steps.replace(values=jnp.where(inside, steps.values, 0)), knobs)


def _one_gamma(steps, knobs):
    return bilevel.estimate(steps, knobs.replace(token_gamma=knobs.action_gamma))


@pytest.mark.parametrize("wrong", [_carry_crosses, _bootstrap_dropped, _one_gamma], ids=lambda f: f.__name__)
def test_sums_reject(wrong):
    with pytest.raises(AssertionError):
        agrees_with_the_sums(bilevel.bilevel._replace(estimate=wrong))
