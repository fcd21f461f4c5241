"""The smallest run that goes through the whole loop, for tests: seconds on one core."""

from eau_jax.config import Config, Learn, Model, Rollout, Sft, Swap, Tasks, Checkpoint, Evaluation
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.rollout.template import TINY
from eau_jax.start import new_model


def config() -> Config:
    return Config(
        name="tiny",
        env=intention,
        template=TINY,
        tasks=Tasks(generate=intention_tasks.generate, train=16, test=4),
        model=Model(make=new_model, vocab_size=300, d_model=16, num_layers=1, num_heads=2, num_kv_heads=1, d_ff=32),
        sft=Sft(steps=2, episodes=8, batch=4),
        rollout=Rollout(tasks=2, group=2, max_tokens=256, max_new_tokens=8, slots=4),
        learn=Learn(steps=4, rows=2, minibatches=1, critic_warmup=1, chunk=64),
        eval=Evaluation(samples=1),
        checkpoint=Checkpoint(every=1, keep=2),
        knobs={"env.max_turns": 3, "rl.policy_optimizer.learning_rate": 1e-3, "rl.critic_optimizer.learning_rate": 1e-3},
        swaps=(Swap(step=3, knobs={"env.max_turns": 2, "rl.policy_loss.clip_low": 0.1},
                    rules=intention.rules.replace("ANSWER", "ANSWER") + "\n# swapped\n"),),
    )
