"""The books of a bicycle workshop, and the tools of the agent who keeps them.

Tables: users, bikes, orders (a repair of one bike on one day), services (with their prices) and days (with the places left).
Amounts are text such as "39.50": they are compared and told, never added up.
"""

from typing import Any, Mapping

from eau_jax.envs.tau2.call import TRANSFER, Refused, Tool, parameters, text
from eau_jax.envs.tau2.database import Base, Record, View
from eau_jax.envs.tau2.record_check import WHOLE

Args = Mapping[str, Any]
TODAY = "2025-06-02"
DAYS = tuple(f"2025-06-{day:02d}" for day in range(2, 29) if day % 7 != 1)    # no Sundays
SOON = DAYS[:2]                      # today and tomorrow
SERVICES = {"brake check": "39.50", "full service": "129.00", "puncture repair": "18.50", "gear tuning": "45.90",
            "wheel truing": "32.40", "chain replacement": "54.80", "light installation": "27.30", "fork overhaul": "84.60"}
KINDS = ("city bike", "road bike", "mountain bike", "cargo bike", "electric bike")
REASONS = ("no longer needed", "booked by mistake", "found another workshop")
PAYMENTS = ("card", "cash", "transfer")
PARTS = ("frame", "paint", "wheel", "lights")
OPEN = ("booked", "in work", "ready")
PLACES = 3                           # of a day

BASE: Base = {
    "users": {}, "bikes": {}, "orders": {},
    "services": {name: {"service": name, "price": price} for name, price in SERVICES.items()},
    "days": {day: {"day": day, "free": PLACES} for day in DAYS}}
SHAPES = {
    "users": {"user_id": str, "name": {"first_name": str, "last_name": str}, "email": str, "phone": str,
              "address": {"zip": str}, "bikes": [str], "orders": [str]},
    "bikes": {"bike_id": str, "user_id": str, "brand": str, "kind": str, "colour": str, "frame": str},
    "orders": {"order_id": str, "user_id": str, "bike_id": str, "service": str, "price": str, "day": str, "status": str,
               "moved": bool, "desk_code": str},
    "services": {"service": str, "price": str}, "days": {"day": str, "free": WHOLE}}


def find_by_email(view: View, args: Args) -> str:
    return _user(view, lambda user: user["email"].lower() == args["email"].lower())


def find_by_name_zip(view: View, args: Args) -> str:
    wanted = (args["first_name"].lower(), args["last_name"].lower(), args["zip"])
    return _user(view, lambda user: (user["name"]["first_name"].lower(), user["name"]["last_name"].lower(),
                                     user["address"]["zip"]) == wanted)


def book(view: View, args: Args) -> Record:
    bike, service = _found(view, "bikes", args["bike_id"]), _found(view, "services", args["service"])
    if any(order["bike_id"] == args["bike_id"] and order["status"] in OPEN for _, order in view.rows("orders")):
        raise Refused("This bike has a repair that is not collected yet")
    _take(view, args["day"])
    key = next_id(view, "orders", "R")
    order = {"order_id": key, "user_id": bike["user_id"], "bike_id": args["bike_id"], "service": args["service"],
             "price": service["price"], "day": args["day"], "status": "booked", "moved": False, "reason": None,
             "paid_with": None, "claim": None, "desk_code": ""}
    view.put("orders", key, order)
    view.edit("users", bike["user_id"])["orders"].append(key)
    return order


def move(view: View, args: Args) -> Record:
    order = _booked(view, args["order_id"])
    if order["day"] == args["day"]:
        raise Refused("The repair is on this day already")
    _take(view, args["day"])
    view.edit("days", order["day"])["free"] += 1
    order = view.edit("orders", args["order_id"])
    order.update(day=args["day"], moved=True)
    return order


def change_service(view: View, args: Args) -> Record:
    order, service = _booked(view, args["order_id"]), _found(view, "services", args["service"])
    if order["service"] == args["service"]:
        raise Refused("The repair is of this kind already")
    order = view.edit("orders", args["order_id"])
    order.update(service=args["service"], price=service["price"])
    return order


def cancel(view: View, args: Args) -> Record:
    order = _booked(view, args["order_id"])
    view.edit("days", order["day"])["free"] += 1
    order = view.edit("orders", args["order_id"])
    order.update(status="cancelled", reason=args["reason"])
    return order


def hand_out(view: View, args: Args) -> Record:
    if _found(view, "orders", args["order_id"])["status"] != "ready":
        raise Refused("The repair is not ready")
    order = view.edit("orders", args["order_id"])
    order.update(status="collected", paid_with=args["payment"])
    return order


