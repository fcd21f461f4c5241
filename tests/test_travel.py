"""Travel: upstream's order of checks, rewards and endings, what may be said, and the matching of words."""

import ast
import json

import jax
import numpy as np
import pytest
import play as player
from play import built_in, play, script
from worlds import travel as world

from eau_jax.core.part import Kind
from eau_jax.core.types import StopReason, Task
from eau_jax.envs.gyms import travel_match as match
from eau_jax.envs.gyms import travel_tasks
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.message import act
from eau_jax.envs.gyms.travel import travel
from eau_jax.envs.gyms.travel_tasks import ASPECTS, LETTERS, preferences, shown_options
from eau_jax.envs.gyms.travel_text import Do, Say, disclosed, parse, question, secrets
from eau_jax.users.rules import compile_rules
from eau_jax.users.voice import leaks


def aspect(name, wishes, best, correct, wrong, noise, **arguments):
    options = lambda ids: [{"id": x, "cost": 10 * k + 10, "amenities": ["x"], "type": "t"} for k, x in enumerate(ids)]
    return {"preferences": [[name, wish, f"It must have {wish}.", said] for wish, said in wishes.items()],
            "arguments": arguments,
            "options": {"correct": options([best, *correct]), "wrong": options(wrong), "noise": options(noise)},
            "correct_ids": [best, *correct], "best_id": best}


TASK = Task(id="t-1", env="travel", data={
    "id": "t-1", "scenario": "s", "dimensions": ["hotel", "flight"], "wanted_num": [2, 1],
    "initial_description": "I go to Oslo from May 3 to May 8. I need a hotel and a flight. I fly from Lima.",
    "hotel": aspect("hotel", {"pool": "I love to swim.", "gym": "I lift weights."}, "H7", ["H2", "H3"], ["H4"], ["H5"],
                    location="Oslo", start="2026-05-03", end="2026-05-08"),
    "flight": aspect("flight", {"meal": "I get hungry."}, "F1", ["F2"], ["F3"], ["F4"], origin="Lima",
                     destination="Oslo", date="2026-05-03")})
HOTEL, FLIGHT = "[search] hotel in Oslo, May 3 to May 8", "[search] flight from Lima to Oslo on May 3"
POOL, GYM, MEAL = "[action] Is a pool important?", "[action] What about a gym?", "[action] Any meal on the flight?"
FREE = dict(look_first=0)   # an option counts whatever the agent has seen or asked
UPSTREAM = dict(volunteer_after=4, end_when_all_chosen=0, ask_cap=12, **FREE)


def knobs(**changes):
    return travel.knobs.replace(**{k: np.asarray(v, getattr(travel.knobs, k).dtype) for k, v in changes.items()})


def same(left, right):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, left, right)))


def rewards(lines):
    return [line.reward for line in lines]


def final_state(task, lines, settings=travel.knobs):
    """The state after an episode's acts."""
    table, rules = travel.table((task,)), compile_rules(travel.rules, travel.features)
    state = travel.reset(table, settings, 0, None)
    for line in lines:
        state = player._COMPILED["travel"](table, settings, rules, state, line.act, jax.random.key(0))[0]
    return jax.device_get(state)


