"""What a telecom task wants, and what still stands in its way. Element-wise as in `telecom.tools`."""

import enum
from typing import Any

from flax import struct

from eau_jax.core.types import Array
from eau_jax.envs.telecom.codes import Do
from eau_jax.envs.telecom.tools import (
    AWAITING, BILLS, CONNECTED, LINES, OVERDUE, PAID, Fixed, World, data_works, first_bill, line_active, may_roam, nibble,
    over_quota, sends_mms, speed, speed_class)

EXCELLENT = 4


class Intent(enum.IntEnum):
    """What the user calls about, and thereby how he tests whether it is solved."""

    SERVICE = 0   # the status bar shows a signal
    DATA = 1      # a speed test says "excellent"
    MMS = 2       # a picture message can be sent


TEST = {Intent.SERVICE: Do.CHECK_STATUS_BAR, Intent.DATA: Do.RUN_SPEED_TEST, Intent.MMS: Do.CAN_SEND_MMS}


class Fault(enum.IntEnum):
    """Bit of each thing that stands in the way, in the order in which to mend them."""

    SIM_LOCKED = 0         # cannot be mended
    CONTRACT_ENDED = 1     # nor can this
    AIRPLANE = 2
    SIM_MISSING = 3
    APN_BROKEN = 4
    BILL_UNPAID = 5
    LINE_INACTIVE = 6
    STALE = 7              # nothing of the above, yet the phone has no service: it has to look for a network
    DATA_OFF = 8
    ROAMING_OFF = 9
    LINE_ROAMING_OFF = 10
    QUOTA_USED = 11
    BAD_MODE = 12
    SAVER_ON = 13
    VPN_POOR = 14
    MMSC_MISSING = 15
    WIFI_MMS = 16
    NO_SMS = 17
    NO_STORAGE = 18


HOPELESS = 1 << Fault.SIM_LOCKED | 1 << Fault.CONTRACT_ENDED


@struct.dataclass(kw_only=True)
class Goal:
    """The assertions on the last state, each with a value that asks for nothing."""

    intent: Array        # i32
    mms: Array           # i32: whether picture messages can be sent; -1: no matter
    data: Array          # i32: whether mobile data works; -1: no matter
    speed: Array         # f32: least speed; -1: no matter
    speed_class: Array   # i32; -1: no matter
    connection: Array    # i32; -1: no matter
    refuel: Array        # f32: GB added to a line; -1: no matter
    refuel_line: Array   # i32: slot of that line
    paid: Array          # i32: slot of a bill that must be paid; -1: none
    transfer: Array      # bool: the transfer tool must have been called


def met(xp: Any, fixed: Fixed, world: World, goal: Goal, transferred: Array) -> Array:
    """Whether every assertion holds."""
    mbps = speed(xp, fixed, world)
    agrees = lambda wanted, found: (wanted < 0) | (wanted == found)
    added = xp.where(xp.arange(LINES) == goal.refuel_line[..., None], world.refuel, 0).sum(-1)
    return (agrees(goal.mms, sends_mms(xp, fixed, world)) & agrees(goal.data, data_works(xp, fixed, world))
            & ((goal.speed < 0) | (mbps >= goal.speed)) & agrees(goal.speed_class, speed_class(xp, mbps))
            & agrees(goal.connection, world.connection) & ((goal.refuel < 0) | (abs(added - goal.refuel) < 1e-6))
            & ((goal.paid < 0) | (nibble(world.bills, xp.clip(goal.paid, 0, BILLS - 1)) == PAID))
            & (~goal.transfer | transferred))


def content(xp: Any, fixed: Fixed, world: World, intent: Array) -> Array:
    """Whether the user's own test succeeds."""
    service = (world.connection == CONNECTED) & (world.signal != 0) & ~world.airplane
    fast = speed_class(xp, speed(xp, fixed, world)) == EXCELLENT
    return xp.where(intent == Intent.SERVICE, service,
                    xp.where(intent == Intent.DATA, fast, sends_mms(xp, fixed, world)))


def faults(xp: Any, fixed: Fixed, world: World, intent: Array) -> Array:
    """Bits of `Fault` that stand in the intent's way."""
    data, mms = intent == Intent.DATA, intent == Intent.MMS
    online, active = data | mms, line_active(fixed, world)
    first = {
        Fault.SIM_LOCKED: fixed.sim_lock != 0, Fault.CONTRACT_ENDED: fixed.contract_ended & ~active,
        Fault.AIRPLANE: world.airplane, Fault.SIM_MISSING: world.sim_missing, Fault.APN_BROKEN: world.apn_broken,
        Fault.BILL_UNPAID: ~online & (xp.minimum(first_bill(xp, world, OVERDUE), first_bill(xp, world, AWAITING)) < BILLS),
        Fault.LINE_INACTIVE: ~active}
    blocked = first[Fault.SIM_LOCKED]
    for fault, holds in first.items():
        if fault is not Fault.BILL_UNPAID:
            blocked = blocked | holds
    rest = {
        Fault.STALE: ~blocked & (world.connection != CONNECTED),
        Fault.DATA_OFF: online & ~world.data, Fault.ROAMING_OFF: online & fixed.abroad & ~world.roaming,
        Fault.LINE_ROAMING_OFF: online & fixed.abroad & ~may_roam(fixed, world),
        Fault.QUOTA_USED: online & over_quota(xp, fixed, world),
        Fault.BAD_MODE: (data & (world.mode != 0)) | (mms & (world.mode == 3)),
        Fault.SAVER_ON: data & world.saver, Fault.VPN_POOR: data & world.vpn & world.vpn_poor,
        Fault.MMSC_MISSING: mms & ~world.mmsc, Fault.WIFI_MMS: mms & world.wifi_calling & world.wifi_mms,
        Fault.NO_SMS: mms & (world.apps & 1 == 0), Fault.NO_STORAGE: mms & (world.apps & 2 == 0)}
    bits = xp.zeros_like(world.lines)
    for fault, holds in (first | rest).items():
        bits = bits | (holds << int(fault))
    return bits
