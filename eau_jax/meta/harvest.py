"""From a run folder to the experience pool: what was changed in it and what that did.

Only training-side records are read: metrics.jsonl, proposals/, rounds/, audit.jsonl, knobs/, rules/, config.json and
manifest.json. What failed is kept as what it is: advice to leave it alone.
"""

import dataclasses
import hashlib
import io
import json
import math
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from eau_jax.core.knobs import OWNERS
from eau_jax.core.records import RunFolderError, check
from eau_jax.meta import audit, effect, interventions
from eau_jax.meta.interventions import BEHAVIOUR, Intervention, anchors, around, load
from eau_jax.meta.lesson import EXPIRES_AFTER, MOST_SAID, Case, Lesson
from eau_jax.meta.pool import Contents, Pool, Run

MARGIN, ERRORS = 0.05, 2.0   # by which two runs must differ on the anchor tasks, absolute and in standard errors
LONGER = 1.25                # runs whose updates differ by a larger factor do not compare
TOLD = 12                    # changes that a summary tells
Clean = Callable[[str], str]


class Remedy(NamedTuple):
    """Why a run was ended early, and what the next one begins with."""

    fault: str
    why: str
    owner: str = ""                                     # "": nothing that a run can change mends it
    changes: Mapping[str, tuple[float, float]] = {}
    task_mix: Mapping[str, tuple[float, float]] = {}
    rules: str = ""


class Cost(NamedTuple):
    """What a run has used."""

    training: int       # episodes that could be learned from
    failed: int         # episodes that failed outside the agent's control
    canary: int         # episodes under a change that was tried
    anchor: int         # episodes on the anchor tasks
    causal: int         # episodes of causal tests
    tokens: int         # of training episodes, prompts and replies included
    agent_tokens: int   # of the meta-agent's language model
    agent_cost: float   # US dollars, as far as it says

    @property
    def episodes(self) -> int:
        """In all."""
        return self.training + self.failed + self.canary + self.anchor + self.causal


def harvest(run: Path, pool: Pool, name: str = "", started_from: Sequence[str] = (),
            remedy: Remedy | None = None) -> Contents:
    """Adds what a run found out to a pool; once more changes only what the run has added since.

    Args:
      run: the run folder, finished or not.
      name: of the run in the pool; "": the folder's.
      started_from: lessons that the run's first settings came from. They gain or lose by its success on the anchor tasks
        against that of earlier runs, and lose where the run had to be ended for the fault that they should have mended.
      remedy: why the run was ended early.

    Raises:
      RunFolderError: for a broken record, or an audit file that was tampered with; DocumentError: for what the pool refuses.
    """
    if (run / audit.FILE).is_file():
        audit.verify(run / audit.FILE)
    rows, found = interventions.rows(run), interventions.read(run)
    about = _about(run, name or run.name, rows, started_from, pool.clean(remedy.why) if remedy else "")
    lessons = [made for one in found for made in _lessons(about, one, pool.clean)]
    if remedy is not None and remedy.owner:
        case = Case("untried", about.name, "restart", about.stopped[:MOST_SAID])
        lessons.append(Lesson("", about.env, remedy.fault, remedy.owner, "do", (case,), dict(remedy.changes),
                              dict(remedy.task_mix), remedy.rules, about.backbone, about.name))
    lessons += _votes(about, pool.read(), started_from, remedy)
    schedule = [swap | {"rules": pool.clean(swap["rules"])} for swap in interventions.schedule(run)]
    files = {"summary": pool.clean(_summary(about, found)), "schedule.json": json.dumps(schedule, indent=1) + "\n",
             "interventions.csv": effect.write(map(_row(rows, pool.clean), found)), "anchor_curve.csv": _curve(rows)}
    if about.stopped:
        files["why_stopped.md"] = about.stopped + "\n"
    return pool.add(about, files, lessons)


