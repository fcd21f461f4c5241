"""The audit hook of a submission's process: it ends the process at whatever it does not know to be harmless.

It makes honest outcomes, and stops what is written in plain Python. CPython has faults by which code gets around any hook,
so where the machine offers them the kernel's protections (`executor_lock.py`) are the wall.
"""

import os

# Whatever CPython audits and is not named here is refused.
HARMLESS = frozenset((
    "import", "open", "os.listdir", "os.scandir", "compile", "exec", "marshal.loads", "marshal.load", "builtins.id",
    "sys._getframe", "sys._getframemodulename", "object.__getattr__", "object.__setattr__", "object.__delattr__",
    "array.__new__", "pickle.find_class", "time.sleep", "builtins.input", "builtins.input/result", "re.compile",
    "sys.unraisablehook", "sys.excepthook", "sys.set_int_max_str_digits", "cpython.run_stdin", "os.putenv", "os.unsetenv",
    "sys.set_asyncgen_hook_firstiter", "sys.set_asyncgen_hook_finalizer", "sys.set_asyncgen_hooks_firstiter",
    "sys.set_asyncgen_hooks_finalizer", "signal.pthread_kill", "socket.__new__", "os.kill"))
THREAD_EVENTS = ("_thread.start_new_thread", "_thread.start_joinable_thread")
UNSAFE = frozenset(("ctypes", "_ctypes", "_posixsubprocess", "_posixshmem", "_xxsubinterpreters", "_interpreters",
                    "_testcapi", "_testinternalcapi", "faulthandler", "readline"))


def guard(sources, data, withheld, threads, report, leave):
    """The hook. What it needs lies in its closure. Only plain strings are looked at: a subclass could run code in here.

    Args:
      sources, data: folders in which Python files, and any files, may be read.
      withheld: names of modules that may not be imported, besides UNSAFE.
      threads: whether threads may be started.
      report, leave: called with (outcome, message), and then with an exit status, at what is refused.
    """
    text, number, kind, me, unix = str, int, type, os.getpid(), 1   # 1 is AF_UNIX
    harmless = HARMLESS.union(THREAD_EVENTS if threads else ())
    unsafe = UNSAFE.union(withheld)
    sources, data = tuple(folder + "/" for folder in sources), tuple(folder + "/" for folder in data)

    def readable(path, mode, flags):
        if kind(path) is not text or ".." in path or mode not in (None, "r", "rb") or flags & 3:
            return False
        unread = path[:1] == "<" and "/" not in path   # where CPython looks for an error's source
        return unread or path.startswith(data) or (path.startswith(sources) and path.endswith((".py", ".pyc")))

    def hook(event, arguments):
        known, what = event in harmless, arguments[0] if arguments else None
        if known and event == "open":
            known = readable(*arguments)
        elif known and event in ("os.listdir", "os.scandir"):
            known = kind(what) is text and ".." not in what and (what + "/").startswith(sources + data)
        elif known and event == "import":
            known = kind(what) is text and what.partition(".")[0] not in unsafe
        elif known and event == "socket.__new__":   # an event loop's pair; it can be neither bound nor connected
            known = kind(arguments[1]) is number and arguments[1] == unix
        elif known and event == "os.kill":
            known = kind(what) is number and what == me
        if not known:
            report("FORBIDDEN", f"{event} {what} is not allowed" if kind(what) is text else f"{event} is not allowed")
            leave(0)
            1 / 0   # refused even where code has got at the two functions above
    return hook
