"""Declarations of telecom's tools: preconditions and effects in plain numbers, for `probe` to hold against the arrays."""

from typing import Any, Callable, Mapping

from eau_jax.envs.telecom.tools import (
    ACTIVE, APPS, AWAITING, DRAFT, MODES, NEXT_BILL, NO_SERVICE, PAID, PENDING, PERMISSIONS, SUSPENDED)
from eau_jax.synth.domain import Action, Look, Need, Param, Place
from eau_jax.synth.record import Json

Effects = Callable[[Look], Mapping[Place, Any]]


def world(look: Look, name: str) -> Any:
    """A field of the world before the call."""
    return look.case.value(look.state, ("world", name))


def slot(look: Look, name: str, table: str, kind: str) -> int:
    """The place of a record of the caller's account; -1 where it is none."""
    customer = look.case.record["db"]["customers"][0]
    ids = customer[kind] + ([look.case.unpaid] if table == "bills" and look.case.unpaid else [])
    named = look.step.arguments
    if named.get("customer_id") != customer["customer_id"] or named[name] not in ids:
        return -1
    return ids.index(named[name])


def _line(look: Look) -> int:
    return slot(look, "line_id", "lines", "line_ids")


def _bill(look: Look) -> int:
    return slot(look, "bill_id", "bills", "bill_ids")


def _status(word: int, place: int) -> int:
    return word >> 4 * place & 15


def _with(word: int, place: int, status: int) -> int:
    return word & ~(15 << 4 * place) | status << 4 * place


def _bills(look: Look) -> list[int]:
    return [_status(world(look, "bills"), place) for place in range(NEXT_BILL + 1)]


def _set(**fields: Any) -> dict[Place, Any]:
    return {("world", name): value for name, value in fields.items()}


def _line_status(status: int) -> Effects:
    return lambda look: _set(lines=_with(world(look, "lines"), _line(look), status),
                             redated=world(look, "redated") | 1 << _line(look))


def _roaming(on: bool) -> Effects:
    return lambda look: _set(line_roaming=world(look, "line_roaming") | 1 << _line(look) if on else
                             world(look, "line_roaming") & ~(1 << _line(look)))


def _refuels(look: Look) -> Mapping[Place, Any]:
    place, amount, bills = _line(look), float(look.step.arguments["gb_amount"]), _bills(look)
    added, charged = list(world(look, "refuel")), list(world(look, "charged"))
    added[place] += amount
    own_draft = DRAFT in bills[:NEXT_BILL]
    charged[0 if own_draft else 1] += amount * look.case.fixed["price"][place]
    opened = {} if DRAFT in bills else _set(bills=_with(world(look, "bills"), NEXT_BILL, DRAFT))
    return _set(refuel=added, charged=charged) | opened


def searched(look: Look, **changed: Any) -> dict[Place, Any]:
    """The changed fields, and what the phone finds when it looks for a network with them."""
    now = lambda name: changed.get(name, world(look, name))
    fixed = look.case.fixed
    up = not (now("sim_missing") or fixed["sim_lock"] or now("airplane") or now("apn_broken")) and _status(
        world(look, "lines"), fixed["line"]) == ACTIVE
    tech = 0 if not up else 4 - now("mode") if now("mode") else 4 if fixed["signals"] >> 16 & 15 else 3
    return _set(**changed, connection=0 if up else NO_SERVICE, tech=tech, signal=fixed["signals"] >> 4 * tech & 15 if up
                else 0)


def _airplane(look: Look) -> Mapping[Place, Any]:
    flies = not world(look, "airplane")
    changed: dict[str, Json] = {"airplane": flies}
    if flies and world(look, "vpn"):
        changed |= {"vpn": False, "vpn_poor": False}
    if flies or world(look, "wifi"):
        changed["wifi_connected"] = False
    return searched(look, **changed)


def _wifi(look: Look) -> Mapping[Place, Any]:
    return _set(wifi=not world(look, "wifi")) | ({("world", "wifi_connected"): False} if world(look, "wifi") else {})


def _reboots(look: Look) -> Mapping[Place, Any]:
    reset = {"apn_broken": False, "mmsc": True, "apn_reset": False} if world(look, "apn_reset") else {}
    return searched(look, **reset)


