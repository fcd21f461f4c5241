"""What a telecom record means on the host: the caller, his account, the company's records, tool calls as integers.

A task's data is a tau2-bench record with two more keys: `db`, the company's records (plans, devices, lines, customers,
bills), and `user_db`, the phone as it is before the task's initialization actions.
"""

from typing import Any, Mapping, NamedTuple, Sequence

from eau_jax.envs.tau2.call import Refused, checked, short
from eau_jax.envs.telecom.codes import Do
from eau_jax.envs.telecom.schema import PARAMETERS, PHONE_TOOLS
from eau_jax.envs.telecom.tools import (
    APPS, LINES, MODES, NEXT_BILL, OPENED, PERMISSIONS, TOGGLE, UNKNOWN_CUSTOMER, UNKNOWN_LINE)

TODAY = "2025-02-25"
LAST_MONTH = {"period_start": "2025-01-01", "period_end": "2025-01-31", "issue_date": "2025-01-01", "due_date": "2025-01-15"}
NEXT_MONTH = {"period_start": "2025-03-01", "period_end": "2025-03-31", "issue_date": "2025-03-01", "due_date": "2025-03-15"}
KINDS = (("customers", "customer_id"), ("lines", "line_id"), ("bills", "bill_id"), ("plans", "plan_id"),
          ("devices", "device_id"))
_APN_KEYS = ("apn_name", "reset_at_reboot", "mms_apn", "mmsc_url", "mms_proxy", "mms_port")
_APN_NAMES = ("internet", "broken")


class Caller(NamedTuple):
    """What the start actions say of the person."""

    name: str
    phone: str
    abroad: bool
    used: float | None      # data used on his line, where an action sets it
    sim_lock: int           # 0 none, 1 PIN, 2 PUK


class Account(NamedTuple):
    """The caller's account. A slot is a place in `lines` or `bills`; records are as before the episode."""

    customer: Mapping[str, Any]
    lines: tuple[Mapping[str, Any], ...]
    bills: tuple[Mapping[str, Any], ...]   # the unpaid bill that a start action adds comes last
    line: int                              # slot of the caller's line
    contract_ended: bool
    plans: Mapping[str, Mapping[str, Any]]
    opened: Mapping[str, Any]              # the bill in slot NEXT_BILL, once a refuel opens it


class Call(NamedTuple):
    """A tool call as integers, see `agent_tool` and `phone_tool`."""

    code: Do
    a: int = 0
    b: int = 0
    c: int = 0
    amount: float = 0.0


