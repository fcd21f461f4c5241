"""The sixteen tools of tau2-bench's retail agent, over `tau2.database`.

Semantics and error texts follow tau2-bench 1.0.1 (Barres et al. 2025, MIT). One slip of upstream is a setting: when
several items of a pending order are modified at once, upstream gives all of them the price and options of the last new
item. `retail_tools(last_item_wins=True)` does so too; by default each item gets its own.
"""

import json
from typing import Any, Mapping

from eau_jax.envs.tau2.call import CALCULATE, TRANSFER, Refused, Tool, parameters, several, text
from eau_jax.envs.tau2.database import Record, View, copied

Args = Mapping[str, Any]
REASONS = ("no longer needed", "ordered by mistake")
ADDRESS = ("address1", "address2", "city", "state", "country", "zip")

_ORDER = text("order id with its '#', such as '#W0000000'")
_USER = text("user id, such as 'sara_doe_496'")
_ITEMS = several(text("item id, such as '1008292230'"), "item ids of the order; an id may occur more than once")
_NEW = several(text("item id, such as '1008292230'"),
               "new item ids, in the order of item_ids; each of the same product as the item it replaces")
_PAYMENT = text("payment method id from the user's profile, such as 'credit_card_0000000'")
_PLACE = dict(address1=text("first line, such as '123 Main St'"), address2=text("second line, such as 'Apt 1', or ''"),
              city=text("such as 'San Francisco'"), state=text("such as 'CA'"), country=text("such as 'USA'"),
              zip=text("such as '12345'"))
_ASK_FIRST = " Explain the details and get an explicit yes from the user first."


def find_by_email(view: View, args: Args) -> str:
    for key, user in view.rows("users"):
        if user["email"].lower() == args["email"].lower():
            return key
    raise Refused("User not found")


def find_by_name_zip(view: View, args: Args) -> str:
    wanted = (args["first_name"].lower(), args["last_name"].lower(), args["zip"])
    for key, user in view.rows("users"):
        if (user["name"]["first_name"].lower(), user["name"]["last_name"].lower(), user["address"]["zip"]) == wanted:
            return key
    raise Refused("User not found")


def get_item(view: View, args: Args) -> Record:
    for _, product in view.rows("products"):
        if args["item_id"] in product["variants"]:
            return product["variants"][args["item_id"]]
    raise Refused("Item not found")


def list_products(view: View, args: Args) -> str:
    return json.dumps({product["name"]: product["product_id"] for _, product in view.rows("products")}, sort_keys=True)


def cancel(view: View, args: Args) -> Record:
    order = _found(view, "orders", args["order_id"])
    if order["status"] != "pending":
        raise Refused("Non-pending order cannot be cancelled")
    if args["reason"] not in REASONS:
        raise Refused("Invalid reason")
    order = view.edit("orders", args["order_id"])
    for payment in list(order["payment_history"]):
        _pay(view, order["user_id"], payment["payment_method_id"], -payment["amount"])
        order["payment_history"].append(_entry("refund", payment["amount"], payment["payment_method_id"]))
    order.update(status="cancelled", cancel_reason=args["reason"])
    return order


def exchange(view: View, args: Args) -> Record:
    order = _found(view, "orders", args["order_id"])
    if order["status"] != "delivered":
        raise Refused("Non-delivered order cannot be exchanged")
    _check_owned(order, args["item_ids"], "Number of {} not found.")
    if len(args["item_ids"]) != len(args["new_item_ids"]):
        raise Refused("The number of items to be exchanged should match.")
    difference = round(sum(new["price"] - old["price"] for old, new in _pairs(view, order, args)), 2)
    _check_funds(view, order, args["payment_method_id"], difference,
                 "Insufficient gift card balance to pay for the price difference")
    order = view.edit("orders", args["order_id"])
    order.update(status="exchange requested", exchange_items=sorted(args["item_ids"]),
                 exchange_new_items=sorted(args["new_item_ids"]),
                 exchange_payment_method_id=args["payment_method_id"], exchange_price_difference=difference)
    return order


