"""Telecom tasks: a generator of small ones in tau2-bench's schema, and a loader of upstream's folder.

A record is upstream's (id, description, user_scenario, ticket, initial_state, evaluation_criteria) with `db` and `user_db`,
which upstream keeps in files of their own. Loaded tasks also carry upstream's `policy` and `policy_solo`: their system text
begins with it, where generated tasks have a short text of our own.
A generated task is a product of independent faults, each broken by a start action and mended by known gold calls, about a
company small enough to be shown in few words. Its gold calls are replayed: they must meet the task's assertions.
"""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from eau_jax.core.types import Task
from eau_jax.envs import file
from eau_jax.envs.generator import draw
from eau_jax.envs.tau2.data import splits, text
from eau_jax.envs.telecom.codes import Do
from eau_jax.envs.telecom.goal import met
from eau_jax.envs.telecom.start import PERSONAS, apply, arrays, gold, padded
from eau_jax.envs.telecom.task_check import check

FIRST = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jonas", "Kate", "Leo")
LAST = ("Berg", "Cole", "Dahl", "Frost", "Hill", "Lind", "Moss", "Nash", "Park", "Stone")
PRICE, LIMIT = 40.0, 10.0  # of the plan: dollars a month, GB
USER_DB = {"device": {
    "app_statuses": {"messaging": {"permissions": {"sms": True, "storage": True, "phone": True}},
                     "browser": {"permissions": {"storage": True, "network": True}}},
    "network_signal_strength": "excellent"}}
_USER, _AGENT = "user", "assistant"
_IDS = {"customer_id": "{c}", "line_id": "{l}"}
Action = tuple[str, str, dict[str, Any]]
# name -> (start actions, gold calls, intents); {c}, {l}, {b} stand for the ids of customer, line and unpaid bill
FAULTS: dict[str, tuple[list[Action], list[Action], str]] = {
    "airplane": ([(_USER, "turn_airplane_mode_on", {})], [(_USER, "toggle_airplane_mode", {})], "sdm"),
    "sim": ([(_USER, "unseat_sim_card", {})], [(_USER, "reseat_sim_card", {})], "sdm"),
    "apn": ([(_USER, "break_apn_settings", {})], [(_USER, "reset_apn_settings", {}), (_USER, "reboot_device", {})], "s"),
    "bill": ([(_AGENT, "suspend_line_for_overdue_bill", _IDS | {"new_bill_id": "{b}", "contract_ended": False}),
              (_USER, "simulate_network_search", {})],
             [(_AGENT, "send_payment_request", {"customer_id": "{c}", "bill_id": "{b}"}), (_USER, "make_payment", {}),
              (_AGENT, "resume_line", _IDS), (_USER, "reboot_device", {})], "s"),
    "lock": ([(_USER, "lock_sim_card", {"mode": "pin"})], [], "s"),
    "contract": ([(_AGENT, "suspend_line_for_overdue_bill", _IDS | {"new_bill_id": "{b}", "contract_ended": True}),
                  (_USER, "simulate_network_search", {})], [], "s"),
    "data": ([(_USER, "turn_data_off", {})], [(_USER, "toggle_data", {})], "dm"),
    "roaming": ([(_USER, "set_user_location", {"abroad": True}), (_USER, "turn_roaming_off", {}),
                 (_AGENT, "enable_roaming", _IDS)], [(_USER, "toggle_roaming", {})], "dm"),
    "line": ([(_USER, "set_user_location", {"abroad": True}), (_USER, "turn_roaming_on", {}),
              (_AGENT, "disable_roaming", _IDS)], [(_AGENT, "enable_roaming", _IDS)], "dm"),
    "quota": ([(_AGENT, "set_data_usage", _IDS | {"data_used_gb": LIMIT + 0.5})],
              [(_AGENT, "refuel_data", _IDS | {"gb_amount": 2.0})], "dm"),
    "mode": ([(_USER, "set_network_mode_preference", {"mode": "2g_only"})],
             [(_USER, "set_network_mode_preference", {"mode": "4g_5g_preferred"})], "dm"),
    "saver": ([(_USER, "turn_data_saver_mode_on", {})], [(_USER, "toggle_data_saver_mode", {})], "d"),
    "vpn": ([(_USER, "break_vpn", {})], [(_USER, "disconnect_vpn", {})], "d"),
    "calling": ([(_USER, "set_wifi_calling", {"enabled": True, "mms_over_wifi": True})],
                [(_USER, "toggle_wifi_calling", {})], "m"),
    "mmsc": ([(_USER, "break_apn_mms_setting", {})],
             [(_USER, "reset_apn_settings", {}), (_USER, "reboot_device", {})], "m"),
    "sms": ([(_USER, "remove_app_permission", {"app_name": "messaging", "permission": "sms"})],
            [(_USER, "grant_app_permission", {"app_name": "messaging", "permission": "sms"})], "m"),
    "storage": ([(_USER, "remove_app_permission", {"app_name": "messaging", "permission": "storage"})],
                [(_USER, "grant_app_permission", {"app_name": "messaging", "permission": "storage"})], "m"),
}
HOPELESS = ("lock", "contract")
RARE = 0.75                # share of the draws with one of these that is dropped
EXCLUDE = ({"roaming", "line"}, {"bill", "contract"})   # pairs that start from contradictory actions
PERSONA_TEXT = {"None": None, "Easy": "You know your way about phones.", "Hard": "Phones make you nervous."}
INTENTS = {"s": "service_issue", "d": "mobile_data_issue", "m": "mms_issue"}
_REASON = {"s": "Your phone has no service.", "d": "Your mobile data is slow or does not work.",
           "m": "You cannot send picture messages."}


