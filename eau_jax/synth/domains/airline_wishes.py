"""What the airline's customers want, in symbols: the makers of the atoms in `airline_atoms`."""

import random
from typing import Any, Callable, Mapping, Sequence

from eau_jax.envs.tau2.airline_tools import BAG_FEE, NEW_CERTIFICATES
from eau_jax.envs.tau2.wording import listed, method
from eau_jax.synth.domain import Wish
from eau_jax.synth.domains.airline_world import (
    CABINS, HUB, Flight, Reservation, World, allowance, base, cost, flights_of, leg, open_flights, price, routes)

Make = Callable[[World, random.Random], Wish | None]
Slots = list[list[str]]
COMPENSATION = {"cancelled": 100, "delayed": 50}      # dollars for each traveller


def _about(world: World, record: Reservation) -> tuple[list[list[Any]], Slots, dict[str, str]]:
    """(how the user describes a reservation, slots, words): by its number, or by where it goes."""
    key = record["reservation_id"]
    if world.rng.random() < 0.5:
        return [["reservations", key, {"reservation_id": key}]], [["number", "reservation_id", key]], {"which": ""}
    fields = {name: record[name] for name in ("user_id", "origin", "destination")}
    return [["reservations", key, fields]], [], {
        "which": f"It is the trip from {record['origin']} to {record['destination']}. "}


def _looked_up(world: World, record: Reservation) -> list[list[str]]:
    """The customer's profile and the reservation have been looked at."""
    return [["customer", world.user["email"]], ["created", record["created_at"]]]


def _wish(world: World, record: Reservation, tool: str, given: Mapping[str, Any], goal: Mapping[str, Any], slots: Slots,
          refused: str = "", **words: str) -> Wish:
    """A call on a reservation; where it is refused, what was paid for it has to be told."""
    refers, which, said = _about(world, record)
    key, shows = record["reservation_id"], _looked_up(world, record)
    call = [[tool, {"reservation_id": key, **given}, "agent"]]
    if refused:
        paid = str(record["payment_history"][0]["amount"])
        return Wish("", [], [], [*which, *slots], refers, shows, [paid], refused, call, {**said, **words})
    goals = [[["reservations", key, name], value] for name, value in goal.items()]
    return Wish("", call, goals, [*which, *slots], refers, shows, [], "", [], {**said, **words})


def _pays(world: World, key: str) -> list[str]:
    return ["payment", "payment", method(world.user, key)[0]]


def _history(record: Reservation, card: str, dollars: int) -> list[dict[str, Any]]:
    """The payments of a reservation after one more, of nothing for nothing."""
    return [*record["payment_history"], *([{"payment_id": card, "amount": dollars}] if dollars else [])]


def _at(flight: Flight) -> tuple[list[Any], str]:
    """(how the user describes a flight, its time of departure)."""
    record = base()["flights"][flight[0]]
    fields = {name: record[name] for name in ("origin", "destination", "scheduled_departure_time_est")}
    return ["flights", flight[0], fields], record["scheduled_departure_time_est"][:5]


def _listed(flights: Sequence[Flight]) -> list[dict[str, str]]:
    return [{"flight_number": number, "date": day} for number, day in flights]


def cancel(refused: str = "", **how: Any) -> Make:
    """A reservation that is as `how` says, see `World.reservation`."""

    def make(world: World, rng: random.Random) -> Wish | None:
        record = world.reservation(**how)
        if record is None:
            return None
        called_off = how.get("when") == "cancelled"
        day = record["flights"][0]["date"]
        slots = [["details", "day", day]] if called_off else []
        why = f"My flight on {day} was called off." if called_off else "I cannot travel."
        wish = _wish(world, record, "cancel_reservation", {}, {"status": "cancelled"}, slots, refused, why=why)
        return wish._replace(shows=wish.shows + _state(record)) if called_off else wish

    return make


def _state(record: Reservation) -> list[list[str]]:
    """The status of the first flight has been looked up."""
    (number, day), = flights_of(record)[:1]
    return [[f"status of {number} on {day}", base()["flights"][number]["dates"][day]["status"]]]


def move(cabin: str = "economy", back: bool = False, refused: str = "") -> Make:
    """To another flight on the same route; `back`: the flight back, the other one stays."""

    def make(world: World, rng: random.Random) -> Wish | None:
        record = world.reservation(cabin=cabin, back=back)
        if record is None:
            return None
        own, route = flights_of(record), (record["origin"], record["destination"])
        others = [each for each in open_flights(route[::-1] if back else route, cabin)
                  if each not in own and (not back or each[1] > own[0][1])]
        if not others:
            return None
        new, card = rng.choice(others), world.card()
        refers, time = _at(new)
        legs = [*record["flights"][:back], leg(new, price(new, cabin))]
        slots = [["details", "origin", base()["flights"][new[0]]["origin"]],
                 ["details", "destination", base()["flights"][new[0]]["destination"]], ["details", "day", new[1]],
                 ["details", "time", time], _pays(world, card)]
        wish = _reflown(world, record, cabin, legs, card, slots, refused)
        return wish._replace(refers=[*wish.refers, refers])

    return make


