"""Scripted agents of the Telecom world, and plain words for every act.

The expert follows a workflow: it identifies the customer, checks one thing after the other and mends what a check shows
before it goes on, so that what it does next can always be read from the conversation.
"""

import json
from typing import Any

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs.tau2.message import DONE
from eau_jax.envs.telecom.codes import FIRST_PHONE, LAST_PHONE, Do
from eau_jax.envs.telecom.goal import TEST, Fault, Intent, faults, met
from eau_jax.envs.telecom.parse import FACTS, LOCATION, NAME, PHONE, REFUEL
from eau_jax.envs.telecom.records import account, caller, records
from eau_jax.envs.telecom.schema import PARAMETERS
from eau_jax.envs.telecom.start import fixed_arrays
from eau_jax.envs.telecom.tools import APPS, AWAITING, BILLS, MODES, NEXT_BILL, OPENED, PERMISSIONS, first_bill

NOVICE_SKILL = 0.3
# What to check, in order, and the faults that it shows. A fact is asked for, a tool called, a phone action asked for.
_LINE, _NETWORK, _PLACE = Do.GET_DETAILS_BY_ID, Do.CHECK_NETWORK_STATUS, -LOCATION
_ONLINE = ((_NETWORK, (Fault.SIM_LOCKED, Fault.AIRPLANE, Fault.SIM_MISSING, Fault.DATA_OFF, Fault.STALE)),
           (_PLACE, (Fault.ROAMING_OFF,)),
           (_LINE, (Fault.CONTRACT_ENDED, Fault.LINE_INACTIVE, Fault.LINE_ROAMING_OFF, Fault.STALE)),
           (Do.GET_DATA_USAGE, (Fault.QUOTA_USED,)), (Do.CHECK_NETWORK_MODE_PREFERENCE, (Fault.BAD_MODE,)))
_PLAN: dict[Intent, tuple[tuple[int, tuple[Fault, ...]], ...]] = {
    Intent.SERVICE: ((_NETWORK, (Fault.SIM_LOCKED, Fault.AIRPLANE, Fault.SIM_MISSING)),
                     (_LINE, (Fault.CONTRACT_ENDED, Fault.BILL_UNPAID, Fault.LINE_INACTIVE)),
                     (Do.CHECK_APN_SETTINGS, (Fault.APN_BROKEN, Fault.STALE))),
    Intent.DATA: (*_ONLINE, (Do.CHECK_DATA_RESTRICTION_STATUS, (Fault.SAVER_ON,)), (Do.CHECK_VPN_STATUS, (Fault.VPN_POOR,)),
                  (Do.CHECK_APN_SETTINGS, (Fault.APN_BROKEN, Fault.STALE))),
    Intent.MMS: (*_ONLINE, (Do.CHECK_WIFI_CALLING_STATUS, (Fault.WIFI_MMS,)),
                 (Do.CHECK_APP_PERMISSIONS, (Fault.NO_SMS, Fault.NO_STORAGE)),
                 (Do.CHECK_APN_SETTINGS, (Fault.APN_BROKEN, Fault.MMSC_MISSING, Fault.STALE))),
}
_SWITCHES = {Do.TOGGLE_AIRPLANE_MODE: "airplane mode", Do.TOGGLE_DATA: "mobile data", Do.TOGGLE_ROAMING: "data roaming",
             Do.TOGGLE_DATA_SAVER_MODE: "data saver", Do.TOGGLE_WIFI: "Wi-Fi", Do.TOGGLE_WIFI_CALLING: "Wi-Fi calling"}
