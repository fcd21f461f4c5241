"""PPO with one advantage per action, whose value is read at the action's last token (VAGEN's turn-wise GAE).

Reproduces   VAGEN's `turn_wise_gae` (Wang et al. 2025, arXiv:2510.16907): gamma 1 per action, the critic has a target at the
             last token of an action only, 64 episodes a batch in two minibatches, temperature 0.7, top-p 0.95, KL k2, no
             updates of the critic alone (verl's default). Its lambda is not known; the package's 0.95 stands.
Hardware     one 141 GB GPU; a plan counts 92 GB at most.
Time         not measured.
Expected     not measured.
Command      CHIP=h200 scripts/one_gpu configs/methods/ppo_action_end.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/ppo_action_end.py --name ppo_action_end
"""

from pathlib import Path

from eau_jax.algorithms.gae import gae
from eau_jax.algorithms.kl import k2
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_action_end
from eau_jax.algorithms.whiten import over_actions
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """PPO with GAE per action, values at the last token, advantages normalised over actions."""
    return with_algorithm(config, advantage=gae, view=by_action_end, normalise=over_actions, reduction=token_mean,
                          policy_loss=token_ratio, knobs={"rl.advantage.gamma": 1.0})


def config() -> Config:
    base = method(with_algorithm(load_config(BASE), kl=k2))
    return replace(base, {
        "name": "ppo_action_end",
        "rollout.tasks": 16, "rollout.group": 4, "rollout.top_p": 0.95, "learn.minibatches": 2,
        "knobs": {**base.knobs, "rl.sampler.temperature": 0.7, "rl.entropy.coef": 0.001, "rl.kl.coef": 0.001,
                  "rl.policy_loss.clip_high": 0.2, "rl.critic_optimizer.learning_rate": 1e-5},
    })
