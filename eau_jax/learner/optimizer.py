"""AdamW built from knobs inside the jitted step, so that `opt_state` holds moments and counts but no hyperparameter."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.types import Array, TrainState


@struct.dataclass
class Knobs:
    learning_rate: float = knob(1e-6, 0.0, 0.1, "step size after warm-up; 0 freezes the tower", log=True)
    warmup_steps: int = knob(0, 0, 100000, "optimizer steps over which the learning rate rises linearly")
    beta1: float = knob(0.9, 0.0, 0.999, "decay of the gradient's mean", trust=0.1)
    beta2: float = knob(0.999, 0.0, 0.99999, "decay of the gradient's square", trust=0.1)
    eps: float = knob(1e-8, 1e-12, 1e-2, "added to the root of the gradient's square", log=True, trust=10.0)
    weight_decay: float = knob(0.0, 0.0, 1.0, "decoupled decay of matrices, times the learning rate", trust=0.05)
    max_grad_norm: float = knob(1.0, 1e-4, 1e6, "gradients are scaled down to this global norm", log=True)


def optimizer(knobs: Knobs, step: Array, axes: Any, mean_dtype: str) -> optax.GradientTransformation:
    """Clips by global norm, then AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101).

    Args:
      step: [] i32, optimizer steps taken so far: warm-up multiplies the learning rate by
        min(1, (step + 1) / warmup_steps).
      axes: logical axis names of the params; norms and biases are not decayed.
      mean_dtype: dtype of the gradient's running mean; bfloat16 saves memory, the running square stays float32.
    """
    ramp = jnp.minimum(1.0, (step + 1) / jnp.maximum(knobs.warmup_steps, 1))
    return optax.chain(
        optax.clip_by_global_norm(knobs.max_grad_norm),
        optax.adamw(knobs.learning_rate * ramp, b1=knobs.beta1, b2=knobs.beta2, eps=knobs.eps,
                    weight_decay=knobs.weight_decay, mask=decayed(axes), mu_dtype=mean_dtype),
    )


def decayed(axes: Any) -> Any:
    """True for each matrix: weights between the residual stream and something else, and both factors of an adapter. Norms,
    biases and heads of one output have no second axis of their own."""
    return jax.tree.map(lambda names: bool({"embed", "rank"} & set(names)) and len(set(names) - {"layers"}) > 1, axes,
                        is_leaf=lambda names: isinstance(names, tuple))


def start(params: Any, axes: Any, mean_dtype: str) -> TrainState:
    """A tower before its first step. Moments do not take the params' dtype."""
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    step = jnp.int32(0)
    return TrainState(step=step, params=params, opt_state=optimizer(Knobs(), step, axes, mean_dtype).init(wide))


def apply(tower: TrainState, grads: Any, knobs: Knobs, axes: Any, mean_dtype: str) -> TrainState:
    """One optimizer step; `grads` are float32."""
    updates, opt_state = optimizer(knobs, tower.step, axes, mean_dtype).update(grads, tower.opt_state, tower.params)
    return TrainState(step=tower.step + 1, params=optax.apply_updates(tower.params, updates), opt_state=opt_state)
