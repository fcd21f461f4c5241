"""The state of a learner: its start, where it lives on the mesh, and the knobs that come with the static choices."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from eau_jax.algorithms import loss
from eau_jax.core.knobs import knob
from eau_jax.core.sharding import replicated, shardings
from eau_jax.core.types import Array, TrainState
from eau_jax.learner import optimizer
from eau_jax.learner.parts import Learner, LearnerState
from eau_jax.models import transformer


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
    if learner.advantage.needs_critic:
        tree["value_loss"] = loss.ValueKnobs()
        tree["critic"] = learner.critic.knobs
        tree["critic_optimizer"] = optimizer.Knobs(learning_rate=np.float32(1e-5))
    return tree


def axes(learner: Learner) -> dict[str, Any]:
    """Logical axis names of each tower's params."""
    return {"policy": transformer.logical_axes(learner.model), "critic": learner.critic.axes(learner.model)}


def init(learner: Learner, params: Any, key: Array) -> LearnerState:
    """The state before the first update. `params` (of `transformer.init` or an import) are copied, never donated."""
    places = state_shardings(learner)
    params = jax.device_put(params, places.policy.params)
    return jax.jit(_init, static_argnums=0, out_shardings=places)(learner, params, key)


def init_tower(learner: Learner, params: Any) -> TrainState:
    """A policy alone, for supervised fine-tuning. `params` are copied."""
    places = state_shardings(learner).policy
    build = jax.jit(lambda params: optimizer.start(jax.tree.map(jnp.copy, params), axes(learner)["policy"],
                                                   learner.mean_dtype),
                    out_shardings=places)
    return build(jax.device_put(params, places.params))


def _init(learner: Learner, params: Any, key: Array) -> LearnerState:
    names = axes(learner)
    critic = learner.critic.init(learner.model, params, key)
    return LearnerState(
        step=jnp.int32(0),
        policy=optimizer.start(jax.tree.map(jnp.copy, params), names["policy"], learner.mean_dtype),
        critic=optimizer.start(jax.tree.map(jnp.copy, critic), names["critic"], learner.mean_dtype),
        reference=jax.tree.map(jnp.copy, params) if learner.kl is not None else {})


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
    return LearnerState(step=replicated(learner.mesh), policy=policy, critic=tower(shapes.critic, names["critic"]),
                        reference=policy.params if learner.kl is not None else {})


def abstract_state(learner: Learner) -> LearnerState:
    """Shapes, dtypes and shardings of the state, without allocating: what a checkpoint is restored into."""
    return jax.tree.map(lambda shape, place: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=place),
                        _shapes(learner), state_shardings(learner))
