"""Telecom's tools: the agent's 13 and the user's 30 phone actions as pure functions over one small state.

The functions are written with element-wise operations only, so they serve one episode or a batch, JAX arrays under jit
or numpy arrays on the host: `xp` is `jax.numpy` or `numpy`. All tools are evaluated together and masked by the act's
code, which under vmap is what `lax.switch` would come to as well. The rules are those of tau2-bench's telecom domain
(Barres et al. 2025), with three differences: a poor VPN stays in its own episode, a tool writes to the caller's account
only, and the bill that a refuel may open has a fixed id.
"""

from typing import Any

from flax import struct

from eau_jax.core.types import Array
from eau_jax.envs.telecom.codes import FIRST_PHONE, LAST_PHONE, LOOKUPS, ON_LINES, SEARCHES, Do

LINES, BILLS = 3, 6       # of one account; the last bill is the one that a refuel opens where no draft exists
NEXT_BILL = BILLS - 1
TOGGLE = 2                # the wanted state of a switch: 0 off, 1 on, 2 the other one
APPS = ("messaging", "browser")
PERMISSIONS = ("sms", "storage", "phone", "network")
MODES = ("4g_5g_preferred", "4g_only", "3g_only", "2g_only")
TECHS = ("none", "2G", "3G", "4G", "5G")
SIGNALS = ("none", "poor", "fair", "good", "excellent")
CONNECTIONS = ("connected", "searching", "no_service", "emergency_only")
SPEEDS = ("very poor", "poor", "fair", "good", "excellent")
LINE_STATUS = ("", "Active", "Suspended", "Pending Activation", "Closed")       # 0: there is no such line
BILL_STATUS = ("", "Draft", "Issued", "Awaiting Payment", "Paid", "Overdue", "Disputed")
ACTIVE, SUSPENDED, PENDING = 1, 2, 3
DRAFT, AWAITING, PAID, OVERDUE = 1, 3, 4, 5
CONNECTED, NO_SERVICE = 0, 2
UNKNOWN_LINE, UNKNOWN_CUSTOMER = -1, -2   # in place of a slot of the account
OPENED = 10_000           # in place of a record's number: the bill that a refuel may have opened


@struct.dataclass(kw_only=True)
class Fixed:
    """What does not change while an episode lasts; any leading axes."""

    line: Array             # i32: the caller's line, a slot of the account
    limit: Array            # f32: data limit of its plan, GB
    used: Array             # f32: data used on it, GB
    price: Array            # [LINES] f32: of one GB more, by line
    signals: Array          # i32: four bits for each of TECHS: the signal where the user is
    abroad: Array           # bool
    sim_lock: Array         # i32: 0 none, 1 PIN, 2 PUK
    contract_ended: Array   # bool: of the caller's line


@struct.dataclass(kw_only=True)
class World:
    """Phone and account; any leading axes. What the phone sees of the account is derived from it at each look."""

    sim_missing: Array      # bool
    airplane: Array         # bool
    signal: Array           # i32, index in SIGNALS
    tech: Array             # i32, index in TECHS
    connection: Array       # i32, index in CONNECTIONS
    data: Array             # bool
    roaming: Array          # bool: the phone's own switch
    mode: Array             # i32, index in MODES
    apn_broken: Array       # bool
    apn_reset: Array        # bool: the APN settings are reset at the next reboot
    mmsc: Array             # bool: the address for picture messages is set
    wifi: Array             # bool
    wifi_connected: Array   # bool
    wifi_calling: Array     # bool
    wifi_mms: Array         # bool: MMS over Wi-Fi
    saver: Array            # bool
    vpn: Array              # bool
    vpn_poor: Array         # bool
    apps: Array             # i32: four permission bits for each of APPS
    lines: Array            # i32: four bits for each line, index in LINE_STATUS
    line_roaming: Array     # i32: bit of each line that may roam
    redated: Array          # i32: bit of each line that was suspended or resumed by the agent
    bills: Array            # i32: four bits for each bill, index in BILL_STATUS
    refuel: Array           # [LINES] f32: GB added
    charged: Array          # [2] f32: what refuels cost so far, on the account's own draft and on the bill opened for it


def nibble(word: Array, slot: Array) -> Array:
    """The four bits of `slot`, 0 to 7."""
    return (word >> (4 * slot)) & 15


def with_nibble(word: Array, slot: Array, value: Array) -> Array:
    return word & ~(15 << (4 * slot)) | (value << (4 * slot))


def line_active(fixed: Fixed, world: World) -> Array:
    return nibble(world.lines, fixed.line) == ACTIVE


def may_roam(fixed: Fixed, world: World) -> Array:
    return (world.line_roaming >> fixed.line & 1) == 1


def over_quota(xp: Any, fixed: Fixed, world: World) -> Array:
    own = xp.arange(LINES) == fixed.line[..., None]
    return fixed.used >= fixed.limit + xp.where(own, world.refuel, 0).sum(-1)


