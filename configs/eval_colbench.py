"""ColBench backend programming: a conversation about what is wanted, then code that hidden tests run.

Reproduces   the protocol of ColBench (Zhou et al. 2025): ten messages; `metric` is the share of tests passed (Pass), `success` all
             of them (Success). The tasks are our generator's; upstream's JSONL (CC BY-NC) is read from EAU_COLBENCH.
             `load(FILE, execute=executor)` runs each reference first and refuses those that fail their own tests.
Hardware     1 CPU core for the script; whatever your model needs. Submissions run in child processes with limits.
Time         seconds for the script on the generated tasks.
Expected     1.0 for the expert, who knows the reference.
Command      eau-jax eval configs/eval_colbench.py
"""

import os

from eau_jax.clients.executor import Executor
from eau_jax.envs.colbench import tasks as colbench_tasks
from eau_jax.envs.colbench.colbench import colbench
from eau_jax.eval.plan import Bench, Plan
from eau_jax.eval.players import scripted

FILE = os.environ.get("EAU_COLBENCH", "")


def plan() -> Plan:
    tasks = (lambda: colbench_tasks.load(FILE)) if FILE else lambda: colbench_tasks.generate("test", 100, 0)
    executor = Executor()   # Executor(require=("landlock", "seccomp")) runs nothing without the kernel's protections
    return Plan(
        name="colbench-expert",
        benches=(Bench("colbench", colbench(executor, executor.basis), tasks,
                       version="upstream file" if FILE else "eau_jax generator", files=(FILE,) if FILE else (),
                       knobs={"env.max_turns": 10}),),
        player=lambda: scripted("expert"),
    )
