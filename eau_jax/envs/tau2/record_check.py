"""What the records of a tau2-bench database have to hold: every field that a tool or the user's words read.

A shape is a type, a list with the shape of every item, an object's fields with theirs, `Keyed` for an object whose keys are
ids, or a function of the value that gives its shape.
"""

from typing import Any, Callable, Mapping, NamedTuple

from eau_jax.envs import file


class Keyed(NamedTuple):
    """An object with any keys."""

    shape: Any


NUMBER, WHOLE = float, int
_NAMES = {str: "a string", NUMBER: "a number", WHOLE: "a whole number", bool: "true or false", list: "a list",
          dict: "an object"}
_CABINS = {"business": NUMBER, "economy": NUMBER, "basic_economy": NUMBER}
_ADDRESS = {"zip": str}
_NAME = {"first_name": str, "last_name": str}
_UPON: Callable[..., Any] = lambda field, more: lambda value: {field: str} | more.get(str(value.get(field)), {})
_AMOUNT = {"gift_card": {"amount": NUMBER}, "certificate": {"amount": NUMBER}}
_USERS = {
    "airline": {"user_id": str, "name": _NAME, "address": _ADDRESS, "email": str, "reservations": [str],
                "payment_methods": Keyed(_UPON("source", _AMOUNT))},
    "retail": {"user_id": str, "name": _NAME, "address": _ADDRESS, "email": str, "orders": [str],
               "payment_methods": Keyed(_UPON("source", {"gift_card": {"balance": NUMBER}}))},
    "mock": {"user_id": str, "name": str, "tasks": [str]}}
_TABLES = {
    "flights": {"flight_number": str, "origin": str, "destination": str, "scheduled_departure_time_est": str,
                "scheduled_arrival_time_est": str,
                "dates": Keyed(_UPON("status", {"available": {"available_seats": _CABINS, "prices": _CABINS}}))},
    "reservations": {"reservation_id": str, "user_id": str, "origin": str, "destination": str, "cabin": str,
                     "flights": [{"flight_number": str, "date": str, "price": NUMBER}], "passengers": [dict],
                     "payment_history": [{"payment_id": str, "amount": NUMBER}], "total_baggages": WHOLE,
                     "nonfree_baggages": WHOLE},
    "products": {"name": str, "product_id": str, "variants": Keyed({"available": bool, "price": NUMBER, "options": dict})},
    "orders": {"order_id": str, "user_id": str, "address": dict, "status": str,
               "items": [{"name": str, "product_id": str, "item_id": str, "price": NUMBER, "options": dict}],
               "payment_history": [{"transaction_type": str, "amount": NUMBER, "payment_method_id": str}]},
    "tasks": {"task_id": str, "title": str, "status": str},
    "notifications": {"notification_id": str, "message": str, "status": str}}


def shapes(domain: str) -> dict[str, Any]:
    """Table -> shape of its records, of one of upstream's domains."""
    return _TABLES | {"users": _USERS[domain]}


def check_record(known: Mapping[str, Any], table: str, key: str, record: Any) -> None:
    """Raises ValueError("table.key.field: expected ..., found ...") unless the domain's tools can work with a record;
    `known` is as of `shapes`."""
    _check(record, known[table], f"{table}.{key}")
    if record.get("payment_history", True) == []:
        raise ValueError(f"{table}.{key}.payment_history: expected one payment or more, found none")


def _check(value: Any, shape: Any, where: str) -> None:
    if isinstance(shape, type):
        right = file.is_number(value) if shape is NUMBER else (
            isinstance(value, shape) and (shape is bool or not isinstance(value, bool)))
        if not right:
            raise ValueError(f"{where}: expected {_NAMES[shape]}, found {file.shown(value)}")
    elif isinstance(shape, list):
        _check(value, list, where)
        for place, item in enumerate(value):
            _check(item, shape[0], f"{where}[{place}]")
    elif isinstance(shape, Keyed):
        _check(value, dict, where)
        for key, item in value.items():
            _check(item, shape.shape, f"{where}.{key}")
    else:
        _check(value, dict, where)
        fields: Mapping[str, Any] = shape if isinstance(shape, dict) else shape(value)
        for name, inner in fields.items():
            _check(value.get(name), inner, f"{where}.{name}")
