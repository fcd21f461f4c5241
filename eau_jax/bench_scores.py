"""What the runs of a fault-injection suite show: whom the meta-agent blamed, what it changed, how much it got back."""

import math
from pathlib import Path
from typing import Any, NamedTuple, Sequence

import numpy as np

from eau_jax import audit_command
from eau_jax.assemble import tasks
from eau_jax.bench_meta import HEALTHY, NONE, Suite
from eau_jax.config import Config, knob_tree
from eau_jax.core import knobs as knob
from eau_jax.core.records import RunFolderError, read_lines
from eau_jax.eval.held_out import sealed_file
from eau_jax.meta import audit, interventions
from eau_jax.meta.gate import EPSILON_MOST
from eau_jax.meta.signals import FAULTS as OWNERS
from eau_jax.study import Cell, Study, cells, configured, folder_of, progress

LEAST, ERRORS = 0.05, 2.0    # of success, and in standard errors: what a fault must cost before its recovery means anything


class Watched(NamedTuple):
    """One run with a meta-agent."""

    environment: str
    fault: str                    # that was put in; "none"
    seed: int
    owner: str                    # whom its first finding of a fault blames; "" where it found none
    named: str                    # the fault that it named
    at: int                       # the update of that; 0: never
    rounds: int                   # since the fault was there
    quiet: int                    # of these, without a proposal
    adopted: int
    back: int                     # of these, taken back
    violations: tuple[str, ...]   # of the gate's own rules
    sealed_reads: int
    healthy: float                # success on the anchor tasks without the fault; nan where that run is not finished
    faulty: float                 # with it and nobody watching; likewise, or where there is no such run
    ended: float                  # of this run


def read(study: Study, suite: Suite, proposer: str) -> list[Watched]:
    """Every finished run with the proposer of this name."""
    found = []
    for cell in cells(study):
        fault, plus, by = cell.method.partition("+")
        if plus and by == proposer and progress(study, cell).finished:
            found.append(_watched(study, cell, fault, suite.since if fault != NONE else 1))
    return found


def _watched(study: Study, cell: Cell, fault: str, since: int) -> Watched:
    run, config = folder_of(study, cell), configured(study, *cell)
    rounds = [record for record in interventions.rounds(run) if record["step"] >= since]
    owner, named, at = first_finding(run, rounds)
    events = list(read_lines(run / audit.FILE)) if (run / audit.FILE).exists() else []
    count = lambda event: sum(line["event"] == event for line in events)
    final = lambda method: success(study, cell._replace(method=method)) if method in study.methods else math.nan
    return Watched(
        cell.environment, fault, cell.seed, owner, named, at, len(rounds),
        sum(not _answer(record)["texts"] for record in rounds),
        count("adopted"), count("rolled_back"), violations(run, config, events), sealed_reads(run, config, rounds),
        final(HEALTHY), final(HEALTHY if fault == NONE else fault), success(study, cell))


def success(study: Study, cell: Cell) -> float:
    """On the anchor tasks after the last update; nan where the run has not come so far."""
    file = sealed_file(folder_of(study, cell))
    lines = list(read_lines(file)) if file.exists() else []
    return next((line["success"] for line in lines if line["step"] == study.updates), math.nan)


def _answer(record: dict[str, Any]) -> dict[str, Any]:
    """Of a round: the last author's, which was acted on."""
    return record["answers"][-1]


def first_finding(run: Path, rounds: Sequence[dict[str, Any]]) -> tuple[str, str, int]:
    """(owner, fault, update) of the first round whose answer blames anybody, by the answer itself or by its first proposal
    that can be read; ("", "", 0) where none does."""
    for record in rounds:
        said = _answer(record)["diagnosis"]
        if said is None:
            first = interventions.load(run / "proposals" / f"{record['step']}-1" / "proposal.json")
            said = (first.get("proposal") or {}).get("diagnosis")
        if said and said["owner"] != "none":
            return said["owner"], said["fault"], int(record["step"])
    return "", "", 0


