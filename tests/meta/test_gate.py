"""The gate lets good changes through, says why it refuses others, and compiles nothing on the way."""

import json

import numpy as np
import pytest
from gate_world import ENV, KNOBS, MIX, context, decide, proposal, records, settings, world

from eau_jax.core import knobs as knob
from eau_jax.learner import optimizer
from eau_jax.meta.gate import Limits, behaviour, gate
from eau_jax.meta.replay_gate import Settings
from eau_jax.meta.stage import Stage

ALL = ["parse", "generation", "scope", "knobs", "task_mix", "rules", "timing"]
PLAYED = ["no_leak", "progress", "no_free_lunch", "stop_sanity", "replay"]
KINDER = ENV.rules.replace('when = { vague = 1 }', 'when = { vague = 1, turn = { min = 2 } }')


@pytest.mark.parametrize("fields, played", [
    ({"changes": {"env.max_turns": 20}}, PLAYED),
    ({"changes": {"env.patience": 8, "env.max_turns": 18}}, PLAYED),
    ({"changes": {"user.epsilon": 0.65}}, PLAYED),
    ({"changes": {"rl.advantage.policy_lambda": 0.9, "rl.entropy.coef": 0.004}}, ["steps"]),
    ({"rules": KINDER}, PLAYED),
    ({"task_mix": {"easy": 0.45, "medium": 0.3, "hard": 0.25}}, ["shares"]),
])
def test_a_bounded_change_passes_every_stage(fields, played):
    decision = decide(proposal(**fields))
    assert decision.accepted, decision.reason
    assert [stage.name for stage in decision.stages] == ALL + played
    assert all(stage.passed for stage in decision.stages if stage.name not in ("steps", "shares"))
    assert (decision.knobs, decision.rules, decision.task_mix) == tuple(
        fields.get(name, empty) for name, empty in (("changes", {}), ("rules", ""), ("task_mix", {})))
    assert json.loads(json.dumps(decision.record()))["accepted"] is True


def test_a_change_of_rewards_is_checked_for_what_it_pays():
    decision = decide(proposal(changes={"env.done_bonus": 0.2}))
    assert decision.accepted and decision.rewards_changed and decision.moves == ("env.done_bonus up",)
    assert decision.stages[-1].name == "rewards" and decision.stages[-1].numbers["successes"] > 2
    assert not decide(proposal()).rewards_changed


def test_the_first_failure_ends_it():
    decision = decide(proposal(base_generation=2, changes={"env.max_turns": 64}))
    assert [stage.name for stage in decision.stages] == ["parse", "generation"]
    assert not decision.accepted and "generation 2" in decision.reason and not decision.knobs


def test_gating_compiles_nothing_more():
    decide(proposal())
    traces = world()[1].traces
    before = dict(traces)
    for turns in range(13, 16):
        decide(proposal(changes={"env.max_turns": turns}))
    assert traces == before and set(before) == {"begin", "step"}


def test_a_mend_of_a_faulty_first_generation_passes():
    """The user stonewalled from the start; the environment's own rules come back, and every reply is another one."""
    stone = settings(rules='default = "WITHHOLD"')
    decision = decide(proposal(rules=ENV.rules), current=stone, first=stone)
    replay = decision.stages[-1]
    assert decision.accepted, decision.reason
    assert replay.name == "replay" and replay.numbers["changed_share"] > 0.3 and replay.numbers["counted_share"] == 0


def test_the_blast_radius_is_the_run_s():
    strict = decide(proposal(rules=KINDER), limits=Limits(blast=0.001))
    assert not strict.accepted and "of" in strict.reason and strict.stages[-1].name == "replay"


@pytest.mark.parametrize("fixed, fields", [
    (("env.max_turns",), {"changes": {"env.max_turns": 20}}), (("env",), {"changes": {"env.max_turns": 20}}),
    (("user",), {"rules": KINDER}), (("rules",), {"rules": KINDER}),
    (("env",), {"task_mix": {"easy": 0.45, "medium": 0.3, "hard": 0.25}}),
    (("task_mix",), {"task_mix": {"easy": 0.45, "medium": 0.3, "hard": 0.25}})])
def test_what_stays_as_it_is_is_refused(fixed, fields):
    decision = decide(proposal(**fields), limits=Limits(fixed=fixed))
    assert not decision.accepted and "stays as it is in this run (meta.fixed)" in decision.reason
    assert decide(proposal(changes={"rl.entropy.coef": 0.004}), limits=Limits(fixed=fixed)).accepted


def test_what_no_conversation_depends_on_is_held_against_records():
    """A mix that turns to tasks whose groups are all alike; a learning rate whose next steps are likely to be too large."""
    tasks = [task.id for task in world()[0].tasks]
    buckets = {task: ("easy", "medium", "hard")[place % 3] for place, task in enumerate(tasks)}
    alike = [record | {"score": 1.0 if buckets[record["task"]] == "easy" else place % 2} for place, record in
             enumerate(records())]
    given = dict(buckets=buckets, episodes=alike)
    easier, harder = ({"easy": 0.5 + side, "medium": 0.3, "hard": 0.2 - side} for side in (0.07, -0.07))
    refused = decide(proposal(task_mix=easier), **given)
    assert not refused.accepted and "shares: of the recent groups a share of 0.500 teaches something" in refused.reason
    assert decide(proposal(task_mix=harder), **given).accepted
    knobs = {**KNOBS, "rl": {**KNOBS["rl"], "policy_optimizer": optimizer.Knobs()}}
    now = Settings(knobs, ENV.rules)
    rate = {"rl.policy_optimizer.learning_rate": 1.5 * float(optimizer.Knobs().learning_rate)}
    for kl, accepted in ((0.02, False), (0.01, True)):       # 2.25 times it, against 0.025
        decision = decide(proposal(changes=rate), current=now, first=now, rows=[{"step": 19, "learn/update_kl": kl}])
        assert decision.accepted is accepted and decision.stages[-1].name == "steps"
        assert decision.stages[-1].numbers["expected_kl"] == pytest.approx(2.25 * kl)


def test_without_records_the_replay_cannot_tell_and_refuses_nothing():
    decision = decide(proposal(), episodes=records()[:3])
    assert decision.accepted and decision.stages[-1].passed is None and "16 are needed" in decision.stages[-1].reason


def test_an_environment_that_fails_under_a_change_refuses_it():
    made, many, play = world()

    def broken(knobs, rules):
        if int(knobs["env"].max_turns) == 20:
            raise ZeroDivisionError("turns")
        return play(knobs, rules)

    decision = decide(proposal(), play=broken)
    assert not decision.accepted and "ZeroDivisionError: turns" in decision.reason


def test_a_learning_knob_plays_nothing():
    tree = knob.patch(KNOBS, {"rl.entropy.coef": 0.001})
    assert behaviour(settings()._replace(knobs=tree), context()) == []


def test_a_stage_is_a_record():
    assert Stage("a", None, "b", {"n": 1}).record() == {"stage": "a", "passed": None, "reason": "b", "numbers": {"n": 1}}


def test_what_is_given_is_not_changed():
    before = json.dumps([MIX, sorted(knob.values(KNOBS).items())], default=float)
    gate(proposal(changes={"env.max_turns": 20}), context(), id="p", author="a")
    assert json.dumps([MIX, sorted(knob.values(KNOBS).items())], default=float) == before
    assert np.int32(KNOBS["env"].max_turns) == 16
