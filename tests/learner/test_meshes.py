"""Any mesh gives the numbers of one device, and moves no parameter that it need not."""

import collections
import dataclasses
import functools
import json
import math
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import small_learner as small
from process_worker import restore, save, updates

from eau_jax.core.sharding import by_row, make_mesh, partition
from eau_jax.learner import critic, rows, sft
from eau_jax.learner.annotate import annotate
from eau_jax.learner.parts import Rows
from eau_jax.learner.state import abstract_state, default_knobs, init
from eau_jax.learner.update import _gradients, gradients, minibatch
from eau_jax.models import heads, transformer
from eau_jax.models.config import ModelConfig

# Sizes that tell every weight from every activation: 7 layers, rows of 40 tokens.
MODEL = dataclasses.replace(small.MODEL, d_model=64, num_layers=7, head_dim=12, d_ff=88, vocab_size=104)
QWEN3_4B = ModelConfig(family="qwen3", vocab_size=151936, d_model=2560, num_layers=36, num_heads=32, num_kv_heads=8,
                       head_dim=128, d_ff=9728, rope_theta=1e6, qk_norm=True)


def mesh_of(*size):
    return make_mesh(*size, devices=jax.devices()[:math.prod(size)])


def lowered(mesh, phase=critic.own_tower.together, width=40, **changes):
    """One micro-batch's gradients, before they are compiled."""
    learner = small.learner(mesh=mesh, tokens=width, row_width=width, **({"model": MODEL} | changes))
    kinds = dict.fromkeys(("tokens", "positions", "segment_ids", "action_ids"), np.int32)
    kinds |= {"mask": bool, "value_mask": bool}
    row = functools.partial(jax.ShapeDtypeStruct, (learner.micro_rows, width), sharding=by_row(mesh))
    batch = Rows(**{name: row(dtype=kinds.get(name, np.float32)) for name in Rows.__dataclass_fields__})
    state = abstract_state(learner)
    params = {"policy": state.policy.params, "critic": state.critic.params, "frozen": state.frozen}
    wide = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float32, sharding=leaf.sharding)
    grads = {name: jax.tree.map(wide, params[name]) for name in phase.towers}
    return _gradients.lower(learner, phase, params, batch, default_knobs(learner), grads)


def program(mesh, **changes) -> str:
    """The compiled program of one micro-batch's gradients."""
    return lowered(mesh, **changes).compile().as_text()


def collected(text: str) -> collections.Counter:
    """Shapes that all-gathers of a compiled program make, without axes of size 1, in any order of axes."""
    found = collections.Counter()
    for result in re.findall(r"= (.*?) all-gather(?:-start)?\(", text):
        for kind, dims in re.findall(r"([a-z]+\d+)\[([\d,]*)\]", result):
            found[kind, tuple(sorted(int(size) for size in dims.split(",") if size not in ("", "1")))] += 1
    return found