def record_claim(view: View, args: Args) -> Record:
    order = _found(view, "orders", args["order_id"])
    if order["status"] not in ("ready", "collected") or order["claim"] is not None:
        raise Refused("A claim needs a repair that is done and has none yet")
    order = view.edit("orders", args["order_id"])
    order["claim"] = args["part"]
    return order


def add_bike(view: View, args: Args) -> Record:
    _found(view, "users", args["user_id"])
    key = next_id(view, "bikes", "B")
    bike = {"bike_id": key, "user_id": args["user_id"], "brand": args["brand"], "kind": args["kind"],
            "colour": args["colour"], "frame": ""}
    view.put("bikes", key, bike)
    view.edit("users", args["user_id"])["bikes"].append(key)
    return bike


def change_phone(view: View, args: Args) -> Record:
    _found(view, "users", args["user_id"])
    user = view.edit("users", args["user_id"])
    user["phone"] = args["phone"]
    return user


def next_id(view: View, table: str, letter: str) -> str:
    """The id that the next record of a table gets."""
    return f"{letter}{max([int(key[1:]) for key, _ in view.rows(table)] + [10000]) + 1:05d}"


def workshop_tools() -> dict[str, Tool]:
    """Every tool by its name."""
    order, bike, user = text("repair number, such as 'R10412'"), text("bike id, such as 'B10277'"), text("user id")
    service, day = text("kind of repair", *SERVICES), text("day, such as '2025-06-12'")
    ask = " Get an explicit yes first."
    tools = (
        TRANSFER,
        Tool("find_user_id_by_email", "read", "The user id that belongs to an e-mail address.",
             parameters(email=text("e-mail address")), find_by_email),
        Tool("find_user_id_by_name_zip", "read", "The user id that belongs to a name and zip code.",
             parameters(first_name=text("first name"), last_name=text("last name"), zip=text("zip code")), find_by_name_zip),
        Tool("get_user_details", "read", "A customer with bikes and repairs.", parameters(user_id=user),
             lambda view, args: _found(view, "users", args["user_id"])),
        Tool("get_order_details", "read", "A repair.", parameters(order_id=order),
             lambda view, args: _found(view, "orders", args["order_id"])),
        Tool("get_bike_details", "read", "A bike.", parameters(bike_id=bike),
             lambda view, args: _found(view, "bikes", args["bike_id"])),
        Tool("get_day", "read", "How many places a day has left.", parameters(day=day),
             lambda view, args: _found(view, "days", args["day"])),
        Tool("list_services", "read", "All kinds of repair with their prices.", parameters(),
             lambda view, args: [record for _, record in view.rows("services")]),
        Tool("book_repair", "write", "Book a repair for a bike." + ask,
             parameters(bike_id=bike, service=service, day=day), book),
        Tool("move_repair", "write", "Move a booked repair to another day." + ask, parameters(order_id=order, day=day),
             move),
        Tool("change_service", "write", "Make a booked repair one of another kind." + ask,
             parameters(order_id=order, service=service), change_service),
        Tool("cancel_repair", "write", "Cancel a booked repair." + ask,
             parameters(order_id=order, reason=text("why", *REASONS)), cancel),
        Tool("hand_out_bike", "write", "Hand out a bike that is ready, against payment." + ask,
             parameters(order_id=order, payment=text("how it is paid", *PAYMENTS)), hand_out),
        Tool("record_claim", "write", "Record a damage that the customer found after a repair." + ask,
             parameters(order_id=order, part=text("what is damaged", *PARTS)), record_claim),
        Tool("add_bike", "write", "Enter another bike of a customer." + ask,
             parameters(user_id=user, brand=text("brand"), kind=text("kind of bike", *KINDS),
                        colour=text("colour")), add_bike),
        Tool("change_phone", "write", "Change a customer's phone number." + ask,
             parameters(user_id=user, phone=text("such as '555-0142'")), change_phone),
    )
    return {tool.name: tool for tool in tools}


_NAMES = {"users": "User", "bikes": "Bike", "orders": "Repair", "services": "Service", "days": "Day"}


def _found(view: View, table: str, key: str) -> Record:
    record = view.get(table, key)
    if record is None:
        raise Refused(f"{_NAMES[table]} not found")
    return record


def _user(view: View, fits: Any) -> str:
    key = next((key for key, user in view.rows("users") if fits(user)), None)
    if key is None:
        raise Refused("User not found")
    return key


def _booked(view: View, order_id: str) -> Record:
    order = _found(view, "orders", order_id)
    if order["status"] != "booked":
        raise Refused("Only a booked repair can be changed")
    return order


def _take(view: View, day: str) -> None:
    if _found(view, "days", day)["free"] < 1:
        raise Refused("This day has no place left")
    view.edit("days", day)["free"] -= 1
