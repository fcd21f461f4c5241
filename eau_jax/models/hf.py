"""Exchange of weights with Hugging Face folders: config.json, safetensors (single or sharded) and tokenizer files.

On import every tensor of the files is used exactly once; anything else is a `CheckpointError` that names the tensor,
what was expected and what was found.
"""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from einops import rearrange
from flax import traverse_util

from eau_jax.models import tensor_file
from eau_jax.models.config import Llama3Scaling, ModelConfig
from eau_jax.models.transformer import Param, parameters

ARCHITECTURES = {"Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3_moe",
                 "LlamaForCausalLM": "llama"}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                   "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json")
STACKED = {"layers": "layer", "experts": "expert"}   # axes that stack tensors, and what their names call a place there
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
SHARD_BYTES = 5_000_000_000


class CheckpointError(ValueError):
    """A model folder that cannot be read as one of the supported architectures."""


def load(folder: str | Path, *, param_dtype: str = "float32") -> tuple[ModelConfig, Any]:
    """Reads a Hugging Face folder.

    Args:
      folder: holds config.json and model.safetensors, or model.safetensors.index.json and its shards.
      param_dtype: "float32" or "bfloat16"; weights are converted to it, and `compute_dtype` is set to it.

    Returns:
      the config and the params tree as numpy arrays on the host: place them with `jax.device_put`.

    Raises:
      CheckpointError: an unsupported architecture; a missing, extra, misshapen or repeated tensor.
    """
    config = read_config(folder, param_dtype=param_dtype)
    return config, import_tensors(config, _Files(Path(folder)), str(folder))


