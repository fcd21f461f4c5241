"""A server on this machine for the policy: SGLang or sglang-jax in a process of its own, started, watched and stopped.

SGLang pins other versions of the libraries than this package, so it is run by the Python of its own environment. The
process ends when ours does, however that ends: a guard between the two waits for its end of a pipe to close.
"""

import dataclasses
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Literal, Mapping

from eau_jax.core import time_limit
from eau_jax.core.types import InfraError

MARGIN = 8        # tokens of context beyond the longest history; servers keep a few for themselves
GRACE_S = 15      # seconds between asking a server to end and ending it
POLL_S = 0.2      # between two looks whether it is ready
CPU_CACHE = 4     # histories of full length that a server on a CPU keeps, for each request that runs
LOG_END = 20_000  # bytes of its log in which the reason is looked for
JAX_SERVER = Path(__file__).with_name("sglang_jax_serve.py")
GUARD = """
import os, signal, subprocess, sys, threading
server = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
def end():
    while os.read(0, 1): pass
    server.terminate()
    try: server.wait(float(sys.argv[1]))
    except subprocess.TimeoutExpired: pass
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=end, daemon=True).start()
status = server.wait()
os.write(1, f"ended with status {status}\\n".encode())
os.killpg(0, signal.SIGKILL)
"""
FIXES = (  # what a log says, and what mends it
    (r"No module named '(sglang|sgl_jax)'", "install it for that interpreter, or name another with LocalServer(python=...)"),
    (r"out of memory|OutOfMemory|RESOURCE_EXHAUSTED|Not enough memory", "lower LocalServer(memory=...), or rollout.slots"),
    (r"address already in use", "choose another LocalServer(port=...)"),
    (r"libcuda|libnvrtc|no NVIDIA driver|CUDA driver|CUDA-capable device",
     "there is no usable CUDA here; device='cpu' is for tests"),
    (r"unrecognized arguments|invalid choice",
     "this version of the server does not know that flag; see LocalServer(arguments=...)"),
)


class ServerError(InfraError):
    """A local server could not be started, or does not stay up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalServer:
    """A server that is started with the first weights and restarted when it dies. The settings are recorded with the run,
    so give no secrets here. The server has this process's environment as well, but for the settings of JAX and XLA."""

    python: str = sys.executable
    """interpreter of the environment that SGLang is installed in"""
    kind: Literal["sglang", "sglang-jax"] = "sglang"
    """which server"""
    device: Literal["cuda", "tpu", "cpu"] = "cuda"
    """what it runs on; a CPU is for tests"""
    tensor: int = 1
    """devices that each weight is split over"""
    memory: float = 0.0
    """share of a device's memory for weights and cache; 0: the server's own choice"""
    port: int = 0
    """0: a free one"""
    arguments: tuple[str, ...] = ()
    """further flags for the server; they override ours"""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """further environment variables for the server"""
    start_s: float = 900.0
    """seconds until it must be ready"""
    log: str = ""
    """file that takes what it says; empty: one in the temporary folder"""

    def __post_init__(self):
        allowed = {"sglang": ("cuda", "cpu"), "sglang-jax": ("tpu", "cpu")}
        if self.kind not in allowed:
            raise ValueError(f"LocalServer: kind is {self.kind!r}; allowed: {', '.join(allowed)}")
        if self.device not in allowed[self.kind]:
            raise ValueError(f"LocalServer: {self.kind} with device {self.device!r}; allowed: "
                             f"{', '.join(allowed[self.kind])}")
        if self.tensor < 1 or not 0 <= self.memory < 1 or not 0 <= self.port < 65536:
            raise ValueError(f"LocalServer: tensor is {self.tensor}, memory {self.memory}, port {self.port}; allowed: 1 or "
                             f"more, 0 up to below 1, 0 to 65535")
        if not time_limit.fits(self.start_s):
            raise ValueError(f"LocalServer: start_s is {self.start_s!r}; allowed: {time_limit.ALLOWED}")


