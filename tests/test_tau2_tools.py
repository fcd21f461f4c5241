"""The tools of tau2-bench: results by hand on a small shop and a small airline."""

import json

import pytest

from eau_jax.envs.tau2.airline_tools import airline_tools
from eau_jax.envs.tau2.mock_tools import mock_tools
from eau_jax.envs.tau2.retail_tools import retail_tools
from eau_jax.envs.tau2.call import LARGEST, Refused, calculate, call, checked
from eau_jax.envs.tau2.database import NOTHING, View, merged, same

HOME = {"address1": "1 A St", "address2": "", "city": "Rome", "country": "USA", "state": "NY", "zip": "10001"}


def variant(item_id, price, size, available=True):
    return {"item_id": item_id, "options": {"size": size}, "available": available, "price": price}


def shop():
    def order(order_id, status, paid_by, *items):
        items = [{"name": "Hat", "product_id": "p1", "item_id": item, "price": price, "options": {"size": size}}
                 for item, price, size in items]
        total = round(sum(item["price"] for item in items), 2)
        return {"order_id": order_id, "user_id": "ann_lee_1", "address": HOME, "items": items, "status": status,
                "fulfillments": [], "payment_history": [
                    {"transaction_type": "payment", "amount": total, "payment_method_id": paid_by}]}
    return {
        "users": {"ann_lee_1": {
            "user_id": "ann_lee_1", "name": {"first_name": "Ann", "last_name": "Lee"}, "address": HOME,
            "email": "Ann@example.com", "orders": ["#W1", "#W2", "#W3"], "payment_methods": {
                "gift_card_1": {"source": "gift_card", "id": "gift_card_1", "balance": 20.0},
                "credit_card_1": {"source": "credit_card", "id": "credit_card_1", "brand": "visa", "last_four": "1234"},
                "paypal_1": {"source": "paypal", "id": "paypal_1"}}}},
        "products": {"p1": {"name": "Hat", "product_id": "p1", "variants": {
            "i1": variant("i1", 10.1, "S"), "i2": variant("i2", 15.3, "M"), "i3": variant("i3", 50.0, "L"),
            "i4": variant("i4", 5.0, "XL", available=False)}}},
        "orders": {"#W1": order("#W1", "pending", "gift_card_1", ("i1", 10.1, "S"), ("i2", 15.3, "M")),
                   "#W2": order("#W2", "delivered", "credit_card_1", ("i1", 10.1, "S"), ("i1", 10.1, "S")),
                   "#W3": order("#W3", "processed", "paypal_1", ("i2", 15.3, "M"))}}


def airline():
    def flight(number, origin, destination, leaves, arrives, seats, price):
        days = {f"2024-05-{day}": {"status": "available", "available_seats": dict.fromkeys(("basic_economy", "economy",
                "business"), seats), "prices": {"basic_economy": price, "economy": price + 10, "business": price + 100}}
                for day in (20, 21)}
        return {"flight_number": number, "origin": origin, "destination": destination, "dates": days | {
            "2024-05-14": {"status": "landed"}}, "scheduled_departure_time_est": leaves,
            "scheduled_arrival_time_est": arrives}
    return {
        "flights": {each["flight_number"]: each for each in (
            flight("HAT001", "JFK", "SEA", "06:00:00", "09:00:00", 2, 100),
            flight("HAT002", "JFK", "ORD", "20:00:00", "01:00:00+1", 9, 50),
            flight("HAT003", "ORD", "SEA", "08:00:00", "10:00:00", 9, 40),
            flight("HAT004", "JFK", "DEN", "06:00:00", "07:00:00", 9, 30),
            flight("HAT005", "DEN", "SEA", "06:30:00", "08:00:00", 9, 20))},
        "users": {"bo_kim_2": {
            "user_id": "bo_kim_2", "reservations": ["R1"], "payment_methods": {
                "gift_card_2": {"source": "gift_card", "id": "gift_card_2", "amount": 200.0},
                "certificate_2": {"source": "certificate", "id": "certificate_2", "amount": 100.0},
                "credit_card_2": {"source": "credit_card", "id": "credit_card_2", "brand": "visa", "last_four": "1"}}}},
        "reservations": {"R1": {
            "reservation_id": "R1", "user_id": "bo_kim_2", "origin": "JFK", "destination": "SEA", "flight_type": "one_way",
            "cabin": "economy", "flights": [{"origin": "JFK", "destination": "SEA", "flight_number": "HAT001",
                                             "date": "2024-05-20", "price": 90}],
            "passengers": [{"first_name": "Bo", "last_name": "Kim", "dob": "1990-01-01"}],
            "payment_history": [{"payment_id": "credit_card_2", "amount": 90}], "created_at": "2024-05-01T00:00:00",
            "total_baggages": 1, "nonfree_baggages": 0, "insurance": "no", "status": None}}}


