"""What came out of an evaluation, from the lines of its episodes: the one place where its numbers are made."""

import collections
import math
from typing import Any, Mapping, Sequence

import numpy as np

from eau_jax.core.records import plain
from eau_jax.core.types import StopReason
from eau_jax.eval import numbers

_NUMBER = (int, float, type(None))
_TURN = {"agent": str, "reply": str, "reward": _NUMBER, "spoke": str, "ended": str, "judged": bool, "unreadable": bool,
         "leaked": bool}
# Of a line of episodes.jsonl, for `check`.
EPISODE = {"bench": str, "row": int, "repeat": int, "usable": bool, "task": str, "content": str, "score": _NUMBER,
           "metric": _NUMBER, "success": bool, "return": _NUMBER, "stop": str, "error": str, "trials": int,
           "effective_turns": _NUMBER, "time_weighted": _NUMBER, "turns": [_TURN]}


def summarise(benches: Mapping[str, bool], repeats: int, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """{"results": by benchmark, "averages": of score, metric and success over the benchmarks that count}.

    Args:
      benches: {name: whether it counts in the averages}.
      repeats: episodes per task.
      lines: of episodes.jsonl, in any order of the episodes; the last line of an episode counts.
    """
    results = {name: _result([line for line in lines if line["bench"] == name], repeats) for name in benches}
    counted = [name for name, averaged in benches.items() if averaged]   # one without a usable episode makes them nan
    counts = {name: results[name]["tasks"] for name in counted}
    return {"results": results, "averages": {
        what: numbers.averages({name: results[name][what]["mean"] for name in counted}, counts)
        for what in ("score", "metric", "success")}}


def _result(lines: list[Mapping[str, Any]], repeats: int) -> dict[str, Any]:
    """Statistics of one benchmark. The last line of an episode counts: an earlier one of it failed outside the agent."""
    last = dict(sorted({(line["row"], line["repeat"]): line for line in lines}.items()))
    usable = [line for line in last.values() if line["usable"]]
    by_task: dict[int, list[Mapping[str, Any]]] = {}
    for line in usable:
        by_task.setdefault(line["row"], []).append(line)
    mean = lambda name: float(np.mean([_number(line[name]) for line in usable])) if usable else float("nan")
    failed = [line["error"] for line in last.values() if not line["usable"]]
    out: dict[str, Any] = {"tasks": len(by_task), "episodes": len(usable), "infra_errors": len(failed),
                           "first_error": failed[0] if failed else None}
    for what in ("score", "metric", "success"):
        values = [float(np.mean([_number(line[what]) for line in group])) for group in by_task.values()]
        out[what] = numbers.bootstrap(values)._asdict() | {"standard_error": numbers.standard_error(values)}
    successes, trials = [sum(map(lambda line: bool(line["success"]), group)) for group in by_task.values()], \
        [len(group) for group in by_task.values()]
    out["pass^k"] = {str(k): numbers.pass_hat(successes, trials, k) for k in range(1, repeats + 1)}
    out["best_of_k"] = float(np.mean([max(_number(line["metric"]) for line in group) for group in by_task.values()])) \
        if by_task else float("nan")
    turns = [len(line["turns"]) for line in usable]
    return out | _counts(usable) | {
        "turns": float(np.mean(turns)) if turns else float("nan"), "return": mean("return"),
        "effective_turns": mean("effective_turns"), "time_weighted": mean("time_weighted"), "trials": mean("trials")}


def _counts(usable: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What happened in the usable episodes.

    Episodes: truncated by a full context or token budget, and why the first was; with an agent message that was cut off;
    with one that was filtered. Agent messages: without a word; whose act or verdict the judge decided; of which its answer
    could not be read. Replies: by who spoke ("draft": in place of an LLM user's that would not do); that told a secret and
    were replaced.
    """
    turns = [turn for line in usable for turn in line["turns"]]
    truncated = [line for line in usable if line["stop"] == StopReason.MAX_TOKENS.value]
    ended = lambda how: sum(any(turn["ended"] == how for turn in line["turns"]) for line in usable)
    return {"truncated": len(truncated), "first_truncated": next((line["error"] or None for line in truncated), None),
            "cut": ended("length"), "filtered": ended("filtered"),
            "empty": sum(not turn["agent"].strip() for turn in turns),
            "judged": sum(turn["judged"] for turn in turns), "unreadable": sum(turn["unreadable"] for turn in turns),
            "spoke": dict(sorted(collections.Counter(turn["spoke"] for turn in turns).items())),
            "leaked": sum(turn["leaked"] for turn in turns)}


def _number(value: Any) -> float:
    """As a record writes it: nan is None there."""
    return float("nan") if value is None else float(value)


def disagreement(record: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """The first number of a record that its episodes do not give, as words; "" where all agree."""
    benches = {name: bench["averaged"] for name, bench in record["benches"].items()}
    made = plain(summarise(benches, record["repeats"], lines))
    return next(filter(None, (_differing(record[part], made[part], part) for part in made)), "")


def _differing(stored: Any, made: Any, where: str) -> str:
    if isinstance(stored, Mapping) and isinstance(made, Mapping):
        parts = (_differing(stored.get(name), made.get(name), f"{where}: {name}") for name in {**made, **stored})
        return next(filter(None, parts), "")
    both = [isinstance(value, (int, float)) for value in (stored, made)]
    same = math.isclose(stored, made, rel_tol=1e-6, abs_tol=1e-9) if all(both) else stored == made
    return "" if same else f"{where} is {stored!r:.80}, and the episodes give {made!r:.80}"
