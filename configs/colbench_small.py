"""ColBench, small: an agent learns to ask for what a request leaves out before it writes the function.

Reproduces   nothing published: ColBench's backend rules (Zhou et al. 2025) on generated one-line programs.
Hardware     2 CPU cores, 3 GB of memory. Each answer that was not seen before starts a process (15 ms).
Time         about 5 minutes.
Expected     held-out Pass about 0.61 after the cold start, 0.91 after 16 updates (one seed); the expert reaches 1.
Command      eau-jax train configs/colbench_small.py
"""

from eau_jax.algorithms.kl import k3
from eau_jax.clients.executor import Executor
from eau_jax.config import Algorithm, Config, Evaluation, Learn, Model, Rollout, Sft, Tasks
from eau_jax.envs.colbench import tasks as colbench_tasks
from eau_jax.envs.colbench.colbench import colbench
from eau_jax.rollout.template import TINY
from eau_jax.start import new_model


def config() -> Config:
    return Config(
        name="colbench_small",
        env=colbench(Executor()),
        template=TINY,
        tasks=Tasks(generate=colbench_tasks.generate, load=colbench_tasks.load, train=2000, test=128),
        model=Model(make=new_model, vocab_size=512, d_model=96, num_layers=2, num_heads=4, num_kv_heads=2, d_ff=256),
        sft=Sft(steps=800, episodes=3000, batch=32, learning_rate=2e-3, expert_share=0.3),
        algorithm=Algorithm(kl=k3),
        rollout=Rollout(tasks=32, group=4, max_tokens=384, max_new_tokens=48, slots=64),
        learn=Learn(steps=25, minibatches=4, rows=4, critic_warmup=2),
        eval=Evaluation(samples=2),
        knobs={
            "env.max_turns": 8,
            "rl.policy_optimizer.learning_rate": 3e-4,
            "rl.critic_optimizer.learning_rate": 1e-3,
            "rl.kl.coef": 0.02,
        },
    )
