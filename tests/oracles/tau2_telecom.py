"""What our telecom simulator and upstream's say of one episode, in the same terms."""

import json
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax.core.part import Reply
from eau_jax.envs.message import reply_code
from eau_jax.envs.telecom.telecom import telecom_solo
from eau_jax.envs.telecom.agents import tool_call
from eau_jax.envs.telecom.text import Say, live_records
from eau_jax.envs.telecom.tools import (
    APPS, AWAITING, BILLS, CONNECTIONS, MODES, PERMISSIONS, SIGNALS, TECHS, first_bill, line_active, may_roam, over_quota)

RECORDS = ("get_customer_by_phone", "get_customer_by_id", "get_customer_by_name", "get_details_by_id",
           "get_bills_for_customer", "get_data_usage")


class Heard(NamedTuple):
    text: str
    error: bool


class Phone:
    """Our simulator in solo mode: both sides' tools, from the text of the call to the text of the answer."""

    def __init__(self, tasks):
        self.tasks, env = tasks, telecom_solo
        self.row = {task.id: place for place, task in enumerate(tasks)}
        self.table, key = env.table(tasks), jax.random.key(0)
        self.knobs = env.knobs.replace(max_turns=np.int32(200), max_errors=np.int32(64))
        self._reset = jax.jit(lambda index: env.reset(self.table, self.knobs, index, key))
        self._step = jax.jit(lambda state, act: env.step(self.table, self.knobs, state, act, jnp.int32(Reply.ANSWER), key))

    def start(self, task):
        return jax.device_get(self._reset(self.row[task.id]))

    def call(self, task, state, name, arguments):
        """(state, what the tool answers)."""
        act = telecom_solo.parse(task, tool_call(name, **arguments), state)
        state, time_step = jax.device_get(self._step(state, act))
        error = reply_code(time_step) in (Say.BAD_CALL, Say.FAILED, Say.MALFORMED)
        return state, Heard(telecom_solo.render(task, act, time_step, state, 0), error)

    def play(self, task, calls):
        """What the tools answer to (who, name, arguments)."""
        state, heard = self.start(task), []
        for _, name, arguments in calls:
            state, answer = self.call(task, state, name, arguments)
            heard.append(answer)
        return heard

    def fixed(self, task):
        return jax.tree.map(lambda leaf: leaf[self.row[task.id]], self.table.fixed)


def differences(phone, task, own, state, theirs):
    """Lines that say where our state and upstream's differ."""
    ours, upstream = ours_of(phone, task, own, state), theirs_of(theirs["user"])
    found = [f"{key}: ours {ours[key]}, theirs {upstream[key]}" for key in ours if ours[key] != upstream[key]]
    return found + company(task, own, state, theirs["agent"])


def ours_of(phone, task, own, state):
    world, fixed = state.world, phone.fixed(task)
    asked = int(first_bill(np, world, AWAITING))
    bills = [*(bill["bill_id"] for bill in own.bills)]
    bills += [own.opened["bill_id"]] * (BILLS - len(bills))
    return dict(
        sim_missing=bool(world.sim_missing), airplane=bool(world.airplane), signal=SIGNALS[int(world.signal)],
        tech=TECHS[int(world.tech)], connection=CONNECTIONS[int(world.connection)], data=bool(world.data),
        roaming=bool(world.roaming), mode=MODES[int(world.mode)], apn="broken" if world.apn_broken else "internet",
        apn_reset=bool(world.apn_reset), mmsc=bool(world.mmsc), wifi=bool(world.wifi),
        wifi_connected=bool(world.wifi_connected),
        wifi_calling=bool(world.wifi_calling), wifi_mms=bool(world.wifi_mms), saver=bool(world.saver), vpn=bool(world.vpn),
        vpn_poor=bool(world.vpn_poor), sim_lock=int(fixed.sim_lock), abroad=bool(fixed.abroad),
        line_active=bool(line_active(fixed, world)), may_roam=bool(may_roam(fixed, world)),
        over_quota=bool(over_quota(np, fixed, world)), asked=bills[asked] if asked < BILLS else None,
        apps={app: {name: bool(int(world.apps) >> 4 * k + bit & 1) for bit, name in enumerate(PERMISSIONS)}
              for k, app in enumerate(APPS)})


