"""SAPO: GRPO with a smooth gate in place of the clip.

Reproduces   SAPO (Gao et al. 2025, arXiv:2511.20347): temperature 1 of the gate for positive and 1.05 for negative
             advantages, every episode weighs the same; batch and budget are the base config's.
Hardware     one 80 GB GPU; a plan counts 76 GB at most.
Time         not measured.
Expected     not measured.
Command      scripts/one_gpu configs/methods/sapo.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/sapo.py --name sapo
"""

from pathlib import Path

from eau_jax.algorithms.group import grpo
from eau_jax.algorithms.reduction import sequence_mean_token_mean
from eau_jax.algorithms.sapo import sapo
from eau_jax.algorithms.view import by_action
from eau_jax.algorithms.whiten import none
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """GRPO's advantage under a soft gate of the token's ratio."""
    return with_algorithm(config, advantage=grpo, view=by_action, normalise=none, reduction=sequence_mean_token_mean,
                          policy_loss=sapo, knobs={"rl.policy_loss.rise": 1.0, "rl.policy_loss.fall": 1.05})


def config() -> Config:
    return replace(method(load_config(BASE)), {"name": "sapo"})