def cost(run: Path) -> Cost:
    """What a run has used so far."""
    rows = interventions.rows(run)
    training, failed, canary, anchor, causal = map(sum, zip(*map(played, rows))) if rows else [0] * 5
    agents = [answer["agent"] for record in interventions.rounds(run) for answer in record["answers"]]
    return Cost(training, failed, canary, anchor, causal,
                round(sum(_value(row, "rollout/episodes") * _value(row, "rollout/tokens_mean") for row in rows)),
                round(sum(_value(agent, "tokens") for agent in agents)), sum(_value(agent, "cost") for agent in agents))


def played(row: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    """Episodes of one update, by a row of metrics.jsonl: those that could be learned from, those that failed outside the
    agent's control, and those of a canary, of the anchor tasks and of causal tests. What the gate does with scripted agents
    and recorded episodes is not among them."""
    usable, lost = _value(row, "rollout/episodes"), _value(row, "rollout/infra_rate")
    failed = usable * lost / (1 - lost) if lost < 1 else 0.0
    beside = (round(_value(row, f"meta/{purpose}_episodes")) for purpose in ("canary", "anchor", "causal"))
    return round(usable), round(failed), *beside


def _value(row: Mapping[str, Any], name: str) -> float:
    """0 where it is missing or not finite."""
    return float(row[name]) if isinstance(row.get(name), (int, float)) and math.isfinite(row[name]) else 0.0


def backbone(model: Mapping[str, Any]) -> str:
    """A name for the starting model, by the section `model` of a config: its folder's, or the shape of a new one."""
    return Path(model["folder"]).name or f"new {model['num_layers']}x{model['d_model']}"


def success(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """On the anchor tasks: mean of the first third of their plays, of the last third, and that one's standard error; -1
    where they were never played. In every run of a config they are the same tasks under the same settings, so these compare.
    """
    found = anchors(rows)
    if not found:
        return -1.0, -1.0, 0.0
    third = -(-len(found) // 3)
    means = []
    for part in (found[:third], found[-third:]):
        weights = np.array([max(episodes, 1) for _, _, episodes in part], float)
        means.append(float((weights * [success for _, success, _ in part]).sum() / weights.sum()))
    return means[0], means[1], math.sqrt(means[1] * (1 - means[1]) / weights.sum())


def _about(run: Path, name: str, rows: Sequence[Mapping[str, Any]], started_from: Sequence[str], stopped: str) -> Run:
    config, manifest = load(run / "config.json"), load(run / "manifest.json")
    if not config or not manifest:
        raise RunFolderError(f"{run} is no run folder: config.json or manifest.json is missing; give the folder that "
                             f"`train` wrote")
    check(config, {"env": (str, dict), "model": {"folder": str}}, str(run / "config.json"))
    used = cost(run)
    first, last, error = success(rows)
    source = hashlib.sha256((run / "manifest.json").read_bytes()).hexdigest()[:16]
    env = config["env"]["name"] if isinstance(config["env"], dict) else config["env"]   # with the fingerprint of its code
    return Run(name, str(env), str(manifest.get("created", "")), source, backbone(config["model"]),
               int(config.get("seed", 0)), int(rows[-1]["step"]) if rows else 0, round(first, 6), round(last, 6),
               round(error, 6), used.episodes, used.tokens, used.agent_tokens, tuple(started_from), stopped)


def _lessons(about: Run, one: Intervention, clean: Clean) -> Iterable[Lesson]:
    """What one proposal shows: that it helped, that it hurt, or that the gate found something wrong with what it does."""
    unknown = any(math.isnan(old) for old, _ in [*one.changes.values(), *one.task_mix.values()])
    if unknown or one.owner not in OWNERS or clean(one.rules) != one.rules:
        return
    if one.status == "deferred":   # the next run begins with it
        yield Lesson("", about.env, one.fault, one.owner, "do", (Case("untried", about.name, one.audit[:16] or one.id,
                                                                     clean(one.why)[:MOST_SAID]),), dict(one.changes),
                     dict(one.task_mix), one.rules, about.backbone, about.name)
        return
    result = one.verdict.get("result")
    bad = one.status == "rolled_back" or (one.failed is not None and one.failed.stage in BEHAVIOUR)
    if not bad and not (one.status == "kept" and result == "helpful"):
        return    # refused for its form or its time, still on its way, or nothing could be told
    case = Case("helpful", about.name, one.audit[:16] or one.id, clean(one.reason)[:MOST_SAID])
    yield Lesson("", about.env, one.fault, one.owner, "avoid" if bad else "do", (case,), dict(one.changes),
                 dict(one.task_mix), one.rules, about.backbone, about.name, 0 if bad else EXPIRES_AFTER)


def _votes(about: Run, contents: Contents, started_from: Sequence[str], remedy: Remedy | None) -> list[Lesson]:
    """The lessons that the run began with, each with what the run shows of it."""
    earlier = [run for run in contents.runs if (run.env, run.backbone) == (about.env, about.backbone)
               and (run.created, run.name) < (about.created, about.name) and run.anchor_last >= 0
               and max(run.updates, about.updates) <= LONGER * min(run.updates, about.updates)]
    votes: list[Lesson] = []
    best = max(earlier, key=lambda run: run.anchor_last, default=None)
    for one in contents.lessons:
        if one.id not in started_from:
            continue
        case = None
        if remedy is not None and remedy.fault == one.fault:
            case = Case("harmful", about.name, "restart", f"a run that began with it was ended: {about.stopped}"[:MOST_SAID])
        elif best is not None and about.anchor_last >= 0 and not remedy:
            gap, noise = about.anchor_last - best.anchor_last, math.hypot(about.anchor_error, best.anchor_error)
            if abs(gap) > max(MARGIN, ERRORS * noise):
                said = (f"a run that began with it reached {about.anchor_last:.3f} on the anchor tasks, the best one before "
                        f"it {best.anchor_last:.3f}")
                case = Case("helpful" if gap > 0 else "harmful", about.name, "anchor_curve", said)
        if case:
            votes.append(dataclasses.replace(one, id="", cases=(case,), text="", last_used_run=about.name))
    return votes


def _row(rows: Sequence[Mapping[str, Any]], clean: Clean) -> Callable[[Intervention], dict[str, Any]]:
    """The line of interventions.csv about one proposal."""
    found = anchors(rows)

    def line(one: Intervention) -> dict[str, Any]:
        before, under = around(found, one)
        return {"id": one.id, "author": one.author, "step": one.since or one.step, "ended": one.ended, "owner": one.owner,
                "fault": one.fault, "moves": "; ".join(one.moves), "changes": json.dumps(one.changes),
                "task_mix": json.dumps(one.task_mix), "status": one.status, "reason": clean(one.reason),
                "metric": one.prediction.get("metric", ""), "direction": one.prediction.get("direction", ""),
                "min_effect": one.prediction.get("min_effect", ""), "before": _known(one.verdict.get("before")),
                "after": _known(one.verdict.get("after")), "floor": _known(one.verdict.get("floor")),
                "result": one.verdict.get("result", ""), "anchor_before": before, "anchor_after": under,
                "audit": one.audit[:16]}

    return line


def _known(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _summary(about: Run, found: Sequence[Intervention]) -> str:
    lines = [f"{about.updates} updates on {about.env}." + (f" Ended early: {about.stopped}" if about.stopped else "")]
    if about.anchor_first >= 0:
        lines.append(f"Success on the anchor tasks went from {about.anchor_first:.3f} to {about.anchor_last:.3f}.")
    told = [one for one in found if one.status not in ("refused", "unreadable")]
    lines += [f"- {one.id}, update {one.since or one.step}, {one.fault}: {one.told}; {one.status}"
              + (f", {one.verdict['result']}: {one.reason}" if one.verdict else "") for one in told[-TOLD:]]
    refused = [one for one in found if one.status in ("refused", "unreadable")]
    lines += [f"- {one.id} was refused: {one.reason}" for one in refused[-TOLD:]]
    return "\n".join(lines if told or refused else [*lines, "Nothing was proposed."])


def _curve(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    text.write("step,generation,success,episodes\n")
    generations = {int(row["step"]): row.get("generation", 0) for row in rows}
    for step, value, episodes in anchors(rows):
        text.write(f"{step},{generations[step]},{value:.6g},{episodes}\n")
    return text.getvalue()
