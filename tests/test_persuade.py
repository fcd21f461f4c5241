"""Persuade: levels and rewards by hand, swinging stances, what counts as an attack, and the judge."""

import jax
import numpy as np
import play as player
import pytest
from play import built_in, play, script
from worlds import persuade as world

from eau_jax.core.part import Kind
from eau_jax.core.types import StopReason, Task
from eau_jax.envs.gyms import persuade_tasks
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.file import TaskFileError
from eau_jax.envs.gyms.persuade import persuade
from eau_jax.envs.gyms.persuade_tasks import POINTS, points, weights
from eau_jax.envs.gyms.persuade_text import Do, Flag, attacked, disclosed, parse, question, secrets
from eau_jax.users.rules import compile_rules

TASK = Task(id="p-1", env="persuade", data={
    "id": "p-1", "claim": "Towns need more cats.",
    "argument": "Cats are clean. Cats are quiet. Cats catch mice. Cats cost little. Cats bring joy.",
    "counters": [["dirt", "hair"], ["noise"], ["poison"], ["bills"], ["grief"]]})
PLAIN = Task(id="p-1", env="persuade", data={name: TASK.data[name] for name in ("id", "claim", "argument")})
BY_WEIGHT = sorted(range(5), key=lambda k: -weights(TASK)[k])       # worth 2, 2, 1, 1, 0
TWO, TOO, ONE, WON, NIL = (f"[answer] But think of the {TASK.data['counters'][k][0]}." for k in BY_WEIGHT)
BUT = tuple("[answer] But no. " + points(TASK.data)[k] for k in BY_WEIGHT)   # names a point and opposes, without a reason
ALL_BUT_NIL = " ".join([TWO, *(m.removeprefix("[answer] ") for m in (TOO, ONE, WON))])
STUDY = " Research says so."
SIXTH = 1 / 6


def knobs(**changes):
    return persuade.knobs.replace(**{k: np.asarray(v, getattr(persuade.knobs, k).dtype) for k, v in changes.items()})


def rewards(lines):
    return [line.reward for line in lines]


def in_levels(lines):
    return [round(6 * line.reward, 4) for line in lines]


@pytest.mark.parametrize("changes, messages, levels, stop", [
    ({}, [TWO, TOO, ONE, WON], [2, 2, 1, 1], StopReason.COMPLETED),
    ({}, [ALL_BUT_NIL, TWO, TOO, NIL], [2, 0, 0, 0], StopReason.COMPLETED),        # two levels at most, points are spent
    ({}, [NIL, TWO, TWO, TOO], [0, 2, 0, 1], StopReason.COMPLETED),                # 2 - 0.25 for the repetition
    (dict(repeat_w=0), [TWO, TWO, TOO], [2, 0, 2], StopReason.COMPLETED),
    ({}, [ONE + STUDY, WON + STUDY, NIL + STUDY, TWO + STUDY], [1, 1, 0, 2], StopReason.COMPLETED),
    (dict(evidence_w=.5), [ONE + STUDY, WON + STUDY], [1, 2], StopReason.COMPLETED),
    (dict(evidence_w=0, concession_w=1), [ONE + " Granted.", NIL + " Granted." + STUDY], [2, 1], StopReason.COMPLETED),
    (dict(openness=.5), [TWO, ONE, WON], [1, 0, 1], StopReason.COMPLETED),         # halves are kept
    (dict(openness=0), [TWO, TOO], [0, 0], StopReason.COMPLETED),
    (dict(max_jump=1), [TWO, TOO], [1, 1], StopReason.COMPLETED),
    (dict(max_jump=6), [ALL_BUT_NIL], [6], StopReason.COMPLETED),
    (dict(fatigue_rate=.5), [TWO, TOO, ONE], [2, 1, 0], StopReason.COMPLETED),
    (dict(start_stance=4), [TWO], [2], StopReason.COMPLETED),
    (dict(goal_stance=2), [TWO], [2], StopReason.COMPLETED),
    (dict(step_penalty=SIXTH), [TWO, ONE, NIL], [1, 0, 0], StopReason.COMPLETED),
    (dict(finish_penalty=SIXTH), [TWO, "[finish]"], [2, -4], StopReason.COMPLETED),
    (dict(rude_penalty=SIXTH, invalid_penalty=SIXTH, repeat_penalty=SIXTH), [TWO, TWO, "[answer] You fool", "hi"],
     [2, -1, -1, -1], StopReason.COMPLETED),
    ({}, [*BUT], [0, 0, 0, 0, 0], StopReason.COMPLETED),
    (dict(reasons=0), [*BUT[:4]], [2, 2, 1, 1], StopReason.COMPLETED),
    (dict(max_turns=2), [TWO, "[answer] No."], [2, 0], StopReason.MAX_TURNS),
    ({}, ["hi", "[search] cats", "[answer]"], [0, 0, 0], StopReason.PARSE_ERROR),
    (dict(patience=2), [TWO, "[answer] No.", "[answer] No."], [2, 0, 0], StopReason.USER_LEFT),
])
def test_episodes_by_hand(changes, messages, levels, stop):
    lines = play(persuade, TASK, script(*messages), knobs(**changes))
    np.testing.assert_allclose(in_levels(lines)[:len(levels)], levels, atol=1e-3)
    assert stop_reason(lines[-1].stop) is stop
    assert lines[-1].success == (int(changes.get("start_stance", 0)) + max(0, sum(levels)) >= changes.get("goal_stance", 6)
                                 and len(lines) == len(levels))


