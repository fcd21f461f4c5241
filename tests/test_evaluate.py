"""Evaluations: players, resumption, the sealed folder, second looks, infrastructure errors, numbers and pages."""

import asyncio
import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from chat_server import chat_server
from eau_jax import cli
from eau_jax.clients.chat import ChatClient
from eau_jax.core.records import read_lines
from eau_jax.core.types import HeldOutTask, InfraError, Task
from eau_jax.envs.gyms import function_tasks, intention_tasks
from eau_jax.envs.gyms.function import function
from eau_jax.envs.gyms.intention import intention
from eau_jax.eval import chat_text, numbers
from eau_jax.eval.plan import Bench, Plan
from eau_jax.eval.looks import SecondLookError
from eau_jax.eval.play import evaluate
from eau_jax.eval.players import REACT, chat_model, scripted
from eau_jax.eval.reflexion import MEMORY, reflexion
from eau_jax.report.compare import compare
from eau_jax.report.evaluation import write_page
from eau_jax.rollout.collect import collect

ROOT = Path(__file__).resolve().parent.parent
BENCH = Bench("intention", intention, lambda: intention_tasks.generate("test", 12, 0), version="generator")


def plan(tmp_path, player=lambda: scripted("expert"), **changes):
    return Plan(**{"name": "p", "benches": (BENCH,), "player": player, "root": str(tmp_path)} | changes)


def record(folder):
    """Without the id of its log of looks, which is drawn anew for each root."""
    return {name: value for name, value in json.loads((folder / "record.json").read_text()).items() if name != "look_log"}


class Voice:
    """A chat model of fixed words; it counts what it was sent."""

    identity = {"model": "voice", "temperature": 0.0}

    def __init__(self, *texts):
        self.texts, self.sent = itertools.cycle(texts), []

    async def complete(self, messages):
        self.sent.append(messages)
        return next(self.texts)


def test_the_expert_scores_one_and_the_record_names_everything(tmp_path):
    folder = evaluate(plan(tmp_path, repeats=2))
    result, one = record(folder)["results"]["intention"], record(folder)
    assert result["score"]["mean"] == pytest.approx(1.0) and result["pass^k"] == {"1": 1.0, "2": 1.0}
    assert result["tasks"] == 12 and result["episodes"] == 24 and result["infra_errors"] == 0
    assert result["metric"]["mean"] > 1.5                       # upstream's own scale: the sum of rewards
    assert folder == tmp_path / "sealed" / "eval" / "p"
    assert one["benches"]["intention"]["knobs"]["env.max_turns"] == 16 and one["knob_generation"] == 0
    assert {"user", "judge", "seed", "repeats", "player", "identity", "eau_jax"} <= one.keys()
    assert one["benches"]["intention"].keys() >= {"version", "split", "basis", "tasks_sha256", "files_sha256", "rules_sha256"}
    assert one["benches"]["intention"]["floor"] == intention.floor._asdict()


def test_the_same_plan_gives_the_same_record(tmp_path):
    left, right = (evaluate(plan(tmp_path / name, lambda: scripted("novice"))) for name in "ab")
    assert record(left) == record(right)


def test_a_stopped_evaluation_goes_on_where_it_was(tmp_path):
    whole = evaluate(plan(tmp_path / "whole", lambda: scripted("novice"), concurrency=1))

    def stops_after(count):
        player, played = scripted("novice"), iter(range(count))

        async def play(world, pinned, **episode):
            next(played)
            return await player.play(world, pinned, **episode)
        return lambda: player._replace(play=play)

    with pytest.raises(RuntimeError):  # StopIteration inside a coroutine
        evaluate(plan(tmp_path / "cut", stops_after(5), concurrency=1))
    before = list(read_lines(tmp_path / "cut" / "sealed" / "eval" / "p" / "episodes.jsonl"))
    assert len(before) == 5 and not (tmp_path / "cut" / "sealed" / "eval" / "p" / "record.json").exists()
    folder = evaluate(plan(tmp_path / "cut", stops_after(7)))
    assert record(folder) == record(whole)


