"""A telecom task as a `Case`: the array simulator on the host, a world at a time or many at once.

Places are ("world", field of `World`) and ("fault",
                                            name of a `Fault`). The checker has two parts: ENV_ASSERTION are the task's
own assertions, by which its environment scores as upstream does; ACCOUNT says besides that the company's records are as the
gold plan leaves them. What the user does to their own phone is theirs.
"""

import json
import types
from typing import Any, Mapping, NamedTuple, Sequence

import jax
import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs.tau2.call import Refused
from eau_jax.envs.telecom.codes import Do
from eau_jax.envs.telecom.goal import Fault, faults, met
from eau_jax.envs.telecom.records import Call, account, encode, starts
from eau_jax.envs.telecom.schema import AGENT_TOOLS, PHONE_TOOLS
from eau_jax.envs.telecom.start import apply, arrays, padded
from eau_jax.envs.telecom.task_check import check
from eau_jax.envs.telecom.text import live_records
from eau_jax.envs.telecom.tools import World, agent_tool, phone_tool
from eau_jax.synth.domain import Place, Result, Step, Verdict
from eau_jax.synth.record import digest

ACCOUNT = ("lines", "line_roaming", "bills", "refuel")     # what is the company's
_TRANSFER = Do.TRANSFER_TO_HUMAN_AGENTS


class PhoneState(NamedTuple):
    world: World               # leading axis 1
    transferred: bool