def test_a_swinging_stance_pays_under_upstreams_mode_only():
    """Rude, then a new point: back one level, forward one, again and again."""
    insult = "[answer] You fool!"
    swing = [TWO, insult, ONE, insult, WON, insult, TOO]
    settings = dict(rude_w=0)
    upstream = play(persuade, TASK, script(*swing), knobs(**settings, reward_mode=1))
    sound = play(persuade, TASK, script(*swing), knobs(**settings))
    assert in_levels(upstream)[:7] == [2, 0, 1, 0, 1, 0, 2] and in_levels(sound)[:7] == [2, 0, 0, 0, 0, 0, 1]
    assert "I agree." in upstream[1].reply and upstream[1].reply.startswith("That is rude.")
    assert in_levels(play(persuade, TASK, script(*swing), knobs(backslide=0, rude_w=0)))[:7] == [2, 0, 1, 0, 1, 0, 2]
    sour = play(persuade, TASK, script(TWO, insult, TOO), knobs(backslide=0))
    assert in_levels(sour)[:3] == [2, 0, 1] and sour[1].reply == "That is rude."      # rudeness costs a level of push


@pytest.mark.parametrize("mode", [0, 1])
def test_no_return_above_the_best_stance_at_the_default(mode):
    tasks = built_in("persuade", 40)[1]
    acts = world.random_acts(tasks, (16, 400), np.random.default_rng(3))
    table, rules = persuade.table(tasks), compile_rules(persuade.rules, persuade.features)
    settings = knobs(reward_mode=mode, rude_w=0)
    total, (states, _) = returns(table, settings, rules, player.states(persuade, table, settings, 400), acts)
    gained = (states.best - states.start)[-1] / 6
    if mode == 0:
        np.testing.assert_allclose(total, gained, atol=1e-5)
        assert total.max() <= 1 + 1e-5
    else:
        assert (total > gained + 0.1).any(), "the mutant (levels counted from the stance before) is not told apart"


@jax.jit
def _returns(table, settings, rules, states, acts):
    def turn(state, act):
        one = jax.vmap(player.turn(persuade), (None, None, None, 0, 0, None))
        state, step, _, _ = one(table, settings, rules, state, act, None)
        return state, (state, step)
    states, steps = jax.lax.scan(turn, states, acts)[1]
    return steps.reward.sum(0), (states, steps)


def returns(*arguments):
    return jax.device_get(_returns(*arguments))


def test_replies():
    said = lambda *messages, **kw: play(persuade, TASK, script(*messages), **kw)[len(messages) - 1].reply
    assert said(TWO) in {"Fair point. I partly agree.", "You have a point. I partly agree."}
    assert said(NIL) in {"That hardly moves me. I strongly agree.", "That matters little to me. I strongly agree."}
    assert said(TWO, TWO) in {"You said that before.", "I heard that already."}
    assert {said("[answer] No."), said(BUT[0])} <= {"Why is one of my points wrong?", "Why? Give me a reason."}
    assert said("[finish]") == "Goodbye." and said("[search] x").startswith("That is not possible here.")
    assert said(TWO, TOO, ONE, WON) == "You convinced me. I strongly disagree."
    assert said(TWO, rules='default = "WITHHOLD"') in {"I do not see it that way.", "I am not moved."}
    assert said(TWO, knobs=knobs(show_reward_in_text=1)).endswith(" Reward: 0.33.")


