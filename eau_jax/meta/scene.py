"""What a proposer sees as values, and bounded changes of it: steps that name only knobs which the run has, and stay within
their bounds and one swap's trust region."""

import dataclasses
import math
from typing import Any, Mapping, NamedTuple, Sequence

from eau_jax.core import knobs as knob
from eau_jax.core.knobs import Spec
from eau_jax.meta.proposal import Diagnosis
from eau_jax.meta.signals import number


class Scene(NamedTuple):
    """What a proposer sees, read from its view."""

    specs: Mapping[str, Spec]
    values: Mapping[str, float]
    generation: int
    step: int
    mix: Mapping[str, float]             # {bucket: share}, the easiest first; {}: tasks have no buckets
    rows: Sequence[Mapping[str, Any]]    # of metrics.jsonl
    diagnosis: Diagnosis
    confirmed: frozenset[str]            # causal tests that found what they looked for
    rules: str                           # TOML in force
    own_rules: str                       # the environment's own
    features: tuple[str, ...]            # that rules may read
    tried: Mapping[str, int]             # {"<knob> up" or "<knob> down": how often it was done}
    first: Mapping[str, float] = {}      # what the run began with; {}: not known
    cooldown: int = 0                    # updates for which what was changed stays as it is


@dataclasses.dataclass(frozen=True)
class Move:
    """One change, and what should follow from it."""

    metric: str
    direction: str
    min_effect: float
    within: int
    why: str
    changes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    rules: str = ""
    task_mix: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def owner(self) -> str:
        """The one owner of all that is changed."""
        return "user" if self.rules else "env" if self.task_mix else next(iter(self.changes)).split(".")[0]

    @property
    def changes_anything(self) -> bool:
        return bool(self.changes or self.rules or self.task_mix)


def predicted(scene: Scene, direction: str, names: Sequence[str], why: str, changes: Mapping[str, float] | None = None, *,
              share: float = 0.1, effect: float = 0.0, within: int = 5, rules: str = "",
              task_mix: Mapping[str, float] | None = None) -> Move:
    """A move, judged by the first of the named metrics that the newest update has.

    Args:
      share: of the metric's value that it should move by at least, unless `effect`, in its unit, is above 0.
    """
    row = scene.rows[-1] if scene.rows else {}
    metric = next((name for name in names if math.isfinite(number(row, name))), names[0])
    value = abs(number(row, metric))
    least = float(f"{share * value:.3g}") if math.isfinite(value) and value > 0 else 1e-3
    return Move(metric, direction, effect or least, within, why, changes or {}, rules, task_mix or {})


def find(scene: Scene, owner: str, name: str) -> str:
    """The owner's first knob of this name; "" where the run has none."""
    return next((path for path in scene.specs if path.startswith(f"{owner}.") and path.endswith(f".{name}")), "")


def to(scene: Scene, path: str, wanted: float) -> dict[str, float]:
    """{path: the value nearest to `wanted` that one swap may set}; {} for an unknown knob, or where nothing would change."""
    if path not in scene.specs or not math.isfinite(wanted):
        return {}
    spec, old = scene.specs[path], scene.values[path]
    low, high = (old / spec.trust, old * spec.trust) if spec.log else (old - spec.trust, old + spec.trust)
    new = min(max(wanted, low, spec.low), high, spec.high)
    new = int(round(new)) if spec.integer else float(f"{new:.6g}")
    return {path: new} if new != old else {}


def times(scene: Scene, path: str, factor: float, low: float = -math.inf, high: float = math.inf) -> dict[str, float]:
    """`to` a multiple of the value, not beyond [low, high]; a value that lies outside is not moved further out."""
    old = scene.values.get(path, math.nan)
    return to(scene, path, max(min(old * factor, max(high, old)), min(low, old)))


def plus(scene: Scene, path: str, amount: float, low: float = -math.inf, high: float = math.inf) -> dict[str, float]:
    """The same for a difference."""
    old = scene.values.get(path, math.nan)
    return to(scene, path, max(min(old + amount, max(high, old)), min(low, old)))


def homeward(scene: Scene, move: Move) -> Move:
    """The move, where one of its steps goes towards the value that the run began with all the way to it: that value is known
    to work, and a step to it may be of any size. Where nothing is wrong there is nothing to go back from."""
    if scene.diagnosis.owner == "none":
        return move
    def there(path: str, new: float) -> float:
        old, first = scene.values[path], scene.first.get(path, scene.values[path])
        return first if (first - old) * (new - old) > 0 and abs(first - old) > abs(new - old) else new
    return dataclasses.replace(move, changes={path: there(path, new) for path, new in move.changes.items()})


def tree(specs: Mapping[str, Spec], values: Mapping[str, float]) -> Any:
    """A knob tree with these specs and values, for the functions of `core.knobs`."""
    nested: dict[str, Any] = {}
    for path, spec in specs.items():
        *names, last = path.split(".")
        node = nested
        for name in names:
            node = node.setdefault(name, {})
        node[last] = spec
    return knob.patch(_node(nested), values)


def _node(nested: Mapping[str, Any]) -> Any:
    fields = []
    for name, item in nested.items():
        if isinstance(item, Spec):
            kind = int if item.integer else float
            fields.append((name, kind, knob.knob(kind(item.default), item.low, item.high, item.doc, log=item.log,
                                                 trust=item.trust, reward=item.reward)))
        else:
            child = _node(item)
            fields.append((name, Any, dataclasses.field(default_factory=lambda child=child: child)))
    return dataclasses.make_dataclass("Knobs", fields)()
