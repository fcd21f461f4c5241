"""PPO whose lambda grows with the length of the episode.

Reproduces   VAPO's length-adaptive GAE (Yue et al. 2025, arXiv:2504.05118): lambda 1 - 1 / (alpha L) for the policy and 1
             for the critic, alpha 0.05, clip 0.2 and 0.28, critic at 2e-6 with 50 updates alone first. Its extra likelihood
             loss on solved episodes is not built. The method itself has SAO's alpha 1.5, for episodes of a few hundred
             tokens; `length_adaptive.py:relative` is AReaL's rule, lambda q^(1 / (L - 1)), over actions.
Hardware     one 80 GB GPU; a plan counts 76 GB at most.
Time         not measured.
Expected     not measured.
Command      scripts/one_gpu configs/methods/length_adaptive.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/length_adaptive.py --name length_adaptive
"""

from pathlib import Path

from eau_jax.algorithms.adaptive import relative as by_reach
from eau_jax.algorithms.adaptive import vapo
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_action, by_token
from eau_jax.algorithms.whiten import over_actions, over_tokens
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """PPO with GAE per token, lambda by the number of tokens."""
    return with_algorithm(config, advantage=vapo, view=by_token, normalise=over_tokens, reduction=token_mean,
                          policy_loss=token_ratio, knobs={"rl.advantage.alpha": 1.5})


def relative(config: Config) -> Config:
    """PPO with GAE per action, lambda by the number of actions."""
    return with_algorithm(config, advantage=by_reach, view=by_action, normalise=over_actions, reduction=token_mean,
                          policy_loss=token_ratio)


def config() -> Config:
    base = method(load_config(BASE))
    return replace(base, {
        "name": "length_adaptive",
        "learn.critic_warmup": 50,
        "knobs": {**base.knobs, "rl.advantage.alpha": 0.05, "rl.critic_optimizer.learning_rate": 2e-6},
    })
