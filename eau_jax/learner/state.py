"""The state of a learner: its start, where it lives on the mesh, and the knobs that come with the static choices."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from eau_jax.algorithms import kl, loss
from eau_jax.core.knobs import knob
from eau_jax.core.sharding import put, replicated, shardings
from eau_jax.core.types import Array, TrainState
from eau_jax.learner import optimizer
from eau_jax.learner.parts import Learner, LearnerState
from eau_jax.models import lora, transformer


@struct.dataclass
class SamplerKnobs:
    temperature: float = knob(1.0, 0.05, 2.0, "logits are divided by it, by the sampler and by the learner", trust=0.2)


def default_knobs(learner: Learner) -> dict[str, Any]:
    """The "rl" branch of the knob tree. What the static choices do not use has no knob."""
    tree = {
        "sampler": SamplerKnobs(),
        "advantage": learner.advantage.knobs,
        "correction": learner.correction.knobs,
        "policy_loss": learner.policy_loss.knobs,
        "entropy": loss.EntropyKnobs(),
        "policy_optimizer": optimizer.Knobs(),
    }
    if learner.shaping is not None:
        tree["shaping"] = learner.shaping.knobs
    if learner.kl is not None:
        tree["kl"] = loss.KlKnobs()
        tree["kl_control"] = kl.ControlKnobs()
    if learner.advantage.needs_critic:
        tree["value_loss"] = loss.ValueKnobs()
        tree["critic"] = learner.critic.knobs
        tree["critic_optimizer"] = optimizer.Knobs(learning_rate=np.float32(1e-5))
    return tree


def axes(learner: Learner) -> dict[str, Any]:
    """Logical axis names of each tower's params and of the frozen weights."""
    frozen, policy = lora.split_axes(learner.model)
    return {"frozen": frozen, "policy": policy, "critic": learner.critic.axes(learner.model)}


def place(learner: Learner, params: Any) -> Any:
    """The model's weights on the mesh."""
    return put(params, shardings(params, transformer.logical_axes(learner.model), learner.mesh))


def policy_weights(state: LearnerState) -> Any:
    """What the sampler runs: the policy's params and the frozen weights, which are not copied. With LoRA its adapters are
    applied and not merged, so that rounding does not put the sampler's policy beside the learner's."""
    return lora.join(state.frozen, state.policy.params)


def init(learner: Learner, params: Any, key: Array) -> LearnerState:
    """The state before the first update. `params` (of `transformer.init` or an import) are copied, never donated."""
    build = jax.jit(_init, static_argnums=0, out_shardings=state_shardings(learner))
    return build(learner, place(learner, params), key)


def init_tower(learner: Learner, params: Any, key: Array) -> tuple[TrainState, Any]:
    """A policy alone and the frozen weights, for supervised fine-tuning. `params` are copied."""
    places = state_shardings(learner)
    build = jax.jit(_init_policy, static_argnums=0, out_shardings=(places.policy, places.frozen))
    return build(learner, place(learner, params), key)


def _init_policy(learner: Learner, params: Any, key: Array) -> tuple[TrainState, Any]:
    frozen, policy = jax.tree.map(jnp.copy, lora.split(learner.model, params, key))
    return optimizer.start(policy, axes(learner)["policy"], learner.mean_dtype), frozen


def _init(learner: Learner, params: Any, key: Array) -> LearnerState:
    policy, frozen = _init_policy(learner, params, jax.random.fold_in(key, 0))
    critic = learner.critic.init(learner.model, params, jax.random.fold_in(key, 1))
    return LearnerState(
        step=jnp.int32(0), policy=policy, frozen=frozen, kl_scale=jnp.float32(1.0),
        critic=optimizer.start(jax.tree.map(jnp.copy, critic), axes(learner)["critic"], learner.mean_dtype),
        reference=jax.tree.map(jnp.copy, params) if learner.kl is not None and not frozen else {})


def _shapes(learner: Learner) -> LearnerState:
    params = jax.eval_shape(functools.partial(transformer.init, learner.model), jax.random.key(0))
    return jax.eval_shape(functools.partial(_init, learner), params, jax.random.key(0))


def state_shardings(learner: Learner) -> LearnerState:
    """Where each leaf of the state lives; an optimizer's moments lie beside their params."""
    shapes, names = _shapes(learner), axes(learner)

    def tower(shape: TrainState, axes: Any) -> TrainState:
        params = shardings(shape.params, axes, learner.mesh)
        opt_state = optax.tree_map_params(
            optimizer.optimizer(optimizer.Knobs(), jnp.int32(0), axes, learner.mean_dtype),
            lambda _, place: place, shape.opt_state, params,
            transform_non_params=lambda _: replicated(learner.mesh))
        return TrainState(step=replicated(learner.mesh), params=params, opt_state=opt_state)

    policy = tower(shapes.policy, names["policy"])
    return LearnerState(step=replicated(learner.mesh), kl_scale=replicated(learner.mesh), policy=policy,
                        critic=tower(shapes.critic, names["critic"]),
                        frozen=shardings(shapes.frozen, names["frozen"], learner.mesh),
                        reference=policy.params if shapes.reference else {})


def abstract_state(learner: Learner) -> LearnerState:
    """Shapes, dtypes and shardings of the state, without allocating: what a checkpoint is restored into."""
    return jax.tree.map(lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place),
                        _shapes(learner), state_shardings(learner))
