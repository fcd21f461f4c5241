"""What every environment promises, checked with random acts and every possible decision of the user."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from play import ENVS, WORLDS, built_in, states, turn

from eau_jax.core import knobs as knob_tree
from eau_jax.core.part import Act, Kind, Reply
from eau_jax.core.types import StopReason
from eau_jax.envs import message
from eau_jax.envs.ending import stop_code, stop_reason
from eau_jax.users.noisy import noisy
from eau_jax.users.rules import compile_rules

BATCH, TURNS = 64, 18
NAMES = sorted(ENVS)


def turns(name):
    """Messages of a random episode: enough to reach the turn limit."""
    return getattr(WORLDS[name], "TURNS", TURNS)


# Each of these compiles a step in one more way: for three worlds by default, for all in the slow run.
SOME = [pytest.param(name, marks=() if name in ("function", "intention", "travel") else pytest.mark.slow) for name in NAMES]


@functools.lru_cache(maxsize=None)
def made(name):
    """(name, env, tasks, table, rules, acts [turns, BATCH], the compiled batched turn)."""
    env, tasks = built_in(name)
    rng = np.random.default_rng(1)
    return (name, env, tasks, env.table(tasks), compile_rules(env.rules, env.features),
            WORLDS[name].random_acts(tasks, (turns(name), BATCH), rng),
            jax.jit(jax.vmap(turn(env), (None, None, None, 0, 0, None))))


@pytest.fixture(params=NAMES)
def world(request):
    return made(request.param)


@pytest.fixture(params=SOME)
def some_world(request):
    return made(request.param)


def roll(env, table, rules, acts, batched, knobs=None):
    """Every turn's (state before, state, time step, features, reply), numpy, leading axis BATCH."""
    knobs = env.knobs if knobs is None else knobs
    state, out = states(env, table, knobs, BATCH), []
    for t in range(len(acts.code)):
        before = state
        state, step, features, reply = batched(table, knobs, rules, state, jax.tree.map(lambda x: x[t], acts),
                                               jax.random.key(0))
        out.append(jax.device_get((before, state, step, features, reply)))
    return out


def equal(left, right):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), left, right)


def test_jit_and_vmap_equal_one_at_a_time(some_world):
    name, env, tasks, table, rules, acts, batched = some_world
    rows, single = roll(env, table, rules, acts, batched), jax.jit(turn(env))
    for b in (0, 5, 17):
        state = env.reset(table, env.knobs, b % len(tasks), None)
        for t in range(6):
            act = jax.tree.map(lambda x: x[t, b], acts)
            state, step, features, reply = single(table, env.knobs, rules, state, act, jax.random.key(0))
            equal((state, step, features, reply), jax.tree.map(lambda x: x[b], rows[t][1:]))


@pytest.mark.slow
def test_jit_equals_no_jit(world):
    name, env, tasks, table, rules, acts, batched = world
    rows = roll(env, table, rules, acts, batched)
    state = env.reset(table, env.knobs, 3, None)
    for t in range(6):
        act = jax.tree.map(lambda x: x[t, 3], acts)
        with jax.disable_jit():
            state, step, features, reply = turn(env)(table, env.knobs, rules, state, act, jax.random.key(0))
        equal((state, step, features, reply), jax.tree.map(lambda x: x[3], rows[t][1:]))


def test_the_types_are_those_of_the_contract(world):
    name, env, tasks, table, rules, acts, batched = world
    for before, state, step, features, reply in roll(env, table, rules, acts, batched)[:2]:
        assert features.shape == (BATCH, len(env.features)) and features.dtype == np.int32
        fields = (step.code, step.disclosed, step.reward, step.discount, step.done, step.success, step.stop)
        assert [x.dtype for x in fields] == [np.int32, np.int32, np.float32, np.float32, np.bool_, np.bool_, np.int32]
        jax.tree.map(lambda a, b: (a.dtype == b.dtype and a.shape == b.shape) or pytest.fail("state changes type"),
                     before, state)


