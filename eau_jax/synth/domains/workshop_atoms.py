"""The sub-tasks of the workshop, and the world that they are put into.

An atom's `make` adds the records that it needs to the world and says what the user wants, in symbols. Texts are templates:
`{which}` is how the user describes the record, every other field a slot of the wish.
"""

import random
from typing import Any, Callable, Mapping

from eau_jax.synth.domain import Atom, Wish
from eau_jax.synth.domains.workshop_tools import DAYS, KINDS, PARTS, PAYMENTS, REASONS, SERVICES, SOON

_FIRST = ("Ada", "Bela", "Carl", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "Jil", "Kai", "Lea", "Milo", "Nora", "Otto",
          "Pia",
          "Quin", "Rosa", "Sven", "Tess", "Uwe", "Vera", "Wim", "Xenia", "Yara", "Zeno")
_LAST = ("Abbot", "Brandt", "Castle", "Drews", "Ekdal", "Falk", "Grove", "Hauser", "Ibsen", "Jansen", "Keller", "Larsen",
         "Marsh",
         "Nolte", "Olsen", "Penn", "Quist", "Rowan", "Stark", "Thorne", "Urban", "Voss", "Wolf", "York", "Zander")
LATER = DAYS[4:]


class World:
    """A world being built around one customer."""

    BRANDS = ("Alpina", "Bergfex", "Cadenza", "Delmare", "Elster", "Farland", "Gazelda", "Horizon")
    COLOURS = ("red", "blue", "green", "black", "white", "yellow", "silver", "orange")

    def __init__(self, rng: random.Random, cell: Mapping[str, Any]):
        self.rng, self.cell = rng, cell
        self.rows: dict[str, dict[str, Any]] = {"users": {}, "bikes": {}, "orders": {}, "days": {}}
        self._numbers = rng.sample(range(10001, 99998), 96)
        self._looks = rng.sample([(brand, colour) for brand in self.BRANDS for colour in self.COLOURS], 48)
        first, last = rng.choice(_FIRST), rng.choice(_LAST[cell["split"] == "test"::2])
        self.user = self.person(first, last)
        self.used: dict[str, int] = {}          # day -> places that the task takes
        name = f"{first} {last}"
        facts = rng.choice(({"email": self.user["email"]}, {"zip": self.user["address"]["zip"]}))
        self.facts: dict[str, str] = {"name": name, **facts}
        for _ in range(cell["distractors"]):
            self._distract(first, last)

    def person(self, first: str, last: str) -> dict[str, Any]:
        """A customer without bikes."""
        number = self._numbers.pop()
        key = f"{first.lower()}_{last.lower()}_{number}"
        user = {"user_id": key, "name": {"first_name": first, "last_name": last},
                "address": {"zip": str(self._numbers.pop())},
                "email": f"{first.lower()}.{last.lower()}{number % 1000:03d}@example.com",
                "phone": f"555-{self._numbers.pop() % 10000:04d}", "bikes": [], "orders": []}
        self.rows["users"][key] = user
        return user

    def bike(self, owner: dict[str, Any] | None = None, kind: str = "") -> dict[str, Any]:
        """A bike without a repair; no other one looks like it."""
        owner = self.user if owner is None else owner
        key, (brand, colour) = f"B{self._numbers.pop():05d}", self._looks.pop()
        bike = {"bike_id": key, "user_id": owner["user_id"], "brand": brand, "kind": kind or self.rng.choice(KINDS),
                "colour": colour, "frame": f"FN{self._numbers.pop():05d}"}
        self.rows["bikes"][key] = bike
        owner["bikes"].append(key)
        return bike

    def order(self, status: str, owner: dict[str, Any] | None = None, day: str = "", moved: bool = False,
              claim: str | None = None) -> dict[str, Any]:
        """A repair of a bike of its own."""
        owner = self.user if owner is None else owner
        key, bike, service = f"R{self._numbers.pop():05d}", self.bike(owner), self.rng.choice(tuple(SERVICES))
        if bike["kind"] == "electric bike" and service in ("wheel truing", "gear tuning"):
            service = "brake check"
        order = {"order_id": key, "user_id": owner["user_id"], "bike_id": bike["bike_id"], "service": service,
                 "price": SERVICES[service], "day": day or self.rng.choice(LATER), "status": status, "moved": moved,
                 "reason": "no longer needed" if status == "cancelled" else None, "claim": claim,
                 "paid_with": "card" if status == "collected" else None, "desk_code": f"Q{self._numbers.pop():05d}"}
        self.rows["orders"][key] = order
        owner["orders"].append(key)
        return order

    def day(self, other: str = "") -> str:
        """A later day with a place left, which the task takes."""
        free = [day for day in LATER if day != other and self.used.get(day, 0) < 2 and day not in self.rows["days"]]
        day = self.rng.choice(free)
        self.used[day] = self.used.get(day, 0) + 1
        return day

    def finished(self) -> dict[str, dict[str, Any]]:
        """The rows that the task adds to the base: table -> key -> record."""
        return {table: rows for table, rows in self.rows.items() if rows}

    def _distract(self, first: str, last: str) -> None:
        """A namesake with a bike and a repair, and a past repair of the customer's own."""
        other = self.person(first, last)
        self.order("booked", other)
        self.order(self.rng.choice(("collected", "cancelled")))
        full = self.rng.choice(LATER)
        self.rows["days"][full] = {"free": 0}


