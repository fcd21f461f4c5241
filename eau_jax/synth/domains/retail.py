"""tau2-bench's retail tools with a shop of our own: see `workshop` for what a domain consists of."""

import random
from typing import Any, Mapping, Sequence

from eau_jax.envs.tau2.domain import Domain as Tau2Domain
from eau_jax.envs.tau2.record_check import shapes
from eau_jax.envs.tau2.retail_tools import ADDRESS, REASONS, retail_tools
from eau_jax.envs.tau2.world import world as tau2_world
from eau_jax.synth.database import DatabaseCase, files, heard
from eau_jax.synth.domain import Action, Domain, Invariant, Look, Need, Param, Place, Rule, State
from eau_jax.synth.domains.retail_atoms import ATOMS
from eau_jax.synth.domains.retail_world import World, base
from eau_jax.synth.oracle import agents
from eau_jax.synth.user import PERSONAS, finish, task_record


def _order(look: Look, field: str) -> Any:
    return look.case.value(look.state, ("orders", look.step.arguments["order_id"], field))


def _user(look: Look) -> Mapping[str, Any]:
    """The customer whose order it is; {} where there is none."""
    return look.case.value(look.state, ("users", _order(look, "user_id"))) or {}


def _method(look: Look, name: str = "") -> Mapping[str, Any] | None:
    return _user(look).get("payment_methods", {}).get(name or look.step.arguments["payment_method_id"])


def _bought(look: Look) -> list[str]:
    return [item["item_id"] for item in _order(look, "items") or ()]


def _owned(look: Look) -> bool:
    own, wanted = _bought(look), look.step.arguments["item_ids"]
    return all(wanted.count(each) <= own.count(each) for each in wanted)


def _pairs(look: Look) -> list[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
    """(item of the order, the variant of its product that it shall become) of each pair."""
    by_id = {item["item_id"]: item for item in _order(look, "items") or ()}
    found = [(by_id.get(old), new) for old, new in zip(look.step.arguments["item_ids"], look.step.arguments["new_item_ids"])]
    return [(item, look.case.value(look.state, ("products", item["product_id"], "variants")).get(new) if item else None)
            for item, new in found]


def _offered(look: Look) -> bool:
    args = look.step.arguments
    return len(args["item_ids"]) == len(args["new_item_ids"]) and all(new and new["available"] for _, new in _pairs(look))


def _difference(look: Look) -> float:
    return round(sum(new["price"] - item["price"] for item, new in _pairs(look)), 2)


def _affords(look: Look) -> bool:
    method = _method(look)
    return method is not None and method.get("balance", 10**9) >= (_difference(look) if _offered(look) else 0)


def _affords_all(look: Look) -> bool:
    method = _method(look)
    return method is not None and method.get("balance", 10**9) >= _order(look, "payment_history")[0]["amount"]


def _one_payment(look: Look) -> bool:
    history = _order(look, "payment_history") or ()
    return len(history) == 1 and history[0]["payment_method_id"] != look.step.arguments["payment_method_id"]


def _to_original(look: Look) -> bool:
    paid, method = _order(look, "payment_history"), _method(look)
    return method is not None and (method["source"] == "gift_card" or method["id"] == paid[0]["payment_method_id"])


def _balances(look: Look, amounts: Sequence[tuple[str, float]]) -> dict[Place, Any]:
    """The gift cards after each (method, amount taken from it)."""
    user = _user(look)
    methods = {key: dict(method) for key, method in user["payment_methods"].items()}
    for key, amount in amounts:
        if methods[key]["source"] == "gift_card":
            methods[key]["balance"] = round(methods[key]["balance"] - amount, 2)
    return {("users", user["user_id"], "payment_methods"): methods}


def _orders(look: Look, **fields: Any) -> dict[Place, Any]:
    return {("orders", look.step.arguments["order_id"], name): value for name, value in fields.items()}


def _entry(kind: str, amount: float, method: str) -> dict[str, Any]:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method}


def _cancels(look: Look) -> Mapping[Place, Any]:
    paid = _order(look, "payment_history")
    refunds = [_entry("refund", each["amount"], each["payment_method_id"]) for each in paid]
    back = [(each["payment_method_id"], -each["amount"]) for each in paid]
    return _orders(look, status="cancelled", cancel_reason=look.step.arguments["reason"],
                   payment_history=[*paid, *refunds]) | _balances(look, back)


def _exchanges(look: Look) -> Mapping[Place, Any]:
    args = look.step.arguments
    return _orders(look, status="exchange requested", exchange_items=sorted(args["item_ids"]),
                   exchange_new_items=sorted(args["new_item_ids"]), exchange_payment_method_id=args["payment_method_id"],
                   exchange_price_difference=_difference(look))


def _returns(look: Look) -> Mapping[Place, Any]:
    args = look.step.arguments
    return _orders(look, status="return requested", return_items=sorted(args["item_ids"]),
                   return_payment_method_id=args["payment_method_id"])


