"""Intention: upstream's reward formula, the user's rules, what may be said, and the question matcher."""

import math

import numpy as np
import pytest
from play import built_in, play, script

from eau_jax.core.types import StopReason, Task
from eau_jax.envs.gyms import intention_match as match
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.gyms.intention import intention
from eau_jax.envs.gyms.intention_text import Do, Say, disclosed, parse, render, secrets, value
from eau_jax.envs.message import act
from eau_jax.core.part import Kind, TimeStep
from eau_jax.users.voice import leaks

WEIGHT = {1: 0.4, 2: 0.7, 3: 1.0}
DETAILS = {"date": "3", "budget": "3", "hotel": "2", "transport": "2", "food": "1"}
TASK = Task(id="t-1", env="intention", data={
    "id": "t-1", "category": "travel", "task": "Plan a trip to Oslo.",
    "missing_details": [{"description": name, "importance": weight, "inquiry": f"What {name}?",
                         "options": list(intention_tasks.OPTIONS[name])} for name, weight in DETAILS.items()]})

UPSTREAM = dict(ask_cap=16, patience=64)


def knobs(**changes):
    return intention.knobs.replace(**{k: np.asarray(v, getattr(intention.knobs, k).dtype) for k, v in changes.items()})


def upstream(asked_in_turn, importance):
    """UserRL's formula, written down from its description: the rewards of a list of sets of details asked for."""
    remaining, rewards = set(importance), []
    for asked in asked_in_turn:
        new = asked & remaining
        remaining -= new
        rewards.append(max(0.0, max(WEIGHT[importance[k]] for k in new) - 0.2 * (len(new) - 1)) if new else 0.0)
    return rewards


def rewards(lines):
    return [line.reward for line in lines]


@pytest.mark.parametrize("messages, expected, stop", [
    (["date", "budget", "hotel", "transport", "food"], [1, 1, 0.7, 0.7, 0.4], StopReason.COMPLETED),
    (["date, budget and hotel", "date and budget"], [0, 0.8], StopReason.COMPLETED),  # three at once are too many
    (["transport and food", "food", "transport and hotel"], [0.5, 0, 0.7], StopReason.COMPLETED),
    (["food", "weather", "food"], [0.4, 0, 0], StopReason.COMPLETED),
])
def test_episodes_by_hand_at_the_defaults(messages, expected, stop):
    lines = play(intention, TASK, script(*[f"[action] Which {message}?" for message in messages]))
    np.testing.assert_allclose(rewards(lines)[:len(expected)], expected, rtol=1e-6)
    assert stop_reason(lines[-1].stop) is stop and all(r == 0 for r in rewards(lines)[len(expected):])


@pytest.mark.parametrize("messages, expected", [
    (["date, budget and hotel"], [0.6]),  # upstream's own example: 0.6, not 2.7
    (["date, budget, hotel, transport and food"], [0.2])])
def test_episodes_by_hand_under_upstreams_rules(messages, expected):
    lines = play(intention, TASK, script(*[f"[action] Which {message}?" for message in messages]), knobs(**UPSTREAM))
    np.testing.assert_allclose(rewards(lines)[:len(expected)], expected, rtol=1e-6)


def test_random_questions_earn_what_the_formula_says():
    env, tasks = built_in("intention", 30)
    rng = np.random.default_rng(0)
    for task in tasks:
        details = task.data["missing_details"]
        sets = [set(rng.permutation(len(details))[:rng.integers(1, 4)].tolist()) for _ in range(16)]
        words = [f"[action] Which {' and '.join(details[k]['description'] for k in s)}?" for s in sets]
        lines = play(env, task, script(*words), knobs(**UPSTREAM))
        expected = upstream(sets, {k: int(d["importance"]) for k, d in enumerate(details)})[:len(lines)]
        np.testing.assert_allclose(rewards(lines), expected, atol=1e-6)
        assert lines[-1].success == (set().union(*sets[:len(lines)]) == set(range(len(details))))


