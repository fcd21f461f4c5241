"""What a plan says, against numbers worked out by hand, and against the state that a run really holds."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_config import config as tiny

from eau_jax import chips, memory, plan_command, start, work
from eau_jax.algorithms import group, whiten
from eau_jax.algorithms.kl import k3
from eau_jax.assemble import learner
from eau_jax.chips import CHIPS
from eau_jax.cli import main
from eau_jax.config import Algorithm, ConfigError, Model
from eau_jax.config_file import replace
from eau_jax.learner.critic import no_critic, shared_trunk
from eau_jax.models import hf, transformer
from eau_jax.models.config import Lora

# width 16, 1 layer, 2 query heads and 1 key head of 8, feed-forward 32, 300 tokens in the vocabulary
TINY = str(Path(__file__).parent / "tiny_config.py")
MATRICES = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 32          # q, k and v, o, feed-forward: 2304
MADE = ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "d_ff")   # shapes of a made model
BATCH = work.batch([10, 20], 5)                                  # 30 tokens, 55 + 210 pairs, 5 sampled
MATMUL, ATTENTION, HEAD = 2 * 30 * MATRICES, 4 * 265 * 2 * 8, 2 * 5 * 16 * 300
FORWARD = MATMUL + ATTENTION + HEAD


def made(changes=None, model=None):
    config = replace(tiny(), {"mesh.data": 1, **(changes or {})})
    shapes = dataclasses.replace(start.architecture(config), **(model or {}))
    return config, learner(config, shapes, jax.devices()[:1])


def test_a_forward_and_a_backward_pass_by_hand():
    model = made()[1].model
    assert BATCH == (30, 265, 5)
    assert work.forward(model, BATCH) == FORWARD == 203_200
    assert work.forward(model, BATCH, head=False) == MATMUL + ATTENTION
    assert work.gradient(model, BATCH) == (3 * FORWARD, ATTENTION / 2 + HEAD)
    some, all_again = (work.gradient(dataclasses.replace(model, remat=remat), BATCH) for remat in ("products", "all"))
    assert all_again == (3 * FORWARD, FORWARD + ATTENTION / 2)
    assert some == (3 * FORWARD, ATTENTION / 2 + HEAD + 2 * 30 * (16 * (16 + 8 + 8) + 16 * 2 * 32))


def test_of_frozen_weights_no_gradient_is_counted():
    model = dataclasses.replace(made()[1].model, lora=Lora(4, targets=("q", "down")))
    adapters = 2 * 30 * 4 * ((16 + 16) + (32 + 16))
    assert work.forward(model, BATCH) == FORWARD + adapters
    assert work.gradient(model, BATCH).needed == 2 * (MATMUL + HEAD) + 3 * (adapters + ATTENTION)


@pytest.mark.parametrize("changes, critic_only, passes, annotate, update", [
    ({}, False, (1, 1), FORWARD + MATMUL + ATTENTION, 3 * (MATMUL + ATTENTION) + 3 * FORWARD),
    ({}, True, (1, 0), FORWARD + MATMUL + ATTENTION, 3 * (MATMUL + ATTENTION)),
    ({"learn.epochs": 2, "learn.critic_updates": 3}, False, (6, 2), FORWARD + MATMUL + ATTENTION,
     18 * (MATMUL + ATTENTION) + 6 * FORWARD),
    ({"algorithm": Algorithm(kl=k3)}, False, (1, 1), 2 * FORWARD + MATMUL + ATTENTION,
     3 * (MATMUL + ATTENTION) + 3 * FORWARD),
    ({"algorithm": Algorithm(critic=shared_trunk)}, False, (0, 1), FORWARD, 3 * FORWARD),
    ({"algorithm": Algorithm(critic=shared_trunk)}, True, (1, 0), FORWARD, MATMUL + ATTENTION),
    ({"algorithm": Algorithm(advantage=group.grpo, normalise=whiten.none, critic=no_critic), "learn.critic_warmup": 0,
      "knobs": {}, "swaps": ()}, False, (0, 1), FORWARD, 3 * FORWARD)])
def test_an_update_by_hand(changes, critic_only, passes, annotate, update):
    _, learn = made(changes)
    assert work.passes(learn, critic_only) == passes
    assert work.annotate(learn, BATCH).needed == annotate
    assert work.update(learn, BATCH, critic_only=critic_only).needed == update


def test_weights_that_a_token_reads_by_hand():
    """Of an untied embedding nothing; of 8 experts those that the tokens use, a device's own."""
    tied = made({"model.param_dtype": "bfloat16"})[1].model
    numbers = MATRICES + 2 * 16 + 16 + 2 * 8 + 300 * 16          # two norms, the last norm, norms of q and k, the head
    assert work.weights_read(tied, 4) == work.weights_read(dataclasses.replace(tied, tie_embeddings=False), 4) == 2 * numbers
    assert work.weights_read(dataclasses.replace(tied, lora=Lora(4, targets=("q",))), 4) == 2 * numbers + 4 * 4 * (16 + 16)
    mixture = dataclasses.replace(tied, family="qwen3_moe", num_experts=8, experts_per_token=2)
    rest, experts = numbers - 3 * 16 * 32 + 16 * 8, 8 * 3 * 16 * 32          # and a router
    assert work.weights_read(mixture, 1) == 2 * (rest + experts / 4)
    assert work.weights_read(mixture, 4) == 2 * (rest + experts)
    assert work.weights_read(mixture, 4, tensor=2, expert=4) == 2 * (rest + experts / 4) / 2


