"""A bicycle workshop: the domain to copy. Customers book, move, change and cancel repairs, collect their bikes and complain.

What a domain needs, in this order: the simulator (`workshop_tools`), declarations of the tools (ACTIONS), the policy
(RULES), what always holds (INVARIANTS), a world to put a task in (`World`), and the sub-tasks that tasks are made of
(`workshop_atoms`).
"""

import random
from typing import Any, Mapping

from eau_jax.envs.tau2.database import View
from eau_jax.envs.tau2.domain import Domain as Tau2Domain
from eau_jax.envs.tau2.world import world as tau2_world
from eau_jax.synth.database import DatabaseCase, files, heard
from eau_jax.synth.domain import Action, Domain, Invariant, Look, Need, Param, Place, Rule, State
from eau_jax.synth.domains.workshop_atoms import ATOMS, World
from eau_jax.synth.domains.workshop_tools import (
    BASE, DAYS, KINDS, OPEN, PARTS, PAYMENTS, PLACES, REASONS, SERVICES, SHAPES, SOON, next_id, workshop_tools)
from eau_jax.synth.oracle import agents
from eau_jax.synth.user import PERSONAS, finish, task_record

E_BIKES_NOT_FOR = ("wheel truing", "gear tuning")


def _order(look: Look, field: str) -> Any:
    return look.case.value(look.state, ("orders", look.step.arguments["order_id"], field))


def _day_free(look: Look) -> bool:
    return (look.case.value(look.state, ("days", look.step.arguments["day"], "free")) or 0) > 0


def _no_open_order(look: Look) -> bool:
    return not any(order["bike_id"] == look.step.arguments["bike_id"] and order["status"] in OPEN
                   for _, order in look.case.rows(look.state, "orders"))


def _places(look: Look, given: str, taken: str) -> dict[Place, Any]:
    """A place on one day is given back, one on another is taken."""
    free = lambda day: look.case.value(look.state, ("days", day, "free"))
    return ({("days", given, "free"): free(given) + 1} if given else {}) | (
        {("days", taken, "free"): free(taken) - 1} if taken else {})


def _books(look: Look) -> Mapping[Place, Any]:
    args, case = look.step.arguments, look.case
    owner = case.value(look.state, ("bikes", args["bike_id"], "user_id"))
    key = next_id(View(BASE, look.state), "orders", "R")
    fields = {"order_id": key, "user_id": owner, "bike_id": args["bike_id"], "service": args["service"],
              "price": SERVICES[args["service"]], "day": args["day"], "status": "booked", "moved": False, "desk_code": ""}
    orders = [*case.value(look.state, ("users", owner, "orders")), key]
    return {("orders", key, name): value for name, value in fields.items()} | {("users", owner, "orders"): orders} | _places(
        look, "", args["day"])


def _adds_bike(look: Look) -> Mapping[Place, Any]:
    args = look.step.arguments
    key = next_id(View(BASE, look.state), "bikes", "B")
    bikes = [*look.case.value(look.state, ("users", args["user_id"], "bikes")), key]
    return {("bikes", key, name): value for name, value in {"bike_id": key, "frame": "", **args}.items()} | {
        ("users", args["user_id"], "bikes"): bikes}


_KNOWN = lambda table, name: Need(f"{name} is known", lambda look: look.case.value(
    look.state, (table, look.step.arguments[name])) is not None)
_BOOKED = Need("it is booked", lambda look: _order(look, "status") == "booked")
_FREE = Need("the day has a place", _day_free)
_ORDER, _BIKE, _USER = Param("order_id", "lookup"), Param("bike_id", "lookup"), Param("user_id", "lookup")
_SERVICE, _DAY = Param("service", "slot"), Param("day", "slot")
_set = lambda **fields: lambda look: {("orders", look.step.arguments["order_id"], name): value(look)
                                      for name, value in fields.items()}
