"""The page of an evaluation, and several evaluations side by side. Reads record.json and episodes.jsonl of their folders."""

import json
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np
from rich.table import Table

from eau_jax.core.records import RunFolderError, read_lines, write_atomic
from eau_jax.eval.numbers import Interval, paired
from eau_jax.report.dialogue import ranked
from eau_jax.report.draw import bars
from eau_jax.report.markup import POLICY, folded, note, number, style, table, tag

COLUMNS = ("tasks", "episodes", "infra_errors", "score", "metric", "success", "turns", "effective_turns", "time_weighted", "trials")


class Evaluation(NamedTuple):
    """One finished evaluation."""

    folder: Path
    record: Mapping[str, Any]
    episodes: tuple[Mapping[str, Any], ...]   # the last line of each episode


def read(folder: str | Path) -> Evaluation:
    """A finished evaluation.

    Raises:
      RunFolderError: for a folder that holds none, or an unfinished one.
    """
    folder = Path(folder)
    if not (folder / "record.json").is_file():
        raise RunFolderError(f"{folder} holds no finished evaluation (no record.json); run or finish it with eau-jax eval")
    last = {(line["bench"], line["row"], line["repeat"]): line for line in read_lines(folder / "episodes.jsonl")}
    return Evaluation(folder, json.loads((folder / "record.json").read_text(encoding="utf-8")), tuple(last.values()))


def write_page(folder: str | Path) -> Path:
    """Writes report.html and score.png beside the record."""
    one = read(folder)
    record, results = one.record, one.record["results"]
    facts = [f"player {record['player']}", f"user {record['user']}", f"judge {record['judge'] or 'none'}",
             f"{record['repeats']} per task", f"seed {record['seed']}", "second look" if record["second_look"] else "first look"]
    rows = [[name, *(_cell(result[column]) for column in COLUMNS)] for name, result in results.items()]
    ks = sorted({k for result in results.values() for k in result["pass^k"]}, key=int)
    passes = [[name, *(number(result["pass^k"].get(k)) for k in ks), number(result["best_of_k"])]
              for name, result in results.items()]
    means = [[what, number(values["micro"]), number(values["macro"])] for what, values in record["averages"].items()]
    body = [
        tag("h1", record["name"]), tag("p", " · ".join(facts), class_="dim"),
        tag("h2", "Results"), table(("benchmark", *COLUMNS), rows),
        note("Means over tasks with their 95 % bootstrap interval. Infrastructure errors are left out, never scored as 0."),
        tag("h2", "pass^k"), table(("benchmark", *(f"pass^{k}" for k in ks), "best metric of a task"), passes),
        tag("h2", "Averages over benchmarks"), table(("", "micro (by tasks)", "macro"), means),
        tag("h2", "Dialogues"),
        *(part for name in results for part in
          (tag("h3", name), *ranked([line for line in one.episodes if line["bench"] == name]))),
        tag("h2", "Record"), folded("record.json", tag("pre", json.dumps(record, indent=1))),
    ]
    head = tag("head", tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
               tag("title", f"{record['name']}: evaluation"), style())
    write_atomic(one.folder / "report.html", "<!doctype html>\n" + tag("html", head, tag("body", *body), lang="en") + "\n")
    bars({record["player"]: {name: _interval(result["score"]) for name, result in results.items()}}, "score",
         one.folder / "score.png")
    return one.folder / "report.html"


def results_table(folder: str | Path) -> Table:
    """The results for a terminal."""
    one = read(folder)
    shown = Table(title=f"{one.record['name']}: {one.record['player']}" + " (second look)" * one.record["second_look"])
    for column in ("benchmark", "tasks", "score", "95 % interval", "metric", "success", "turns", "errors"):
        shown.add_column(column, justify="left" if column == "benchmark" else "right", no_wrap=True)
    for name, result in one.record["results"].items():
        score = _interval(result["score"])
        shown.add_row(name, str(result["tasks"]), number(score.mean), f"{number(score.low)} to {number(score.high)}",
                      *(number(result[what]["mean"]) for what in ("metric", "success")), number(result["turns"]),
                      str(result["infra_errors"]))
    return shown


