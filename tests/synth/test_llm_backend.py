"""Language models in the roles of a synthesis: a real server, one way to fail after the other, the same bytes without it."""

import contextlib
import itertools
import json
import re
import zlib

import jax
import pytest

import tiny_config
from chat_server import chat_server, completion, refusal
from crafted import Here, instance
from eau_jax.clients.calls import FILE
from eau_jax.clients.chat import ChatClient
from eau_jax.core.records import RunFolderError
from eau_jax.core.types import InfraError
from eau_jax import synth_command, train
from eau_jax.config_file import replace, runnable
from eau_jax.local_chat import LocalChat
from eau_jax.rollout.template import TINY
from eau_jax.synth import compose, datasets, paraphrase, pipeline
from eau_jax.synth.ask import Refused, json_object
from eau_jax.synth.domains.airline import airline
from eau_jax.synth.domains.retail import retail
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.domains.workshop import workshop
from eau_jax.synth.export import tasks
from eau_jax.synth.llm import Llm
from eau_jax.synth.llm_backend import changes
from eau_jax.synth.plan import SynthPlan, items
from eau_jax.synth.realise import scenario, texts
from eau_jax.synth.record import Diff, Opinion, Proposal, Rollout, Ruling, read
from eau_jax.synth.search import NoPlan
from faulty import evolving, small
from llm_play import role, speaks

PHONE = workshop._replace(atoms=(workshop.atom("phone"),))


def model(server, **settings):
    return ChatClient(server.base_url, "m", **{"max_retries": 0, "timeout_s": 60.0, "deadline_s": 90.0, **settings})


def plan(tmp_path, name, llm=None, **settings):
    return SynthPlan(**{"domain": workshop, "root": str(tmp_path), "name": name, "count": 4, "shard": 2, "novices": 0,
                        "sizes": {1: 1.0, 2: 1.0}, "llm": llm, **settings})


def made(plan, **how):
    """(folder, manifest)"""
    folder = pipeline.run(plan, elsewhere=Here, **how)
    return folder, json.loads((folder / "manifest.json").read_text())


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name not in (FILE, ".lock") and not path.name.endswith(".tmp")}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """tasks.json of the plan without models."""
    return (made(plan(tmp_path_factory.mktemp("plain"), "plain"))[0] / "tasks" / "tasks.json").read_bytes()


def unsteady(body):
    """Does its work most of the time, by what it is asked; else it fails in one way or another."""
    draw = zlib.crc32(json.dumps(body).encode()) % 12
    broken = ["no JSON at all", "", "{", (500, "it broke"), (200, "<html>"), (200, {"answer": 42})]
    return broken[draw] if draw < 6 and role(body) in ("composer", "paraphraser", "validator") or 4 <= draw < 6 else (
        speaks(body))


# --- whole runs


def test_every_role_does_its_part_and_execution_decides(tmp_path):
    with chat_server() as server:
        server.speaks = speaks
        chat = model(server)
        every = Llm(composer=chat, paraphraser=chat, user=chat, teacher=chat,
                    validators=(chat, model(server, temperature=0.1)))
        folder, card = made(plan(tmp_path, "whole", every, domain=PHONE, sizes={1: 1.0}, outcomes={"fulfil": 1.0}, count=3,
                                 shard=3))
        sent = [message for body in server.requests for message in body["messages"]]
    assert card["kept"] + sum(card["dropped"].values()) == 3 and not card["rejects"]
    assert {each["role"] for each in sent} == {"system", "user", "assistant"}        # servers take no tool message of ours
    assert any(each["content"].startswith("Tool output:\n") for each in sent)
    assert set(card["proposals"]) == {"composer", "paraphraser", "user", "teacher", "validator"}
    assert all(tally["outcomes"].keys() == {"used"} for tally in card["proposals"].values())
    assert card["opinions"]["task: sound, by execution sound"] == 6
    assert card["rollouts"]["teacher"] == [3, 3] and card["rollouts"]["oracle"] == [15, 15]
    for task in tasks(folder / "tasks", workshop, "base"):
        assert "Hello, " in task.data["user_scenario"]["instructions"]["reason_for_call"]
    spoken = [each for each in read(folder / "shards" / "00000.jsonl", Rollout) if each.user == "llm"]
    assert {each.agent for each in spoken} == {"oracle", "novice", "teacher"}
    assert all(turn["reply"].startswith("Well: ") for each in spoken for turn in each.turns[:-1] if turn["by"] == "user")
    shown = datasets.export(folder)
    assert shown["agent"]["by"]["teacher"] >= 1 and "m (teacher)" in shown["origin"]


