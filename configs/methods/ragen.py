"""RAGEN: StarPO on whole episodes, StarPO-S on the groups whose scores differ most.

Reproduces   StarPO-S with a critic (Wang et al. 2025, arXiv:2504.20073): gamma and lambda 1 per token, the quarter of the
             groups with the largest std of scores, no KL, clip 0.2 and 0.28, 8 tasks x 16 episodes in four minibatches, 200
             updates, none of the critic alone (verl's default), 5 turns, evaluation at temperature 0.5. `ragen.py:starpo`
             has all groups and clip 0.2, `ragen.py:starpo_bilevel` bi-level GAE with gamma 0.95 per action. The penalty of
             0.1 for a broken format is left to the environment's rules.
Hardware     one 80 GB GPU; a plan counts 76 GB at most.
Time         not measured.
Expected     not measured.
Command      scripts/one_gpu configs/methods/ragen.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/ragen.py --name ragen
"""

from pathlib import Path
from typing import Callable

from eau_jax.algorithms.bilevel import bilevel
from eau_jax.algorithms.gae import gae
from eau_jax.algorithms.keep import uncertain
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_token
from eau_jax.algorithms.whiten import over_tokens
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm
from eau_jax.core.batching import every

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config, keep_groups: Callable = uncertain, clip_high: float = 0.28) -> Config:
    """StarPO-S."""
    return with_algorithm(
        config, advantage=gae, view=by_token, normalise=over_tokens, reduction=token_mean, policy_loss=token_ratio,
        keep_groups=keep_groups, knobs={"rl.advantage.gamma": 1.0, "rl.advantage.policy_lambda": 1.0,
                                        "rl.policy_loss.clip_low": 0.2, "rl.policy_loss.clip_high": clip_high})


def starpo(config: Config) -> Config:
    """PPO on every group."""
    return method(config, every, clip_high=0.2)


def starpo_bilevel(config: Config) -> Config:
    """StarPO-S with bi-level GAE."""
    return with_algorithm(method(config), advantage=bilevel)


def config() -> Config:
    base = method(load_config(BASE))
    return replace(base, {
        "name": "ragen",
        "rollout.tasks": 8, "rollout.group": 16, "eval.temperature": 0.5,
        "knobs": {**base.knobs, "env.max_turns": 5, "rl.entropy.coef": 0.001, "rl.critic_optimizer.learning_rate": 1e-5},
    })
