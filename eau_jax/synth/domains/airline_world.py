"""An airline for the airline tools: flights made on the spot, and customers with reservations for one task.

Schedule, fares, names and numbers are our own. Ids have upstream's form, so that the same tools, checks and words apply. It
is three in the afternoon of 2024-05-15, as the tools have it.
"""

import functools
import itertools
import random
from typing import Any, Callable, Mapping, Sequence

from eau_jax.envs.tau2.airline_tools import BAG_FEE, INSURANCE_FEE
from eau_jax.envs.tau2.database import Base

TODAY = "2024-05-15"
DAYS = tuple(f"2024-05-{day}" for day in range(12, 26))
AHEAD = DAYS[4:]                          # days on which seats are sold
TROUBLE = DAYS[2:5]                       # days on which flights are called off or late
FULL = "2024-05-22"                       # from this day on some cabins are sold out
CABINS = ("basic_economy", "economy", "business")
FREE_BAGS = dict(zip(CABINS, range(3)))   # for each traveller
MORE_BAGS = {"regular": 0, "silver": 1, "gold": 2}      # for each traveller of such a member
HUB = "DEN"
_CODES = ("SEA", "ORD", "BOS", "ATL", "MIA", "PHX", "LAS")
_FARES = {"basic_economy": (60, 110), "economy": (210, 300), "business": (310, 800)}
_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_FIRST = ("Agnes", "Bastian", "Cosima", "Dietrich", "Eleni", "Fabrice", "Greta", "Hendrik", "Ilaria", "Joaquin", "Katrin",
          "Leopold", "Margit", "Nestor", "Ottilie", "Pascal", "Renata", "Sixten", "Tamara", "Ulrich", "Verena", "Wilfred")
_LAST = ("Ambrose", "Beckett", "Calloway", "Dunmore", "Eastwick", "Farrow", "Garland", "Hollis", "Ingram", "Jessop", "Kirby",
         "Lockhart", "Merrow", "Norwood", "Oakley", "Pemberton", "Quimby", "Redfern", "Sedgwick", "Tolliver")
Flight = tuple[str, str]                  # number, day
Reservation = dict[str, Any]


@functools.cache
def base() -> Base:
    """Two flights a day on every route, one in the morning and one in the afternoon; no customers and no reservations.

    From and to the hub there are flights everywhere, between two other airports not always.
    """
    rng, flights = random.Random(20250602), {}
    codes = (HUB, *_CODES)
    routes = [(first, second) for first, second in itertools.permutations(codes, 2)
              if HUB in (first, second) or (codes.index(first) + codes.index(second)) % 3]
    for place, (origin, destination) in enumerate(routes):
        for late in (0, 1):
            hour, minute = rng.randrange(6, 11) + 8 * late, rng.choice((0, 10, 20, 35, 50))
            number = f"HAT{100 + 2 * place + late}"
            flights[number] = {
                "flight_number": number, "origin": origin, "destination": destination,
                "scheduled_departure_time_est": f"{hour:02d}:{minute:02d}:00",
                "scheduled_arrival_time_est": f"{hour + 2:02d}:{minute:02d}:00",
                "dates": {day: _day(rng, day, hour, minute) for day in DAYS}}
    return {"flights": flights, "users": {}, "reservations": {}}


def _day(rng: random.Random, day: str, hour: int, minute: int) -> dict[str, Any]:
    """A flight that leaves at this time, on one day; a late one is three hours late."""
    draw, times = rng.random(), lambda late: [f"{day}T{hour + late + flown:02d}:{minute:02d}:00" for flown in (0, 2)]
    if day in TROUBLE and draw < 1 / 6:
        return {"status": "cancelled"}
    if day in TROUBLE and draw < 1 / 3:
        return {"status": "delayed", **dict(zip(("estimated_departure_time_est", "estimated_arrival_time_est"), times(3)))}
    if day not in AHEAD:
        return {"status": "landed", **dict(zip(("actual_departure_time_est", "actual_arrival_time_est"), times(0)))}
    return {"status": "available", "prices": {cabin: rng.randrange(*_FARES[cabin]) for cabin in CABINS},
            "available_seats": {cabin: rng.choice((0,) * (day >= FULL) + tuple(range(4, 20))) for cabin in CABINS}}


