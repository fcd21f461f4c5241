"""What a run's records say of the changes that were proposed in it: one object each, refused ones included.

Reads proposals/<id>/{proposal,gate,canary,verdict}.json, audit.jsonl, knobs/ and metrics.jsonl; works while the run goes on.
"""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from eau_jax.core.records import RunFolderError, read_lines
from eau_jax.meta import audit
from eau_jax.meta.signals import FAULTS

BEHAVIOUR = ("no_leak", "progress", "no_free_lunch", "stop_sanity", "invariants", "replay", "rewards", "steps", "shares",
             "canary")
"""Stages that say something of the change itself; the others say that it came at the wrong time or in a wrong form."""
PLAYS = 3   # of the anchor tasks, that are compared before and under a change


class Check(NamedTuple):
    """One stage of the gate, the canary, or "adoption": what became of it after them."""

    stage: str
    passed: bool | None
    reason: str


@dataclasses.dataclass(frozen=True)
class Intervention:
    """One proposal and what became of it."""

    id: str
    author: str
    step: int                 # the update before which it was decided on
    since: int                # the update from which it held; 0: never
    ended: int                # the update before which it was judged or refused; 0: not yet
    status: str               # "unreadable" | "refused" | "canary" | "live" | "kept" | "rolled_back" | "deferred"
    owner: str
    diagnosis: Mapping[str, Any]     # as of `proposal.Diagnosis`; {} where the text could not be read
    prediction: Mapping[str, Any]    # as of `proposal.Prediction`; likewise
    changes: Mapping[str, tuple[float, float]]    # {knob: (old, new)}
    task_mix: Mapping[str, tuple[float, float]]   # {bucket: (old, new)}
    rules: str
    moves: tuple[str, ...]
    why: str
    checks: tuple[Check, ...]
    verdict: Mapping[str, Any]       # as of `watch.Verdict`, and "triggers"; {} before it
    generation: int                  # that its adoption made; 0: none
    back_generation: int             # that its end made; 0: none
    audit: str                       # hash of the last audit record about it

    @property
    def fault(self) -> str:
        """A name of `signals.FAULTS`; what its author calls by another name counts as none."""
        named = self.diagnosis.get("fault", "")
        return named if named in FAULTS else "none"

    @property
    def failed(self) -> Check | None:
        """The check that refused it."""
        return next((check for check in self.checks if check.passed is False), None)

    @property
    def reason(self) -> str:
        """Why it is what it is, in one sentence."""
        return self.verdict.get("reason") or (f"{self.failed.stage}: {self.failed.reason}" if self.failed else "")

    @property
    def told(self) -> str:
        """What it changes, in words."""
        parts = [f"{name} {old:g} → {new:g}" if math.isfinite(old) else f"{name} {new:g}"
                 for pairs in (self.changes, self.task_mix) for name, (old, new) in pairs.items()]
        steers = self.rules or (self.owner == "user" and not parts)   # rules in Python that were refused leave no rules
        return ", ".join(parts + (["other rules of the user"] if steers else [])) or "nothing that can be read"


def read(run: Path) -> tuple[Intervention, ...]:
    """Every proposal of a run, in the order in which they were made.

    Raises:
      RunFolderError: for a broken record; it names the file.
    """
    events: dict[str, list[dict[str, Any]]] = {}
    if (run / audit.FILE).is_file():
        for line in read_lines(run / audit.FILE):
            events.setdefault(str(line.get("id", "")), []).append(line)
    folders = [path for path in (run / "proposals").glob("*") if (path / "proposal.json").is_file()]
    place = lambda path: [int(part) if part.isdigit() else 0 for part in re.split(r"\D+", path.name)]
    folders.sort(key=lambda path: (place(path), path.name))
    return tuple(_one(run, path, events.get(path.name, [])) for path in folders)


