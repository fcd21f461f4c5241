"""PPO on six small worlds: does training success rise?

Reproduces   nothing published: five gyms and telecom, generated tasks, the quickstart's model.
Hardware     2 CPU cores, 3 GB of memory.
Time         6 runs of three to six minutes.
Expected     rising success on Intention, Telepathy, ColBench and telecom, a rising score on Turtle; Travel not measured
             (seed 0).
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
