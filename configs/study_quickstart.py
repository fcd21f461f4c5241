"""Four advantage estimators side by side at quickstart size.

Reproduces   nothing published: it shows how methods are compared. PPO per token (ppo) and per action (eau), GRPO and RLOO
             (both without a critic), on two small worlds.
Hardware     2 CPU cores, 3 GB of memory.
Time         24 runs of a few minutes each; stop it and start it again as you like.
Expected     a page with curves and intervals; three seeds tell large differences only.
Command      eau-jax compare-methods configs/study_quickstart.py            (--updates 5 --seeds 0 1 is a first look)
"""

from pathlib import Path

from eau_jax.config import Tasks
from eau_jax.config_file import load_config, load_method, replace
from eau_jax.envs.gyms import function_tasks
from eau_jax.envs.gyms.function import function
from eau_jax.study import Study

CONFIGS = Path(__file__).parent
QUICKSTART = load_config(str(CONFIGS / "quickstart.py"))
FUNCTION = replace(QUICKSTART, {
    "env": function,
    "tasks": Tasks(generate=function_tasks.generate, load=function_tasks.load, train=2000, test=128),
    "knobs": {**QUICKSTART.knobs, "env.max_turns": 8},
})


def study() -> Study:
    return Study(
        name="quickstart",
        environments={"intention": QUICKSTART, "function": FUNCTION},
        methods={name: load_method(CONFIGS / "methods" / f"{name}.py") for name in ("ppo", "eau", "grpo", "rloo")},
        baseline="ppo",
        seeds=(0, 1, 2),
        updates=20,
    )