def test_a_recorded_run_is_done_again_without_a_server(tmp_path):
    """A third of the calls fails. The server is stopped, and the folder of the second run holds the same bytes."""
    with chat_server() as server:
        server.speaks = unsteady
        chat = model(server)
        roles = dict(composer=chat, paraphraser=chat, validators=(chat,), user=chat, teacher=chat, repairs=0)
        folder, card = made(plan(tmp_path, "first", Llm(**roles)))
        reasons = {name for tally in card["proposals"].values() for name in tally["outcomes"]}
        assert {"used", "server", "invalid"} <= reasons and card["faults"]["infra: infra"] >= 1
        asked = len(server.requests)
    again, _ = made(plan(tmp_path, "again", Llm(**roles, replay=str(folder / FILE), concurrency=2, deadline_s=5.0)))
    assert files(again) == files(folder) and len(server.requests) == asked and not (again / FILE).exists()
    with pytest.raises(RunFolderError, match="holds no answer to a call of the composer"):
        made(plan(tmp_path, "other", Llm(**roles, replay=str(folder / FILE)), seed=1))
    assert not (tmp_path / "other" / "tasks").exists()


def test_killed_in_the_middle_it_asks_nothing_twice_and_ends_with_the_same_bytes(tmp_path):
    class Killed(Exception):
        pass

    with chat_server() as server:
        server.speaks = speaks
        chat = model(server)
        llm = Llm(composer=chat, paraphraser=chat, user=chat)
        whole, _ = made(plan(tmp_path, "whole", llm, count=6))
        asked = len(server.requests)
        for last in (3, 6):
            calls = itertools.count(1)

            def kill(phase, spent, most, calls=calls, last=last):
                if next(calls) == last:        # in one step, for several threads call it
                    raise Killed

            with pytest.raises(Killed):
                made(plan(tmp_path, "broken", llm, count=6), watch=kill)
            with open(tmp_path / "broken" / FILE, "ab") as file:
                file.write(b'{"key": "torn')
            assert not (tmp_path / "broken" / "manifest.json").exists()
        broken, _ = made(plan(tmp_path, "broken", llm, count=6))
        assert files(broken) == files(whole)
        keys = [json.loads(line)["key"] for line in (broken / FILE).read_text().splitlines()]
        assert len(keys) == len(set(keys)) <= len(server.requests) - asked <= len(keys) + 2 * llm.concurrency


def test_a_spent_budget_keeps_what_is_made_and_a_larger_one_goes_on(tmp_path):
    with chat_server() as server:
        counted = {"usage": {"prompt_tokens": 90, "completion_tokens": 10}}
        server.speaks = lambda body: (200, completion(speaks(body)) | counted)
        chat = model(server, max_tokens=10)
        roles = dict(composer=chat, paraphraser=chat)       # two calls a task, 100 tokens each
        whole, _ = made(plan(tmp_path, "whole", Llm(**roles)))
        stopped, card = made(plan(tmp_path, "capped", Llm(**roles, max_tokens=1_100, concurrency=1)))
        assert card["stopped"].startswith("2 of 4 tasks are tried: the next call might exceed llm.max_tokens = 1,100")
        assert card["tried"] == 2 and [name for name in card["files"] if "shards" in name] == ["shards/00000.jsonl"]
        recorded = [json.loads(line) for line in (stopped / FILE).read_text().splitlines()]
        assert sum(sum(line["tokens"]) for line in recorded) <= 1_100
        resumed, card = made(plan(tmp_path, "capped", Llm(**roles)))
        assert files(resumed) == files(whole) and "stopped" not in card
        with pytest.raises(InfraError, match="0 of 4 tasks are tried: the next call might exceed llm.max_tokens = 20"):
            made(plan(tmp_path, "tiny", Llm(**roles, max_tokens=20)))
        assert not (tmp_path / "tiny" / "tasks").exists()


