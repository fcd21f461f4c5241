"""Rotary positions (Su et al. 2021, arXiv:2104.09864)."""

import jax.numpy as jnp
import numpy as np

from eau_jax.core.types import Array
from eau_jax.models.config import ModelConfig


def angles(config: ModelConfig, positions: Array) -> tuple[Array, Array]:
    """cos and sin of the rotary angles, f32[R, S, 1, h/2]."""
    turned = positions.astype(jnp.float32)[..., None] * jnp.asarray(_frequencies(config))[None, None]
    return jnp.cos(turned)[:, :, None], jnp.sin(turned)[:, :, None]


def _frequencies(config: ModelConfig) -> np.ndarray:
    """Radians per token of each pair of dimensions, f32[h/2].

    Llama 3 scaling: a wavelength longer than original_max_position / low_freq_factor is stretched by `factor`, one
    shorter than original_max_position / high_freq_factor is kept, and between the two the frequency is interpolated.
    """
    frequencies = config.rope_theta ** (-np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    scaling = config.rope_scaling
    if scaling is not None:
        turns = scaling.original_max_position * frequencies / (2 * np.pi)  # rotations within the original context
        kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        kept = np.clip(kept, 0.0, 1.0)
        frequencies = frequencies * (kept + (1 - kept) / scaling.factor)
    return frequencies.astype(np.float32)


def rotate(x: Array, rotation: tuple[Array, Array]) -> Array:
    """Rotates dimension i together with i + h/2 (the Hugging Face pairing), in float32."""
    cos, sin = rotation
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
