"""What each part of EAU is worth: methods that take parts away from a config that has all of them, such as eau_rules.py.

    none            no meta-agent; the user is as the config has him
    generic         a meta-agent that knows nothing of the user and has no symbolic one: between the runs of a campaign it
                    chooses settings of RL and of the environment, and it plays no causal tests
    cross_run       what EAU's meta-agent proposes waits for the next run of a campaign; within a run nothing is changed
    in_run          changes while training runs, and no run before it: no experience pool
    eau             all of it: in a campaign, whose runs change and begin with what the pool recommends
    epsilon_0, epsilon_half, epsilon_1    as eau, with a fixed share of symbolic replies

The user of the config is a mixture. All but none and in_run are for `eau-jax campaign`, or for a study's campaigns.

Reproduces   nothing published: the names of EAU's ablations. Its numbers are not published for these.
Hardware     the config's.
Time         the config's.
Expected     not measured.
Command      eau-jax train configs/eau_rules.py --method configs/ablations.py:in_run --name in-run
             eau-jax campaign configs/eau_rules.py --method configs/ablations.py:cross_run --name cross-run
"""

import dataclasses
from typing import Any

from eau_jax.config import Config, Meta
from eau_jax.config_file import replace


def none(config: Config) -> Config:
    return replace(config, {"meta": Meta(), "tasks.bucket": None})


def generic(config: Config) -> Config:
    untested = {"causal_tests": False, "scripted_episodes": Meta().scripted_episodes}
    return replace(_with_epsilon(config, 0.0), {"meta": _between(config.meta, fixed=("user",), **untested)})


def cross_run(config: Config) -> Config:
    return replace(config, {"meta": _between(config.meta)})


def in_run(config: Config) -> Config:
    return replace(config, {"meta.pool": ""})


def eau(config: Config) -> Config:
    return config


def epsilon_0(config: Config) -> Config:
    return replace(_with_epsilon(config, 0.0), {"meta.fixed": ("user.epsilon",)})


def epsilon_half(config: Config) -> Config:
    return replace(_with_epsilon(config, 0.5), {"meta.fixed": ("user.epsilon",)})


def epsilon_1(config: Config) -> Config:
    return replace(_with_epsilon(config, 1.0), {"meta.fixed": ("user.epsilon",)})


def _with_epsilon(config: Config, epsilon: float) -> Config:
    return replace(config, {"knobs": {**config.knobs, "user.epsilon": epsilon}})


def _between(meta: Meta, **more: Any) -> Meta:
    """Changes wait for the next run; what is only about changes within a run goes back to its default."""
    within = {name: getattr(Meta(), name) for name in ("swaps", "cooldown", "ttl_least", "ttl_most", "canary_tasks")}
    return dataclasses.replace(meta, between_runs=True, **within, **more)