_arg = lambda name: lambda look: look.step.arguments[name]
ACTIONS = {
    "find_user_id_by_email": Action("read", {"email": Param("email", "slot")}, returns="user_id"),
    "find_user_id_by_name_zip": Action("read", {"first_name": Param("first_name", "slot"), "last_name": Param(
        "last_name", "slot"), "zip": Param("zip", "slot")}, returns="user_id"),
    "get_user_details": Action("read", {"user_id": _USER}, (_KNOWN("users", "user_id"),)),
    "get_order_details": Action("read", {"order_id": _ORDER}, (_KNOWN("orders", "order_id"),)),
    "get_bike_details": Action("read", {"bike_id": _BIKE}, (_KNOWN("bikes", "bike_id"),)),
    "get_day": Action("read", {"day": _DAY}, (_KNOWN("days", "day"),)),
    "list_services": Action("read", {}),
    "book_repair": Action("write", {"bike_id": _BIKE, "service": _SERVICE, "day": _DAY}, (
        _KNOWN("bikes", "bike_id"), Need("the bike has no open repair", _no_open_order), _FREE), _books),
    "move_repair": Action("write", {"order_id": _ORDER, "day": _DAY}, (
        _BOOKED, Need("it is another day", lambda look: _order(look, "day") != look.step.arguments["day"]), _FREE),
        lambda look: _set(day=_arg("day"), moved=lambda look: True)(look) | _places(
            look, _order(look, "day"), look.step.arguments["day"])),
    "change_service": Action("write", {"order_id": _ORDER, "service": _SERVICE}, (
        _BOOKED, Need("it is another service", lambda look: _order(look, "service") != look.step.arguments["service"])),
        _set(service=_arg("service"), price=lambda look: SERVICES[look.step.arguments["service"]])),
    "cancel_repair": Action("write", {"order_id": _ORDER, "reason": Param("reason", "slot")}, (_BOOKED,), lambda look: _set(
        status=lambda look: "cancelled", reason=_arg("reason"))(look) | _places(look, _order(look, "day"), "")),
    "hand_out_bike": Action("write", {"order_id": _ORDER, "payment": Param("payment", "slot")}, (
        Need("it is ready", lambda look: _order(look, "status") == "ready"),), _set(
        status=lambda look: "collected", paid_with=_arg("payment"))),
    "record_claim": Action("write", {"order_id": _ORDER, "part": Param("part", "slot")}, (
        Need("it is done", lambda look: _order(look, "status") in ("ready", "collected")),
        Need("it has no claim", lambda look: _order(look, "claim") is None)), _set(claim=_arg("part"))),
    "add_bike": Action("write", {"user_id": _USER, "brand": Param("brand", "slot"), "kind": Param("kind", "slot"),
                                 "colour": Param("colour", "slot")}, (_KNOWN("users", "user_id"),), _adds_bike),
    "change_phone": Action("write", {"user_id": _USER, "phone": Param("phone", "slot")}, (_KNOWN("users", "user_id"),),
                           lambda look: {("users", look.step.arguments["user_id"], "phone"): look.step.arguments["phone"]}),
    "transfer_to_human_agents": Action("generic", {"summary": Param("summary", "const")}),
}


def _strangers(look: Look) -> bool:
    """The call writes to what does not belong to a customer that was looked up."""
    owners = {"order_id": "orders", "bike_id": "bikes"}
    for name, value in look.step.arguments.items():
        owner = value if name == "user_id" else look.case.value(
            look.state, (owners[name], value, "user_id")) if name in owners else None
        if owner is not None and owner not in look.seen.get("user_id", ()):
            return look.step.tool in WRITES
    return False


def _electric(look: Look) -> bool:
    bike = look.step.arguments.get("bike_id") or (_order(look, "bike_id") if "order_id" in look.step.arguments else None)
    kind = look.case.value(look.state, ("bikes", bike, "kind")) if bike else None
    return kind == "electric bike" and look.step.arguments.get("service") in E_BIKES_NOT_FOR