class Talk:
    """Calls one after the other; keeps the state."""

    def __init__(self, tools, base):
        self.tools, self.base, self.changed, self.before = tools, base, NOTHING, json.dumps(base)

    def __call__(self, name, **args):
        result = call(self.tools, self.base, self.changed, name, args)
        assert not result.error or result.changed is self.changed, "a failed call changes nothing"
        assert json.dumps(self.base) == self.before, "the base is never written to"
        self.changed = result.changed
        return result.text if result.error or result.text[:1] not in "{[" else json.loads(result.text)

    def get(self, table, key):
        return View(self.base, self.changed).get(table, key)


@pytest.fixture
def store():
    return Talk(retail_tools(), shop())


@pytest.fixture
def desk():
    return Talk(airline_tools(), airline())


def balance(store):
    return store.get("users", "ann_lee_1")["payment_methods"]["gift_card_1"]["balance"]


def test_cancelling_an_order_refunds_the_gift_card(store):
    assert store("cancel_pending_order", order_id="#W3", reason="no longer needed") == (
        "Error: Non-pending order cannot be cancelled")
    assert store("cancel_pending_order", order_id="#W1", reason="bored") == "Error: Invalid reason"
    assert store("cancel_pending_order", order_id="#W9", reason="bored") == "Error: Order not found"
    order = store("cancel_pending_order", order_id="#W1", reason="no longer needed")
    assert (order["status"], order["cancel_reason"]) == ("cancelled", "no longer needed")
    assert order["payment_history"][1] == {"transaction_type": "refund", "amount": 25.4, "payment_method_id": "gift_card_1"}
    assert balance(store) == 45.4 and set(store.changed) == {("orders", "#W1"), ("users", "ann_lee_1")}
    assert store("cancel_pending_order", order_id="#W1", reason="no longer needed").startswith("Error")


def test_modifying_items_charges_the_difference_and_works_once(store):
    swap = dict(order_id="#W1", item_ids=["i1"], new_item_ids=["i2"], payment_method_id="gift_card_1")
    refused = {
        "i1 not found": dict(item_ids=["i1", "i1"], new_item_ids=["i2", "i2"]),
        "The number of items to be exchanged should match": dict(new_item_ids=[]),
        "The new item id should be different from the old item id": dict(new_item_ids=["i1"]),
        "Variant not found": dict(new_item_ids=["i9"]), "New item i4 not found or available": dict(new_item_ids=["i4"]),
        "Payment method not found": dict(payment_method_id="paypal_9"),
        "Insufficient gift card balance to pay for the new item": dict(new_item_ids=["i3"])}
    for said, change in refused.items():
        assert store("modify_pending_order_items", **(swap | change)) == f"Error: {said}"
    order = store("modify_pending_order_items", **swap)
    assert order["status"] == "pending (item modified)" and balance(store) == 14.8
    assert [(item["item_id"], item["price"], item["options"]["size"]) for item in order["items"]] == [
        ("i2", 15.3, "M"), ("i2", 15.3, "M")]
    assert order["payment_history"][1]["amount"] == pytest.approx(5.2)
    assert store("modify_pending_order_items", **swap) == "Error: Non-pending order cannot be modified"
    assert store("modify_pending_order_address", order_id="#W1", **HOME)["address"] == HOME, "still possible afterwards"


@pytest.mark.parametrize("last_wins, expected", [
    (False, [("i3", 50.0), ("i1", 10.1)]), (True, [("i3", 10.1), ("i1", 10.1)])])
def test_several_items_at_once_and_upstreams_slip(last_wins, expected):
    store = Talk(retail_tools(last_wins), shop())
    order = store("modify_pending_order_items", order_id="#W1", item_ids=["i1", "i2"], new_item_ids=["i3", "i1"],
                  payment_method_id="credit_card_1")
    assert [(item["item_id"], item["price"]) for item in order["items"]] == expected
    assert order["payment_history"][1]["amount"] == pytest.approx(34.7), "the charge is right in both"


