"""Telecom tasks as arrays: the start state, what is fixed, the goal, and the gold calls. Numpy, one row a task."""

import enum
import re
from typing import Any, Mapping, Sequence

import jax
import numpy as np

from eau_jax.envs import file
from eau_jax.envs.tau2.call import Refused
from eau_jax.envs.telecom.codes import Do
from eau_jax.envs.telecom.goal import Goal, Intent
from eau_jax.envs.telecom.records import Account, Call, account, caller, encode, starts
from eau_jax.envs.telecom.schema import AGENT_TOOLS, PHONE_TOOLS
from eau_jax.envs.telecom.tools import (
    APPS, BILL_STATUS, CONNECTIONS, LINES, LINE_STATUS, MODES, OVERDUE, PERMISSIONS, SIGNALS, SPEEDS, SUSPENDED, TECHS,
    Fixed, World, agent_tool, phone_tool, searched, with_nibble)

SIGNAL_AT = dict(zip(TECHS, SIGNALS))   # by technology, where the record says nothing of the surroundings

PERSONAS = ("None", "Easy", "Hard")
HARD = 2
_PERSONA = re.compile(r"\[PERSONA:(None|Easy|Hard)\]")


class _Extra(enum.IntEnum):
    """What a start action does beyond what a tool can do."""

    NONE = 0
    UNSEAT_SIM = 1
    BREAK_APN = 2
    BREAK_MMSC = 3
    WIFI_MMS_OFF = 4
    WIFI_MMS_ON = 5
    BREAK_VPN = 6
    REMOVE_PERMISSION = 7
    SUSPEND_UNPAID = 8
    DATA_ON = 9


# name -> (tool, wanted state, extra, 1 where the phone looks for a network afterwards)
_ACTIONS: dict[str, tuple[Do, int, _Extra, int]] = {
    "set_user_info": (Do.MALFORMED, 0, _Extra.NONE, 0),       # these four are read by `caller`
    "set_user_location": (Do.MALFORMED, 0, _Extra.NONE, 0),
    "set_data_usage": (Do.MALFORMED, 0, _Extra.NONE, 0),
    "lock_sim_card": (Do.MALFORMED, 0, _Extra.NONE, 1),
    "turn_airplane_mode_on": (Do.TOGGLE_AIRPLANE_MODE, 1, _Extra.NONE, 1),
    "turn_airplane_mode_off": (Do.TOGGLE_AIRPLANE_MODE, 0, _Extra.NONE, 1),
    "turn_data_on": (Do.MALFORMED, 0, _Extra.DATA_ON, 0),
    "turn_data_off": (Do.TOGGLE_DATA, 0, _Extra.NONE, 1),
    "turn_roaming_on": (Do.TOGGLE_ROAMING, 1, _Extra.NONE, 1),
    "turn_roaming_off": (Do.TOGGLE_ROAMING, 0, _Extra.NONE, 1),
    "turn_data_saver_mode_on": (Do.TOGGLE_DATA_SAVER_MODE, 1, _Extra.NONE, 0),
    "turn_data_saver_mode_off": (Do.TOGGLE_DATA_SAVER_MODE, 0, _Extra.NONE, 0),
    "unseat_sim_card": (Do.MALFORMED, 0, _Extra.UNSEAT_SIM, 1),
    "break_apn_settings": (Do.MALFORMED, 0, _Extra.BREAK_APN, 1),
    "break_apn_mms_setting": (Do.MALFORMED, 0, _Extra.BREAK_MMSC, 0),
    "break_vpn": (Do.CONNECT_VPN, 0, _Extra.BREAK_VPN, 0),
    "simulate_network_search": (Do.MALFORMED, 0, _Extra.NONE, 1),
}


def persona(data: Mapping[str, Any]) -> int:
    """Index in PERSONAS, as the task's id says."""
    found = _PERSONA.search(data["id"])
    return PERSONAS.index(found.group(1)) if found else 0


