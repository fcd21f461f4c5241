"""LoRA from the forward pass to the command line: merging, export, and a run that is stopped, resumed and read again."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import traverse_util

from eau_jax import memory, start, train, trained
from eau_jax.algorithms.kl import k3
from eau_jax.assemble import check, learner
from eau_jax.config import Algorithm, ConfigError, Model, Sft
from eau_jax.config_file import describe, load_config, replace, runnable
from eau_jax.core.records import RunFolderError, read_lines
from eau_jax.learner.state import init
from eau_jax.models import heads, hf, lora, transformer
from eau_jax.models.config import Lora, ModelConfig
from tiny_config import config as tiny

QWEN3 = ModelConfig(family="qwen3", vocab_size=53, d_model=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
                    d_ff=40, qk_norm=True, lora=Lora(rank=3, alpha=4.0))
LLAMA = dataclasses.replace(QWEN3, family="llama", qk_norm=False, qkv_bias=True, o_bias=True, tie_embeddings=False,
                            lora=Lora(rank=2, alpha=4.0, targets=("v", "o", "down")))
TOKENS = np.random.default_rng(0).integers(0, 53, (2, 12)).astype(np.int32)
POSITIONS = np.tile(np.arange(12, dtype=np.int32), (2, 1))
forward = jax.jit(transformer.forward, static_argnums=1)


def models(config):
    """The base and a tree with adapters, every weight random."""
    def noisy(tree, seed):
        leaves, structure = jax.tree.flatten(tree)
        keys = jax.random.split(jax.random.key(seed), len(leaves))
        return structure.unflatten([x + 0.2 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys)])

    base, adapters = lora.split(config, noisy(transformer.init(config, jax.random.key(0)), 1), jax.random.key(2))
    return base, lora.join(base, adapters), lora.join(base, noisy(adapters, 3))


def run(params, config):
    return np.asarray(forward(params, config, TOKENS, POSITIONS, np.ones_like(TOKENS)))


def merge_error(config):
    """Between the adapters' forward pass and that of W + alpha / rank * A B, summed by numpy in float64."""
    base, _, adapted = models(config)
    layers = {name: np.asarray(leaf, np.float64) for name, leaf in adapted["layers"].items()}
    for name in config.lora.targets:
        a, b = layers.pop(f"{name}_a"), layers.pop(f"{name}_b")
        product = a.reshape(len(a), -1, config.lora.rank) @ b.reshape(len(b), config.lora.rank, -1)
        layers[name] = layers[name] + config.lora.alpha / config.lora.rank * product.reshape(layers[name].shape)
    plain = base | {"layers": {name: leaf.astype(np.float32) for name, leaf in layers.items()}}
    merged = lora.merge(config, adapted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), merged, plain)
    assert np.abs(run(adapted, config) - run(base, config)).max() > 0.1
    return np.abs(run(adapted, config) - run(plain, config)).max()


@pytest.mark.parametrize("config", [QWEN3, pytest.param(LLAMA, marks=pytest.mark.slow)], ids=lambda config: config.family)
def test_adapters_compute_what_merged_weights_do(config):
    assert merge_error(config) < 1e-5


def test_new_adapters_leave_every_bit():
    """Of what each matrix computes; of a whole compiled forward pass, up to the order in which the compiler adds."""
    base, fresh, _ = models(QWEN3)
    for name in ("q", "o", "down"):
        layer, plain = ({key: leaf[0] for key, leaf in params["layers"].items()} for params in (fresh, base))
        inside = plain[name].shape[:-1] if name == "o" else plain[name].shape[:1]
        x = jax.random.normal(jax.random.key(4), (1, 5, int(np.prod(inside))))
        np.testing.assert_array_equal(*(transformer._project(weights, QWEN3, name, x) for weights in (layer, plain)))
    np.testing.assert_allclose(run(fresh, QWEN3), run(base, QWEN3), atol=1e-5)


