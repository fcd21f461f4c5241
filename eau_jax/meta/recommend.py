"""With which settings the next run begins, by what a pool knows."""

import dataclasses
from typing import Any, Mapping

from eau_jax.meta.lesson import Lesson
from eau_jax.meta.pool import Contents, expired


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a run begins, beside its config."""

    knobs: Mapping[str, float] = dataclasses.field(default_factory=dict)      # {path: value}
    rules: str = ""                                                           # TOML; "": the config's own
    task_mix: Mapping[str, float] = dataclasses.field(default_factory=dict)   # {bucket: share}; {}: the config's own
    lessons: tuple[str, ...] = ()    # ids that it comes from
    reasons: tuple[str, ...] = ()    # one sentence for each lesson of the environment, taken or not

    @property
    def own(self) -> bool:
        """Whether it is the config's own."""
        return not (self.knobs or self.rules or self.task_mix)

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)


def recommend(contents: Contents, env: str, backbone: str = "") -> Start:
    """What helped on this environment more often than it hurt, and what a restart asked for.

    Lessons that move the same knob exclude each other: the one with the most cases for it is taken, of equals the one used
    last. Lessons about learning count for the backbone that they were seen with.
    """
    order = contents.order
    used = lambda one: order.index(one.last_used_run) if one.last_used_run in order else -1
    taken: dict[str, Lesson] = {}
    reasons: list[str] = []
    for one in sorted((one for one in contents.lessons if one.env == env),
                      key=lambda one: (one.harmful - one.helpful, -used(one), one.id)):
        said = f"{one.id} ({_described(one)} against {one.fault}: {one.helpful} for, {one.harmful} against)"
        why_not = _why_not(one, contents, backbone, taken)
        reasons.append(f"{said}: {why_not}" if why_not else f"{said}: taken")
        if not why_not:
            taken |= {what: one for what in _moved(one)}
    chosen = list({one.id: one for one in taken.values()}.values())
    rules = [one.rules for one in chosen if one.rules]
    return Start({path: new for one in chosen for path, (_, new) in one.changes.items()}, rules[0] if rules else "",
                 {name: new for one in chosen for name, (_, new) in one.task_mix.items()},
                 tuple(sorted(one.id for one in chosen)), tuple(reasons))


def _why_not(one: Lesson, contents: Contents, backbone: str, taken: Mapping[str, Lesson]) -> str:
    """Why a lesson gives no setting; "" where it does."""
    if one.advice == "avoid":
        return "it says what to leave alone"
    if not _moved(one):
        return "it moves nothing"
    if gone := expired(one, contents):
        return f"expired, {gone}"
    if one.owner == "rl" and one.backbone != backbone:
        return f"seen with {one.backbone or 'another model'} only"
    if one.helpful <= one.harmful and not (one.helpful == one.harmful and one.cases[-1].vote == "untried"):
        return "as much speaks against it as for it"
    rival = next((taken[what] for what in _moved(one) if what in taken), None)
    return f"{rival.id} decides the same" if rival else ""


def _moved(one: Lesson) -> list[str]:
    """Knobs, "rules", "task_mix": what a start has once."""
    return [*one.changes, *(["rules"] if one.rules else []), *(["task_mix"] if one.task_mix else [])]


def _described(one: Lesson) -> str:
    parts = [f"{path} {old:g} -> {new:g}" for path, (old, new) in one.changes.items()]
    parts += [f"share of {name} {old:g} -> {new:g}" for name, (old, new) in one.task_mix.items()]
    return ", ".join(parts + (["other rules"] if one.rules else [])) or one.text[:80]
