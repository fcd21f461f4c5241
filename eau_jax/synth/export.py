"""Export: the kept tasks in the layout of a tau2-bench domain folder, each with its checker, and what the manifest says.

    tasks/tasks.json         a list in tau2's schema; `user` and `wishes` are ours, and other programs may ignore them
    tasks/split_tasks.json   train, test and base: no combination of sub-tasks, no signature and no surname is in both
    tasks/checkers.jsonl     {"id", "checker"}: what the records have to be in the end, and what has to be said
    tasks/...                what belongs to all tasks of the domain, such as db.json and policy.md
"""

import collections
from pathlib import Path
from typing import Any, Iterable, Mapping

from eau_jax.core.records import write_atomic
from eau_jax.core.types import StopReason, Task
from eau_jax.envs import file
from eau_jax.envs.tau2.data import splits
from eau_jax.synth import evolved, quality
from eau_jax.synth.domain import Domain
from eau_jax.synth.gates_text import names_of
from eau_jax.synth.plan import SynthPlan, cells
from eau_jax.synth.record import (
    Fault, Instance, Opinion, PlanItem, Proposal, Report, Rollout, Scenario, canonical, listed, unwrap)
from eau_jax.synth.select import Passed, diversity, select

Line = Mapping[str, Any]


def export(folder: Path, plan: SynthPlan, lines: Iterable[Line]) -> tuple[list[Path], dict[str, Any]]:
    """Writes the tasks of all shards and returns (the files, what the manifest says of them)."""
    read = _Read(plan.domain)
    for line in lines:
        read.add(line)
    sound, withdrawn = standing(plan, read.passed)
    kept, dropped = select(sound, plan.evolved.parameters.get("per_signature", plan.per_signature), plan.similar)
    texts = {"tasks.json": listed([each.record for each in kept]), **plan.domain.files()}
    split = {name: [each.record["id"] for each in kept if name in ("base", each.cell["split"])]
             for name in ("train", "test", "base")}
    texts["split_tasks.json"] = canonical(split) + "\n"
    texts["checkers.jsonl"] = "".join(
        canonical({"id": each.record["id"], "checker": plan.domain.case(each.record).described}) + "\n" for each in kept)
    for name, text in texts.items():
        write_atomic(folder / name, text)
    card = {"tried": read.counts["plan_item"], "passed": len(read.passed), "kept": len(kept), "rejects": dict(read.rejects),
            "dropped": {**dropped, **withdrawn}, "splits": {name: len(ids) for name, ids in split.items()},
            "diversity": {**diversity(kept, len(cells(plan))), "duplicate_rate": quality.duplicates(dropped, len(sound))},
            "gates": {**quality.measured(kept), **quality.played(*read.oracle)},
            "overlap": quality.overlap(plan.domain, kept, plan.sealed), "rollouts": read.rollouts,
            "faults": dict(read.faults), "records": dict(read.counts),
            **({"proposals": read.proposals} if read.proposals else {}),
            **({"opinions": dict(sorted(read.opinions.items()))} if read.opinions else {})}
    return [folder / name for name in texts], card


def standing(plan: SynthPlan, passed: Iterable[Passed]) -> tuple[list[Passed], dict[str, int]]:
    """(tasks that what evolution has made of a plan would let pass as well, how many it would not, by reason)."""
    active, limit = {atom.id for atom in plan.active.atoms}, evolved.limits(plan.evolved)
    kept, left = [], dict.fromkeys(("QUARANTINED", "STRICTER"), 0)
    for each in passed:
        caught, total = each.measures["mutants"]
        if not active >= set(each.atoms):
            left["QUARANTINED"] += 1
        elif plan.validated and (caught < limit.killed * total or each.measures["null"] > limit.null or (
                each.measures["turns"] > limit.time * plan.domain.limit)):
            left["STRICTER"] += 1
        else:
            kept.append(each)
    return kept, left


def tasks(folder: str | Path, domain: Domain, split: str = "train") -> tuple[Task, ...]:
    """The tasks of a split in a folder that `export` wrote, checked one by one.

    Raises:
      TaskFileError: for a missing or broken file and for an unsound task; it names the field.
      ValueError: for a split that the folder does not name.
    """
    folder = Path(folder)
    records = {record["id"]: record for record in file.read(folder / "tasks.json", domain.case, "tasks.json")}
    known = splits(folder / "split_tasks.json", records)
    if split not in known:
        raise ValueError(f"split {split!r}; allowed: {', '.join(known)}")
    return tuple(Task(id=name, env=domain.env.name, data=records[name]) for name in known[split])


class _Read:
    """What the records of all shards come to."""

    def __init__(self, domain: Domain):
        self._domain = domain
        self.passed: list[Passed] = []
        self.counts: collections.Counter = collections.Counter()
        self.rejects: collections.Counter = collections.Counter()
        self.faults: collections.Counter = collections.Counter()
        self.rollouts: dict[str, list[int]] = {}     # agent -> [successes, conversations]
        self.oracle = [0, 0]                         # the same of the oracle, about tasks that passed
        self.proposals: dict[str, dict[str, Any]] = {}   # role -> outcomes, calls, tokens read and written
        self.opinions: collections.Counter = collections.Counter()    # what was said, and what execution says -> how often
        self._instance: Instance | None = None
        self._scenario: Scenario | None = None
        self._passes = False

    def add(self, line: Line) -> None:
        """The next record; those of one plan item follow one another."""
        self.counts[line["kind"]] += 1
        if line["kind"] == "plan_item":
            unwrap(line, PlanItem)
            self._instance = self._scenario = None
            self._passes = False
        elif line["kind"] == "instance":
            self._instance = unwrap(line, Instance)
        elif line["kind"] == "scenario":
            self._scenario = unwrap(line, Scenario)
        elif line["kind"] == "report":
            self._report(unwrap(line, Report))
        elif line["kind"] == "rollout":
            rollout = unwrap(line, Rollout)
            if rollout.stop != StopReason.INFRA_ERROR.value:      # counted among the faults
                tally = self.rollouts.setdefault(rollout.agent, [0, 0])
                tally[0] += rollout.success
                tally[1] += 1
                if rollout.agent == "oracle" and self._passes:
                    self.oracle = [self.oracle[0] + rollout.success, self.oracle[1] + 1]
        elif line["kind"] == "fault":
            fault = unwrap(line, Fault)
            self.faults[f"{fault.side}: {fault.label}"] += 1
        elif line["kind"] == "proposal":
            self._proposal(unwrap(line, Proposal))
        elif line["kind"] == "opinion":
            opinion = unwrap(line, Opinion)
            self.opinions[f"{opinion.about}: {opinion.says}, by execution {opinion.execution}"] += 1

    def _proposal(self, made: Proposal) -> None:
        tally = self.proposals.setdefault(made.role, {"outcomes": {}, "calls": 0, "tokens": [0, 0]})
        for name, count in made.outcomes.items():
            tally["outcomes"][name] = tally["outcomes"].get(name, 0) + count
        tally["calls"] += len(made.calls)
        tally["tokens"] = [before + more for before, more in zip(tally["tokens"], made.tokens)]

    def _report(self, report: Report) -> None:
        self._passes = not report.code
        if report.code:
            self.rejects[report.code] += 1
            return
        actions, instance = self._domain.actions, self._instance
        writes = tuple(step["tool"] for step in instance.plan if actions[step["tool"]].kind == "write")
        self.passed.append(Passed(self._scenario.record, instance.signature, instance.skeleton.cell, report.measures,
                                  writes, instance.skeleton.atoms, names_of(self._scenario.record, instance.facts)))