def test_a_forgotten_scale_would_be_seen(monkeypatch):
    config = dataclasses.replace(QWEN3, rms_eps=2e-6)   # compiled anew
    monkeypatch.setattr(transformer, "_project", lambda layer, config, name, x: _unscaled(layer, name, x))
    base, _, adapted = models(config)
    assert np.abs(run(adapted, config) - run(lora.merge(config, adapted), config)).max() > 1e-2


def _unscaled(layer, name, x):
    into = lambda x, weight: x @ weight.reshape(x.shape[-1], -1)
    y = into(x, layer[name])
    return y + into(into(x, layer[f"{name}_a"]), layer[f"{name}_b"]) if f"{name}_a" in layer else y


def test_the_sampler_reads_adapters_as_the_trainer_does():
    """Token by token from the cache equals the whole row."""
    _, _, adapted = models(QWEN3)
    cache = transformer.init_cache(QWEN3, 2, 12)
    extend = jax.jit(transformer.extend, static_argnums=1)
    for t in range(0, 12, 4):
        hidden, cache = extend(adapted, QWEN3, cache, TOKENS[:, t:t + 4], np.full(2, t, np.int32), np.full(2, 4, np.int32))
        np.testing.assert_allclose(hidden, run(adapted, QWEN3)[:, t:t + 4], atol=2e-5)


def test_narrow_weights_keep_wide_adapters():
    config = dataclasses.replace(QWEN3, param_dtype="bfloat16", compute_dtype="bfloat16")
    frozen, adapters = lora.split(config, transformer.init(config, jax.random.key(0)), jax.random.key(1))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(frozen)} == {"bfloat16"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(adapters)} == {"float32"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(lora.merge(config, lora.join(frozen, adapters)))} == {"bfloat16"}


def test_the_adapter_file_has_pefts_names_and_shapes(tmp_path):
    """PEFT: y = x W^T + alpha / r * x A^T B^T with lora_A [r, in] and lora_B [out, r] beside the Linear of that name."""
    from safetensors.numpy import load_file
    config, (base, _, adapted) = QWEN3, models(QWEN3)
    lora.save(tmp_path, config, adapted, "some/base")
    described = json.loads((tmp_path / "adapter_config.json").read_text())
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert described["target_modules"] == [f"{name}_proj" for name in config.lora.targets]
    assert (described["r"], described["lora_alpha"], described["peft_type"]) == (3, 4.0, "LORA")
    flat = lambda params: {name: tensor.make() for name, tensor in hf.export_tensors(
        transformer.parameters(config), traverse_util.flatten_dict(params), "float32").items()}
    plain, merged = flat(base), flat(lora.merge(config, adapted))
    found = {name.removesuffix(".lora_A.weight") for name in tensors if "lora_A" in name}
    assert len(tensors) == 2 * len(found) == 2 * config.num_layers * len(config.lora.targets)
    for name in found:
        a, b = tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]
        inside = f"{name.removeprefix('base_model.model.')}.weight"
        np.testing.assert_allclose(plain[inside] + config.lora.scale * b @ a, merged[inside], atol=1e-5)


def test_transformers_reads_the_merged_folder(tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM
    _, _, adapted = models(QWEN3)
    hf.save(tmp_path, QWEN3, lora.merge(QWEN3, adapted))
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor(TOKENS.astype(np.int64))).logits.numpy()
    ours = heads.logits(adapted, QWEN3, run(adapted, QWEN3).reshape(-1, 24)).reshape(2, 12, -1)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_peft_reads_the_adapter(tmp_path):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM
    base, _, adapted = models(QWEN3)
    hf.save(tmp_path / "base", dataclasses.replace(QWEN3, lora=None), base)
    lora.save(tmp_path / "adapter", QWEN3, adapted, str(tmp_path / "base"))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
    with torch.no_grad():
        theirs = model(torch.tensor(TOKENS.astype(np.int64))).logits.numpy()
    ours = heads.logits(adapted, QWEN3, run(adapted, QWEN3).reshape(-1, 24)).reshape(2, 12, -1)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("changes, words", [
    (dict(lora_rank=-1), "model.lora_rank = -1 is out of range; allowed: 0 or more"),
    (dict(lora_rank=4, lora_alpha=0.0), "model.lora_alpha is 0.0; it must be positive"),
    (dict(lora_rank=4, lora_targets=("q", "q")), "model.lora_targets are q, q; give at least one of q, k, v, o"),
    (dict(lora_rank=4, lora_targets=("embed",)), "model.lora_targets are embed; give"),
    (dict(lora_rank=4, lora_targets=()), "model.lora_targets are none; give"),
])
def test_impossible_adapters_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        Model(**changes)


