"""Telepathy, small: an agent guesses what its user thinks of.

Reproduces   nothing published: Telepathy's rules (UserRL, Qian et al. 2025) on generated secrets.
Hardware     2 CPU cores, 3 GB of memory.
Time         about 2 minutes.
Expected     training success 0.54 -> 0.88 in 12 updates, 0.86 held out (seed 0).
Command      eau-jax train configs/telepathy_small.py
"""

from pathlib import Path

from eau_jax.config import Config, Tasks
from eau_jax.config_file import load_config, replace
from eau_jax.envs.gyms import telepathy_tasks
from eau_jax.envs.gyms.telepathy import telepathy


def config() -> Config:
    quickstart = load_config(str(Path(__file__).with_name("quickstart.py")))
    return replace(quickstart, {
        "name": "telepathy_small",
        "env": telepathy,
        "tasks": Tasks(generate=telepathy_tasks.generate, load=telepathy_tasks.load, train=2000, test=128),
        "sft.steps": 600, "sft.expert_share": 0.5,
        "rollout.max_tokens": 384, "rollout.max_new_tokens": 24,
        "knobs": {**quickstart.knobs, "env.max_turns": 12},
    })
