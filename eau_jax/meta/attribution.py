"""Who is at fault: from signals and the results of causal tests to a diagnosis, in a fixed order, and what to test next.

The order is that of `signals.FAULTS`: infrastructure, checker, tools, user, limits of the environment, learning, tasks and
rewards, policy. What comes first can cause what comes later: a user who tells nothing makes episodes long, tasks unsolvable
and groups equal. So the first fault that is confirmed (0.9 and more) is named, else the first that is likelier than not; the
others stay listed with their confidence.
"""

import dataclasses
import enum
from typing import Any, Collection, Mapping, NamedTuple, Sequence

from eau_jax.meta.proposal import Diagnosis
from eau_jax.meta.signals import FAULTS, Signal

CONFIRMED, LIKELY = 0.9, 0.5
ALARM, MORE = 0.6, 0.1       # confidence of one alarm, and of each further one of the same fault
HINT = 0.7                   # of a fault that a test points to without an alarm
REFUTED = 0.4                # factor after a test that speaks against it
DIRECT = frozenset(("infra_rate", "coverage", "leaks", "role_flip", "tool_differs", "outcome_differs", "version_lag",
                    "persona_shift", "hardest_share", "easiest_share"))
"""Signals that need no test: each counts what cannot be without the fault."""


class Experiment(enum.Enum):
    """A causal test of `causal.py`; the trainer runs it between two updates."""

    GOLD_REPLAY = "gold_replay"      # the environment's script against the checker, under its own rules and more turns
    IDLE_AGENT = "idle_agent"        # an agent that does nothing against the checker
    REPEAT = "repeat"                # the same episodes twice
    SYMBOLIC_USER = "symbolic_user"  # the policy with the user in force and with the environment's own rules
    MORE_TURNS = "more_turns"        # the policy with the limit of turns in force and with half as many again


class Result(NamedTuple):
    """What a causal test found."""

    experiment: Experiment
    confirmed: bool | None   # whether it found the fault; None: too many episodes failed outside the agent's control
    fault: str               # that it found, or looked for; a name of signals.FAULTS
    value: float             # the number that decided
    limit: float
    episodes: int
    said: str                # one sentence
    tasks: tuple[str, ...] = ()   # ids of tasks in which it shows
    few: bool = False             # they are so few that they are set aside


class Attribution(NamedTuple):
    """What can be said now."""

    diagnosis: Diagnosis                 # the one to act on; owner "none" where nothing is wrong
    candidates: tuple[Diagnosis, ...]    # every fault that anything speaks for, in the order of FAULTS
    test: Experiment | None              # what to run next; None: nothing would change the diagnosis

    def report(self, signals: Sequence[Signal], results: Mapping[Experiment, Result]) -> dict[str, Any]:
        """diagnosis.json of a view, as JSON values."""
        return {"diagnosis": dataclasses.asdict(self.diagnosis), "next_test": self.test.value if self.test else "",
                "candidates": [dataclasses.asdict(candidate) for candidate in self.candidates],
                "signals": [dataclasses.asdict(signal) for signal in signals],
                "results": {result.experiment.value: result._asdict() | {"experiment": result.experiment.value}
                            for result in results.values()}}


TESTS: Mapping[str, Experiment] = {   # which test confirms or refutes a fault
    "broken_checker_negative": Experiment.GOLD_REPLAY, "broken_checker_positive": Experiment.IDLE_AGENT,
    "flaky_tool": Experiment.REPEAT, "persona_drift": Experiment.SYMBOLIC_USER, "too_few_turns": Experiment.MORE_TURNS}
ROUTINE = (Experiment.GOLD_REPLAY, Experiment.IDLE_AGENT, Experiment.REPEAT)   # cheap: no model plays
UNSOLVED = frozenset(("dead", "unsolved_groups", "success_drop"))
"""Alarms that a broken checker raises too, or a user: before the tasks are blamed, the script has to solve them."""
THWARTED = frozenset(("too_many_turns", "all_hard"))
"""What a user who keeps the agent from its work looks like, and a limit of turns that does: before tasks are blamed, or a
limit that is too high, the environment's own user is tried, and more turns."""


