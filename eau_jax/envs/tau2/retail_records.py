"""The orders of one retail customer as integers: what the slice holds, and the way there and back.

An order goes one way only: a pending one may get another payment method, then it is cancelled or its items are changed,
once; a delivered one is returned or exchanged, once. So the payment history and the items follow from the order at the
start and the few numbers of `Records`, and two equal slices are equal records. Sizes are those of upstream's database.
"""

import enum
import json
from typing import Any, Mapping, NamedTuple

import numpy as np
from flax import struct

from eau_jax.core.types import Array
from eau_jax.envs.tau2.arrays import WRITE
from eau_jax.envs.tau2.database import NOTHING, Changed, Record, View, copied
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.episode import Row
from eau_jax.envs.tau2.retail_tools import ADDRESS, REASONS, Args
from eau_jax.envs.tau2.slice import Memory, customer, digest

ORDERS, ITEMS, METHODS, VARIANTS = 9, 5, 4, 20    # of a customer, an order, a customer, a product
NONE = -1
UNUSED, PAIR = 7, 8      # row of an unused pair; bits of a pair (row + 8 * variant), three in each of values[2] and [3]


class Write(enum.IntEnum):
    """`Act.code`. values: order, payment method, and where items change two words of pairs."""

    CANCEL = WRITE       # values[1]: the reason
    EXCHANGE = 10        # pairs in the order of the new items
    ITEMS = 11           # pairs in the order given
    RETURN = 12
    PAYMENT = 13
    ADDRESS = 14         # mask: the address
    HOME = 15            # mask: the customer's own address


class Status(enum.IntEnum):
    PENDING = 0
    PROCESSED = 1
    DELIVERED = 2
    CANCELLED = 3        # before the talk
    UNNEEDED = 4         # cancelled for the first of REASONS
    MISTAKEN = 5         # for the second
    EXCHANGE = 6
    RETURN = 7
    MODIFIED = 8


_STATUS = ("pending", "processed", "delivered", "cancelled", "cancelled", "cancelled", "exchange requested",
           "return requested", "pending (item modified)")
_CODES = {"cancel_pending_order": Write.CANCEL, "exchange_delivered_order_items": Write.EXCHANGE,
          "modify_pending_order_items": Write.ITEMS, "return_delivered_order_items": Write.RETURN,
          "modify_pending_order_payment": Write.PAYMENT, "modify_pending_order_address": Write.ADDRESS,
          "modify_user_address": Write.HOME}


@struct.dataclass(kw_only=True)
class Shared:
    """Item ids as VARIANTS * product + variant."""

    price: Array        # [products * VARIANTS] i32 cents
    available: Array    # [products * VARIANTS] bool; False where there is no such variant


@struct.dataclass(kw_only=True)
class Fixed:
    item: Array         # [ORDERS, ITEMS] i16: at the start; NONE where there is none
    amount: Array       # [ORDERS] i32 cents paid
    payer: Array        # [ORDERS] i8: the method that paid
    gift: Array         # [METHODS] bool: a gift card
    methods: Array      # [] i32: how many


@struct.dataclass(kw_only=True)
class Records:
    """Short integers: the state is what a step of thousands of conversations moves through memory."""

    status: Array       # [ORDERS] i8, a Status
    address: Array      # [ORDERS] i32: digest
    paid: Array         # [ORDERS] i8: the method that has paid instead of the first; NONE
    method: Array       # [ORDERS] i8: for the difference, or the refund of a return; NONE
    cents: Array        # [ORDERS] i32: that difference
    rows: Array         # [ORDERS] i8: mask of the items that were changed or go back
    chosen: Array       # [ORDERS, ITEMS] i16: what a pending order holds; of an exchange the new items, ascending
    look: Array         # [ORDERS] i16: whose price and options the changed items have; NONE: each its own
    balance: Array      # [METHODS] i32 cents on gift cards
    home: Array         # [] i32: digest of the customer's own address


class Catalogue(NamedTuple):
    """The products of a database as integers: VARIANTS * product + variant."""

    item_ids: Mapping[str, int]
    names: Mapping[int, str]              # item ids back
    variants: Mapping[int, Record]
    addresses: Memory


