"""Every gate rejects a task made to fail it, and lets the task pass that was changed for it."""

import copy
import json

import pytest

from crafted import Here, changed, code, instance
from eau_jax.core.types import InfraError
from eau_jax.synth import gates_text
from eau_jax.synth.database import Checker, DatabaseCase
from eau_jax.synth.domains.workshop import TAU2, workshop
from eau_jax.synth.gates import gate
from eau_jax.synth.item import elsewhere
from eau_jax.synth.plan import SynthPlan
from eau_jax.synth.play import Stage, task_of
from eau_jax.synth.realise import realise

CANCEL = instance(workshop, "cancel", seed=3)
PHONE = instance(workshop, "phone", seed=3)
LATE = instance(workshop, "cancel_late", seed=3)
NEW_BIKE = instance(workshop, "add_bike", "book_new", "move", seed=3)
PRICE = instance(workshop, "ask_price", seed=3)


def _order(made):
    return next(each for each in (made.wishes[0]["steps"] or made.wishes[0]["forbidden"]))[1]["order_id"]


@pytest.mark.parametrize("made", [CANCEL, PHONE, LATE, NEW_BIKE, PRICE])
def test_good_tasks_pass(made):
    report = gate(workshop, made)
    assert report.code == "", report
    assert report.measures["null"] <= 0.01
    caught, total = report.measures["mutants"]
    assert caught == total > 0


def test_schema_an_unsound_record_and_a_broken_invariant():
    assert code(workshop, changed(CANCEL, rows=lambda rows: rows.__setitem__("cars", {"x": {}}))) == "SCHEMA"
    order = _order(CANCEL)
    assert code(workshop, changed(CANCEL, rows=lambda rows: rows["orders"][order].update(price=39.5))) == "SCHEMA"
    assert code(workshop, changed(CANCEL, rows=lambda rows: rows["orders"][order].update(price="1.00"))) == "SCHEMA"


@pytest.mark.parametrize("change, words", [
    (lambda user: user.update(ids={"item": ["B1"]}), "user.goals.right: expected classes among item, found record"),
    (lambda user: user["goals"][0].update(right={"thing": ["B1"]}), "expected classes among record, found thing"),
    (lambda user: user.update(goals=[]), "1 to 9 goals with three says and values each, found 0 goals"),
    (lambda user: user["facts"].update(age=["I am 9.", "9"]), "facts among name, zip, email, user_id, .* found age"),
    (lambda user: user.pop("ids"), "user: expected an object with user_id, facts, ids and goals, found .*'ids' is missing")])
def test_schema_a_user_that_cannot_be_played(change, words):
    record = copy.deepcopy(realise(workshop, PHONE).record)
    workshop.case(record)
    change(record["user"])
    with pytest.raises(ValueError, match=words):
        workshop.case(record)


def test_trivial0_what_is_wanted_holds_already():
    phone = PHONE.wishes[0]["goal"][0][1]
    assert code(workshop, changed(PHONE, rows=lambda rows: [user.update(phone=phone) for user in rows["users"].values()])
                ) == "TRIVIAL0"


def test_unsolvable_a_gold_step_that_fails_never_counts_as_half_done():
    made = changed(CANCEL, rows=lambda rows: rows["orders"][_order(CANCEL)].update(status="ready"))
    report = gate(workshop, made)
    assert report.code == "UNSOLVABLE" and "Only a booked repair" in report.detail
    with pytest.raises(ValueError, match="expected calls that succeed"):
        workshop.case(made.record).checker


def test_unsolvable_a_goal_that_the_plan_does_not_reach():
    made = changed(CANCEL, wishes=lambda wishes: wishes[0].update(goal=[[["orders", _order(CANCEL), "status"], "ready"]]))
    assert code(workshop, made) == "UNSOLVABLE"


def test_redundant_a_step_that_changes_nothing_that_is_needed():
    extra = {"tool": "get_day", "arguments": {"day": "2025-06-12"}, "who": "agent"}
    tellable = lambda wishes: wishes[0]["slots"].append(["details", "day", "2025-06-12"])
    made = changed(CANCEL, wishes=tellable, plan=lambda plan: plan.insert(0, extra))
    report = gate(workshop, made)
    assert report.code == "REDUNDANT" and "get_day" in report.detail


