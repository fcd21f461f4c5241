"""The layout of AReaL-tau2-data, in files written here: tasks with databases of their own, rows of conversations."""

import collections
import copy
import json
import random
from types import SimpleNamespace

import pytest

from eau_jax.config import Tasks
from eau_jax.config_file import replace
from eau_jax.core.types import Task
from eau_jax.envs.file import TaskFileError
from eau_jax.envs.tau2 import areal
from eau_jax.envs.tau2.retail_slice import retail_slice
from eau_jax.envs.tau2.world import world
from eau_jax.envs.telecom import tasks as telecom_tasks
from eau_jax.envs.telecom.telecom import telecom as phone
from eau_jax.rollout import areal_rows, dialogue_file
from eau_jax.rollout.areal_rows import Filter
from eau_jax.synth.domains.retail import retail
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.play import Stage

USER = {"user_id": "ann_lee_1", "name": {"first_name": "Ann", "last_name": "Lee"}, "email": "ann@example.com",
        "orders": ["#W1000001"],
        "address": {"address1": "1 Road", "address2": "", "city": "Town", "state": "TX", "country": "USA", "zip": "11111"},
        "payment_methods": {"credit_card_1000001": {"id": "credit_card_1000001", "source": "credit_card"}}}
ITEM = {"name": "Lamp", "product_id": "1000000001", "item_id": "2000000001", "price": 10.0, "options": {"color": "red"}}
ORDER = {"order_id": "#W1000001", "user_id": "ann_lee_1", "address": USER["address"], "status": "pending", "items": [ITEM],
         "payment_history": [{"transaction_type": "payment", "amount": 10.0, "payment_method_id": "credit_card_1000001"}]}
VARIANT = {"item_id": "2000000001", "available": True, "price": 10.0, "options": {"color": "red"}}
DATABASE = {"users": {"ann_lee_1": USER}, "orders": {"#W1000001": ORDER},
            "products": {"1000000001": {"name": "Lamp", "product_id": "1000000001", "variants": {"2000000001": VARIANT}}}}
OTHER = json.loads(json.dumps(DATABASE).replace("ann_lee_1", "bob_ray_2").replace("Ann", "Bob").replace(
    "Lee", "Ray").replace("ann@", "bob@"))     # the same order is another customer's there
POLICY = "Serve the customers of a shop."


def criteria(reason="no longer needed"):
    actions = [{"action_id": "1", "name": "cancel_pending_order", "arguments": {"order_id": "#W1000001", "reason": reason}}]
    return {"actions": actions, "communicate_info": [], "nl_assertions": None}


def task(name, person, path):
    told = f"You are {person}. You want to cancel the order #W1000001, which is no longer needed."
    return {"id": name, "db_path": path, "evaluation_criteria": json.dumps(criteria()),
            "user_scenario": {"persona": None, "instructions": {
                "domain": "retail", "reason_for_call": told, "known_info": told, "unknown_info": None,
                "task_instructions": ""}}}


PATHS = ("tau2_rl_database/tau2_retail_new_db_1.json", "tau2_rl_database/tau2_retail_new_db_2.json")
TASKS = [task("retail_1", "Ann Lee, ann@example.com, zip code 11111", PATHS[0]),
         task("retail_2", "Bob Ray, bob@example.com, zip code 11111", PATHS[1])]


@pytest.fixture
def folders(tmp_path):
    """(the data set's folder, upstream's)."""
    upstream, published = tmp_path / "tau2" / "retail", tmp_path / "areal"
    for path in (upstream, published / "tau2_rl_database"):
        path.mkdir(parents=True)
    own = task("0", "Ann Lee, ann@example.com, zip code 11111", "") | {"evaluation_criteria": criteria()}
    del own["db_path"]
    for name, content in (("db.json", DATABASE), ("tasks.json", [own]), ("split_tasks.json", {"test": ["0"]})):
        (upstream / name).write_text(json.dumps(content))
    (upstream / "policy.md").write_text(POLICY)
    for path, content in zip(PATHS, (DATABASE, OTHER)):
        (published / path).write_text(json.dumps(content))
    written(published, TASKS)
    return published, upstream