def read_config(folder: str | Path, *, param_dtype: str = "float32") -> ModelConfig:
    """The config of a folder, without its weights."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; a Hugging Face model folder is expected")
    return config_from_hf(_read_json(file), param_dtype=param_dtype)


def save(folder: str | Path, config: ModelConfig, params: Any, *, tokenizer_files_from: Any = None,
         shard_bytes: int = SHARD_BYTES) -> None:
    """Writes a folder that `transformers` reads: config.json, safetensors and, when given, the tokenizer.

    Args:
      params: the params tree, numpy or fully addressable jax arrays; written in `config.param_dtype`. One parameter at a time
        is converted, where it lies, and copied to the host.
      tokenizer_files_from: a model folder whose tokenizer files are copied along, or a tokenizer that has
        `save_pretrained`.
      shard_bytes: weights that exceed this are split over several files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = export_tensors(parameters(config), traverse_util.flatten_dict(params), config.param_dtype)
    shards, size = [{}], 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards, size = [*shards, {}], 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    weight_map, total = {}, sum(tensor.nbytes for tensor in tensors.values())
    for stale in [*folder.glob("model*.safetensors"), *folder.glob(INDEX)]:
        stale.unlink()
    for i, shard in enumerate(shards):
        file = WEIGHTS if len(shards) == 1 else f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        tensor_file.write(folder / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    _write_json(folder / "config.json", config_to_hf(config) | _save_tokenizer(folder, tokenizer_files_from))


def config_from_hf(raw: dict[str, Any], *, param_dtype: str = "float32") -> ModelConfig:
    """The config of a config.json of transformers 4 or 5. Unsupported settings that change the model raise."""
    names = raw.get("architectures") or []
    family = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
    if family is None:
        raise CheckpointError(f"architecture {', '.join(names) or 'none named'} is not supported; "
                              f"supported: {', '.join(ARCHITECTURES)}")
    unsupported = {"hidden_act": ("silu",), "use_sliding_window": (False, None), "mlp_bias": (False, None),
                   "quantization_config": (None,), "pretraining_tp": (1, None), "decoder_sparse_step": (1,),
                   "mlp_only_layers": ([], None)}
    for name, allowed in unsupported.items():
        if raw.get(name, allowed[0]) not in allowed:
            raise CheckpointError(f"config.json: {name} is {raw[name]!r}; supported: {allowed[0]!r}")
    moe = family == "qwen3_moe"
    experts = "num_experts" if "num_experts" in raw else "num_local_experts"   # transformers 5 writes the latter
    width = "moe_intermediate_size" if moe else "intermediate_size"
    required = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", width,
                *((experts, "num_experts_per_tok") if moe else ()))
    for name in required:
        if name not in raw:
            raise CheckpointError(f"config.json: {name} is missing; needed: {', '.join(required)}")
    rope = {"rope_theta": raw.get("rope_theta", 10000.0)}
    rope |= (raw.get("rope_scaling") or {}) | (raw.get("rope_parameters") or {})
    heads, bias = raw["num_attention_heads"], bool(raw.get("attention_bias", False))
    head_dim = raw.get("head_dim") or (128 if family in ("qwen3", "qwen3_moe") else raw["hidden_size"] // heads)
    return ModelConfig(
        family=family, vocab_size=raw["vocab_size"], d_model=raw["hidden_size"], num_layers=raw["num_hidden_layers"],
        num_heads=heads, num_kv_heads=raw.get("num_key_value_heads") or heads, head_dim=head_dim,
        d_ff=raw[width], rope_theta=float(rope["rope_theta"]), rope_scaling=_scaling_from_hf(rope),
        rms_eps=raw.get("rms_norm_eps", 1e-6), tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or bias, o_bias=family != "qwen2" and bias, qk_norm=family in ("qwen3", "qwen3_moe"),
        num_experts=raw[experts] if moe else 0, experts_per_token=raw["num_experts_per_tok"] if moe else 0,
        norm_topk=moe and bool(raw.get("norm_topk_prob", False)),
        param_dtype=param_dtype, compute_dtype=param_dtype, max_position=raw.get("max_position_embeddings", 32768))


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """The config.json of a config, in the names that both transformers 4 and 5 read."""
    raw = {
        "architectures": [name for name, family in ARCHITECTURES.items() if family == config.family],
        "model_type": config.family, "vocab_size": config.vocab_size, "hidden_size": config.d_model,
        "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim, "intermediate_size": config.d_ff,
        "hidden_act": "silu", "rms_norm_eps": config.rms_eps, "rope_theta": config.rope_theta, "rope_scaling": None,
        "tie_word_embeddings": config.tie_embeddings, "max_position_embeddings": config.max_position,
        "dtype": config.param_dtype, "torch_dtype": config.param_dtype,
    }
    if config.family != "qwen2":
        raw["attention_bias"] = config.qkv_bias
    if config.num_experts:
        raw |= {"moe_intermediate_size": config.d_ff, "num_experts": config.num_experts,
                "num_experts_per_tok": config.experts_per_token, "norm_topk_prob": config.norm_topk, "mlp_only_layers": [],
                "decoder_sparse_step": 1}
    scaling = config.rope_scaling
    if scaling is not None:
        raw["rope_scaling"] = {
            "rope_type": "llama3", "factor": scaling.factor, "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position}
    return raw


def import_tensors(config: ModelConfig, tensors: Any, source: str) -> Any:
    """The params tree from tensors in the Hugging Face naming and layout, numpy in `param_dtype`.

    Args:
      tensors: `names() -> {name: where it lies}` and `read(name) -> ndarray`; each is read once.
      source: for the messages.
    """
    table, found = parameters(config), tensors.names()
    dtype = _dtype(config.param_dtype)
    expected = {name for param in table.values() for name in _hf_names(param).values()}
    extra = {name for name in found if name not in expected and not name.endswith("rotary_emb.inv_freq")}
    if config.tie_embeddings and "lm_head.weight" in extra:
        if not np.array_equal(tensors.read("lm_head.weight"), tensors.read("model.embed_tokens.weight")):
            raise CheckpointError(f"{found['lm_head.weight']}: lm_head.weight differs from model.embed_tokens.weight, "
                                  "but config.json says tie_word_embeddings: true")
        extra.discard("lm_head.weight")
    for name in sorted(expected - found.keys()):
        shape = next(_hf_shape(param) for param in table.values() if name in _hf_names(param).values())
        raise CheckpointError(f"{source}: tensor {name} of shape {list(shape)} is missing"
                              + (f"; unknown tensors there: {', '.join(sorted(extra)[:5])}" if extra else ""))
    for name in sorted(extra):
        raise CheckpointError(f"{found[name]}: tensor {name} of shape {list(tensors.read(name).shape)} is not part of "
                              f"{config.family} with this config.json ({len(extra)} such tensors)")
    flat = {path: np.empty(param.shape, dtype) for path, param in table.items()}
    for path, param in table.items():
        for at, name in _hf_names(param).items():
            tensor, shape = tensors.read(name), _hf_shape(param)
            if tensor.shape != shape:
                raise CheckpointError(f"{found[name]}: tensor {name} has shape {list(tensor.shape)}; "
                                      f"expected {list(shape)}")
            flat[path][at] = rearrange(tensor, f"{param.hf_layout} -> {_inner(param)}", **_sizes(param))
    return traverse_util.unflatten_dict(flat)


def export_tensors(table: dict, flat: dict, dtype: str) -> dict[str, tensor_file.Tensor]:
    """{Hugging Face name: tensor}, in which the tensors of one parameter follow each other. Made in this order, each parameter
    is copied to the host once, and one of them is there at a time.

    Args:
      table: path -> Param, such as `transformer.parameters` gives.
      flat: path -> array, numpy or fully addressable jax.
      dtype: "float32" or "bfloat16", of every tensor.
    """
    if flat.keys() != table.keys():
        raise ValueError(f"params do not fit the config: {sorted('/'.join(p) for p in flat.keys() ^ table.keys())} "
                         "are in one of them only")
    chosen = _dtype(dtype)
    host = functools.lru_cache(maxsize=1)(lambda path: _on_host(flat[path], chosen))
    result = {}
    for path, param in table.items():
        if flat[path].shape != param.shape:
            raise ValueError(f"params {'/'.join(path)} has shape {list(flat[path].shape)}; "
                             f"the config says {list(param.shape)}")
        for at, name in _hf_names(param).items():
            def make(path=path, param=param, at=at):
                return np.ascontiguousarray(rearrange(host(path)[at], f"{_inner(param)} -> {param.hf_layout}"))
            result[name] = tensor_file.Tensor(_hf_shape(param), chosen, make)
    return result


def _on_host(weight: Any, dtype: np.dtype) -> np.ndarray:
    if isinstance(weight, jax.Array):
        # An array keeps the copy on the host that is made of it, so none is made of one that the caller keeps.
        weight = (jax.device_put(weight, weight.sharding, may_alias=True) if weight.dtype == dtype
                  else weight.astype(dtype))
    return np.asarray(weight, dtype)


def _dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else np.float32)


class _Files:
    """The tensors of a folder's safetensors files."""

    def __init__(self, folder: Path):
        from safetensors import safe_open

        if (folder / INDEX).is_file():
            listed = _read_json(folder / INDEX)["weight_map"]
            files = sorted(set(listed.values()))
        elif (folder / WEIGHTS).is_file():
            listed, files = {}, [WEIGHTS]
        else:
            raise CheckpointError(f"{folder} holds neither {WEIGHTS} nor {INDEX}; only safetensors are read")
        self.handles, self.where = {}, {}
        for file in files:
            if not (folder / file).is_file():
                raise CheckpointError(f"{folder / file} does not exist, but {INDEX} names it")
            try:
                handle = safe_open(folder / file, framework="numpy")
            except Exception as error:
                raise CheckpointError(f"{folder / file} is not a safetensors file: {error}") from error
            for name in handle.keys():
                if name in self.where:
                    raise CheckpointError(f"tensor {name} is in two files: {self.where[name]} and {folder / file}")
                self.handles[name], self.where[name] = handle, str(folder / file)
        for name, file in listed.items():
            if self.where.get(name) != str(folder / file):
                raise CheckpointError(f"{folder / INDEX} says that tensor {name} is in {file}, "
                                      f"but it is in {self.where.get(name, 'none of the files')}")

    def names(self) -> dict[str, str]:
        return self.where

    def read(self, name: str) -> np.ndarray:
        return self.handles[name].get_tensor(name)


def _stacked(param: Param) -> int:
    """How many of the first axes stack tensors."""
    return next((n for n, axis in enumerate(param.axes) if axis not in STACKED), len(param.axes))


def _hf_names(param: Param) -> dict[tuple[int, ...], str]:
    """The tensors of a weight, by their place in it."""
    n = _stacked(param)
    named = {at: dict(zip((STACKED[axis] for axis in param.axes[:n]), at)) for at in np.ndindex(param.shape[:n])}
    return {at: param.hf_name.format(**names) for at, names in named.items()}


def _sizes(param: Param) -> dict[str, int]:
    n = _stacked(param)
    return dict(zip(param.axes[n:], param.shape[n:], strict=True))


def _inner(param: Param) -> str:
    return " ".join(_sizes(param))


def _hf_shape(param: Param) -> tuple[int, ...]:
    """Sizes of the layout's groups: "(heads head_dim) embed" -> (heads * head_dim, embed)."""
    sizes, shape, group = _sizes(param), [], None
    for word in param.hf_layout.replace("(", "( ").replace(")", " )").split():
        if word == "(":
            group = 1
        elif word == ")":
            shape, group = [*shape, group], None
        elif group is None:
            shape = [*shape, sizes[word]]
        else:
            group *= sizes[word]
    return tuple(shape)


def _scaling_from_hf(rope: dict[str, Any]) -> Llama3Scaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise CheckpointError(f"config.json: rope type {kind!r} is not supported; supported: 'default', 'llama3'")
    return Llama3Scaling(rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"],
                         rope["original_max_position_embeddings"])


def _save_tokenizer(folder: Path, source: Any) -> dict[str, Any]:
    """Writes the tokenizer; returns the special ids for config.json."""
    if source is None:
        return {}
    if not isinstance(source, (str, Path)):
        source.save_pretrained(folder)
        return {name: getattr(source, name) for name in SPECIAL_IDS}
    source = Path(source)
    if not source.is_dir():
        raise ValueError(f"tokenizer_files_from is {str(source)!r}, which is no folder; "
                         "pass a model folder or a tokenizer")
    for name in TOKENIZER_FILES:
        if (source / name).is_file() and source.resolve() != folder.resolve():
            shutil.copyfile(source / name, folder / name)
    raw = _read_json(source / "config.json") if (source / "config.json").is_file() else {}
    return {name: raw[name] for name in SPECIAL_IDS if name in raw}


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
