"""The executor: every way to misbehave has its outcome within the limits and leaves the host as it was."""

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from eau_jax.clients import executor_process as process
from eau_jax.clients.executor import Executor, Limits, Outcome, _ending, _run_once, source
from eau_jax.core.types import InfraError

QUICK = Executor(Limits(call_seconds=0.2, cpu_seconds=1, wall_seconds=2.0))
DOUBLE = "def f(x):\n    return x * 2\n"
CALLS = tuple(f"f({k})" for k in range(4))


def judge(code, reference=DOUBLE, calls=CALLS, executor=QUICK):
    return executor.judge(code, reference, calls)


def pythons():
    """This interpreter, and those of 3.11 to 3.13 that are installed."""
    found = [sys.executable]
    roots = [Path.home() / ".pyenv" / "versions"]
    for version in ("3.11", "3.12", "3.13"):
        candidates = [shutil.which(f"python{version}"), *(str(p) for root in roots if root.is_dir()
                                                           for p in sorted(root.glob(f"{version}.*/bin/python3")))]
        for path in candidates:
            if path and "shims" not in path and f"{sys.version_info.major}.{sys.version_info.minor}" != version:
                found.append(path)
    return found


HOSTILE = {
    "endless loop": ("def f(x):\n    while True: pass", Outcome.TIMEOUT),
    "loop that catches everything": ("def f(x):\n    while True:\n        try:\n            while True: pass\n"
                                     "        except BaseException: pass", Outcome.TIMEOUT),
    "long arithmetic": ("def f(x):\n    return 10 ** 10 ** 9", Outcome.TIMEOUT),
    "sleep": ("import time\ndef f(x):\n    time.sleep(60)", Outcome.TIMEOUT),
    "fork bomb": ("import os\ndef f(x):\n    while True: os.fork()", Outcome.FORBIDDEN),
    "fork bomb by the back door": ("import posix\ndef f(x):\n    while True: getattr(posix, 'fo' + 'rk')()",
                                   Outcome.FORBIDDEN),
    "a subprocess": ("def f(x):\n    import subprocess\n    subprocess.run(['ls'])", Outcome.FORBIDDEN),
    "a shell": ("import os\ndef f(x):\n    os.system('touch {here}/evil')", Outcome.FORBIDDEN),
    "10 GB": ("def f(x):\n    return bytearray(10 * 2**30)", Outcome.MEMORY),
    "10 GB in pieces": ("def f(x):\n    kept = []\n    while True: kept.append(bytes(2**22))", Outcome.MEMORY),
    "file write": ("def f(x):\n    open('{here}/evil', 'w').write('x')\n    return x * 2", Outcome.FORBIDDEN),
    "file write, excused": ("def f(x):\n    try: open('{here}/evil', 'w')\n    except Exception: pass\n    return x * 2",
                            Outcome.FORBIDDEN),
    "file write by descriptor": ("import os\ndef f(x):\n    os.write(os.open('{here}/evil', os.O_CREAT | os.O_RDWR), b'x')",
                                 Outcome.FORBIDDEN),
    "file delete": ("import os\ndef f(x):\n    os.remove('{here}/kept')", Outcome.FORBIDDEN),
    "file read": ("def f(x):\n    return open('{here}/kept').read()", Outcome.FORBIDDEN),
    "socket": ("import socket\ndef f(x):\n    socket.socket()", Outcome.FORBIDDEN),
    "signal to the parent": ("import os\ndef f(x):\n    os.kill(os.getppid(), 9)", Outcome.FORBIDDEN),
    "foreign functions": ("import ctypes\ndef f(x):\n    return x * 2", Outcome.FORBIDDEN),
    "forged byte code": ("def g(): pass\ndef f(x):\n    g.__code__ = g.__code__.replace(co_code=b'd')\n    return x * 2",
                         Outcome.FORBIDDEN),
    "guard unpicked by gc": ("import gc\ndef f(x):\n    return [o for o in gc.get_objects()]", Outcome.FORBIDDEN),
    "deep recursion": ("def f(x):\n    return f(x + 1)", Outcome.RECURSION),
    "os._exit": ("import os\ndef f(x):\n    os._exit(0)", Outcome.CRASHED),
    "abort": ("import os\ndef f(x):\n    os.abort()", Outcome.CRASHED),
    "sys.exit": ("import sys\nsys.exit(0)", Outcome.CRASHED),
    "sys.exit in a call": ("import sys\ndef f(x):\n    sys.exit(x * 2)", Outcome.CRASHED),
    "exit by name": ("def f(x):\n    raise SystemExit", Outcome.CRASHED),
    "kill itself": ("import os, signal\ndef f(x):\n    os.kill(os.getpid(), signal.SIGKILL)", Outcome.CRASHED),
    "terminate itself": ("import os\ndef f(x):\n    os.kill(os.getpid(), 15)", Outcome.CRASHED),
    "raise SIGKILL": ("import signal\ndef f(x):\n    signal.raise_signal(9)", Outcome.CRASHED),
    "raise SIGXCPU": ("import signal\ndef f(x):\n    signal.raise_signal(signal.SIGXCPU)", Outcome.TIMEOUT),
    "signal a thread": ("import signal, threading\ndef f(x):\n    signal.pthread_kill(threading.get_ident(), 9)",
                        Outcome.CRASHED),
    "stop itself": ("import signal\ndef f(x):\n    signal.raise_signal(signal.SIGSTOP)", Outcome.TIMEOUT),
    "kill its group": ("import os\ndef f(x):\n    os.kill(0, 9)", Outcome.FORBIDDEN),
    "kill everybody": ("import os\ndef f(x):\n    os.kill(-1, 9)", Outcome.FORBIDDEN),
    "read memory that is not its own": ("import numpy as np\ndef f(x):\n    a = np.lib.stride_tricks.as_strided("
                                        "np.zeros(1), (10**12,))\n    return float(a[10**11])", Outcome.CRASHED),
    "KeyboardInterrupt": ("def f(x):\n    raise KeyboardInterrupt", Outcome.RAISED),
    "interrupt itself": ("import signal\ndef f(x):\n    signal.raise_signal(signal.SIGINT)", Outcome.RAISED),
    "GeneratorExit": ("def f(x):\n    raise GeneratorExit", Outcome.RAISED),
    "MemoryError": ("def f(x):\n    raise MemoryError", Outcome.MEMORY),
    "RecursionError": ("def f(x):\n    raise RecursionError", Outcome.RECURSION),
    "RecursionError in repr": ("class A:\n    def __repr__(self): return repr(self)\ndef f(x):\n    return A()",
                               Outcome.RECURSION),
    "an exception that cannot be shown": ("class E(Exception):\n    def __str__(self): raise self\ndef f(x):\n    raise E",
                                          Outcome.RAISED),
    "time-out caught": ("def f(x):\n    try:\n        while True: pass\n    except BaseException: return x * 2",
                        Outcome.TIMEOUT),
    "flood caught": ("def f(x):\n    try:\n        while True: print('x' * 1000)\n    except BaseException: return x * 2",
                     Outcome.OUTPUT),
    "thread bomb": ("import threading, time\ndef f(x):\n    while True:\n"
                    "        threading.Thread(target=time.sleep, args=(9,)).start()", Outcome.RAISED),
    "threads that compute": ("import threading\ndef g():\n    while True: pass\ndef f(x):\n"
                             "    t = threading.Thread(target=g)\n    t.start()\n    t.join()", Outcome.TIMEOUT),
    "processes of multiprocessing": ("import multiprocessing\ndef f(x):\n    p = multiprocessing.Process(target=print)\n"
                                     "    p.start()", Outcome.FORBIDDEN),
    "a pool of processes": ("from concurrent.futures import ProcessPoolExecutor\ndef f(x):\n"
                            "    with ProcessPoolExecutor(2) as pool: return list(pool.map(abs, [x]))[0] * 2",
                            Outcome.FORBIDDEN),
    "a web page": ("import urllib.request\ndef f(x):\n    urllib.request.urlopen('http://127.0.0.1')", Outcome.FORBIDDEN),
    "a program of asyncio": ("import asyncio\nasync def g():\n    await asyncio.create_subprocess_shell('ls')\ndef f(x):\n"
                             "    asyncio.run(g())", Outcome.FORBIDDEN),
    "fork_exec": ("import subprocess\ndef f(x):\n    subprocess._fork_exec()", Outcome.FORBIDDEN),
    "output flood": ("def f(x):\n    while True: print('x' * 1000)", Outcome.OUTPUT),
    "huge result": ("def f(x):\n    return 'x' * 10**6", Outcome.WRONG),
    "flood of every descriptor": ("import os\ndef f(x):\n    while True:\n        for fd in range(3, 16):\n"
                                  "            try: os.write(fd, b'x' * 65536)\n            except OSError: pass",
                                  Outcome.OUTPUT),
    "forged result": ("import os\ndef f(x):\n    for fd in range(3, 16):\n"
                      "        try: os.write(fd, b'[\"OK\", ' + b'[' * 50000 + b'\\n')\n        except OSError: pass",
                      Outcome.CRASHED),
    "deeply nested source": ("f" + "(" * 50_000, Outcome.SYNTAX),
    "not Python": ("def f(x) return x", Outcome.SYNTAX),
    "nothing": ("", Outcome.RAISED),
    "lone surrogate": ("def f(x):\n    return '\ud800'", Outcome.WRONG),
    "null byte": ("def f(x):\n    return '\0'", Outcome.SYNTAX),
    "equal to everything": ("class All:\n    def __eq__(self, other): return True\ndef f(x):\n    return All()",
                            Outcome.RAISED),
}