def goal(data: Mapping[str, Any], own: Account) -> Goal:
    """The assertions of one task.

    Raises:
      ValueError: ("field: expected ..., found ...") for a basis, an assertion or a line that this simulator does not know.
    """
    wanted: dict[str, Any] = dict(mms=-1, data=-1, speed=-1.0, speed_class=-1, connection=-1, refuel=-1.0, refuel_line=0,
                                  paid=-1)
    criteria = data["evaluation_criteria"]
    for assertion in criteria["env_assertions"]:
        name, arguments = assertion["func_name"], assertion["arguments"]
        if assertion.get("assert_value", True) is not True:
            raise ValueError(f"evaluation_criteria.env_assertions: expected assert_value true, found it false ({name})")
        if name == "assert_can_send_mms":
            wanted["mms"] = int(arguments["expected_status"])
        elif name == "assert_mobile_data_status":
            wanted["data"] = int(arguments["expected_status"])
        elif name == "assert_internet_speed":
            named = arguments.get("expected_desc")
            wanted |= {"speed": arguments["expected_speed"], "speed_class": SPEEDS.index(named) if named else -1}
        elif name == "assert_service_status":
            wanted["connection"] = CONNECTIONS.index(arguments["expected_status"])
        elif name == "assert_data_refueling_amount":
            wanted |= {"refuel": arguments["expected_amount"], "refuel_line": _index(
                own.customer["line_ids"], arguments["line_id"],
                "evaluation_criteria.env_assertions, of assert_data_refueling_amount: line_id")}
        elif name == "assert_no_overdue_bill":    # one that does not exist is not overdue, as upstream
            ids = [bill["bill_id"] for bill in own.bills]
            wanted["paid"] = ids.index(arguments["overdue_bill_id"]) if arguments["overdue_bill_id"] in ids else -1
    basis = criteria["reward_basis"]
    if not set(basis) <= {"ENV_ASSERTION", "ACTION"}:
        raise ValueError(f"evaluation_criteria.reward_basis: expected ENV_ASSERTION and ACTION, found {basis}")
    gold = [action["name"] for action in criteria["actions"]]
    if "ACTION" in basis and gold != ["transfer_to_human_agents"]:
        raise ValueError(f"evaluation_criteria.actions: expected transfer_to_human_agents alone under ACTION, found {gold}")
    compared = [action.get("compare_args") for action in criteria["actions"]]
    if "ACTION" in basis and compared != [[]]:
        raise ValueError("evaluation_criteria.actions[0].compare_args: expected [] under ACTION (a summary cannot be "
                         f"compared), found {file.shown(compared[0])}")
    intent = Intent.MMS if wanted["mms"] >= 0 else Intent.DATA if wanted["data"] >= 0 else Intent.SERVICE
    return Goal(intent=int(intent), transfer="ACTION" in basis, **wanted)


def fixed_arrays(data: Mapping[str, Any]) -> tuple[Fixed, Goal]:
    """What is fixed in one task, and its goal, as numpy scalars."""
    own = account(data)
    return jax.tree.map(lambda leaf: leaf[0], (_stack([fixed_of(data, own)]), _stack([goal(data, own)])))


def gold(data: Mapping[str, Any]) -> tuple[Call, ...]:
    """The gold calls, the agent's and the user's, in order. Raises ValueError for a call that no tool understands."""
    calls = []
    for place, action in enumerate(data["evaluation_criteria"]["actions"]):
        tools = PHONE_TOOLS if action.get("requestor") == "user" else AGENT_TOOLS
        try:
            calls.append(encode(data, action["name"], action["arguments"], tools))
        except Refused as refused:
            raise ValueError(f"evaluation_criteria.actions[{place}], of {action['name']}: {refused}") from None
    return tuple(calls)


def padded(lists: Sequence[Sequence[Call]]) -> tuple[np.ndarray, ...]:
    """Calls as arrays (code, a, b, c i32[N, T], amount f32[N, T]); code 0 does nothing."""
    longest = max((len(calls) for calls in lists), default=0)
    table = np.zeros((len(lists), longest, 5), np.float32)
    for row, calls in zip(table, lists, strict=True):
        for place, call in enumerate(calls):
            row[place] = call
    return (*(table[..., k].astype(np.int32) for k in range(4)), table[..., 4])