def _about(world: World, order: Mapping[str, Any]) -> tuple[list[list[Any]], list[list[str]], dict[str, str]]:
    """(how the user describes a repair, slots, words): by its number, or by kind of repair and bike."""
    bike = world.rows["bikes"][order["bike_id"]]
    if world.rng.random() < 0.5:
        return [["orders", order["order_id"], {"order_id": order["order_id"]}]], [
            ["number", "order_id", order["order_id"]]], {"which": ""}
    which = f"It is the {order['service']} of my {bike['colour']} {bike['brand']}. "
    return ([["orders", order["order_id"],
              {"user_id": order["user_id"], "bike_id": order["bike_id"], "service": order["service"]}],
             ["bikes", bike["bike_id"], _looks(bike)]], [], {"which": which})


def _looks(bike: Mapping[str, Any]) -> dict[str, str]:
    return {name: bike[name] for name in ("user_id", "brand", "colour")}


def _on_order(tool: str, status: str, refused: str = "", extra: Callable[[World, random.Random], Mapping[str, Any]] = None,
              **choices: Callable[[World, Mapping[str, Any]], str]) -> Callable[[World, random.Random], Wish]:
    """`make` of an atom that is one call on a repair: `choices` are its other arguments, `extra` fields of the repair."""

    def make(world: World, rng: random.Random) -> Wish:
        order = world.order(status, **(extra(world, rng) if extra else {}))
        refers, slots, words = _about(world, order)
        given = {name: choose(world, order) for name, choose in choices.items()}
        part = {"payment": "payment"}
        slots = slots + [[part.get(name, "details"), name, value] for name, value in given.items()]
        call = [[tool, {"order_id": order["order_id"], **given}, "agent"]]
        if refused:
            return Wish("", [], [], slots, refers, _looked_up(order), [order["desk_code"]], refused, call, words)
        return Wish("", call, _goal(tool, order["order_id"], given), slots, refers, _looked_up(order), [], "", [], words)

    return make


def _looked_up(record: Mapping[str, Any]) -> list[list[str]]:
    """The customer has been identified, and the record looked at."""
    field = "desk_code" if "desk_code" in record else "frame"
    return [["user_id", record["user_id"]], [field, record[field]]]


def _goal(tool: str, key: str, given: Mapping[str, str]) -> list[list[Any]]:
    fields = {"cancel_repair": {"status": "cancelled"}, "hand_out_bike": {"status": "collected"},
              "record_claim": {"claim": given.get("part")}}.get(tool, given)
    return [[["orders", key, name], value] for name, value in fields.items()]


