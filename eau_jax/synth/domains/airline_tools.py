"""What the airline's tools need and do, as declared; `probe` compares it with what they do."""

from typing import Any, Mapping, Sequence

from eau_jax.envs.tau2.airline_tools import BAG_FEE, INSURANCE_FEE, NEW_CERTIFICATES, NEW_RESERVATIONS, NOW
from eau_jax.synth.domain import Action, Look, Need, Param, Place


def reservation(look: Look, field: str = "") -> Any:
    """The reservation that a call names, or a field of it; None where there is none."""
    place = ("reservations", look.step.arguments["reservation_id"])
    return look.case.value(look.state, (*place, field) if field else place)


def customer(look: Look) -> Mapping[str, Any] | None:
    """Who is named by a call, or whose reservation is; None where nobody is."""
    args = look.step.arguments
    key = args.get("user_id") or ("reservation_id" in args and reservation(look, "user_id"))
    return look.case.value(look.state, ("users", key)) if key else None


def day(look: Look, flight: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is known of a flight on a day; {} where there is none."""
    found = look.case.value(look.state, ("flights", flight["flight_number"], "dates", flight["date"]))
    return found if found is not None else {}


def _people(look: Look) -> int:
    args = look.step.arguments
    return len(args["passengers"] if "passengers" in args else reservation(look, "passengers"))


def _seated(look: Look, flight: Mapping[str, Any]) -> bool:
    return day(look, flight).get("available_seats", {}).get(look.step.arguments["cabin"], -1) >= _people(look)


def _kept(look: Look, flight: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The flight as the reservation has it already, in the cabin that is wanted."""
    if reservation(look, "cabin") != look.step.arguments["cabin"]:
        return None
    return next((each for each in reservation(look, "flights") if all(
        each[name] == flight[name] for name in ("flight_number", "date"))), None)


def _legs(look: Look) -> list[Mapping[str, Any]]:
    """The wanted flights as a reservation stores them."""
    found = []
    for flight in look.step.arguments["flights"]:
        record = look.case.value(look.state, ("flights", flight["flight_number"]))
        kept = _kept(look, flight) if "reservation_id" in look.step.arguments else None
        found.append(kept or {
            "flight_number": flight["flight_number"], "origin": record["origin"], "destination": record["destination"],
            "date": flight["date"], "price": day(look, flight)["prices"][look.step.arguments["cabin"]]})
    return found


def _sum(legs: Sequence[Mapping[str, Any]]) -> int:
    return sum(each["price"] for each in legs)


def _flies(look: Look) -> bool:
    return reservation(look) is not None and all(
        _kept(look, each) is not None or _seated(look, each) for each in look.step.arguments["flights"])


def _charge(look: Look) -> int:
    """Dollars of a change; what is paid back is below 0."""
    args = look.step.arguments
    if "flights" in args:
        return _people(look) * (_sum(_legs(look)) - _sum(reservation(look, "flights"))) if _flies(look) else 0
    return BAG_FEE * max(0, args["nonfree_baggages"] - (reservation(look, "nonfree_baggages") or 0))


def _affords(look: Look) -> bool:
    method = customer(look) and customer(look)["payment_methods"].get(look.step.arguments["payment_id"])
    return bool(method) and method["source"] != "certificate" and (
        method["source"] == "credit_card" or method["amount"] >= _charge(look))


def _covered(look: Look) -> bool:
    methods = (customer(look) or {"payment_methods": {}})["payment_methods"]
    return all(each["payment_id"] in methods and methods[each["payment_id"]].get("amount", each["amount"]) >= each["amount"]
               for each in look.step.arguments["payment_methods"])


def _adds_up(look: Look) -> bool:
    args, paid = look.step.arguments, sum(each["amount"] for each in look.step.arguments["payment_methods"])
    if not all(_seated(look, each) for each in args["flights"]):
        return True              # that is what is complained about
    fees = INSURANCE_FEE * (args["insurance"] == "yes")
    return paid == _people(look) * (_sum(_legs(look)) + fees) + BAG_FEE * args["nonfree_baggages"]


def _free(look: Look, table: str, names: Sequence[str]) -> str | None:
    """The next id for what is made up."""
    held = customer(look)["payment_methods"] if table == "certificates" else None
    taken = lambda name: look.case.value(look.state, (table, name)) is not None if held is None else name in held
    return next((name for name in names if not taken(name)), None)


def _books(look: Look) -> Mapping[Place, Any]:
    args, user, key = look.step.arguments, customer(look), _free(look, "reservations", NEW_RESERVATIONS)
    methods = {name: dict(method) for name, method in user["payment_methods"].items()}
    for each in args["payment_methods"]:
        source = methods[each["payment_id"]]["source"]
        if source == "gift_card":
            methods[each["payment_id"]]["amount"] -= each["amount"]
        elif source == "certificate":
            del methods[each["payment_id"]]
    fields = {name: value for name, value in args.items() if name not in ("flights", "payment_methods")}
    fields |= {"reservation_id": key, "flights": _legs(look), "payment_history": args["payment_methods"], "created_at": NOW,
               "status": None}
    changes: dict[Place, Any] = {("reservations", key, name): value for name, value in fields.items()}
    for each in args["flights"]:
        place = ("flights", each["flight_number"], "dates")
        days = changes.get(place) or look.case.value(look.state, place)
        own = days[each["date"]]
        seats = {**own["available_seats"], args["cabin"]: own["available_seats"][args["cabin"]] - _people(look)}
        changes[place] = {**days, each["date"]: {**own, "available_seats": seats}}
    return changes | {("users", user["user_id"], "payment_methods"): methods,
                      ("users", user["user_id"], "reservations"): [*user["reservations"], key]}


def _set(look: Look, **fields: Any) -> dict[Place, Any]:
    return {("reservations", look.step.arguments["reservation_id"], name): value for name, value in fields.items()}


def _cancels(look: Look) -> Mapping[Place, Any]:
    paid = reservation(look, "payment_history")
    return _set(look, status="cancelled", payment_history=[*paid, *({**each, "amount": -each["amount"]} for each in paid)])


def _charged(look: Look, **fields: Any) -> Mapping[Place, Any]:
    """The reservation with other fields, after its customer has paid for them."""
    dollars, key, user = _charge(look), look.step.arguments["payment_id"], customer(look)
    method = user["payment_methods"][key]
    entry = [{"payment_id": key, "amount": dollars}] if dollars else []
    changes = _set(look, **fields, payment_history=[*reservation(look, "payment_history"), *entry])
    if method["source"] == "gift_card":
        changes["users", user["user_id"], "payment_methods"] = {
            **user["payment_methods"], key: {**method, "amount": method["amount"] - dollars}}
    return changes


def _certifies(look: Look) -> Mapping[Place, Any]:
    user, key = customer(look), _free(look, "certificates", NEW_CERTIFICATES)
    new = {"source": "certificate", "id": key, "amount": float(look.step.arguments["amount"])}
    return {("users", user["user_id"], "payment_methods"): {**user["payment_methods"], key: new}}


_KNOWN = Need("the reservation is known", lambda look: reservation(look) is not None)
_USER = Need("the customer is known", lambda look: customer(look) is not None)
_PAYS = Need("it can be paid, and with no certificate", _affords)
_slot = lambda *names: {name: Param(name, "slot") for name in names}
_RESERVATION, _PAYMENT = Param("reservation_id", "lookup"), Param("payment_id", "lookup")
_FLIGHTS = Param("flights", "lookup", {"flight_number": Param("flight_number", "lookup"), "date": Param("day", "slot")})
_PASSENGERS = Param("passengers", "slot", _slot("first_name", "last_name", "dob"))
_PAID = Param("payments", "lookup", {"payment_id": _PAYMENT, "amount": Param("dollars", "const")})
_BAGS = {"total_baggages": Param("total_baggages", "slot"), "nonfree_baggages": Param("nonfree_baggages", "const")}
_SEARCH = {"origin": Param("origin", "slot"), "destination": Param("destination", "slot"), "date": Param("day", "slot")}
ACTIONS = {
    "get_user_details": Action("read", _slot("user_id"), (_USER,)),
    "get_reservation_details": Action("read", {"reservation_id": _RESERVATION}, (_KNOWN,)),
    "list_all_airports": Action("read", {}),
    "search_direct_flight": Action("read", _SEARCH),
    "search_onestop_flight": Action("read", _SEARCH),
    "get_flight_status": Action(
        "read", {"flight_number": _FLIGHTS.fields["flight_number"], "date": Param("day", "slot")},
        (Need("there is such a flight", lambda look: bool(day(look, look.step.arguments))),),
        returns="status of {flight_number} on {date}"),
    "book_reservation": Action(
        "write", {**_slot("user_id", "origin", "destination"), "flight_type": Param("flight_type", "const"),
                  **_slot("cabin"), "flights": _FLIGHTS, "passengers": _PASSENGERS, "payment_methods": _PAID, **_BAGS,
                  **_slot("insurance")},
        (_USER, Need("a number is left", lambda look: _free(look, "reservations", NEW_RESERVATIONS) is not None),
         Need("there are seats", lambda look: all(_seated(look, each) for each in look.step.arguments["flights"])),
         Need("it can be paid", _covered), Need("the payments add up to the price", _adds_up)), _books),
    "cancel_reservation": Action("write", {"reservation_id": _RESERVATION}, (_KNOWN,), _cancels),
    "update_reservation_flights": Action(
        "write", {"reservation_id": _RESERVATION, **_slot("cabin"), "flights": _FLIGHTS, "payment_id": _PAYMENT},
        (_KNOWN, Need("there are seats", _flies), _PAYS),
        lambda look: _charged(look, flights=_legs(look), cabin=look.step.arguments["cabin"])),
    "update_reservation_baggages": Action(
        "write", {"reservation_id": _RESERVATION, **_BAGS, "payment_id": _PAYMENT}, (_KNOWN, _PAYS),
        lambda look: _charged(look, **{name: look.step.arguments[name] for name in _BAGS})),
    "update_reservation_passengers": Action(
        "write", {"reservation_id": _RESERVATION, "passengers": _PASSENGERS},
        (_KNOWN, Need("as many travel", lambda look: len(reservation(look, "passengers") or ()) == _people(look))),
        lambda look: _set(look, passengers=look.step.arguments["passengers"])),
    "send_certificate": Action(
        "write", {**_slot("user_id"), "amount": Param("dollars", "const")},
        (_USER, Need("a number is left", lambda look: bool(customer(look)) and _free(
            look, "certificates", NEW_CERTIFICATES) is not None)), _certifies),
    "transfer_to_human_agents": Action("generic", {"summary": Param("summary", "const")}),
}
