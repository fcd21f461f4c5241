"""The array path of tau2-bench retail and airline against the host path: the same acts, rewards, endings and records."""

import json
import random

import jax
import numpy as np
import pytest

from eau_jax.core.part import Reply
from eau_jax.envs import tau2_data
from eau_jax.envs.retail_slice import retail_slice
from eau_jax.envs.tau2_agent import HANDOVER, REFUSAL, tool_call
from eau_jax.envs.tau2_database import View
from eau_jax.envs.tau2_plan import plan
from eau_jax.envs.tau2_user import Do, Say
from eau_jax.envs.tau2_world import world

SLICES = {"retail": retail_slice}
WORDS = ("What is your name?", "Your zip code and e-mail?", "User id?", "Which order number?", "Which reservation?",
         "What items?", "How do you pay?", "Shall I proceed?", "Shall I take paypal_0000000?", REFUSAL, "Anything else?",
         "It is done.", "Tell me everything.", "Let me see.", "", "<tool_call>{", HANDOVER)


class Pair:
    """A domain played on both paths."""

    def __init__(self, domain):
        self.domain, self.host, self.env = domain, world(domain), SLICES[domain.name](domain)
        self.rows, self.table = self.host.table(domain.tasks), self.env.table(domain.tasks)
        self.traces = 0

        def one(table, knobs, state, act, reply):
            self.traces += 1
            features = self.env.observe(table, knobs, state, act)
            return features, *self.env.step(table, knobs, state, act, reply, None)

        self.reset = jax.jit(lambda table, knobs, index: self.env.reset(table, knobs, index, None))
        self.step = jax.jit(one)
        self.device = jax.device_put(self.table)


@pytest.fixture(scope="module")
def pairs(shared_data):
    folder = shared_data / "tau2"
    if not folder.is_dir():
        pytest.skip("tau2-bench's files are not here")
    return {name: Pair(tau2_data.load(folder / name)) for name in SLICES}


def knobs(env, **changes):
    return env.knobs.replace(**{name: np.asarray(value, getattr(env.knobs, name).dtype) for name, value in changes.items()})


def numpy(tree):
    return jax.tree.map(np.asarray, tree)


def play(pair, index, agent, settings=None, reply=None, outputs=True, seed=0):
    """Plays a task on the host path, whose state the agent sees, and the same messages on the array path.
    -> (host's last state, the array path's)"""
    host, env, task = pair.host, pair.env, pair.domain.tasks[index]
    settings, rng = host.knobs if settings is None else settings, np.random.default_rng(seed)
    old, new = host.reset(pair.rows, settings, index, None), numpy(pair.reset(pair.device, settings, np.int32(index)))
    while not old.done:
        text = agent(task, old, rng)
        left, right = host.parse(task, text, old), env.parse(task, text, new)
        decided = np.int32(Reply.LEAVE if int(settings.patience) - old.useless <= 0 else reply(rng) if reply else Reply.ANSWER)
        features = host.observe(pair.rows, settings, old, left)
        old, expected = host.step(pair.rows, settings, old, left, decided, None)
        seen, new, found = numpy(pair.step(pair.device, settings, new, right.replace(call=""), decided))
        where = (task.id, text, host.render(task, left, expected, old, 0)[:300])
        assert seen.tolist() == features.tolist(), (where, seen, features)
        for name in ("code", "disclosed", "reward", "discount", "done", "success", "stop", "tool"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name)), (name, where)
        assert (new.told, new.turn, new.errors, new.useless) == (old.told, old.turn, old.errors, old.useless), where
        assert new.status.tolist()[:len(old.status)] == list(old.status), where
        assert new.transferred == old.transferred
        if outputs:
            texts = [path.render(task, act, step, state, 0)
                     for path, act, step, state in ((host, left, expected, old), (env, right, found, new))]
            assert _equal(*map(_read, texts)), (where, texts)
    return old, new


def _read(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def _equal(left, right):
    """Equal, amounts to the cent."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool)
    return abs(left - right) < 1e-6 if number(left) and number(right) else left == right


def saying(*messages):
    return lambda task, state, rng: messages[min(state.turn, len(messages) - 1)]


@pytest.mark.parametrize("name, agent, expected", [("retail", "expert", 114), ("retail", REFUSAL, 7), ("retail", "hello", 0)])
def test_what_scripted_agents_score(pairs, name, agent, expected):
    pair = pairs[name]
    agent = pair.host.expert if agent == "expert" else saying(agent)
    ends = [play(pair, index, agent)[1] for index in range(len(pair.domain.tasks))]
    assert sum(pair.env.score(None, state, 0.0) for state in ends) == expected
