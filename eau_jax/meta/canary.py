"""A few episodes under a change, kept out of the gradient, against as many without it on the same tasks.

They show what breaks, not what is better: with 64 episodes a side and a success rate of 0.4, a difference of 0.22 is
missed in one case of five. What a change is worth is judged later, by `watch`.
"""

from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from eau_jax.core.types import StopReason
from eau_jax.meta.stage import Stage, verdict

Record = Mapping[str, Any]   # one line of episodes/<step>.jsonl, as of `rollout.collect.to_record`

COVERAGE = 0.6      # share of a side's episodes that must be usable
INFRA = 0.10        # by how much the share of unusable ones may exceed the control's; beyond, nothing can be told
PARSE = 0.10        # by how much the share of unreadable messages may exceed the control's
BROKEN = 0.10       # the same of the share of episodes that end by unreadable messages or failed tool calls
LEAKS = 0.02        # the same of the share of replies that leak
TURNS = 0.5         # of the control's turns per episode, the fewest
SUCCESS = 0.15      # by how much success may be lower, unless that is less than ERRORS standard errors
ERRORS = 2.5
CUT = (StopReason.MAX_TURNS.value, StopReason.MAX_TOKENS.value)


def compare(canary: Sequence[Record], control: Sequence[Record]) -> Stage:
    """Whether a change breaks something. Episodes are paired by task; tasks that one side lacks are left out.

    Where the control's episode of the same task and draws was cut by a limit and the canary's goes on, what the agent says
    beyond that place is not held against the change: more turns do not make an agent unreadable that is so in any case.

    `passed` is None where too many episodes failed outside the agent's control: that is no fault of the change.
    """
    both = {record["task"] for record in canary} & {record["task"] for record in control}
    sides = {name: [record for record in side if record["task"] in both]
             for name, side in (("canary", canary), ("control", control))}
    usable = {name: [record for record in side if record["stop"] != StopReason.INFRA_ERROR.value]
              for name, side in sides.items()}
    covered = {name: len(usable[name]) / max(len(sides[name]), 1) for name in sides}
    numbers: dict[str, float] = {"tasks": float(len(both))} | {f"{name}_usable": share for name, share in covered.items()}
    if min(covered.values()) < COVERAGE or covered["canary"] < covered["control"] - INFRA:
        return Stage("canary", None, f"{covered['canary']:.0%} of the canary's and {covered['control']:.0%} of the "
                     f"control's episodes are usable; needed: {COVERAGE:.0%}, and the canary's at most {INFRA:.0%} lower",
                     numbers)
    cut = {(record["task"], record["seed"]): len(record["turns"]) for record in usable["control"] if record["stop"] in CUT}
    found = {name: _rates(side, cut) for name, side in usable.items()}
    numbers |= {f"{name}_{what}": value for name, rates in found.items() for what, value in rates.items()}
    complaints = _risen(found, len(usable["canary"]))
    gap, error = _gap(usable["canary"], usable["control"])
    numbers |= {"success_gap": gap, "success_error": error}
    if gap < -max(SUCCESS, ERRORS * error):
        complaints.append(f"success is {-gap:.2f} lower than the control's; allowed: {max(SUCCESS, ERRORS * error):.2f}")
    if found["canary"]["turns"] < TURNS * found["control"]["turns"] and gap <= 0:
        complaints.append(f"episodes have {found['canary']['turns']:.1f} turns instead of {found['control']['turns']:.1f} "
                          f"and succeed no more often; allowed: {TURNS:.0%} of the control's")
    return verdict("canary", complaints, numbers)


def _rates(records: Sequence[Record], cut: Mapping[tuple[str, int], int]) -> dict[str, float]:
    """Of one side; `cut` has the turns after which the control's episode of a task and seed was cut."""
    turns = [turn for record in records for turn in record["turns"]]
    limits = [cut.get((record["task"], record["seed"]), len(record["turns"])) for record in records]
    broken = (StopReason.PARSE_ERROR.value, StopReason.TOOL_ERROR.value)
    return {"success": _mean(record["success"] for record in records),
            "turns": _mean(len(record["turns"]) for record in records),
            "parse_error_rate": _mean(turn["parse_failed"] for record, limit in zip(records, limits, strict=True)
                                      for turn in record["turns"][:limit]),
            "broken_rate": _mean(record["stop"] in broken and len(record["turns"]) <= limit
                                 for record, limit in zip(records, limits, strict=True)),
            "leak_rate": _mean(turn["leaked"] for turn in turns if turn["spoke"] not in ("none", "tool"))}


def _risen(found: Mapping[str, Mapping[str, float]], count: int) -> list[str]:
    complaints = []
    for what, words, room in (("parse_error_rate", "unreadable messages", PARSE),
                              ("broken_rate", "episodes ended by errors", BROKEN),
                              ("leak_rate", "replies that leak", LEAKS)):
        before, after = found["control"][what], found["canary"][what]
        allowed = before + max(room, ERRORS * (before * (1 - before) / count) ** 0.5)
        if after > allowed:
            complaints.append(f"the share of {words} is {after:.3f}, the control's {before:.3f}; allowed: {allowed:.3f}")
    return complaints


def _gap(canary: Sequence[Record], control: Sequence[Record]) -> tuple[float, float]:
    """Canary's success less control's, mean over tasks, and its standard error."""
    means = [_by_task(canary), _by_task(control)]
    gaps = np.array([means[0][task] - means[1][task] for task in sorted(means[0].keys() & means[1].keys())])
    return float(gaps.mean()), float(gaps.std(ddof=1) / len(gaps) ** 0.5) if len(gaps) > 1 else 0.5


def _by_task(records: Sequence[Record]) -> dict[str, float]:
    tasks: dict[str, list[bool]] = {}
    for record in records:
        tasks.setdefault(record["task"], []).append(record["success"])
    return {task: float(np.mean(found)) for task, found in tasks.items()}


def _mean(values: Iterable[float]) -> float:
    values = [float(value) for value in values]
    return sum(values) / len(values) if values else 0.0