@pytest.mark.parametrize("changes, messages, expected, stop", [
    ({}, [HOTEL, POOL, GYM, "[answer] H7", FLIGHT, MEAL, "[answer] F1"], [.2, .2, .2, 1, .2, .2, 1], StopReason.COMPLETED),
    ({}, ["[answer] H7", HOTEL, "[answer] H7", POOL, "[answer] H7"], [0, .2, 0, .2, 1], StopReason.COMPLETED),  # too early
    ({}, [POOL, "[answer] H7", HOTEL, "[answer] H7", GYM], [.2, 0, .2, 1, 0], StopReason.COMPLETED),
    ({}, [HOTEL, MEAL, "[answer] H7", "[answer] F1"], [.2, .2, 0, 0], StopReason.COMPLETED),  # a wish for the aspect itself
    (FREE, ["[answer] H2", "[answer] F2"], [.8, .8], StopReason.COMPLETED),
    (FREE, ["[answer] H4", "[answer] H7", "[answer] F1"], [0, 0, 1], StopReason.COMPLETED),   # one choice for each aspect
    (FREE, ["[answer] H9", "[answer] C1", "[answer] F4"], [0, 0, 0], StopReason.COMPLETED),  # not shown, not wanted, noise
    ({}, [HOTEL, HOTEL, "[search] hotel in Oslo"], [.2, 0, 0], StopReason.COMPLETED),
    ({}, [POOL, POOL, MEAL], [.2, 0, .2], StopReason.COMPLETED),
    (FREE, ["[answer] H7", POOL, GYM], [1, 0, 0], StopReason.COMPLETED),                    # its preferences are dropped
    ({}, ["[answer] H7, F1", "[answer] the best"], [0, 0], StopReason.COMPLETED),           # exactly one id
    (dict(one_choice=0, **FREE), ["[answer] H4", "[answer] H7", "[answer] H7", POOL], [0, 1, 0, .2], StopReason.COMPLETED),
    (dict(end_when_all_chosen=0, **FREE), ["[answer] H4", "[answer] F1", POOL], [0, 1, 0], StopReason.COMPLETED),
    (dict(end_when_all_chosen=0, **FREE), ["[answer] H7", "[answer] F1"], [1, 1], StopReason.COMPLETED),
    (dict(end_when_all_chosen=0, one_choice=0, **FREE), ["[answer] H4", "[answer] F1", "[answer] H7"], [0, 1, 1],
     StopReason.COMPLETED),
    (dict(wrong_penalty=.5, step_penalty=.1, **FREE), ["[answer] H4", "[answer] F1"], [-.6, .9], StopReason.COMPLETED),
    (dict(repeat_penalty=.1, invalid_penalty=.3), [POOL, POOL, HOTEL, HOTEL, "[answer] H7", "[answer] H7", "[answer] ?"],
     [.2, -.1, .2, -.1, 1, -.1, -.3], StopReason.COMPLETED),
    (dict(finish_penalty=.1, **FREE), ["[answer] H7", "[finish]"], [1, -.1], StopReason.COMPLETED),
    (dict(max_turns=2), [HOTEL, POOL], [.2, .2], StopReason.MAX_TURNS),
    ({}, ["hi", "hi", "hi"], [0, 0, 0], StopReason.PARSE_ERROR),
    (dict(patience=2), ["[action] Hm.", HOTEL, "[search] x"], [0, .2, 0], StopReason.USER_LEFT),
])
def test_episodes_by_hand(changes, messages, expected, stop):
    lines = play(travel, TASK, script(*messages), knobs(**changes))
    np.testing.assert_allclose(rewards(lines)[:len(expected)], expected, atol=1e-6)
    assert stop_reason(lines[-1].stop) is stop and all(r == 0 for r in rewards(lines)[len(expected):])


@pytest.mark.parametrize("search, preference", [(.2, .2), (.0, .8), (.2, .6)])
def test_the_three_published_settings(search, preference):
    lines = play(travel, TASK, script(HOTEL, POOL, "[answer] H2"), knobs(r_search=search, r_pref=preference))
    np.testing.assert_allclose(rewards(lines)[:3], [search, preference, .8], rtol=1e-6)


def test_every_fifth_search_fails_whatever_it_says():
    lines = play(travel, TASK, script(*["[search] x"] * 4, HOTEL, HOTEL, FLIGHT))
    assert lines[4].reply == "The search is down. Please try again." and "H7" in lines[5].reply
    never = play(travel, TASK, script(*["[search] x"] * 4, HOTEL), knobs(search_fail_every=0))
    assert "H7" in never[4].reply


@pytest.mark.parametrize("after", [3, 4])
def test_a_user_left_without_questions_volunteers(after):
    lines = play(travel, TASK, script(*["[action] Hm."] * 12), knobs(volunteer_after=after))
    told = [k for k, line in enumerate(lines) if line.disclosed]
    assert told == [after - 1, 2 * after - 1, 3 * after - 1][:len(told)] and len(told) == 3 and sum(rewards(lines)) == 0
    assert all(lines[k].reply.startswith("By the way: ") for k in told)
    mixed = play(travel, TASK, script("[action] Hm.", "[action] Hm.", POOL, "[action] Hm.", HOTEL, "[action] Hm."), knobs())
    assert [bool(line.disclosed) for line in mixed] == [False, False, True, False, True, False, False]


