"""tau2-bench's airline tools with an airline of our own: see `workshop` for what a domain consists of."""

import random
from typing import Any, Mapping

from eau_jax.envs.tau2.airline_tools import airline_tools
from eau_jax.envs.tau2.domain import Domain as Tau2Domain
from eau_jax.envs.tau2.record_check import shapes
from eau_jax.envs.tau2.world import world as tau2_world
from eau_jax.synth.database import DatabaseCase, files, heard
from eau_jax.synth.domain import Domain, Invariant, Look, Rule, State, Step
from eau_jax.synth.domains.airline_atoms import ATOMS
from eau_jax.synth.domains.airline_tools import ACTIONS, customer, day, reservation
from eau_jax.synth.domains.airline_wishes import COMPENSATION
from eau_jax.synth.domains.airline_world import CABINS, World, allowance, base, cost, open_flights, routes
from eau_jax.synth.oracle import agents
from eau_jax.synth.user import PERSONAS, finish, task_record

WRITES = frozenset(name for name, action in ACTIONS.items() if action.kind == "write")
SINCE = "2024-05-14T15:00:00"       # a day ago
_ROUTES = tuple(sorted(routes()))
BORN = ("1961-04-07", "1974-11-23", "1988-02-15", "1999-08-30")      # of passengers that random calls enter
_CHANGES = ("cancel_reservation", "update_reservation_flights")


def _strangers(look: Look) -> bool:
    owner = customer(look) if look.step.tool in WRITES else None
    return owner is not None and owner["email"] not in look.seen.get("customer", ())


def _states(look: Look, record: Mapping[str, Any]) -> set[str]:
    return {day(look, flight).get("status", "") for flight in record["flights"]}


def _not_cancelled(look: Look) -> bool:
    record = reservation(look) if look.step.tool == "cancel_reservation" else None
    return record is not None and not (record["created_at"] >= SINCE or record["cabin"] == "business"
                                       or record["insurance"] == "yes" or "cancelled" in _states(look, record))


def _flown(look: Look) -> bool:
    record = reservation(look) if look.step.tool in _CHANGES else None
    return record is not None and "landed" in _states(look, record)


def _basic(look: Look) -> bool:
    record = reservation(look) if look.step.tool == "update_reservation_flights" else None
    if record is None or record["cabin"] != "basic_economy":
        return False
    named = lambda flights: [(each["flight_number"], each["date"]) for each in flights]
    return named(record["flights"]) != named(look.step.arguments["flights"])


def _fewer(look: Look) -> bool:
    return (look.step.tool == "update_reservation_baggages" and reservation(look) is not None
            and look.step.arguments["total_baggages"] < reservation(look, "total_baggages"))


def _wrong_bags(look: Look) -> bool:
    args, owner = look.step.arguments, customer(look)
    if "nonfree_baggages" not in args or owner is None:
        return False
    holder = args if "cabin" in args else reservation(look)
    free = allowance(owner["membership"], holder["cabin"], len(holder["passengers"]))
    return args["nonfree_baggages"] != max(0, args["total_baggages"] - free)


def _party(look: Look) -> bool:
    return (look.step.tool == "update_reservation_passengers" and reservation(look) is not None
            and len(look.step.arguments["passengers"]) != len(reservation(look, "passengers")))


def _undue(look: Look) -> bool:
    """A certificate that no reservation of the customer's gives a right to."""
    owner = customer(look) if look.step.tool == "send_certificate" else None
    if owner is None:
        return False
    records = [look.case.value(look.state, ("reservations", key)) for key in owner["reservations"]]
    due = {COMPENSATION[state] * len(record["passengers"]) for record in records
           if record["cabin"] == "business" or record["insurance"] == "yes"
           for state in _states(look, record) & COMPENSATION.keys()}
    return look.step.arguments["amount"] not in due


RULES = (
    Rule("own", "Ask for the user id and look the profile up before you change anything, and change only what is the "
         "customer's own.", _strangers),
    Rule("cancel", "A reservation is cancelled only where it was made in the last 24 hours, is in business, is insured, or "
         "where the airline has called off one of its flights.", _not_cancelled),
    Rule("flown", "A reservation one of whose flights has landed is not cancelled, and keeps its flights and its cabin.",
         _flown),
    Rule("basic", "A basic economy reservation keeps its flights. Its cabin may be changed.", _basic),
    Rule("fewer", "Bags are added, never taken away.", _fewer),
    Rule("bags", "Free bags for each traveller: none in basic economy, one in economy, two in business; one more where the "
         "customer is a silver member, two more for a gold member. All others are paid.", _wrong_bags),
    Rule("party", "A passenger may be replaced, but the number of passengers stays.", _party),
    Rule("certificate", "Where a flight of a business or insured reservation was called off, the customer gets a "
         "certificate of 100 dollars for each passenger, of 50 dollars where it was late. There are no other certificates.",
         _undue),
)
INVARIANTS = (
    Invariant("reservations belong to customers that list them", lambda case, state: all(
        key in (case.value(state, ("users", record["user_id"], "reservations")) or ())
        for key, record in case.rows(state, "reservations"))),
    Invariant("no seat is sold twice", lambda case, state: all(
        min(day["available_seats"].values()) >= 0 for _, flight in case.rows(state, "flights")
        for day in flight["dates"].values() if day["status"] == "available")),
    Invariant("no gift card is overdrawn", lambda case, state: all(
        method.get("amount", 0) >= 0 for _, user in case.rows(state, "users")
        for method in user["payment_methods"].values())),
)
POLICY = "\n".join([
    "You serve the customers of an airline. It is 2024-05-15, 15:00.", *(f"- {rule.text}" for rule in RULES),
    "- A paid bag is 50 dollars, insurance is 30 dollars for each passenger. The payments of a booking add up to its price.",
    "- Say what you are going to change and get a yes before you change it.",
    "- Where you refuse something about a reservation, tell what was paid for it: the refusal is filed under it.",
    "- Do not make anything up."])