DEEP = {
    "Python": "return f(x + 1)", "sorted": "return sorted([x], key=f)", "map": "return list(map(f, [x]))",
    "sub": "return re.sub('a', f, 'a')", "attribute": "return f.__class__.__getattribute__(A(), 'b')",
    "comparison": "return functools.cmp_to_key(f)(x) < functools.cmp_to_key(f)(x)"}


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).parent.parent.name)
def test_recursion_of_any_depth_is_a_recursion_error_each_time(python):
    executor = Executor(python=python)
    for name, body in DEEP.items():
        code = (f"import functools, re, sys\nsys.setrecursionlimit(10**9)\nclass A:\n    b = property(lambda self: f(1))\n"
                f"def f(x{', y=0' if name == 'comparison' else ''}):\n    {body}\n")   # 3.13.0 falls over defaults by itself
        outcomes = {executor.run(code, ("f(1)",))[0].outcome for _ in range(5)}
        assert outcomes == {Outcome.RECURSION}, (name, outcomes)
    deep = "import sys\nsys.setrecursionlimit(9000)\ndef f(x):\n    return x and 1 + f(x - 1)\n"
    assert executor.run(deep, ("f(8000)", "sys.getrecursionlimit()"))[0].text == hex(8000)
    wrong = executor.run("import sys\nsys.setrecursionlimit('9')", ("1",))[0]
    assert wrong.outcome is Outcome.RAISED and "TypeError" in wrong.text


