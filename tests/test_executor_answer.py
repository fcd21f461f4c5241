"""The executor's reading of answers (fences, indentation), its comparison of values, and what a program may use."""

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eau_jax.clients.executor import Executor, Outcome, source
from eau_jax.clients.executor_worker import program
from test_executor import pythons

RUN = Executor()
UPSTREAM = Executor(upstream_compatible=True)
DOUBLE = "def f(x):\n    return x * 2\n"
CALLS = ("f(1)", "f(2)")
CONSTANT = "def f(x):\n    return 7\n"


def judge(code, reference=DOUBLE, calls=CALLS, executor=RUN):
    return executor.judge(code, reference, calls)


@pytest.mark.parametrize("text", [
    " " + DOUBLE, "\n\n" + DOUBLE, "   def f(x):\n       return x * 2", "\tdef f(x):\n\t\treturn x * 2",
    f"```python\n{DOUBLE}```",
    f"Here it is:\n```\n{DOUBLE}```\nGood luck!", f"```py\n{DOUBLE}", DOUBLE.replace("\n", "\r\n"), DOUBLE.replace("\n",
    "\r"),
    " def g(x):\n    return x\ndef f(x):\n    return 2 * g(x)", "   \n  \n" + DOUBLE, f"```python3\n{DOUBLE}```",
    f"```Python\n{DOUBLE}\n```", f"```{{.python}}\n{DOUBLE}```", f"``` python title=x\n{DOUBLE}```",
    f"~~~\n{DOUBLE}~~~\nThanks.",
    f"~~~python\n{DOUBLE}\n~~~", f"````python\n{DOUBLE}\n````", f"```python3.11\n{DOUBLE}```", f"```ipython\n{DOUBLE}```",
    "1. First\n   ```python\n   def f(x):\n       return x * 2\n   ```\n   done", f"\ufeff{DOUBLE}",
    f"\ufeff```python\n{DOUBLE}```",
    f"```python\n\ufeff{DOUBLE}```", f"```python\r\n{DOUBLE}```\r\n".replace("\n", "\r\n").replace("\r\r", "\r"),
    f"Text\n\n```python\n{DOUBLE}", f"```python\n{DOUBLE}``` \t\nbye",
], ids=itertools.count())
def test_an_answer_is_read(text):
    assert judge(text).share == 1.0, source(text)


HELPER, MAIN = "def twice(x):\n    return x * 2\n", "def f(x):\n    return twice(x)\n"


@pytest.mark.parametrize("text", [
    f"```python\n{HELPER}```\nand\n```python\n{MAIN}```",                             # parts of one program
    f"```python\n{CONSTANT}```\nNo, better:\n```python\n{DOUBLE}```",   # replaces the earlier one
    f"```python\n{DOUBLE}```\nTry it:\n```python\nprint(f(3))\n```",                 # an example of its use
    f"```python\n{DOUBLE}```\nIt prints\n```\n>>> f(3)\n6\n```",                     # output, no program
    f"```\n{DOUBLE}```\nIt prints\n```\n$ python f.py\n```",                         # the same, neither says what it is
    f"```bash\npip install x\n```\n```python\n{DOUBLE}```",                           # another language
    f"```json\n{{}}\n```\n```\n{DOUBLE}```",
    f"```code\n{DOUBLE}```",                                                          # no other is there
    f"```python\n{DOUBLE}```\n```python\nfrom __future__ import annotations\n{DOUBLE}```",   # the last
    "def f(x):\n    \"\"\"Like\n    ```\n    def f(x): return 7\n    ```\n    \"\"\"\n    return x * 2",   # a text
    f"```python\nThis is no Python code\n```\n```python\n{DOUBLE}```",
], ids=itertools.count())
def test_of_several_fences_all_python_counts(text):
    assert judge(text).share == 1.0, source(text)


def test_what_is_not_a_program():
    assert judge(f"Here it is:\n{DOUBLE}").outcome is Outcome.SYNTAX                  # prose without a fence
    assert judge("```python\ndef f(x) return x\n```").outcome is Outcome.SYNTAX
    assert judge("```python\n```").outcome is Outcome.RAISED and judge("```").outcome is Outcome.RAISED
    assert judge(f"`{DOUBLE.strip()}`").outcome is Outcome.SYNTAX
    assert source("a ``` b\n``````c`\n") == ("a ``` b\n``````c`\n".strip("\n"), ())   # marks inside a line open nothing
    assert source("```\n~~~\na\n````") == ("```\n~~~\na\n````",
    ("~~~\na",))        # closed by as many marks or more of the kind
    assert judge(f"```python\n{CONSTANT}").outcome is Outcome.WRONG


