"""The names and arguments of everything that a telecom agent, user or task may call, as JSON schemas."""

from typing import Any, Mapping, NamedTuple

from eau_jax.envs.tau2.call import parameters, text, truth, whole
from eau_jax.envs.tau2.task_check import Known
from eau_jax.envs.telecom.codes import Do
from eau_jax.envs.telecom.tools import APPS, CONNECTIONS, MODES, PERMISSIONS, SPEEDS

LARGEST = 10**6          # a number in an argument beyond this is refused
OPTIONAL = ("limit",)


class Signature(NamedTuple):
    name: str
    kind: str                          # "tool", or of what only a task calls "set-up" or "assertion"
    parameters: Mapping[str, Any]      # JSON schema of the arguments


AGENT_TOOLS = {do.name.lower(): do for do in Do if Do.GET_CUSTOMER_BY_PHONE <= do <= Do.REFUEL_DATA}
PHONE_TOOLS = {do.name.lower(): do for do in Do if Do.CHECK_STATUS_BAR <= do <= Do.MAKE_PAYMENT}
_CUSTOMER, _LINE = {"customer_id": text("such as 'C1001'")}, {"line_id": text("such as 'L1001'")}
_APP = {"app_name": text(f"one of {', '.join(APPS)}")}
_BOUNDS = {"minimum": -LARGEST, "maximum": LARGEST}
_NUMBER = {"type": "number", **_BOUNDS}
_APN = {"type": "object", "description": "apn_name ('internet' or 'broken'), mmsc_url (null: none), reset_at_reboot"}
_FIELDS: dict[Do, dict[str, Any]] = {
    Do.GET_CUSTOMER_BY_PHONE: {"phone_number": text("of the customer or a line")},
    Do.GET_CUSTOMER_BY_ID: _CUSTOMER,
    Do.GET_CUSTOMER_BY_NAME: {"full_name": text("first and last name"), "dob": text("date of birth, such as '1990-01-31'")},
    Do.GET_DETAILS_BY_ID: {"id": text("of a customer, line, bill, plan or device")},
    Do.SUSPEND_LINE: _CUSTOMER | _LINE | {"reason": text("why")},
    Do.RESUME_LINE: _CUSTOMER | _LINE,
    Do.GET_BILLS_FOR_CUSTOMER: _CUSTOMER | {"limit": whole("how many, the newest first; 12 if left out") | _BOUNDS},
    Do.SEND_PAYMENT_REQUEST: _CUSTOMER | {"bill_id": text("such as 'B1001'")},
    Do.GET_DATA_USAGE: _CUSTOMER | _LINE,
    Do.ENABLE_ROAMING: _CUSTOMER | _LINE,
    Do.DISABLE_ROAMING: _CUSTOMER | _LINE,
    Do.TRANSFER_TO_HUMAN_AGENTS: {"summary": text("what the issue is")},
    Do.REFUEL_DATA: _CUSTOMER | _LINE | {"gb_amount": _NUMBER},
    Do.SET_NETWORK_MODE_PREFERENCE: {"mode": text(f"one of {', '.join(MODES)}")},
    Do.SET_APN_SETTINGS: {"apn_settings": _APN},
    Do.CHECK_APP_STATUS: _APP,
    Do.CHECK_APP_PERMISSIONS: _APP,
    Do.GRANT_APP_PERMISSION: _APP | {"permission": text(f"one of {', '.join(PERMISSIONS)}")},
}
PARAMETERS = {do: parameters(optional=OPTIONAL, **_FIELDS.get(do, {}))
              for do in (*AGENT_TOOLS.values(), *PHONE_TOOLS.values(), Do.FINISH)}


def _signatures(kind: str, **functions: Mapping[str, Any]) -> dict[str, Signature]:
    return {name: Signature(name, kind, schema) for name, schema in functions.items()}


_NOTHING = parameters()
_USERS = _signatures(
    "set-up",
    set_user_info=parameters(name=text("full name"), phone_number=text("of the line")),
    set_user_location=parameters(abroad=truth("outside the home country")),
    lock_sim_card=parameters(mode=text("kind of lock", "pin", "puk")),
    remove_app_permission=parameters(app_name=text("app", *APPS), permission=text("permission", *PERMISSIONS)),
    set_wifi_calling=parameters(optional=("mms_over_wifi",), enabled=truth("on"),
                                mms_over_wifi=truth("picture messages go over Wi-Fi")),
    **dict.fromkeys(("turn_airplane_mode_on", "turn_airplane_mode_off", "turn_data_on", "turn_data_off", "turn_roaming_on",
                     "turn_roaming_off", "turn_data_saver_mode_on", "turn_data_saver_mode_off", "unseat_sim_card",
                     "break_apn_settings", "break_apn_mms_setting", "break_vpn", "simulate_network_search"), _NOTHING)
) | _signatures(
    "assertion",
    assert_can_send_mms=parameters(expected_status=truth("can be sent")),
    assert_mobile_data_status=parameters(expected_status=truth("works")),
    assert_internet_speed=parameters(optional=("expected_desc",), expected_speed=_NUMBER,
                                     expected_desc=text("class of speed", *SPEEDS)),
    assert_service_status=parameters(expected_status=text("connection", *CONNECTIONS)))
_AGENTS = _signatures(
    "set-up",
    set_data_usage=parameters(**_CUSTOMER, **_LINE, data_used_gb=_NUMBER),
    suspend_line_for_overdue_bill=parameters(**_CUSTOMER, **_LINE, new_bill_id=text("id of the unpaid bill"),
                                             contract_ended=truth("and the contract has ended"))
) | _signatures(
    "assertion",
    assert_data_refueling_amount=parameters(**_CUSTOMER, **_LINE, expected_amount=_NUMBER),
    assert_no_overdue_bill=parameters(overdue_bill_id=text("id of a bill")))
KNOWN = Known(
    tools={"assistant": _signatures("tool", **{name: PARAMETERS[do] for name, do in AGENT_TOOLS.items()}),
           "user": _signatures("tool", **{name: PARAMETERS[do] for name, do in PHONE_TOOLS.items()})},
    functions={"assistant": _AGENTS, "user": _USERS}, tables={"agent_data": (), "user_data": ()})