def test_what_may_change_from_run_to_run_is_not_remembered():
    for end, outcome in ((process.End("itself", -signal.SIGXCPU, 0.7), Outcome.TIMEOUT),
                         (process.End("itself", -signal.SIGKILL, 0.7), Outcome.TIMEOUT),
                         (process.End("itself", -signal.SIGKILL, 0.1), Outcome.CRASHED),
                         (process.End("itself", -signal.SIGSEGV, 0.9), Outcome.CRASHED)):
        assert _ending(end, QUICK.limits).outcome is outcome
    for name, kept in (("os._exit", 0), ("deep recursion", 1)):
        before = _run_once.cache_info().currsize
        assert len({judge(HOSTILE[name][0] + "  # not remembered yet", calls=CALLS[:1]).outcome for _ in range(5)}) == 1
        assert _run_once.cache_info().currsize - before - kept in (0, 1)     # 1: the reference, the first time


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_misbehaviour_has_its_outcome_within_the_limit(name, tmp_path):
    code, expected = HOSTILE[name]
    (tmp_path / "kept").write_text("kept")
    os.chmod(tmp_path, 0o777)
    start = time.monotonic()
    verdict = judge(code.replace("{here}", str(tmp_path)), calls=CALLS[:1])
    assert verdict.outcome is expected and verdict.share == 0.0, verdict
    assert time.monotonic() - start < QUICK.limits.wall_seconds + 3
    assert [path.name for path in tmp_path.iterdir()] == ["kept"] and (tmp_path / "kept").read_text() == "kept"


