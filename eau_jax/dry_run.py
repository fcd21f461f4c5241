"""What a config would need, without reading weights or allocating: shapes, shardings, memory.

The state is exact. The passes are compiled for the devices at hand, and the compiler's own figure for their temporary
memory is used. A CPU computes bfloat16 by way of float32 copies of the weights, which no accelerator makes; there the
passes of the same model in float32 are counted, an upper bound.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from eau_jax import start
from eau_jax.assemble import first_generation, learner
from eau_jax.config import Config
from eau_jax.core.sharding import by_row
from eau_jax.learner.parts import Learner, Phase, Rows
from eau_jax.learner.state import abstract_state
from eau_jax.learner.update import _gradients
from eau_jax.models import transformer
from eau_jax.models.config import ModelConfig


def estimate(config: Config, model: ModelConfig) -> dict[str, int]:
    """Bytes on the fullest device, by what they hold: parameters (with LoRA, the frozen ones once and the adapters of each
    tower), optimizer moments, cache, and of each pass its gradients and its temporaries (activations, logits).

    The sampler and the learner take turns, so the peak is the state plus the larger of cache and passes.
    """
    made = learner(config, model)
    state = abstract_state(made)
    trained = [tower for tower in (state.policy, state.critic) if tower.params]
    bytes_of = {
        "frozen parameters": _bytes(state.frozen),
        "policy parameters": _bytes(state.policy.params),
        "critic parameters": _bytes(state.critic.params),
        "reference parameters": _bytes(state.reference),
        "optimizer moments": _bytes([tower.opt_state for tower in trained]),
        "key-value cache": _cache(config, model, made),
    }
    passes = [0]
    if jax.default_backend() == "cpu":
        made = learner(config, dataclasses.replace(model, param_dtype="float32", compute_dtype="float32"))
    for phase in dict.fromkeys((made.critic.alone, made.critic.together)):
        if phase.towers:
            gradients, temporaries = _pass(made, phase, config)
            bytes_of |= {f"{phase.name} pass: gradients": gradients, f"{phase.name} pass: temporaries": temporaries}
            passes.append(gradients + temporaries)
    fixed = sum(size for name, size in bytes_of.items() if "parameters" in name or "moments" in name)
    return bytes_of | {"peak": fixed + max(*passes, bytes_of["key-value cache"])}


def show(config: Config) -> None:
    """Prints shapes, shardings and the estimate."""
    model = start.architecture(config)
    made, console = learner(config, model), Console()
    state = abstract_state(made)
    trained = sum(leaf.size for leaf in jax.tree.leaves(state.policy.params))
    console.print(f"{transformer.parameter_count(model):,} parameters, {trained:,} of the policy trained; batch "
                  f"{config.rollout.tasks} x {config.rollout.group} episodes of up to {config.rollout.max_tokens} tokens; mesh "
                  f"{dict(made.mesh.shape)}", soft_wrap=True)
    shapes = Table("policy parameter", "shape", "dtype", "sharding")
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.policy.params):
        shapes.add_row(jax.tree_util.keystr(path, simple=True, separator="."), str(leaf.shape), str(leaf.dtype),
                       str(leaf.sharding.spec))
    console.print(shapes)
    table = Table("memory of the fullest device", "GB")
    for name, size in estimate(config, model).items():
        table.add_row(name, f"{size / 1e9:.3f}", style="bold" if name == "peak" else None)
    console.print(table)


def _bytes(tree: Any) -> int:
    """Bytes on one device of arrays that are described with their shardings."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _cache(config: Config, model: ModelConfig, made: Learner) -> int:
    cache = jax.eval_shape(lambda: transformer.init_cache(model, config.rollout.slots, config.rollout.max_tokens))
    spread = made.row_shards if config.rollout.slots % made.row_shards == 0 else 1
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache)) // spread


def _pass(made: Learner, phase: Phase, config: Config) -> tuple[int, int]:
    """Gradients and temporaries of one micro-batch, as the compiler counts them."""
    shape = (made.micro_rows, made.row_width)
    kinds = {"tokens": np.int32, "positions": np.int32, "segment_ids": np.int32, "action_ids": np.int32,
             "mask": bool, "value_mask": bool}
    place = by_row(made.mesh)
    rows = Rows(**{name: jax.ShapeDtypeStruct(shape, kinds.get(name, np.float32), sharding=place)
                   for name in Rows.__dataclass_fields__})
    state = abstract_state(made)
    params = {"policy": state.policy.params, "critic": state.critic.params, "frozen": state.frozen}
    grads = {name: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float32, sharding=leaf.sharding),
                                params[name]) for name in phase.towers}
    compiled = _gradients.lower(made, phase, params, rows, first_generation(config).knobs["rl"], grads).compile()
    return _bytes(grads), compiled.memory_analysis().temp_size_in_bytes
