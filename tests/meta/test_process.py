"""A program that is not trusted: what it reaches, and that nothing of it is left."""

import os
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest
from rounds import round_of

from eau_jax.meta.drivers.process import Job, protections, run

confined = pytest.mark.skipif("landlock" not in protections(), reason="Landlock is not available here")


def job(view, code, **more):
    """A job of Python code in a view."""
    given = {"command": [sys.executable, "-I", "-S", "-c", code], "environment": {"PATH": os.defpath}, "folder": view.folder,
             "read": [view.folder], "write": [view.inbox], "ports": [], "seconds": 10.0, "idle_seconds": 10.0,
             "output": 10_000}
    return Job(**(given | more))


@pytest.fixture
def view():
    with round_of() as view:
        yield view


def test_output_status_and_watch(view):
    end = run(job(view, "import sys; print('a'); print('b'); print('c', file=sys.stderr); sys.exit(7)"))
    assert (end.why, end.code, end.lines, end.errors) == ("itself", 7, ("a", "b"), "c\n")
    end = run(job(view, "import time; print('a', flush=True); time.sleep(60)"), watch=lambda line: f"it said {line}")
    assert (end.why, end.problem, end.lines) == ("stopped", "it said a", ("a",)) and end.seconds < 8


@pytest.mark.parametrize("code, limits, why", [
    ("import time; time.sleep(60)", {"seconds": 1.0}, "late"),
    ("import time; time.sleep(60)", {"idle_seconds": 1.0}, "idle"),
    ("import os, time; os.close(1); os.close(2); time.sleep(60)", {"seconds": 1.0}, "late"),
    ("while True: print('x' * 100)", {}, "flood"),
    ("import time\nfor _ in range(5): print('x', flush=True); time.sleep(0.3)", {"idle_seconds": 1.2}, "itself"),
])
def test_limits(view, code, limits, why):
    assert run(job(view, code, **limits)).why == why


@pytest.mark.skipif("processes" not in protections(), reason="this machine has no namespaces of processes")
def test_a_child_in_a_session_of_its_own_ends_with_it(view):
    code = ("import subprocess, sys; subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(599)'], "
            "start_new_session=True); print('started')")
    start = time.monotonic()
    assert run(job(view, code)).lines == ("started",) and time.monotonic() - start < 8
    running = [" ".join(found.info["cmdline"] or []) for found in psutil.process_iter(["cmdline"])]
    assert not [line for line in running if "time.sleep(599)" in line]


@confined
def test_files_ports_and_other_processes_are_out_of_reach(view):
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [server.getsockname()[1] for server in (allowed, other)]
        code = f"""
import os, socket
def tried(action):
    try:
        action()
        print("done")
    except OSError as error:
        print(type(error).__name__)
tried(lambda: open("history.json").read())
tried(lambda: open({str(view.inbox / "x")!r}, "w"))
tried(lambda: open({str(view.root.parent / "run" / "metrics.jsonl")!r}))
tried(lambda: open({str(Path(__file__))!r}))
tried(lambda: open("/etc/shadow"))
tried(lambda: open("new", "w"))
tried(lambda: socket.create_connection(("127.0.0.1", {ports[0]})))
tried(lambda: socket.create_connection(("127.0.0.1", {ports[1]})))
tried(lambda: os.kill({os.getpid()}, 0))
print(os.getuid())
"""
        end = run(job(view, code, ports=[ports[0]]))
    assert end.lines[:6] == ("done", "done", *["PermissionError"] * 4), end.errors
    assert end.lines[6:8] in (("done", "PermissionError"), ("done", "done"))   # Linux before 6.7 does not hold connections
    assert end.lines[8] in ("ProcessLookupError", "PermissionError")
    assert ("user" in protections()) == (os.geteuid() == 0) == (end.lines[9] == "65534")


def test_a_program_that_is_not_there(view):
    end = run(job(view, "", command=["/no/such/program"]))
    assert end.why == "unstarted" and "No such file" in end.problem
