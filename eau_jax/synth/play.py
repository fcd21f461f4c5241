"""Roll out: conversations about synthesised tasks in the environment that trains on them, as text.

The symbolic user decides by the environment's rules, which are compiled arrays: here they are read by numpy, because one
turn
at a time that is ten times as fast as a compiled function. A test holds both to the same answers.
"""

import functools
from typing import Any, Callable, Mapping, Sequence

import jax
import numpy as np

from eau_jax.core.knobs import patch
from eau_jax.core.part import Env, TimeStep, Words
from eau_jax.core.types import ContextFull, InfraError, StopReason, Task
from eau_jax.synth.domain import Domain
from eau_jax.synth.record import Rollout
from eau_jax.users.rules import Rules, compile_rules
from eau_jax.users.voice import Spoken

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

    def play(self, task: Task, agent: Agent, name: str, persona: str, changes: Mapping[str, float], seed: int,
             speak: Callable[[Words], Spoken] | None = None, turns: list[dict[str, Any]] | None = None) -> Rollout:
        """One conversation. What fails outside the agent's control is an infrastructure error, which is never scored. Where
        the agent's context is full, the conversation is cut.

        Args:
          changes: knobs of the environment by which the persona differs.
          speak: words what the user says; the state advances by the rules whatever it says. None: the environment's words.
          turns: an empty list that the turns are added to, for an agent that reads them.
        """
        env, turns = self.env, [] if turns is None else turns
        talk, user = _Talk(env, task, seed), "symbolic" if speak is None else "llm"
        table, knobs = env.table((task,)), patch(env.knobs, changes)
        state = self._reset(table, knobs, 0, None)
        rng = np.random.default_rng(seed)
        try:
            while True:
                try:
                    said = agent(task, state, rng)
                except ContextFull as error:
                    return Rollout(name, persona, StopReason.MAX_TOKENS.value, False, tuple(turns), str(error), user)
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
                call, kind = self.heard(task, act, step), self.act(step, text)
                if speak is not None and not step.tool and not step.done:
                    text = talk.worded(speak, said, text, step, told, len(turns))
                turns.append({"agent": said, "reply": text, "by": "tool" if step.tool else "user", "told": list(told),
                              "act": kind, "call": None if call is None else list(call)})
                if step.done:
                    return Rollout(name, persona, STOPS[int(step.stop) - 1].value, bool(step.success), tuple(turns),
                                   user=user)
        except InfraError as error:
            return Rollout(name, persona, StopReason.INFRA_ERROR.value, False, tuple(turns), str(error), user)


class _Talk:
    """What a user who words replies knows of a conversation."""

    def __init__(self, env: Env, task: Task, seed: int):
        self._env, self._task, self._seed = env, task, seed
        self._opening = env.prompt(task)[1]
        self._history: list[tuple[str, str]] = [("user", self._opening)]
        self._known: list[str] = []
        self._mask = 0

    def worded(self, speak: Callable[[Words], Spoken], heard: str, draft: str, step: TimeStep, told: Sequence[str],
               turn: int) -> str:
        """The user's reply to what the agent said."""
        self._mask |= int(step.disclosed)
        self._known += told
        seed = self._seed + turn
        words = Words(draft=draft, disclosed=tuple(told), secrets=self._env.secrets(self._task, self._mask, seed),
                      opening=self._opening, agent_text=heard, seed=seed, group_seed=seed, history=tuple(self._history),
                      known=tuple(self._known))
        text = speak(words).text
        self._history += [("agent", heard), ("user", text)]
        return text


def task_of(domain: Domain, record: Mapping[str, Any]) -> Task:
    """A record as the environment wants it."""
    return Task(id=record["id"], env=domain.env.name, data=record)
