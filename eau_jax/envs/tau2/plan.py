"""Who the symbolic user of a tau2-bench task is: what this person knows, and what they want, in this order.

Facts about the person come from the task's instructions, and so does whether an order or reservation number is known.
Wants come from the task's gold writes, described by names and options rather than item ids; a task without a gold write
is about something that has to be refused, and the want is the instructions' own text in the first person, numbers left
out. Slots, bits of a mask: 0 name, 1 zip code, 2 e-mail, 3 user id, then for each goal its record's number, its details
and its payment.
"""

import re
from typing import Any, Mapping, NamedTuple

from eau_jax.core.types import Task
from eau_jax.envs.tau2.data import Domain
from eau_jax.envs.tau2.database import Record

NAME, ZIP, EMAIL, USER, FIRST = range(5)
RECORD, DETAILS, PAYMENT = range(3)
GOALS = 9                                      # at most, so that slots fit in 31 bits; further wants are not told
NOUNS = {NAME: "name", ZIP: "zip code", EMAIL: "e-mail address", USER: "user id"}
PART_NOUNS = ("number", "details", "payment")
_TOKENS = {"record": re.compile(r"#W\d{7}|\b[A-Z0-9]{6}\b|\btask_\d+\b"), "item": re.compile(r"\b\d{10}\b"),
           "payment": re.compile(r"\b(?:credit_card|gift_card|paypal|certificate)_\d{7}\b"),
           "flight": re.compile(r"\bHAT\d{3}\b")}
_RECORD_OF = {"orders": "order_id", "reservations": "reservation_id", "tasks": "task_id"}
_ASKS = re.compile(r"\b(know|tell|how much|how many|total|tracking|sum|price|cost|saved|compliment)\b", re.IGNORECASE)
_KIND = {
    "cancel_pending_order": "cancel an order", "exchange_delivered_order_items": "exchange something I received",
    "modify_pending_order_address": "change where an order is sent",
    "modify_pending_order_items": "change items of an order",
    "modify_pending_order_payment": "change how an order is paid", "modify_user_address": "change my default address",
    "return_delivered_order_items": "return something I received", "book_reservation": "book a flight",
    "cancel_reservation": "cancel a reservation", "update_reservation_flights": "change a reservation",
    "update_reservation_passengers": "change the passengers of a reservation",
    "update_reservation_baggages": "change the bags of a reservation", "send_certificate": "be compensated for the trouble",
    "create_task": "create a task", "update_task_status": "change the status of a task"}


class Goal(NamedTuple):
    tool: str                            # the write that is wanted; "" where none is
    arguments: Mapping[str, Any]
    opening: str                         # what the user says of it first; it holds no fact
    says: tuple[str, str, str]           # number, details, payment in a sentence each; "" where not known
    values: tuple[tuple[str, ...], ...]  # for each of the three the values in it that are secret until told
    right: Mapping[str, frozenset[str]]  # class of token -> those that a right proposal may name; no entry: any


class Plan(NamedTuple):
    says: Mapping[int, str]              # slot -> sentence, for every slot that the user can tell
    values: Mapping[int, tuple[str, ...]]
    goals: tuple[Goal, ...]
    user_id: str                         # "" where the instructions name nobody
    dismisses: tuple[str, ...]           # notifications that the user dismisses before leaving

    @property
    def known(self) -> int:
        """Mask of the slots that the user can tell."""
        return sum(1 << slot for slot in self.says)

    @property
    def opening(self) -> str:
        """The user's first message."""
        return f"Hello. {self.goals[0].opening}"


