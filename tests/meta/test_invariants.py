"""What scripted agents find: lanes are the simulator's episodes, leaks in every disguise, what each invariant alone sees."""

import numpy as np
import pytest
from gate_world import ENV, KNOBS, TASKS, settings, world

from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.tau2 import data as tau2_data
from eau_jax.envs.tau2.world import world as tau2_world
from eau_jax.meta.invariants import AGENTS, NULLS, check, no_leak, player, progress
from eau_jax.meta.lanes import lanes
from eau_jax.meta.leak import told
from eau_jax.rollout.simulator import simulator
from eau_jax.users.noisy import noisy
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic


def failed(rules=ENV.rules, **changes):
    """The invariants that a setting breaks."""
    play, now = world()[2], settings()
    trials = play(*settings(rules, **changes))
    return {stage.name for stage in check(trials, *[play(*now)] * 3) if not stage.passed}


def test_a_lane_is_an_episode_of_the_simulator():
    """Also where the user draws: a noisy one, whose decisions depend on seed and turn."""
    made = simulator(ENV, noisy, tuple(intention_tasks.generate("train", 4, 0)))
    many, rules = lanes(made, 8), compile_rules(ENV.rules, ENV.features)
    tree = {"env": ENV.knobs, "user": noisy.knobs.replace(drift=np.float32(0.6))}
    indices, seeds, rng = [2, 0, 3, 1, 2], [5, 6, 7, 8, 9], np.random.default_rng(0)
    states = many.begin(tree, indices, seeds)
    single = [made.reset(tree, index, seed) for index, seed in zip(indices, seeds)]
    for turn in range(5):
        acts = {lane: ENV.parse(made.tasks[indices[lane]], ENV.novice(made.tasks[indices[lane]], states[lane], rng), None)
                for lane in (4, 1, 2) if not states[lane].done}
        for lane, moved in many.step(tree, rules, states, acts, seeds, turn).items():
            single[lane], step, reply = made.step(tree, rules, single[lane], acts[lane], seeds[lane], turn)
            assert int(reply) == moved.reply and vars(step) == vars(moved.time_step)
            assert vars(single[lane]) == vars(moved.state)
            states[lane] = moved.state


def test_the_defaults_hold():
    assert failed() == set()
    trials = world()[2](*settings())
    assert trials.mean("expert", "success") == 1.0 and trials.mean("novice", "success") < 0.6
    assert all(trials.mean(name, "total") <= 0 for name in NULLS) and trials.score.shape == (len(AGENTS), TASKS)


@pytest.mark.parametrize("alone, rules, changes", [
    ({"progress"}, ENV.rules.replace("[[rule]]", '[[rule]]\nwhen = { remaining = 1 }\nreply = "WITHHOLD"\n[[rule]]', 1), {}),
    ({"progress"}, ENV.rules, {"max_turns": 4}),
    ({"no_free_lunch"}, 'default = "ANSWER"\n[[rule]]\nwhen = { ask = 0, turn = { min = 2 } }\nreply = "VOLUNTEER"', {}),
    ({"no_free_lunch"}, ENV.rules, {"chat_bonus": 0.25}),
    ({"no_leak"}, ENV.rules.replace("[[rule]]", '[[rule]]\nwhen = { turn = 1 }\nreply = "VOLUNTEER"\n[[rule]]', 1), {}),
    ({"stop_sanity"}, ENV.rules.replace("[[rule]]", '[[rule]]\nwhen = { off_topic = 1 }\nreply = "LEAVE"\n[[rule]]', 1), {}),
    ({"no_free_lunch"}, ENV.rules, {"step_penalty": 1.0, "multi_penalty": 0.0}),
])
def test_each_invariant_alone_refuses_something(alone, rules, changes):
    assert failed(rules, **changes) == alone


