"""tau2-bench's files: what is wrong in a task is said when it is read, and a missing file says where to get it."""

import copy
import json
import shlex
import shutil

import pytest
from conftest import ROOT

from eau_jax.config import ConfigError
from eau_jax.config_file import call
from eau_jax.core.types import InfraError, Task
from eau_jax.envs.file import TaskFileError
from eau_jax.envs.gyms import tau as tau_gym
from eau_jax.envs.tau2 import data as tau2_data
from eau_jax.envs.tau2.call import call as tool_call
from eau_jax.envs.tau2.record_check import check_record, shapes
from eau_jax.envs.tau2.retail_tools import retail_tools
from eau_jax.envs.tau2.world import world
from eau_jax.envs.upstream_files import FILES, advice, origin
from eau_jax.eval.plan import Plan

# A user, two task records and a notification are all that the mock domain needs, so its files are written here.
BASE = {"tasks": {"task_1": {"task_id": "task_1", "title": "Old", "description": "An old one", "status": "pending"}},
        "users": {"user_1": {"user_id": "user_1", "name": "Ann", "tasks": ["task_1"]}}}
NOTE = {"notification_id": "notif_1", "message": "m", "status": "unread", "task_id": "task_1"}
TASK = {
    "id": "t1", "ticket": "Make a task.", "user_scenario": {"instructions": "You want a task called 'New' for user_1."},
    "initial_state": {
        "initialization_data": {"agent_data": {"users": {"user_1": {"name": "Bob"}}}},
        "initialization_actions": [{"env_type": "user", "func_name": "add_notification",
                                    "arguments": {"notification_id": "notif_2", "message": "m"}}],
        "message_history": [{"role": "assistant", "tool_calls": [{"id": "1", "name": "get_users", "arguments": {}}]}]},
    "evaluation_criteria": {
        "actions": [{"action_id": "a", "name": "create_task", "arguments": {"user_id": "user_1", "title": "New"},
                     "compare_args": ["title"]}],
        "env_assertions": [{"env_type": "assistant", "func_name": "assert_task_status",
                            "arguments": {"task_id": "task_2", "expected_status": "pending"}, "assert_value": True}],
        "communicate_info": ["New"], "nl_assertions": ["The agent is kind."], "reward_basis": ["DB", "ENV_ASSERTION"]}}
FILES_OF = {"db.json": BASE, "user_db.json": {"notifications": {"notif_1": NOTE}}, "tasks.json": [TASK],
            "split_tasks.json": {"base": ["t1"]}, "policy.md": "Be kind.", "policy_solo.md": "Be quick."}


