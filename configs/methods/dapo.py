"""DAPO: GRPO with a higher upper clip, dynamic sampling, a token mean and a soft penalty of overlong episodes.

Reproduces   DAPO (Yu et al. 2025, arXiv:2503.14476): 512 tasks x 16 episodes, 16 steps a batch, no KL, clip 0.2 and 0.28,
             groups without spread replaced in up to 9 further rounds, the penalty rises over the last fifth of the tokens
             that an episode may sample. Its budget of 20480 tokens is for mathematics and is not taken over.
Hardware     one 80 GB GPU; a plan counts 76 GB at most.
Time         not measured.
Expected     not measured.
Command      scripts/one_gpu configs/methods/dapo.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/dapo.py --name dapo
"""

from pathlib import Path

from eau_jax.algorithms.group import grpo
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.shaping import overlong
from eau_jax.algorithms.view import by_action
from eau_jax.algorithms.whiten import none
from eau_jax.config import Config, knob_tree
from eau_jax.config_file import load_config, replace, with_algorithm
from eau_jax.core import knobs as knob
from eau_jax.core.batching import informative

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """GRPO's advantage, token mean, informative groups, a penalty near the most tokens that an episode may sample."""
    turns = knob.values(knob_tree(config)).get("env.max_turns", config.rollout.max_tokens)
    limit = min(int(turns) * config.rollout.max_new_tokens, config.rollout.max_tokens)
    made = with_algorithm(config, advantage=grpo, view=by_action, normalise=none, reduction=token_mean,
                          policy_loss=token_ratio, keep_groups=informative, shaping=overlong,
                          knobs={"rl.policy_loss.clip_low": 0.2, "rl.policy_loss.clip_high": 0.28,
                                 "rl.shaping.limit": limit, "rl.shaping.margin": max(limit // 5, 1)})
    return replace(made, {"rollout.refill": 9})


def config() -> Config:
    base = method(load_config(BASE))
    return replace(base, {
        "name": "dapo",
        "rollout.tasks": 512, "rollout.group": 16, "learn.minibatches": 16,
        "knobs": {**base.knobs, "rl.policy_optimizer.warmup_steps": 320, "rl.policy_optimizer.weight_decay": 0.1},
    })
