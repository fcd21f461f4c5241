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

from eau_jax.core.records import RunFolderError, check, read_lines
from eau_jax.meta import audit
from eau_jax.meta.signals import FAULTS

BEHAVIOUR = ("no_leak", "progress", "no_free_lunch", "stop_sanity", "invariants", "replay", "rewards", "steps", "shares",
             "canary")
"""Stages that say something of the change itself; the others say that it came at the wrong time or in a wrong form."""
PLAYS = 3   # of the anchor tasks, that are compared before and under a change
NUMBER, WHETHER, NUMBERS = (int, float), (bool, type(None)), {"*": (int, float)}
DIAGNOSIS = {"owner": str, "fault": str, "confidence": NUMBER, "tests": [str], "evidence": [
    {"metric": str, "first": int, "last": int, "value": NUMBER, "limit": NUMBER}]}
PREDICTION = {"metric": str, "direction": str, "min_effect": NUMBER, "within_updates": int}
PROPOSAL = {"base_generation": int, "changes": NUMBERS, "task_mix": NUMBERS, "rules": str, "why": str,
            "diagnosis": DIAGNOSIS, "prediction": PREDICTION}
FORMS = {   # what the files of proposals/<id>/ hold at least
    "proposal": {"step": int, "author": str, "proposal": (dict, type(None))},
    "gate": {"accepted": bool, "stages": [{"stage": str, "passed": WHETHER, "reason": str}], "moves": [str]},
    "canary": {"passed": WHETHER, "reason": str}, "verdict": {"step": int, "status": str, "result": str, "reason": str}}
EVENTS = {   # of audit.jsonl, of a proposal
    "gate": {"id": str, "accepted": bool}, "adopted": {"id": str, "generation": int}, "kept": {"id": str},
    "rolled_back": {"id": str, "generation": int}, "refused": {"id": str, "reason": str}}
GENERATION = {"generation": int, "step": int, "values": NUMBERS, "changes": {"*": [NUMBER]}, "rules_changed": bool,
              "task_mix": NUMBERS, "set_aside": [str], "weights": int}
ROUND = {"step": int, "report": dict, "answers": [
    {"author": str, "status": str, "agent": dict, "diagnosis": (dict, type(None))}]}


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
    for line in audited(run):
        events.setdefault(str(line.get("id", "")), []).append(line)
    folders = [path for path in (run / "proposals").glob("*") if (path / "proposal.json").is_file()]
    place = lambda path: [int(part) if part.isdigit() else 0 for part in re.split(r"\D+", path.name)]
    folders.sort(key=lambda path: (place(path), path.name))
    return tuple(_one(run, path, events.get(path.name, [])) for path in folders)


def audited(run: Path) -> list[dict[str, Any]]:
    """The lines of audit.jsonl; none where there is no such file.

    Raises:
      RunFolderError: for a line of another form than `train` writes.
    """
    path = run / audit.FILE
    lines = list(read_lines(path)) if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        check(line, {"step": int, "event": str} | EVENTS.get(str(line.get("event")), {}), f"{path}, line {number}")
    return lines


def _one(run: Path, folder: Path, events: Sequence[Mapping[str, Any]]) -> Intervention:
    record, gate, canary, verdict = (load(folder / f"{name}.json") for name in FORMS)
    for name, given in zip(FORMS, (record, gate, canary, verdict), strict=True):
        if given:
            check(given, FORMS[name], str(folder / f"{name}.json"))
    if verdict and verdict["status"] not in ("kept", "rolled_back"):
        raise RunFolderError(f"{folder / 'verdict.json'}: the status {verdict['status']!r} is none of kept, rolled_back; "
                             f"restore the file from a copy")
    proposal = record["proposal"] or {}
    if proposal:
        check(proposal, PROPOSAL, str(folder / "proposal.json"))
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
        folder.name, record["author"], record["step"], adopted["step"] if adopted else 0, ended, status, _owner(proposal),
        proposal.get("diagnosis", {}), proposal.get("prediction", {}), changes, mix, proposal.get("rules", ""),
        tuple(gate.get("moves", ())), proposal.get("why", ""), tuple(checks), verdict,
        adopted["generation"] if adopted else 0, back["generation"] if back else 0,
        audit.digest(dict(events[-1])) if events else "")