@functools.cache
def routes() -> Mapping[tuple[str, str], tuple[str, ...]]:
    """(origin, destination) -> flight numbers, the morning's first."""
    found: dict[tuple[str, str], list[str]] = {}
    for number, flight in base()["flights"].items():
        found.setdefault((flight["origin"], flight["destination"]), []).append(number)
    return {route: tuple(numbers) for route, numbers in found.items()}


def status(flight: Flight) -> str:
    """Of a flight on a day."""
    return base()["flights"][flight[0]]["dates"][flight[1]]["status"]


def price(flight: Flight, cabin: str) -> int:
    """Dollars for a seat, on a day on which seats are sold."""
    return base()["flights"][flight[0]]["dates"][flight[1]]["prices"][cabin]


@functools.cache
def open_flights(route: tuple[str, str], cabin: str, seats: int = 3) -> tuple[Flight, ...]:
    """Every flight on a route that has so many seats left."""
    return tuple((number, day) for number in routes().get(route, ()) for day in AHEAD
                 if base()["flights"][number]["dates"][day].get("available_seats", {}).get(cabin, -1) >= seats)


def allowance(membership: str, cabin: str, people: int) -> int:
    """Bags that are free."""
    return people * (FREE_BAGS[cabin] + MORE_BAGS[membership])


def leg(flight: Flight, dollars: int) -> dict[str, Any]:
    """A flight as a reservation stores it."""
    record = base()["flights"][flight[0]]
    return {"flight_number": flight[0], "origin": record["origin"], "destination": record["destination"], "date": flight[1],
            "price": dollars}