def test_a_server_that_is_gone_ends_the_run_with_nothing_half_written(tmp_path):
    with chat_server("broken") as server:
        with pytest.raises(InfraError, match="0 of 30 tasks are tried: 20 calls of the composer failed one after"):
            made(plan(tmp_path, "gone", Llm(composer=model(server)), count=30, shard=30))
    assert {path.name for path in (tmp_path / "gone").iterdir()} == {".lock", "plan.json"}


# --- every way to fail costs a proposal, and no task


ANSWERS = (
    ((500, "it broke"), "server"), ((200, "<html>"), "server"), ((200, {"answer": 42}), "server"),
    ("huge " * 20_000, "server"),
    ((400, refusal("maximum context length exceeded")), "context"), ((400, refusal("content_filter")), "invalid"),
    ((200, json.dumps(completion('{"atoms": ["book"]}')).encode().replace(b"book", b"b\xc3ok")), "invalid"),   # half UTF-8
    ("", "invalid"), ("I would rather not.", "invalid"), ('{"atoms": ["book"', "invalid"), ("[1, 2]", "invalid"),
    ('{"atoms": "book"}', "invalid"), ('{"atoms": [1, null]}', "invalid"), ('{"atoms": [NaN]}', "invalid"),
    ('{"atoms": [1e999]}', "invalid"), ('{"a": ' * 4000 + "1" + "}" * 4000, "invalid"), ("<think>{}", "invalid"),
    ('{"atoms": ["\\ud800"]}', "invalid"), ('{"atoms": ["fly"]}', "misfit"), ('{"atoms": []}', "misfit"),
    ('{"atoms": ["phone", "phone"]}', "misfit"))


def test_what_a_composer_gets_wrong_is_counted_and_the_templates_stand(tmp_path):
    """A task for each way to answer wrongly."""
    many = dict(count=len(ANSWERS), shard=len(ANSWERS), sizes={1: 1.0})
    number = lambda body: int(re.search(r"Plan task number (\d+)", body["messages"][1]["content"])[1]) - 1
    with chat_server() as server:
        server.speaks = lambda body: ANSWERS[number(body)][0]
        folder, _ = made(plan(tmp_path, "bad", Llm(composer=model(server), repairs=1), **many))
    found = read(folder / "shards" / "00000.jsonl", Proposal)
    assert [list(each.outcomes) for each in found] == [[reason] for _, reason in ANSWERS]
    assert [len(each.calls) for each in found] == [1 if reason in ("server", "context") else 2 for _, reason in ANSWERS]
    symbolic, _ = made(plan(tmp_path, "symbolic", **many))
    assert (folder / "tasks" / "tasks.json").read_bytes() == (symbolic / "tasks" / "tasks.json").read_bytes()


def test_a_server_that_stalls_costs_the_calls_that_wait_for_it(tmp_path, plain):
    with chat_server("hang") as server:
        folder, card = made(plan(tmp_path, "bad", Llm(composer=model(server, timeout_s=0.1, deadline_s=0.2))))
    assert card["proposals"]["composer"]["outcomes"] == {"server": 4}
    assert (folder / "tasks" / "tasks.json").read_bytes() == plain