def first_bill(xp: Any, world: World, status: int) -> Array:
    """Slot of the account's first bill of this status, BILLS where there is none."""
    slot = xp.zeros_like(world.bills) + BILLS
    for place in reversed(range(BILLS)):
        slot = xp.where(nibble(world.bills, place) == status, place, slot)
    return slot


def data_works(xp: Any, fixed: Fixed, world: World) -> Array:
    """Whether the phone has mobile data."""
    abroad = ~fixed.abroad | (world.roaming & may_roam(fixed, world))
    return (~world.airplane & (world.signal != 0) & (world.connection != NO_SERVICE) & world.data & abroad
            & ~over_quota(xp, fixed, world))


def speed(xp: Any, fixed: Fixed, world: World) -> Array:
    """Megabits per second; -1 without mobile data."""
    base, share = xp.zeros_like(fixed.limit), xp.zeros_like(fixed.limit)
    for tech, middle in enumerate((0.25, 3.0, 55.0, 275.0), 1):
        base = xp.where(world.tech == tech, middle, base)
    for signal, factor in enumerate((0.2, 0.5, 0.8, 1.0), 1):
        share = xp.where(world.signal == signal, factor, share)
    share = share * xp.where(world.vpn & world.vpn_poor, 0.1, 1.0) * xp.where(world.saver, 0.2, 1.0)
    return xp.where(data_works(xp, fixed, world), base * share, -1.0)


def speed_class(xp: Any, mbps: Array) -> Array:
    """Index in SPEEDS; -1 without mobile data."""
    return (xp.where(mbps < 0, -1, 0) + (mbps >= 1) + (mbps >= 5) + (mbps >= 25) + (mbps >= 100))


def sends_mms(xp: Any, fixed: Fixed, world: World) -> Array:
    permitted = (world.apps & 3) == 3  # sms and storage of the messaging app
    return (data_works(xp, fixed, world) & (world.tech != 1) & ~(world.wifi_calling & world.wifi_mms) & world.mmsc
            & permitted)


def searched(xp: Any, fixed: Fixed, world: World, when: Array) -> World:
    """The phone looks for a network where `when` holds."""
    up = (~world.sim_missing & (fixed.sim_lock == 0) & ~world.airplane & ~world.apn_broken & line_active(fixed, world))
    fast = xp.where(nibble(fixed.signals, 4) != 0, 4, 3)
    tech = xp.where(world.mode == 0, fast, 4 - world.mode)
    signal = nibble(fixed.signals, tech)
    return world.replace(
        connection=xp.where(when, xp.where(up, CONNECTED, NO_SERVICE), world.connection),
        tech=xp.where(when, xp.where(up, tech, 0), world.tech),
        signal=xp.where(when, xp.where(up, signal, 0), world.signal))


def agent_tool(xp: Any, fixed: Fixed, world: World, code: Array, a: Array, amount: Array) -> tuple[World, Array]:
    """One call of an agent's tool; other codes do nothing.

    Args:
      code, a: i32. `a` is what `parse` found: a record's number for look-ups, else a slot of the account; negative
        where there is none.
      amount: f32: GB for a refuel.

    Returns:
      The world after it, and whether the call failed (it then changed nothing).
    """
    on_line, slot = is_any(code, ON_LINES), xp.clip(a, 0, BILLS - 1)
    pays = code == Do.SEND_PAYMENT_REQUEST
    line, bill, bit = nibble(world.lines, slot), nibble(world.bills, slot), 1 << slot
    unopened = (code == Do.GET_DETAILS_BY_ID) & (a == OPENED) & (nibble(world.bills, NEXT_BILL) == 0)
    failed = ((is_any(code, LOOKUPS) & (a < 0)) | unopened | (on_line & ((a < 0) | (a >= LINES) | (line == 0)))
              | ((code == Do.SUSPEND_LINE) & (line != ACTIVE))
              | ((code == Do.RESUME_LINE) & (line != SUSPENDED) & (line != PENDING))
              | ((code == Do.REFUEL_DATA) & ~(amount > 0))
              | (pays & ((a < 0) | (a >= BILLS) | (bill == 0) | (first_bill(xp, world, AWAITING) < BILLS))))
    does = lambda tool: (code == tool) & ~failed
    suspend, resume, refuel = does(Do.SUSPEND_LINE), does(Do.RESUME_LINE), does(Do.REFUEL_DATA)
    draft = first_bill(xp, world, DRAFT)
    opened = refuel & (draft == BILLS)
    bills = xp.where(pays & ~failed, with_nibble(world.bills, slot, AWAITING), world.bills)
    bills = xp.where(opened, with_nibble(bills, NEXT_BILL, DRAFT), bills)
    status = xp.where(suspend, SUSPENDED, ACTIVE)
    here = (xp.arange(LINES) == slot[..., None]) & refuel[..., None]
    added = xp.where(here, amount[..., None], 0)
    on_next = opened | (draft == NEXT_BILL)
    onto = (xp.arange(2) == on_next[..., None])
    return world.replace(
        lines=xp.where(suspend | resume, with_nibble(world.lines, slot, status), world.lines),
        redated=xp.where(suspend | resume, world.redated | bit, world.redated),
        line_roaming=xp.where(does(Do.ENABLE_ROAMING), world.line_roaming | bit,
                              xp.where(does(Do.DISABLE_ROAMING), world.line_roaming & ~bit, world.line_roaming)),
        bills=bills, refuel=world.refuel + added,
        charged=world.charged + xp.where(onto, (added * fixed.price).sum(-1)[..., None], 0)), failed


