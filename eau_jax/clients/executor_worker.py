"""The child process of `executor.py`: runs calls against submitted Python and reports each result as a line of text.

It is started alone (`python -S -s -P -B executor_worker.py`), reads one JSON object from standard input

    {"code", "calls", "upstream", "call_seconds", "cpu_seconds", "memory", "output"}

locks itself in (resource limits; as root, the folder of the standard library as its whole file system and an unprivileged user; an
audit hook that ends the process at whatever it does not know to be harmless, so that no frame of the hook is ever seen) and writes JSON lines to what was its standard output: "ready", then for each call
[outcome, value or message]. A value is text that is equal for two values just when they are equal in Python. Nothing
in here knows the reference solution: the parent compares.
"""

import json
import os
import resource
import signal
import sys

NOBODY = 65534
# Whatever CPython audits and is not named here is refused.
HARMLESS = frozenset((
    "import", "open", "os.listdir", "os.scandir", "compile", "exec", "marshal.loads", "marshal.load", "builtins.id",
    "sys._getframe", "sys._getframemodulename", "object.__getattr__", "object.__setattr__", "object.__delattr__",
    "array.__new__", "pickle.find_class", "time.sleep", "builtins.input", "builtins.input/result", "re.compile",
    "sys.unraisablehook", "sys.excepthook", "sys.set_int_max_str_digits", "cpython.run_stdin"))
UNSAFE = frozenset(("ctypes", "_ctypes", "_posixsubprocess", "_posixshmem", "_xxsubinterpreters", "_interpreters",
                    "_testcapi", "_testinternalcapi", "faulthandler", "readline"))
# Not audited by CPython, and of no use to a submission.
REMOVED = ("chroot", "mkfifo", "mknod", "setpriority", "nice", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sync",
           "killpg", "setuid", "seteuid", "setreuid", "setresuid", "setgid", "setegid", "setgroups")
# Loaded before the file system goes away, because they may need libraries outside the standard library's folder.
EXTENSIONS = ("math", "cmath", "_datetime", "_random", "_decimal", "_hashlib", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "zlib",
              "_bz2", "_lzma", "unicodedata", "array", "_struct", "_bisect", "_heapq", "_json", "_csv", "_pickle", "_statistics",
              "_zoneinfo", "_asyncio", "_socket", "select", "_queue", "_contextvars", "_uuid", "binascii", "_elementtree", "pyexpat")
BANNED = ("import os", "from os", "import sys", "from sys", "exit", "quit", "sudo", "transformers", "argparse")  # upstream's
VALUE_LIMIT = 100_000   # characters of one result


class TimeLimit(BaseException):
    """One call took too long."""


class OutputLimit(BaseException):
    """Too much was printed."""


class Sink:
    """Swallows what is printed, up to a number of characters."""

    encoding = "utf-8"

    def __init__(self, limit):
        self.left = limit

    def write(self, text):
        self.left -= len(text)
        if self.left < 0:
            raise OutputLimit("printed too much")
        return len(text)

    def flush(self):
        pass

    def isatty(self):
        return False


def guard(folder, forbidden):
    """The audit hook. What it needs lies in its closure, and `forbidden` does not return, so that submitted code cannot
    reach it by a name or through a frame. Only plain strings are looked at: a subclass could run code in here."""
    text, kind = str, type
    harmless, unsafe = HARMLESS, UNSAFE

    def below(path):
        return kind(path) is text and ".." not in path and (path + "/").startswith(folder)

    def hook(event, arguments):
        known = event in harmless
        if known and event == "open":
            path, mode, flags = arguments
            source = below(path) and path.endswith((".py", ".pyc"))
            nowhere = kind(path) is text and path[:1] == "<" and "/" not in path   # CPython looks for an error's source
            known = (source or nowhere) and (mode is None or mode in ("r", "rb")) and flags & 3 == 0
        elif known and (event == "os.listdir" or event == "os.scandir"):
            known = below(arguments[0])
        elif known and event == "import":
            known = kind(arguments[0]) is text and arguments[0] not in unsafe
        if not known:
            forbidden(event)
    return hook


