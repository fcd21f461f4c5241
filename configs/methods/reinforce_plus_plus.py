"""REINFORCE++: rewards to go, standardised over the batch; neither critic nor group.

Reproduces   REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): gamma 1, clip 0.2, one episode a task. Its KL in the reward is a
             KL of the same gradient (k2) in the loss here. `reinforce_plus_plus.py:baseline` subtracts the group's mean
             first.
Hardware     one 141 GB GPU; a plan counts 92 GB at most.
Time         not measured.
Expected     not measured.
Command      CHIP=h200 scripts/one_gpu configs/methods/reinforce_plus_plus.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/reinforce_plus_plus.py --name reinforce_plus_plus
"""

from pathlib import Path

from eau_jax.algorithms.advantage import Advantage
from eau_jax.algorithms.group import dr_grpo
from eau_jax.algorithms.kl import k2
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.reinforce import reinforce
from eau_jax.algorithms.view import by_token
from eau_jax.algorithms.whiten import over_tokens
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config, advantage: Advantage = reinforce) -> Config:
    """Rewards to go per token, normalised over tokens."""
    return with_algorithm(config, advantage=advantage, view=by_token, normalise=over_tokens, reduction=token_mean,
                          policy_loss=token_ratio, knobs={"rl.policy_loss.clip_low": 0.2, "rl.policy_loss.clip_high": 0.2})


def baseline(config: Config) -> Config:
    """The group's mean for a baseline, normalised over the batch."""
    return method(config, dr_grpo)


def config() -> Config:
    base = method(with_algorithm(load_config(BASE), kl=k2))
    return replace(base, {
        "name": "reinforce_plus_plus",
        "rollout.tasks": 256, "rollout.group": 1,
        "knobs": {**base.knobs, "rl.kl.coef": 0.001},
    })
