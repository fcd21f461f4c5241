"""The airline: every sub-task through the gates, its rules and amounts by hand, and wrong declarations."""

import random

import pytest

from crafted import changed, code, instance
from eau_jax.core.types import StopReason
from eau_jax.envs.tau2.agent import tool_call
from eau_jax.synth import gates_text
from eau_jax.synth.attribute import attribute
from eau_jax.synth.domain import Param, Step, Wish, parts
from eau_jax.synth.domains.airline import airline
from eau_jax.synth.domains.airline_world import _FIRST, _LAST, allowance, base, cost, routes
from eau_jax.synth.gates import gate, obeys, subject
from eau_jax.synth.ground import gold
from eau_jax.synth.mutants import null_scores
from eau_jax.synth.play import Stage, task_of
from eau_jax.synth.probe import probe
from eau_jax.synth.realise import realise
from eau_jax.synth.record import canonical
from eau_jax.synth.search import underivable

STAGE = Stage(airline)
FOUR = instance(airline, "book", "bags_new", "move_back", "cancel_late", seed=4)


def _reservation(made, place=0):
    wish = made.wishes[place]
    return (wish["steps"] or wish["forbidden"])[0][1]["reservation_id"]


def _set(made, **fields):
    return lambda rows: rows["reservations"][_reservation(made)].update(fields)


def _broken(made):
    """What the gate on rules says; None where it lets the task pass."""
    rejected = obeys(subject(airline, made))
    return rejected and rejected.detail


@pytest.mark.parametrize("atom", airline.atoms, ids=lambda atom: atom.id)
def test_every_sub_task_is_accepted_and_played(atom):
    made = instance(airline, *filter(None, (atom.requires, atom.id)), seed=11)
    report = gate(airline, made)
    assert report.code == "" and report.measures["null"] <= 0.01, report
    caught, total = report.measures["mutants"]
    assert caught >= 0.95 * total and total > 0
    scenario = realise(airline, made)
    task = task_of(airline, scenario.record)
    assert gates_text.keeps_secrets(airline, scenario.record, made, airline.env.prompt(task)[1]) is None
    rollout = STAGE.play(task, airline.env.expert, "oracle", "open", airline.personas["open"].knobs, 0)
    assert rollout.success and rollout.stop == StopReason.COMPLETED.value


def test_without_any_step_of_the_gold_plan_a_task_is_not_solved_or_not_knowable():
    case, plan, wishes = airline.case(FOUR.record), gold(FOUR), [Wish(**each) for each in FOUR.wishes]
    tells = [each for wish in wishes for each in wish.tell]
    assert case.passes([plan], tells) == [True] and case.passes([plan], []) == [False]
    assert not underivable(airline, case, plan, wishes, FOUR.facts)
    writes = 0
    for place, step in enumerate(plan):
        rest = plan[:place] + plan[place + 1:]
        solved = case.passes([rest], tells) == [True]
        writes += airline.actions[step.tool].kind == "write"
        assert solved == (airline.actions[step.tool].kind == "read")
        assert not solved or underivable(airline, case, rest, wishes, FOUR.facts)
    assert writes == 3


def test_the_new_reservation_is_what_gets_the_bags():
    book, bags = (step for step in gold(FOUR) if step.tool in ("book_reservation", "update_reservation_baggages"))
    assert bags.arguments["reservation_id"] == "HATHAT"
    assert bags.arguments["total_baggages"] > book.arguments["total_baggages"]
    assert [0, 1] in gate(airline, FOUR).measures["order"] or [1, 2] in gate(airline, FOUR).measures["order"]


def test_agents_that_do_not_try_get_nothing():
    scores = null_scores(airline, airline.case(FOUR.record), random.Random(0), 20)
    assert scores == {"noop": 0.0, "handover": 0.0, "reads": 0.0, "random": 0.0}


@pytest.mark.parametrize("membership, cabin, people, free", [
    ("regular", "basic_economy", 3, 0), ("regular", "economy", 2, 2), ("silver", "basic_economy", 2, 2),
    ("gold", "economy", 2, 6), ("silver", "business", 1, 3), ("gold", "business", 3, 12)])
def test_free_bags(membership, cabin, people, free):
    assert allowance(membership, cabin, people) == free


def test_the_price_of_a_booking_is_that_of_the_tool():
    made = instance(airline, "book_connection", seed=2)
    step = next(step for step in gold(made) if step.tool == "book_reservation")
    args, case = step.arguments, airline.case(made.record)
    flights = [(each["flight_number"], each["date"]) for each in args["flights"]]
    fares = [base()["flights"][number]["dates"][day]["prices"][args["cabin"]] for number, day in flights]
    people = len(args["passengers"])
    total = people * sum(fares) + 50 * args["nonfree_baggages"] + (30 * people if args["insurance"] == "yes" else 0)
    assert len(flights) == 2 and cost(flights, args["cabin"], people, args["nonfree_baggages"], args["insurance"] == "yes"
                                      ) == total == sum(each["amount"] for each in args["payment_methods"])
    assert (args["origin"], args["destination"]) not in routes()
    dear = [{**args["payment_methods"][0], "amount": total + 1}]
    assert case.call(case.start, step._replace(arguments={**args, "payment_methods": dear})).failed