def generate(split: str, count: int, seed: int) -> tuple[Task, ...]:
    """`count` different tasks of "train" or "test". The split is decided by a hash of the content, so they never meet.

    Raises:
      ValueError: for an unknown split, or a count that is not positive or more than there are.
    """
    tasks = draw("telecom", _record, split, count, seed)
    verify([task.data for task in tasks])
    return tasks


def load(path: str | Path, split: str = "") -> tuple[Task, ...]:
    """Upstream's tasks from its folder, or from one of its task files with the other files beside it.

    Args:
      path: the folder, which must hold tasks.json, db.toml, user_db.toml, main_policy.md, main_policy_solo.md and
        tech_support_manual.md, or a `.json` task file in such a folder.
      split: a name in split_tasks.json ("train", "test", "base", "small", "full"); "" for every task of the file.

    Raises:
      TaskFileError: for a missing or corrupt file, or a task that cannot be played and scored; it names file, place, field,
        expected and found.
      ValueError: for an unknown split.
    """
    path = Path(path)
    tasks, folder = (path / "tasks.json", path) if path.is_dir() else (path, path.parent)
    shared = company(folder)
    found = file.read(tasks, lambda record: _check(dict(record) | shared), "*.json")
    if split:
        wanted = splits(folder / "split_tasks.json", {record["id"] for record in found})
        if split not in wanted:
            raise ValueError(f"split {split!r}; allowed: {', '.join(sorted(wanted))}")
        found = tuple(record for record in found if record["id"] in set(wanted[split]))
    return tuple(Task(id=record["id"], env="telecom", data=dict(record) | shared) for record in found)


def company(folder: Path) -> dict[str, Any]:
    """What all tasks of upstream's folder share: db, user_db, policy and policy_solo.

    Raises:
      TaskFileError: as `load`.
    """
    shared: dict[str, Any] = {"db": toml(folder / "db.toml"), "user_db": toml(folder / "user_db.toml")}
    for key, name in (("policy", "main_policy.md"), ("policy_solo", "main_policy_solo.md")):
        shared[key] = "\n".join((text(folder / name), text(folder / "tech_support_manual.md")))
    return shared


def bucket(task: Task) -> str:
    """How many faults the phone line has, one to three or more, as the task's id lists them: a bucket of `config.Tasks`."""
    return f"faults_{min(task.id.count('|') + 1, 3)}"


def verify(records: list[Mapping[str, Any]]) -> None:
    """Replays the gold calls of each record. Raises ValueError for those that do not meet their assertions."""
    fixed, world, wanted = arrays(records)
    calls = padded([gold(record) for record in records])
    for t in range(calls[0].shape[1]):
        world = apply(np, fixed, world, *(column[:, t] for column in calls))
    good = met(np, fixed, world, wanted, (calls[0] == Do.TRANSFER_TO_HUMAN_AGENTS).any(1))
    if not good.all():
        raise ValueError(f"evaluation_criteria: expected gold calls that meet the assertions, found "
                         f"{[record['id'] for record, fine in zip(records, good) if not fine][:3]}")


def _check(record: Mapping[str, Any]) -> None:
    try:
        check(record)
    except ValueError as error:
        raise ValueError(f"{error} (task {file.shown(record.get('id'))})") from None


def _record(rng: np.random.Generator) -> dict[str, Any]:
    intent = "sdm"[rng.integers(3)]
    possible = [name for name, (_, _, intents) in FAULTS.items() if intent in intents]
    while True:
        chosen = sorted(rng.choice(possible, min(len(possible), int(rng.choice((1, 1, 2, 2, 3)))), replace=False).tolist())
        rare = set(HOPELESS) & set(chosen) and rng.random() < RARE
        if not rare and not any(pair <= set(chosen) for pair in EXCLUDE):
            break
    number, person = int(rng.integers(10, 100)), f"{FIRST[rng.integers(len(FIRST))]} {LAST[rng.integers(len(LAST))]}"
    persona = PERSONAS[int(rng.integers(len(PERSONAS)))]
    return made(intent, chosen, number, person, persona, f"555-{int(rng.integers(10000)):04d}", rng)


