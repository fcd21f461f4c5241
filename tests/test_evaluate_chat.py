"""Evaluations whose player, user or judge is a model behind a real server: what it may do, what is recorded of it."""

import dataclasses
import json
from pathlib import Path

import pytest

from chat_server import chat_server, completion, refusal
from eau_jax import cli
from eau_jax.clients import chat
from eau_jax.clients.chat import ChatClient
from eau_jax.config_file import load_config
from eau_jax.core.records import read_lines
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.function import function
from eau_jax.envs.gyms.intention import intention
from eau_jax.envs.tau2.data import load
from eau_jax.envs.tau2.world import world
from eau_jax.eval import chat_text, play
from eau_jax.eval.plan import Bench, Plan
from eau_jax.eval.play import evaluate
from eau_jax.eval.players import chat_model, scripted
from eau_jax.eval.reflexion import reflexion
from eau_jax.report.compare import compare
from eau_jax.report.evaluation import remarks, write_page
from eau_jax.users.llm import llm
from eau_jax.users.mixture import mixture
from eau_jax.users.role_play import role_play
from eau_jax.users.symbolic import symbolic

ROOT = Path(__file__).resolve().parent.parent
BENCH = Bench("intention", intention, lambda: intention_tasks.generate("test", 12, 0), version="generator")
FULL = (400, refusal("This model's maximum context length is 4096 tokens.", code="context_length_exceeded"))


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch):
    monkeypatch.setattr(chat, "FIRST_DELAY_S", 0.02)


def plan(tmp_path, player=lambda: scripted("expert"), **changes):
    return Plan(**{"name": "p", "benches": (BENCH,), "player": player, "root": str(tmp_path), "limit": 2, "retries": 0,
                   "concurrency": 1} | changes)


def client(server, **settings):
    return ChatClient(server.base_url, "test-model", **{"max_retries": 0, "temperature": 0.0} | settings)


def record(folder):
    return json.loads((folder / "record.json").read_text(encoding="utf-8"))


def result(folder, bench="intention"):
    return record(folder)["results"][bench]


def lines(folder):
    return list(read_lines(folder / "episodes.jsonl"))


def say(text, *more, **message):
    return 200, completion(text, *more, **message)


def expert(server):
    """Makes the server say what intention's expert says about its first task, then that its context is full."""
    detail = BENCH.tasks()[0].data["missing_details"][0]
    server.script = [say(f"[action] {detail['inquiry']}"), FULL]


def test_an_agent_whose_context_is_full_is_scored_by_what_it_earned(tmp_path):
    with chat_server() as server:
        expert(server)
        folder = evaluate(plan(tmp_path, lambda: chat_model(client(server)), limit=1))
    [line] = lines(folder)
    assert line["usable"] and line["stop"] == "max_tokens" and len(line["turns"]) == 1 and line["return"] > 0
    assert "turn 2: the agent: chat server" in line["error"] and "lower max_tokens" in line["error"]
    found = result(folder)
    assert (found["episodes"], found["infra_errors"], found["truncated"]) == (1, 0, 1) and found["score"]["mean"] > 0
    assert "1 episode ended where the agent's context" in remarks(folder)[0] and "lower max_tokens" in remarks(folder)[0]


def test_a_prompt_that_does_not_fit_is_worth_nothing_and_said(tmp_path):
    with chat_server() as server:
        server.script = [FULL]
        folder = evaluate(plan(tmp_path, lambda: chat_model(client(server))))
        assert result(folder)["truncated"] == result(folder)["episodes"] == 2 and result(folder)["score"]["mean"] == 0
        assert len(server.requests) == 2 and write_page(folder).is_file()
        server.script = [say("[action] What?"), FULL, FULL]    # reflexion: neither the trial nor the look back fits
        folder = evaluate(plan(tmp_path / "r", lambda: reflexion(client(server), trials=3), limit=1))
    assert result(folder)["truncated"] == 1 and lines(folder)[0]["trials"] == 1


