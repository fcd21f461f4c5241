"""Fine-tuning, then PPO, against PPO from random weights, on two gyms: what does each of them give?

Fine-tuning alone is what a run scores before its first update: the column "before", and "gained" is what PPO added to it.

Reproduces   nothing published: UserRL's recipe (SFT cold start, then RL) at toy size.
Hardware     2 CPU cores, 3 GB of memory.
Time         20 runs of one to four minutes.
Expected     from scratch 0; fine-tuning 0.33 on Intention and 0.17 on Turtle, with PPO 0.66 and 0.27.
Command      eau-jax compare-methods configs/study_sft.py --jobs 2
"""

from pathlib import Path

from eau_jax.config import Config, Sft
from eau_jax.config_file import load_config, replace
from eau_jax.study import Study

CONFIGS = Path(__file__).parent


def from_scratch(config: Config) -> Config:
    """Without fine-tuning: the model has never seen a word."""
    return replace(config, {"sft": Sft()})


def novices_only(config: Config) -> Config:
    """Fine-tuning as the quickstart's: short, and without an expert."""
    return replace(config, {"sft.steps": 240, "sft.expert_share": 0.0})


def study() -> Study:
    return Study(
        name="sft",
        environments={"intention": load_config(str(CONFIGS / "quickstart.py")),
                      "turtle": novices_only(load_config(str(CONFIGS / "turtle_small.py")))},
        methods={"ppo_from_scratch": from_scratch, "sft_then_ppo": lambda config: config},
        baseline="ppo_from_scratch",
        seeds=(0, 1, 2, 3, 4),
        updates=15,
    )
