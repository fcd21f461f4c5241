"""Four advantage estimators side by side at quickstart size.

Reproduces   nothing published: it shows how methods are compared. PPO per action and per token (with a critic), GRPO and
             RLOO (without one), on two small worlds.
Hardware     2 CPU cores, 3 GB of memory.
Time         24 runs of a few minutes each; stop it and start it again as you like.
Expected     a page with curves and intervals; three seeds tell large differences only.
Command      eau-jax compare-methods configs/study_quickstart.py            (--updates 5 --seeds 0 1 is a first look)
"""

from pathlib import Path

from eau_jax.algorithms.group import grpo, rloo
from eau_jax.algorithms.view import by_action, by_token
from eau_jax.config import Tasks
from eau_jax.config_file import load_config, replace
from eau_jax.envs.gyms import function_tasks
from eau_jax.envs.gyms.function import function
from eau_jax.learner.critic import no_critic
from eau_jax.study import Study

QUICKSTART = load_config(str(Path(__file__).with_name("quickstart.py")))
CRITIC = ("rl.critic_optimizer.", "rl.critic.", "rl.value_loss.")
FUNCTION = replace(QUICKSTART, {
    "env": function,
    "tasks": Tasks(generate=function_tasks.generate, load=function_tasks.load, train=2000, test=128),
    "knobs": {**QUICKSTART.knobs, "env.max_turns": 8},
})


def without_critic(advantage):
    """A method that compares the episodes of a task with each other: no critic, nor what would tune one."""
    return lambda config: replace(config, {
        "algorithm.advantage": advantage, "algorithm.critic": no_critic, "learn.critic_warmup": 0,
        "knobs": {path: value for path, value in config.knobs.items() if not path.startswith(CRITIC)}})


def ppo(view):
    """PPO with one advantage for each step of a view."""
    return lambda config: replace(config, {"algorithm.view": view})


def study() -> Study:
    return Study(
        name="quickstart",
        environments={"intention": QUICKSTART, "function": FUNCTION},
        methods={"by_token": ppo(by_token), "by_action": ppo(by_action), "grpo": without_critic(grpo),
                 "rloo": without_critic(rloo)},
        baseline="by_token",
        seeds=(0, 1, 2),
        updates=20,
    )
