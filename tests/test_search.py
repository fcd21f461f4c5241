"""Search: hand-played episodes, the index, upstream's questions, the judge, and what is not told."""

import json

import numpy as np
import pytest
from play import built_in, play, script

from eau_jax.core.types import StopReason, Task
from eau_jax.envs.gyms import search_tasks
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.file import TaskFileError
from eau_jax.envs.gyms.search import search
from eau_jax.envs.gyms.search_index import index, read_passages
from eau_jax.envs.gyms.search_tasks import TOWNS, corpus, passage, rival, value
from eau_jax.envs.gyms.search_text import Do, question
from eau_jax.users.voice import leaks
from worlds.search import INDEX, env

PASSAGES = ("Oslo is the capital of Norway.", "The Akerselva flows through Oslo.", "Lima is the capital of Peru.",
            "The Rimac flows through Lima.", "The Danube flows through Vienna.")
SMALL = search(index(PASSAGES))
TASK = Task(id="q-1", env="search", data={"id": "q-1", "question": "Which river flows through the capital of Norway?",
                                          "answer": "Akerselva", "passages": [0, 1]})


def knobs(**changes):
    return env.knobs.replace(**{k: np.asarray(v, getattr(env.knobs, k).dtype) for k, v in changes.items()})


def rewards(lines):
    return [line.reward for line in lines]


def test_a_full_episode_by_hand():
    lines = play(SMALL, TASK, script("[search] capital of Norway", "[search] flows through Oslo", "[answer] the Rimac",
                                     "[search] zebra", "[answer] AKERSELVA!"))
    assert lines[0].reply.split("\n")[0] == PASSAGES[0] and PASSAGES[1] in lines[1].reply.split("\n")[0]
    assert [line.reply for line in lines[2:]] == ["That is not right.", "Nothing found.", "Correct."]
    assert rewards(lines) == [0, 0, 0, 0, 1] and lines[-1].success
    assert stop_reason(lines[-1].stop) is StopReason.COMPLETED


@pytest.mark.parametrize("changes, messages, expected, said", [
    (dict(max_searches=1), ["[search] Oslo", "[search] Lima"], [0, 0], "No searches left. Write [answer] and the answer."),
    (dict(top_k=1), ["[search] flows"], [0], PASSAGES[1]),
    (dict(search_cost=0.1, max_searches=1), ["[search] Oslo", "[search] Oslo"], [-0.1, 0], None),
    (dict(info_bonus=0.2), ["[search] Oslo", "[search] Oslo", "[search] Lima"], [0.4, 0, 0], None),
    (dict(step_penalty=0.01), ["[search] Oslo", "[search] Oslo", "[answer] Akerselva"], [-0.01, -0.02, 0.97], None),
    (dict(r_wrong=-0.5, max_wrong=1), ["[answer] Rimac"], [-0.5], "That is not right."),
    (dict(r_wrong=-0.5), ["[answer] Rimac"] * 3, [-0.5] * 3, "That is not right."),
    (dict(max_wrong=64), ["[answer] Rimac"] * 5 + ["[answer] Akerselva"], [0] * 5 + [1], "Correct."),
    (dict(r_correct=0.5), ["[answer] akerselva"], [0.5], "Correct."),
    (dict(invalid_penalty=0.3), ["[search]", "[action] x", "hm"], [-0.3] * 3, None),
    (dict(finish_penalty=0.3), ["[finish]"], [-0.3], "Goodbye."),
    (dict(reveal=1), ["[finish]"], [0], "The answer was: Akerselva."),
    (dict(show_reward_in_text=1), ["[answer] Akerselva"], [1], "Correct. Reward: 1.00."),
])
def test_knobs_by_hand(changes, messages, expected, said):
    lines = play(SMALL, TASK, script(*messages), knobs(**changes))
    np.testing.assert_allclose(rewards(lines)[:len(expected)], expected, atol=1e-6)
    assert said is None or lines[len(expected) - 1].reply == said


def test_endings():
    last = lambda *messages, **changes: stop_reason(play(SMALL, TASK, script(*messages), knobs(**changes))[-1].stop)
    assert last(*["[search] Oslo"] * 16) is StopReason.MAX_TURNS and last(*["x"] * 3) is StopReason.PARSE_ERROR
    assert last(*["[search] zebra"] * 3, patience=2) is StopReason.USER_LEFT and last("[finish]") is StopReason.COMPLETED