def test_the_default_rules_and_other_decisions():
    many = play(travel, TASK, script("[action] Pool or gym? Or a meal on the flight?", "[action] Pool or gym?"))
    assert [line.disclosed for line in many[:2]] == [0, 1] and "at once" in many[0].reply
    assert play(travel, TASK, script(POOL))[0].reply == "I love to swim."
    assert play(travel, TASK, script(POOL), knobs(plain=1))[0].reply == "It must have pool."
    assert play(travel, TASK, script("[action] Do you like bananas?"))[0].reply in {"I do not mind that.",
                                                                                    "I have no other wish there."}
    assert play(travel, TASK, script("[action] Tell me more."))[0].reply in {"Please be specific.",
                                                                             "What exactly do you want to know?"}
    refused = play(travel, TASK, script(POOL), rules='default = "WITHHOLD"')[0]
    assert refused.disclosed == 0 and refused.reply in {"I cannot tell you that.", "I cannot say that now."}
    assert play(travel, TASK, script(HOTEL), rules='default = "WITHHOLD"')[0].disclosed == 1 << 13
    assert play(travel, TASK, script(HOTEL), knobs(show_reward_in_text=1))[0].reply.endswith(" Reward: 0.20.")


@pytest.mark.parametrize("messages, expected", [
    (["[answer] H7", "[answer] F1"], 1.0), (["[answer] H2", "[answer] F1"], 0.9), (["[answer] H2"], 0.4),
    (["[answer] H4", "[answer] H7", "[answer] F3"], 0.0), ([HOTEL, POOL, GYM, MEAL], 0.0)])
def test_the_metric_counts_choices_alone(messages, expected):
    lines = play(travel, TASK, script(*messages), knobs(**FREE))
    state = final_state(TASK, lines, knobs(**FREE))
    assert travel.metric(TASK, state, 99.0) == travel.score(TASK, state, 99.0) == pytest.approx(expected)
    assert lines[-1].success == (expected == 1.0)


class Upstream:
    """The benchmark's own order of checks in plain Python, written down from its description."""

    def __init__(self, task, one_choice=True, fail_every=5, volunteer_after=4, drops=True):
        self.task, self.one_choice, self.fail_every, self.volunteer_after, self.drops = (
            task, one_choice, fail_every, volunteer_after, drops)
        self.held = [ASPECTS.index(row[0]) for row in preferences(task.data)]
        self.left, self.best = set(range(len(self.held))), {x: task.data[x]["best_id"] for x in task.data["dimensions"]}
        self.correct = {x: set(task.data[x]["correct_ids"]) for x in task.data["dimensions"]}
        self.unsearched, self.searches, self.off, self.initials = set(task.data["dimensions"]), 0, 0, set()

    def step(self, act, told):
        """(say, reward); `told` is the preference that the array world volunteered, if any."""
        code, name = int(act.code), ASPECTS[int(act.values[0])]
        if code in (Do.SEARCH, Do.SEARCH_BAD):
            self.searches += 1
            if self.searches % self.fail_every == 0:
                return Say.SEARCH_DOWN, 0.0
            if code == Do.SEARCH_BAD:
                return Say.SEARCH_WRONG, 0.0
            if name not in self.unsearched:
                return Say.ALREADY_SEARCHED, 0.0
            self.unsearched.remove(name)
            return Say.OPTIONS, 0.2
        if code in (Do.ASK, Do.ASK_NONE, Do.VAGUE, Do.CHAT):
            asked = {k for k in range(len(self.held)) if int(act.mask) >> k & 1} if code == Do.ASK else set()
            if asked & self.left:
                self.left.remove(min(asked & self.left))
                self.off = 0
                return Say.REVEALED, 0.2
            if self.off + 1 >= self.volunteer_after and self.left:
                assert told in self.left, "a preference that is not left was volunteered"
                self.left.remove(told)
                self.off = 0
                return Say.VOLUNTEERED, 0.0
            self.off += 1
            return {Do.VAGUE: Say.TOO_VAGUE, Do.CHAT: Say.NEUTRAL}.get(code, Say.NO_SUCH), 0.0
        if code == Do.PICK:
            if self.one_choice and name in self.initials:
                return Say.ALREADY_PICKED, 0.0
            shown, place = shown_options(self.task, name), int(act.values[1])
            chosen = shown[place]["id"] if 0 <= place < len(shown) else "none"
            self.initials.add(name)
            if self.one_choice and self.drops:
                self.left -= {k for k, column in enumerate(self.held) if ASPECTS[column] == name}
            if chosen == self.best.get(name):
                del self.best[name]
                self.correct[name].remove(chosen)
                return Say.BEST, 1.0
            if chosen in self.correct[name]:
                self.correct[name].remove(chosen)
                return Say.CORRECT, 0.8
            return Say.WRONG, 0.0
        return {Do.MALFORMED: Say.MALFORMED, Do.PICK_MANY: Say.ONE_ONLY, Do.PICK_BAD_ID: Say.BAD_ID,
                Do.FINISH: Say.ENDED}[code], 0.0

    def ended(self, act):
        return int(act.code) == Do.FINISH or not self.best


