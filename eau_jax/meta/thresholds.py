"""The limits of the detectors and of the causal tests: defaults, what a run without faults makes of them, and their file."""

import json
import math
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from eau_jax.core.knobs import nearest
from eau_jax.core.records import write_atomic
from eau_jax.meta.signals import DETECTORS, Rows, strengths

WINDOWS = 5      # values that a limit needs to be calibrated
SPREADS = 4.0    # standard deviations above the mean of a run without faults
TESTS = {        # limits of `causal.py`
    "gold_success": 0.99,     # success that the environment's own script must reach
    "idle_success": 0.1,      # and that an agent which does nothing must not
    "repeat_differs": 0.0,    # share of repetitions that may differ
    "symbolic_change": 0.15,  # change of success or score without the user in question
    "more_turns": 0.2,        # share of cut episodes that succeed with more turns
    "turns_gain": 0.1,        # by how much success may rise with more turns, of all episodes
}
DEFAULTS: Mapping[str, float] = {detector.name: detector.limit for detector in DETECTORS} | TESTS


class ThresholdError(ValueError):
    """Limits that cannot be used."""


def calibrate(rows: Rows, limits: Mapping[str, float] = DEFAULTS) -> dict[str, float]:
    """Limits widened by A/A logging: no fault was there in `rows`, so what they show is no alarm.

        limit = max(limit, mean + 4 standard deviations)    and the mirror image where an alarm lies below

    over the values on which alarms are decided, one for each update of the run. A limit is only ever widened; one of which
    fewer than 5 values are known stays, and so do those of infrastructure and of the causal tests.

    Raises:
      ThresholdError: when there are fewer rows than that.
    """
    if len(rows) < WINDOWS:
        raise ThresholdError(f"{len(rows)} updates are too few to calibrate limits; give at least {WINDOWS} of a run "
                             f"without faults")
    out = dict(limits)
    for detector in DETECTORS:
        values = [strengths(detector, rows[:end]) for end in range(1, len(rows) + 1)]
        values = [value for value in values if math.isfinite(value)]
        if detector.calibrated and len(values) >= WINDOWS:
            wide = SPREADS * float(np.std(values))
            out[detector.name] = (min(out[detector.name], float(np.mean(values)) - wide) if detector.below else
                                  max(out[detector.name], float(np.mean(values)) + wide))
    return out


def save(path: Path, limits: Mapping[str, float], env: str) -> None:
    """Writes the limits of one environment as JSON."""
    write_atomic(path, json.dumps({"env": env, "limits": dict(limits)}, indent=1) + "\n")


def load(path: Path, env: str) -> dict[str, float]:
    """The limits of a file that `save` wrote; what it does not name has its default.

    Raises:
      ThresholdError: names the file, what is wrong with it and what is allowed.
    """
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        given, owner = document["limits"], document["env"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ThresholdError(f"{path}: cannot be read as limits ({error!r}); it must hold an object of env (a name) and "
                             f"limits (numbers by name)") from None
    if owner != env:
        raise ThresholdError(f"{path}: these are limits of the environment {owner!r}, not of {env!r}; calibrate some for it")
    for name, value in given.items():
        if name not in DEFAULTS:
            raise ThresholdError(f"{path}: unknown limit {name!r}{nearest(name, DEFAULTS)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ThresholdError(f"{path}: {name} is {value!r}; it must be a number")
    return {**DEFAULTS, **given}
