"""Detectors: each is a number of the run's history so far, a limit, and how often the limit must be passed to be an alarm.

A history is the run's rows of metrics in order, oldest first: those of metrics.jsonl joined with `measure.measure` of the
same update. A detector's value at an update is a pure function of the rows up to it. It is an alarm when its limit is passed
in `need` of the last `of` updates ("3 of the last 5" unless told), all of the generation in force; so a signal's value is
the `need`-th strongest of them, and a fault that grows never turns an alarm off. A metric that is missing or not finite
raises no alarm and lowers `Signal.known`.

Limits come from reports of others where there are any; (P) marks a starting value of ours, to be calibrated by
`thresholds.calibrate` on a run without faults.
"""

import dataclasses
import math
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

from eau_jax.meta.measure import LENGTHS
from eau_jax.meta.proposal import Evidence

FAULTS = {   # {fault: who is at fault}, in the order in which they are looked for
    "infra": "infra",
    "broken_checker_negative": "checker", "broken_checker_positive": "checker",
    "flaky_tool": "env",
    "leaky_user": "user", "early_disclosure": "user", "premature_stop": "user", "stonewalling_user": "user",
    "invented_facts": "user", "persona_drift": "user",
    "too_few_turns": "env", "too_many_turns": "env",
    "stale_weights": "rl", "large_updates": "rl", "gradient_spikes": "rl", "entropy_collapse": "rl", "entropy_rise": "rl",
    "weak_critic": "rl",
    "farmed_shaping": "env", "all_hard": "env", "all_easy": "env",
    "degenerate_output": "policy",
    "none": "none"}

Rows = Sequence[Mapping[str, Any]]

START = 5            # updates whose mean a later value is compared with
PROGRESSING = 0.5    # share of the cut episodes that were progressing, from which the limit of turns is what cut them
BINDING = 0.5        # of the limit of turns: successes that need less have turns to spare
RANKED = 0.3         # correlation of return and success below which the return may be farmed
GAP_FLOOR = 1e-3     # nats: a gap between sampler and learner below this is rounding
GROWN = 0.2           # by which a share has grown where it is another one than at the start
STEEP = 2.0          # standard errors from which a slope is one


@dataclasses.dataclass(frozen=True)
class Signal:
    """What a detector says of the newest updates."""

    name: str
    value: float      # the need-th strongest of the window; nan where too little is known
    limit: float      # beyond which it is an alarm
    alarm: bool
    owner: str        # of the fault; "none" where the signal alone points to nobody
    fault: str        # a name of FAULTS; "": asks for a closer look only
    first: int        # updates of the window
    last: int
    known: int        # updates in it whose value is known

    @property
    def evidence(self) -> Evidence:
        return Evidence(self.name, self.first, self.last, self.value, self.limit)


class Detector(NamedTuple):
    name: str
    fault: str                      # "": a closer look only
    limit: float                    # default
    value: Callable[[Rows], float]  # at the last of the rows; nan: not known
    need: int = 3
    of: int = 5
    below: bool = False             # an alarm lies below the limit
    calibrated: bool = True         # a run without faults may widen the limit
    own: bool = False               # rows of earlier generations are not compared with


def detect(rows: Rows, limits: Mapping[str, float]) -> tuple[Signal, ...]:
    """Every detector's signal at the last of the rows; none without rows.

    Args:
      rows: [updates] of the run so far, with "step" and "generation".
      limits: {detector: limit}, every detector's (`thresholds.DEFAULTS` or what `calibrate` made of them).
    """
    return tuple(_judge(detector, rows, limits[detector.name]) for detector in DETECTORS) if rows else ()


def strengths(detector: Detector, rows: Rows) -> float:
    """The need-th strongest value of the last `of` updates of the generation in force; nan where fewer are known."""
    known = _window(detector, rows)[1]
    ordered = sorted(known, reverse=not detector.below)
    return ordered[detector.need - 1] if len(ordered) >= detector.need else math.nan


def _judge(detector: Detector, rows: Rows, limit: float) -> Signal:
    value, (window, known) = strengths(detector, rows), _window(detector, rows)
    alarm = value < limit if detector.below else value > limit      # False for nan
    return Signal(detector.name, value, limit, bool(alarm), FAULTS[detector.fault or "none"], detector.fault,
                  int(window[0]["step"]), int(window[-1]["step"]), len(known))


