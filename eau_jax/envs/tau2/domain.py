"""What a tau2-bench domain is, once its files are read."""

import types
from typing import Any, Mapping, NamedTuple

from eau_jax.core.types import Task
from eau_jax.envs.tau2.call import Tool
from eau_jax.envs.tau2.database import Base

USER_TABLES = frozenset({"notifications"})    # those that belong to the user


class Domain(NamedTuple):
    name: str
    policy: str
    policy_solo: str                             # of solo mode; "" where there is none
    base: Base                                   # table -> key -> record
    tasks: tuple[Task, ...]
    splits: Mapping[str, tuple[str, ...]]        # split -> task ids
    tools: Mapping[str, Tool]                    # the agent's
    user_tools: Mapping[str, Tool]
    functions: Mapping[str, Mapping[str, Tool]]  # "assistant" and "user" -> what set-up and assertions call besides tools
    digests: Mapping[str, str]                   # file name -> SHA-256
    shapes: Mapping[str, Any]                    # table -> shape of its records, as of `record_check`
    bases: Mapping[str, Base] = types.MappingProxyType({})    # db_path of a task -> the records that it is about

    def at(self, task: Task) -> "Domain":
        """The domain with the records that a task is about: those of its `db_path`, where it names one.

        Raises:
          ValueError: ("field: expected ..., found ...") for a database that is not there.
        """
        if "db_path" not in task.data:
            return self
        if task.data["db_path"] not in self.bases:
            known = ", ".join(self.bases) or "nothing, since this domain's tasks share one database"
            raise ValueError(f"db_path: expected {known}, found {task.data['db_path']!r}")
        return self._replace(base=self.bases[task.data["db_path"]])

    def split(self, name: str) -> tuple[Task, ...]:
        """The tasks of "train", "test" or "base".

        Raises:
          ValueError: for a split that the folder does not name.
        """
        if name not in self.splits:
            raise ValueError(f"split {name!r}; allowed: {', '.join(self.splits)}")
        return tuple(task for task in self.tasks if task.id in set(self.splits[name]))