def plan(domain: Domain, task: Task) -> Plan:
    """The user of a task."""
    text = instructions(task)
    user = _person(domain, text) or domain.base["users"].get(task.data["user_scenario"].get("user_id"))
    goals = _goals(domain, task, text)
    says, values = _identity(user, text) if user else ({}, {})
    for place, goal in enumerate(goals):
        for part in (RECORD, DETAILS, PAYMENT):
            if goal.says[part]:
                slot = FIRST + 3 * place + part
                says[slot], values[slot] = goal.says[part], goal.values[part]
    wanted = task.data["evaluation_criteria"].get("env_assertions") or ()
    dismisses = tuple(each["arguments"]["notification_id"] for each in wanted
                      if each["func_name"] == "assert_notification_status")
    return Plan(says, values, goals, user["user_id"] if user else "", dismisses)


def tokens(domain: Domain, text: str) -> dict[str, frozenset[str]]:
    """Class -> the ids of that class in a text; a record's id counts only where there is such a record."""
    found = {name: frozenset(pattern.findall(text)) for name, pattern in _TOKENS.items()}
    tables = [domain.base[table] for table in _RECORD_OF if table in domain.base]
    return found | {"record": frozenset(key for key in found["record"] if any(key in table for table in tables))}


def instructions(task: Task) -> str:
    """All that the task tells its user."""
    brief = task.data["user_scenario"]["instructions"]
    if isinstance(brief, str):
        return brief
    fields = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
    return "\n".join(brief[field] for field in fields if brief.get(field))


def _person(domain: Domain, text: str) -> Record | None:
    users, low = domain.base["users"], text.lower()
    for key in re.findall(r"\b[a-z]+_[a-z]+_\d+\b", low):
        if key in users:
            return users[key]
    if domain.name == "mock":
        return next(iter(users.values()))
    for user in users.values():
        name = f"{user['name']['first_name']} {user['name']['last_name']}".lower()
        if user["email"].lower() in low or (name in low and user["address"]["zip"] in text):
            return user
    return None


def _identity(user: Record, text: str) -> tuple[dict[int, str], dict[int, tuple[str, ...]]]:
    if "email" not in user:    # the mock domain's user
        return {USER: f"My user id is {user['user_id']}."}, {USER: (user["user_id"],)}
    values = {NAME: f"{user['name']['first_name']} {user['name']['last_name']}"}
    for slot, value in ((ZIP, user["address"]["zip"]), (EMAIL, user["email"]), (USER, user["user_id"])):
        if value.lower() in text.lower():
            values[slot] = value
    return ({slot: f"My {NOUNS[slot]} is {value}." for slot, value in values.items()},
            {slot: (value,) for slot, value in values.items()})


def _goals(domain: Domain, task: Task, text: str) -> tuple[Goal, ...]:
    criteria = task.data["evaluation_criteria"]
    writes = [action for action in criteria.get("actions") or ()
              if action["name"] in domain.tools and domain.tools[action["name"]].kind == "write"]
    writes = writes or [{"name": "update_task_status", "arguments": {
        "task_id": each["arguments"]["task_id"], "status": each["arguments"]["expected_status"]}}
        for each in criteria.get("env_assertions") or () if each["func_name"] == "assert_task_status"]
    goals = [_wanted(domain, action["name"], action["arguments"], text) for action in writes[:GOALS - 1]]
    if not goals:
        return (_refused(domain, task, text),)
    sentences = _sentences(text)
    if criteria.get("communicate_info"):
        asked = [sentence for sentence in sentences if _ASKS.search(sentence)] or ["You want to know the details."]
        question = f"I also have a question. {_spoken(domain, ' '.join(asked[:2]))}"
        goals.append(Goal("", {}, question, ("", "", ""), ((), (), ()), {}))
    return tuple(goals)


def _refused(domain: Domain, task: Task, text: str) -> Goal:
    """What a user wants who is to be refused."""
    brief = task.data["user_scenario"]["instructions"]
    reason = _sentences(brief if isinstance(brief, str) else brief["reason_for_call"])
    numbers = sorted(tokens(domain, text)["record"])
    details = _spoken(domain, " ".join(reason[1:]))
    return Goal("", {}, _spoken(domain, reason[0]), (f"It is {' and '.join(numbers)}." if numbers else "", details, ""),
                (tuple(numbers), (), ()), {})