def test_upstream_takes_the_text_as_it_stands():
    assert judge(f"```python\n{DOUBLE}```", executor=UPSTREAM).share == 1.0
    assert judge(f"```\n{CONSTANT}```\n```\n{DOUBLE}```", executor=UPSTREAM).share == 1.0   # lines of a fence are dropped
    for text in (f"Here:\n```\n{DOUBLE}```", f"~~~\n{DOUBLE}~~~", " " + DOUBLE):
        assert judge(text, executor=UPSTREAM).outcome is Outcome.SYNTAX


def test_a_program_is_found_where_it_can_be_compiled():
    assert program("1 +", ()).startswith("invalid syntax") and program("1", ()).co_code == program("x x", ("1",)).co_code
    assert isinstance(program("x x", ("y y", "z z")), str)


DECIMAL, FRACTION, NUMPY = "__import__('decimal').Decimal", "__import__('fractions').Fraction", "__import__('numpy')"


@pytest.mark.parametrize("value, other, same", [
    ("1", "1.0", True), ("True", "1", True), ("0.1 + 0.2", "0.3", False), ("2**80", "float(2**80)", True),
    ("[1, 2]", "(1, 2)", False), ("{1, 2}", "{2, 1}", True), ("{'a': 1, 'b': 2}", "{'b': 2.0, 'a': 1}", True),
    ("{1: 'a'}", "{True: 'a'}", True), ("'1'", "1", False), ("None", "'None'", False), ("None", "None", True),
    ("'a,b'", "['a', 'b']", False), ("['a,b']", "['a', 'b']", False), ("b'x'", "'x'", False), ("bytearray(b'x')",
    "b'x'", True),
    ("float('nan')", "float('nan')", True), ("[float('nan')]", f"[{DECIMAL}('NaN')]", True), ("float('nan')", "0", False),
    ("float('inf')", f"{DECIMAL}('Infinity')", True), ("float('inf')", "float('-inf')", False), ("-0.0", "0", True),
    ("__import__('collections').Counter('aab')", "{'a': 2, 'b': 1}", True), ("frozenset('ab')", "{'b', 'a'}", True),
    (f"{DECIMAL}('1.50')", f"{DECIMAL}('1.5')", True), (f"{DECIMAL}('1.5')", "1.5", True), (f"{DECIMAL}('0.1')",
    "0.1", False),
    (f"{DECIMAL}(3)", "3", True), (f"{FRACTION}(1, 2)", "0.5", True), (f"{FRACTION}(6, 3)", "2", True),
    (f"{FRACTION}(1, 3)", "1 / 3", False), (f"{FRACTION}(1, 3)", f"{FRACTION}(2, 6)", True), ("complex(2, 0)", "2", True),
    ("complex(2, 1)", "complex(2, 1)", True), ("complex(2, 1)", "2", False), ("1e300", "10**300", False),
    ("object()", "object()", False), ("lambda: 1", "lambda: 1", False), ("(k for k in [1])", "(k for k in [1])", False),
    ("list(set('abcdefgh'))", "list(set('abcdefgh'))", True), ("range(3)", "range(0, 3, 1)", True), ("range(0)",
    "range(5, 5)", True),
    ("range(0, 5, 3)", "range(0, 4, 3)", True), ("range(3)", "[0, 1, 2]", False), ("{1: 2}.keys()", "{1}", True),
    ("{1: 2}.values()", "[2]", False), ("__import__('collections').deque([1])",
    "__import__('collections').deque([1.0])", True),
    ("__import__('collections').deque([1])", "[1]", False), ("__import__('array').array('i', [1])",
    "__import__('array').array('d', [1])", True),
    ("__import__('datetime').date(2024, 1, 1)", "__import__('datetime').datetime(2024, 1, 1)", False),
    ("__import__('datetime').datetime(2024, 1, 1, 12, tzinfo=__import__('datetime').timezone.utc)",
     "__import__('datetime').datetime(2024, 1, 1, 13, tzinfo=__import__('zoneinfo').ZoneInfo('Europe/Paris'))", True),
    ("type('S', (str,), {'__str__': lambda s: 'no'})('yes')", "'yes'", True),
    ("__import__('enum').Enum('C', {'R': 'red'}, type=str).R", "'red'", True),
    ("__import__('enum').IntEnum('C', {'R': 3}).R", "3", True), ("type('I', (int,), {'__int__': lambda s: 5})(3)",
    "3", True),
    ("type('L', (list,), {'__iter__': lambda s: iter([5])})([3])", "[3]", True),
    ("type('D', (dict,), {'items': lambda s: [(1, 2)]})(a=3)", "{'a': 3}", True),
    ("'x' * 10**6", "'x' * 10**6", True), ("'x' * 10**6", "'x' * (10**6 - 1) + 'y'", False),
    ("list(range(50000))", "list(range(50000))", True), ("7 ** 30000", "7 ** 30000 + 1", False), ("2 ** 1000000",
    "2 ** 1000000", True),
    ("'<submission.A A()>'", "type('A', (), {'__repr__': lambda s: 'A()', '__module__': 'submission'})()", False),
    (f"{NUMPY}.int64(3)", "3", True), (f"{NUMPY}.float64(0.5)", "0.5", True), (f"{NUMPY}.bool_(True)", "True", True),
    (f"{NUMPY}.float32(0.1)", "0.1", False), (f"{NUMPY}.str_('a')", "'a'", True), (f"{NUMPY}.array([1, 2])",
    "[1, 2]", False),
    (f"{NUMPY}.array([1, 2])", f"{NUMPY}.array([1.0, 2.0])", True), (f"{NUMPY}.array([1, 2])",
    f"{NUMPY}.array([[1, 2]])", False),
    (f"{NUMPY}.arange(5000)", f"{NUMPY}.arange(5000) + ({NUMPY}.arange(5000) == 2500)", False),
    (f"[{NUMPY}.int64(1), {{'a': {NUMPY}.float64(2)}}]", "[1, {'a': 2}]", True), (f"{NUMPY}.longdouble(1)",
    f"{NUMPY}.longdouble(1)", True),
], ids=itertools.count())
def test_values_agree_as_in_python(value, other, same):
    if "numpy" in value and "seccomp" not in RUN.protections:
        pytest.skip("numpy needs seccomp")
    verdict = judge(f"def f():\n    return {value}", f"def f():\n    return {other}", ("f()",))
    assert (verdict.share == 1.0) == same, verdict


