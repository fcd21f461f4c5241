"""What the agent's message asks for in the Telecom world: tool calls as integers, words by a lexicon. Never raises.

Words are read sentence by sentence. A sentence counts when it is a question or holds a word of request; its topics are
looked for in a fixed order, the more specific first, and what one topic matched is not looked at again.
"""

import json
import re
from typing import Any, Callable, Mapping

import numpy as np

from eau_jax.core.part import Act, Kind
from eau_jax.core.types import Task
from eau_jax.envs import message
from eau_jax.envs.tau2.call import Refused
from eau_jax.envs.tau2.message import DONE, Broken, Words, read, read_solo
from eau_jax.envs.telecom.codes import Do
from eau_jax.envs.telecom.records import encode
from eau_jax.envs.telecom.schema import AGENT_TOOLS, PHONE_TOOLS
from eau_jax.envs.telecom.tools import MODES, PERMISSIONS, TOGGLE

NAME, PHONE, LOCATION, REFUEL = 1, 2, 4, 8    # bits of the facts the user knows
FACTS = NAME | PHONE | LOCATION | REFUEL
SEVERAL = 1                                   # `Act.flags`: more than one phone action is asked for

Request = tuple[int, int, int, int]           # code, a, b, c
_SENTENCE = re.compile(r"[^.?!;\n]+[.?!;\n]?")
_PARTS = re.compile(
    r",?\s*\b(?:and then|then|and (?=please|turn|switch|set|check|run|reset|restart|reboot|reseat|pay|send))")
_ASKS = re.compile(
    r"\?|\b(?:please|turn|switch|toggle|set|put|enable|disable|activate|deactivate|check|look|see|tell|verify|confirm|"
    r"make|run|try|test|do|reset|restart|reboot|reseat|re-seat|insert|reinsert|connect|disconnect|grant|give|allow|send|"
    r"pay|accept|need|can|could|would|show|change|choose|select|want|let|open|go)\b")
_TELLS = re.compile(
    r"\b(?:(?<!may )(?<!can )(?<!could )i have|i've|i just|we have|i will|i'll|has been|have been|your line)\b")
_CHECKS = re.compile(r"\b(?:check|look|see|tell|verify|confirm|show|what|which|is|are|does|whether)\b")
_MUST = re.compile(r"\b(?:make sure|ensure)\b")
_ON = re.compile(r"\b(?:on|enable|enabled|activate|activated)\b")
_OFF = re.compile(r"\b(?:off|disable|disabled|deactivate|deactivated|out of)\b")
_GRANT = re.compile(r"\b(?:grant|give|allow|enable|add|turn on)\b")
_ANNOUNCE = re.compile(r"\bbeing transferred\b|\bare now transferred\b|\btransferring you\b|\bwill (?:now )?transfer you\b")
_SOLVED = re.compile(
    r"\b(?:is|does|are|did|has|do)\b.{0,80}\b(?:work|works|working|fixed|solved|resolved|better|gone|back)\b|anything else")
_FACTS = ((PHONE, re.compile(r"\b(?:phone|your|line'?s?|mobile) number\b|\bnumber (?:of|for) your\b|"
                             r"\b(?:what|which) number\b")),
          (NAME, re.compile(r"\byour (?:full )?name\b|\bwho am i\b|\bfull name\b")),
          (LOCATION, re.compile(r"\bwhere are you\b|\babroad\b|\btravell?ing\b|\byour location\b|\bwh(?:at|ich) country\b|"
                                r"\bat home\b")),
          (REFUEL, re.compile(r"\brefuel|\b(?:add|buy|want|more|extra|much)\b.{0,24}\bdata\b|"
                              r"\bhow (?:much|many) (?:data|gb)\b")))


def _switch(toggle: Do, check: Do) -> Callable[[str], Request]:
    """Reads whether a switch is to be turned on, off or over, or only looked at."""
    def wanted(sentence: str) -> Request:
        on, off = _ON.search(sentence), _OFF.search(sentence)
        asks = re.sub(r"\b(?:can|could|would) you\b", "", sentence)
        if _CHECKS.search(asks) and not _MUST.search(asks) or not (on or off or "toggle" in asks):
            return check, 0, 0, 0
        if "toggle" in asks and not (on or off):
            return toggle, TOGGLE, 0, 0
        return toggle, int(bool(on) and not (off and off.start() > on.start())), 0, 0
    return wanted


