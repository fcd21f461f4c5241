"""Runs on several processes: how they meet, what each of them does, and that it changes nothing."""

import concurrent.futures
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import tiny_config

from eau_jax import follow, meeting, processes
from eau_jax.cli import main
from eau_jax.config import ConfigError
from eau_jax.core.records import read_lines
from eau_jax.core.sharding import make_mesh
from eau_jax.together import leaders_mesh

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = str(Path(__file__).parent.parent / "configs" / "quickstart.py")
FIRST = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:8476", "JAX_PROCESS_ID": "0"}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in (meeting.ADDRESS, meeting.COUNT, meeting.NUMBER):
        monkeypatch.delenv(name, raising=False)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("count, said, message", [
    (0, {}, "processes = 0; give how many"),
    (-2, {}, "processes = -2; give how many"),
    (2, {"JAX_PROCESS_ID": "1"}, "JAX_PROCESS_ID is set and JAX_COORDINATOR_ADDRESS is not"),
    (2, {"JAX_COORDINATOR_ADDRESS": "a:1"}, "JAX_COORDINATOR_ADDRESS is set and JAX_PROCESS_ID is not"),
    (2, FIRST | {"JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID=2; allowed: 0 to 1"),
    (2, FIRST | {"JAX_PROCESS_ID": "one"}, "JAX_PROCESS_ID=one; allowed: 0 to 1"),
    (2, FIRST | {"JAX_PROCESS_ID": "-1"}, "JAX_PROCESS_ID=-1; allowed: 0 to 1"),
    (2, FIRST | {"JAX_COORDINATOR_ADDRESS": "10.0.0.2"}, "JAX_COORDINATOR_ADDRESS=10.0.0.2; give HOST:PORT"),
    (2, FIRST | {"JAX_COORDINATOR_ADDRESS": ":8476"}, "give HOST:PORT"),
    (2, FIRST | {"JAX_COORDINATOR_ADDRESS": "h:99999"}, "give HOST:PORT"),
    (2, FIRST | {"JAX_NUM_PROCESSES": "4"}, "processes = 2, but JAX_NUM_PROCESSES=4"),
    (1, {"JAX_NUM_PROCESSES": "2"}, "processes = 1, but JAX_NUM_PROCESSES=2"),
    (1, {"JAX_PROCESS_ID": "1"}, "JAX_PROCESS_ID=1; allowed: 0 to 0"),
])
def test_what_cannot_be_is_named(monkeypatch, count, said, message):
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        processes.join(count)


def test_one_process_needs_nobody():
    processes.join(1)
    assert processes.leads()
    processes.tell("update")   # to nobody
    processes.agree()
    with pytest.raises(ConfigError, match="no such folder"):
        processes.agree("no such folder")


def meet(*who, wait_s=5.0, port=None):
    """What each (number, count) hears: "" where all are there."""
    address = f"localhost:{port or free_port()}"

    def one(number: int, count: int) -> str:
        try:
            meeting.meet(address, number, count, wait_s)
        except ConfigError as error:
            return str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(len(who)) as pool:
        return list(pool.map(lambda pair: one(*pair), who))


def test_all_meet_whoever_comes_first():
    assert meet((0, 4), (1, 4), (2, 4), (3, 4)) == [""] * 4
    assert meet((1, 2), (0, 2)) == [""] * 2


@pytest.mark.parametrize("who, message", [
    (((0, 2), (1, 3)), "process 1 was started with --processes 3, and process 0 with 2"),
    (((0, 3), (1, 3), (1, 3)), "two processes have JAX_PROCESS_ID=1"),
    (((0, 3), (2, 3)), "of 3 processes, number 1 did not come within 0.3 s"),
])
def test_every_process_hears_what_is_wrong(who, message):
    for said in meet(*who, wait_s=0.3 if "come" in message else 5.0):
        assert message in said


def test_collecting_ahead_on_several_processes_is_refused_before_they_meet(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["train", QUICKSTART, "--processes", "2", "--rollout.max-staleness", "2"])
    assert "processes = 2 cannot go with rollout.max_staleness = 2" in capsys.readouterr().err


def test_a_leader_that_is_not_there_is_named():
    [said] = meet((1, 2), wait_s=0.2, port=(port := free_port()))
    assert f"did not meet the first one at {meeting.ADDRESS}=localhost:{port} within 0.2 s (Connection refused)" in said


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("", 0)) as other:
        [said] = meet((0, 2), wait_s=0.2, port=other.getsockname()[1])
    assert "another program listens there; choose another port" in said


def test_whoever_else_calls_is_passed_over():
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        leader = pool.submit(meet, (0, 2), port=port)
        for words in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b"eau_jax 0 2\n", b""):
            with connected(port) as line:
                line.sendall(words)
        assert meet((1, 2), port=port) == [""] and leader.result() == [""]


def connected(port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection(("localhost", port))
        except ConnectionRefusedError:
            time.sleep(0.01)


def test_the_leaders_mesh_has_the_runs_axes_as_far_as_its_devices_go(monkeypatch):
    run = make_mesh(data=1, fsdp=2, tensor=4)
    assert dict(leaders_mesh(run).shape) == {"data": 1, "fsdp": 2, "expert": 1, "tensor": 4}
    four = jax.devices()[:4]
    monkeypatch.setattr(jax, "local_devices", lambda: four)
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)
    assert dict(leaders_mesh(run).shape) == {"data": 1, "fsdp": 1, "expert": 1, "tensor": 4}
    assert dict(leaders_mesh(make_mesh(data=4, fsdp=1, tensor=2)).shape) == {"data": 2, "fsdp": 1, "expert": 1, "tensor": 2}