def lock_in(job):
    """Limits that hold until the process ends; the folder of the standard library as it is seen then. A limit that the
    machine does not know is left out."""
    for name, value, hard in (("RLIMIT_CORE", 0, 0), ("RLIMIT_FSIZE", 0, 0), ("RLIMIT_NOFILE", 32, 32),
                              ("RLIMIT_AS", job["memory"], job["memory"]),
                              ("RLIMIT_CPU", job["cpu_seconds"], job["cpu_seconds"] + 1)):
        try:
            resource.setrlimit(getattr(resource, name), (value, hard))
        except (AttributeError, ValueError, OSError):
            pass
    folder = os.path.dirname(os.__file__)
    if os.geteuid() == 0:
        for name in EXTENSIONS:
            try:
                __import__(name)
            except ImportError:
                pass
        try:
            os.chroot(os.path.dirname(folder))
            os.chdir("/")
            folder = "/" + os.path.basename(folder)
            sys.path[:] = [folder, folder + "/lib-dynload"]
            sys.path_importer_cache.clear()
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        except OSError:
            pass   # a container may not let root do this
    if os.geteuid() != 0:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    for module in (os, sys.modules["posix"]):
        for name in REMOVED:
            if hasattr(module, name):
                delattr(module, name)
    return folder + "/"


def equal_text(value):
    """Text that is the same for equal values: 1, 1.0 and True are, a list and a tuple are not."""
    if value is None or value is Ellipsis:
        return str(value)
    if isinstance(value, (bool, int)):
        return hex(int(value))
    if isinstance(value, float):
        return hex(int(value)) if value.is_integer() else repr(float(value))
    if isinstance(value, str):
        return json.dumps(str(value))
    if isinstance(value, list):
        return "[" + ",".join([equal_text(item) for item in value]) + "]"
    if isinstance(value, tuple):
        return "(" + ",".join([equal_text(item) for item in value]) + ")"
    if isinstance(value, (set, frozenset)):
        return "{" + ",".join(sorted([equal_text(item) for item in value])) + "}"
    if isinstance(value, dict):
        return "{" + ",".join(sorted([equal_text(key) + ":" + equal_text(item) for key, item in value.items()])) + "}"
    if isinstance(value, (bytes, bytearray)):
        return "b" + repr(bytes(value))
    kind, text = type(value), repr(value)
    if " at 0x" in text:
        raise TypeError(f"a {kind.__qualname__} cannot be compared")
    return "<" + kind.__module__ + "." + kind.__qualname__ + " " + text + ">"


def run_call(program, call, upstream):
    """The value of one call in a fresh namespace.

    With `upstream` definitions land in a separate local namespace, as when code is executed inside a function: what is
    defined or imported at the top level is then not found from inside a function.
    """
    names = {"__name__": "submission", "__builtins__": __builtins__}
    local = {} if upstream else names
    exec(program, names, local)
    return eval(call, names, local)


def outcome_of(error):
    if isinstance(error, TimeLimit):
        return "TIMEOUT"
    if isinstance(error, OutputLimit):
        return "OUTPUT"
    if isinstance(error, MemoryError):
        return "MEMORY"
    if isinstance(error, RecursionError):
        return "RECURSION"
    return "RAISED"


def main():
    job = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    folder, reserve, write, leave = lock_in(job), [bytearray(1 << 20)], os.write, os._exit

    def report(*line):
        data = (json.dumps(line) + "\n").encode("ascii")
        while data:
            data = data[write(channel, data):]

    def too_long(number, frame):
        raise TimeLimit(f"a call took more than {job['call_seconds']:g} s of processor time")

    signal.signal(signal.SIGPROF, too_long)
    sys.stdout = sys.stderr = sink = Sink(job["output"])
    timer, banned = signal.setitimer, any(word in job["code"] for word in BANNED) and job["upstream"]
    def forbidden(event):
        report("FORBIDDEN", f"{event} is not allowed")
        leave(0)

    report("ready")
    sys.addaudithook(guard(folder, forbidden))
    try:
        program = compile(job["code"], "<submission>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return report("SYNTAX", str(error)[:200])
    except (RecursionError, MemoryError) as error:
        return report("SYNTAX", f"too deeply nested: {error}"[:200])
    for call in job["calls"]:
        try:
            timer(signal.ITIMER_PROF, job["call_seconds"])
            try:
                if banned:
                    raise PermissionError("a word that upstream does not allow")
                value = run_call(program, call, job["upstream"])
                line = ("OK", equal_text(value))
            finally:
                timer(signal.ITIMER_PROF, 0)
            if len(line[1]) > VALUE_LIMIT:
                line = ("OUTPUT", "the value is too long")
        except BaseException as error:  # whatever submitted code raises, SystemExit included, is its own
            reserve.clear()
            try:
                line = (outcome_of(error), f"{type(error).__name__}: {error}"[:200])
            except BaseException:
                line = (outcome_of(error), "")
        if banned:
            line = ("FORBIDDEN", line[1])
        report(*line)
        sink.left = job["output"]
    os._exit(0)   # threads that are left over do not matter


if __name__ == "__main__":
    main()