def _wanted(domain: Domain, tool: str, args: Mapping[str, Any], text: str) -> Goal:
    table = next((table for table, name in _RECORD_OF.items() if name in args), None)
    key = args.get(_RECORD_OF.get(table, ""), "")
    record = domain.base[table].get(key, {}) if table else {}
    number = f"It is {key}." if key and key in text else ""
    user = domain.base["users"].get(args.get("user_id") or record.get("user_id"), {})
    details, hard = _DETAILS[tool](domain, args, record)
    cards = [_method(user, name) for name in _payments(args)]
    payment = f"Use {' and '.join(name for name, _ in cards)}." if cards else ""
    allowed = tokens(domain, repr(args))
    own = tokens(domain, repr([record.get("items"), record.get("flights")]))
    right = {"payment": allowed["payment"], "record": allowed["record"], "item": allowed["item"] | own["item"],
             "flight": allowed["flight"] | own["flight"]}
    return Goal(tool, args, f"I would like to {_KIND[tool]}.", (number, details, payment),
                ((key,) if number else (), hard, tuple(digits for _, digits in cards if digits)),
                {name: ids for name, ids in right.items() if ids})


def _payments(args: Mapping[str, Any]) -> list[str]:
    several = [payment["payment_id"] for payment in args.get("payment_methods", ())]
    return several or [args[name] for name in ("payment_method_id", "payment_id") if name in args]


def _method(user: Record, key: str) -> tuple[str, str]:
    """A payment method in words, and the digits in it."""
    method = user.get("payment_methods", {}).get(key, {"source": key.rpartition("_")[0]})
    if method["source"] == "credit_card" and "last_four" in method:
        return f"the credit card ending in {method['last_four']}", method["last_four"]
    amount = method.get("amount", method.get("balance"))
    name = {"paypal": "PayPal", "gift_card": "the gift card"}.get(method["source"], f"the {method['source']}")
    return (f"{name} worth {amount:g} dollars", "") if amount is not None else (name, "")


def _items(record: Record, wanted: list[str]) -> list[Record]:
    """The order's items with these ids, one for each, as far as they are there."""
    left, found = list(record.get("items", ())), []
    for item_id in wanted:
        item = next((item for item in left if item["item_id"] == item_id), None)
        if item is not None:
            left.remove(item)
        found.append(item or {"name": f"item {item_id}", "options": {}, "product_id": ""})
    return found


def _called(item: Record) -> str:
    options = ", ".join(str(value) for value in item["options"].values())
    return f"{item['name']} ({options})" if options else item["name"]


