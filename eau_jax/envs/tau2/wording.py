"""How the symbolic user of tau2-bench puts things: a wanted write in sentences, and instructions in the first person."""

import re
from typing import Any, Mapping, Sequence

from eau_jax.envs.tau2.database import Record
from eau_jax.envs.tau2.domain import Domain

KINDS = {
    "cancel_pending_order": "cancel an order", "exchange_delivered_order_items": "exchange something I received",
    "modify_pending_order_address": "change where an order is sent",
    "modify_pending_order_items": "change items of an order",
    "modify_pending_order_payment": "change how an order is paid", "modify_user_address": "change my default address",
    "return_delivered_order_items": "return something I received", "book_reservation": "book a flight",
    "cancel_reservation": "cancel a reservation", "update_reservation_flights": "change a reservation",
    "update_reservation_passengers": "change the passengers of a reservation",
    "update_reservation_baggages": "change the bags of a reservation", "send_certificate": "be compensated for the trouble",
    "create_task": "create a task", "update_task_status": "change the status of a task"}


def listed(words: Sequence[str]) -> str:
    """"a, b and c"."""
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])


def payments(args: Mapping[str, Any]) -> list[str]:
    """The ids of the payment methods that a call names."""
    several = [payment["payment_id"] for payment in args.get("payment_methods", ())]
    return several or [args[name] for name in ("payment_method_id", "payment_id") if name in args]


def method(user: Record, key: str) -> tuple[str, str]:
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
    return f"I want to return {listed([f'the {_called(item)}' for item in _items(record, args['item_ids'])])}.", ()


