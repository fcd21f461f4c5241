"""RLOO: REINFORCE with the mean score of the other episodes of the task as baseline.

Reproduces   RLOO (Ahmadian et al. 2024, arXiv:2402.14740) with k = 4: no clip, one step a batch, the gradient of an episode
             is that of its whole log-probability. Its KL in the reward is a KL of the same gradient (k2) in the loss here.
Hardware     one 141 GB GPU; a plan counts 92 GB at most.
Time         not measured.
Expected     not measured.
Command      CHIP=h200 scripts/one_gpu configs/methods/rloo.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/rloo.py --name rloo
"""

from pathlib import Path

from eau_jax.algorithms.group import rloo
from eau_jax.algorithms.kl import k2
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import sequence_mean_token_sum
from eau_jax.algorithms.view import by_action
from eau_jax.algorithms.whiten import none
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """S - mean of the others, mean over episodes of the token sum, never clipped."""
    return with_algorithm(config, advantage=rloo, view=by_action, normalise=none, reduction=sequence_mean_token_sum,
                          policy_loss=token_ratio, knobs={"rl.policy_loss.clip_low": 1.0, "rl.policy_loss.clip_high": 10.0,
                                                          "rl.policy_loss.dual_clip": 1e9})


def config() -> Config:
    base = method(with_algorithm(load_config(BASE), kl=k2))
    return replace(base, {
        "name": "rloo",
        "rollout.group": 4, "learn.minibatches": 1,
        "knobs": {**base.knobs, "rl.kl.coef": 0.03},
    })
