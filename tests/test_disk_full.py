"""A full disk: one clear message, nothing older lost, and --resume goes on when there is room again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eau_jax.core.records import read_lines

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MB."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(tmp_path)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def train(root, *arguments):
    return subprocess.run(
        [sys.executable, "-c", "from eau_jax.cli import main; main()", "train", str(ROOT / "tests" / "tiny_config.py"),
         "--root", str(root), "--learn.steps", "8", *arguments], capture_output=True, text=True,
        env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT), "COLUMNS": "200"})


@pytest.mark.slow
def test_a_run_on_a_full_disk_stops_and_goes_on(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 4_800_000)
    stopped = train(small_disk)
    assert stopped.returncode == 2, stopped.stderr
    assert "--resume" in stopped.stderr and ("full" in stopped.stderr or "free" in stopped.stderr), stopped.stderr
    assert "Traceback" not in stopped.stderr and "Warning" not in stopped.stderr, stopped.stderr
    ballast.unlink()
    resumed = train(small_disk, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert [line["step"] for line in read_lines(small_disk / "tiny" / "metrics.jsonl")] == list(range(1, 9))
