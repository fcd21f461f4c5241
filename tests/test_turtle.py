"""Turtle: upstream's reward formula, the user's rules, what a story covers, what may be said, and the judge's answers."""

import math

import jax
import numpy as np
import pytest
from play import built_in, play, script, states
from worlds.turtle import random_acts

from eau_jax.core.part import Kind, Reply, TimeStep
from eau_jax.core.types import StopReason, Task
from eau_jax.envs.gyms import turtle_match as match
from eau_jax.envs.gyms import turtle_tasks
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.message import act
from eau_jax.envs.gyms.turtle import turtle
from eau_jax.envs.gyms.turtle_text import Do, Say, disclosed, parse, question, render, secrets
from eau_jax.users.voice import leaks

FACTS = (("It was an old friend.", 0.5, ["evil", "thief"]), ("It was for love.", 0.3, ["money", "fun"]),
         ("It was at night.", 0.2, ["dawn", "noon"]))
TASK = Task(id="t-1", env="turtle", data={
    "id": "t-1", "new_title": "The lost ring", "new_surface": "Anna lost a ring.",
    "new_bottom": " ".join(statement for statement, _, _ in FACTS),
    "evaluation": [{"statement": statement, "score": score, "rivals": rivals} for statement, score, rivals in FACTS]})
WHO, WHY, WHEN = (f"[answer] {statement}" for statement, _, _ in FACTS)
UPSTREAM = dict(max_stories=64, answer_cost=0.0)
ALL = f"[answer] {TASK.data['new_bottom']}"


def knobs(**changes):
    return turtle.knobs.replace(**{k: np.asarray(v, getattr(turtle.knobs, k).dtype) for k, v in changes.items()})


def rewards(lines):
    return [line.reward for line in lines]


@pytest.mark.parametrize("messages, expected, stop", [
    ([ALL], [1], StopReason.COMPLETED),
    ([WHO, WHY], [0.5, -0.2], StopReason.COMPLETED),                        # each story is judged by itself; two at most
    ([WHEN, ALL], [0.2, 0.6], StopReason.COMPLETED),                        # only what is better earns
    (["[answer] It was old.", WHO], [0.25, 0.05], StopReason.COMPLETED),    # half of a statement
    (["[answer] It was an old thief."], [0], StopReason.COMPLETED),         # a rival word cancels a right one
    (["[action] Was it love?", ALL], [0, 1], StopReason.COMPLETED),
    (["hi", "[search] x", "[answer]"], [0, 0, 0], StopReason.PARSE_ERROR),
    (["[action] Was it love?"] * 16, [0] * 16, StopReason.MAX_TURNS),
])
def test_episodes_by_hand_at_the_defaults(messages, expected, stop):
    lines = play(turtle, TASK, script(*messages))
    np.testing.assert_allclose(rewards(lines)[:len(expected)], expected, atol=1e-6)
    assert stop_reason(lines[-1].stop) is stop and all(r == 0 for r in rewards(lines)[len(expected):])
    assert lines[-1].success == (messages[-1] == ALL)


@pytest.mark.parametrize("messages, expected", [
    ([WHO, WHY, WHEN], [0.5, 0, 0]), ([WHEN, WHY, WHO, ALL], [0.2, 0.1, 0.2, 0.5]),
    ([WHO] * 5 + [ALL], [0.5] + [0] * 4 + [0.5])])
def test_stories_are_free_under_upstreams_rules(messages, expected):
    lines = play(turtle, TASK, script(*messages), knobs(**UPSTREAM))
    np.testing.assert_allclose(rewards(lines)[:len(expected)], expected, atol=1e-6)


@pytest.mark.parametrize("changes, messages, expected", [
    (dict(threshold=0.8), ["[answer] It was an old friend. It was for love."], [0.8]),
    (dict(half_credit=0.2), ["[answer] old"], [0.1]),
    (dict(half_at=0.05, full_at=1.0), ["[answer] old"], [0.25]),
    (dict(answer_cost=0.1), [WHO, WHO], [0.5, -0.1]),
    (dict(max_stories=1), [WHO], [0.5]),
    (dict(ask_bonus=0.1), ["[action] love?", "[action] money?", "[action] not love?", "[action] love?"], [0.1, 0, 0, 0]),
    (dict(step_penalty=0.1), [WHO, "[action] love?"], [0.4, -0.2]),
    (dict(invalid_penalty=0.2), ["\ud800", WHO], [-0.2, 0.5]),
    (dict(repeat_penalty=0.3), [WHO, WHO], [0.5, -0.5]),
    (dict(finish_penalty=0.5), [WHO, "[finish]"], [0.5, -0.25]),
])
def test_rewards_by_hand_with_other_knobs(changes, messages, expected):
    lines = play(turtle, TASK, script(*messages), knobs(**changes))
    np.testing.assert_allclose(rewards(lines)[:len(expected)], expected, atol=1e-6)
    assert lines[0].success == ("threshold" in changes)