def test_every_episode_ends_and_discounts_say_so(world):
    name, env, tasks, table, rules, acts, batched = world
    for before, state, step, _, _ in roll(env, table, rules, acts, batched):
        np.testing.assert_array_equal(step.discount, np.where(step.done, 0.0, 1.0))
        np.testing.assert_array_equal(step.done, step.stop != 0)
        np.testing.assert_array_equal(step.done, state.done)
        assert all(stop_reason(code).terminated for code in step.stop[step.done])
        assert not (step.success & ~before.done & (step.stop != stop_code(StopReason.COMPLETED))).any()
        live = ~before.done
        np.testing.assert_array_equal(state.turn[live], before.turn[live] + 1)
    assert state.done.all() and (state.turn <= int(env.knobs.max_turns)).all()
    assert len(set(state.stop.tolist())) >= 3, "the random acts reach too few kinds of ending"


def test_nothing_happens_after_the_end(world):
    name, env, tasks, table, rules, acts, batched = world
    for before, state, step, _, _ in roll(env, table, rules, acts, batched):
        over = before.done
        equal(jax.tree.map(lambda x: x[over], before), jax.tree.map(lambda x: x[over], state))
        assert (step.reward[over] == 0).all() and (step.disclosed[over] == 0).all() and step.done[over].all()


@pytest.mark.parametrize("reply", list(Reply))
def test_any_decision_of_the_user_is_safe(world, reply):
    name, env, tasks, table, _, acts, batched = world
    rules = compile_rules(f'default = "{reply.name}"', env.features)
    for before, state, step, _, replies in roll(env, table, rules, acts, batched):
        assert (replies == reply).all() and np.isfinite(step.reward).all()
        if reply is Reply.LEAVE:
            assert step.done.all()
        for b in np.flatnonzero(~before.done)[:8]:
            text = env.render(tasks[b % len(tasks)], jax.tree.map(lambda x: x[0, b], acts),
                              jax.tree.map(lambda x: x[b], step), jax.tree.map(lambda x: x[b], state), int(b))
            assert 0 < len(text) < 200


def test_the_same_key_gives_the_same_episode(some_world):
    name, env, tasks, table, rules, acts, _ = some_world
    one = jax.jit(jax.vmap(turn(env, noisy._replace(knobs=noisy.knobs.replace(drift=np.float32(0.5)))),
                           (None, None, None, 0, 0, 0)))
    state, act = states(env, table, env.knobs, BATCH), jax.tree.map(lambda x: x[0], acts)
    keys = jax.random.split(jax.random.key(3), BATCH)
    equal(one(table, env.knobs, rules, state, act, keys), one(table, env.knobs, rules, state, act, keys))
    other = one(table, env.knobs, rules, state, act, jax.random.split(jax.random.key(4), BATCH))
    assert (one(table, env.knobs, rules, state, act, keys)[3] != other[3]).any()


@pytest.mark.parametrize("name", NAMES)
def test_knobs_and_rules_are_swapped_without_tracing_again(name):
    env, tasks = built_in(name)
    table, traces, one = env.table(tasks), [], turn(env)

    @jax.jit
    def step(table, knobs, rules, state, act):
        traces.append(1)
        return one(table, knobs, rules, state, act, None)

    act = jax.tree.map(lambda x: x[0], WORLDS[name].random_acts(tasks, (1,), np.random.default_rng(0)))
    state = env.reset(table, env.knobs, 0, None)
    for path, spec in knob_tree.specs({"env": env.knobs}).items():
        for value in (spec.low, spec.high):
            swapped = knob_tree.patch({"env": env.knobs}, {path: value})["env"]
            step(table, swapped, compile_rules(env.rules, env.features), state, act)
    step(table, env.knobs, compile_rules('default = "LEAVE"', env.features), state, act)
    assert len(traces) == 1


def test_a_batch_of_knobs_equals_separate_calls(some_world):
    name, env, tasks, table, rules, acts, batched = some_world
    rng = np.random.default_rng(2)
    draw = lambda s: int(rng.integers(s.low, s.high + 1)) if s.integer else float(rng.uniform(s.low, s.high))
    drawn = [{path: draw(spec)
              for path, spec in knob_tree.specs({"env": env.knobs}).items()} for _ in range(4)]
    trees = [knob_tree.patch({"env": env.knobs}, changes)["env"] for changes in drawn]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
    per_row = jax.tree.map(lambda x: x[np.arange(BATCH) % 4], stacked)
    state, act = states(env, table, env.knobs, BATCH), jax.tree.map(lambda x: x[0], acts)
    by_row = jax.jit(jax.vmap(turn(env), (None, 0, None, 0, 0, None)))
    together = by_row(table, per_row, rules, state, act, jax.random.key(0))
    for k, knobs in enumerate(trees):
        alone = batched(table, knobs, rules, state, act, jax.random.key(0))
        equal(jax.tree.map(lambda x: x[k::4], together), jax.tree.map(lambda x: x[k::4], alone))


