"""Data sets out of a synthesis: what is in the rows, and that our own training and worlds read them."""

import collections
import dataclasses
import json
from types import SimpleNamespace

import jax
import pytest

from crafted import Here, instance
from eau_jax import demonstrations, start, synth_command, train
from eau_jax.assemble import assemble
from eau_jax.config import Tasks
from eau_jax.config_file import replace
from eau_jax.core.records import RunFolderError
from eau_jax.envs.file import TaskFileError
from eau_jax.rollout import dialogue_file
from eau_jax.rollout.dialogue import agent_view
from eau_jax.synth import curious, datasets, pipeline
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.domains.workshop import workshop
from eau_jax.synth.export import tasks
from eau_jax.synth.plan import SynthPlan
from eau_jax.synth.play import Stage, task_of
from eau_jax.synth.realise import realise
from eau_jax.synth.record import Report, Rollout, read
from eau_jax.synth.rows import Source, UserTurn, clean, user_turns
from eau_jax.users import faithful, role_play
from eau_jax.users.voice import Spoken
from tiny_config import config as tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder of three synthesised tasks, card of their data); with this seed one is a held-out one."""
    plan = SynthPlan(workshop, root=str(tmp_path_factory.mktemp("synth")), count=3, shard=2, seed=4,
                     outcomes={"fulfil": 1.0}, sizes={1: 0.34, 2: 0.66})
    folder = pipeline.run(plan, elsewhere=Here)
    return folder, datasets.export(folder)


def rows(folder, name):
    return [json.loads(line) for line in (folder / "data" / name).read_text(encoding="utf-8").splitlines()]


def turns(*acts):
    return [UserTurn(str(place), SimpleNamespace(exchanges=()), 0, act, {}, True, "") for place, act in enumerate(acts)]


def test_agent_rows_are_what_the_agent_said(made):
    """To the character, with tool calls in the API's form, and only messages that nobody had to put right are learned."""
    folder, card = made
    played = {json.dumps([turn["agent"] for turn in rollout.turns]): rollout
              for path in (folder / "shards").iterdir() for rollout in read(path, Rollout) if rollout.success}
    found = list(dialogue_file.read(folder / "data" / "agent_sft.jsonl"))
    assert len(found) == card["agent"]["rows"] >= 2 and {row.success for row in found} == {True}
    for row, raw in zip(found, rows(folder, "agent_sft.jsonl")):
        exchanges = agent_view(row.dialogue, thoughts=True).exchanges
        rollout = played[json.dumps([exchange.said for exchange in exchanges])]
        assert [exchange.learned for exchange in exchanges] == [
            rollout.agent == "oracle" or clean(turn) for turn in rollout.turns]
        assert raw["metadata"]["split"] == "train"
        assert any(message.get("tool_calls") for message in raw["messages"])


