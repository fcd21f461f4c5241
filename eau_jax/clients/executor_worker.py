"""The process side of `executor_process.py`: a fork server, and the calls of one submission in each of its children.

It is started alone (`python -S -s -P -B executor_worker.py OPTIONS`). Standard input is a socket; each message on it
brings another socket, for which a child is forked that reads one JSON object from there

    {"whole", "blocks", "calls", "upstream", "call_seconds", "cpu_seconds", "memory", "output",
     "protections", "withheld"}

locks itself in (`executor_lock.py`) and writes JSON lines: "ready", then for each call [outcome, value or message]. The
server never sees what passes there, so that no child finds traces of another. Nothing in here knows the reference
solution: the parent compares.
"""

import functools
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time

# Loaded before anything is locked: submissions use them, and their libraries lie outside the standard library's folder.
PRELOADED = (
    "math", "cmath", "decimal", "fractions", "random", "statistics", "datetime", "calendar", "zoneinfo", "time", "re",
    "string", "textwrap", "json", "csv", "io", "collections", "heapq", "bisect", "array", "itertools", "functools",
    "operator", "copy", "enum", "dataclasses", "typing", "abc", "hashlib", "hmac", "secrets", "uuid", "struct",
    "zlib", "bz2", "lzma", "unicodedata", "threading", "queue", "contextlib", "asyncio", "concurrent.futures.thread",
    "pprint", "pickle", "difflib", "numbers", "types", "xml.etree.ElementTree", "encodings.idna", "_strptime")
BANNED = ("import os", "from os", "import sys", "from sys", "exit", "quit", "sudo", "transformers", "argparse")  # upstream's
PATIENCE = 0.5   # seconds that a child gets to end by itself once it has closed its socket


class TimeLimit(BaseException):
    """One call took too long."""


class OutputLimit(BaseException):
    """Too much was printed."""


class Sink:
    """Swallows what is printed, up to a number of characters."""

    encoding = "utf-8"

    def __init__(self, limit):
        self.limit = self.left = limit

    def write(self, text):
        self.left -= len(text)
        if self.left < 0:
            raise OutputLimit("printed too much")
        return len(text)

    def flush(self):
        pass

    def isatty(self):
        return False


def preload(packages, native):
    """Imports PRELOADED and `packages`; (folders of Python files, folders of data) that submissions may read.

    `native` loads ctypes, which no submission and no package may see.
    """
    try:
        import _posixsubprocess   # which asyncio wants to have; starting a program is an audit event that nobody knows
        _posixsubprocess.fork_exec = functools.partial(sys.audit, "_posixsubprocess.fork_exec")
    except ImportError:
        pass
    sys.modules["ctypes"], paths = None, []
    for name in PRELOADED + packages:
        try:
            module = importlib.import_module(name)
            paths += getattr(module, "__path__", ()) if name in packages else ()
        except ImportError:
            pass
    del sys.modules["ctypes"]
    if native:
        try:
            import ctypes  # noqa: F401
        except ImportError:
            pass
    library = os.path.dirname(os.__file__)
    sys.path[:] = [library, library + "/lib-dynload"]
    return (library, *paths), tuple(getattr(sys.modules.get("zoneinfo"), "TZPATH", ()))


def serve(packages, native):
    """Forks a child for each socket that arrives, and tells how it ended: (exit code, seconds of processor time)."""
    from executor_hook import guard
    from executor_lock import lock_in
    from executor_value import short_text

    folders = preload(packages, native)
    line = socket.socket(fileno=0)
    line.sendall(b"serving")
    while True:
        message, sockets, _, _ = socket.recv_fds(line, 1, 1)
        if not message:
            os._exit(0)
        child = os.fork()
        if child == 0:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDWR), line.detach())
            return run(sockets[0], folders, lock_in, guard, short_text)
        os.close(sockets[0])
        patient = line.recv(1) == b"w"   # anything else, the parent's end included: it is late
        line.sendall(struct.pack("=id", *end(child, PATIENCE if patient else 0.0)))


