"""Agents that do not try score no more than `Env.floor` says, and what upstream's rules pay them is seen to be more.

By default on a few generated tasks, and on upstream's where they are here; the slow run takes more of both.
"""

from pathlib import Path

import jax
import numpy as np
import pytest
from nulls import KINDS, agents
from play import ENVS, WORLDS, turn

from eau_jax.core.types import Task
from eau_jax.envs.gyms import intention_match
from eau_jax.users.rules import compile_rules

GYMS = sorted(name for name in ENVS if name not in ("colbench", "telecom"))   # test_worlds.py and test_telecom.py have these
FILES = {name: f"usergym/{name}/test.parquet" for name in GYMS} | {"travel": "usergym/travel/synthetic_sample.json"}


class Row:
    """Row `b` of a pytree of arrays, field by field."""

    def __init__(self, tree, b):
        self.tree, self.b = tree, b

    def __getattr__(self, name):
        return getattr(self.tree, name)[self.b]


def scores(env, tasks, speakers, knobs=None):
    """({name: scores [tasks]}, {name: share of successes}) of agents; all episodes run side by side."""
    knobs = env.knobs if knobs is None else knobs
    table, rules = env.table(tasks), compile_rules(env.rules, env.features)
    places = np.tile(np.arange(len(tasks), dtype=np.int32), len(speakers))
    say = [agent for agent in speakers.values() for _ in tasks]
    state = jax.device_get(jax.vmap(lambda index: env.reset(table, knobs, index, None))(places))
    seen = [list(env.prompt(tasks[index])) for index in places]
    total, won, number = np.zeros(len(places)), np.zeros(len(places), bool), 0
    batched = jax.jit(jax.vmap(turn(env), (None, None, None, 0, 0, None)))
    while not state.done.all():
        live = np.flatnonzero(~state.done)
        said = {b: env.parse(tasks[places[b]], say[b](seen[b], number), Row(state, b)) for b in live}
        acts = [said.get(b, said[live[0]]).replace(call="") for b in range(len(places))]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *acts)
        state, step, _, _ = jax.device_get(batched(table, knobs, rules, state, stacked, None))
        total[live] += step.reward[live]
        won[live] |= step.success[live]
        for b in live:
            seen[b].append(env.render(tasks[places[b]], said[b], Row(step, b), Row(state, b), int(b) + number))
        number += 1
    points = np.array([env.score(tasks[places[b]], Row(state, b), total[b]) for b in range(len(places))])
    shape = len(speakers), len(tasks)
    return dict(zip(speakers, points.reshape(shape))), dict(zip(speakers, won.reshape(shape).mean(1)))


def upstream(name, folder, count):
    """At most `count` of upstream's tasks, none where they are not here."""
    try:
        return WORLDS[name].generator.load(folder / FILES[name])[:count]
    except (ImportError, FileNotFoundError):
        return ()


@pytest.fixture(scope="module")
def folder(request):
    try:
        return request.getfixturevalue("shared_data")
    except pytest.skip.Exception:
        return None


@pytest.mark.parametrize("count", [pytest.param(6, id="few"), pytest.param(60, id="many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", GYMS)
def test_agents_that_do_not_try(folder, name, count):
    """No kind scores more than stated, on generated tasks or upstream's, within two standard errors of the mean over tasks.
    With many tasks the statement is also seen to be no looser than it has to be."""
    generated = WORLDS[name].generator.generate("test", count, 1)
    tasks = generated + (() if folder is None else upstream(name, folder, count))
    kinds = {kind: agents(kind) | getattr(WORLDS[name], "NULLS", {}).get(kind, {}) for kind in KINDS}
    found, _ = scores(ENVS[name], tasks, {(kind, agent): say for kind in KINDS for agent, say in kinds[kind].items()})
    for kind in KINDS:
        stated, best = getattr(ENVS[name].floor, kind), 0.0
        for agent in kinds[kind]:
            for part in filter(len, (found[kind, agent][:count], found[kind, agent][count:])):
                error = 2 * part.std() / len(part) ** 0.5
                assert part.mean() - error <= stated, (kind, agent, part.mean())
                best = max(best, part.mean())
        assert count < 60 or folder is None or stated - best < 0.12, (kind, best)


# gym, rules of upstream, an agent that they pay, its kind
QUIRKS = [("function", dict(max_wrong=64), "[answer] count", "guesses"),
          ("search", dict(max_wrong=64), "value by value", "guesses"),
          ("telepathy", dict(max_wrong=64), "thing by thing", "guesses"),
          ("turtle", dict(max_stories=64, answer_cost=0.0), "story by story", "guesses"),
          ("travel", dict(look_first=0), "[answer] first id", "guesses"),
          ("intention", dict(patience=64), "name by name", "guesses"),
          ("persuade", dict(reasons=0), "[answer] but", "echo"), ("persuade", dict(patience=64), "one counter", "guesses")]


@pytest.mark.parametrize("name, changes, agent, kind", QUIRKS)
def test_upstreams_rules_pay_more(name, changes, agent, kind):
    env, tasks = ENVS[name], WORLDS[name].generator.generate("test", 24, 0)
    found, _ = scores(env, tasks, {agent: (agents(kind) | WORLDS[name].NULLS.get(kind, {}))[agent]}, knobs(env, **changes))
    assert found[agent].mean() > getattr(env.floor, kind) + 0.05, found[agent].mean()


@pytest.mark.parametrize("name, agent, least", [("search", "look, last words", 0.45),
                                                ("intention", "[action] two topics", 0.5)])
def test_agents_that_set_a_floor_reach_it(folder, name, agent, least):
    """Search: what the question itself finds holds half of the answers. Intention: two topics a message, of upstream."""
    tasks = WORLDS[name].generator.generate("test", 400, 1) if name == "search" else upstream(name, folder or Path(), 40)
    if not tasks:
        pytest.skip("upstream's files are not here")
    found = scores(ENVS[name], tasks, {agent: agents("guesses")[agent]})[0][agent].mean()
    assert least < found <= ENVS[name].floor.guesses, found


def knobs(env, **changes):
    return env.knobs.replace(**{k: np.asarray(v, getattr(env.knobs, k).dtype) for k, v in changes.items()})


def test_asking_for_everything_succeeds_under_upstreams_rule_only():
    env, tasks = ENVS["intention"], WORLDS["intention"].generator.generate("test", 24, 0)
    plain = tuple(Task(id=task.id, env=task.env, data={**task.data, "beside": []}) for task in tasks)
    every = {"all": WORLDS["intention"].NULLS["everything"]["every name"]}
    assert scores(env, plain, every)[1]["all"] == 0.0
    assert scores(env, plain, every, knobs(env, ask_cap=16))[1]["all"] == 1.0


def test_a_matcher_that_takes_echoes_for_questions_is_found_out(shared_data, monkeypatch):
    tasks = upstream("intention", shared_data, 24)
    if not tasks:
        pytest.skip("upstream's files are not here")
    monkeypatch.setattr(intention_match, "ECHO", 2.0)
    found, _ = scores(ENVS["intention"], tasks, {"echo": agents("echo")["[action] more about"]})
    assert found["echo"].mean() > ENVS["intention"].floor.echo + 0.05