def test_whoever_asks_is_told_what_counts_most():
    lines = play(persuade, TASK, script("[action] What counts most?", TWO, "[answer] What else?", NIL))
    assert lines[0].disclosed == 1 << min(BY_WEIGHT[:2]) and points(TASK.data)[min(BY_WEIGHT[:2])] in lines[0].reply
    assert lines[2].disclosed == 1 << BY_WEIGHT[1] and rewards(lines)[0] == rewards(lines)[2] == 0
    assert disclosed(TASK, 0b101, 0) == ("Cats are clean.", "Cats catch mice.") and secrets(TASK, 0, 0) == ()


def test_points_are_kept_where_the_persuadee_does_not_weigh_them():
    lines = play(persuade, TASK, script(TWO, TWO), rules='default = "ANSWER"\n[[rule]]\nwhen = { turn = 1 }\n'
                                                         'reply = "WITHHOLD"')
    assert in_levels(lines)[:2] == [0, 2]


@pytest.mark.parametrize("text, named, reasoned", [
    ("But cats are not clean.", 0b00001, 0), ("I doubt that they catch any mice.", 0b00100, 0),
    ("No! They cost a lot.", 0b01000, 0), ("Cats are never quiet or clean.", 0b00011, 0),
    ("Cats are clean.", 0, 0), ("Cats are clean. Cats are quiet. Cats catch mice.", 0, 0), ("I disagree.", 0, 0),
    ("But cats, cats, cats.", 0, 0), ("But dogs are nicer.", 0, 0), ("", 0, 0),
    ("Think of the DIRT!", 0b00001, 0b00001), ("But hair and dirt, and cats are not quiet.", 0b00011, 0b00001),
    ("They poison the bills.", 0b01100, 0b01100)])
def test_an_attack_names_a_point_and_opposes_with_one_of_its_counters(text, named, reasoned):
    assert attacked(TASK, text) == named | reasoned << POINTS


REASON = "They scratch furniture, spread allergies and shed everywhere."


@pytest.mark.parametrize("text, named, reasoned", [
    (f"But cats are not clean. {REASON}", 0b00001, 0b00001),
    ("But cats are not clean.", 0b00001, 0), ("But cats are not clean. Studies, research and evidence show it.", 0b00001, 0),
    (f"But cats are clean, quiet, catch mice, cost little, bring joy. {' '.join(REASON.split()[:4])}", 0b11111, 0),
    (f"Cats are clean. {REASON}", 0, 0)])
def test_without_counters_a_reason_says_more_of_its_own_than_it_repeats(text, named, reasoned):
    assert attacked(PLAIN, text) == named | reasoned << POINTS


def test_a_reason_counts_once():
    """Whatever sentence of the case it is put behind."""
    lines = play(persuade, PLAIN, script(*(f"{but} {REASON}" for but in BUT)))
    assert in_levels(lines)[:5] == [2, 0, 0, 0, 0] and lines[1].reply in {"You said that before.", "I heard that already."}
    others = [REASON, "Owners sneeze, vets charge fortunes, neighbours complain.", "Birds vanish wherever felines roam."]
    assert in_levels(play(persuade, PLAIN, script(*(f"{but} {why}" for but, why in zip(BUT, others)))))[:3] == [2, 2, 1]
    assert sum(in_levels(play(persuade, PLAIN, script(*(f"{but} {REASON}" for but in BUT)), knobs(reasons=0)))) == 6


def test_messages_are_told_apart():
    read = lambda text: parse(TASK, text, None)
    assert read("[answer] But cats are not clean, a study shows.").flags == Flag.EVIDENCE
    assert read("[action] You are right that they are quiet, but not clean.").flags == Flag.CONCESSION
    assert [int(read(text).code) for text in ("[answer] No.", "[answer] Why?", "[answer] Clean? Nonsense!", "[search] cats",
                                              "[answer] Cats are clean.", "[answer] ", "cats are not clean")] == [
        Do.ASSERT, Do.ASK_BACK, Do.RUDE, Do.NOT_OFFERED, Do.ASSERT, Do.MALFORMED, Do.MALFORMED]


def scores(agent, tasks):
    return [sum(rewards(play(persuade, task, agent, seed=i))) for i, task in enumerate(tasks)]


NULL = {"silence": lambda task: "", "no": lambda task: "[answer] No.", "please": lambda task: "[answer] Please!",
        "echo": lambda task: f"[answer] {task.data['argument']}", "insult": lambda task: "[answer] You fool!",
        "ask": lambda task: "[answer] Why?", "search": lambda task: "[search] all",
        "everything": lambda task: f"[answer] No, I doubt it, untrue. {task.data['argument']}",
        "every counter": lambda task: f"[answer] But no: {' '.join(persuade_tasks.VIRTUES.values())}."}


