"""The smallest study of EAU's ablations, as a study file: a script proposes one change, for the run or for the next one."""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from tiny_config import config as tiny  # noqa: E402

from eau_jax.config import Checkpoint, Meta  # noqa: E402
from eau_jax.config_file import load_method, replace  # noqa: E402
from eau_jax.envs.gyms import intention_tasks  # noqa: E402
from eau_jax.meta.proposal import Batch  # noqa: E402
from eau_jax.meta.proposer import Proposer  # noqa: E402
from eau_jax.study import Study  # noqa: E402
from eau_jax.users.mixture import mixture  # noqa: E402
from eau_jax.users.noisy import fickle, noisy  # noqa: E402

ARMS = ("none", "in_run", "generic", "cross_run", "eau")
GONE = noisy._replace(name="gone", knobs=noisy.knobs.replace(leave=1.0))


def script(view, budget):
    """After two updates, unless that is in force already."""
    now = view.json("knobs/current.json")
    if now["step"] != 2 or now["values"]["env.invalid_penalty"] > 0:
        return Batch("empty")
    return Batch("ok", (json.dumps({
        "base_generation": now["generation"], "changes": {"env.invalid_penalty": 0.25},
        "diagnosis": {"owner": "env", "fault": "farmed_shaping"},
        "prediction": {"metric": "rollout/return_mean", "direction": "down", "min_effect": 0.05, "within_updates": 2},
        "ttl_updates": 2, "why": "A script says so."}),))


def study():
    base = tiny()
    meta = Meta(proposer=Proposer("script", script, at_once=True), every=2, burn_in=2, ttl_least=2, cooldown=0,
                canary_tasks=4, anchor_tasks=3, anchor_every=2, causal_tests=False)
    whole = replace(base, {
        "swaps": (), "user": mixture(fickle, noisy), "learn.critic_warmup": 0, "rollout.tasks": 4, "mesh.data": 1,
        "knobs": {**base.knobs, "env.max_turns": 2}, "checkpoint": Checkpoint(every=2, keep=1), "meta": meta,
        "tasks.bucket": intention_tasks.bucket, "eval.user": GONE})
    arm = lambda name: load_method(f"{HERE.parent / 'configs' / 'ablations.py'}:{name}")
    return Study(name="s", environments={"intention": whole}, methods={name: arm(name) for name in ARMS}, baseline="none",
                 seeds=(0,), updates=16, by_episodes=True, campaigns={"generic": 2, "cross_run": 2, "eau": 2})