class ServerProcess:
    """One local server. Calls block; they come one after the other.

    Args:
      slots: requests that run at the same time.
      length: longest history in tokens, the action included.
      dtype: "float32" or "bfloat16".
    """

    def __init__(self, settings: LocalServer, *, slots: int, length: int, dtype: str):
        self.settings, self._slots, self._length, self._dtype = settings, slots, length, dtype
        self.url = ""
        self.log = Path()
        self._guard: subprocess.Popen | None = None

    def start(self, folder: Path, label: str) -> None:
        """Starts the server with the weights of `folder` under the version `label`, and waits until it is ready. One that
        runs is stopped first.

        Raises:
          ServerError: when it does not become ready; one line says why.
        """
        self.stop()
        python = shutil.which(self.settings.python)
        if python is None:
            raise ServerError(self._failure(f"there is no interpreter {self.settings.python!r}; name one with "
                                            f"LocalServer(python=...)"))
        port = self.settings.port if self.settings.port else free_port()
        if self.settings.port and not free_port(self.settings.port):
            raise ServerError(self._failure(f"port {port} is taken; choose another LocalServer(port=...), 0 for a free one"))
        self.url = f"http://127.0.0.1:{port}"
        self.log = Path(self.settings.log or Path(tempfile.gettempdir(), f"eau-jax-sglang-{os.getpid()}-{port}.log"))
        with open(self.log, "ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-c", GUARD, str(GRACE_S), *self.command(python, folder, label, port)],
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env=self.environment(label))
        end = time.monotonic() + self.settings.start_s
        while not self.healthy():
            if not self.running():
                raise ServerError(self._failure(self.last_words()))
            if time.monotonic() > end:
                self.stop()
                raise ServerError(self._failure(f"it was not ready after start_s = {self.settings.start_s:g} s; its last "
                                                f"words: {self.last_words()}"))
            time.sleep(POLL_S)

    def command(self, python: str, folder: Path, label: str, port: int) -> list[str]:
        """The server's command line."""
        chosen, context = self.settings, self._length + MARGIN
        flags = ["--model-path", str(folder.absolute()), "--host", "127.0.0.1", "--port", str(port),
                 "--device", chosen.device, "--dtype", self._dtype, "--context-length", str(context),
                 "--max-running-requests", str(self._slots), "--tp-size", str(chosen.tensor), "--skip-tokenizer-init",
                 "--log-level", "warning"]
        if chosen.memory:
            flags += ["--mem-fraction-static", str(chosen.memory)]
        if chosen.device == "cpu":
            flags += ["--max-total-tokens", str(CPU_CACHE * self._slots * context)]
        if chosen.kind == "sglang-jax":
            # Its warm-up asks for no log-probabilities, which it cannot mix with requests that do.
            flags += ["--skip-server-warmup", "--enable-deterministic-sampling"]
            if chosen.device == "cpu":
                flags += ["--attention-backend", "native", "--page-size", "1", "--disable-overlap-schedule",
                          "--chunked-prefill-size", "256", "--precompile-token-paddings", "64", "--precompile-bs-paddings",
                          str(self._slots)]
            return [python, "-P", str(JAX_SERVER), *flags, *chosen.arguments]
        flags += ["--weight-version", label]
        if chosen.device == "cpu":
            flags += ["--attention-backend", "torch_native", "--sleep-on-idle", "--skip-server-warmup"]
        return [python, "-m", "sglang.launch_server", *flags, *chosen.arguments]

    def environment(self, label: str) -> dict[str, str]:
        """The server's environment variables."""
        ours = {"HF_HUB_OFFLINE": "1", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1", "EAU_WEIGHT_VERSION": label}
        if self.settings.device == "cpu":
            ours |= {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
        return {**inherited, **ours, **self.settings.environment}

    def running(self) -> bool:
        """Whether the process is there."""
        return self._guard is not None and self._guard.poll() is None

    def healthy(self, seconds: float = 5.0) -> bool:
        """Whether it answers /health with 200 within `seconds`."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"{self.url}/health", timeout=seconds) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self) -> None:
        """Ends the process and what it has started; after GRACE_S by force."""
        if self._guard is not None:
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def last_words(self) -> str:
        """The last error in its log, or its last line, and what mends it where that is known."""
        said = ""
        if self.log.is_file():
            with open(self.log, "rb") as log:
                log.seek(max(0, self.log.stat().st_size - LOG_END))
                said = log.read().decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"(Error|Exception)\b|\berror:", line)]
        last = (errors[-1] if errors else "; ".join(lines[-2:]) or "it said nothing")[:300]
        fix = next((f"; {fix}" for pattern, fix in FIXES if re.search(pattern, last, re.IGNORECASE)), "")
        return f"{last}{fix}; log: {self.log}"

    def _failure(self, why: str) -> str:
        chosen = self.settings
        return f"the local {chosen.kind} server ({chosen.python}, {chosen.device}) could not be started: {why}"


def free_port(port: int = 0) -> int:
    """A free port of this machine, or `port` if it is free, else 0."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return 0
        return listener.getsockname()[1]
