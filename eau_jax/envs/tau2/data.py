"""Reads a domain folder of tau2-bench, as upstream ships it: db.json, tasks.json, split_tasks.json, policy.md.

A folder is parsed once per process; what comes back is shared and never written to. The data are MIT licensed and not
part of this package: `envs.upstream_files` says which files are expected.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any, Mapping, NamedTuple

from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.envs.tau2.airline_tools import airline_tools
from eau_jax.envs.tau2.mock_tools import FUNCTIONS, mock_tools, mock_user_tools
from eau_jax.envs.tau2.retail_tools import retail_tools
from eau_jax.envs.tau2.call import Tool
from eau_jax.envs.tau2.database import Base

DOMAINS = ("airline", "retail", "mock")
TABLES = {"airline": ("flights", "users", "reservations"), "retail": ("products", "users", "orders"),
          "mock": ("tasks", "users")}
USER_TABLES = frozenset({"notifications"})    # those that belong to the user
_UNSET = {  # fields that the tools set later: they are null until then
    "orders": ("cancel_reason", "exchange_items", "exchange_new_items", "exchange_payment_method_id",
               "exchange_price_difference", "return_items", "return_payment_method_id"),
    "reservations": ("status",), "tasks": ("description",), "notifications": ("task_id",)}


class Domain(NamedTuple):
    name: str
    policy: str
    base: Base                                   # table -> key -> record
    tasks: tuple[Task, ...]
    splits: Mapping[str, tuple[str, ...]]        # split -> task ids
    tools: Mapping[str, Tool]                    # the agent's
    user_tools: Mapping[str, Tool]
    functions: Mapping[str, Any]                 # what set-up and assertions may call besides tools
    digests: Mapping[str, str]                   # file name -> SHA-256

    def split(self, name: str) -> tuple[Task, ...]:
        """The tasks of "train", "test" or "base".

        Raises:
          ValueError: for a split that the folder does not name.
        """
        if name not in self.splits:
            raise ValueError(f"split {name!r}; allowed: {', '.join(self.splits)}")
        return tuple(task for task in self.tasks if task.id in set(self.splits[name]))


def load(folder: str | Path) -> Domain:
    """The domain in a folder named airline, retail or mock.

    Raises:
      TaskFileError: for a missing or corrupt file; it names file, place, field, what was expected and what was found.
      ValueError: for another folder name.
    """
    path = Path(folder).resolve()
    if path.name not in DOMAINS:
        raise ValueError(f"{folder}: expected a folder named {', '.join(DOMAINS[:-1])} or {DOMAINS[-1]}")
    return _load(path)


@functools.lru_cache(maxsize=None)
def _load(path: Path) -> Domain:
    name = path.name
    base = _base(_json(path / "db.json"), TABLES[name], path / "db.json")
    if name == "mock":
        base |= _base(_json(path / "user_db.json"), tuple(USER_TABLES), path / "user_db.json")
    tasks = tuple(Task(id=record["id"], env=f"tau2_{name}", data=record)
                  for record in file.read(path / "tasks.json", check, "tasks.json"))
    splits = {split: tuple(ids) for split, ids in _json(path / "split_tasks.json").items()}
    unknown = {task for ids in splits.values() for task in ids} - {task.id for task in tasks}
    if unknown:
        raise file.TaskFileError(f"{path / 'split_tasks.json'}: expected ids of tasks in tasks.json, found "
                                 f"{file.shown(min(unknown))}")
    names = sorted(each.name for each in path.iterdir() if each.is_file())
    return Domain(
        name=name, policy=_read(path / "policy.md"), base=base, tasks=tasks, splits=splits,
        tools={"airline": airline_tools, "retail": retail_tools, "mock": mock_tools}[name](),
        user_tools=mock_user_tools() if name == "mock" else {}, functions=FUNCTIONS if name == "mock" else {},
        digests={each: hashlib.sha256((path / each).read_bytes()).hexdigest() for each in names})


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a task that can be played and scored."""
    file.text_field(record, "id")
    scenario = record.get("user_scenario")
    if not isinstance(scenario, Mapping) or not isinstance(scenario.get("instructions"), (str, Mapping)):
        raise ValueError(f"user_scenario.instructions: expected a string or an object, found {file.shown(scenario)}")
    criteria = record.get("evaluation_criteria")
    if not isinstance(criteria, Mapping):
        raise ValueError(f"evaluation_criteria: expected an object, found {file.shown(criteria)}")
    for place, action in enumerate(criteria.get("actions") or ()):
        where = f"evaluation_criteria.actions[{place}]"
        if not isinstance(action, Mapping) or not isinstance(action.get("arguments"), Mapping):
            raise ValueError(f"{where}.arguments: expected an object, found {file.shown(action)}")
        file.text_field(action, "name", f"{where}.")


def _base(data: Any, tables: tuple[str, ...], path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    for table in tables:
        if not isinstance(data, dict) or not isinstance(data.get(table), dict):
            raise file.TaskFileError(f"{path}, field {table}: expected an object of records, found "
                                     f"{file.shown(data.get(table) if isinstance(data, dict) else data)}")
        for record in data[table].values():
            for field in _UNSET.get(table, ()):
                record.setdefault(field, None)
    return {table: data[table] for table in tables}


def _read(path: Path) -> str:
    if not path.is_file():
        raise file.TaskFileError(f"{path}: no such file; a tau2-bench domain folder has db.json, tasks.json, "
                                 "split_tasks.json and policy.md")
    return path.read_text(encoding="utf-8")


def _json(path: Path) -> Any:
    try:
        return json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise file.TaskFileError(f"{path}, line {error.lineno}: not JSON: {error}") from None
