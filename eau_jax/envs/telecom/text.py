"""Telecom in words: prompts, tool outputs, what the user says, and the agent's own plain words for every act."""

import enum
import json
from typing import Any, Mapping

import numpy as np

from eau_jax.core.part import Act, TimeStep
from eau_jax.core.types import Task
from eau_jax.envs import message
from eau_jax.envs.tau2.message import DONE
from eau_jax.envs.telecom.codes import ON_LINES, WRITES, Do
from eau_jax.envs.telecom.goal import Intent
from eau_jax.envs.telecom.parse import LOCATION, NAME, PHONE, REFUEL
from eau_jax.envs.telecom.records import TODAY, account, caller, records
from eau_jax.envs.telecom.schema import AGENT_TOOLS, PARAMETERS, PHONE_TOOLS
from eau_jax.envs.telecom.start import fixed_arrays, goal
from eau_jax.envs.telecom.tools import (
    APPS, AWAITING, BILLS, BILL_STATUS, CONNECTIONS, LINE_STATUS, MODES, NEXT_BILL, OPENED, PERMISSIONS, SIGNALS, SPEEDS,
    SUSPENDED, TECHS, UNKNOWN_CUSTOMER, first_bill, nibble, sends_mms, speed, speed_class)

class Phase(enum.IntEnum):
    """How the user feels about the talk."""

    WAITING = 0
    FRUSTRATED = 1
    SATISFIED = 2
    HANDED_OVER = 3
    LEFT = 4


class Say(enum.IntEnum):
    """`TimeStep.code`."""

    MALFORMED = 0       # how to write
    OUTPUT = 1          # what the agent's tool returns
    FAILED = 2          # why it does not
    BAD_CALL = 3        # there is no such tool, or its arguments are wrong
    REPORT = 4          # what the phone shows after the action
    ANNOYED = 5         # the same, and it was in vain again
    UNCHANGED = 6       # nothing was to be done on the phone
    TOLD = 7            # the facts in `disclosed`
    VOLUNTEERED = 8     # the same, unasked
    REFUSED = 9
    UNCLEAR = 10
    ONE_AT_A_TIME = 11
    PUZZLED = 12        # wants a phone action explained
    WAITING = 13        # wants to be told what to do
    NOT_SOLVED = 14
    SOLVED = 15         # ends the talk
    TRANSFERRED = 16    # ends the talk
    LEFT = 17
    ENDED = 18


HOW = ('Write either words to the customer or one tool call: <tool_call>{"name": "...", "arguments": {...}}</tool_call>. '
       "Never both in one message.")
SYSTEM = ("You work for a phone company. A customer's phone has a fault. " + HOW + " First ask for the phone number and "
          "look the customer up. You cannot touch the phone: ask the customer to check or change one thing at a time. Check "
          "before you change. A line suspended for an unpaid bill: send a payment request, have it paid, resume the line, "
          "have the phone restarted. Data used up: ask how much to add (2 GB at most), then refuel. Abroad, roaming must be "
          "on for phone and line. If the contract has ended or the SIM is locked, call transfer_to_human_agents, then "
          "write: You are being transferred. Please hold on.")
SOLO = ("You work for a phone company and mend the fault in the ticket. Write one tool call a message: "
        '<tool_call>{"name": "...", "arguments": {...}}</tool_call>. You may use the phone\'s tools too. Call done when the '
        "fault is mended. If the contract has ended or the SIM is locked, call transfer_to_human_agents, then done.")
_ISSUE = {Intent.SERVICE: "My phone has no service.",
          Intent.DATA: "My mobile data does not work, or it is very slow. I want excellent speed.",
          Intent.MMS: "I cannot send picture messages (MMS)."}
_UNREADABLE = {Say.MALFORMED: HOW, Say.BAD_CALL: "Error: there is no such tool, or its arguments are wrong."}
_WORDS: dict[Say, tuple[str, ...]] = {
    Say.REFUSED: ("I do not want that.", "No, I would rather not."),
    Say.UNCLEAR: ("I do not understand. What shall I do?", "Can you say that differently?"),
    Say.ONE_AT_A_TIME: ("I can only do one thing at a time. What first?", "Please, one step at a time."),
    Say.PUZZLED: ("How do I do that?", "I am not good with phones. What does that mean?"),
    Say.WAITING: ("What shall I do?", "Okay. And now?"),
    Say.NOT_SOLVED: ("No, it still does not work.", "It is not solved yet."),
    Say.SOLVED: ("It works now. Thank you! ###STOP###", "Great, that solved it. ###STOP###"),
    Say.TRANSFERRED: ("Okay. ###TRANSFER###",),
    Say.LEFT: ("I give up. Goodbye.",),
    Say.ENDED: ("Done.",),
}


