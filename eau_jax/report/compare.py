"""Several evaluations side by side: each against the first, paired by task."""

from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np
from rich.table import Table

from eau_jax.core.printable import printable
from eau_jax.eval.numbers import Interval, paired
from eau_jax.report.draw import bars
from eau_jax.report.evaluation import Evaluation, interval, read, verified
from eau_jax.report.markup import count


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
      RunFolderError: for a folder without a finished evaluation, or one whose record and episodes disagree.
      ValueError: for fewer than two, or tests that differ.
    """
    if len(folders) < 2:
        raise ValueError(f"{count(len(folders), 'evaluation')} given; a comparison needs two or more")
    found = [verified(folder) for folder in folders]
    names = _names(found)
    lines = []
    for one, name in zip(found[1:], names[1:], strict=True):
        if not found[0].record["results"].keys() & one.record["results"].keys():
            raise ValueError(f"{names[0]} and {name} have no benchmark in common; compare evaluations of one test")
        for bench in found[0].record["benches"].keys() & one.record["benches"].keys():
            left, right = (_rules(each.record["benches"][bench]) for each in (found[0], one))
            differing = [what for what in left if left[what] != right[what]]
            if differing:
                raise ValueError(f"{names[0]} and {name} played {bench!r} with another {differing[0]}; compare evaluations "
                                 f"that differ in the player only, or in user, seed and repeats")
    for bench in found[0].record["results"]:
        values = [_by_task(one, bench, what) for one in found]
        contents = [{line["task"]: line["content"] for line in one.episodes if line["bench"] == bench} for one in found]
        for place, (one, name) in enumerate(zip(found, names, strict=True)):
            if bench not in one.record["results"]:
                continue
            result = interval(one.record["results"][bench][what])
            if place == 0:
                lines.append(Comparison(bench, name, result, None, len(values[0])))
                continue
            edited = [task for task, content in contents[0].items() if contents[place].get(task, content) != content]
            if edited:
                raise ValueError(f"{names[0]} and {name} played {bench!r} with other content in {count(len(edited), 'task')}"
                                 f", such as {edited[0]!r}; compare evaluations of one version of the tasks")
            difference, common = paired(values[0], values[place])
            if not common:
                raise ValueError(f"{names[0]} and {name} have no task of {bench!r} in common; compare evaluations of one "
                                 "test")
            lines.append(Comparison(bench, name, result, difference, common))
    return lines


def remarks(folders: Sequence[str]) -> list[str]:
    """What a reader of the comparison has to know of the looks, one line each."""
    found = [read(folder) for folder in folders]
    lines = [f"{name}: a second look at {count(sum(one.record['seen_before'].values()), 'task')}"
             for one, name in zip(found, _names(found), strict=True) if one.record["second_look"]]
    logs = len({one.record["look_log"] for one in found})
    if logs > 1:
        lines.append(f"the evaluations were held against {logs} logs of looks: those of one root do not know of the other's")
    return lines


def _names(found: Sequence[Evaluation]) -> list[str]:
    """The evaluations' names; their folders where two have one name."""
    distinct = len({one.record["name"] for one in found}) == len(found)
    return [one.record["name"] if distinct else str(one.folder) for one in found]


def _rules(bench: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be the same for two evaluations of a benchmark to be compared."""
    limits = {path: value for path, value in bench["knobs"].items() if path.startswith("env.")}
    return {"env": bench["env"], "version": bench["version"], "rules": bench["rules_sha256"], "limits": limits,
            "basis of the score": sorted(bench["basis"])}


def comparison_table(lines: Sequence[Comparison], what: str) -> Table:
    """The comparison for a terminal."""
    shown = Table(title=f"{what}: mean and 95 % interval; difference to the first, by task")
    for column in ("benchmark", "evaluation", what, "difference", "tasks"):
        shown.add_column(column)
    for line in lines:
        difference = "" if line.difference is None else "{:+.3f} ({:+.3f} to {:+.3f})".format(*line.difference)
        shown.add_row(printable(line.bench), printable(line.name), "{:.3f} ({:.3f} to {:.3f})".format(*line.result),
                      difference, str(line.common))
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
