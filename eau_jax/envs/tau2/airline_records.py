"""The reservations of one airline customer as integers: what the slice holds, and the way there and back.

Of bookings those of the task's gold actions are in the slice, with any passengers and any number of bags: nothing else of
a booking can be put right later, so every other one is a write outside the slice. Sizes are those of upstream's database.
"""

import enum
import json
from typing import Any, Mapping

import numpy as np
from flax import struct

from eau_jax.core.types import Array
from eau_jax.envs.tau2.airline_tools import BAG_FEE, INSURANCE_FEE, NEW_CERTIFICATES, NEW_RESERVATIONS, NOW, Args
from eau_jax.envs.tau2.call import Refused, checked
from eau_jax.envs.tau2.database import NOTHING, Changed, Record, View, copied
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.arrays import WRITE
from eau_jax.envs.tau2.slice import Memory, customer, digest
from eau_jax.envs.tau2.episode import Row

OLD, NEW = 13, len(NEW_RESERVATIONS)         # reservations of a customer at the start; rows for new ones
LEGS, PAYMENTS, BOOKINGS = 4, 6, 4           # flights and payments of a reservation; different bookings of a task
METHODS, CERTIFICATES = 7, len(NEW_CERTIFICATES)    # of a customer at the start; that may be sent
NONE, LEG_BITS = -1, 14
LARGEST = 2**23                              # a number of bags beyond this is outside the slice
CABINS = ("business", "economy", "basic_economy")
CREDIT, GIFT, CERTIFICATE = range(3)
_KINDS = {"credit_card": CREDIT, "gift_card": GIFT, "certificate": CERTIFICATE}


class Write(enum.IntEnum):
    """`Act.code`. values: row + 16 * cabin, payment method."""

    BOOK = WRITE         # values: which booking, bags; mask: the passengers
    CANCEL = 10
    CERTIFY = 11         # mask: dollars
    BAGS = 12            # values[2:]: bags in all, bags paid
    FLIGHTS = 13         # legs, each 1 + flight and day, two in mask, one in values[2] and one in values[3]
    PEOPLE = 14          # mask: the passengers; values[1]: how many


_CODES = {"book_reservation": Write.BOOK, "send_certificate": Write.CERTIFY, "cancel_reservation": Write.CANCEL,
          "update_reservation_baggages": Write.BAGS, "update_reservation_flights": Write.FLIGHTS,
          "update_reservation_passengers": Write.PEOPLE}


@struct.dataclass(kw_only=True)
class Shared:
    """A leg is days * flight + day."""

    price: Array        # [legs, 3] i32 dollars, by cabin
    seats: Array        # [legs, 3] i32 at the start
    open: Array         # [legs] bool: seats are sold


@struct.dataclass(kw_only=True)
class Booking:
    legs: Array         # [BOOKINGS, LEGS] i32
    cabin: Array        # [BOOKINGS] i32
    count: Array        # [BOOKINGS] i32 passengers
    method: Array       # [BOOKINGS, PAYMENTS] i32
    dollars: Array      # [BOOKINGS, PAYMENTS] i32
    paid_bags: Array    # [BOOKINGS] i32


@struct.dataclass(kw_only=True)
class Fixed:
    reservations: Array    # [] i32: how many at the start
    kind: Array            # [METHODS + CERTIFICATES] i32: CREDIT, GIFT or CERTIFICATE
    booking: Booking       # those of the gold actions
    bookings: Array        # [] i32: how many


@struct.dataclass(kw_only=True)
class Records:
    """R = OLD + NEW rows. Short integers: the state is what a step of thousands of conversations moves through memory."""

    cabin: Array        # [R] i8
    legs: Array         # [R, LEGS] i16
    price: Array        # [R, LEGS] i16 dollars paid for each
    people: Array       # [R] i32: digest of the passengers
    count: Array        # [R] i32: how many
    bags: Array         # [R] i32
    paid_bags: Array    # [R] i32
    cancelled: Array    # [R] bool
    method: Array       # [R, PAYMENTS] i8: the payment history
    dollars: Array      # [R, PAYMENTS] i32
    held: Array         # [METHODS + CERTIFICATES] bool: payment methods that the customer has
    worth: Array        # [METHODS + CERTIFICATES] i32 dollars
    booked: Array       # [NEW] i32: the booking in each new row