TURNS, BATCH = 16, 400
RUNS = jax.jit(lambda table, knobs, rules, states, acts: jax.lax.scan(
    lambda state, act: (lambda out: (out[0], (out[0], out[1])))(jax.vmap(
        player.turn(travel), (None, None, None, 0, 0, None))(table, knobs, rules, state, act, None)), states, acts)[1])


@pytest.fixture(scope="module")
def runs():
    """(tasks, acts, {one_choice: (states, time steps)}) of random acts under upstream's settings, axes [TURNS, BATCH]."""
    tasks = built_in("travel", 40)[1]
    acts = world.random_acts(tasks, (TURNS, BATCH), np.random.default_rng(3))
    table, rules = travel.table(tasks), compile_rules(travel.rules, travel.features)
    played = {}
    for one in (0, 1):
        settings = knobs(**UPSTREAM, one_choice=one, max_invalid=64)
        states = player.states(travel, table, settings, BATCH)
        played[one] = jax.device_get(RUNS(table, settings, rules, states, acts))
    return tasks, acts, played


def agrees(runs, one_choice=1, **variant):
    """Raises AssertionError unless the array world says, pays and ends as `Upstream` does."""
    tasks, acts, played = runs
    _, steps = played[one_choice]
    for b in range(BATCH):
        reference = Upstream(tasks[b % len(tasks)], one_choice=bool(one_choice), **variant)
        for t in range(TURNS):
            act = jax.tree.map(lambda x: x[t, b], acts)
            told = int(steps.disclosed[t, b]).bit_length() - 1
            say, reward = reference.step(act, told)
            assert int(steps.code[t, b]) == say and float(steps.reward[t, b]) == pytest.approx(reward)
            assert bool(steps.done[t, b]) == (reference.ended(act) or t == TURNS - 1)
            if steps.done[t, b]:
                break


@pytest.mark.parametrize("one_choice", [0, 1])
def test_random_acts_are_answered_in_upstreams_order(runs, one_choice):
    agrees(runs, one_choice)


@pytest.mark.parametrize("variant", [dict(fail_every=4), dict(volunteer_after=3), dict(drops=False)])
def test_the_comparison_rejects_mutants(runs, variant):
    with pytest.raises(AssertionError):
        agrees(runs, **variant)


def check_leaks(tasks, acts, played):
    states, steps = played
    for b in range(steps.code.shape[1]):
        task, told = tasks[b % len(tasks)], 0
        for t in range(TURNS):
            told |= int(steps.disclosed[t, b])
            row = lambda tree: jax.tree.map(lambda x: x[t, b], tree)
            text = travel.render(task, row(acts), row(steps), row(states), t + b)
            assert leaks(text, secrets(task, told, 0)) == (), (task.id, text)
            assert all(shown in text for shown in disclosed(task, int(steps.disclosed[t, b]), 0))
            if steps.done[t, b]:
                break


def test_replies_tell_nothing_that_was_not_asked_for(runs):
    tasks, acts, played = runs
    check_leaks(tasks, acts, played[1])


@pytest.mark.slow
def test_ten_thousand_episodes_leak_nothing():
    tasks = built_in("travel", 500)[1]
    acts = world.random_acts(tasks, (TURNS, 10_000), np.random.default_rng(4))
    table, rules = travel.table(tasks), compile_rules(travel.rules, travel.features)
    states = player.states(travel, table, travel.knobs, 10_000)
    check_leaks(tasks, acts, jax.device_get(RUNS(table, travel.knobs, rules, states, acts)))