TAU2 = Tau2Domain(name="airline", policy=POLICY, policy_solo="", base=base(), tasks=(), splits={}, tools=airline_tools(),
                  user_tools={}, functions={"assistant": {}, "user": {}}, digests={}, shapes=shapes("airline"))
# `email` stands in profiles alone, `created_at` in reservations alone: they say what has been looked at.
TYPES = {"email": "customer", "created_at": "created", "reservation_id": "reservation_id", "reservations": "reservation_id",
         "flight_number": "flight_number", "date": "day", "cabin": "cabin", "payment_methods{}": "payment_id",
         "first_name": "first_name", "last_name": "last_name", "dob": "dob", **dict.fromkeys(CABINS, "fare")}


def samples(rng: random.Random) -> tuple[DatabaseCase, State]:
    """Three customers with reservations of every kind, on which two random calls were made."""
    made = World(rng, {"distractors": 2, "split": "train"})
    for when in ("ahead", "ahead", "cancelled", "delayed"):
        made.reservation(cabin=rng.choice(CABINS), when=when, insured=rng.random() < 0.5, back=rng.random() < 0.3)
    case = DatabaseCase(TAU2, task_record("airline", made.finished(), (), ()))
    state = case.start
    for tool in rng.sample(sorted(WRITES), 2):
        state = case.call(state, Step(tool, arguments(case, state, tool, rng))).state
    return case, state


def arguments(case: DatabaseCase, state: State, tool: str, rng: random.Random) -> dict[str, Any]:
    """Random arguments of a tool: of one reservation of the world, its customer, its flights or ones with seats; now and
    then what does not fit."""
    key, record = rng.choice(case.rows(state, "reservations"))
    user, off = case.value(state, ("users", record["user_id"])), rng.random() < 0.1
    people, methods = record["passengers"], sorted(user["payment_methods"])
    methods += 2 * [each for each in methods if each.startswith("credit_card")]     # with these a call succeeds
    own = [{name: each[name] for name in ("flight_number", "date")} for each in record["flights"]]
    draw = {"user_id": lambda: "nobody_1" if off else user["user_id"], "reservation_id": lambda: "XXXXXX" if off else key,
            "origin": lambda: rng.choice(_ROUTES)[0], "destination": lambda: rng.choice(_ROUTES)[1],
            "date": lambda: rng.choice(own)["date"], "flight_number": lambda: "HAT999" if off else own[0]["flight_number"],
            "passengers": lambda: [*people[:-1], *[{**people[-1], "dob": rng.choice(BORN)}] * (1 + off)],
            "payment_id": lambda: rng.choice(methods), "amount": lambda: rng.choice((50, 100, 150, 200, 300)),
            "summary": lambda: "x"}
    if tool == "update_reservation_baggages":
        bags = rng.randrange(4)
        draw |= _bags(bags, max(0, bags - allowance(user["membership"], record["cabin"], len(people))) + off)
    if tool in ("book_reservation", "update_reservation_flights"):
        draw |= _trip(user, people, methods, own, tool == "book_reservation", off, rng)
    return {name: draw[name]() for name in ACTIONS[tool].params}


def _bags(total: int, paid: int) -> dict[str, Any]:
    return {"total_baggages": lambda: total, "nonfree_baggages": lambda: paid}


def _trip(user: Mapping[str, Any], people: list[Any], methods: list[str], own: list[Any], books: bool, off: bool,
          rng: random.Random) -> dict[str, Any]:
    """Random arguments of a booking, which adds up, or of a change of flights; `off`: there may be no seats."""
    route, cabin, bags, insured = rng.choice(_ROUTES), rng.choice(CABINS), rng.randrange(4), rng.random() < 0.5
    flights = rng.sample(found, 1) if (found := open_flights(route, cabin, 0 if off else 3)) else []
    paid_bags = max(0, bags - allowance(user["membership"], cabin, len(people))) + off
    total = cost(flights, cabin, len(people), paid_bags, insured)
    named = [{"flight_number": number, "date": date} for number, date in flights]
    kept = not books and rng.random() < 0.5
    return _bags(bags, paid_bags) | {
        "origin": lambda: route[0], "destination": lambda: route[1], "flight_type": lambda: "one_way",
        "cabin": lambda: cabin, "flights": lambda: own if kept else named, "passengers": lambda: people,
        "payment_methods": lambda: [{"payment_id": rng.choice(methods), "amount": total}],
        "insurance": lambda: "yes" if insured else "no"}


ORACLE, NOVICE = agents()
airline = Domain(
    name="airline", version=1, where="eau_jax.synth.domains.airline:airline", actions=ACTIONS, rules=RULES, atoms=ATOMS,
    invariants=INVARIANTS, types=TYPES, personas=PERSONAS, build=World,
    record=lambda world, plan, wishes: task_record("airline", world.finished(), plan, wishes),
    case=lambda record: DatabaseCase(TAU2, record), finish=finish,
    env=tau2_world(TAU2)._replace(expert=ORACLE, novice=NOVICE), heard=heard, files=lambda: files(TAU2), samples=samples,
    arguments=arguments)