def test_nothing_tells_the_answer_but_the_passages():
    for message in ("[finish]", "[answer] Rimac", "[search] zebra", "[search]", "hm", "[action] Tell me the answer."):
        assert not leaks(play(SMALL, TASK, script(message))[0].reply, env.secrets(TASK, 0, 0))
    assert env.secrets(TASK, 0, 0) == ("Akerselva",) and env.disclosed(TASK, 15, 0) == ()
    inside = Task(id="a", env="search", data={"id": "a", "question": "Is it Oslo or Lima?", "answer": "Lima"})
    assert env.secrets(inside, 0, 0) == ()


def test_the_index_ranks_ignores_case_and_is_stable():
    found = index(PASSAGES)
    assert found.find("CAPITAL peru", 4)[0] == 2 and found.find("flows through", 5) == (1, 3, 4)
    assert found.find("zebra", 4) == found.find("", 4) == found.find("the of is", 4) == found.find("\ud800 \x00", 4) == ()
    assert found.find("Oslo " * 5000, 1) == found.find("Oslo", 1)
    with pytest.raises(ValueError, match="one or more"):
        index(())


def test_a_made_up_town_is_found_first():
    for town in range(0, len(TOWNS), 7):
        for relation in search_tasks.RELATIONS:
            assert INDEX.find(f"{relation} of {TOWNS[town]}", 1) == (passage(town, relation),)
            assert value(town, relation) in corpus()[passage(town, relation)]
        assert rival(town) != town


def test_agents_on_built_in_tasks():
    tasks = built_in("search", 150)[1]
    score = lambda agent: np.mean([env.score(task, None, sum(rewards(play(env, task, agent, seed=i))))
                                   for i, task in enumerate(tasks)])
    assert score(env.expert) == 1.0 and 0.3 < score(env.novice) < 0.7
    assert score(script("[answer] red")) < 0.1 and score(script("[finish]")) == 0 and score(script("")) == 0
    for task in tasks[:20]:
        lines = play(env, task, env.expert, knobs(info_bonus=0.5))
        assert sum(rewards(lines)) == pytest.approx(1 + 0.5 * len(task.data["passages"])) and lines[-1].success


def test_upstream_questions(shared_data):
    listed = search_tasks.load(shared_data / "usergym/search/questions.json")
    assert len(listed) == 125
    pytest.importorskip("pyarrow")
    assert len(search_tasks.load(shared_data / "usergym/search/test.parquet")) == 125
    over = search(index(tuple(f"{task.data['question']} {task.data['answer']}." for task in listed)))
    for task in listed:
        lines = play(over, task, over.expert)
        assert lines[-1].success and task.data["answer"] in lines[0].reply and len(lines) == 2
        assert play(over, task, script("[answer] no idea"))[0].reward == 0


def test_the_judge_is_asked_only_where_words_differ_and_read_strictly():
    assert question(TASK, "[answer] akerselva", None) is None and question(TASK, "[search] x", None) is None
    asked = question(TASK, "[answer] the river Akerselva", None)
    assert "Akerselva" in asked.messages[0]["content"]
    assert asked.read("Yes.").flags == 1 and asked.read("no, it is not").flags == 0 and asked.read("yes").code == Do.SUBMIT
    assert asked.read("maybe") is None and asked.read("") is None and asked.read("yesterday") is None


def test_passages_of_the_user_are_read(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"title": "Oslo", "text": "A city."}) + "\n" + json.dumps({"text": "Other."}))
    assert read_passages(path) == ("Oslo: A city.", "Other.")
    for text, said in (('{"text": "a"}\n{"title": "b"}', "line 2: expected an object"), ("[1]", "line 1"),
                       ("", "at least one"), ('{"text": 3}', "line 1: expected \"text\" to be a non-empty string")):
        path.write_text(text)
        with pytest.raises(TaskFileError, match=said):
            read_passages(path)
    with pytest.raises(TaskFileError, match="no such file"):
        read_passages(tmp_path / "none.jsonl")


@pytest.mark.parametrize("change, said", [({"answer": " "}, "answer: expected a non-empty string"),
                                          ({"passages": [1, "2"]}, "passages: expected a list of at most 4 passage ids")])
def test_a_broken_task_is_refused_by_the_table(change, said):
    with pytest.raises(ValueError, match="task 'bad', field " + said):
        env.table((Task(id="bad", env="search", data=TASK.data | change),))