def _window(detector: Detector, rows: Rows) -> tuple[Rows, list[float]]:
    """The last updates of the generation in force, and the detector's known values there."""
    current = generation(rows)
    first = len(rows) - len(current) if detector.own else 0
    count = min(detector.of, len(current))
    values = [detector.value(rows[first:end]) for end in range(len(rows) - count + 1, len(rows) + 1)]
    return rows[len(rows) - count:], [value for value in values if math.isfinite(value)]


def generation(rows: Rows) -> Rows:
    """The last rows that all have the last one's generation."""
    place = len(rows)
    while place and rows[place - 1].get("generation") == rows[-1].get("generation"):
        place -= 1
    return rows[place:]


def number(row: Mapping[str, Any], name: str) -> float:
    """A row's number; nan where it is missing or None."""
    value = row.get(name)
    return float(value) if isinstance(value, (int, float)) else math.nan


def column(rows: Rows, name: str) -> np.ndarray:
    """f64[updates], nan where a row has no such number."""
    return np.array([number(row, name) for row in rows], np.float64)


def slope(values: np.ndarray) -> float:
    """Least-squares slope over time in units of its standard error; 0 with fewer than 5 values or where nothing moves."""
    times = np.flatnonzero(np.isfinite(values))
    if len(times) < 5:
        return 0.0
    y, x = values[times], times - times.mean()
    rise = (x * y).sum() / (x * x).sum()
    error = math.sqrt(((y - y.mean() - rise * x) ** 2).sum() / (len(x) - 2) / (x * x).sum())
    return float(rise / error) if error > 1e-12 else math.copysign(1e6, rise) if abs(rise) > 1e-12 else 0.0


def metric(name: str) -> Callable[[Rows], float]:
    """The newest value of a metric."""
    return lambda rows: number(rows[-1], name)


def _mean(values: np.ndarray) -> float:
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else math.nan


def _of_start(rows: Rows, name: str) -> float:
    """The newest value as a share of the mean of the first known ones; nan while there are fewer than START, or none after
    them, or where they are not above 0."""
    values = column(rows, name)
    values = values[np.isfinite(values)]
    start = float(values[:START].mean()) if len(values) > START else math.nan
    return number(rows[-1], name) / start if start > 0 else math.nan


def _rising(rows: Rows, updates: int = 10) -> bool:
    """Whether success or score has risen over the last updates."""
    return any(slope(column(rows[-updates:], name)) > STEEP for name in ("rollout/success_rate", "rollout/score_mean"))


def _persona(rows: Rows) -> float:
    """Population stability index of a model's replies, the last 5 updates against the first 5: the largest of length,
    politeness and questions.  Σ (p − q) ln(p / q)"""
    if len(rows) < 2 * START:
        return math.nan
    lengths = [f"meta/reply_words_{k}" for k in range(len(LENGTHS) + 1)]
    tables = [np.array([[_mean(column(part, name)) for name in lengths] for part in (rows[:START], rows[-START:])])]
    for name in ("meta/reply_polite", "meta/reply_question"):
        share = np.array([_mean(column(part, name)) for part in (rows[:START], rows[-START:])])
        tables.append(np.stack([share, 1 - share], axis=1))
    floored = [np.maximum(table, 0.01) for table in tables]     # nan stays
    return max(float(((new - old) * np.log(new / old)).sum()) for old, new in floored)


def _few_turns(rows: Rows) -> float:
    """Share of cut episodes, where most of them were progressing."""
    cut, progressing = number(rows[-1], "meta/truncated"), number(rows[-1], "meta/truncated_progressing")
    return math.nan if math.isnan(cut) else cut if progressing > PROGRESSING * cut else 0.0


def _many_turns(rows: Rows) -> float:
    """Share of episodes that were cut without progress, where half of the successes need less than half of the turns."""
    stuck, half = number(rows[-1], "meta/truncated_stuck"), number(rows[-1], "meta/success_turns_p50")
    limit = number(rows[-1], "meta/turn_limit")
    return stuck if half < BINDING * limit else math.nan if math.isnan(stuck) else 0.0


def _gap_growth(rows: Rows) -> float:
    """The gap between sampler and learner as a multiple of the first update's, whose weights are fresh."""
    gaps = column(rows, "learn/sampler_gap")
    first = gaps[np.isfinite(gaps)][:1]
    if not len(first) or not np.isfinite(gaps[-1]):
        return math.nan
    return float(gaps[-1] / max(first[0], 1e-9)) if gaps[-1] > GAP_FLOOR else 0.0


def _clipped(rows: Rows) -> float:
    return number(rows[-1], "learn/clip_fraction_high") + number(rows[-1], "learn/clip_fraction_low")