def test_a_failing_server_is_no_failure_of_the_agent(tmp_path):
    fails = itertools.count()

    class Broken(Voice):
        async def complete(self, messages):
            if next(fails) % 3 == 0:
                raise InfraError("the server is away")
            return await super().complete(messages)

    folder = evaluate(plan(tmp_path, lambda: chat_model(Broken("[finish]")), retries=0))
    result = record(folder)["results"]["intention"]
    assert result["infra_errors"] == 4 and result["episodes"] == 8 and result["tasks"] == 8
    folder = evaluate(plan(tmp_path, lambda: chat_model(Voice("[finish]")), retries=0))   # only those are played again
    assert record(folder)["results"]["intention"]["infra_errors"] == 0
    assert len(list(read_lines(folder / "episodes.jsonl"))) == 16


def test_a_second_look_is_refused_and_recorded(tmp_path):
    evaluate(plan(tmp_path))
    evaluate(plan(tmp_path))                                     # the same evaluation, finished already: no new look
    with pytest.raises(SecondLookError, match="scored on 12 of the 12 tasks of 'intention' before.*--again"):
        evaluate(plan(tmp_path, name="q"))
    evaluate(plan(tmp_path, lambda: scripted("novice"), name="other"))   # another player may look
    folder = evaluate(plan(tmp_path, name="q"), again=True)
    assert record(folder)["second_look"] and not record(tmp_path / "sealed" / "eval" / "p")["second_look"]
    looks = [line["seen"]["intention"] for line in read_lines(tmp_path / "sealed" / "looks.jsonl") if "seen" in line]
    assert looks == [0, 0, 12]


def test_a_look_is_not_hidden_by_a_part_of_the_test_or_by_deleting_the_result(tmp_path):
    folder = evaluate(plan(tmp_path))
    with pytest.raises(SecondLookError):
        evaluate(plan(tmp_path, name="part", limit=5))
    assert not (tmp_path / "sealed" / "eval" / "part" / "plan.json").exists()
    shutil.rmtree(folder)
    with pytest.raises(SecondLookError):
        evaluate(plan(tmp_path, seed=9))
    assert record(evaluate(plan(tmp_path, seed=9), again=True))["second_look"]


def test_a_torn_last_line_is_played_again(tmp_path):
    whole = record(evaluate(plan(tmp_path, concurrency=1)))
    file = tmp_path / "sealed" / "eval" / "p" / "episodes.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    again = record(evaluate(plan(tmp_path, concurrency=1)))
    assert again == whole and len(list(read_lines(file))) == 12


def test_a_reflection_that_fails_is_an_infrastructure_error_of_its_episode(tmp_path):
    class Away(Voice):
        async def complete(self, messages):
            if "look back" in messages[0]["content"]:
                raise InfraError("away with a-key")
            return await super().complete(messages)

    folder = evaluate(plan(tmp_path, lambda: reflexion(Away("[finish]"), trials=2), retries=0))
    result = record(folder)["results"]["intention"]
    assert result["infra_errors"] == 12 and "reflection 1: away" in result["first_error"]
    assert record(folder)["averages"]["score"]["macro"] is None


def test_a_plan_with_a_judge_starts_from_the_command_line(tmp_path, capsys):
    file = tmp_path / "judged.py"
    file.write_text((ROOT / "configs" / "eval_built_in.py").read_text() + f"""

import dataclasses
from eau_jax.clients.chat import ChatClient

_plain = plan


def plan():
    benches = _plain().benches[1:]
    return dataclasses.replace(_plain(), benches=benches, judge=ChatClient("http://127.0.0.1:9/v1", "m", max_retries=0),
                               retries=0, root={str(tmp_path)!r})
""")
    with pytest.raises(SystemExit) as ended:
        cli.main(["eval", str(file), "--limit", "1"])
    assert ended.value.code == 1      # it ran, and its judge cannot be reached: nothing was scored
    assert "outside the agent's control" in capsys.readouterr().out


def test_another_plan_of_the_same_name_is_refused(tmp_path):
    evaluate(plan(tmp_path))
    with pytest.raises(ValueError, match="another seed; choose another --name"):
        evaluate(plan(tmp_path, seed=3))


