"""The smallest run that faults can be put into: a mixture of users, buckets of tasks, a knob that can be farmed."""

from eau_jax.bench_meta import Suite
from eau_jax.config import Config, Meta
from eau_jax.config_file import replace
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.faults import paid
from eau_jax.meta.rule_proposer import rules
from eau_jax.users.mixture import mixture
from eau_jax.users.noisy import noisy
from eau_jax.users.symbolic import symbolic
from tiny_config import config as tiny


def config() -> Config:
    return replace(tiny(), {
        "swaps": (), "env": paid(intention), "user": mixture(symbolic, noisy), "mesh.data": 1,
        "tasks.bucket": intention_tasks.bucket, "tasks.train": 64, "tasks.test": 3,
        "meta": Meta(proposer=rules, every=1, burn_in=1, canary_tasks=2, anchor_tasks=2),
        "knobs": {**tiny().knobs, "env.max_turns": 6, "rl.entropy.coef": 0.01, "user.second.leak": 0.0, "user.second.paraphrase": 0.0}})


def suite() -> Suite:
    return Suite("tiny", {"asking": config()}, ("too_few_turns",), (0,), updates=3, since=2)
