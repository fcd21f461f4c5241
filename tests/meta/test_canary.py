"""Canary episodes against control episodes: breakage is seen, luck and failing servers are not taken for it."""

import numpy as np
import pytest

from eau_jax.core.types import Episode, StopReason, Task, Turn
from eau_jax.meta.canary import compare
from eau_jax.rollout.collect import to_record


def turn(failed=False, leaked=False, spoke="symbolic"):
    return Turn(observation=np.zeros(1, np.int32), action=np.zeros(1, np.int32), logprobs=np.zeros(1, np.float32),
                reward=0.0,
                policy_version=0, spoke=spoke, act={}, agent_text="", reply_text="", parse_failed=failed, leaked=leaked)


def side(successes, stop=StopReason.COMPLETED, turns=4, group=2, **turn_fields):
    """Tasks with `group` episodes each; success[task] of them succeed."""
    episodes = [Episode(Task(str(task), "e", {}), 0, tuple(turn(**turn_fields) for _ in range(turns)), np.zeros(0, np.int32),
                        stop, float(g < won), g < won, 0, "symbolic")
                for task, won in enumerate(successes) for g in range(group)]
    return [to_record(episode) for episode in episodes]


EVEN = side([1] * 16)


def test_the_same_again_passes():
    stage = compare(EVEN, EVEN)
    assert stage.passed and stage.numbers["success_gap"] == 0 and stage.numbers["tasks"] == 16


@pytest.mark.parametrize("canary, said", [
    (side([0] * 16), "success is 0.50 lower"),
    (side([1] * 16, failed=True), "unreadable messages is 1.000"),
    (side([1] * 16, leaked=True), "replies that leak is 1.000"),
    (side([1] * 16, stop=StopReason.TOOL_ERROR), "ended by errors is 1.000"),
    (side([1] * 16, turns=1), "1.0 turns instead of 4.0"),
])
def test_breakage_is_refused(canary, said):
    stage = compare(canary, EVEN)
    assert stage.passed is False and said in stage.reason


@pytest.mark.parametrize("canary", [side([2] * 16), side([2] * 16, turns=1), side([1] * 16, turns=9),
                                    side([1] * 12 + [0] * 4)])   # 0.125 lower: within 0.15
def test_what_is_no_breakage_passes(canary):
    assert compare(canary, EVEN).passed


def longer(readable, unreadable, stop):
    """16 failures of 16 tasks: so many readable turns, then so many that are not."""
    turns = (turn(),) * readable + (turn(failed=True),) * unreadable
    return [to_record(Episode(Task(str(task), "e", {}), 0, turns, np.zeros(0, np.int32), stop, 0.0, False, 0, "symbolic"))
            for task in range(16)]


def test_what_an_unreadable_agent_says_with_more_turns_is_not_held_against_them():
    cut = longer(4, 0, StopReason.MAX_TURNS)
    assert compare(longer(4, 3, StopReason.PARSE_ERROR), cut).passed
    early = compare(longer(3, 3, StopReason.PARSE_ERROR), cut)      # where the control was still readable
    assert early.passed is False and "unreadable messages is 0.250" in early.reason
    assert compare(longer(4, 3, StopReason.PARSE_ERROR), longer(4, 0, StopReason.COMPLETED)).passed is False


def test_a_drop_within_the_noise_of_pairs_passes():
    """Six tasks lost and three won of 16: 0.1875 lower, standard error 0.188, so 0.47 is allowed."""
    control, canary = side([2] * 6 + [0] * 3 + [1] * 7), side([0] * 6 + [2] * 3 + [1] * 7)
    stage = compare(canary, control)
    assert stage.numbers["success_gap"] == pytest.approx(-3 / 16)
    assert stage.numbers["success_error"] == pytest.approx(np.std([-1] * 6 + [1] * 3 + [0] * 7, ddof=1) / 4)
    assert stage.passed


def test_a_leak_that_the_control_has_too_is_not_the_change_s():
    assert compare(side([1] * 16, leaked=True), side([1] * 16, leaked=True)).passed


def test_failing_servers_decide_nothing():
    stage = compare(side([1] * 4) + [e for e in side([0] * 16, stop=StopReason.INFRA_ERROR) if int(e["task"]) >= 4], EVEN)
    assert stage.passed is None and "25% of the canary's" in stage.reason
    few = side([1] * 13) + [e for e in side([0] * 16, stop=StopReason.INFRA_ERROR) if int(e["task"]) >= 13]
    assert compare(few, EVEN).passed is None      # 81 % are usable, 19 points fewer than the control's
    assert compare([], EVEN).passed is None and compare(EVEN, []).passed is None


def test_tasks_of_one_side_only_are_left_out():
    stage = compare(side([1] * 16), side([1] * 8) + [e for e in side([2] * 24) if int(e["task"]) >= 16])
    assert stage.numbers["tasks"] == 8 and stage.passed
