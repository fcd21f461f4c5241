"""Faults put into conversations on purpose, each found for what it is, and the counterfactuals."""

import dataclasses

import pytest

from crafted import instance
from eau_jax.envs.tau2.agent import tool_call
from eau_jax.synth.attribute import attribute, attribute_all, last_hope, traced
from eau_jax.synth.database import DatabaseCase
from eau_jax.synth.domain import Result, Wish
from eau_jax.synth.domains.workshop import TAU2, workshop
from eau_jax.synth.ground import gold
from eau_jax.synth.play import Stage, task_of
from eau_jax.synth.realise import realise
from eau_jax.synth.record import Fault, Rollout

TWO = instance(workshop, "cancel", "phone", seed=6)
SCENARIO = realise(workshop, TWO)
TASK = task_of(workshop, SCENARIO.record)
STAGE = Stage(workshop)
DONE = "It is done. Is there anything else?"
CANCEL, PHONE = (wish["steps"][0] for wish in TWO.wishes)


def oracle_but(change):
    """The oracle with some messages changed: `change(message, turn)` gives another one, or None for the same."""
    def agent(task, state, rng):
        said = workshop.env.expert(task, state, rng)
        other = change(said, int(state.turn))
        return said if other is None else other
    return agent


def played(change, made=TWO, scenario=SCENARIO):
    return STAGE.play(task_of(workshop, scenario.record), oracle_but(change), "test", "plain", {}, 0)


def fault(rollout, made=TWO, scenario=SCENARIO, domain=workshop):
    return attribute(domain, made, scenario, rollout)


def call(step, **other):
    return tool_call(step[0], {**step[1], **other})


def is_call(said, step):
    return said == call(step)


def test_a_success_is_nobodys_fault_and_infrastructure_comes_first():
    assert fault(played(lambda said, turn: None)).side == "none"
    broken = Rollout("test", "plain", "infra_error", False, (), "the user: connection refused")
    assert fault(broken) == Fault("infra", "infra", "the user: connection refused")


@pytest.mark.parametrize("change, label", [
    (lambda said, turn: call(CANCEL, reason="found another workshop" if CANCEL[1]["reason"] != "found another workshop" else
                             "no longer needed") if is_call(said, CANCEL) else None, "grounding"),
    (lambda said, turn: call(["add_bike", {"user_id": PHONE[1]["user_id"], "brand": "Alpina", "kind": "city bike",
                                           "colour": "red"}]) if is_call(said, PHONE) else None, "over_action"),
    (lambda said, turn: DONE if is_call(said, PHONE) else None, "missing_write"),
    (lambda said, turn: call(CANCEL) if turn == 0 else DONE if is_call(said, PHONE) else None, "policy"),
    (lambda said, turn: DONE if "details" in said else None, "missing_question"),
])
def test_faults_of_the_agent(change, label):
    found = fault(played(change))
    assert (found.side, found.label) == ("agent", label), found


def test_a_failed_call_that_is_not_mended():
    wrong = lambda said, turn: call(CANCEL, order_id="R00000") if is_call(said, CANCEL) else None
    found = fault(played(lambda said, turn: DONE if turn > 12 else wrong(said, turn)))
    assert (found.side, found.label) == ("agent", "recovery") and "Repair not found" in found.evidence


def test_what_was_never_said():
    made = instance(workshop, "ask_price", seed=6)
    scenario = realise(workshop, made)
    rollout = played(lambda said, turn: DONE if said.startswith("You wanted") else None, made, scenario)
    assert fault(rollout, made, scenario).label == "unsaid"


def test_a_value_that_nobody_had_told_yet_is_a_guess():
    asked = []

    def change(said, turn):
        asked.extend([turn] if "details" in said else [])
        guesses = len(asked) == 2 and asked[1] == turn
        return call(PHONE, phone="555-0000") if guesses else DONE if is_call(said, PHONE) else None

    found = fault(played(change))
    assert (found.side, found.label) == ("agent", "guess") and "phone" in found.evidence
    late = fault(played(lambda said, turn: call(PHONE, phone="555-0000") if is_call(said, PHONE) else None))
    assert (late.side, late.label) == ("agent", "grounding")


def test_everything_is_done_and_nobody_ends_the_conversation():
    whole = played(lambda said, turn: None)
    found = fault(dataclasses.replace(whole, turns=whole.turns[:-1], success=False, stop="max_turns"))
    assert (found.side, found.label) == ("agent", "gave_up") and "max_turns" in found.evidence