def _reflown(world: World, record: Reservation, cabin: str, legs: list[dict[str, Any]], card: str, slots: Slots,
             refused: str) -> Wish:
    """The wish for other flights, or another cabin; `legs` is of no account where it is refused."""
    dollars = len(record["passengers"]) * sum(new["price"] - old["price"] for new, old in zip(legs, record["flights"]))
    goal = {"cabin": cabin, "flights": legs, "payment_history": _history(record, card, dollars)}
    given = {"cabin": cabin, "flights": _listed(flights_of({"flights": legs})), "payment_id": card}
    return _wish(world, record, "update_reservation_flights", given, goal, slots, refused)


def upgrade(when: str = "ahead", refused: str = "") -> Make:
    """To the next better cabin on the same flights."""

    def make(world: World, rng: random.Random) -> Wish | None:
        old, new = rng.choice(((CABINS[0], CABINS[1]), (CABINS[1], CABINS[2])))
        record, card = world.reservation(cabin=old, when=when, back=not refused and rng.random() < 0.3), world.card()
        if record is None:
            return None
        flights, people = flights_of(record), len(record["passengers"])
        seats = [each in open_flights((one["origin"], one["destination"]), new, people)
                 for each, one in zip(flights, record["flights"])]
        if not refused and not all(seats):
            return None
        legs = record["flights"] if refused else [leg(each, price(each, new)) for each in flights]
        return _reflown(world, record, new, legs, card, [["details", "cabin", new], _pays(world, card)], refused)

    return make


def bags(refused: str = "") -> Make:
    def make(world: World, rng: random.Random) -> Wish | None:
        record, card = world.reservation(cabin=rng.choice(CABINS)), world.card()
        if record is None:
            return None
        total = record["total_baggages"] + (-1 if refused else rng.choice((1, 2, 3)))
        return _more_bags(world, record, record["reservation_id"], total, card, refused)

    return make


def _more_bags(world: World, record: Reservation, key: str, total: int, card: str, refused: str = "") -> Wish:
    """The wish for so many bags in all; `key` stands for the reservation's number."""
    free = allowance(world.user["membership"], record["cabin"], len(record["passengers"]))
    given = {"total_baggages": total, "nonfree_baggages": max(0, total - free)}
    dollars = BAG_FEE * max(0, given["nonfree_baggages"] - record["nonfree_baggages"])
    goal = {**given, "payment_history": _history(record, card, dollars)}
    return _wish(world, {**record, "reservation_id": key}, "update_reservation_baggages", {**given, "payment_id": card},
                 goal, [["details", "total_baggages", str(total)], _pays(world, card)], refused)


def bags_new(world: World, rng: random.Random) -> Wish:
    """For the trip that `book` books."""
    record, card = world.booking, world.card()
    wish = _more_bags(world, record, "@book.reservation_id", record["total_baggages"] + rng.choice((1, 2)), card)
    return wish._replace(slots=wish.slots[-2:], refers=[], shows=[["customer", world.user["email"]]])


def rename(world: World, rng: random.Random) -> Wish | None:
    record, new = world.reservation(people=rng.choice((2, 3))), world.traveller(told=True)
    if record is None:
        return None
    place = rng.randrange(1, len(record["passengers"]))
    old, people = record["passengers"][place], list(record["passengers"])
    people[place] = new
    return _wish(world, record, "update_reservation_passengers", {"passengers": people}, {"passengers": people},
                 _person(new), old=f"{old['first_name']} {old['last_name']}")


def more_people(world: World, rng: random.Random) -> Wish | None:
    record, new = world.reservation(), world.traveller(told=True)
    return record and _wish(world, record, "update_reservation_passengers", {"passengers": [*record["passengers"], new]}, {},
                            _person(new), "party")


def _person(passenger: Mapping[str, str]) -> Slots:
    return [["details", name, value] for name, value in passenger.items()]


def compensate(when: str, refused: str = "") -> Make:
    """For a first flight that was called off or is late."""

    def make(world: World, rng: random.Random) -> Wish | None:
        how = {} if refused else rng.choice(({"cabin": "business"}, {"insured": True}))
        record = world.reservation(when=when, **how)
        if record is None:
            return None
        dollars, user = COMPENSATION[when] * len(record["passengers"]), world.user["user_id"]
        day = record["flights"][0]["date"]
        wish = _wish(world, record, "", {}, {}, [["details", "day", day]], refused,
                     what={"cancelled": "was called off", "delayed": "was late"}[when])
        call = [["send_certificate", {"user_id": user, "amount": dollars}, "agent"]]
        wish = wish._replace(shows=wish.shows + _state(record))
        if refused:
            return wish._replace(forbidden=call)
        new = {"source": "certificate", "id": NEW_CERTIFICATES[0], "amount": float(dollars)}
        return wish._replace(steps=call, goal=[[["users", user, "payment_methods", new["id"]], new]])

    return make


