"""The fourteen tools of tau2-bench's airline agent, over `tau2.database`.

Semantics and error texts follow tau2-bench 1.0.1 (Barres et al. 2025, MIT): cancelling and changing flights leave the
seat counts alone, cancelling does not refill gift cards, and only booking takes seats.
"""

import datetime
from typing import Any, Mapping

from eau_jax.envs.tau2.call import CALCULATE, TRANSFER, Refused, Tool, parameters, several, text, whole
from eau_jax.envs.tau2.database import Record, View, copied

Args = Mapping[str, Any]
NOW = "2024-05-15T15:00:00"
NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
INSURANCE_FEE, BAG_FEE = 30, 50     # dollars per passenger, per bag that is not free
AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas", "DEN": "Denver",
    "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston", "PHX": "Phoenix", "IAH": "Houston",
    "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte", "MSP": "Minneapolis", "DTW": "Detroit",
    "PHL": "Philadelphia", "LGA": "LaGuardia"}

_USER = text("user id, such as 'sara_doe_496'")
_RESERVATION = text("reservation id, such as 'ZFA04Y'")
_AIRPORT = text("airport code, such as 'JFK'")
_DATE = text("day of departure, such as '2024-05-01'")
_CABIN = text("cabin class", "business", "economy", "basic_economy")
_FLIGHTS = several(parameters(flight_number=text("such as 'HAT001'"), date=_DATE), "every flight, in order")
_PASSENGERS = several(parameters(first_name=text("first name"), last_name=text("last name"),
                                 dob=text("date of birth, such as '1990-01-31'")), "every passenger")
_PAYMENT = text("payment id from the user's profile, such as 'credit_card_7815826'")
_PAYMENTS = several(parameters(payment_id=_PAYMENT, amount=whole("dollars")), "how the total price is paid")


def book(view: View, args: Args) -> Record:
    user = _found(view, "users", args["user_id"], "User")
    key = next((key for key in NEW_RESERVATIONS if view.get("reservations", key) is None), None)
    if key is None:
        raise Refused("Too many reservations")
    people, cabin = len(args["passengers"]), args["cabin"]
    flights = [_seated(view, flight, cabin, people) for flight in args["flights"]]
    total = people * sum(flight["price"] for flight in flights) + BAG_FEE * args["nonfree_baggages"]
    total += INSURANCE_FEE * people if args["insurance"] == "yes" else 0
    for payment in args["payment_methods"]:
        method = user["payment_methods"].get(payment["payment_id"])
        if method is None:
            raise Refused(f"Payment method {payment['payment_id']} not found")
        if method["source"] != "credit_card" and method["amount"] < payment["amount"]:
            raise Refused(f"Not enough balance in payment method {payment['payment_id']}")
    paid = sum(payment["amount"] for payment in args["payment_methods"])
    if paid != total:
        raise Refused(f"Payment amount does not add up, total price is {total}, but paid {paid}")
    user = view.edit("users", args["user_id"])
    for payment in args["payment_methods"]:
        _spend(user, payment["payment_id"], payment["amount"])
    for flight in args["flights"]:
        day = view.edit("flights", flight["flight_number"])["dates"][flight["date"]]
        day["available_seats"][cabin] -= people
    reservation = {
        "reservation_id": key, "user_id": args["user_id"], "origin": args["origin"], "destination": args["destination"],
        "flight_type": args["flight_type"], "cabin": cabin, "flights": flights, "passengers": copied(args["passengers"]),
        "payment_history": copied(args["payment_methods"]), "created_at": NOW, "total_baggages": args["total_baggages"],
        "nonfree_baggages": args["nonfree_baggages"], "insurance": args["insurance"], "status": None}
    view.put("reservations", key, reservation)
    user["reservations"].append(key)
    return reservation


def cancel(view: View, args: Args) -> Record:
    _found(view, "reservations", args["reservation_id"], "Reservation")
    reservation = view.edit("reservations", args["reservation_id"])
    reservation["payment_history"] += [{"payment_id": payment["payment_id"], "amount": -payment["amount"]}
                                       for payment in reservation["payment_history"]]
    reservation["status"] = "cancelled"
    return reservation


def flight_status(view: View, args: Args) -> str:
    return _day(view, args["flight_number"], args["date"])["status"]