def end(child, patience):
    """Waits, then kills the child and everything it started; (exit code, processor time)."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.001)
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    if patience == 0.0 or not done:
        _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def run(channel, folders, lock_in, guard, short_text):
    """The child: everything about one submission."""
    data = bytearray()
    while chunk := os.read(channel, 65536):
        data += chunk
    job = json.loads(bytes(data))
    sources, zones = folders
    reserve, protections = [bytearray(1 << 20)], job["protections"]
    leave, report, state = os._exit, reporter(channel), {"running": False, "late": False}

    def too_long(number, frame):
        if state["running"]:
            state["late"] = True
            raise TimeLimit

    try:
        library = lock_in(job, protections, (*sources, *zones))
    except OSError as error:
        report("unavailable", str(error))
        leave(0)
    signal.signal(signal.SIGPROF, too_long)
    signal.signal(signal.SIGINT, signal.default_int_handler)   # however this process was started
    sys.stdout = sys.stderr = sink = Sink(job["output"])
    report("ready")
    # The hook is kept nowhere else, and what it calls is its own, so that submitted code finds neither in a frame.
    sys.addaudithook(guard((library, *sources[1:]), zones, [name.partition(".")[0] for name in job["withheld"]],
                           "seccomp" in protections, reporter(channel), os._exit))
    compiled = program(job["whole"], job["blocks"])
    if isinstance(compiled, str):
        report("SYNTAX", compiled)
        leave(0)
    banned = job["upstream"] and any(word in job["whole"] for word in BANNED)
    for call in job["calls"]:
        line = ("FORBIDDEN", "a word that upstream does not allow") if banned else one_call(
            compiled, call, job, state, sink, reserve, short_text)
        report(*line)
    leave(0)   # threads that are left over do not matter


def reporter(channel):
    """A function that writes its arguments as one JSON line."""
    write, dumps = os.write, json.dumps

    def report(*line):
        data = (dumps(line) + "\n").encode("ascii")
        while data:
            data = data[write(channel, data):]
    return report


def program(whole, blocks):
    """The compiled program, or why there is none.

    The whole text where it is Python; else the fenced blocks that are, one after the other, as in a notebook; else the
    last of these that stands alone.
    """
    def compiled(text):
        try:
            return compile(text, "<submission>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return str(error)[:200]
        except (RecursionError, MemoryError) as error:
            return f"too deeply nested: {error}"[:200]

    first = compiled(whole)
    if not isinstance(first, str) or not blocks:
        return first
    good = [block for block in blocks if not isinstance(compiled(block), str)]
    tried = [compiled(text) for text in ("\n".join(good or blocks), *reversed(good))]
    return next((code for code in tried if not isinstance(code, str)), tried[0])


def one_call(compiled, call, job, state, sink, reserve, short_text, timer=signal.setitimer, which=signal.ITIMER_PROF):
    """(outcome, value or message) of one call in a fresh namespace, whatever it does.

    Upstream executes inside a function: what is defined or imported at the top level is then not found from inside another.
    """
    state["late"], state["running"], sink.left = False, True, sink.limit
    names = {"__name__": "submission", "__builtins__": __builtins__}
    local = {} if job["upstream"] else names
    try:
        timer(which, job["call_seconds"])
        try:
            exec(compiled, names, local)
            line = ("OK", short_text(eval(call, names, local)))
        finally:
            state["running"] = False
            timer(which, 0)
    except BaseException as error:  # whatever submitted code raises is its own
        reserve.clear()
        try:
            line = (outcome_of(error), f"{type(error).__name__}: {error}"[:200])
        except BaseException:
            line = (outcome_of(error), "")
    if state["late"]:
        return "TIMEOUT", f"a call took more than {job['call_seconds']:g} s of processor time"
    return ("OUTPUT", "printed too much") if sink.left < 0 else line


def outcome_of(error):
    for kind, name in ((TimeLimit, "TIMEOUT"), (OutputLimit, "OUTPUT"), (MemoryError, "MEMORY"),
                       (RecursionError, "RECURSION"), (SystemExit, "CRASHED")):
        if isinstance(error, kind):
            return name
    refused = isinstance(error, PermissionError) and error.errno   # by the kernel, which gives a number
    return "FORBIDDEN" if refused else "RAISED"


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    serve(tuple(options["packages"]), options["native"])