_REQUESTS = {
    Do.CHECK_STATUS_BAR: "Please check the status bar.", Do.CHECK_NETWORK_STATUS: "Please check the network status.",
    Do.CHECK_NETWORK_MODE_PREFERENCE: "Please check the network mode.", Do.RUN_SPEED_TEST: "Please run a speed test.",
    Do.CHECK_SIM_STATUS: "Please check the SIM card.", Do.RESEAT_SIM_CARD: "Please reseat the SIM card.",
    Do.CHECK_DATA_RESTRICTION_STATUS: "Please check the data saver.",
    Do.CHECK_APN_SETTINGS: "Please check the APN settings.",
    Do.RESET_APN_SETTINGS: "Please reset the APN settings.", Do.CHECK_WIFI_STATUS: "Please check Wi-Fi.",
    Do.CHECK_WIFI_CALLING_STATUS: "Please check Wi-Fi calling.", Do.CHECK_VPN_STATUS: "Please check the VPN.",
    Do.CONNECT_VPN: "Please connect the VPN.", Do.DISCONNECT_VPN: "Please disconnect the VPN.",
    Do.CHECK_INSTALLED_APPS: "Please check the installed apps.", Do.CAN_SEND_MMS: "Please try to send a picture message.",
    Do.REBOOT_DEVICE: "Please restart the phone.", Do.CHECK_PAYMENT_REQUEST: "Please check the payment request.",
    Do.MAKE_PAYMENT: "Please pay the bill.",
}
_FACTS = {NAME: "What is your name?", PHONE: "What is your phone number?", LOCATION: "Are you abroad?",
          REFUEL: "Do you want to refuel data?"}
_CHAT = ("Hello!", "Thank you.", "I see.")


def words(code: int, a: int = 0, b: int = 0, c: int = 0, mask: int = 0) -> str:
    """What to say for an act that is words; `parse` reads it back."""
    if code == Do.ASK:
        return " ".join(text for fact, text in _FACTS.items() if mask & fact)
    if code in _SWITCHES:
        return (f"Please turn {_SWITCHES[Do(code)]} {'on' if a == 1 else 'off'}." if a in (0, 1) else
                f"Please toggle {_SWITCHES[Do(code)]}.")
    app, permission = APPS[a % len(APPS)], PERMISSIONS[b % len(PERMISSIONS)]
    special = {
        Do.SET_NETWORK_MODE_PREFERENCE: f"Please set the network mode to {MODES[a % len(MODES)]}.",
        Do.SET_APN_SETTINGS: f"Please set the APN to {'broken' if a else 'internet'} {'with' if b else 'without'} MMSC "
                             f"address{', to be reset later' if c else ''}.",
        Do.CHECK_APP_STATUS: f"Please check the {app} app.",
        Do.CHECK_APP_PERMISSIONS: f"Please check the permissions of the {app} app.",
        Do.GRANT_APP_PERMISSION: f"Please give the {app} app the {permission} permission.",
        Do.ASK_SOLVED: "Does it work now?", Do.ANNOUNCE: "You are being transferred. Please hold on.", Do.CHAT: _CHAT[0],
        Do.MALFORMED: "<tool_call>"}
    return special.get(Do(code)) or _REQUESTS[Do(code)]


