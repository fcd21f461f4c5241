"""Who the symbolic user of a tau2-bench task is: what this person knows, and what they want, in this order.

Facts about the person come from the task's instructions, and so does whether an order or reservation number is known.
Wants come from the task's gold writes, described by names and options rather than item ids; a task without a gold write
is about something that has to be refused, and the want is the instructions' own text in the first person, numbers left
out. Slots, bits of a mask: 0 name, 1 zip code, 2 e-mail, 3 user id, then for each goal its record's number, its details
and its payment.
"""

import re
import types
from typing import Any, Mapping, NamedTuple

from eau_jax.core.records import RunFolderError, check
from eau_jax.core.types import Task
from eau_jax.envs.tau2.database import Record
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.wording import DETAILS_OF, KINDS, in_first_person, listed, method, payments, sentences

NAME, ZIP, EMAIL, USER, FIRST = range(5)
RECORD, DETAILS, PAYMENT = range(3)
GOALS = 9                                      # at most, so that slots fit in 31 bits; further wants are not told
NOUNS = {NAME: "name", ZIP: "zip code", EMAIL: "e-mail address", USER: "user id"}
PART_NOUNS = ("number", "details", "payment")
_TOKENS = {"record": re.compile(r"#W\d{7}|\b[A-Z0-9]{6}\b|\btask_\d+\b"), "item": re.compile(r"\b\d{10}\b"),
           "payment": re.compile(r"\b(?:credit_card|gift_card|paypal|certificate)_\d{7}\b"),
           "flight": re.compile(r"\bHAT\d{3}\b")}
_RECORD_OF = {"orders": "order_id", "reservations": "reservation_id", "tasks": "task_id"}
_FACTS = {"name": NAME, "zip": ZIP, "email": EMAIL, "user_id": USER}
_IDS = {"*": [str]}
_USER = {"user_id": str, "facts": _IDS, "ids": _IDS, "goals": [{
    "tool": str, "arguments": dict, "opening": str, "says": [str], "values": [[str]], "right": _IDS}]}
_ASKS = re.compile(r"\b(know|tell|how much|how many|total|tracking|sum|price|cost|saved|compliment)\b", re.IGNORECASE)
class Goal(NamedTuple):
    tool: str                            # the write that is wanted; "" where none is
    arguments: Mapping[str, Any]
    opening: str                         # what the user says of it first; it holds no fact
    says: tuple[str, str, str]           # number, details, payment in a sentence each; "" where not known
    values: tuple[tuple[str, ...], ...]  # for each of the three the values in it that are secret until told
    right: Mapping[str, frozenset[str]]  # class of token -> those that a right proposal may name; no entry: any


class Plan(NamedTuple):
    says: Mapping[int, str]              # slot -> sentence, for every slot that the user can tell
    values: Mapping[int, tuple[str, ...]]
    goals: tuple[Goal, ...]
    user_id: str                         # "" where the instructions name nobody
    dismisses: tuple[str, ...]           # notifications that the user dismisses before leaving
    ids: Mapping[str, frozenset[str]] = types.MappingProxyType({})   # class of token -> all of that class; none: by `tokens`

    @property
    def known(self) -> int:
        """Mask of the slots that the user can tell."""
        return sum(1 << slot for slot in self.says)

    @property
    def opening(self) -> str:
        """The user's first message."""
        return f"Hello. {self.goals[0].opening}"


def plan(domain: Domain, task: Task) -> Plan:
    """The user of a task: as its field `user` says, where there is one."""
    if "user" in task.data:
        return told(task.data["user"])
    text = instructions(task)
    user = _person(domain, text) or domain.base["users"].get(task.data["user_scenario"].get("user_id"))
    goals = _goals(domain, task, text)
    says, values = _identity(user, text) if user else ({}, {})
    for place, goal in enumerate(goals):
        for part in (RECORD, DETAILS, PAYMENT):
            if goal.says[part]:
                slot = FIRST + 3 * place + part
                says[slot], values[slot] = goal.says[part], goal.values[part]
    wanted = task.data["evaluation_criteria"].get("env_assertions") or ()
    dismisses = tuple(each["arguments"]["notification_id"] for each in wanted
                      if each["func_name"] == "assert_notification_status")
    return Plan(says, values, goals, user["user_id"] if user else "", dismisses)


def told(user: Any) -> Plan:
    """The user that a task's own field gives as data:

        {"user_id": "...", "facts": {"email": ["My e-mail is ...", "..."]}, "ids": {"record": [...]}, "goals": [GOAL, ...]}

    facts: name, zip, email or user_id -> its sentence and its value. ids: class -> every id of that class that a proposal
    could name; {} for upstream's classes and forms. GOAL has the fields of `Goal`, `right` by the same classes.

    Raises:
      ValueError: "field: expected ..., found ...".
    """
    try:
        check(user, _USER, "user")
    except RunFolderError as error:
        raise ValueError(f"user: expected an object with user_id, facts, ids and goals, found ({error})") from None
    goals = tuple(Goal(each["tool"], each["arguments"], each["opening"], tuple(each["says"]),
                       tuple(map(tuple, each["values"])), {name: frozenset(ids) for name, ids in each["right"].items()})
                  for each in user["goals"])
    wrong = [name for name, fact in user["facts"].items() if name not in _FACTS or len(fact) != 2]
    if wrong or not 1 <= len(goals) <= GOALS or any(len(goal.says) != 3 or len(goal.values) != 3 for goal in goals):
        raise ValueError(f"user: expected facts among {', '.join(_FACTS)}, each a sentence and a value, and 1 to {GOALS} "
                         f"goals with three says and values each, found {', '.join(wrong) or f'{len(goals)} goals'}")
    classes = user["ids"] or _TOKENS
    odd = sorted({name for goal in goals for name in goal.right} - set(classes))
    if odd:
        raise ValueError(f"user.goals.right: expected classes among {', '.join(classes)}, found {', '.join(odd)}")
    says = {_FACTS[name]: fact[0] for name, fact in user["facts"].items()}
    values = {_FACTS[name]: (fact[1],) for name, fact in user["facts"].items()}
    for place, goal in enumerate(goals):
        slots = [(FIRST + 3 * place + part, part) for part in (RECORD, DETAILS, PAYMENT) if goal.says[part]]
        says |= {slot: goal.says[part] for slot, part in slots}
        values |= {slot: goal.values[part] for slot, part in slots}
    return Plan(says, values, goals, user["user_id"], (), {name: frozenset(ids) for name, ids in user["ids"].items()})


