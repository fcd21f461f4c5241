"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685): small trained factors beside the frozen matrices of a model.

    W x   becomes   W x + alpha / rank * B (A x)      A: in -> rank, random;  B: rank -> out, 0 at the start

Factors are parameters like others: `adapters` is their table, made from the model's, and their leaves lie beside their
matrix in the params tree ("layers/q", "layers/q_a", "layers/q_b"). `transformer` applies them where they are; a tree without
them is the base, and the base joined with any other factors is another model that shares it.
"""

import functools
import json
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.nn import initializers

from eau_jax.core.types import Array
from eau_jax.models import hf, tensor_file, transformer
from eau_jax.models.config import ModelConfig
from eau_jax.models.transformer import Param

PEFT = "base_model.model."   # what PEFT puts before the name of a wrapped model's tensor


def adapters(config: ModelConfig) -> dict[transformer.Path, Param]:
    """Both factors of each target matrix, by path; their `hf_name` and `hf_layout` are PEFT's.

    A is uniform within 1 / sqrt(in), as PEFT draws it, so that learning rates found there carry over.
    """
    table, result = transformer.parameters(config), {}
    for name in config.lora.targets:
        base = table["layers", name]
        sizes = dict(zip(base.axes, base.shape, strict=True)) | {"rank": config.lora.rank}
        out, into = re.findall(r"\([^)]*\)|\S+", base.hf_layout)
        inner, outer = into.strip("()").split(), out.strip("()").split()
        bound = math.prod(sizes[axis] for axis in inner) ** -0.5
        uniform = functools.partial(jax.random.uniform, minval=-bound, maxval=bound)
        for letter, axes, init, layout in (("a", [*inner, "rank"], uniform, f"rank {into}"),
                                           ("b", ["rank", *outer], initializers.zeros, f"{out} rank")):
            axes = ("layers", *axes)
            result["layers", f"{name}_{letter}"] = Param(
                tuple(sizes[axis] for axis in axes), axes, init,
                PEFT + base.hf_name.replace(".weight", f".lora_{letter.upper()}.weight"), layout)
    return result


def split(config: ModelConfig, params: Any, key: Array) -> tuple[Any, Any]:
    """What is frozen and what is trained of a model: its weights and new float32 adapters, or nothing and its weights."""
    if config.lora is None:
        return {}, params
    return params, transformer.initialise(adapters(config), key, jnp.float32)


def split_axes(config: ModelConfig) -> tuple[Any, Any]:
    """Logical axis names of the two trees of `split`."""
    base = transformer.logical_axes(config)
    return ({}, base) if config.lora is None else (base, transformer.axes_of(adapters(config)))


def join(frozen: Any, trained: Any) -> Any:
    """One params tree of two that share no leaf. Nothing is copied."""
    return traverse_util.unflatten_dict(traverse_util.flatten_dict(frozen) | traverse_util.flatten_dict(trained))


def merge(config: ModelConfig, params: Any) -> Any:
    """A tree without adapters that computes the same: W + alpha / rank * A B, summed in float32 and rounded to W's dtype. What
    has no adapter is not copied.

    In bfloat16 that rounding moves a weight by up to 1/256 of itself, which may be more than its adapter does.
    """
    layers = dict(params["layers"])
    for name in config.lora.targets if config.lora is not None else ():
        if f"{name}_a" in layers:
            layers[name] = _merged(layers[name], layers.pop(f"{name}_a"), layers.pop(f"{name}_b"), config.lora.scale)
    return params | {"layers": layers}


@jax.jit
def _merged(weight: Array, a: Array, b: Array, scale: float) -> Array:
    L, rank = b.shape[:2]
    change = jnp.einsum("lir,lro->lio", a.reshape(L, -1, rank), b.reshape(L, rank, -1), precision="highest")
    return (weight.astype(jnp.float32) + scale * change.reshape(weight.shape)).astype(weight.dtype)


def save(folder: str | Path, config: ModelConfig, params: Any, base: str) -> None:
    """Writes the adapters of `params` as PEFT reads them, in float32: adapter_config.json, adapter_model.safetensors.

    Args:
      params: a tree with adapters, and with or without the base.
      base: the model folder or name that they belong to.
    """
    table, flat = adapters(config), traverse_util.flatten_dict(params)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensor_file.write(folder / "adapter_model.safetensors",
                      hf.export_tensors(table, {path: flat[path] for path in table}, "float32"))
    modules = [param.hf_name.split(".")[-3] for path, param in table.items() if path[-1].endswith("_a")]
    described = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": config.lora.rank,
                 "lora_alpha": config.lora.alpha, "target_modules": modules, "lora_dropout": 0.0, "bias": "none",
                 "fan_in_fan_out": False, "inference_mode": True}
    (folder / "adapter_config.json").write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
