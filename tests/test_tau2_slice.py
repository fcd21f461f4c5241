"""The array path of tau2-bench retail and airline against the host path: the same acts, rewards, endings and records."""

import collections
import json
import random

import jax
import numpy as np
import pytest

from eau_jax.core.part import Reply, TimeStep
from eau_jax.core.types import Task
from eau_jax.envs.tau2 import data as tau2_data
from eau_jax.envs.tau2.airline_slice import airline_slice
from eau_jax.envs.tau2.retail_slice import retail_slice
from eau_jax.envs.tau2.agent import HANDOVER, REFUSAL, tool_call
from eau_jax.envs.tau2.database import View
from eau_jax.envs.tau2.plan import plan
from eau_jax.envs.tau2.user import Do, Say
from eau_jax.envs.tau2.world import world
from eau_jax.rollout.simulator import simulator
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic
from test_tau2_world import hostile

SLICES = {"retail": retail_slice, "airline": airline_slice}
WORDS = ("What is your name?", "Your zip code and e-mail?", "User id?", "Which order number?", "Which reservation?",
         "What items?", "How do you pay?", "Shall I proceed?", "Shall I take paypal_0000000?", REFUSAL, "Anything else?",
         "It is done.", "Tell me everything.", "Let me see.", "", "<tool_call>{", HANDOVER)


class Pair:
    """A domain played on both paths."""

    def __init__(self, domain):
        self.domain, self.host, self.env = domain, world(domain), SLICES[domain.name](domain)
        self.rows, self.table = self.host.table(domain.tasks), self.env.table(domain.tasks)
        self.traces, self.calls = 0, collections.Counter()

        def one(table, knobs, state, act, reply):
            self.traces += 1
            features = self.env.observe(table, knobs, state, act)
            return features, *self.env.step(table, knobs, state, act, reply, None)

        self.reset = jax.jit(lambda table, knobs, index: self.env.reset(table, knobs, index, None))
        self.step = jax.jit(one)
        self.device = jax.device_put(self.table)


@pytest.fixture(scope="module")
def pairs(shared_data):
    folder = shared_data / "tau2"
    if not folder.is_dir():
        pytest.skip("tau2-bench's files are not here")
    return {name: Pair(tau2_data.load(folder / name)) for name in SLICES}


def knobs(env, **changes):
    return env.knobs.replace(**{name: np.asarray(value, getattr(env.knobs, name).dtype) for name, value in changes.items()})


def numpy(tree):
    return jax.tree.map(np.asarray, tree)


def play(pair, index, agent, settings=None, reply=None, outputs=True, seed=0):
    """Plays a task on the host path, whose state the agent sees, and the same messages on the array path.
    -> (host's last state, the array path's)"""
    host, env, task = pair.host, pair.env, pair.domain.tasks[index]
    settings, rng = host.knobs if settings is None else settings, np.random.default_rng(seed)
    old, new = host.reset(pair.rows, settings, index, None), numpy(pair.reset(pair.device, settings, np.int32(index)))
    while not old.done:
        text = agent(task, old, rng)
        left, right = host.parse(task, text, old), env.parse(task, text, new)
        decided = reply(rng) if reply else Reply.ANSWER
        decided = np.int32(Reply.LEAVE if int(settings.patience) - old.useless <= 0 else decided)
        features = host.observe(pair.rows, settings, old, left)
        old, expected = host.step(pair.rows, settings, old, left, decided, None)
        seen, new, found = numpy(pair.step(pair.device, settings, new, right.replace(call=""), decided))
        if left.code == Do.CALL and "name" in text:
            pair.calls[json.loads(left.call)["name"], old.output.startswith("Error")] += 1
        where = (task.id, text, host.render(task, left, expected, old, 0)[:300])
        assert seen.tolist() == features.tolist(), (where, seen, features)
        for name in ("code", "disclosed", "reward", "discount", "done", "success", "stop", "tool"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name)), (name, where)
        assert (new.told, new.turn, new.errors, new.useless) == (old.told, old.turn, old.errors, old.useless), where
        assert new.status.tolist()[:len(old.status)] == list(old.status), where
        assert new.transferred == old.transferred
        if outputs and not (settings.last_item_wins and new.outside):    # outside each item gets its own price
            texts = [path.render(task, act, step, state, 0)
                     for path, act, step, state in ((host, left, expected, old), (env, right, found, new))]
            assert _equal(*map(_read, texts)), (where, texts)
    return old, new