def unscored(folder: str | Path) -> list[str]:
    """Benchmarks without a single usable episode."""
    return [name for name, result in read(folder).record["results"].items() if not result["episodes"]]


def first_errors(folder: str | Path) -> dict[str, str]:
    """Why episodes were dropped, by benchmark that has such."""
    results = read(folder).record["results"]
    return {name: result["first_error"] for name, result in results.items() if result["first_error"] is not None}


class Comparison(NamedTuple):
    """One line of a comparison."""

    bench: str
    name: str           # of the evaluation
    result: Interval
    difference: Interval | None   # to the first evaluation, on the tasks that both have; None for the first itself
    common: int


def compare(folders: Sequence[str], what: str = "score") -> list[Comparison]:
    """Evaluations side by side: each against the first, paired by task.

    Raises:
      RunFolderError: for a folder without a finished evaluation; ValueError: for fewer than two, or tests that differ.
    """
    if len(folders) < 2:
        raise ValueError(f"{len(folders)} evaluation given; a comparison needs two or more")
    found = [read(folder) for folder in folders]
    names = [one.record["name"] if len({o.record["name"] for o in found}) == len(found) else str(one.folder) for one in found]
    lines = []
    for one, name in zip(found[1:], names[1:], strict=True):
        if not found[0].record["results"].keys() & one.record["results"].keys():
            raise ValueError(f"{names[0]} and {name} have no benchmark in common; compare evaluations of one test")
        for bench in found[0].record["benches"].keys() & one.record["benches"].keys():
            left, right = (_rules(each.record["benches"][bench]) for each in (found[0], one))
            differing = [what for what in left if left[what] != right[what]]
            if differing:
                raise ValueError(f"{names[0]} and {name} played {bench!r} with another {differing[0]}; compare evaluations that "
                                 f"differ in the player only, or in user, judge, seed and repeats")
    for bench in found[0].record["results"]:
        values = [_by_task(one, bench, what) for one in found]
        for place, (one, name) in enumerate(zip(found, names, strict=True)):
            if bench not in one.record["results"]:
                continue
            result = _interval(one.record["results"][bench][what])
            if place == 0:
                lines.append(Comparison(bench, name, result, None, len(values[0])))
                continue
            difference, common = paired(values[0], values[place])
            if not common:
                raise ValueError(f"{names[0]} and {name} have no task of {bench!r} in common; compare evaluations of one test")
            lines.append(Comparison(bench, name, result, difference, common))
    return lines


def _rules(bench: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be the same for two evaluations of a benchmark to be compared."""
    limits = {path: value for path, value in bench["knobs"].items() if path.startswith("env.")}
    return {"env": bench["env"], "version": bench["version"], "rules": bench["rules_sha256"], "limits": limits}


def comparison_table(lines: Sequence[Comparison], what: str) -> Table:
    """The comparison for a terminal."""
    shown = Table(title=f"{what}: mean and 95 % interval; difference to the first, by task")
    for column in ("benchmark", "evaluation", what, "difference", "tasks"):
        shown.add_column(column)
    for line in lines:
        difference = "" if line.difference is None else "{:+.3f} ({:+.3f} to {:+.3f})".format(*line.difference)
        shown.add_row(line.bench, line.name, "{:.3f} ({:.3f} to {:.3f})".format(*line.result), difference, str(line.common))
    return shown


def plot(lines: Sequence[Comparison], what: str, path: Path) -> Path:
    """The comparison as bars with intervals."""
    groups: dict[str, dict[str, Interval]] = {}
    for line in lines:
        groups.setdefault(line.name, {})[line.bench] = line.result
    return bars(groups, what, path)


def _by_task(one: Evaluation, bench: str, what: str) -> dict[str, float]:
    scores: dict[str, list[float]] = {}
    for line in one.episodes:
        if line["bench"] == bench and line["usable"]:
            scores.setdefault(line["task"], []).append(float(line[what]))
    return {task: float(np.mean(values)) for task, values in scores.items()}


def _interval(values: Mapping[str, Any]) -> Interval:
    return Interval(*(float("nan") if values[name] is None else values[name] for name in Interval._fields))


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{number(value['mean'])} ({number(value['low'])} to {number(value['high'])})"
    return number(value)
