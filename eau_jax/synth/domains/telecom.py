"""tau2-bench's telecom: phones with faults, mended by the agent's tools and the user's hands. See `workshop` for what a
domain
consists of; the simulator is `envs/telecom`, whose world is arrays, and so are its cases.

An atom is a fault that stands in the way of one complaint. What cannot be mended at all is left out: a transfer is all
that it
needs, and an agent that always transfers would pass.
"""

import random
from typing import Any, Mapping, Sequence

import numpy as np

from eau_jax.core.part import Act, TimeStep
from eau_jax.core.types import Task
from eau_jax.envs.tau2.message import Call, read
from eau_jax.envs.telecom.agents import called
from eau_jax.envs.telecom.codes import FIRST_PHONE, LAST_PHONE, Do
from eau_jax.envs.telecom.goal import Fault
from eau_jax.envs.telecom.tasks import EXCLUDE, FAULTS, FIRST, HOPELESS, INTENTS, LAST, LIMIT, PERSONA_TEXT, made
from eau_jax.envs.telecom.telecom import telecom as env
from eau_jax.envs.telecom.text import Say
from eau_jax.envs.telecom.tools import APPS, MODES, OVERDUE, PERMISSIONS
from eau_jax.synth.acts import caller_act
from eau_jax.synth.domain import Atom, Domain, Invariant, Look, Persona, Record, Rule, State, Step, Wish
from eau_jax.synth.domains.telecom_case import PhoneCase
from eau_jax.synth.domains.telecom_tools import ACTIONS, world
from eau_jax.synth.record import Instance, digest

_BITS = {"airplane": "AIRPLANE", "sim": "SIM_MISSING", "apn": "APN_BROKEN", "bill": "BILL_UNPAID", "data": "DATA_OFF",
         "roaming": "ROAMING_OFF", "line": "LINE_ROAMING_OFF", "quota": "QUOTA_USED", "mode": "BAD_MODE",
         "saver": "SAVER_ON",
         "vpn": "VPN_POOR", "calling": "WIFI_MMS", "mmsc": "MMSC_MISSING", "sms": "NO_SMS", "storage": "NO_STORAGE"}
_AFTER = {"bill": ("LINE_INACTIVE", "STALE"), "apn": ("STALE",)}    # what is in the way once the first is mended
_SHOWS = {"bill": ["bill_status", "Overdue"], "quota": ["used", str(LIMIT + 0.5)], "line": ["roaming", "False"]}
_SAYS = {"s": ("My phone has no service.", "My phone finds no network.", "I cannot make calls: there is no signal."),
         "d": ("My mobile data is slow or does not work.", "The internet on my phone hardly works.",
               "Pages do not load on my phone."),
         "m": ("I cannot send picture messages.", "My pictures are not sent.", "MMS does not work on my phone.")}


class World:
    """A phone and an account being built: a list of faults until the record is made."""

    def __init__(self, rng: random.Random, cell: Mapping[str, Any]):
        self.cell, self.chosen, self.intent = cell, [], ""
        self.number = rng.randrange(10, 100)
        self.person = f"{rng.choice(FIRST)} {rng.choice(LAST[cell['split'] == 'test'::2])}"
        self.phone = f"555-{rng.randrange(10000):04d}"
        self.facts = {"phone_number": self.phone}
        self.draws = rng.randrange(2**31)

    def filled(self, value: Any) -> Any:
        """A value of FAULTS with the ids of this world."""
        ids = {"{c}": f"C{self.number}", "{l}": f"L{self.number}", "{b}": f"B{self.number}2"}
        return ids.get(value, value) if isinstance(value, str) else value


def _make(fault: str, intent: str):
    def make(world: World, rng: random.Random) -> Wish:
        world.intent = intent
        world.chosen.append(fault)
        steps = [[name, {key: world.filled(value) for key, value in given.items()}, "agent" if who == "assistant" else who]
                 for who, name, given in FAULTS[fault][1]]
        shows = [_SHOWS[fault]] if fault in _SHOWS else []
        goal = [[["fault", bit], False] for bit in (_BITS[fault], *_AFTER.get(fault, ()))]
        return Wish("", steps, goal, [], [], shows, [], "", [], {})

    return make


