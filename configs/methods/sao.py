"""SAO: one episode a task, a critic, and tokens whose ratio leaves a window left out (DIS).

Reproduces   SAO (arXiv:2607.07508) as set for agents: window 0.8 below and 3 above, 128 tasks x 1 episode, policy 1e-6 and
             critic 5e-6, 10 updates of the critic alone, two critic passes for one of the policy, lambda by length with
             alpha 1.5. Its critic has frozen attention and is its own model; here it shares the policy's trunk to fit one
             GPU.
Hardware     one 80 GB GPU; a plan counts 76 GB at most.
Time         not measured.
Expected     not measured.
Command      scripts/one_gpu configs/methods/sao.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/sao.py --name sao
"""

from pathlib import Path

from eau_jax.algorithms.adaptive import vapo
from eau_jax.algorithms.dis import dis
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_token
from eau_jax.algorithms.whiten import over_tokens
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """Token GAE with length-adaptive lambda under double-sided importance sampling."""
    return with_algorithm(config, advantage=vapo, view=by_token, normalise=over_tokens, reduction=token_mean,
                          policy_loss=dis, knobs={"rl.advantage.alpha": 1.5, "rl.policy_loss.below": 0.8,
                                                  "rl.policy_loss.above": 3.0})


def config() -> Config:
    base = method(load_config(BASE))
    return replace(base, {
        "name": "sao",
        "rollout.tasks": 128, "rollout.group": 1, "learn.critic_warmup": 10, "learn.critic_updates": 2,
        "knobs": {**base.knobs, "rl.critic_optimizer.learning_rate": 5e-6},
    })