def search_direct(view: View, args: Args) -> list[Record]:
    return _departures(view, args["date"], args["origin"], args["destination"])


def search_onestop(view: View, args: Args) -> list[list[Record]]:
    found = []
    for first in _departures(view, args["date"], args["origin"], None):
        arrival = first["scheduled_arrival_time_est"]
        date = _next_day(args["date"]) if "+1" in arrival else args["date"]
        for second in _departures(view, date, first["destination"], args["destination"], arrival):
            found.append([first | {"date": args["date"]}, second | {"date": date}])
    return found


def send_certificate(view: View, args: Args) -> str:
    methods = _found(view, "users", args["user_id"], "User")["payment_methods"]
    key = next((key for key in NEW_CERTIFICATES if key not in methods), None)
    if key is None:
        raise Refused("Too many certificates")
    user = view.edit("users", args["user_id"])
    user["payment_methods"][key] = {"source": "certificate", "id": key, "amount": float(args["amount"])}
    return f"Certificate {key} added to user {args['user_id']} with amount {args['amount']}."


def update_baggages(view: View, args: Args) -> Record:
    old = _found(view, "reservations", args["reservation_id"], "Reservation")
    extra = max(0, args["nonfree_baggages"] - old["nonfree_baggages"])
    reservation = _charged(view, args, BAG_FEE * extra)
    reservation.update(total_baggages=args["total_baggages"], nonfree_baggages=args["nonfree_baggages"])
    return reservation


def update_flights(view: View, args: Args) -> Record:
    old = _found(view, "reservations", args["reservation_id"], "Reservation")
    people, flights = len(old["passengers"]), []
    for flight in args["flights"]:
        kept = next((kept for kept in old["flights"] if args["cabin"] == old["cabin"]
                     and (kept["flight_number"], kept["date"]) == (flight["flight_number"], flight["date"])), None)
        flights.append(copied(kept) if kept else _seated(view, flight, args["cabin"], people))
    price = people * (sum(flight["price"] for flight in flights) - sum(flight["price"] for flight in old["flights"]))
    reservation = _charged(view, args, price)
    reservation.update(flights=flights, cabin=args["cabin"])
    return reservation


def update_passengers(view: View, args: Args) -> Record:
    old = _found(view, "reservations", args["reservation_id"], "Reservation")
    if len(args["passengers"]) != len(old["passengers"]):
        raise Refused("Number of passengers does not match")
    reservation = view.edit("reservations", args["reservation_id"])
    reservation["passengers"] = copied(args["passengers"])
    return reservation


def airline_tools() -> dict[str, Tool]:
    """Every tool by its name."""
    tools = (
        CALCULATE, TRANSFER,
        Tool("book_reservation", "write", "Book a reservation. The payments must add up to the total price.",
             parameters(user_id=_USER, origin=_AIRPORT, destination=_AIRPORT,
                        flight_type=text("type of trip", "round_trip", "one_way"), cabin=_CABIN, flights=_FLIGHTS,
                        passengers=_PASSENGERS, payment_methods=_PAYMENTS, total_baggages=whole("bags in all"),
                        nonfree_baggages=whole("bags to be paid"), insurance=text("travel insurance", "yes", "no")), book),
        Tool("cancel_reservation", "write", "Cancel a whole reservation.", parameters(reservation_id=_RESERVATION), cancel),
        Tool("get_flight_status", "read", "Status of a flight on a day.",
             parameters(flight_number=text("such as 'HAT001'"), date=_DATE), flight_status),
        Tool("get_reservation_details", "read", "Details of a reservation.", parameters(reservation_id=_RESERVATION),
             lambda view, args: _found(view, "reservations", args["reservation_id"], "Reservation")),
        Tool("get_user_details", "read", "A user's profile with payment methods and reservation ids.",
             parameters(user_id=_USER), lambda view, args: _found(view, "users", args["user_id"], "User")),
        Tool("list_all_airports", "read", "Codes and cities of all airports.", parameters(),
             lambda view, args: [{"iata": code, "city": city} for code, city in AIRPORTS.items()]),
        Tool("search_direct_flight", "read", "Direct flights between two airports on a day, with seats and prices.",
             parameters(origin=_AIRPORT, destination=_AIRPORT, date=_DATE), search_direct),
        Tool("search_onestop_flight", "read", "Pairs of flights with one stop between two airports on a day.",
             parameters(origin=_AIRPORT, destination=_AIRPORT, date=_DATE), search_onestop),
        Tool("send_certificate", "write", "Send a certificate to a user as compensation.",
             parameters(user_id=_USER, amount=whole("dollars")), send_certificate),
        Tool("update_reservation_baggages", "write", "Change the number of bags of a reservation.",
             parameters(reservation_id=_RESERVATION, total_baggages=whole("new number of bags in all"),
                        nonfree_baggages=whole("new number of bags to be paid"), payment_id=_PAYMENT), update_baggages),
        Tool("update_reservation_flights", "write", "Change flights or cabin of a reservation. List every flight of the new "
             "reservation, also those that stay.",
             parameters(reservation_id=_RESERVATION, cabin=_CABIN, flights=_FLIGHTS, payment_id=_PAYMENT), update_flights),
        Tool("update_reservation_passengers", "write", "Change who travels; the number of passengers stays.",
             parameters(reservation_id=_RESERVATION, passengers=_PASSENGERS), update_passengers),
    )
    return {tool.name: tool for tool in tools}