def check(step):
    """Raises AssertionError unless `step` pays random stories as upstream does: what is better than the best so far."""
    tasks = turtle_tasks.generate("train", 32, 0)
    table, rng = turtle.table(tasks), np.random.default_rng(0)
    state, best, settings = states(turtle, table, turtle.knobs, 32), np.zeros(32), knobs(**UPSTREAM)
    batched = jax.jit(jax.vmap(step, (None, None, 0, 0, None, None)))
    for _ in range(12):
        acts = random_acts(tasks, (32,), rng)
        running = ~np.asarray(state.done)
        state, out = batched(table, settings, state, acts, np.int32(Reply.ANSWER), None)
        shares = np.stack([acts.mask >> 6 * slot & 63 for slot in range(5)], 1) / 63
        covered = np.where(shares >= 0.6, 1.0, np.where(shares >= 0.35, 0.5, 0.0)) * (acts.code == Do.STORY)[:, None]
        weights = np.array([([e["score"] for e in task.data["evaluation"]] + [0] * 5)[:5] for task in tasks])
        score = (covered * weights).sum(1)
        np.testing.assert_allclose(out.reward, np.maximum(score - best, 0) * running, atol=1e-6)
        np.testing.assert_array_equal(out.success & running, (score > 0.999) & running)
        best = np.where(running, np.maximum(best, score), best)


MUTANTS = {
    "every story is paid": lambda t, k, s, a, r, key: turtle.step(t, k, s.replace(best=s.best * 0), a, r, key),
    "partly counts fully": lambda t, k, s, a, r, key: turtle.step(t, k.replace(half_credit=1.0), s, a, r, key),
    "weights are equal": lambda t, k, s, a, r, key: turtle.step(t.replace(weights=0 * t.weights + 0.25), k, s, a, r, key),
    "0.9 is enough": lambda t, k, s, a, r, key: turtle.step(t, k.replace(threshold=0.9), s, a, r, key),
    "three statements count": lambda t, k, s, a, r, key: turtle.step(t, k, s, a.replace(mask=a.mask & 0o777777), r, key),
}


def test_random_stories_earn_what_the_formula_says():
    check(turtle.step)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(name):
    with pytest.raises(AssertionError):
        check(MUTANTS[name])


@pytest.mark.parametrize("message, reply", [
    ("[action] Was it love?", {"Yes."}), ("[action] Was it an old friend?", {"Yes."}), ("[action] Was it old?", {"Yes."}),
    ("[action] Was it money?", {"No."}), ("[action] Was it an evil friend?", {"No."}), ("[action] A horse?", {"No."}),
    ("[action] Did Anna act out of love?", {"Maybe."}), ("[action] Was it not for love?", {"No."}),
    ("[action] Wasn't it money?", {"Yes."}), ("[action] Did a friend ride a horse?", {"Maybe."}),
    ("[action] Who was it?", {"Please ask a yes-or-no question.", "I can only say yes or no."}),
    ("[action] Hm, tell me.", {"Please ask a yes-or-no question.", "I can only say yes or no."}),
    (WHO, {"Right so far: It was an old friend."}), ("[answer] old", {"That is not it.", "None of it is right."}),
    ("[answer] No idea.", {"That is not it.", "None of it is right."}), ("[finish]", {"Goodbye."}),
])
def test_replies(message, reply):
    assert play(turtle, TASK, script(message))[0].reply in reply


