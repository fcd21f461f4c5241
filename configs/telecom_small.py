"""Telecom, small: phones without service, for runs of minutes.

Reproduces   nothing published: tau2-bench's telecom with generated tasks of one fault that takes the signal away (flight
             mode, SIM card, access point, unpaid bill; with a locked SIM or an ended contract the customer is transferred)
             and a short system text, so that the quickstart's small model learns something in minutes.
Hardware     2 CPU cores, 3 GB of memory.
Time         about 4 minutes.
Expected     held-out success about 0.1 after the cold start, 0.5 to 0.6 after 15 updates (one seed).
Command      eau-jax train configs/telecom_small.py
"""

from pathlib import Path

from eau_jax.config import Config, Tasks
from eau_jax.config_file import load_config, replace
from eau_jax.core.types import Task
from eau_jax.envs.telecom import tasks
from eau_jax.envs.telecom.telecom import telecom


SYSTEM = """You work for a phone company. Write words or one <tool_call>{"name": "...", "arguments": {...}}</tool_call>."""


def briefly(task: Task) -> tuple[str, str]:
    """What the agent is told first, without the policy and the list of tools: 300 tokens that a small model cannot use."""
    return SYSTEM, telecom.prompt(task)[1]


def no_service(split: str, count: int, seed: int):
    """`count` different tasks of the split with one fault, which takes the signal away: one generated task in six."""
    found = [task for task in tasks.generate(split, 8 * count, seed)
             if task.id.startswith("[service_issue]") and "|" not in task.id]
    return tuple(found[:count])


def config() -> Config:
    quickstart = load_config(str(Path(__file__).with_name("quickstart.py")))
    rates = {path: value for path, value in quickstart.knobs.items() if not path.startswith("env.")}
    return replace(quickstart, {
        "name": "telecom_small",
        "env": telecom._replace(prompt=briefly),
        "tasks": Tasks(generate=no_service, load=tasks.load, train=300, test=64),
        "model.vocab_size": 1024,
        "sft.steps": 300, "sft.episodes": 300, "sft.batch": 16, "sft.expert_share": 0.3,
        "rollout.tasks": 16, "rollout.max_tokens": 512, "rollout.max_new_tokens": 64,
        "learn.steps": 15,
        "knobs": {**rates, "env.max_turns": 14},
    })
