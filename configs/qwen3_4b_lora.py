"""Qwen3-4B learns to ask for what a request leaves out, by adapters.

Reproduces   PPO with advantages per action, a critic of its own and a reference policy on UserRL's IntentionGym rules, the
             setting of EAU, with LoRA (rank 32 on all matrices) in place of full weights. One frozen bfloat16 copy of the
             model serves the policy, the critic and the reference.
Hardware     one 80 GB GPU. Planned, not measured: 51 GB at most; 8.0 the frozen weights, 1.6 the adapters of policy and
             critic and their optimizer, 38.7 the sampler's cache of 128 episodes and 2.6 what it needs for a moment, or in
             place of both 10 for the learner.
Time         planned, not measured, for an H100 and episodes that are all full (2048 tokens, half of them sampled): at least
             57 s an update, 3.2 hours in all; at 40 % of its peak and 50 % of its bandwidth 135 s and 7.5 hours.
Expected     not measured; the ceiling of the normalised score is 1, published untrained models reach about 0.65 of it.
Command      scripts/one_gpu configs/qwen3_4b_lora.py PATH      (`eau-jax plan` needs no weights)
"""

from eau_jax.algorithms.kl import k3
from eau_jax.config import Algorithm, Checkpoint, Config, Evaluation, Learn, Model, Rollout, Tasks
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.models.config import ModelConfig
from eau_jax.rollout.template import QWEN3

QWEN3_4B = ModelConfig(
    family="qwen3", vocab_size=151936, d_model=2560, num_layers=36, num_heads=32, num_kv_heads=8, head_dim=128, d_ff=9728,
    rope_theta=1e6, qk_norm=True, tie_embeddings=True, max_position=40960)


def config() -> Config:
    return Config(
        name="qwen3_4b_lora",
        env=intention,
        template=QWEN3,
        tasks=Tasks(generate=intention_tasks.generate, load=intention_tasks.load, train=2000, test=128),
        model=Model(architecture=QWEN3_4B, param_dtype="bfloat16", compute_dtype="bfloat16", remat="all", lora_rank=32),
        algorithm=Algorithm(kl=k3),
        rollout=Rollout(tasks=32, group=8, max_tokens=2048, max_new_tokens=128, slots=128),
        learn=Learn(steps=200, minibatches=4, rows=4, chunk=1024, critic_warmup=5),
        eval=Evaluation(every=50),
        checkpoint=Checkpoint(every=10, keep=1),
        knobs={"rl.policy_optimizer.learning_rate": 1e-5, "rl.critic_optimizer.learning_rate": 1e-4},
    )