def written(folder, rows):
    (folder / areal.TASKS).write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- tasks


def test_each_task_is_played_with_its_own_database(folders):
    domain = areal.load(*folders)
    assert [each.id for each in domain.split("train")] == ["retail_1", "retail_2"]
    assert [each.id for each in domain.split("test")] == ["0"] and domain.policy == POLICY
    env = world(domain)
    stage = Stage(retail._replace(env=env))
    for each, name in zip((*domain.split("train"), *domain.split("test")), ("ann_lee_1", "bob_ray_2", "ann_lee_1")):
        ended = stage.play(each, env.expert, "expert", "plain", {}, 0)
        assert ended.success and name in " ".join(turn["reply"] for turn in ended.turns if turn["by"] == "tool")
    idle = stage.play(domain.tasks[0], lambda *_: "It is done. Is there anything else?", "idle", "plain", {}, 0)
    assert not idle.success and env.floor.idle == 0.0
    with pytest.raises(ValueError, match="2 databases of their own, and arrays hold one"):
        retail_slice(domain)


def test_a_run_takes_its_tasks_from_there(folders):
    """`Tasks.load`, as `eau-jax train` calls it, and the held-out tasks of upstream."""
    from eau_jax.assemble import tasks
    from tiny_config import config
    domain = areal.load(*folders)
    given = Tasks(generate=lambda split, count, seed: domain.split(split), train_file=str(folders[0] / areal.TASKS),
                  load=lambda path: domain.split("train"))
    made = SimpleNamespace(tasks=given, rollout=replace(config(), {"rollout.tasks": 2}).rollout, seed=0)
    assert [each.id for each in tasks(made, "train")] == ["retail_1", "retail_2"]
    assert [each.id for each in tasks(made, "test")] == ["0"]


def test_a_task_about_a_database_that_the_domain_lacks_is_refused(folders):
    domain = areal.load(*folders)
    lost = Task("x", "tau2_retail", {**domain.tasks[0].data, "db_path": "elsewhere.json"})
    with pytest.raises(ValueError, match="task 'x', field db_path: expected tau2_rl_database/.*, found 'elsewhere.json'"):
        world(domain).table((lost,))


def spoilt(place, value):
    """The tasks with one field of the second changed."""
    rows = copy.deepcopy(TASKS)
    if value is None:
        del rows[1][place]
    else:
        rows[1][place] = value
    return rows


@pytest.mark.parametrize("rows, said", [
    (spoilt("evaluation_criteria", "{'actions': []}"),
     "line 2, field evaluation_criteria: expected JSON in a string, found"),
    (spoilt("evaluation_criteria", "[]"),
     r"line 2, field evaluation_criteria: expected an object, as JSON in a string, found \[\]"),
    (spoilt("evaluation_criteria", None), "line 2, field evaluation_criteria: expected an object.*found nothing"),
    (spoilt("id", "retail_1"), "line 2, field id: expected a new id, found 'retail_1' again .first at line 1."),
    (spoilt("id", "shop_1"), "line 2, field id: expected it to begin with airline, retail or telecom, found 'shop_1'"),
    (spoilt("id", None), "line 2, field id: expected a non-empty string, found nothing"),
    (spoilt("db_path", None), "line 2, field db_path: expected a non-empty string, found nothing"),
    (spoilt("db_path", "tau2_rl_database/none.json"),
     "task 'retail_2': .*none.json: no such file.*tau2_rl_database/ has tau2_retail_new_db_1.json, tau2_retail_new_db_2"),
    (spoilt("db_path", "tau2_rl_database/../tau2_rl_train.json"), "field db_path: expected a path in tau2_rl_database/"),
    (spoilt("db_path", "/etc/passwd"), "field db_path: expected a path in tau2_rl_database/, found '/etc/passwd'"),
    (spoilt("user_scenario", None), "line 2, task 'retail_2', field user_scenario.instructions: expected"),
    (spoilt("evaluation_criteria", json.dumps({"actions": [{"name": "cancel_order", "arguments": {}}]})),
     r"line 2, task 'retail_2', field evaluation_criteria.actions\[0\].name: expected a tool of the assistant"),
    ([*TASKS, 3], "line 3, field record: expected an object, found 3"), ([], "expected at least one task, found none")])