def apply(xp: Any, fixed: Fixed, world: World, code: Any, a: Any, b: Any, c: Any, amount: Any) -> World:
    """One tool call by whoever owns the tool."""
    world, _ = agent_tool(xp, fixed, world, code, a, amount)
    return phone_tool(xp, fixed, world, code, a, b, c)[0]


def arrays(tasks: Sequence[Mapping[str, Any]]) -> tuple[Fixed, World, Goal]:
    """What is fixed, the start states and the goals, leading axis = task, i32, f32 and bool.

    Raises:
      ValueError: ("field: expected ..., found ...") for a record that this simulator does not know.
    """
    accounts = [account(data) for data in tasks]
    fixed = _stack([fixed_of(data, own) for data, own in zip(tasks, accounts, strict=True)])
    world = _stack([world_before(data, own) for data, own in zip(tasks, accounts, strict=True)])
    steps = [[_action(data, own, name, arguments) for name, arguments in starts(data)]
             for data, own in zip(tasks, accounts, strict=True)]
    calls = padded([[call for call, _, _ in row] for row in steps])
    extras = np.zeros((2, *calls[0].shape), int)
    for row, actions in enumerate(steps):
        extras[:, row, :len(actions)] = [[extra for _, extra, _ in actions], [look for _, _, look in actions]]
    for t in range(extras.shape[2]):
        world = apply(np, fixed, world, *(column[:, t] for column in calls))
        world = _broken(fixed, world, extras[0, :, t], calls[1][:, t], calls[2][:, t])
        world = searched(np, fixed, world, extras[1, :, t] == 1)
    return fixed, _typed(world), _stack([goal(data, own) for data, own in zip(tasks, accounts, strict=True)])


def _action(data: Mapping[str, Any], own: Account, name: str, arguments: Mapping[str, Any]) -> tuple[Call, _Extra, int]:
    if name == "set_wifi_calling":
        mms = {None: _Extra.NONE, False: _Extra.WIFI_MMS_OFF, True: _Extra.WIFI_MMS_ON}[arguments.get("mms_over_wifi")]
        return Call(Do.TOGGLE_WIFI_CALLING, int(arguments["enabled"])), mms, 0
    if name == "remove_app_permission":
        app, permission = APPS.index(arguments["app_name"]), PERMISSIONS.index(arguments["permission"].lower())
        return Call(Do.MALFORMED, app, permission), _Extra.REMOVE_PERMISSION, 0
    if name == "suspend_line_for_overdue_bill":
        line = own.customer["line_ids"].index(arguments["line_id"])
        return Call(Do.MALFORMED, line, len(own.bills) - 1), _Extra.SUSPEND_UNPAID, 0
    if name in _ACTIONS:
        code, wanted, extra, look = _ACTIONS[name]
        return Call(code, wanted), extra, look
    return encode(data, name, arguments, AGENT_TOOLS | PHONE_TOOLS), _Extra.NONE, 0


def _broken(fixed: Fixed, world: World, extra: np.ndarray, a: np.ndarray, b: np.ndarray) -> World:
    unpaid, bit = extra == _Extra.SUSPEND_UNPAID, 1 << (4 * a + b)
    return world.replace(
        sim_missing=world.sim_missing | (extra == _Extra.UNSEAT_SIM),
        apn_broken=world.apn_broken | (extra == _Extra.BREAK_APN),
        mmsc=world.mmsc & (extra != _Extra.BREAK_MMSC), data=world.data | (extra == _Extra.DATA_ON),
        wifi_mms=(world.wifi_mms | (extra == _Extra.WIFI_MMS_ON)) & (extra != _Extra.WIFI_MMS_OFF),
        vpn_poor=world.vpn_poor | (extra == _Extra.BREAK_VPN),
        apps=np.where(extra == _Extra.REMOVE_PERMISSION, world.apps & ~bit, world.apps),
        lines=np.where(unpaid, with_nibble(world.lines, a, SUSPENDED), world.lines),
        redated=np.where(unpaid, world.redated | 1 << a, world.redated),
        bills=np.where(unpaid, with_nibble(world.bills, np.where(unpaid, b, 0), OVERDUE), world.bills))


