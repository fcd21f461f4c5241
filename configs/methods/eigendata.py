"""EigenData: GRPO on a verifier's verdict, in large batches of groups that are neither all solved nor all failed.

Reproduces   EigenData / AReaL-SEA (arXiv:2601.22607): 8 tasks x 64 episodes, one step a batch, advantages (R - mean) / std
             in the group, token mean, dynamic filtering as the paper states it. `eigendata.py:released` is AReaL's code:
             only tasks that are nearly always solved go, rewards 0 and 1 become -5 and 5, advantages are standardised over
             the batch, clip 0.4, evaluation at temperature 0.6, tokens whose ratio to the sampler is above 5 are left out.
             Telecom alone, Qwen3-4B for the paper's 30B and up with the 30B recipe's learning rate and decay (those of 1.7B
             and 8B have 1.7e-5 and 0.017), episodes of 12288 tokens for its 30000 and turns of 1024 for its 8192; the
             paper's user is a fine-tuned model.
Hardware     one 141 GB GPU; a plan counts 112 GB at most.
Time         not measured.
Expected     not measured.
Command      CHIP=h200 scripts/one_gpu configs/methods/eigendata.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/eigendata.py --name eigendata
"""

from pathlib import Path

from eau_jax.algorithms.group import grpo
from eau_jax.algorithms.keep import unsolved
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.mismatch import icepop
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.reinforce import reinforce
from eau_jax.algorithms.shaping import scaled
from eau_jax.algorithms.view import by_action, by_token
from eau_jax.algorithms.whiten import none, over_tokens
from eau_jax.config import Config, Tasks
from eau_jax.config_file import load_config, replace, with_algorithm
from eau_jax.core.batching import informative
from eau_jax.envs.telecom import tasks as telecom_tasks
from eau_jax.envs.telecom.telecom import telecom

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """GRPO's advantage, token mean, informative groups."""
    return with_algorithm(config, advantage=grpo, view=by_action, normalise=none, reduction=token_mean,
                          policy_loss=token_ratio, keep_groups=informative,
                          knobs={"rl.policy_loss.clip_low": 0.4, "rl.policy_loss.clip_high": 0.4,
                                 "rl.policy_loss.dual_clip": 1e9})


def released(config: Config) -> Config:
    """Scaled returns standardised over the batch, groups that are not nearly solved, decoupled PPO with a cap at 5."""
    return with_algorithm(config, advantage=reinforce, view=by_token, normalise=over_tokens, reduction=token_mean,
                          policy_loss=token_ratio, keep_groups=unsolved, shaping=scaled, correction=icepop,
                          knobs={"rl.policy_loss.clip_low": 0.4, "rl.policy_loss.clip_high": 0.4,
                                 "rl.policy_loss.dual_clip": 1e9, "rl.correction.low": 0.0, "rl.correction.high": 5.0,
                                 "rl.shaping.bias": -0.5, "rl.shaping.scale": 10.0, "rl.shaping.clip": 20.0})


def config() -> Config:
    base = method(load_config(BASE))
    return replace(base, {
        "name": "eigendata",
        "env": telecom,
        "tasks": Tasks(generate=telecom_tasks.generate, load=telecom_tasks.load, train=1000, test=64),
        "rollout.tasks": 8, "rollout.group": 64, "rollout.max_tokens": 12288, "rollout.max_new_tokens": 1024,
        "rollout.slots": 8, "learn.minibatches": 1, "eval.temperature": 0.6,
        "knobs": {**base.knobs, "env.max_turns": 50, "rl.policy_optimizer.learning_rate": 5e-6,
                  "rl.policy_optimizer.weight_decay": 0.005},
    })