def tool_call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def called(task: Task, code: int, a: int = 0, b: int = 0, c: int = 0, amount: float = 0.0) -> str:
    """A tool call for an act of a tool; it is read back as this act. A negative `a` becomes an id that does not exist."""
    own, db, do = account(task.data), task.data["db"], Do(code)
    place = lambda known, key: known[a][key] if 0 <= a < len(known) else "X0"
    values: dict[str, Any] = {
        "customer_id": own.customer["customer_id"], "line_id": place(own.lines, "line_id"), "reason": "asked",
        "bill_id": own.opened["bill_id"] if a == NEXT_BILL else place(own.bills, "bill_id"), "gb_amount": amount,
        "summary": "It cannot be mended.", "app_name": APPS[a % len(APPS)], "permission": PERMISSIONS[b % len(PERMISSIONS)],
        "mode": MODES[a % len(MODES)], "apn_settings": {"apn_name": "broken" if a == 1 else "internet",
                                                        "reset_at_reboot": c == 1, **({} if b == 1 else {"mmsc_url": None})}}
    if do in (Do.GET_CUSTOMER_BY_PHONE, Do.GET_CUSTOMER_BY_ID, Do.GET_CUSTOMER_BY_NAME, Do.GET_BILLS_FOR_CUSTOMER):
        people = db["customers"]
        values |= {"phone_number": place(people, "phone_number"), "customer_id": place(people, "customer_id"),
                   "full_name": place(people, "full_name"), "dob": place(people, "date_of_birth"), "limit": b}
    if do == Do.GET_DATA_USAGE:
        line = place(db["lines"], "line_id")
        owner = [person for person in db["customers"] if line in person["line_ids"]]
        values |= {"line_id": line, "customer_id": (owner or [own.customer])[0]["customer_id"]}
    if do == Do.GET_DETAILS_BY_ID:
        known = list(records(task.data, own))
        values["id"] = own.opened["bill_id"] if a == OPENED else known[a] if 0 <= a < len(known) else "X0"
    return tool_call(do.name.lower(), **{key: values[key] for key in PARAMETERS[do]["properties"]})


def expert(task: Task, state: Any, rng: np.random.Generator) -> str:
    """Checks and mends one thing after the other; transfers what cannot be mended."""
    if int(state.tools) >> Do.TRANSFER_TO_HUMAN_AGENTS & 1:
        return words(Do.ANNOUNCE)
    told = int(state.told)
    if not told & PHONE:
        return words(Do.ASK, mask=PHONE)
    kind, code, a, b = _next(task, state, told, solo=False)
    if kind == "ask":
        return words(Do.ASK, mask=code)
    return words(code, a, b) if code >= FIRST_PHONE else _tool(task, code)


def expert_solo(task: Task, state: Any, rng: np.random.Generator) -> str:
    """The same, with both sets of tools in hand."""
    if int(state.tools) >> Do.TRANSFER_TO_HUMAN_AGENTS & 1:
        return tool_call(DONE)
    kind, code, a, b = _next(task, state, FACTS, solo=True)
    return tool_call(DONE) if kind == "end" else called(task, code, a, b) if code >= FIRST_PHONE else _tool(task, code)


def novice(task: Task, state: Any, rng: np.random.Generator) -> str:
    """A mediocre agent: one time in three it does what the expert does, else it chats, changes anything, or gives up."""
    draw = rng.random()
    if draw < NOVICE_SKILL:
        return expert(task, state, rng)
    if draw < NOVICE_SKILL + 0.03:
        return words(Do.ANNOUNCE)
    if draw < NOVICE_SKILL + 0.2:
        return _CHAT[int(rng.integers(len(_CHAT)))]
    if draw < NOVICE_SKILL + 0.25:
        return _tool(task, Do.GET_BILLS_FOR_CUSTOMER)
    code = int(rng.integers(FIRST_PHONE, LAST_PHONE + 1))
    return words(code, int(rng.integers(2)), int(rng.integers(4)))


def novice_solo(task: Task, state: Any, rng: np.random.Generator) -> str:
    """The same in solo mode."""
    draw = rng.random()
    if draw < NOVICE_SKILL:
        return expert_solo(task, state, rng)
    if draw < NOVICE_SKILL + 0.05:
        return tool_call(DONE)
    return called(task, int(rng.integers(FIRST_PHONE, LAST_PHONE + 1)), int(rng.integers(2)), int(rng.integers(2)))


