"""Learner, collector (in one process), sampler server and user server are killed at random, twenty times in one run. It ends
like one that was left alone: what fails outside the agent's control leaves no trace but a count of episodes played again."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eau_jax.core.records import read_lines
from eau_jax.eval.held_out import sealed_file

HERE = Path(__file__).resolve().parent
UPDATES, KILLS = 8, 20
WAIT_S = 1800   # for anything, on a machine that is busy
CONFIG = """
import sys

sys.path.insert(0, {here!r})
import tiny_config
from eau_jax.clients.chat import ChatClient
from eau_jax.clients.server import LocalServer
from eau_jax.config import Sft
from eau_jax.config_file import replace
from eau_jax.samplers.sglang import SGLang
from eau_jax.users.llm import llm


def config():
    server = LocalServer(python=sys.executable, device="cpu", start_s={wait},
                         environment={{"PYTHONPATH": {path!r}, "SCRIPTED": '{{"step_s": 0.03}}'}})
    user = llm(ChatClient("http://127.0.0.1:{port}/v1", "m", timeout_s=600.0, deadline_s={wait}, max_retries=1000))
    return replace(tiny_config.config(), {{
        "root": {root!r}, "name": "served", "user": user, "learn.steps": {updates}, "swaps": (), "sft": Sft(),
        "rollout.deadline_s": {wait}, "rollout.infra_retries": 20, "rollout.sampler": SGLang((server,), retries=20)}})
"""
USER_SERVER = """
import sys, time
from chat_server import chat_server
with chat_server("normal", port=int(sys.argv[1])):
    time.sleep(1e9)
"""


class Storm:
    """A run, the server of its user, and what kills them."""

    def __init__(self, folder: Path, port: int):
        self.root, self.port, self.file = folder / "runs", port, folder / "served.py"
        folder.mkdir()
        self.file.write_text(CONFIG.format(here=str(HERE), port=port, root=str(self.root), updates=UPDATES,
                                           path=f"{HERE / 'sglang_scripted'}:{HERE}", wait=float(WAIT_S)))
        self.run, self.log = self.root / "served", open(folder / "log", "w+")
        self.start_user()
        self.start_learner()

    def start_learner(self) -> None:
        self.learner = subprocess.Popen(
            [sys.executable, "-c", "from eau_jax.cli import main; main()", "train", str(self.file), "--resume"],
            stdout=self.log, stderr=subprocess.STDOUT, env=os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(HERE.parent)})

    def start_user(self) -> None:
        self.user = subprocess.Popen([sys.executable, "-c", USER_SERVER, str(self.port)], env=os.environ | {
            "PYTHONPATH": f"{HERE}:{HERE.parent}"})

    def done(self) -> int:
        """Updates whose metrics are written."""
        file = self.run / "metrics.jsonl"
        return max((line["step"] for line in read_lines(file)), default=0) if file.exists() else 0

    def sampler(self) -> int | None:
        """The process of the sampler server: the last of those that descend from the learner."""
        found, at = None, [self.learner.pid]
        while at:
            pid = at.pop()
            try:
                at += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[1:3] == [b"-m", b"sglang.launch_server"]:
                found = pid
        return found

    def kill(self, victim: str, rng: random.Random) -> None:
        """At a random moment of the run, and starts again what nobody else does."""
        time.sleep(rng.uniform(0.0, 2.0))
        if victim == "learner":
            self.learner.kill()
            self.learner.wait()
            self.start_learner()
        elif victim == "user":
            self.user.kill()
            self.user.wait()
            time.sleep(rng.uniform(0.0, 1.0))
            self.start_user()
        else:   # the learner starts it again
            os.kill(self.until(self.sampler), signal.SIGKILL)

    def until(self, met):
        """What `met` gives, as soon as it gives something."""
        end = time.monotonic() + WAIT_S
        while not (found := met()):
            assert self.learner.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.02)
        return found

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def end(self) -> None:
        for process in (self.learner, self.user):
            process.kill()
            process.wait()
        self.log.close()

    def records(self) -> tuple[list[dict], dict[str, list[dict]], list[dict]]:
        """Metrics but for what was played again, episodes, held-out results."""
        metrics = [{name: value for name, value in line.items() if name != "rollout/infra_retries"}
                   for line in read_lines(self.run / "metrics.jsonl")]
        episodes = {file.name: list(read_lines(file)) for file in sorted((self.run / "episodes").iterdir())}
        return metrics, episodes, list(read_lines(sealed_file(self.run)))


@pytest.fixture
def storm(tmp_path):
    begun = []

    def begin(name: str) -> Storm:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        begun.append(Storm(tmp_path / name, port))
        return begun[-1]

    yield begin
    for one in begun:
        one.end()


@pytest.mark.slow
def test_whoever_is_killed_the_run_ends_as_if_nobody_was(storm):
    kills = int(os.environ.get("EAU_KILLS", KILLS))
    calm = storm("calm")
    assert calm.learner.wait(WAIT_S) == 0, calm.said()
    expected = calm.records()
    calm.end()

    one, rng, reached = storm("stormy"), random.Random(0), []
    victims = [("learner", "sampler", "user")[number % 3] for number in range(kills)]
    rng.shuffle(victims)
    for number, victim in enumerate(victims):
        before = (UPDATES - 1) * number // kills   # spread over the run, from its start on
        one.until(lambda: one.done() >= before)
        one.kill(victim, rng)
        reached.append((victim, one.done()))
    assert one.learner.wait(WAIT_S) == 0, one.said()
    again = sum(line["rollout/infra_retries"] for line in read_lines(one.run / "metrics.jsonl"))
    print(f"{kills} kills (victim, updates done): {reached}; {again:g} episodes played again")

    metrics, episodes, held_out = one.records()
    assert [line["step"] for line in metrics] == list(range(1, UPDATES + 1))
    assert [line["step"] for line in read_lines(one.run / "timings.jsonl")] == list(range(1, UPDATES + 1))
    assert sorted(episodes) == sorted(f"{step}.jsonl" for step in range(1, UPDATES + 1))
    assert all(line["rollout/spoke_llm"] > 0 for line in metrics)   # both servers were needed
    for got, wanted in zip((metrics, episodes, held_out), expected, strict=True):
        assert json.dumps(got) == json.dumps(wanted)
    assert one.sampler() is None
