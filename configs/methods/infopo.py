"""InfoPO: GRPO's advantage, and one for how much the user's answers told (by a counterfactual).

Reproduces   InfoPO (arXiv:2603.00656) on UserGym: beta 0.5, temperature 0.5 of the gate, 64 tasks x 5 episodes, four steps a
             batch, 1152 + 8192 tokens, 16 turns, learning rate 3e-7, entropy 0.001, no KL, 5 passes over the tasks (156
             updates), greedy evaluation. The score is the sum of rewards, as in its released code; `infopo.py:per_turn` has
             UserRL's, the sum per turn. `infopo.py:colbench` and `infopo.py:tau2` have the weights for those benchmarks. The
             user of the paper is gpt-4o-mini.
Hardware     one 141 GB GPU; a plan counts 96 GB at most.
Time         not measured.
Expected     not measured.
Command      CHIP=h200 scripts/one_gpu configs/methods/infopo.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/infopo.py --name infopo
"""

from functools import partial
from pathlib import Path

from eau_jax.algorithms.advantage import Advantage
from eau_jax.algorithms.infopo import infopo, infopo_mean
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_token
from eau_jax.algorithms.whiten import none
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config, advantage: Advantage = infopo, beta: float = 0.5, temperature: float = 0.5) -> Config:
    """The external advantage (GRPO's on the sum of rewards, UserRL's Equalized) and the information advantage, per token."""
    return with_algorithm(config, advantage=advantage, view=by_token, normalise=none, reduction=token_mean,
                          policy_loss=token_ratio,
                          knobs={"rl.advantage.beta": beta, "rl.advantage.temperature": temperature,
                                 "rl.policy_loss.clip_low": 0.2, "rl.policy_loss.clip_high": 0.2})


colbench = partial(method, beta=0.3)
tau2 = partial(method, beta=0.1, temperature=0.05)
per_turn = partial(method, advantage=infopo_mean)


def config() -> Config:
    base = method(load_config(BASE))
    return replace(base, {
        "name": "infopo",
        "rollout.tasks": 64, "rollout.group": 5, "rollout.max_tokens": 9344, "rollout.max_new_tokens": 1024,
        "rollout.slots": 16, "learn.steps": 156, "learn.minibatches": 4, "eval.temperature": 0.0,
        "knobs": {**base.knobs, "env.max_turns": 16, "rl.entropy.coef": 0.001, "rl.policy_optimizer.learning_rate": 3e-7},
    })
