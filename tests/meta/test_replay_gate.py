"""Replays give the recorded episodes again, and measure by hand-made episodes what a change reaches."""

import numpy as np
import pytest
from gate_world import ENV, KNOBS, records, settings, world

from eau_jax.core.part import Reply
from eau_jax.meta import replay_gate
from eau_jax.meta.lanes import recorded_act
from eau_jax.meta.replay_gate import Heard, Replayed, Settings, blast, rank_correlation, replay, replayable, rewards

HARSH = ENV.rules.replace("[[rule]]", '[[rule]]\nwhen = { ask = 1, turn = { min = 3 } }\nreply = "WITHHOLD"\n[[rule]]', 1)


def heard(*disclosed, stop=1, total=0.0, end=True):
    """An episode that tells these masks turn by turn."""
    turns = tuple(Heard(Reply.ANSWER, 1, mask, end and turn == len(disclosed) - 1) for turn, mask in enumerate(disclosed))
    return Replayed(turns, total, stop)


def test_a_replay_is_the_recorded_episode():
    """Decisions, answers, values, rewards and ends, of all episodes."""
    found = replay(world()[1], settings(), records())
    for record, again in zip(records(), found, strict=True):
        acts = [turn["act"] for turn in record["turns"]]
        assert [turn.reply for turn in again.turns] == [Reply[act["reply"]] for act in acts]
        assert [(turn.code, turn.disclosed) for turn in again.turns] == [(act["response"], act["disclosed"]) for act in acts]
        assert again.total == pytest.approx(record["return"]) and again.turns[-1].done and again.stop


def test_more_episodes_than_lanes_are_replayed_in_parts():
    many = world()[1]
    few = many._replace(size=40)   # the compiled shapes stay those of `many`
    assert replay(few, settings(), records()[:50]) == replay(many, settings(), records()[:50])


def test_a_harsher_user_shows_where_it_is_harsher():
    old, new, own = (replay(world()[1], side, records()) for side in (settings(), settings(HARSH), settings()))
    stage = blast(old, new, own)
    late = sum(turn["act"]["code"] == 1 and number >= 2 for record in records() for number,
               turn in enumerate(record["turns"]))
    assert 0 < stage.numbers["changed_share"] <= late / stage.numbers["turns"] + 0.05
    assert stage.numbers["counted_share"] == stage.numbers["changed_share"] > 0 and stage.numbers["invalidated_share"] > 0
    assert blast(old, old, own).numbers["changed_share"] == 0


def test_the_share_of_changed_turns_by_hand():
    same, late = heard(1, 2, 4), heard(1, 0, 6)
    stage = blast([same] * 16, [same] * 12 + [late] * 4, [same] * 16)
    assert stage.passed and stage.numbers["changed_share"] == pytest.approx(8 / 48)   # turns 2 and 3 of four episodes
    assert stage.numbers["invalidated_share"] == pytest.approx(4 / 48)                # turn 3, after turn 2
    assert stage.numbers["disclosure_shift"] == pytest.approx(4 * 1 / 48)             # one of three values, one turn later
    refused = blast([same] * 16, [late] * 16, [same] * 16)
    assert refused.passed is False and "67% of 48 recorded turns" in refused.reason and "allowed: 30%" in refused.reason


def test_an_earlier_end_changes_every_turn_that_is_lost():
    stage = blast([heard(1, 2, 4, 8)] * 16, [heard(1, 2, stop=2)] * 16, [heard(1, 2, 4, 8)] * 16)
    assert stage.numbers["changed_share"] == 0.75   # the second turn ends the episode, two are missing
    assert stage.numbers["ended_earlier_share"] == 1.0 and stage.numbers["other_stop_share"] == 1.0


def test_what_becomes_the_environment_s_own_is_not_counted():
    fault, own = heard(0, 0, 0), heard(1, 2, 4)
    stage = blast([fault] * 16, [own] * 16, [own] * 16)
    assert stage.passed and stage.numbers["changed_share"] == 1.0 and stage.numbers["counted_share"] == 0.0
    assert blast([fault] * 16, [heard(7, 0, 0)] * 16, [own] * 16).numbers["counted_share"] == pytest.approx(1 / 3)


def test_returns_that_stop_telling_success_from_failure():
    won = [True] * 8 + [False] * 8
    paid = lambda wins, losses: [heard(1, total=total) for total in [wins] * 8 + [losses] * 8]
    assert rewards(paid(1.0, 0.0), paid(0.5, 0.0), won).passed
    blind = rewards(paid(1.0, 0.0), paid(0.5, 0.5), won)
    assert blind.passed is False and "falls from 1.00 to 0.00" in blind.reason and "failures must earn less" in blind.reason
    assert rewards(paid(1.0, 0.0), paid(0.0, 1.0), won).numbers["correlation_after"] == pytest.approx(-1.0)
    assert rewards(paid(1.0, 0.0), paid(0.5, 0.5), [True] * 16).passed is None
    assert rewards(paid(0.0, 1.0), paid(0.0, 0.5), won).passed             # a faulty reward, a step towards a sound one
    assert rewards(paid(0.0, 0.5), paid(0.0, 1.0), won).passed is False    # and one away from it


def test_the_gate_s_reward_check_on_real_episodes():
    """Failed episodes chat more, so a bonus for chatting pays failure."""
    old, new = (replay(world()[1], settings(**changes), records()) for changes in ({}, {"chat_bonus": 1.0}))
    success = [record["success"] for record in records()]
    stage = rewards(old, new, success)
    assert stage.passed is False and "rank correlation" in stage.reason


@pytest.mark.parametrize("left, right, expected", [
    ([1, 2, 3, 4], [1, 2, 3, 4], 1.0), ([1, 2, 3, 4], [4, 3, 2, 1], -1.0), ([1, 1, 1], [1, 2, 3], 0.0),
    ([1, 2, 2, 3], [0, 0, 1, 1], 3 / np.sqrt(4.5 * 4)),   # ranks 1, 2.5, 2.5, 4 and 1.5, 1.5, 3.5, 3.5
    ([10, 20, 30, 40, 50], [1, 3, 2, 5, 4], 0.8),
])
def test_rank_correlation_by_hand(left, right, expected):
    assert rank_correlation(np.array(left), np.array(right)) == pytest.approx(expected, abs=1e-9)


def test_only_usable_episodes_of_known_tasks_are_replayed():
    good = records()[0]
    odd = [good | {"stop": "infra_error"}, good | {"task": "of another run"}, good | {"turns": []}]
    assert replayable(world()[1], [good, *odd]) == [good]


def test_a_recorded_nan_is_read():
    act = records()[0]["turns"][0]["act"] | {"values": [None, 1.0, 2.0, 3.0], "flags": 5}
    read = recorded_act(act)
    assert np.isnan(read.values[0]) and read.values.dtype == np.float32 and int(read.flags) == 5


def test_defaults_are_those_of_the_design():
    assert (replay_gate.BLAST, replay_gate.CORRELATION, Settings(KNOBS, "").rules) == (0.30, 0.02, "")
