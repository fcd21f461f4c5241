"""Faults that are put into a run on purpose: what `eau-jax bench-meta` measures a meta-agent against.

    faulty = FAULTS["leaky_user"].inject(config, since=6)      # a healthy run until update 6, then with the fault

What is a setting (a knob, the user's rules, the task mix) is changed by a scheduled `Swap`, as a careless person would do
it. What is no setting changes silently, as a server does that gets a new model: the code around the user, the environment
or the sampler reads a clock, and no generation tells of it. Either way the first generation is healthy, and so are the
evaluations on held-out tasks before the first and after the last update: they compare across faults.
"""

import re
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from eau_jax.assemble import buckets, first_generation, tasks
from eau_jax.config import Config, ConfigError, Swap, knob_tree
from eau_jax.config_file import replace
from eau_jax.core import knobs as knob
from eau_jax.core.part import Env, Kind, TimeStep, User, Words
from eau_jax.core.types import Array
from eau_jax.meta.gate import MIX_FLOOR
from eau_jax.meta.measure import SAME_WORDS
from eau_jax.meta.signals import FAULTS as OWNERS

LEAK, INVENTED, LOST, MISJUDGED = 0.4, 0.5, 0.2, 0.5   # probabilities: of a reply, a reply, a tool's answer, a success
PATIENT = 2                                            # messages that a stonewalling or leaving user answers as he should
TURNS, BONUS, FASTER = 2, 0.3, 20.0                    # agent messages; reward for each message; times the learning rate


class Fault(NamedTuple):
    """One fault; its name is one of `signals.FAULTS`, which says who owns it."""

    name: str
    said: str                                  # what is wrong, in words
    inject: Callable[[Config, int], Config]    # (healthy config, first update with the fault) -> config
    mends: bool = True                         # there is something that a run may change and that mends it

    @property
    def owner(self) -> str:
        """Who is at fault."""
        return OWNERS[self.name]


class Clock:
    """Which update a run is in, told by the weights that its sampler is given, and whether the fault is there.

    Weights are pushed with the number of updates that made them: `since` - 1 before the first faulty update, and the last
    number of all only for what is played after the last update.
    """

    def __init__(self, since: int, updates: int):
        self._faulty, self.version = range(since - 1, updates), -1

    @property
    def on(self) -> bool:
        return self.version in self._faulty

    def traced(self) -> Array:
        """`on` when compiled code runs, bool[]."""
        return jax.pure_callback(lambda: np.bool_(self.on), jax.ShapeDtypeStruct((), np.bool_))

    def sampler(self, config: Config) -> Config:
        """The config with a sampler that sets this clock."""
        clock = self

        class Told(config.rollout.sampler):
            async def push(self, params: Any, version: int, temperature: float) -> None:
                clock.version = version
                await super().push(params, version, temperature)

        return replace(config, {"rollout.sampler": Told})


def paid(env: Env) -> Env:
    """The environment with the knob `ask_bonus`: a reward for every message that can be read and ends nothing, whatever it
    is good for. At 0, its default, nothing is different."""
    doc = "reward for each readable message after which the task goes on"
    bonus = knob.knob(0.0, 0.0, 1.0, doc, reward=True)
    made = struct.dataclass(type("Knobs", (type(env.knobs),), {
        "__annotations__": {"ask_bonus": float}, "__module__": __name__, "ask_bonus": bonus}))

    def step(table: Any, knobs: Any, state: Any, act: Any, reply: Array, key: Any) -> tuple[Any, TimeStep]:
        state, told = env.step(table, knobs, state, act, reply, key)
        goes_on = ~told.done & (act.kind != Kind.MALFORMED)
        return state, told.replace(reward=told.reward + jnp.where(goes_on, knobs.ask_bonus, 0.0).astype(jnp.float32))

    return env._replace(knobs=made(**vars(env.knobs)), step=step)


# Settings


def _setting(config: Config, since: int, **what: Any) -> Config:
    return replace(config, {"swaps": (*config.swaps, Swap(since, **what))})


def _knob(name: str, value: Callable[[float], float]) -> Callable[[Config, int], Config]:
    """A knob by the last parts of its path gets another value.

    Raises, when called:
      ConfigError: where the config has no such knob.
    """
    def inject(config: Config, since: int) -> Config:
        known = knob.values(knob_tree(config))
        path = next((path for path in known if f".{path}".endswith(f".{name}")), None)
        if path is None:
            raise ConfigError(f"the config has no knob {name!r} for the fault to change; `paid` of eau_jax.faults adds "
                              f"ask_bonus, a mixture with the noisy user has leak, every other run has the rest")
        return _setting(config, since, knobs={path: type(known[path])(value(known[path]))})
    return inject


def _rule(reply: str) -> Callable[[Config, int], Config]:
    """From the message after PATIENT on the symbolic user does the same, whatever is said."""
    def inject(config: Config, since: int) -> Config:
        if "turn" not in config.env.features:
            raise ConfigError(f"{config.env.name} does not tell its rules the turn, which this fault needs; leave it out")
        rule = f'[[rule]]\nwhen = {{ turn = {{ min = {PATIENT + 1} }} }}\nreply = "{reply}"\n\n'
        head, mark, rest = first_generation(config).rules.partition("[[rule]]")
        return _setting(config, since, rules=f"{head}\n{rule}{mark}{rest}")
    return inject


