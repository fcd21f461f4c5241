"""AReaL-SEA, small: synthesised tasks, fine-tuning of agent and user, GRPO with dynamic filtering, and four ablations.

One command makes it all: three sets of telecom tasks, a model of the user, and agents, which are fine-tuned (the column
"before") and then trained; see `eau_jax/areal_sea.py`. Stopped, it goes on. Held-out tasks are played with the symbolic
user, who keeps to the rules. `untuned` does not: he drifts, leaves, paraphrases and leaks.

Reproduces   EigenData / AReaL-SEA (arXiv:2601.22607) at toy size: phones with one to three of seven faults, a short system
             text, a model of 0.2 million parameters, 8 tasks x 12 episodes for the paper's 8 x 64. Four in ten of the
             tasks are wrong (`synth/domains/telecom_flaws.py`), as a language model's may be. Other than in the paper
             every episode weighs the same, a KL holds the policy near its start, and a batch makes two steps: with the token
             mean, no KL and four larger steps the long failures of a batch this small take success down.
Hardware     2 CPU cores, 3 GB of memory.
Time         about an hour with --jobs 2: an estimate from the speed of other runs, not measured.
Expected     not measured as a whole. One seed with scripted conversations and the symbolic user: held-out success 0.48 after
             fine-tuning, 0.65 after 8 updates, 40 tasks.
Command      eau-jax compare-methods configs/areal_sea_small.py --jobs 2      (--seeds 0: a first look)
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from eau_jax.algorithms.reduction import sequence_mean_token_mean
from eau_jax.areal_sea import areal_sea, on
from eau_jax.config import Config, Evaluation, Learn, Sft
from eau_jax.config_file import load_config, load_method, replace, with_algorithm
from eau_jax.core.part import User
from eau_jax.core.types import Task
from eau_jax.envs.telecom.agents import words
from eau_jax.envs.telecom.codes import FIRST_PHONE, LAST_PHONE, Do
from eau_jax.envs.telecom.parse import FACTS
from eau_jax.local_chat import LocalChat
from eau_jax.rollout.template import TINY
from eau_jax.study import Study
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.domains.telecom_flaws import flawed
from eau_jax.synth.plan import SynthPlan
from eau_jax.users.noisy import noisy
from eau_jax.users.role_play import role_play
from eau_jax.users.symbolic import symbolic

CONFIGS = Path(__file__).parent
MENDABLE = ("airplane", "sim", "apn", "data", "saver", "vpn", "mode")     # what customers can mend on their phones
SYSTEM = "You work for a phone company. Tell the customer what to check and what to change."
LOOKED_UP = ~(1 << Do.TRANSFER_TO_HUMAN_AGENTS)      # mask of the agent's tools, as if all others had been called
CARE = 0.5                                           # how often the clumsy agent does what the handy one would
RECENT = 1                                           # exchanges that the model of the user sees: what it replies to


def briefly(task: Task) -> tuple[str, str]:
    """What the agent is told first, without the policy and the list of tools: 300 tokens that a small model cannot use."""
    return SYSTEM, telecom.env.prompt(task)[1]


def handy(task: Task, state: Any, rng: np.random.Generator) -> str:
    """The expert, but for the account, which has no part in these faults: a small model cannot copy a phone number. The one
    tool that is left to it is the transfer, for a locked SIM card; it only says so."""
    said = telecom.env.expert(task, state.replace(told=FACTS, tools=LOOKED_UP), rng)
    return words(Do.ANNOUNCE) if said.startswith("<tool_call>") else said


def clumsy(task: Task, state: Any, rng: np.random.Generator) -> str:
    """Half of the time the same, else anything on the phone."""
    if rng.random() < CARE:
        return handy(task, state, rng)
    return words(int(rng.integers(FIRST_PHONE, LAST_PHONE + 1)), int(rng.integers(2)), int(rng.integers(4)))


DOMAIN = flawed(telecom._replace(
    env=telecom.env._replace(prompt=briefly, expert=handy, novice=clumsy),
    atoms=tuple(atom for atom in telecom.atoms if atom.family != "mms_issue" and atom.id.partition("@")[0] in MENDABLE)
))._replace(where=f"{os.path.relpath(__file__)}:DOMAIN")
PLAN = SynthPlan(domain=DOMAIN, name="areal_sea_small", count=360, rounds=3, sizes={1: 0.3, 2: 0.4, 3: 0.3}, shard=60,
                 outcomes={"fulfil": 1.0}, distractors=(0,), novices=2, jobs=2)


def agent() -> Config:
    """A small model, a short fine-tuning, and GRPO as EigenData's but for what is said above."""
    quickstart = load_config(str(CONFIGS / "quickstart.py"))
    base = replace(quickstart, {
        "model.vocab_size": 512,
        "sft": Sft(steps=60, batch=16, learning_rate=2e-3),
        "rollout.tasks": 8, "rollout.group": 12, "rollout.max_tokens": 512, "rollout.max_new_tokens": 32,
        "learn": Learn(minibatches=2, rows=4), "eval": Evaluation(samples=2, user=symbolic),
        "knobs": {"env.max_turns": 14, "rl.policy_optimizer.learning_rate": 3e-4, "rl.kl.coef": 0.03},
    })
    eigendata = load_method(CONFIGS / "methods" / "eigendata.py")(base)
    return with_algorithm(eigendata, reduction=sequence_mean_token_mean)


def speaks(folder: str) -> User:
    """Who speaks through the fine-tuned model of the user, the likeliest words."""
    return role_play(LocalChat(folder, TINY, slots=32, max_tokens=320, max_new_tokens=48, temperature=0.0), RECENT)


def study() -> Study:
    turns = on(PLAN, agent(), "user_sft.jsonl")
    return areal_sea(
        PLAN, agent(), replace(turns, {"sft.steps": 500, "sft.recent": RECENT, "rollout.max_tokens": 320}), speaks,
        untuned=noisy._replace(name="untuned", knobs=noisy.knobs.replace(drift=0.3, leave=0.05, paraphrase=0.9, leak=0.1)),
        name="areal_sea_small", seeds=(0, 1, 2), updates=12)
