"""Eight methods side by side: the quickstart's model on Intention (UserGym) and on telecom (tau2-bench), five seeds.

Reproduces   nothing published: the papers' methods at toy size, under one budget of updates, tasks and cold starts.
Hardware     2 CPU cores, 3 GB of memory.
Time         80 runs of one to two minutes each and ten cold starts, 90 minutes on busy cores; stop it and start it again as
             you like.
Expected     every method learns on both worlds in every seed; PPO per token is not beaten (README, Results).
Command      eau-jax compare-methods configs/study_methods.py --jobs 2      (--updates 5 --seeds 0 1 is a first look)
"""

from pathlib import Path

from eau_jax.config_file import load_config, load_method
from eau_jax.study import Study

CONFIGS = Path(__file__).parent
METHODS = ("ppo", "eau", "bilevel", "grpo", "rloo", "dapo", "userrl", "infopo")


def study() -> Study:
    return Study(
        name="methods",
        environments={"intention": load_config(str(CONFIGS / "quickstart.py")),
                      "telecom": load_config(str(CONFIGS / "telecom_small.py"))},
        methods={name: load_method(CONFIGS / "methods" / f"{name}.py") for name in METHODS},
        baseline="ppo",
        seeds=(0, 1, 2, 3, 4),
        updates=15,
    )
