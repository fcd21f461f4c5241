"""Qwen2.5-7B-Instruct learns to ask for what a request leaves out, by adapters.

Reproduces   the setting of configs/qwen3_4b_lora.py with a larger model: PPO with advantages per action, a critic and a
             reference of its own, LoRA (rank 32 on all matrices) on one frozen bfloat16 copy.
Hardware     one 80 GB GPU. Planned, not measured: 34 GB at most; 15.2 the frozen weights, 1.9 the adapters of policy and
             critic and their optimizer, 15.0 the sampler's cache of 128 episodes and 2 what it needs for a moment, or in
             place of both 13 for the learner.
Time         planned, not measured, for an H100 and episodes that are all full (2048 tokens, half of them sampled): at least
             81 s an update, 4.5 hours in all; at 40 % of its peak and 50 % of its bandwidth 200 s and 11 hours.
Expected     not measured.
Command      scripts/one_gpu configs/qwen2_5_7b_lora.py PATH      (`eau-jax plan` needs no weights)
"""

from pathlib import Path

from eau_jax.config import Config
from eau_jax.config_file import load_config, replace
from eau_jax.models.config import ModelConfig
from eau_jax.rollout.template import QWEN25

BASE = str(Path(__file__).parent / "qwen3_4b_lora.py")
QWEN2_5_7B = ModelConfig(
    family="qwen2", vocab_size=152064, d_model=3584, num_layers=28, num_heads=28, num_kv_heads=4, head_dim=128, d_ff=18944,
    rope_theta=1e6, qkv_bias=True, tie_embeddings=False, max_position=32768)


def config() -> Config:
    return replace(load_config(BASE), {"name": "qwen2_5_7b_lora", "template": QWEN25, "model.architecture": QWEN2_5_7B})