def test_no_process_is_left_behind():
    judge(HOSTILE["sleep"][0])
    judge("import threading, time\nfor _ in range(9): threading.Thread(target=time.sleep, args=(60,)).start()\n" + DOUBLE)
    servers = {server.process.pid for idle in process._idle.values() for server in idle}
    assert servers and not [pid for pid, parent in _parents() if parent in servers]


def _parents():
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass


def test_a_thread_that_exits_ends_itself_alone():
    code = ("import sys, threading\ndef f(x):\n    t = threading.Thread(target=sys.exit)\n    t.start()\n    t.join()\n"
            "    return x * 2")
    assert judge(code).share == 1.0


def test_calls_before_a_crash_count_and_exceptions_are_per_call():
    verdict = judge("import os\ndef f(x):\n    if x == 2: os._exit(1)\n    return x * 2")
    assert [o.name for o in verdict.calls] == ["AGREES", "AGREES", "CRASHED", "CRASHED"] and verdict.share == 0.5
    verdict = judge("def f(x):\n    return 4 if x == 2 else 1 / 0")
    assert [o.name for o in verdict.calls] == ["RAISED", "RAISED", "AGREES", "RAISED"]
    assert verdict.outcome is Outcome.RAISED and "division" in verdict.detail
    assert judge("def f(x):\n    return 2 * x if x else 7").detail == "f(0) gives another value"
    slow = judge("def f(x):\n    while x == 0: pass\n    return x * 2")
    assert [o.name for o in slow.calls] == ["TIMEOUT", "AGREES", "AGREES", "AGREES"]


IMPORTS = "import math\nfrom collections import Counter\ndef f(x):\n    return math.floor(x) + Counter('aab')['a']\n"
HELPER = "def twice(x):\n    return 2 * x\ndef f(x):\n    return twice(x)\n"
RECURSIVE = "def f(x):\n    return 1 if x < 2 else x * f(x - 1)\n"
UPSTREAM = replace(QUICK, upstream_compatible=True)


@pytest.mark.parametrize("python", pythons())
def test_trap_one_and_two_imports_helpers_and_recursion_on_every_python(python):
    """Upstream: NameError for each of them, and on 3.13 no definition is found at all."""
    for code in (IMPORTS, HELPER, RECURSIVE, DOUBLE):
        assert judge(code, code, executor=replace(QUICK, python=python)).share == 1.0
    upstream = replace(UPSTREAM, python=python)
    assert [judge(code, code, executor=upstream).share for code in (IMPORTS, HELPER, DOUBLE)] == [0.0, 0.0, 1.0]
    assert judge(RECURSIVE, RECURSIVE, executor=upstream).share == 0.5      # f(0) and f(1) do not recurse
    assert judge(HOSTILE["socket"][0], executor=replace(QUICK, python=python)).outcome is Outcome.FORBIDDEN