def test_secrets_are_untold_statements_and_best_ids_not_yet_shown():
    assert set(secrets(TASK, 0, 0)) == {"It must have pool.", "It must have gym.", "It must have meal.", "I love to swim.",
                                        "I lift weights.", "I get hungry.", "H7", "F1"}
    assert set(secrets(TASK, 0b001 | 1 << 13, 0)) == {"It must have gym.", "It must have meal.", "I lift weights.",
                                                      "I get hungry.", "F1"}
    assert secrets(TASK, 0b111 | 1 << 12 | 1 << 13, 0) == ()
    assert disclosed(TASK, 0b10, 0) == ("I lift weights.",) and len(disclosed(TASK, 1 << 12, 0)) == 4
    assert "type" not in " ".join(disclosed(TASK, 1 << 12, 0))


@pytest.mark.parametrize("text, found", [
    ("hotel in Oslo, May 3 to May 8", "hotel"), ("Hotels in oslo, May 3rd until 8th", "hotel"),
    ("a hotel in Oslo from 2026-05-03 to 2026-05-08", "hotel"), ("hotel Oslo 3 May to 8th of May", "hotel"),
    ("flight from Lima to Oslo on May 3", "flight"), ("fly Lima - Oslo, 3 May", "flight"),
    ("hotel in Oslo on May 3", None), ("hotel in Rome, May 3 to May 8", None), ("hotel in Oslo, May 3 to May 9", None),
    ("flight from Oslo to Lima on May 3", None), ("hotel and flight, Lima, Oslo, May 3 to May 8", None),
    ("in Oslo, May 3 to May 8", None), ("hotel in Oslo, all days from May 3, May 4, May 5 to May 8", None),
    ("car in Oslo, May 3 to May 8", None), ("", None)])
def test_a_search_needs_one_aspect_and_all_arguments(text, found):
    assert match.searched(TASK, text) == found


def test_questions_are_told_apart():
    ask = lambda text: parse(TASK, f"[action] {text}", None)
    assert [ask(text).mask for text in ("A pool?", "gym please, what gym?", "Pool or gym?", "Any meals?")] == [1, 2, 3, 4]
    assert [ask(text).code for text in ("A balcony?", "Any wishes for the hotel?", "What do you want?", "Nice place.")] == [
        Do.ASK_NONE, Do.VAGUE, Do.VAGUE, Do.CHAT]
    assert same(parse(TASK, "[answer] I suggest H2.", None), parse(TASK, "[answer] H2", None))


def test_agents_on_built_in_tasks():
    tasks = built_in("travel", 60)[1]
    score = lambda agent, count=10: np.mean([travel.score(task, final_state(task, play(travel, task, agent, seed=i)), 0.0)
                                             for i, task in enumerate(tasks[:count])])
    assert score(travel.expert, 30) == 1.0 and 0.3 <= score(travel.novice, 60) <= 0.65
    blind = lambda task, state, rng: "[answer] " + LETTERS[ASPECTS.index(
        [a for a in task.data["dimensions"] if not int(state.picked) >> ASPECTS.index(a) & 1][0])] + str(rng.integers(1, 7))
    assert score(blind, 60) == 0
    wishes = lambda task: " or ".join(row[1] for row in preferences(task.data))
    for nobody in ("", "[action]", "[action] Hm.", "[answer] F1, H1, R1, A1, C1", "[search] everything", "[finish]"):
        assert score(lambda task, state, rng: nobody) == 0.0
    assert score(lambda task, state, rng: f"[action] What about {wishes(task)}?") == 0.0
    assert score(lambda task, state, rng: task.data["initial_description"]) == 0.0


def test_generated_tasks_have_one_best_option_that_the_wishes_decide():
    for task in built_in("travel", 300)[1]:
        for name in task.data["dimensions"]:
            wishes = {row[1] for row in task.data[name]["preferences"]}
            fits = [option for option in shown_options(task, name) if wishes <= set(option["amenities"])]
            assert {option["id"] for option in fits} == set(task.data[name]["correct_ids"]) and len(fits) == 2
            assert min(fits, key=lambda option: option["cost"])["id"] == task.data[name]["best_id"]