def test_training_refuses_tasks_of_an_evaluation():
    world = SimpleNamespace(tasks=(HeldOutTask("t", "intention", {}),))
    with pytest.raises(ValueError, match="tasks of an evaluation"):
        asyncio.run(collect(world, None, None, None, None, indices=[0], group_size=1, run_seed=0, step=0))


def test_messages_come_back_from_tokens():
    chat = chat_text.chat()
    history = chat.opening("Be brief.", "Hi <|agent|> é😀")
    assert chat_text.messages(history) == [{"role": "system", "content": "Be brief."},
                                           {"role": "user", "content": "Hi <|agent|> é😀"}]
    action = chat.write("[action] Ho?")
    history = np.concatenate([history, action, chat.reply("42", "tool", action)])
    assert chat_text.messages(history)[2:] == [{"role": "assistant", "content": "[action] Ho?"},
                                               {"role": "user", "content": "Tool output:\n42"}]


def test_react_is_asked_for_thoughts_and_they_are_not_acts(tmp_path):
    voice = Voice("<think>[action] not this</think>[finish]")
    folder = evaluate(plan(tmp_path, lambda: chat_model(voice, react=True), limit=2))
    assert all(REACT in sent[0]["content"] for sent in voice.sent)
    lines = list(read_lines(folder / "episodes.jsonl"))
    assert [len(line["turns"]) for line in lines] == [1, 1] and record(folder)["identity"]["prompting"] == "react"


def test_reflexion_learns_from_its_notes_and_not_from_the_score(tmp_path):
    voice = Voice("[finish]", "FAILURE\nAsk first.", "[finish]", "failure.\nAsk more.", "[finish]")
    folder = evaluate(plan(tmp_path, lambda: reflexion(voice, trials=3), limit=1))
    [line] = read_lines(folder / "episodes.jsonl")
    assert line["trials"] == 3 and line["notes"] == ["Ask first.", "Ask more."]
    last = voice.sent[-1][0]["content"]
    assert "Ask first." in last and "Ask more." in last and record(folder)["identity"]["signal"] == "self"
    asked = json.dumps(voice.sent)
    assert "score" not in asked and "reward" not in asked.replace("rewards", "")
    satisfied = Voice("[finish]", "SUCCESS")
    folder = evaluate(plan(tmp_path / "2", lambda: reflexion(satisfied, trials=3), limit=1))
    assert list(read_lines(folder / "episodes.jsonl"))[0]["trials"] == 1
    unsure = Voice("[finish]", "SUCCESS\nMore.", "[finish]", "SUCCESS", "[finish]")   # the oracle knows better
    folder = evaluate(plan(tmp_path / "3", lambda: reflexion(unsure, trials=3, oracle=True), limit=1))
    assert list(read_lines(folder / "episodes.jsonl"))[0]["trials"] == 3 and MEMORY == 3


def test_a_real_server_plays(tmp_path):
    with chat_server("normal") as server:
        client = ChatClient(server.base_url, "test-model", temperature=0.0)
        folder = evaluate(plan(tmp_path, lambda: chat_model(client), limit=2, repeats=1))
    assert record(folder)["results"]["intention"]["episodes"] == 2


def test_canaries_reach_no_prompt_and_no_training_record(tmp_path):
    canary = "CANARY-5db1"
    tasks = tuple(Task(f"{canary}-{i}", "function", {**task.data, "rule": task.data["rule"]})
                  for i, task in enumerate(function_tasks.generate("test", 4, 0)))
    options = tuple(Task(task.id, "intention", {**task.data, "missing_details": [
        {**detail, "options": [canary]} for detail in task.data["missing_details"]]})
        for task in intention_tasks.generate("test", 4, 0))
    voice = Voice("[action] What is the weather?", "[finish]")
    evaluate(plan(tmp_path, lambda: chat_model(voice), benches=(
        Bench("function", function, lambda: tasks, version="x"), Bench("intention", intention, lambda: options, version="x"))))
    assert canary not in json.dumps(voice.sent)
    outside = [file for file in tmp_path.rglob("*") if file.is_file() and "sealed" not in file.parts]
    assert not any(canary in file.read_text(errors="ignore") for file in outside)


