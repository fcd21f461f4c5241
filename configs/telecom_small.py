"""Telecom, small: phones without service, for runs of minutes.

Reproduces   nothing published: tau2-bench's telecom with generated tasks of one fault that takes the signal away (flight mode,
             SIM card, access point, unpaid bill; with a locked SIM or an ended contract the customer is transferred), so that
             the quickstart's small model learns something in minutes.
Hardware     2 CPU cores, 3 GB of memory.
Time         about 5 minutes.
Expected     held-out success about 0.35 after the cold start, 0.4 to 0.45 after 15 updates (one to three seeds).
Command      eau-jax train configs/telecom_small.py
"""

from pathlib import Path

from eau_jax.config import Config, Tasks
from eau_jax.config_file import load_config, replace
from eau_jax.envs.telecom import tasks
from eau_jax.envs.telecom.telecom import telecom


def no_service(split: str, count: int, seed: int):
    """`count` different tasks of the split with one fault, which takes the signal away; one generated task in six is such."""
    found = [task for task in tasks.generate(split, 8 * count, seed)
             if task.id.startswith("[service_issue]") and "|" not in task.id]
    return tuple(found[:count])


def config() -> Config:
    quickstart = load_config(str(Path(__file__).with_name("quickstart.py")))
    rates = {path: value for path, value in quickstart.knobs.items() if not path.startswith("env.")}
    return replace(quickstart, {
        "name": "telecom_small",
        "env": telecom,
        "tasks": Tasks(generate=no_service, load=tasks.load, train=300, test=64),
        "model.vocab_size": 1024,
        "sft.steps": 300, "sft.episodes": 300, "sft.batch": 16, "sft.expert_share": 0.9,
        "rollout.tasks": 12, "rollout.max_tokens": 704, "rollout.max_new_tokens": 48,
        "learn.steps": 15,
        "knobs": {**rates, "env.max_turns": 14},
    })