def test_the_default_rules():
    hints = play(turtle, TASK, script(*["[action] A horse?"] * 4), knobs(hint_after=2))
    assert [line.disclosed for line in hints[:4]] == [0, 1, 0, 2] and hints[1].reply == "A hint: It was an old friend."
    lines = play(turtle, TASK, script("[action] Love?", *["[action] Why?"] * 3), knobs(patience=3))
    assert stop_reason(lines[-1].stop) is StopReason.USER_LEFT and len(lines) == 4


def test_other_decisions_of_the_user():
    silent = play(turtle, TASK, script(WHO, "[action] Was it love?"), rules='default = "WITHHOLD"')
    assert silent[0].reward == 0.5 and silent[0].disclosed == 0
    assert silent[0].reply in {"I cannot say.", "I will not tell you that."}
    given = play(turtle, TASK, script("[action] Was it love?", WHO), rules='default = "VOLUNTEER"')
    assert given[0].disclosed == 1 and given[0].reward == 0 and given[1].reward == 0.5 and given[1].disclosed == 2
    hidden = play(turtle, TASK, script(WHO), knobs(show_statements=0))
    assert hidden[0].reply == "Some of it is right." and hidden[0].disclosed == 0
    assert play(turtle, TASK, script(WHO), knobs(show_reward_in_text=1))[0].reply.endswith(" Reward: 0.50.")


def test_a_question_that_denies_what_a_denying_sentence_says_is_answered_with_yes():
    blind = Task(id="b", env="turtle", data=TASK.data | {
        "new_bottom": "The guide did not see.", "evaluation": [{"statement": "The guide did not see.", "score": 1.0}]})
    assert play(turtle, blind, script("[action] Did the guide not see?"))[0].reply == "Yes."


def test_a_story_of_all_words_there_are_covers_nothing():
    words = "evil old thief friend love money fun dawn noon night"
    assert match.levels(TASK, words) == (0, 0, 0)
    assert match.levels(TASK, "horse " * 1000 + TASK.data["new_bottom"]) == (0, 0, 0), "what is too long is not read"


def _check_replies(tasks):
    """Of every reply code, with random statements."""
    rng = np.random.default_rng(0)
    for task in tasks:
        for say in Say:
            told = int(rng.integers(1, 2 ** len(task.data["evaluation"]))) if say in (Say.COVERED, Say.HINT) else 0
            step = TimeStep(code=np.int32(say), disclosed=np.int32(told), reward=np.float32(0), discount=np.float32(1),
                            done=False, success=False, stop=np.int32(0), tool=False)
            text = render(task, act(Kind.ACTION, 1), step, None, int(rng.integers(100)))
            assert leaks(text, secrets(task, told, 0)) == (), (task.id, text)
            assert all(shown in text for shown in disclosed(task, told, 0))


def test_replies_show_disclosed_statements_only():
    _check_replies(built_in("turtle", 100)[1])
    assert set(secrets(TASK, 0, 0)) == {statement for statement, _, _ in FACTS} | {TASK.data["new_bottom"]}
    assert set(secrets(TASK, 0b110, 0)) == {FACTS[0][0], TASK.data["new_bottom"]} and secrets(TASK, 0b111, 0) == ()


@pytest.mark.parametrize("answer, mask", [
    ("1 0.5 0", 63 | 32 << 6), ("1, 1, 1.0", 63 | 63 << 6 | 63 << 12), ("0 0 0", 0), ("1 1", None), ("1 1 1 1", None),
    ("", None),
    ("1 2 0", None), ("1 nan 0", None), ("The guess tells 1 0 0", None), ("1 0.25 0", None), ("\u0661 0 0", None)])
def test_a_judge_says_how_much_a_story_tells(answer, mask):
    asked = question(TASK, "[answer] A friend of old took it.", None)
    read = asked.read(answer)
    assert (read is None) if mask is None else (read.code, read.mask) == (Do.STORY, mask)
    assert all(part in asked.messages[1]["content"] for part in ("3. It was at night.", "A friend of old took it."))