_NAMES = [(fault, intent) for intent in INTENTS for fault in FAULTS if intent in FAULTS[fault][2] and fault not in HOPELESS]
_OTHERS = lambda fault, intent: frozenset(
    [f"{other}@{its}" for other, its in _NAMES if its != intent]
    + [f"{other}@{intent}" for pair in EXCLUDE if fault in pair for other in pair if other != fault])
ATOMS = tuple(Atom(f"{fault}@{intent}", INTENTS[intent], f"{fault}@{intent}", "write", _make(fault, intent), _SAYS[intent],
                   conflicts=_OTHERS(fault, intent)) for fault, intent in _NAMES)


def record(world: World, plan: Sequence[Step], wishes: Sequence[Wish]) -> Record:
    """The task, with the gold plan for its actions."""
    persona = world.cell["persona"]
    task = made(world.intent, sorted(world.chosen), world.number, world.person, persona, world.phone,
                np.random.default_rng(world.draws))
    actions = [{"action_id": f"{step.tool}_{place}", "requestor": "user" if step.who == "user" else "assistant",
                "name": step.tool, "arguments": step.arguments, "compare_args": None} for place, step in enumerate(plan)]
    return {**task, "evaluation_criteria": {**task["evaluation_criteria"], "actions": actions}}


def finish(instance: Instance, texts: Sequence[Mapping[str, str]], persona: Persona) -> Record:
    """The task in the words of its first wish; its id names the faults and the persona, as upstream's do."""
    task, scenario = instance.record, instance.record["user_scenario"]
    brief = {**scenario["instructions"], "reason_for_call": f"In your words: {texts[0]['opening']}"}
    whole = {**task, "user_scenario": {"persona": persona.text, "instructions": brief}}
    return {**whole, "id": f"{task['id'].rpartition('-')[0]}-{digest({**whole, 'id': ''}, 8)}"}


def dressed(task: Record, persona: str) -> Record:
    """The same task with another persona, which its id names."""
    before, _, after = task["id"].partition("[PERSONA:")
    return {**task, "id": f"{before}[PERSONA:{persona}]{after.partition(']')[2]}"}


def heard(task: Task, act: Act, time_step: TimeStep) -> Step | None:
    """The agent's tool call, or what the user did on the phone."""
    code, values = int(act.code), [int(each) for each in act.values[:3]]
    if 0 < code < FIRST_PHONE:
        call = read(called(task, code, *values, amount=float(act.values[3])))
        return Step(call.name, call.arguments) if isinstance(call, Call) else None
    done = Say(int(time_step.code) % 100) in (Say.REPORT, Say.ANNOYED, Say.SOLVED)
    if not FIRST_PHONE <= code <= LAST_PHONE or not done:
        return None
    arguments = {Do.SET_NETWORK_MODE_PREFERENCE: {"mode": MODES[values[0] % len(MODES)]},
                 Do.GRANT_APP_PERMISSION: {"app_name": APPS[values[0] % len(APPS)],
                                           "permission": PERMISSIONS[values[1] % len(PERMISSIONS)]},
                 Do.CHECK_APP_STATUS: {"app_name": APPS[values[0] % len(APPS)]},
                 Do.CHECK_APP_PERMISSIONS: {"app_name": APPS[values[0] % len(APPS)]}}.get(Do(code), {})
    return Step(Do(code).name.lower(), arguments, "user")


def _customer(look: Look) -> bool:
    named = look.step.arguments.get("customer_id")
    return ACTIONS[look.step.tool].kind == "write" and named is not None and named not in look.seen.get("customer_id", ())


def _owes(look: Look) -> bool:
    return any(world(look, "bills") >> 4 * place & 15 == OVERDUE for place in range(6))