def _swap(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    lines = []
    for item, new_id in zip(_items(record, args["item_ids"]), args["new_item_ids"]):
        new = domain.base["products"].get(item["product_id"], {"variants": {}})["variants"].get(new_id, {"options": {}})
        changes = [f"{name} {value}" for name, value in new["options"].items() if item["options"].get(name) != value]
        lines.append(f"Instead of the {_called(item)} I want one with {', '.join(changes) or 'the same options'}.")
    return " ".join(lines), ()


def _returned(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    return f"I want to return the {' and the '.join(map(_called, _items(record, args['item_ids'])))}.", ()


def _cancelled(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    return f"It is the order with the {_contents(record)}. The reason is: {args['reason']}.", ()


def _address(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    place = ", ".join(args[name] for name in ("address1", "address2", "city", "state", "zip", "country") if args[name])
    which = f"It is the order with the {_contents(record)}. " if record else ""
    return f"{which}The new address is {place}.", (args["address1"], args["zip"])


def _paid(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    return f"It is the order with the {_contents(record)}.", ()


def _contents(record: Record) -> str:
    return " and the ".join(item["name"] for item in record.get("items", ())) or "items"


def _trip(record: Record) -> str:
    days = " and ".join(sorted({flight["date"] for flight in record.get("flights", ())}))
    return f"the trip from {record.get('origin')} to {record.get('destination')} on {days}"


def _cancelled_trip(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    return f"It is {_trip(record)}.", ()


def _flights(args: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    flights = " and ".join(f"{flight['flight_number']} on {flight['date']}" for flight in args["flights"])
    numbers = tuple(flight["flight_number"] for flight in args["flights"])
    return f"{args['cabin'].replace('_', ' ')}, flights {flights}", numbers


def _reflown(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    wanted, numbers = _flights(args)
    return f"It is {_trip(record)}. I want {wanted}.", numbers


def _people(args: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    people = [f"{person['first_name']} {person['last_name']}, born {person['dob']}" for person in args["passengers"]]
    return f"{' and '.join(people)}", tuple(person["dob"] for person in args["passengers"])


def _travellers(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    people, births = _people(args)
    return f"It is {_trip(record)}. The passengers are {people}.", births


def _bags(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    return (f"It is {_trip(record)}. I want {args['total_baggages']} bags in all, {args['nonfree_baggages']} of them paid.",
            ())


def _booked(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    flights, numbers = _flights(args)
    people, births = _people(args)
    amounts = " and ".join(f"{payment['amount']}" for payment in args["payment_methods"])
    return (f"{args['flight_type'].replace('_', ' ')} from {args['origin']} to {args['destination']}, {flights}. The "
            f"passengers are {people}. {args['total_baggages']} bags, {args['nonfree_baggages']} of them paid. Insurance: "
            f"{args['insurance']}. I pay {amounts} dollars.", numbers + births)


_DETAILS = {
    "exchange_delivered_order_items": _swap, "modify_pending_order_items": _swap, "return_delivered_order_items": _returned,
    "cancel_pending_order": _cancelled, "modify_pending_order_address": _address, "modify_user_address": _address,
    "modify_pending_order_payment": _paid, "cancel_reservation": _cancelled_trip, "update_reservation_flights": _reflown,
    "update_reservation_passengers": _travellers, "update_reservation_baggages": _bags, "book_reservation": _booked,
    "send_certificate": lambda domain, args, record: (f"I think {args['amount']} dollars would be fair.", ()),
    "create_task": lambda domain, args, record: (f"The title is '{args['title']}'.", (args["title"],)),
    "update_task_status": lambda domain, args, record: (f"The new status is {args['status']}.", ()),
}


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in re.split(r"(?<=[.!?])\s+|\n+", text) if re.search(r"\w", sentence)] or ["Help."]


_PERSON = ((r"\byou are\b", "I am"), (r"\byou were\b", "I was"), (r"\byou're\b", "I'm"), (r"\byou've\b", "I've"),
           (r"\byou'd\b", "I'd"), (r"\byourself\b", "myself"), (r"\byours\b", "mine"), (r"\byour\b", "my"),
           (r"\b(to|for|with|of|tells?|told|gives?|offers?|lets?|asks?) you\b(?! )", r"\1 me"), (r"\byou\b", "I"))


def _spoken(domain: Domain, text: str) -> str:
    """Instructions in the first person, without the numbers that a user tells only when asked."""
    for pattern, word in _PERSON:
        text = re.sub(pattern, word, text, flags=re.IGNORECASE)
    numbers = sorted(frozenset().union(*tokens(domain, text).values()), key=len, reverse=True)
    for pattern in (*map(re.escape, numbers), r"\S+@\S+\.\w+|\b[a-z]+_[a-z]+_\d+\b|\b\d{5}\b"):
        text = re.sub(pattern, "", text)
    text = re.sub(r"\((\s|,|and\b|or\b)*\)", "", text)
    return re.sub(r"\s+([.,;)])", r"\1", re.sub(r"\s+", " ", text)).strip()
