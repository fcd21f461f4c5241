"""Telepathy: upstream's reward, the user's rules, what is true of an entity, guesses, leaks, and the judge's answers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from play import built_in, play, script, states
from worlds.telepathy import random_acts

from eau_jax.core.part import Kind, Reply, TimeStep
from eau_jax.core.types import StopReason, Task
from eau_jax.envs.gyms import telepathy_match as match
from eau_jax.envs.gyms import telepathy_tasks
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.message import act
from eau_jax.envs.gyms.telepathy import telepathy
from eau_jax.envs.gyms.telepathy_match import ATTRIBUTES, INDEX
from eau_jax.envs.gyms.telepathy_text import Do, Say, question, render, secrets
from eau_jax.users.voice import leaks

TASK = Task(id="e-1", env="telepathy", data={
    "id": "e-1", "title": "small red wood cup", "description": "I think of a small wood vessel.", "goal": "Guess.",
    "target_entity": "small red wood cup - a vessel", "category": "vessel"})
OWL = Task(id="e-2", env="telepathy", data={
    "id": "e-2", "title": "Snowy Owl (bird)", "description": "I am thinking of an animal.", "goal": "Guess.",
    "target_entity": "Snowy Owl - a large white owl of the Arctic, hunts by day", "category": "animal"})
RIGHT, WRONG = "[answer] small red wood cup", "[answer] small blue wood cup"


def knobs(**changes):
    return telepathy.knobs.replace(**{k: np.asarray(v, getattr(telepathy.knobs, k).dtype) for k, v in changes.items()})


def rewards(lines):
    return [line.reward for line in lines]


@pytest.mark.parametrize("messages, expected, stop", [
    ([RIGHT], [1], StopReason.COMPLETED), ([WRONG, RIGHT], [0, 1], StopReason.COMPLETED),
    (["[action] Is it red?", RIGHT], [0, 1], StopReason.COMPLETED), ([WRONG, "[finish]"], [0, 0], StopReason.COMPLETED),
    (["[action] Is it a small red wood cup?", "[finish]"], [0, 0], StopReason.COMPLETED),  # a question is no guess
    ([WRONG] * 3, [0] * 3, StopReason.COMPLETED), (["[action] Is it red?"] * 16, [0] * 16, StopReason.MAX_TURNS),
    (["hi", "[search] x", "[answer]"], [0, 0, 0], StopReason.PARSE_ERROR),
])
def test_episodes_by_hand_at_the_defaults(messages, expected, stop):
    lines = play(telepathy, TASK, script(*messages))
    np.testing.assert_allclose(rewards(lines), expected, atol=1e-6)
    assert stop_reason(lines[-1].stop) is stop and lines[-1].success == (messages[-1] == RIGHT)


@pytest.mark.parametrize("changes, messages, expected", [
    (dict(r_correct=0.5), [RIGHT], [0.5]),
    (dict(r_wrong=-0.2), [WRONG, RIGHT], [-0.2, 1]),
    (dict(max_wrong=1, r_wrong=-0.2), [WRONG], [-0.2]),
    (dict(max_wrong=64), [WRONG] * 5 + [RIGHT], [0] * 5 + [1]),
    (dict(ask_bonus=0.1), ["[action] Is it red?", "[action] Is it red?", "[action] Is it old?"], [0.1, 0, 0]),
    (dict(step_penalty=0.1), ["[action] Is it red?", RIGHT], [-0.1, 0.8]),
    (dict(invalid_penalty=0.2), ["\ud800", RIGHT], [-0.2, 1]),
    (dict(repeat_penalty=0.3), [WRONG, WRONG, RIGHT], [0, -0.3, 1]),
    (dict(finish_penalty=0.5), ["[finish]"], [-0.5]),
])
def test_rewards_by_hand_with_other_knobs(changes, messages, expected):
    lines = play(telepathy, TASK, script(*messages), knobs(**changes))
    np.testing.assert_allclose(rewards(lines)[:len(expected)], expected, atol=1e-6)


def check(step):
    """Raises AssertionError unless `step` pays one correct guess and answers questions by the table."""
    tasks = telepathy_tasks.generate("train", 64, 0)
    table, rng = telepathy.table(tasks), np.random.default_rng(0)
    state = states(telepathy, table, telepathy.knobs, 64)
    batched = jax.jit(jax.vmap(step, (None, None, 0, 0, None, None)))
    for _ in range(6):
        acts = random_acts(tasks, (64,), rng)
        running = ~np.asarray(state.done)
        state, out = batched(table, telepathy.knobs, state, acts, np.int32(Reply.ANSWER), None)
        right = (acts.code == Do.GUESS) & (acts.values[:, 0] == 1) & running
        np.testing.assert_array_equal(out.reward, right)
        np.testing.assert_array_equal(out.success, right)
        for b in np.flatnonzero((acts.code == Do.ASK) & running & (np.asarray(out.stop) == 0)):
            fact = match.entity(tasks[b]).truth[int(acts.values[b, 0])]
            fact = {match.YES: match.NO, match.NO: match.YES}.get(fact, fact) if acts.flags[b] else fact
            assert int(out.code[b]) == {match.YES: Say.YES, match.NO: Say.NO, match.MAYBE: Say.MAYBE}[fact]


MUTANTS = {
    "every guess is right": lambda t, k, s, a, r, key: telepathy.step(
        t, k, s, a.replace(values=jnp.where(a.code == Do.GUESS, 1.0, a.values)), r, key),
    "a wrong guess pays": lambda t, k, s, a, r, key: telepathy.step(t, k.replace(r_wrong=0.5), s, a, r, key),
    "negation is ignored": lambda t, k, s, a, r, key: telepathy.step(t, k, s, a.replace(flags=a.flags * 0), r, key),
    "unknown is no": lambda t, k, s, a, r, key: telepathy.step(t, k.replace(unknown_is_no=np.int32(1)), s, a, r, key),
    "another task's entity": lambda t, k, s, a, r, key: telepathy.step(t.replace(truth=t.truth[::-1]), k, s, a, r, key),
}


def test_random_acts_earn_and_are_answered_as_the_table_says():
    check(telepathy.step)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(name):
    with pytest.raises(AssertionError):
        check(MUTANTS[name])


@pytest.mark.parametrize("text, reply", [
    ("Is it red?", "Yes."), ("Is it blue?", "No."), ("Is it not red?", "No."), ("Isn't it blue?", "Yes."),
    ("A cup?", "Yes."),
    ("Is it made of wood?", "Yes."), ("Is it wooden?", "Yes."), ("Is it big?", "No."), ("Is it a jug?", "No."),
    ("Is it a person?", "No."), ("Is it an object?", "Yes."), ("Is it old?", "Maybe."), ("Is it on the menu?", "Maybe."),
    ("Is it red or blue?", "Yes."), ("Is it a red jug?", "No."), ("Is it a red cup?", "Yes."), 
    ("Is it a blue or green one?", "No."), ("Is he artificial?", "Yes."),
    ("Is it bigger than a car?", "Maybe."), ("Does it start with the letter S?", "Yes."), ("Does it begin with 'T'?", "No."),
])
def test_answers(text, reply):
    assert play(telepathy, TASK, script(f"[action] {text}"))[0].reply == reply


@pytest.mark.parametrize("text, reply", [
    ("Is it alive?", "Yes."), ("Is it a living thing?", "Yes."), ("Is it edible?", "Maybe."),
    ("Can it be found in the Arctic?", "Yes."),
    ("Is it white?", "Yes."), ("Is it black?", "No."), ("Is it a tool?", "No."), ("Is it large?", "Yes."),
    ("Is it man-made?", "No."),
    ("Does it hunt?", "Yes."), ("Is it an owl?", "Yes."), ("Is it a fish?", "No."), ("Is it a mountain?", "No."),
    ("Is it a river or an owl?", "Yes.")])
def test_answers_about_an_upstream_kind_of_entity(text, reply):
    assert play(telepathy, OWL, script(f"[action] {text}"))[0].reply == reply


@pytest.mark.parametrize("guess, right", [
    ("Snowy Owl", True), ("the SNOWY OWL.", True), ("I think it is a snowy owl!", True), ("Snöwy Owl (bird)", True),
    ("owl", False), ("snowy owl or barn owl", False), ("snowy owl, cat, dog", False), ("", False), ("it is the", False)])
def test_guesses(guess, right):
    assert match.is_right(OWL, guess) == right


def test_every_attribute_can_be_asked_for_in_the_words_of_its_hint():
    for index, attribute in enumerate(ATTRIBUTES):
        assert match.attribute(attribute.hint.replace("It is", "Is it").replace(".", "?")) == index, attribute.hint


def test_the_default_rules():
    hints = play(telepathy, TASK, script(*["[action] Is it blue?"] * 6), knobs(hint_after=2))
    assert [line.reply for line in hints[:4]] == ["No.", "It is red.", "No.", "It is a cup."]
    lines = play(telepathy, TASK, script("[action] Red?", "[action] Which?", "[action] Red?"), knobs(patience=2))
    assert stop_reason(lines[-1].stop) is StopReason.USER_LEFT and len(lines) == 3
    assert lines[1].reply in {"Please ask a yes-or-no question.", "I can only say yes or no."}


def test_other_decisions_of_the_user():
    silent = play(telepathy, TASK, script("[action] Is it red?", RIGHT), rules='default = "WITHHOLD"')
    assert silent[0].reply in {"I cannot say.", "I will not tell you that."} and rewards(silent) == [0, 1]
    given = play(telepathy, TASK, script(*["[action] Is it blue?"] * 16), rules='default = "VOLUNTEER"')
    assert given[0].reply == "It is red." and given[1].reply == "It is a cup." and all(line.disclosed == 0 for line in given)
    assert play(telepathy, TASK, script(RIGHT), knobs(show_reward_in_text=1))[0].reply == "Yes, that is it. Reward: 1.00."
    assert play(telepathy, TASK, script("[action] Is it old?"), knobs(unknown_is_no=1))[0].reply == "No."


def _check_replies(tasks):
    """Of every reply code, and every hint that a task allows."""
    for task in tasks:
        hidden = secrets(task, 0, 0)
        for say in set(Say) - {Say.HINT}:
            step = TimeStep(code=np.int32(say), disclosed=np.int32(0), reward=np.float32(0), discount=np.float32(1),
                            done=False, success=False, stop=np.int32(0), tool=False)
            assert leaks(render(task, act(Kind.ACTION, 1), step, None, 0), hidden) == ()
        for index, hintable in enumerate(match.entity(task).hintable):
            assert not hintable or leaks(ATTRIBUTES[index].hint, hidden) == (), (task.data["title"], ATTRIBUTES[index].hint)


def test_replies_do_not_name_the_entity():
    tasks = built_in("telepathy", 200)[1]
    _check_replies(tasks)
    assert secrets(TASK, 0, 0) == ("small red wood cup",) and secrets(TASK, 1, 0) == ()
    assert secrets(OWL, 0, 0) == ("Snowy Owl (bird)", "Snowy Owl")
    assert all(task.data["title"] in secrets(task, 0, 0) for task in tasks)


def test_a_judge_is_asked_where_words_do_not_decide():
    ask = lambda text, task=TASK: question(task, text, None)
    for text in ("hi", "[finish]", RIGHT, "[action] Is it red?", "[action] Is it a red jug?", "[action] What is it?"):
        assert ask(text) is None, text
    old, menu, guess = map(ask, ("[action] Is it old?", "[action] Is it on the menu?", "[answer] a little red cup of wood"))
    assert [old.read(a).values[0] for a in ("Yes.", "no", " MAYBE")] == [match.YES, match.NO, match.MAYBE]
    assert menu.read("yes").code == Do.ASK_OTHER and menu.read("Yes, it is") is None and menu.read("") is None
    assert guess.read("yes").values[0] == 1 and guess.read("No").values[0] == 0 and guess.read("maybe") is None
    assert guess.read("yes").code == Do.GUESS and "small red wood cup" in guess.messages[1]["content"]


def test_agents_on_built_in_tasks():
    env, tasks = built_in("telepathy", 100)
    total = lambda task, agent, seed: sum(rewards(play(env, task, agent, seed=seed)))
    score = lambda agent: np.mean([env.score(task, None, total(task, agent, i)) for i, task in enumerate(tasks)])
    assert score(env.expert) > 0.999
    assert 0.25 < score(env.novice) < 0.55


def test_the_expert_knows_only_what_it_was_told():
    """Its questions before the first yes or no are the same for things that differ in what the description leaves out."""
    other = Task(id="x", env="telepathy", data=TASK.data | {"title": "small white wood jug",
                                                            "target_entity": "small white wood jug - a vessel"})
    first = [play(telepathy, task, telepathy.expert)[0].agent for task in (TASK, other)]
    assert first[0] == first[1] == "[action] Is it red?"


@pytest.mark.parametrize("split, rows", [("train", 360), ("test", 41)])
def test_upstream_entities(shared_data, split, rows):
    pytest.importorskip("pyarrow")
    tasks = telepathy_tasks.load(shared_data / f"usergym/telepathy/{split}.parquet")
    assert len(tasks) == len({task.id for task in tasks}) == rows
    telepathy.table(tasks)
    for k, task in enumerate(tasks):
        lines = play(telepathy, task, telepathy.expert)
        assert lines[-1].success and len(lines) <= 4 and rewards(lines)[-1] == 1
        assert all(line.reply == "Yes." for line in lines[:-1]), [line.agent for line in lines]
        assert match.is_right(task, f"the {task.data['title'].upper()}")
        assert not any(match.is_right(task, name) for name in match.entity(tasks[k - 1]).names)
    _check_replies(tasks)


def test_the_whole_upstream_file_and_its_kinds(shared_data):
    tasks = telepathy_tasks.load(shared_data / "usergym/telepathy/all_entities_refined.json")
    assert len(tasks) == 401
    truths = np.array(telepathy.table(tasks).truth)
    kinds = truths[:, [INDEX[attribute.name] for attribute in ATTRIBUTES if attribute.group == "kind"]]
    assert ((kinds == match.YES).sum(1) == 1).mean() > 0.99, "nearly every category names a kind"
    assert (truths != match.MAYBE).mean() > 0.5


@pytest.mark.parametrize("field, said", [("title", "title: expected"), ("target_entity", "target_entity: expected")])
def test_a_broken_task_is_refused(field, said):
    with pytest.raises(ValueError, match="task 'bad', field " + said):
        telepathy.table((Task(id="bad", env="telepathy", data=TASK.data | {field: " "}),))


def test_a_parquet_row_that_names_no_entity(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    (tmp_path / telepathy_tasks.BESIDE).write_text(json.dumps([dict(TASK.data)]))
    rows = [{"reward_model": {"title": TASK.data["title"]}}, {"reward_model": {"title": "a horse"}}]
    parquet.write_table(pyarrow.Table.from_pylist(rows[:1]), tmp_path / "t.parquet")
    assert telepathy_tasks.load(tmp_path / "t.parquet") == (TASK,)
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="row 1, field reward_model.title: expected the title .* found 'a horse'"):
        telepathy_tasks.load(tmp_path / "t.parquet")
