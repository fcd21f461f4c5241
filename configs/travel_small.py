"""Travel, small: an agent finds out a traveller's wishes before it recommends.

Reproduces   nothing published: Travel's rules (UserRL, Qian et al. 2025) on generated trips of one wish, which the
             user states plainly, and three options.
Hardware     2 CPU cores, 3 GB of memory.
Time         about 5 minutes.
Expected     training success 0.16 -> 0.35 in 25 updates; held-out score 0.23 -> 0.51 (seed 0).
Command      eau-jax train configs/travel_small.py
"""

import dataclasses
from pathlib import Path

from eau_jax.config import Config, Tasks
from eau_jax.config_file import load_config, replace
from eau_jax.core.types import Task
from eau_jax.envs.gyms import travel_tasks
from eau_jax.envs.gyms.travel import travel


def short(split: str, count: int, seed: int) -> tuple[Task, ...]:
    """Tasks about one aspect and one wish, a quarter of the generated ones, with three options to choose from."""
    made = [task for task in travel_tasks.generate(split, 6 * count, seed) if len(travel_tasks.preferences(task.data)) == 1]
    return tuple(map(_three_options, made[:count]))


def _three_options(task: Task) -> Task:
    """The task with the best option, another correct one, and one that lacks the wish."""
    [aspect] = task.data["dimensions"]
    options = task.data[aspect]["options"]
    fewer = {**task.data[aspect], "options": {**options, "wrong": options["wrong"][:1], "noise": []}}
    return dataclasses.replace(task, data={**task.data, aspect: fewer})


def config() -> Config:
    quickstart = load_config(str(Path(__file__).with_name("quickstart.py")))
    return replace(quickstart, {
        "name": "travel_small",
        "env": travel,
        "tasks": Tasks(generate=short, load=travel_tasks.load, train=2000, test=128),
        "sft.steps": 600, "sft.expert_share": 0.5,
        "rollout.max_tokens": 384, "rollout.max_new_tokens": 32,
        "knobs": {**quickstart.knobs, "env.max_turns": 8, "env.plain": 1},
    })