def shared(base: Any, legs: Mapping[tuple[str, str], int], count: int) -> Shared:
    price, seats = np.zeros((count, len(CABINS)), np.int32), np.zeros((count, len(CABINS)), np.int32)
    opened = np.zeros(count, bool)
    for (number, date), leg in legs.items():
        day = base["flights"][number]["dates"][date]
        if day["status"] == "available":
            opened[leg] = True
            price[leg] = [day["prices"][cabin] for cabin in CABINS]
            seats[leg] = [day["available_seats"][cabin] for cabin in CABINS]
    return Shared(price=price, seats=seats, open=opened)


def _methods(domain: Domain, here: Row) -> list[str | None]:
    """Payment ids by place: the customer's, room, and those of certificates that may be sent."""
    own = list(domain.base["users"][here.plan.user_id]["payment_methods"])
    return own + [None] * (METHODS - len(own)) + list(NEW_CERTIFICATES)


def gold_bookings(domain: Domain, here: Row, legs: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    """The different bookings of the gold actions that can succeed, without passengers and bags, which may be others."""
    found = []
    for action in here.task.data["evaluation_criteria"].get("actions") or ():
        if action["name"] == "book_reservation" and action["arguments"].get("user_id") == here.plan.user_id:
            try:
                args = checked(domain.tools["book_reservation"].parameters, action["arguments"])
            except Refused:
                continue
            if _adds_up(domain, here, args, legs) and _key(args) not in map(_key, found):
                found.append(args)
    return found


def _fresh(outside: Changed, user_id: str) -> list[str]:
    """The ids that new reservations of the slice get, in this order: those that other customers have not taken."""
    taken = {key: record["user_id"] for (table, key), record in outside.items() if table == "reservations"}
    return [key for key in NEW_RESERVATIONS if taken.get(key, user_id) == user_id]


def _key(args: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in args.items() if name not in ("passengers", "total_baggages")}
    return rest | {"count": len(args["passengers"])}


def _adds_up(domain: Domain, here: Row, args: Mapping[str, Any], legs: Mapping[tuple[str, str], int]) -> bool:
    """Whether nothing but seats and balances can stand in the way of a booking."""
    named = [payment["payment_id"] for payment in args["payment_methods"]]
    flights = [(flight["flight_number"], flight["date"]) for flight in args["flights"]]
    days = [domain.base["flights"][number]["dates"][date] for number, date in flights if (number, date) in legs]
    if (len(days) < len(flights) or len(flights) > LEGS or len(named) > PAYMENTS or len(set(named)) < len(named)
            or any(day["status"] != "available" for day in days) or set(named) - set(_methods(domain, here))):
        return False
    count = len(args["passengers"])
    total = count * sum(day["prices"][args["cabin"]] for day in days) + BAG_FEE * args["nonfree_baggages"]
    total += INSURANCE_FEE * count * (args["insurance"] == "yes")
    return total == sum(payment["amount"] for payment in args["payment_methods"])


def packed(domain: Domain, here: Row, at: Records, name: str, args: Args, outside: Changed,
           legs: Mapping[tuple[str, str], int], people: Memory) -> tuple[int, int, tuple[float, ...]] | None:
    """The write of a tool call as (code, mask, values); None where it touches a record outside, or has no room in the slice.
    A record that was written to outside the slice is outside from then on."""
    user_id = here.plan.user_id
    user, code = domain.base["users"].get(user_id), _CODES[name]
    places = [("flights", flight["flight_number"]) for flight in args.get("flights", ())]
    places += [("users", user_id)] if code not in (Write.CANCEL, Write.PEOPLE) else []
    places += [("reservations", args["reservation_id"])] if "reservation_id" in args else []
    if user is None or args.get("user_id", user_id) != user_id or any(place in outside for place in places):
        return None
    if any(abs(args.get(field, 0)) > LARGEST for field in ("total_baggages", "nonfree_baggages")):
        return None
    if code is Write.CERTIFY:
        return code, args["amount"], ()
    fresh = _fresh(outside, user_id)
    if code is Write.BOOK:
        known = [_key(each) for each in gold_bookings(domain, here, legs)]
        if _key(args) not in known or np.sum(np.asarray(at.booked) != NONE) >= len(fresh):
            return None
        return code, people.keep(args["passengers"], args["passengers"]), (known.index(_key(args)), args["total_baggages"])
    rows = {key: place for place, key in enumerate(user["reservations"])}
    rows |= {key: OLD + place for place, key in enumerate(fresh)}
    row = rows.get(args["reservation_id"])
    if row is None:
        return None
    if code is Write.PEOPLE:
        return code, people.keep(args["passengers"], args["passengers"]), (row, min(len(args["passengers"]), LARGEST))
    length, methods = np.sum(np.asarray(at.method)[row] != NONE), _methods(domain, here)
    if code is Write.CANCEL:
        return (code, 0, (row,)) if 2 * length <= PAYMENTS else None
    if args["payment_id"] not in methods or length == PAYMENTS:
        return None
    method = methods.index(args["payment_id"])
    if code is Write.BAGS:
        return code, 0, (row, method, args["total_baggages"], args["nonfree_baggages"])
    wanted = [legs.get((flight["flight_number"], flight["date"])) for flight in args["flights"]]
    if None in wanted or len(wanted) > LEGS:
        return None
    first, second, third, fourth = [leg + 1 for leg in wanted] + [0] * (LEGS - len(wanted))
    return code, first | second << LEG_BITS, (row + 16 * CABINS.index(args["cabin"]), method, third, fourth)


def arrays(domain: Domain, here: Row, legs: Mapping[tuple[str, str], int]) -> tuple[Fixed, Records]:
    base, user = domain.base, customer(domain, here)
    old, methods, bookings = user["reservations"], _methods(domain, here), gold_bookings(domain, here, legs)
    own = [base["reservations"][key] for key in old]
    if (len(old) > OLD or len(methods) > METHODS + CERTIFICATES or len(bookings) > BOOKINGS or here.start.changed != NOTHING
            or any(len(each["flights"]) > LEGS or len(each["payment_history"]) > PAYMENTS for each in own)):
        raise ValueError(f"task {here.task.id!r}: expected at most {OLD} reservations of {LEGS} flights, {METHODS} payment "
                         f"methods and {BOOKINGS} bookings, and no set-up of records; play it in tau2.world")
    room = lambda *shape, fill=0, of=np.int32: np.full(shape, fill, of)
    booking = Booking(
        legs=room(BOOKINGS, LEGS, fill=NONE), cabin=room(BOOKINGS), count=room(BOOKINGS), paid_bags=room(BOOKINGS),
        method=room(BOOKINGS, PAYMENTS, fill=NONE), dollars=room(BOOKINGS, PAYMENTS))
    for place, args in enumerate(bookings):
        _fill(booking, place, args, args["payment_methods"], legs, methods)
        booking.count[place], booking.paid_bags[place] = len(args["passengers"]), args["nonfree_baggages"]
    rows, ways = OLD + NEW, METHODS + CERTIFICATES
    at = Records(
        cabin=room(rows, of=np.int8), legs=room(rows, LEGS, fill=NONE, of=np.int16), price=room(rows, LEGS, of=np.int16),
        people=room(rows), count=room(rows), bags=room(rows), paid_bags=room(rows), cancelled=np.zeros(rows, bool),
        method=room(rows, PAYMENTS, fill=NONE, of=np.int8),
        dollars=room(rows, PAYMENTS), held=np.zeros(ways, bool), worth=room(ways), booked=room(NEW, fill=NONE))
    for row, each in enumerate(own):
        _fill(at, row, each, each["payment_history"], legs, methods)
        at.price[row, :len(each["flights"])] = [flight["price"] for flight in each["flights"]]
        at.people[row], at.count[row] = digest(each["passengers"]), len(each["passengers"])
        at.bags[row], at.paid_bags[row] = each["total_baggages"], each["nonfree_baggages"]
        at.cancelled[row] = each["status"] == "cancelled"
    kind = room(ways, fill=CERTIFICATE)
    for place, method in enumerate(user["payment_methods"].values()):
        kind[place], at.held[place], at.worth[place] = _KINDS[method["source"]], True, method.get("amount", 0)
    return Fixed(reservations=np.int32(len(old)), kind=kind, booking=booking, bookings=np.int32(len(bookings))), at


def _fill(to: Any, row: int, record: Record, payments: list[Record], legs: Mapping[tuple[str, str], int],
          methods: list[str | None]) -> None:
    """Legs, cabin and payments of a reservation or booking."""
    to.cabin[row] = CABINS.index(record["cabin"])
    to.legs[row, :len(record["flights"])] = [legs[each["flight_number"], each["date"]] for each in record["flights"]]
    to.method[row, :len(payments)] = [methods.index(each["payment_id"]) for each in payments]
    to.dollars[row, :len(payments)] = [each["amount"] for each in payments]


def output(domain: Domain, here: Row, name: str, args: Mapping[str, Any], changed: Changed) -> str:
    view = View(domain.base, changed)
    if name == "send_certificate":
        held = view.get("users", args["user_id"])["payment_methods"]
        key = [each for each in NEW_CERTIFICATES if each in held and held[each]["amount"] == args["amount"]][-1]
        return f"Certificate {key} added to user {args['user_id']} with amount {args['amount']}."
    if name == "book_reservation":
        return json.dumps(next(found for key in reversed(NEW_RESERVATIONS) if (found := view.get("reservations", key))))
    return json.dumps(view.get("reservations", args["reservation_id"]))


def records(domain: Domain, here: Row, at: Records, outside: Changed, legs: Mapping[int, tuple[str, str]],
            people: Memory, bookings: list[dict[str, Any]]) -> Changed:
    """The slice and what was written outside of it as records, those that differ from the base."""
    view, user_id = View(domain.base, outside), here.plan.user_id
    user, methods = domain.base["users"][user_id], _methods(domain, here)
    at = Records(**{name: np.asarray(each).tolist() for name, each in vars(at).items()})
    made = [(key, bookings[which]) for key, which in zip(_fresh(outside, user_id), at.booked) if which != NONE]
    changed = {}
    for row, key in enumerate(user["reservations"]):
        old = domain.base["reservations"][key]
        changed["reservations", key] = _reservation(domain, at, row, old, legs, people, methods)
    for place, (key, args) in enumerate(made):
        new = {"reservation_id": key, "user_id": user_id} | {
            name: args[name] for name in ("origin", "destination", "flight_type")}
        new |= dict.fromkeys(("cabin", "flights", "passengers", "payment_history")) | {"created_at": NOW}
        new |= {"total_baggages": 0, "nonfree_baggages": 0, "insurance": args["insurance"], "status": None}
        changed["reservations", key] = _reservation(domain, at, OLD + place, new, legs, people, methods)
        for flight in args["flights"]:
            number = flight["flight_number"]
            day = changed.setdefault(("flights", number), copied(domain.base["flights"][number]))["dates"][flight["date"]]
            day["available_seats"][args["cabin"]] -= len(args["passengers"])
    held = {}
    for name, has, worth in zip(methods, at.held, at.worth):
        method = user["payment_methods"].get(name, {"source": "certificate", "id": name, "amount": 0.0})
        if has:
            held[name] = method | ({"amount": type(method["amount"])(worth)} if "amount" in method else {})
    booked = [*user["reservations"], *(key for key, _ in made)]
    changed["users", user_id] = user | {"payment_methods": held, "reservations": booked}
    for (table, key), record in changed.items():
        if (table, key) not in outside and record != domain.base[table].get(key):
            view.put(table, key, record)
    return view.changed


def _reservation(domain: Domain, at: Records, row: int, old: Record, legs: Mapping[int, tuple[str, str]],
                 people: Memory, methods: list[str | None]) -> Record:
    flights = []
    for leg, price in zip(at.legs[row], at.price[row]):
        if leg != NONE:
            number, date = legs[leg]
            flight = domain.base["flights"][number]
            flights.append({"flight_number": number, "origin": flight["origin"], "destination": flight["destination"],
                            "date": date, "price": price})
    history = [{"payment_id": methods[method], "amount": amount}
               for method, amount in zip(at.method[row], at.dollars[row]) if method != NONE]
    return old | {
        "cabin": CABINS[at.cabin[row]], "flights": flights, "passengers": copied(people.get(at.people[row], [])),
        "payment_history": history, "total_baggages": at.bags[row], "nonfree_baggages": at.paid_bags[row],
        "status": "cancelled" if at.cancelled[row] else None}
