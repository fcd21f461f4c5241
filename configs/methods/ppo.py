"""Plain PPO: one advantage per token, observations skipped.

Reproduces   the plain PPO that EAU is compared with: everything as in eau.py but the unit of GAE, which is the action token,
             and of normalisation. Schulman et al. 2017, arXiv:1707.06347; the paper's numbers are not published.
Hardware     one 80 GB GPU; a plan counts 76 GB at most.
Time         not measured.
Expected     not measured.
Command      scripts/one_gpu configs/methods/ppo.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/ppo.py --name ppo
"""

from pathlib import Path

from eau_jax.algorithms.gae import gae
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_token
from eau_jax.algorithms.whiten import over_tokens
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """PPO with GAE per token, advantages normalised over tokens."""
    return with_algorithm(config, advantage=gae, view=by_token, normalise=over_tokens, reduction=token_mean,
                          policy_loss=token_ratio)


def config() -> Config:
    return replace(method(load_config(BASE)), {"name": "ppo", "learn.critic_warmup": 10, "learn.critic_updates": 2})
