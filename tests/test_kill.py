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
from tiny_config import config as tiny

from eau_jax.config import knob_tree
from eau_jax.core import knobs as knob
from eau_jax.core.records import read_lines
from eau_jax.meta.lanes import lanes
from eau_jax.meta.replay_gate import Settings, replay
from eau_jax.rollout.simulator import simulator

ROOT = Path(__file__).resolve().parent.parent
UPDATES = 120
COMMAND = [sys.executable, "-c", "from eau_jax.cli import main; main()", "train", str(ROOT / "tests" / "tiny_config.py"),
           "--resume", "--learn.steps", str(UPDATES), "--rollout.tasks", "2"]


def start(root, *settings):
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([*COMMAND, "--root", str(root), *settings], env=environment, stdout=subprocess.PIPE,
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


def killed_again_and_again(root, kills, rng, *settings):
    """Starts the run and ends it at a random moment, so many times. Returns the signals, and the last update each time."""
    metrics = root / "tiny" / "metrics.jsonl"
    done = lambda: max((line["step"] for line in read_lines(metrics)), default=0) if metrics.exists() else 0
    signals, reached = [], []
    for number in range(kills):
        process = start(root, *settings)
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
    return signals, reached


def replayed(played, turns):
    """The return of each record when what its agent did is done again, with so many messages allowed."""
    config = tiny()
    tasks = tuple(config.tasks.generate("train", config.tasks.train, config.seed))
    many = lanes(simulator(config.env, config.user, tasks), 64)
    knobs = knob.patch(knob_tree(config), {"env.max_turns": turns})
    return [episode.total for episode in replay(many, Settings(knobs, config.env.rules), played)]


@pytest.mark.slow
def test_twenty_kills_leave_no_trace(tmp_path):
    kills, rng = int(os.environ.get("EAU_KILLS", "20")), random.Random(0)
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    process = start(calm)
    output, _ = process.communicate()
    assert process.returncode == 0, output

    signals, reached = killed_again_and_again(stormy, kills, rng)
    print(f"{len(signals)} kills ({signals.count(signal.SIGKILL)} SIGKILL), after updates {reached}")
    assert len(signals) == kills, f"the run ended after {len(signals)} kills; give it more updates"
    process = start(stormy)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert [line["step"] for line in read_lines(stormy / "tiny" / "metrics.jsonl")] == list(range(1, UPDATES + 1))
    assert records(stormy) == records(calm)
    assert weights(stormy) == weights(calm)


@pytest.mark.slow
def test_kills_of_a_run_that_collects_ahead_lose_and_double_nothing(tmp_path):
    """Which weights play an episode depends on when it is killed; which episodes there are, and what each is worth, do not."""
    kills, group = int(os.environ.get("EAU_KILLS", "20")), 2
    settings = ("--rollout.max-staleness", "2")
    root = tmp_path / "ahead"
    signals, reached = killed_again_and_again(root, kills, random.Random(1), *settings)
    print(f"{len(signals)} kills ({signals.count(signal.SIGKILL)} SIGKILL), after updates {reached}")
    assert len(signals) == kills, f"the run ended after {len(signals)} kills; give it more updates"
    process = start(root, *settings)
    output, _ = process.communicate()
    assert process.returncode == 0, output

    rows = list(read_lines(root / "tiny" / "metrics.jsonl"))
    assert [row["step"] for row in rows] == list(range(1, UPDATES + 1))
    assert 0 < max(row["rollout/staleness_max"] for row in rows) <= 2
    assert all(row["rollout/episodes"] == 2 * group and row["rollout/infra_rate"] == 0 for row in rows)
    records = {step: list(read_lines(root / "tiny" / "episodes" / f"{step}.jsonl")) for step in range(1, UPDATES + 1)}
    seeds = [record["seed"] for batch in records.values() for record in batch]
    assert len(seeds) == len(set(seeds)) == UPDATES * 2 * group
    for row in rows:
        scores = [record["score"] for record in records[row["step"]]]
        assert np.isclose(row["rollout/score_mean"], np.mean(scores), atol=1e-6), row["step"]
    for generation, turns in enumerate((3, 2)):
        played = [record for batch in records.values() for record in batch if record["generation"] == generation]
        assert played
        np.testing.assert_allclose([record["return"] for record in played], replayed(played, turns), atol=1e-6)
