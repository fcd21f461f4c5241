"""UserRL: GRPO on a score of the episode, spread over its turns by their credits.

Reproduces   UserRL (Qian et al. 2025, arXiv:2509.19736): 128 tasks x 8 episodes, eight steps a batch, 1152 + 8192 tokens, 16
             turns, no KL, clip 0.2, gamma 0.8, 15 passes over the tasks (234 updates), greedy evaluation. The method is its
             best published setting, credits Equalized and score R2G, by the released code's formula. FILE.py:NAME has the
             others: equalized_mean (the released script's "Sum"), equalized_total (the paper's Sum), r2g_r2g, em_r2g, and by
             our reading of the paper's formula paper_naive_total, paper_equalized_r2g, paper_r2g_r2g, paper_em_r2g
             (algorithms/userrl.py). One gym here, five mixed in the paper; its user is Qwen3-32B.
Hardware     one 141 GB GPU; a plan counts 96 GB at most.
Time         not measured.
Expected     not measured.
Command      CHIP=h200 scripts/one_gpu configs/methods/userrl.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/userrl.py --name userrl
"""

from functools import partial
from pathlib import Path

from eau_jax.algorithms import userrl
from eau_jax.algorithms.advantage import Advantage
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_token
from eau_jax.algorithms.whiten import none
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config, advantage: Advantage = userrl.equalized_r2g) -> Config:
    """Turn credits times the trajectory's standardised score, per token."""
    return with_algorithm(config, advantage=advantage, view=by_token, normalise=none, reduction=token_mean,
                          policy_loss=token_ratio, knobs={"rl.policy_loss.clip_low": 0.2, "rl.policy_loss.clip_high": 0.2})


equalized_mean = partial(method, advantage=userrl.equalized_mean)
equalized_total = partial(method, advantage=userrl.equalized_total)
r2g_r2g = partial(method, advantage=userrl.r2g_r2g)
em_r2g = partial(method, advantage=userrl.em_r2g)
paper_naive_total = partial(method, advantage=userrl.paper_naive_total)
paper_equalized_r2g = partial(method, advantage=userrl.paper_equalized_r2g)
paper_r2g_r2g = partial(method, advantage=userrl.paper_r2g_r2g)
paper_em_r2g = partial(method, advantage=userrl.paper_em_r2g)


def config() -> Config:
    base = method(load_config(BASE))
    return replace(base, {
        "name": "userrl",
        "rollout.tasks": 128, "rollout.group": 8, "rollout.max_tokens": 9344, "rollout.max_new_tokens": 1024,
        "rollout.slots": 16, "learn.steps": 234, "learn.minibatches": 8, "eval.temperature": 0.0,
        "knobs": {**base.knobs, "env.max_turns": 16},
    })