def _gradient(rows: Rows) -> float:
    """The gradient's norm as a multiple of the median of the 50 before it."""
    norms = column(rows, "learn/policy_grad_norm")
    before = norms[-51:-1]
    before = before[np.isfinite(before)]
    return float(norms[-1] / np.median(before)) if len(before) >= START and np.median(before) > 0 else math.nan


def _left(name: str) -> Callable[[Rows], float]:
    """A metric as a share of what it was at the start; 1 while success rises."""
    def share(rows: Rows) -> float:
        left = _of_start(rows, name)
        return max(left, 1.0) if _rising(rows) else left
    return share


def _entropy_growth(rows: Rows) -> float:
    """Entropy as a multiple of what it was at the start, where success or score falls; else 1."""
    growth = _of_start(rows, "learn/entropy")
    falling = any(slope(column(rows[-10:], name)) < -STEEP for name in ("rollout/success_rate", "rollout/score_mean"))
    return growth if falling or math.isnan(growth) else 1.0


def _spread(rows: Rows) -> float:
    """Spread of scores within groups as a share of that of updates 1 to 10; 1 where groups are solved."""
    first = _mean(column(rows[:10], "meta/group_std"))
    share = number(rows[-1], "meta/group_std") / first if len(rows) > 10 and first > 0 else math.nan
    return max(share, 1.0) if number(rows[-1], "meta/solved_groups") > 0.5 else share


def _dead(rows: Rows) -> float:
    """Success, where neither it nor the score rises; else 1."""
    success = number(rows[-1], "rollout/success_rate")
    return success if math.isnan(success) or not _rising(rows) else 1.0


def _known_too_well(rows: Rows) -> float:
    """The critic's explained variance, where success does not rise; else 0."""
    return 0.0 if _rising(rows, 20) else number(rows[-1], "learn/explained_variance")


def _farmed(rows: Rows) -> float:
    """Slope of the return over 20 updates in standard errors, where success does not rise with it and the two are hardly
    correlated; else 0."""
    if len(rows) < 10 or math.isnan(number(rows[-1], "rollout/return_mean")):
        return math.nan
    rank = _mean(column(rows[-5:], "meta/return_rank"))
    success = slope(column(rows[-20:], "rollout/success_rate"))
    return 0.0 if rank >= RANKED or success > 1.0 else slope(column(rows[-20:], "rollout/return_mean"))


def _rank_share(rows: Rows) -> float:
    """The correlation of return and success as a share of what it was at the start; 1 where success rises."""
    share = _of_start(rows, "meta/return_rank")
    return max(share, 1.0) if slope(column(rows[-10:], "rollout/success_rate")) > STEEP else share


def _grown(name: str) -> Callable[[Rows], float]:
    """A share, where it is by GROWN above what it was at the start; else 0."""
    def share(rows: Rows) -> float:
        values = column(rows, name)
        values = values[np.isfinite(values)]
        if len(values) <= START or math.isnan(number(rows[-1], name)):
            return math.nan
        return float(values[-1]) if values[-1] > values[:START].mean() + GROWN else 0.0
    return share


def _degenerate(rows: Rows) -> float:
    """Rise of the share of degenerate turns above the lowest mean of 5 updates."""
    values = column(rows, "meta/degenerate")
    means = [_mean(values[end - START:end]) for end in range(START, len(values))]
    return float(values[-1] - np.nanmin(means)) if np.isfinite(means).any() else math.nan


def _drop(rows: Rows) -> float:
    """Fall of success, mean of 5 updates against the 10 before, as a multiple of max(0.10, 2.5 standard errors)."""
    success, episodes = column(rows, "rollout/success_rate")[-15:], column(rows, "rollout/episodes")[-15:]
    if len(success) < 15 or not np.isfinite([success, episodes]).all():
        return math.nan
    old, new = success[:10].mean(), success[10:].mean()
    error = math.sqrt(old * (1 - old) / episodes[:10].sum() + new * (1 - new) / episodes[10:].sum())
    return float((old - new) / max(0.10, 2.5 * error))


def _helped(rows: Rows) -> float:
    """By how much success is higher where the user told something unasked, less twice its standard error."""
    return number(rows[-1], "meta/helped_gap") - 2 * number(rows[-1], "meta/helped_gap_se")


def _user_gap(rows: Rows) -> float:
    """|success with a model's words - success with the rules' own| beyond twice its standard error."""
    return abs(number(rows[-1], "meta/user_gap")) - 2 * number(rows[-1], "meta/user_gap_se")