def _cancelled(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    return f"It is the order with {_contents(record)}. The reason is: {args['reason']}.", ()


def _address(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    place = ", ".join(args[name] for name in ("address1", "address2", "city", "state", "zip", "country") if args[name])
    which = f"It is the order with {_contents(record)}. " if record else ""
    return f"{which}The new address is {place}.", (args["address1"], args["zip"])


def _paid(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    return f"It is the order with {_contents(record)}.", ()


def _contents(record: Record) -> str:
    return listed([f"the {item['name']}" for item in record.get("items", ())]) or "the items"


def _trip(record: Record) -> str:
    days = listed(sorted({flight["date"] for flight in record.get("flights", ())}))
    return f"the trip from {record.get('origin')} to {record.get('destination')} on {days}"


def _cancelled_trip(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    return f"It is {_trip(record)}.", ()


def _flights(args: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    flights = listed([f"{flight['flight_number']} on {flight['date']}" for flight in args["flights"]])
    numbers = tuple(flight["flight_number"] for flight in args["flights"])
    return f"{args['cabin'].replace('_', ' ')}, {'flights' if len(numbers) > 1 else 'flight'} {flights}", numbers


def _reflown(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    wanted, numbers = _flights(args)
    return f"It is {_trip(record)}. I want {wanted}.", numbers


def _people(args: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    people = [f"{person['first_name']} {person['last_name']} (born {person['dob']})" for person in args["passengers"]]
    who = f"The passengers are {listed(people)}" if len(people) > 1 else f"The passenger is {listed(people)}"
    return who, tuple(person["dob"] for person in args["passengers"])


def _travellers(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    people, births = _people(args)
    return f"It is {_trip(record)}. {people}.", births


def _bags(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    return f"It is {_trip(record)}. I want {_count(args)} in all, {args['nonfree_baggages']} of them paid.", ()


def _count(args: Mapping[str, Any]) -> str:
    return "1 bag" if args["total_baggages"] == 1 else f"{args['total_baggages']} bags"


def _booked(domain: Domain, args: Mapping[str, Any], record: Record) -> tuple[str, tuple[str, ...]]:
    flights, numbers = _flights(args)
    people, births = _people(args)
    amounts = listed([f"{payment['amount']}" for payment in args["payment_methods"]])
    kind = {"one_way": "one-way trip", "round_trip": "round trip"}[args["flight_type"]]
    return (f"I want a {kind} from {args['origin']} to {args['destination']}, {flights}. {people}. I have {_count(args)}, "
            f"{args['nonfree_baggages']} of them paid. Insurance: {args['insurance']}. I pay {amounts} dollars.",
            numbers + births)


DETAILS_OF = {
    "exchange_delivered_order_items": _swap, "modify_pending_order_items": _swap, "return_delivered_order_items": _returned,
    "cancel_pending_order": _cancelled, "modify_pending_order_address": _address, "modify_user_address": _address,
    "modify_pending_order_payment": _paid, "cancel_reservation": _cancelled_trip, "update_reservation_flights": _reflown,
    "update_reservation_passengers": _travellers, "update_reservation_baggages": _bags, "book_reservation": _booked,
    "send_certificate": lambda domain, args, record: (f"I think {args['amount']} dollars would be fair.", ()),
    "create_task": lambda domain, args, record: (f"The title is '{args['title']}'.", (args["title"],)),
    "update_task_status": lambda domain, args, record: (f"The new status is {args['status']}.", ()),
}


def sentences(text: str) -> list[str]:
    """The sentences of a text."""
    parts = re.split(r"(?<=[.!?])(?<!i\.e\.)(?<!e\.g\.)\s+|\n+", text)
    return [part.strip() for part in parts if re.search(r"\w", part)]


_SUBJECT_VERBS = (
    r"(?:are|were|was|have|had|want|need|would|will|can|could|cannot|can't|won't|do|did|don't|didn't|think|believe"
    r"|booked|purchased|bought|received|ordered|placed|paid|made|just|also|only|still|now|then|first|never|already|recently"
    r"|wanted|prefer|remember|like|know|live|must|should|may|might|feel|plan|hope|wish|forgot|insist|regret|mistakenly"
    r"|accidentally|initially|originally|really|are|am)\b")
_BEFORE_A_SUBJECT = (
    r"(?:^|[.,;:(!?]\s*|\b(?:that|if|when|because|and|but|what|where|how|why|while|since|so|as|or|than|before|after|until"
    r"|unless|then|though|although|whether|sure|once)\s+)")
_PERSON = (
    (r"\bare you\b", "am I"), (r"\bwere you\b", "was I"), (r"\byou are\b", "I am"), (r"\byou were\b", "I was"),
    (r"\byou're\b", "I'm"), (r"\byou've\b", "I've"), (r"\byou'd\b", "I'd"), (r"\byou'll\b", "I'll"),
    (r"\byourself\b", "myself"), (r"\byours\b", "mine"), (r"\byour\b", "my"),
    (r"^((?:first|then|finally),? )?(?:try|attempt) to\b", r"\1I want to"), (rf"\byou (?={_SUBJECT_VERBS})", "I "),
    (rf"({_BEFORE_A_SUBJECT})you\b(?! to\b)", r"\1I"), (r"\byou\b", "me"))
_NUMBERED = r"(?:\b(my|the|an?|this|that|another)\s+)?\b(reservation|order|booking)(?:\s+(?:id|number|code))?\s+#?(?:{})"


def in_first_person(text: str, numbers: Sequence[str]) -> str:
    """Instructions to a user ("you want ...") as this user would say them, without `numbers`, ids, e-mails and zip codes."""
    text = " ".join(map(_turned, sentences(text)))
    hidden = "|".join([*map(re.escape, numbers), r"#?W\d{7}"])
    text = re.sub(_NUMBERED.format(hidden), lambda found: f"{found[1] or 'my'} {found[2]}", text, flags=re.IGNORECASE)
    text = re.sub(rf"{hidden}|\S+@\S+\.\w+|\b[a-z]+_[a-z]+_\d+\b|\b\d{{5}}\b", "", text)
    text = re.sub(r"\((\s|,|and\b|or\b)*\)", "", text)
    return re.sub(r"\s+([.,;)])", r"\1", re.sub(r"\s+", " ", text)).strip()


def _turned(sentence: str) -> str:
    for pattern, word in _PERSON:
        sentence = re.sub(pattern, word, sentence, flags=re.IGNORECASE)
    return sentence[:1].upper() + sentence[1:]