def phone_tool(xp: Any, fixed: Fixed, world: World, code: Array, a: Array, b: Array, c: Array) -> tuple[World, Array]:
    """One action on the phone; other codes do nothing.

    Args:
      code: i32.
      a, b, c: i32. Switches: `a` is the wanted state (0, 1 or TOGGLE). Mode: `a` its index. App permission: `a` app,
        `b` permission. APN settings: `a` 0 good, 1 broken, `b` the MMS address is set, `c` reset at the next reboot.
        Negative: not known.

    Returns:
      The world after it, and whether anything was done (a switch may stand as wanted, an argument may be unknown).
    """
    does = lambda tool: code == tool
    flip = lambda tool, now: does(tool) & ((a == TOGGLE) | ((a == 1) != now))
    air, wifi = flip(Do.TOGGLE_AIRPLANE_MODE, world.airplane), flip(Do.TOGGLE_WIFI, world.wifi) & ~world.airplane
    data, roaming = flip(Do.TOGGLE_DATA, world.data), flip(Do.TOGGLE_ROAMING, world.roaming)
    saver, calling = flip(Do.TOGGLE_DATA_SAVER_MODE, world.saver), flip(Do.TOGGLE_WIFI_CALLING, world.wifi_calling)
    flies = air & ~world.airplane
    mode = does(Do.SET_NETWORK_MODE_PREFERENCE) & (a >= 0) & (a < len(MODES))
    apn = does(Do.SET_APN_SETTINGS) & (a >= 0) & (a <= 1)
    reset = does(Do.REBOOT_DEVICE) & world.apn_reset
    grant = does(Do.GRANT_APP_PERMISSION) & (a >= 0) & (a < len(APPS)) & (b >= 0) & (b < len(PERMISSIONS))
    bit = 1 << (4 * xp.clip(a, 0, len(APPS) - 1) + xp.clip(b, 0, len(PERMISSIONS) - 1))
    connect, cut = does(Do.CONNECT_VPN) & ~world.vpn, (does(Do.DISCONNECT_VPN) | flies) & world.vpn
    asked = first_bill(xp, world, AWAITING)
    pays = does(Do.MAKE_PAYMENT) & (asked < BILLS)
    switched = air | wifi | data | roaming | saver | calling
    switch = is_any(code, (Do.TOGGLE_AIRPLANE_MODE, Do.TOGGLE_WIFI, Do.TOGGLE_DATA, Do.TOGGLE_ROAMING,
                         Do.TOGGLE_DATA_SAVER_MODE, Do.TOGGLE_WIFI_CALLING))
    nothing = ((switch & ~switched) | (does(Do.SET_NETWORK_MODE_PREFERENCE) & ~mode) | (does(Do.SET_APN_SETTINGS) & ~apn)
               | (does(Do.GRANT_APP_PERMISSION) & ~grant) | (does(Do.CONNECT_VPN) & ~connect)
               | (does(Do.DISCONNECT_VPN) & ~cut) | (does(Do.MAKE_PAYMENT) & ~pays))
    world = world.replace(
        airplane=world.airplane ^ air, data=world.data ^ data, roaming=world.roaming ^ roaming,
        saver=world.saver ^ saver, wifi_calling=world.wifi_calling ^ calling, wifi=world.wifi ^ wifi,
        wifi_connected=world.wifi_connected & ~(wifi & world.wifi) & ~(air & (flies | world.wifi)),
        sim_missing=world.sim_missing & ~does(Do.RESEAT_SIM_CARD), mode=xp.where(mode, a, world.mode),
        apn_broken=xp.where(apn, a == 1, world.apn_broken & ~reset),
        mmsc=xp.where(apn, b == 1, world.mmsc | reset),
        apn_reset=xp.where(apn, c == 1, (world.apn_reset | does(Do.RESET_APN_SETTINGS)) & ~reset),
        vpn=(world.vpn | connect) & ~cut, vpn_poor=world.vpn_poor & ~connect & ~cut,
        apps=xp.where(grant, world.apps | bit, world.apps),
        bills=xp.where(pays, with_nibble(world.bills, xp.clip(asked, 0, BILLS - 1), PAID), world.bills))
    looks = air | data | roaming | mode | apn | (is_any(code, SEARCHES) & ~switch)
    acted = (code >= FIRST_PHONE) & (code <= LAST_PHONE) & ~nothing
    return searched(xp, fixed, world, looks), acted


def is_any(code: Array, tools: tuple[Do, ...]) -> Array:
    found = code == tools[0]
    for tool in tools[1:]:
        found = found | (code == tool)
    return found
