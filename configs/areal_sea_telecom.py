"""AReaL-SEA on telecom with Qwen3-4B: synthesised tasks, fine-tuning of agent and user, GRPO with dynamic filtering.

One command makes it all and goes on where it was stopped; see `eau_jax/areal_sea.py`, which also says what the ablations
are. The model of the user speaks in the trainer's process. In no_user_sft the same weights speak as they were before.

Reproduces   EigenData / AReaL-SEA (arXiv:2601.22607), telecom: fine-tuning 85.4, RL with the tuned user 95.6, with an
             untuned one 75.6 (pass^1 on tau2-bench, Qwen3-30B-A3B). Here Qwen3-4B on synthesised tasks of ours, 8 tasks x 64
             episodes of 12288 tokens, held-out tasks with the symbolic user. RL settings as configs/methods/eigendata.py.
Hardware     one 141 GB GPU; a plan counts 112 GB for the agent, and 8 GB are the user's weights.
Time         not measured; the paper trains on 64 H200.
Expected     not measured.
Command      EAU_MODEL=PATH eau-jax compare-methods configs/areal_sea_telecom.py      (a folder with Qwen3-4B's weights)
"""

import os
from pathlib import Path

from eau_jax.areal_sea import areal_sea
from eau_jax.config import Config, Evaluation, Sft, Tasks
from eau_jax.config_file import load_config, replace
from eau_jax.core.part import User
from eau_jax.local_chat import LocalChat
from eau_jax.rollout.template import QWEN3
from eau_jax.study import Study
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.domains.telecom_flaws import flawed
from eau_jax.synth.plan import SynthPlan
from eau_jax.users.role_play import role_play
from eau_jax.users.symbolic import symbolic

CONFIGS = Path(__file__).parent
MODEL = os.environ.get("EAU_MODEL", "Qwen3-4B")
DOMAIN = flawed(telecom)._replace(where=f"{os.path.relpath(__file__)}:DOMAIN")
PLAN = SynthPlan(domain=DOMAIN, name="areal_sea_telecom", count=4000, rounds=4, outcomes={"fulfil": 1.0}, distractors=(0,),
                 novices=2)


def agent() -> Config:
    """EigenData's setting, and one to two epochs of fine-tuning before."""
    eigendata = load_config(str(CONFIGS / "methods" / "eigendata.py"))
    return replace(eigendata, {
        "tasks": Tasks(), "model.folder": MODEL,
        "sft": Sft(steps=250, batch=64, learning_rate=1e-5),
        "eval": Evaluation(every=50, samples=4, temperature=0.6, user=symbolic),
    })


def speaks(folder: str) -> User:
    """Who speaks through a model of the user, fine-tuned or not."""
    return role_play(LocalChat(folder, QWEN3, slots=8, max_tokens=6144, max_new_tokens=256, param_dtype="bfloat16"))


def study() -> Study:
    user = replace(agent(), {"sft.steps": 1000, "rollout.max_tokens": 6144})
    return areal_sea(PLAN, agent(), user, speaks, untuned=speaks(MODEL)._replace(name="untuned"), name="areal_sea_telecom",
                     seeds=(0,), updates=200)
