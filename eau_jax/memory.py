"""What a config needs of memory, without reading weights or allocating: bytes by kind on one device.

Parameters, optimizer, cache and gradients are exact, and so is what the forward pass keeps for the backward pass
(activations). A pass also has temporaries that live for a moment; it is compiled for the devices at hand, and the
compiler's figure for all its temporaries, activations among them, is what the peak counts. A CPU computes bfloat16 by way
of float32 copies of the weights, which no accelerator makes; there the passes of the same model in float32 are compiled, an
upper bound. So are the sampler's two calls, each in its largest shape.
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
from eau_jax.learner.state import abstract_state, policy_weights
from eau_jax.learner.update import _gradients
from eau_jax.models import transformer
from eau_jax.models.config import ModelConfig
from eau_jax.samplers import decode, jax_engine
from eau_jax.samplers.sglang import SGLang
from eau_jax.samplers.slots import Slots


def estimate(config: Config, made: Learner, *, compile: bool = True) -> dict[str, int]:
    """Bytes on the fullest device, by what they hold: parameters (with LoRA, the frozen ones once and the adapters of each
    tower), optimizer moments, the embedded sampler's cache and temporaries, and of each pass its gradients and its
    temporaries. Activations that are kept and one chunk of logits are among the temporaries.

    The sampler and the learner take turns, so the peak is the state plus the larger of sampler and passes; where collection
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
        "key-value cache": 0,
    }
    ahead, embedded = config.rollout.max_staleness > 0, not isinstance(config.rollout.sampler, SGLang)
    sampler = 0   # servers have memory of their own
    if embedded:
        sampler = bytes_of["key-value cache"] = _bytes(_cache(config, made))
    if embedded and compile:
        bytes_of["sampler: temporaries"] = _sampler_temporaries(config, _compiled_as(made))
        sampler += bytes_of["sampler: temporaries"]
    if embedded and ahead:
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
    return bytes_of | {"peak": fixed + (max(passes) + sampler if ahead else max(*passes, sampler))}


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


def _cache(config: Config, made: Learner) -> transformer.KVCache:
    """The embedded sampler's cache, described."""
    slots, length = config.rollout.slots, config.rollout.max_tokens
    place = jax_engine.placement(made.model, slots, by_row(made.mesh))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
                        jax.eval_shape(lambda: transformer.init_cache(made.model, slots, length)))


def _sampler_temporaries(config: Config, made: Learner) -> int:
    """Temporaries of the embedded sampler's calls, each with the longest histories, as the compiler counts them."""
    chosen = config.rollout
    engine = chosen.sampler(made.model, slots=chosen.slots, length=chosen.max_tokens, top_p=chosen.top_p, top_k=chosen.top_k)
    weights, cache = policy_weights(abstract_state(made)), _cache(config, made)
    common = {"config": made.model, "window": engine.length, "placement": cache.k.sharding}
    idle = Slots(chosen.slots, engine.length)
    rows, fed = np.zeros(engine.prefill_rows, np.int32), np.zeros((engine.prefill_rows, max(engine.chunks)), np.int32)
    calls = (decode.decode.lower(weights, cache, idle.rows(np.zeros_like(idle.left)), np.float32(1.0), np.int32(1),
                                 steps=engine.steps, top_p=engine.top_p, top_k=engine.top_k, **common),
             decode.prefill.lower(weights, cache, rows, fed, rows, rows, **common))
    return max(call.compile().memory_analysis().temp_size_in_bytes for call in calls)


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
