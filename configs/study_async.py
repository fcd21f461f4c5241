"""What collecting ahead costs in learning: PPO with weights up to two versions old against PPO that takes turns.

Reproduces   nothing published: it is the check that a staleness of 2, with truncated importance weights, learns as well.
Hardware     2 CPU cores, 3 GB of memory.
Time         ten runs of a few minutes each; stop it and start it again as you like.
Expected     held-out score 0.688 in turn, 0.686 at staleness 2; paired difference -0.002 (-0.038 to +0.034, Student's t).
             On two cores, which sampler and learner share, running ahead saves no time.
Command      eau-jax compare-methods configs/study_async.py
"""

from pathlib import Path

from eau_jax.config import Config
from eau_jax.config_file import load_config, load_method, replace
from eau_jax.study import Study

CONFIGS = Path(__file__).parent


def staleness_2(config: Config) -> Config:
    return replace(load_method(CONFIGS / "methods" / "ppo.py")(config), {"rollout.max_staleness": 2})


def study() -> Study:
    return Study(
        name="async",
        environments={"intention": load_config(str(CONFIGS / "quickstart.py"))},
        methods={"in_turn": load_method(CONFIGS / "methods" / "ppo.py"), "staleness_2": staleness_2},
        baseline="in_turn",
        seeds=(0, 1, 2, 3, 4),
        updates=20,
    )
