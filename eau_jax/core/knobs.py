"""Knobs: bounded numbers that may change while training runs, without recompiling.

A part declares a knob in one line of a `flax.struct` dataclass:

    gamma: float = knob(1.0, 0.0, 1.0, "discount per action")

From that line follow its bounds, trust region, dtype, command-line override, journal entry and hot swap. All parts'
knobs form one tree, {"user": ..., "env": ..., "rl": {...}}; a knob's path ("rl.advantage.gamma") begins with its owner.
"""

import dataclasses
import difflib
import math
from typing import Any, Mapping

import numpy as np
from flax import struct

OWNERS = ("user", "env", "rl")


class KnobError(ValueError):
    """A knob change that is refused; nothing has been changed."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is known of one knob. `trust` bounds one swap: a difference, or a factor where `log` holds."""

    path: str
    default: float
    low: float
    high: float
    doc: str
    log: bool
    trust: float
    integer: bool
    reward: bool   # a change of it changes what rewards mean

    @property
    def owner(self) -> str:
        return self.path.split(".")[0]


def knob(default: float, low: float, high: float, doc: str, *, log: bool = False, trust: float | None = None,
         reward: bool = False) -> Any:
    """Declares a knob. An int default makes an int32 knob, a float default a float32 one.

    Args:
      default, low, high: low <= default <= high, both ends allowed.
      doc: what it does, with its unit.
      log: the knob is a scale; its trust region is a factor (2 unless told) instead of a difference.
      trust: the largest difference, or factor, that one swap may make; a quarter of the range unless told.
      reward: the same behaviour is worth something else after a change (a reward, a penalty, what counts as solved, a
        discount), so what a critic has learned no longer holds.
    """
    if not low <= default <= high:
        raise ValueError(f"knob default {default} lies outside [{low}, {high}] ({doc})")
    integer = isinstance(default, int)
    if trust is None:
        trust = 2.0 if log else (high - low) / 4
        trust = max(trust, 1.0) if integer else trust
    metadata = {"knob": dict(default=default, low=low, high=high, doc=doc, log=log, trust=trust, integer=integer,
                             reward=reward)}
    return struct.field(default=np.int32(default) if integer else np.float32(default), metadata=metadata)


def specs(tree: Any, prefix: str = "") -> dict[str, Spec]:
    """Every knob below `tree` (nested dicts of knob dataclasses) by its path."""
    found: dict[str, Spec] = {}
    if isinstance(tree, Mapping):
        for name, part in tree.items():
            found |= specs(part, f"{prefix}{name}.")
        return found
    for field in dataclasses.fields(tree):
        if "knob" in field.metadata:
            path = f"{prefix}{field.name}"
            found[path] = Spec(path=path, **field.metadata["knob"])
        elif dataclasses.is_dataclass(getattr(tree, field.name)):
            found |= specs(getattr(tree, field.name), f"{prefix}{field.name}.")
    return found


def get(tree: Any, path: str) -> Any:
    """The value of the knob at `path`."""
    for name in path.split("."):
        tree = tree[name] if isinstance(tree, Mapping) else getattr(tree, name)
    return tree


def values(tree: Any) -> dict[str, float | int]:
    """{path: Python number}, in declaration order: what the journal records. float32 values keep their short form."""
    return {path: int(get(tree, path)) if spec.integer else float(str(np.float32(get(tree, path))))
            for path, spec in specs(tree).items()}


def patch(tree: Any, changes: Mapping[str, float]) -> Any:
    """A new tree with `changes` applied, dtypes kept, so that nothing is traced again.

    Raises:
      KnobError: for the first unknown path, wrong type or value out of range; it names the nearest path or the bounds.
    """
    known = specs(tree)
    for path, value in changes.items():
        tree = _replace(tree, path.split("."), _checked(known, path, value))
    return tree


def outside_trust(tree: Any, changes: Mapping[str, float], first: Mapping[str, float] = {}) -> list[str]:
    """One sentence for each change that is larger than one swap may make; empty when all are within.

    Args:
      first: {path: the value that the run began with}: a step towards it, and not beyond it, is never too large.
    """
    known = specs(tree)
    complaints = []
    for path, value in changes.items():
        spec, new, old = known.get(path), float(_checked(known, path, value)), float(get(tree, path))
        home = float(np.float32(first.get(path, old)))
        if min(old, home) <= new <= max(old, home):
            continue
        if spec.log:
            if old <= 0 or new <= 0 or abs(math.log(new / old)) > math.log(spec.trust) + 1e-6:
                complaints.append(f"{path}: {old:g} -> {new:g} is more than a factor {spec.trust:g} in one swap")
        elif abs(new - old) > spec.trust * (1 + 1e-6):
            complaints.append(f"{path}: {old:g} -> {new:g} is more than {spec.trust:g} in one swap")
    return complaints


def nearest(name: str, known: Any) -> str:
    """'; did you mean ...?' for a misspelt name, or the list of what is allowed."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not close:  # a bare last part ("gama") is compared with the last parts
        by_tail = {path.split(".")[-1]: path for path in known}
        tail = difflib.get_close_matches(name.split(".")[-1], by_tail, n=1, cutoff=0.6)
        close = [by_tail[tail[0]]] if tail else []
    return f"; did you mean {close[0]!r}?" if close else f"; allowed: {', '.join(known)}"


def _checked(known: Mapping[str, Spec], path: str, value: Any) -> np.generic:
    if path not in known:
        raise KnobError(f"unknown knob {path!r}{nearest(path, known)}")
    spec = known[path]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise KnobError(f"{path}: {value!r} is not a number; allowed: {spec.low:g} to {spec.high:g} ({spec.doc})")
    if not spec.low <= value <= spec.high:
        raise KnobError(f"{path}: {value!r} is out of range; allowed: {spec.low:g} to {spec.high:g} ({spec.doc})")
    if spec.integer and value != int(value):
        raise KnobError(f"{path}: {value!r} is not a whole number; allowed: {spec.low:g} to {spec.high:g} ({spec.doc})")
    return np.int32(value) if spec.integer else np.float32(value)


def _replace(tree: Any, names: list[str], value: np.generic) -> Any:
    name, rest = names[0], names[1:]
    child = tree[name] if isinstance(tree, Mapping) else getattr(tree, name)
    new = _replace(child, rest, value) if rest else value
    return {**tree, name: new} if isinstance(tree, Mapping) else dataclasses.replace(tree, **{name: new})