def test_trap_three_upstream():
    assert judge(" " + DOUBLE, executor=UPSTREAM).outcome is Outcome.SYNTAX
    assert judge("\n" + DOUBLE, executor=UPSTREAM).share == 1.0
    assert judge(f"```python\n{DOUBLE}```", executor=UPSTREAM).share == 1.0
    assert source("   ") == ("", ())


def test_trap_four_words_in_comments_and_none():
    comment, nothing = "# no need to import os\n" + DOUBLE, "def f(x):\n    return None if x else 1"
    assert judge(comment).share == 1.0 and judge(comment, executor=UPSTREAM).outcome is Outcome.FORBIDDEN
    assert judge(nothing, nothing).share == 1.0 and judge(nothing, nothing, executor=UPSTREAM).share == 0.25


def test_trap_five_printing_is_allowed_within_bounds():
    code = "def f(x):\n    print('x is', x)\n    return x * 2"
    assert judge(code).share == 1.0 and judge(code, executor=UPSTREAM).share == 1.0


def test_a_reference_that_raises_never_counts():
    raises = "def f(x):\n    raise ValueError"
    assert judge(raises, raises).share == 0.0 and judge(DOUBLE, raises).outcome is Outcome.WRONG


def test_what_cannot_start_is_an_infrastructure_error(tmp_path):
    with pytest.raises(InfraError, match="cannot start|did not come to run"):
        judge(DOUBLE, executor=replace(QUICK, python=str(tmp_path / "none")))
    with pytest.raises(InfraError, match="did not come to run the submission"):
        judge(DOUBLE, executor=replace(QUICK, python=shutil.which("true")))
    with pytest.raises(ValueError, match="no calls"):
        judge(DOUBLE, calls=())
    for wrong in (dict(call_seconds=0), dict(memory=-1), dict(cpu_seconds=1.5), dict(output=True)):
        with pytest.raises(ValueError, match=f"Limits.{next(iter(wrong))}: expected a positive (int|float) up to .*, found"):
            Limits(**wrong)


def test_threads_may_share_it_and_a_submission_never_sees_the_reference():
    with ThreadPoolExecutor(4) as pool:
        shares = list(pool.map(lambda k: judge(f"def f(x):\n    return x * {k}", calls=("f(1)", "f(0)")).share, range(8)))
    assert shares == [1.0 if k == 2 else 0.5 for k in range(8)]
    spy = ("import sys\ndef f(x):\n    frame, seen = sys._getframe(), ''\n    while frame:\n"
           "        seen += repr(frame.f_locals) + repr(frame.f_globals)\n        frame = frame.f_back\n"
           "    assert 'SECR' + 'ET' not in seen\n    return x * 2")
    assert judge(spy, "SECRET = 1\n" + DOUBLE).share == 1.0


def test_a_server_that_dies_is_replaced_and_its_submission_an_infrastructure_error():
    QUICK.run(DOUBLE, CALLS)

    def kill():
        for server in [server for idle in process._idle.values() for server in idle]:
            server.process.kill()
            server.process.wait()
    kill()
    assert len(QUICK.run(DOUBLE, CALLS)) == len(CALLS)
    servers = {server.process.pid for idle in process._idle.values() for server in idle}
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(Executor().run, "import time\ndef f(x):\n    time.sleep(60)", CALLS[:1])
        while servers == (left := {server.process.pid for idle in process._idle.values() for server in idle}):
            time.sleep(0.01)
        time.sleep(0.3)
        children = [pid for pid, parent in _parents() if parent in servers - left]
        assert len(children) == 1 and _alive(children[0])
        os.kill(*servers - left, signal.SIGKILL)
        with pytest.raises(InfraError, match="the process that starts submissions died"):
            slow.result()
    time.sleep(0.1)
    assert "seccomp" not in QUICK.protections or not _alive(children[0])