def test_order_is_written_down_where_it_matters():
    edges = gate(workshop, NEW_BIKE).measures["order"]
    writes = [step["tool"] for step in NEW_BIKE.plan if workshop.actions[step["tool"]].kind == "write"]
    place = writes.index("add_bike")
    assert writes[place + 1] == "book_repair" and edges == [[place, place + 1]]


def test_trivial1_an_agent_that_does_not_try_must_fail():
    made = changed(PRICE, wishes=lambda wishes: wishes[0].update(tell=["needs help"]),
                   criteria=lambda criteria: criteria.update(communicate_info=["needs help"]))
    report = gate(workshop, made)
    assert report.code == "TRIVIAL1" and report.detail.startswith("noop")


@pytest.mark.parametrize("passes, agent", [
    (lambda steps: not steps, "noop"),
    (lambda steps: [step.tool for step in steps] == ["transfer_to_human_agents"], "handover"),
    (lambda steps: {step.tool for step in steps} == set(workshop.reads), "reads"),
    (lambda steps: {step.tool for step in steps} == set(workshop.writes), "random")])
def test_trivial1_every_agent_that_does_not_try_is_tried(passes, agent):
    """A checker that one of them satisfies besides the gold plan."""
    class Lax(DatabaseCase):
        def passes(self, plans, said):
            return [passes(steps) or solved for steps, solved in zip(plans, super().passes(plans, said))]

    report = gate(workshop._replace(case=lambda record: Lax(TAU2, record)), CANCEL)
    assert (report.code, report.detail) == ("TRIVIAL1", f"{agent}: 1.00")


class Blind(DatabaseCase):
    """Its checker looks at the status of an order only."""

    @property
    def checker(self):
        fields = ("reason", "claim", "paid_with", "day", "moved", "service", "price")
        return Checker(super().checker.final,
                       [["orders", name] for name in fields] + [["users", "phone"], ["users", "bikes"],
                                                                                      ["users", "orders"]], [])


def test_weakcheck_a_checker_that_overlooks_fields():
    blind = workshop._replace(case=lambda record: Blind(TAU2, record))
    fetch = instance(workshop, "fetch", seed=3)
    report = gate(blind, fetch)
    assert report.code == "WEAKCHECK" and "payment" in report.detail and gate(workshop, fetch).code == ""


def test_unguessable_a_value_that_nobody_tells():
    made = changed(CANCEL, wishes=lambda wishes: wishes[0].update(
        slots=[slot for slot in wishes[0]["slots"] if slot[1] != "reason"]))
    report = gate(workshop, made)
    assert report.code == "UNGUESSABLE" and "reason" in report.detail


def test_unguessable_without_looking_the_record_up():
    made = changed(CANCEL, plan=lambda plan: plan.remove(next(each for each in plan if each["tool"] == "get_order_details")))
    assert code(workshop, made) == "UNGUESSABLE"


def test_ambig_a_second_record_that_fits():
    made = next(each for each in (instance(workshop, "book", seed=seed) for seed in range(5)) if each.wishes[0]["refers"])
    _, key, _ = made.wishes[0]["refers"][0]

    def twin(rows):
        rows["bikes"]["B10001"] = {**rows["bikes"][key], "bike_id": "B10001"}
        rows["users"][rows["bikes"][key]["user_id"]]["bikes"].append("B10001")

    report = gate(workshop, changed(made, rows=twin))
    assert report.code == "AMBIG" and "B10001" in report.detail


def test_policy_gold_breaks_a_rule_and_a_refusal_breaks_none():
    soon = changed(CANCEL, rows=lambda rows: rows["orders"][_order(CANCEL)].update(day="2025-06-03"))
    assert (report := gate(workshop, soon)).code == "POLICY" and "late" in report.detail
    later = changed(LATE, rows=lambda rows: rows["orders"][_order(LATE)].update(day="2025-06-20"))
    assert (report := gate(workshop, later)).code == "POLICY" and "does not break late" in report.detail


def test_leak_secrets_and_tools_in_texts():
    record, opening = realise(workshop, PRICE).record, "Hello. I would like to know a price."
    check = lambda text, first=opening: gates_text.keeps_secrets(workshop, {**record, "user_scenario": {
        **record["user_scenario"], "persona": text}}, PRICE, first)
    assert check("You are kind.") is None
    assert check("You are kind.", f"Hello. My name is {PRICE.facts['name']}.").code == "LEAK"
    assert check("You want get_order_details to be called.").code == "LEAK"
    assert check(f"It costs {PRICE.wishes[0]['tell'][0]}.").code == "LEAK"


