"""Our models against `transformers` (torch, float32) on random tiny checkpoints, and exchange of folders both ways."""

import dataclasses
import functools
import json
import tracemalloc
import os

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eau_jax.models import heads, hf, transformer
from eau_jax.models.config import Llama3Scaling

torch = pytest.importorskip("torch")
import transformers  # noqa: E402

VOCAB, LENGTH = 61, 24
SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256)
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 5000.0}
CASES = {
    "qwen2-tied": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL, tie_word_embeddings=True)),
    "qwen2-untied": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL, tie_word_embeddings=False)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL, head_dim=12, tie_word_embeddings=True)),
    "qwen3-moe": lambda: transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **SMALL, head_dim=12, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, norm_topk_prob=True)),
    "qwen3-moe-plain": lambda: transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **SMALL, head_dim=12, num_experts=4, num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=False)),
    "llama3": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SMALL, rope_parameters=LLAMA3, tie_word_embeddings=False)),
    "llama-bias": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SMALL, attention_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-5)),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """(transformers' model with every weight random, its folder)"""
    torch.manual_seed(0)
    model = CASES[request.param]().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(torch.randn_like(weight) * (0.3 if "norm" in name else 0.2))
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return model, folder


def theirs(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(np.asarray(tokens), dtype=torch.long)[None]).logits[0].numpy()


@functools.partial(jax.jit, static_argnums=0)
def _logits(config, params, *row):
    hidden = transformer.forward(params, config, *row)
    return heads.logits(params, config, hidden.reshape(-1, config.d_model)).reshape(*hidden.shape[:2], -1)


def ours(config, params, tokens, positions, segment_ids):
    """Logits [R, S, V] of rows of LENGTH columns; always three rows, so that each config is compiled once."""
    rows = (np.resize(np.asarray(x, np.int32), (3, LENGTH)) for x in (tokens, positions, segment_ids))
    return np.asarray(_logits(config, params, *rows))


def packed_rows():
    """Row 0: one episode of 17 and padding. Row 1: episodes of 5, 9 and 6 and padding. Row 2: a full row."""
    lengths = ((17,), (5, 9, 6), (LENGTH,))
    tokens = np.random.default_rng(0).integers(0, VOCAB, (3, LENGTH))
    positions, segments = np.zeros((2, 3, LENGTH), np.int32)
    spans = []
    for row, row_lengths in enumerate(lengths):
        offset = 0
        for segment, length in enumerate(row_lengths, 1):
            positions[row, offset:offset + length], segments[row, offset:offset + length] = np.arange(length), segment
            spans.append((row, slice(offset, offset + length)))
            offset += length
    return tokens, positions, segments, spans


def test_padded_and_packed_rows_have_the_logits_of_transformers(case):
    model, folder = case
    config, params = hf.load(folder)
    tokens, positions, segments, spans = packed_rows()
    logits = ours(config, params, tokens, positions, segments)
    assert np.isfinite(logits).all()
    for row, span in spans:
        expected = theirs(model, tokens[row, span])
        assert expected.std() > 0.3  # else the tolerance would mean little
        np.testing.assert_allclose(logits[row, span], expected, atol=1e-4)


def test_positions_and_segments_matter():
    """What the parity test compares would notice a missing mask or a position counted from the row's start."""
    config = dataclasses.replace(_config(), family="llama", qk_norm=False)
    params = transformer.init(config, jax.random.key(0))
    tokens, positions, segments, spans = packed_rows()
    right = ours(config, params, tokens, positions, segments)
    row, span = spans[2]
    for wrong in ((positions, np.ones_like(segments)), (np.tile(np.arange(LENGTH), (3, 1)) ** 2, segments)):
        assert np.abs(ours(config, params, tokens, *wrong)[row, span] - right[row, span]).max() > 1e-2


@pytest.mark.parametrize("shard_bytes", [10**9, 20_000])
def test_export_is_read_by_transformers_and_by_us(case, tmp_path, shard_bytes):
    model, folder = case
    config, params = hf.load(folder)
    params = jax.tree.map(lambda w: w * np.float32(1.1), params)
    hf.save(tmp_path, config, jax.device_put(params), shard_bytes=shard_bytes)
    assert (tmp_path / hf.INDEX).exists() == (shard_bytes < 10**9)
    again, reread = hf.load(tmp_path)
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, reread, params)
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert type(back) is type(model)
    tokens = np.arange(LENGTH) * 7 % VOCAB
    row = np.arange(LENGTH)[None]
    np.testing.assert_allclose(ours(config, params, tokens[None], row, row * 0 + 1)[0], theirs(back, tokens), atol=1e-4)


def test_bfloat16_round_trip(tmp_path):
    config = dataclasses.replace(_config(), param_dtype="bfloat16", compute_dtype="bfloat16")
    params = transformer.init(config, jax.random.key(0))
    hf.save(tmp_path, config, params)
    again, reread = hf.load(tmp_path, param_dtype="bfloat16")
    assert again == config and reread["embed"].dtype == ml_dtypes.bfloat16
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.asarray(b)), reread, params)


def test_one_tensor_at_a_time_is_on_the_host_in_the_dtype_of_the_config(tmp_path):
    config = dataclasses.replace(_config(), num_layers=8, d_model=128, d_ff=256, param_dtype="bfloat16",
                                 compute_dtype="bfloat16")
    params = transformer.init(dataclasses.replace(config, param_dtype="float32"), jax.random.key(0))
    hf.save(tmp_path, config, params)                       # what is made once
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
    tracemalloc.start()
    hf.save(tmp_path, config, params)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < largest < sum(leaf.nbytes for leaf in jax.tree.leaves(params)) / 3
    found = load_file(tmp_path / hf.WEIGHTS)
    gate = np.asarray(params["layers"]["gate"]).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found["model.layers.5.mlp.gate_proj.weight"], gate[5].T)
    with open(tmp_path / hf.WEIGHTS, "rb") as file:         # tensors begin where a reader may map them
        assert int.from_bytes(file.read(8), "little") % 8 == 0