def test_a_model_is_told_what_was_wrong_and_may_mend_it(tmp_path):
    with chat_server() as server:
        server.speaks = lambda body: speaks(body) if len(body["messages"]) > 2 else '{"atoms": ["fly"]}'
        _, card = made(plan(tmp_path, "mended", Llm(composer=model(server)), count=1))
    assert card["proposals"]["composer"]["outcomes"] == {"used": 1}
    assert "there is no sub-task 'fly'" in server.requests[-1]["messages"][-1]["content"]


def test_paraphrases_that_will_not_do_leave_the_template(tmp_path, plain):
    """A model that adds every number it was shown, turns wishes round, and writes what ends a conversation."""
    def hostile(body):
        drafts = json.loads(re.search(r"\{.*?\n\}", body["messages"][1]["content"], re.DOTALL)[0])
        ways = (lambda text: f"{text} It is R99999.", lambda text: "", lambda text: f"Never mind. Do not do it. {text}",
                lambda text: f"{text} ###STOP###", lambda text: "I want to book a flight.", lambda text: text * 3,
                lambda text: 7)
        return json.dumps({name: ways[place % len(ways)](text) for place, (name, text) in enumerate(drafts.items())})

    with chat_server() as server:
        server.speaks = hostile
        folder, card = made(plan(tmp_path, "hostile", Llm(paraphraser=model(server), repairs=0)))
    outcomes = card["proposals"]["paraphraser"]["outcomes"]
    assert "used" not in outcomes and sum(outcomes.values()) >= 8
    assert (folder / "tasks" / "tasks.json").read_bytes() == plain


def test_a_leak_that_the_acceptance_overlooks_is_caught_by_the_gate(tmp_path, plain, monkeypatch):
    monkeypatch.setattr(paraphrase, "check", lambda domain, text, said: said)      # the mutant
    with chat_server() as server:
        server.speaks = lambda body: json.dumps({
            f"{place}.{part}": "My name and number: change_phone cancel_repair" for place in (1, 2)
            for part in ("opening", "number", "details", "payment")})
        folder, card = made(plan(tmp_path, "leak", Llm(paraphraser=model(server))))
    assert card["proposals"]["paraphraser"]["outcomes"].keys() == {"leak"}
    assert (folder / "tasks" / "tasks.json").read_bytes() == plain


def test_validators_have_opinions_and_decide_nothing(tmp_path, plain):
    with chat_server() as server:
        server.speaks = lambda body: '{"verdict": "unsound", "why": "I do not like it."}'
        folder, card = made(plan(tmp_path, "cross", Llm(validators=(model(server),))))
    assert (folder / "tasks" / "tasks.json").read_bytes() == plain
    assert card["opinions"] == {"task: unsound, by execution sound": 4}
    assert {each.why for each in read(folder / "shards" / "00000.jsonl", Opinion)} == {"I do not like it."}


def test_a_user_who_tells_secrets_or_ends_the_talk_is_replaced_by_the_draft(tmp_path):
    """Where the draft states something; small talk may be worded in any way that tells no secret of this customer."""
    def tells(body):
        ends = zlib.crc32(json.dumps(body).encode()) % 2
        return "Ok ###STOP###" if ends else "My zip code is 80488, my phone 555-1234. R12345, ask away."

    with chat_server() as server:
        server.speaks = tells
        folder, card = made(plan(tmp_path, "user", Llm(user=model(server)), count=2))
    turns = [turn for each in read(folder / "shards" / "00000.jsonl", Rollout) for turn in each.turns[:-1]]
    talk = [turn for turn in turns if "ask away" in turn["reply"]]
    assert {turn["act"] for turn in talk} <= {"go_on", "complain", "next"}
    assert not any("###" in turn["reply"] for turn in turns)
    assert card["proposals"]["user"]["outcomes"].get("used", 0) == len(talk) < card["proposals"]["user"]["outcomes"]["draft"]