def test_a_judge_answers_questions_and_its_verdict_stands_whatever_the_cut_offs():
    asked = question(TASK, "[action] Was there no affection?", None)
    assert [asked.read(a).values[0] for a in ("Yes.", "no", " MAYBE")] == [1, 0, 0.5]
    assert asked.read("yes no") is None and asked.read("I think yes") is None and asked.read("yes").flags == 0
    assert all(question(TASK, text, None) is None for text in ("hi", "[finish]", "[action] Who?", "[search] x"))
    table, state = turtle.table((TASK,)), turtle.reset(turtle.table((TASK,)), turtle.knobs, 0, None)
    half = question(TASK, "[answer] x", None).read("1 0.5 0")
    for changes in (dict(half_at=0.05, full_at=0.55, no_at=0.0, yes_at=0.55),
                    dict(half_at=0.5, full_at=1.0, no_at=0.45, yes_at=1.0)):
        _, step = turtle.step(table, knobs(**changes), state, half, np.int32(0), None)
        assert math.isclose(float(step.reward), 0.65, abs_tol=1e-6)
        said = [int(turtle.step(table, knobs(**changes), state, asked.read(a), np.int32(0), None)[1].code)
                for a in ("yes", "no", "maybe")]
        assert said == [Say.YES, Say.NO, Say.MAYBE]


def test_agents_on_built_in_tasks():
    env, tasks = built_in("turtle", 100)
    total = lambda task, agent, seed: sum(rewards(play(env, task, agent, seed=seed)))
    score = lambda agent: np.mean([env.score(task, None, total(task, agent, i)) for i, task in enumerate(tasks)])
    assert score(env.expert) > 0.999
    assert 0.25 < score(env.novice) < 0.6


@pytest.mark.parametrize("split, rows", [("train", 423), ("test", 48)])
def test_upstream_stories(shared_data, split, rows):
    """Every row loads and a scripted run ends; a hidden story covers itself, and the surface or another one hardly."""
    pytest.importorskip("pyarrow")
    tasks = turtle_tasks.load(shared_data / f"usergym/turtle/{split}.parquet")
    assert len(tasks) == len({task.id for task in tasks}) == rows
    np.testing.assert_allclose(turtle.table(tasks).weights.sum(1), 1.0, atol=1e-6)
    for task in tasks:
        lines = play(turtle, task, turtle.expert)
        assert lines[-1].success and len(lines) <= 6 and math.isclose(sum(rewards(lines)), 1.0, abs_tol=1e-5)
        assert all(line.reply == "Yes." for line in lines[:-1])
    levels = lambda tell: [level for k, task in enumerate(tasks) for level in match.levels(task, tell(k, task))]
    share = lambda tell: np.mean(levels(tell)) / match.LEVELS
    assert share(lambda k, task: task.data["new_bottom"]) > 0.55
    assert share(lambda k, task: task.data["new_surface"]) < 0.15
    assert share(lambda k, task: tasks[k - 1].data["new_bottom"]) < 0.06
    _check_replies(tasks[:100])


def test_the_whole_upstream_file_and_the_novice(shared_data):
    tasks = turtle_tasks.load(shared_data / "usergym/turtle/all_stories_refined.json")
    assert len(tasks) == 471
    for k, task in enumerate(tasks[:60]):
        lines = play(turtle, task, turtle.novice, seed=k)
        assert len(lines) <= 16 and sum(rewards(lines)) <= 1 + 1e-5


@pytest.mark.parametrize("change, said", [
    ({"new_bottom": ""}, "new_bottom: expected a non-empty string"),
    ({"evaluation": []}, "evaluation: expected a list of 1 to 5 statements, found 0 of them"),
    ({"evaluation": ["x"]}, r"evaluation\[0\]: expected an object, found 'x'"),
    ({"evaluation": [{"statement": "x", "score": "1"}]}, r"evaluation\[0\].score: expected a number from 0 to 1, found '1'"),
    ({"evaluation": [{"statement": "x", "score": float("nan")}]}, r"evaluation\[0\].score: expected a number"),
    ({"evaluation": [{"statement": "x", "score": 0.5}]}, "evaluation: expected scores that sum to 1, found a sum of 0.5"),
    ({"evaluation": [{"statement": "x", "score": 1, "rivals": "y"}]}, r"evaluation\[0\].rivals: expected a list of words"),
])
def test_a_broken_task_is_refused(change, said):
    with pytest.raises(ValueError, match="task 'bad', field " + said):
        turtle.table((Task(id="bad", env="turtle", data=TASK.data | change),))


def test_a_message_is_read_the_same_whatever_its_case():
    assert parse(TASK, "[ANSWER] IT WAS FOR LOVE", None).mask == parse(TASK, WHY, None).mask == 63 << 6
