"""The quickstart with EAU's co-evolution: a user who is symbolic half of the time, and changes proposed by rules.

Reproduces   nothing published: it shows the whole of EAU's loop with no language model but the policy. Half of the replies are
             worded by a seeded stand-in for an LLM user, which leaks now and then. Every ten updates the run's records are
             examined, causal tests are played where they are wanted, and what the table of moves proposes is gated, tried on
             canary episodes, adopted, watched, and taken back where it hurts.
Hardware     2 CPU cores, 3 GB of memory.
Time         not measured; about twice the quickstart's.
Expected     runs/eau-rules/rounds/*.json says what was found; not measured beyond that.
Command      eau-jax train configs/eau_rules.py
"""

from pathlib import Path

from eau_jax.config import Config, Meta
from eau_jax.config_file import load_config, replace
from eau_jax.envs.gyms import intention_tasks
from eau_jax.meta.rule_proposer import rules
from eau_jax.users.mixture import mixture
from eau_jax.users.noisy import noisy
from eau_jax.users.symbolic import symbolic

QUICKSTART = str(Path(__file__).with_name("quickstart.py"))


def config() -> Config:
    base = load_config(QUICKSTART)
    return replace(base, {
        "name": "eau-rules",
        "user": mixture(symbolic, noisy),
        "tasks.bucket": intention_tasks.bucket,
        "learn.steps": 50,
        "meta": Meta(proposer=rules),
        "knobs": {**base.knobs, "user.second.leak": 0.05},
    })
