"""Expected gradients by enumeration of every outcome and every group, against the gradient of the expected return.

No sampling, so no error bars: what claims to be unbiased is so to rounding. The rest is biased, by the listed share of
the gradient's norm; that is a property of the method and stays as it is. Each method's file tells it.
"""

import inspect

import jax
import numpy as np
import pytest
from algorithms import game

from eau_jax.algorithms import adaptive, bilevel, gae, group, infopo, reinforce, userrl, view

WRONG = dict(zip(game.PREFIXES, np.random.default_rng(2).normal(size=len(game.PREFIXES)), strict=True))
EXACT = game.exact_values()
ONE = dict(gamma=1, policy_lambda=1)


def bias(part, seen, values=None, size=2, **settings) -> float:
    """|E[g] - grad J| / |grad J|."""
    knobs = part.knobs.replace(**{name: np.float32(value) for name, value in settings.items()})
    trajectory, known = game.batch(size, values)

    @jax.jit
    @jax.vmap
    def of(trajectory, known, told):
        gains = seen.to_steps(trajectory.replace(rewards=told), known).rewards
        steps = seen.to_steps(trajectory, known).replace(gains=gains)
        return seen.to_tokens(trajectory, part.estimate(steps, knobs), known)[0]

    exact, advantages = game.exact_gradient(), np.asarray(of(trajectory, known, game.gains(size)))
    return float(np.linalg.norm(game.expected_gradient(advantages) - exact) / np.linalg.norm(exact))


def test_the_game_itself():
    """The gradient of the return is not zero, and reward to go without any baseline gives it."""
    assert np.linalg.norm(game.exact_gradient()) > .1
    assert len(game.OUTCOMES) == 10 and len(game.PREFIXES) == 9


@pytest.mark.parametrize("part, seen, values, settings", [
    (gae.gae, view.by_token, WRONG, ONE),
    (gae.gae, view.by_action, WRONG, ONE),
    (gae.gae, view.by_token, EXACT, dict(gamma=1, policy_lambda=.5)),
    (gae.gae, view.by_action, EXACT, dict(gamma=1, policy_lambda=0)),
    (bilevel.bilevel, view.by_token, WRONG, dict(action_gamma=1)),
    (bilevel.bilevel, view.by_token, EXACT, dict(action_gamma=1, action_lambda=.5, token_lambda=.5)),
    (bilevel.bilevel_by_reward, view.by_token, WRONG, dict(action_gamma=1)),
    (reinforce.reinforce, view.by_token, None, {}),
    (group.rloo, view.by_action, None, {}),
], ids=["gae_token", "gae_action", "gae_token_exact", "gae_action_exact", "bilevel", "bilevel_exact",
        "bilevel_by_reward", "reinforce", "rloo"])
def test_unbiased(part, seen, values, settings):
    assert bias(part, seen, values, **settings) < 1e-5


BIASED = {
    "gae_lambda": (gae.gae, view.by_action, WRONG, dict(gamma=1, policy_lambda=.5)),
    "gae_action_end": (gae.gae, view.by_action_end, WRONG, ONE),
    "gae_gamma": (gae.gae, view.by_action, EXACT, dict(gamma=.8, policy_lambda=1)),
    "bilevel_gamma": (bilevel.bilevel, view.by_token, EXACT, {}),
    "bilevel_by_reward_gamma": (bilevel.bilevel_by_reward, view.by_token, EXACT, {}),
    "reinforce_gamma": (reinforce.reinforce, view.by_token, None, dict(gamma=.8)),
    "vapo": (adaptive.vapo, view.by_token, WRONG, {}),
    "vapo_exact": (adaptive.vapo, view.by_token, EXACT, {}),          # lambda knows how the episode ends
    "relative": (adaptive.relative, view.by_token, WRONG, {}),
    "relative_exact": (adaptive.relative, view.by_token, EXACT, {}),  # the same
    "dr_grpo": (group.dr_grpo, view.by_action, None, {}),
    "grpo": (group.grpo, view.by_action, None, {}),
    "userrl_equalized_mean": (userrl.equalized_mean, view.by_token, None, {}),
    "userrl_equalized_r2g": (userrl.equalized_r2g, view.by_token, None, {}),
    "userrl_r2g_r2g": (userrl.r2g_r2g, view.by_token, None, {}),
    "userrl_em_r2g": (userrl.em_r2g, view.by_token, None, {}),
    "userrl_equalized_total": (userrl.equalized_total, view.by_token, None, {}),
    "userrl_paper_naive_total": (userrl.paper_naive_total, view.by_token, None, {}),
    "userrl_paper_equalized_r2g": (userrl.paper_equalized_r2g, view.by_token, None, {}),
    "userrl_paper_r2g_r2g": (userrl.paper_r2g_r2g, view.by_token, None, {}),
    "userrl_paper_em_r2g": (userrl.paper_em_r2g, view.by_token, None, {}),
    "infopo": (infopo.infopo, view.by_token, None, {}),
    "infopo_mean": (infopo.infopo_mean, view.by_token, None, {}),
    "infopo_ten": (infopo.infopo, view.by_token, None, dict(beta=10)),
    "infopo_external": (infopo.infopo, view.by_token, None, dict(beta=0)),   # that of GRPO
}
MEASURED = {  # in groups of three; a random critic where the method reads one, the exact one where the name says so
    "gae_lambda": 2.415, "gae_action_end": .519, "gae_gamma": .219, "bilevel_gamma": .055, "bilevel_by_reward_gamma": .063,
    "reinforce_gamma": .419, "vapo": .760, "vapo_exact": .030, "relative": .923, "relative_exact": .054, "dr_grpo": 1 / 3,
    "grpo": .184, "userrl_equalized_mean": .451, "userrl_equalized_r2g": .202, "userrl_r2g_r2g": .277,
    "userrl_em_r2g": .335, "userrl_equalized_total": .184, "userrl_paper_naive_total": .719,
    "userrl_paper_equalized_r2g": .202, "userrl_paper_r2g_r2g": .373, "userrl_paper_em_r2g": .250, "infopo": .185,
    "infopo_mean": .453, "infopo_ten": .251, "infopo_external": .184,
}


QUICK = ("gae_lambda", "bilevel_gamma", "vapo_exact", "dr_grpo", "grpo", "userrl_equalized_mean", "userrl_em_r2g", "infopo")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in BIASED])
def test_measured_bias(name):
    part, seen, values, settings = BIASED[name]
    assert bias(part, seen, values, size=3, **settings) == pytest.approx(MEASURED[name], abs=.001)


@pytest.mark.parametrize("name", BIASED)
def test_the_method_says_how_biased_it_is(name):
    assert f"{MEASURED[name]:.2f}" in inspect.getmodule(BIASED[name][0].estimate).__doc__


def test_a_group_mean_with_the_member_itself_shrinks_the_gradient():
    """Dr. GRPO is RLOO times (n - 1) / n: a bias in size alone, which a larger group removes."""
    for size in (2, 3):
        assert bias(group.dr_grpo, view.by_action, size=size) == pytest.approx(1 / size, abs=1e-5)
