"""Telecom, for the tests that every environment has to pass."""

import numpy as np

from eau_jax.core.part import Kind
from eau_jax.envs.telecom import tasks as generator
from eau_jax.envs.message import act
from eau_jax.envs.telecom.telecom import telecom as env
from eau_jax.envs.telecom.agents import called, words
from eau_jax.envs.telecom.codes import FIRST_PHONE, LAST_PHONE, Do
from eau_jax.envs.telecom.tools import TOGGLE, UNKNOWN_CUSTOMER, UNKNOWN_LINE
from worlds import draw_acts

CODES = Do
MOVED = {}
TURNS = 42     # random acts must reach the turn limit

_SWITCHES = (Do.TOGGLE_AIRPLANE_MODE, Do.TOGGLE_DATA, Do.TOGGLE_ROAMING, Do.TOGGLE_DATA_SAVER_MODE, Do.TOGGLE_WIFI,
             Do.TOGGLE_WIFI_CALLING)


def random_acts(tasks, shape, rng):
    """Acts of all codes, phone actions most often; ends and broken messages are rare, so that episodes get long."""
    acts = draw_acts(Do, Do.TOGGLE_AIRPLANE_MODE, shape, rng)
    acts.code[:] = rng.integers(0, len(Do), shape)
    acts.code[rng.random(shape) < 0.4] = Do.REBOOT_DEVICE
    rare = (acts.code == Do.MALFORMED) | (acts.code == Do.ANNOUNCE)
    acts.code[rare & (rng.random(shape) < 0.7)] = Do.ASK
    acts.values[..., 3] = 2.0
    acts.flags[:] = rng.random(shape) < 0.2
    if len(shape) == 2:
        acts.code[:, ::8] = np.where(rng.random((shape[0], len(range(0, shape[1], 8)))) < 0.8, Do.BAD_CALL, Do.CHAT)
    return acts


def sayable_acts(task, rng):
    """Acts of every code that the agent can write."""
    for code in Do:
        a, b, c = (int(value) for value in rng.integers(0, 2, 3))
        if code in (Do.MALFORMED, Do.FINISH):
            continue
        if code == Do.ASK:
            yield act(Kind.ACTION, code, int(rng.integers(1, 16)))
        elif code > LAST_PHONE:
            yield act(Kind.ACTION, code)
        elif code >= FIRST_PHONE:
            yield act(Kind.ACTION, code, values=_phone_values(code, a, b, c, rng))
        else:
            amount = 2.0 if code == Do.REFUEL_DATA else 0.0
            limit = 3 if code == Do.GET_BILLS_FOR_CUSTOMER else 0
            missing = UNKNOWN_CUSTOMER if code in (Do.GET_CUSTOMER_BY_ID, Do.GET_BILLS_FOR_CUSTOMER) else UNKNOWN_LINE
            place = missing if a and code != Do.TRANSFER_TO_HUMAN_AGENTS else 0
            limit = 0 if place else limit
            yield act(Kind.ACTION, code, values=(place, limit, 0, amount))
    yield act(Kind.MALFORMED, Do.MALFORMED)


def _phone_values(code, a, b, c, rng):
    if code in _SWITCHES:
        return (int(rng.integers(0, TOGGLE + 1)),)
    if code == Do.SET_NETWORK_MODE_PREFERENCE:
        return (int(rng.integers(4)),)
    if code == Do.SET_APN_SETTINGS:
        return a, b, c
    if code == Do.GRANT_APP_PERMISSION:
        return a, int(rng.integers(4))
    return (a,) if code in (Do.CHECK_APP_STATUS, Do.CHECK_APP_PERMISSIONS) else ()


def agent_text(task, act):
    """Words for an act: `parse` must give the act back."""
    code, (a, b, c, amount) = int(act.code), (float(value) for value in act.values)
    if code == Do.BAD_CALL:
        return '<tool_call>{"name": "toggle_data", "arguments": {}}</tool_call>'
    if 0 < code < FIRST_PHONE:
        return called(task, code, int(a), int(b), int(c), amount)
    return words(code, int(a), int(b), int(c), int(act.mask))
