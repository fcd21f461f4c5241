"""The executor: every way to misbehave has its outcome within the limits and leaves the host as it was."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from eau_jax.clients.executor import Executor, Limits, Outcome, source
from eau_jax.core.types import InfraError

QUICK = Executor(Limits(call_seconds=0.2, cpu_seconds=1, wall_seconds=2.0))
DOUBLE = "def f(x):\n    return x * 2\n"
CALLS = tuple(f"f({k})" for k in range(4))


def judge(code, reference=DOUBLE, calls=CALLS, executor=QUICK):
    return executor.judge(code, reference, calls)


def _pythons():
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
    "10 GB in pieces": ("def f(x):\n    kept = []\n    while True: kept.append(bytearray(2**22))", Outcome.MEMORY),
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


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_misbehaviour_has_its_outcome_within_the_limit(name, tmp_path):
    code, expected = HOSTILE[name]
    (tmp_path / "kept").write_text("kept")
    os.chmod(tmp_path, 0o777)
    start = time.monotonic()
    verdict = judge(code.replace("{here}", str(tmp_path)))
    assert verdict.outcome is expected and verdict.share == 0.0, verdict
    assert time.monotonic() - start < QUICK.limits.wall_seconds + 3
    assert [path.name for path in tmp_path.iterdir()] == ["kept"] and (tmp_path / "kept").read_text() == "kept"


def test_no_process_is_left_behind():
    judge(HOSTILE["sleep"][0])
    judge("import threading, time\nfor _ in range(9): threading.Thread(target=time.sleep, args=(60,)).start()\n" + DOUBLE)
    listing = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True).stdout
    mine = [line for line in listing.splitlines() if "executor_worker" in line and line.split()[0] == str(os.getpid())]
    assert mine == []


def test_calls_before_a_crash_count_and_exceptions_are_per_call():
    verdict = judge("import os\ndef f(x):\n    if x == 2: os._exit(1)\n    return x * 2")
    assert [o.name for o in verdict.calls] == ["AGREES", "AGREES", "CRASHED", "CRASHED"] and verdict.share == 0.5
    verdict = judge("def f(x):\n    return 4 if x == 2 else 1 / 0")
    assert [o.name for o in verdict.calls] == ["RAISED", "RAISED", "AGREES", "RAISED"]
    assert verdict.outcome is Outcome.RAISED and "division" in verdict.detail
    assert judge("def f(x):\n    return 2 * x if x else 7").detail == "f(0) gives another value"
    slow = judge("def f(x):\n    while x == 0: pass\n    return x * 2")
    assert [o.name for o in slow.calls] == ["TIMEOUT", "AGREES", "AGREES", "AGREES"]


@pytest.mark.parametrize("value, other, same", [
    ("1", "1.0", True), ("True", "1", True), ("0.1 + 0.2", "0.3", False), ("2**80", "float(2**80)", True),
    ("[1, 2]", "(1, 2)", False), ("{1, 2}", "{2, 1}", True), ("{'a': 1, 'b': 2}", "{'b': 2.0, 'a': 1}", True),
    ("{1: 'a'}", "{True: 'a'}", True), ("'1'", "1", False), ("None", "'None'", False), ("None", "None", True),
    ("'a,b'", "['a', 'b']", False), ("['a,b']", "['a', 'b']", False), ("b'x'", "'x'", False),
    ("float('nan')", "float('nan')", True),
    ("__import__('collections').Counter('aab')", "{'a': 2, 'b': 1}", True), ("frozenset('ab')", "{'b', 'a'}", True),
    ("__import__('decimal').Decimal('1.5')", "__import__('decimal').Decimal('1.5')", True), ("object()", "object()", False),
    ("list(set('abcdefgh'))", "list(set('abcdefgh'))", True),
])
def test_values_agree_as_in_python(value, other, same):
    assert (judge(f"def f():\n    return {value}", f"def f():\n    return {other}", ("f()",)).share == 1.0) == same


def test_a_list_that_holds_itself_is_no_value():
    assert judge("def f(x):\n    x = []\n    x.append(x)\n    return x").outcome is Outcome.RECURSION


IMPORTS = "import math\nfrom collections import Counter\ndef f(x):\n    return math.floor(x) + Counter('aab')['a']\n"
HELPER = "def twice(x):\n    return 2 * x\ndef f(x):\n    return twice(x)\n"
RECURSIVE = "def f(x):\n    return 1 if x < 2 else x * f(x - 1)\n"
UPSTREAM = replace(QUICK, upstream_compatible=True)


@pytest.mark.parametrize("python", _pythons())
def test_trap_one_and_two_imports_helpers_and_recursion_on_every_python(python):
    """Upstream: NameError for each of them, and on 3.13 no definition is found at all."""
    for code in (IMPORTS, HELPER, RECURSIVE, DOUBLE):
        assert judge(code, code, executor=replace(QUICK, python=python)).share == 1.0
    upstream = replace(UPSTREAM, python=python)
    assert [judge(code, code, executor=upstream).share for code in (IMPORTS, HELPER, DOUBLE)] == [0.0, 0.0, 1.0]
    assert judge(RECURSIVE, RECURSIVE, executor=upstream).share == 0.5      # f(0) and f(1) do not recurse
    assert judge(HOSTILE["socket"][0], executor=replace(QUICK, python=python)).outcome is Outcome.FORBIDDEN


@pytest.mark.parametrize("text", [" " + DOUBLE, "\n\n" + DOUBLE, "   def f(x):\n       return x * 2",
                                  "\tdef f(x):\n\t\treturn x * 2", f"```python\n{DOUBLE}```",
                                  f"Here it is:\n```\n{DOUBLE}```\nGood luck!", f"```py\n{DOUBLE}",
                                  DOUBLE.replace("\n", "\r\n"), " def g(x):\n    return x\ndef f(x):\n    return 2 * g(x)"])
def test_trap_three_indentation_and_fences(text):
    assert judge(text).share == 1.0


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


def test_the_standard_library_works():
    code = ("import dataclasses, enum, re, json, datetime, decimal, fractions, collections, heapq, itertools, statistics\n"
            "import functools, string, math, random, copy, bisect, hashlib, textwrap, abc, operator, csv, io, calendar\n"
            "import typing, uuid\n"
            "P = collections.namedtuple('P', 'x y')\n@dataclasses.dataclass(order=True)\nclass D:\n    x: int = 1\n"
            "class E(enum.IntEnum):\n    A = 2\n@functools.lru_cache(None)\ndef h(x): return x\n"
            "def f(x):\n    assert re.sub('a+', 'b', 'caat') == 'cbt' and json.loads('[1]') == [1] and D(1) < D(2)\n"
            "    datetime.datetime.strptime('2024-01-02', '%Y-%m-%d').strftime('%A')\n"
            "    decimal.Decimal(1) / 3; fractions.Fraction(1, 3); statistics.median([1, 2]); hashlib.md5(b'x').digest()\n"
            "    list(csv.reader(io.StringIO('a,b'))); copy.deepcopy([D()]); eval('1'); exec('y = 1')\n"
            "    return P(h(x), 0).x * E.A")
    for python in _pythons():
        verdict = judge(code, executor=Executor(python=python))
        assert verdict.share == 1.0, verdict


def test_what_cannot_start_is_an_infrastructure_error(tmp_path):
    with pytest.raises(InfraError, match="cannot start|did not come to run"):
        judge(DOUBLE, executor=replace(QUICK, python=str(tmp_path / "none")))
    with pytest.raises(InfraError, match="did not come to run the submission"):
        judge(DOUBLE, executor=replace(QUICK, python=shutil.which("true")))
    with pytest.raises(ValueError, match="no calls"):
        judge(DOUBLE, calls=())


def test_threads_may_share_it_and_a_submission_never_sees_the_reference():
    with ThreadPoolExecutor(4) as pool:
        shares = list(pool.map(lambda k: judge(f"def f(x):\n    return x * {k}", calls=("f(1)", "f(0)")).share, range(8)))
    assert shares == [1.0 if k == 2 else 0.5 for k in range(8)]
    spy = ("import sys\ndef f(x):\n    frame, seen = sys._getframe(), ''\n    while frame:\n"
           "        seen += repr(frame.f_locals) + repr(frame.f_globals)\n        frame = frame.f_back\n"
           "    assert 'SECR' + 'ET' not in seen\n    return x * 2")
    assert judge(spy, "SECRET = 1\n" + DOUBLE).share == 1.0


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root becomes somebody else")
def test_root_gives_up_its_rights_where_the_library_stays_readable():
    python = "/usr/bin/python3"
    old = "import sys; sys.exit(sys.version_info < (3, 11))"
    if not os.access(python, os.X_OK) or subprocess.run([python, "-c", old]).returncode:
        pytest.skip("no system Python 3.11")
    assert judge("import os\ndef f(x):\n    return os.getuid() >= 10**9", "def f(x):\n    return True",
                 executor=replace(QUICK, python=python)).share == 1.0


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


@pytest.mark.parametrize("code", [ESCAPE, DISGUISED, "import readline\ndef f(x):\n    readline.read_history_file('/etc/passwd')\n    return 1",
                                  "import os\ndef f(x):\n    os.mkfifo('/tmp/eau-fifo')\n    return 1",
                                  "import os\ndef f(x):\n    return os.environ['OPENAI_API_KEY']",
                                  "import os\ndef f(x):\n    os.setpriority(os.PRIO_PROCESS, os.getppid(), 10)\n    return 1"],
                         ids=["frames", "subclass", "readline", "fifo", "environment", "priority"])
def test_no_way_out_of_the_child(code, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    before = os.getpriority(os.PRIO_PROCESS, 0)
    [result] = Executor().run(code, ("f(0)",))
    assert result.outcome in (Outcome.FORBIDDEN, Outcome.RAISED), result
    assert os.getpriority(os.PRIO_PROCESS, 0) == before and not os.path.exists("/tmp/eau-fifo")
