"""Faults put into real conversations of two worlds, found from their records alone. The agent is the worlds' novice."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gate_world import CHAT

from eau_jax.core import knobs as knob
from eau_jax.core.records import plain
from eau_jax.envs.gyms import function_tasks, intention_tasks
from eau_jax.envs.gyms.function import function
from eau_jax.envs.gyms.intention import intention
from eau_jax.meta.causal import investigate, player
from eau_jax.meta.measure import measure
from eau_jax.meta.signals import detect
from eau_jax.meta.thresholds import DEFAULTS
from eau_jax.rollout.agent import demonstrator
from eau_jax.rollout.collect import collect, run, to_record
from eau_jax.rollout.episode import Budgets, Pinned
from eau_jax.rollout.simulator import simulator
from eau_jax.users.mixture import mixture
from eau_jax.users.noisy import noisy
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

BUDGETS = Budgets(max_tokens=4096, max_new_tokens=300)
WORLDS = {"intention": (intention, intention_tasks.generate("train", 64, 0)),
          "function": (function, function_tasks.generate("train", 64, 0))}
STEADY = {"drift": 0.0, "leave": 0.0, "leak": 0.0}


def of(user, **rates):
    """A noisy user, or a mixture with one, at these rates."""
    prefix = "user.second." if user.name == "mixture" else "user."
    return user, {f"{prefix}{name}": value for name, value in (STEADY | rates).items()}


def wrapped(env, how):
    def step(table, knobs, state, act, reply, key):
        state, time_step = env.step(table, knobs, state, act, reply, key)
        return state, how(time_step, key)
    return env._replace(step=step) if how else env


async def wrong(knobs, words):
    """Tells something else in place of what it was to tell, at times."""
    text = words.draft
    if np.random.default_rng(words.seed).random() < 0.3:
        for value in words.disclosed:
            text = text.replace(value, "something else")
        text = "".join("9" if letter.isdigit() else letter for letter in text)
    return text, "llm"


MIXED, PLAIN = mixture(symbolic, noisy), (symbolic, {})
INVENTS = (mixture(symbolic, symbolic._replace(name="llm", voice=wrong)), {})
LEAVES = 'default = "ANSWER"\n[[rule]]\nwhen = { turn = { min = 2 } }\nreply = "LEAVE"'
FAULTS = {   # name -> (user, rules, world, limit of turns, the faults that may be named)
    "none": (of(MIXED), "", None, 16, {""}), "none, fewer turns": (PLAIN, "", None, 8, {""}),
    "none, personas": ((symbolic, {"user.persona_mix": 1.0}), "", None, 16, {""}),
    "leaks": (of(MIXED, leak=0.4), "", None, 16, {"leaky_user"}),
    "volunteers": (PLAIN, 'default = "VOLUNTEER"', None, 16, {"early_disclosure"}),
    "withholds": (PLAIN, 'default = "WITHHOLD"', None, 16, {"stonewalling_user"}),
    "does not understand": (PLAIN, 'default = "CLARIFY"', None, 16, {"stonewalling_user"}),
    "drifts": (of(noisy, drift=0.7), "", None, 16, {"early_disclosure", "stonewalling_user"}),
    "leaves": (of(noisy, leave=0.2), "", None, 16, {"premature_stop"}),
    "leaves at once": (PLAIN, LEAVES, None, 16, {"premature_stop"}),
    "invents": (INVENTS, "", None, 16, {"invented_facts"}),
    "no success": (PLAIN, "", lambda t, k: t.replace(success=jnp.bool_(False)), 16, {"broken_checker_negative"}),
    "half of the successes": (PLAIN, "", lambda t, k: t.replace(success=t.success & (jax.random.uniform(k) < 0.5)), 16,
                              {"broken_checker_negative"}),
    "all succeed": (PLAIN, "", lambda t, k: t.replace(success=t.done), 16, {"broken_checker_positive"}),
    "flaky": (PLAIN, "", lambda t, k: t.replace(code=(t.code * (jax.random.uniform(k) > 0.2)).astype(jnp.int32)), 16,
              {"flaky_tool"}),
    "two turns": (PLAIN, "", None, 2, {"too_few_turns"}), "three turns": (PLAIN, "", None, 3, {"too_few_turns"})}


@pytest.mark.slow
@pytest.mark.parametrize("world, name", [(world, name) for world in WORLDS for name in FAULTS
                                         if (world, name) != ("function", "invents")])   # hardly two probes are the same
def test_the_fault_is_named(world, name):
    (user, rates), rules, how, turns, named = FAULTS[name]
    env, tasks = wrapped(WORLDS[world][0], how), WORLDS[world][1]
    tree = knob.patch({"env": env.knobs, "user": user.knobs, "rl": {}}, {"env.max_turns": turns} | rates)
    pinned = Pinned(tree, compile_rules(rules or env.rules, env.features), 0)
    made, agent, rows = simulator(env, user, tasks), demonstrator(env.novice, CHAT), []
    for step in range(1, 11):
        indices = np.random.default_rng(step).permutation(len(tasks))[:8].tolist()
        groups, statistics = run(collect(made, agent, CHAT, pinned, BUDGETS, indices=indices, group_size=4, run_seed=0,
                                         step=step))
        counted = measure(recorded(env, groups), step) | {"meta/version_lag": 0.0}    # a script has no version
        rows.append({"step": step, "generation": 0} | plain(statistics) | counted)
    found, _ = investigate(detect(rows, DEFAULTS), {}, player(env, user, tasks, CHAT, BUDGETS, agent, 0)(pinned), DEFAULTS)
    assert found.diagnosis.fault in named, found


def recorded(env, groups):
    """As they stand in episodes/<step>.jsonl."""
    return [json.loads(json.dumps(plain(dict(zip(("system", "opening"), env.prompt(episode.task))) | to_record(episode))))
            for group in groups for episode in group]