def test_a_user_or_judge_whose_context_is_full_is_an_infrastructure_error(tmp_path):
    with chat_server() as server:
        server.script = [FULL]
        folder = evaluate(plan(tmp_path / "u", user=llm(client(server))))
        assert result(folder)["infra_errors"] == 2 and result(folder)["episodes"] == 0
        assert "turn 1: the user: chat server" in result(folder)["first_error"]
        assert "serve it with a longer one" in result(folder)["first_error"]
        folder = evaluate(plan(tmp_path / "j", judge=client(server)))
    assert "turn 1: the judge: chat server" in result(folder)["first_error"] and "context" in result(folder)["first_error"]


def test_cut_filtered_broken_and_native_answers_of_an_agent_are_played_and_counted(tmp_path):
    call = {"function": {"name": "interact_with_env", "arguments": json.dumps({"choice": "finish", "content": ""})}}
    with chat_server() as server:
        server.script = [say("[action] what kind of\ud800 mus", "length"), say(None, "content_filter"), say(None),
                         say([{"type": "text", "text": "[action] Which size?"}]), say(None, "tool_calls", tool_calls=[call])]
        folder = evaluate(plan(tmp_path, lambda: chat_model(client(server)), limit=1))
        sent = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "assistant"]
    [line] = lines(folder)
    assert [turn["ended"] for turn in line["turns"]] == ["length", "filtered", "end_of_turn", "end_of_turn", "end_of_turn"]
    assert [turn["parse_failed"] for turn in line["turns"]] == [False, True, True, False, False]
    assert line["usable"] and line["turns"][-1]["act"]["kind"] == "FINISH" and "\ufffd mus" in line["turns"][0]["agent"]
    assert sent[1:3] == [chat_text.SILENCE] * 2, "roles alternate, and no message is empty"
    found = result(folder)
    assert (found["cut"], found["filtered"], found["empty"], found["truncated"]) == (1, 1, 2, 0)
    assert "cut off at its limit of tokens" in remarks(folder)[0]
    assert "with a message cut off" in write_page(folder).read_text()


def test_what_a_judge_decided_and_what_could_not_be_read_is_counted(tmp_path):
    with chat_server() as server:
        server.script = [say("1"), say("Well, who knows?"), say("<think>hm</think> 1"), say("none")]
        folder = evaluate(plan(tmp_path, judge=client(server)))
        asked = len(server.requests)
    found = result(folder)
    assert found["unreadable"] == 1 and found["judged"] == asked - 1 > 2
    assert f"1 of {asked} answers of the judge could not be read" in remarks(folder)[0]
    page = write_page(folder).read_text()
    assert "judge unreadable" in page and "judge test-model" in page


def retail(shared_data, judged):
    tasks = load(shared_data / "tau2" / "retail").tasks
    some = [task for task in tasks if bool(task.data["evaluation_criteria"]["nl_assertions"]) == judged][:2]
    return Bench("retail", world(load(shared_data / "tau2" / "retail")), lambda: tuple(some), version="x")


def test_one_judge_of_the_plan_rules_on_statements_too(tmp_path, shared_data):
    bench = retail(shared_data, True)
    assert record(evaluate(plan(tmp_path / "0", benches=(bench,))))["benches"]["retail"]["basis"] == {"DB x COMMUNICATE": 2}
    counts = [len(task.data["evaluation_criteria"]["nl_assertions"]) for task in bench.tasks()]
    with chat_server() as server:
        server.script = [say("true " * counts[0]), say("I cannot say."), say("false " * counts[1])]
        folder = evaluate(plan(tmp_path / "1", benches=(bench,), judge=client(server)))
        assert len(server.requests) == 3
        assert [line["score"] for line in lines(folder)] == [1.0, 0.0] and result(folder, "retail")["judged"] == 2
        assert [line["success"] for line in lines(folder)] == [True, False]
        assert record(folder)["benches"]["retail"]["basis"] == {"DB x NL_ASSERTION": 2}
        assert "DB x NL_ASSERTION (2)" in write_page(folder).read_text()
        with pytest.raises(ValueError, match="another basis of the score"):
            compare([str(tmp_path / "0" / "sealed" / "eval" / "p"), str(folder)])
        server.script = [say("I cannot say.")]
        folder = evaluate(plan(tmp_path / "2", benches=(bench,), judge=client(server)))
    assert result(folder, "retail")["infra_errors"] == 2 and result(folder, "retail")["episodes"] == 0
    assert "verdict cannot be read, 2 times; the last: 'I cannot say.'" in result(folder, "retail")["first_error"]


