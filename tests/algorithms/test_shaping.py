"""Reward shaping and group filters: published numbers, and groups that are kept or dropped whole."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from algorithms.batches import random_batch, same, single
from algorithms.test_contracts import SHAPINGS

from eau_jax.algorithms import keep, shaping
from eau_jax.core import batching
from eau_jax.core.types import Episode, StopReason, Task


@pytest.mark.parametrize("length, expected", [(16384, 0), (18432, -.5), (20480, -1), (20481, -1)])
def test_penalty_of_overlong_episodes(length, expected):
    same(shaping.penalty(np.float32(length), np.int32(20480), np.int32(4096)), expected)


def test_the_penalty_is_at_the_last_action_and_counts_sampled_tokens():
    trajectory = single([-1] * 20 + [0] * 6 + [-1] * 30 + [2] * 4, [.5, 0, 1], ended=True)
    knobs = shaping.OverlongKnobs(limit=np.int32(12), margin=np.int32(4), weight=np.float32(2))
    same(shaping.overlong.shape(trajectory, knobs).rewards[0, 0], [.5, 0, 1 - 2 * .5])


def test_scaled_rewards():
    for won, expected in ((0, -5), (1, 5)):
        trajectory = single([-1, 0, -1, 1], [0, won, 0], ended=True)
        same(shaping.scaled.shape(trajectory, shaping.ScaledKnobs()).rewards[0, 0], [0, expected, 0])
    large = single([-1, 0, -1, 1], [-2.5, 1e4, 0], ended=True)
    same(shaping.scaled.shape(large, shaping.ScaledKnobs()).rewards[0, 0], [-20, 20, 0])
    wide = shaping.ScaledKnobs(clip=np.float32(30))
    same(shaping.scaled.shape(large, wide).rewards[0, 0], [-25, 30, 0])


@pytest.mark.parametrize("part", SHAPINGS.values(), ids=SHAPINGS.keys())
def test_only_rewards_change(part):
    trajectory, _ = random_batch(0)
    shaped = jax.jit(part.shape)(trajectory, part.knobs)
    for name in ("tokens", "length", "action_ids", "sampler_logprobs", "discounts", "policy_version"):
        assert (np.asarray(getattr(shaped, name)) == getattr(trajectory, name)).all(), name
    silent = trajectory.replace(action_ids=np.full_like(trajectory.action_ids, -1), rewards=0 * trajectory.rewards)
    assert not np.asarray(part.shape(silent, part.knobs).rewards).any()


# --- filters ---------------------------------------------------------------------------------------------------------

def groups(*scores) -> list[list[Episode]]:
    """Episodes with these scores; None: one that was dropped."""
    one = Episode(task=Task("t", "env", {}), seed=0, turns=(), final=np.zeros(0, np.int32), stop=StopReason.COMPLETED,
                  score=0.0, success=False, generation=0, user="none")
    return [[dataclasses.replace(one, score=1.0, stop=StopReason.INFRA_ERROR) if score is None
             else dataclasses.replace(one, score=float(score)) for score in group] for group in scores]


SOLVED, NEARLY, MIXED, FAILED, GONE = [1, 1, 1, 1], [1, 1, 1, .9], [1, 0, 0, 1], [0, 0, 0, 0], [None, None]


def test_unsolved_drops_what_is_always_solved():
    given = groups(SOLVED, NEARLY, MIXED, FAILED, GONE)
    assert keep.unsolved(given).tolist() == [False, False, True, True, False]
    assert batching.informative(given).tolist() == [False, True, True, False, False], "the paper's filter"


def test_dropped_episodes_are_no_members():
    assert keep.unsolved(groups([.9, None, None])).tolist() == [True]
    assert not keep.uncertain(groups([0, None])).any() and not keep.signal(groups([0, None])).any()


def test_uncertain_keeps_the_widest():
    given = groups(SOLVED, [1, 0, 1, 0], [.5, .4, .5, .5], [1, 0, 0, 0], FAILED, [1, 1, 1, .8], MIXED, SOLVED)
    assert np.flatnonzero(keep.uncertain(given)).tolist() == [1, 6]
    assert np.flatnonzero(keep.uncertain(given, share=.1)).tolist() == [1]
    assert np.flatnonzero(keep.uncertain(given, share=1)).tolist() == [1, 2, 3, 5, 6]


def test_signal_to_noise():
    amounts = np.array([.15, .5, 0, .3, .05])
    assert keep.top_share(amounts, .9).tolist() == [True, True, False, True, False]
    assert keep.top_share(amounts, 1).tolist() == [True, True, False, True, True]
    assert not keep.top_share(np.zeros(3), .9).any()
    given = groups([1, 0], [.1, 0], FAILED)  # variances .5, .005, 0
    assert keep.signal(given).tolist() == [True, False, False]


def test_thresholds_of_the_filters():
    assert keep.unsolved(groups([1] * 19 + [0], [1] * 20 + [0])).tolist() == [True, False], "19 of 20 is not above 0.95"
    assert keep.uncertain(groups(*[[1, 0]] * 7)).sum() == 1, "a quarter of seven, rounded down"
    assert keep.top_share(np.array([.5, .395, .105]), .9).tolist() == [True, True, False], ".895 reaches .9 - .01"
    rounding = groups([.3, .1 + .2], [1, 0])
    assert keep._spread(rounding)[0] > 0 and keep.uncertain(rounding, share=1).tolist() == [False, True]


FILTERS = [keep.unsolved, keep.uncertain, keep.signal, functools.partial(keep.uncertain, share=.5), batching.informative]


@pytest.mark.parametrize("choose", FILTERS)
def test_a_batch_without_signal_has_a_clear_outcome(choose):
    assert choose([]).shape == (0,)
    nothing = choose(groups(SOLVED, SOLVED, GONE))
    assert nothing.dtype == bool and nothing.shape == (3,) and not nothing.any()


@pytest.mark.parametrize("name, wrong, check", [
    ("_scores", lambda given: [[episode.score for episode in group] for group in given],
     test_dropped_episodes_are_no_members),
    ("_spread", lambda given: np.array([np.mean(scores or [0]) for scores in keep._scores(given)]),
     test_uncertain_keeps_the_widest),
    ("_first", lambda amounts, count: np.argsort(np.argsort(-amounts)) < count, test_signal_to_noise),
], ids=["dropped_count", "mean_for_spread", "nothing_is_too_small"])
def test_wrong_filters_are_rejected(monkeypatch, name, wrong, check):
    monkeypatch.setattr(keep, name, wrong)
    with pytest.raises(AssertionError):
        check()


def test_a_penalty_of_the_whole_row_is_rejected(monkeypatch):
    """Length counted with observations and padding."""
    monkeypatch.setattr(shaping, "shape_overlong", lambda trajectory, knobs: shaping._add_at_the_end(
        trajectory, knobs.weight * shaping.penalty(trajectory.length * 1.0, knobs.limit, knobs.margin)))
    monkeypatch.setattr(shaping, "overlong", shaping.Shaping(shaping.OverlongKnobs(), shaping.shape_overlong, "wrong"))
    with pytest.raises(AssertionError):
        test_the_penalty_is_at_the_last_action_and_counts_sampled_tokens()
