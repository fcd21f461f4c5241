"""Advantages per action (eau) against per token (ppo): the quickstart's task, model, cold start and budget, five seeds.

Reproduces   nothing published: it looks at the choice that the EAU paper's per-action advantages make, at toy size.
Hardware     2 CPU cores, 3 GB of memory.
Time         ten runs of a few minutes each; stop it and start it again as you like.
Expected     the difference by_action - by_token, paired by seed and task, with its interval: whichever wins.
Command      eau-jax compare-methods configs/study_views.py
"""

from pathlib import Path

from eau_jax.config_file import load_config, load_method
from eau_jax.study import Study

CONFIGS = Path(__file__).parent


def study() -> Study:
    return Study(
        name="views",
        environments={"intention": load_config(str(CONFIGS / "quickstart.py"))},
        methods={"by_token": load_method(CONFIGS / "methods" / "ppo.py"),
                 "by_action": load_method(CONFIGS / "methods" / "eau.py")},
        baseline="by_token",
        seeds=(0, 1, 2, 3, 4),
        updates=20,
    )
