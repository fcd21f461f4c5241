"""tau2-bench: airline, retail and telecom, base splits, with the symbolic user and a scripted agent.

Reproduces   the protocol of tau2-bench (Barres et al. 2025) at a2c0247: pass^k over the base splits. Airline and retail are
             scored by DB x COMMUNICATE; upstream's DB x NL_ASSERTION of retail needs `judge=ChatClient(...)`, which is asked
             about the statements of 40 of its tasks. The record says which it was.
Hardware     1 CPU core for the script; whatever your model needs.
Time         under a minute for the script.
Expected     1.0 for the expert, who knows the gold actions.
Command      EAU_DATA=data eau-jax eval configs/eval_tau2.py --repeats 4     (`eau-jax data` says where the files come from)
"""

import os
from pathlib import Path

from eau_jax.envs.telecom import tasks as telecom_tasks
from eau_jax.envs.tau2.data import load
from eau_jax.envs.tau2.world import world
from eau_jax.envs.telecom.telecom import telecom
from eau_jax.eval.plan import Bench, Plan
from eau_jax.eval.players import scripted

DATA = Path(os.environ.get("EAU_DATA", "data")) / "tau2"
VERSION = "tau2-bench a2c0247"


def domain(name: str) -> Bench:
    found = load(DATA / name)
    return Bench(name, world(found), lambda: found.split("base"), version=VERSION, split="base",
                 files=tuple(str(DATA / name / file) for file in ("db.json", "tasks.json", "policy.md", "split_tasks.json")))


def plan() -> Plan:
    return Plan(
        name="tau2-expert",
        benches=(
            domain("airline"),
            domain("retail"),
            Bench("telecom", telecom, lambda: telecom_tasks.load(DATA / "telecom" / "tasks.json", "base"), version=VERSION,
                  split="base",
                  files=tuple(str(DATA / "telecom" / file) for file in
                              ("tasks.json", "split_tasks.json", "db.toml", "user_db.toml", "main_policy.md"))),
        ),
        player=lambda: scripted("expert"),
    )
