"""The log of looks: who was scored on which tasks, and when. One log per root, <root>/sealed/looks.jsonl, in a folder that
only its owner can enter.

    {"log": ...}                                        first: the random id of this log
    {"test": ..., "named": [...], "contents": [...]}    a set of tasks, once: two short digests of each task, sorted
    {"who": ..., "by": "eval" | "train", "name": of the evaluation or run, "step": of training, else -1,
     "tests": {benchmark: test}, "seen": {benchmark: tasks of it seen before}, "time": ...}    a look

Two tasks are the same when they have the same content (whatever their ids, order or benchmark) or the same environment,
benchmark and id (however their content was edited).
"""

import datetime
import hashlib
import json
import secrets
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from eau_jax.core.records import RunFolder, RunFolderError, check, read_lines
from eau_jax.core.types import Task

FILE = "looks.jsonl"
WAIT_S = 10.0   # for other evaluations and runs that write their looks; each takes milliseconds
_SHAPES = {"log": {"log": str}, "named": {"test": str, "named": [str], "contents": [str]},
           "who": {"who": str, "by": str, "name": str, "step": int, "tests": {"*": str}, "time": str}}
Seen = tuple[frozenset[str], frozenset[str]]   # the two digests of a set of tasks


class SecondLookError(ValueError):
    """The same player has been scored on some of the same tasks before."""


class Test(NamedTuple):
    """The tasks of one benchmark that are looked at."""

    bench: str
    tasks: Sequence[Task]


def look(sealed: Path, who: str, plan: str, tests: Sequence[Test], *, begun: bool, again: bool) -> dict[str, Any]:
    """Writes an evaluation's look into the log, unless it goes on with one.

    Returns:
      For the record: {"second_look": whether any task was seen in an earlier evaluation of this player, "seen_before":
      {benchmark: number of such tasks}, "training_looks": {benchmark: how often training was evaluated on some of them},
      "look_log": id of the log}.

    Raises:
      SecondLookError: when a task was seen before and `again` is False.
      RunFolderError: when the log is broken, or is in use for longer than WAIT_S.
    """
    digested = {test.bench: _digests(test) for test in tests}
    with RunFolder(sealed, wait_s=WAIT_S) as folder:
        log, sets, known = _read(folder)
        mine = [line for line in known if line["who"] == who]
        own = [place for place, line in enumerate(mine) if begun and line["by"] == "eval" and line["name"] == plan]
        before = mine[:own[-1]] if own else mine
        seen, training = {}, {}
        for bench, digests in digested.items():
            common = [(line, set().union(*(_common(sets[test], digests) for test in line["tests"].values())))
                      for line in before]
            earlier = [(line, tasks) for line, tasks in common if tasks and line["by"] == "eval"]
            seen[bench] = len(set().union(*(tasks for _, tasks in earlier)))
            training[bench] = sum(line["by"] == "train" and bool(tasks) for line, tasks in common)
            if earlier and not own and not again:
                raise SecondLookError(
                    f"{who} was scored on {seen[bench]} of the {len(digests)} tasks of {bench!r} before, first in "
                    f"{earlier[0][0]['name']!r} at {earlier[0][0]['time']}; a choice made after looking at a test flatters "
                    "it. Use the first result, or look again with --again, which is recorded")
        if not own:
            _write(folder, sets, digested, {"who": who, "by": "eval", "name": plan, "step": -1, "seen": seen})
    return {"second_look": any(seen.values()), "seen_before": seen, "training_looks": training, "look_log": log}


def trained(sealed: Path, run: str, step: int, test: Test) -> None:
    """Writes into the log that a run was evaluated on its held-out tasks after update `step`. Errors as in `look`."""
    with RunFolder(sealed, wait_s=WAIT_S) as folder:
        _, sets, _ = _read(folder)
        _write(folder, sets, {test.bench: _digests(test)}, {"who": run, "by": "train", "name": run, "step": step})


def content(task: Task) -> str:
    """A short digest of what a task says, without its id: 64 bits of SHA-256, in hex."""
    return _short([task.env, {key: value for key, value in task.data.items() if key != "id" and value != task.id}])


def _digests(test: Test) -> list[tuple[str, str]]:
    """Of each task: of its environment, benchmark and id, and of its content."""
    return sorted((_short([task.env, test.bench, task.id]), content(task)) for task in test.tasks)


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _common(seen: Seen, digests: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Those of the tasks that are among the seen ones."""
    return {task for task in digests if task[0] in seen[0] or task[1] in seen[1]}


def _read(folder: RunFolder) -> tuple[str, dict[str, Seen], list[dict[str, Any]]]:
    """The log's id, its sets of tasks and its looks; a log without id gets one. The folder is closed to other users."""
    folder.path.chmod(0o700)
    file = folder.path / FILE
    lines = list(read_lines(file)) if file.exists() else []
    if not lines:
        lines = [{"log": secrets.token_hex(8)}]
        folder.append(FILE, lines[0])
    sets, looks = {}, []
    for number, line in enumerate(lines, start=1):
        where, kind = f"{file}, record {number}", next((kind for kind in _SHAPES if kind in line), None)
        if kind is None or (kind == "log") != (number == 1):
            raise RunFolderError(f"{where}: no line of a log of looks; restore the file from a copy, or choose another "
                                 "--root")
        check(line, _SHAPES[kind], where)
        if kind == "named":
            sets[line["test"]] = frozenset(line["named"]), frozenset(line["contents"])
        elif kind == "who":
            lost = [test for test in line["tests"].values() if test not in sets]
            if lost:
                raise RunFolderError(f"{where}: no line before it says which tasks {lost[0]!r} are; restore the file from a "
                                     "copy")
            looks.append(line)
    return lines[0]["log"], sets, looks


def _write(folder: RunFolder, sets: dict[str, Seen], digested: Mapping[str, Sequence[tuple[str, str]]],
           who: dict[str, Any]) -> None:
    tests = {bench: _short(digests) for bench, digests in digested.items()}
    for bench, test in tests.items():
        if test not in sets:
            named, contents = (sorted(set(side)) for side in zip(*digested[bench], strict=True))
            folder.append(FILE, {"test": test, "named": named, "contents": contents})
            sets[test] = frozenset(named), frozenset(contents)
    time = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    folder.append(FILE, who | {"tests": tests, "time": time})