def starts(data: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(function, arguments) of each start action."""
    return [(action["func_name"], action["arguments"]) for action in data["initial_state"]["initialization_actions"]]


def caller(data: Mapping[str, Any]) -> Caller:
    """Raises ValueError("field: expected ..., found ...") where no action names the person."""
    said = dict(starts(data))
    if "set_user_info" not in said:
        raise ValueError(f"initial_state.initialization_actions: expected an action set_user_info, found "
                         f"{', '.join(said) or 'none'}")
    lock = said.get("lock_sim_card", {}).get("mode")
    return Caller(said["set_user_info"]["name"], said["set_user_info"]["phone_number"],
                  bool(said.get("set_user_location", {}).get("abroad", False)),
                  said.get("set_data_usage", {}).get("data_used_gb"), (None, "pin", "puk").index(lock))


def account(data: Mapping[str, Any]) -> Account:
    """The caller's account.

    Raises:
      ValueError: ("field: expected ..., found ...") where the record's parts do not fit together.
    """
    db, phone = data["db"], caller(data).phone
    lines = {line["line_id"]: line for line in db["lines"]}
    bills = {bill["bill_id"]: bill for bill in db["bills"]}
    plans = {plan["plan_id"]: plan for plan in db["plans"]}
    owners = [c for c in db["customers"] if any(lines[k]["phone_number"] == phone for k in c["line_ids"])]
    if not owners:
        raise ValueError("initial_state.initialization_actions, of set_user_info: phone_number: expected that of a "
                         f"customer's line, found {phone!r}")
    customer = owners[0]
    own, owed = [lines[k] for k in customer["line_ids"]], [bills[k] for k in customer["bill_ids"]]
    slot = [line["phone_number"] for line in own].index(phone)
    unpaid = dict(starts(data)).get("suspend_line_for_overdue_bill")
    if unpaid is not None:
        if unpaid["line_id"] not in customer["line_ids"]:
            raise ValueError("initial_state.initialization_actions, of suspend_line_for_overdue_bill: line_id: expected one "
                             f"of {', '.join(customer['line_ids'])}, found {unpaid['line_id']!r}")
        due = plans[lines[unpaid["line_id"]]["plan_id"]]["price_per_month"]
        bill = _bill(data, unpaid["new_bill_id"], customer, due, "Overdue", LAST_MONTH)
        charge = {"description": f"Charge for line {unpaid['line_id']}", "amount": due, "date": TODAY, "item_type": "Charge"}
        owed.append(bill | {"line_items": [charge]} if "line_items" in bill else bill)
        if unpaid["contract_ended"]:
            own[slot] = dict(own[slot]) | {"contract_end_date": LAST_MONTH["period_end"]}
    if len(own) > LINES or len(owed) > NEXT_BILL:
        raise ValueError(f"db: expected at most {LINES} lines and {NEXT_BILL} bills of the caller, found {len(own)} and "
                         f"{len(owed)}")
    opened = _bill(data, f"B{customer['customer_id'][1:]}99", customer, 0.0, "Draft", NEXT_MONTH)
    return Account(customer, tuple(own), tuple(owed), slot, bool(unpaid and unpaid["contract_ended"]), plans, opened)


def records(data: Mapping[str, Any], own: Account) -> dict[str, Mapping[str, Any]]:
    """Every record of the company by its id, the bill that a refuel may open included, as before the episode."""
    found = {record[key]: record for kind, key in KINDS for record in data["db"][kind]}
    found |= {line["line_id"]: line for line in own.lines} | {bill["bill_id"]: bill for bill in own.bills}
    return found | {own.opened["bill_id"]: own.opened}


def encode(data: Mapping[str, Any], name: str, arguments: Mapping[str, Any], tools: Mapping[str, Do]) -> Call:
    """A call of one of `tools` as integers.

    Raises:
      Refused: for an unknown tool, or arguments of wrong names or types; it names the one that is wrong and what is allowed.
    """
    if name not in tools:
        raise Refused(f"there is no tool {short(name)}; allowed: {', '.join(tools)}")
    code = tools[name]
    given = checked(PARAMETERS[code], arguments)
    values = [given.get(key) for key in PARAMETERS[code]["properties"]]
    return _phone_call(code, values) if name in PHONE_TOOLS else _agent_call(data, code, values)


def _agent_call(data: Mapping[str, Any], code: Do, values: Sequence[Any]) -> Call:
    own, customers = account(data), data["db"]["customers"]
    if code == Do.TRANSFER_TO_HUMAN_AGENTS:
        return Call(code)
    if code == Do.GET_DETAILS_BY_ID:
        opened = values[0] == own.opened["bill_id"]
        return Call(code, OPENED if opened else _position(list(records(data, own)), values[0]))
    if code == Do.GET_CUSTOMER_BY_PHONE:
        return Call(code, _customer_by_phone(data["db"], values[0]))
    if code == Do.GET_CUSTOMER_BY_NAME:
        people = [(person["full_name"].lower(), person.get("date_of_birth")) for person in customers]
        return Call(code, _position(people, (values[0].lower(), values[1])))
    place = _position([customer["customer_id"] for customer in customers], values[0])
    if place < 0:
        return Call(code, UNKNOWN_CUSTOMER)
    if code == Do.GET_CUSTOMER_BY_ID:
        return Call(code, place)
    if code == Do.GET_BILLS_FOR_CUSTOMER:
        return Call(code, place, 12 if values[1] is None else values[1])
    if code == Do.GET_DATA_USAGE:
        everywhere = [line["line_id"] for line in data["db"]["lines"]]
        return Call(code, _position(everywhere, values[1]) if values[1] in customers[place]["line_ids"] else UNKNOWN_LINE)
    if customers[place] is not own.customer:
        return Call(code, UNKNOWN_CUSTOMER)
    if code == Do.SEND_PAYMENT_REQUEST:
        ids = [bill["bill_id"] for bill in own.bills]
        return Call(code, NEXT_BILL if values[1] == own.opened["bill_id"] else _position(ids, values[1]))
    amount = float(values[2]) if code == Do.REFUEL_DATA else 0.0
    return Call(code, _position([line["line_id"] for line in own.lines], values[1]), amount=amount)


def _phone_call(code: Do, values: Sequence[Any]) -> Call:
    if code == Do.SET_NETWORK_MODE_PREFERENCE:
        return Call(code, _position(MODES, values[0]))
    if code == Do.SET_APN_SETTINGS:
        name, settings = values[0].get("apn_name", "internet"), values[0]
        for key in settings:
            if key not in _APN_KEYS:
                raise Refused(f"unexpected argument 'apn_settings.{str(key)[:60]}'; allowed: {', '.join(_APN_KEYS)}")
        if name not in _APN_NAMES:
            raise Refused(f"apn_settings.apn_name: expected one of {', '.join(_APN_NAMES)}, found {short(name)}")
        return Call(code, _APN_NAMES.index(name), int(settings.get("mmsc_url", "default") is not None),
                    int(settings.get("reset_at_reboot", False) is True))
    if code in (Do.CHECK_APP_STATUS, Do.CHECK_APP_PERMISSIONS):
        return Call(code, _position(APPS, values[0]))
    if code == Do.GRANT_APP_PERMISSION:
        return Call(code, _position(APPS, values[0]), _position(PERMISSIONS, values[1].lower()))
    switches = (Do.TOGGLE_AIRPLANE_MODE, Do.TOGGLE_DATA, Do.TOGGLE_ROAMING, Do.TOGGLE_DATA_SAVER_MODE, Do.TOGGLE_WIFI,
                Do.TOGGLE_WIFI_CALLING)
    return Call(code, TOGGLE if code in switches else 0)


def _bill(data: Mapping[str, Any], name: str, customer: Mapping[str, Any], due: float, status: str,
          dates: Mapping[str, str]) -> dict[str, Any]:
    """A bill with the fields that the company's bills have."""
    full = {"bill_id": name, "customer_id": customer["customer_id"], **dates, "total_due": due, "status": status,
            "line_items": []}
    return {key: full[key] for key in (data["db"]["bills"] or [full])[0] if key in full}


def _customer_by_phone(db: Mapping[str, Any], phone: str) -> int:
    numbers = {line["line_id"]: line["phone_number"] for line in db["lines"]}
    for place, customer in enumerate(db["customers"]):
        if phone == customer["phone_number"] or phone in [numbers[line] for line in customer["line_ids"]]:
            return place
    return -1


def _position(known: Sequence[Any], value: Any) -> int:
    return known.index(value) if value in known else -1