def folder(tmp_path, **changes):
    """A mock domain with some files changed; dots in names are written as underscores."""
    path = tmp_path / "mock"
    path.mkdir()
    for name, content in FILES_OF.items():
        content = changes.get(name.replace(".", "_"), content)
        if content is not None:
            (path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def changed(place, value):
    """The task with the value at a dotted place replaced; `...` removes it."""
    task = copy.deepcopy(TASK)
    *path, last = [int(each) if each.isdigit() else each for each in place.split(".")]
    holder = task
    for each in path:
        holder = holder[each]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return task


def test_a_sound_folder_is_read(tmp_path):
    domain = tau2_data.load(folder(tmp_path))
    assert [task.id for task in domain.split("base")] == ["t1"] and domain.policy_solo == "Be quick."


def placed(record, place, value):
    """A copy of the record with the value at a dotted place."""
    record = copy.deepcopy(record)
    *path, last = [int(each) if each.isdigit() else each for each in place.split(".")]
    holder = record
    for each in path:
        holder = holder[each]
    holder[last] = value
    return record


RETAIL = {
    "products": {"p1": {"name": "Cup", "product_id": "p1", "variants": {
        "i1": {"item_id": "i1", "options": {"color": "red"}, "available": True, "price": 5.0}}}},
    "users": {"ann": {"user_id": "ann", "name": {"first_name": "Ann", "last_name": "Lee"}, "address": {"zip": "1"},
                      "email": "a@b.c", "orders": ["o1"], "payment_methods": {
                          "gift_card_1": {"source": "gift_card", "balance": 5.0}, "paypal_1": {"source": "paypal"}}}},
    "orders": {"o1": {"order_id": "o1", "user_id": "ann", "address": {}, "status": "pending",
                      "items": [{"name": "Cup", "product_id": "p1", "item_id": "i1", "price": 5.0, "options": {}}],
                      "payment_history": [
                          {"transaction_type": "payment", "amount": 5.0, "payment_method_id": "paypal_1"}]}}}
DAY = {"status": "available", "available_seats": {"business": 1, "economy": 1, "basic_economy": 1},
       "prices": {"business": 9, "economy": 5, "basic_economy": 3}}
AIRLINE = {
    "flights": {"f1": {"flight_number": "f1", "origin": "SFO", "destination": "JFK",
                       "scheduled_departure_time_est": "06:00:00", "scheduled_arrival_time_est": "07:00:00",
                       "dates": {"2024-05-20": DAY, "2024-05-21": {"status": "landed"}}}},
    "users": {"bob": {"user_id": "bob", "name": {"first_name": "Bob", "last_name": "Lee"}, "address": {"zip": "1"},
                      "email": "b@b.c", "reservations": ["r1"], "payment_methods": {
                          "certificate_1": {"source": "certificate", "amount": 5},
                          "credit_card_1": {"source": "credit_card"}}}},
    "reservations": {"r1": {"reservation_id": "r1", "user_id": "bob", "origin": "SFO", "destination": "JFK",
                            "cabin": "economy", "flights": [{"flight_number": "f1", "date": "2024-05-20", "price": 5}],
                            "passengers": [{}], "payment_history": [{"payment_id": "credit_card_1", "amount": 5}],
                            "total_baggages": 0, "nonfree_baggages": 0}}}


@pytest.mark.parametrize("name, place, value, said", [
    ("retail", "orders.o1.items", [1], r"items\[0\]: expected an object, found 1"),
    ("retail", "orders.o1.items.0.price", "abc", r"items\[0\].price: expected a number, found 'abc'"),
    ("retail", "orders.o1.items.0.price", float("nan"), r"items\[0\].price: expected a number, found nan"),
    ("retail", "orders.o1.items.0.price", True, r"items\[0\].price: expected a number, found True"),
    ("retail", "orders.o1.payment_history", [{}], r"payment_history\[0\].transaction_type: expected a string, found n"),
    ("retail", "orders.o1.payment_history", [], "payment_history: expected one payment or more, found none"),
    ("retail", "users.ann.payment_methods.gift_card_1", None, "gift_card_1: expected an object, found nothing"),
    ("retail", "users.ann.payment_methods.gift_card_1", {"source": "gift_card"}, "balance: expected a number, found n"),
    ("retail", "users.ann.payment_methods.gift_card_1.source", [], r"source: expected a string, found \[\]"),
    ("retail", "users.ann.orders", [3], r"orders\[0\]: expected a string, found 3"),
    ("retail", "users.ann.name", {"first_name": "Ann"}, "name.last_name: expected a string, found nothing"),
    ("retail", "products.p1.variants.i1.price", "abc", "variants.i1.price: expected a number, found 'abc'"),
    ("retail", "products.p1.variants.i1.available", 1, "variants.i1.available: expected true or false, found 1"),
    ("airline", "reservations.r1.flights", [{"flight_number": "f1"}], r"flights\[0\].date: expected a string, found n"),
    ("airline", "reservations.r1.payment_history.0.amount", None, r"payment_history\[0\].amount: expected a number"),
    ("airline", "reservations.r1.nonfree_baggages", 1.5, "nonfree_baggages: expected a whole number, found 1.5"),
    ("airline", "flights.f1.dates.2024-05-20.prices.economy", "5", "prices.economy: expected a number, found '5'"),
    ("airline", "flights.f1.dates.2024-05-21", None, "dates.2024-05-21: expected an object, found nothing"),
    ("airline", "users.bob.payment_methods.certificate_1.amount", None, "certificate_1.amount: expected a number"),
])
def test_what_a_tool_reads_is_checked_when_the_database_is_read(tmp_path, name, place, value, said):
    base = {"retail": RETAIL, "airline": AIRLINE}[name]
    table, key, _ = place.split(".", 2)
    check_record(shapes(name), table, key, base[table][key])
    path = tmp_path / name
    path.mkdir()
    (path / "db.json").write_text(json.dumps(placed(base, place, value)))
    with pytest.raises(TaskFileError, match=rf"db.json, field {table}.{key}.*{said}"):
        tau2_data.load(path)


def test_a_set_up_that_leaves_an_unsound_record_is_refused(tmp_path):
    task = changed("initial_state.initialization_data", {"agent_data": {"tasks": {"task_9": {"title": "x"}}}})
    with pytest.raises(TaskFileError, match="initial_state: expected sound records, but it leaves tasks.task_9.task_id"):
        tau2_data.load(folder(tmp_path, tasks_json=[task]))


@pytest.mark.parametrize("place, value", [("orders.o1.items", [1]), ("products.p1.variants.i2.price", "abc")])
def test_a_tool_that_meets_unsound_data_is_not_the_agents_fault(place, value):
    sound = placed(RETAIL, "products.p1.variants.i2", RETAIL["products"]["p1"]["variants"]["i1"])
    arguments = {"order_id": "o1", "item_ids": ["i1"], "new_item_ids": ["i2"], "payment_method_id": "paypal_1"}
    change = lambda base: tool_call(retail_tools(), base, {}, "modify_pending_order_items", arguments)
    assert not change(sound).error
    with pytest.raises(InfraError, match="^the tool modify_pending_order_items cannot work with the records"):
        change(placed(sound, place, value))


ACTION, ASSERTION = "evaluation_criteria.actions.0.", "evaluation_criteria.env_assertions.0."
SET_UP, HISTORY = "initial_state.initialization_actions.0.", "initial_state.message_history.0."


@pytest.mark.parametrize("place, value, said", [
    ("id", " ", "id: expected a non-empty string"),
    ("user_scenario", {"instructions": 3}, "user_scenario.instructions: expected a string or an object"),
    ("user_scenario", {"instructions": {}}, "user_scenario.instructions.reason_for_call: expected a non-empty string"),
    ("user_scenario", {"instructions": {"reason_for_call": "x", "known_info": ["y"]}},
     r"user_scenario.instructions.known_info: expected a string, found \['y'\]"),
    ("evaluation_criteria", None, "evaluation_criteria: expected an object, found nothing"),
    ("evaluation_criteria.action", [], "evaluation_criteria: expected the fields actions, .*, found 'action'"),
    ("evaluation_criteria.actions", {}, "evaluation_criteria.actions: expected a list"),
    (ACTION + "name", "make_task", r"actions\[0\].name: expected a tool of the assistant, found 'make_task'; did you mean "
                                   "'create_task'"),
    (ACTION + "name", "dismiss_notification", "expected a tool of the assistant, found 'dismiss_notification', which is a "
                                              "tool of the user"),
    (ACTION + "requestor", "agent", r"actions\[0\].requestor: expected assistant or user, found 'agent'"),
    (ACTION + "requestor", "user", "expected a tool of the user, found 'create_task', which is a tool of the assistant"),
    (ACTION + "arguments", ..., r"actions\[0\].arguments: expected an object, found nothing"),
    (ACTION + "arguments.title", ..., r"actions\[0\].arguments, of create_task: missing argument 'title'"),
    (ACTION + "arguments.titel", "x", "of create_task: unexpected argument 'titel'; allowed: user_id, title, description"),
    (ACTION + "arguments.title", 3, "of create_task: title: expected a string, found 3"),
    (ACTION + "compare_args", ["name"], r"actions\[0\].compare_args: expected a list of arguments of create_task \(user_id, "
                                        r"title, description\), found \['name'\]"),
    (ACTION + "kwargs", {}, r"actions\[0\]: expected the fields action_id, .*, found 'kwargs'"),
    (ASSERTION + "func_name", "assert_moon", r"env_assertions\[0\].func_name: expected an assertion of the assistant, found "
                                             "'assert_moon'; .*assert_"),
    (ASSERTION + "func_name", "create_task", "expected an assertion of the assistant, found 'create_task'"),
    (ASSERTION + "env_type", "user", "expected an assertion of the user, found 'assert_task_status'"),
    (ASSERTION + "env_type", ..., r"env_assertions\[0\].env_type: expected assistant or user, found nothing"),
    (ASSERTION + "arguments.expected_status", "done", "of assert_task_status: expected_status: expected one of pending, "
                                                      "completed, found 'done'"),
    (ASSERTION + "assert_value", "yes", r"env_assertions\[0\].assert_value: expected true or false, found 'yes'"),
    ("evaluation_criteria.communicate_info", "New", "communicate_info: expected a list, found 'New'"),
    ("evaluation_criteria.communicate_info", [3], r"communicate_info\[0\]: expected a non-empty string, found 3"),
    ("evaluation_criteria.nl_assertions", [""], r"nl_assertions\[0\]: expected a non-empty string"),
    ("evaluation_criteria.reward_basis", ["DBS"], r"reward_basis: expected a list of one or more of DB, ENV_ASSERTION, "
                                                  r"ACTION, COMMUNICATE, NL_ASSERTION, found \['DBS'\]"),
    ("evaluation_criteria.reward_basis", [], "reward_basis: expected a list of one or more"),
    ("initial_state.initialisation_actions", [], "initial_state: expected the fields .*, found 'initialisation_actions'"),
    (SET_UP + "func_name", "add_note", r"initialization_actions\[0\].func_name: expected a function or tool of the user, "
                                       "found 'add_note'"),
    (SET_UP + "func_name", "assert_notification_status", "expected a function or tool of the user, found"),
    (SET_UP + "arguments", {"message": "m"}, "of add_notification: missing argument 'notification_id'"),
    ("initial_state.initialization_actions", [{"env_type": "assistant", "func_name": "create_task", "arguments": {
        "user_id": "user_9", "title": "x"}}], r"initialization_actions\[0\]: expected a call that succeeds, found "
                                              "create_task: User user_9 not found"),
    ("initial_state.initialization_data", {"agent_data": {"orders": {}}}, "agent_data: expected the fields tasks, users, "
                                                                          "found 'orders'"),
    ("initial_state.initialization_data", {"user_data": {"notifications": {"n": 3}}}, "user_data.notifications: expected an "
                                                                                      "object of records"),
    (HISTORY + "role", "agent", r"message_history\[0\].role: expected user, assistant or tool"),
    (HISTORY + "tool_calls", [{"name": "x", "arguments": {}}], r"tool_calls\[0\].name: expected a tool of the assistant"),
])
def test_a_slip_in_a_task_is_said(tmp_path, place, value, said):
    task = changed(place, value)
    path = folder(tmp_path, tasks_json=json.dumps([TASK | {"id": "t0"}])[:-1] + ",\n" + json.dumps(task) + "]",
                  split_tasks_json={"base": []})
    with pytest.raises(TaskFileError, match=rf"tasks.json, line 2, field .*{said}"):
        tau2_data.load(path)
    if place != "id":
        with pytest.raises(TaskFileError, match=r"\(task 't1'\)$"):
            tau2_data.load(path)
        (path / "tasks.json").write_text(json.dumps([TASK]))
        (path / "split_tasks.json").write_text(json.dumps({"base": ["t1"]}))
        env = world(tau2_data.load(path))
        with pytest.raises(ValueError, match=f"^task 't1', field .*{said}"):
            env.table((Task(id="t1", env="tau2_mock", data=task),))


@pytest.mark.parametrize("name, content, said", [
    ("tasks_json", [TASK, TASK], "field id: expected a new id, found 't1' again"),
    ("split_tasks_json", {"base": ["t1", "t1"]},
     "split 'base': expected ids of tasks in the task file, each once, found 't1'"),
    ("split_tasks_json", {"base": ["t2"]}, "split 'base': expected ids of tasks in the task file, each once, found 't2'"),
    ("split_tasks_json", {"base": "t1"}, "split 'base': expected a list of task ids, found 't1'"),
    ("split_tasks_json", ["t1"], "expected an object of lists of task ids"),
    ("db_json", {**BASE, "users": {"user_1": {"user_id": "user_1", "name": "x"}}},
     "field users.user_1.tasks: expected a list, found nothing"),
    ("db_json", {**BASE, "users": {"user_1": 3}}, "field users.user_1: expected an object, found 3"),
    ("user_db_json", {}, "field notifications: expected an object of records, found nothing"),
    ("policy_solo_md", None, "policy_solo.md: no such file"), ("user_db_json", None, "user_db.json: no such file"),
    ("tasks_json", None, "tasks.json: no such file")])
def test_other_files(tmp_path, name, content, said):
    with pytest.raises(TaskFileError, match=said):
        tau2_data.load(folder(tmp_path, **{name: content}))


def test_a_missing_file_names_the_command(tmp_path):
    root = tmp_path / "my data"
    path = root / "tau2/airline/db.json"
    with pytest.raises(TaskFileError) as error:
        tau2_data.load(path.parent)
    command = f"`eau-jax data {shlex.quote(str(root))}`"
    assert str(error.value).startswith(f"{path}: no such file; it is one of upstream's: {command}")
    assert advice(tmp_path / "mine/db.json") == ""
    assert advice("usergym/function/functions.json").startswith("it is one of upstream's: `eau-jax data .`")
    with pytest.raises(TaskFileError, match="`eau-jax data .*/root` lists"):
        tau_gym.load(tmp_path / "root/usergym/tau/tau_test.json")


@pytest.mark.parametrize("name", ["eval_tau2", "eval_usergym"])
def test_a_plan_without_its_data_names_file_line_and_command(tmp_path, monkeypatch, name):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("EAU_DATA", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=rf"^configs/{name}.py, line \d+: TaskFileError: .*/none/tau2/[a-z]+/db.json: no "
                                          r"such file; it is one of upstream's: `eau-jax data .*/none`"):
        call(f"configs/{name}.py", "plan", Plan)


def test_where_upstream_keeps_its_files():
    expected = {
        "tau2/LICENSE": "LICENSE", "tau2/retail/db.json": "data/tau2/domains/retail/db.json",
        "tau2/user_simulator/simulation_guidelines.md": "data/tau2/user_simulator/simulation_guidelines.md",
        "usergym/LICENSE.txt": "LICENSE.txt", "usergym/tau/tau_test.json": "gyms/TauGym/taugym/data/tau_test.json",
        "usergym/search/test.parquet": "data/bamboogle_multiturn/test.parquet",
        "usergym/travel/travel22_test.parquet": "data/travel22_multiturn_onechoice/test.parquet",
        "usergym/merged/alltest.parquet": "data/alltest_multiturn/test.parquet"}
    assert {name: origin(name) for name in expected} == expected and set(expected) <= set(FILES)


@pytest.mark.parametrize("change, said", [
    ({"name": "cancel_order"}, r"actions\[0\].name: expected a tool of retail, found 'cancel_order'; did you mean"),
    ({"kwargs": {"order_id": 3, "reason": "x"}}, r"info.task.actions\[0\].kwargs, of cancel_pending_order: order_id: "
                                                 "expected a string, found 3"),
    ({"kwargs": {}}, "of cancel_pending_order: missing argument 'order_id'")])
def test_a_slip_in_a_task_of_the_gym_is_said(tmp_path, change, said):
    action = {"name": "cancel_pending_order", "kwargs": {"order_id": "#W1", "reason": "no longer needed"}} | change
    record = {"id": "retail-1", "obs": "Hi", "info": {"task": {"instruction": "x", "actions": [action], "outputs": []}}}
    (tmp_path / "t.json").write_text(json.dumps([record]))
    with pytest.raises(TaskFileError, match=f"t.json, line 1, field .*{said}"):
        tau_gym.load(tmp_path / "t.json")


@pytest.mark.parametrize("task, said", [
    ({"outputs": "x"}, "info.task.outputs: expected a list of strings, found 'x'"),
    ({"outputs": [3]}, "info.task.outputs: expected a list of strings"),
    ({"actions": "x"}, "info.task.actions: expected a list, found 'x'"),
    ({"user_id": 3}, "info.task.user_id: expected a string, found 3")])
def test_other_slips_in_a_task_of_the_gym_are_said(tmp_path, task, said):
    record = {"id": "retail-1", "obs": "Hi", "info": {"task": {"instruction": "x"} | task}}
    (tmp_path / "t.json").write_text(json.dumps([record]))
    with pytest.raises(TaskFileError, match=said):
        tau_gym.load(tmp_path / "t.json")


def test_a_copy_of_upstreams_folder_is_read(tmp_path, shared_data):
    shutil.copytree(shared_data / "tau2/mock", tmp_path / "mock")
    assert len(tau2_data.load(tmp_path / "mock").tasks) == 10