def test_leak_in_what_opens_a_later_wish():
    """Which the user says before anybody asks, whatever comes first."""
    made = instance(workshop, "cancel", "phone", seed=3)
    record = copy.deepcopy(realise(workshop, made).record)
    check = lambda: gates_text.keeps_secrets(workshop, record, made, "Hello. Please call off a repair for me.")
    assert check() is None
    record["user"]["goals"][1]["opening"] = f"My number is {made.wishes[1]['slots'][0][2]}, change that."
    assert check().code == "LEAK"


def test_contam_what_a_sealed_task_has(tmp_path):
    record = realise(workshop, CANCEL).record
    other = realise(workshop, instance(workshop, "fetch", seed=8)).record
    path = tmp_path / "sealed.json"
    path.write_text(json.dumps([record]))
    sealed = gates_text.seal(workshop, [str(path)])
    assert gates_text.is_apart(workshop, record, CANCEL.facts, sealed).code == "CONTAM"
    own = {**other, "user_scenario": {"persona": None, "instructions": "Cancel it."}}
    assert gates_text.is_apart(workshop, own, {"name": "Nobody Here"}, sealed) is None
    assert gates_text.is_apart(workshop, own, CANCEL.facts, sealed).detail.startswith("a sealed task has the name")
    copied = {**own, "user_scenario": record["user_scenario"]}
    assert "says" in gates_text.is_apart(workshop, copied, {"name": "Nobody Here"}, sealed).detail


def test_userblock_and_infra():
    record, stage = realise(workshop, CANCEL).record, Stage(workshop)
    rollout = stage.play(task_of(workshop, record), workshop.env.expert, "oracle", "plain", {}, 0)
    assert rollout.success and gates_text.is_playable([rollout], 40) is None
    assert gates_text.is_playable([rollout], len(rollout.turns) - 1).code == "USERBLOCK"
    stubborn = stage.play(task_of(workshop, record), workshop.env.expert, "oracle", "plain", {"max_turns": 3}, 0)
    assert gates_text.is_playable([stubborn], 50).code == "USERBLOCK"

    def down(task, state, rng):
        raise InfraError("the server is gone")

    failed = stage.play(task_of(workshop, record), down, "oracle", "plain", {}, 0)
    assert failed.stop == "infra_error" and gates_text.is_playable([failed], 50) == ("INFRA", "the server is gone")


class Elsewhere(Here):
    """A process in which everything ends differently."""

    def digest(self, record, plan):
        return "another"


def test_nondet_another_process_ends_elsewhere():
    report = gate(workshop, CANCEL)
    assert elsewhere(report, CANCEL, Here(workshop)) == report
    assert elsewhere(report, CANCEL, Elsewhere(workshop)).code == "NONDET"


@pytest.mark.slow
def test_nondet_a_tool_that_depends_on_salted_hashes(tmp_path):
    file = tmp_path / "salted.py"
    file.write_text(
        "from eau_jax.synth.database import DatabaseCase\nfrom eau_jax.synth.domains.workshop import TAU2, workshop\n\n"
        "print('what a domain prints is no answer')\n\n"
        "class Salted(DatabaseCase):\n    def digest(self, state):\n        return str(hash('x'))\n\n"
        f"domain = workshop._replace(where={str(file) + ':domain'!r}, case=lambda record: Salted(TAU2, record))\n")
    from eau_jax.synth.replay import Replayer, load_domain

    domain = load_domain(f"{file}:domain")
    with Replayer(domain) as replayer, Replayer(workshop) as sound:
        assert elsewhere(gate(domain, CANCEL), CANCEL, replayer).code == "NONDET"
        assert elsewhere(gate(workshop, CANCEL), CANCEL, sound).code == ""
    with pytest.raises(InfraError, match="process that carries plans out again"):
        with Replayer(workshop._replace(where="eau_jax.synth.domains.workshop:shop")) as ended:
            ended._process.wait()
            elsewhere(gate(workshop, CANCEL), CANCEL, ended)


def test_what_a_plan_refuses():
    for wrong in ({"count": 0}, {"outcomes": {"fulfil": 0.5, "refuse": 0.5}}, {"outcomes": {"fulfill": 1.0}}, {"sizes": {}},
                  {"sizes": {10: 1.0}}, {"distractors": (5,)},
                  {"similar": 0.0}, {"distractors": ()}):
        with pytest.raises(ValueError, match="allowed|did you mean|unknown"):
            SynthPlan(workshop, **wrong)
