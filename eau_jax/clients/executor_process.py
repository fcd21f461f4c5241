"""Starts the processes in which submissions run (`executor_worker.py`), feeds them, and ends them in time.

An interpreter starts in tens of milliseconds, so one that is ready forks a child for each submission: a fork server. Each
serves one submission at a time; there are as many as submissions that ran at once. They end with this process.
"""

import atexit
import functools
import json
import os
import socket
import struct
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any, Mapping, NamedTuple

from eau_jax.core.types import InfraError

WORKER = Path(__file__).with_name("executor_worker.py")
PROTECTIONS = {   # what may hold a submission, and what the machine needs for it
    "audit hook": "nothing", "limits": "nothing",
    "network": "`unshare` of util-linux, and root or user namespaces",
    "landlock": "Linux 5.13 or newer with Landlock switched on",
    "seccomp": "Linux on x86_64 or aarch64",
    "chroot": "root",
    "user": "root"}
START_SECONDS = 30.0
# One thread for a numerical library; no zone file for the time of day.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "PATH": os.defpath, "TZ": "UTC0", "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1",
               "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class End(NamedTuple):
    """How a process ended."""

    why: str            # "late", "flood": we ended it; "itself"
    code: int           # exit status, or minus the signal
    seconds: float      # of processor time


class _Server(NamedTuple):
    process: subprocess.Popen
    line: socket.socket
    owner: int          # process that started it: a fork of us must not use it


_idle: dict[tuple, list[_Server]] = {}


def run(job: Mapping[str, Any], python: str, packages: tuple[str, ...], seconds: float,
        size: int) -> tuple[list[bytes], End]:
    """(the lines that a child wrote after "ready", how it ended).

    Args:
      job: as `executor_worker.py` reads it, without "protections" (all that the machine offers) and "withheld".
      packages: modules outside the standard library to load, where seccomp is in force; else they are withheld.
      seconds: wall-clock time from here to the end.
      size: bytes that the child may write.

    Raises:
      InfraError: where no process can be started, or it dies before it reaches the submission.
    """
    lines, end = _child(job, python, packages, protections(python), seconds, size)
    if lines[0].startswith(b'["unavailable"'):
        raise InfraError(f"a protection that this machine offers could not be put in force: {json.loads(lines[0])[1]}")
    return lines[1:-1], end


@functools.cache
def protections(python: str) -> tuple[str, ...]:
    """The protections that hold every submission run by this interpreter; names of PROTECTIONS.

    Each one is tried in a process of its own. A warning tells where the kernel's own are not to be had.
    """
    held = ["audit hook", "limits", *(["network"] if _without_network() else [])]
    refused = {name: _refused(python, name) for name in ("landlock", "seccomp", "chroot", "user")}
    if not refused["landlock"]:
        refused["chroot"] = "Landlock is narrower"
    elif refused["chroot"]:
        refused["user"] = refused["user"] or "another user might not be able to read the standard library"
    held += [name for name, reason in refused.items() if not reason]
    missing = [f"{name} ({PROTECTIONS[name]}; {refused[name]})" for name in ("landlock", "seccomp") if name not in held]
    if missing:
        warnings.warn(f"submitted code is held by {', '.join(held)} only; not available: {', '.join(missing)}. Run in a "
                      "container that holds nothing of value", RuntimeWarning, stacklevel=2)
    return tuple(held)


def _refused(python: str, name: str) -> str:
    job = {"whole": "", "blocks": [], "calls": [], "upstream": False, "call_seconds": 1.0, "cpu_seconds": 5, "memory": 2**28,
           "output": 0}
    lines, _ = _child(job, python, (), (name,), START_SECONDS, 10_000)
    return json.loads(lines[0])[1] if lines[0].startswith(b'["unavailable"') else ""