def test_what_is_wrong_with_a_task_is_said(folders, rows, said):
    written(folders[0], rows)
    with pytest.raises(TaskFileError, match=said):
        areal.load(*folders)


def test_what_is_wrong_with_a_file_is_said(folders, tmp_path):
    published, upstream = folders
    with open(published / areal.TASKS, "a") as file:
        file.write('{"id": "retail_3",\n')
    with pytest.raises(TaskFileError, match="tau2_rl_train.jsonl, line .*: not JSON"):
        areal.load(published, upstream)
    written(published, TASKS)
    broken = json.loads(json.dumps(OTHER))
    broken["orders"]["#W1000001"]["items"][0]["price"] = "10"
    (published / PATHS[1]).write_text(json.dumps(broken))
    with pytest.raises(TaskFileError, match="new_db_2.json, field orders.*items.0..price: expected a number, found '10'"):
        areal.load(published, upstream)
    (published / PATHS[1]).unlink()
    (published / PATHS[1]).symlink_to(tmp_path / "tau2" / "retail" / "db.json")
    with pytest.raises(TaskFileError, match="expected a path in tau2_rl_database/"):
        areal.load(published, upstream)
    with pytest.raises(TaskFileError, match="no such file; expected the folder of AReaL-tau2-data"):
        areal.load(tmp_path, upstream)
    with pytest.raises(ValueError, match="expected a folder named"):
        areal.load(published, tmp_path)


def test_unsound_tasks_can_be_left_out(folders):
    written(folders[0], spoilt("user_scenario", None))
    left_out = []
    assert [each.id for each in areal.load(*folders, left_out).split("train")] == ["retail_1"]
    assert len(left_out) == 1 and "line 2, task 'retail_2', field user_scenario" in left_out[0]
    written(folders[0], spoilt("db_path", "tau2_rl_database/none.json"))
    with pytest.raises(TaskFileError, match="no such file"):      # a file that is missing is no unsound task
        areal.load(*folders, left_out)


def test_where_no_task_is_left_the_first_complaint_of_this_domain_is_told(folders):
    written(folders[0], [{**each, "user_scenario": None} for each in TASKS])
    for earlier in ([], ["what was wrong with another domain"]):
        with pytest.raises(TaskFileError, match="of retail that can be played, found none; the first: .*task 'retail_1'"):
            areal.load(*folders, earlier)
    written(folders[0], [{**TASKS[0], "id": "airline_1"}])
    with pytest.raises(TaskFileError, match="found none$"):
        areal.load(*folders, ["what was wrong with another domain"])


def toml(value):
    """The TOML of an object of lists of flat objects."""
    lines = [f"{name} = []" for name, part in value.items() if not part]
    for name, part in value.items():
        for each in part:
            lines += [f"[[{name}]]", *(f"{key} = {json.dumps(item)}" for key, item in each.items())]
    return "\n".join(lines) + "\n"


def test_telecom_tasks_are_played(tmp_path):
    upstream, published = tmp_path / "telecom", tmp_path / "areal"
    (published / "tau2_rl_database").mkdir(parents=True)
    upstream.mkdir()
    generated = next(each for each in telecom_tasks.generate("train", 20, 0) if "airplane" in each.id)
    record = {key: value for key, value in generated.data.items() if key not in ("db", "user_db")}
    (published / "tau2_rl_database" / "tau2_telecom_db.toml").write_text(toml(generated.data["db"]))
    device = generated.data["user_db"]["device"]
    user = ["[device]", f"network_signal_strength = {json.dumps(device['network_signal_strength'])}"]
    for app, status in device["app_statuses"].items():
        user += [f"[device.app_statuses.{app}.permissions]", *(f"{name} = {json.dumps(on)}" for name, on in
                                                               status["permissions"].items())]
    files = {"db.toml": toml(generated.data["db"]), "user_db.toml": "\n".join(user), "main_policy.md": "A.",
             "main_policy_solo.md": "B.", "tech_support_manual.md": "C."}
    for name, text in files.items():
        (upstream / name).write_text(text)
    row = {**record, "id": f"telecom_{record['id']}", "db_path": "tau2_rl_database/tau2_telecom_db.toml",
           "evaluation_criteria": json.dumps(record["evaluation_criteria"])}
    written(published, [row, TASKS[0]])
    found, = areal.load_telecom(published, upstream)
    assert found.data["db"] == generated.data["db"] and found.data["policy"] == "A.\nC."
    assert Stage(telecom).play(found, phone.expert, "oracle", "None", {}, 0).success
    slip = {"env_type": "user", "func_name": "turn_airplane_mode_up", "arguments": {}}
    row["initial_state"] = {"initialization_actions": [slip]}
    written(published, [row])
    with pytest.raises(TaskFileError, match=r"line 1, task 'telecom_.*initialization_actions\[0\].func_name: expected"):
        areal.load_telecom(published, upstream)


