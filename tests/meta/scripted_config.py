"""The smallest run with a scripted proposer, as a config file: a turn penalty that is kept, and one that is refused."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tiny_config import config as tiny  # noqa: E402

from eau_jax.config import Checkpoint, Meta  # noqa: E402
from eau_jax.config_file import replace  # noqa: E402
from eau_jax.meta.proposal import Batch  # noqa: E402
from eau_jax.meta.proposer import Proposer  # noqa: E402
from eau_jax.users.noisy import noisy  # noqa: E402

PENALTY = {"env.invalid_penalty": 0.25}


def script(view, budget):
    """Something once, early in a run; nothing where the pool's recommendation is in force already."""
    now = view.json("knobs/current.json")
    if now["step"] not in (2, 4) or now["values"]["env.invalid_penalty"] > 0 and now["step"] == 2:
        return Batch("empty")
    changes = PENALTY if now["step"] == 2 else {"env.max_turns": 99}
    return Batch("ok", (json.dumps({
        "base_generation": now["generation"], "changes": changes, "diagnosis": {"owner": "env", "fault": "farmed_shaping"},
        "prediction": {"metric": "rollout/return_mean", "direction": "down", "min_effect": 0.05, "within_updates": 2},
        "ttl_updates": 2, "why": "A script says so."}),))


def config():
    base = tiny()
    return replace(base, {
        "name": "c", "swaps": (), "user": noisy, "learn.steps": 8, "learn.critic_warmup": 0, "rollout.tasks": 4,
        "mesh.data": 1,
        "knobs": {**base.knobs, "env.max_turns": 2, "user.leak": 0.0}, "checkpoint": Checkpoint(every=1, keep=1),
        "meta": Meta(proposer=Proposer("script", script, at_once=True), every=2, burn_in=2, ttl_least=2, cooldown=0,
                     canary_tasks=4,
                     anchor_tasks=3, anchor_every=4, causal_tests=False)})
