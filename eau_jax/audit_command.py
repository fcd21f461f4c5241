"""`eau-jax audit RUN`: whether the records of a run's changes are whole, and tell the same story."""

import hashlib
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from eau_jax.core.records import check as holds
from eau_jax.meta import audit, interventions
from eau_jax.meta.interventions import NUMBERS

MAKES = ("adopted", "rolled_back", "set_aside")   # events that make a generation
MADE = {"generation": int, "values": NUMBERS, "task_mix": NUMBERS, "rules_sha256": str}
READ_BACK = {"generation": int, "values": NUMBERS, "episodes": {"*": int}}
SWAP = {"step": int, "knobs": NUMBERS, "rules": str, "task_mix": NUMBERS}


class Found(NamedTuple):
    """What an audit found."""

    complaints: tuple[str, ...]   # empty: all agrees
    said: str                     # what was looked at


def check(run: Path) -> Found:
    """Verifies the chain of audit.jsonl, then holds knobs/, rules/ and proposals/ against it.

    Raises:
      RunFolderError: for a folder that is no run's, a broken chain, or a record that cannot be read.
    """
    config, path = interventions.config(run), run / audit.FILE
    count = audit.verify(path) if path.exists() else 0
    events = interventions.audited(run)
    for number, event in enumerate(events, start=1):
        form = MADE if event["event"] in MAKES else READ_BACK if event["event"] == "in_force" else {}
        holds(event, form, f"{path}, line {number}")
    made = {event["generation"]: event for event in events if event["event"] in MAKES}
    files = interventions.generations(run)
    schedule = dict(zip(list(files)[1:], interventions.schedule(run), strict=True))
    complaints = _gaps(files, made)
    scheduled = _scheduled(config, run / "config.json")
    by_config = 0
    for number, swap in schedule.items():
        if number in made:
            complaints += _differs(run, number, files[number], made[number])
        elif any(_is(swap, planned) for planned in scheduled):
            by_config += 1
        else:
            complaints.append(f"knobs/{number}.json is a generation that neither audit.jsonl nor the config's swaps account "
                              f"for")
    complaints += _in_force(files, events) + _verdicts(run, events)
    adopted, aside = (sum(event["event"] == kind for event in made.values()) for kind in ("adopted", "set_aside"))
    said = (f"{run}: {count} audit records, chain whole; {len(schedule)} changes of generation: {adopted} adopted, "
            f"{len(made) - adopted - aside} taken back, " + f"{aside} of tasks set aside, " * bool(aside)
            + f"{by_config} scheduled by the config; ")
    return Found(tuple(complaints), said + (f"{len(complaints)} complaints" if complaints else "all agree"))


def _gaps(files: Mapping[int, Any], made: Mapping[int, Any]) -> list[str]:
    missing = sorted(set(range(max(files, default=-1) + 1)) - files.keys())
    found = [f"knobs/{number}.json is missing" for number in missing]
    lost = sorted(made.keys() - files.keys() - set(missing))
    return found + [f"audit.jsonl tells of generation {number}, before update {made[number]['step']}, but "
                    f"knobs/{number}.json is not there" for number in lost]


def _differs(run: Path, number: int, record: Mapping[str, Any], event: Mapping[str, Any]) -> list[str]:
    """How the record of a generation differs from the audit record that made it."""
    where = f"knobs/{number}.json"
    found = [] if record["step"] == event["step"] else [
        f"{where} holds from update {record['step']} on, by audit.jsonl from {event['step']}"]
    for path, value in event["values"].items():
        if record["values"].get(path) != value:
            found.append(f"{where} has {path} = {record['values'].get(path)}, audit.jsonl {value}")
    found += [f"{where} changes {path}, of which audit.jsonl says nothing" for path in record["changes"]
              if path not in event["values"]]
    if record["task_mix"] != event["task_mix"]:
        found.append(f"{where} has the task mix {record['task_mix']}, audit.jsonl {event['task_mix']}")
    if record["weights"] != event.get("weights", 0):
        found.append(f"{where} begins with the weights of update {record['weights']}, by audit.jsonl of "
                     f"{event.get('weights', 0)} (0: they went on)")
    if record["set_aside"] != event.get("set_aside", []):
        found.append(f"{where} sets {len(record['set_aside'])} tasks aside, audit.jsonl other ones")
    rules = run / "rules" / f"{number}.toml"
    if not rules.exists() or hashlib.sha256(rules.read_bytes()).hexdigest() != event["rules_sha256"]:
        found.append(f"rules/{number}.toml is not the list whose hash audit.jsonl holds")
    return found


def _in_force(files: Mapping[int, Any], events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether what was read back in a generation's first update is what its record says."""
    found = []
    for event in events:
        number = event.get("generation")
        if event.get("event") != "in_force" or number not in files:
            continue
        values = files[number]["values"]
        odd = [path for path, value in event["values"].items() if values.get(path) != value]
        found += [f"in update {event['step']}, generation {number} was played with {path} = {event['values'][path]}, "
                  f"knobs/{number}.json has {values.get(path)}" for path in odd]
        others = ", ".join(other for other in event["episodes"] if other != str(number))
        found += [f"in update {event['step']}, episodes of generation {others} were played under {number}"] if others else []
    return found


def _verdicts(run: Path, events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether proposals/ tells what audit.jsonl tells."""
    told = {event["id"]: event for event in events if event["event"] in ("kept", "rolled_back")}
    gated = {event["id"]: event["accepted"] for event in events if event["event"] == "gate"}
    found = []
    for one in interventions.read(run):
        if one.id not in gated:
            found.append(f"proposals/{one.id} is there, but audit.jsonl holds no gate record of it")
        elif gated[one.id] != (one.failed is None or one.failed.stage in ("canary", "adoption")):
            found.append(f"proposals/{one.id}/gate.json and audit.jsonl differ about whether it was accepted")
        by_verdict, by_audit = one.verdict.get("status"), told.get(one.id, {}).get("event")
        if by_verdict != by_audit:
            found.append(f"proposals/{one.id}: its verdict is {by_verdict or 'missing'}, audit.jsonl says "
                         f"{by_audit or 'nothing'}")
    here = {one.id for one in interventions.read(run)}
    return found + [f"audit.jsonl tells of proposal {id}, but proposals/{id} is not there" for id in gated if id not in here]


def _scheduled(config: Mapping[str, Any], path: Path) -> list[Mapping[str, Any]]:
    holds({"swaps": [], **config}, {"swaps": [dict]}, str(path))
    swaps = [{"task_mix": {}, "set_aside": [], "weights": 0, **swap} for swap in config.get("swaps", [])]
    holds(swaps, [SWAP], f"{path}: swaps")
    return swaps


def _is(swap: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    """Whether a generation is a scheduled change: a plan may name knobs, rules or shares that were so already."""
    within = lambda part: all(planned[part].get(name) == value for name, value in swap[part].items())
    close = all(name in planned["knobs"] and abs(planned["knobs"][name] - value) <= 1e-6 * abs(value)
                for name, value in swap["knobs"].items())
    same = all(swap[part] == planned[part] for part in ("step", "set_aside", "weights"))
    return same and close and within("task_mix") and swap["rules"] in ("", planned["rules"])
