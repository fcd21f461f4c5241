"""Evaluates a scripted agent on the built-in tasks of two gyms: the smallest evaluation plan.

Reproduces   nothing published: it shows what a plan is.
Hardware     1 CPU core.
Time         seconds.
Expected     the expert's score: 1.0 on function and on intention.
Command      eau-jax eval configs/eval_built_in.py
"""

from eau_jax.envs.gyms import function_tasks, intention_tasks
from eau_jax.envs.gyms.function import function
from eau_jax.envs.gyms.intention import intention
from eau_jax.eval.plan import Bench, Plan
from eau_jax.eval.players import scripted


def plan() -> Plan:
    return Plan(
        name="built-in",
        benches=(
            Bench("function", function, lambda: function_tasks.generate("test", 64, 0), version="eau_jax generator"),
            Bench("intention", intention, lambda: intention_tasks.generate("test", 64, 0), version="eau_jax generator"),
        ),
        player=lambda: scripted("expert"),
    )