def _child(job: Mapping[str, Any], python: str, packages: tuple[str, ...], held: tuple[str, ...], seconds: float,
           size: int) -> tuple[list[bytes], End]:
    native, withheld = "landlock" in held or "seccomp" in held, ()
    if "seccomp" not in held:   # a package's own machine code gets around the hook
        packages, withheld = (), packages
    key = (python, packages, native)
    server = _server(*key)
    deadline = time.monotonic() + seconds
    try:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(server.line, [b"j"], [theirs.fileno()])
            data, why = _talk(ours, json.dumps({**job, "protections": held, "withheld": withheld}).encode(), size, deadline)
            server.line.sendall(b"w" if why == "itself" else b"k")
        server.line.settimeout(START_SECONDS)
        code, spent = struct.unpack("=id", server.line.recv(12, socket.MSG_WAITALL))
    except (OSError, struct.error) as error:
        _stop(server)
        raise InfraError(f"the process that starts submissions died: {error}") from None
    _idle.setdefault(key, []).append(server)
    lines = data.split(b"\n")
    if lines[0] != b'["ready"]' and not lines[0].startswith(b'["unavailable"'):
        raise InfraError(f"{python} did not come to run the submission (exit status {code}): the machine is overloaded")
    return lines, End(why, code, spent)


def _talk(line: socket.socket, job: bytes, size: int, deadline: float) -> tuple[bytes, str]:
    """(what the child wrote, why that ended)."""
    data = bytearray()
    try:
        line.settimeout(max(deadline - time.monotonic(), 0.001))
        line.sendall(job)
        line.shutdown(socket.SHUT_WR)
        while True:
            line.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = line.recv(65536)
            data += chunk
            if not chunk or len(data) > size:
                return bytes(data), "flood" if chunk else "itself"
    except TimeoutError:
        return bytes(data), "late"
    except OSError:   # it died before it had read all of its job
        return bytes(data), "itself"


def _server(python: str, packages: tuple[str, ...], native: bool) -> _Server:
    """An idle one, or a new one."""
    idle = _idle.setdefault((python, packages, native), [])
    while idle:
        try:
            server = idle.pop()
        except IndexError:   # another thread took it
            break
        if server.owner == os.getpid() and server.process.poll() is None:
            return server
    _at_exit()
    ours, theirs = socket.socketpair()
    # `site` finds the packages, but costs as much as all the rest.
    command = [*_without_network(), python, "-s", "-P", "-B", *(() if packages else ("-S",)), str(WORKER),
               json.dumps({"packages": packages, "native": native})]
    try:
        process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                                   env=ENVIRONMENT, start_new_session=True)
    except OSError as error:
        ours.close()
        raise InfraError(f"cannot start {python}: {error}") from None
    finally:
        theirs.close()
    server = _Server(process, ours, os.getpid())
    try:
        ours.settimeout(START_SECONDS)
        if ours.recv(7, socket.MSG_WAITALL) == b"serving":
            return server
    except OSError:
        pass
    code = _stop(server)
    raise InfraError(f"{python} did not come to run the submission (exit status {code}): the machine is overloaded, or "
                     "this is no Python 3.11 or newer")


def _stop(server: _Server) -> int:
    """Ends a server; its exit status. A child of its own ends with it, since nobody reads what it writes."""
    server.line.close()
    try:
        server.process.wait(0.2)
    except subprocess.TimeoutExpired:
        server.process.kill()
    return server.process.wait()


@functools.cache
def _at_exit() -> None:
    atexit.register(_stop_all)


def _stop_all() -> None:
    mine = [server for servers in _idle.values() for server in servers if server.owner == os.getpid()]
    _idle.clear()
    for server in mine:
        server.line.close()
    for server in mine:
        _stop(server)


@functools.cache
def _without_network() -> tuple[str, ...]:
    """The command that starts another one without a network; () where this machine does not let us."""
    for prefix in (("unshare", "-n", "--"), ("unshare", "-U", "-n", "--")):
        try:
            if subprocess.run([*prefix, "true"], capture_output=True, timeout=10).returncode == 0:
                return prefix
        except (OSError, subprocess.TimeoutExpired):
            pass
    return ()
