"""Fault injection: fifteen faults in two worlds, and what the meta-agent makes of them.

Reproduces   nothing published: whom the meta-agent blames, whether it leaves sound runs alone, and how much of the lost
             success it gets back. Half of the user's replies come from a stand-in for a language model, which says the
             environment's own words as long as it is healthy.
Hardware     2 CPU cores, 3 GB of memory.
Time         70 to 130 seconds a run on one core, and 270 runs: four hours with --jobs 2. Stop it and start it again as you
             like.
Expected     not measured.
Command      eau-jax bench-meta --jobs 2     (--faults too_few_turns --seeds 0 is a first look)
"""

import dataclasses
from pathlib import Path

import numpy as np

from eau_jax.bench_meta import Suite
from eau_jax.config import Config, Meta, Tasks
from eau_jax.config_file import load_config, replace
from eau_jax.core.types import Task
from eau_jax.envs.colbench import tasks as colbench_tasks
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.faults import paid
from eau_jax.meta.rule_proposer import rules
from eau_jax.users.mixture import mixture
from eau_jax.users.noisy import noisy
from eau_jax.users.symbolic import symbolic

CONFIGS = Path(__file__).parent
MOST = 3   # details that a request leaves out
META = Meta(proposer=rules, every=2, canary_tasks=8, anchor_tasks=16)


def ladder(split: str, count: int, seed: int) -> tuple[Task, ...]:
    """Intention tasks that leave out one detail to three, about equally often: from easy to hard."""
    made = []
    for place, task in enumerate(intention_tasks.generate(split, count, seed)):
        left_out = task.data["missing_details"][:1 + place % MOST]
        made.append(Task(task.id, task.env, {**task.data, "missing_details": left_out}))
    return tuple(made)


def details(task: Task) -> str:
    """The bucket of an Intention task."""
    return f"details_{len(task.data['missing_details'])}"


def facts(task: Task) -> str:
    """The bucket of a ColBench task."""
    return f"facts_{len(task.data['facts'])}"


def asking() -> Config:
    """Intention where only the last detail is paid for, and the user tells one in a reply: success or nothing."""
    outcome = paid(intention)._replace(score=lambda task, state, total: float(np.clip(total, 0.0, 1.0)))
    base = replace(load_config(str(CONFIGS / "quickstart.py")), {"sft.expert_share": 0.7})
    return _small(base, outcome, Tasks(generate=ladder, bucket=details), {
        "env.weight_1": 0.0, "env.weight_2": 0.0, "env.weight_3": 0.0, "env.done_bonus": 1.0, "env.disclose_cap": 1,
        "env.max_turns": 6})


def coding() -> Config:
    """ColBench, small."""
    base = replace(load_config(str(CONFIGS / "colbench_small.py")), {"sft.steps": 600})
    return _small(base, paid(base.env), Tasks(generate=colbench_tasks.generate, bucket=facts), {})


def _small(base: Config, env, tasks: Tasks, knobs: dict[str, float]) -> Config:
    return replace(base, {
        "env": env, "user": mixture(symbolic, noisy), "tasks": dataclasses.replace(tasks, train=1000, test=64),
        "model": dataclasses.replace(base.model, vocab_size=1024, d_model=80, d_ff=192),
        "rollout": dataclasses.replace(base.rollout, tasks=12, slots=48), "learn.minibatches": 2, "meta": META,
        "knobs": {**base.knobs, **knobs, "rl.entropy.coef": 0.003, "user.second.leak": 0.0, "user.second.paraphrase": 0.0}})


def suite() -> Suite:
    return Suite(name="faults", environments={"asking": asking(), "coding": coding()}, updates=24)