def theirs_of(user):
    device, around = user["device"], user["surroundings"]
    apn, vpn, request = device["active_apn_settings"], device["vpn_details"] or {}, around["payment_request"]
    return dict(
        sim_missing=device["sim_card_missing"], airplane=device["airplane_mode"], signal=device["network_signal_strength"],
        tech=device["network_technology_connected"], connection=device["network_connection_status"],
        data=device["data_enabled"], roaming=device["roaming_enabled"], mode=device["network_mode_preference"],
        apn=apn["apn_name"], apn_reset=apn["reset_at_reboot"], mmsc=apn["mmsc_url"] is not None, wifi=device["wifi_enabled"],
        wifi_connected=device["wifi_connected"], wifi_calling=device["wifi_calling_enabled"],
        wifi_mms=device["wifi_calling_mms_over_wifi"], saver=device["data_saver_mode"], vpn=device["vpn_connected"],
        vpn_poor=vpn.get("server_performance") == "poor",
        sim_lock=("active", "locked_pin", "locked_puk").index(device["sim_card_status"]), abroad=around["is_abroad"],
        line_active=around["line_active"], may_roam=around["roaming_allowed"],
        over_quota=around["mobile_data_usage_exceeded"], asked=request and request["bill_id"],
        apps={app: each["permissions"] for app, each in device["app_statuses"].items()})


def company(task, own, state, changed):
    """The same for the caller's lines, bills and customer record; `changed` holds upstream's that are not the file's."""
    found, bills = live_records(task, state)
    names = [("lines", line["line_id"]) for line in own.lines] + [("bills", bill["bill_id"]) for bill in bills]
    names.append(("customers", own.customer["customer_id"]))
    file = {table: {next(iter(record.values())): record for record in task.data["db"][table]} for table, _ in names}
    wrong = []
    for table, key in names:
        theirs = changed.get(table, {}).get(key) or file[table].get(key)
        ours, theirs = plain(found[key]), plain(theirs or {})
        wrong += [f"{table} {key}, {field}: ours {ours.get(field)}, theirs {theirs.get(field)}"
                  for field in sorted({*ours, *theirs}) if ours.get(field) != theirs.get(field)]
    return wrong


def renamed(answer, task, own):
    """(the answer with the bill that a refuel opened under our id, how many such bills a state holds)."""
    known = {bill["bill_id"] for bill in [*task.data["db"]["bills"], *own.bills]}
    new = [key for key in answer["end"]["agent"].get("bills", {}) if key not in known]
    if new:
        answer = json.loads(json.dumps(answer).replace(new[0], own.opened["bill_id"]))
    return answer, lambda state: sum(key not in known for key in state["agent"].get("bills", {}))


def facts(name, text):
    """What an answer says, free of its wording; None where that shows in the state."""
    if name in RECORDS:
        return plain(json.loads(text))
    if name == "run_speed_test":
        return [(float(mbps), level.lower()) for mbps, level in re.findall(r"([\d.]+) Mbps[ ,(]+([A-Za-z ]+)", text)]
    if name == "can_send_mms":
        return "cannot" in text
    if name == "check_payment_request":
        return re.findall(r"\bbill (\w+)", text)
    if name in ("check_app_status", "check_app_permissions"):
        named = re.findall(rf"\b({'|'.join(PERMISSIONS)})\b", text)
        return set() if "not found" in text or "no such" in text else set(named)
    return None


def plain(value):
    """A record without empty fields; numbers as rounded floats, dates as text; line items as their sum."""
    if isinstance(value, dict):
        items = {key: round(sum(item["amount"] for item in each), 2) if key == "line_items" else plain(each)
                 for key, each in value.items()}
        return {key: each for key, each in items.items() if each not in (None, [], 0.0)}
    if isinstance(value, list):
        return [plain(each) for each in value]
    try:
        return round(float(value), 3)
    except (TypeError, ValueError):
        is_date = re.match(r"\d{4}-\d\d-\d\d", str(value))
        return None if value is None else str(value).replace(" ", "T") if is_date else str(value)