ALL = ("class All{0}:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
       "    __hash__ = object.__hash__\n")


@pytest.mark.parametrize("base, make", [
    ("", "All()"), ("(int)", "All(5)"), ("(str)", "All('a')"), ("(float)", "All(0.5)"), ("(dict)", "All(a=1)"), ("(list)",
    "All([3])"),
    ("", "[All(), All()]"), ("", "{All(): All()}")])
def test_what_says_that_it_is_equal_to_everything_is_not(base, make):
    references = ("2", "[2, 4]", "{1: 2}", "None", "'b'")
    for reference in references:
        verdict = judge(f"{ALL.format(base)}def f():\n    return {make}", f"def f():\n    return {reference}", ("f()",))
        assert verdict.share == 0.0 and verdict.outcome in (Outcome.WRONG, Outcome.RAISED)


def test_objects_of_a_class_are_compared_by_what_they_show():
    data = "import dataclasses\n@dataclasses.dataclass\nclass D:\n    x: int\ndef f(x):\n    return D({})\n"
    assert judge(data.format("x"), data.format("x")).share == 1.0 and judge(data.format("x"), data.format("1")).share == 0.5


def test_values_that_hold_themselves_or_are_too_deep():
    for make in ("x = []; x.append(x)", "x = {}; x[1] = x", "x = 1\n    for _ in range(10**5): x = [x]"):
        assert judge(f"def f(x):\n    {make}\n    return x").outcome is Outcome.RECURSION


def test_nothing_and_nan_never_count_for_upstream():
    for value in ("None", "float('nan')"):
        code = f"def f(x):\n    return {value}"
        assert judge(code, code).share == 1.0 and judge(code, code, executor=UPSTREAM).outcome is Outcome.WRONG