def prompt(task: Task) -> tuple[str, str]:
    """(system text, the user's first message). A loaded task's own policy stands in place of the short one."""
    return _system(task, "policy", SYSTEM, HOW, AGENT_TOOLS), _ISSUE[Intent(goal(task.data, account(task.data)).intent)]


def prompt_solo(task: Task) -> tuple[str, str]:
    """(system text, the ticket)."""
    return _system(task, "policy_solo", SOLO, SOLO, AGENT_TOOLS | PHONE_TOOLS | {DONE: Do.FINISH}), task.data["ticket"]


def _system(task: Task, key: str, short: str, how: str, tools: Mapping[str, Do]) -> str:
    if key not in task.data:
        signatures = [f"{name}({', '.join(PARAMETERS[do]['properties'])})" for name, do in tools.items()]
        return f"{short} Tools: {', '.join(signatures)}."
    schemas = [{"name": name, "parameters": PARAMETERS[do]} for name, do in tools.items()]
    return "\n".join([task.data[key], how, "Tools:", *map(json.dumps, schemas)])


def render(task: Task, act: Act, time_step: TimeStep, state: Any, seed: int) -> str:
    """The reply: a tool's output, or the user's words; `seed` picks among wordings."""
    say = Say(message.reply_code(time_step))
    if say in _WORDS:
        body = _WORDS[say][seed % len(_WORDS[say])]
    elif say in (Say.MALFORMED, Say.BAD_CALL):
        body = json.loads(act.call) if act.call else _UNREADABLE[say]
    elif say is Say.OUTPUT:
        body = _output(task, act, state)
    elif say is Say.FAILED:
        body = _failure(task, act, state)
    elif say in (Say.TOLD, Say.VOLUNTEERED):
        told = " ".join(_fact(task, slot) for slot in range(4) if int(time_step.disclosed) >> slot & 1)
        body = told if say is Say.TOLD else f"By the way: {told}"
    else:
        shown = report(task, act, state, unchanged=say is Say.UNCHANGED)
        body = shown if time_step.tool else f'It says: "{shown}"'
        body += " This is annoying." if say is Say.ANNOYED else ""
    return body + message.reward_note(time_step)


