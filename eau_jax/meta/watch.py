"""After a change: must it be taken back at once, has it hurt, has it done what was predicted? Pure functions of rows.

A row is a line of metrics.jsonl: {"step": 12, "generation": 3, "rollout/success_rate": 0.4, ...}; what is missing, None or
nan was not measured. `since` is the first update under the change.
"""

import hashlib
import math
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

from eau_jax.meta.proposal import Prediction
from eau_jax.meta.stage import Stage

BEFORE, AFTER = 10, 5      # updates that are compared
INFRA = 0.02               # share of unusable episodes
LEAKS = 0.01               # rise of the share of replies that leak
PARSE = 0.10               # rise of the share of unreadable messages
KL = 0.05                  # nats per token, between the policy before and after an update
RATIO = 2.0                # mean importance ratio, or its inverse
JUMP = 3.0                 # standard deviations of the mean return
FLAT = 0.02                # rise of the success rate that counts as none
DROP, ERRORS = 0.10, 2.5   # of success: absolute, and in standard errors; the larger counts
FLOOR = 0.9                # quantile of the differences between windows without a change
OUTSIDE = ("infra", "leak")      # what a policy is not the worse for
TRIAL, TRIAL_AFTER = 0.5, 3      # of a change that no canary has shown: share of the room, updates that are judged
GRADIENT, ENTROPY = 5.0, 0.5     # of such a change: as a multiple of what they were
WORN = 1.5                 # standard errors by which success has fallen where large steps have worn the policy
LOCK = 50                  # updates for which a move is locked after two rollbacks
Row = Mapping[str, Any]
ON_TRIAL = Stage(
    "canary", None, f"no conversation depends on what it changes, so episodes would show nothing: it is adopted on trial. "
    f"It is taken back at {TRIAL:.0%} of the usual rise of KL or ratio, at {GRADIENT:g} times the gradient, at "
    f"{ENTROPY:.0%} of the entropy, or when success has dropped after {TRIAL_AFTER} updates",
    {"kl": KL * TRIAL, "ratio": 1 + (RATIO - 1) * TRIAL, "gradient": GRADIENT, "entropy": ENTROPY, "updates": TRIAL_AFTER})
AT_ONCE = Stage("canary", None, "no conversation depends on what it changes, so episodes would show nothing, and it only "
                "makes learning more careful: it is adopted at once")


class Anchor(NamedTuple):
    """Success on the anchor tasks, which are played under the first generation's settings."""

    step: int
    success: float
    episodes: int


class Trigger(NamedTuple):
    """Why a change is taken back."""

    name: str
    reason: str
    hard: bool     # at once
    damage: bool   # to the policy itself: its weights go back too


class Verdict(NamedTuple):
    """What a change was worth by its own prediction."""

    result: str    # "helpful" | "harmful" | "indecisive"
    reason: str
    before: float
    after: float
    floor: float   # how far the metric moves without a change


class Past(NamedTuple):
    """One adopted change that is over."""

    step: int              # the update at which it was adopted
    moves: tuple[str, ...]
    rolled_back: int = 0   # the update at which it was taken back; 0: it was not


def hard(rows: Sequence[Row], since: int, rewards_changed: bool = False, trial: bool = False) -> list[Trigger]:
    """What forbids to go on with a change, seen in the updates under it.

    What was as bad before the change is no trigger: a change is often made because of it.

    Args:
      rewards_changed: the change moves what rewards mean, so returns before and after do not compare.
      trial: no canary could show what it does; KL and ratio have half the room, and gradients and entropy are watched too.
    """
    earlier, later = _split(rows, since)
    found, room = [], TRIAL if trial else 1.0
    for name in sorted({name for row in later for name in row if name.endswith(("_loss", "_grad_norm"))}):
        if any(name in row and not _finite(row[name]) for row in later) and _series(earlier, name).size:
            found.append(Trigger("nan", f"{name} is not finite", True, True))
    ratio = lambda row: math.exp(abs(math.log(max(_value(row, "learn/ratio"), 1e-6))))
    for name, read, limit, rise, words in (
            ("infra", _reader("rollout/infra_rate"), INFRA, INFRA, "episodes that failed outside the agent's control"),
            ("leak", _reader("rollout/leak_rate"), LEAKS, LEAKS, "replies that leak"),
            ("parse", _reader("rollout/parse_error_rate"), PARSE, PARSE, "unreadable messages"),
            ("kl", kl_of, KL * room, KL / 2 * room, "the KL of an update"),
            ("ratio", ratio, 1 + (RATIO - 1) * room, RATIO / 2 * room, "the mean ratio, or its inverse")):
        before, after = _numbers(map(read, earlier)), _numbers(map(read, later))
        usual = float(before.mean()) if before.size else 0.0
        noise = 3 * float(before.std(ddof=1)) / max(after.size, 1) ** 0.5 if before.size > 1 else 0.0
        if after.size and after.mean() > max(limit, usual + max(rise, noise)):
            found.append(Trigger(name, f"{words}: {after.mean():.3g} since update {since}, {usual:.3g} before; "
                                       f"allowed: {max(limit, usual + max(rise, noise)):.3g}", True, name not in OUTSIDE))
    found += _learning(earlier, later, since) if trial else []
    return found + ([] if rewards_changed else _jump(earlier, later, since))