def test_returns_and_exchanges(store):
    back = dict(order_id="#W2", item_ids=["i1"], payment_method_id="gift_card_1")
    assert store("return_delivered_order_items", **back | dict(payment_method_id="paypal_1")) == (
        "Error: Payment method should be the original payment method")
    assert store("return_delivered_order_items", **back | dict(item_ids=["i1"] * 3)) == "Error: Some item not found"
    assert store("return_delivered_order_items", **back | dict(order_id="#W1")) == (
        "Error: Non-delivered order cannot be returned")
    swap = dict(order_id="#W2", item_ids=["i1", "i1"], new_item_ids=["i3", "i2"], payment_method_id="credit_card_1")
    assert store("exchange_delivered_order_items", **swap | dict(payment_method_id="gift_card_1")) == (
        "Error: Insufficient gift card balance to pay for the price difference")
    assert store("exchange_delivered_order_items", **swap | dict(item_ids=["i1", "i2"])) == "Error: Number of i2 not found."
    order = store("exchange_delivered_order_items", **swap)
    assert (order["status"], order["exchange_new_items"], order["exchange_price_difference"]) == (
        "exchange requested", ["i2", "i3"], 45.1)
    assert [item["item_id"] for item in order["items"]] == ["i1", "i1"] and balance(store) == 20.0
    assert store("return_delivered_order_items", **back).startswith("Error"), "once only"


def test_changing_the_payment_moves_the_money(store):
    assert store("modify_pending_order_payment", order_id="#W1", payment_method_id="gift_card_1") == (
        "Error: The new payment method should be different from the current one")
    order = store("modify_pending_order_payment", order_id="#W1", payment_method_id="credit_card_1")
    assert [entry["transaction_type"] for entry in order["payment_history"]] == ["payment", "payment", "refund"]
    assert balance(store) == 45.4
    assert store("modify_pending_order_payment", order_id="#W1", payment_method_id="paypal_1") == (
        "Error: There should be exactly one payment for a pending order")


def test_looking_up(store):
    assert store("find_user_id_by_email", email="ANN@EXAMPLE.COM") == "ann_lee_1"
    assert store("find_user_id_by_name_zip", first_name="ann", last_name="LEE", zip="10001") == "ann_lee_1"
    assert store("find_user_id_by_name_zip", first_name="ann", last_name="lee", zip="10002") == "Error: User not found"
    assert store("get_item_details", item_id="i3")["price"] == 50.0
    assert store("get_product_details", product_id="i3") == "Error: Product not found"
    assert store("list_all_product_types") == {"Hat": "p1"}
    assert store("transfer_to_human_agents", summary="x") == "Transfer successful" and store.changed == NOTHING
    moved = store("modify_user_address", user_id="ann_lee_1", **HOME | {"zip": "10002"})
    assert moved["address"]["zip"] == store("get_user_details", user_id="ann_lee_1")["address"]["zip"] == "10002"


BOOKING = dict(user_id="bo_kim_2", origin="JFK", destination="SEA", flight_type="one_way", cabin="economy",
               flights=[{"flight_number": "HAT001", "date": "2024-05-20"}],
               passengers=[{"first_name": "Bo", "last_name": "Kim", "dob": "1990-01-01"}] * 2,
               payment_methods=[{"payment_id": "certificate_2", "amount": 100}, {"payment_id": "gift_card_2", "amount": 180},
                                {"payment_id": "credit_card_2", "amount": 50}],
               total_baggages=3, nonfree_baggages=1, insurance="yes")    # 2 * 110 + 2 * 30 + 50 = 330