def test_the_judge_is_asked_about_what_is_left_and_read_strictly():
    state = travel.reset(travel.table((TASK,)), travel.knobs, 0, None).replace(elicited=np.int32(1))
    asked = question(TASK, "[action] Do you lift?", state)
    sent = asked.messages[0]["content"]
    assert "gym" in sent and "pool" not in sent and "Do you lift?" in sent
    assert same(asked.read(" P1."), act(Kind.ACTION, Do.ASK, 0b10)) and asked.read("vague").code == Do.VAGUE
    assert asked.read("OTHER").code == Do.ASK_NONE and asked.read("CHAT").code == Do.CHAT
    for unreadable in ("P0", "P9", "", "P1 or P2", "I think it is P1", "1"):
        assert asked.read(unreadable) is None
    search = question(TASK, "[search] a bed in Oslo", state)
    assert same(search.read("Hotel"), parse(TASK, HOTEL, None)) and search.read("none").code == Do.SEARCH_BAD
    assert search.read("restaurant") is None and search.read("hotel and flight") is None
    assert question(TASK, "[answer] H1", state) is None and question(TASK, "hello", state) is None


def test_the_upstream_schema_plays_to_the_end(shared_data):
    tasks = travel_tasks.load(shared_data / "usergym/travel/synthetic_sample.json")
    assert len(tasks) == 6 and tasks[0].id == "flight:2-0|hotel:2-0"
    for task in tasks:
        lines = play(travel, task, travel.expert)
        assert travel.metric(task, final_state(task, lines), 0.0) == 1.0 and lines[-1].success and len(lines) <= 16
        assert all(len(shown_options(task, name)) == 18 for name in task.data["dimensions"])
        for slot, (name, thing, *_) in enumerate(preferences(task.data)):
            asked = parse(task, f"[action] Do you care about {thing} for the {name.replace('_', ' ')}?", None)
            assert asked.mask == 1 << slot


def test_every_upstream_row_loads_as_far_as_it_goes(shared_data):
    pytest.importorskip("pyarrow")
    files = sorted((shared_data / "usergym/travel").glob("*.parquet"))
    tasks = {path.stem: travel_tasks.load(path) for path in files}
    assert sum(map(len, tasks.values())) == 2651 + 471 and len(tasks["travel22_test"]) == 101
    for task in tasks["travel334_train"]:
        assert len(task.data["best_ids"]) == len(task.data["dimensions"]) == 3 and travel.prompt(task)[1]
    with pytest.raises(ValueError, match=r"only what a parquet row holds; put upstream's travelgym_data_\*.json beside"):
        travel.table(tasks["travel22_test"])


def test_parquet_rows_find_their_records_beside_them(shared_data, tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    row = pyarrow.read_table(shared_data / "usergym/travel/travel22_test.parquet").slice(0, 1)
    pyarrow.write_table(row, tmp_path / "test.parquet")
    key = row.to_pylist()[0]["reward_model"]["id"]
    record = {k: v for k, v in TASK.data.items() if k != "id"}
    (tmp_path / "travelgym_data_22.json").write_text(json.dumps({key: record}))
    task, = travel_tasks.load(tmp_path / "test.parquet")
    assert task.id == key and travel.table((task,)).wanted[0] == 0b11
    assert ast.literal_eval(row.to_pylist()[0]["reward_model"]["ground_truth"])


@pytest.mark.parametrize("change, said", [
    (dict(dimensions=["boat"]), "dimensions: expected a list of different names among flight"),
    (dict(dimensions=[]), "dimensions: expected"), (dict(hotel=None), "hotel: expected an object .* found nothing"),
    (dict(hotel=TASK.data["hotel"] | {"best_id": "H4"}), "hotel.best_id: expected one of the correct options, found 'H4'"),
    (dict(hotel=TASK.data["hotel"] | {"preferences": [["hotel", "pool"]]}), "hotel.preferences: expected a list"),
    (dict(hotel=TASK.data["hotel"] | {"options": {"correct": []}}), "hotel.options.wrong: expected a list of objects"),
    (dict(flight=TASK.data["hotel"]), "flight.options: expected ids of F and a number, found 'H7'"),
    (dict(initial_description=" "), "initial_description: expected a non-empty string"),
])
def test_a_broken_task_is_refused_by_the_table(change, said):
    with pytest.raises(ValueError, match="task 'bad', field " + said):
        travel.table((Task(id="bad", env="travel", data=TASK.data | change),))