def _asks(field: str) -> Callable[[World, random.Random], Wish]:
    def make(world: World, rng: random.Random) -> Wish:
        order = world.order(rng.choice(("booked", "in work", "ready")))
        refers, slots, words = _about(world, order)
        return Wish("", [], [], slots, refers, _looked_up(order), [order[field]], "", [], words)

    return make


def _books(world: World, rng: random.Random) -> Wish:
    return _booking(world, world.bike(kind=rng.choice(KINDS[:4])), rng.choice(tuple(SERVICES)))


def _books_electric(world: World, rng: random.Random) -> Wish:
    bike = world.bike(kind="electric bike")
    wish = _booking(world, bike, rng.choice(("wheel truing", "gear tuning")))
    return wish._replace(steps=[], goal=[], tell=[bike["frame"]], refused="electric",
                         forbidden=wish.steps)


def _books_new(world: World, rng: random.Random) -> Wish:
    """For the bike that `add_bike` enters."""
    brand, colour = world.new
    bike = {"bike_id": "@add_bike.bike_id", "user_id": world.user["user_id"], "brand": brand, "colour": colour}
    wish = _booking(world, bike, rng.choice(("brake check", "full service", "light installation")))
    return wish._replace(refers=[])


def _booking(world: World, bike: Mapping[str, Any], service: str) -> Wish:
    day = world.day()
    given = {"bike_id": bike["bike_id"], "service": service, "day": day}
    goal = [[["orders", "@.order_id", name], value] for name, value in given.items()]
    slots = [["details", "service", service], ["details", "day", day]]
    shows = _looked_up(bike) if "frame" in bike else []
    return Wish("", [["book_repair", given, "agent"]], goal, slots, [["bikes", bike["bike_id"], _looks(bike)]], shows, [],
                "",
                [], {"which": f"{bike['colour']} {bike['brand']}"})


def _adds(world: World, rng: random.Random) -> Wish:
    world.new = world._looks.pop()
    brand, colour = world.new
    given = {"brand": brand, "kind": rng.choice(KINDS[:4]), "colour": colour}
    return Wish("", [["add_bike", {"user_id": world.user["user_id"], **given}, "agent"]],
                [[["bikes", "@.bike_id", name], value] for name, value in given.items()],
                [["details", name, value] for name, value in given.items()], [], [], [], "", [], {})


def _phone(world: World, rng: random.Random) -> Wish:
    phone = f"555-{rng.randrange(10000):04d}"
    if phone == world.user["phone"]:
        return None
    user = world.user["user_id"]
    return Wish("", [["change_phone", {"user_id": user, "phone": phone}, "agent"]], [[["users", user, "phone"], phone]],
                [["details", "phone", phone]], [], [], [], "", [], {})


_PICK = lambda words: lambda world, order: world.rng.choice(words)
_NUMBER = ("The repair number is {order_id}.", "It is number {order_id}.", "My slip says {order_id}.")
_MOVE = ("I would like to move a repair to another day.", "My repair has to be on another day.", "Can a repair be put off?")
_CANCEL = ("I would like to cancel a repair.", "Please call off a repair for me.",
           "I do not want one of my repairs any more.")
_FETCH = ("I would like to fetch my bike.", "I am here for my bike.", "Can I take my bike home?")
_CHANGE = ("I would like something else done than I booked.", "A repair of mine should be of another kind.",
           "Please change what is done to my bike.")