def test_a_judge_without_a_statement_to_rule_on(tmp_path, shared_data):
    bench = retail(shared_data, False)
    folder = evaluate(plan(tmp_path, benches=(bench,), judge=ChatClient("http://127.0.0.1:9/v1", "m")))
    assert record(folder)["benches"]["retail"]["basis"] == {"DB x NL_ASSERTION": 2}, "upstream's: met without any"
    assert result(folder, "retail")["episodes"] == 2 and result(folder, "retail")["judged"] == 0
    airline = load(shared_data / "tau2" / "airline")
    bench = Bench("airline", world(airline), lambda: airline.tasks[:2], version="x")
    with pytest.raises(ValueError, match="judge would do nothing: no task of airline has a statement"):
        evaluate(plan(tmp_path / "a", benches=(bench,), judge=ChatClient("http://127.0.0.1:9/v1", "m")))


def test_a_record_names_every_model_and_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret-key")
    with chat_server() as server:
        address = server.base_url.replace("http://", "http://me:hush@")
        named = lambda model: ChatClient(address, model, temperature=0.5, max_tokens=99, timeout_s=7.0, max_retries=0)
        server.script = [say("[finish]")]
        plain = plan(tmp_path, lambda: chat_model(named("agent-model")), user=mixture(symbolic, llm(named("user-model"))),
                     judge=named("judge-model"))
        folder = evaluate(plain)
        here = server.base_url.split("/")[2]
    one = record(folder)
    for who, model in ((one["identity"], "agent-model"), (one["user_identity"]["second"], "user-model"),
                       (one["judge_identity"], "judge-model")):
        assert (who["model"], who["temperature"], who["max_tokens"]) == (model, 0.5, 99)
        assert who["service"]["server"] == here and who["service"]["timeout_s"] == 7.0
    assert one["user_identity"]["first"] == {"kind": "symbolic"} and one["judge"] == "judge-model"
    everything = "".join(file.read_text(errors="ignore") for file in folder.rglob("*") if file.suffix in (".json", ".jsonl"))
    assert "hush" not in everything and "a-secret-key" not in everything
    page = write_page(folder).read_text()
    assert "user mixture (user-model)" in page and "hush" not in page


def test_an_evaluation_goes_on_at_another_address_but_not_with_another_model(tmp_path):
    with chat_server() as server:
        server.script = [(500, refusal("away"))]
        folder = evaluate(plan(tmp_path, lambda: chat_model(client(server))))
        assert result(folder)["infra_errors"] == 2
    with chat_server() as server:
        server.script = [say("[finish]")]
        assert result(evaluate(plan(tmp_path, lambda: chat_model(client(server, timeout_s=99.0)))))["episodes"] == 2
        with pytest.raises(ValueError, match="another identity; choose another --name"):
            evaluate(plan(tmp_path, lambda: chat_model(client(server, temperature=0.9))))


def test_what_the_users_model_would_not_say_is_counted(tmp_path):
    with chat_server() as server:
        server.script = [say("I would rather not say.")]
        folder = evaluate(plan(tmp_path, user=llm(client(server))))
    found, turns = result(folder), [turn for line in lines(folder) for turn in line["turns"]]
    drafts = [turn for turn in turns if turn["spoke"] == "draft"]
    assert found["spoke"]["draft"] == len(drafts) > 0 and all(turn["told"] for turn in drafts)
    assert all(value in turn["reply"] for turn in drafts for value in turn["told"])
    assert f"{len(drafts)} turns where what the user's model wrote would not do" in remarks(folder)[0]