@pytest.mark.parametrize("name", NULL)
def test_null_agents_stay_below_the_floor(name):
    tasks = built_in("persuade", 20)[1]
    got = scores(lambda task, state, rng: NULL[name](task), tasks)
    assert max(got) <= (1 / 3 + 1e-6 if name == "every counter" else 0)


def test_agents_on_built_in_tasks():
    tasks = built_in("persuade", 60)[1]
    assert np.mean(scores(persuade.expert, tasks)) > 0.999 and 0.25 <= np.mean(scores(persuade.novice, tasks)) <= 0.6


def test_the_score_is_the_best_stance():
    state = persuade.reset(persuade.table((TASK,)), knobs(start_stance=2), 0, None)
    assert persuade.score(TASK, state.replace(best=np.int32(4), stance=np.int32(3)), 9.0) == 0.5
    assert persuade.metric(TASK, state, 0.75) == 0.75


def test_weights_are_fixed_for_a_task_and_can_convince():
    tasks = built_in("persuade", 300)[1]
    assert all(weights(task) == weights(task) and sum(weights(task)) >= 6 for task in tasks)
    assert len({weights(task) for task in tasks if len(points(task.data)) == 5}) > 10
    assert all(sum(drawn) >= 6 and len(drawn) == count for count, drawn in persuade_tasks.WEIGHTS.items())


def test_the_judge_is_asked_and_read_strictly():
    asked = question(TASK, "[answer] They scratch. I admit it is true that they hunt; studies agree.", None)
    sent = asked.messages[0]["content"]
    assert all(point in sent for point in points(TASK.data)) and "They scratch." in sent
    judged = asked.read(" 1, 3.")
    assert (int(judged.code), int(judged.mask), int(judged.kind)) == (Do.ARGUE, 0b101 | 0b101 << POINTS, Kind.ANSWER)
    assert int(judged.flags) == Flag.EVIDENCE | Flag.CONCESSION
    assert asked.read("none").code == Do.ASSERT
    for unreadable in ("", "0", "6", "1 and 2", "point 1", "1,", "-1", "1, 2, 9"):
        assert asked.read(unreadable) is None
    for silent in ("[finish]", "[search] x", "hello", "[answer]", "[answer] You fool!"):
        assert question(TASK, silent, None) is None


def test_long_cases_are_joined_to_eight_points():
    record = TASK.data | {"argument": " ".join(f"Thing{k} works well." for k in range(19))}
    assert len(points(record)) == 8 and " ".join(points(record)) == record["argument"]


@pytest.mark.parametrize("change, said", [
    (dict(claim=""), "claim: expected a non-empty string"), (dict(argument=None), "argument: expected a non-empty string"),
    (dict(argument="Cats are clean. Yes."), "argument: expected at least 3 sentences, found 2"),
    (dict(counters=[["dirt"]]), "counters: expected a list of words for each of 5 points"),
    (dict(counters=[[1]] * 5), "counters: expected a list of words for each of 5 points")])
def test_a_broken_task_is_refused_by_the_table(change, said):
    with pytest.raises(ValueError, match="task 'bad', field " + said):
        persuade.table((Task(id="bad", env="persuade", data=TASK.data | change),))


def test_files(tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    import pyarrow as arrow
    pyarrow.write_table(arrow.Table.from_pylist([{"reward_model": dict(PLAIN.data)}]), tmp_path / "a.parquet")
    assert persuade_tasks.load(tmp_path / "a.parquet")[0].data == PLAIN.data
    pyarrow.write_table(arrow.Table.from_pylist([{"reward_model": TASK.data | {"claim": None}}]), tmp_path / "b.parquet")
    with pytest.raises(TaskFileError, match="b.parquet, row 0, field reward_model.claim: expected a non-empty string"):
        persuade_tasks.load(tmp_path / "b.parquet")


@pytest.mark.parametrize("split, rows", [("train", 378), ("test", 42)])
def test_every_upstream_row_plays(shared_data, split, rows):
    """Every row loads and resets; the expert's words attack the points they are meant to, and convince."""
    pytest.importorskip("pyarrow")
    tasks = persuade_tasks.load(shared_data / f"usergym/persuade/{split}.parquet")
    assert len(tasks) == rows == len({task.id for task in tasks}) and persuade.table(tasks).weights.shape == (rows, 8)
    some = tasks[:: max(1, rows // 20)]
    assert all(len(play(persuade, task, persuade.expert)) <= 16 for task in some)
    assert min(scores(persuade.expert, some)) > 0.999
    assert max(scores(lambda task, state, rng: NULL["echo"](task), some)) == 0
    assert max(scores(lambda task, state, rng: NULL["everything"](task), some[:5])) == 0