def _modifies(look: Look) -> Mapping[Place, Any]:
    args, difference = look.step.arguments, sum(new["price"] - item["price"] for item, new in _pairs(look))
    items = [dict(item) for item in _order(look, "items")]
    for (_, new), old, new_id in zip(_pairs(look), args["item_ids"], args["new_item_ids"]):
        item = next(item for item in items if item["item_id"] == old)
        item.update(item_id=new_id, price=new["price"], options=dict(new["options"]))
    entry = _entry("payment" if difference > 0 else "refund", abs(difference), args["payment_method_id"])
    return _orders(look, status="pending (item modified)", items=items, payment_history=[
        *_order(look, "payment_history"), entry]) | _balances(look, [(args["payment_method_id"], difference)])


def _repays(look: Look) -> Mapping[Place, Any]:
    first, new = _order(look, "payment_history")[0], look.step.arguments["payment_method_id"]
    amount, old = first["amount"], first["payment_method_id"]
    return _orders(look, payment_history=[first, _entry("payment", amount, new), _entry("refund", amount, old)]) | _balances(
        look, [(new, amount), (old, -amount)])


def _place(look: Look) -> dict[str, str]:
    return {name: look.step.arguments[name] for name in ADDRESS}


_status = lambda *allowed: Need(f"its status is {' or '.join(allowed)}", lambda look: _order(look, "status") in allowed)
_known = lambda table, name: Need(f"{name} is known", lambda look: look.case.value(
    look.state, (table, look.step.arguments[name])) is not None)
_OWNED, _OFFERED = Need("the items are in the order", _owned), Need("there are such variants in stock", _offered)
_DIFFER = Need("each item becomes another one", lambda look: all(
    old != new for old, new in zip(look.step.arguments["item_ids"], look.step.arguments["new_item_ids"])))
_PENDING, _DELIVERED = _status("pending"), _status("delivered")
_STILL_PENDING = Need("it is pending", lambda look: "pending" in (_order(look, "status") or ""))
_ORDER, _USER, _ITEMS = Param("order_id", "lookup"), Param("user_id", "lookup"), Param("item_id", "lookup")
_PAYMENT, _PLACE = Param("payment_method_id", "lookup"), {name: Param(name, "slot") for name in ADDRESS}
_slot = lambda *names: {name: Param(name, "slot") for name in names}
ACTIONS = {
    "find_user_id_by_email": Action("read", _slot("email"), returns="user_id"),
    "find_user_id_by_name_zip": Action("read", _slot("first_name", "last_name", "zip"), returns="user_id"),
    "get_user_details": Action("read", {"user_id": _USER}, (_known("users", "user_id"),)),
    "get_order_details": Action("read", {"order_id": _ORDER}, (_known("orders", "order_id"),)),
    "get_product_details": Action("read", {"product_id": Param("product_id", "lookup")},
                                  (_known("products", "product_id"),)),
    "cancel_pending_order": Action("write", {"order_id": _ORDER, **_slot("reason")}, (_PENDING,), _cancels),
    "exchange_delivered_order_items": Action(
        "write", {"order_id": _ORDER, "item_ids": _ITEMS, "new_item_ids": _ITEMS, "payment_method_id": _PAYMENT},
        (_DELIVERED, _OWNED, _OFFERED, Need("it can be paid", _affords)), _exchanges),
    "modify_pending_order_items": Action(
        "write", {"order_id": _ORDER, "item_ids": _ITEMS, "new_item_ids": _ITEMS, "payment_method_id": _PAYMENT},
        (_PENDING, _OWNED, _OFFERED, _DIFFER, Need("it can be paid", _affords)), _modifies),
    "return_delivered_order_items": Action(
        "write", {"order_id": _ORDER, "item_ids": _ITEMS, "payment_method_id": _PAYMENT},
        (_DELIVERED, _OWNED, Need("it goes to the original payment or a gift card", _to_original)), _returns),
    "modify_pending_order_payment": Action(
        "write", {"order_id": _ORDER, "payment_method_id": _PAYMENT},
        (_STILL_PENDING, Need("it was paid once, otherwise", _one_payment), Need("it can be paid", _affords_all)), _repays),
    "modify_pending_order_address": Action("write", {"order_id": _ORDER, **_PLACE}, (_STILL_PENDING,),
                                           lambda look: _orders(look, address=_place(look))),
    "modify_user_address": Action("write", {"user_id": _USER, **_PLACE}, (_known("users", "user_id"),), lambda look: {
        ("users", look.step.arguments["user_id"], "address"): _place(look)}),
    "transfer_to_human_agents": Action("generic", {"summary": Param("summary", "const")}),
}
WRITES = frozenset(name for name, action in ACTIONS.items() if action.kind == "write")


def _strangers(look: Look) -> bool:
    args = look.step.arguments
    owner = args.get("user_id") or (_order(look, "user_id") if "order_id" in args else None)
    return look.step.tool in WRITES and owner is not None and owner not in look.seen.get("user_id", ())


def _other_product(look: Look) -> bool:
    return "new_item_ids" in look.step.arguments and any(item and new is None for item, new in _pairs(look))