def fixed_of(data: Mapping[str, Any], own: Account) -> Fixed:
    person, line = caller(data), own.lines[own.line]
    around = data["user_db"].get("surroundings", {})
    signals = SIGNAL_AT | around.get("signal_strength", {})
    prices = [own.plans[each["plan_id"]]["data_refueling_price_per_gb"] for each in own.lines]
    return Fixed(
        line=own.line, limit=float(own.plans[line["plan_id"]]["data_limit_gb"]),
        used=float(line["data_used_gb"] if person.used is None else person.used),
        price=[float(price) for price in prices] + [0.0] * (LINES - len(prices)),
        signals=sum(_index(SIGNALS, signals[tech], f"user_db.surroundings.signal_strength.{tech}") << 4 * place
                    for place, tech in enumerate(TECHS)),
        abroad=person.abroad or bool(around.get("is_abroad", False)), sim_lock=person.sim_lock,
        contract_ended=own.contract_ended)


def world_before(data: Mapping[str, Any], own: Account) -> World:
    """Before the start actions.

    Raises:
      ValueError: ("field: expected ..., found ...") for a phone with a value that this simulator does not know.
    """
    phone = data["user_db"].get("device")
    if not isinstance(phone, Mapping):
        raise ValueError(f"user_db.device: expected an object, found {file.shown(phone)}")
    place = lambda known, name, usual: _index(known, phone.get(name, usual), f"user_db.device.{name}")
    apn, apps = phone.get("active_apn_settings", {}), phone.get("app_statuses", {})
    is_on = lambda name: bool(phone.get(name, False))
    permitted = [(apps.get(app, {}).get("permissions", {})).get(name, False) for app in APPS for name in PERMISSIONS]
    unpaid = any(name == "suspend_line_for_overdue_bill" for name, _ in starts(data))
    owed = own.bills[:-1] if unpaid else own.bills
    bits = lambda values, width: sum(int(value) << width * place for place, value in enumerate(values))
    return World(
        sim_missing=is_on("sim_card_missing"), airplane=is_on("airplane_mode"),
        signal=place(SIGNALS, "network_signal_strength", "good"), tech=place(TECHS, "network_technology_connected", "5G"),
        connection=place(CONNECTIONS, "network_connection_status", "connected"),
        data=bool(phone.get("data_enabled", True)), roaming=is_on("roaming_enabled"),
        mode=place(MODES, "network_mode_preference", MODES[0]), apn_broken=apn.get("apn_name") == "broken",
        apn_reset=bool(apn.get("reset_at_reboot", False)), mmsc=apn.get("mmsc_url", "default") is not None,
        wifi=is_on("wifi_enabled"), wifi_connected=is_on("wifi_connected"), wifi_calling=is_on("wifi_calling_enabled"),
        wifi_mms=is_on("wifi_calling_mms_over_wifi"), saver=is_on("data_saver_mode"), vpn=is_on("vpn_connected"),
        vpn_poor=False, apps=bits(permitted, 1), lines=bits([LINE_STATUS.index(line["status"]) for line in own.lines], 4),
        line_roaming=bits([line["roaming_enabled"] for line in own.lines], 1), redated=0,
        bills=bits([BILL_STATUS.index(bill["status"]) for bill in owed], 4),
        refuel=[float(line.get("data_refueling_gb", 0.0)) for line in own.lines] + [0.0] * (LINES - len(own.lines)),
        charged=[0.0, 0.0])


def _index(known: Sequence[str], value: Any, field: str) -> int:
    if value not in known:
        raise ValueError(f"{field}: expected one of {', '.join(known)}, found {file.shown(value)}")
    return known.index(value)


def _typed(tree: Any) -> Any:
    """bool, i32 and f32 arrays."""
    kinds = {"b": np.bool_, "i": np.int32, "f": np.float32}
    return jax.tree.map(lambda x: np.asarray(x).astype(kinds[np.asarray(x).dtype.kind]), tree)


def _stack(rows: Sequence[Any]) -> Any:
    """One dataclass of arrays from one dataclass a row."""
    names = rows[0].__dataclass_fields__
    return _typed(type(rows[0])(**{name: np.array([getattr(row, name) for row in rows]) for name in names}))
