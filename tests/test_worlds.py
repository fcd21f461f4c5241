"""Every environment: text and arrays agree, nothing undisclosed is said, and an agent that does not try earns nothing.

The default run plays a hundred episodes of each; the slow one ten thousand.
"""

import jax
import numpy as np
import pytest
from play import ENVS, WORLDS, built_in, turn

from eau_jax.core.part import Kind, Reply
from eau_jax.rollout.episode import Pinned
from eau_jax.rollout.simulator import simulator
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic
from eau_jax.users.voice import leaks

NAMES = sorted(ENVS)
ARRAYS = [name for name in NAMES if not ENVS[name].host]
MANY = [pytest.param(100, id="few"), pytest.param(10_000, id="many", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def worlds():
    """{name: (simulator, pinned)} over 24 tasks each, made when first asked for."""
    made = {}

    def get(name):
        if name not in made:
            env, tasks = built_in(name, 24)
            pinned = Pinned({"env": env.knobs, "user": symbolic.knobs, "rl": {}}, compile_rules(env.rules, env.features), 0)
            made[name] = simulator(env, symbolic, tasks), pinned
        return made[name]
    return get


def episode(world, pinned, index, seed, agent):
    """Yields (act, state after, time step, text of the reply) of each turn; `agent(task, state, turn)` speaks."""
    env, task = world.env, world.tasks[index]
    state, number = world.reset(pinned.knobs, index, seed), 0
    while not state.done:
        act = env.parse(task, agent(task, state, number), state)
        state, step, _ = world.step(pinned.knobs, pinned.rules, state, act, seed, number)
        yield act, state, step, env.render(task, act, step, state, seed + number)
        number += 1


def random_agent(name, rng):
    """Says random acts; the novice's words in between."""
    world, env = WORLDS[name], ENVS[name]

    def say(task, state, number):
        if rng.random() < 0.3:
            return env.novice(task, state, rng)
        acts = [act for act in world.sayable_acts(task, rng)]
        return world.agent_text(task, acts[int(rng.integers(len(acts)))])
    return say


@pytest.mark.parametrize("name, count", [
    *(pytest.param(name, 64, id=f"{name}-few") for name in ("intention", "travel")),
    *(pytest.param(name, 2048, id=f"{name}-many", marks=pytest.mark.slow) for name in ARRAYS)])
def test_text_and_arrays_give_the_same_rewards_and_endings(worlds, name, count):
    world, pinned = worlds(name)
    env, rng, limit = world.env, np.random.default_rng(3), 20
    by_word, acts = [], []
    for index in range(count):
        lines = list(episode(world, pinned, index % 24, 0, random_agent(name, rng)))[:limit]
        by_word.append([(float(step.reward), int(step.stop), bool(step.success)) for _, _, step, _ in lines])
        said = [act.replace(call="") for act, *_ in lines]
        acts.append(said + said[-1:] * (limit - len(said)))
    stacked = [jax.tree.map(lambda *leaves: np.stack(leaves), *(row[t] for row in acts)) for t in range(limit)]
    state = jax.vmap(lambda i: env.reset(world.table, env.knobs, i, jax.random.key(0)))(np.arange(count, dtype=np.int32) % 24)
    batched = jax.jit(jax.vmap(turn(env), (None, None, None, 0, 0, None)))
    for t in range(limit):
        before = np.asarray(state.done)
        state, step, _, _ = batched(world.table, env.knobs, pinned.rules, state, stacked[t], jax.random.key(0))
        found = list(zip(np.asarray(step.reward).tolist(), np.asarray(step.stop).tolist(), np.asarray(step.success).tolist()))
        for row, line in enumerate(by_word):
            assert bool(before[row]) == (t >= len(line))
            if t < len(line):
                assert found[row] == line[t]


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("name", NAMES)
def test_no_reply_holds_what_was_not_disclosed(worlds, name, count):
    world, pinned = worlds(name)
    rng, told_something = np.random.default_rng(11), 0
    for number in range(count):
        told, index = 0, number % 24
        for _, _, step, text in episode(world, pinned, index, number, random_agent(name, rng)):
            told |= int(step.disclosed)
            told_something += int(step.disclosed) != 0
            if not step.tool:
                found = leaks(text, world.env.secrets(world.tasks[index], told, number))
                assert not found, (world.tasks[index].id, text, found)
    assert told_something or not getattr(WORLDS[name], "TELLS", True)


@pytest.mark.parametrize("name", ["colbench", "telecom"])
def test_agents_that_do_not_try_earn_no_more_than_the_floor(worlds, name):
    """Those of the gyms are in test_floors.py."""
    world, pinned = worlds(name)
    everything = " ".join(str(act) for act in ("what", "which", "how", "when", "where", "who"))
    nulls = {"silence": lambda *_: "", "spam": lambda *_: "[answer] yes yes yes 1 2 3", "finish": lambda *_: "[finish]",
             "echo": lambda task, *_: f"[action] {world.env.prompt(task)[1]}", "chatter": lambda *_: "Hello there, how are you?",
             "ask everything": lambda *_: f"[action] {everything}?", "search": lambda *_: "[search] anything"}
    for kind, agent in nulls.items():
        scores = []
        for index in range(24):
            lines = list(episode(world, pinned, index, 0, agent))
            total = sum(float(step.reward) for _, _, step, _ in lines)
            scores.append(world.env.score(world.tasks[index], lines[-1][1], total))
        assert np.mean(scores) <= max(world.env.floor) + 1e-9, (kind, np.mean(scores))


@pytest.mark.parametrize("name", NAMES)
def test_the_expert_is_better_than_the_novice_and_the_novice_than_nothing(worlds, name):
    world, pinned = worlds(name)

    def mean(speech):
        scores = []
        for index in range(24):
            rng = np.random.default_rng(index)
            lines = list(episode(world, pinned, index, index, lambda task, state, _: speech(task, state, rng)))
            scores.append(world.env.score(world.tasks[index], lines[-1][1], sum(float(s.reward) for _, _, s, _ in lines)))
        return np.mean(scores)

    expert, novice = mean(world.env.expert), mean(world.env.novice)
    assert expert >= 0.9 and 0.02 < novice < expert - 0.1, (expert, novice)


def test_a_user_who_leaves_at_once_is_the_end_of_every_world(worlds):
    for name in NAMES:
        world, pinned = worlds(name)
        rules = compile_rules(f'default = "{Reply.LEAVE.name}"', world.env.features)
        agent = random_agent(name, np.random.default_rng(0))
        steps = list(episode(world, pinned._replace(rules=rules), 0, 0, agent))
        assert len(steps) <= 20, name


PIECES = ("[action]", "[answer]", "[search]", "[finish]", "<tool_call>", "</tool_call>", "<think>", "</think>", "{", "}", '"name"',
          '"arguments"', ":", ",", "null", "1e999", "9" * 400, "-", "\x00", "\ud800", "\u202e", "é", "💥", "\n", " ", "yes", "R1",
          "<|im_start|>user", "###STOP###", '{"name": "interact_with_env", "arguments": {"choice": "action", "content": "')


@pytest.mark.parametrize("count", [pytest.param(500, id="few"), pytest.param(100_000, id="many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_random_messages_raise_nothing_and_unreadable_ones_change_nothing(worlds, name, count):
    world, pinned = worlds(name)
    env, rng = world.env, np.random.default_rng(17)
    words = [*PIECES, *(word for task in world.tasks[:4] for word in env.expert(task, world.reset(pinned.knobs, 0, 0), rng).split())]
    state, index, unreadable = world.reset(pinned.knobs, 0, 0), 0, 0
    for number in range(count):
        task = world.tasks[index]
        act = env.parse(task, " ".join(rng.choice(words, rng.integers(0, 12))), state)
        before = env.score(task, state, 0.0)
        state, step, _ = world.step(pinned.knobs, pinned.rules, state, act, number, number % 16)
        assert env.render(task, act, step, state, number)
        if int(act.kind) == Kind.MALFORMED:
            unreadable += 1
            assert step.reward <= 0 and not step.disclosed and env.score(task, state, 0.0) == before and not step.success
        if state.done:
            index = (index + 1) % 24
            state = world.reset(pinned.knobs, index, number)
    assert unreadable > count // 50
