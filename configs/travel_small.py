"""Travel, small: an agent finds out a traveller's wishes before it recommends.

Reproduces   nothing published: Travel's rules (UserRL, Qian et al. 2025) on generated trips.
Hardware     2 CPU cores, 3 GB of memory.
Time         about 6 minutes.
Expected     held-out score about 0.14 after the cold start (seed 0); after PPO not measured.
Command      eau-jax train configs/travel_small.py
"""

from pathlib import Path

from eau_jax.config import Config, Tasks
from eau_jax.config_file import load_config, replace
from eau_jax.envs.gyms import travel_tasks
from eau_jax.envs.gyms.travel import travel


def config() -> Config:
    quickstart = load_config(str(Path(__file__).with_name("quickstart.py")))
    return replace(quickstart, {
        "name": "travel_small",
        "env": travel,
        "tasks": Tasks(generate=travel_tasks.generate, load=travel_tasks.load, train=2000, test=128),
        "sft.steps": 600, "sft.expert_share": 0.5,
        "rollout.max_tokens": 640, "rollout.max_new_tokens": 32,
        "knobs": {**quickstart.knobs, "env.max_turns": 10},
    })
