"""PPO on six small worlds: does training success rise?

Reproduces   nothing published: five gyms and telecom, generated tasks, the quickstart's model.
Hardware     2 CPU cores, 3 GB of memory.
Time         6 runs of three to seven minutes.
Expected     training success (means of three updates), first and last: Intention 0.05, 0.18; Travel 0.16, 0.35; Turtle 0.19,
             0.30; Telepathy 0.53, 0.88; ColBench 0.52, 0.88; telecom 0.14, 0.79 (seed 0).
Command      eau-jax compare-methods configs/study_worlds.py --jobs 2      (--seeds 0 1 2: with error bars)
"""

from pathlib import Path

from eau_jax.config_file import load_config, load_method
from eau_jax.study import Study

CONFIGS = Path(__file__).parent
WORLDS = {"intention": "quickstart", "travel": "travel_small", "turtle": "turtle_small", "telepathy": "telepathy_small",
          "colbench": "colbench_small", "telecom": "telecom_small"}


def study() -> Study:
    return Study(
        name="worlds",
        environments={name: load_config(str(CONFIGS / f"{file}.py")) for name, file in WORLDS.items()},
        methods={"ppo": load_method(CONFIGS / "methods" / "ppo.py")},
        baseline="ppo",
        seeds=(0,),
        updates=25,
    )