def test_booking(desk):
    for said, change in {
        "User x not found": dict(user_id="x"), "Flight HAT9 not found": dict(flights=[dict(flight_number="HAT9", date="x")]),
        "Flight HAT001 not found on date x": dict(flights=[dict(flight_number="HAT001", date="x")]),
        "Flight HAT001 not available on date 2024-05-14": dict(flights=[dict(flight_number="HAT001", date="2024-05-14")]),
        "Not enough seats on flight HAT001": dict(passengers=BOOKING["passengers"] * 2),
        "Payment method y not found": dict(payment_methods=[dict(payment_id="y", amount=1)]),
        "Not enough balance in payment method gift_card_2": dict(
            payment_methods=[dict(payment_id="gift_card_2", amount=330)]),
        "Payment amount does not add up, total price is 330, but paid 0": dict(payment_methods=[]),
        "Payment amount does not add up, total price is 270, but paid 330": dict(insurance="no"),
        "cabin: expected one of business, economy, basic_economy, found 'first'": dict(cabin="first"),
    }.items():
        assert desk("book_reservation", **BOOKING | change) == f"Error: {said}"
    booked = desk("book_reservation", **BOOKING)
    assert booked["reservation_id"] == "HATHAT" and booked["flights"][0]["price"] == 110
    user = desk.get("users", "bo_kim_2")
    assert user["reservations"] == ["R1", "HATHAT"] and "certificate_2" not in user["payment_methods"]
    assert user["payment_methods"]["gift_card_2"]["amount"] == 20.0
    seats = desk.get("flights", "HAT001")["dates"]
    assert seats["2024-05-20"]["available_seats"] == dict(basic_economy=2, economy=0, business=2)
    assert seats["2024-05-21"]["available_seats"]["economy"] == 2
    assert desk("book_reservation", **BOOKING) == "Error: Not enough seats on flight HAT001"


def test_changing_and_cancelling_a_reservation(desk):
    change = dict(reservation_id="R1", cabin="economy", flights=[dict(flight_number="HAT001", date="2024-05-20")],
                  payment_id="gift_card_2")
    assert desk("update_reservation_flights", **change)["payment_history"] == [dict(payment_id="credit_card_2", amount=90)]
    assert desk("update_reservation_flights", **change | dict(payment_id="certificate_2")) == (
        "Error: Certificate cannot be used to update reservation")
    dearer = desk("update_reservation_flights", **change | dict(cabin="business"))     # 200 - 90
    assert dearer["payment_history"][-1] == dict(payment_id="gift_card_2", amount=110) and dearer["cabin"] == "business"
    assert desk("update_reservation_flights", **change | dict(flights=[dict(flight_number="HAT002", date="2024-05-20")] * 5,
                                                              cabin="business")) == "Error: Gift card balance is not enough"
    bags = desk("update_reservation_baggages", reservation_id="R1", total_baggages=3, nonfree_baggages=1,
                payment_id="gift_card_2")
    assert bags["payment_history"][-1]["amount"] == 50
    assert desk.get("users", "bo_kim_2")["payment_methods"]["gift_card_2"]["amount"] == 40.0
    assert desk("update_reservation_passengers", reservation_id="R1", passengers=[]) == (
        "Error: Number of passengers does not match")
    cancelled = desk("cancel_reservation", reservation_id="R1")
    assert cancelled["status"] == "cancelled"
    assert [entry["amount"] for entry in cancelled["payment_history"]] == [90, 110, 50, -90, -110, -50]
    assert ("flights", "HAT001") not in desk.changed, "seats stay as they are"


def test_searching_and_certificates(desk):
    assert [each["flight_number"] for each in desk("search_direct_flight", origin="JFK", destination="SEA",
                                                   date="2024-05-20")] == ["HAT001"]
    pairs = desk("search_onestop_flight", origin="JFK", destination="SEA", date="2024-05-20")
    assert [[(each["flight_number"], each["date"]) for each in pair] for pair in pairs] == [
        [("HAT002", "2024-05-20"), ("HAT003", "2024-05-21")]], "the other connection leaves before the first arrives"
    assert desk("search_onestop_flight", origin="JFK", destination="SEA", date="soon") == []
    assert desk("get_flight_status", flight_number="HAT001", date="2024-05-14") == "landed"
    for number in (2, 3, 4):
        assert desk("send_certificate", user_id="bo_kim_2", amount=50) == (
            f"Certificate certificate_322132{number} added to user bo_kim_2 with amount 50.")
    assert desk("send_certificate", user_id="bo_kim_2", amount=50) == "Error: Too many certificates"
    assert len(desk("list_all_airports")) == 20


@pytest.mark.parametrize("expression, value", [
    ("2 + 2", "4.0"), ("2 * (350 - 122.5)", "455.0"), ("10 / 3", "3.33"), ("-3", "-3.0"), ("2 ** 3", "8.0"),
    ("7 // 2", "3.0")])