RULES = (
    Rule("own",
         "Look the customer up by e-mail, or by name and zip code, before you change anything, and change only what is "
         "theirs.", _strangers),
    Rule("pending", "Only a pending order can be cancelled or get other items.", lambda look: look.step.tool in (
        "cancel_pending_order", "modify_pending_order_items") and _order(look, "status") != "pending"),
    Rule("delivered", "Only a delivered order can be returned or exchanged.", lambda look: look.step.tool in (
        "return_delivered_order_items", "exchange_delivered_order_items") and _order(look, "status") != "delivered"),
    Rule("refund", "A return is refunded to the way it was paid, or to a gift card.", lambda look: look.step.tool
         == "return_delivered_order_items" and not _to_original(look)),
    Rule("same", "An item is exchanged only for another version of the same product.", _other_product),
    Rule("abroad", "Orders are sent within the USA only.", lambda look: look.step.tool == "modify_pending_order_address"
         and look.step.arguments["country"] != "USA"),
)
INVARIANTS = (
    Invariant("orders belong to customers that list them", lambda case, state: all(
        key in (case.value(state, ("users", order["user_id"], "orders")) or ()) for key, order in case.rows(state,
                                                                                                            "orders"))),
    Invariant("orders are paid by ways of their customers", lambda case, state: all(
        entry["payment_method_id"] in case.value(state, ("users", order["user_id"], "payment_methods"))
        for _, order in case.rows(state, "orders") for entry in order["payment_history"])),
    Invariant("no gift card is overdrawn", lambda case, state: all(
        method.get("balance", 0) >= 0 for _, user in case.rows(state,
                                                               "users") for method in user["payment_methods"].values())),
)
POLICY = "\n".join([
    "You serve the customers of a shop.", *(f"- {rule.text}" for rule in RULES),
    "- Say what you are going to change and get a yes before you change it. Items of an order are changed in one call.",
    "- Where you refuse something about an order, tell the order's total: the refusal is filed under it.",
    "- Do not make anything up."])
TAU2 = Tau2Domain(name="retail", policy=POLICY, policy_solo="", base=base(), tasks=(), splits={}, tools=retail_tools(),
                  user_tools={}, functions={"assistant": {}, "user": {}}, digests={}, shapes=shapes("retail"))
# A record's user_id says whose it is, not who is talking: only the `find` tools show that.
TYPES = {"order_id": "order_id", "orders": "order_id", "item_id": "item_id", "variants{}": "item_id",
         "product_id": "product_id", "payment_methods{}": "payment_method_id", "amount": "amount"}


def samples(rng: random.Random) -> tuple[DatabaseCase, State]:
    """Three customers with orders of every status, on which a few random calls were made."""
    made = World(rng, {"distractors": 2, "split": "train"})
    for status in ("pending", "pending", "delivered", "delivered"):
        made.order(status)
    case = DatabaseCase(TAU2, task_record("retail", made.finished(), (), ()))
    return case, case.start


def arguments(case: DatabaseCase, state: State, tool: str, rng: random.Random) -> dict[str, Any]:
    """Random arguments of a tool: of one order of the world its items, variants of their products, ways to pay of its
    customer; now and then what does not fit."""
    key, order = rng.choice(case.rows(state, "orders"))
    user = case.value(state, ("users", order["user_id"]))
    items = rng.sample(order["items"], rng.randint(1, len(order["items"])))
    variants = lambda item: sorted(case.value(state, ("products", item["product_id"], "variants")))
    off = rng.random() < 0.1
    places = [user["address"]] if ACTIONS[tool].kind == "read" else [each["address"] for _, each in case.rows(state, "users")]
    draw = {"user_id": lambda: "nobody_1" if off else user["user_id"], "order_id": lambda: "#W0000000" if off else key,
            "product_id": lambda: items[0]["product_id"], "item_ids": lambda: [item["item_id"] for item in items],
            "new_item_ids": lambda: [rng.choice(variants(items[0] if off else item)) for item in items],
            "payment_method_id": lambda: rng.choice(sorted(user["payment_methods"])), "reason": lambda: rng.choice(REASONS),
            "email": lambda: user["email"], "first_name": lambda: user["name"]["first_name"],
            "last_name": lambda: user["name"]["last_name"], "summary": lambda: "x",
            **{name: lambda name=name: rng.choice(places)[name] for name in ADDRESS}}
    return {name: draw[name]() for name in ACTIONS[tool].params}


ORACLE, NOVICE = agents()
retail = Domain(
    name="retail", version=1, where="eau_jax.synth.domains.retail:retail", actions=ACTIONS, rules=RULES, atoms=ATOMS,
    invariants=INVARIANTS, types=TYPES, personas=PERSONAS, build=World,
    record=lambda world, plan, wishes: task_record("retail", world.finished(), plan, wishes),
    case=lambda record: DatabaseCase(TAU2, record), finish=finish,
    env=tau2_world(TAU2)._replace(expert=ORACLE, novice=NOVICE), heard=heard, files=lambda: files(TAU2), samples=samples,
    arguments=arguments)
