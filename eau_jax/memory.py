"""What a config needs of memory, without reading weights or allocating: bytes by kind on one device.

Parameters, optimizer, cache and gradients are exact, and so is what the forward pass keeps for the backward pass
(activations). A pass also has temporaries that live for a moment; it is compiled for the devices at hand, and the
compiler's figure for all its temporaries, activations among them, is what the peak counts. A CPU computes bfloat16 by way
of float32 copies of the weights, which no accelerator makes; there the passes of the same model in float32 are compiled, an
upper bound.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from eau_jax.assemble import first_generation
from eau_jax.config import Config
from eau_jax.core.sharding import by_row, make_mesh
from eau_jax.core.types import TrainState
from eau_jax.learner.parts import Learner, Phase, Rows
from eau_jax.learner.state import abstract_state
from eau_jax.learner.update import _gradients
from eau_jax.models import transformer
from eau_jax.models.config import ModelConfig
from eau_jax.samplers.sglang import SGLang


def estimate(config: Config, made: Learner, *, compile: bool = True) -> dict[str, int]:
    """Bytes on the fullest device, by what they hold: parameters (with LoRA, the frozen ones once and the adapters of each
    tower), optimizer moments, cache, and of each pass its gradients and its temporaries. Activations that are kept and one
    chunk of logits are among the temporaries.

    The sampler and the learner take turns, so the peak is the state plus the larger of cache and passes; where collection
    runs ahead, it is the state, the embedded sampler's copy of the policy, and both. Without `compile` there are no
    temporaries, and no peak.
    """
    state = abstract_state(made)
    trained = [tower for tower in (state.policy, state.critic) if tower.params]
    bytes_of = {
        "frozen parameters": _bytes(state.frozen),
        "policy parameters": _bytes(state.policy.params),
        "critic parameters": _bytes(state.critic.params),
        "reference parameters": _bytes(state.reference),
        "optimizer moments": _bytes([tower.opt_state for tower in trained]),
        "key-value cache": _cache(config, made),
    }
    ahead = config.rollout.max_staleness > 0
    if ahead and not isinstance(config.rollout.sampler, SGLang):
        bytes_of["sampler's copy of parameters"] = _bytes(state.policy.params)
    passes = [0]
    for phase in dict.fromkeys((made.critic.alone, made.critic.together)):
        if phase.towers:
            gradients = _bytes(list(_gradients_of(made, phase).values()))
            bytes_of[f"{phase.name} pass: gradients"] = gradients
            if compile:
                temporaries = _temporaries(_compiled_as(made), phase, config)
                bytes_of[f"{phase.name} pass: temporaries"] = temporaries
                passes.append(gradients + temporaries)
            bytes_of[f"{phase.name} pass: activations"] = activations(made, phase, config)
            if "policy" in phase.towers:
                bytes_of[f"{phase.name} pass: chunk of logits"] = logits_chunk(made)
    if not compile:
        return bytes_of
    fixed = sum(size for name, size in bytes_of.items() if "parameters" in name or "moments" in name)
    cache = bytes_of["key-value cache"]
    return bytes_of | {"peak": fixed + (max(passes) + cache if ahead else max(*passes, cache))}


def activations(made: Learner, phase: Phase, config: Config) -> int:
    """Bytes that the forward pass of a micro-batch keeps for its backward pass on a device, parameters and rows aside.

    They are read off the traced program: what the pullback holds and was not given. A device is counted with its share of
    the rows, and whole where `tensor` would cut.
    """
    rows = made.micro_rows // made.row_shards
    alone = dataclasses.replace(made, mesh=make_mesh(devices=made.mesh.devices.flat[:1].tolist()), micro_rows=rows,
                                chunk=-(-made.chunk // made.row_shards))
    state, knobs = abstract_state(alone), first_generation(config).knobs["rl"]
    params = {"policy": state.policy.params, "critic": state.critic.params, "frozen": state.frozen}

    def kept(params: dict, rows: Rows) -> list[Any]:
        loss = lambda trained: phase.loss(params | trained, alone, rows, knobs)
        return jax.tree.leaves(jax.vjp(loss, {name: params[name] for name in phase.towers}, has_aux=True)[1])

    program = jax.make_jaxpr(kept)(params, _rows(alone)).jaxpr
    made_here = {id(leaf): leaf.aval for leaf in program.outvars
                 if not isinstance(leaf, jax.extend.core.Literal) and leaf not in program.invars}
    return sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in made_here.values())


def logits_chunk(made: Learner) -> int:
    """Bytes of one float32 array of logits on a device: `learn.chunk` sampled tokens over the vocabulary."""
    rows, tensor, vocab = made.row_shards, made.mesh.shape["tensor"], made.model.vocab_size
    width = vocab // tensor if vocab % tensor == 0 else vocab
    return 4 * width * min(-(-made.chunk // rows), made.micro_rows * made.row_width // rows)


def token_bytes(model: ModelConfig) -> int:
    """Bytes of one token's keys and values in the cache."""
    return whole(jax.eval_shape(lambda: transformer.init_cache(model, 1, 1)))


def whole(tree: Any) -> int:
    """Bytes of described arrays on all devices together, each counted once."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def moved_by_a_step(tower: TrainState) -> int:
    """Bytes that one optimizer step reads and writes on a device: parameters and moments both, float32 gradients read."""
    gradients = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float32, sharding=leaf.sharding), tower.params)
    return 2 * _bytes((tower.params, tower.opt_state)) + _bytes(gradients)


def _compiled_as(made: Learner) -> Learner:
    if jax.default_backend() != "cpu":
        return made
    return dataclasses.replace(made, model=dataclasses.replace(made.model, param_dtype="float32", compute_dtype="float32"))


def _bytes(tree: Any) -> int:
    """Bytes on one device of arrays that are described with their shardings."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _cache(config: Config, made: Learner) -> int:
    if isinstance(config.rollout.sampler, SGLang):
        return 0   # it is the servers', in memory of their own
    spread = made.row_shards if config.rollout.slots % made.row_shards == 0 else 1
    return token_bytes(made.model) * config.rollout.slots * config.rollout.max_tokens // spread


def _rows(made: Learner) -> Rows:
    """One micro-batch, described."""
    kinds = {"tokens": np.int32, "positions": np.int32, "segment_ids": np.int32, "action_ids": np.int32,
             "mask": bool, "value_mask": bool}
    return Rows(**{name: jax.ShapeDtypeStruct((made.micro_rows, made.row_width), kinds.get(name, np.float32),
                                              sharding=by_row(made.mesh)) for name in Rows.__dataclass_fields__})


def _gradients_of(made: Learner, phase: Phase) -> dict[str, Any]:
    """The float32 gradients of a phase, described."""
    state = abstract_state(made)
    return {name: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float32, sharding=leaf.sharding),
                               getattr(state, name).params) for name in phase.towers}


def _temporaries(made: Learner, phase: Phase, config: Config) -> int:
    """Temporaries of one micro-batch, as the compiler counts them."""
    state = abstract_state(made)
    params = {"policy": state.policy.params, "critic": state.critic.params, "frozen": state.frozen}
    knobs = first_generation(config).knobs["rl"]
    compiled = _gradients.lower(made, phase, params, _rows(made), knobs, _gradients_of(made, phase)).compile()
    return compiled.memory_analysis().temp_size_in_bytes