WRITES = frozenset(name for name, action in ACTIONS.items() if action.kind == "write")
RULES = (
    Rule("own",
         "Look the customer up by e-mail, or by name and zip code, before you change anything, and change only what is "
         "theirs.", _strangers),
    Rule("late", "A repair of today or tomorrow is not cancelled.",
         lambda look: look.step.tool == "cancel_repair" and _order(look, "day") in SOON),
    Rule("once", "A repair is moved once. One that was moved before is not moved again.",
         lambda look: look.step.tool == "move_repair" and _order(look, "moved") is True),
    Rule("claim", "A bike with a claim is not handed out.",
         lambda look: look.step.tool == "hand_out_bike" and _order(look, "claim") is not None),
    Rule("electric", f"Electric bikes are not taken for {' or '.join(E_BIKES_NOT_FOR)}.", _electric),
    Rule("begun", "A repair that is in work is not changed.",
         lambda look: look.step.tool == "change_service" and _order(look, "status") == "in work"),
)
INVARIANTS = (
    Invariant("no day is overbooked", lambda case, state: all(
        0 <= day["free"] <= PLACES + 9 for _, day in case.rows(state, "days"))),
    Invariant("bikes and repairs belong to customers that list them", lambda case, state: all(
        key in (case.value(state, ("users", row["user_id"], table)) or ()) for table in ("bikes", "orders")
        for key, row in case.rows(state, table))),
    Invariant("a bike has one open repair at most", lambda case, state: len(
        (held := [row["bike_id"] for _, row in case.rows(state, "orders") if row["status"] in OPEN])) == len(set(held))),
    Invariant("a repair is of a known kind, on a known day, and costs what it costs", lambda case, state: all(
        SERVICES.get(row["service"]) == row["price"] and row["day"] in DAYS for _, row in case.rows(state, "orders"))),
)
POLICY = ("You keep the books of a bicycle workshop. Today is 2025-06-02.\n" + "\n".join(f"- {rule.text}" for rule in RULES)
          + "\n- Say what you are going to change and get a yes before you change it.\n- Where you refuse something about a "
          "repair, give its desk code; about a bike, its frame number. The customer needs it at the counter.\n- Do not make "
          "anything up.")
TAU2 = Tau2Domain(name="workshop", policy=POLICY, policy_solo="", base=BASE, tasks=(), splits={}, tools=workshop_tools(),
                  user_tools={}, functions={"assistant": {}, "user": {}}, digests={}, shapes=SHAPES)
# A record's user_id says whose it is, not who is talking: only the `find` tools show that.
TYPES = {"bike_id": "bike_id", "bikes": "bike_id", "order_id": "order_id", "orders": "order_id",
         "desk_code": "desk_code", "frame": "frame", "price": "price", "day": "day", "service": "service"}


def samples(rng: random.Random) -> tuple[DatabaseCase, State]:
    """A random state: three customers with bikes and repairs of every status, on which a few random calls were made."""
    world = World(rng, {"distractors": 2, "split": "train"})
    for status in ("booked", "booked", "in work", "ready", "collected", "cancelled"):
        world.order(status, claim=rng.choice((None, None, "paint")), moved=rng.random() < 0.3, day=rng.choice(DAYS[:6]))
    world.bike()
    for day in rng.sample(DAYS, 4):
        world.rows["days"][day] = {"free": 0}
    case = DatabaseCase(TAU2, task_record("workshop", world.finished(), (), ()))
    return case, case.start


def arguments(case: DatabaseCase, state: State, tool: str, rng: random.Random) -> dict[str, Any]:
    """Random arguments of a tool: ids and days of the world, words of the schema; now and then an id that is not there."""
    keys = lambda table, none: rng.choice([*(key for key, _ in case.rows(state, table)), none])
    user = rng.choice(case.rows(state, "users"))[1]
    draw = {"user_id": lambda: keys("users", "nobody_1"), "bike_id": lambda: keys("bikes", "B00000"),
            "order_id": lambda: keys("orders", "R00000"), "day": lambda: rng.choice(DAYS),
            "payment": lambda: rng.choice(PAYMENTS),
            "service": lambda: rng.choice(tuple(SERVICES)), "reason": lambda: rng.choice(REASONS),
            "part": lambda: rng.choice(PARTS), "kind": lambda: rng.choice(KINDS), "brand": lambda: rng.choice(World.BRANDS),
            "colour": lambda: rng.choice(World.COLOURS), "phone": lambda: f"555-{rng.randrange(10000):04d}",
            "email": lambda: user["email"], "first_name": lambda: user["name"]["first_name"],
            "last_name": lambda: user["name"]["last_name"], "zip": lambda: user["address"]["zip"], "summary": lambda: "x"}
    return {name: draw[name]() for name in ACTIONS[tool].params}


def case(record: Mapping[str, Any]) -> DatabaseCase:
    """A task, ready to be executed."""
    return DatabaseCase(TAU2, record)


ORACLE, NOVICE = agents()
workshop = Domain(
    name="workshop", version=1, where="eau_jax.synth.domains.workshop:workshop", actions=ACTIONS, rules=RULES, atoms=ATOMS,
    invariants=INVARIANTS, types=TYPES, personas=PERSONAS, build=World,
    record=lambda world, plan, wishes: task_record("workshop", world.finished(), plan, wishes), case=case, finish=finish,
    env=tau2_world(TAU2)._replace(expert=ORACLE, novice=NOVICE), heard=heard, files=lambda: files(TAU2), samples=samples,
    arguments=arguments)