def catalogue(domain: Domain) -> Catalogue:
    """Raises ValueError for a product with more than VARIANTS variants, or more products than item numbers."""
    products = list(domain.base["products"].values())
    if max([len(product["variants"]) for product in products] + [0]) > VARIANTS or len(products) * VARIANTS > 2**15:
        raise ValueError(f"expected at most {2**15 // VARIANTS} products with {VARIANTS} variants each, found more")
    item_ids = {variant: VARIANTS * place + each for place, product in enumerate(products)
                for each, variant in enumerate(product["variants"])}
    places = [record["address"] for table in ("users", "orders") for record in domain.base[table].values()]
    return Catalogue(item_ids, {code: name for name, code in item_ids.items()},
                     {code: products[code // VARIANTS]["variants"][name] for name, code in item_ids.items()},
                     Memory(*places))


def shared(domain: Domain, goods: Catalogue) -> Shared:
    """Prices and what is available."""
    size = VARIANTS * len(domain.base["products"])
    price, available = np.zeros(size, np.int32), np.zeros(size, bool)
    for code, variant in goods.variants.items():
        price[code], available[code] = _cents(variant["price"]), variant["available"]
    return Shared(price=price, available=available)


def packed(domain: Domain, here: Row, goods: Catalogue, name: str, args: Args) -> tuple[int, int, tuple[float, ...]] | None:
    """The write of a tool call as (code, mask, values); None where the slice has no room for it."""
    user = domain.base["users"].get(here.plan.user_id)
    if user is None or name == "modify_user_address" and args["user_id"] != here.plan.user_id:
        return None
    if "address1" in args:
        place = {part: args[part] for part in ADDRESS}
        mask = goods.addresses.keep(place, place)
    if name == "modify_user_address":
        return Write.HOME, mask, ()
    if args["order_id"] not in user["orders"]:
        return None
    row, code = user["orders"].index(args["order_id"]), _CODES[name]
    if code is Write.ADDRESS:
        return code, mask, (row,)
    if code is Write.CANCEL:
        return (code, 0, (row, REASONS.index(args["reason"]))) if args["reason"] in REASONS else None
    if args["payment_method_id"] not in user["payment_methods"]:
        return None
    method = list(user["payment_methods"]).index(args["payment_method_id"])
    if code is Write.PAYMENT:
        return code, 0, (row, method)
    pairs = _pairs(domain.base["orders"][args["order_id"]], args, goods.item_ids)
    if pairs is None:
        return None
    if code is Write.EXCHANGE:
        pairs = sorted(pairs, key=lambda pair: pair[::-1])
    return code, 0, (row, method, *_words(pairs))


def output(domain: Domain, here: Row, name: str, args: Mapping[str, Any], changed: Changed) -> str:
    """What a write that succeeded answers; `changed` has it."""
    view = View(domain.base, changed)
    return json.dumps(view.get("orders", args["order_id"]) if "order_id" in args else view.get("users", args["user_id"]))


def _cents(dollars: float) -> int:
    return round(100 * dollars)


def _pairs(order: Record, args: Mapping[str, Any], item_ids: Mapping[str, int]) -> list[tuple[int, int]] | None:
    """(row, new item) for each item id; None where one is not the order's, or not of its product."""
    left, found = [item["item_id"] for item in order["items"]], []
    if len(args["item_ids"]) != len(args.get("new_item_ids", args["item_ids"])):
        return None
    for old, new in zip(args["item_ids"], args.get("new_item_ids", args["item_ids"])):
        if old not in left or new not in item_ids or item_ids[old] // VARIANTS != item_ids[new] // VARIANTS:
            return None
        found.append((left.index(old), item_ids[new]))
        left[left.index(old)] = ""
    return found


def _words(pairs: list[tuple[int, int]]) -> tuple[int, int]:
    bits = [row + 8 * (new % VARIANTS) for row, new in pairs] + [UNUSED] * (6 - len(pairs))
    return tuple(sum(each << PAIR * place for place, each in enumerate(bits[at:at + 3])) for at in (0, 3))


def arrays(domain: Domain, here: Row, goods: Catalogue) -> tuple[Fixed, Records]:
    """What is fixed and the slice at the start.

    Raises:
      ValueError: for a customer whose records have no room here, or a task without one.
    """
    user = customer(domain, here)
    orders, methods = [domain.base["orders"][key] for key in user["orders"]], list(user["payment_methods"])
    if (len(orders) > ORDERS or len(methods) > METHODS or any(len(order["items"]) > ITEMS for order in orders)
            or here.start.changed != NOTHING):
        raise ValueError(f"task {here.task.id!r}: expected at most {ORDERS} orders, {ITEMS} items in one and {METHODS} "
                         "payment methods, and no set-up of records; play it in tau2.world")
    room = lambda fill, of: np.full(ORDERS, fill, of)
    item, status = np.full((ORDERS, ITEMS), NONE, np.int16), room(Status.PROCESSED, np.int8)
    amount, address, payer = room(0, np.int32), room(0, np.int32), room(NONE, np.int8)
    for row, order in enumerate(orders):
        item[row, :len(order["items"])] = [goods.item_ids[each["item_id"]] for each in order["items"]]
        amount[row] = _cents(order["payment_history"][0]["amount"])
        payer[row] = methods.index(order["payment_history"][0]["payment_method_id"])
        status[row], address[row] = _STATUS.index(order["status"]), digest(order["address"])
    gift, balance = np.zeros(METHODS, bool), np.zeros(METHODS, np.int32)
    for place, method in enumerate(user["payment_methods"].values()):
        gift[place], balance[place] = method["source"] == "gift_card", _cents(method.get("balance", 0))
    fixed = Fixed(item=item, amount=amount, payer=payer, gift=gift, methods=np.int32(len(methods)))
    return fixed, Records(status=status, address=address, paid=room(NONE, np.int8), method=room(NONE, np.int8),
                          cents=room(0, np.int32), rows=room(0, np.int8), chosen=item, look=room(NONE, np.int16),
                          balance=balance, home=np.int32(digest(user["address"])))


def records(view: View, here: Row, at: Records, goods: Catalogue) -> Changed:
    """The slice, and what `view` has changed, as the records that differ from the base."""
    user_id = here.plan.user_id
    user = view.get("users", user_id)
    methods = list(user["payment_methods"])
    if int(at.home) != digest(user["address"]):
        view.edit("users", user_id)["address"] = copied(goods.addresses.get(int(at.home), {}))
    for name, cents in zip(methods, np.asarray(at.balance).tolist()):
        if cents != _cents(user["payment_methods"][name].get("balance", 0)):
            view.edit("users", user_id)["payment_methods"][name]["balance"] = cents / 100
    for row, key in enumerate(user["orders"]):
        order, status = view.get("orders", key), Status(int(at.status[row]))
        moved = int(at.address[row]) != digest(order["address"])
        if moved or _STATUS[status] != order["status"] or int(at.paid[row]) != NONE:
            _write_order(view.edit("orders", key), at, row, status, methods, goods)
    return view.changed


def _write_order(order: Record, at: Records, row: int, status: Status, methods: list[str], goods: Catalogue) -> None:
    history, first = order["payment_history"], order["payment_history"][0]
    entry = lambda kind, amount, name: {"transaction_type": kind, "amount": amount, "payment_method_id": name}
    method, paid, cents = methods[int(at.method[row])], int(at.paid[row]), int(at.cents[row])
    rows = [place for place in range(len(order["items"])) if int(at.rows[row]) >> place & 1]
    back = sorted(order["items"][place]["item_id"] for place in rows)
    if paid != NONE:
        history += [entry("payment", first["amount"], methods[paid]),
                    entry("refund", first["amount"], first["payment_method_id"])]
    if status in (Status.UNNEEDED, Status.MISTAKEN):
        history += [entry("refund", each["amount"], each["payment_method_id"]) for each in history]
        order["cancel_reason"] = REASONS[status - Status.UNNEEDED]
    elif status is Status.MODIFIED:
        history.append(entry("payment" if cents > 0 else "refund", abs(cents) / 100, method))
        for place in rows:
            code = int(at.chosen[row, place])
            shown = goods.variants[code if int(at.look[row]) == NONE else int(at.look[row])]
            order["items"][place].update(item_id=goods.names[code], price=shown["price"], options=copied(shown["options"]))
    elif status is Status.EXCHANGE:
        new = sorted(goods.names[code] for code in np.asarray(at.chosen[row]).tolist() if code != NONE)
        order.update(exchange_items=back, exchange_payment_method_id=method, exchange_price_difference=cents / 100,
                     exchange_new_items=new)
    elif status is Status.RETURN:
        order.update(return_items=back, return_payment_method_id=method)
    order.update(status=_STATUS[status], address=copied(goods.addresses.get(int(at.address[row]), {})))
