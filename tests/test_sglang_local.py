"""A server that is started here: its flags, why it could not start, what happens when it dies, that nothing is left.

`python -m sglang.launch_server` is our scripted server here (`sglang_scripted/`), a real process on a real port.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import sglang_play
from eau_jax.clients.server import LocalServer, ServerError, ServerProcess, free_port
from eau_jax.core.types import InfraError
from eau_jax.models import hf
from sampler_play import QWEN3
from sglang_play import PARAMS, ask, episode, run, said, sampler

quick = pytest.fixture(autouse=True)(sglang_play.quick)

HERE = Path(__file__).resolve().parent


def local(log: Path, port: int = 0, start_s: float = 60.0, **switches) -> LocalServer:
    return LocalServer(device="cpu", log=str(log), port=port, start_s=start_s, environment={
        "PYTHONPATH": f"{HERE / 'sglang_scripted'}:{HERE}", "SCRIPTED": json.dumps(switches)})


def process(settings: LocalServer) -> ServerProcess:
    return ServerProcess(settings, slots=4, length=64, dtype="float32")


@pytest.fixture
def folder(tmp_path):
    hf.save(tmp_path / "model", QWEN3, PARAMS[0])
    return tmp_path / "model"


def gone(pid: int) -> bool:
    """Whether the process has ended, within 10 s."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# Flags


def test_the_flags_of_sglang_on_a_gpu():
    made = ServerProcess(LocalServer(tensor=2, memory=0.6, arguments=("--page-size", "16")), slots=64, length=4096,
                         dtype="bfloat16")
    assert made.command("py", Path("/w"), "7.1-x", 30000) == [
        "py", "-m", "sglang.launch_server", "--model-path", "/w", "--host", "127.0.0.1", "--port", "30000",
        "--device", "cuda", "--dtype", "bfloat16", "--context-length", "4104", "--max-running-requests", "64",
        "--tp-size", "2",
        "--skip-tokenizer-init", "--log-level", "warning", "--mem-fraction-static", "0.6", "--weight-version", "7.1-x",
        "--page-size", "16"]


def test_the_flags_that_a_cpu_needs():
    torch = ServerProcess(LocalServer(device="cpu"), slots=8, length=248, dtype="float32")
    flags = " ".join(torch.command("py", Path("/w"), "0.1-x", 1))
    for flag in ("--attention-backend torch_native", "--sleep-on-idle", "--skip-server-warmup", "--max-total-tokens 8192"):
        assert flag in flags
    assert torch.environment("0.1-x")["SGLANG_USE_CPU_ENGINE"] == "1"
    on_jax = ServerProcess(LocalServer(kind="sglang-jax", device="cpu"), slots=8, length=248, dtype="float32")
    flags = " ".join(on_jax.command("py", Path("/w"), "0.1-x", 1))
    for flag in ("sglang_jax_serve.py", "--attention-backend native", "--disable-overlap-schedule", "--skip-server-warmup",
                 "--enable-deterministic-sampling"):
        assert flag in flags
    environment = on_jax.environment("0.1-x")
    assert "--weight-version" not in flags and environment["EAU_WEIGHT_VERSION"] == "0.1-x"
    assert "XLA_FLAGS" in os.environ and "XLA_FLAGS" not in environment    # this process's devices are not the server's


@pytest.mark.parametrize("settings, message", [
    (dict(kind="vllm"), "kind is 'vllm'; allowed: sglang, sglang-jax"), (dict(device="tpu"), "sglang with device 'tpu'"),
    (dict(kind="sglang-jax"), "sglang-jax with device 'cuda'; allowed: tpu, cpu"), (dict(tensor=0), "tensor is 0"),
    (dict(memory=1.0), "memory 1.0"), (dict(port=-1), "port -1"), (dict(start_s=0.0), "start_s is 0.0; allowed: above 0")])
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LocalServer(**settings)


# Why it could not start: one line


@pytest.mark.parametrize("says, message", [
    ("Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'sglang'",
     r"No module named 'sglang'; install it for that interpreter, or name another with LocalServer\(python=...\); log: "),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nGoodbye", r"lower LocalServer\(memory=...\)"),
    ("ImportError: libcuda.so.1: cannot open shared object file", "there is no usable CUDA here"),
    ("launch_server.py: error: unrecognized arguments: --nonsense", r"does not know that flag; see LocalServer\(arguments"),
    ("I just do not want to", "I just do not want to; ended with status 1; log:")])
def test_why_it_could_not_start(folder, tmp_path, says, message):
    made = process(local(tmp_path / "log", fails=says))
    with pytest.raises(ServerError, match=message) as caught:
        made.start(folder, "0.1-x")
    assert "\n" not in str(caught.value) and "the local sglang server" in str(caught.value)
    assert not made.running()


