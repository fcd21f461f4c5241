"""A run in the middle, for the tests of the gate: the Intention world, its scripted novice's episodes, a few metrics."""

import functools
import json

from flax import struct

from eau_jax.algorithms import gae, loss
from eau_jax.core import knobs as knob
from eau_jax.core.knobs import knob as declared
from eau_jax.core.records import plain
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.envs.gyms.intention import Knobs as IntentionKnobs
from eau_jax.envs.gyms.intention_text import Do
from eau_jax.meta.gate import Context, gate
from eau_jax.meta.invariants import AGENTS, player
from eau_jax.meta.lanes import lanes
from eau_jax.meta.replay_gate import Settings
from eau_jax.rollout.agent import demonstrator
from eau_jax.rollout.collect import collect, run, to_record
from eau_jax.rollout.episode import Budgets, Pinned
from eau_jax.rollout.simulator import simulator
from eau_jax.rollout.template import TINY, TINY_SPECIALS, bind
from eau_jax.rollout.tokenizer import Tokenizer
from eau_jax.users.mixture import mixture
from eau_jax.users.noisy import noisy
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

TASKS = 32
METRICS = frozenset({"rollout/success_rate", "rollout/truncated_rate", "rollout/leak_rate", "learn/entropy"})
MIX = {"easy": 0.5, "medium": 0.3, "hard": 0.2}
CHAT = bind(TINY, Tokenizer(encode=lambda text: [min(ord(letter), 127) for letter in text],
                            decode=lambda ids: "".join(chr(i) for i in ids if i < 128),
                            special=dict(zip(TINY_SPECIALS, range(128, 133))), vocab_size=133))


@struct.dataclass
class Knobs(IntentionKnobs):
    """Intention's, and one that can be farmed."""

    chat_bonus: float = declared(0.0, 0.0, 1.0, "reward for each vague message", reward=True)


def step(table, knobs, state, act, reply, key):
    """Intention's, and a bonus for asking nothing in particular."""
    state, out = intention.step(table, knobs, state, act, reply, key)
    return state, out.replace(reward=out.reward + knobs.chat_bonus * ((act.code == Do.VAGUE) | (act.code == Do.OFF_TOPIC)))


ENV = intention._replace(name="chatty", knobs=Knobs(), step=step)
USER = mixture(symbolic, noisy)
KNOBS = {"env": ENV.knobs, "user": USER.knobs, "rl": {"advantage": gae.gae.knobs, "entropy": loss.EntropyKnobs()}}


@functools.lru_cache(maxsize=None)
def world(env=ENV):
    """(simulator, lanes, play) over generated training tasks."""
    made = simulator(env, USER, tuple(intention_tasks.generate("train", TASKS, 0)))
    many = lanes(made, TASKS * len(AGENTS))
    return made, many, player(many, 0)


def settings(rules=ENV.rules, **changes):
    """Default knobs but for `changes` of env knobs."""
    return Settings(knob.patch(KNOBS, {f"env.{name}": value for name, value in changes.items()}), rules)


@functools.lru_cache(maxsize=None)
def records(group=2):
    """Episodes of the novice as they stand in episodes/19.jsonl."""
    made, _, _ = world()
    pinned = Pinned(KNOBS, compile_rules(ENV.rules, ENV.features), 3)
    groups, _ = run(collect(made, demonstrator(ENV.novice, CHAT), CHAT, pinned, Budgets(4096, 600), indices=range(TASKS),
                            group_size=group, run_seed=0, step=1))
    return [json.loads(json.dumps(plain(to_record(episode)))) | {"step": 19} for rows in groups for episode in rows]


def context(**changes):
    """Generation 3 of a run whose settings are the defaults, before update 20."""
    _, many, play = world()
    now = settings()
    return Context(**{"generation": 3, "step": 20, "current": now, "first": now, "lanes": many, "play": play,
                      "metrics": METRICS, "task_mix": MIX, "swaps_left": 5, "episodes": records()} | changes)


def proposal(**fields):
    """A good proposal as JSON text, but for `fields`."""
    return json.dumps({
        "base_generation": 3, "diagnosis": {"owner": "env", "fault": "too_few_turns"},
        "prediction": {"metric": "rollout/success_rate", "direction": "up", "min_effect": 0.05, "within_updates": 5},
        "ttl_updates": 10, "why": "Episodes are cut."} | ({} if {"rules", "task_mix"} & fields.keys() else
                                                          {"changes": {"env.max_turns": 20}}) | fields)


def decide(text, **changes):
    """What the gate makes of a text."""
    return gate(text, context(**changes), id="p1", author="test")
