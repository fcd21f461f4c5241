"""Numbers that are reported or that steer a run: pass^k, averages of benchmarks, a controlled KL coefficient, epsilon."""

import math

import numpy as np
import pytest
from algorithms.batches import same

from eau_jax.algorithms import kl
from eau_jax.core.types import Episode, StopReason, Task, Turn
from eau_jax.core.batching import to_trajectory
from eau_jax.eval import numbers
from eau_jax.users.mixture import draw

USERGYM = dict(Travel=471, Turtle=48, Function=78, Tau=165, Persuade=42, Intention=40, Telepathy=41, Search=125)


@pytest.mark.parametrize("successes, hat, at", [
    ([3], [.75, .5, .25, 0], [.75, 1, 1, 1]), ([4, 2], [.75, .583333, .5, .5], [.75, .916667, 1, 1])])
def test_pass_hat_and_pass_at(successes, hat, at):
    trials = [4] * len(successes)
    same([numbers.pass_hat(successes, trials, k) for k in (1, 2, 3, 4)], hat)
    same([numbers.pass_at(successes, trials, k) for k in (1, 2, 3, 4)], at)


@pytest.mark.parametrize("seed", range(5))
def test_pass_hat_falls_and_pass_at_rises_with_k(seed):
    rng = np.random.default_rng(seed)
    successes, trials = rng.integers(0, 6, 20).tolist(), [5] * 20
    hat, at = ([of(successes, trials, k) for k in range(1, 6)] for of in (numbers.pass_hat, numbers.pass_at))
    assert (np.diff(hat) <= 1e-12).all() and (np.diff(at) >= -1e-12).all()
    same([hat[0], at[0]], [np.mean(successes) / 5] * 2)
    power = [np.mean([(c / 5) ** k for c in successes]) for k in range(1, 6)]  # the mutant: drawn with replacement
    assert abs(power[1] - hat[1]) > 1e-3


def test_the_average_of_nine_columns():
    """EAU's overall is unweighted over seven gyms and ColBench's Pass and Succ: .6266, .5450, .6147."""
    for gyms, passed, solved, overall in ((.622, .685, .600, .6266), (.559, .553, .439, .5450), (.620, .659, .533, .6147)):
        means = {f"gym{n}": gyms for n in range(7)} | {"pass": passed, "succ": solved}
        counts = dict(zip(means, range(1, 10), strict=True))
        assert numbers.averages(means, counts)["macro"] == pytest.approx(overall, abs=1e-4)
        assert numbers.averages(means, counts)["micro"] != pytest.approx(overall, abs=1e-4)


@pytest.mark.parametrize("row, average", [
    ([.5730, .1854, .4231, .1818, .5317, 1.8175, .5610, .8880], .5652),
    ([.5086, .1844, .3333, .2000, .4643, 1.8075, .6098, .8640], .5269),
])
def test_userrl_averages_over_test_items(row, average):
    means = dict(zip(USERGYM, row, strict=True))
    assert numbers.averages(means, USERGYM)["micro"] == pytest.approx(average, abs=1e-4)
    assert numbers.averages(means, USERGYM)["macro"] != pytest.approx(average, abs=1e-2)


@pytest.mark.parametrize("measured, expected", [(.3, .00100256), (.05, .00099744), (.11, .00100128)])
def test_controlled_kl_coefficient(measured, expected):
    steered = kl.controlled(np.float32(.001), np.float32(measured), 128, kl.ControlKnobs(target=np.float32(.1)))
    assert float(steered) == pytest.approx(expected, abs=1e-9)
    assert float(kl.controlled(np.float32(.001), np.float32(measured), 128, kl.ControlKnobs())) == np.float32(.001)


def test_an_unclipped_controller_is_rejected():
    assert .001 * (1 + (.3 / .1 - 1) * 128 / 10_000) != pytest.approx(.00100256, abs=1e-9)


def test_four_symbolic_replies_in_a_row():
    """Drawn per reply with epsilon one half: 1/16, not 1/2 as if drawn per episode."""
    share = np.mean([all(draw(4 * episode + turn) < .5 for turn in range(4)) for episode in range(4000)])
    assert abs(share - .0625) < 4 * math.sqrt(.0625 * .9375 / 4000)


def test_rewards_of_the_batch_are_those_of_the_episodes():
    """Sum of placed rewards == sum of turn rewards == the episode's return."""
    rng = np.random.default_rng(0)
    turns = tuple(Turn(observation=np.arange(3), action=np.arange(2), logprobs=np.zeros(2, np.float32),
                       reward=float(rng.normal()), policy_version=0, spoke="none", act={}, agent_text="", reply_text="")
                  for _ in range(3))
    one = Episode(task=Task("t", "env", {}), seed=0, turns=turns, final=np.arange(2), stop=StopReason.COMPLETED, score=0.0,
                  success=False, generation=0, user="none")
    same(to_trajectory([[one]], tokens=20, actions=5).rewards.sum(), one.score_return, tolerance=1e-6)