# --- conversations


CALL = {"name": "get_order_details", "arguments": {"order_id": "#W1000001"}}
TALK = [{"role": "system", "content": POLICY},
        {"role": "user", "content": "Cancel #W1000001, please. I am ann@example.com."}]


def row(turn=0, dialog="d1", messages=TALK, correct=1, reward=1.0, mark="scenario_id", **answer):
    return {"messages": messages, "answer": {"content": "", "thinking": "", "tool_calls": [], **answer},
            "metadata": {"source_dialog_id": dialog, "turn_index": turn, "correct": correct, "reward": reward, mark: "s"}}


def calls(*listed):
    return {"tool_calls": [{"id": str(place), "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])}}
                           for place, call in enumerate(listed)]}


def filtered(tmp_path, *rows, chosen=Filter(), left_out=None):
    (tmp_path / areal_rows.FILE).write_text("".join(json.dumps(each) + "\n" for each in rows))
    counts = areal_rows.write(tmp_path / areal_rows.FILE, tmp_path / "clean.jsonl", chosen, left_out)
    return [json.loads(line) for line in (tmp_path / "clean.jsonl").read_text().splitlines()], counts


LOOK = {"name": "find_user_id_by_email", "arguments": {"email": "ann@example.com"}}
SCHEMA = {"name": "get_order_details", "arguments": {"order_id": {"type": "string", "description": "the order"}}}
WITH_CALL = [*TALK, {"role": "assistant", "content": None, **calls(LOOK)}]


@pytest.mark.parametrize("given, reason", [
    (row(content="Who are you?"), "kept"), (row(**calls(CALL)), "kept"), (row(**calls(CALL, LOOK)), "kept"),
    (row(content="Hm?", correct=0, reward=0), "failed"), (row(content="Hm?", correct=0), "labels disagree"),
    (row(content="Hm?", reward=0), "labels disagree"), (row(thinking="I wonder."), "empty"), (row(), "empty"),
    (row(content="One moment.", **calls(CALL)), "words and calls"),
    (row(**calls({"name": "get_order", "arguments": {}})), "unknown tool"),
    (row(mark="difficulty", **calls({"name": "toggle_airplane_mode", "arguments": {}})), "user's tool"),
    (row(**calls({"name": "get_order_details", "arguments": {"order": "#W1000001"}})), "bad arguments"),
    (row(**calls(SCHEMA)), "schema in arguments"),
    (row(**calls(LOOK, {"name": "get_user_details", "arguments": {"user_id": "ann_lee_1"}})), "dependent calls"),
    (row(content="Hm?", messages=[*TALK, {"role": "tool", "content": "{}"}]), "broken order"),
    (row(content="Hm?", messages=[*WITH_CALL, {"role": "user", "content": "Well?"}]), "broken order"),
    (row(content="Hm?", messages=[*WITH_CALL, {"role": "tool", "content": "ann_lee_1"}]), "kept")])
def test_rows_are_left_out_by_their_form(tmp_path, given, reason):
    rows, counts = filtered(tmp_path, given)
    domain = "telecom" if "difficulty" in given["metadata"] else "retail"
    assert counts == {domain: collections.Counter({"read": 1, reason: 1})} and rows == ([given] if reason == "kept" else [])
    assert reason == "kept" or reason in areal_rows.REASONS


def test_what_is_chosen_besides_is_counted_by_domain(tmp_path):
    long = row(2, mark="seed_pattern_task_id", content="word " * 400)
    given = [row(0, content="Hm?"), row(1, "d2", content="Hm?"), row(1, **calls(CALL, LOOK)), long]
    rows, counts = filtered(tmp_path, *given, chosen=Filter(one_call=True, longest=1000))
    assert rows == given[:1] and counts["airline"] == {"read": 1, "too long": 1}
    assert counts["retail"] == {"read": 3, "kept": 1, "duplicate": 1, "several calls": 1}


def test_what_is_kept_is_learned_answer_by_answer(tmp_path):
    """By our own reader: the last message of a row and nothing else."""
    filtered(tmp_path, row(0, content="Hm?"), row(1, **calls(CALL)))
    found = list(dialogue_file.read(tmp_path / "clean.jsonl"))
    learned = [[message.text or message.calls for message in each.dialogue.messages
                if message.role == "agent" and message.learned] for each in found]
    assert learned == [["Hm?"], [(json.dumps(CALL),)]]
    assert [each.success for each in found] == [True, True] and found[0].dialogue.system == POLICY


def without(name, holder="metadata"):
    made = row(content="Hm?")
    del (made if not holder else made[holder])[name]
    return made


@pytest.mark.parametrize("given, said", [
    (3, "line 2, field row: expected an object, found 3"),
    (without("answer", ""), "line 2, field answer: expected an object, found nothing"),
    (without("messages", ""), "line 2, field messages: expected a list of messages, found nothing"),
    (without("reward"), "line 2, field metadata.reward: expected a number, found nothing"),
    (without("source_dialog_id"), "line 2, field metadata.source_dialog_id: expected an id, found nothing"),
    (without("scenario_id"), "line 2, field metadata: expected one of seed_pattern_task_id, scenario_id, difficulty"),
    (row(0, content="Something else"),
     "line 2, .*turn_index: expected each turn of conversation 'retail d1' once, found turn 0"),
    (row(1, content="Hm?", messages=[*TALK, {"role": "judge", "content": "x"}]),
     r"line 2, field messages\[2\].role: expected one of .*, found 'judge'"),
    (row(1, tool_calls={"name": "x"}), "line 2, field answer.tool_calls: expected a list, found")])
def test_what_is_wrong_with_a_row_is_said_and_nothing_is_written(tmp_path, given, said):
    with pytest.raises(TaskFileError, match=f"tau2_sft_train.jsonl, {said}"):
        filtered(tmp_path, row(0, content="Hm?"), given)
    assert [path.name for path in tmp_path.iterdir()] == [areal_rows.FILE]


def test_broken_files_of_rows_are_named(tmp_path):
    source = tmp_path / areal_rows.FILE
    with pytest.raises(TaskFileError, match="no such file"):
        areal_rows.write(source, tmp_path / "clean.jsonl")
    for text, said in ((json.dumps(row(content="Hm?")) + '\n{"messages": [', "line 2: not JSON"), ("\n", "at least one row"),
                       (b"\n\xff\n", "line 2: expected UTF-8 text, found byte 0xff")):
        source.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(TaskFileError, match=said):
            areal_rows.write(source, tmp_path / "clean.jsonl")


def test_rows_that_are_no_conversations_can_be_left_out(tmp_path):
    left_out = []
    odd = row(1, "d2", content="Hm?", messages=[*TALK, {"role": "assistant", "content": ""}])
    rows, counts = filtered(tmp_path, row(0, content="Hm?"), odd, left_out=left_out)
    assert len(rows) == 1 and counts["retail"]["unreadable"] == 1
    assert "line 2, field messages[2]: expected words or a tool call of the agent" in left_out[0]


def test_which_rows_are_kept_does_not_depend_on_their_order(tmp_path):
    given = [row(turn, f"d{turn % 3}", content=f"Question {turn % 5}?", correct=turn % 4 != 0) for turn in range(24)]
    once = {each["answer"]["content"] for each in filtered(tmp_path, *given)[0]}
    random.Random(0).shuffle(given)
    assert {each["answer"]["content"] for each in filtered(tmp_path, *given)[0]} == once