def test_the_weights_in_a_folder_count_more_than_what_a_config_says_of_them(tmp_path):
    """A plan for other weights than the config was written for is one of those that would be trained."""
    model = start.architecture(tiny())
    hf.save(tmp_path, model, transformer.init(model, jax.random.key(0)))
    other = dataclasses.replace(model, d_model=32)
    said = {"model.make": None, "model.folder": str(tmp_path), "model.architecture": other,
            **{f"model.{name}": getattr(Model, name) for name in MADE}}
    assert start.architecture(replace(tiny(), said)).d_model == 16
    assert start.architecture(replace(tiny(), said | {"model.folder": ""})).d_model == 32


def test_floor_times_by_hand():
    config, learn = made()
    batch = plan_command.planned_batch(config, plan_command.Launch(length=100, sampled=40))
    assert batch == (400, 4 * 5050, 160)
    rollout, annotate, gradients, optimizer = plan_command.floors(config, learn, batch, CHIPS["h100"])
    weights = memory.estimate(config, learn, compile=False)["policy parameters"]
    cache = 2 * 1 * 8 * 4                                       # keys and values of one head of 8, float32
    reads = 160 / 4 * weights + 160 * (20_200 / 400) * cache    # 4 slots
    assert rollout.seconds == pytest.approx(max(reads / 3.35e12, work.forward(learn.model, batch) / 989.4e12))
    assert gradients.seconds == pytest.approx(sum(work.update(learn, batch)) / 989.4e12)
    assert annotate.work.needed == work.annotate(learn, batch).needed
    trained = weights + 28_740                   # the critic: as large, and a value head of 17; moments and two counts
    assert optimizer.seconds == pytest.approx((2 * (trained + 2 * trained + 2 * 4) + trained) / 3.35e12)


def test_mfu_is_flops_over_what_the_chips_could_do():
    assert work.mfu(989.4e12 * 3, 10.0, 2, CHIPS["h100"]) == pytest.approx(0.15)


@pytest.mark.parametrize("remat", ["cheap", "products", "all"])
def test_what_a_layer_keeps_by_hand(remat):
    """One more layer keeps its input and what `transformer.KEPT` names: the mixed heads and their normalisers and the stream
    between the blocks; q, k, v, gate and up. Rows 2, columns 256, float32."""
    sizes = []
    for layers in (2, 3):
        config, learn = made({"model.num_layers": layers}, {"remat": remat})
        sizes.append(memory.activations(learn, learn.critic.together, config))
    kept = 16 + (remat != "all") * ((16 + 2) + 16) + (remat == "cheap") * ((16 + 8 + 8) + 2 * 32)
    assert sizes[1] - sizes[0] == 2 * 256 * kept * 4


def test_bytes_by_kind_by_hand():
    config, learn = made({"model.param_dtype": "bfloat16", "model.compute_dtype": "bfloat16"})
    numbers = MATRICES + 2 * 16 + 16 + 2 * 8 + 300 * 16          # two norms, the last norm, norms of q and k, embedding
    sizes = memory.estimate(config, learn, compile=False)
    assert sizes["policy parameters"] == 2 * numbers
    assert sizes["policy pass: gradients"] == 4 * numbers
    assert sizes["optimizer moments"] == 8 * (2 * numbers + 17) + 2 * 4       # mean and square of two towers; two counts
    assert sizes["key-value cache"] == 4 * 256 * 2 * 8 * 2                # slots, tokens, keys and values, bfloat16
    assert sizes["policy pass: chunk of logits"] == 64 * 300 * 4
    assert "peak" not in sizes