def test_settings_of_adapters_without_a_rank_are_refused():
    for changes, name in (({"model.lora_alpha": 8.0}, "lora_alpha"), ({"model.lora_targets": ["q"]}, "lora_targets")):
        with pytest.raises(ConfigError, match=f"model.{name} = .* would do nothing, because model.lora_rank is 0"):
            replace(tiny(), changes)
    with pytest.raises(ValueError, match="lora rank is 99; it must be at most d_model, here 24"):
        dataclasses.replace(QWEN3, lora=Lora(99))
    with pytest.raises(ConfigError, match="model.lora_rank = 4 would adapt random weights.*--sft.steps"):
        check(dataclasses.replace(tiny(), sft=Sft(), model=dataclasses.replace(tiny().model, lora_rank=4)))


# --- a run ----------------------------------------------------------------------------------------------------------


CHANGES = {"model.lora_rank": 4, "model.lora_targets": ["q", "v", "up", "down"], "mesh.data": 1, "learn.steps": 3,
           "learn.critic_warmup": 0, "swaps": (),
           "knobs": {"env.max_turns": 3, "rl.policy_optimizer.learning_rate": 1e-2,
                     "rl.critic_optimizer.learning_rate": 1e-2}}
FILE = """from dataclasses import replace
from eau_jax.algorithms.kl import k3
from eau_jax.config import Algorithm
from tiny_config import config as tiny

def config():
    return replace(tiny(), algorithm=Algorithm(kl=k3))
"""


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)


def launch(root, resume=False):
    (root / "lora.py").write_text(FILE)
    file, changes = str(root / "lora.py"), CHANGES | {"root": str(root)}
    train.train(replace(load_config(file), changes), runnable(file, changes), resume=resume)
    return root / "tiny"


