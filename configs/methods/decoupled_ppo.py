"""Decoupled PPO: the loss weighed by how far the sampler's policy is from the learner's.

Reproduces   Decoupled PPO (Hilton et al. 2022, arXiv:2110.00641) with token-level truncated importance sampling, cap 2 (Yao
             et al. 2025). FILE.py:NAME has other weights: sequence (the episode's product, capped), icepop (0 outside 0.5 to
             5, arXiv:2510.18855), reject (episodes by their geometric mean), uncorrected. Everything else is eau.py's. With
             the embedded sampler, which shares the learner's code, the weights are 1 up to rounding.
Hardware     one 80 GB GPU; a plan counts 76 GB at most.
Time         not measured.
Expected     not measured.
Command      scripts/one_gpu configs/methods/decoupled_ppo.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/decoupled_ppo.py --name decoupled_ppo
"""

from functools import partial
from pathlib import Path

from eau_jax.algorithms import correction, mismatch
from eau_jax.algorithms.correction import Correction
from eau_jax.algorithms.gae import gae
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_action
from eau_jax.algorithms.whiten import over_actions
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config, weights: Correction = correction.truncated) -> Config:
    """PPO per action; each token's loss times min(ratio of learner to sampler, 2)."""
    return with_algorithm(config, advantage=gae, view=by_action, normalise=over_actions, reduction=token_mean,
                          policy_loss=token_ratio, correction=weights)


sequence = partial(method, weights=mismatch.sequence)
icepop = partial(method, weights=mismatch.icepop)
reject = partial(method, weights=mismatch.reject)
uncorrected = partial(method, weights=correction.none)


def config() -> Config:
    return replace(method(load_config(BASE)), {
        "name": "decoupled_ppo", "learn.critic_warmup": 10, "learn.critic_updates": 2})