def test_a_dead_server_stops_the_evaluation_early_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(play, "HOPELESS", 3)
    dead = lambda: chat_model(ChatClient("http://127.0.0.1:9/v1", "m", max_retries=0))
    with pytest.raises(play.InfraError, match="the first 3 episodes all failed.*no connection.*the same command goes on"):
        evaluate(plan(tmp_path, dead, limit=0))
    folder = tmp_path / "sealed" / "eval" / "p"
    assert len(lines(folder)) == 3 and not (folder / "record.json").exists()
    with chat_server() as server:
        server.script = [say("[finish]")]
        again = plan(tmp_path, lambda: chat_model(ChatClient(server.base_url, "m", max_retries=0)), limit=0)
        assert result(evaluate(again))["episodes"] == 12


@pytest.mark.parametrize("changes, said", [
    (dict(benches=(Bench("b", intention, lambda: (), version="x"),)), "benchmark 'b' has no tasks.*check the file, split"),
    (dict(benches=(Bench("b", intention, lambda: None, version="x"),)), "its `tasks` gave None; it must give a tuple"),
    (dict(benches=(Bench("b", intention, lambda: ["t"], version="x"),)), "must give a tuple of Task"),
    (dict(benches=(Bench("b", function, BENCH.tasks, version="x"),)), "of intention, and the environment is function"),
    (dict(benches=BENCH), "benches is Bench; it must be a tuple"),
    (dict(player=lambda: chat_model("gpt")), "'gpt' is no chat client"),
    (dict(player=lambda: reflexion(3)), "3 is no chat client")])
def test_bad_plans_say_what_to_do(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        evaluate(plan(tmp_path, **changes))


def test_a_user_that_is_no_client():
    with pytest.raises(ValueError, match="<object object.*is no chat client; give one such as"):
        llm(object())


class Unnamed:
    """A client whose records would name no model."""

    async def complete(self, messages):
        return "yes"


class Mute:
    identity = {"model": "m"}


@pytest.mark.parametrize("bad, said", [
    (Unnamed(), "or give yours an attribute `identity`, a mapping of JSON values with the model's name under \"model\"$"),
    (type("Shy", (Unnamed,), {"identity": {}})(), "or give yours an attribute `identity`"),
    (Mute(), "or give yours an async method `complete`$")])
def test_a_custom_client_is_looked_at_before_anything_is_played(tmp_path, bad, said):
    config = load_config(str(ROOT / "configs" / "quickstart.py"))
    for make in (lambda: llm(bad), lambda: role_play(bad), lambda: chat_model(bad), lambda: reflexion(bad),
                 lambda: plan(tmp_path, judge=bad), lambda: dataclasses.replace(config, judge=bad)):
        with pytest.raises(ValueError, match=said):
            make()


def test_the_terminal_shows_pass_k_and_averages(tmp_path, capsys):
    command = ["eval", str(ROOT / "configs" / "eval_built_in.py"), "--root", str(tmp_path), "--limit", "2", "--repeats", "3"]
    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and all(f"pass^{k}" in shown for k in (1, 2, 3)) and "micro" in shown and "macro" in shown


def test_help_shows_both_forms_and_every_option(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["eval", "--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and "eau-jax eval RUN" in shown and "eau-jax eval PLAN.py" in shown
    options = ("--checkpoint", "--samples", "--temperature", "--again", "--name", "--root", "--repeats", "--seed", "--limit",
               "--concurrency", "--retries")
    assert all(option in shown for option in options)
    assert "eau-jax eval runs/quickstart --checkpoint" in shown
    assert "eau-jax eval configs/eval_built_in.py --repeats" in shown
    assert "episodes per task" in shown and "episodes open at a time" in shown
    with pytest.raises(SystemExit) as ended:
        cli.main(["eval", "--limit", "3"])
    assert ended.value.code == 2 and "RUN or PLAN.py comes first" in capsys.readouterr().err