@pytest.mark.parametrize("changes, messages, expected", [
    (dict(weight_3=0.9, weight_2=0.5, weight_1=0.3), ["date", "hotel", "food"], [0.9, 0.5, 0.3]),
    (dict(multi_penalty=0.5), ["date and budget"], [0.5]),
    (dict(step_penalty=0.3), ["food", "food", "date"], [0.1, 0, 0.7]),
    (dict(repeat_penalty=0.3), ["food", "food"], [0.4, -0.3]),
    (dict(disclose_cap=1, ask_cap=3), ["date, budget and hotel"], [0.6]),         # told one, charged for three
    (dict(ask_cap=1), ["date and budget", "date"], [0, 1]),
    (dict(done_bonus=0.5), ["date", "budget", "hotel", "transport", "food"], [1, 1, 0.7, 0.7, 0.9]),
    (dict(finish_penalty=0.1), ["date"], [1, -0.4]),
    (dict(invalid_penalty=0.2), ["date", "\ud800"], [1, 0]),
])
def test_rewards_by_hand_with_other_knobs(changes, messages, expected):
    lines = play(intention, TASK, script(*[f"[action] Which {message}?" for message in messages]), knobs(**changes))
    np.testing.assert_allclose(rewards(lines)[:len(expected)], expected, atol=1e-6)


def test_unreadable_messages_are_answered_counted_and_end_the_episode():
    lines = play(intention, TASK, script("hi", "[search] hotels", "[action]", "[action] date?"),
                 knobs(invalid_penalty=0.25))
    assert rewards(lines) == [-0.25] * 3 and stop_reason(lines[-1].stop) is StopReason.PARSE_ERROR
    assert "[action]" in lines[0].reply and "[action]" in lines[1].reply


@pytest.mark.parametrize("message, reply", [
    ("[action] Tell me more.", {"Please be specific.", "What exactly do you want to know?"}),
    ("[action] What is the capital of France?", {"That does not matter to me.", "I do not mind."}),
    ("[answer] Go by train.", {"Please ask me first.", "You do not know enough yet."}),
    ("[finish]", {"Goodbye."}),
])
def test_replies_that_tell_nothing(message, reply):
    line = play(intention, TASK, script(message))[0]
    assert line.reply in reply and line.reward == 0 and line.disclosed == 0


def test_the_default_rules():
    repeated = play(intention, TASK, script("[action] Which date?", "[action] Which date?"))
    assert repeated[1].reply in {"You already know that.", "I already said that."} and repeated[1].disclosed == 0
    capped = play(intention, TASK, script("[action] Which date and food?"), knobs(ask_cap=1))
    assert capped[0].reply in {"Please ask for less at once.", "Not everything at once, please."}
    assert capped[0].disclosed == 0
    impatient = play(intention, TASK, script("[action] Which date?", "[action] Hm.", "[action] Tell me more."),
                     knobs(patience=2))
    assert stop_reason(impatient[-1].stop) is StopReason.USER_LEFT and len(impatient) == 3
    bored = play(intention, TASK, script(*["[action] Hm."] * 16))
    assert stop_reason(bored[-1].stop) is StopReason.USER_LEFT and len(bored) == 6
    patient = play(intention, TASK, script(*["[action] Hm."] * 16), knobs(**UPSTREAM))
    assert stop_reason(patient[-1].stop) is StopReason.MAX_TURNS


def test_other_decisions_of_the_user():
    again = play(intention, TASK, script("[action] Which date?", "[action] Which date?"), rules='default = "ANSWER"')
    assert again[1].disclosed == 1 and again[1].reward == 0 and value(TASK, 0) in again[1].reply
    offered = play(intention, TASK, script("[action] Which date?"), rules='default = "VOLUNTEER"')
    assert offered[0].disclosed == 1 and offered[0].reward == 0 and offered[0].reply.startswith("By the way")
    refused = play(intention, TASK, script("[action] Which date?"), rules='default = "WITHHOLD"')
    assert refused[0].disclosed == 0 and refused[0].reply in {"I cannot tell you that.", "I cannot say that now."}
    left = play(intention, TASK, script("[action] Which date?"), rules='default = "LEAVE"')
    assert stop_reason(left[0].stop) is StopReason.USER_LEFT and rewards(left) == [0]


def test_the_reward_is_shown_where_the_knob_says_so():
    lines = play(intention, TASK, script("[action] Which hotel?"), knobs(show_reward_in_text=1))
    assert lines[0].reply.endswith(" Reward: 0.70.")


