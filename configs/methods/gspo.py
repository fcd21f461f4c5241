"""GSPO: GRPO with one clipped ratio for a whole episode.

Reproduces   GSPO (Zheng et al. 2025, arXiv:2507.18071): clip 3e-4 and 4e-4 on the geometric mean of the tokens' ratios, four
             minibatches a batch, every episode weighs the same. The size of its batch is not known; it is the base config's.
Hardware     one 80 GB GPU; a plan counts 76 GB at most.
Time         not measured.
Expected     not measured.
Command      scripts/one_gpu configs/methods/gspo.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/gspo.py --name gspo
"""

from pathlib import Path

from eau_jax.algorithms.group import grpo
from eau_jax.algorithms.ratio import sequence_ratio
from eau_jax.algorithms.reduction import sequence_mean_token_mean
from eau_jax.algorithms.view import by_action
from eau_jax.algorithms.whiten import none
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """GRPO's advantage, one ratio per episode, mean over episodes of the token mean."""
    return with_algorithm(config, advantage=grpo, view=by_action, normalise=none, reduction=sequence_mean_token_mean,
                          policy_loss=sequence_ratio,
                          knobs={"rl.policy_loss.clip_low": 3e-4, "rl.policy_loss.clip_high": 4e-4})


def config() -> Config:
    return replace(method(load_config(BASE)), {"name": "gspo", "learn.minibatches": 4})