def book(connects: bool = False, voucher: bool = False) -> Make:
    """One way, for the customer and perhaps another one.

    Args:
      connects: over the hub, where there is no direct flight.
      voucher: a certificate pays for some of it.
    """

    def make(world: World, rng: random.Random) -> Wish | None:
        people, cabin = [world.traveller(world.user)], rng.choice(CABINS[1:])
        if rng.random() < 0.5:
            people.append(world.traveller(told=True))
        flights = _connection(rng, cabin) if connects else _direct(world, rng, cabin)
        if flights is None:
            return None
        bags, insured, card = rng.choice((0, 1, 3)), rng.random() < 0.5, world.card()
        paid_bags = max(0, bags - allowance(world.user["membership"], cabin, len(people)))
        total = cost(flights, cabin, len(people), paid_bags, insured)
        payments, pays = _payments(world, card, total, voucher)
        legs = [leg(each, price(each, cabin)) for each in flights]
        given = {"user_id": world.user["user_id"], "origin": legs[0]["origin"], "destination": legs[-1]["destination"],
                 "flight_type": "one_way", "cabin": cabin, "flights": _listed(flights), "passengers": people,
                 "payment_methods": payments, "total_baggages": bags, "nonfree_baggages": paid_bags,
                 "insurance": "yes" if insured else "no"}
        world.booking = {**given, "payment_history": payments, "created_at": ""}
        refers, times = zip(*map(_at, flights))
        slots = [["details", name, str(given[name])] for name in (
            "origin", "destination", "cabin", "total_baggages", "insurance")] + [["details", "day", flights[0][1]]]
        slots += [["details", "time", time] for time in times] + [slot for each in people[1:] for slot in _person(each)]
        others = [f"{each['first_name']} {each['last_name']}, born {each['dob']}" for each in people[1:]]
        words = {"times": listed(times), "who": listed(["me", *others])}
        slots.append(["payment", "payment", pays])
        shows = [["customer", world.user["email"]], *(["fare", str(price(each, cabin))] for each in flights)]
        kept = {"flights": legs, **{name: given[name] for name in ("user_id", "cabin", "passengers", "insurance")}}
        goal = [[["reservations", "@.reservation_id", name], value] for name, value in kept.items()]
        return Wish("", [["book_reservation", given, "agent"]], goal, slots, list(refers), shows, [], "", [], words)

    return make


def _payments(world: World, card: str, total: int, voucher: bool) -> tuple[list[dict[str, Any]], str]:
    """(how a booking is paid, the same in words)."""
    if not voucher:
        return [{"payment_id": card, "amount": total}], method(world.user, card)[0]
    certificate = world.method("certificate")
    worth = min(world.user["payment_methods"][certificate]["amount"], total - 1)
    return ([{"payment_id": certificate, "amount": worth}, {"payment_id": card, "amount": total - worth}],
            f"{method(world.user, certificate)[0]} and for the rest {method(world.user, card)[0]}")


def _direct(world: World, rng: random.Random, cabin: str) -> list[Flight] | None:
    route = world.route(lambda each: open_flights(each, cabin))
    return route and [rng.choice(open_flights(route, cabin))]


def _connection(rng: random.Random, cabin: str) -> list[Flight] | None:
    """Over the hub where there is no direct flight: there in the morning, on in the afternoon."""
    ends = sorted({end for route in routes() for end in route} - {HUB})
    first, second = rng.choice([(one, two) for one in ends for two in ends if one != two and (one, two) not in routes()])
    there, on = open_flights((first, HUB), cabin), open_flights((HUB, second), cabin)
    found = [[one, two] for one in there for two in on if one[1] == two[1] and _at(one)[1] < "12" < _at(two)[1]]
    return rng.choice(found) if found else None


def fare(world: World, rng: random.Random) -> Wish | None:
    cabin = rng.choice(CABINS[1:])
    route = world.route(lambda each: open_flights(each, cabin))
    if route is None:
        return None
    flight = rng.choice(open_flights(route, cabin))
    refers, time = _at(flight)
    fare = str(price(flight, cabin))
    slots = [["details", name, value] for name, value in (
        ("origin", route[0]), ("destination", route[1]), ("day", flight[1]), ("time", time), ("cabin", cabin))]
    return Wish("", [], [], slots, [refers], [["fare", fare]], [fare], "", [], {})


def paid(world: World, rng: random.Random) -> Wish | None:
    record = world.reservation(cabin=rng.choice(CABINS))
    return record and _wish(world, record, "", {}, {}, [], "any")._replace(refused="", forbidden=[])