def tokens(domain: Domain, text: str) -> dict[str, frozenset[str]]:
    """Class -> the ids of that class in a text; a record's id counts only where there is such a record."""
    found = {name: frozenset(pattern.findall(text)) for name, pattern in _TOKENS.items()}
    tables = [domain.base[table] for table in _RECORD_OF if table in domain.base]
    return found | {"record": frozenset(key for key in found["record"] if any(key in table for table in tables))}


def instructions(task: Task) -> str:
    """All that the task tells its user."""
    brief = task.data["user_scenario"]["instructions"]
    if isinstance(brief, str):
        return brief
    fields = ("reason_for_call", "known_info", "unknown_info", "task_instructions")
    return "\n".join(brief[field] for field in fields if brief.get(field))


def _person(domain: Domain, text: str) -> Record | None:
    users, low = domain.base["users"], text.lower()
    for key in re.findall(r"\b[a-z]+_[a-z]+_\d+\b", low):
        if key in users:
            return users[key]
    if domain.name == "mock":
        return next(iter(users.values()))
    for user in users.values():
        name = f"{user['name']['first_name']} {user['name']['last_name']}".lower()
        if user["email"].lower() in low or (name in low and user["address"]["zip"] in text):
            return user
    return None


def _identity(user: Record, text: str) -> tuple[dict[int, str], dict[int, tuple[str, ...]]]:
    if "email" not in user:    # the mock domain's user
        return {USER: f"My user id is {user['user_id']}."}, {USER: (user["user_id"],)}
    values = {NAME: f"{user['name']['first_name']} {user['name']['last_name']}"}
    for slot, value in ((ZIP, user["address"]["zip"]), (EMAIL, user["email"]), (USER, user["user_id"])):
        if value.lower() in text.lower():
            values[slot] = value
    return ({slot: f"My {NOUNS[slot]} is {value}." for slot, value in values.items()},
            {slot: (value,) for slot, value in values.items()})


def _goals(domain: Domain, task: Task, text: str) -> tuple[Goal, ...]:
    criteria = task.data["evaluation_criteria"]
    writes = [action for action in criteria.get("actions") or ()
              if action["name"] in domain.tools and domain.tools[action["name"]].kind == "write"]
    writes = writes or [{"name": "update_task_status", "arguments": {
        "task_id": each["arguments"]["task_id"], "status": each["arguments"]["expected_status"]}}
        for each in criteria.get("env_assertions") or () if each["func_name"] == "assert_task_status"]
    goals = [_wanted(domain, action["name"], action["arguments"], text) for action in writes[:GOALS - 1]]
    if not goals:
        return (_refused(domain, task, text),)
    if criteria.get("communicate_info"):
        asked = [sentence for sentence in sentences(text) if _ASKS.search(sentence)] or ["You want to know the details."]
        question = f"I also have a question. {_spoken(domain, ' '.join(asked[:2]))}"
        goals.append(Goal("", {}, question, ("", "", ""), ((), (), ()), {}))
    return tuple(goals)


def _refused(domain: Domain, task: Task, text: str) -> Goal:
    """What a user wants who is to be refused."""
    brief = task.data["user_scenario"]["instructions"]
    reason = sentences(brief if isinstance(brief, str) else brief["reason_for_call"]) or ["I need help."]
    numbers = sorted(tokens(domain, text)["record"])
    details = _spoken(domain, " ".join(reason[1:]))
    return Goal("", {}, _spoken(domain, reason[0]), (f"It is {listed(numbers)}." if numbers else "", details, ""),
                (tuple(numbers), (), ()), {})


def _wanted(domain: Domain, tool: str, args: Mapping[str, Any], text: str) -> Goal:
    table = next((table for table, name in _RECORD_OF.items() if name in args), None)
    key = args.get(_RECORD_OF.get(table, ""), "")
    record = domain.base[table].get(key, {}) if table else {}
    number = f"It is {key}." if key and key in text else ""
    user = domain.base["users"].get(args.get("user_id") or record.get("user_id"), {})
    details, hard = DETAILS_OF[tool](domain, args, record)
    cards = [method(user, name) for name in payments(args)]
    payment = f"Use {listed([name for name, _ in cards])}." if cards else ""
    allowed = tokens(domain, repr(args))
    own = tokens(domain, repr([record.get("items"), record.get("flights")]))
    right = {"payment": allowed["payment"], "record": allowed["record"], "item": allowed["item"] | own["item"],
             "flight": allowed["flight"] | own["flight"]}
    return Goal(tool, args, f"I would like to {KINDS[tool]}.", (number, details, payment),
                ((key,) if number else (), hard, tuple(digits for _, digits in cards if digits)),
                {name: ids for name, ids in right.items() if ids})


def _spoken(domain: Domain, text: str) -> str:
    """Instructions in the first person, without the numbers that a user tells only when asked."""
    return in_first_person(text, sorted(frozenset().union(*tokens(domain, text).values()), key=len, reverse=True))
