"""How far a change reaches, seen on recorded episodes: what the agent said then is said again, to the user as it is and to
the user as it would be.

The agent's part is fixed, so only differences of the user and the environment show: other decisions, values told earlier or
later, other ends. After the first difference the agent might have said something else; the share of such turns is reported.
"""

from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from eau_jax.core.part import Act
from eau_jax.envs.message import said
from eau_jax.meta.lanes import Lanes, Moved, recorded_act
from eau_jax.meta.stage import Stage, verdict
from eau_jax.users.rules import compile_rules

BLAST = 0.30        # share of turns that a change may make different
ENOUGH = 16         # episodes that a replay needs; with fewer it cannot be told
CORRELATION = 0.02  # by how much the rank correlation of return and success may fall
Record = Mapping[str, Any]


class Settings(NamedTuple):
    """What an episode is replayed under."""

    knobs: Any     # {"env", "user", "rl"}
    rules: str     # TOML


class Heard(NamedTuple):
    """One replayed turn, as far as the agent or the record can tell it from another."""

    reply: int     # the user's decision
    code: int      # the environment's answer
    disclosed: int
    done: bool


class Replayed(NamedTuple):
    """One episode under one setting; it may be shorter than the record, never longer."""

    turns: tuple[Heard, ...]
    total: float   # undiscounted return
    stop: int      # as in TimeStep; 0: the record ended first


def replay(lanes: Lanes, settings: Settings, records: Sequence[Record]) -> list[Replayed]:
    """The recorded agent turns, said again. A host world reads the words again; in others the recorded acts are used."""
    rules = compile_rules(settings.rules, lanes.simulator.env.features)
    rows = {task.id: row for row, task in enumerate(lanes.simulator.tasks)}
    parts = [records[start:start + lanes.size] for start in range(0, len(records), lanes.size)]
    return [episode for part in parts for episode in _replay(lanes, settings.knobs, rules, part, rows)]


def replayable(lanes: Lanes, records: Sequence[Record]) -> list[Record]:
    """The records of usable episodes of this simulator's tasks."""
    known = {task.id for task in lanes.simulator.tasks}
    return [record for record in records if record["turns"] and record["stop"] != "infra_error" and record["task"] in known]


def blast(old: Sequence[Replayed], new: Sequence[Replayed], own: Sequence[Replayed], allowed: float = BLAST) -> Stage:
    """The share of turns that would be different may not exceed `allowed`.

    Args:
      old, new: the same episodes under the current and the candidate settings.
      own: under the environment's own rules and knobs. A turn that becomes what it is there is no harm: that is how a fault
        of the settings is mended.
    """
    if len(old) < ENOUGH:
        return Stage("replay", None, f"{len(old)} recorded episodes can be replayed; {ENOUGH} are needed",
                     {"episodes": len(old)})
    turns = changed = counted = after = early = 0
    shift: list[float] = []
    for before, behind, home in zip(old, new, own, strict=True):
        length = max(len(before.turns), len(behind.turns))
        differs = [_at(before, turn) != _at(behind, turn) for turn in range(length)]
        turns, changed = turns + length, changed + sum(differs)
        counted += sum(differs[turn] and _at(behind, turn) != _at(home, turn) for turn in range(length))
        after += length - 1 - differs.index(True) if any(differs) else 0
        early += len(behind.turns) < len(before.turns)
        shift += _shift(before, behind)
    share = counted / max(turns, 1)
    numbers = {"episodes": len(old), "turns": turns, "changed_share": changed / max(turns, 1), "counted_share": share,
               "invalidated_share": after / max(turns, 1), "ended_earlier_share": early / len(old),
               "disclosure_shift": float(np.mean(shift)) if shift else 0.0,
               "other_stop_share": float(np.mean([a.stop != b.stop for a, b in zip(old, new, strict=True)]))}
    complaint = f"{share:.0%} of {turns} recorded turns would be different; allowed: {allowed:.0%}. Make a smaller change"
    return verdict("replay", [complaint] if share > allowed else [], numbers)