def test_a_conversation_whose_model_fails_is_infrastructure_and_never_a_failure(tmp_path, plain):
    with chat_server() as server:
        server.speaks = lambda body: (500, "no") if role(body) == "teacher" else speaks(body)
        folder, card = made(plan(tmp_path, "infra", Llm(teacher=model(server), user=model(server), teachers=2)))
    assert "teacher" not in card["rollouts"] and card["faults"]["infra: infra"] == 8
    assert card["proposals"]["teacher"]["outcomes"] == {"server": 8}
    assert (folder / "tasks" / "tasks.json").read_bytes() == plain


def test_a_teacher_whose_context_is_full_is_cut(tmp_path):
    full, odd = (400, refusal("maximum context length exceeded")), '<tool_call>{"name": "a", "arguments": {"x": "\\ud800"}}'
    with chat_server() as server:
        server.speaks = lambda body: full if len(body["messages"]) > 3 else odd
        folder, card = made(plan(tmp_path, "cut", Llm(teacher=model(server)), count=1))
    played = [each for each in read(folder / "shards" / "00000.jsonl", Rollout) if each.agent == "teacher"]
    assert [each.stop for each in played] == ["max_tokens"] and card["rollouts"]["teacher"] == [0, 1]


# --- acceptance, part by part


def drafts(domain, *atoms, seed=0):
    task = instance(domain, *atoms, seed=seed, size=len(atoms), persona=next(iter(domain.personas)))
    said = texts(domain, task)
    return {text.name: text for text in paraphrase.drafts(domain, task, said, scenario(domain, task, said).record)}


@pytest.mark.parametrize("name, said, reason", [
    ("1.opening", "Could you call off a repair of mine?", ""),
    ("1.opening", "Hi, please cancel one of my repairs for me.", ""),
    ("1.opening", "I want to book a repair.", "subject"), ("1.opening", "Please stop a repair for me.", "subject"),
    ("1.opening", "I want the usual thing, please.", "subject"),
    ("1.opening", "Please do not call off a repair for me.", "denial"),
    ("1.opening", "Bitte sagen Sie eine Reparatur ab.", "name"), ("1.opening", "Отмените ремонт, пожалуйста.", "language"),
    ("1.opening", "Please call off a repair for me. R12345", "number"), ("1.opening", " \n", "empty"),
    ("1.opening", None, "empty"), ("1.opening", "Please call off a repair for me, Mr Smith.", "name"),
    ("1.opening", "Call.", "length"), ("1.opening", "Please call off a repair <tool_call>", "sign"),
    ("1.opening", "Please call off ###STOP### a repair.", "sign"),
    ("1.opening", "Please call off a repair for my Elster.", "leak"),
    ("1.opening", "Please call off the wheel truing.", "leak"),
    ("1.details", "It is no longer needed: the wheel truing of my blue Elster.", ""),
    ("1.details", "It is the wheel truing of my blue bike. Because: no longer needed.", "value"),
    ("1.details", "It is the wheel truing of my blue Elster. Because: booked by mistake.", "value"),
    ("1.details", "It is the wheel truing of my blue, blue Elster. Because: no longer needed.", "value"),
    ("2.details", "It is 555-3109 as of now.", ""), ("2.details", "It is 555-3108 now.", "value"),
    ("2.details", "It is 555-3109 or 555-3110 now.", "number"), ("2.details", "It is 555-3109 now, Ada Stark.", "leak")])
def test_a_paraphrase_keeps_every_fact(name, said, reason):
    text = drafts(workshop, "cancel", "phone", "book", "ask_price", seed=11)[name]
    try:
        assert paraphrase.check(workshop, text, said) == said and reason == ""
    except Refused as refused:
        assert refused.reason == reason
        assert not set(re.findall(r"\d{3,}", str(refused))) - set(re.findall(r"\d{3,}", text.draft))


@pytest.mark.parametrize("domain", [workshop, retail, airline, telecom], ids=lambda domain: domain.name)
def test_templates_are_paraphrases_of_themselves(domain):
    for place, atom in enumerate(domain.atoms):
        for seed in range(place, place + 20):
            with contextlib.suppress(NoPlan):        # a world without room
                found = drafts(domain, *filter(None, (atom.requires, atom.id)), seed=seed)
                break
        for text in found.values():
            assert paraphrase.check(domain, text, text.draft) == text.draft