@pytest.mark.parametrize("atom, fields, rule", [
    ("cancel_insured", {"insurance": "no"}, "cancel"), ("cancel_business", {"cabin": "economy"}, "cancel"),
    ("cancel_recent", {"created_at": "2024-05-14T14:59:59"}, "cancel"), ("move", {"cabin": "basic_economy"}, "basic"),
    ("bags", {"total_baggages": 9}, "fewer"),
    ("compensate_delayed", {"cabin": "economy", "insurance": "no"}, "certificate")])
def test_what_was_allowed_breaks_a_rule_once_the_reservation_is_another(atom, fields, rule):
    made = instance(airline, atom, seed=5)
    assert _broken(made) is None
    every = lambda rows: [each.update(fields) for each in rows["reservations"].values()]
    found = _broken(changed(made, rows=every if atom.startswith("compensate") else _set(made, **fields)))
    assert rule in found.rpartition(" breaks ")[2].split(", "), found


@pytest.mark.parametrize("atom, fields", [
    ("cancel_late", {"insurance": "yes"}), ("move_basic", {"cabin": "economy"}), ("fewer_bags", {"total_baggages": 0}),
    ("cancel_late", {"created_at": "2024-05-14T15:00:00"})])
def test_what_was_refused_breaks_no_rule_once_the_reservation_is_another(atom, fields):
    made = instance(airline, atom, seed=5)
    assert _broken(made) is None and "does not break" in _broken(changed(made, rows=_set(made, **fields)))


def test_a_passenger_that_nobody_names_cannot_be_entered():
    made = instance(airline, "rename", seed=3)
    silent = changed(made, wishes=lambda wishes: wishes[0].update(
        slots=[slot for slot in wishes[0]["slots"] if slot[1] != "dob"]))
    assert gate(airline, made).code == "" and code(airline, silent) == "UNGUESSABLE"


def test_values_in_arguments_are_found_wherever_they_stand():
    flights = airline.actions["book_reservation"].params["flights"]
    found = [(param.type, param.source, text) for param, text in parts(flights, [{"flight_number": "HAT1", "date": "d"}])]
    assert found == [("flight_number", "lookup", "HAT1"), ("day", "slot", "d")]
    bags = Param("total_baggages", "slot")
    assert list(parts(bags, 3)) == [(bags, "3")] and list(parts(bags, ["a", "b"])) == [(bags, "a"), (bags, "b")]


def test_a_certificate_that_is_sent_twice_is_the_agents_fault():
    made = instance(airline, "compensate_delayed", seed=3)
    scenario, step = realise(airline, made), gold(made)[-1]

    def twice(task, state, rng):
        said = airline.env.expert(task, state, rng)
        return tool_call(step.tool, step.arguments) if sum(name == step.tool for name, _ in state.calls) == 1 else said

    rollout = STAGE.play(task_of(airline, scenario.record), twice, "test", "plain", {}, 0)
    found = attribute(airline, made, scenario, rollout)
    assert not rollout.success and (found.side, found.label) == ("agent", "over_action") and "once more" in found.evidence


def test_who_is_told_of_has_names_that_stand_nowhere_else():
    for seed in range(12):
        made = instance(airline, "rename", "book", "compensate_delayed", seed=seed, distractors=3)
        told = {value for wish in made.wishes for _, name, value in wish["slots"] if name in ("first_name", "last_name")}
        rows = canonical(made.record["initial_state"])
        assert told and not [name for name in told if name in rows]


def test_no_name_is_part_of_an_opening():
    openings = " ".join(each.lower() for atom in airline.atoms for each in atom.openings)
    frames = " ".join(frame.lower() for persona in airline.personas.values() for frame in persona.frames)
    places = {place for route in routes() for place in route}
    assert not [name for name in (*_FIRST, *_LAST, *places) if name.lower() in openings + frames]
    names = sorted((*_FIRST, *_LAST), key=len)
    assert not [(short, long) for place, short in enumerate(names) for long in names[place + 1:] if short in long]


def test_every_tool_succeeds_and_changes_something_at_random():
    rng, worked = random.Random(5), set()
    for _ in range(60):
        case, state = airline.samples(rng)
        for tool in airline.writes:
            result = case.call(state, Step(tool, airline.arguments(case, state, tool, rng)))
            if not result.failed and case.changes(state, result.state):
                worked.add(tool)
    assert worked == set(airline.writes)


@pytest.mark.parametrize("tool, change, kind", [
    ("book_reservation", {"effects": lambda look: {
        place: value for place, value in airline.actions["book_reservation"].effects(look).items()
        if place[0] != "flights"}}, "effects"),
    ("update_reservation_baggages", {"needs": ()}, "needs"),
    ("send_certificate", {"effects": lambda look: {}}, "effects")])
def test_a_wrong_declaration_is_found(tool, change, kind):
    wrong = airline._replace(actions={**airline.actions, tool: airline.actions[tool]._replace(**change)})
    assert {(each.tool, each.kind) for each in probe(wrong, seed=0, states=25)} == {(tool, kind)}


def test_whose_reservation_it_is_has_to_be_known():
    """A look at the reservation does not say who is talking; a look at the profile does."""
    made = instance(airline, "cancel_business", seed=3)
    steps = [step["tool"] for step in made.plan]
    assert steps == ["get_user_details", "get_reservation_details", "cancel_reservation"]
    assert _broken(changed(made, plan=lambda plan: plan.pop(0))) == "cancel_reservation breaks own"