def test_calculate(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize("expression", ["", "1 +", "()", "1/0", "9**9**9**9", "x", "1 2", "(" * 400, "(1)(2)", "1" * 600,
                                        "1" * 400, "__import__('os')", "0x10", "1_0", "(-8) ** 0.5"])
def test_calculate_refuses(expression):
    with pytest.raises(Refused):
        calculate(expression)


@pytest.mark.parametrize("args, said", [
    ({}, "missing argument 'reservation_id'"),
    (dict(reservation_id=3, total_baggages=1, nonfree_baggages=0, payment_id="x"),
     "reservation_id: expected a string, found 3"),
    (dict(reservation_id="R1", total_baggages="1", nonfree_baggages=0, payment_id="x"),
     "total_baggages: expected an integer, found '1'"),
    (dict(reservation_id="R1", total_baggages=True, nonfree_baggages=0, payment_id="x"), "found True"),
    (dict(reservation_id="R1", total_baggages=1.5, nonfree_baggages=0, payment_id="x"),
     "expected a whole number, found 1.5"),
    (dict(reservation_id="R1", total_baggages=10**400, nonfree_baggages=0, payment_id="x"), f"to {LARGEST}"),
    (dict(reservation_id="R1", total_baggages=float("nan"), nonfree_baggages=0, payment_id="x"), f"to {LARGEST}"),
    (dict(reservation_id="R1", total_baggages=None, nonfree_baggages=0, payment_id="x"), "found None"),
    (dict(reservation_id="R1", total_baggages=1, nonfree_baggages=0, payment_id="x", extra=1),
     "unexpected argument 'extra'"),
])
def test_arguments_are_checked_before_the_tool_sees_them(desk, args, said):
    text = desk("update_reservation_baggages", **args)
    assert text.startswith("Error: ") and said in text and len(text) < 200


def test_whole_floats_are_integers():
    schema = airline_tools()["send_certificate"].parameters
    assert repr(checked(schema, {"user_id": "a", "amount": 50.0})["amount"]) == "50"


def test_unknown_tools(desk):
    assert desk("steal") == "Error: Tool 'steal' not found."
    assert len(desk("x" * 10**5)) < 200


def test_mock_tools():
    tools = Talk(mock_tools(), {"tasks": {"task_1": {"task_id": "task_1", "title": "a", "description": None,
                                                     "status": "pending"}},
                                "users": {"user_1": {"user_id": "user_1", "name": "U", "tasks": ["task_1"]}}})
    assert tools("create_task", user_id="user_2", title="t") == "Error: User user_2 not found"
    assert tools("create_task", user_id="user_1", title="t")["task_id"] == "task_2"
    assert tools("update_task_status", task_id="task_2", status="completed")["status"] == "completed"
    assert tools("update_task_status", task_id="task_3", status="completed") == "Error: Task task_3 not found"
    assert tools("get_users")[0]["tasks"] == ["task_1", "task_2"]


def test_states_are_equal_when_their_changed_records_are():
    base = {"a": {"x": {"n": 1}, "y": {"n": 2}}}
    view = View(base, NOTHING)
    view.edit("a", "x")["n"] = 5
    other = View(base, view.changed)
    assert not same(base, view.changed, NOTHING)
    other.edit("a", "x")["n"] = 1
    assert same(base, other.changed, NOTHING), "changed and changed back"
    assert view.get("a", "x") == {"n": 5} and base["a"]["x"] == {"n": 1}, "a view never writes into another's records"
    merged(other, {"a": {"z": {"m": {"k": 1}}}})
    assert not same(base, other.changed, NOTHING) and dict(other.rows("a"))["z"] == {"m": {"k": 1}}
    merged(other, {"a": {"z": {"m": {"l": 2}}}})
    assert other.get("a", "z") == {"m": {"k": 1, "l": 2}}


@pytest.mark.parametrize("make", [retail_tools, airline_tools, mock_tools])
def test_schemas_are_json_schemas(make):
    for name, tool in make().items():
        schema = json.loads(json.dumps(tool.schema))
        assert schema["name"] == name and schema["description"].endswith(".") and tool.kind in ("read", "write", "generic")
        assert schema["parameters"]["type"] == "object"
        assert set(schema["parameters"]["required"]) <= set(schema["parameters"]["properties"])


def test_the_number_of_tools():
    writes = lambda tools: sum(tool.kind == "write" for tool in tools.values())
    assert [(len(tools), writes(tools)) for tools in (airline_tools(), retail_tools(), mock_tools())] == [
        (14, 6), (16, 7), (4, 2)]
