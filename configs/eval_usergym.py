"""UserGym's test splits, all eight gyms, with their upstream rules: the expert with the symbolic user.

Reproduces   the protocol of UserRL (Qian et al. 2025): 16 messages, the gyms' own metrics, the micro average; and the macro
             average over seven gyms that EAU reports. For a model of your own change `player`, and `user` and `judge` for
             language models in their places.
Hardware     1 CPU core for the script; whatever your model needs.
Time         under a minute for the script.
Expected     1.0 nearly everywhere; the metric of intention is a sum of rewards, whose ceiling is 2.68 on this split.
Command      EAU_DATA=data eau-jax eval configs/eval_usergym.py     (`eau-jax data` says where the files come from)
"""

import os
from pathlib import Path

from eau_jax.envs.gyms import (function_tasks, intention_tasks, persuade_tasks, search_tasks, tau as tau_gym,
                               telepathy_tasks, travel_tasks, turtle_tasks)
from eau_jax.envs.gyms.function import function
from eau_jax.envs.gyms.intention import intention
from eau_jax.envs.gyms.persuade import persuade
from eau_jax.envs.gyms.search import search
from eau_jax.envs.gyms.search_index import index
from eau_jax.envs.tau2.data import load as load_domain
from eau_jax.envs.gyms.telepathy import telepathy
from eau_jax.envs.gyms.travel import travel
from eau_jax.envs.gyms.turtle import turtle
from eau_jax.eval.plan import Bench, Plan
from eau_jax.eval.players import scripted

DATA = Path(os.environ.get("EAU_DATA", "data"))
UPSTREAM = "UserRL cf55a30"
# Upstream's rules where ours differ by default; the metric of travel ignores its rewards. They pay some agents that do not
# try (`Env.floor` holds for the defaults): leave this out to compare agents, keep it to compare with published numbers.
RULES = {"travel": {"env.r_search": 0.2, "env.r_pref": 0.6, "env.volunteer_after": 4, "env.end_when_all_chosen": 0,
                    "env.ask_cap": 12, "env.look_first": 0},
         "turtle": {"env.max_stories": 64, "env.answer_cost": 0.0}, "function": {"env.max_wrong": 64},
         "persuade": {"env.reward_mode": 1, "env.patience": 64}, "intention": {"env.ask_cap": 16, "env.patience": 64},
         "telepathy": {"env.max_wrong": 64}, "search": {"env.max_wrong": 64}}


def gym(name: str, env, tasks) -> Bench:
    file = DATA / "usergym" / name / "test.parquet"
    return Bench(name, env, lambda: tasks.load(file), version=UPSTREAM, files=(str(file),),
                 knobs=RULES.get(name, {}))


def plan() -> Plan:
    domains = {name: load_domain(DATA / "tau2" / name) for name in ("retail", "airline")}
    return Plan(
        name="usergym-expert",
        benches=(
            # Upstream's travel files are not public; these tasks are of the same schema.
            Bench("travel", travel, lambda: travel_tasks.generate("test", 128, 0), version="eau_jax generator",
                  knobs=RULES["travel"]),
            gym("turtle", turtle, turtle_tasks),
            gym("function", function, function_tasks),
            gym("tau", tau_gym.tau_gym(domains), tau_gym),
            gym("persuade", persuade, persuade_tasks),
            gym("intention", intention, intention_tasks),
            gym("telepathy", telepathy, telepathy_tasks),
            # Needs passages; upstream searches the web. Not in the papers' averages.
            Bench("search", search(index(search_tasks.corpus())), lambda: search_tasks.generate("test", 32, 0),
                  version="eau_jax generator", averaged=False, knobs=RULES["search"]),
        ),
        player=lambda: scripted("expert"),
    )