def _next(task: Task, state: Any, told: int, solo: bool) -> tuple[str, int, int, int]:
    """("ask", fact), or ("do", code, a, b), or ("end", the user's own test)."""
    fixed, wanted = fixed_arrays(task.data)
    intent, world = Intent(int(wanted.intent)), state.world
    left, tools, phone = int(faults(np, fixed, world, wanted.intent)), int(state.tools), int(state.phone)
    if not solo and not tools >> Do.GET_CUSTOMER_BY_PHONE & 1:
        return "do", Do.GET_CUSTOMER_BY_PHONE, 0, 0
    for check, shown in _PLAN[intent]:
        if check == _PLACE:
            if not told & LOCATION:
                return "ask", LOCATION, 0, 0
        elif not (phone >> (check - FIRST_PHONE) if check >= FIRST_PHONE else tools >> check) & 1:
            return "do", check, 0, 0
        for fault in shown:
            if left >> fault & 1:
                return _remedy(fault, world, tools, told)
    if solo and bool(met(np, fixed, world, wanted, np.bool_(False))):
        return "end", Do.FINISH, 0, 0
    return "do", Do.ASK_SOLVED if not solo else TEST[intent], 0, 0


def _remedy(fault: Fault, world: Any, tools: int, told: int) -> tuple[str, int, int, int]:
    """The next step against a fault."""
    if fault == Fault.BILL_UNPAID:
        if not tools >> Do.GET_BILLS_FOR_CUSTOMER & 1:
            return "do", Do.GET_BILLS_FOR_CUSTOMER, 0, 0
        asked = int(first_bill(np, world, AWAITING)) < BILLS
        return "do", Do.MAKE_PAYMENT if asked else Do.SEND_PAYMENT_REQUEST, 0, 0
    if fault == Fault.QUOTA_USED and not told & REFUEL:
        return "ask", REFUEL, 0, 0
    reset = Do.REBOOT_DEVICE if world.apn_reset else Do.RESET_APN_SETTINGS
    return "do", *{
        Fault.SIM_LOCKED: (Do.TRANSFER_TO_HUMAN_AGENTS, 0, 0), Fault.CONTRACT_ENDED: (Do.TRANSFER_TO_HUMAN_AGENTS, 0, 0),
        Fault.AIRPLANE: (Do.TOGGLE_AIRPLANE_MODE, 0, 0), Fault.SIM_MISSING: (Do.RESEAT_SIM_CARD, 0, 0),
        Fault.APN_BROKEN: (reset, 0, 0), Fault.MMSC_MISSING: (reset, 0, 0), Fault.LINE_INACTIVE: (Do.RESUME_LINE, 0, 0),
        Fault.STALE: (Do.REBOOT_DEVICE, 0, 0), Fault.DATA_OFF: (Do.TOGGLE_DATA, 1, 0),
        Fault.ROAMING_OFF: (Do.TOGGLE_ROAMING, 1, 0), Fault.LINE_ROAMING_OFF: (Do.ENABLE_ROAMING, 0, 0),
        Fault.QUOTA_USED: (Do.REFUEL_DATA, 0, 0), Fault.BAD_MODE: (Do.SET_NETWORK_MODE_PREFERENCE, 0, 0),
        Fault.SAVER_ON: (Do.TOGGLE_DATA_SAVER_MODE, 0, 0), Fault.VPN_POOR: (Do.DISCONNECT_VPN, 0, 0),
        Fault.WIFI_MMS: (Do.TOGGLE_WIFI_CALLING, 0, 0), Fault.NO_SMS: (Do.GRANT_APP_PERMISSION, 0, 0),
        Fault.NO_STORAGE: (Do.GRANT_APP_PERMISSION, 0, 1)}[fault]


def _tool(task: Task, code: int) -> str:
    """The expert's call of an agent's tool, about the caller."""
    own, do = account(task.data), Do(code)
    unpaid = own.bills[-1]["bill_id"] if own.bills else "B0"
    values = {"customer_id": own.customer["customer_id"], "line_id": own.lines[own.line]["line_id"], "bill_id": unpaid,
              "phone_number": caller(task.data).phone, "summary": "It cannot be mended.", "gb_amount": 2.0}
    values["id"] = values["line_id"]
    return tool_call(do.name.lower(), **{key: values[key] for key in PARAMETERS[do]["properties"] if key in values})
