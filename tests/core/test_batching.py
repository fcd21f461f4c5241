"""Packing and padding: nothing is lost, nothing overlaps, unusable episodes count for nothing."""

import numpy as np
import pytest

from eau_jax.core import batching
from eau_jax.core.types import Episode, StopReason, Task, Turn

TASK = Task("t", "toy", {})


def turn(observation, action, reward):
    return Turn(np.array(observation, np.int32), np.array(action, np.int32), np.full(len(action), -0.5, np.float32), reward,
                3, "symbolic", {}, "", "")


def episode(turns, stop=StopReason.COMPLETED, final=(), score=1.0):
    return Episode(TASK, 0, tuple(turns), np.array(final, np.int32), stop, score, True, 0, "symbolic")


def test_a_trajectory_is_the_episode_token_by_token():
    one = episode([turn([1, 2], [3], 0.25), turn([4], [5, 6], 1.0)], final=[7])
    batch = batching.to_trajectory([[one]], tokens=10, actions=3)
    assert batch.tokens[0, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 0, 0, 0]
    assert batch.action_ids[0, 0].tolist() == [-1, -1, 0, -1, 1, 1, -1, -1, -1, -1]
    assert batch.sampler_logprobs[0, 0].tolist() == [0, 0, -0.5, 0, -0.5, -0.5, 0, 0, 0, 0]
    assert batch.rewards[0, 0].tolist() == [0.25, 1.0, 0] and batch.rewards.sum() == one.score_return
    assert batch.discounts[0, 0].tolist() == [1, 0, 1]
    assert batch.policy_version[0, 0].tolist() == [3, 3, 0]
    assert batch.length[0, 0] == 7


@pytest.mark.parametrize("stop, discount", [
    (StopReason.COMPLETED, 0), (StopReason.USER_LEFT, 0), (StopReason.MAX_TURNS, 0), (StopReason.PARSE_ERROR, 0),
    (StopReason.MAX_TOKENS, 1)])
def test_only_a_cut_episode_is_bootstrapped(stop, discount):
    batch = batching.to_trajectory([[episode([turn([1], [2], 0.0)], stop)]], 4, 2)
    assert batch.discounts[0, 0, 0] == discount


def test_a_failed_episode_is_dropped_and_its_group_stays():
    good, bad = episode([turn([1], [2], 1.0)]), episode([turn([1], [2], 1.0)], StopReason.INFRA_ERROR)
    batch = batching.to_trajectory([[good, bad], [bad, good]], 4, 2)
    assert batch.length.tolist() == [[2, 0], [0, 2]]
    assert (batch.action_ids[0, 1] == -1).all() and batch.rewards[0, 1].sum() == 0


@pytest.mark.parametrize("tokens, actions", [(2, 2), (8, 1)])
def test_an_episode_that_does_not_fit_is_refused(tokens, actions):
    with pytest.raises(ValueError, match="raise rollout"):
        batching.to_trajectory([[episode([turn([1], [2], 0.0), turn([3], [4], 0.0)])]], tokens, actions)


@pytest.mark.parametrize("seed", range(5))
def test_packing_is_a_bijection(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 30, 40)
    packing = batching.pack(lengths, 32, multiple=4)
    assert packing.rows % 4 == 0
    values = np.where(np.arange(30)[None] < lengths[:, None], rng.integers(1, 1000, (40, 30)), 0)
    rows = batching.to_rows(values, packing, 0)
    assert sorted(rows[rows > 0]) == sorted(values[values > 0])
    np.testing.assert_array_equal(batching.from_rows(rows, packing, 30), values)
    ids, positions = batching.segments(packing)
    assert (ids > 0).sum() == lengths.sum()
    for b in np.flatnonzero(lengths):
        assert (ids == b + 1).sum() == lengths[b]
        assert positions[ids == b + 1].tolist() == list(range(lengths[b]))
        assert len(set(np.nonzero(ids == b + 1)[0])) == 1


def test_packing_wastes_little():
    lengths = np.random.default_rng(0).integers(50, 200, 256)
    packing = batching.pack(lengths, 320)
    assert lengths.sum() / (packing.rows * packing.width) > 0.9


def test_values_have_one_column_more_than_tokens():
    packing = batching.pack([2, 3], 5)
    rows = np.arange(6, dtype=np.float32)[None]   # label aligned: column t is the value before token t
    assert batching.from_rows(rows, packing, 4).tolist() == [[3, 4, 5, 0], [0, 1, 2, 3]]


def test_too_long_for_a_row():
    with pytest.raises(ValueError, match="does not fit a row of 8"):
        batching.pack([9], 8)


def test_groups_without_spread_are_not_informative():
    low, high, failed = (episode([turn([1], [2], 0.0)], stop, score=score) for stop, score in
                         ((StopReason.COMPLETED, 0.0), (StopReason.COMPLETED, 1.0), (StopReason.INFRA_ERROR, 1.0)))
    groups = [[low, high], [high, high], [low, failed], []]
    assert batching.informative(groups).tolist() == [True, False, False, False]
    assert batching.every(groups).all()
