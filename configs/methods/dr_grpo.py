"""Dr. GRPO: GRPO without the std, and without the length of an episode in its weight.

Reproduces   Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): 128 tasks x 8 episodes, no KL, clip 0.2. The loss is summed over
             tokens and divided by episodes times token budget.
Hardware     one 80 GB GPU; a plan counts 76 GB at most.
Time         not measured.
Expected     not measured.
Command      scripts/one_gpu configs/methods/dr_grpo.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/dr_grpo.py --name dr_grpo
"""

from functools import partial
from pathlib import Path

from eau_jax.algorithms.group import dr_grpo
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import sequence_mean_token_sum_norm
from eau_jax.algorithms.view import by_action
from eau_jax.algorithms.whiten import none
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """S - mean, sum over tokens over a constant."""
    constant = config.rollout.tasks // config.learn.minibatches * config.rollout.group * config.rollout.max_tokens
    return with_algorithm(config, advantage=dr_grpo, view=by_action, normalise=none,
                          reduction=partial(sequence_mean_token_sum_norm, constant=float(constant)),
                          policy_loss=token_ratio, knobs={"rl.policy_loss.clip_low": 0.2, "rl.policy_loss.clip_high": 0.2})


def config() -> Config:
    batch = replace(load_config(BASE), {"name": "dr_grpo", "rollout.tasks": 128, "rollout.group": 8, "learn.minibatches": 1})
    return method(batch)
