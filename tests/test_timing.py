"""Rates of an update by hand, profiles that hold the phases, and how a run that is asked to stop ends."""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from tiny_config import config as tiny

from eau_jax import start, timing, train, work
from eau_jax.assemble import learner
from eau_jax.chips import CHIPS
from eau_jax.config import ConfigError
from eau_jax.config_file import replace
from eau_jax.core.records import read_lines

ROOT = Path(__file__).resolve().parent.parent


def test_rates_by_hand(monkeypatch):
    """Two episodes of 3 and 5 tokens, of which 1 and 2 were sampled, were learned from; one of 4 sampled tokens was not."""
    config = replace(tiny(), {"mesh.data": 1})
    made = learner(config, start.architecture(config), jax.devices()[:1])
    trajectory = SimpleNamespace(length=np.array([[3, 5]]), action_ids=np.array([[[-1, -1, 0, -1, -1], [-1, 0, -1, -1, 1]]]))
    turns = lambda *sizes: SimpleNamespace(turns=[SimpleNamespace(action=np.zeros(size)) for size in sizes])
    collected = [[turns(1), turns(1, 1)], [turns(4)]]
    seconds = {"rollout_s": 2.0, "annotate_s": 0.5, "update_s": 1.5}
    rates = timing.speed(made, collected, trajectory, 1, seconds)
    batch = work.Batch(tokens=8, pairs=6 + 15, sampled=3)
    needed = work.annotate(made, batch).needed + work.update(made, batch).needed
    assert rates == pytest.approx({"tokens_per_s": 2.0, "sampled_per_s": 3.5, "learned_per_s": 4.0,
                                   "model_tflop_per_s": needed / 2.0 / 1e12})   # no mfu: a CPU is not in the table
    alone = timing.speed(made, collected, trajectory, 0, seconds)["model_tflop_per_s"]
    assert alone == pytest.approx((needed - work.gradient(made.model, batch).needed) / 2.0 / 1e12)
    monkeypatch.setattr(timing.chips, "of_kind", lambda kind: CHIPS["h200"])
    assert timing.speed(made, collected, trajectory, 1, seconds)["mfu"] == pytest.approx(needed / 2.0 / 989.4e12)


def test_a_profile_holds_the_phases_of_the_chosen_update(tmp_path):
    clock = timing.Clock()
    for step in (1, 2):
        with timing.profiled(tmp_path, step, (2,)), clock.phase(f"rollout {step}"):
            time.sleep(0.01)
    assert clock.seconds["rollout 2_s"] >= 0.01
    folder, = (tmp_path / "profile").iterdir()
    trace, = folder.rglob("perfetto_trace.json.gz")
    names = {event.get("name") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert folder.name == "2" and "rollout 2" in names and "rollout 1" not in names
    assert list(folder.rglob("*.xplane.pb"))


@pytest.mark.parametrize("chosen", [(0,), (2, 5)])
def test_a_profile_of_an_update_that_is_not_made_is_refused(chosen):
    with pytest.raises(ConfigError, match=f"profile names update {chosen[-1]}, but this run makes updates 1 to 4"):
        timing.check_profile(chosen, 1, 4)
    timing.check_profile((1, 4), 1, 4)


def test_a_profile_beyond_the_episodes_of_a_run_is_refused_before_anything_is_made(tmp_path):
    """Eight episodes are two batches of four."""
    config = replace(tiny(), {"learn.episodes": 8, "learn.rows": 8, "root": str(tmp_path)})
    with pytest.raises(ConfigError, match="profile names update 3, but this run makes updates 1 to 2"):
        train.train(config, "", resume=False, profile=(2, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("signal_sent", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_saves_at_the_next_boundary_and_says_so_by_its_exit_status(tmp_path, signal_sent):
    command = [sys.executable, "-c", "from eau_jax.cli import main; main()", "train", str(ROOT / "tests" / "tiny_config.py"),
               "--resume", "--root", str(tmp_path), "--learn.steps", "40", "--checkpoint.every", "40", "--profile", "2"]
    process = subprocess.Popen(command, env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    file = tmp_path / "tiny" / "metrics.jsonl"
    while not (file.exists() and len(list(read_lines(file))) >= 2) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal_sent)
    out, _ = process.communicate()
    assert process.returncode == train.STOPPED, out
    done = len(list(read_lines(file)))
    assert 2 <= done < 40 and f"stopped after update {done}; continue with --resume" in out
    assert (tmp_path / "tiny" / "checkpoints" / str(done)).is_dir()
    assert list((tmp_path / "tiny" / "profile" / "2").rglob("perfetto_trace.json.gz"))
    times = list(read_lines(tmp_path / "tiny" / "timings.jsonl"))
    assert all(line[name] > 0 for line in times for name in ("rollout_s", "annotate_s", "update_s", "tokens_per_s",
                                                             "sampled_per_s", "learned_per_s", "model_tflop_per_s"))


STOPPING = """
import sys
import jax
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
from eau_jax import train
found = [train.stopping()]
if sys.argv[2] == "1":
    train.ask_to_stop()
found += [train.stopping(), train.stopping()]
assert found == [False, True, True], found
"""


@pytest.mark.slow
def test_all_processes_stop_where_one_was_asked_to():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen([sys.executable, "-c", STOPPING, port, number], env=environment, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for number in ("0", "1")]
    for process in both:
        out, _ = process.communicate()
        assert process.returncode == 0, out
