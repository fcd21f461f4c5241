"""Causal tests over real episodes of Intention and Function: scripted agents, sound and broken worlds, users and limits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from gate_world import CHAT

from eau_jax.core import knobs as knob
from eau_jax.core.part import Reply
from eau_jax.core.types import InfraError
from eau_jax.envs.gyms import function_tasks, intention_tasks
from eau_jax.envs.gyms.function import function
from eau_jax.envs.gyms.intention import intention
from eau_jax.meta import causal
from eau_jax.meta.attribution import Experiment
from eau_jax.meta.causal import BY_POLICY, BY_SCRIPT, Trial, investigate, player
from eau_jax.meta.thresholds import DEFAULTS
from eau_jax.rollout.agent import Agent, demonstrator
from eau_jax.rollout.episode import Budgets, Pinned
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

TASKS = {"intention": intention_tasks.generate("train", 16, 0), "function": function_tasks.generate("train", 16, 0)}
BUDGETS = Budgets(max_tokens=4096, max_new_tokens=256)
STONES = 'default = "WITHHOLD"'


@pytest.fixture(autouse=True)
def few_episodes(monkeypatch):
    for name, count in (("SWAPPED", 24), ("LENGTHENED", 16)):
        monkeypatch.setattr(causal, name, count)


@functools.cache
def stage(env, policy="expert", user=symbolic):
    return player(env, user, TASKS[env.name], CHAT, BUDGETS, demonstrator(getattr(env, policy), CHAT), run_seed=0)


def play(env, policy="expert", rules="", **env_knobs):
    tree = knob.patch({"env": env.knobs, "user": symbolic.knobs, "rl": {}}, {f"env.{k}": v for k, v in env_knobs.items()})
    return stage(env, policy)(Pinned(tree, compile_rules(rules or env.rules, env.features), 0))


def never(time_step, key):
    return time_step.replace(success=jnp.bool_(False))


def always(time_step, key):
    return time_step.replace(success=time_step.done)


def flaky(time_step, key):
    return time_step.replace(code=jnp.where(jax.random.uniform(key) < 0.3, 0, time_step.code).astype(jnp.int32))


def moody(time_step, key):
    return time_step.replace(success=time_step.success & (jax.random.uniform(key) < 0.5))


@functools.cache
def broken(env, how):
    def step(table, knobs, state, act, reply, key):
        state, time_step = env.step(table, knobs, state, act, reply, key)
        return state, how(time_step, key)
    return env._replace(step=step)


@pytest.mark.parametrize("env", [intention, function], ids=lambda env: env.name)
def test_a_sound_world_passes_every_scripted_test(env):
    for test in (causal.gold_replay, causal.idle_agent, causal.repeat):
        found = test(play(env, max_turns=2, rules=STONES), DEFAULTS, scripted=16)      # neither user nor limit is in the way
        assert found.confirmed is False and found.tasks == () and found.episodes == 16 and found.value in (0.0, 1.0)


@pytest.mark.parametrize("env", [intention, function], ids=lambda env: env.name)
def test_a_checker_that_finds_nothing_good(env):
    found = causal.gold_replay(play(broken(env, never)), DEFAULTS, scripted=16)
    assert found.confirmed and found.fault == "broken_checker_negative" and found.value == 0.0 and len(found.tasks) == 16
    assert "succeeds in a share of 0.000; needed: 0.99" in found.said


@pytest.mark.parametrize("env", [intention, function], ids=lambda env: env.name)
def test_a_checker_that_finds_everything_good(env):
    found = causal.idle_agent(play(broken(env, always)), DEFAULTS, scripted=16)
    assert found.confirmed and found.fault == "broken_checker_positive" and found.value == 1.0
    assert causal.gold_replay(play(broken(env, always)), DEFAULTS, scripted=16).confirmed is False


@functools.cache
def one_bad(place):
    """Intention, whose checker never finds one of the tasks solved."""
    def step(table, knobs, state, act, reply, key):
        state, time_step = intention.step(table, knobs, state, act, reply, key)
        return state, time_step.replace(success=time_step.success & (state.task != place))
    return intention._replace(step=step)


def test_few_bad_tasks_are_named_and_the_checker_is_not_blamed():
    found = causal.gold_replay(play(one_bad(3)), DEFAULTS, scripted=16)
    assert found.confirmed is False and found.few and found.tasks == (TASKS["intention"][3].id,)
    assert found.value == pytest.approx(15 / 16)
    tree = {"env": intention.knobs, "user": symbolic.knobs, "rl": {}}
    rest = stage(one_bad(3))(Pinned(tree, compile_rules(intention.rules, intention.features), 0), frozenset({3}))
    again = causal.gold_replay(rest, DEFAULTS, scripted=16)
    assert again.confirmed is False and not again.few and again.value == 1.0 and again.episodes == 15
    assert not causal.gold_replay(play(broken(intention, never)), DEFAULTS, scripted=16).few, "all of them: it is the checker"


def test_what_differs_between_repetitions():
    tool = causal.repeat(play(broken(intention, flaky)), DEFAULTS, scripted=16)
    assert tool.confirmed and tool.fault == "flaky_tool" and 0 < tool.value < 1
    checker = causal.repeat(play(broken(intention, moody)), DEFAULTS, scripted=16)
    assert checker.confirmed and checker.fault == "broken_checker_negative"


def test_a_world_that_draws_from_elsewhere_differs_under_the_same_seed():
    plays = iter([play(function), play(broken(function, never))])     # the checker changes between the two plays

    def changing(trial):
        return next(plays)(trial)

    found = causal.repeat(changing, DEFAULTS, scripted=16)
    assert found.confirmed and found.fault == "broken_checker_negative"


def test_the_swap_of_users():
    hinders = causal.symbolic_user(play(intention, rules=STONES), DEFAULTS)
    assert hinders.confirmed and hinders.fault == "stonewalling_user" and hinders.value > 0.9
    helps = causal.symbolic_user(play(intention, "novice", rules='default = "ANSWER"', max_turns=4), DEFAULTS)
    assert helps.fault == "leaky_user" and helps.value < 0
    same = causal.symbolic_user(play(intention, "novice"), DEFAULTS)
    assert same.confirmed is False and same.value == 0.0              # the same draws: nothing differs at all


def test_more_turns():
    few = causal.more_turns(play(intention, max_turns=3), DEFAULTS)
    assert few.confirmed and few.fault == "too_few_turns" and few.value == 1.0
    assert causal.more_turns(play(intention, max_turns=16), DEFAULTS).confirmed is False
    assert causal.more_turns(slow(99), DEFAULTS).confirmed is False   # nothing is gained by going on
    late = causal.more_turns(slow(3), DEFAULTS)
    assert late.confirmed and late.value == 0.0 and "0.1 of all episodes, of which 0." in late.said


def slow(start):
    """A policy under a limit of three turns that does nothing useful before turn `start`."""
    def speak(task, state, rng):
        return intention.expert(task, state, rng) if int(state.turn) >= start else "[action] Tell me more."
    return player(intention, symbolic, TASKS["intention"], CHAT, BUDGETS, demonstrator(speak, CHAT), 0)(Pinned(
        knob.patch({"env": intention.knobs, "user": symbolic.knobs, "rl": {}}, {"env.max_turns": 3, "env.patience": 64}),
        compile_rules(intention.rules, intention.features), 0))


def test_both_arms_begin_alike():
    short, long = play(intention, "novice", max_turns=3)(Trial("policy", 16, 5)), play(intention, "novice", max_turns=3)(
        Trial("policy", 16, 5, turns=1.5, more=4))
    pairs = causal._pairs(short, long)
    assert len(pairs) == 16 and any(len(b["turns"]) > len(a["turns"]) for a, b in pairs)
    for a, b in pairs:
        assert [t["agent"] for t in a["turns"]] == [t["agent"] for t in b["turns"]][:len(a["turns"])]
    assert max(len(b["turns"]) for b in long) <= 7                     # 3 + 4


def test_trials_vary_tasks_by_seed_and_keep_groups():
    first, again, other = (play(intention)(Trial("expert", 8, seed, group=4)) for seed in (1, 1, 2))
    assert first == again and len(first) == 8 and len({record["task"] for record in first}) == 2
    assert {record["task"] for record in first} != {record["task"] for record in other}
    assert len(play(intention)(Trial("expert", 32, 0))) == 32           # more episodes than tasks


def test_lost_episodes_tell_nothing():
    def lossy(trial):
        records = play(intention)(trial)
        return [record | {"stop": "infra_error"} for record in records[::2]] + records[1::4]

    for test in (BY_SCRIPT | BY_POLICY).values():
        found = test(lossy, DEFAULTS)
        assert found.confirmed is None and "too many episodes failed" in found.said


def test_an_agent_that_is_away_is_infrastructure():
    async def speak(request, task, state):
        raise InfraError("503")

    away = Agent(speak, demonstrator(intention.expert, CHAT).release)
    under = player(intention, symbolic, TASKS["intention"], CHAT, BUDGETS, away, 0)
    pinned = Pinned({"env": intention.knobs, "user": symbolic.knobs, "rl": {}},
                    compile_rules(intention.rules, intention.features), 0)
    assert causal.symbolic_user(under(pinned), DEFAULTS).confirmed is None


def test_investigating_ends_with_the_cause():
    found, results = investigate([], {}, play(broken(intention, never)), DEFAULTS, scripted=16)
    assert found.diagnosis.fault == "broken_checker_negative" and list(results) == [Experiment.GOLD_REPLAY]
    found, results = investigate([], {}, play(intention), DEFAULTS, scripted=16)
    assert found.diagnosis.owner == "none" and set(results) == {Experiment.GOLD_REPLAY, Experiment.IDLE_AGENT,
                                                                Experiment.REPEAT}
    kept = investigate([], results, None, DEFAULTS, scripted=16)                    # what is known is not played again
    assert kept[1] == results and dataclasses.asdict(kept[0].diagnosis)["fault"] == ""


def test_scripted_tests_are_as_long_as_they_are_told_to_be():
    asked = []

    def counted(trial):
        asked.append(trial)
        return play(intention)(trial)

    investigate([], {}, counted, DEFAULTS, scripted=8)
    assert [(trial.agent, trial.episodes) for trial in asked] == [("expert", 8), ("idle", 8), ("expert", 8), ("expert", 8)]


def test_reply_names_are_those_of_the_records():
    record = play(intention)(Trial("expert", 1, 0))[0]
    assert record["turns"][0]["act"]["reply"] in Reply.__members__ and record["stop"] == "completed"