def test_a_missing_interpreter_and_a_missing_sglang_are_named(folder, tmp_path):
    with pytest.raises(ServerError, match="no interpreter '/no/python'"):
        process(LocalServer(python="/no/python")).start(folder, "0.1-x")
    with pytest.raises(ServerError, match="No module named 'sglang'.*install it for that interpreter"):
        process(LocalServer(device="cpu", log=str(tmp_path / "log"), environment={"PYTHONPATH": ""})).start(folder, "0.1-x")


def test_a_port_that_is_taken_is_named(folder, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port} is taken"):
            process(local(tmp_path / "log", port=port)).start(folder, "0.1-x")
    assert free_port(port) == port


def test_a_server_that_is_not_ready_in_time_is_ended(folder, tmp_path):
    made = process(local(tmp_path / "log", start_s=1.0, starts_after_s=60.0))
    with pytest.raises(ServerError, match="not ready after start_s = 1 s"):
        made.start(folder, "0.1-x")
    assert not made.running()


# Life and death


def test_it_starts_with_the_first_weights_takes_new_ones_and_leaves_nothing(tmp_path):
    made = sampler(local(tmp_path / "log"))
    server = made._fleet.servers[0].process

    async def play():
        first = await ask(made, "s", [5, 6])
        [pid] = children(server._guard.pid)
        await made.push(PARAMS[1], 1, 1.0)
        assert children(server._guard.pid) == [pid]             # not started again
        return first, await ask(made, "t", [5, 6]), pid

    first, second, pid = run(made, play)
    np.testing.assert_allclose(first.logprobs, said([5, 6], first.tokens, 0), atol=1e-5)
    np.testing.assert_allclose(second.logprobs, said([5, 6], second.tokens, 1), atol=1e-5)
    assert gone(pid) and not server.running() and made._fleet.restarts == 0


def test_a_server_killed_in_the_middle_of_a_batch_comes_back_with_the_same_weights(tmp_path):
    until = tmp_path / "killed"
    made = sampler(local(tmp_path / "log", holds_after=8, until=str(until)))
    server = made._fleet.servers[0].process

    async def play():
        await made.push(PARAMS[1], 1, 1.0)
        playing = asyncio.gather(*(episode(made, f"e{number}") for number in range(8)))
        while made.counts["requests"] < 16:         # all eight are in their second turn, where the server holds them
            await asyncio.sleep(0.01)
        [pid] = children(server._guard.pid)
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
        until.touch()                               # for the server that comes in its place
        return await playing

    for played in run(made, play):
        for history, completion in played:
            assert completion.policy_version == 1 and len(completion.tokens) > 0
            np.testing.assert_allclose(completion.logprobs, said(history, completion.tokens, 1), atol=1e-5)
    assert made._fleet.restarts == 1
    assert (made.counts["failures"], made.counts["requests"]) == (8, 8 * 3 + 8)   # what was in flight is asked once more


def test_a_start_goes_on_when_the_episode_that_asked_for_it_is_over(tmp_path):
    made = sampler(local(tmp_path / "log", starts_after_s=0.5))
    server = made._fleet.servers[0].process

    async def play():
        os.kill(children(server._guard.pid)[0], signal.SIGKILL)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await ask(made, "s", [5, 6])
        return await ask(made, "t", [5, 6])

    assert run(made, play).tokens.size and made._fleet.restarts == 1


def test_a_server_that_keeps_dying_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("eau_jax.samplers.fleet.RESTARTS", 2)
    made = sampler(local(tmp_path / "log", dies_after=1), retries=2)

    async def play():
        for number in range(9):
            await ask(made, f"s{number}", [5, 6])

    with pytest.raises(InfraError, match="went down 2 times since the last push"):
        run(made, play)


def test_a_push_that_a_local_server_refuses_starts_it_again(tmp_path):
    made = sampler(local(tmp_path / "log", refuses=True))

    async def play():
        with warnings.catch_warnings(record=True) as said_so:
            warnings.simplefilter("always")
            await made.push(PARAMS[1], 1, 1.0)
        assert "a push failed, so the local server is started again" in str(said_so[0].message)
        return await ask(made, "s", [5, 6])

    completion = run(made, play)
    np.testing.assert_allclose(completion.logprobs, said([5, 6], completion.tokens, 1), atol=1e-5)


@pytest.mark.slow
def test_the_server_ends_when_its_owner_is_killed(folder, tmp_path):
    code = ("import sys, time\nfrom pathlib import Path\nfrom test_sglang_local import local, process\n"
            f"made = process(local(Path({str(tmp_path / 'log')!r})))\nmade.start(Path({str(folder)!r}), '0.1-x')\n"
            "print(made._guard.pid, flush=True)\ntime.sleep(60)")
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}"})
    guard = int(owner.stdout.readline())
    [server] = children(guard)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert gone(server) and gone(guard)
