"""Refilling a batch: which tasks are asked for, what is kept where, when it ends."""

import asyncio
import dataclasses
import functools

import numpy as np
import pytest

from eau_jax import assemble
from eau_jax.algorithms import keep
from eau_jax.core import batching
from eau_jax.core.types import Episode, StopReason, Task
from eau_jax.rollout import refill
from tiny_config import config as tiny

NOBODY = Episode(task=Task("t", "env", {}), seed=0, turns=(), final=np.zeros(0, np.int32), stop=StopReason.COMPLETED,
                 score=0.0, success=False, generation=0, user="none")


def group(row, *scores):
    """A group of task `row` with these scores; None: an episode that was dropped."""
    return [dataclasses.replace(NOBODY, task=Task(str(row), "env", {}), score=0.0 if score is None else score,
                                stop=StopReason.INFRA_ERROR if score is None else StopReason.COMPLETED) for score in scores]


def filled(scores, places, rounds, choose=batching.informative):
    """Tasks 0, 1, 2, ... in order, `scores[row]` each; returns the batch and the rows of every round."""
    asked = []

    async def play(rows):
        asked.append(list(rows))
        return [group(row, *scores[row]) for row in rows], {"rollout/infra_retries": 1.0}

    def draw(number, count, used):
        return [row for row in range(len(scores)) if row not in used][:count]

    return asyncio.run(refill.fill(play, draw, choose, places, rounds)), asked


def tasks(groups):
    return [group[0].task.id if group else "" for group in groups]


SAME, MIXED, GONE = (1.0, 1.0), (1.0, 0.0), (None, None)


def test_as_many_as_are_missing_are_collected_and_take_the_empty_places():
    batch, asked = filled([MIXED, SAME, MIXED, SAME, SAME, MIXED, MIXED, MIXED], places=4, rounds=5)
    assert asked == [[0, 1, 2, 3], [4, 5], [6]]
    assert tasks(batch.kept) == ["0", "6", "2", "5"] and tasks(batch.collected) == list("0123456")
    assert all(len(group) == 2 for group in batch.kept), "a group is whole"
    assert {name: batch.metrics[f"rollout/{name}"] for name in (
        "refill_rounds", "kept_groups", "dropped_groups", "infra_retries", "episodes", "score_mean")} == dict(
            refill_rounds=2, kept_groups=4, dropped_groups=3, infra_retries=3, episodes=14, score_mean=10 / 14)


def test_without_rounds_the_batch_is_smaller():
    batch, asked = filled([MIXED, SAME, MIXED, MIXED], places=3, rounds=0)
    assert asked == [[0, 1, 2]] and tasks(batch.kept) == ["0", "", "2"] and batch.metrics["rollout/refill_rounds"] == 0


def test_the_limit_holds_when_every_group_is_degenerate():
    batch, asked = filled([SAME] * 20, places=2, rounds=3)
    assert asked == [[0, 1], [2, 3], [4, 5], [6, 7]] and batch.kept == [[], []]
    assert (batch.metrics["rollout/kept_groups"], batch.metrics["rollout/dropped_groups"]) == (0, 8)


def test_a_filter_that_ranks_sees_the_whole_batch_when_there_are_no_rounds():
    batch, _ = filled([SAME, MIXED, (.5, .4), SAME], places=4, rounds=0, choose=keep.uncertain)
    assert tasks(batch.kept) == ["", "1", "", ""]


def test_no_task_is_left():
    batch, asked = filled([MIXED, SAME, SAME], places=2, rounds=9)
    assert asked == [[0, 1], [2]] and tasks(batch.kept) == ["0", ""]


def test_a_round_that_failed_outside_the_agents_control_is_the_last():
    batch, asked = filled([MIXED, SAME, GONE, MIXED], places=2, rounds=9)
    assert asked == [[0, 1], [2]] and tasks(batch.kept) == ["0", ""] and batch.metrics["rollout/infra_rate"] == 2 / 6
    _, asked = filled([GONE, GONE, MIXED, MIXED], places=2, rounds=9)
    assert asked == [[0, 1]], "a server that is away is not waited for again"


@pytest.mark.parametrize("seed", range(5))
def test_the_draw_never_repeats_a_task_of_the_update(seed):
    config = dataclasses.replace(tiny(), seed=seed)
    used, draws = [], {}
    for number in range(8):
        rows = assemble.draw(config, range(16), 3, number, 2, used)
        assert rows == assemble.draw(config, range(16), 3, number, 2, used), "a function of seed, update and round"
        draws[number], used = rows, used + rows
    assert sorted(used) == list(range(16)), "all 16 tasks, each once"
    assert assemble.draw(config, range(16), 3, 8, 2, used) == []
    assert draws[1] != assemble.draw(config, range(16), 4, 1, 2, draws[0]) or draws[2] != assemble.draw(config, range(16), 4, 2, 2, draws[0])
    assert assemble.draw(config, range(16), 3, 1, 1, draws[0]) == draws[1][:1]


def test_filters_that_rank_are_told_apart():
    assert all(map(keep.compares, (keep.uncertain, keep.signal, functools.partial(keep.signal, share=.5))))
    assert not any(map(keep.compares, (keep.unsolved, functools.partial(keep.unsolved, limit=.5), batching.informative)))


FILL = refill.fill
WRONG = {
    "tasks_again": (lambda play, draw, keep, places, rounds: FILL(play, lambda n, count, used: draw(n, count, []), keep,
                                                                  places, rounds), test_no_task_is_left),
    "one_round_too_many": (lambda play, draw, keep, places, rounds: FILL(play, draw, keep, places, rounds + 1),
                           test_the_limit_holds_when_every_group_is_degenerate),
    "what_is_dropped_is_kept": (lambda play, draw, keep, places, rounds: FILL(play, draw, batching.every, places, rounds),
                                test_as_many_as_are_missing_are_collected_and_take_the_empty_places),
    "never_gives_up": (lambda play, draw, keep, places, rounds: FILL(
        play, draw, lambda groups: batching.informative(groups) | (len(groups) < 2), places, 99),
        test_no_task_is_left),
}


@pytest.mark.parametrize("wrong, check", WRONG.values(), ids=WRONG)
def test_wrong_refilling_is_rejected(monkeypatch, wrong, check):
    monkeypatch.setattr(refill, "fill", wrong)
    with pytest.raises(AssertionError):
        check()