def made(intent: str, chosen: list[str], number: int, person: str, persona: str, phone: str,
         rng: np.random.Generator) -> dict[str, Any]:
    """The task of a customer with some of FAULTS, whose ids hold `number`.

    Args:
      intent: a letter of INTENTS: what the customer complains of.
    """
    ids = {"{c}": f"C{number}", "{l}": f"L{number}", "{b}": f"B{number}2"}
    fill = lambda arguments: {key: ids.get(value, value) if isinstance(value, str) else value
                              for key, value in arguments.items()}
    starts = [(_USER, "set_user_info", {"name": person, "phone_number": phone})]
    mends: list[Action] = []
    for name in chosen:
        starts += FAULTS[name][0]
        mends += FAULTS[name][1]
    hopeless = any(name in HOPELESS for name in chosen)
    if hopeless:
        mends = [(_AGENT, "transfer_to_human_agents", {"summary": "It cannot be mended."})]
    abroad = any(name == "set_user_location" for _, name, _ in starts)
    where = " You are abroad." if abroad else ""
    record = {
        "user_scenario": {"persona": PERSONA_TEXT[persona], "instructions": {
            "domain": "telecom", "reason_for_call": _REASON[intent], "unknown_info": None, "task_instructions": "",
            "known_info": f"You are {person}. Your number is {phone}.{where}"}},
        "ticket": f"{_REASON[intent].replace('Your', 'The').replace('You cannot', 'The customer cannot')} Name: {person}. "
                  f"Number: {phone}.{' Abroad.' if abroad else ''}",
        "initial_state": {"initialization_data": None, "message_history": None, "initialization_actions": [
            {"env_type": side, "func_name": name, "arguments": fill(arguments)}
            for side, name, arguments in starts]},
        "evaluation_criteria": {
            "actions": [{"action_id": f"{name}_{place}", "requestor": side, "name": name,
                         "arguments": fill(arguments), "compare_args": [] if hopeless else None}
                        for place, (side, name, arguments) in enumerate(mends)],
            "env_assertions": _assertions(intent, chosen, hopeless, ids), "communicate_info": None, "nl_assertions": None,
            "reward_basis": ["ENV_ASSERTION", "ACTION"] if hopeless else ["ENV_ASSERTION"]},
        "db": _company(number, person, phone, rng), "user_db": USER_DB}
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:8]
    return {"id": f"[{INTENTS[intent]}]{'|'.join(chosen)}[PERSONA:{persona}]-{digest}"} | record


def _assertions(intent: str, chosen: list[str], hopeless: bool, ids: Mapping[str, str]) -> list[dict[str, Any]]:
    wanted: list[Action] = {
        "m": [(_USER, "assert_can_send_mms", {"expected_status": True})],
        "d": [(_USER, "assert_mobile_data_status", {"expected_status": True}),
              (_USER, "assert_internet_speed", {"expected_speed": 200, "expected_desc": "excellent"})],
        "s": [(_USER, "assert_service_status", {"expected_status": "no_service" if hopeless else "connected"})]}[intent]
    if "quota" in chosen:
        wanted = [*wanted, (_AGENT, "assert_data_refueling_amount", {
            "customer_id": ids["{c}"], "line_id": ids["{l}"], "expected_amount": 2.0})]
    if "bill" in chosen and not hopeless:
        wanted = [*wanted, (_AGENT, "assert_no_overdue_bill", {"overdue_bill_id": ids["{b}"]})]
    return [{"env_type": side, "func_name": name, "arguments": arguments, "assert_value": True}
            for side, name, arguments in wanted]


def _company(number: int, person: str, phone: str, rng: np.random.Generator) -> dict[str, Any]:
    """One customer with one line and one bill."""
    used = float(rng.integers(1, 9))
    return {
        "plans": [{"plan_id": "P1", "data_limit_gb": LIMIT, "price_per_month": PRICE, "data_refueling_price_per_gb": 2.0}],
        "devices": [],
        "lines": [{"line_id": f"L{number}", "phone_number": phone, "status": "Active", "plan_id": "P1", "data_used_gb": used,
                   "roaming_enabled": True, "contract_end_date": "2026-12-31"}],
        "customers": [{"customer_id": f"C{number}", "full_name": person, "date_of_birth": f"19{rng.integers(50, 99)}-05-01",
                       "phone_number": phone, "line_ids": [f"L{number}"], "bill_ids": [f"B{number}1"]}],
        "bills": [{"bill_id": f"B{number}1", "total_due": 0.0, "status": "Draft"}]}


def toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds; TaskFileError where it is missing or broken."""
    try:
        return tomllib.loads(text(path))
    except tomllib.TOMLDecodeError as error:
        raise file.TaskFileError(f"{path}: expected TOML, found: {error}") from None
