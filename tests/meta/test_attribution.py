"""From signals and test results to a diagnosis: order, confidence, what to test next."""

import json

import pytest
from series import healthy

from eau_jax.core.records import plain
from eau_jax.meta.attribution import ROUTINE, TESTS, Experiment, Result, attribute
from eau_jax.meta.proposal import OWNERS
from eau_jax.meta.signals import DETECTORS, FAULTS, Signal, detect
from eau_jax.meta.thresholds import DEFAULTS

DETECTOR = {detector.name: detector for detector in DETECTORS}


def alarms(*names, quiet=("leaks",)):
    found = [(name, True) for name in names] + [(name, False) for name in quiet if name not in names]
    return [Signal(name, 0.5, 0.1, alarm, FAULTS[DETECTOR[name].fault or "none"], DETECTOR[name].fault, 6, 10, 5)
            for name, alarm in found]


def result(experiment, confirmed, fault, value=0.5):
    return {experiment: Result(experiment, confirmed, fault, value, 0.1, 64, f"{experiment.value} said so", ("t1",))}


def clean(*but):
    """The cheap tests have been run and found nothing."""
    faults = {Experiment.GOLD_REPLAY: "broken_checker_negative", Experiment.IDLE_AGENT: "broken_checker_positive",
              Experiment.REPEAT: "flaky_tool"}
    return {test: outcome for test in ROUTINE if test not in but for outcome in result(test, False, faults[test]).values()}


@pytest.mark.parametrize("name", [detector.name for detector in DETECTORS if detector.fault])
def test_each_alarm_alone_names_its_fault(name):
    fault = DETECTOR[name].fault
    found = attribute(alarms(name), {})
    assert (found.diagnosis.fault, found.diagnosis.owner) == (fault, FAULTS[fault]) and found.diagnosis.owner in OWNERS
    assert 0.5 <= found.diagnosis.confidence <= 1 and [item.metric for item in found.diagnosis.evidence] == [name]


def test_nothing_wrong():
    found = attribute(alarms(), clean())
    assert (found.diagnosis.owner, found.diagnosis.fault) == ("none", "") and found.candidates == () and found.test is None
    assert attribute(alarms(), {}).test is Experiment.GOLD_REPLAY          # cheap, and seen by nothing else


def test_lost_episodes_end_everything():
    found = attribute(alarms("infra_rate", "leaks", "dead", "approx_kl"), {})
    assert found.diagnosis.fault == "infra" and found.test is None and len(found.candidates) == 4


def test_causes_before_consequences():
    found = attribute(alarms("stonewalled", "truncated_stuck", "unsolved_groups", "entropy_share"), clean())
    assert found.diagnosis.fault == "stonewalling_user"
    assert [c.fault for c in found.candidates] == ["stonewalling_user", "too_many_turns", "entropy_collapse", "all_hard"]
    assert attribute(alarms("version_lag", "approx_kl"), clean()).diagnosis.fault == "stale_weights"
    assert attribute(alarms("degenerate", "approx_kl"), clean()).diagnosis.fault == "large_updates"


def test_what_is_confirmed_comes_before_what_is_likely():
    found = attribute(alarms("premature_stop", "version_lag"), clean())
    assert found.diagnosis.fault == "stale_weights" and found.candidates[0].fault == "premature_stop"


def test_more_alarms_of_one_fault_are_surer():
    one, two = (attribute(alarms(*names), clean()).diagnosis.confidence for names in (
        ("approx_kl",), ("approx_kl", "clip_fraction")))
    assert (one, two) == (0.6, 0.7)


def test_a_checker_is_tested_before_tasks_are_blamed():
    seen = alarms("dead", "unsolved_groups")
    first = attribute(seen, {})
    assert first.diagnosis.fault == "all_hard" and first.test is Experiment.GOLD_REPLAY
    broken = attribute(seen, result(Experiment.GOLD_REPLAY, True, "broken_checker_negative"))
    assert broken.diagnosis.fault == "broken_checker_negative" and broken.diagnosis.confidence >= 0.9
    assert [c.fault for c in broken.candidates] == ["broken_checker_negative"] and broken.test is None
    assert broken.diagnosis.tests == ("gold_replay said so",)
    sound = attribute(seen, result(Experiment.GOLD_REPLAY, False, "broken_checker_negative"))
    assert sound.diagnosis.fault == "all_hard" and sound.test is Experiment.IDLE_AGENT


@pytest.mark.parametrize("name, test", [("near_miss", Experiment.GOLD_REPLAY), ("unearned", Experiment.IDLE_AGENT),
                                        ("truncated_progressing", Experiment.MORE_TURNS),
                                        ("persona", Experiment.SYMBOLIC_USER)])
