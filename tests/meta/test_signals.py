"""Detectors against values computed by hand, series without faults, growing faults, and calibration."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from series import healthy, rows

from eau_jax.meta import signals, thresholds
from eau_jax.meta.signals import DETECTORS, FAULTS, column, detect, number, slope
from eau_jax.meta.thresholds import DEFAULTS, ThresholdError, calibrate

BY_NAME = {detector.name: detector for detector in DETECTORS}
RISING, LEVEL = (lambda place: 0.1 + 0.02 * place), (lambda place: 0.4 + 0.01 * (-1) ** place)
FALLING = lambda place: 0.6 - 0.02 * place
last = lambda name: (lambda seen: number(seen[-1], name))


def signal(name, seen, limits=DEFAULTS):
    return {found.name: found for found in detect(seen, limits)}[name]


# name -> (rows with the fault, its value by hand, rows without, a wrong way to compute it)
PLAIN = {   # the newest value of a metric: (metric, a value that is an alarm, one that is none)
    "infra_rate": ("rollout/infra_rate", 0.02, 0.01), "near_miss": ("meta/near_miss", 0.08, 0.05),
    "outcome_differs": ("meta/outcome_differs", 0.01, 0.0), "unearned": ("meta/unearned", 0.2, 0.1),
    "tool_differs": ("meta/tool_differs", 0.01, 0.0), "leaks": ("meta/leaks", 0.004, 0.0),
    "unsolicited": ("meta/unsolicited", 0.5, 0.3), "premature_stop": ("meta/premature_stop", 0.03, 0.02),
    "stonewalled": ("meta/stonewalled", 0.2, 0.1), "invented": ("meta/invented", 0.03, 0.02),
    "role_flip": ("meta/role_flip", 0.01, 0.0), "version_lag": ("meta/version_lag", 1.0, 0.0),
    "sampler_gap": ("learn/sampler_gap", 0.2, 0.1), "effective_sample": ("learn/correction_ess", 0.2, 0.3),
    "approx_kl": ("learn/approx_kl", 0.03, 0.02), "approx_kl_once": ("learn/approx_kl", 0.06, 0.05),
    "update_kl": ("learn/update_kl", 0.06, 0.05), "update_kl_once": ("learn/update_kl", 0.2, 0.1),
    "explained_variance": ("learn/explained_variance", -0.1, 0.0), "unsolved_groups": ("meta/unsolved_groups", 0.7, 0.6),
    "solved_groups": ("meta/solved_groups", 0.7, 0.6), "return_rank": ("meta/return_rank", 0.2, 0.3)}
CUT = dict(meta__truncated=0.4, meta__truncated_progressing=0.3, meta__truncated_stuck=0.1)
STUCK = dict(meta__truncated_stuck=0.3, meta__turn_limit=20.0)
FEW = dict(rollout__success_rate=LEVEL, rollout__score_mean=LEVEL)
GRADIENT = lambda *newest: [2.0] * 6 + [3.0] * 5 + list(newest)
MANNER = dict(meta__reply_polite=[0.5] * 5 + [0.2] * 5, **{f"meta__reply_words_{k}": float(k == 0) for k in range(6)},
              meta__reply_question=0.1)
LENGTHS = [[0.2, 0.5, 0.3, 0.0, 0.0, 0.0], [0.1, 0.3, 0.6, 0.0, 0.0, 0.0]]
CASES = {
    "coverage": (rows(1, meta__coverage=0.5), 0.5, rows(1, meta__coverage=0.6), last("rollout/infra_rate")),
    "persona": (rows(14, **(MANNER | {"meta__reply_polite": [0.5] * 5 + [0.2] * 9})),
                0.3 * math.log(2.5) + 0.3 * math.log(1.6),
                rows(14, **(MANNER | {"meta__reply_polite": 0.5})), last("meta/reply_polite")),
    "persona_shift": (rows(14, **(MANNER | {"meta__reply_polite": [0.1] * 5 + [0.7] * 9})),
                      0.6 * math.log(7) + 0.6 * math.log(3),
                      rows(14, **(MANNER | {"meta__reply_polite": [0.5] * 5 + [0.2] * 9})), last("meta/reply_polite")),
    "user_gap": (rows(5, meta__user_gap=-0.5, meta__user_gap_se=0.1), 0.3,
                 rows(5, meta__user_gap=0.3, meta__user_gap_se=0.1),
                 last("meta/user_gap")),
    "truncated_progressing": (rows(5, **CUT), 0.4, rows(5, **(CUT | {"meta__truncated_progressing": 0.2})),
                              lambda seen: 0.9 * number(seen[-1], "meta/truncated")),
    "truncated_stuck": (rows(5, meta__success_turns_p50=9.0, **STUCK), 0.3, rows(5, meta__success_turns_p50=10.0, **STUCK),
                        last("meta/truncated")),
    "sampler_gap_growth": (rows(6, learn__sampler_gap=[1e-5] + [2e-3] * 5), 200.0,
                           rows(6, learn__sampler_gap=[1e-7] + [9e-4] * 5),
                           lambda seen: number(seen[-1], "learn/sampler_gap") / number(seen[-2], "learn/sampler_gap")),
    "clip_fraction": (rows(5, learn__clip_fraction_high=0.2, learn__clip_fraction_low=0.2), 0.4,
                      rows(5, learn__clip_fraction_high=0.2,
                           learn__clip_fraction_low=0.05), last("learn/clip_fraction_high")),
    "gradient": (rows(14, learn__policy_grad_norm=GRADIENT(12.0, 14.0, 16.0)), 16 / 3,   # of 12/2, 14/2.5, 16/3
                 rows(14, learn__policy_grad_norm=GRADIENT(12.0, 3.0, 16.0)), last("learn/policy_grad_norm")),
    "gradient_once": (rows(12, learn__policy_grad_norm=GRADIENT(50.0)), 25.0,
                      rows(12, learn__policy_grad_norm=GRADIENT(39.0)),
                      last("learn/policy_grad_norm")),
    "entropy_share": (rows(20, learn__entropy=[0.5] * 10 + [0.1] * 10, **FEW), 0.2,
                      rows(20, learn__entropy=[0.5] * 10 + [0.1] * 10, rollout__success_rate=RISING,
                           rollout__score_mean=RISING),
                      last("learn/entropy")),
    "group_spread": (rows(25, meta__group_std=[0.2] * 10 + [0.01] * 15, meta__solved_groups=0.1), 0.05,
                     rows(25, meta__group_std=[0.2] * 10 + [0.01] * 15, meta__solved_groups=0.9), last("meta/group_std")),
    "entropy_growth": (rows(20, learn__entropy=[0.5] * 10 + [1.0] * 10, rollout__success_rate=FALLING,
                            rollout__score_mean=FALLING),
                       2.0, rows(20, learn__entropy=[0.5] * 10 + [1.0] * 10, **FEW), last("learn/entropy")),
    "known_too_well": (rows(10, learn__explained_variance=0.97, **FEW), 0.97, rows(
        10, learn__explained_variance=0.97, rollout__success_rate=RISING, rollout__score_mean=RISING), last("learn/value")),
    "dead": (rows(10, rollout__success_rate=0.0, rollout__score_mean=0.2), 0.0,
             rows(10, rollout__success_rate=0.0, rollout__score_mean=RISING), last("rollout/score_mean")),
    "farmed": (rows(20, rollout__return_mean=lambda p: p + (-1) ** p, rollout__success_rate=LEVEL, meta__return_rank=0.1),
               None,
               rows(20, rollout__return_mean=lambda p: p + (-1) ** p, rollout__success_rate=RISING, meta__return_rank=0.1),
               last("rollout/return_mean")),
    "hardest_share": (rows(9, meta__hardest_share=[0.3] * 5 + [0.95] * 4), 0.95,
                      rows(9, meta__hardest_share=[0.8] * 5 + [0.95] * 4), last("meta/easiest_share")),
    "easiest_share": (rows(9, meta__easiest_share=[0.3] * 5 + [0.95] * 4), 0.95,
                      rows(9, meta__easiest_share=[0.3] * 5 + [0.85] * 4), last("meta/hardest_share")),
    "return_rank_share": (rows(14, meta__return_rank=[0.9] * 5 + [0.45] * 9, **FEW), 0.5,
                          rows(14, meta__return_rank=[0.9] * 5 + [0.45] * 9, rollout__success_rate=RISING),
                          last("meta/return_rank")),
    "degenerate": (rows(12, meta__degenerate=[0.1, 0.0, 0.04, 0.02, 0.04, 0.0] + [0.14] * 6), 0.12,   # above the mean 0.02
                   rows(12, meta__degenerate=[0.04] * 6 + [0.08] * 6), last("meta/degenerate")),
    "helped": (rows(5, meta__helped_gap=0.7, meta__helped_gap_se=0.1), 0.5,
               rows(5, meta__helped_gap=0.5, meta__helped_gap_se=0.1), last("meta/helped_gap")),
    "task_information": (rows(20, meta__task_information=[0.8] * 10 + [0.2] * 10, **FEW), 0.25,
                         rows(20, meta__task_information=[0.8] * 10 + [0.2] * 10, rollout__success_rate=RISING,
                              rollout__score_mean=RISING), last("meta/task_information")),
    "act_variety": (rows(20, meta__act_entropy=[2.0] * 10 + [0.4] * 10, **FEW), 0.2,
                    rows(20, meta__act_entropy=[2.0] * 10 + [0.8] * 10, **FEW), last("meta/act_entropy")),
    "success_drop": (rows(15, rollout__success_rate=[0.5] * 10 + [0.2] * 5, rollout__episodes=64.0),
                     0.3 / 0.10, rows(15, rollout__success_rate=[0.5] * 10 + [0.45] * 5, rollout__episodes=64.0),
                     last("rollout/success_rate")),
}
CASES |= {name: (rows(10, **{metric.replace("/", "__"): bad}), bad, rows(10, **{metric.replace("/", "__"): good}),
                 lambda seen, metric=metric: -number(seen[-1], metric) if number(seen[-1], metric) else 1.0)
          for name, (metric, bad, good) in PLAIN.items()}


def test_every_detector_has_a_case_and_a_fault():
    assert CASES.keys() == BY_NAME.keys()
    assert {detector.fault for detector in DETECTORS} - {""} == FAULTS.keys() - {"none"}
    assert "success_drop" in DEFAULTS and "gold_success" in DEFAULTS


@pytest.mark.parametrize("name", CASES)
def test_value_alarm_and_silence(name):
    faulty, value, quiet, wrong = CASES[name]
    found, detector = signal(name, faulty), BY_NAME[name]
    assert found.alarm and not signal(name, quiet).alarm
    assert value is None or found.value == pytest.approx(value)
    assert (found.fault, found.owner) == (detector.fault, FAULTS[detector.fault or "none"])
    assert found.last == faulty[-1]["step"] and found.first == found.last - min(detector.of, len(faulty)) + 1
    assert found.evidence.metric == name and found.evidence.limit == DEFAULTS[name]
    mutant = signals.strengths(detector._replace(value=wrong), faulty)
    assert mutant != pytest.approx(found.value)          # a wrong formula is seen


def test_slope():
    assert slope(np.array([0.0, 1.0, 2.0, 3.0, 5.0])) == pytest.approx(1.2 / math.sqrt(0.4 / 3 / 10))   # by hand
    assert slope(np.array([1.0, np.nan, 2.0])) == 0.0 and slope(np.full(9, 0.3)) == 0.0
    assert slope(np.arange(6.0)) > 100


def test_what_was_nothing_at_the_start_has_no_share_of_it():
    seen = rows(20, learn__entropy=0.0, meta__act_entropy=0.0, meta__task_information=[0.0] * 10 + [0.5] * 10)
    assert not any(found.alarm for found in detect(seen, DEFAULTS))


def test_farmed_value():
    seen = CASES["farmed"][0]
    assert signal("farmed", seen).value == pytest.approx(slope(column(seen, "rollout/return_mean"))) and len(seen) == 20


def test_three_of_the_last_five():
    seen = lambda *values: rows(len(values), meta__unsolicited=list(values))
    assert signal("unsolicited", seen(0.9, 0.9, 0.9, 0.0, 0.0)).alarm
    assert not signal("unsolicited", seen(0.9, 0.9, 0.9, 0.0, 0.0, 0.0)).alarm       # one of the three is too old
    assert not signal("unsolicited", seen(0.9, 0.9)).alarm
    two = dataclasses.asdict(signal("unsolicited", seen(0.9, 0.9)))
    assert math.isnan(two["value"]) and two["known"] == 2
    lenient = BY_NAME["unsolicited"]._replace(need=2)                                # the mutant: two of five
    assert signals._judge(lenient, seen(0.9, 0.9, 0.0, 0.0, 0.0), 0.3).alarm
    assert not signal("unsolicited", seen(0.9, 0.9, 0.0, 0.0, 0.0)).alarm


def test_missing_metrics_are_no_alarm():
    seen = rows(20, **{name.replace("/", "__"): None for name in ("meta/leaks", "learn/approx_kl", "rollout/success_rate")})
    for found in detect(seen, DEFAULTS):
        assert not found.alarm and found.known == 0 and math.isnan(found.value), found
    for count in range(1, 12):
        assert not any(found.alarm for found in detect(rows(count), DEFAULTS))
    assert detect([], DEFAULTS) == ()
    gaps = rows(5, meta__leaks=[0.1, None, 0.1, float("nan"), 0.1])
    assert signal("leaks", gaps).alarm and signal("leaks", gaps).known == 3


def test_a_new_generation_begins_anew():
    seen = rows(10, meta__unsolicited=0.9) + rows(2, generation=1, first=11, meta__unsolicited=0.9)
    assert not signal("unsolicited", seen).alarm and signal("unsolicited", seen).first == 11
    assert signal("unsolicited", seen + rows(1, generation=1, first=13, meta__unsolicited=0.9)).alarm
    drop = rows(10, rollout__success_rate=0.8, rollout__episodes=64.0) + rows(
        5, generation=1, first=11, rollout__success_rate=0.2, rollout__episodes=64.0)
    assert not signal("success_drop", drop).alarm                                    # the task may have become harder
    assert signal("gradient", rows(10, learn__policy_grad_norm=1.0) + rows(
        3, generation=1, first=11, learn__policy_grad_norm=9.0)).alarm               # but gradients compare


@pytest.mark.parametrize("name", PLAIN)
def test_a_stronger_fault_never_turns_an_alarm_off(name):
    draw, detector = np.random.default_rng(len(name)), BY_NAME[name]
    column_name, sign = PLAIN[name][0].replace("/", "__"), -1 if detector.below else 1
    for _ in range(40):
        values = DEFAULTS[name] + draw.normal(0, 0.1, 12)
        stronger = values + sign * draw.uniform(0, 0.2, 12)
        weak, strong = (signal(name, rows(12, **{column_name: list(map(float, given))})) for given in (values, stronger))
        assert strong.alarm or not weak.alarm
        assert sign * strong.value >= sign * weak.value


@pytest.mark.parametrize("name, base, strong", [
    ("truncated_progressing", CUT, lambda x: {"meta__truncated": 0.4 + x / 2, "meta__truncated_progressing": 0.3 + x / 2}),
    ("truncated_stuck", STUCK, lambda x: {"meta__truncated_stuck": 0.3 + x / 2, "meta__success_turns_p50": 9 - 5 * x}),
    ("clip_fraction", {}, lambda x: {"learn__clip_fraction_high": 0.2 + x, "learn__clip_fraction_low": 0.2}),
    ("dead", {"rollout__score_mean": 0.2}, lambda x: {"rollout__success_rate": 0.009 * (1 - x)}),
    ("user_gap", {"meta__user_gap_se": 0.1}, lambda x: {"meta__user_gap": -0.5 - x / 2}),
    ("gradient", {}, lambda x: {"learn__policy_grad_norm": [1.0] * 10 + [6.0 + 50 * x] * 5}),
    ("entropy_share", FEW, lambda x: {"learn__entropy": [0.5] * 10 + [0.12 * (1 - x)] * 5}),
    ("degenerate", {}, lambda x: {"meta__degenerate": [0.05] * 10 + [0.12 + x / 2] * 5}),
    ("sampler_gap_growth", {}, lambda x: {"learn__sampler_gap": [1e-6] * 10 + [2e-3 * (1 + 100 * x)] * 5})])
def test_a_stronger_compound_fault_never_turns_an_alarm_off(name, base, strong):
    assert all(signal(name, rows(15, **(base | strong(x)))).alarm for x in np.linspace(0, 1, 11))


def alarms_of(seen, limits):
    return [found.name for found in detect(seen, limits) if found.alarm and found.fault]


def test_series_without_faults_raise_no_alarm():
    rounds = [(seed, end) for seed in range(40) for end in (10, 20, 30, 40)]
    false = [(seed, end, found) for seed, end in rounds if (found := alarms_of(healthy(seed)[:end], DEFAULTS))]
    assert len(false) <= 0.02 * len(rounds), false


def test_calibration_widens_and_never_narrows():
    noisy = rows(30, meta__unsolicited=lambda p: 1.0 + 0.1 * (-1) ** p, learn__correction_ess=0.25, meta__leaks=0.0)
    assert signal("unsolicited", noisy).alarm and signal("effective_sample", noisy).alarm
    limits = calibrate(noisy)
    assert not signal("unsolicited", noisy, limits).alarm and not signal("effective_sample", noisy, limits).alarm
    strongest = [0.9, 0.9, *[1.1, 0.9] * 13]      # third largest of up to five of 1.1, 0.9, 1.1, ...
    assert limits["unsolicited"] == pytest.approx(np.mean(strongest) + 4 * np.std(strongest))
    assert limits["effective_sample"] == 0.25
    assert all(limits[name] == DEFAULTS[name] for name in DEFAULTS if name not in ("unsolicited", "effective_sample"))
    for seed in range(3):
        widened = calibrate(healthy(seed))
        assert all((widened[d.name] <= d.limit) if d.below else (widened[d.name] >= d.limit) for d in DETECTORS)
    steady = calibrate(rows(20, meta__unsolicited=0.8))
    assert steady["unsolicited"] == pytest.approx(0.8) and not alarms_of(rows(20, meta__unsolicited=0.8), steady)
    assert calibrate(rows(20, rollout__infra_rate=0.5))["infra_rate"] == DEFAULTS["infra_rate"]
    with pytest.raises(ThresholdError, match="at least 5"):
        calibrate(rows(4))


def test_limits_on_disk(tmp_path: Path):
    file = tmp_path / "thresholds.json"
    limits = calibrate(rows(20, meta__unsolicited=0.8))
    thresholds.save(file, limits, "intention")
    assert thresholds.load(file, "intention") == limits
    for document, said in (({"env": "function", "limits": {}}, "not of 'intention'"), ({"limits": {}}, "cannot be read"),
                           ({"env": "intention", "limits": {"unsolicitd": 1}}, "did you mean 'unsolicited'"),
                           ({"env": "intention", "limits": {"leaks": True}}, "must be a number")):
        file.write_text(json.dumps(document))
        with pytest.raises(ThresholdError, match=said):
            thresholds.load(file, "intention")
    with pytest.raises(ThresholdError, match="cannot be read"):
        thresholds.load(tmp_path / "none.json", "intention")