def _one(run: Path, folder: Path, events: Sequence[Mapping[str, Any]]) -> Intervention:
    record, gate, canary, verdict = (load(folder / f"{name}.json") for name in ("proposal", "gate", "canary", "verdict"))
    try:
        proposal = record["proposal"] or {}
        checks = [Check(stage["stage"], stage["passed"], stage["reason"]) for stage in gate.get("stages", [])]
        checks += [Check("canary", canary["passed"], canary["reason"])] if canary else []
        by_event = {event["event"]: event for event in events}
        adopted, refused = by_event.get("adopted"), by_event.get("refused")
        back = by_event.get("rolled_back")
        if refused and all(check.passed is not False for check in checks):
            checks.append(Check("adoption", False, refused["reason"]))
        status = ("unreadable" if not proposal else verdict["status"] if verdict else "live" if adopted else
                  "deferred" if "deferred" in by_event else
                  "refused" if refused or not gate.get("accepted", True) else "canary")
        changes, mix = _pairs(run, proposal, gate)
        ended = (verdict or refused or {}).get("step") or (record["step"] if status in ("refused", "unreadable") else 0)
        return Intervention(
            folder.name, str(record.get("author", "")), int(record["step"]), int(adopted["step"]) if adopted else 0,
            int(ended), status, _owner(proposal), proposal.get("diagnosis", {}), proposal.get("prediction", {}), changes,
            mix, proposal.get("rules", ""), tuple(gate.get("moves", ())), proposal.get("why", ""), tuple(checks), verdict,
            int(adopted["generation"]) if adopted else 0, int(back["generation"]) if back else 0,
            audit.digest(dict(events[-1])) if events else "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunFolderError(f"{folder} holds a record of another form than `train` writes: {type(error).__name__}: "
                             f"{error}") from None


def _pairs(run: Path, proposal: Mapping[str, Any], gate: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Old and new values, the old ones as the generation that it was made for had them; nan where that is not known."""
    before = load(run / "knobs" / f"{proposal.get('base_generation', -1)}.json")
    pairs = lambda new, old: {name: (float(old.get(name, math.nan)), float(value)) for name, value in new.items()}
    mix = pairs(proposal.get("task_mix", {}), gate.get("old_mix") or before.get("task_mix", {}))
    return pairs(proposal.get("changes", {}), before.get("values", {})), mix


def _owner(proposal: Mapping[str, Any]) -> str:
    owners = {path.split(".")[0] for path in proposal.get("changes", {})}
    steers = proposal.get("rules") or proposal.get("python")
    owners |= ({"user"} if steers else set()) | ({"env"} if proposal.get("task_mix") else set())
    return "+".join(sorted(owners))


def load(path: Path) -> dict[str, Any]:
    """A JSON object; {} where there is none.

    Raises:
      RunFolderError: for a file that holds no JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RunFolderError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RunFolderError(f"{path} holds no JSON object")
    return found


def rounds(run: Path) -> list[dict[str, Any]]:
    """The records of rounds/<step>.json in order."""
    files = [file for file in (run / "rounds").glob("*.json") if file.stem.isdigit()]
    return [load(file) for file in sorted(files, key=lambda file: int(file.stem))]


def anchors(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, float, int]]:
    """(step, success, usable episodes) of each play of the anchor tasks."""
    return [(int(row["step"]), float(row["anchor/success"]), int(row.get("anchor/episodes") or 0)) for row in rows
            if isinstance(row.get("anchor/success"), (int, float)) and math.isfinite(row["anchor/success"])]


def around(found: Sequence[tuple[int, float, int]], one: Intervention) -> tuple[float, float]:
    """Mean success on the anchor tasks before a change and under it, over the PLAYS nearest plays each; nan where none."""
    before = [success for step, success, _ in found if step < one.since][-PLAYS:]
    under = [success for step, success, _ in found if one.since <= step and (not one.ended or step < one.ended)][-PLAYS:]
    mean = lambda values: float(np.mean(values)) if values and one.since else math.nan
    return mean(before), mean(under)


def schedule(run: Path) -> list[dict[str, Any]]:
    """[{step, knobs: {path: value}, rules, task_mix, set_aside, weights}], one for each generation after the first: what
    replays the changes of a run, those that were taken back included. Empty rules and an empty task mix stay as they are."""
    files = {int(file.stem): file for file in (run / "knobs").glob("*.json") if file.stem.isdigit()}
    swaps, before = [], load(files[0]) if 0 in files else {}
    for number in sorted(files):
        now = load(files[number])
        try:
            if number and "changes" in now:
                rules = (run / "rules" / f"{number}.toml").read_text(encoding="utf-8") if now["rules_changed"] else ""
                mix = now.get("task_mix", {})
                swaps.append({"step": int(now["step"]), "knobs": {path: new for path, (_, new) in now["changes"].items()},
                              "rules": rules, "task_mix": mix if mix != before.get("task_mix", {}) else {},
                              "set_aside": sorted(set(now.get("set_aside", ())) - set(before.get("set_aside", ()))),
                              "weights": int(now.get("weights", 0))})
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise RunFolderError(f"{files[number]} is not the record of a generation with its rules beside it: "
                                 f"{error}") from None
        before = now
    return swaps
