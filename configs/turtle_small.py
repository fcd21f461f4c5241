"""Turtle, small: an agent finds the story behind a strange scene with yes-no questions.

Reproduces   nothing published: Turtle's rules (UserRL, Qian et al. 2025) on generated scenes.
Hardware     2 CPU cores, 3 GB of memory.
Time         about 3 minutes.
Expected     training success 0.19 -> 0.30 in 25 updates; held-out score 0.40 -> 0.73 (seed 0).
Command      eau-jax train configs/turtle_small.py
"""

from pathlib import Path

from eau_jax.config import Config, Tasks
from eau_jax.config_file import load_config, replace
from eau_jax.envs.gyms import turtle_tasks
from eau_jax.envs.gyms.turtle import turtle


def config() -> Config:
    quickstart = load_config(str(Path(__file__).with_name("quickstart.py")))
    return replace(quickstart, {
        "name": "turtle_small",
        "env": turtle,
        "tasks": Tasks(generate=turtle_tasks.generate, load=turtle_tasks.load, train=2000, test=128),
        "sft.steps": 600, "sft.expert_share": 0.5,
        "rollout.max_tokens": 512, "rollout.max_new_tokens": 64,
        "knobs": {**quickstart.knobs, "env.max_turns": 10},
    })