_calls = lambda tool, breaks: lambda look: look.step.tool == tool and breaks(look)
RULES = (
    Rule("own", "Look the customer up by phone number before you change anything.", _customer),
    Rule("refuel", "Add 2 GB at most, and only where the data are used up.", _calls("refuel_data", lambda look: (
        look.step.arguments["gb_amount"] > 2.0 or not look.case.value(look.state, ("fault", Fault.QUOTA_USED.name))))),
    Rule("resume", "A line is resumed once no bill is overdue.", _calls("resume_line", _owes)),
    Rule("pay", "Ask for payment of overdue bills only.", _calls("send_payment_request", lambda look: not _owes(look))),
    Rule("suspend", "Do not suspend a line that works.", _calls("suspend_line", lambda look: True)),
    Rule("roam", "Leave roaming on for who is abroad.", _calls(
        "disable_roaming", lambda look: bool(look.case.fixed["abroad"]))),
)
INVARIANTS = (
    Invariant("no data are taken away", lambda case, state: min(case.value(state, ("world", "refuel"))) >= 0),
    Invariant("the phone is connected only where it finds a signal", lambda case, state: (
        case.value(state, ("world", "tech")) != 0 or case.value(state, ("world", "signal")) == 0)),
)
PERSONAS = {
    "None": Persona("", {}, ("{}",)),
    "Easy": Persona(PERSONA_TEXT["Easy"], {"volunteer_location": 1}, ("{}", "Hello there. {}")),
    "Hard": Persona(PERSONA_TEXT["Hard"], {"hard_clarifies": 1}, ("{} I do not understand it.", "Oh dear. {}"))}
TYPES = {"customer_id": "customer_id", "line_ids": "line_id", "line_id": "line_id", "bill_ids": "bill_id",
         "bill_id": "bill_id",
         "status": "bill_status", "data_used_gb": "used", "roaming_enabled": "roaming"}


def samples(rng: random.Random) -> tuple[PhoneCase, State]:
    """A phone with some faults of one complaint, on which a few random tools were used."""
    intent = rng.choice(tuple(INTENTS))
    start = World(rng, {"split": "train", "persona": "None"})
    for fault in rng.sample([fault for fault, its in _NAMES if its == intent], rng.randint(1, 3)):
        if not any({fault, other} <= pair for pair in EXCLUDE for other in start.chosen):
            _make(fault, intent)(start, rng)
    case = PhoneCase(record(start, (), ()))
    state = case.start
    for tool in rng.sample(sorted(ACTIONS), 4):
        state = case.call(state, Step(tool, arguments(case, state, tool, rng), ACTIONS[tool].who)).state
    return case, state


def arguments(case: PhoneCase, state: State, tool: str, rng: random.Random) -> dict[str, Any]:
    """Random arguments of a tool: ids of the account, words of the schema; now and then an id that is not there."""
    customer = case.record["db"]["customers"][0]
    off = rng.random() < 0.1
    bills = customer["bill_ids"] + ([case.unpaid] if case.unpaid else [])
    draw = {"customer_id": lambda: "C0" if off else customer["customer_id"], "line_id": lambda: customer["line_ids"][0],
            "id": lambda: "X0" if off else customer["line_ids"][0], "bill_id": lambda: "B0" if off else rng.choice(bills),
            "gb_amount": lambda: rng.choice((0.5, 1.0, 1.5, 3.0)), "mode": lambda: rng.choice(MODES), "summary": lambda: "x",
            "reason": lambda: "x", "app_name": lambda: rng.choice(APPS), "permission": lambda: rng.choice(PERMISSIONS),
            "phone_number": lambda: "555-00000" if off else customer["phone_number"]}
    return {name: draw[name]() for name in ACTIONS[tool].params}


telecom = Domain(
    name="telecom", version=1, where="eau_jax.synth.domains.telecom:telecom", actions=ACTIONS, rules=RULES, atoms=ATOMS,
    invariants=INVARIANTS, types=TYPES, personas=PERSONAS, build=World, record=record, case=PhoneCase, finish=finish,
    env=env, heard=heard, files=lambda: {"policy.md": "\n".join(f"- {rule.text}" for rule in RULES) + "\n"},
    samples=samples, arguments=arguments, dressed=dressed, act=caller_act, limit=40)
