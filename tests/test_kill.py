"""A run that is killed again and again, at random moments and also during saves, ends like one that never was."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from eau_jax.core.records import read_lines

ROOT = Path(__file__).resolve().parent.parent
UPDATES = 120
COMMAND = [sys.executable, "-c", "from eau_jax.cli import main; main()", "train", str(ROOT / "tests" / "tiny_config.py"),
           "--resume", "--learn.steps", str(UPDATES), "--rollout.tasks", "2"]


def start(root):
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([*COMMAND, "--root", str(root)], env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def records(root):
    """Every file that must not depend on interruptions, as bytes."""
    run = root / "tiny"
    files = [run / "metrics.jsonl", run / "sft.jsonl", run / "config.json", root / "sealed" / "tiny" / "eval.jsonl",
             *sorted((run / "episodes").iterdir()), *sorted((run / "knobs").iterdir()), *sorted((run / "rules").iterdir()),
             run / "cold_start" / "model.safetensors"]
    return {str(file.relative_to(root)): file.read_bytes() for file in files if file.name != "config.json"}


def weights(root):
    """Every array of the last checkpoint, optimizer state included."""
    code = ("import sys, numpy as np, jax\n"
            "from eau_jax import trained\nfrom eau_jax.learner.checkpoint import Checkpoints\n"
            "from eau_jax.learner.state import abstract_state\n"
            "parts, _, step = trained.load(sys.argv[1], 'latest')\n"
            "store = Checkpoints(sys.argv[1] + '/checkpoints', keep=2)\n"
            "state, host, step = store.restore_latest(abstract_state(parts.learner))\n"
            "leaves = jax.tree.leaves(jax.device_get(state))\n"
            "np.savez(sys.argv[2], *leaves)\n")
    out = root / "weights.npz"
    subprocess.run([sys.executable, "-c", code, str(root / "tiny"), str(out)], check=True,
                   env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)})
    with np.load(out) as file:
        return {name: file[name].tobytes() for name in file.files}


@pytest.mark.slow
def test_twenty_kills_leave_no_trace(tmp_path):
    kills, rng = int(os.environ.get("EAU_KILLS", "20")), random.Random(0)
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    process = start(calm)
    output, _ = process.communicate()
    assert process.returncode == 0, output

    done = lambda: max((line["step"] for line in read_lines(stormy / "tiny" / "metrics.jsonl")), default=0) \
        if (stormy / "tiny" / "metrics.jsonl").exists() else 0
    signals, reached = [], []
    for number in range(kills):
        process = start(stormy)
        target = done() + rng.choice((0, 1, 1, 2, 3))    # 0: while it starts, compiles or makes the cold start
        deadline = time.monotonic() + 120
        while done() < target and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        pause = time.monotonic() + (rng.uniform(0.0, 8.0) if rng.random() < 0.3 else rng.uniform(0.0, 0.6))
        while time.monotonic() < pause and done() < target + 2:  # a fast machine must not run to the end meanwhile
            time.sleep(0.005)
        if process.poll() is not None:
            break
        kind = rng.choice((signal.SIGTERM, signal.SIGKILL))
        process.send_signal(kind)
        output, _ = process.communicate(timeout=300)
        assert process.returncode in (-kind, 143), output
        signals.append(kind)
        reached.append(done())
    print(f"{len(signals)} kills ({signals.count(signal.SIGKILL)} SIGKILL), after updates {reached}")
    assert len(signals) == kills, f"the run ended after {len(signals)} kills; give it more updates"
    process = start(stormy)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert [line["step"] for line in read_lines(stormy / "tiny" / "metrics.jsonl")] == list(range(1, UPDATES + 1))
    assert records(stormy) == records(calm)
    assert weights(stormy) == weights(calm)