def _read(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def _equal(left, right):
    """Equal, amounts to the cent."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool)
    return abs(left - right) < 1e-6 if number(left) and number(right) else left == right


def saying(*messages):
    return lambda task, state, rng: messages[min(state.turn, len(messages) - 1)]


@pytest.mark.parametrize("name, agent, expected", [
    ("retail", "expert", 114), ("retail", REFUSAL, 7), ("retail", "hello", 0), ("airline", "expert", 50),
    ("airline", REFUSAL, 23), ("airline", HANDOVER, 23), ("airline", "", 0)])
def test_what_scripted_agents_score(pairs, name, agent, expected):
    pair = pairs[name]
    agent = pair.host.expert if agent == "expert" else saying(agent)
    ends = [play(pair, index, agent)[1] for index in range(len(pair.domain.tasks))]
    assert sum(pair.env.score(None, state, 0.0) for state in ends) == expected


def customers(domain, user_id):
    """Every value of a customer's records that an argument may take, by the argument's name."""
    base, user = domain.base, domain.base["users"][user_id]
    methods = [*user["payment_methods"], "gift_card_0000000"]
    if domain.name == "airline":
        legs = [record["flights"] for record in map(base["reservations"].get, user["reservations"])]
        return {"reservation_id": [*user["reservations"], "HATHAT", "HATHAU"], "payment_id": methods, "user_id": [user_id],
                "cabin": ["business", "economy", "basic_economy"], "insurance": ["yes", "no"], "amount": [50, 100, -7],
                "total_baggages": [0, 1, 3, 10**9], "nonfree_baggages": [0, 1, 2], "flights": [*legs, []],
                "passengers": [[{"first_name": "A", "last_name": "B", "dob": "1990-01-01"}] * count for count in range(4)]}
    orders = [base["orders"][key] for key in user["orders"]]
    products = {item["product_id"] for order in orders for item in order["items"]}
    return {"order_id": user["orders"], "payment_method_id": methods,
            "item_ids": [[item["item_id"]] for order in orders for item in order["items"]],
            "new_item_ids": [[variant] for each in sorted(products) for variant in base["products"][each]["variants"]],
            "reason": ["no longer needed", "ordered by mistake", "bored"], "user_id": [user_id],
            "zip": ["10001", user["address"]["zip"]], "city": ["Nowhere", "\ud800"]}


def random_call(pair, task, state, rng):
    """A gold call, one with arguments changed, a write with sensible arguments, someone else's write, or a read."""
    domain, user_id = pair.domain, plan(pair.domain, task).user_id
    golds, kind = task.data["evaluation_criteria"].get("actions") or [], rng.random()
    everybody = [action for each in domain.tasks for action in each.data["evaluation_criteria"].get("actions") or ()]
    if kind < 0.1:
        action = everybody[rng.integers(len(everybody))]
        return tool_call(action["name"], action["arguments"])
    if kind < 0.2:
        return sensible(domain, user_id, rng)
    action = golds[rng.integers(len(golds))] if golds and kind < 0.6 else everybody[rng.integers(len(everybody))]
    arguments, values = dict(action["arguments"]), customers(domain, user_id)
    for name in arguments:
        if name in values and rng.random() < (0.3 if action in golds else 1.0):
            arguments[name] = values[name][rng.integers(len(values[name]))]
    if "user_id" in arguments and action not in golds:
        arguments["user_id"] = user_id
    if rng.random() < 0.05:
        arguments[str(rng.choice([*arguments, "x"]))] = [None, 3, "x", [["y"]], 1e400][rng.integers(5)]
    return tool_call(action["name"], arguments)


def sensible(domain, user_id, rng):
    """A write to a record of the customer, most likely one that succeeds."""
    return {"airline": flown, "retail": ordered}[domain.name](domain.base, domain.base["users"][user_id], rng)


def flown(base, user, rng):
    pick = lambda values: values[rng.integers(len(values))]
    key = pick([*user["reservations"], "HATHAT"])
    old = base["reservations"].get(key) or base["reservations"][pick(user["reservations"])]
    cabin = old["cabin"] if rng.random() < 0.3 else pick(["business", "economy", "basic_economy"])
    legs = [{"flight_number": each["flight_number"], "date": each["date"]} for each in old["flights"]]
    for leg in legs[:rng.integers(0, 3)]:    # of a few flights one that is nearly full
        numbers = rng.choice(list(base["flights"]), 5)
        some = [(number, pick(list(base["flights"][number]["dates"])[14:])) for number in numbers]
        seats = lambda number, date: base["flights"][number]["dates"][date].get("available_seats", {}).get(cabin, 99)
        number, date = min(some, key=lambda each: seats(*each))
        leg.update(flight_number=str(number), date=date)
    paid = {"reservation_id": key, "payment_id": pick(list(user["payment_methods"]))}
    people = [{"first_name": pick("AB"), "last_name": "C", "dob": "1990-01-01"} for _ in old["passengers"]]
    return tool_call(*pick([
        ("cancel_reservation", {"reservation_id": key}), ("book_reservation", booked(base, user, rng)),
        ("book_reservation", booked(base, user, rng)),
        ("update_reservation_flights", paid | {"cabin": cabin, "flights": legs}),
        ("update_reservation_flights", paid | {"cabin": cabin, "flights": legs[:1] * int(rng.integers(0, 6))}),
        ("update_reservation_baggages", paid | {
            "total_baggages": int(rng.integers(5)), "nonfree_baggages": int(rng.integers(5))}),
        ("update_reservation_passengers", {"reservation_id": key, "passengers": people}),
        ("send_certificate", {"user_id": pick([user["user_id"], "nobody"]), "amount": int(rng.integers(0, 100))})]))


def booked(base, user, rng):
    """A booking of any one or two flights by the customer, whose payments add up most of the time."""
    pick = lambda values: values[rng.integers(len(values))]
    cabin, insurance, bags = pick(["business", "economy", "basic_economy"]), pick(["yes", "no"]), int(rng.integers(3))
    legs, price = [], 0
    for number in rng.choice(list(base["flights"]), rng.integers(1, 3)):
        days = {date: day for date, day in base["flights"][str(number)]["dates"].items() if day["status"] == "available"}
        if days:
            date = pick(list(days))
            legs.append({"flight_number": str(number), "date": date})
            price += days[date]["prices"][cabin]
    people = [{"first_name": pick("AB"), "last_name": "C", "dob": "1990-01-01"} for _ in range(rng.integers(1, 3))]
    total = len(people) * (price + 30 * (insurance == "yes")) + 50 * bags
    methods = [name for name, each in user["payment_methods"].items() if each["source"] == "credit_card"]
    paid = [{"payment_id": pick(methods or list(user["payment_methods"])), "amount": total - int(rng.random() < 0.1)}]
    worth = [name for name, each in user["payment_methods"].items() if 1 <= each.get("amount", 0) <= total]
    if worth and rng.random() < 0.5:    # a gift card or a certificate pays a part
        first = {"payment_id": pick(worth)}
        first["amount"] = int(user["payment_methods"][first["payment_id"]]["amount"])
        paid = [first, paid[0] | {"amount": paid[0]["amount"] - first["amount"]}]
    return {"user_id": user["user_id"], "origin": "JFK", "destination": "SEA",
            "flight_type": pick(["one_way", "round_trip"]), "cabin": cabin, "flights": legs, "passengers": people,
            "payment_methods": paid, "insurance": insurance,
            "total_baggages": bags, "nonfree_baggages": bags}


def ordered(base, user, rng):
    pick = lambda values: values[rng.integers(len(values))]
    order, method = base["orders"][pick(user["orders"])], pick(list(user["payment_methods"]))
    items = [order["items"][place] for place in rng.permutation(len(order["items"]))[:rng.integers(0, 6)]]
    variants = [list(base["products"][item["product_id"]]["variants"].values()) for item in items]
    offered = [[each["item_id"] for each in some if each["available"] or rng.random() < 0.1] for some in variants]
    key, ids = {"order_id": order["order_id"]}, {"item_ids": [item["item_id"] for item in items]}
    new = {"new_item_ids": [pick(some or ["1"]) for some in offered]}
    swap = dict(exchange_delivered_order_items=new | ids, modify_pending_order_items=new | ids,
                return_delivered_order_items=ids, modify_pending_order_payment={})
    name = pick([*swap, "cancel_pending_order", "get_order_details"])
    if name in swap:
        first = order["payment_history"][0]["payment_method_id"]
        return tool_call(name, key | swap[name] | {"payment_method_id": method if rng.random() < 0.7 else first})
    return tool_call(name, key | ({"reason": "no longer needed"} if name == "cancel_pending_order" else {}))


def random_agent(pair):
    def agent(task, state, rng):
        kind = rng.random()
        if kind < 0.35:
            return pair.host.expert(task, state, rng)
        return WORDS[rng.integers(len(WORDS))] if kind < 0.55 else random_call(pair, task, state, rng)
    return agent


def same_records(pair, index, old, new):
    """Reads every record of the customer from the slice."""
    domain, task = pair.domain, pair.domain.tasks[index]
    user_id, view = plan(domain, task).user_id, View(domain.base, old.changed)
    table, tool, name = {"retail": ("orders", "get_order_details", "order_id"),
                         "airline": ("reservations", "get_reservation_details", "reservation_id")}[domain.name]
    reads = [("users", user_id, tool_call("get_user_details", {"user_id": user_id}))]
    reads += [(table, key, tool_call(tool, {name: key})) for key in view.get("users", user_id)[table]]
    step = TimeStep(code=Say.TOOL, disclosed=0, reward=0, discount=1, done=False, success=False, stop=0, tool=True)
    for where, key, text in reads:
        found = json.loads(pair.env.render(task, pair.env.parse(task, text, new), step, new, 0))
        assert _equal(found, view.get(where, key)), (task.id, found, view.get(where, key))


def _random_run(pair, count):
    """-> (acts played, episodes solved)"""
    settings = (
        knobs(pair.host, patience=30, error_limit=40), knobs(pair.host, last_item_wins=1, error_limit=30, patience=30),
        knobs(pair.host, partial_credit=0.5, basis_db=0, insist_n=3, reveal_goals=1),
        knobs(pair.host, volunteer_id=1, patience=3),
        knobs(pair.host, correct_on_mismatch=0, basis_communicate=0, confirm_strict=1, max_turns=6, max_invalid=1))
    decide = lambda rng: Reply.ANSWER if rng.random() < 0.8 else list(Reply)[rng.integers(4)]
    acts, solved = 0, 0
    for seed in range(count):
        index = seed % len(pair.domain.tasks)
        old, new = play(pair, index, random_agent(pair), settings[seed % 5], decide, outputs=seed % 3 == 0, seed=seed)
        same_records(pair, index, old, new)
        acts, solved = acts + old.turn, solved + bool(new.solved)
    return acts, solved


@pytest.mark.parametrize("name, count", [("retail", 260), ("airline", 160)])
def test_random_acts_give_the_same_on_both_paths(pairs, name, count):
    pair = pairs[name]
    acts, solved = _random_run(pair, count)
    assert pair.traces == 1 and acts > 5 * count and 0.2 < solved / count < 0.8
    for tool in pair.domain.tools.values():    # every write has succeeded and failed
        assert tool.kind != "write" or all(pair.calls[tool.name, failed] for failed in (True, False)), tool.name


@pytest.mark.slow
@pytest.mark.parametrize("name, count", [("retail", 4_000), ("airline", 2_000)])
def test_thousands_of_random_episodes(pairs, name, count):
    assert _random_run(pairs[name], count)[0] > 5 * count


@pytest.mark.parametrize("name", list(SLICES))
def test_hostile_messages_give_the_same_on_both_paths(pairs, name):
    pair, messages = pairs[name], list(hostile(pairs[name].domain, random.Random(2), 600))
    settings = knobs(pair.host, max_turns=60, max_invalid=64, error_limit=64, patience=64)
    for start in range(0, len(messages), 60):
        index = start % len(pair.domain.tasks)
        same_records(pair, index, *play(pair, index, saying(*messages[start:start + 60]), settings))


@pytest.mark.slow
@pytest.mark.parametrize("name, writes", [("retail", 176), ("airline", 49)])
def test_gold_calls_solve_every_task_and_any_write_less_or_more_does_not(pairs, name, writes):
    """Whole episodes under jit(vmap): every task's gold calls, what has to be said, and the transfer that ends it."""
    pair, scripts, index, expected = pairs[name], [], [], []
    domain, nothing = pair.domain, tool_call("calculate", {"expression": "1"})
    for place, task in enumerate(domain.tasks):
        criteria, user_id = task.data["evaluation_criteria"], plan(domain, task).user_id
        calls = [tool_call(action["name"], action["arguments"]) for action in criteria["actions"]]
        wrong = [at for at, action in enumerate(criteria["actions"]) if domain.tools[action["name"]].kind == "write"]
        idle = (name, task.id) in {("retail", "22"), ("retail", "64"), ("retail", "105"), ("retail", "110")}
        runs = [calls] + [calls[:at] + calls[at + 1:] for at in wrong] + [calls + [_another(domain, user_id)]]
        say = "; ".join(criteria.get("communicate_info") or ["Good."])
        solved = np.array([1] + [0] * (len(runs) - 1))
        expected.append((solved, idle))
        for run in runs:
            texts = [*run, f"I found {say}", f"{HANDOVER}"]
            texts = [nothing] * (22 - len(texts)) + texts
            scripts.append([pair.env.parse(task, text, None).replace(call="") for text in texts])
            index.append(place)
    acts = jax.tree.map(lambda *each: np.stack(each), *[jax.tree.map(lambda *each: np.stack(each), *run) for run in scripts])

    @jax.jit
    def episodes(table, settings, index, acts):
        def one(index, acts):
            begin = pair.env.reset(table, settings, index, None)
            body = lambda state, act: pair.env.step(table, settings, state, act, np.int32(Reply.ANSWER), None)
            return jax.lax.scan(body, begin, acts)[0].solved
        return jax.vmap(one)(index, acts)

    settings = knobs(pair.env, error_limit=64)
    solved, at = np.asarray(episodes(pair.device, settings, np.array(index, np.int32), acts)).astype(int), 0
    for wanted, idle in expected:
        found = solved[at:at + len(wanted)]
        assert (found[[0, -1]] == [1, 0]).all() and found.sum() == 1 + idle, (at, found)
        at += len(wanted)
    assert at - 2 * len(domain.tasks) == writes


def _another(domain, user_id):
    """A write that no task asks for."""
    if domain.name == "airline":
        return tool_call("send_certificate", {"user_id": user_id, "amount": 1})
    place = {"address1": "0 Nowhere", "address2": "", "city": "X", "state": "Y", "country": "Z", "zip": "00000"}
    return tool_call("modify_user_address", {"user_id": user_id, **place})


def test_corners_of_retail(pairs):
    """Customers who hold an item twice, and some others: each way to pay, then cancel, swap, exchange or return."""
    base, task = pairs["retail"].domain.base, pairs["retail"].domain.tasks[0]
    twice = {order["user_id"] for order in base["orders"].values()
             if len({item["item_id"] for item in order["items"]}) < len(order["items"])}
    people = sorted(twice) + list(base["users"])[:25]
    odd = tuple(Task(id=user_id, env=task.env, data={**task.data, "user_scenario": {"instructions": f"You are {user_id}."},
                                                     "evaluation_criteria": {"actions": []}}) for user_id in people)
    pair = Pair(pairs["retail"].domain._replace(tasks=odd))
    for index, user_id in enumerate(people):
        methods = list(base["users"][user_id]["payment_methods"])
        for way, method in enumerate(methods):
            script, rng = [], np.random.default_rng(way)
            for key in base["users"][user_id]["orders"]:
                items = base["orders"][key]["items"]
                variants = [[name for name, each in base["products"][item["product_id"]]["variants"].items()
                             if each["available"] and name != item["item_id"]] for item in items]
                by = {"order_id": key, "payment_method_id": method, "item_ids": [item["item_id"] for item in items]}
                new = by | {"new_item_ids": [str(rng.choice(some)) for some in variants]}
                script += [tool_call("modify_pending_order_items", by | {"new_item_ids": by["item_ids"]}),
                           tool_call("modify_pending_order_payment", {"order_id": key, "payment_method_id": method})]
                if user_id in twice or rng.integers(2):
                    script += [tool_call(name, new) for name in (
                        "modify_pending_order_items", "exchange_delivered_order_items")]
                script += [tool_call("cancel_pending_order", {"order_id": key, "reason": "no longer needed"}),
                           tool_call("return_delivered_order_items", by)]
            same_records(pair, index, *play(pair, index, saying(*script, HANDOVER), knobs(
                pair.host, error_limit=64, max_turns=200, last_item_wins=way % 2)))


def test_corners_of_airline(pairs):
    pair = pairs["airline"]
    index, task = next((place, task) for place, task in enumerate(pair.domain.tasks) if task.id == "8")
    book = next(action["arguments"] for action in task.data["evaluation_criteria"]["actions"]
                if action["name"] == "book_reservation")
    user_id, settings = book["user_id"], knobs(pair.host, error_limit=64)
    user = pair.domain.base["users"][user_id]
    key, card = user["reservations"][0], next(name for name in user["payment_methods"] if "card" in name)
    other = [person | {"first_name": "Wrong"} for person in book["passengers"]]
    mend = [tool_call("book_reservation", book | {"passengers": other, "total_baggages": 3}),
            tool_call("update_reservation_passengers", {"reservation_id": "HATHAT", "passengers": book["passengers"]}),
            tool_call("update_reservation_baggages", {
                "reservation_id": "HATHAT", "payment_id": card,
                "total_baggages": book["total_baggages"], "nonfree_baggages": book["nonfree_baggages"]})]
    certify = [tool_call("send_certificate", {"user_id": user_id, "amount": 10 * place}) for place in range(4)]
    cancel = [tool_call("cancel_reservation", {"reservation_id": key})] * 5
    dear = tool_call("book_reservation", book | {"insurance": "yes" if book["insurance"] == "no" else "no"})
    right = tool_call("book_reservation", book)
    for script, solved in ((mend, True), ([right], True), ([right] * 5, True), (certify, False), (cancel + certify, False),
                           ([dear, right, *mend, *cancel, *certify], False), (mend + cancel[:3], False)):
        ends = play(pair, index, saying(*script, HANDOVER), settings)
        same_records(pair, index, *ends)
        assert bool(ends[1].solved) is solved, script


def test_bookings_that_no_gold_action_makes(pairs):
    """They use seats, balances and certificates up; whatever follows sees it, on both paths, and nothing is solved."""
    pair, made = pairs["airline"], 0
    settings = knobs(pair.host, error_limit=64, patience=64)
    for seed, index in enumerate(range(0, 50, 2)):
        task, rng = pair.domain.tasks[index], np.random.default_rng(seed)
        user = pair.domain.base["users"][plan(pair.domain, task).user_id]
        first = booked(pair.domain.base, user, rng)
        chain = [first, first, booked(pair.domain.base, user, rng), first | {"passengers": first["passengers"] * 4}]
        key, card = user["reservations"][0], list(user["payment_methods"])[0]
        script = [tool_call("book_reservation", each) for each in chain] + [
            tool_call("update_reservation_passengers", {"reservation_id": "HATHAT", "passengers": first["passengers"]}),
            tool_call("update_reservation_baggages", {"reservation_id": "HATHAT", "total_baggages": 3, "nonfree_baggages": 3,
                                                      "payment_id": card}),
            tool_call("update_reservation_flights", {"reservation_id": key, "cabin": first["cabin"], "payment_id": card,
                                                     "flights": first["flights"]}),
            tool_call("cancel_reservation", {"reservation_id": "HATHAT"}),
            tool_call("cancel_reservation", {"reservation_id": key})]
        old, new = play(pair, index, saying(*script, HANDOVER), settings)
        same_records(pair, index, old, new)
        booked_now = len(View(pair.domain.base, old.changed).get("users", user["user_id"])["reservations"])
        made += booked_now - len(user["reservations"])
        assert not bool(new.solved) and not old.outcome.reward
    assert made > 25


def test_one_trace_serves_all_knobs_and_a_rollouts_simulator_plays_it(pairs):
    pair = pairs["retail"]
    played = simulator(pair.env, symbolic, pair.domain.tasks)
    settings, rules = {"env": pair.env.knobs, "user": symbolic.knobs}, compile_rules(pair.env.rules, pair.env.features)
    rewards = []
    for index, task in enumerate(pair.domain.tasks[:12]):
        state, turn = played.reset(settings, index, 0), 0
        while not state.done:
            act = pair.env.parse(task, pair.env.expert(task, state, np.random.default_rng(0)), state)
            state, step, _ = played.step(settings, rules, state, act, 0, turn)
            assert pair.env.render(task, act, step, state, turn)
            turn += 1
        rewards.append(float(step.reward))
        settings["env"] = settings["env"].replace(patience=np.int32(8 + index))
    assert rewards == [1.0] * 12 and played.traces["step"] == played.traces["reset"] == 1


@pytest.mark.parametrize("name", list(SLICES))
def test_a_task_without_a_customer_is_refused(pairs, name):
    pair = pairs[name]
    task = pair.domain.tasks[0]
    nobody = Task(id="odd", env=task.env, data={**task.data, "user_scenario": {"instructions": "You want something."}})
    with pytest.raises(ValueError, match="task 'odd': expected instructions that name a customer .*; play it in tau2.world"):
        pair.env.table((nobody,))
    pair.host.table((nobody,))


def test_what_does_not_fit_is_said(pairs):
    pair = pairs["retail"]
    task = pair.domain.tasks[0]
    criteria = task.data["evaluation_criteria"]
    odd = Task(id="odd", env=task.env, data={**task.data, "evaluation_criteria": {**criteria, "reward_basis": ["ACTION"]}})
    with pytest.raises(ValueError, match="task 'odd': reward basis ACTION .*; play it in tau2.world"):
        pair.env.table((odd,))