def _always(code: Do) -> Callable[[str], Request]:
    return lambda sentence: (code, 0, 0, 0)


def _mode(sentence: str) -> Request:
    sets = re.search(r"\b(?:set|change|switch|choose|select|put)\b", sentence)
    wanted = re.sub(r"[\s/+,-]+", "_", sentence)
    named = [k for k, mode in enumerate(MODES) if mode in wanted]
    if sets and not named:
        named = [k for k, word in enumerate(("5g", "4g", "3g", "2g")) if word in sentence]
    if sets and named:
        return Do.SET_NETWORK_MODE_PREFERENCE, named[0], 0, 0
    return Do.CHECK_NETWORK_MODE_PREFERENCE, 0, 0, 0


def _apn(sentence: str) -> Request:
    if "reset" in sentence and "set the apn" not in sentence.replace("reset the", ""):
        return Do.RESET_APN_SETTINGS, 0, 0, 0
    if re.search(r"\bset\b", sentence) and re.search(r"\b(?:internet|broken)\b", sentence):
        return (Do.SET_APN_SETTINGS, int("broken" in sentence), int("without" not in sentence), int("reset" in sentence))
    return Do.CHECK_APN_SETTINGS, 0, 0, 0


def _vpn(sentence: str) -> Request:
    if _OFF.search(sentence) or "disconnect" in sentence:
        return Do.DISCONNECT_VPN, 0, 0, 0
    checks = _CHECKS.search(sentence)
    if not checks and (_ON.search(sentence) or "connect" in sentence):
        return Do.CONNECT_VPN, 0, 0, 0
    return Do.CHECK_VPN_STATUS, 0, 0, 0


def _app(sentence: str) -> int:
    return 1 if "browser" in sentence else 0


def _permission(sentence: str) -> Request:
    named = [k for k, name in enumerate(PERMISSIONS) if re.search(rf"\b{name}\b", sentence)]
    if named and _GRANT.search(sentence):
        return Do.GRANT_APP_PERMISSION, _app(sentence), named[0], 0
    return Do.CHECK_APP_PERMISSIONS, _app(sentence), 0, 0


def _apps(sentence: str) -> Request:
    if re.search(r"\binstalled\b|\bapps\b", sentence):
        return Do.CHECK_INSTALLED_APPS, 0, 0, 0
    return Do.CHECK_APP_STATUS, _app(sentence), 0, 0


def _sim(sentence: str) -> Request:
    seats = re.search(r"re-?seat|re-?insert|remove|take|insert|put", sentence)
    return (Do.RESEAT_SIM_CARD if seats else Do.CHECK_SIM_STATUS), 0, 0, 0


def _payment(sentence: str) -> Request:
    pays = re.search(r"\b(?:accept|pay)\b", sentence)
    return (Do.MAKE_PAYMENT if pays else Do.CHECK_PAYMENT_REQUEST), 0, 0, 0