LIBRARIES = {
    "many": "import dataclasses, enum, re, json, datetime, decimal, fractions, collections, heapq, itertools, statistics\n"
            "import functools, string, math, random, copy, bisect, hashlib, textwrap, abc, operator, csv, io, calendar\n"
            "import typing, uuid, hmac, secrets, base64, zlib, struct, queue, contextlib, types, numbers, difflib, pprint\n"
            "import time\n"
            "P = collections.namedtuple('P', 'x y')\n@dataclasses.dataclass(order=True)\nclass D:\n    x: int = 1\n"
            "class E(enum.IntEnum):\n    A = 2\nclass T(typing.NamedTuple):\n    x: int\n"
            "@functools.lru_cache(None)\ndef h(x): return x\n"
            "def f(x):\n    assert re.sub('a+', 'b', 'caat') == 'cbt' and json.loads('[1]') == [1] and D(1) < D(2)\n"
            "    datetime.datetime.strptime('2024-01-02', '%Y-%m-%d').strftime('%A'); time.localtime(); uuid.uuid4()\n"
            "    decimal.Decimal(1) / 3; fractions.Fraction(1, 3); statistics.median([1, 2]); hashlib.md5(b'x').digest()\n"
            "    list(csv.reader(io.StringIO('a,b'))); copy.deepcopy([D()]); eval('1'); exec('y = 1'); random.random()\n"
            "    return P(h(x), 0).x * E.A",
    "asyncio": "import asyncio\nasync def g(x):\n    await asyncio.sleep(0.001)\n    return x\nasync def both(x):\n"
               "    return sum(await asyncio.gather(g(x), asyncio.wait_for(g(x), 1)))\n"
               "def f(x):\n    return asyncio.run(both(x))",
    "asyncio with a thread": "import asyncio\nasync def g(x):\n    return await asyncio.to_thread(lambda: x * 2)\n"
                             "def f(x):\n    return asyncio.run(g(x))",
    "threads": "import threading\ndef f(x):\n    out, lock = [], threading.Lock()\n    def work():\n"
               "        with lock: out.append(x)\n    threads = [threading.Thread(target=work) for _ in range(8)]\n"
               "    for t in threads: t.start()\n"
               "    for t in threads: t.join()\n    return sum(out) // 4",
    "pool": "from concurrent.futures import ThreadPoolExecutor\ndef f(x):\n"
            "    with ThreadPoolExecutor(4) as pool: return sum(pool.map(lambda v: v, [x, x]))",
    "time zone": "import datetime, zoneinfo\ndef f(x):\n    zone = zoneinfo.ZoneInfo('Europe/Paris')\n"
                 "    t = datetime.datetime(2024, 7, 1, tzinfo=zone)\n    return x * t.utcoffset().seconds // 3600",
    "numpy": "import numpy as np\nfrom numpy.linalg import norm\nimport numpy.testing\ndef f(x):\n"
             "    np.random.default_rng(0).normal(size=3); np.fft.fft(np.arange(8)); np.ones((50, 50)) @ np.ones((50, 50))\n"
             "    numpy.testing.assert_allclose(norm(np.array([3.0, 4.0])), 5)\n    return np.int64(x) * 2",
}


@pytest.mark.parametrize("name", sorted(LIBRARIES))
@pytest.mark.parametrize("python", pythons())
def test_what_a_program_may_use(name, python):
    if name in ("threads", "pool", "asyncio with a thread", "numpy") and "seccomp" not in RUN.protections:
        pytest.skip("needs seccomp")
    if name == "numpy" and python != sys.executable:
        pytest.skip("not installed there")
    if name == "time zone" and not Path("/usr/share/zoneinfo/Europe/Paris").exists():
        pytest.skip("no time zones here")
    verdict = judge(LIBRARIES[name], executor=Executor(python=python))
    assert verdict.share == 1.0, verdict


@pytest.mark.parametrize("code, said", [
    ("import pandas\ndef f(x):\n    return x", "No module named 'pandas'"),
    ("import jax\ndef f(x): return x", "No module named 'jax'"),
    ("import zoneinfo\ndef f(x): return zoneinfo.ZoneInfo('Mars/Base')", "No time zone found with key Mars/Base")])
def test_what_is_missing_is_named(code, said):
    verdict = judge(code)
    assert verdict.outcome is Outcome.RAISED and said in verdict.detail


def test_other_packages_may_be_allowed():
    code = "import einops\ndef f(x):\n    return 2 * x if einops.__name__ == 'einops' else 0"
    assert judge(code).share == 0.0 and judge(code, executor=replace(RUN, packages=("einops",))).share == 1.0
