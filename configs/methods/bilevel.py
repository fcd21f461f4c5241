"""Bi-level GAE: one recursion over actions, then one over the tokens of each action.

Reproduces   VAGEN's bi-level GAE (Wang et al. 2025, arXiv:2510.16907): gamma 0.95 per action, 1 per token, both lambdas 1,
             advantages normalised over tokens; batch as in ppo_action_end.py, and no updates of the critic alone.
             `bilevel.py:by_reward` finds the ends of actions as RAGEN's code does, by a reward other than 0, so that a turn
             which earns nothing is none.
Hardware     one 141 GB GPU; a plan counts 92 GB at most.
Time         not measured.
Expected     not measured.
Command      CHIP=h200 scripts/one_gpu configs/methods/bilevel.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/bilevel.py --name bilevel
"""

from pathlib import Path

from eau_jax.algorithms.advantage import Advantage
from eau_jax.algorithms.bilevel import bilevel, bilevel_by_reward
from eau_jax.algorithms.kl import k2
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_token
from eau_jax.algorithms.whiten import over_tokens
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config, advantage: Advantage = bilevel) -> Config:
    """PPO with bi-level GAE."""
    return with_algorithm(config, advantage=advantage, view=by_token, normalise=over_tokens, reduction=token_mean,
                          policy_loss=token_ratio)


def by_reward(config: Config) -> Config:
    """The same with RAGEN's boundaries."""
    return method(config, bilevel_by_reward)


def config() -> Config:
    base = method(with_algorithm(load_config(BASE), kl=k2))
    return replace(base, {
        "name": "bilevel",
        "rollout.tasks": 16, "rollout.group": 4, "rollout.top_p": 0.95, "learn.minibatches": 2,
        "knobs": {**base.knobs, "rl.sampler.temperature": 0.7, "rl.entropy.coef": 0.001, "rl.kl.coef": 0.001,
                  "rl.policy_loss.clip_high": 0.2, "rl.critic_optimizer.learning_rate": 1e-5},
    })
