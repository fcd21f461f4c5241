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
from eau_jax.report.markup import POLICY, count, folded, note, number, style, table, tag

COLUMNS = ("tasks", "episodes", "infra_errors", "score", "metric", "success", "turns", "effective_turns", "time_weighted",
           "trials")
COUNTS = {"truncated": "episodes truncated", "cut": "with a message cut off", "filtered": "with a message filtered",
          "empty": "messages empty", "judged": "messages judged", "unreadable": "judge unreadable",
          "leaked": "replies that leaked"}
SPOKE = {"llm": "replies by an LLM", "draft": "by the draft in its place"}


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
    facts = [f"player {record['player']}", f"user {_named(record['user'], record['user_identity'])}",
             f"judge {record['judge'] or 'none'}", f"{record['repeats']} per task", f"seed {record['seed']}",
             "second look" if record["second_look"] else "first look"]
    rows = [[name, *(_cell(result[column]) for column in COLUMNS)] for name, result in results.items()]
    passes, means = _passes(record), _means(record)
    counts = [[name, *(number(result[column]) for column in COUNTS), *(number(result["spoke"].get(who, 0)) for who in SPOKE)]
              for name, result in results.items()]
    bases = [[name, ", ".join(f"{basis} ({tasks})" for basis, tasks in bench["basis"].items()),
              f"up to {max(bench['floor'].values()):.2f}" if bench["floor"] else "not stated for these rules"]
             for name, bench in record["benches"].items()]
    body = [
        tag("h1", record["name"]), tag("p", " · ".join(facts), class_="dim"),
        tag("h2", "Results"), table(("benchmark", *COLUMNS), rows),
        note("Means over tasks with their 95 % bootstrap interval. Infrastructure errors are left out, never scored as 0."),
        tag("h2", "pass^k"), table(*passes),
        tag("h2", "Averages over benchmarks"), table(*means),
        tag("h2", "What else happened"),
        table(("benchmark", *COUNTS.values(), *SPOKE.values()), counts),
        *(note(remark) for remark in remarks(folder)),
        tag("h2", "What a score is made of"), table(("benchmark", "basis (tasks)", "score of an agent that does not try"), bases),
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


def results_tables(folder: str | Path) -> list[Table]:
    """For a terminal: the results, pass^k, and the averages over benchmarks where there are several."""
    one = read(folder)
    shown = Table(title=f"{one.record['name']}: {one.record['player']}" + " (second look)" * one.record["second_look"])
    for column in ("benchmark", "tasks", "score", "95 % interval", "metric", "success", "turns", "errors"):
        shown.add_column(column, justify="left" if column == "benchmark" else "right", no_wrap=True)
    for name, result in one.record["results"].items():
        score = _interval(result["score"])
        shown.add_row(name, str(result["tasks"]), number(score.mean), f"{number(score.low)} to {number(score.high)}",
                      *(number(result[what]["mean"]) for what in ("metric", "success")), number(result["turns"]),
                      str(result["infra_errors"]))
    several = sum(bench["averaged"] for bench in one.record["benches"].values()) > 1
    return [shown, _terminal("pass^k", *_passes(one.record)),
            *[_terminal("averages over benchmarks", *_means(one.record))] * several]


def _terminal(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    shown = Table(title=title)
    for place, column in enumerate(head):
        shown.add_column(column, justify="right" if place else "left")
    for row in rows:
        shown.add_row(*row)
    return shown


def _passes(record: Mapping[str, Any]) -> tuple[tuple[str, ...], list[list[str]]]:
    """pass^k by benchmark: head and rows of a table."""
    results = record["results"]
    ks = sorted({k for result in results.values() for k in result["pass^k"]}, key=int)
    rows = [[name, *(number(result["pass^k"].get(k)) for k in ks), number(result["best_of_k"])]
            for name, result in results.items()]
    return ("benchmark", *(f"pass^{k}" for k in ks), "best metric of a task"), rows


def _means(record: Mapping[str, Any]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Averages over benchmarks: head and rows of a table."""
    return ("", "micro (by tasks)", "macro"), [
        [what, number(values["micro"]), number(values["macro"])] for what, values in record["averages"].items()]


def unscored(folder: str | Path) -> list[str]:
    """Benchmarks without a single usable episode."""
    return [name for name, result in read(folder).record["results"].items() if not result["episodes"]]


def remarks(folder: str | Path) -> list[str]:
    """What a reader of the scores has to know, one line each; none where all went well."""
    lines = []
    for name, result in read(folder).record["results"].items():
        why = f", the first because: {result['first_truncated']}" if result["first_truncated"] else ""
        known = [
            (result["infra_errors"], "dropped: failed outside the agent's control, the first because: "
                                     f"{result['first_error']}"),
            (result["truncated"], f"ended where the agent's context or token budget was full; what was earned until then "
                                  f"counts{why}"),
            (result["cut"], "with a message of the agent that was cut off at its limit of tokens")]
        lines += [f"{name}: {count(episodes, 'episode')} {what}" for episodes, what in known if episodes]
        if result["unreadable"]:
            asked = result["judged"] + result["unreadable"]
            lines.append(f"{name}: {result['unreadable']} of {asked} answers of the judge could not be read; words decided")
        if result["spoke"].get("draft"):
            lines.append(f"{name}: {count(result['spoke']['draft'], 'turn')} where what the user's model wrote would not do "
                         "and the symbolic user's own words were said")
    return lines


def _named(kind: str, identity: Mapping[str, Any]) -> str:
    """A user with the models that it speaks through."""
    parts = [identity, *(identity[side] for side in ("first", "second") if side in identity)]
    models = [part["model"] for part in parts if "model" in part]
    return f"{kind} ({', '.join(models)})" if models else kind


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
    distinct = len({one.record["name"] for one in found}) == len(found)
    names = [one.record["name"] if distinct else str(one.folder) for one in found]
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
        for place, (one, name) in enumerate(zip(found, names, strict=True)):
            if bench not in one.record["results"]:
                continue
            result = _interval(one.record["results"][bench][what])
            if place == 0:
                lines.append(Comparison(bench, name, result, None, len(values[0])))
                continue
            difference, common = paired(values[0], values[place])
            if not common:
                raise ValueError(f"{names[0]} and {name} have no task of {bench!r} in common; compare evaluations of one "
                                 "test")
            lines.append(Comparison(bench, name, result, difference, common))
    return lines


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