JUDGED = {"function": {"tol"}, "turtle": {"half_at", "full_at", "half_credit"}}  # what counts as right: it moves the state too


@pytest.mark.parametrize("name", NAMES)
def test_every_knob_moves_something_and_says_whether_it_pays(name):
    """A knob is marked as one of rewards exactly if, in the same state and with the same outcome, it pays otherwise."""
    env, tasks = built_in(name)
    table, rules = env.table(tasks), compile_rules(env.rules, env.features)
    batched = jax.jit(jax.vmap(turn(env), (None, None, None, 0, 0, None)))
    acts = WORLDS[name].random_acts(tasks, (turns(name), BATCH), np.random.default_rng(1))
    before, paying = roll(env, table, rules, acts, batched), set()
    specs = knob_tree.specs({"env": env.knobs})
    for path, spec in specs.items():
        field = path.split(".")[-1]
        far = spec.low if spec.default != spec.low else spec.high
        knobs = knob_tree.patch({"env": env.knobs}, {path: WORLDS[name].MOVED.get(field, far)})["env"]
        after = roll(env, table, rules, acts, batched, knobs)
        same = all(np.array_equal(a, b) for left, right in zip(before, after, strict=True)
                   for a, b in zip(jax.tree.leaves(left[2]), jax.tree.leaves(right[2]), strict=True))
        assert not same, f"env.{field} does nothing"
        if pays_otherwise(before, after):
            paying.add(field)
    marked = {path.split(".")[-1] for path, spec in specs.items() if spec.reward}
    assert marked == paying | JUDGED.get(name, set()), "declare it with knob(..., reward=True)"


def pays_otherwise(before, after) -> bool:
    """Whether some episode gets another reward in a turn up to which, and in which, all else is the same."""
    alike = np.ones(BATCH, bool)
    for left, right in zip(before, after, strict=True):
        rest = [(row[0], row[1], row[2].replace(reward=None)) for row in (left, right)]
        for a, b in zip(*map(jax.tree.leaves, rest), strict=True):
            alike &= np.isclose(a, b, rtol=0, atol=0, equal_nan=True).reshape(BATCH, -1).all(axis=1)
        if (alike & (left[2].reward != right[2].reward)).any():
            return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_an_act_put_into_words_is_read_back(name):
    (env, tasks), world, rng = built_in(name), WORLDS[name], np.random.default_rng(5)
    for task in tasks:
        for _ in range(10):
            for act in world.sayable_acts(task, rng):
                equal(env.parse(task, world.agent_text(task, act), None).replace(call=""), act)


@pytest.mark.parametrize("name", NAMES)
def test_splits_are_disjoint_by_content_and_large(name):
    generator = WORLDS[name].generator
    train, test = generator.generate("train", 600, 0), generator.generate("test", 150, 0)
    content = lambda tasks: {str({k: v for k, v in task.data.items() if k != "id"}) for task in tasks}
    assert len({task.id for task in train}) == 600 and len({task.id for task in test}) == 150
    assert len(content(train)) == 600 and not content(train) & content(test)
    others = generator.generate("train", 150, 7)
    assert not content(others) & content(test) and content(others) != content(generator.generate("train", 150, 8))
    assert generator.generate("train", 50, 7) == others[:50]
    ENVS[name].table(train)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arguments, said", [(("dev", 1, 0), "allowed: 'train', 'test'"),
                                             (("train", 0, 0), "1 or more"),
                                             (("test", 10**5, 0), "only about")])
def test_generate_refuses(name, arguments, said, monkeypatch):
    monkeypatch.setattr("eau_jax.envs.generator.PATIENCE", 20)
    with pytest.raises(ValueError, match=said):
        WORLDS[name].generator.generate(*arguments)


def test_feature_names_are_unique_and_state_fields_documented(world):
    name, env, *_ = world
    assert len(set(env.features)) == len(env.features)
    assert dataclasses.is_dataclass(env.knobs) and knob_tree.specs({"env": env.knobs})
    assert isinstance(message.act(Kind.ACTION, 1), Act) and jnp.asarray(0).dtype == jnp.int32
