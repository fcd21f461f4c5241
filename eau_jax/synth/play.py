"""Roll out: conversations about synthesised tasks in the environment that trains on them, as text.

The symbolic user decides by the environment's rules, which are compiled arrays: here they are read by numpy, because one
turn
at a time that is ten times as fast as a compiled function. A test holds both to the same answers.
"""

import functools
from typing import Any, Callable, Mapping

import jax
import numpy as np

from eau_jax.core.knobs import patch
from eau_jax.core.types import InfraError, StopReason, Task
from eau_jax.synth.domain import Domain
from eau_jax.synth.record import Rollout
from eau_jax.users.rules import Rules, compile_rules

Agent = Callable[[Task, Any, np.random.Generator], str]
STOPS = tuple(StopReason)


def decide(rules: Rules, features: np.ndarray) -> int:
    """The reply of the first rule all of whose ranges hold. features: i32[F]"""
    count = int(rules.count)
    holds = ((rules.low[:count] <= features) & (features <= rules.high[:count])).all(axis=1)
    return int(rules.reply[int(holds.argmax())]) if holds.any() else int(rules.default)


_compiled = functools.lru_cache(jax.jit)     # shards share what is compiled


class Stage:
    """Plays tasks of one environment; made once for a domain, since rules are compiled and tools described once."""

    def __init__(self, domain: Domain):
        env = self.env = domain.env
        self.heard, self.act = domain.heard, domain.act
        self.rules = compile_rules(env.rules, env.features)
        self._step = None if env.host else _compiled(env.step)
        self._observe = env.observe if env.host else _compiled(env.observe)
        self._reset = env.reset if env.host else _compiled(env.reset)

    def play(self, task: Task, agent: Agent, name: str, persona: str, changes: Mapping[str, float], seed: int) -> Rollout:
        """One conversation. What fails outside the agent's control is an infrastructure error, which is never scored.

        Args:
          changes: knobs of the environment by which the persona differs.
        """
        env, turns = self.env, []
        table, knobs = env.table((task,)), patch(env.knobs, changes)
        state = self._reset(table, knobs, 0, None)
        rng = np.random.default_rng(seed)
        try:
            while True:
                said = agent(task, state, rng)
                act = env.parse(task, said, state)
                features = np.asarray(self._observe(table, knobs, state, act.replace(call="")), np.int32)
                reply = decide(self.rules, features)
                if self._step is None:
                    state, step = env.step(table, knobs, state, act, reply, None)
                else:
                    moved = self._step(table, knobs, state, act.replace(call=""), np.int32(reply), None)
                    state, step = jax.tree.map(np.asarray, moved)
                text = env.render(task, act, step, state, seed + len(turns))
                told = env.disclosed(task, int(step.disclosed), seed + len(turns))
                call = self.heard(task, act, step)
                turns.append({"agent": said, "reply": text, "by": "tool" if step.tool else "user", "told": list(told),
                              "act": self.act(step, text), "call": None if call is None else list(call)})
                if step.done:
                    return Rollout(name, persona, STOPS[int(step.stop) - 1].value, bool(step.success), tuple(turns))
        except InfraError as error:
            return Rollout(name, persona, StopReason.INFRA_ERROR.value, False, tuple(turns), str(error))


def task_of(domain: Domain, record: Mapping[str, Any]) -> Task:
    """A record as the environment wants it."""
    return Task(id=record["id"], env=domain.env.name, data=record)
