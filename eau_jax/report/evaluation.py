"""The page of an evaluation and its tables for a terminal. Reads record.json and episodes.jsonl of its folder."""

import json
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from rich.table import Table

from eau_jax.core.printable import printable
from eau_jax.core.records import RunFolderError, check, read_json, read_lines, write_atomic
from eau_jax.eval.numbers import Interval
from eau_jax.eval.summary import EPISODE, disagreement
from eau_jax.report.dialogue import ranked
from eau_jax.report.draw import bars
from eau_jax.report.markup import POLICY, count, folded, note, number, style, table, tag

COLUMNS = ("tasks", "episodes", "infra_errors", "score", "metric", "success", "turns", "effective_turns", "time_weighted",
           "trials")
COUNTS = {"truncated": "episodes truncated", "cut": "with a message cut off", "filtered": "with a message filtered",
          "empty": "messages empty", "judged": "messages judged", "unreadable": "judge unreadable",
          "leaked": "replies that leaked"}
SPOKE = {"llm": "replies by an LLM", "draft": "by the draft in its place"}
_BENCH = {"env": str, "version": str, "rules_sha256": str, "averaged": bool, "knobs": {}, "changed": {"*": [object]},
          "basis": {"*": int}, "floor": (dict, type(None))}
RECORD = {"name": str, "player": str, "user": str, "user_identity": {}, "judge": (str, type(None)), "repeats": int,
          "seed": int, "benches": {"*": _BENCH}, "results": {}, "averages": {}, "second_look": bool, "seen_before": {"*": int},
          "training_looks": {"*": int}, "look_log": str}


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
    record, file = read_json(folder / "record.json"), folder / "episodes.jsonl"
    check(record, RECORD, str(folder / "record.json"))
    if not file.is_file():
        raise RunFolderError(f"{file} is missing; restore it from a copy, or delete {folder} and evaluate again")
    last = {}
    for number_, line in enumerate(read_lines(file), start=1):
        check(line, EPISODE, f"{file}, record {number_}")
        last[line["bench"], line["row"], line["repeat"]] = line
    return Evaluation(folder, record, tuple(last.values()))


def verified(folder: str | Path) -> Evaluation:
    """A finished evaluation whose record says what its episodes give.

    Raises:
      RunFolderError: as in `read`, and for a number of record.json that does not follow from episodes.jsonl.
    """
    one = read(folder)
    if wrong := disagreement(one.record, one.episodes):
        raise RunFolderError(f"{folder}: record.json and episodes.jsonl disagree: {wrong}; restore both from a copy, or, "
                             "where the evaluation was stopped while it went on, finish it with the same eau-jax eval")
    return one


def write_page(folder: str | Path) -> Path:
    """Writes report.html and score.png beside the record."""
    one = verified(folder)
    record, results = one.record, one.record["results"]
    facts = [f"player {record['player']}", f"user {_named(record['user'], record['user_identity'])}",
             f"judge {record['judge'] or 'none'}", f"{record['repeats']} per task", f"seed {record['seed']}",
             _look(record)]
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
        tag("h2", "What a score is made of"),
        table(("benchmark", "basis (tasks)", "score of an agent that does not try"), bases),
        tag("h2", "Dialogues"),
        *(part for name in results for part in
          (tag("h3", name), *ranked([line for line in one.episodes if line["bench"] == name]))),
        tag("h2", "Record"), folded("record.json", tag("pre", json.dumps(record, indent=1))),
    ]
    head = tag("head", tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
               tag("title", f"{record['name']}: evaluation"), style())
    write_atomic(one.folder / "report.html", "<!doctype html>\n" + tag("html", head, tag("body", *body), lang="en") + "\n")
    bars({record["player"]: {name: interval(result["score"]) for name, result in results.items()}}, "score",
         one.folder / "score.png")
    return one.folder / "report.html"


def results_tables(folder: str | Path) -> list[Table]:
    """For a terminal: the results, pass^k, and the averages over benchmarks where there are several."""
    one = read(folder)
    second = f" ({_look(one.record)})" if one.record["second_look"] else ""
    shown = Table(title=printable(f"{one.record['name']}: {one.record['player']}{second}"))
    for column in ("benchmark", "tasks", "score", "95 % interval", "metric", "success", "turns", "errors"):
        shown.add_column(column, justify="left" if column == "benchmark" else "right", no_wrap=True)
    for name, result in one.record["results"].items():
        score = interval(result["score"])
        shown.add_row(printable(name), str(result["tasks"]), number(score.mean),
                      f"{number(score.low)} to {number(score.high)}",
                      *(number(result[what]["mean"]) for what in ("metric", "success")), number(result["turns"]),
                      str(result["infra_errors"]))
    several = sum(bench["averaged"] for bench in one.record["benches"].values()) > 1
    return [shown, _terminal("pass^k", *_passes(one.record)),
            *[_terminal("averages over benchmarks", *_means(one.record))] * several]


def _look(record: Mapping[str, Any]) -> str:
    """First look, or second one and at how much."""
    seen = sum(record["seen_before"].values())
    return f"second look at {count(seen, 'task')}" if record["second_look"] else "first look"


def _terminal(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    shown = Table(title=title)
    for place, column in enumerate(head):
        shown.add_column(column, justify="right" if place else "left")
    for row in rows:
        shown.add_row(*map(printable, row))
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
    lines, record = [], read(folder).record
    for name, result in record["results"].items():
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
        if times := record["training_looks"].get(name):
            lines.append(f"{name}: training was evaluated on these tasks, or some of them, {count(times, 'time')} before; "
                         "what was chosen by those results is flattered by this one")
        if changed := record["benches"][name]["changed"]:
            used, own = (", ".join(f"{path} {_setting(pair[side])}" for path, pair in changed.items()) for side in (0, 1))
            lines.append(f"{name}: settings of this evaluation: {used}; the environment's own: {own}")
    return lines


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else number(value)


def _named(kind: str, identity: Mapping[str, Any]) -> str:
    """A user with the models that it speaks through."""
    parts = [identity, *(identity[side] for side in ("first", "second") if side in identity)]
    models = [part["model"] for part in parts if "model" in part]
    return f"{kind} ({', '.join(models)})" if models else kind


def interval(values: Mapping[str, Any]) -> Interval:
    """A mean with its bounds out of a record, where nan is None."""
    return Interval(*(float("nan") if values[name] is None else values[name] for name in Interval._fields))


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{number(value['mean'])} ({number(value['low'])} to {number(value['high'])})"
    return number(value)