@pytest.mark.parametrize("changes, said", [
    (dict(repeats=0), "repeats = 0"), (dict(name="a/b"), "cannot be a folder"), (dict(benches=()), "at least one"),
    (dict(benches=(BENCH, BENCH)), "a name of its own"), (dict(player=lambda: 3), "must give a Player"),
    (dict(player=scripted("expert")), "player must be a function"), (dict(user="symbolic"), "user a User"),
    (dict(judge="gpt"), "no chat client"),
    (dict(judge=Voice(""), benches=(Bench("f", function, lambda: function_tasks.generate("test", 2, 0), version="x"),)),
     "judge would do nothing"), (dict(benches=(Bench("b", intention, BENCH.tasks(), version="x"),)), "is not a Bench"),
    (dict(player=lambda: scripted("exprt")), "script 'exprt'; allowed: expert"),
    (dict(benches=(Bench("b", intention, BENCH.tasks, version="x", knobs={"env.max_turn": 3}),)), "did you mean 'env.max_turns'"),
])
def test_bad_plans_are_refused(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        evaluate(plan(tmp_path, **changes))


def test_numbers_by_hand():
    assert numbers.pass_hat([2, 1, 0], [2, 2, 2], 1) == pytest.approx(0.5)
    assert numbers.pass_hat([2, 1, 0], [2, 2, 2], 2) == pytest.approx(1 / 3)
    assert numbers.pass_hat([3, 4], [4, 4], 2) == pytest.approx((3 / 6 + 1) / 2)
    assert np.isnan(numbers.pass_hat([1], [1], 2))
    assert numbers.averages({"a": 1.0, "b": 0.0}, {"a": 3, "b": 1}) == {"micro": 0.75, "macro": 0.5}
    assert numbers.effective_turns([0, 1, 0]) == 2 and numbers.effective_turns([0, 0]) == 0
    assert numbers.time_weighted([0.5, 0, 0.9]) == pytest.approx(0.5 + 0.3)
    same = numbers.bootstrap([0.5] * 10)
    assert same == (0.5, 0.5, 0.5)
    spread = numbers.bootstrap([0.0, 1.0] * 50)                  # standard error 0.05
    assert spread.low == pytest.approx(0.40, abs=0.02) and spread.high == pytest.approx(0.60, abs=0.02)
    difference, common = numbers.paired({"a": 0.0, "b": 0.5, "c": 9.0}, {"a": 0.1, "b": 0.6, "d": 0.0})
    assert common == 2 and difference == pytest.approx((0.1, 0.1, 0.1))


def test_pages_and_comparison(tmp_path, capsys):
    folders = [str(evaluate(plan(tmp_path, lambda kind=kind: scripted(kind), name=kind))) for kind in ("expert", "novice")]
    page = write_page(folders[0]).read_text()
    assert "<script" not in page and "intention" in page and "pass^1" in page
    first, second = compare(folders)
    assert first.difference is None and second.difference.high < 0 and second.common == 12
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", *folders, "--plot", str(tmp_path / "plot.png")])
    assert ended.value.code == 0 and (tmp_path / "plot.png").stat().st_size > 5000
    assert "difference to the first" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", folders[0], str(tmp_path / "none")])
    assert ended.value.code == 2 and "holds no finished evaluation" in capsys.readouterr().err


def test_only_evaluations_under_the_same_rules_are_compared(tmp_path):
    bench = Bench("intention", intention, BENCH.tasks, version="generator", knobs={"env.max_turns": 2})
    left = evaluate(plan(tmp_path, name="left"))
    right = evaluate(plan(tmp_path, lambda: scripted("novice"), name="right", benches=(bench,)))
    with pytest.raises(ValueError, match="another limits"):
        compare([str(left), str(right)])


def test_a_plan_from_the_command_line(tmp_path, capsys):
    command = ["eval", str(ROOT / "configs" / "eval_built_in.py"), "--root", str(tmp_path), "--limit", "3"]
    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    assert ended.value.code == 0
    folder = tmp_path / "sealed" / "eval" / "built-in"
    assert (folder / "report.html").is_file() and record(folder)["averages"]["score"]["macro"] == pytest.approx(1.0)
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--name", "more"])
    assert ended.value.code == 2 and "--again" in capsys.readouterr().err


