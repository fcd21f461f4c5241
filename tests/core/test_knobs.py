"""Knobs: bounds, types, near misses, trust regions, and one trace across swaps."""

import chex
import jax
import numpy as np
import pytest
from flax import struct

from eau_jax.core import knobs
from eau_jax.core.knobs import KnobError, knob


@struct.dataclass
class Rl:
    learning_rate: float = knob(1e-3, 0.0, 0.1, "step size", log=True)
    epochs: int = knob(2, 1, 10, "passes")


@struct.dataclass
class User:
    epsilon: float = knob(0.5, 0.0, 1.0, "share of symbolic replies", trust=0.2)


TREE = {"rl": {"optimizer": Rl()}, "user": User()}


def test_paths_begin_with_the_owner_and_values_are_plain():
    assert knobs.values(TREE) == {"rl.optimizer.learning_rate": 0.001, "rl.optimizer.epochs": 2, "user.epsilon": 0.5}
    assert knobs.specs(TREE)["rl.optimizer.epochs"].owner == "rl"


def test_a_knob_says_whether_it_changes_what_rewards_mean():
    @struct.dataclass
    class Paid:
        bonus: float = knob(0.0, 0.0, 1.0, "reward for it", reward=True)

    found = knobs.specs(TREE | {"env": Paid()})
    assert [path for path, spec in found.items() if spec.reward] == ["env.bonus"]


def test_patch_changes_only_what_is_named_and_keeps_dtypes():
    new = knobs.patch(TREE, {"rl.optimizer.epochs": 3, "user.epsilon": 1})
    assert knobs.values(new) == {"rl.optimizer.learning_rate": 0.001, "rl.optimizer.epochs": 3, "user.epsilon": 1.0}
    assert knobs.values(TREE)["user.epsilon"] == 0.5
    assert new["user"].epsilon.dtype == np.float32 and new["rl"]["optimizer"].epochs.dtype == np.int32


@pytest.mark.parametrize("changes, words", [
    ({"rl.optimizer.learning_rat": 0.1}, ["learning_rat", "did you mean", "rl.optimizer.learning_rate"]),
    ({"epsilon": 0.1}, ["did you mean 'user.epsilon'"]),
    ({"user.epsilon": 1.5}, ["1.5", "out of range", "0 to 1", "share of symbolic replies"]),
    ({"user.epsilon": float("nan")}, ["out of range"]),
    ({"user.epsilon": True}, ["not a number"]),
    ({"user.epsilon": "0.1"}, ["not a number"]),
    ({"rl.optimizer.epochs": 2.5}, ["whole number"]),
])
def test_a_bad_change_is_refused_and_explained(changes, words):
    with pytest.raises(KnobError) as caught:
        knobs.patch(TREE, changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_refused_patch_changes_nothing():
    with pytest.raises(KnobError):
        knobs.patch(TREE, {"user.epsilon": 0.1, "user.epsilo": 0.1})
    assert knobs.values(TREE)["user.epsilon"] == 0.5


@pytest.mark.parametrize("changes, outside", [
    ({"user.epsilon": 0.7}, False), ({"user.epsilon": 0.71}, True),
    ({"rl.optimizer.learning_rate": 2e-3}, False), ({"rl.optimizer.learning_rate": 2.1e-3}, True),
    ({"rl.optimizer.learning_rate": 4e-4}, True), ({"rl.optimizer.learning_rate": 0.0}, True),
    ({"rl.optimizer.epochs": 4}, False), ({"rl.optimizer.epochs": 5}, True),
])
def test_trust_region(changes, outside):
    assert bool(knobs.outside_trust(TREE, changes)) == outside


@pytest.mark.parametrize("value, outside", [(1e-3, True), (5e-4, False), (3e-4, False), (1e-4, False), (0.9e-4, True)])
def test_the_way_back_to_the_first_value_is_open(value, outside):
    """From 1e-3, whose factor is 2 at a time, to the 1e-4 that the run began with; not beyond it, and not the other way."""
    first = {"rl.optimizer.learning_rate": 1e-4}
    tree = knobs.patch(TREE, {"rl.optimizer.learning_rate": 4e-4} if value == 1e-3 else {})
    assert bool(knobs.outside_trust(tree, {"rl.optimizer.learning_rate": value}, first)) == outside


def test_every_swap_runs_the_same_trace():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def f(tree):
        return tree["user"].epsilon * tree["rl"]["optimizer"].epochs

    assert float(f(TREE)) == 1.0
    assert float(f(knobs.patch(TREE, {"user.epsilon": 1, "rl.optimizer.epochs": 3.0}))) == 3.0


def test_a_default_outside_its_bounds_is_a_mistake():
    with pytest.raises(ValueError, match="outside"):
        knob(2.0, 0.0, 1.0, "x")
