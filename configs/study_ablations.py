"""What each part of EAU is worth, on top of PPO, UserRL and InfoPO: 24 arms on Intention and ColBench, three seeds.

Reproduces   nothing published: EAU's ablations at toy size (ablations.py says what each leaves out). Users, budget and the
             sharing of it in campaigns are those of study_eau.py.
Hardware     2 CPU cores, 3 GB of memory.
Time         144 runs or campaigns of 6 to 10 minutes each. Stop it and start it again as you like.
Expected     not measured.
Command      eau-jax compare-methods configs/study_ablations.py --jobs 2      (--seeds 0 is a first look)
"""

import dataclasses
from pathlib import Path

from eau_jax.config_file import call, load_method
from eau_jax.study import Study

CONFIGS = Path(__file__).parent
ARMS = ("none", "in_run", "generic", "cross_run", "eau", "epsilon_0", "epsilon_half", "epsilon_1")
RL = ("ppo", "userrl", "infopo")


def arm(rl: str, ablation: str):
    """An ablation on top of an RL method."""
    method, taken_away = load_method(CONFIGS / "methods" / f"{rl}.py"), load_method(f"{CONFIGS / 'ablations.py'}:{ablation}")
    return lambda config: taken_away(method(config))


def study() -> Study:
    arms = {f"{rl}+{name}": arm(rl, name) for rl in RL for name in ARMS}
    return dataclasses.replace(
        call(str(CONFIGS / "study_eau.py"), "study", Study), name="ablations", seeds=(0, 1, 2), baseline="ppo+none",
        methods=arms, campaigns={name: 2 for name in arms if not name.endswith(("+none", "+in_run"))})