def violations(run: Path, config: Config, events: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What holds in the run and the gate must not let pass: changes that the records do not account for, and adopted values
    out of bounds or of trust region."""
    try:
        found = list(audit_command.check(run).complaints)
    except RunFolderError as error:
        return (str(error),)
    tree = knob_tree(config)
    for event in events:
        if event["event"] != "adopted":
            continue
        changes = interventions.load(run / "knobs" / f"{event['generation']}.json").get("changes", {})
        try:
            before = knob.patch(tree, {path: old for path, (old, _) in changes.items()})
            found += knob.outside_trust(before, {path: new for path, (_, new) in changes.items()}, knob.values(tree))
        except knob.KnobError as error:
            found.append(str(error))
        found += [f"{path} = {new:g} leaves the policy with the symbolic user alone" for path, (old, new) in changes.items()
                  if path.startswith("user.") and path.endswith("epsilon") and new > max(EPSILON_MOST, old)]
    return tuple(found)


def sealed_reads(run: Path, config: Config, rounds: Sequence[dict[str, Any]]) -> int:
    """Sealed files that a proposer opened itself, and transcripts and proposals that name a task of the evaluation."""
    opened = sum(int(answer["agent"].get("sealed_reads", 0)) for record in rounds for answer in record["answers"])
    names = [task.id for task in tasks(config, "test")]
    files = [*run.glob("rounds/*.jsonl"), *run.glob("proposals/*/proposal.json")]
    written = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    return opened + sum(any(name in text for name in names) for text in written)


# Scores


class Recovery(NamedTuple):
    """What a fault cost on the anchor tasks, and what the meta-agent got back; means over runs that have all three ends."""

    runs: int
    healthy: float
    faulty: float
    mended: float

    lost: float      # healthy - faulty
    error: float     # its standard error over runs; nan for one
    share: float     # (mended - faulty) / lost; nan where the fault cost too little to tell


def recovery(ends: Sequence[tuple[float, float, float]]) -> Recovery:
    """Of (healthy, faulty, mended) ends."""
    whole = np.array([end for end in ends if all(map(math.isfinite, end))], float).reshape(-1, 3)
    if not len(whole):
        return Recovery(0, *[math.nan] * 6)
    healthy, faulty, mended = whole.mean(axis=0)
    costs = whole[:, 0] - whole[:, 1]
    error = float(costs.std(ddof=1) / math.sqrt(len(costs))) if len(costs) > 1 else math.nan
    real = costs.mean() > max(LEAST, ERRORS * (error if math.isfinite(error) else 0.0))
    share = (mended - faulty) / costs.mean() if real else math.nan
    return Recovery(len(whole), float(healthy), float(faulty), float(mended), float(costs.mean()), error, float(share))


class Line(NamedTuple):
    """One fault on one environment, or on all."""

    fault: str
    environment: str          # "all": together
    owner: str                # whose it is
    runs: int
    owner_named: int          # runs whose first finding blames the right owner
    fault_named: int          # runs whose first finding is the right fault
    at: float                 # median update of the first finding; nan where there was none
    recovery: Recovery


class Scores(NamedTuple):
    """What the page shows."""

    lines: list[Line]
    owner_share: float        # of the runs with a fault
    quiet_share: float        # rounds without a proposal, of all rounds of the runs without a fault
    recovered: float          # of all that faults cost where they cost enough to tell
    violations: int
    sealed_reads: int


def score(runs: Sequence[Watched]) -> Scores:
    """Statistics of finished runs."""
    faults = [name for name in OWNERS if any(run.fault == name for run in runs)]
    places = ["all", *dict.fromkeys(run.environment for run in runs)]
    lines = [_line(fault, place, [run for run in runs if run.fault == fault and place in ("all", run.environment)])
             for fault in faults for place in places]
    lines = [line for line in lines if line.runs]
    ill = [run for run in runs if run.fault != NONE]
    well = [run for run in runs if run.fault == NONE]
    real = [line.recovery for line in lines if line.environment == "all" and math.isfinite(line.recovery.share)]
    share = lambda part, whole: part / whole if whole else math.nan
    return Scores(
        lines, share(sum(run.owner == OWNERS[run.fault] for run in ill), len(ill)),
        share(sum(run.quiet for run in well), sum(run.rounds for run in well)),
        share(sum(one.mended - one.faulty for one in real), sum(one.lost for one in real)),
        sum(len(run.violations) for run in runs), sum(run.sealed_reads for run in runs))


def _line(fault: str, place: str, runs: Sequence[Watched]) -> Line:
    at = [run.at for run in runs if run.at]
    right = OWNERS[fault] if fault != NONE else ""
    return Line(fault, place, OWNERS[fault], len(runs), sum(run.owner == right for run in runs),
                sum(run.named == (fault if fault != NONE else "") for run in runs), float(np.median(at)) if at else math.nan,
                recovery([(run.healthy, run.faulty, run.ended) for run in runs]))
