"""The benches against the limits of a device: their formulas by hand, and the same measurement on a CPU as on a GPU."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "learner")]

import limits  # noqa: E402
import small_learner as small  # noqa: E402
import tiny_config  # noqa: E402
from eau_jax import work  # noqa: E402
from eau_jax.models import transformer  # noqa: E402


def test_what_is_printed_is_what_the_formulas_say():
    found = limits.Found("learner", seconds=2.0, flops=4e12, traffic=3e9, tokens=1000.0)
    said = limits.described(found, limits.Limits(flops=8e12, bandwidth=6e9), "some chip")
    assert "MFU 25.0% = 4 TFLOP needed" in said and "limit 25.0% = 3 GB at least" in said and "500 tokens/s" in said
    assert "floor 0.500 s by these limits: 25.0% reached" in said and "published" not in said
    assert "0.2% of the published 989 TFLOP/s" in limits.described(found, limits.Limits(8e12, 6e9), "NVIDIA H200")
    slow = limits.described(found._replace(traffic=9e9), limits.Limits(8e12, 6e9), "some chip")
    assert "limit 75.0%" in slow and "floor 1.500 s" in slow   # the larger of the two


@pytest.mark.parametrize("part", ["learner", "sampler"])
def test_without_a_gpu_one_line_says_so(part):
    with pytest.raises(SystemExit, match=r"^--device gpu: JAX finds no such device here, only cpu; on a machine with an "
                                         r"NVIDIA GPU: pip install -e '.\[cuda\]'$"):
        limits.main(part, argparse.Namespace(device="gpu", config=None, repeats=1, tasks=None))


@pytest.mark.parametrize("words, message", [
    (["bench_learner.py", "--device", "gpu", "--quick"], "--quick would do nothing with --device"),
    (["bench_learner.py", "--config", "x.py"], "--config would do nothing without --device"),
    (["bench_learner.py", "--repeats", "0"], "--repeats is 0; it must be at least 1"),
    (["bench_learner.py", "--device", "tpu"], "invalid choice: 'tpu'"),
])
def test_options_without_effect_are_refused(words, message):
    done = subprocess.run([sys.executable, ROOT / "scripts" / words[0], *words[1:]], capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr


def test_limits_are_rates_of_this_device():
    found = limits.limits("float32", 64, 2 ** 16)
    assert 1e6 < found.flops < 1e16 and 1e6 < found.bandwidth < 1e16


def test_the_batch_is_full_and_half_of_it_sampled():
    made = small.learner(tasks=2)
    batch = limits.episodes(made)
    assert batch.tokens.shape == (2, 2, 24) and (batch.length == 24).all() and (batch.tokens < 64).all()
    ids = batch.action_ids[1, 0]
    assert ids.tolist() == ([-1] * 4 + [0] * 4) + ([-1] * 4 + [1] * 4) + ([-1] * 4 + [2] * 4)
    assert (batch.discounts[..., :2] == 1).all() and (batch.discounts[..., 2] == 0).all()


def test_the_least_traffic_of_an_update_by_hand():
    """Two rows of 24 tokens in each of four micro-batches; policy and critic learn once each, in one optimizer step each."""
    made = small.learner(row_width=24, micro_rows=2)
    policy = 4 * transformer.parameter_count(small.MODEL)
    critic = policy + 4 * (small.MODEL.d_model + 1)   # a head and its bias
    if not small.MODEL.tie_embeddings:
        critic -= 4 * small.MODEL.d_model * small.MODEL.vocab_size
    moved = lambda size: 2 * 3 * size + size          # parameters and two moments read and written, gradients read
    found = limits.least_traffic(made)
    assert found == pytest.approx(4 * policy * (1 + 2 * 2) + moved(policy) + moved(critic), rel=1e-3)


@pytest.mark.slow
def test_the_learner_is_measured_on_a_cpu():
    config, where = tiny_config.config(), jax.devices("cpu")[0]
    found = limits.learner(config, 2, 1, where)
    batch = work.batch(np.full(4, 256), 4 * 128)
    model = limits.start.architecture(config)
    made = limits.assemble.learner(config, model, devices=[where])
    assert found.tokens == 4 * 256 and found.seconds > 0
    assert found.flops == (work.annotate(made, batch) + work.update(made, batch)).needed > 0


@pytest.mark.slow
@pytest.mark.parametrize("script", ["bench_learner.py", "bench_sampler.py"])
def test_the_command_prints_shares_between_0_and_1(script):
    done = subprocess.run([sys.executable, ROOT / "scripts" / script, "--device", "cpu", "--repeats", "1", "--config",
                           ROOT / "tests" / "tiny_config.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shares = [float(share) for share in re.findall(r"(?:MFU|limit) ([\d.]+)%", done.stdout)]
    assert len(shares) == 2 and all(0 <= share <= 100 for share in shares), done.stdout