def attribute(signals: Sequence[Signal], results: Mapping[Experiment, Result],
              without: Collection[Experiment] = ()) -> Attribution:
    """A diagnosis and the next test.

    Args:
      signals: of the newest update.
      results: of the tests that still hold; a result does not hold for longer than the trainer keeps it.
      without: tests that are never asked for.
    """
    alarms = [signal for signal in signals if signal.alarm]
    found = {fault: [signal for signal in alarms if signal.fault == fault] for fault in FAULTS if fault != "none"}
    weights = {fault: _of_alarms(group) for fault, group in found.items() if group}
    for result in results.values():
        _weigh(weights, result)
    candidates = tuple(
        Diagnosis(FAULTS[fault], fault, round(weights[fault], 3), tuple(signal.evidence for signal in found[fault]),
                  tuple(result.said for result in results.values() if _concerns(result, fault)))
        for fault in FAULTS if weights.get(fault, 0.0) > 0)
    first = next((c for c in candidates if c.confidence >= CONFIRMED), None) or next(
        (c for c in candidates if c.confidence >= LIKELY), None)
    if first is not None and first.fault == "infra":
        return Attribution(first, candidates, None)      # nothing else can be told while episodes are lost
    return Attribution(first or Diagnosis("none", ""), candidates, _next(candidates, alarms, {*results, *without}))


def _of_alarms(signals: Sequence[Signal]) -> float:
    return 0.95 if any(signal.name in DIRECT for signal in signals) else min(ALARM + MORE * (len(signals) - 1), 0.8)


def _weigh(weights: dict[str, float], result: Result) -> None:
    """Changes the confidence in what a result speaks for or against."""
    if result.confirmed is None:
        return
    if result.experiment is Experiment.SYMBOLIC_USER:
        _weigh_user(weights, result)
    elif result.confirmed:
        weights[result.fault] = 0.95
    else:
        for fault, test in TESTS.items():
            if test is result.experiment and fault in weights:
                weights[fault] *= REFUTED
    if result.experiment is Experiment.GOLD_REPLAY and result.confirmed:
        weights.pop("all_hard", None)    # tasks that no script solves are no hard tasks


def _weigh_user(weights: dict[str, float], result: Result) -> None:
    """The swap tells that it is the user, and whether he helps or hinders; the alarms tell how."""
    users = [fault for fault, owner in FAULTS.items() if owner == "user" and fault in weights]
    if result.confirmed and users:
        weights |= {fault: min(weights[fault] + 0.3, 0.95) for fault in users}
    elif result.confirmed:
        weights[result.fault] = HINT
    else:
        weights |= {fault: weights[fault] * REFUTED for fault in users
                    if TESTS.get(fault) is result.experiment and weights[fault] < CONFIRMED}


def _concerns(result: Result, fault: str) -> bool:
    return fault == result.fault or TESTS.get(fault) is result.experiment or (
        result.experiment is Experiment.SYMBOLIC_USER and FAULTS[fault] == "user")


def _next(candidates: Sequence[Diagnosis], alarms: Sequence[Signal], done: Collection[Experiment]) -> Experiment | None:
    """The first test, in the order of the faults, that is not done and could change what is named."""
    wanted: list[Experiment] = []
    if any(signal.name in UNSOLVED for signal in alarms):
        wanted.append(Experiment.GOLD_REPLAY)
    for candidate in candidates:
        if candidate.confidence >= LIKELY and candidate.fault in TESTS:
            wanted.append(TESTS[candidate.fault])
        if candidate.confidence >= CONFIRMED:
            break
    else:
        likely = [candidate for candidate in candidates if candidate.confidence >= LIKELY]
        wanted += ROUTINE
        if any(candidate.fault in THWARTED for candidate in likely) or (
                not likely and any(signal.name in ("success_drop", "user_gap") for signal in alarms)):
            wanted.append(Experiment.SYMBOLIC_USER)
        if any(candidate.fault in THWARTED for candidate in likely):
            wanted.append(Experiment.MORE_TURNS)
    return next((test for test in wanted if test not in done), None)