def _pairs(run: Path, proposal: Mapping[str, Any], gate: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Old and new values, the old ones as the generation that it was made for had them; nan where that is not known."""
    path = run / "knobs" / f"{proposal.get('base_generation', -1)}.json"
    before = generation(path) if path.exists() else {"values": {}, "task_mix": {}}
    pairs = lambda new, old: {name: (float(old.get(name, math.nan)), float(value)) for name, value in new.items()}
    return pairs(proposal.get("changes", {}), before["values"]), pairs(
        proposal.get("task_mix", {}), gate.get("old_mix") or before["task_mix"])


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
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RunFolderError(f"{path} holds no JSON object")
    return found


def config(run: Path) -> dict[str, Any]:
    """config.json of a run.

    Raises:
      RunFolderError: for a folder that is no run's; it says where to look.
    """
    found = load(run / "config.json")
    if not found:
        inner = next((path.parent for path in sorted(run.glob("*/config.json"))), None)
        hint = f"; a run in it is {inner}" if inner else "; give the folder that `train` wrote"
        raise RunFolderError(f"{run} is no run folder: it has no config.json{hint}")
    return found


def current(run: Path) -> int:
    """The number of the generation in force; 0 before the first is written.

    Raises:
      RunFolderError: when knobs/current holds no number.
    """
    path = run / "knobs" / "current"
    text = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else "0"
    if not (text.isascii() and text.isdigit()):
        raise RunFolderError(f"{path}: {text[:40]!r} is no number of a generation; write that of the newest file beside it")
    return int(text)


def generation(path: Path) -> dict[str, Any]:
    """The record knobs/<generation>.json.

    Raises:
      RunFolderError: for a file of another form than `train` writes.
    """
    record = {"task_mix": {}, "set_aside": [], "weights": 0} | load(path)
    check(record, GENERATION, str(path))
    if any(len(pair) != 2 for pair in record["changes"].values()):
        raise RunFolderError(f"{path}: changes must be pairs of an old and a new value; restore the file from a copy")
    return record


def generations(run: Path) -> dict[int, dict[str, Any]]:
    """{number: `generation`} of a run, in order."""
    files = {int(file.stem): file for file in (run / "knobs").glob("*.json") if file.stem.isdigit()}
    return {number: generation(files[number]) for number in sorted(files)}


def rounds(run: Path) -> list[dict[str, Any]]:
    """The records of rounds/<step>.json in order.

    Raises:
      RunFolderError: for a file of another form than `train` writes.
    """
    found = []
    for file in sorted((run / "rounds").glob("*.json"), key=lambda file: (len(file.stem), file.stem)):
        found.append({"report": {}} | load(file))
        check(found[-1], ROUND, str(file))
        given = [answer["diagnosis"] for answer in found[-1]["answers"]] + [found[-1]["report"].get("diagnosis")]
        for diagnosis in filter(None, given):
            check(diagnosis, DIAGNOSIS, str(file))
    return found


def rows(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; none where there is no such file.

    Raises:
      RunFolderError: for a line that is no JSON object with a whole "step".
    """
    path = run / "metrics.jsonl"
    found = list(read_lines(path)) if path.is_file() else []
    for number, row in enumerate(found, start=1):
        check(row, {"step": int}, f"{path}, line {number}")
    return found


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
    swaps: list[dict[str, Any]] = []
    before: dict[str, Any] = {}
    for number, now in generations(run).items():
        if before:
            rules, mix = run / "rules" / f"{number}.toml", now["task_mix"]
            swaps.append({"step": now["step"], "knobs": {path: new for path, (_, new) in now["changes"].items()},
                          "rules": _text(rules) if now["rules_changed"] else "",
                          "task_mix": mix if mix != before["task_mix"] else {},
                          "set_aside": sorted(set(now["set_aside"]) - set(before["set_aside"])), "weights": now["weights"]})
        before = now
    return swaps


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read, and its generation has other rules: {error}") from None