def rewards(old: Sequence[Replayed], new: Sequence[Replayed], success: Sequence[bool]) -> Stage:
    """After a change of rewards, returns must still tell success from failure, or tell it better than before.

    Args:
      success: [episodes] the recorded outcome, as the verifier saw it.
    """
    won = np.asarray(success, bool)
    numbers: dict[str, Any] = {"episodes": len(won), "successes": int(won.sum())}
    if len(won) < ENOUGH or not 2 <= won.sum() <= len(won) - 2:
        return Stage("rewards", None, f"{int(won.sum())} of {len(won)} replayed episodes succeeded; {ENOUGH} are needed, "
                     f"with at least 2 successes and 2 failures among them", numbers)
    before, after = (np.array([episode.total for episode in episodes]) for episodes in (old, new))
    numbers |= {"correlation_before": rank_correlation(before, won), "correlation_after": rank_correlation(after, won),
                "return_of_successes": float(after[won].mean()), "return_of_failures": float(after[~won].mean())}
    complaints = []
    if numbers["correlation_after"] < numbers["correlation_before"] - CORRELATION:
        complaints.append(f"the rank correlation of return and success falls from {numbers['correlation_before']:.2f} to "
                          f"{numbers['correlation_after']:.2f}; allowed: a fall of {CORRELATION}")
    gap = [float(total[won].mean() - total[~won].mean()) for total in (before, after)]
    if not gap[1] > min(gap[0], 0.0):   # a step out of a faulty reward may be too short to mend it at once
        complaints.append(f"failed episodes would earn {numbers['return_of_failures']:.3f} on average, successful ones "
                          f"{numbers['return_of_successes']:.3f}; failures must earn less")
    return verdict("rewards", complaints, numbers)


def rank_correlation(left: np.ndarray, right: np.ndarray) -> float:
    """Spearman's, ties share their mean rank; 0 where one side is constant.  [N], [N] -> -1..1"""
    left, right = _ranks(left), _ranks(right)
    left, right = left - left.mean(), right - right.mean()
    size = np.sqrt((left ** 2).sum() * (right ** 2).sum())
    return float((left * right).sum() / size) if size > 0 else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(np.asarray(values, float).round(6), return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def _replay(lanes: Lanes, knobs: Any, rules: Any, records: Sequence[Record], rows: Mapping[str, int]) -> list[Replayed]:
    indices, seeds = [rows[record["task"]] for record in records], [record["seed"] for record in records]
    states = lanes.begin(knobs, indices, seeds)
    heard: list[list[Heard]] = [[] for _ in records]
    totals, stops = [0.0] * len(records), [0] * len(records)
    for turn in range(max(len(record["turns"]) for record in records)):
        acts = {lane: _act(lanes, record["turns"][turn], indices[lane], states[lane]) for lane, record in enumerate(records)
                if turn < len(record["turns"]) and not stops[lane]}
        for lane, moved in lanes.step(knobs, rules, states, acts, seeds, turn).items():
            states[lane], stops[lane] = moved.state, int(moved.time_step.stop)
            totals[lane] += float(moved.time_step.reward)
            heard[lane].append(_heard(moved))
    return [Replayed(tuple(turns), total, stop) for turns, total, stop in zip(heard, totals, stops, strict=True)]


def _act(lanes: Lanes, turn: Record, index: int, state: Any) -> Act:
    env = lanes.simulator.env
    return env.parse(lanes.simulator.tasks[index], said(turn["agent"]), state) if env.host else recorded_act(turn["act"])


def _heard(moved: Moved) -> Heard:
    step = moved.time_step
    return Heard(moved.reply, int(step.code), int(step.disclosed), bool(step.done))


def _at(episode: Replayed, turn: int) -> Heard | None:
    return episode.turns[turn] if turn < len(episode.turns) else None


def _shift(before: Replayed, behind: Replayed) -> list[float]:
    """By how many turns later each value is told that is told in both."""
    times = []
    for episode in (before, behind):
        first: dict[int, int] = {}
        for turn, heard in enumerate(episode.turns):
            for slot in range(32):
                if heard.disclosed >> slot & 1:
                    first.setdefault(slot, turn)
        times.append(first)
    return [float(times[1][slot] - turn) for slot, turn in times[0].items() if slot in times[1]]
