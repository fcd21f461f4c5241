"""Whether a record is a telecom task that this simulator can play and score."""

from typing import Any, Mapping

from eau_jax.envs import file
from eau_jax.envs.tau2.task_check import check_criteria, check_initial_state
from eau_jax.envs.telecom.records import KINDS, account
from eau_jax.envs.telecom.schema import KNOWN
from eau_jax.envs.telecom.start import fixed_of, goal, gold, world_before
from eau_jax.envs.telecom.tools import BILL_STATUS, LINE_STATUS

_LISTS = (("initial_state", "initialization_actions"), ("evaluation_criteria", "actions"),
          ("evaluation_criteria", "env_assertions"), ("evaluation_criteria", "reward_basis"))
_NUMBERS = {"plans": ("data_limit_gb", "price_per_month", "data_refueling_price_per_gb"), "lines": ("data_used_gb",),
            "bills": ("total_due",)}
_TEXTS = {"lines": ("phone_number",), "customers": ("full_name", "phone_number")}


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a telecom task."""
    file.text_field(record, "id")
    for name in ("initial_state", "evaluation_criteria", "db", "user_db"):
        if not isinstance(record.get(name), Mapping):
            raise ValueError(f"{name}: expected an object, found {file.shown(record.get(name))}")
    if record.get("ticket") is not None:
        file.text_field(record, "ticket")
    check_initial_state(record, KNOWN)
    check_criteria(record, KNOWN)
    for holder, name in _LISTS:
        if not isinstance(record[holder].get(name), list):
            raise ValueError(f"{holder}.{name}: expected a list, found {file.shown(record[holder].get(name))}")
    for name in ("initialization_data", "message_history"):
        if record["initial_state"].get(name):
            found = file.shown(record["initial_state"][name])
            raise ValueError(f"initial_state.{name}: expected nothing, found {found}")
    _check_company(record["db"])
    own = account(record)
    fixed_of(record, own)
    world_before(record, own)
    goal(record, own)
    gold(record)


def _check_company(db: Mapping[str, Any]) -> None:
    """The company's records: their ids, the fields that are read, and that what they name is there."""
    known: dict[str, set[str]] = {}
    for kind, key in KINDS:
        if not isinstance(db.get(kind), list):
            raise ValueError(f"db.{kind}: expected a list of records, found {file.shown(db.get(kind))}")
        for place, each in enumerate(db[kind]):
            _check_record(each, kind, key, f"db.{kind}[{place}]")
        known[kind] = {each[key] for each in db[kind]}
    for customer in db["customers"]:
        for name, kind in (("line_ids", "lines"), ("bill_ids", "bills")):
            ids = customer.get(name)
            wrong = [each for each in ids if each not in known[kind]] if isinstance(ids, list) else [ids]
            if wrong:
                raise ValueError(f"db.customers.{customer['customer_id']}.{name}: expected ids of {kind}, found "
                                 f"{file.shown(wrong[0])}")
    for line in db["lines"]:
        if line.get("plan_id") not in known["plans"]:
            raise ValueError(f"db.lines.{line['line_id']}.plan_id: expected the id of a plan, found "
                             f"{file.shown(line.get('plan_id'))}")


def _check_record(record: Any, kind: str, key: str, where: str) -> None:
    if not isinstance(record, Mapping):
        raise ValueError(f"{where}: expected an object, found {file.shown(record)}")
    for name in (key, *_TEXTS.get(kind, ())):
        file.text_field(record, name, f"{where}.")
    for name in _NUMBERS.get(kind, ()):
        if not file.is_number(record.get(name)):
            raise ValueError(f"{where}.{name}: expected a number, found {file.shown(record.get(name))}")
    if kind == "lines" and not isinstance(record.get("roaming_enabled"), bool):
        raise ValueError(f"{where}.roaming_enabled: expected true or false, found "
                         f"{file.shown(record.get('roaming_enabled'))}")
    statuses = {"lines": LINE_STATUS, "bills": BILL_STATUS}.get(kind)
    if statuses and record.get("status") not in statuses[1:]:
        raise ValueError(f"{where}.status: expected one of {', '.join(statuses[1:])}, found "
                         f"{file.shown(record.get('status'))}")