def test_servers_are_kept_and_end_with_their_process(tmp_path):
    """A child of the process that started them has its own; both sets end with their owners, even killed ones."""
    code = ("import os, signal, sys\nfrom eau_jax.clients import executor_process as process\n"
            "from eau_jax.clients.executor import Executor\n"
            "run = lambda: Executor().run('def f(): return 1', ('f()',))[0].text\n"
            "pids = lambda: {s.process.pid for idle in process._idle.values() for s in idle if s.owner == os.getpid()}\n"
            "run(); first = pids(); run(); assert first == pids() and first\nchild = os.fork()\n"
            "if child == 0:\n    assert not pids() and run() == '0x1'; print(*pids(), flush=True); os._exit(0)\n"
            "assert os.waitpid(child, 0)[1] == 0; assert run() == '0x1' and first == pids()\nprint(*first, flush=True)\n"
            "os.kill(os.getpid(), signal.SIGKILL)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pids = list(map(int, done.stdout.split()))
    assert len(pids) >= 2, done.stderr
    deadline = time.monotonic() + 5
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_alive, pids))


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_submission_starts_fresh():
    """What one leaves in modules or built-ins, another does not find."""
    stain = ("import math, builtins, sys\nmath.pi = 3\nbuiltins.stain = 1\nsys.modules['random'] = None\n"
             "def f(x):\n    return x * 2")
    assert judge(stain).share == 1.0
    code = ("import math, builtins, random\ndef f(x):\n"
            "    return x * 2 if math.pi > 3.1 and not hasattr(builtins, 'stain') else -1")
    assert judge(code).share == 1.0
    assert len({QUICK.run(f"import random\ndef f(x):\n    return random.random()  # {k}", CALLS[:1]) for k in range(3)}) == 3


ESCAPE = """
def f(x):
    try:
        open("/etc/passwd")
    except BaseException as error:
        trace = error.__traceback__
        while trace.tb_next:
            trace = trace.tb_next
        for value in list(trace.tb_frame.f_locals.values()):
            for cell in getattr(value, "__closure__", None) or ():
                if isinstance(cell.cell_contents, str):
                    cell.cell_contents = "/"
    return open("/etc/passwd").read()[:4]
"""
DISGUISED = """
class Name(str):
    def __hash__(self):
        import sys
        found.append(sys._getframe(1))
        return 0
found = []
def f(x):
    __import__(Name("math"))
    return len(found)
"""


TAMPER = """
import sys
def f(x):
    frame, seen = sys._getframe(), []
    while frame:
        seen += list(frame.f_locals.values()) + list(frame.f_globals.values())
        frame = frame.f_back
    for function in seen:
        for cell in getattr(function, "__closure__", None) or ():
            cell.cell_contents = lambda *arguments: None
    return open("/etc/passwd").read()[:4]
"""


@pytest.mark.parametrize("code", [
    ESCAPE, DISGUISED, TAMPER, "import readline\ndef f(x):\n    readline.read_history_file('/etc/passwd')\n    return 1",
    "import os\ndef f(x):\n    os.mkfifo('/tmp/eau-fifo')\n    return 1",
    "import os\ndef f(x):\n    return os.environ['OPENAI_API_KEY']",
    "import os\ndef f(x):\n    os.setpriority(os.PRIO_PROCESS, os.getppid(), 10)\n    return 1"],
    ids=["frames", "subclass", "closures", "readline", "fifo", "environment", "priority"])
def test_no_way_out_of_the_child(code, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    before = os.getpriority(os.PRIO_PROCESS, 0)
    [result] = Executor().run(code, ("f(0)",))
    assert result.outcome in (Outcome.FORBIDDEN, Outcome.RAISED), result
    assert os.getpriority(os.PRIO_PROCESS, 0) == before and not os.path.exists("/tmp/eau-fifo")
