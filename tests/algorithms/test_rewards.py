"""Where rewards land and what discounts them: per-turn and terminal rewards, gamma per action, scaling."""

import functools

import jax
import numpy as np
import pytest
from algorithms.batches import compiled_steps, same, single

from eau_jax.algorithms import adaptive, estimate, gae, reinforce, shaping, view, whiten

T = 24
LENGTHS = [(5, 1, 3), (1, 1, 1), (2, 7, 1)]
GAPS = [(1, 1, 1), (4, 1, 6)]
REWARDS = [.2, 0, 1]    # two of them per turn, the last one terminal; the second turn earns nothing and still counts
RETURNS = [.2 + .25, .5, 1.0]                                # gamma = 1/2 per action
ESTIMATORS = {"gae": (gae.gae, dict(gamma=.5)), "vapo": (adaptive.vapo, dict(gamma=.5)),
              "relative": (adaptive.relative, dict(gamma=.5)), "reinforce": (reinforce.reinforce, dict(gamma=.5))}


def episode(lengths, gaps, rewards=tuple(REWARDS)):
    ids = [number for turn, (gap, length) in enumerate(zip(gaps, lengths)) for number in [-1] * gap + [turn] * length]
    return single(ids + [-1] * (T - len(ids)), list(rewards), ended=True, length=len(ids))


@functools.lru_cache(maxsize=None)
def compiled(part, seen, normalise):
    """trajectory, knobs -> targets with a critic that knows nothing."""
    values = np.zeros((1, 1, T + 1), np.float32)
    return jax.jit(lambda trajectory, knobs: estimate.targets(trajectory, values[..., :-1], values, part, seen, normalise,
                                                              knobs)[0])


def returns(part, settings, seen, trajectory):
    """What each token is worth with a critic that knows nothing: the critic's target, or the advantage without one."""
    knobs = part.knobs.replace(**{name: np.float32(value) for name, value in settings.items()})
    made = compiled(part, seen, whiten.none)(trajectory, knobs)
    worth = made.value_targets if part.needs_critic else made.advantages
    return np.asarray(worth)[0, 0]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_discount_is_per_action(name):
    """However long the actions and the observations between them are."""
    part, settings = ESTIMATORS[name]
    for lengths in LENGTHS:
        for gaps in GAPS:
            trajectory = episode(lengths, gaps)
            worth = returns(part, settings, view.by_action, trajectory)
            for turn, expected in enumerate(RETURNS):
                same(worth[trajectory.action_ids[0, 0] == turn], expected)


def test_by_token_the_same_knob_counts_tokens():
    """Which is what the check above would reject."""
    trajectory = episode((2, 1, 2), (1, 1, 1))
    worth = returns(gae.gae, dict(gamma=.5), view.by_token, trajectory)
    same(worth[trajectory.action_ids[0, 0] >= 0], [.1 + .5 ** 4, .2 + .5 ** 3, .25, .5, 1])
    with pytest.raises(AssertionError):
        same(worth[1], RETURNS[0])


def test_a_reward_lands_on_the_last_token_of_its_action():
    trajectory = episode((3, 2, 2), (2, 1, 3))
    values = np.zeros((1, 1, T + 1), np.float32)
    steps = compiled_steps(view.by_token)(trajectory, values)
    same(steps.rewards[0, 0, :7], [0, 0, .2, 0, 0, 0, 1])
    same(steps.discounts[0, 0, :7], [1, 1, 1, 1, 1, 1, 0])
    same(compiled_steps(view.by_action)(trajectory, values).rewards[0, 0], REWARDS)


def test_scaling_scales_targets_and_leaves_whitened_advantages():
    trajectory = episode((3, 2, 2), (2, 1, 3))
    knobs = shaping.ScaledKnobs(bias=np.float32(0), scale=np.float32(10))
    scaled = shaping.scaled.shape(trajectory, knobs)
    same(returns(gae.gae, dict(gamma=.5), view.by_action, scaled),
         10 * returns(gae.gae, dict(gamma=.5), view.by_action, trajectory))
    white = [compiled(gae.gae, view.by_action, whiten.over_actions)(batch, gae.Knobs()) for batch in (trajectory, scaled)]
    same(white[0].advantages, white[1].advantages, tolerance=1e-4)