def unexpected(text: str, model, mesh) -> collections.Counter:
    """All-gathers beyond each layer's own weights, twice (forward and backward), one of the head, and token ids."""
    allowed = collections.Counter()
    for path, param in transformer.parameters(model).items():
        inner = param.axes[1:] if path[0] == "layers" else param.axes
        sizes = param.shape[len(param.shape) - len(inner):]
        place = partition(sizes, inner, mesh)
        split = [size if name in (None, "fsdp") else size // mesh.shape[name] for size, name in zip(sizes, place)]
        if "fsdp" in place:
            allowed["f32", tuple(sorted(size for size in split if size > 1))] += 2 if path[0] == "layers" else 1
    return collections.Counter({shape: count - allowed[shape] for shape, count in collected(text).items()
                                if shape[0] != "s32" and count > allowed[shape]})


@pytest.mark.slow
def test_only_one_layer_at_a_time_is_collected():
    mesh = mesh_of(2, 2, 2)
    text = program(mesh)
    assert ("f32", (44, 64)) in collected(text)    # the check sees a feed-forward matrix, split over `tensor` alone
    assert not unexpected(text, MODEL, mesh)


@pytest.mark.slow
def test_a_program_that_is_left_to_the_compiler_would_be_seen(monkeypatch):
    """The mutant: nothing says where activations and a layer's weights lie."""
    monkeypatch.setattr(critic, "encode", lambda params, learner, rows: transformer.forward(
        params, learner.model, rows.tokens, rows.positions, rows.segment_ids))
    mesh = mesh_of(2, 2, 2)
    assert unexpected(program(mesh), MODEL, mesh)


@pytest.mark.slow
def test_a_gradient_is_split_before_it_leaves_its_layer():
    """No array of all layers holds a whole weight, neither as a parameter nor as a gradient."""
    text = program(mesh_of(1, 8))
    shapes = {tuple(sorted(int(size) for size in dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", text)}
    assert (7, 8, 88) in shapes and (7, 64, 88) not in shapes


@pytest.mark.parametrize("size", [(1, 1, 1), pytest.param((2, 2, 2), marks=pytest.mark.slow)], ids=str)
def test_logits_of_all_tokens_never_exist(size):
    """Qwen3-4B, rows of 8,192 tokens: the largest arrays over the vocabulary are its weights and a chunk of logits."""
    model = dataclasses.replace(QWEN3_4B, compute_dtype="bfloat16", remat="all")
    mesh, chunk = mesh_of(*size), 1024
    text = lowered(mesh, width=8192, model=model, micro_rows=8, chunk=chunk).as_text()
    sizes = [math.prod(int(size) for size in dims.split("x")) for dims in re.findall(r"tensor<((?:\d+x)+)[a-z]", text)
             for dims in [dims.rstrip("x")] if str(model.vocab_size) in dims.split("x")]
    shards = math.prod(size[:2])
    assert chunk * model.vocab_size in sizes
    assert max(sizes) <= shards * model.vocab_size * model.d_model < 8 * 8192 * model.vocab_size


def assert_same_curve(one, other):
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, abs=1e-5, rel=1e-5)


@pytest.fixture(scope="module")
def ten_updates(tmp_path_factory):
    """Metrics of ten updates on one device, and a folder with a checkpoint after the fifth, in `one`."""
    folder, learner = tmp_path_factory.mktemp("ten"), small.learner()
    state, first = updates(learner, small.start(learner), range(5))
    save(folder / "one", 5, state)
    _, last = updates(learner, state, range(5, 10))
    assert abs(first[0]["critic_loss"] - last[4]["critic_loss"]) > 1e-2    # else the tolerance would mean little
    return first + last, folder


@pytest.mark.slow
@pytest.mark.parametrize("size", [(2, 1, 1), (1, 2, 2), (2, 2, 2), (1, 8, 1)], ids=str)
def test_ten_updates_are_those_of_one_device(ten_updates, size):
    learner = small.learner(mesh=mesh_of(*size))
    assert_same_curve(ten_updates[0], updates(learner, small.start(learner), range(10))[1])


@pytest.mark.slow
def test_two_processes_train_as_one_does(ten_updates):
    """Two processes with four devices each: the same curve, and checkpoints go from one process to two and back."""
    lines, folder = ten_updates
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = Path(__file__).parent
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=4")
    # Gloo gives processes 30 s to meet: they must compile side by side, and not one of them read the other's programs.
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": f"{here.parent.parent}:{here}",
                                "JAX_ENABLE_COMPILATION_CACHE": "false"}
    started = [subprocess.Popen([sys.executable, here / "process_worker.py", str(port), str(number), "2", folder],
                                env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for number in range(2)]
    try:
        said = [process.communicate(timeout=1200)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    assert_same_curve(lines, json.loads((folder / "metrics.json").read_text()))
    learner = small.learner()
    assert_same_curve(lines[5:], updates(learner, restore(folder / "many", learner), range(5, 10))[1])


MIXTURE = dataclasses.replace(small.MODEL, family="qwen3_moe", num_experts=4, experts_per_token=2, d_ff=32)


@pytest.mark.parametrize("kind, phase", [
    (critic.own_tower, critic.own_tower.together), (critic.shared_trunk, critic.shared_trunk.together),
    (critic.own_tower, sft.imitation)], ids=["policy", "joint", "sft"])
def test_every_phase_that_trains_a_policy_evens_the_experts(kind, phase):
    """Where nothing has an advantage the balance is the whole loss, and in fine-tuning it comes on top."""
    learner = small.learner(model=MIXTURE, critic=kind, balance=0.5)
    trajectory = rows.fit(learner, small.trajectory())
    batch = minibatch(learner, trajectory, rows.unannotated(trajectory), np.ones(small.P, bool))
    params = {"policy": transformer.init(MIXTURE, jax.random.key(0)), "frozen": {},
              "critic": {"head": heads.init_value_head(MIXTURE, jax.random.key(1))}}
    loss, metrics = jax.jit(lambda params: phase.loss(params, learner, batch, default_knobs(learner)))(params)
    rest = metrics["nll"].result() if phase is sft.imitation else 0.0
    assert metrics["expert_balance"].result() > 0.5 and metrics["expert_peak"].result() > 1
    assert float(loss) == pytest.approx(rest + 0.5 * metrics["expert_balance"].result(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [dict(micro_rows=2), dict(row_width=small.T, micro_rows=2), dict(mesh=(1, 2, 2, 2))],
                         ids=["micro_batches", "one_episode_a_row", "eight_devices"])
def test_a_mixture_has_the_gradients_of_any_cut(changes):
    """Micro-batches, packing and devices; the loss that evens the experts' load is in it, and heavy."""
    made = lambda **more: small.learner(model=MIXTURE, balance=0.5, **more)
    if "mesh" in changes:
        changes = {"mesh": mesh_of(*changes["mesh"])}
    base, other, light = made(), made(**changes), small.learner(model=MIXTURE, balance=0.0)
    trajectory, knobs = rows.fit(base, small.trajectory()), default_knobs(base)
    state = init(base, transformer.init(MIXTURE, jax.random.key(0)), jax.random.key(1))
    annotation, _ = annotate(base, state, trajectory, knobs)
    params = {"policy": jax.device_get(state.policy.params), "critic": jax.device_get(state.critic.params), "frozen": {}}
    one, two, three = (gradients(learner, learner.critic.together, params,
                                 minibatch(learner, trajectory, annotation, np.ones(small.P, bool)), knobs)
                       for learner in (base, other, light))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), one[:2], two[:2])
    assert one[2]["expert_peak"].result() == pytest.approx(two[2]["expert_peak"].result(), abs=1e-5)
    assert np.abs(one[1]["policy"]["layers"]["router"] - three[1]["policy"]["layers"]["router"]).max() > 1e-3