class PhoneCase:
    """One task. A state is the simulator's own."""

    def __init__(self, record: Mapping[str, Any]):
        """Raises ValueError("field: expected ..., found ...") for an unsound task."""
        check(record)
        self.record = record
        fixed, world, self._goal = arrays([record])
        self._fixed = fixed
        self.start = PhoneState(world, False)
        self.fixed = {name: np.asarray(value)[0].tolist() for name, value in vars(fixed).items()}
        self._actions = tuple(Step(each["name"], each["arguments"], "user" if each.get("requestor") == "user" else "agent")
                              for each in record["evaluation_criteria"]["actions"])
        unpaid = dict(starts(record)).get("suspend_line_for_overdue_bill")
        self.unpaid: str = unpaid["new_bill_id"] if unpaid else ""     # the bill that a start action adds
        self._account: dict[str, np.ndarray] | None = None

    @property
    def described(self) -> dict[str, Any]:
        """The checker as JSON values."""
        criteria = self.record["evaluation_criteria"]
        return {"mode": "assertions", "assertions": criteria["env_assertions"], "version": 1,
                "account": {name: value[0].tolist() for name, value in self._wanted().items()}}

    def call(self, state: PhoneState, step: Step) -> Result:
        try:
            call = self._encoded(step)
        except Refused as refused:
            return Result(state, f"Error: {refused}", True)
        code, a, b, c, amount = (column[:, 0] for column in padded([[call]]))
        if step.who == "user":
            world, acted = phone_tool(np, self._fixed, state.world, code, a, b, c)
            return Result(state._replace(world=world), "Done." if acted[0] else "Nothing was to be done.", not acted[0])
        world, failed = agent_tool(np, self._fixed, state.world, code, a, amount)
        after = PhoneState(world, state.transferred or call.code == _TRANSFER and not failed[0])
        return Result(state, "Error: declined", True) if failed[0] else Result(after, self._shown(after, call), False)

    def judge(self, state: PhoneState, steps: Sequence[Step], said: Sequence[str]) -> Verdict:
        holds = bool(met(np, self._fixed, state.world, self._goal, np.array([state.transferred]))[0])
        wrong = [name for name, value in self._wanted().items() if not np.array_equal(getattr(state.world, name), value)]
        left = self._faults(state)
        parts = {"ENV_ASSERTION": holds, "ACCOUNT": not wrong}
        return Verdict(all(parts.values()), parts,
                       (*(f"fault: {name}" for name in left), *(f"account: {name}" for name in wrong)))

    def passes(self, plans: Sequence[Sequence[Step]], said: Sequence[str]) -> list[bool]:
        """All plans at once."""
        many = lambda tree: jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf), len(plans), axis=0), tree)
        fixed, world, goal = many(self._fixed), many(self.start.world), many(self._goal)
        calls = padded([[self._read(step) for step in plan] for plan in plans])
        for place in range(calls[0].shape[1]):
            world = apply(np, fixed, world, *(column[:, place] for column in calls))
        holds = met(np, fixed, world, goal, (calls[0] == _TRANSFER).any(1))
        for name, value in self._wanted().items():
            same = getattr(world, name) == value
            holds = holds & (same if same.ndim == 1 else same.all(-1))
        return holds.tolist()

    def digest(self, state: PhoneState) -> str:
        return digest([state.transferred,
                       {name: np.asarray(value)[0].tolist() for name, value in vars(state.world).items()}])

    def value(self, state: PhoneState, place: Place) -> Any:
        kind, name = place
        return name in self._faults(state) if kind == "fault" else np.asarray(getattr(state.world, name))[0].tolist()

    def changes(self, before: PhoneState, after: PhoneState) -> Mapping[Place, Any]:
        pairs = [(name, np.asarray(getattr(before.world, name))[0].tolist(),
                  np.asarray(getattr(after.world, name))[0].tolist())
                 for name in vars(before.world)]
        return {("world", name): new for name, old, new in pairs if old != new}

    def rows(self, state: PhoneState, table: str) -> list[tuple[str, Mapping[str, Any]]]:
        """The company's records of one kind."""
        key = {"lines": "line_id", "bills": "bill_id", "customers": "customer_id", "plans": "plan_id"}[table]
        return [(record[key], record) for record in self.record["db"][table]]

    def _wanted(self) -> dict[str, np.ndarray]:
        """The company's side of the world after the gold plan.

        Raises:
          ValueError: where a gold action is declined: half a gold state must never be compared with.
        """
        if self._account is None:
            state = self.start
            for step in self._actions:
                result = self.call(state, step)
                if result.failed and step.who == "agent":
                    raise ValueError(f"evaluation_criteria.actions: expected calls that succeed, found {step.tool}: "
                                     f"{result.text}")
                state = result.state
            self._account = {name: np.asarray(getattr(state.world, name)) for name in ACCOUNT}
        return self._account

    def _faults(self, state: PhoneState) -> list[str]:
        bits = int(faults(np, self._fixed, state.world, self._goal.intent)[0])
        return [fault.name for fault in Fault if bits >> fault & 1]

    def _encoded(self, step: Step) -> Call:
        return encode(self.record, step.tool, step.arguments, PHONE_TOOLS if step.who == "user" else AGENT_TOOLS)

    def _read(self, step: Step) -> Call:
        try:
            return self._encoded(step)
        except Refused:
            return Call(Do.MALFORMED)

    def _shown(self, state: PhoneState, call: Call) -> str:
        """What a call of the agent returns, as far as plans build upon it."""
        if call.code not in (Do.GET_CUSTOMER_BY_PHONE, Do.GET_BILLS_FOR_CUSTOMER, Do.GET_DETAILS_BY_ID, Do.GET_DATA_USAGE):
            return "Done."
        task = Task(id=self.record.get("id", ""), env="telecom", data=self.record)
        one = types.SimpleNamespace(world=jax.tree.map(lambda leaf: np.asarray(leaf)[0], state.world))
        found, bills = live_records(task, one)
        own = account(self.record)
        if call.code == Do.GET_BILLS_FOR_CUSTOMER:
            return json.dumps(bills)
        if call.code == Do.GET_CUSTOMER_BY_PHONE:
            return json.dumps(found[self.record["db"]["customers"][call.a]["customer_id"]])
        if call.code == Do.GET_DETAILS_BY_ID:
            return json.dumps(list(found.values())[call.a])
        line = self.record["db"]["lines"][call.a]["line_id"]
        return json.dumps({"line_id": line, "data_used_gb": found[line]["data_used_gb"],
                           "data_limit_gb": own.plans[found[line]["plan_id"]]["data_limit_gb"]})
