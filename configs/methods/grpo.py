"""GRPO: an episode against the other episodes of its task, in units of their std.

Reproduces   GRPO (Shao et al. 2024, arXiv:2402.03300): 64 episodes of 16 tasks, one step a batch, KL k3 of weight 0.04 in
             the loss, clip 0.2, every episode weighs the same. Its token budget is for mathematics and is not taken over.
Hardware     one 141 GB GPU; a plan counts 92 GB at most.
Time         not measured.
Expected     not measured.
Command      CHIP=h200 scripts/one_gpu configs/methods/grpo.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/grpo.py --name grpo
"""

from pathlib import Path

from eau_jax.algorithms.group import grpo
from eau_jax.algorithms.kl import k3
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import sequence_mean_token_mean
from eau_jax.algorithms.view import by_action
from eau_jax.algorithms.whiten import none
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """(S - mean) / std, mean over episodes of the token mean."""
    return with_algorithm(config, advantage=grpo, view=by_action, normalise=none, reduction=sequence_mean_token_mean,
                          policy_loss=token_ratio, knobs={"rl.policy_loss.clip_low": 0.2, "rl.policy_loss.clip_high": 0.2})


def config() -> Config:
    base = method(with_algorithm(load_config(BASE), kl=k3))
    return replace(base, {
        "name": "grpo",
        "rollout.tasks": 16, "rollout.group": 64, "learn.minibatches": 1,
        "knobs": {**base.knobs, "rl.kl.coef": 0.04},
    })
