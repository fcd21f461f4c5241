"""The sub-tasks of the shop; see `workshop_atoms` for how they are written."""

import random
from typing import Any, Callable, Mapping

from eau_jax.envs.tau2.retail_tools import REASONS
from eau_jax.envs.tau2.wording import listed, method
from eau_jax.synth.domain import Atom, Wish
from eau_jax.synth.domains.retail_world import World, base

Order = Mapping[str, Any]
Make = Callable[[World, random.Random], Wish]


def _about(world: World, order: Order) -> tuple[list[list[Any]], list[list[str]], dict[str, str]]:
    """(how the user describes an order, slots, words): by its number, or by a thing in it."""
    if world.rng.random() < 0.5:
        return [["orders", order["order_id"], {"order_id": order["order_id"]}]], [
            ["number", "order_id", order["order_id"]]], {"which": ""}
    name = order["items"][0]["name"]
    return ([["orders", order["order_id"], {"user_id": order["user_id"], "items[].name": name}]], [],
            {"which": f"It is the order with the {name}. "})


def _wish(world: World, order: Order, tool: str, given: Mapping[str, Any], goal: Mapping[str, Any], slots: list[list[str]],
          words: Mapping[str, str], refused: str = "") -> Wish:
    """A call on an order; where it is refused, its total has to be told."""
    refers, which, said = _about(world, order)
    total = str(order["payment_history"][0]["amount"])
    shows = [["user_id", order["user_id"]], ["amount", total]]
    call = [[tool, {"order_id": order["order_id"], **given}, "agent"]]
    goals = [[["orders", order["order_id"], name], value] for name, value in goal.items()]
    if refused:
        return Wish("", [], [], [*which, *slots], refers, shows, [total], refused, call, {**said, **words})
    return Wish("", call, goals, [*which, *slots], refers, shows, [], "", [], {**said, **words})


def _pays(world: World, key: str) -> list[str]:
    return ["payment", "payment", method(world.user, key)[0]]


def _cancel(status: str, refused: str = "") -> Make:
    def make(world: World, rng: random.Random) -> Wish:
        order, reason = world.order(status), rng.choice(REASONS)
        return _wish(world, order, "cancel_pending_order", {"reason": reason}, {"status": "cancelled"},
                     [["details", "reason", reason]], {}, refused)

    return make


def _things(order: Order, rng: random.Random) -> list[Mapping[str, Any]]:
    return order["items"] if rng.random() < 0.5 else order["items"][:1]


def _return(status: str, refused: str = "") -> Make:
    """Refunded to the way it was paid, or where that is refused to another card."""

    def make(world: World, rng: random.Random) -> Wish:
        order = world.order(status, card=True)
        things, paid = _things(order, rng), order["payment_history"][0]["payment_method_id"]
        others = [key for key, each in world.user["payment_methods"].items() if key != paid
                  and each["source"] != "gift_card"]
        to = paid if refused != "refund" else rng.choice(others) if others else world.method("credit_card")
        names = listed([f"the {thing['name']}" for thing in things])
        return _wish(world, order, "return_delivered_order_items",
                     {"item_ids": [thing["item_id"] for thing in things], "payment_method_id": to},
                     {"status": "return requested", "return_items": sorted(thing["item_id"] for thing in things)},
                     [["details", "items", names], _pays(world, to)], {}, refused)

    return make


def _swap(tool: str, status: str, refused: str = "") -> Make:
    """For other variants of the same products, or where that is refused for another product."""

    def make(world: World, rng: random.Random) -> Wish:
        order = world.order(status, card=True)
        things = _things(order, rng)
        new = [rng.choice(world.others(thing)) for thing in things]
        wanted = [base()["products"][thing["product_id"]]["variants"][key] for thing, key in zip(things, new)]
        texts = [f"instead of the {thing['name']} one with {', '.join(each['options'].values())}"
                 for thing, each in zip(things, wanted)]
        if refused:
            seen = {item["product_id"] for key in world.user["orders"] for item in world.rows["orders"][key]["items"]}
            product = base()["products"][rng.choice(sorted(seen - {things[0]["product_id"]}))]    # others nobody looks up
            things, new = things[:1], [rng.choice(sorted(product["variants"]))]
            texts = [f"instead of the {things[0]['name']} a {product['name']}"]
        pay = order["payment_history"][0]["payment_method_id"]
        old = [thing["item_id"] for thing in things]
        goal = ({"status": "exchange requested", "exchange_new_items": sorted(new)} if tool.startswith("exchange") else
                {"status": "pending (item modified)"})
        return _wish(world, order, tool, {"item_ids": old, "new_item_ids": new, "payment_method_id": pay}, goal,
                     [["details", "swap", listed(texts)], _pays(world, pay)], {}, refused)

    return make


def _address(refused: str = "") -> Make:
    def make(world: World, rng: random.Random) -> Wish:
        order, place = world.order("pending"), world.address("Canada" if refused else "USA")
        slots = [["details", name, value] for name, value in place.items()]
        return _wish(world, order, "modify_pending_order_address", place, {"address": place}, slots, {}, refused)

    return make