def disclosed(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """The values of the facts in `mask`."""
    return tuple(_value(task, slot) for slot in range(4) if int(mask) >> slot & 1)


def secrets(task: Task, mask: int, seed: int) -> tuple[str, ...]:
    """The values of the facts that are not in `mask`."""
    return tuple(_value(task, slot) for slot in range(4) if not int(mask) >> slot & 1)


def _value(task: Task, slot: int) -> str:
    person = caller(task.data)
    return {NAME: person.name, PHONE: person.phone, LOCATION: "abroad" if person.abroad else "at home",
            REFUEL: "2 GB"}[1 << slot]


def _fact(task: Task, slot: int) -> str:
    return {NAME: "My name is {}.", PHONE: "My number is {}.", LOCATION: "I am {}.",
            REFUEL: "Yes, add {} please."}[1 << slot].format(_value(task, slot))


def live_line(record: Mapping[str, Any], slot: int, world: Any) -> dict[str, Any]:
    """A line of the account as it is now."""
    status, added = int(nibble(world.lines, slot)), round(float(world.refuel[slot]), 4)
    line = dict(record) | {"status": LINE_STATUS[status], "roaming_enabled": bool(int(world.line_roaming) >> slot & 1)}
    if added or "data_refueling_gb" in record:
        line["data_refueling_gb"] = added
    if int(world.redated) >> slot & 1:
        line.pop("suspension_start_date", None)
        line |= {"suspension_start_date": TODAY} if status == SUSPENDED else {}
    return line


def live_records(task: Task, state: Any) -> tuple[dict[str, Mapping[str, Any]], list[Mapping[str, Any]]]:
    """(every record of the company by its id, the caller's bills), as they are now."""
    own, world = account(task.data), state.world
    found, used = records(task.data, own), caller(task.data).used
    for slot, line in enumerate(own.lines):
        known = line if used is None or slot != own.line else dict(line) | {"data_used_gb": used}
        found[line["line_id"]] = live_line(known, slot, world)
    bills = []
    for slot, bill in [*enumerate(own.bills), (NEXT_BILL, own.opened)]:
        status = int(nibble(world.bills, slot))
        charge = float(world.charged[int(slot == NEXT_BILL)]) if slot == NEXT_BILL or bill["status"] == "Draft" else 0.0
        now = dict(bill) | {"status": BILL_STATUS[status], "total_due": round(bill["total_due"] + charge, 2)}
        if "line_items" in bill and charge:
            now["line_items"] = [*bill["line_items"], {"description": "Data refueling", "amount": round(charge, 2),
                                                       "date": TODAY, "item_type": "Charge"}]
        found[bill["bill_id"]] = now
        bills += [now] if status else []
    customer = own.customer["customer_id"]
    found[customer] = dict(own.customer) | {"bill_ids": [bill["bill_id"] for bill in bills]}
    return found, bills


def _output(task: Task, act: Act, state: Any) -> str:
    """What a successful call of an agent's tool returns."""
    code, a, b = Do(int(act.code)), int(act.values[0]), int(act.values[1])
    own, db = account(task.data), task.data["db"]
    found, bills = live_records(task, state)
    show = lambda value: json.dumps(value, separators=(",", ":"))
    pick = lambda known: known[a % len(known)]
    if code == Do.GET_DETAILS_BY_ID:
        return show(found[own.opened["bill_id"] if a == OPENED else pick(list(found))])
    if code in (Do.GET_CUSTOMER_BY_PHONE, Do.GET_CUSTOMER_BY_ID, Do.GET_CUSTOMER_BY_NAME):
        customer = found[pick(db["customers"])["customer_id"]]
        return show(customer) if code != Do.GET_CUSTOMER_BY_NAME else show([customer] if a >= 0 else [])
    if code == Do.GET_BILLS_FOR_CUSTOMER:
        customer = pick(db["customers"])
        owed = bills if customer is own.customer else [found[bill] for bill in customer["bill_ids"]]
        return show(sorted(owed, key=lambda bill: bill.get("issue_date", ""), reverse=True)[:b])
    if code == Do.GET_DATA_USAGE:
        line = found[pick(db["lines"])["line_id"]]
        return show({"line_id": line["line_id"], "data_used_gb": line["data_used_gb"],
                     "data_limit_gb": own.plans[line["plan_id"]]["data_limit_gb"],
                     "data_refueling_gb": line.get("data_refueling_gb", 0.0), "cycle_end_date": "2025-02-28"})
    if code == Do.SEND_PAYMENT_REQUEST:
        return "Payment request sent."
    line = own.lines[a % len(own.lines)]
    price = own.plans[line["plan_id"]]["data_refueling_price_per_gb"]
    return {Do.SUSPEND_LINE: f"Line {line['line_id']} is suspended.", Do.RESUME_LINE: f"Line {line['line_id']} is active.",
            Do.ENABLE_ROAMING: f"Roaming is on for line {line['line_id']}.",
            Do.DISABLE_ROAMING: f"Roaming is off for line {line['line_id']}.",
            Do.TRANSFER_TO_HUMAN_AGENTS: "Transfer successful.",
            Do.REFUEL_DATA: f"Added {float(act.values[3]):g} GB for ${price * float(act.values[3]):.2f}."}.get(code, "Done.")


def _failure(task: Task, act: Act, state: Any) -> str:
    """Why a tool declined a well-formed call."""
    code, a = Do(int(act.code)), int(act.values[0])
    own, world = account(task.data), state.world
    if a == UNKNOWN_CUSTOMER:
        return "Error: this is not the customer's id."
    if code == Do.SEND_PAYMENT_REQUEST and (a < 0 or not int(nibble(world.bills, a))):
        return "Error: the customer has no such bill."
    if code == Do.SEND_PAYMENT_REQUEST:
        return "Error: a bill is awaiting payment already; one request at a time."
    if code in ON_LINES and not 0 <= a < len(own.lines):
        return "Error: the customer has no such line."
    if code in (Do.SUSPEND_LINE, Do.RESUME_LINE):
        wanted = "Active" if code == Do.SUSPEND_LINE else "Suspended or Pending Activation"
        return f"Error: the line is {LINE_STATUS[int(nibble(world.lines, a))]}; it must be {wanted}."
    return {Do.REFUEL_DATA: "Error: gb_amount must be positive.",
            Do.GET_CUSTOMER_BY_PHONE: "Error: no customer has this number."}.get(code, "Error: not found.")


def status_bar(world: Any) -> str:
    if world.airplane:
        parts = ["airplane mode"]
    else:
        online = bool(world.data) and int(world.tech) > 0
        parts = [f"signal {SIGNALS[int(world.signal)]}", *([TECHS[int(world.tech)]] if int(world.tech) else []),
                 "data on" if online else "data off", *(["data saver"] if online and world.saver else [])]
    parts += (["Wi-Fi"] if world.wifi and world.wifi_connected else []) + (["VPN"] if world.vpn else [])
    return f"Status bar: {', '.join(parts)}."


def report(task: Task, act: Act, state: Any, unchanged: bool) -> str:
    """What the phone shows after an action."""
    code, a, b, world = Do(int(act.code)), int(act.values[0]), int(act.values[1]), state.world
    on = lambda value: "on" if value else "off"
    app = APPS[a] if 0 <= a < len(APPS) else "unknown"
    own = account(task.data)
    if code in (Do.CHECK_PAYMENT_REQUEST, Do.MAKE_PAYMENT):
        if code == Do.MAKE_PAYMENT and not unchanged:
            return "The bill is paid."
        slot = int(first_bill(np, world, AWAITING))
        bills = [*own.bills, own.opened]
        known = bills[min(slot, len(bills) - 1)] if slot < BILLS else None
        return f"Payment request: bill {known['bill_id']}." if known else "There is no payment request."
    switches = {Do.TOGGLE_AIRPLANE_MODE: ("Airplane mode", world.airplane), Do.TOGGLE_DATA: ("Mobile data", world.data),
                Do.TOGGLE_ROAMING: ("Data roaming", world.roaming), Do.TOGGLE_DATA_SAVER_MODE: ("Data saver", world.saver),
                Do.TOGGLE_WIFI: ("Wi-Fi", world.wifi), Do.TOGGLE_WIFI_CALLING: ("Wi-Fi calling", world.wifi_calling)}
    if code in switches:
        what, now = switches[code]
        return f"{what} {'was already' if unchanged else 'is now'} {on(now)}. {status_bar(world)}"
    if unchanged:
        return f"Nothing changed. {status_bar(world)}"
    if code in WRITES:
        done = {Do.SET_NETWORK_MODE_PREFERENCE: f"Network mode is {MODES[int(world.mode)]}.",
                Do.RESEAT_SIM_CARD: "The SIM card is reseated.",
                Do.RESET_APN_SETTINGS: "The APN is reset at the next restart.",
                Do.SET_APN_SETTINGS: "The APN is set.", Do.CONNECT_VPN: "The VPN is connected.",
                Do.DISCONNECT_VPN: "The VPN is disconnected.", Do.REBOOT_DEVICE: "The phone has restarted.",
                Do.GRANT_APP_PERMISSION: f"The {app} app may use {PERMISSIONS[b % len(PERMISSIONS)]}."}[code]
        return f"{done} {status_bar(world)}"
    return _check(task, code, app, world)


def _check(task: Task, code: Do, app: str, world: Any) -> str:
    on = lambda value: "on" if value else "off"
    fixed, _ = fixed_arrays(task.data)
    if code == Do.RUN_SPEED_TEST:
        mbps = float(speed(np, fixed, world))
        return f"{mbps:.2f} Mbps, {SPEEDS[int(speed_class(np, mbps))]}." if mbps >= 0 else "No connection."
    if code == Do.CAN_SEND_MMS:
        return f"Picture messages {'can' if sends_mms(np, fixed, world) else 'cannot'} be sent."
    sim = "missing" if world.sim_missing else ("active", "locked with a PIN", "locked with a PUK")[int(fixed.sim_lock)]
    granted = [name for k, name in enumerate(PERMISSIONS) if app in APPS and int(world.apps) >> 4 * APPS.index(app) + k & 1]
    permissions = f"The {app} app may use: {', '.join(granted) or 'nothing'}." if app in APPS else "There is no such app."
    return {
        Do.CHECK_STATUS_BAR: status_bar(world), Do.CHECK_SIM_STATUS: f"The SIM card is {sim}.",
        Do.CHECK_NETWORK_STATUS: f"Airplane mode {on(world.airplane)}, SIM {sim}, {CONNECTIONS[int(world.connection)]}, "
        f"signal {SIGNALS[int(world.signal)]}, {TECHS[int(world.tech)]}, data {on(world.data)}, "
        f"roaming {on(world.roaming)}, Wi-Fi {on(world.wifi)}.",
        Do.CHECK_NETWORK_MODE_PREFERENCE: f"Network mode is {MODES[int(world.mode)]}.",
        Do.CHECK_DATA_RESTRICTION_STATUS: f"Data saver is {on(world.saver)}.",
        Do.CHECK_APN_SETTINGS: f"APN name {'broken' if world.apn_broken else 'internet'}, MMSC address "
        f"{'set' if world.mmsc else 'not set'}.",
        Do.CHECK_WIFI_STATUS: f"Wi-Fi is {on(world.wifi)}{' and connected' if world.wifi_connected else ''}.",
        Do.CHECK_WIFI_CALLING_STATUS: f"Wi-Fi calling is {on(world.wifi_calling)}.",
        Do.CHECK_VPN_STATUS: f"The VPN is connected, its server is {'slow' if world.vpn_poor else 'fast'}."
        if world.vpn else "The VPN is off.",
        Do.CHECK_INSTALLED_APPS: f"Installed apps: {', '.join(APPS)}.",
        Do.CHECK_APP_STATUS: permissions, Do.CHECK_APP_PERMISSIONS: permissions,
    }.get(code, "Nothing happened.")
