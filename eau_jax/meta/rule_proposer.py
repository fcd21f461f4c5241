"""The proposer that needs no model: a table from faults to bounded changes, decided by what is in the view alone.

It acts on the diagnosis in diagnosis.json by the first change of the fault's row (`moves.py`) that this run can make: knobs
that it has, within bounds and one swap's trust region, not locked and not cooling down, of an owner none of whose changes
is being watched. An owner cools down for the run's cool-down times 1 + the number of its changes that were taken back, from
the end of one that was, from the beginning of one that was kept. Most rounds it proposes nothing: nothing is wrong, or
nobody but a person can mend it.

history.json is a list of earlier proposals, oldest first:

    {"step": 20, "owner": "env", "changes": {"env.max_turns": [8, 10]}, "rules": "", "task_mix": {},
     "status": "live" | "kept" | "rolled_back" | "refused" | "deferred", "ended": 30}

`step` is the update from which it held (or at which it was refused, or put off to the next run: "deferred"), `ended` the
one at which it was judged. What was refused is not proposed again for 50 updates.
"""

import json
import math
from typing import Any, Mapping, NamedTuple, Sequence

from eau_jax.core import knobs as knob
from eau_jax.meta import moves, watch
from eau_jax.meta.proposal import Batch, Diagnosis, Evidence
from eau_jax.meta.proposer import Budget, Proposer, View
from eau_jax.meta.scene import Move, Scene, homeward, tree

FRESH = 5   # updates of the generation in force that a diagnosis needs: the window of most detectors


class Past(NamedTuple):
    """One earlier proposal."""

    step: int
    owner: str
    changes: Mapping[str, Sequence[float]]   # {knob: [old, new]}
    rules: str
    task_mix: Mapping[str, Sequence[float]]
    status: str
    ended: int

    @property
    def moves(self) -> tuple[str, ...]:
        return watch.moves(self.changes, self.rules, self.task_mix)


def propose(view: View, budget: Budget) -> Batch:
    """At most one proposal. Never raises: a view that cannot be read is "invalid"."""
    try:
        return decide(*read(view))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Batch("invalid", problem=f"the view cannot be read: {type(error).__name__}: {error}")


rules = Proposer("rules", propose, at_once=True)


def read(view: View) -> tuple[Scene, tuple[Past, ...]]:
    """What the table decides on, and what was proposed before."""
    current, report = view.json("knobs/current.json"), view.json("diagnosis.json")
    given = report["diagnosis"]
    past = tuple(Past(int(item["step"]), item["owner"], item["changes"], item["rules"], item["task_mix"], item["status"],
                      int(item["ended"])) for item in view.json("history.json"))
    return Scene(
        specs={path: knob.Spec(path=path, **{name: value for name, value in entry.items() if name != "owner"})
               for path, entry in view.json("knobs/schema.json").items()},
        values=current["values"], generation=int(current["generation"]), step=int(current["step"]),
        mix=current.get("task_mix", {}), rows=view.lines("metrics.jsonl"),
        diagnosis=Diagnosis(given["owner"], given["fault"], given["confidence"],
                            tuple(Evidence(**item) for item in given["evidence"]), tuple(given["tests"])),
        confirmed=frozenset(name for name, result in report["results"].items() if result["confirmed"]),
        rules=(view.folder / "rules/current.toml").read_text(encoding="utf-8"),
        own_rules=(view.folder / "rules/own.toml").read_text(encoding="utf-8"),
        features=tuple(view.json("rules/features.json")), tried=_tried(past), first=current.get("first", {}),
        cooldown=int(current["cooldown"])), past


def decide(scene: Scene, past: Sequence[Past]) -> Batch:
    """What is proposed in a scene after these earlier proposals."""
    why_not = _waits(scene)
    if why_not:
        return Batch("empty", diagnosis=scene.diagnosis, agent={"name": "rules", "said": why_not})
    for move in (homeward(scene, move) for move in moves.table(scene)):
        if move.changes_anything and not _blocked(scene, past, move):
            return Batch("ok", (_text(scene, move),), scene.diagnosis, {"name": "rules", "said": move.why})
    said = "nothing is wrong" if scene.diagnosis.owner == "none" else (
        f"{scene.diagnosis.fault}: no change of this run's knobs, rules or tasks is allowed or helps")
    return Batch("empty", diagnosis=scene.diagnosis, agent={"name": "rules", "said": said})


def _waits(scene: Scene) -> str:
    """Why this is no time for a change; "" where it is."""
    current = sum(row.get("generation") == scene.generation for row in scene.rows)
    return f"{current} updates under generation {scene.generation}; a diagnosis needs {FRESH}" if current < FRESH else ""


def _blocked(scene: Scene, past: Sequence[Past], move: Move) -> bool:
    """Whether the gate would refuse the move, or the history speaks against it."""
    mine = [item for item in past if item.owner == move.owner and item.status != "refused"]
    failures = sum(item.status == "rolled_back" for item in mine)
    last = [item.ended if item.status == "rolled_back" else item.step for item in mine]
    if any(item.status in ("live", "deferred") for item in mine) or scene.step < max(last, default=-math.inf) + (
            scene.cooldown * (1 + failures)):
        return True
    changes = {path: [scene.values[path], new] for path, new in move.changes.items()}
    mix = {name: [scene.mix[name], share] for name, share in move.task_mix.items() if share != scene.mix[name]}
    over = [watch.Past(item.step, item.moves, item.ended if item.status == "rolled_back" else 0) for item in past]
    barred = {name for name, until in watch.lockouts(over).items() if scene.step < until}
    refused = [item for item in past if item.status == "refused" and scene.step < item.step + watch.LOCK]
    barred |= {name for item in refused for name in item.moves}
    return bool(barred & set(watch.moves(changes, move.rules, mix))) or bool(_outside(scene, move.changes))


def _outside(scene: Scene, changes: Mapping[str, float]) -> list[str]:
    """What `core.knobs` says against bounds and trust regions."""
    try:
        return knob.outside_trust(tree(scene.specs, scene.values), changes, scene.first)
    except knob.KnobError as error:
        return [str(error)]


def _tried(past: Sequence[Past]) -> dict[str, int]:
    """{move: how often it was made}."""
    names = [name for item in past for name in item.moves]
    return {name: names.count(name) for name in names}


def _text(scene: Scene, move: Move) -> str:
    found = scene.diagnosis
    proposal: dict[str, Any] = {
        "base_generation": scene.generation, "changes": dict(move.changes),
        "diagnosis": {"owner": found.owner, "fault": found.fault, "confidence": found.confidence,
                      "evidence": [vars(item) for item in found.evidence[:20]],
                      "tests": [said[:400] for said in found.tests[:20]]},
        "prediction": {"metric": move.metric, "direction": move.direction, "min_effect": move.min_effect,
                       "within_updates": move.within},
        "ttl_updates": max(move.within, 5), "why": move.why}
    return json.dumps(proposal | ({"rules": move.rules} if move.rules else {}) |
                      ({"task_mix": dict(move.task_mix)} if move.task_mix else {}))