def _home(world: World, rng: random.Random) -> Wish:
    place, user = world.address(), world.user["user_id"]
    return Wish("", [["modify_user_address", {"user_id": user, **place}, "agent"]], [[["users", user, "address"], place]],
                [["details", name, value] for name, value in place.items()], [], [["user_id", user]], [], "", [], {})


def _payment(world: World, rng: random.Random) -> Wish:
    order = world.order("pending", card=True)
    first = order["payment_history"][0]
    others = [key for key, each in world.user["payment_methods"].items()
              if key != first["payment_method_id"] and each.get("balance", 10**6) >= first["amount"]]
    new = rng.choice(others) if others else world.method("credit_card")
    history = [first, {**first, "payment_method_id": new}, {**first, "transaction_type": "refund"}]
    return _wish(world, order, "modify_pending_order_payment", {"payment_method_id": new}, {"payment_history": history},
                 [_pays(world, new)], {})


def _total(world: World, rng: random.Random) -> Wish:
    order = world.order(rng.choice(("pending", "delivered", "processed")))
    wish = _wish(world, order, "", {}, {}, [], {})
    return wish._replace(steps=[], goal=[], tell=[wish.shows[1][1]])


_NUMBER = ("The order number is {order_id}.", "It is order {order_id}.", "The mail says {order_id}.")
_CANCEL = ("I would like to cancel an order.", "Please stop an order of mine.", "I do not need something that I ordered.")
_BECAUSE = ("{which}The reason is: {reason}.", "{which}Because: {reason}.")
_RETURN = ("I would like to return something.", "I want to send something back.",
           "Something is not as I hoped; please take it back.")
_BACK = ("{which}I want to return {items}.", "{which}It is {items} that I send back.")
_EXCHANGE = ("I would like to exchange something I received.", "I need another version of something you sent.",
             "What came is not the version I want.")
_MODIFY = ("I would like to change items of an order.", "I chose the wrong version of something.",
           "An order of mine should have another version of something.")
_SWAPPED = ("{which}I want {swap}.", "{which}Please give me {swap}.")
_ADDRESS = ("I would like to change where an order is sent.", "An order of mine goes to the wrong address.",
            "Please send an order somewhere else.")
_PLACE = ("{which}The new address is {address1}, {address2}, {city}, {state}, {zip}, {country}.",
          "{which}It should go to {address1}, {address2}, {city}, {state}, {zip}, {country}.")
_PAID = ("Use {payment}.", "It should be {payment}.")
ATOMS = (
    Atom("cancel", "pending", "cancel", "write", _cancel("pending"), _CANCEL, _NUMBER, _BECAUSE),
    Atom("return", "delivered", "return", "write", _return("delivered"), _RETURN, _NUMBER, _BACK, _PAID),
    Atom("exchange", "delivered", "exchange", "write", _swap("exchange_delivered_order_items", "delivered"), _EXCHANGE,
         _NUMBER,
         _SWAPPED, _PAID),
    Atom("modify_items", "pending", "modify_items", "write", _swap("modify_pending_order_items", "pending"), _MODIFY,
         _NUMBER,
         _SWAPPED, _PAID),
    Atom("modify_address", "pending", "modify_address", "write", _address(), _ADDRESS, _NUMBER, _PLACE),
    Atom("modify_payment", "pending", "modify_payment", "write", _payment, (
        "I would like to pay an order differently.", "An order of mine is on the wrong card.",
        "Please charge something else for an order."), _NUMBER, ("{which}I want to pay differently.", "{which}"), _PAID),
    Atom("home", "account", "home", "write", _home, (
        "I have moved.", "Please change my address.", "You have an old address of mine."), details=(
        "I live at {address1}, {address2}, {city}, {state}, {zip}, {country} now.",
        "The new one is {address1}, {address2}, {city}, {state}, {zip}, {country}.")),
    Atom("total", "question", "total", "ask", _total, (
        "I would like to know what an order cost.", "How much was an order of mine?", "I need the total of an order."),
        _NUMBER,
        ("{which}I want to know the total.", "{which}Only the total, please.")),
    Atom("cancel_processed", "pending", "cancel", "refuse", _cancel("processed", "pending"), _CANCEL, _NUMBER, _BECAUSE),
    Atom("return_pending", "delivered", "return", "refuse", _return("pending", "delivered"), _RETURN, _NUMBER, _BACK, _PAID),
    Atom("return_elsewhere", "delivered", "return", "refuse", _return("delivered", "refund"), _RETURN, _NUMBER, _BACK,
         _PAID),
    Atom("exchange_product", "delivered", "exchange", "refuse", _swap(
        "exchange_delivered_order_items", "delivered", "same"), _EXCHANGE, _NUMBER, _SWAPPED, _PAID),
    Atom("address_abroad", "pending", "modify_address", "refuse", _address("abroad"), _ADDRESS, _NUMBER, _PLACE),
)