@pytest.mark.parametrize("said, reason", [
    ("Hi, I don't want one of my repairs any more.", ""), ("I want one of my repairs, but not any more of them.", "denial"),
    ("Please do not call off one of my repairs.", "denial"), ("I want one of my repairs once more.", "denial"),
    ("I do not want none of my repairs any more.", "denial")])
def test_an_opening_denies_the_same_in_the_same_words(said, reason):
    text = drafts(workshop, "cancel", "phone", "book", "ask_price", seed=4)["1.opening"]
    assert "I do not want one of my repairs any more." in text.draft
    try:
        assert paraphrase.check(workshop, text, said) == said and reason == ""
    except Refused as refused:
        assert refused.reason == reason


@pytest.mark.parametrize("atoms, cell, wrong", [
    (["cancel"], {}, ""), (["fly"], {}, "no sub-task 'fly'"), (["cancel", "phone"], {}, "expected 1 different"),
    (["cancel", "cancel"], {"size": 2}, "expected 2 different"),
    (["cancel", "cancel_late"], {"size": 2, "outcome": "mixed"}, "make no task"),
    (["cancel_late"], {}, "make no task"), (["book_new"], {}, "make no task"), (["book_new", "add_bike"], {"size": 2}, ""),
    (["cancel"], {"outcome": "refuse"}, "make no task"), (["cancel_late"], {"outcome": "refuse"}, "")])
def test_what_makes_no_task_of_a_cell(atoms, cell, wrong):
    cell = {"size": 1, "outcome": "fulfil", **cell}
    found = compose.misfit(workshop, cell, atoms)
    assert bool(found) == bool(wrong) and wrong in found


def test_a_composition_keeps_the_order_that_was_given_as_far_as_it_can():
    item = next(items(SynthPlan(workshop)))
    assert compose.skeleton(workshop, item, ["phone", "cancel", "move"]).atoms == ("phone", "cancel", "move")
    assert compose.skeleton(workshop, item, ["book_new", "phone", "add_bike"]).atoms == ("add_bike", "book_new", "phone")


@pytest.mark.parametrize("said", ['{"a": 1}', '```json\n{"a": 1}\n```', 'Sure! {"a": 1} Anything else?',
                                  '<think>{"b": 2}</think>{"a": 1}'])
def test_json_is_found_whatever_stands_around_it(said):
    assert json_object(said) == {"a": 1}


# --- settings


@pytest.mark.parametrize("settings, said", [
    ({}, "no role has a model"), ({"composer": "gpt"}, "llm.composer = 'gpt' is no chat client"),
    ({"validators": "m"}, "a tuple of clients"), ({"composer": None, "teachers": 2}, "no role has a model"),
    ({"user": "M", "teachers": 2}, "teachers would do nothing without a model for teacher"),
    ({"user": "M", "repairs": 3}, "repairs would do nothing"),
    ({"composer": "M", "speaks": "role_play"}, "llm.speaks = 'role_play'"),
    ({"composer": "M", "repairs": -1}, "repairs = -1; allowed: an integer, 0 or more"),
    ({"composer": "M", "concurrency": 0}, "concurrency = 0"), ({"composer": "M", "max_tokens": 0}, "max_tokens = 0"),
    ({"composer": "M", "max_tokens": 1e6}, "max_tokens = 1000000.0"),
    ({"composer": "M", "deadline_s": float("nan")}, "deadline_s = nan"),
    ({"composer": "M", "max_usd": 1.0}, "needs the price of every model"),
    ({"composer": "M", "prices": {"x": (1, 1)}}, "no role has the model 'x'; with a role: m"),
    ({"composer": "M", "prices": {"m": 3}}, "m costs 3")])
