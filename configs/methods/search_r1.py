"""Search-R1: PPO on the outcome alone; retrieved text is conditioned on and never learned.

Reproduces   Search-R1's PPO (Jin et al. 2025, arXiv:2503.09516): gamma and lambda 1 per token, 512 tasks x 1 episode in two
             minibatches, clip 0.2, KL 0.001, entropy 0.001, 1005 updates, 500 tokens a turn, up to 4 searches. The learning
             rates rise over 0.285 (policy) and 0.015 (critic) of the updates, two optimizer steps each; no updates of the
             critic alone (verl's default). Here the KL has its gradient in the loss (k2), not in the reward, and the corpus
             is generated. `search_r1.py:by_group` is its GRPO.
Hardware     one 141 GB GPU, the extra [search]; a plan counts 94 GB at most.
Time         not measured.
Expected     not measured.
Command      eau-jax train configs/methods/search_r1.py --model.folder PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/search_r1.py --name search_r1
"""

from pathlib import Path

from eau_jax.algorithms.gae import gae
from eau_jax.algorithms.group import grpo
from eau_jax.algorithms.kl import k2
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_token
from eau_jax.algorithms.whiten import none, over_tokens
from eau_jax.config import Config, Tasks
from eau_jax.config_file import load_config, replace, with_algorithm
from eau_jax.envs.gyms import search_tasks
from eau_jax.envs.gyms.search import search
from eau_jax.envs.gyms.search_index import index

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """PPO per token whose advantage is the return minus the value."""
    return with_algorithm(config, advantage=gae, view=by_token, normalise=over_tokens, reduction=token_mean,
                          policy_loss=token_ratio,
                          knobs={"rl.advantage.gamma": 1.0, "rl.advantage.policy_lambda": 1.0,
                                 "rl.policy_loss.clip_low": 0.2, "rl.policy_loss.clip_high": 0.2})


def by_group(config: Config) -> Config:
    """GRPO under the same masking."""
    return with_algorithm(config, advantage=grpo, view=by_token, normalise=none, reduction=token_mean,
                          policy_loss=token_ratio, knobs={"rl.policy_loss.clip_low": 0.2, "rl.policy_loss.clip_high": 0.2})


def config() -> Config:
    base = method(with_algorithm(load_config(BASE), kl=k2))
    return replace(base, {
        "name": "search_r1",
        "env": search(index(search_tasks.corpus())),
        "tasks": Tasks(generate=search_tasks.generate, load=search_tasks.load, train=2000, test=128),
        "rollout.tasks": 512, "rollout.group": 1, "rollout.max_tokens": 4096, "rollout.max_new_tokens": 500,
        "rollout.slots": 32, "learn.steps": 1005, "learn.minibatches": 2,
        "knobs": {**base.knobs, "env.max_turns": 5, "rl.entropy.coef": 0.001, "rl.kl.coef": 0.001,
                  "rl.policy_optimizer.warmup_steps": 572, "rl.critic_optimizer.learning_rate": 1e-5,
                  "rl.critic_optimizer.warmup_steps": 30},
    })