def _found(view: View, table: str, key: str, name: str) -> Record:
    record = view.get(table, key)
    if record is None:
        raise Refused(f"{name} {key} not found")
    return record


def _day(view: View, number: str, date: str) -> Record:
    flight = _found(view, "flights", number, "Flight")
    if date not in flight["dates"]:
        raise Refused(f"Flight {number} not found on date {date}")
    return flight["dates"][date]


def _seated(view: View, wanted: Record, cabin: str, people: int) -> Record:
    """A flight as a reservation stores it, if it still has enough seats."""
    number, date = wanted["flight_number"], wanted["date"]
    day = _day(view, number, date)
    if day["status"] != "available":
        raise Refused(f"Flight {number} not available on date {date}")
    if day["available_seats"][cabin] < people:
        raise Refused(f"Not enough seats on flight {number}")
    flight = view.get("flights", number)
    return {"flight_number": number, "origin": flight["origin"], "destination": flight["destination"], "date": date,
            "price": day["prices"][cabin]}


def _departures(view: View, date: str, origin: str, destination: str | None, after: str = "") -> list[Record]:
    found = []
    for _, flight in view.rows("flights"):
        if flight["origin"] != origin or destination not in (None, flight["destination"]):
            continue
        day = flight["dates"].get(date)
        if day is None or day["status"] != "available" or flight["scheduled_departure_time_est"] < after:
            continue
        kept = ("flight_number", "origin", "destination", "scheduled_departure_time_est", "scheduled_arrival_time_est")
        found.append({name: flight[name] for name in kept} | {
            "status": "available", "date": None, "available_seats": day["available_seats"], "prices": day["prices"]})
    return found


def _next_day(date: str) -> str:
    return (datetime.date.fromisoformat(date) + datetime.timedelta(days=1)).isoformat()


def _charged(view: View, args: Args, price: int) -> Record:
    """The reservation, to be written to, after its user has paid the price (or got it back)."""
    reservation = view.get("reservations", args["reservation_id"])
    user, payment_id = _found(view, "users", reservation["user_id"], "User"), args["payment_id"]
    method = user["payment_methods"].get(payment_id)
    if method is None:
        raise Refused("Payment method not found")
    if method["source"] == "certificate":
        raise Refused("Certificate cannot be used to update reservation")
    if method["source"] == "gift_card" and method["amount"] < price:
        raise Refused("Gift card balance is not enough")
    if method["source"] == "gift_card":
        view.edit("users", reservation["user_id"])["payment_methods"][payment_id]["amount"] -= price
    reservation = view.edit("reservations", args["reservation_id"])
    if price != 0:
        reservation["payment_history"].append({"payment_id": payment_id, "amount": price})
    return reservation


def _spend(user: Record, payment_id: str, amount: int) -> None:
    """Takes a payment from a gift card, or uses a certificate up."""
    method = user["payment_methods"].get(payment_id)
    if method is None:    # a certificate that was named twice
        raise Refused(f"Payment method {payment_id} not found")
    if method["source"] == "gift_card":
        method["amount"] -= amount
    elif method["source"] == "certificate":
        del user["payment_methods"][payment_id]