def test_settings_that_cannot_be_are_refused(settings, said):
    chat = ChatClient("http://localhost:1/v1", "m")
    with pytest.raises(ValueError, match=re.escape(said)):
        Llm(**{name: chat if value == "M" else value for name, value in settings.items()})


def test_an_unknown_setting_and_one_without_effect_are_refused(tmp_path):
    chat = ChatClient("http://localhost:1/v1", "m")
    with pytest.raises(TypeError, match="paraphrasor"):
        Llm(paraphrasor=chat)
    with pytest.raises(ValueError, match="planner would do nothing with rounds = 1"):
        plan(tmp_path, "x", Llm(planner=chat))
    with pytest.raises(ValueError, match="jobs = 2 cannot go with llm"):
        plan(tmp_path, "x", Llm(composer=chat), jobs=2)
    with pytest.raises(RunFolderError, match="llm.replay = 'none': no such file"):
        made(plan(tmp_path, "x", Llm(composer=chat, replay="none")))


def test_another_model_may_not_go_on_and_another_server_may(tmp_path):
    with chat_server() as server:
        server.speaks = speaks
        made(plan(tmp_path, "x", Llm(composer=model(server)), count=1))
        with pytest.raises(RunFolderError, match="another plan .different: backend."):
            made(plan(tmp_path, "x", Llm(composer=model(server, temperature=0.2)), count=1))
        with pytest.raises(RunFolderError, match="another plan .different: backend."):
            made(plan(tmp_path, "x", count=1))
    elsewhere = ChatClient("http://localhost:1/v1", "m", timeout_s=1.0)
    assert made(plan(tmp_path, "x", Llm(composer=elsewhere, max_tokens=7, concurrency=1), count=1))[1]["kept"] == 1


# --- the planner, the command line, our own policy


def proposed(*diffs):
    return json.dumps({"diffs": [{"kind": kind, "changes": changes, "why": "so"} for kind, changes in diffs]})


@pytest.mark.slow
def test_a_planner_hands_in_changes_and_execution_rules(tmp_path):
    """Good ones, bad ones and odd ones; then, told what became of them, no more. The same again without a server."""
    first = proposed(
        ("weights", {"c0": [1.0, 1.5]}), ("weights", {"c0": [1.0, 1.2]}), ("gates", {"killed": [0.95, 0.5]}),
        ("quarantine", {"atom/phone": [False, True]}), ("weights", {"c99": [1, 2]}), ("rules", {"x": [1, 2]}),
        ("weights", {"c1": [[1], {"a": None}]}), ("weights", {}))
    with chat_server() as server:
        server.speaks = lambda body: proposed() if "Proposed already" in body["messages"][1]["content"] else first
        chat = model(server)
        few = dict(count=8, shard=4, probes=3)
        folder, card = made(evolving(tmp_path, small, **few, name="first", llm=Llm(planner=chat)), planners=())
        asked = len(server.requests)
    rulings = [(each.adopted, each.code) for each in read(folder / "rounds" / "000.jsonl", Ruling)]
    assert rulings == [(True, ""), (False, "STALE"), (False, "LAXER"), (False, "UNPROVEN"), (False, "UNKNOWN"),
                       (False, "UNKNOWN"), (False, "STALE"), (False, "UNKNOWN")]
    assert {each.author for each in read(folder / "rounds" / "000.jsonl", Diff)} == {"planner m"}
    outcomes = card["proposals"]["planner"]["outcomes"]
    assert outcomes["used"] >= 1 and outcomes["UNKNOWN"] == 6 and asked == 4
    assert "expected 1.5, found 1.0" in server.requests[1]["messages"][1]["content"]
    again, _ = made(evolving(tmp_path, small, **few, name="again", llm=Llm(planner=chat, replay=str(folder / FILE))),
                    planners=())
    assert files(again) == files(folder)