def give_back(view: View, args: Args) -> Record:
    order = _found(view, "orders", args["order_id"])
    if order["status"] != "delivered":
        raise Refused("Non-delivered order cannot be returned")
    method = _method(view, order["user_id"], args["payment_method_id"])
    if method["source"] != "gift_card" and args["payment_method_id"] != order["payment_history"][0]["payment_method_id"]:
        raise Refused("Payment method should be the original payment method")
    _check_owned(order, args["item_ids"], "Some item not found")
    order = view.edit("orders", args["order_id"])
    order.update(status="return requested", return_items=sorted(args["item_ids"]),
                 return_payment_method_id=args["payment_method_id"])
    return order


def modify_items(view: View, args: Args, last_item_wins: bool) -> Record:
    order = _found(view, "orders", args["order_id"])
    if order["status"] != "pending":
        raise Refused("Non-pending order cannot be modified")
    _check_owned(order, args["item_ids"], "{} not found")
    if len(args["item_ids"]) != len(args["new_item_ids"]):
        raise Refused("The number of items to be exchanged should match")
    pairs = _pairs(view, order, args, differ=True)
    difference = sum(new["price"] - old["price"] for old, new in pairs)
    _check_funds(view, order, args["payment_method_id"], difference,
                 "Insufficient gift card balance to pay for the new item")
    order = view.edit("orders", args["order_id"])
    kind = "payment" if difference > 0 else "refund"
    order["payment_history"].append(_entry(kind, abs(difference), args["payment_method_id"]))
    _pay(view, order["user_id"], args["payment_method_id"], difference)
    for (_, new), old_id, new_id in zip(pairs, args["item_ids"], args["new_item_ids"]):
        item = next((item for item in order["items"] if item["item_id"] == old_id), None)
        if item is None:
            raise Refused(f"Item {old_id} not found")
        chosen = pairs[-1][1] if last_item_wins else new
        item.update(item_id=new_id, price=chosen["price"], options=copied(chosen["options"]))
    order["status"] = "pending (item modified)"
    return order


def modify_payment(view: View, args: Args) -> Record:
    order, new = _pending(view, args["order_id"]), args["payment_method_id"]
    method, history = _method(view, order["user_id"], new), order["payment_history"]
    if len(history) != 1 or history[0]["transaction_type"] != "payment":
        raise Refused("There should be exactly one payment for a pending order")
    old, amount = history[0]["payment_method_id"], history[0]["amount"]
    if old == new:
        raise Refused("The new payment method should be different from the current one")
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise Refused("Insufficient gift card balance to pay for the order")
    order = view.edit("orders", args["order_id"])
    order["payment_history"] += [_entry("payment", amount, new), _entry("refund", amount, old)]
    _pay(view, order["user_id"], new, amount)
    _pay(view, order["user_id"], old, -amount)
    return order


def modify_order_address(view: View, args: Args) -> Record:
    _pending(view, args["order_id"])
    order = view.edit("orders", args["order_id"])
    order["address"] = {name: args[name] for name in ADDRESS}
    return order


def modify_user_address(view: View, args: Args) -> Record:
    _found(view, "users", args["user_id"])
    user = view.edit("users", args["user_id"])
    user["address"] = {name: args[name] for name in ADDRESS}
    return user