def _every_reply(task, rng):
    """(text, told) of every reply code with random slots and wordings."""
    everything = 2 ** len(task.data["missing_details"])
    for say in Say:
        told = int(rng.integers(1, everything)) if say in (Say.TOLD, Say.TOLD_ALL, Say.VOLUNTEERED) else 0
        step = TimeStep(code=np.int32(say), disclosed=np.int32(told), reward=np.float32(0), discount=np.float32(1),
                        done=False, success=False, stop=np.int32(0), tool=False)
        yield render(task, act(Kind.ACTION, 1), step, None, int(rng.integers(100))), told


def _check_replies(tasks):
    rng = np.random.default_rng(0)
    for task in tasks:
        for text, told in _every_reply(task, rng):
            assert leaks(text, secrets(task, told, 0)) == (), (task.id, text)
            assert all(shown in text for shown in disclosed(task, told, 0))
            assert len(disclosed(task, told, 0)) == bin(told).count("1")


def test_replies_name_disclosed_values_only():
    _check_replies(built_in("intention", 200)[1])


def test_replies_name_disclosed_values_only_upstream(shared_data):
    for split in ("train", "test"):
        _check_replies(intention_tasks.load(shared_data / f"usergym/intention/all_intentions_{split}.json"))


def test_secrets_are_the_hidden_values_that_tell_something():
    hidden = {value(TASK, k) for k in range(5)}
    assert set(secrets(TASK, 0, 0)) == hidden and set(secrets(TASK, 0b11111, 0)) == set()
    assert set(secrets(TASK, 0b00001, 0)) == hidden - {value(TASK, 0)}
    pets = {"description": "Pets", "importance": "1", "inquiry": "?", "options": ["Yes", "No"]}
    plain = Task(id="p", env="intention", data=TASK.data | {
        "task": "Plan a trip to Oslo in May, June or July.",
        "missing_details": [TASK.data["missing_details"][0], pets]})
    assert secrets(plain, 0, 0) == ()


def test_values_are_fixed_for_a_task_and_differ_between_tasks():
    _, tasks = built_in("intention", 200)
    drawn = {d["description"]: set() for t in tasks for d in t.data["missing_details"]}
    for task in tasks:
        for k, detail in enumerate(task.data["missing_details"]):
            assert value(task, k) in detail["options"] and value(task, k) == value(task, k)
            drawn[detail["description"]].add(value(task, k))
    assert all(len(values) == 3 for values in drawn.values())


def test_agents_on_built_in_tasks():
    env, tasks = built_in("intention", 120)
    assert all(3 <= len(task.data["missing_details"]) <= 5 for task in tasks)
    total = lambda task, agent, seed: sum(rewards(play(env, task, agent, seed=seed)))
    score = lambda agent: np.mean([env.score(task, None, total(task, agent, i)) for i, task in enumerate(tasks)])
    assert score(env.expert) > 0.999
    assert 0.33 <= score(env.novice) <= 0.52
    names = lambda task: " and ".join(detail["description"] for detail in task.data["missing_details"])
    assert score(lambda task, state, rng: f"[action] Which {names(task)}?") < 0.35, "asking for all at once does not pay"


def test_one_by_one_reaches_the_ceiling_of_upstream_tasks(shared_data):
    pytest.importorskip("pyarrow")
    tasks = intention_tasks.load(shared_data / "usergym/intention/test.parquet")
    ceilings = [intention_tasks.ceiling(task) for task in tasks]
    assert len(tasks) == 40 and math.isclose(np.mean(ceilings), 2.68, abs_tol=0.005)
    assert math.isclose(min(ceilings), 1.4) and math.isclose(max(ceilings), 4.4)
    for task, ceiling in zip(tasks, ceilings):
        lines = play(intention, task, intention.expert)
        assert math.isclose(sum(rewards(lines)), ceiling, abs_tol=1e-5) and lines[-1].success
        assert math.isclose(intention.score(task, None, sum(rewards(lines))), 1.0, abs_tol=1e-5)


def test_the_novice_can_play_upstream_tasks(shared_data):
    tasks = intention_tasks.load(shared_data / "usergym/intention/all_intentions_test.json")[:30]
    scores = [intention.score(task, None, sum(rewards(play(intention, task, intention.novice, seed=i))))
              for i, task in enumerate(tasks)]
    assert 0.2 < np.mean(scores) < 0.6


