"""Training runs as child processes that can be ended at any moment, and what runs of one start copy from each other."""

import os
import queue
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Sequence

from eau_jax import start

SHARED = ("model", "cold_start", "sft.jsonl")   # what runs of one start copy from each other, in this order
LOOK_S = 0.5                                    # seconds between two looks at a child's records
TRAIN = ("train", "--resume")
CHILD = "from eau_jax.child import child; child()"


def play(file: Path, log: Path, look: Callable[[], object], stop: threading.Event, command: Sequence[str] = TRAIN) -> int:
    """Trains the config of a Python file, or what is left of it, in a process of its own, until it ends or `stop` is set.

    Args:
      command: of `eau-jax`, and what follows the file.
      log: what the process says is added to it.
      look: called every LOOK_S seconds meanwhile.

    Returns:
      The exit status.
    """
    with open(log, "a", encoding="utf-8") as output:
        process = subprocess.Popen([sys.executable, "-c", CHILD, str(file), *command], stdin=subprocess.PIPE, stdout=output,
                                   stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and not stop.wait(LOOK_S):
                look()
        finally:
            process.stdin.close()  # which ends a child that is still there
            process.wait()
    return process.returncode


def workers(jobs: int) -> ThreadPoolExecutor:
    """Threads that play `jobs` children at a time, each of which keeps to cores of its own where the system lets it choose and
    has that many: XLA's threads of one run would wait for those of another."""
    there = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not 1 < jobs <= len(there):
        return ThreadPoolExecutor(jobs)
    shares: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for number in range(jobs):
        shares.put(there[number * len(there) // jobs:(number + 1) * len(there) // jobs])
    return ThreadPoolExecutor(jobs, initializer=lambda: os.sched_setaffinity(0, shares.get()))   # of the thread, inherited


def child() -> None:
    """What a run's process does: a command on the config that its first argument names; it ends when its parent does."""
    from eau_jax.cli import main

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    file, command, *rest = sys.argv[1:]
    main([command, file, *rest])


def end_with_the_parent() -> None:
    """Waits for the parent's end of the pipe to close, which it does however the parent ends; then this process ends too."""
    while os.read(0, 1):  # not sys.stdin, whose lock would be held when the interpreter ends
        pass
    os._exit(1)  # at once: a run that is cut off at any moment goes on to the bit


def copy_start(there: Path, here: Path) -> None:
    """Copies model and cold start of a run folder, as far as they are there, to another that would make the same."""
    for name in SHARED:
        source, target = there / name, here / name
        if target.exists() or not source.exists() or (name == "sft.jsonl" and not (here / "cold_start").exists()):
            continue
        here.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            start.whole(target, lambda path: shutil.copytree(source, path, dirs_exist_ok=True))
        else:
            shutil.copyfile(source, target)


def last_line(file: Path) -> str:
    """Of a log; empty where there is none."""
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n") if file.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