def retail_tools(last_item_wins: bool = False) -> dict[str, Tool]:
    """Every tool by its name."""
    tools = (
        CALCULATE, TRANSFER,
        Tool("cancel_pending_order", "write", "Cancel a pending order and refund it: to a gift card at once, otherwise in "
             "5 to 7 business days." + _ASK_FIRST,
             parameters(order_id=_ORDER, reason=text("'no longer needed' or 'ordered by mistake'")), cancel),
        Tool("exchange_delivered_order_items", "write", "Exchange items of a delivered order for other items of the same "
             "products. A delivered order can be returned or exchanged once." + _ASK_FIRST,
             parameters(order_id=_ORDER, item_ids=_ITEMS, new_item_ids=_NEW, payment_method_id=_PAYMENT), exchange),
        Tool("find_user_id_by_email", "read", "The user id that belongs to an e-mail address. Try this first.",
             parameters(email=text("such as 'something@example.com'")), find_by_email),
        Tool("find_user_id_by_name_zip", "read", "The user id that belongs to a name and zip code, for a user who has no "
             "e-mail address at hand.",
             parameters(first_name=text("such as 'John'"), last_name=text("such as 'Doe'"), zip=text("such as '12345'")),
             find_by_name_zip),
        Tool("get_item_details", "read", "Options, price and stock of an item.",
             parameters(item_id=text("item id, such as '1008292230'")), get_item),
        Tool("get_order_details", "read", "Status and details of an order.", parameters(order_id=_ORDER),
             lambda view, args: _found(view, "orders", args["order_id"])),
        Tool("get_product_details", "read", "A product with all its items.",
             parameters(product_id=text("product id, such as '6086499569'; it is not an item id")),
             lambda view, args: _found(view, "products", args["product_id"])),
        Tool("get_user_details", "read", "A user's profile with payment methods and order ids.",
             parameters(user_id=_USER), lambda view, args: _found(view, "users", args["user_id"])),
        Tool("list_all_product_types", "read", "Names and ids of all products.", parameters(), list_products),
        Tool("modify_pending_order_address", "write", "Change where a pending order is sent." + _ASK_FIRST,
             parameters(order_id=_ORDER, **_PLACE), modify_order_address),
        Tool("modify_pending_order_items", "write", "Change items of a pending order to other items of the same "
             "products. Possible once for an order." + _ASK_FIRST,
             parameters(order_id=_ORDER, item_ids=_ITEMS, new_item_ids=_NEW, payment_method_id=_PAYMENT),
             lambda view, args: modify_items(view, args, last_item_wins)),
        Tool("modify_pending_order_payment", "write", "Change how a pending order is paid." + _ASK_FIRST,
             parameters(order_id=_ORDER, payment_method_id=_PAYMENT), modify_payment),
        Tool("modify_user_address", "write", "Change a user's default address." + _ASK_FIRST,
             parameters(user_id=_USER, **_PLACE), modify_user_address),
        Tool("return_delivered_order_items", "write", "Return items of a delivered order; the refund goes to the original "
             "payment method or to a gift card." + _ASK_FIRST,
             parameters(order_id=_ORDER, item_ids=_ITEMS, payment_method_id=_PAYMENT), give_back),
    )
    return {tool.name: tool for tool in tools}


_NAMES = {"orders": "Order", "users": "User", "products": "Product"}


def _found(view: View, table: str, key: str) -> Record:
    record = view.get(table, key)
    if record is None:
        raise Refused(f"{_NAMES[table]} not found")
    return record


def _pending(view: View, order_id: str) -> Record:
    order = _found(view, "orders", order_id)
    if "pending" not in order["status"]:
        raise Refused("Non-pending order cannot be modified")
    return order


def _method(view: View, user_id: str, payment_id: str) -> Record:
    method = _found(view, "users", user_id)["payment_methods"].get(payment_id)
    if method is None:
        raise Refused("Payment method not found")
    return method


def _check_owned(order: Record, item_ids: list[str], complaint: str) -> None:
    owned = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > owned.count(item_id):
            raise Refused(complaint.format(item_id))


def _pairs(view: View, order: Record, args: Args, differ: bool = False) -> list[tuple[Record, Record]]:
    """(the order's item, the variant it becomes) for each pair of ids, which have to differ where `differ` says so."""
    pairs = []
    for old_id, new_id in zip(args["item_ids"], args["new_item_ids"]):
        if differ and old_id == new_id:
            raise Refused("The new item id should be different from the old item id")
        item = next(item for item in order["items"] if item["item_id"] == old_id)
        variant = _found(view, "products", item["product_id"])["variants"].get(new_id)
        if variant is None:
            raise Refused("Variant not found")
        if not variant["available"]:
            raise Refused(f"New item {new_id} not found or available")
        pairs.append((item, variant))
    return pairs


def _check_funds(view: View, order: Record, payment_id: str, amount: float, complaint: str) -> None:
    method = _method(view, order["user_id"], payment_id)
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise Refused(complaint)


def _pay(view: View, user_id: str, payment_id: str, amount: float) -> None:
    """Takes an amount from a gift card; a negative one goes back to it. Other methods keep no balance."""
    if _method(view, user_id, payment_id)["source"] == "gift_card":
        card = view.edit("users", user_id)["payment_methods"][payment_id]
        card["balance"] = round(card["balance"] - amount, 2)


def _entry(kind: str, amount: float, payment_id: str) -> Record:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": payment_id}