def _user_says(rollout, place, text, told=(), **other):
    turns = [dict(turn) for turn in rollout.turns]
    turns[place] = {**turns[place], "reply": text, "told": list(told), **other}
    return dataclasses.replace(rollout, turns=tuple(turns), success=False)


def test_faults_of_the_user():
    whole = played(lambda said, turn: None)
    place = next(place for place, turn in enumerate(whole.turns) if turn["by"] == "user")
    secret = PHONE[1]["phone"]
    cut = dataclasses.replace(whole, turns=whole.turns[:place + 2])
    found = fault(_user_says(cut, place, f"My new number is {secret}."))
    assert (found.side, found.label, found.turn) == ("user", "early_secret", place)
    found = fault(_user_says(cut, place, "I paid 49.99 for it."))
    assert (found.side, found.label) == ("user", "unsupported") and "49.99" in found.evidence
    agreed = next(place for place, turn in enumerate(whole.turns) if turn["act"] == "confirm")
    goodbye = {"agent": "One moment.", "reply": "Goodbye. ###STOP###", "by": "user", "told": [], "act": "stop", "call": None}
    left = dataclasses.replace(whole, turns=(*whole.turns[:agreed + 1], goodbye), success=False)
    assert fault(left).label == fault(_user_says(left, agreed, "Sure, go ahead.")).label == "premature_stop"
    asked = next(place for place, turn in enumerate(whole.turns) if PHONE[1]["phone"] in turn["told"])
    silent = dataclasses.replace(whole, turns=whole.turns[:asked + 1])
    found = fault(_user_says(silent, asked, "That is nobody's business.", act="withhold"))
    assert (found.side, found.label, found.turn) == ("user", "withheld", asked)


def test_faults_of_environment_and_checker():
    failing = played(lambda said, turn: DONE)

    class Down(DatabaseCase):
        def call(self, state, step):
            return Result(state, "Error: closed", True) if step.tool == "change_phone" else super().call(state, step)

    class Strict(DatabaseCase):
        """Its checker wants a field that no tool sets."""

        def judge(self, state, steps, said):
            verdict = super().judge(state, steps, said)
            return verdict._replace(solved=verdict.solved and len(steps) == len(TWO.plan))

    class Never(DatabaseCase):
        def judge(self, state, steps, said):
            return super().judge(state, steps, said)._replace(solved=False)

    found = fault(failing, domain=workshop._replace(case=lambda record: Down(TAU2, record)))
    assert (found.side, found.label) == ("env", "gold_fails")
    found = fault(failing, domain=workshop._replace(case=lambda record: Never(TAU2, record)))
    assert (found.side, found.label) == ("checker", "gold_rejected")
    other = workshop._replace(case=lambda record: Strict(TAU2, record))
    again = lambda said, turn: call(["get_day", {"day": "2025-06-12"}]) if turn == 1 else None
    found = fault(dataclasses.replace(played(again), success=False), domain=other)
    assert (found.side, found.label) == ("checker", "false_negative"), found


def test_the_turn_after_which_there_is_no_hope():
    case, wishes, plan = workshop.case(TWO.record), [Wish(**each) for each in TWO.wishes], gold(TWO)
    late = played(lambda said, turn: DONE if is_call(said, PHONE) else None)
    assert last_hope(case, wishes, plan, traced(case, late)) == -1
    other = "found another workshop" if CANCEL[1]["reason"] != "found another workshop" else "no longer needed"
    wrong = played(lambda said, turn: call(CANCEL, reason=other) if is_call(said, CANCEL) else None)
    place = next(place for place, turn in enumerate(wrong.turns) if turn["call"] and turn["call"][0] == "cancel_repair")
    assert last_hope(case, wishes, plan, traced(case, wrong)) == place


def test_several_conversations_together():
    good, bad = Fault("none", "none", ""), Fault("agent", "policy", "")
    infra, user = Fault("infra", "infra", ""), Fault("user", "withheld", "")
    assert attribute_all([bad, bad], [bad]).side == "task"
    assert attribute_all([good], [bad, bad, infra]).label == "deferred"
    assert attribute_all([good], [user, user, bad]).side == "user"
    assert attribute_all([good], [good, bad]).side == "none"
    assert attribute_all([infra], [good]).side == "none"


def test_the_novice_fails_at_times_and_always_for_a_reason():
    sides = set()
    for seed in range(6):
        rollout = STAGE.play(TASK, workshop.env.novice, "novice", "plain", {}, seed)
        found = fault(rollout)
        assert (found.side == "none") == rollout.success
        sides.add(found.side)
    assert "agent" in sides