_BOOK = ("I would like to book a repair.", "My bike needs some work.", "Have you got time for a repair?")
_MOVED = ("{which}Please make it {day}.", "{which}The new day is {day}.")
_CALLED_OFF = ("{which}The reason is: {reason}.", "{which}Because: {reason}.")
_FETCHED = ("{which}I am ready to fetch it.", "{which}It should be ready.")
_CHANGED = ("{which}I want a {service} instead.", "{which}Make it a {service}.")
_BOOKED_TEXT = ("I want a {service} for my {which} on {day}.", "My {which} needs a {service}; {day} suits me.")
_PAID = ("I pay by {payment}.", "Payment: {payment}.")
_LATE = lambda world, rng: {"day": rng.choice(SOON)}
ATOMS = (
    Atom("book", "booking", "book", "write", _books, _BOOK, details=_BOOKED_TEXT),
    Atom("add_bike", "account", "add_bike", "write", _adds, (
        "I have got a new bike and want it in your books.", "Please enter another bike of mine.", "There is a bike of mine "
        "that you do not know yet."), details=("It is a {colour} {brand}, a {kind}.", "A {kind} by {brand}, {colour}.")),
    Atom("book_new", "booking", "book_new", "write", _books_new, (
        "And I want to book a repair for the new bike.", "The new bike needs some work, too.", "Then book a repair for it."),
        details=_BOOKED_TEXT, requires="add_bike"),
    Atom("move", "change", "move", "write",
         _on_order("move_repair", "booked", day=lambda world, order: world.day(order["day"])),
         _MOVE, _NUMBER, _MOVED),
    Atom("change_service", "change", "change", "write", _on_order(
        "change_service", "booked", service=lambda world, order: world.rng.choice(
            [name for name in SERVICES if name not in (order["service"], "wheel truing", "gear tuning")])),
        _CHANGE, _NUMBER, _CHANGED),
    Atom("cancel", "change", "cancel", "write", _on_order("cancel_repair", "booked", reason=_PICK(REASONS)),
         _CANCEL, _NUMBER, _CALLED_OFF),
    Atom("fetch", "counter", "fetch", "write", _on_order("hand_out_bike", "ready", payment=_PICK(PAYMENTS)),
         _FETCH, _NUMBER, _FETCHED, _PAID),
    Atom("claim", "counter", "claim", "write", _on_order("record_claim", "collected", part=_PICK(PARTS)), (
        "Something was damaged during a repair.", "I have to complain about a repair.", "My bike came back damaged."), 
        _NUMBER, ("{which}It is about the {part}.", "{which}The {part} got damaged.")),
    Atom("phone", "account", "phone", "write", _phone, (
        "I have a new phone number.", "Please change my phone number.", "You have an old phone number of mine."),
        details=("The new number is {phone}.", "It is {phone} now.")),
    Atom("ask_price", "question", "ask_price", "ask", _asks("price"), (
        "What does a repair of mine cost?", "I would like to know the price of a repair.", "How much will I have to pay?"),
        _NUMBER, ("{which}I want to know the price.", "{which}I only need the price.")),
    Atom("ask_day", "question", "ask_day", "ask", _asks("day"), (
        "On which day is a repair of mine?", "I forgot the day of a repair.", "When do you work on my bike?"),
        _NUMBER, ("{which}I want to know the day.", "{which}I only need the day.")),
    Atom("cancel_late", "change", "cancel", "refuse", _on_order(
        "cancel_repair", "booked", "late", _LATE, reason=_PICK(REASONS)), _CANCEL, _NUMBER, _CALLED_OFF),
    Atom("move_again", "change", "move", "refuse", _on_order(
        "move_repair", "booked", "once", lambda world, rng: {"moved": True},
        day=lambda world, order: world.day(order["day"])),
        _MOVE, _NUMBER, _MOVED),
    Atom("fetch_claimed", "counter", "fetch", "refuse", _on_order(
        "hand_out_bike", "ready", "claim", lambda world, rng: {"claim": rng.choice(PARTS)}, payment=_PICK(PAYMENTS)),
        _FETCH, _NUMBER, _FETCHED, _PAID),
    Atom("change_begun", "change", "change", "refuse", _on_order(
        "change_service", "in work", "begun", service=lambda world, order: world.rng.choice(
            [name for name in SERVICES if name not in (order["service"], "wheel truing", "gear tuning")])),
        _CHANGE, _NUMBER, _CHANGED),
    Atom("book_electric", "booking", "book", "refuse", _books_electric, _BOOK, details=_BOOKED_TEXT),
)
