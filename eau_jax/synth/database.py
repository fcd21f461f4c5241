"""Domains whose world is a database of tau2-bench's kind (`envs/tau2/database.py`): a task as a `Case`, and its checker.

The checker is compiled from the records that the gold plan leaves. It agrees with `envs.tau2.evaluate`, which replays the
gold actions, and says besides which fields differ.
"""

import json
from typing import Any, Mapping, NamedTuple, Sequence

from eau_jax.core.part import Act, TimeStep
from eau_jax.core.types import Task
from eau_jax.envs.tau2 import call as tau2_call
from eau_jax.envs.tau2.data import check
from eau_jax.envs.tau2.database import Base, Changed, View
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.evaluate import start
from eau_jax.envs.tau2.user import Do
from eau_jax.synth.domain import Place, Result, Step, Verdict
from eau_jax.synth.record import canonical, digest

VERSION = 1


class Checker(NamedTuple):
    """Whether a task is solved, as JSON values. Pure: the same arguments give the same answer."""

    final: list[list[Any]]         # [table, key, record]: every record that differs from the base once the task is solved
    ignore: list[list[str]]        # [table, field] that may hold anything
    communicate: list[str]         # strings of which each occurs in some message of the agent
    version: int = VERSION


def heard(task: Task, act: Act, time_step: TimeStep) -> Step | None:
    """The tool call in an agent's message."""
    if int(act.code) != Do.CALL:
        return None
    content = json.loads(act.call)
    return Step(content["name"], content["arguments"])


def files(domain: Domain) -> dict[str, str]:
    """The database and the policy, as upstream's domain folders have them."""
    return {"db.json": canonical(domain.base) + "\n", "policy.md": domain.policy + "\n"}


def compiled(final: Changed, base: Base, communicate: Sequence[str]) -> Checker:
    """The checker of a gold state. Records that are as in the base are left out."""
    kept = [[table, key, record] for (table, key), record in final.items() if base[table].get(key) != record]
    return Checker(sorted(kept, key=lambda each: each[:2]), [], list(communicate))


def judge(checker: Checker, base: Base, final: Changed, said: Sequence[str]) -> Verdict:
    """The verdict on a final state and the agent's words."""
    wanted = {(table, key): record for table, key, record in checker.final}
    skip = {tuple(each) for each in checker.ignore}
    evidence = []
    for place in sorted({*wanted, *final}):
        right, found = wanted.get(place, base[place[0]].get(place[1])), final.get(place, base[place[0]].get(place[1]))
        if right != found:
            evidence += [f"{place[0]}.{place[1]}.{name}" for name in sorted({*(right or {}), *(found or {})})
                         if (right or {}).get(name) != (found or {}).get(name) and (place[0], name) not in skip]
    heard = [text.lower().replace(",", "") for text in said]
    silent = [each for each in checker.communicate if not any(each.lower() in text for text in heard)]
    parts = {"DB": not evidence, "COMMUNICATE": not silent}
    return Verdict(all(parts.values()), parts, (*evidence, *(f"not said: {each}" for each in silent)))


class DatabaseCase:
    """A task of a database domain. A state is the difference from the base."""

    def __init__(self, domain: Domain, record: Mapping[str, Any], checked: bool = False):
        """Raises ValueError("field: expected ..., found ...") for an unsound task; `checked`: it is known to be sound."""
        if not checked:
            check(record, domain)
        self._domain = domain
        self.start: Changed = start(domain, Task(id=record.get("id", ""), env="", data=record)).changed
        self._gold = tuple(Step(each["name"], each["arguments"], "user" if each.get("requestor") == "user" else "agent")
                           for each in record["evaluation_criteria"].get("actions") or ())
        self._said = record["evaluation_criteria"].get("communicate_info") or ()
        self._checker: Checker | None = None

    @property
    def checker(self) -> Checker:
        """Raises ValueError where a gold action fails: half a gold state must never be compared with."""
        if self._checker is None:
            state = self.start
            for step in self._gold:
                result = self.call(state, step)
                if result.failed:
                    raise ValueError(f"evaluation_criteria.actions: expected calls that succeed, found {step.tool}: "
                                     f"{result.text}")
                state = result.state
            self._checker = compiled(state, self._domain.base, self._said)
        return self._checker

    @property
    def described(self) -> dict[str, Any]:
        """The checker as JSON values."""
        return {"mode": "state", **self.checker._asdict()}

    def call(self, state: Changed, step: Step) -> Result:
        tools = self._domain.user_tools if step.who == "user" else self._domain.tools
        result = tau2_call.call(tools, self._domain.base, state, step.tool, step.arguments)
        return Result(result.changed, result.text, result.error)

    def judge(self, state: Changed, steps: Sequence[Step], said: Sequence[str]) -> Verdict:
        return judge(self.checker, self._domain.base, state, said)

    def passes(self, plans: Sequence[Sequence[Step]], said: Sequence[str]) -> list[bool]:
        found = []
        for steps in plans:
            state = self.start
            for step in steps:
                state = self.call(state, step).state
            found.append(self.judge(state, steps, said).solved)
        return found

    def digest(self, state: Changed) -> str:
        return digest(compiled(state, self._domain.base, ()).final)

    def value(self, state: Changed, place: Place) -> Any:
        found = View(self._domain.base, state).get(*place[:2])
        for name in place[2:]:
            found = None if found is None else found.get(name)
        return found

    def changes(self, before: Changed, after: Changed) -> Mapping[Place, Any]:
        found: dict[Place, Any] = {}
        for table, key in {*before, *after}:
            old, new = ({} if record is None else record
                        for record in (self.value(before, (table, key)), self.value(after, (table, key))))
            if old is not new:
                found |= {(table, key, name): new.get(name) for name in {*old, *new} if old.get(name) != new.get(name)}
        return found

    def rows(self, state: Changed, table: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Every (key, record) of a table."""
        return list(View(self._domain.base, state).rows(table))
