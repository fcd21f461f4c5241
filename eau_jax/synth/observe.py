"""Observe: what the records of one round of a self-evolution come to."""

import collections
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from eau_jax.core.records import RunFolderError
from eau_jax.core.types import StopReason
from eau_jax.synth.mutants import kind
from eau_jax.synth.record import (
    Fault, Instance, Observed, PlanItem, Report, Rollout, Scenario, Skeleton, canonical, unwrap)

NOBODY = ("INFRA", "CONTAM")     # reject codes that say nothing about what a task is made of
BROKEN = ("task", "env", "checker", "user")     # sides whose fault is none of the agent's


class Made(NamedTuple):
    """What came of one plan item."""

    atoms: tuple[str, ...]
    code: str                        # its reject code; "" where it passed


class Seen(NamedTuple):
    """The records of one plan item, as far as they are counted."""

    item: PlanItem
    skeleton: Skeleton
    instance: Instance | None
    scenario: Scenario | None
    report: Report
    rollouts: list[Rollout]
    faults: list[Fault]


def observe(number: int, items: Iterable[Seen],
            mismatches: Sequence[tuple[str, str, str]]) -> tuple[Observed, list[Made]]:
    """(the counts, what came of each plan item).

    Args:
      items: what the records of the round say of each plan item.
    """
    rejects, faults, escaped, signatures = (collections.Counter() for _ in range(4))
    atoms, cells, made = {}, {}, []
    known: dict[str, set[str]] = collections.defaultdict(set)
    extremes = {"killed": 1.0, "null": 0.0, "turns": 0}
    for seen in items:
        code, measures = seen.report.code, seen.report.measures
        made.append(Made(seen.skeleton.atoms, code))
        rejects[code] += bool(code)
        for atom in seen.skeleton.atoms:
            tally = atoms.setdefault(atom, collections.Counter())
            tally.update({"tried": 1} | ({code: 1} if code else {}))
        for name in {kind(each) for each in measures.get("escaped", ())}:
            escaped[name] += 1
        name = canonical(seen.item.cell)
        cell = cells.setdefault(name, dict.fromkeys(("tried", "passed", "signatures", "played", "solved", "faults"), 0))
        cell["tried"] += 1
        if not code:
            cell["passed"] += 1
            known[name].add(seen.instance.signature)
            signatures[seen.instance.signature] += 1
            caught, total = measures["mutants"]
            extremes = {"killed": min(extremes["killed"], caught / max(total, 1)),
                        "null": max(extremes["null"], measures["null"]),
                        "turns": max(extremes["turns"], measures["turns"])}
        played = [each for each in seen.rollouts if each.agent == "novice" and each.stop != StopReason.INFRA_ERROR.value]
        cell["played"] += len(played)
        cell["solved"] += sum(each.success for each in played)
        cell["faults"] += sum(fault.side in BROKEN for fault in seen.faults)
        faults.update(f"{fault.side}: {fault.label}" for fault in seen.faults)
    for name, cell in cells.items():
        cell["signatures"] = len(known[name])
    passed = sum(signatures.values())
    extremes["top5_share"] = sum(count for _, count in signatures.most_common(5)) / max(passed, 1)
    plain = lambda counts: {name: counts[name] for name in sorted(counts) if counts[name]}
    observed = Observed(number, len(made), passed, plain(rejects), {name: plain(atoms[name]) for name in sorted(atoms)},
                        dict(sorted(cells.items())), plain(faults), plain(escaped), extremes,
                        tuple(map(tuple, mismatches)))
    return observed, made


def grouped(lines: Iterable[Mapping[str, Any]]) -> Iterable[Seen]:
    """What records say of each plan item; those of one follow one another."""
    kinds = {"skeleton": Skeleton, "instance": Instance, "scenario": Scenario, "report": Report, "rollout": Rollout,
             "fault": Fault}
    found: dict[str, Any] = {}
    for line in (*lines, {"kind": "plan_item"}):
        if line.get("kind") == "plan_item":
            if found:
                if "skeleton" not in found or "report" not in found:
                    raise RunFolderError(f"the records of plan item {found['item'].index} are not whole; restore the "
                                         "folder's shards from a copy")
                yield Seen(found["item"], found["skeleton"], found.get("instance"), found.get("scenario"), found["report"],
                           found["rollout"], found["fault"])
            if "body" in line:
                found = {"item": unwrap(line, PlanItem), "rollout": [], "fault": []}
        elif line.get("kind") in kinds and not found:
            raise RunFolderError(f"record {str(line.get('id'))[:40]!r}: no plan item comes before it; restore the folder's "
                                 "shards from a copy")
        elif line.get("kind") in ("rollout", "fault"):
            found[line["kind"]].append(unwrap(line, kinds[line["kind"]]))
        elif line.get("kind") in kinds:
            found[line["kind"]] = unwrap(line, kinds[line["kind"]])


def together(history: Sequence[Observed]) -> dict[str, dict[str, int]]:
    """The counts of each cell over all rounds."""
    found: dict[str, collections.Counter] = {}
    for observed in history:
        for name, counts in observed.cells.items():
            found.setdefault(name, collections.Counter()).update(counts)
    return {name: dict(counts) for name, counts in found.items()}