# (pattern, whether it speaks for the whole sentence, what is asked)
_TOPICS: tuple[tuple[re.Pattern[str], bool, Callable[[str], Request]], ...] = tuple(
    (re.compile(pattern), whole, handler) for pattern, whole, handler in (
        (r"\bwi-?fi calling\b", False, _switch(Do.TOGGLE_WIFI_CALLING, Do.CHECK_WIFI_CALLING_STATUS)),
        (r"\bwi-?fi\b", False, _switch(Do.TOGGLE_WIFI, Do.CHECK_WIFI_STATUS)),
        (r"\b(?:airplane|aeroplane|flight) mode\b", False, _switch(Do.TOGGLE_AIRPLANE_MODE, Do.CHECK_NETWORK_STATUS)),
        (r"\bdata.?sav(?:er|ing)(?: mode)?\b|\bdata restrictions?\b", False,
         _switch(Do.TOGGLE_DATA_SAVER_MODE, Do.CHECK_DATA_RESTRICTION_STATUS)),
        (r"\b(?:data )?roaming\b", False, _switch(Do.TOGGLE_ROAMING, Do.CHECK_NETWORK_STATUS)),
        (r"\bapn\b|\baccess point\b|\bmmsc\b", True, _apn),
        (r"\bvpn\b", False, _vpn),
        (r"\bspeed ?test\b|\bspeed\b", False, _always(Do.RUN_SPEED_TEST)),
        (r"\bnetwork mode\b|\bnetwork preference\b|\bpreferred network\b|\b[2345]g_|\b[2345]g\b", True, _mode),
        (r"\b(?:mobile|cellular) data\b|\bdata (?=on\b|off\b)", False, _switch(Do.TOGGLE_DATA, Do.CHECK_NETWORK_STATUS)),
        (r"\bpermissions?\b", True, _permission),
        (r"\bmms\b|\b(?:picture|group|photo) messag\w+", False, _always(Do.CAN_SEND_MMS)),
        (r"\bapps?\b", True, _apps),
        (r"\bstatus bar\b", False, _always(Do.CHECK_STATUS_BAR)),
        (r"\bnetwork (?:status|connection)\b|\bcellular (?:network|connection|service)\b|\bsignal\b", False,
         _always(Do.CHECK_NETWORK_STATUS)),
        (r"\bsim\b", True, _sim),
        (r"\breboot\b|\brestart\b", False, _always(Do.REBOOT_DEVICE)),
        (r"\bpayment request\b", False, _payment),
        (r"\bpay\b|\bmake (?:the|a) payment\b", False, _always(Do.MAKE_PAYMENT)),
    ))


def parse(task: Task, text: str, state: Any) -> Act:
    """The agent's message as an act; what is neither words nor a tool call is MALFORMED. `state` does not matter."""
    said = read(text)
    if isinstance(said, Broken):
        return _broken(said)
    return _spoken(said.text) if isinstance(said, Words) else _called(task, said.name, said.arguments, AGENT_TOOLS)


def parse_solo(task: Task, text: str, state: Any) -> Act:
    """The same in solo mode: there is nobody to talk to, and the phone's tools are called."""
    said = read_solo(text)
    if isinstance(said, Broken):
        return _broken(said)
    if said.name == DONE:
        return message.act(Kind.FINISH, Do.FINISH)
    return _called(task, said.name, said.arguments, AGENT_TOOLS | PHONE_TOOLS)


def _broken(said: Broken) -> Act:
    return message.act(Kind.MALFORMED, Do.MALFORMED).replace(call=json.dumps(said.why))


def _called(task: Task, name: str, arguments: Mapping[str, Any], tools: Mapping[str, Do]) -> Act:
    try:
        call = encode(task.data, name, arguments, tools)
    except Refused as refused:
        return message.act(Kind.ACTION, Do.BAD_CALL).replace(call=json.dumps(f"Error: {refused}"))
    return message.act(Kind.ACTION, call.code, values=(call.a, call.b, call.c, call.amount))


def _spoken(text: str) -> Act:
    text = text.lower()
    if _ANNOUNCE.search(text):
        return message.act(Kind.ACTION, Do.ANNOUNCE)
    wanted, facts, solved = [], 0, False
    for whole in _SENTENCE.findall(text):
        for sentence in _PARTS.split(whole):
            if not _ASKS.search(whole) or _TELLS.search(sentence):
                continue
            asked = sum(bit for bit, pattern in _FACTS if pattern.search(sentence))
            facts |= asked
            found = [] if asked else _requests(sentence)
            wanted += [request for request in found if request not in wanted]
            solved |= bool("?" in whole and not found and not asked and _SOLVED.search(sentence))
    if wanted:
        act = message.act(Kind.ACTION, wanted[0][0], values=wanted[0][1:])
        return act.replace(flags=np.int32(SEVERAL if len(wanted) > 1 or facts else 0))
    if facts:
        return message.act(Kind.ACTION, Do.ASK, facts)
    return message.act(Kind.ACTION, Do.ASK_SOLVED if solved else Do.CHAT)


def _requests(sentence: str) -> list[Request]:
    """The phone actions that one sentence asks for, in the order in which it names them."""
    found = []
    for pattern, whole, handler in _TOPICS:
        match = pattern.search(sentence)
        if match:
            found.append((match.start(), handler(sentence)))
            sentence = "" if whole else sentence[:match.start()] + " " * len(match.group()) + sentence[match.end():]
    return [request for _, request in sorted(found, key=lambda pair: pair[0])]
