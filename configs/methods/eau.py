"""EAU: PPO with one advantage per action (assistant turn), and a user that is symbolic half of the time.

Reproduces   the agent's training of "Environment-Agent-User Co-evolution for Training User-Centric Agents": GAE per action,
             critic and policy loss on action tokens, epsilon = 0.5 symbolic replies, the others by CoSER-8B
             (arXiv:2502.09082) behind an OpenAI-compatible server. The paper's PPO numbers are not published; those here are
             the package's, with SAO's 10 updates of the critic alone and two critic passes for one of the policy
             (arXiv:2607.07508). No KL, as in most recipes for agents.
Hardware     one 80 GB GPU; a plan counts 76 GB at most.
Time         not measured.
Expected     not measured.
Command      scripts/one_gpu configs/methods/eau.py PATH  (`eau-jax plan` needs no weights)
Small        eau-jax train configs/quickstart.py --method configs/methods/eau.py --name eau
"""

from pathlib import Path

from eau_jax.algorithms.gae import gae
from eau_jax.algorithms.loss import token_ratio
from eau_jax.algorithms.reduction import token_mean
from eau_jax.algorithms.view import by_action
from eau_jax.algorithms.whiten import over_actions
from eau_jax.clients.chat import ChatClient
from eau_jax.config import Config
from eau_jax.config_file import load_config, replace, with_algorithm
from eau_jax.users.llm import llm
from eau_jax.users.mixture import mixture
from eau_jax.users.symbolic import symbolic

BASE = str(Path(__file__).parents[1] / "qwen3_4b_intention.py")


def method(config: Config) -> Config:
    """PPO with GAE per action, advantages normalised over actions."""
    return with_algorithm(config, advantage=gae, view=by_action, normalise=over_actions, reduction=token_mean,
                          policy_loss=token_ratio)


def config() -> Config:
    coser = ChatClient("http://localhost:8000/v1", "Neph0s/CoSER-Llama-3.1-8B")
    base = method(load_config(BASE))
    return replace(base, {
        "name": "eau",
        "user": mixture(symbolic, llm(coser)),
        "learn.critic_warmup": 10, "learn.critic_updates": 2,
        "knobs": {**base.knobs, "user.epsilon": 0.5},
    })