def test_a_mesh_spreads_what_it_names():
    changes = {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2, "learn.rows": 8, "model.num_kv_heads": 2}
    config = replace(tiny(), changes)
    spread = memory.estimate(config, learner(config, start.architecture(config)), compile=False)
    config, alone = made({"learn.rows": 2, "model.num_kv_heads": 2})   # a device's share of the rows
    single = memory.estimate(config, alone, compile=False)
    assert 0.25 <= spread["policy parameters"] / single["policy parameters"] < 0.3   # norms are cut less
    assert spread["policy pass: activations"] == single["policy pass: activations"]
    assert spread["policy pass: chunk of logits"] == 64 // 4 * 150 * 4
    assert spread["key-value cache"] == single["key-value cache"] / 8    # a slot and a head each


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_peak_is_the_state_and_the_larger_of_sampler_and_passes_or_both(monkeypatch, ahead):
    """The sampler's temporaries are compiled, those of the passes set: only then is the sampler the larger."""
    config, learn = made({"rollout.max_staleness": ahead, "rollout.slots": 64})
    monkeypatch.setattr(memory, "_temporaries", lambda *_: 1000)
    sizes = memory.estimate(config, learn)
    assert sizes["sampler: temporaries"] > 64 * 300 * 4                  # logits of every slot
    sampler = sizes["key-value cache"] + sizes["sampler: temporaries"]
    passes = sizes["critic pass: gradients"] + 1000                      # its head makes it the larger of the two
    state = sum(size for name, size in sizes.items() if name.endswith("parameters") or name == "optimizer moments")
    assert sizes["peak"] == state + (passes + sampler if ahead else max(passes, sampler)) and sampler > passes


def test_the_command_needs_no_devices_and_no_weights(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["plan", TINY, "--no-compile", "--chip", "v5e", "--mesh.fsdp", "2", "--chips", "4", "--learn.rows", "4"])
    out = capsys.readouterr().out
    assert stopped.value.code == 0
    for words in ("7,168 parameters", "'data': 2, 'fsdp': 2", "layers.gate", "'fsdp'", "policy pass: activations",
                  "key-value cache", "FLOPs", "14.4 k", "seconds on v5e x 4", "Nothing here is measured"):
        assert words in out, words


@pytest.mark.slow
def test_a_process_of_its_own_plans_for_more_devices_than_there_are():
    command = [sys.executable, "-c", "from eau_jax.cli import main; main()", "plan", TINY, "--chips", "16", "--mesh.fsdp",
               "16", "--learn.rows", "16", "--chip", "v6e"]
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(Path(TINY).parent.parent)}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == 0, run.stderr
    assert "'fsdp': 16" in run.stdout and "fits into v6e's" in run.stdout and "seconds on v6e x 16" in run.stdout


@pytest.mark.parametrize("arguments, words", [
    (["--chips", "3", "--mesh.fsdp", "2"], "chips = 3, but the mesh settings name 2"),
    (["--chips", "4096"], "JAX started with 8 devices"), (["--length", "257"], "2 to rollout.max_tokens = 256"),
    (["--sampled", "256"], "sampled = 256 is out of range; allowed: 1 to 255"), (["--chip", "abacus"], "abacus")])
def test_a_plan_that_cannot_be_made_is_explained(capsys, arguments, words):
    with pytest.raises(SystemExit) as stopped:
        main(["plan", TINY, "--no-compile", *arguments])
    assert stopped.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("kind, name", [
    ("TPU v4", "v4"), ("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU v5p", "v5p"), ("TPU v6 lite", "v6e"),
    ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100")])
def test_a_device_is_known_by_what_it_calls_itself(kind, name):
    assert chips.of_kind(kind).name == name


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 PCIe", "TPU v7", "TPU v4 lite",
                                  "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"])
def test_an_unknown_device_has_no_limits(kind):
    assert chips.of_kind(kind) is None


def test_the_choice_of_chips_is_the_table():
    field = next(field for field in dataclasses.fields(plan_command.Launch) if field.name == "chip")
    assert set(field.type.__args__) == set(CHIPS) and all(np.isfinite(chip[1:4]).all() for chip in CHIPS.values())


def test_a_length_that_is_too_long_is_refused():
    with pytest.raises(ConfigError, match="length = 300"):
        plan_command.planned_batch(tiny(), plan_command.Launch(length=300))