@pytest.mark.parametrize("said", ["nothing", '{"diffs": {}}', '{"diffs": [1]}', '{"diffs": [{"kind": "gates"}]}',
                                  '{"diffs": [{"kind": "gates", "changes": [], "why": ""}]}',
                                  '{"diffs": [' + ",".join(["{}"] * 9) + "]}"])
def test_a_plan_of_changes_that_is_none_is_refused(said):
    with pytest.raises(Refused) as refused:
        changes(json_object(said), {}, "planner")
    assert refused.value.reason == "invalid"


def test_settings_of_models_stand_on_the_command_line(capsys):
    given = synth_command.parse("configs/synth_llm.py", ["--count", "3", "--llm.max-tokens", "77", "--llm.replay", "x"])
    assert (given.count, given.llm.max_tokens, given.llm.replay, given.llm.teachers) == (3, 77, "x", 1)
    assert given.llm.composer is given.llm.teacher
    for wrong in ("--llm.paraphrasor", "--llm.max-token"):
        with pytest.raises(SystemExit):
            synth_command.parse("configs/synth_llm.py", [wrong, "1"])
    with pytest.raises(SystemExit):
        synth_command.parse("configs/synth_workshop.py", ["--llm.max-tokens", "1"])
    with pytest.raises(ValueError, match="llm.concurrency = 0"):
        synth_command.parse("configs/synth_llm.py", ["--llm.concurrency", "0"])
    capsys.readouterr()


@pytest.mark.slow
def test_the_command_says_what_models_did_and_why_it_stopped(tmp_path, capsys):
    with chat_server() as server:
        server.speaks = speaks
        path = tmp_path / "plan.py"
        path.write_text(
            "from eau_jax.clients.chat import ChatClient\nfrom eau_jax.synth.domains.workshop import workshop\n"
            "from eau_jax.synth.llm import Llm\nfrom eau_jax.synth.plan import SynthPlan\n\n\ndef plan():\n"
            f"    model = ChatClient({server.base_url!r}, 'm', max_tokens=50, max_retries=0)\n"
            f"    return SynthPlan(workshop, root={str(tmp_path)!r}, count=2, shard=1, novices=0,\n"
            "                     llm=Llm(composer=model))\n")
        assert synth_command.run([str(path), "--llm.concurrency", "1", "--llm.max-tokens", "1100"]) == 1
        shown = capsys.readouterr().out
        assert "stopped: 1 of 2 tasks are tried: the next call might exceed llm.max_tokens = 1,100" in shown
        assert synth_command.run([str(path)]) == 0
        shown = capsys.readouterr().out
        assert "Language models" in shown and "composer" in shown and "stopped" not in shown


@pytest.mark.slow
def test_our_own_policy_is_a_backend(tmp_path, monkeypatch):
    """Through the embedded sampler: a model that was barely trained proposes nothing that will do, and the tasks stand."""
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)
    config = replace(tiny_config.config(), {"root": str(tmp_path), "mesh.data": 1, "sft.steps": 1})
    train.cold_start_only(config, runnable(tiny_config.__file__, {}))
    own = LocalChat(str(tmp_path / config.name / "cold_start"), TINY, slots=2, max_tokens=4096, max_new_tokens=8, seed=1)
    roles = dict(composer=own, paraphraser=own, validators=(own,), teacher=own, repairs=0)    # whose prompt is too long
    few = dict(count=1, shard=1)
    folder, card = made(plan(tmp_path, "own", Llm(**roles), **few))
    symbolic, _ = made(plan(tmp_path, "symbolic", **few))
    assert (folder / "tasks" / "tasks.json").read_bytes() == (symbolic / "tasks" / "tasks.json").read_bytes()
    outcomes = {role: tally["outcomes"].keys() for role, tally in card["proposals"].items()}
    assert outcomes == {role: {"context" if role == "teacher" else "invalid"} for role in outcomes} and len(outcomes) == 4
    again, _ = made(plan(tmp_path, "again", Llm(**roles, replay=str(folder / FILE)), **few))
    assert files(again) == files(folder)
