"""Planning against brute force, look-ups, and probing of declarations."""

import collections
import itertools
import random

import pytest

from crafted import instance
from eau_jax.envs.tau2.plan import GOALS
from eau_jax.synth.compose import KNOWN, _combinations
from eau_jax.synth.domain import Atom, Step, Wish, steps_of
from eau_jax.synth.domains.airline import airline
from eau_jax.synth.domains.retail import retail
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.domains.workshop import workshop
from eau_jax.synth.ground import gold
from eau_jax.synth.plan import CROWD
from eau_jax.synth.probe import probe
from eau_jax.synth.search import NoPlan, find, ordered, told

DOMAINS = {"workshop": workshop, "retail": retail, "airline": airline, "telecom": telecom}


def _orders(case, wishes):
    """Every order of the wishes in which all steps succeed."""
    for each in itertools.permutations(range(len(wishes))):
        state = case.start
        for place in each:
            for step in steps_of(wishes[place].steps):
                result = case.call(state, step)
                if result.failed:
                    break
                state = result.state
            else:
                continue
            break
        else:
            yield list(each)


def _wish(*steps):
    return Wish("x", [list(step) for step in steps], [], [], [], [], [], "", [], {})


def test_an_order_is_found_exactly_where_brute_force_finds_one():
    made, rng = instance(workshop, "cancel", "move", "change_service", "phone", seed=1), random.Random(0)
    case = workshop.case(made.record)
    found = {True: 0, False: 0}
    for _ in range(40):
        tools = rng.sample(workshop.writes, 3)
        wishes = [_wish(Step(tool, workshop.arguments(case, case.start, tool, rng))) for tool in tools]
        right = list(_orders(case, wishes))
        found[bool(right)] += 1
        if right:
            assert ordered(case, wishes) in right
        else:
            with pytest.raises(NoPlan):
                ordered(case, wishes)
    assert min(found.values()) > 0


def test_the_bill_is_paid_before_the_line_is_resumed():
    made = instance(telecom, "bill@s", persona="None")
    tools = [step.tool for step in gold(made)]
    assert [tool for tool in tools if telecom.actions[tool].kind == "write"] == [
        "send_payment_request", "make_payment", "resume_line", "reboot_device"]


def test_faults_that_one_restart_mends_are_mended_by_one():
    made = instance(telecom, "apn@s", "bill@s", persona="None")
    assert [step.tool for step in gold(made)].count("reboot_device") == 1


def test_look_ups_are_as_few_as_possible_and_in_order():
    made = instance(workshop, "book", seed=2, distractors=2)
    tools = [step.tool for step in gold(made)]
    assert tools[0].startswith("find_user") and tools[1:] == ["get_user_details", "get_bike_details", "book_repair"]


@pytest.mark.parametrize("domain", [workshop, retail, airline], ids=lambda domain: domain.name)
def test_there_is_room_for_the_largest_plan(domain):
    """So many sub-tasks and distractors as a plan may ask for, each sub-task with records of its own."""
    apart = {atom.group: atom for atom in reversed(domain.atoms) if not atom.requires}
    for seed in range(20):
        rng = random.Random(seed)
        world = domain.build(rng, {"distractors": CROWD, "split": "train"})
        for atom in list(apart.values())[:GOALS]:
            assert atom.make(world, rng)


@pytest.mark.parametrize("name", DOMAINS)
def test_every_sub_task_can_be_done_alone_or_in_company(name):
    """The world has room, and something shows what the plan needs."""
    domain, rng = DOMAINS[name], random.Random(3)
    for atom in domain.atoms:
        needed = [atom.requires] if atom.requires else []
        apart = [each for each in domain.atoms if not each.requires and each.group != atom.group and not each.conflicts
                 and not atom.conflicts and each.id not in needed]
        for seed in range(2 if domain is telecom else 8):
            company = [] if seed % 2 else [rng.choice(apart).id] if apart else []
            cell = {"persona": next(iter(domain.personas)), "distractors": seed % 3, "split": "train"}
            instance(domain, *needed, atom.id, *company, seed=seed, **cell)


def test_where_there_are_too_many_combinations_all_atoms_are_drawn_alike():
    """C(30, 4) = 27405 combinations; the first 20000 in order would hold none of the last ten atoms alone."""
    atoms = tuple(Atom(f"a{place}", "", f"a{place}", "write", None, ()) for place in range(30))
    found = _combinations("many", atoms, "fulfil", 4, 0)
    counts = collections.Counter(name for each in found for name in each)
    assert len(found) == KNOWN and all(len(set(each)) == 4 for each in found)
    assert max(abs(counts[atom.id] - KNOWN * 4 / 30) for atom in atoms) < 300
    assert any(all(int(name[1:]) >= 20 for name in each) for each in found)


def test_what_nothing_shows_is_named():
    made = instance(workshop, "cancel", seed=2)
    case, wishes = workshop.case(made.record), [Wish(**each) for each in made.wishes]
    with pytest.raises(NoPlan, match="desk_code 'Q00000'"):
        find(workshop, case, case.start, told(wishes, made.facts), {}, [("desk_code", "Q00000")])


@pytest.mark.parametrize("name", DOMAINS)
def test_declarations_hold_and_every_tool_succeeds_and_changes_something(name):
    domain, rng, worked = DOMAINS[name], random.Random(5), set()
    assert probe(domain, seed=5, states=8 if domain is telecom else 25) == []
    while worked != set(domain.actions):
        case, state = domain.samples(rng)
        for tool in domain.actions:
            result = case.call(state, Step(tool, domain.arguments(case, state, tool, rng), domain.actions[tool].who))
            if not result.failed and (domain.actions[tool].kind != "write" or case.changes(state, result.state)):
                worked.add(tool)


@pytest.mark.parametrize("tool, change, kind", [
    ("cancel_repair", {"effects": lambda look: {}}, "effects"),
    ("cancel_repair", {"needs": ()}, "needs"),
    ("move_repair", {"effects": lambda look: {("orders", look.step.arguments["order_id"], "day"): "2025-06-12"}}, "effects"),
    ("add_bike", {"params": {}}, "schema"),
])
def test_a_wrong_declaration_is_found(tool, change, kind):
    wrong = workshop._replace(actions={**workshop.actions, tool: workshop.actions[tool]._replace(**change)},
                              arguments=workshop.arguments)
    found = probe(wrong, seed=0, states=25) if kind != "schema" else probe(
        wrong._replace(arguments=lambda case, state, name, rng: {"brand": "x"} if name == tool else workshop.arguments(
            case, state, name, rng)), seed=0, states=3)
    assert {(each.tool, each.kind) for each in found} == {(tool, kind)}
