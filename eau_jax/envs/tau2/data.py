"""Reads a domain folder of tau2-bench, as upstream ships it: db.json, tasks.json, split_tasks.json, policy.md; of mock also
user_db.json and policy_solo.md.

A folder is parsed once per process; what comes back is shared and never written to. The data are MIT licensed and not
part of this package: `envs.upstream_files` says which files are expected.
"""

import collections
import functools
import hashlib
import json
from pathlib import Path
from typing import Any, Collection, Mapping

from eau_jax.core.types import Task
from eau_jax.envs import file, upstream_files
from eau_jax.envs.tau2.airline_tools import airline_tools
from eau_jax.envs.tau2.database import Base
from eau_jax.envs.tau2.domain import USER_TABLES, Domain
from eau_jax.envs.tau2.evaluate import start
from eau_jax.envs.tau2.mock_tools import mock_functions, mock_tools, mock_user_tools
from eau_jax.envs.tau2.plan import told
from eau_jax.envs.tau2.record_check import check_record, shapes
from eau_jax.envs.tau2.retail_tools import retail_tools
from eau_jax.envs.tau2.task_check import Known, check_criteria, check_initial_state, check_scenario

DOMAINS = ("airline", "retail", "mock")
_TABLES = {"airline": ("flights", "users", "reservations"), "retail": ("products", "users", "orders"),
           "mock": ("tasks", "users")}
_UNSET = {  # fields that the tools set later: they are null until then
    "orders": ("cancel_reason", "exchange_items", "exchange_new_items", "exchange_payment_method_id",
               "exchange_price_difference", "return_items", "return_payment_method_id"),
    "reservations": ("status",), "tasks": ("description",), "notifications": ("task_id",)}


def load(folder: str | Path) -> Domain:
    """The domain in a folder named airline, retail or mock.

    Raises:
      TaskFileError: for a missing or corrupt file, and for a task that cannot be played and scored; it names file, place,
        task, field, what was expected and what was found.
      ValueError: for another folder name.
    """
    path = Path(folder).resolve()
    if path.name not in DOMAINS:
        raise ValueError(f"{folder}: expected a folder named {', '.join(DOMAINS[:-1])} or {DOMAINS[-1]}")
    return _load(path)


@functools.lru_cache(maxsize=None)
def _load(path: Path) -> Domain:
    name = path.name
    base = _base(path / "db.json", _TABLES[name], name)
    if name == "mock":
        base |= _base(path / "user_db.json", tuple(USER_TABLES), name)
    domain = Domain(
        name=name, policy=text(path / "policy.md"), policy_solo=text(path / "policy_solo.md") if name == "mock" else "",
        base=base, tasks=(), splits={}, tools={"airline": airline_tools, "retail": retail_tools, "mock": mock_tools}[name](),
        user_tools=mock_user_tools() if name == "mock" else {},
        functions=mock_functions() if name == "mock" else {"assistant": {}, "user": {}}, digests={},
        shapes=shapes(name))
    tasks = tuple(Task(id=record["id"], env=f"tau2_{name}", data=record)
                  for record in file.read(path / "tasks.json", lambda record: _named(record, domain), "tasks.json"))
    names = sorted(each.name for each in path.iterdir() if each.is_file())
    return domain._replace(tasks=tasks, splits=splits(path / "split_tasks.json", {task.id for task in tasks}),
                           digests={each: hashlib.sha256((path / each).read_bytes()).hexdigest() for each in names})


def database(path: Path, name: str) -> Base:
    """The records of a file in the form of a domain's db.json, checked one by one.

    Raises:
      TaskFileError: as `load`.
    """
    return _base(path, _TABLES[name], name)


def check(record: Mapping[str, Any], domain: Domain) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a task of the domain that can be played and
    scored."""
    known = Known(tools={"assistant": domain.tools, "user": domain.user_tools}, functions=domain.functions, tables={
        "agent_data": tuple(table for table in domain.base if table not in USER_TABLES),
        "user_data": tuple(table for table in domain.base if table in USER_TABLES)})
    check_scenario(record)
    check_initial_state(record, known)
    check_criteria(record, known)
    if "user" in record:
        told(record["user"])
    for (table, key), left in start(domain, Task(id=record.get("id", ""), env="", data=record)).changed.items():
        try:
            check_record(domain.shapes, table, key, left)
        except ValueError as error:
            raise ValueError(f"initial_state: expected sound records, but it leaves {error}") from None


def _named(record: Mapping[str, Any], domain: Domain) -> None:
    try:
        check(record, domain)
    except ValueError as error:
        raise ValueError(f"{error} (task {file.shown(record.get('id'))})") from None


def splits(path: Path, known: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The splits that a file names: split -> ids, each once and among the `known` ones.

    Raises:
      TaskFileError: names the file, the split, what was expected and what was found.
    """
    found = _json(path)
    if not isinstance(found, dict):
        raise file.TaskFileError(f"{path}: expected an object of lists of task ids, found {file.shown(found)}")
    for split, ids in found.items():
        if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
            raise file.TaskFileError(f"{path}, split {split!r}: expected a list of task ids, found {file.shown(ids)}")
        count = collections.Counter(ids)
        wrong = [each for each in ids if each not in known or count[each] > 1]
        if wrong:
            raise file.TaskFileError(f"{path}, split {split!r}: expected ids of tasks in the task file, each once, found "
                                     f"{wrong[0]!r}")
    return {split: tuple(ids) for split, ids in found.items()}


def text(path: Path) -> str:
    """The text of one of upstream's files.

    Raises:
      TaskFileError: when it is missing, with the command that says where to get it, and when it is not UTF-8.
    """
    if not path.is_file():
        needs = "a tau2-bench domain folder has db.json, tasks.json, split_tasks.json and policy.md"
        raise file.TaskFileError(f"{path}: no such file; {upstream_files.advice(path) or needs}")
    return file.utf8(path)


def _base(path: Path, tables: tuple[str, ...], domain: str) -> Base:
    data = _json(path)
    for table in tables:
        if not isinstance(data, dict) or not isinstance(data.get(table), dict):
            raise file.TaskFileError(f"{path}, field {table}: expected an object of records, found "
                                     f"{file.shown(data.get(table) if isinstance(data, dict) else data)}")
        for key, record in data[table].items():
            try:
                check_record(shapes(domain), table, key, record)
            except ValueError as error:
                raise file.TaskFileError(f"{path}, field {error}") from None
            for field in _UNSET.get(table, ()):
                record.setdefault(field, None)
    return {table: data[table] for table in tables}


def _json(path: Path) -> Any:
    try:
        return json.loads(text(path))
    except json.JSONDecodeError as error:
        raise file.TaskFileError(f"{path}, line {error.lineno}: not JSON: {error}") from None
    except RecursionError:
        raise file.TaskFileError(f"{path}: not JSON that can be read: it is nested too deep") from None