def test_a_test_confirms_or_refutes(name, test):
    fault = DETECTOR[name].fault
    assert TESTS[fault] is test and attribute(alarms(name), {}).test is test
    for confirmed, confidence in ((True, 0.9), (False, 0.24), (None, 0.6)):
        found = attribute(alarms(name), clean(test) | result(test, confirmed, fault))
        assert found.candidates[0].confidence == pytest.approx(confidence, abs=0.05) and found.test is None
        assert found.diagnosis.fault == ("" if confirmed is False else fault)


def test_a_drop_without_a_cause_asks_for_the_user():
    assert attribute(alarms("success_drop"), {}).test is Experiment.GOLD_REPLAY
    asked = attribute(alarms("success_drop"), clean())
    assert asked.test is Experiment.SYMBOLIC_USER and asked.diagnosis.owner == "none"
    for fault in ("stonewalling_user", "leaky_user"):       # hinders, helps
        found = attribute(alarms("success_drop"), clean() | result(Experiment.SYMBOLIC_USER, True, fault))
        assert (found.diagnosis.owner, found.diagnosis.fault, found.diagnosis.confidence) == ("user", fault, 0.7)
    cleared = attribute(alarms("success_drop"), clean() | result(Experiment.SYMBOLIC_USER, False, "leaky_user"))
    assert cleared.diagnosis.owner == "none" and cleared.test is None
    assert attribute(alarms("success_drop", "approx_kl"), clean()).test is None      # there is a cause


@pytest.mark.parametrize("name", ["truncated_stuck", "unsolved_groups"])
def test_the_user_is_tried_before_turns_or_tasks_are_blamed(name):
    asked = attribute(alarms(name), clean())
    assert asked.test is Experiment.SYMBOLIC_USER and asked.diagnosis.owner == "env"
    his = attribute(alarms(name), clean() | result(Experiment.SYMBOLIC_USER, True, "stonewalling_user"))
    assert (his.diagnosis.owner, his.diagnosis.fault) == ("user", "stonewalling_user")
    cleared = clean() | result(Experiment.SYMBOLIC_USER, False, "leaky_user")
    assert attribute(alarms(name), cleared).test is Experiment.MORE_TURNS
    few = attribute(alarms(name), cleared | result(Experiment.MORE_TURNS, True, "too_few_turns"))
    assert few.diagnosis.fault == "too_few_turns" and few.diagnosis.confidence >= 0.9
    enough = attribute(alarms(name), cleared | result(Experiment.MORE_TURNS, False, "too_few_turns"))
    assert enough.diagnosis.fault == asked.diagnosis.fault and enough.test is None
    assert attribute(alarms(name, "leaks"), clean()).test is None      # a confirmed cause comes first


def test_a_manner_that_is_another_one_altogether_is_a_drift_whatever_it_costs():
    gross = attribute(alarms("persona", "persona_shift"), clean() | result(Experiment.SYMBOLIC_USER, False, "leaky_user"))
    assert gross.diagnosis.fault == "persona_drift" and gross.diagnosis.confidence >= 0.9 and gross.test is None
    slight = attribute(alarms("persona"), clean() | result(Experiment.SYMBOLIC_USER, False, "leaky_user"))
    assert slight.diagnosis.owner == "none"


def test_returns_that_tell_nothing_come_before_tasks():
    found = attribute(alarms("return_rank", "solved_groups"), clean())
    assert [candidate.fault for candidate in found.candidates] == ["farmed_shaping", "all_easy"]
    assert found.diagnosis.fault == "farmed_shaping"


def test_the_swap_strengthens_what_the_alarms_say():
    found = attribute(alarms("premature_stop"), clean() | result(Experiment.SYMBOLIC_USER, True, "stonewalling_user"))
    assert [(c.fault, c.confidence) for c in found.candidates] == [("premature_stop", 0.9)]


def test_a_flaky_tool_is_no_broken_checker():
    repeated = result(Experiment.REPEAT, True, "flaky_tool")
    found = attribute(alarms("tool_differs", "unsolved_groups"), repeated)
    assert found.diagnosis.fault == "flaky_tool" and found.diagnosis.owner == "env"


def test_the_report_is_json():
    seen = detect(healthy(0), DEFAULTS)
    report = attribute(seen, clean()).report(seen, clean())
    text = json.loads(json.dumps(plain(report), allow_nan=False))
    assert text["diagnosis"]["owner"] == "none" and text["next_test"] == "" and len(text["signals"]) == len(DETECTORS)
    assert text["results"]["gold_replay"]["confirmed"] is False