def undamaged(rows: Sequence[Row], worn: int, every: int, keep: int) -> int:
    """The update whose weights a policy goes back to that steps too large have worn: the newest of the last `keep`
    checkpoints, one every `every` updates, from before update `worn`. 0: there is none, or success has not fallen since, by
    more than WORN standard errors against the BEFORE updates before it."""
    last = int(rows[-1]["step"]) if rows else 0
    newest = (worn - 1) // every * every
    if newest < 1 or newest <= last - keep * every:
        return 0
    sides = [[Anchor(row["step"], row["rollout/success_rate"], int(_value(row, "rollout/episodes")))
              for row in side if _finite(row.get("rollout/success_rate"))]
             for side in ([row for row in rows if row["step"] < worn][-BEFORE:], [row for row in rows if row["step"] >= worn])]
    if not all(sides):
        return 0
    (before, error_before), (after, error_after) = map(_rate, sides)
    return newest if before - after > WORN * math.hypot(error_before, error_after) else 0


def _learning(earlier: Sequence[Row], later: Sequence[Row], since: int) -> list[Trigger]:
    """Gradients and entropy, of a change that no canary has shown."""
    found = []
    before, after = (_series(side, "learn/policy_grad_norm") for side in (earlier, later))
    if before.size and after.size and after.mean() > GRADIENT * np.median(before) > 0:
        found.append(Trigger("gradient", f"the gradient's norm is {after.mean():.3g} since update {since}, "
                             f"{np.median(before):.3g} before; allowed: {GRADIENT:g} times that", True, True))
    before, after = (_series(side, "learn/entropy") for side in (earlier, later[-2:]))
    if before.size and after.size and 0 <= after.mean() < ENTROPY * before.mean():
        found.append(Trigger("entropy", f"entropy is {after.mean():.3g} since update {since}, {before.mean():.3g} before; "
                                        f"allowed: {ENTROPY:.0%} of that", True, True))
    return found


def _jump(earlier: Sequence[Row], later: Sequence[Row], since: int) -> list[Trigger]:
    """Returns that jump while success stays where it was."""
    before, after = _series(earlier, "rollout/return_mean"), _series(later, "rollout/return_mean")
    if before.size < 5 or after.size < 2:
        return []
    rise = after.mean() - before.mean()
    gained = _series(later, "rollout/success_rate").mean() - _series(earlier, "rollout/success_rate").mean()
    if rise > max(JUMP * before.std(ddof=1), 1e-6) and gained < FLAT:
        return [Trigger("reward_jump", f"the mean return rose by {rise:.3g} since update {since}, {JUMP:g} standard "
                        f"deviations are {JUMP * before.std(ddof=1):.3g}, while success rose by {gained:.3f}", True, True)]
    return []


def soft(rows: Sequence[Row], since: int, anchor: Sequence[Anchor] = (), trial: bool = False) -> Trigger | None:
    """A drop of success: AFTER updates under the change, TRIAL_AFTER of one on trial, against the BEFORE updates before it.

    The anchor tasks decide when they were played on both sides: training success does not compare when a change makes the
    task harder. They are played under the first settings, so that their drop is the policy's own.
    """
    least = TRIAL_AFTER if trial else AFTER
    sides = [[a for a in anchor if since - BEFORE <= a.step < since], [a for a in anchor if since <= a.step]]
    name = "anchor success"
    if not all(sides):
        name, (earlier, later) = "success", _split(rows, since)
        if len(later) < least:
            return None
        sides = [[Anchor(row["step"], row["rollout/success_rate"], int(_value(row, "rollout/episodes")))
                  for row in side if _finite(row.get("rollout/success_rate"))] for side in (earlier, later[-least:])]
        if not all(sides):
            return None
    (before, error_before), (after, error_after) = map(_rate, sides)
    allowed = max(DROP, ERRORS * math.hypot(error_before, error_after))
    if before - after <= allowed:
        return None
    return Trigger("success_drop", f"{name} fell from {before:.3f} to {after:.3f}; allowed: a fall of {allowed:.3f}", False,
                   name == "anchor success")