def _grants(look: Look) -> Mapping[Place, Any]:
    args = look.step.arguments
    return _set(apps=world(look, "apps") | 1 << 4 * APPS.index(args["app_name"]) + PERMISSIONS.index(args["permission"]))


_flips = lambda name: lambda look: _set(**{name: not world(look, name)})
_looks = lambda name: lambda look: searched(look, **{name: not world(look, name)})
_LINE_OF = {"customer_id": Param("customer_id", "lookup"), "line_id": Param("line_id", "lookup")}
_OWN = Need("the line is the caller's", lambda look: _line(look) >= 0 and _status(world(look, "lines"), _line(look)) != 0)
_status_is = lambda *allowed: Need("the line has the right status", lambda look: _line(look) >= 0 and _status(
    world(look, "lines"), _line(look)) in allowed)
_phone = lambda effects, *needs, **params: Action("write", params, needs, effects, who="user")
ACTIONS = {
    "get_customer_by_phone": Action("read", {"phone_number": Param("phone_number", "slot")}, (Need(
        "somebody has this number", lambda look: any(
            line["phone_number"] == look.step.arguments["phone_number"] for line in look.case.record["db"]["lines"])),)),
    "get_details_by_id": Action("read", {"id": Param("line_id", "lookup")}, (Need(
        "there is such a line", lambda look: any(
            line["line_id"] == look.step.arguments["id"] for line in look.case.record["db"]["lines"])),)),
    "get_bills_for_customer": Action("read", {"customer_id": Param("customer_id", "lookup")}, (Need(
        "there is such a customer", lambda look: any(customer["customer_id"] == look.step.arguments["customer_id"]
                                                     for customer in look.case.record["db"]["customers"])),)),
    "get_data_usage": Action("read", _LINE_OF, (Need("the line is the caller's", lambda look: _line(look) >= 0),)),
    "suspend_line": Action("write", {**_LINE_OF, "reason": Param("reason", "const")}, (_status_is(ACTIVE),),
                           _line_status(SUSPENDED)),
    "resume_line": Action("write", _LINE_OF, (_status_is(SUSPENDED, PENDING),), _line_status(ACTIVE)),
    "enable_roaming": Action("write", _LINE_OF, (_OWN,), _roaming(True)),
    "disable_roaming": Action("write", _LINE_OF, (_OWN,), _roaming(False)),
    "refuel_data": Action("write", {**_LINE_OF, "gb_amount": Param("gb_amount", "const")}, (_OWN,), _refuels),
    "send_payment_request": Action(
        "write", {"customer_id": Param("customer_id", "lookup"), "bill_id": Param("bill_id", "lookup")},
        (Need("it is a bill of the caller's", lambda look: _bill(look) >= 0),
         Need("no other bill awaits payment", lambda look: AWAITING not in _bills(look))),
        lambda look: _set(bills=_with(world(look, "bills"), _bill(look), AWAITING))),
    "transfer_to_human_agents": Action("generic", {"summary": Param("summary", "const")}),
    "toggle_airplane_mode": _phone(_airplane), "toggle_data": _phone(_looks("data")),
    "toggle_roaming": _phone(_looks("roaming")), "toggle_data_saver_mode": _phone(_flips("saver")),
    "toggle_wifi_calling": _phone(_flips("wifi_calling")),
    "toggle_wifi": _phone(_wifi, Need("the phone does not fly", lambda look: not world(look, "airplane"))),
    "set_network_mode_preference": _phone(
        lambda look: searched(look, mode=MODES.index(look.step.arguments["mode"])), mode=Param("mode", "const")),
    "reseat_sim_card": _phone(lambda look: searched(look, sim_missing=False)),
    "reset_apn_settings": _phone(lambda look: searched(look, apn_reset=True)),
    "connect_vpn": _phone(lambda look: _set(vpn=True, vpn_poor=False),
                          Need("it is off", lambda look: not world(look, "vpn"))),
    "disconnect_vpn": _phone(lambda look: _set(vpn=False, vpn_poor=False),
                             Need("it is on", lambda look: world(look, "vpn"))),
    "grant_app_permission": _phone(_grants, app_name=Param("app_name", "const"), permission=Param("permission", "const")),
    "reboot_device": _phone(_reboots),
    "make_payment": _phone(
        lambda look: _set(bills=_with(world(look, "bills"), _bills(look).index(AWAITING), PAID)),
        Need("a bill awaits payment", lambda look: AWAITING in _bills(look))),
}