def test_a_user_who_leaves_where_a_write_is_due(shared_data):
    """tau2-bench's retail. A user that leaves instead of agreeing is seen; between agreement and write nobody asks the user,
    so a rule for that moment changes nothing."""
    folder = shared_data / "tau2" / "retail"
    if not folder.is_dir():
        pytest.skip("tau2-bench's files are not here")
    domain = tau2_data.load(folder)
    env, leave = tau2_world(domain), lambda when: f'default = "ANSWER"\n[[rule]]\nwhen = {{ {when} }}\nreply = "LEAVE"'
    play = player(lanes(simulator(env, symbolic, tuple(domain.tasks[:8])), 8 * len(AGENTS)), 0)
    tree = {"env": env.knobs, "user": symbolic.knobs}
    now, early, between = (play(tree, rules) for rules in (env.rules, leave("fit = 1"), leave("agreed = 1, call = 1")))
    found = {stage.name: stage for stage in check(early, now, now, now)}
    assert not found["stop_sanity"].passed and "expert at work" in found["stop_sanity"].reason and not now.leaks
    assert all(stage.passed for stage in check(between, now, now, now)) and now.mean("expert", "success") == 1


def test_an_environment_that_says_more_than_it_disclosed():
    """A mutant of the world whose replies hold an undisclosed value, backwards."""
    def chatty(task, act, time_step, state, seed):
        hidden = ENV.secrets(task, int(state.covered), seed)
        return ENV.render(task, act, time_step, state, seed) + (f" By the way, {hidden[-1][::-1]}." if hidden else "")

    env = ENV._replace(render=chatty)
    play = player(lanes(simulator(env, symbolic, tuple(intention_tasks.generate("train", 4, 0))), 4 * len(AGENTS)), 0)
    trials = play({"env": env.knobs, "user": symbolic.knobs}, env.rules)
    stage = no_leak(trials, [world()[2](*settings())])
    assert not stage.passed and "says the hidden value" in stage.reason and stage.numbers["leaks"] > 4


def test_a_fault_of_the_first_generation_may_be_mended():
    """Progress counts what was solved before, so a run that began with too few turns may get more."""
    play = world()[2]
    short, longer = play(*settings(max_turns=2)), play(*settings(max_turns=4))
    assert progress(longer, [short]).passed and not progress(short, [longer]).passed


def test_a_reward_that_pays_for_nothing_may_be_lowered_in_steps():
    play = world()[2]
    sound, now = play(*settings()), play(*settings(chat_bonus=0.5))
    passed = {bonus: {stage.name: stage.passed for stage in check(play(*settings(chat_bonus=bonus)), sound, now, sound)}
              for bonus in (0.25, 0.5, 0.6)}
    assert [passed[bonus]["no_free_lunch"] for bonus in (0.25, 0.5, 0.6)] == [True, False, False]


def test_settings_that_were_played_are_not_played_again():
    play = world()[2]
    assert play(KNOBS, ENV.rules) is play(KNOBS, ENV.rules)


@pytest.mark.parametrize("text, secret, found", [
    ("I like it blue.", "blue", True), ("BLU\u0301E it is", "blue", True), ("b-l-u-e", "blue", True), ("b l u e",
                                                                                                       "blue", True),
    ("eulb", "blue", True), ("e.u.l.b", "blue", True), ("bl\u200bue", "blue", True), ("rac eulb", "blue car", True),
    ("the red car", "blue", False), ("bluebell", "blue", False), ("a b c", "blue", False),
    ("It costs $1,250.00", "1250", True), ("one thousand two hundred and fifty", "1250", True), ("1250 dollars",
                                                                                                 "$1,250", True),
    ("twelve hundred fifty", "1250", True), ("two million", "2000000", True), ("It costs 1250", "250", False),
    ("seventeen", "17", True), ("no one knows", "1", False), ("room 7", "7", True), ("two hundred and then", "200", True),
    ("9957", "7599", True), ("Emma_Kim", "emma kim", True), ("", "blue", False), ("blue", "", False),
])
def test_leaks_in_disguise(text, secret, found):
    assert (told(text, [secret]) == (secret,)) is found
