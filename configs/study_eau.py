"""EAU against plain PPO, a generic meta-agent and changes between runs only, on Intention and ColBench, five seeds.

Reproduces   nothing published: EAU's comparison at toy size, with a simulated user as faulty as such users can be: he does
             not do what he should at three replies of ten, leaves at one of four, tells a secret at one of five. The user
             of the held-out tasks is another one, as a person might be: he nearly always says it in other words, seldom
             drifts or leaves, and never leaks. All begin with the same cold start and play the same number of episodes, with
             those of canaries, anchor tasks and causal tests. generic, cross_run and eau are campaigns of two runs that
             share them: the second one begins with what the first found out, or else the first goes on.
Hardware     2 CPU cores, 3 GB of memory.
Time         40 runs or campaigns of 60 updates' worth of episodes, about four minutes each on one core after the cold starts:
             an hour and a half with --jobs 2. Stop it and start it again as you like.
Expected     not measured.
Command      eau-jax compare-methods configs/study_eau.py --jobs 2      (--seeds 0 is a first look)
"""

from pathlib import Path

from eau_jax.config import Config, Meta
from eau_jax.config_file import load_config, load_method, replace
from eau_jax.envs.gyms import intention_tasks
from eau_jax.meta.rule_proposer import rules
from eau_jax.study import Study
from eau_jax.users.mixture import mixture
from eau_jax.users.noisy import fickle, noisy

CONFIGS = Path(__file__).parent
BAD = {"drift": 0.3, "leave": 0.25}   # of what he decides, whoever words it
OTHER = noisy._replace(name="noisy_other", knobs=noisy.knobs.replace(drift=0.05, leave=0.01, paraphrase=0.9, leak=0.0))
META = Meta(proposer=rules, every=3, burn_in=6, canary_tasks=6, anchor_tasks=16, anchor_every=6,
            scripted_episodes=16)


def whole(name: str, bucket) -> Config:
    """A small config with all of EAU but its RL method: half of the replies are symbolic, by users of all personas. A batch
    is 48 episodes."""
    base = load_config(str(CONFIGS / f"{name}.py"))
    return replace(base, {"rollout.tasks": 12, "rollout.slots": 48, "learn.minibatches": 2, "meta": META,
                          "model.vocab_size": 1024, "model.d_model": 80, "model.d_ff": 192,
                          "user": mixture(fickle, noisy), "eval.user": OTHER, "tasks.bucket": bucket,
                          "knobs": {**base.knobs, "user.epsilon": 0.5, "user.first.persona_mix": 1.0,
                                    "user.second.leak": 0.2, **{f"user.first.{name}": bad for name, bad in BAD.items()}}})


def colbench() -> Config:
    """Three quarters of the cold start, which leaves more to learn, on users of many manners: one who has only heard the
    environment's words copies nothing out of other ones."""
    return replace(whole("colbench_small", lambda task: f"facts_{len(task.data['facts'])}"),
                   {"sft.steps": 600, "sft.persona_mix": 1.0})


def arm(rl: str, ablation: str):
    """An ablation of `ablations.py` on top of an RL method."""
    method, taken_away = load_method(CONFIGS / "methods" / f"{rl}.py"), load_method(f"{CONFIGS / 'ablations.py'}:{ablation}")
    return lambda config: taken_away(method(config))


def plain(config: Config) -> Config:
    """PPO per token, without a meta-agent, and the symbolic user words nothing."""
    made = arm("ppo", "none")(config)
    return replace(made, {"knobs": {**made.knobs, "user.epsilon": 0.0}})


def study() -> Study:
    return Study(
        name="eau",
        environments={"intention": whole("quickstart", intention_tasks.bucket), "colbench": colbench()},
        methods={"ppo": plain, "generic": arm("ppo", "generic"), "cross_run": arm("eau", "cross_run"),
                 "eau": arm("eau", "eau")},
        baseline="ppo",
        seeds=(0, 1, 2, 3, 4),
        updates=60,
        by_episodes=True,
        campaigns={"generic": 2, "cross_run": 2, "eau": 2},
    )
