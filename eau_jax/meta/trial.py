"""What records say of changes that no conversation depends on, before they are adopted on trial: the size of the learner's
steps, and the shares of the tasks."""

import math
from typing import Any, Mapping, Sequence

import numpy as np

from eau_jax.meta import watch
from eau_jax.meta.stage import Stage, verdict

RECENT = 5              # updates whose steps are looked at
ROOM, ERRORS = 0.02, 2.0   # by which the share of groups that teach something may fall, absolute and in standard errors
RATE = "rl.policy_optimizer.learning_rate"
CAREFUL = {"learning_rate": -1, "entropy.coef": 1, "kl.coef": 1, "clip_low": 0, "clip_high": 0}
"""Ends of knobs' names, and the direction in which each makes learning more careful; 0: a clip range counts either way, for
a narrower one makes smaller steps and a wider one keeps entropy."""
Row = Mapping[str, Any]


def careful(changes: Mapping[str, float], values: Mapping[str, float]) -> bool:
    """Whether a change only makes learning more careful: smaller steps, more entropy, nearer to the reference, another
    clip range. What goes wrong soon after one is the fault that it is made against, so such a change gets the usual room and
    time."""
    ways = {path: next((way for end, way in CAREFUL.items() if path.endswith(f".{end}")), None) for path in changes}
    return all(way is not None and (changes[path] - values[path]) * way >= 0 for path, way in ways.items())


def steps(changes: Mapping[str, float], values: Mapping[str, float], rows: Sequence[Row]) -> Stage:
    """Whether a higher learning rate would move the policy too far.

    For a small step the KL of an update grows with the square of the rate, so it is told from that of the last updates. Of
    other settings of learning nothing can be told from records.

    Args:
      changes: {knob: new value}.
      values: {knob: value in force}.
      rows: of metrics.jsonl.
    """
    if RATE not in changes:
        return Stage("steps", None, "records tell nothing of these settings; the first updates will")
    known = [kl for kl in map(watch.kl_of, rows[-RECENT:]) if math.isfinite(kl)]
    if not known or values[RATE] <= 0:
        return Stage("steps", None, "how far updates move the policy was not measured")
    factor = changes[RATE] / values[RATE]
    now = float(np.mean(known))
    then, most = now * factor**2, watch.KL * watch.TRIAL
    numbers = {"kl": now, "expected_kl": then, "limit": most}
    said = (f"updates move the policy by a KL of {now:.3g}, and {factor:g} times the learning rate would by about "
            f"{then:.3g}; allowed: {most:g}")
    return verdict("steps", [said] if factor > 1 and then > most else [], numbers)


def shares(old: Mapping[str, float], new: Mapping[str, float], bucket: Mapping[str, str], episodes: Sequence[Row]) -> Stage:
    """Whether another mix of tasks has fewer groups that teach something: episodes of one task in one update whose scores
    differ.

    Args:
      old, new: {bucket: share}.
      bucket: {task: its bucket}.
      episodes: recent records of episodes/<step>.jsonl, with their "step".
    """
    scores: dict[tuple[str, int], list[float]] = {}
    for record in episodes:
        if record["stop"] != "infra_error":
            scores.setdefault((record["task"], record["step"]), []).append(record["score"])
    seen: dict[str, list[bool]] = {name: [] for name in new}
    for (task, _), found in scores.items():
        if len(found) > 1 and bucket.get(task) in seen:
            seen[bucket[task]].append(max(found) - min(found) > 1e-6)
    few = [name for name, groups in seen.items() if len(groups) < 2 and new[name] > old[name]]
    if few:
        return Stage("shares", None, f"too few recent groups of {few[0]!r} to tell what more of its tasks would teach")
    useful = {name: float(np.mean(groups)) if groups else 0.0 for name, groups in seen.items()}
    before, after = (math.fsum(mix[name] * useful[name] for name in new) for mix in (old, new))
    error = math.sqrt(math.fsum((new[name] - old[name])**2 * useful[name] * (1 - useful[name]) / max(len(seen[name]), 1)
                                for name in new))
    allowed = max(ROOM, ERRORS * error)
    said = (f"of the recent groups a share of {before:.3f} teaches something, with this mix {after:.3f} would; allowed: a "
            f"fall of {allowed:.3f}")
    numbers = {"before": before, "after": after, "error": error}
    return verdict("shares", [said] if before - after > allowed else [],
                   numbers | {f"useful_{name}": value for name, value in useful.items()})
