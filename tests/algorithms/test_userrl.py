"""UserRL: credits and scores of a hand-drawn group, the formulas, and what they reduce to."""

import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.batches import same
from algorithms.groups import advantages, drawn, random_group
from oracles import methods

from eau_jax.algorithms import group, userrl

A, B = [(0, 2), (.2, 1), (1, 3)], [(0, 2), (0, 2)]
PARTS = [
    (userrl.equalized_mean, "equalized", "mean", False), (userrl.equalized_total, "equalized", "total", False),
    (userrl.equalized_r2g, "equalized", "r2g", False), (userrl.r2g_r2g, "r2g", "r2g", False),
    (userrl.em_r2g, "em", "r2g", False), (userrl.paper_naive_total, "naive", "total", True),
    (userrl.paper_equalized_r2g, "equalized", "r2g", True), (userrl.paper_r2g_r2g, "r2g", "r2g", True),
    (userrl.paper_em_r2g, "em", "r2g", True),
]


def flat(lists) -> np.ndarray:
    return np.concatenate([np.asarray(x, np.float32) for x in lists])


def agrees_with_the_formula(part, credit, score, paper) -> None:
    for seed in range(6):
        episodes = random_group(seed)
        same(flat(advantages(part, drawn(episodes))), flat(methods.userrl(episodes, credit, score, paper)), tolerance=2e-5)


def test_credits_and_scores():
    steps, knobs = drawn([A], padding=0), userrl.Knobs()
    same(userrl.reward_to_go(steps, knobs)[0], [.8, .8, 1, 1, 1, 1])
    same(userrl.mean(steps, knobs), [.4])
    same(userrl.discounted(steps, knobs), [.8])
    mapped = userrl.exponential(drawn([[(r, 1) for r in (0, .2, .25, .5, .75, 1, -.2, 1.2)]], padding=0), knobs)
    same(mapped[0], [.5, .6906, .7275, .8655, .9492, 1, .215598, 1.025800], tolerance=5e-5)


@pytest.mark.parametrize("part, first, second", [
    (userrl.equalized_r2g, [.707106] * 6, [-.707106] * 4),
    (userrl.r2g_r2g, [.60609] * 2 + [.757613] * 4, [0] * 4),
    (userrl.em_r2g, [.452248] * 2 + [.624646] + [.904497] * 3, [-.707106] * 4),
])
def test_a_group_of_two(part, first, second):
    """Upstream rounds mapped rewards to four places."""
    same(flat(advantages(part, drawn([A, B]))), flat([first, second]), tolerance=5e-5)


@pytest.mark.parametrize("part, credit, score, paper", PARTS, ids=[p[0].name for p in PARTS])
def test_formula(part, credit, score, paper):
    agrees_with_the_formula(part, credit, score, paper)


@pytest.mark.parametrize("part, credit, score, paper", PARTS, ids=[p[0].name for p in PARTS])
def test_a_part_has_the_discount_if_it_is_read(part, credit, score, paper):
    assert isinstance(part.knobs, userrl.Knobs) == ("r2g" in (credit, score))


def test_the_mean_over_steps_is_the_score():
    for part in (userrl.em_r2g, userrl.equalized_r2g):
        for row, size in zip(advantages(part, drawn([A, B])), (.7071055, -.7071055), strict=True):
            same(np.mean(row), size)


@pytest.mark.parametrize("seed", range(3))
def test_equalized_is_grpo_on_the_score(seed):
    steps = drawn(random_group(seed))
    same(flat(advantages(userrl.equalized_total, steps)), flat(advantages(group.grpo, steps)), tolerance=1e-6)


def test_a_failure_is_pushed_down_by_exponential_mapping_alone():
    steps = drawn([A, B])
    assert max(advantages(userrl.em_r2g, steps)[1]) < 0
    assert not any(advantages(userrl.r2g_r2g, steps)[1]) and not any(advantages(userrl.paper_r2g_r2g, steps)[1])


# --- mistakes that the formula must reject ---------------------------------------------------------------------------

def _discounted_per_step(steps, knobs):
    """gamma once per token instead of once per action."""
    rewards = jnp.where(steps.mask, steps.rewards, 0)
    return jnp.stack([sum(0.8 ** (j - k) * rewards[:, j] for j in range(k, rewards.shape[1]))
                      for k in range(rewards.shape[1])], axis=1)


def _shared_out_over_padding(size, credits, mask):
    return userrl.shared_out(size, credits, jnp.ones_like(mask))


@pytest.mark.parametrize("credit, score, spread, case", [
    (_discounted_per_step, userrl.discounted, userrl.shared_out, ("r2g", "r2g", False)),
    (userrl.equalized, userrl.mean, userrl.shared_out, ("equalized", "total", False)),
    (userrl.exponential, userrl.discounted, userrl.product, ("em", "r2g", False)),
    (userrl.exponential, userrl.discounted, _shared_out_over_padding, ("em", "r2g", False)),
], ids=["discounted_per_step", "mean_for_total", "product_for_share", "padding_counts"])
def test_formula_rejects(credit, score, spread, case):
    with pytest.raises(AssertionError):
        agrees_with_the_formula(userrl.estimator("wrong", credit, score, spread), *case)
