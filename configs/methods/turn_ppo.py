"""Turn-PPO: advantages, ratio and clip per action.

Reproduces   Turn-PPO (arXiv:2512.17008) with its best gamma 0.99 and lambda 0.9, and a critic that learns faster than the
             policy. The ratio of an action is the geometric mean of its tokens'; batch and budget are the base config's. No
             updates of the critic alone: none are known of the paper.
Hardware     one 80 GB GPU; a plan counts 76 GB at most.
Time         not measured.
Expected     not measured.
Command      scripts/one_gpu configs/methods/turn_ppo.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/turn_ppo.py --name turn_ppo
"""

from pathlib import Path

from eau_jax.algorithms.gae import gae
from eau_jax.algorithms.ratio import turn_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_action
from eau_jax.algorithms.whiten import over_actions
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """PPO with GAE per action and one clipped ratio per action."""
    return with_algorithm(config, advantage=gae, view=by_action, normalise=over_actions, reduction=token_mean,
                          policy_loss=turn_ratio, knobs={"rl.advantage.gamma": 0.99, "rl.advantage.policy_lambda": 0.9})


def config() -> Config:
    base = method(load_config(BASE))
    return replace(base, {"name": "turn_ppo", "knobs": {**base.knobs, "rl.critic_optimizer.learning_rate": 1e-5}})