@pytest.mark.slow
def test_the_estimate_counts_the_state_to_the_byte():
    """Of towers that share one base; the gradients are the adapters' only."""
    config = replace(tiny(), CHANGES | {"algorithm": Algorithm(kl=k3)})
    model = start.architecture(config)
    made = learner(config, model)
    sizes = memory.estimate(config, made)
    weights = transformer.init(model, jax.random.key(0))
    state = init(made, weights, jax.random.key(0))
    held = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    assert sizes["frozen parameters"] == held(state.frozen) == held(weights)
    assert sizes["policy parameters"] == held(state.policy.params)
    assert sizes["critic parameters"] == held(state.critic.params)
    assert sizes["optimizer moments"] == held((state.policy.opt_state, state.critic.opt_state))
    assert sizes["reference parameters"] == 0
    assert sizes["policy pass: gradients"] == held(state.policy.params) < 0.5 * held(weights)
    passes = [sizes[f"{name} pass: gradients"] + sizes[f"{name} pass: temporaries"] for name in ("policy", "critic")]
    towers = [(tower.params, tower.opt_state) for tower in (state.policy, state.critic)]
    assert sizes["peak"] == held((state.frozen, towers)) + max(*passes, sizes["key-value cache"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that was stopped after its first update and resumed."""
    root, real = tmp_path_factory.mktemp("runs"), train.one_update

    def stopping(*arguments):
        if int(arguments[2].step) == 0:
            train.ask_to_stop()
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        first = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda *_: first)
        with pytest.MonkeyPatch.context() as once:
            once.setattr(train, "one_update", stopping)
            with pytest.raises(SystemExit):
                launch(root)
        train._stop.clear()
        return launch(root, resume=True)


@pytest.mark.slow
def test_the_sampler_and_the_learner_agree_while_adapters_move(finished):
    lines = list(read_lines(finished / "metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["learn/sampler_gap_max"] < 1e-4 for line in lines)
    first, last = (abs(lines[number]["learn/kl_to_reference"]) for number in (0, 2))
    assert first < 1e-5 and last > 1e-4    # the reference is the cold start


@pytest.mark.slow
def test_the_kept_config_names_the_same_adapters(finished):
    config = load_config(str(finished))
    assert config.model.lora == Lora(4, 32.0, ("q", "v", "up", "down"))
    assert json.loads((finished / "config.json").read_text())["model"] == describe(config)["model"]


@pytest.mark.slow
def test_a_checkpoint_holds_adapters_only(finished):
    with ocp.StandardCheckpointer() as reader:
        stored = {item: traverse_util.flatten_dict(reader.metadata(finished / "checkpoints" / "3" / item).item_metadata.tree)
                  for item in ("policy", "training")}
    own = {f"{name}_{letter}" for name in ("q", "v", "up", "down") for letter in "ab"}
    assert {path[-1] for path in stored["policy"]} == own
    assert not {"embed", "q", "up", "q_norm"} & {path[-1] for path in stored["training"]}
    assert trained.load(str(finished), "latest")[2] == 3


@pytest.mark.slow
def test_an_export_is_the_merged_model(finished, tmp_path):
    """Read back by our own import."""
    trained.export(str(finished), str(tmp_path / "hf"), "latest", False)
    parts, weights, _ = trained.load(str(finished), "latest")
    tokens = parts.chat.opening("Help.", "Plan a trip to Oslo.")[None]
    row = np.arange(tokens.shape[1], dtype=np.int32)[None]
    hidden = lambda params, config: forward(params, config, tokens, row, row * 0 + 1)[0]
    logits = lambda params, config: np.asarray(heads.logits(params, config, hidden(params, config)))
    config, params = hf.load(tmp_path / "hf")
    ours = logits(weights, parts.model)
    np.testing.assert_allclose(ours, logits(params, config), atol=1e-4)
    cold = trained.load(str(finished), "cold_start")[1]
    assert np.abs(ours - logits(cold, parts.model)).max() > 1e-3


@pytest.mark.slow
def test_the_adapter_alone_is_exported_where_there_is_one(finished, tmp_path):
    trained.export(str(finished), str(tmp_path / "adapter"), "latest", True)
    assert {file.name for file in (tmp_path / "adapter").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    with pytest.raises(ConfigError, match="cold_start has no adapter; leave --adapter out"):
        trained.export(str(finished), str(tmp_path / "other"), "cold_start", True)


@pytest.mark.slow
def test_another_base_is_refused(finished, tmp_path):
    from safetensors.numpy import load_file, save_file
    run = tmp_path / "tiny"
    shutil.copytree(finished, run)
    file = run / "cold_start" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * np.float32(1.001)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(RunFolderError, match="trained adapters to other weights"):
        trained.load(str(run), "latest")
    with pytest.raises(RunFolderError, match="trained adapters to other weights"):
        launch(tmp_path, resume=True)


@pytest.mark.slow
def test_stopped_and_resumed_is_the_same_run(finished, tmp_path):
    calm = launch(tmp_path)
    assert (calm / "metrics.jsonl").read_text() == (finished / "metrics.jsonl").read_text()
    one, other = (trained.load(str(run), "latest")[1] for run in (calm, finished))
    jax.tree.map(np.testing.assert_array_equal, one, other)