def judge(rows: Sequence[Row], since: int, prediction: Prediction, anchor: Sequence[Anchor] = (),
          trial: bool = False) -> Verdict:
    """Whether the predicted metric moved as predicted, beyond what it moves anyway.

    The last AFTER of the `within_updates` updates under the change against the BEFORE updates before it, or those of them
    that have the last one's generation. A drop of success makes any change harmful.
    """
    earlier, later = _split(rows, since)
    later = [row for row in later if row["step"] < since + prediction.within_updates][-AFTER:]
    before, after = _series(earlier, prediction.metric), _series(later, prediction.metric)
    floor = noise_floor([row for row in rows if row["step"] < since], prediction.metric, then=max(len(later), 1))
    fell = soft(rows, since, anchor, trial)
    numbers = (float(before.mean()) if before.size else math.nan, float(after.mean()) if after.size else math.nan, floor)
    if fell is not None:
        return Verdict("harmful", fell.reason, *numbers)
    if before.size < 2 or not after.size:
        return Verdict("indecisive", f"{prediction.metric} was measured in {before.size} updates before and {after.size} "
                                     f"after; needed: 2 and 1", *numbers)
    needed = max(prediction.min_effect, floor)
    effect = (numbers[1] - numbers[0]) * (1 if prediction.direction == "up" else -1)
    said = (f"{prediction.metric} went from {numbers[0]:.4g} to {numbers[1]:.4g}; predicted: {prediction.direction} by "
            f"{prediction.min_effect:g}, without a change it moves by {floor:.3g}")
    return Verdict("helpful" if effect >= needed else "harmful" if effect <= -needed else "indecisive", said, *numbers)


def noise_floor(rows: Sequence[Row], metric: str, first: int = BEFORE, then: int = AFTER) -> float:
    """How far a metric moves between two neighbouring windows with no change between or in them: a high quantile.

    With fewer than five such pairs, twice the standard error of a difference of two windows.
    """
    gaps = []
    for cut in range(first, len(rows) - then + 1):
        window = rows[cut - first:cut + then]
        if len({row.get("generation") for row in window}) == 1:
            left, right = _series(window[:first], metric), _series(window[first:], metric)
            gaps += [abs(float(right.mean() - left.mean()))] if left.size and right.size else []
    if len(gaps) >= 5:
        return float(np.quantile(gaps, FLOOR))
    values = _series(_alike(rows), metric)
    return 2 * float(values.std(ddof=1)) * math.sqrt(1 / first + 1 / then) if values.size > 1 else 0.0


def moves(changes: Mapping[str, Sequence[float]], rules: str, task_mix: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """What a change moves and whither: "env.max_turns up", "rules 3fa9...", "task_mix hard down".

    Args:
      changes, task_mix: {name: [old, new]}.
      rules: the new rules as `users.rules.dump` writes them, so that other notes are no other rules; "": they stay.
    """
    steps = [f"{prefix}{name} {'up' if new > old else 'down'}"
             for prefix, pairs in (("", changes), ("task_mix ", task_mix)) for name, (old, new) in pairs.items()]
    return (*steps, *([f"rules {hashlib.sha256(rules.encode()).hexdigest()[:16]}"] if rules else []))


def lockouts(past: Sequence[Past]) -> dict[str, int]:
    """{move: the first update at which it is allowed again} for moves that were taken back twice."""
    found: dict[str, list[int]] = {}
    for change in past:
        for move in change.moves if change.rolled_back else ():
            found.setdefault(move, []).append(change.rolled_back)
    return {move: sorted(steps)[-1] + LOCK for move, steps in found.items() if len(steps) >= 2}


def cooldowns(past: Sequence[Past], updates: int) -> dict[str, int]:
    """{what: the first update at which it may change again}: a knob's path, "rules" or "task_mix", after its last change."""
    found: dict[str, int] = {}
    for change in past:
        for move in change.moves:
            what = move.split(" ")[0]
            found[what] = max(found.get(what, 0), max(change.step, change.rolled_back) + updates)
    return found


def _split(rows: Sequence[Row], since: int) -> tuple[list[Row], list[Row]]:
    """The last BEFORE rows before an update, and all from it on."""
    return _alike([row for row in rows if row["step"] < since]), [row for row in rows if row["step"] >= since]


def _alike(rows: Sequence[Row]) -> list[Row]:
    """The last BEFORE rows; where AFTER or more of them have the newest one's generation, only those: the others were played
    under other settings."""
    newest = list(rows[-BEFORE:])
    same = [row for row in newest if row.get("generation") == newest[-1].get("generation")]
    return same if len(same) >= AFTER else newest


def _rate(side: Sequence[Anchor]) -> tuple[float, float]:
    """Mean and standard error of success; the larger of the binomial one and the one seen between updates."""
    weights = np.array([max(a.episodes, 1) for a in side], float)
    values = np.array([a.success for a in side], float)
    mean = float((weights * values).sum() / weights.sum())
    seen = float(values.std(ddof=1)) / math.sqrt(len(side)) if len(side) > 2 else 0.0
    return mean, max(math.sqrt(mean * (1 - mean) / weights.sum()), seen)


def _series(rows: Sequence[Row], name: str) -> np.ndarray:
    return _numbers(row.get(name) for row in rows)


def _numbers(values: Any) -> np.ndarray:
    return np.array([value for value in values if _finite(value)], float)


def _reader(name: str) -> Callable[[Row], float]:
    return lambda row: _value(row, name)


def kl_of(row: Row) -> float:
    """KL of an update in nats per token: the larger of those between its steps and over all of it; nan where neither is."""
    return max(filter(_finite, (abs(_value(row, "learn/approx_kl")), _value(row, "learn/update_kl"))), default=math.nan)


def _value(row: Row, name: str) -> float:
    return float(row[name]) if _finite(row.get(name)) else math.nan


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