def test_the_others_know_every_word_of_the_leader():
    told = {word for file in (ROOT / "eau_jax").glob("*.py") for word in re.findall(r'\btell\("(\w+)"', file.read_text())}
    assert told == {*follow._Follower(tiny_config.config()).does, "end"} and len(told) > 10


# The command line


CONFIG = """
import sys

sys.path.insert(0, {here!r})
import tiny_config
from eau_jax.config import Swap
from eau_jax.config_file import replace


def config():
    back = Swap(step=3, knobs={{"env.finish_penalty": 0.2}}, weights=1)   # the critic begins anew, from earlier weights
    tiny = tiny_config.config()
    return replace(tiny, {{"root": {root!r}, "learn.rows": 8, "learn.critic_refit": 1, "swaps": (back,),
                           "knobs": {{**tiny.knobs, "env.invalid_penalty": 0.3}}}})   # what an untrained model is paid for
"""


def start(root: Path, count: int, *settings: str, each: dict[int, tuple[str, ...]] = {}) -> list[subprocess.Popen]:
    """`eau-jax train` in `count` processes that share eight devices; `each`: further settings of one of them."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "COLUMNS": "200",
                                "XLA_FLAGS": f"--xla_force_host_platform_device_count={8 // count}"}
    address, begun, file = f"127.0.0.1:{free_port()}", [], root.with_suffix(".py")
    file.write_text(CONFIG.format(here=str(ROOT / "tests"), root=str(root)))
    for number in range(count):
        said = {meeting.ADDRESS: address, meeting.NUMBER: str(number)} if count > 1 else {}
        begun.append(subprocess.Popen(
            [sys.executable, "-c", "from eau_jax.cli import main; main()", "train", str(file), "--processes",
             str(count), *settings, *each.get(number, ())],
            env=environment | said, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    return begun


def finished(begun: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """Exit status and words of each."""
    try:
        said = [process.communicate(timeout=3000)[0] for process in begun]
    finally:
        for process in begun:
            process.kill()
    return [(process.returncode, text) for process, text in zip(begun, said)]


def trained(root: Path, count: int, *settings: str) -> list[dict]:
    """The metrics of a run that ends well."""
    for status, said in finished(start(root, count, *settings)):
        assert status == 0, said
    rows = list(read_lines(root / "tiny" / "metrics.jsonl"))
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["step"] for row in read_lines(root / "tiny" / "timings.jsonl")] == list(range(1, len(rows) + 1))
    return rows


def assert_same(rows: list[dict], others: list[dict]) -> None:
    known = [[{name: value for name, value in row.items() if value is not None} for row in side] for side in (rows, others)]
    for row, other in zip(*known, strict=True):
        assert row == pytest.approx(other, abs=1e-5, rel=1e-5)


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_checkpoints_move_between_them(tmp_path):
    one, two, moved = tmp_path / "one", tmp_path / "two", tmp_path / "moved"
    trained(one, 1, "--learn.steps", "3")
    shutil.copytree(one, moved)
    whole = trained(one, 1, "--learn.steps", "5", "--resume")
    assert_same(trained(two, 2, "--learn.steps", "3"), whole[:3])                    # two alone
    assert_same(trained(two, 1, "--learn.steps", "5", "--resume"), whole)            # from two to one
    assert_same(trained(moved, 2, "--learn.steps", "5", "--resume"), whole)          # from one to two
    assert whole[2]["learn/critic_refit"] == 1 and whole[3]["learn/critic_refit"] == 0
    assert all(row["learn/critic_loss"] > 1e-3 for row in whole) and whole[3]["learn/policy_grad_norm"] > 1e-3


@pytest.mark.slow
def test_all_processes_end_with_one_status(tmp_path):
    """Asked to stop, they save after the same update; other settings and a folder that holds a run are said by each."""
    begun = start(tmp_path, 2, "--learn.steps", "200", "--sft.steps", "0", "--sft.episodes", "512", "--sft.batch", "32")
    file = tmp_path / "tiny" / "metrics.jsonl"
    while not file.exists() and all(process.poll() is None for process in begun):
        time.sleep(0.05)
    begun[1].send_signal(signal.SIGTERM)
    [(first, said), (second, other)] = finished(begun)
    assert (first, second) == (143, 143), said + other
    done = len(list(read_lines(file)))
    assert f"stopped after update {done}" in said and "update" not in other.replace("after this update", "")
    assert (tmp_path / "tiny" / "checkpoints" / str(done)).is_dir()

    for status, said in finished(start(tmp_path, 2, each={1: ("--learn.steps", "7")})):
        assert status == 2 and "process 1 of 2: it was started with other settings than the first one: learn.steps" in said
    [(first, said), (second, other)] = finished(start(tmp_path, 2))
    assert (first, second) == (2, 2), said + other
    assert "already holds a run; continue it with --resume" in said and "already holds a run" in other