def test_transformers_config_of_every_field(tmp_path):
    """Our own config survives config.json, Llama 3 scaling and untied head included."""
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 64)
    config = dataclasses.replace(_config(), family="llama", qk_norm=False, rope_scaling=scaling, rope_theta=1234.5,
                                 tie_embeddings=False, qkv_bias=True, o_bias=True, rms_eps=3e-6, max_position=99)
    (tmp_path / "config.json").write_text(json.dumps(hf.config_to_hf(config)))
    assert hf.config_from_hf(json.loads((tmp_path / "config.json").read_text())) == config
    read = transformers.AutoConfig.from_pretrained(tmp_path)
    assert read.rope_parameters["rope_type"] == "llama3" and read.rope_parameters["rope_theta"] == 1234.5
    assert read.rope_parameters["factor"] == 8.0


def test_tokenizer_files_come_along(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    (source / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    config = _config()
    hf.save(tmp_path / "out", config, transformer.init(config, jax.random.key(0)), tokenizer_files_from=source)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == 7
    with pytest.raises(ValueError, match="no folder"):
        hf.save(tmp_path / "out", config, transformer.init(config, jax.random.key(0)), tokenizer_files_from=tmp_path / "none")


def _config():
    return hf.config_from_hf({"architectures": ["Qwen3ForCausalLM"], **SMALL, "head_dim": 8, "tie_word_embeddings": True})


@pytest.fixture
def folder(tmp_path):
    config = _config()
    hf.save(tmp_path, config, transformer.init(config, jax.random.key(0)))
    return tmp_path


def _edit(folder, change):
    tensors = load_file(folder / hf.WEIGHTS)
    change(tensors)
    save_file(tensors, folder / hf.WEIGHTS)


def _edit_config(folder, **changes):
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))


NORM, GATE = "model.layers.1.input_layernorm.weight", "model.layers.2.mlp.gate_proj.weight"


@pytest.mark.parametrize("change, message", [
    (lambda t: t.pop(GATE), rf"{GATE} of shape \[48, 32\] is missing"),
    (lambda t: t.update({"model.layers.3.mlp.gate_proj.weight": t[GATE]}), r"model.layers.3.*\[48, 32\] is not part of"),
    (lambda t: t.update({GATE: t[GATE].T.copy()}), rf"{hf.WEIGHTS}: tensor {GATE} has shape \[32, 48\]; expected \[48, 32\]"),
    (lambda t: t.update({NORM: t[NORM][:-1]}), rf"{NORM} has shape \[31\]; expected \[32\]"),
    (lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}), "tie_word_embeddings"),
])
def test_wrong_tensors_are_named(folder, change, message):
    _edit(folder, change)
    with pytest.raises(hf.CheckpointError, match=message):
        hf.load(folder)


def test_a_tied_head_stored_twice_is_accepted(folder):
    once = hf.load(folder)[1]
    _edit(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].copy()}))
    jax.tree.map(np.testing.assert_array_equal, hf.load(folder)[1], once)


def test_a_tensor_in_two_shards_is_refused(folder):
    config, params = hf.load(folder)
    hf.save(folder, config, params, shard_bytes=20_000)
    shards = sorted(folder.glob("model-*"))
    first, second = load_file(shards[0]), load_file(shards[1])
    name = next(iter(first))
    save_file(second | {name: first[name]}, shards[1])
    with pytest.raises(hf.CheckpointError, match=f"{name} is in two files: .*{shards[0].name} and .*{shards[1].name}"):
        hf.load(folder)
    save_file(second, shards[1])
    save_file({n: t for n, t in first.items() if n != name}, shards[0])
    with pytest.raises(hf.CheckpointError, match=f"says that tensor {name} is in {shards[0].name}, but it is in none"):
        hf.load(folder)
    os.remove(shards[0])
    with pytest.raises(hf.CheckpointError, match=f"{shards[0].name} does not exist"):
        hf.load(folder)


@pytest.mark.parametrize("changes, message", [
    (dict(architectures=["MambaForCausalLM"]), "MambaForCausalLM is not supported; supported: Qwen2ForCausalLM, Qwen3"),
    (dict(rope_scaling={"rope_type": "yarn", "factor": 2.0}), "'yarn' is not supported; supported: 'default', 'llama3'"),
    (dict(hidden_act="gelu"), "hidden_act is 'gelu'; supported: 'silu'"),
    (dict(use_sliding_window=True), "use_sliding_window is True"),
    (dict(num_key_value_heads=3), "num_heads 4 is not a multiple of num_kv_heads 3"),
])
def test_unsupported_configs_are_named(folder, changes, message):
    _edit_config(folder, **changes)
    with pytest.raises(ValueError, match=message):
        hf.load(folder)


def test_broken_folders_are_named(tmp_path, folder):
    with pytest.raises(hf.CheckpointError, match="config.json does not exist"):
        hf.load(tmp_path / "nowhere")
    (folder / hf.WEIGHTS).write_bytes(b"not safetensors")
    with pytest.raises(hf.CheckpointError, match="is not a safetensors file"):
        hf.load(folder)
    (folder / hf.WEIGHTS).unlink()
    with pytest.raises(hf.CheckpointError, match="holds neither"):
        hf.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(hf.CheckpointError, match="not valid JSON"):
        hf.load(folder)