def _mix(place: int) -> Callable[[Config, int], Config]:
    """All tasks but the smallest shares are of one bucket: the first (easiest) or the last (hardest)."""
    def inject(config: Config, since: int) -> Config:
        names = list(buckets(config, tasks(config, "train")))
        if not names:
            raise ConfigError("the config has no tasks.bucket, so there is no mix of tasks; leave all_hard and all_easy out")
        shares = dict.fromkeys(names, MIX_FLOOR) | {names[place]: 1 - MIX_FLOOR * (len(names) - 1)}
        return _setting(config, since, task_mix=shares)
    return inject


# What changes silently


def _words(say: Callable[[Words, str], str]) -> Callable[[Config, int], Config]:
    """Replies that a model worded become others; the environment's own words stay."""
    def inject(config: Config, since: int) -> Config:
        user, clock = config.user, Clock(since, config.learn.steps)

        async def voice(knobs: Any, words: Words) -> tuple[str, str]:
            text, spoke = await user.voice(knobs, words)
            return (say(words, text) if clock.on and spoke not in SAME_WORDS else text), spoke

        return clock.sampler(replace(config, {"user": user._replace(voice=voice)}))
    return inject


def _invent(words: Words, text: str) -> str:
    """Something else in place of every value and digit that was to be told."""
    if np.random.default_rng([words.seed % 2**64, 0x6C6965]).random() >= INVENTED:
        return text
    for value in words.disclosed:
        text = text.replace(value, "something else")
    return re.sub(r"\d", lambda digit: str((int(digit[0]) + 4) % 10), text)


def _gush(words: Words, text: str) -> str:
    return f"Thanks. {text} All right?"


def _steps(change: Callable[[TimeStep, Array, Array], TimeStep]) -> Callable[[Config, int], Config]:
    """The environment's steps become others: (time step, whether the fault is there, key) -> time step."""
    def inject(config: Config, since: int) -> Config:
        env, clock = config.env, Clock(since, config.learn.steps)
        if env.host:
            raise ConfigError(f"{env.name} keeps a host state, and this fault changes array steps; leave it out")

        def step(table: Any, knobs: Any, state: Any, act: Any, reply: Array, key: Any) -> tuple[Any, TimeStep]:
            state, told = env.step(table, knobs, state, act, reply, key)
            return state, change(told, clock.traced(), jax.random.fold_in(key, 0x6661))

        return clock.sampler(replace(config, {"env": env._replace(step=step)}))
    return inject


def _flaky(told: TimeStep, on: Array, key: Array) -> TimeStep:
    return told.replace(code=jnp.where(on & ~told.done & (jax.random.uniform(key) < LOST), 0, told.code))


def _too_strict(told: TimeStep, on: Array, key: Array) -> TimeStep:
    missed = on & told.success & (jax.random.uniform(key) < MISJUDGED)
    return told.replace(success=told.success & ~missed, reward=jnp.where(missed, 0.0, told.reward))


def _too_lax(told: TimeStep, on: Array, key: Array) -> TimeStep:
    free = on & told.done
    return told.replace(success=told.success | free, reward=jnp.where(free, jnp.maximum(told.reward, 1.0), told.reward))


def _stale(config: Config, since: int) -> Config:
    """The sampler keeps the weights of the first faulty update, or of the one that a run is resumed at, and says that it has
    the new ones."""
    clock = Clock(since, config.learn.steps)

    class Stale(config.rollout.sampler):
        async def push(self, params: Any, version: int, temperature: float) -> None:
            clock.version = version
            if clock.on and not hasattr(self, "kept"):
                self.kept = jax.tree.map(jnp.copy, params)   # the learner will reuse the memory of these
            await super().push(self.kept if clock.on else params, version, temperature)

    return replace(config, {"rollout.sampler": Stale})


FAULTS: dict[str, Fault] = {fault.name: fault for fault in (
    Fault("leaky_user", f"a share of {LEAK} of a model's replies says a hidden value", _knob("leak", lambda _: LEAK)),
    Fault("stonewalling_user", f"the user declines every question after message {PATIENT}", _rule("WITHHOLD")),
    Fault("premature_stop", f"the user leaves after message {PATIENT}", _rule("LEAVE")),
    Fault("invented_facts", f"a share of {INVENTED} of a model's replies says other values and digits", _words(_invent)),
    Fault("persona_drift", "a model's replies become polite and end in a question", _words(_gush)),
    Fault("flaky_tool", f"a share of {LOST} of the environment's answers is lost", _steps(_flaky), mends=False),
    Fault("broken_checker_negative", f"a share of {MISJUDGED} of the successes counts as failure", _steps(_too_strict),
          mends=False),
    Fault("broken_checker_positive", "every ending counts as success", _steps(_too_lax), mends=False),
    Fault("too_few_turns", f"episodes end after {TURNS} messages", _knob("max_turns", lambda _: TURNS)),
    Fault("farmed_shaping", f"every message that ends nothing earns {BONUS}", _knob("ask_bonus", lambda _: BONUS)),
    Fault("large_updates", f"the policy's learning rate is {FASTER:g} times as high",
          _knob("policy_optimizer.learning_rate", lambda rate: FASTER * rate)),
    Fault("entropy_collapse", "the entropy bonus is off", _knob("entropy.coef", lambda _: 0.0)),
    Fault("all_hard", "nearly all tasks are of the hardest bucket", _mix(-1)),
    Fault("all_easy", "nearly all tasks are of the easiest bucket", _mix(0)),
    Fault("stale_weights", "the sampler keeps its weights and says that they are the new ones", _stale, mends=False))}