@pytest.mark.parametrize("split, rows", [("train", 1012), ("test", 95)])
def test_the_matcher_finds_the_right_detail_upstream(shared_data, split, rows):
    """Upstream's own questions, which the matcher has not seen: the share taken for that detail and no other."""
    tasks = intention_tasks.load(shared_data / f"usergym/intention/all_intentions_{split}.json")
    assert len(tasks) == rows
    hits = [match.asked(task, detail["inquiry"]) == 1 << slot for task in tasks
            for slot, detail in enumerate(task.data["missing_details"])]
    assert np.mean(hits) >= 0.88, np.mean(hits)


def test_the_matcher_tells_one_question_from_several():
    ask = lambda text: parse(TASK, f"[action] {text}", None)
    assert ask("What is your budget?").mask == 0b00010
    assert ask("When? I mean the date!").mask == 0b00001
    assert ask("What HOTELS would you like, a hostel or an inn?").mask == 0b00100
    assert ask("What date and budget do you want?").mask == 0b00011
    assert ask("Which date? Which food?").mask == 0b10001
    assert ask("date date date?").mask == 0b00001 and ask("Please tell me the date.").mask == 0b00001
    assert ask("date date date").mask == ask("date budget hotel food").mask == 0, "a list of words asks for nothing"
    assert ask("Do you go by train, plane or car?").mask == 0b01000
    for nothing in ("What is the meaning of life?", "Oslo trip plan?", "the of and", "???"):
        assert ask(nothing).mask == 0


def test_the_request_sent_back_asks_for_nothing(shared_data):
    """Whole or in parts, with any phrase around it; upstream's own questions, which repeat parts of it, stay questions."""
    tasks = intention_tasks.load(shared_data / "usergym/intention/all_intentions_test.json")
    forms = ("{}", "But {}", "What about {}?", "Please tell me more about this: {}", "{} {}?")
    for task in tasks:
        request = task.data["task"]
        assert not any(parse(task, f"[action] {form.format(request, request)}", None).mask for form in forms), request
        words = request.rstrip(".").split()
        assert parse(task, f"[action] {' '.join(words)}", None).mask == 0


@pytest.mark.parametrize("answer, code, mask", [
    ("1", Do.ASK, 0b00001), ("2 5", Do.ASK, 0b10010), ("3, 1.", Do.ASK, 0b00101), (" None. ", Do.OFF_TOPIC, 0),
    ("vague", Do.VAGUE, 0), ("", None, 0), ("6", None, 0), ("0", None, 0), ("1 1", None, 0), ("1 vague", None, 0),
    ("The message asks for 1", None, 0), ("-1", None, 0), ("\u0661", None, 0), ("1" * 5000, None, 0)])
def test_a_judge_says_what_a_message_asks_for(answer, code, mask):
    question = intention.question(TASK, "[action] Any deadline?", None)
    act = question.read(answer)
    assert (act is None) if code is None else (act.code, act.mask) == (code, mask)
    sent = "\n".join(line["content"] for line in question.messages)
    assert "Any deadline?" in sent and "5. food (vegan, fish, pasta)" in sent


def test_a_judge_is_asked_about_questions_only():
    assert all(intention.question(TASK, text, None) is None for text in ("hi", "[finish]", "[answer] x", "[action]"))


def test_no_message_can_ask_without_its_words():
    """Small talk, however long, asks for nothing: a message must carry a detail's own words."""
    env, tasks = built_in("intention", 50)
    small_talk = "Hello there, please tell me what you would like, I want to help you. Thank you very much! " * 20
    assert all(env.parse(task, f"[action] {small_talk}", None).mask == 0 for task in tasks)


@pytest.mark.parametrize("field, broken, said", [
    ("missing_details", [], "missing_details: expected a list of 1 to 16 details, found 0 of them"),
    ("missing_details", [{"description": "a", "importance": "4", "options": ["x"]}],
     r"missing_details\[0\].importance: expected"),
    ("task", "", "task: expected a non-empty string"),
])
def test_a_broken_task_is_refused_by_the_table(field, broken, said):
    with pytest.raises(ValueError, match="task 'bad', field " + said):
        intention.table((Task(id="bad", env="intention", data=TASK.data | {field: broken}),))
