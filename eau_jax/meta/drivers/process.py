"""Runs a program that is not trusted: confined as far as the machine allows, watched, and ended with all that it started."""

import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import time
import warnings
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

CONFINE = Path(__file__).with_name("confine.py")
NOBODY = 65534
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/proc", "/sys/fs/cgroup", *(f"/etc/{name}" for name in (
    "ssl", "ca-certificates", "pki", "resolv.conf", "hosts", "host.conf", "nsswitch.conf", "gai.conf", "passwd", "group",
    "services", "protocols", "localtime", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")))
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "random", "urandom", "tty", "shm"))
LINGER_S = 1.0     # for output that is still in the pipe when a program has ended


class Job(NamedTuple):
    """What is run, and what it may use."""

    command: Sequence[str]
    environment: Mapping[str, str]       # all of it: nothing is inherited
    folder: Path                         # where it is run
    read: Sequence[Path]                 # beside the system's and this Python's own folders
    write: Sequence[Path]
    ports: Sequence[int] | None          # of TCP servers that it may reach; None: any
    seconds: float                       # in all
    idle_seconds: float                  # without a byte of output
    output: int                          # bytes of output in all


class End(NamedTuple):
    """How a program ended."""

    why: str           # "itself" | "late" | "idle" | "flood" | "stopped" (by `watch`) | "unstarted"
    code: int          # exit status, or minus the signal
    lines: tuple[str, ...]   # of standard output, whole ones
    errors: str        # standard error
    seconds: float
    problem: str = ""  # for "stopped" and "unstarted"


def run(job: Job, watch: Callable[[str], str] = lambda line: "") -> End:
    """Runs a program to its end. Whatever it started is ended with it.

    Args:
      watch: called with each line of standard output; what it returns, if anything, is the reason to stop.
    """
    held, start = protections(), time.monotonic()
    confined = {"read": [*map(str, job.read), *SYSTEM, *_python()],
                "write": [*map(str, job.write), *DEVICES],
                "user": [NOBODY, NOBODY] if "user" in held else None, "ports": job.ports, "landlock": "landlock" in held}
    if "user" in held:
        for folder in job.write:
            _give(folder)
    prefix = _namespace() if "processes" in held else ()
    command = [*prefix, sys.executable, "-I", "-S", "-B", str(CONFINE), json.dumps(confined), *job.command]
    try:
        process = subprocess.Popen(command, cwd=job.folder, env=dict(job.environment), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        return End("unstarted", -1, (), "", 0.0, f"{job.command[0]} cannot be started: {error}")
    try:
        why, problem, out, errors = _follow(process, job, watch, start)
    finally:
        _end(process)
    code = process.wait()
    if code == 126 and errors.startswith(b"confine: "):
        why, problem = "unstarted", errors.decode("utf-8", "replace").strip()
    lines = tuple(line for line in out.decode("utf-8", "replace").split("\n") if line)
    return End(why, code, lines, errors.decode("utf-8", "replace"), time.monotonic() - start, problem)


def _follow(process: subprocess.Popen, job: Job, watch: Callable[[str], str],
            start: float) -> tuple[str, str, bytes, bytes]:
    """(why it ended, the reason to stop, standard output, standard error)."""
    kept = {process.stdout: bytearray(), process.stderr: bytearray()}
    heard, seen, ended = time.monotonic(), 0, None
    with selectors.DefaultSelector() as both:
        for pipe in kept:
            both.register(pipe, selectors.EVENT_READ)
        while both.get_map():
            now = time.monotonic()
            ended = ended or (now if process.poll() is not None else None)
            if ended and now > ended + LINGER_S:      # something that it started holds the pipe
                break
            if now > start + job.seconds or now > heard + job.idle_seconds:
                return "late" if now > start + job.seconds else "idle", "", *map(bytes, kept.values())
            for key, _ in both.select(0.1):
                data = os.read(key.fd, 65536)
                if not data:
                    both.unregister(key.fileobj)
                    continue
                heard = now
                kept[key.fileobj] += data
            if sum(map(len, kept.values())) > job.output:
                return "flood", "", *map(bytes, kept.values())
            *whole, _ = bytes(kept[process.stdout][seen:]).split(b"\n")
            for line in whole:
                seen += len(line) + 1
                reason = watch(line.decode("utf-8", "replace"))
                if reason:
                    return "stopped", reason, *map(bytes, kept.values())
        while process.poll() is None:     # it has closed its output
            if time.monotonic() > start + job.seconds:
                return "late", "", *map(bytes, kept.values())
            time.sleep(0.02)
    return "itself", "", *map(bytes, kept.values())


def _end(process: subprocess.Popen) -> None:
    """Ends the process group, and with it the namespace, where there is one."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):   # macOS: of a group that has ended
        pass
    for pipe in (process.stdout, process.stderr):
        pipe.close()


@functools.cache
def protections() -> tuple[str, ...]:
    """What holds a program here, each tried once: "landlock", "user", "processes"; without the first there is a warning."""
    held = []
    for name, user, landlock in (("landlock", None, True), ("user", [NOBODY, NOBODY], "landlock" in held)):
        landlock = landlock or "landlock" in held
        job = {"read": ["/", *_python()], "write": [], "user": user, "ports": None, "landlock": landlock}
        if (name != "user" or os.geteuid() == 0) and _works([sys.executable, "-I", "-S", "-B", str(CONFINE), json.dumps(job),
                                                             sys.executable, "-I", "-S", "-c", "pass"]):
            held.append(name)
    held += ["processes"] if _namespace() else []
    if "landlock" not in held:
        warnings.warn("a coding agent can read whatever this user can: Landlock (Linux 5.13 or newer) is not available. Run "
                      "the training in a container that holds nothing of value", RuntimeWarning, stacklevel=2)
    return tuple(held)


@functools.cache
def _namespace() -> tuple[str, ...]:
    """The command that starts another one among processes of its own, which end with it; () where this machine has none."""
    for rights in ((), ("--user", "--map-current-user")):
        prefix = ("unshare", *rights, "--pid", "--fork", "--kill-child", "--mount-proc", "--")
        if _works([*prefix, sys.executable, "-I", "-S", "-c", "pass"]):
            return prefix
    return ()


def _works(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, stdin=subprocess.DEVNULL).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _python() -> list[str]:
    """Folders of this Python and its packages."""
    paths = sysconfig.get_paths()
    return sorted({os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, paths["stdlib"], paths["purelib"],
                                                       paths["platlib"])} | {sys.prefix, sys.base_prefix})


def _give(folder: Path) -> None:
    """The folder and what is in it belong to the other user from here on."""
    for base, folders, files in os.walk(folder):
        for path in (base, *(os.path.join(base, name) for name in [*folders, *files])):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