class World:
    """An airline's records around one customer, being built."""

    def __init__(self, rng: random.Random, cell: Mapping[str, Any]):
        self.rng, self.cell = rng, cell
        self.rows: dict[str, dict[str, Any]] = {"users": {}, "reservations": {}}
        self._numbers = rng.sample(range(1000000, 9999999), 96)
        firsts, lasts = (rng.sample(names, len(names)) for names in (_FIRST, _LAST[cell["split"] == "test"::2]))
        first, last = firsts.pop(), lasts.pop()
        self._strangers = [(firsts.pop(), lasts.pop()) for _ in range(3)]     # nobody else has their names
        self._names = list(itertools.product(firsts, lasts))
        rng.shuffle(self._names)
        self._routes = rng.sample(sorted(routes()), len(routes()))
        self.booking: dict[str, Any] | None = None      # what `book` books, for what is wanted of it later
        self.user = self.person(first, last)
        self.facts: dict[str, str] = {"name": f"{first} {last}", "user_id": self.user["user_id"]}
        self.reservation(when="flown")
        for _ in range(cell["distractors"]):
            self.reservation(owner=self.person(first, last))
            self.reservation(cabin=rng.choice(CABINS))

    def person(self, first: str, last: str) -> dict[str, Any]:
        """A customer with one or two credit cards, a gift card and a certificate, without reservations."""
        number = self._numbers.pop() % 10000
        key = f"{first.lower()}_{last.lower()}_{number:04d}"
        methods: dict[str, Any] = {}
        for source in ("credit_card", "credit_card", "gift_card", "certificate")[self.rng.random() < 0.5:]:
            method = f"{source}_{self._numbers.pop()}"
            methods[method] = {"source": source, "id": method, **(
                {"brand": "visa", "last_four": f"{self._numbers.pop() % 10000:04d}"} if source == "credit_card" else
                {"amount": self.rng.randrange(2, 6) * 50})}
        user = {"user_id": key, "name": {"first_name": first, "last_name": last},
                "address": {"address1": f"{self.rng.randrange(100, 999)} Pine Street", "address2": "", "city": "Denver",
                            "country": "USA", "state": "CO", "zip": f"80{self.rng.randrange(100, 999)}"},
                "email": f"{first.lower()}.{last.lower()}{number:04d}@example.com", "dob": self._born(),
                "payment_methods": methods, "saved_passengers": [], "membership": self.rng.choice(tuple(MORE_BAGS)),
                "reservations": []}
        self.rows["users"][key] = user
        return user

    def traveller(self, owner: Mapping[str, Any] | None = None, told: bool = False) -> dict[str, str]:
        """A customer as a passenger; without one somebody else. `told`: of whom only the customer can tell."""
        if owner:
            return {**owner["name"], "dob": owner["dob"]}
        first, last = (self._strangers if told else self._names).pop()
        return {"first_name": first, "last_name": last, "dob": self._born()}

    def card(self, owner: Mapping[str, Any] | None = None) -> str:
        """A credit card of the customer's."""
        methods = (owner or self.user)["payment_methods"]
        return self.rng.choice([key for key, method in methods.items() if method["source"] == "credit_card"])

    def method(self, source: str) -> str:
        """The customer's gift card or certificate."""
        return next(key for key, method in self.user["payment_methods"].items() if method["source"] == source)

    def route(self, fits: Callable[[tuple[str, str]], Any]) -> tuple[str, str] | None:
        """A route that no reservation of the customer's has; None where none fits."""
        found = next((each for each in reversed(self._routes) if fits(each)), None)
        if found:
            self._routes.remove(found)
        return found

    def reservation(self, owner: dict[str, Any] | None = None, cabin: str = "economy", when: str = "ahead",
                    insured: bool = False, recent: bool = False, people: int = 0, back: bool = False) -> Reservation | None:
        """A reservation of one to three travellers; None where no flight is left for it.

        Args:
          when: "ahead", "flown", "cancelled" or "delayed", the first flight.
          back: there is a flight back.
        """
        rng, owner = self.rng, owner or self.user
        wanted = {"ahead": "available", "flown": "landed"}.get(when, when)
        fitting = lambda route: [(number, day) for number in routes()[route] for day in DAYS[:7]
                                 if status((number, day)) == wanted]
        route = self.route(fitting) if owner is self.user else rng.choice(list(filter(fitting, sorted(routes()))))
        if route is None:
            return None
        flights = [rng.choice(fitting(route))]
        if back:
            later = [day for day in AHEAD[3:] if day < FULL]
            flights.append(rng.choice(list(itertools.product(routes()[route[::-1]], later))))
        fares = [price(each, cabin) if status(each) == "available" else rng.randrange(*_FARES[cabin]) for each in flights]
        travellers = [self.traveller(owner)] + [self.traveller() for _ in range((people or rng.choice((1, 1, 2, 3))) - 1)]
        bags = rng.choice((1, 2, 3))
        paid_bags = max(0, bags - allowance(owner["membership"], cabin, len(travellers)))
        total = len(travellers) * (sum(fares) + INSURANCE_FEE * insured) + BAG_FEE * paid_bags
        day, hour = ("14", rng.randrange(16, 24)) if recent else (f"{rng.randrange(1, 11):02d}", rng.randrange(24))
        key = "".join(rng.choices(_ALPHABET, k=6))
        record = {
            "reservation_id": key, "user_id": owner["user_id"], "origin": route[0], "destination": route[1],
            "flight_type": "round_trip" if back else "one_way", "cabin": cabin,
            "flights": [leg(each, dollars) for each, dollars in zip(flights, fares)], "passengers": travellers,
            "payment_history": [{"payment_id": self.card(owner), "amount": total}],
            "created_at": f"2024-05-{day}T{hour:02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}",
            "total_baggages": bags, "nonfree_baggages": paid_bags, "insurance": "yes" if insured else "no", "status": None}
        self.rows["reservations"][key] = record
        owner["reservations"].append(key)
        return record

    def finished(self) -> dict[str, dict[str, Any]]:
        """The rows that the task adds to the base."""
        return self.rows

    def _born(self) -> str:
        return f"{self.rng.randrange(1950, 2005)}-{self.rng.randrange(1, 13):02d}-{self.rng.randrange(1, 29):02d}"


def flights_of(reservation: Mapping[str, Any]) -> list[Flight]:
    """Number and day of each."""
    return [(each["flight_number"], each["date"]) for each in reservation["flights"]]


def cost(flights: Sequence[Flight], cabin: str, people: int, paid_bags: int, insured: bool) -> int:
    """Dollars of a booking."""
    return people * (sum(price(each, cabin) for each in flights) + INSURANCE_FEE * insured) + BAG_FEE * paid_bags