DETECTORS: tuple[Detector, ...] = (
    Detector("infra_rate", "infra", 0.01, metric("rollout/infra_rate"), calibrated=False),
    Detector("coverage", "infra", 0.6, metric("meta/coverage"), need=1, of=1, below=True, calibrated=False),
    Detector("near_miss", "broken_checker_negative", 0.05, metric("meta/near_miss")),
    Detector("outcome_differs", "broken_checker_negative", 0.0, metric("meta/outcome_differs")),
    Detector("unearned", "broken_checker_positive", 0.1, metric("meta/unearned")),                                    # P
    Detector("tool_differs", "flaky_tool", 0.0, metric("meta/tool_differs")),
    Detector("leaks", "leaky_user", 0.0, metric("meta/leaks")),
    Detector("unsolicited", "early_disclosure", 0.3, metric("meta/unsolicited")),
    Detector("premature_stop", "premature_stop", 0.02, metric("meta/premature_stop")),
    Detector("stonewalled", "stonewalling_user", 0.1, metric("meta/stonewalled")),
    Detector("invented", "invented_facts", 0.02, metric("meta/invented")),
    Detector("persona", "persona_drift", 0.2, _persona, own=True),
    Detector("persona_shift", "persona_drift", 1.0, _persona, own=True),                                               # P
    Detector("role_flip", "persona_drift", 0.0, metric("meta/role_flip")),
    Detector("user_gap", "", 0.2, _user_gap),
    Detector("truncated_progressing", "too_few_turns", 0.25, _few_turns),
    Detector("truncated_stuck", "too_many_turns", 0.25, _many_turns),
    Detector("version_lag", "stale_weights", 0.0, metric("meta/version_lag")),
    Detector("sampler_gap", "stale_weights", 0.1, metric("learn/sampler_gap")),
    Detector("sampler_gap_growth", "stale_weights", 100.0, _gap_growth),                                               # P
    Detector("effective_sample", "stale_weights", 0.3, metric("learn/correction_ess"), below=True),
    Detector("approx_kl", "large_updates", 0.02, metric("learn/approx_kl")),
    Detector("approx_kl_once", "large_updates", 0.05, metric("learn/approx_kl"), need=1),
    Detector("update_kl", "large_updates", 0.05, metric("learn/update_kl")),                                           # P
    Detector("update_kl_once", "large_updates", 0.1, metric("learn/update_kl"), need=1),                               # P
    Detector("clip_fraction", "large_updates", 0.3, _clipped),                                                         # P
    Detector("gradient", "gradient_spikes", 5.0, _gradient),                                                           # P
    Detector("gradient_once", "gradient_spikes", 20.0, _gradient, need=1),                                             # P
    Detector("entropy_share", "entropy_collapse", 0.3, _left("learn/entropy"), below=True),                         # P
    Detector("group_spread", "entropy_collapse", 0.1, _spread, need=10, of=10, below=True),
    Detector("entropy_growth", "entropy_rise", 1.5, _entropy_growth),                                                  # P
    Detector("explained_variance", "weak_critic", 0.0, metric("learn/explained_variance"), need=10, of=10, below=True),
    Detector("known_too_well", "", 0.95, _known_too_well, need=5),                                                     # P
    Detector("dead", "all_hard", 0.01, _dead, need=5, below=True),
    Detector("unsolved_groups", "all_hard", 0.6, metric("meta/unsolved_groups")),                                      # P
    Detector("solved_groups", "all_easy", 0.6, metric("meta/solved_groups")),                                          # P
    Detector("hardest_share", "all_hard", 0.9, _grown("meta/hardest_share")),                                          # P
    Detector("easiest_share", "all_easy", 0.9, _grown("meta/easiest_share")),                                          # P
    Detector("farmed", "farmed_shaping", 3.0, _farmed, need=1, of=1, own=True),
    Detector("return_rank", "farmed_shaping", RANKED, metric("meta/return_rank"), below=True),
    Detector("return_rank_share", "farmed_shaping", 0.7, _rank_share, below=True),                                     # P
    Detector("degenerate", "degenerate_output", 0.05, _degenerate),
    Detector("helped", "", 0.3, _helped),                                                                              # P
    Detector("task_information", "", 0.5, _left("meta/task_information"), below=True),                                 # P
    Detector("act_variety", "", 0.3, _left("meta/act_entropy"), below=True),                                           # P
    Detector("success_drop", "", 1.0, _drop, need=1, of=1, own=True, calibrated=False),
)
