"""A small world, tokenizer and agents for the tests of rollout/: real implementations of the interfaces.

The user hides a colour and a number. "[action] colour?" asks, "[answer] red" solves, "[finish]" gives up.
"""

import asyncio
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.part import Act, Env, Kind, Reply, TimeStep, Words
from eau_jax.core.types import InfraError, StopReason, Task
from eau_jax.rollout.agent import policy
from eau_jax.rollout.episode import Budgets, Pinned
from eau_jax.rollout.simulator import simulator
from eau_jax.rollout.template import TINY, TINY_SPECIALS, bind
from eau_jax.rollout.tokenizer import Tokenizer
from eau_jax.samplers.scripted import Scripted
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

NAMES = ("colour", "number")
TASKS = (Task("a", "hidden", {"colour": "red", "number": "7", "opening": "Guess."}),
         Task("b", "hidden", {"colour": "blue", "number": "12", "opening": "Guess mine."}),
         Task("c", "hidden", {"colour": "green", "number": "3", "opening": "Go."}))
STOPS = tuple(StopReason)

# A letter is its own token; the control tokens of the tiny template follow: 128 system, 129 user, 130 tool, 131 agent,
# 132 end.
SYSTEM, USER, TOOL, AGENT, END = range(128, 133)
LETTERS = Tokenizer(
    encode=lambda text: [min(ord(letter), 127) for letter in text],
    decode=lambda ids: "".join(chr(i) for i in ids if i < 128),
    special=dict(zip(TINY_SPECIALS, range(128, 133))), vocab_size=133)
CHAT = bind(TINY, LETTERS)


@struct.dataclass
class Knobs:
    max_turns: int = knob(6, 1, 64, "agent messages")
    max_invalid: int = knob(2, 1, 64, "unreadable messages")
    gain: float = knob(0.25, 0.0, 1.0, "reward for a value told")


@struct.dataclass
class State:
    task: Any
    turn: Any
    told: Any
    invalid: Any
    draw: Any           # what `reset` drew


def reset(table, knobs, index, key):
    zero = jnp.int32(0)
    return State(jnp.asarray(index, jnp.int32), zero, zero, zero, jax.random.randint(key, (), 0, 1 << 30))


def observe(table, knobs, state, act):
    return jnp.stack([jnp.asarray(act.mask, jnp.int32), state.turn + 1])


def step(table, knobs, state, act, reply, key):
    malformed, ask = act.code == 0, act.code == 1
    right = (act.code == 2) & (act.mask == table[state.task])
    told = jnp.where(ask & (reply == Reply.ANSWER), act.mask, 0)
    fresh = told & ~state.told
    turn, invalid = state.turn + 1, state.invalid + malformed
    codes = [(right, StopReason.COMPLETED), (act.code == 3, StopReason.COMPLETED),
             (invalid >= knobs.max_invalid, StopReason.PARSE_ERROR), (reply == Reply.LEAVE, StopReason.USER_LEFT),
             (turn >= knobs.max_turns, StopReason.MAX_TURNS)]
    stop = jnp.int32(0)
    for condition, reason in reversed(codes):
        stop = jnp.where(condition, 1 + STOPS.index(reason), stop)
    code = jnp.where(malformed, 0, jnp.where(told != 0, 1, jnp.where(ask, 4, jnp.where(right, 2, 3))))
    reward = right.astype(jnp.float32) + knobs.gain * (fresh != 0)
    return (State(state.task, turn, state.told | told, invalid, state.draw),
            TimeStep(code=code.astype(jnp.int32), disclosed=told, reward=reward, discount=1.0 - (stop != 0),
                     done=stop != 0, success=right, stop=stop, tool=jnp.bool_(False)))


def parse(task, text, state):
    kind, code, mask = Kind.MALFORMED, 0, 0
    if text.startswith("[action]"):
        kind, code = Kind.ACTION, 1
        mask = sum(1 << slot for slot, name in enumerate(NAMES) if name in text)
    elif text.startswith("[answer]"):
        kind, code, mask = Kind.ANSWER, 2, len(text.removeprefix("[answer]").strip())
    elif text.startswith("[finish]"):
        kind, code = Kind.FINISH, 3
    return Act(kind=np.int32(kind), code=np.int32(code), mask=np.int32(mask), values=np.zeros(4, np.float32),
               flags=np.int32(0))


def values(task, mask, seed):
    return tuple(task.data[name] for slot, name in enumerate(NAMES) if mask >> slot & 1)


def render(task, act, time_step, state, seed):
    told = " ".join(values(task, int(time_step.disclosed), seed))
    return {0: "What?", 1: told, 2: "Yes.", 3: "No.", 4: "Hm."}[int(time_step.code)]


RULES = """
default = "ANSWER"
[[rule]]
when = { turn = { min = 5 } }
reply = "LEAVE"
"""
WORLD = Env(
    name="hidden", knobs=Knobs(), features=("mask", "turn"), rules=RULES,
    table=lambda tasks: np.array([len(task.data["colour"]) for task in tasks], np.int32), reset=reset, observe=observe,
    step=step, prompt=lambda task: ("S", task.data["opening"]), parse=parse, render=render, disclosed=values,
    secrets=lambda task, mask, seed: values(task, ~mask, seed), score=lambda task, state, total: min(total, 1.0),
    metric=lambda task, state, total: total,
    expert=lambda task, state, rng: f"[answer] {task.data['colour']}" if int(state.told) & 1 else "[action] colour?",
    novice=lambda task, state, rng: "[finish]")

SIMULATOR = simulator(WORLD, symbolic, TASKS)
PINNED = Pinned({"env": WORLD.knobs, "user": symbolic.knobs, "rl": {}}, compile_rules(RULES, WORLD.features),
                generation=3)
BUDGETS = Budgets(max_tokens=256, max_new_tokens=32, agent_seconds=5.0, user_seconds=5.0)


def saying(*lines: str, log: list | None = None, end: bool = True) -> Scripted:
    """A sampler that says these lines, one per turn of any session; `log` collects the histories it was fed."""
    def reply(history: np.ndarray, session: str) -> list[int]:
        if log is not None:
            log.append((session, history.copy()))
        line = lines[int((history == AGENT).sum()) - 1]
        return [*LETTERS.encode(line), *([END] if end else [])]
    return Scripted(reply)


def agent(*lines: str, **more: Any):
    return policy(saying(*lines, **more))


def voiced(voice: Callable[[Any, Words], Any]):
    """The small world with a user of another voice."""
    return simulator(WORLD, symbolic._replace(name="llm", voice=voice), TASKS)


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


async def broken(knobs: Any, words: Words) -> tuple[str, str]:
    raise InfraError("the server answered 503")


def ids(text: str) -> list[int]:
    """"S|u|Hi|a|" as token ids: a letter between bars is a control token: s u t a e."""
    parts = text.split("|")
    tags = dict(s=SYSTEM, u=USER, t=TOOL, a=AGENT, e=END)
    return [i for n, part in enumerate(parts) for i in ([tags[part]] if n % 2 else [ord(letter) for letter in part])]
