"""Upstream's telecom tasks through the gates on solvability and minimality, as they were measured on upstream's own
simulator."""

import collections

import pytest

from eau_jax.envs.telecom.tasks import load
from eau_jax.synth.domain import Step
from eau_jax.synth.domains.telecom_case import PhoneCase

pytestmark = pytest.mark.slow


def test_gold_plans_pass_and_only_restarts_are_redundant(shared_data):
    redundant, orders = collections.Counter(), 0
    for task in load(shared_data / "tau2" / "telecom", "base"):
        case = PhoneCase(task.data)
        plan = [Step(each["name"], each["arguments"], "user" if each.get("requestor") == "user" else "agent")
                for each in task.data["evaluation_criteria"]["actions"]]
        solved = case.passes([plan, [], *(plan[:place] + plan[place + 1:] for place in range(len(plan)))], [])
        assert solved[0] and not solved[1], task.id
        redundant.update(step.tool for step, left_out in zip(plan, solved[2:]) if left_out)
        orders += len(plan) > 1 and not case.passes([plan[::-1]], [])[0]
    assert set(redundant) <= {"reboot_device"} and orders > 0, redundant
    print(dict(redundant), orders)