def test_user_rows_have_the_roles_exchanged(made):
    folder, card = made
    found = rows(folder, "user_sft.jsonl")
    assert len({row["id"] for row in found}) == len(found) == card["user"]["train"]["rows"]
    for row in found:
        system, greeting, *rest = row["messages"]
        assert system["content"].startswith(role_play.system("")) and greeting["content"] == role_play.GREETING
        roles = [each["role"] for each in row["messages"][1:]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
        assert not any("<tool_call>" in each["content"] for each in row["messages"][1:])
        said = row["answer"]["content"]
        assert (role_play.STOP in said or "###TRANSFER###" in said) == (row["metadata"]["act"] == "stop")
        assert ("I do not know the " in said) == (row["metadata"]["act"] == "unknown")
        assert row["metadata"]["act"] != "stop" or row["reward"] == 1.0
    acts = collections.Counter(row["metadata"]["act"] for row in found)
    assert {"open", "answer", "confirm", "unknown", "withhold", "stop"} <= set(acts) and "leave" not in acts
    assert (acts["unknown"] + acts["withhold"]) / len(found) >= 0.15
    assert not any("Known: " in row["messages"][0]["content"] for row in found if row["metadata"]["act"] == "open")
    assert {row["metadata"]["split"] for row in rows(folder, "user_test.jsonl")} <= {"test"}


def config_of(folder, root, name, **changes):
    """The tiny run on the exported tasks, with a file of conversations."""
    generate = lambda split, count, seed: tasks(folder / "tasks", workshop, split)[:count]
    data = folder / "data"
    found = Tasks(generate, train_file=str(data / "rl_train.json"), test_file=str(data / "rl_test.json"),
                  load=datasets.loader(workshop))
    settings = {"root": str(root), "mesh.data": 1, "sft.episodes": 512, "sft.source": "dialogues",
                "sft.files": (str(data / name),), "learn.minibatches": 1, "rollout.tasks": 1, "model.vocab_size": 1500, **changes}
    return replace(dataclasses.replace(tiny(), env=workshop.env, tasks=found, swaps=(), knobs={}), settings)


def test_our_fine_tuning_reads_both_files(made, tmp_path, monkeypatch):
    """One example a conversation of an agent, one a turn of a user, of which the answer alone is learned."""
    monkeypatch.setattr(jax, "devices", lambda *_, first=jax.devices()[:1]: first)
    folder, _ = made
    config = config_of(folder, tmp_path, "agent_sft.jsonl", **{"rollout.max_tokens": 8192})
    model = start.folder_of(config, tmp_path)
    for name in ("agent_sft.jsonl", "user_sft.jsonl"):
        raw = rows(folder, name)
        config = config_of(folder, tmp_path, name, **{"rollout.max_tokens": 8192})
        parts = assemble(config, model, start.load(config, model)[0])
        assert len(parts.train.tasks) == 2 and len(parts.test.tasks) == 1
        examples, counts = demonstrations.gather(parts, SimpleNamespace(say=lambda text: None))
        assert len(examples) == len(raw) == counts["read"] and not counts["cut to rollout.max_tokens"]
        for example, row in zip(examples, raw):
            if "answer" in row:
                assert parts.chat.read(example.tokens[example.learned]) == row["answer"]["content"]


@pytest.mark.slow
def test_a_model_of_the_user_is_trained_on_them(made, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda *_, first=jax.devices()[:1]: first)
    folder, _ = made
    changes = {"rollout.max_tokens": 1024, "sft.steps": 1, "sft.batch": 2}
    run = config_of(folder, tmp_path, "user_sft.jsonl", **changes)
    train.cold_start_only(run, "")
    read = json.loads((tmp_path / run.name / "sft_data.json").read_text())
    assert read["read"] == len(rows(folder, "user_sft.jsonl")) and read["kept"] > 0
    assert (tmp_path / run.name / "cold_start" / "model.safetensors").is_file()


def test_rl_tasks_are_played_in_our_world(made):
    folder, card = made
    stage, load = Stage(workshop), datasets.loader(workshop)
    found = {split: load(str(folder / "data" / f"rl_{split}.json")) for split in ("train", "test")}
    assert {split: len(listed) for split, listed in found.items()} == card["tasks"]["splits"]
    for task in (*found["train"], *found["test"]):
        assert stage.play(task, workshop.env.expert, "oracle", "plain", {}, 1).success
    lines = rows(folder, "rl_index.jsonl")
    assert {line["task_id"] for line in lines if line["split"] == "train"} == {task.id for task in found["train"]}
    assert all(0 < line["difficulty"]["prior"] < 1 and line["difficulty"]["played"] == 1 for line in lines)
    assert {line["difficulty"]["verdict"] for line in lines} <= {"none: none", "agent: deferred"}
    assert all((line["difficulty"]["verdict"] == "none: none") == (line["difficulty"]["failed"] == 0) for line in lines)


def test_a_broken_task_is_named(made, tmp_path):
    folder, _ = made
    listed = json.loads((folder / "data" / "rl_train.json").read_text())
    listed[0]["evaluation_criteria"]["actions"][0]["name"] = "book_repairs"
    (tmp_path / "rl_train.json").write_text(json.dumps(listed))
    with pytest.raises(TaskFileError, match=r"rl_train.json, .*actions\[0\].name: expected a tool"):
        datasets.loader(workshop)(str(tmp_path / "rl_train.json"))


def test_the_same_records_give_the_same_bytes(made):
    folder, card = made
    before = {path.name: path.read_bytes() for path in (folder / "data").iterdir()}
    assert datasets.export(folder) == card
    assert {path.name: path.read_bytes() for path in (folder / "data").iterdir()} == before


def test_what_cannot_be_exported_is_refused(made, tmp_path):
    folder, _ = made
    with pytest.raises(RunFolderError, match="has no manifest.json"):
        datasets.export(tmp_path)
    shard = folder / "shards" / "00000.jsonl"
    text = shard.read_text()
    shard.write_text(text.replace('"success":true', '"success":false', 1))
    try:
        with pytest.raises(RunFolderError, match="00000.jsonl has been changed since it was written"):
            datasets.export(folder)
    finally:
        shard.write_text(text)
    manifest = (folder / "manifest.json").read_text()
    try:
        (folder / "manifest.json").write_text(manifest.replace('"code":"', '"code":"0').replace('"novices":', '"old_setting":'))
        with pytest.raises(RunFolderError, match="was made by other code"):
            datasets.export(folder)
    finally:
        (folder / "manifest.json").write_text(manifest)
    with pytest.raises(ValueError, match="expected the folder of a finished synthesis, found nothing"):
        synth_command.run(["export"])


def test_overlapping_splits_are_refused():
    apart = {"train": {"signatures": {"a", "b"}, "surnames": {"Olsen"}},
             "test": {"signatures": {"c"}, "surnames": {"Olsen"}}}
    with pytest.raises(ValueError, match="share surnames: Olsen"):
        datasets.check_apart(apart)
    apart["test"]["surnames"] = {"Brandt"}
    datasets.check_apart(apart)


def test_balancing_leaves_out_the_commonest_acts():
    given = turns(*["answer"] * 60, *["confirm"] * 20, *["stop"] * 4, *["withhold"] * 3, *["unknown"] * 3,
                  *["correct"] * 6)
    kept = datasets.balanced(given)
    counts = collections.Counter(turn.act for turn in kept)
    assert len(kept) == 40 and counts == {"answer": 12, "confirm": 12, "stop": 4, "withhold": 3, "unknown": 3, "correct": 6}
    assert datasets.balanced(list(reversed(given))) == list(reversed(kept))
    assert datasets.balanced(turns("answer", "stop")) == turns("answer", "stop")     # nothing rare: nothing to balance
    given = turns(*["answer"] * 50, *["withhold"], *["correct"] * 30)      # 15 % is out of reach, and 10 % there already
    assert datasets.balanced(given) == given


@pytest.mark.parametrize("reply, act, learned", [
    ("Error: no such order", "tool", False), ('{"order_id": "R1"}', "tool", True), ("Yes, please.", "confirm", True),
    ("No. My bike is red.", "correct", False), ("All right, please go on.", "go_on", False),
    ("Bye. ###STOP###", "stop", True)])
def test_messages_that_were_put_right_are_context_only(reply, act, learned):
    assert clean({"agent": "Is this right?", "reply": reply, "act": act}) == learned
    assert not clean({"agent": "Is this \ufffd right?", "reply": reply, "act": act})


def test_every_reply_has_an_act():
    """Of both worlds' codes none is left without one but those of tools."""
    from eau_jax.envs.tau2.user import Say
    from eau_jax.envs.telecom.text import Say as Caller
    from eau_jax.synth.acts import ACTS, TOOL, caller_act, customer_act
    tools = {customer_act: {Say.TOOL, Say.MALFORMED},
             caller_act: {Caller.OUTPUT, Caller.FAILED, Caller.BAD_CALL, Caller.MALFORMED}}
    for act, codes in ((customer_act, Say), (caller_act, Caller)):
        found = {code: act(SimpleNamespace(code=int(code)), "") for code in codes}
        assert {code for code, name in found.items() if name == TOOL} == tools[act]
        assert set(found.values()) <= {*ACTS, TOOL}


@pytest.mark.parametrize("domain, atoms", [
    (workshop, ("move", "cancel")), (telecom, ("airplane@d", "data@d"))], ids=["workshop", "telecom"])
def test_a_row_is_what_a_user_model_is_asked_with(domain, atoms):
    """For every turn of a conversation, and all that the reply has to state is in it: a reading of the phone as well."""
    asked = []

    def speak(words):
        asked.append(words)
        return Spoken(words.draft, "symbolic", leaked=False)

    made = instance(domain, *atoms, persona=next(iter(domain.personas)))
    source = Source(made, realise(domain, made), Report("", "", {}), (), "train")
    task, persona = task_of(domain, source.scenario.record), made.skeleton.cell["persona"]
    knobs = domain.personas[persona].knobs
    rollout = curious.stage(domain).play(task, domain.env.expert, "oracle", persona, knobs, 1, speak)
    rows = [turn.row for turn in user_turns(domain, source, rollout, print)]
    assert rollout.success and len(asked) >= 3 and len(rows) == len(asked) + 2    # the first words and the last
    for words, row in zip(asked, rows[1:]):
        assert role_play.request(words) == row["messages"]
        assert role_play.spelled(row["answer"]["content"], words.draft, words.known) == words.draft
        values, exact = faithful.facts(words.draft, words.disclosed)
        assert all(f": {fact}" in row["messages"][0]["content"] for fact in values + exact)
    numbered = [row for row in rows if "Say [1]: " in row["messages"][0]["content"]]
    assert bool(numbered) == (domain is telecom)      # what a bicycle's owner tells is known, what a phone shows is not
    assert all("[1]" in row["answer"]["content"] for row in numbered)
