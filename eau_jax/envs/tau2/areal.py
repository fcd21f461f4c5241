"""Reads tasks in the layout of the published AReaL-tau2-data, for airline, retail and telecom.

    tau2_rl_train.jsonl     {"id": "airline_...", "db_path": "tau2_rl_database/...", "user_scenario": {...},
                             "evaluation_criteria": "{...}"} a line; the criteria are JSON in a string
    tau2_rl_database/       the databases that db_path names, .json or .toml; tasks share them

Policy and tools are upstream's, so upstream's folder of the domain is needed besides. The data set has no held-out tasks:
the split "train" has its tasks, and upstream's "test" stays the test. `rollout.areal_rows` reads the conversations.
"""

import functools
import json
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.envs.file import TaskFileError, shown
from eau_jax.envs.tau2 import data
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.telecom import task_check
from eau_jax.envs.telecom.tasks import company, toml

DOMAINS = ("airline", "retail", "telecom")
TASKS, DATABASES = "tau2_rl_train.jsonl", "tau2_rl_database"
Record = Mapping[str, Any]


def load(folder: str | Path, upstream: str | Path, left_out: list[str] | None = None) -> Domain:
    """Airline's or retail's tasks, each about its own database.

    Args:
      folder: the data set's.
      upstream: tau2-bench's folder named airline or retail.
      left_out: takes what is wrong with tasks that are left out; None: the first such task is refused.

    Returns:
      upstream's domain with the tasks of both: split "train" has those of the data set, the others are upstream's.

    Raises:
      TaskFileError: names file, line, task, field, what was expected and what was found. Broken JSON, databases that are
        missing or outside the folder, and ids that occur twice are refused whatever `left_out` is.
      ValueError: for another folder name of `upstream`.
    """
    folder, domain = Path(folder), data.load(upstream)
    if domain.name not in DOMAINS:
        raise ValueError(f"{upstream}: expected upstream's folder of airline or retail, found that of {domain.name}")
    databases = functools.cache(lambda path: data.database(path, domain.name))
    bases: dict[str, Any] = {}

    def check(record: Record) -> None:
        at = database(folder, record["db_path"], ".json")
        bases[record["db_path"]] = databases(at)
        data.check(record, domain._replace(base=bases[record["db_path"]]))

    found = _checked(folder, domain.name, check, left_out)
    tasks = tuple(Task(id=record["id"], env=f"tau2_{domain.name}", data=record) for record in found)
    common = {task.id for task in domain.tasks} & {task.id for task in tasks}
    if common:
        raise TaskFileError(f"{folder / TASKS}, field id: expected other ids than those in {Path(upstream) / 'tasks.json'}, "
                            f"found {sorted(common)[0]!r}")
    return domain._replace(tasks=tasks + domain.tasks, bases=bases,
                           splits={**domain.splits, "train": tuple(task.id for task in tasks)})


def load_telecom(folder: str | Path, upstream: str | Path, left_out: list[str] | None = None) -> tuple[Task, ...]:
    """Telecom's tasks, for `envs.telecom`. Arguments and errors as of `load`; `upstream` is tau2-bench's folder telecom."""
    folder, shared = Path(folder), company(Path(upstream))
    databases = functools.cache(toml)
    whole = lambda record: {**shared, **record, "db": databases(database(folder, record["db_path"], ".toml"))}
    found = _checked(folder, "telecom", lambda record: task_check.check(whole(record)), left_out)
    return tuple(Task(id=record["id"], env="telecom", data=whole(record)) for record in found)


def rows(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(place, domain, record) of every task of every domain, its criteria read.

    Raises:
      TaskFileError: as `load`.
    """
    path, places = folder / TASKS, {}
    if not path.is_file():
        raise TaskFileError(f"{path}: no such file; expected the folder of AReaL-tau2-data, with {TASKS} and {DATABASES}/")
    for line, record in file.objects(path):
        place = f"{path}, {line}"
        try:
            if not isinstance(record, Mapping):
                raise ValueError(f"record: expected an object, found {shown(record)}")
            name = file.text_field(record, "id")
            if name in places:
                raise ValueError(f"id: expected a new id, found {name!r} again (first at {places[name]})")
            places[name] = line
            file.text_field(record, "db_path")
            domain = next((each for each in DOMAINS if name.lower().startswith(each)), None)
            if domain is None:
                raise ValueError(f"id: expected it to begin with {', '.join(DOMAINS[:-1])} or {DOMAINS[-1]}, found {name!r}")
            criteria = _criteria(record)
        except ValueError as error:
            raise TaskFileError(f"{place}, field {error}") from None
        yield place, domain, {**record, "evaluation_criteria": criteria}
    if not places:
        raise TaskFileError(f"{path}: expected at least one task, found none")


def database(folder: Path, name: str, suffix: str) -> Path:
    """The file that a task's `db_path` names.

    Raises:
      TaskFileError: where it lies outside the folder of databases, is not there, or is of another kind.
    """
    root = (folder / DATABASES).resolve()
    path = (folder / name).resolve()
    if Path(name).is_absolute() or not path.is_relative_to(root):
        raise TaskFileError(f"{folder / TASKS}, field db_path: expected a path in {DATABASES}/, found {shown(name)}")
    if path.suffix != suffix:
        raise TaskFileError(f"{folder / TASKS}, field db_path: expected a {suffix} file, found {shown(name)}")
    if not path.is_file():
        there = sorted(each.name for each in root.iterdir()) if root.is_dir() else []
        raise TaskFileError(f"{path}: no such file, but db_path of a task in {TASKS} names it; {DATABASES}/ has "
                            f"{', '.join(there) or 'no files'}")
    return path


def _checked(folder: Path, name: str, check: Callable[[Record], None], left_out: list[str] | None) -> list[Record]:
    """The sound tasks of one domain."""
    found, before = [], len(left_out or ())
    for place, domain, record in rows(folder):
        if domain != name:
            continue
        try:
            check(record)
        except TaskFileError as error:
            raise TaskFileError(f"{place}, task {record['id']!r}: {error}") from None
        except ValueError as error:
            complaint = f"{place}, task {record['id']!r}, field {error}"
            if left_out is None:
                raise TaskFileError(complaint) from None
            left_out.append(complaint)
        else:
            found.append(record)
    if not found:
        raise TaskFileError(f"{folder / TASKS}: expected at least one task of {name} that can be played, found none"
                            f"{''.join(f'; the first: {each}' for each in (left_out or ())[before:before + 1])}")
    return found


def _criteria(record: Record) -> Record:
    value = record.get("evaluation_criteria")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"evaluation_criteria: expected JSON in a string, found {shown(value)} ({error})") from None
        except RecursionError:
            raise ValueError("evaluation_criteria: expected JSON, found one that is nested too deep") from None
        file.check_text(value, "evaluation_criteria")
    if not isinstance(value, Mapping):
        raise ValueError(f"evaluation_criteria: expected an object, as JSON in a string, found {shown(value)}")
    return value
