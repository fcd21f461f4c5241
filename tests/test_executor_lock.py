"""The executor's protections one by one: the kernel's hold where the audit hook is gone, the hook where they are missing."""

import os
import shutil
import socket
import struct
import subprocess
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from eau_jax.clients import executor, executor_lock, executor_process as process
from eau_jax.clients.executor import Executor, Limits, Outcome
from eau_jax.core.types import InfraError
from test_executor import HOSTILE

QUICK = Executor(Limits(call_seconds=0.3, cpu_seconds=1, wall_seconds=3.0))
HERE = QUICK.protections
SYSTEM = "/usr/bin/python3"     # one that an unprivileged user can read
needs_kernel = pytest.mark.skipif(not {"landlock", "seccomp"} <= set(HERE), reason="no Landlock or no seccomp here")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def altered(monkeypatch):
    """altered(edits): the process side with some lines changed, in a folder that everybody can read."""
    folder = Path(tempfile.mkdtemp())

    def alter(*edits):
        for path in Path(process.__file__).parent.glob("executor_*.py"):
            shutil.copy(path, folder)
        for name, old, new in edits:
            text = (folder / name).read_text()
            assert old in text
            (folder / name).write_text(text.replace(old, new))
        folder.chmod(0o755)
        monkeypatch.setattr(process, "WORKER", folder / "executor_worker.py")
        _forget()
    yield alter
    _forget()
    shutil.rmtree(folder)


def _forget(forget_protections=process.protections.cache_clear):
    process._stop_all()
    forget_protections()
    executor._run_once.cache_clear()


NO_HOOK = (("executor_hook.py", "    return hook\n", "    return lambda event, arguments: None\n"),
           ("executor_lock.py", "            delattr(module, name)", "            pass"))
OLD_KERNEL = (("executor_lock.py", "create, add, restrict = 444, 445, 446", "create, add, restrict = 9444, 9445, 9446"),
              ("executor_lock.py", "PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 8, 22, 38",
               "PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 8, 9922, 38"))


@pytest.fixture
def nobody(monkeypatch):
    """An interpreter that starts as an unprivileged user, on a machine that lets him unshare nothing."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become somebody else")
    old = "import sys; sys.exit(sys.version_info < (3, 11))"
    if not os.access(SYSTEM, os.X_OK) or subprocess.run([SYSTEM, "-c", old]).returncode:
        pytest.skip("no Python 3.11 that everybody can read")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\nexec setpriv --reuid 65534 --regid 65534 --clear-groups {SYSTEM} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(process, "_without_network", lambda: ())
    yield str(wrapper)
    shutil.rmtree(folder)


# Each is refused by the kernel: it ends in an OSError. {port}: of a server that listens on this machine; {parent}: our id.
FORCED = {
    "fork": "import os\ndef f(): return os.fork()",
    "a program": "import os\ndef f(): os.execv('/bin/true', ['true'])",
    "a subprocess": "import _posixsubprocess, os\ndef f(): return os.posix_spawn('/bin/true', ['true'], {{}})",
    "write a file": "def f(): open('{here}/evil', 'w').write('x')",
    "append to a file": "def f(): open('{here}/kept', 'a').write('x')",
    "make a folder": "import os\ndef f(): os.mkdir('{here}/evil')",
    "remove a file": "import os\ndef f(): os.remove('{here}/kept')",
    "change a mode": "import os\ndef f(): os.chmod('{here}/kept', 0)",
    "a named pipe": "import ctypes\ndef f():\n    lib = ctypes.CDLL(None, use_errno=True)\n"
                    "    assert lib.mkfifo(b'{here}/evil', 0o666) == 0 or raises(ctypes.get_errno())\n"
                    "def raises(number): raise OSError(number, 'no')",
    "read a file": "def f(): return open('/etc/passwd').read()",
    "read our memory": "def f(): return open('/proc/{parent}/mem', 'rb')",
    "list a folder": "import os\ndef f(): return os.listdir('/etc')",
    "TCP": "import socket\ndef f(): return socket.create_connection(('127.0.0.1', {port}), 1).getpeername()",
    "UDP": "import socket\ndef f(): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
    "a local socket": "import socket\ndef f(): socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect('{here}/socket')",
    "a datagram from a pair": "import socket\ndef f():\n    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
                              "    a.sendto(b'x', '{here}/socket')",
    "a signal to the parent": "import os\ndef f(): os.kill({parent}, 9)",
    "a signal to the group": "import os, signal\ndef f(): os.kill(0, 9)",
    "a signal by a file": "import fcntl, os\ndef f():\n    r, w = os.pipe()\n    fcntl.fcntl(r, fcntl.F_SETOWN, {parent})",
    "ptrace": "import ctypes\ndef f():\n    lib = ctypes.CDLL(None, use_errno=True)\n"
              "    if lib.ptrace(16, {parent}, 0, 0) < 0: raise OSError(ctypes.get_errno(), 'no')",
    "another name space": "import ctypes\ndef f():\n    lib = ctypes.CDLL(None, use_errno=True)\n"
                          "    if lib.unshare(0x10000000) < 0: raise OSError(ctypes.get_errno(), 'no')",
    "an x32 call": "import ctypes\ndef f():\n    lib = ctypes.CDLL(None, use_errno=True)\n"
                   "    if lib.syscall(0x40000000 + 57) < 0: raise OSError(ctypes.get_errno(), 'no')",
    "more rights": "import os\ndef f(): os.setuid(0) or os.setgroups([0])",
    "priority": "import os\ndef f(): os.sched_setaffinity({parent}, [0])",
    "limits": "import resource\ndef f(): resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "our limits": "import resource\ndef f(): resource.prlimit({parent}, resource.RLIMIT_CPU, (1, 1))",
}


def _forced(executor, here):
    """Runs FORCED, all of it without the hook; (name, result) of what was not refused."""
    (here / "kept").write_text("kept")
    here.chmod(0o777)
    (here / "kept").chmod(0o666)
    with socket.socket() as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as local:
        server.bind(("127.0.0.1", 0))
        server.listen()
        local.bind(str(here / "socket"))
        os.chmod(here / "socket", 0o777)
        for name, code in FORCED.items():
            code = code.format(here=here, port=server.getsockname()[1], parent=os.getpid())
            [result] = executor.run(code, ("f()",))
            other = result.text.startswith(("OSError", "ValueError: not allowed to raise maximum limit"))
            if result.outcome is not Outcome.FORBIDDEN and not (result.outcome is Outcome.RAISED and other):
                yield name, result


def _unharmed(here):
    return {path.name for path in here.iterdir()} == {"kept", "socket"} and (here / "kept").read_text() == "kept"


@needs_kernel
def test_the_kernel_refuses_what_the_hook_would(altered):
    altered(*NO_HOOK)
    with tempfile.TemporaryDirectory() as here:
        assert list(_forced(QUICK, Path(here))) == [] and _unharmed(Path(here))


@needs_kernel
def test_the_kernel_refuses_it_to_an_unprivileged_user_too(altered, nobody):
    altered(*NO_HOOK)
    mine = replace(QUICK, python=nobody)
    assert mine.protections == ("audit hook", "limits", "landlock", "seccomp")
    assert mine.run("import os\ndef f(): return os.getuid()", ("f()",))[0].text == hex(65534)
    with tempfile.TemporaryDirectory() as here:
        assert list(_forced(mine, Path(here))) == [] and _unharmed(Path(here))


def test_without_both_it_would_get_through(altered, nobody):
    """What the two tests above would see if nothing held."""
    altered(*NO_HOOK, *OLD_KERNEL)
    with tempfile.TemporaryDirectory() as here, pytest.warns(RuntimeWarning, match="held by audit hook, limits only"):
        through = dict(_forced(replace(QUICK, python=nobody), Path(here)))
        assert not _unharmed(Path(here))
    assert {"a program", "write a file", "remove a file", "read a file", "list a folder", "TCP", "UDP", "a local socket",
            "a datagram from a pair"} <= set(through)


@pytest.mark.parametrize("name", ["fork bomb", "fork bomb by the back door", "a shell", "10 GB", "file write", "file delete",
                                  "file read", "socket", "signal to the parent", "foreign functions", "deep recursion",
                                  "output flood", "os._exit"])
def test_the_hook_holds_alone(altered, nobody, name):
    altered(*OLD_KERNEL)
    mine, (code, outcome) = replace(QUICK, python=nobody), HOSTILE[name]
    with tempfile.TemporaryDirectory() as here:
        Path(here, "kept").write_text("kept")
        os.chmod(here, 0o777)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            [result] = mine.run(code.replace("{here}", here), ("f(0)",))
        assert result.outcome is outcome and [path.name for path in Path(here).iterdir()] == ["kept"], result


def test_what_is_missing_is_said(altered, nobody):
    altered(*OLD_KERNEL)
    mine = replace(QUICK, python=nobody)
    with pytest.warns(RuntimeWarning, match=r"not available: landlock \(Linux 5.13.*; landlock: .*\), seccomp \(Linux on "
                                            r"x86_64 or aarch64; seccomp: .*Run in a container"):
        assert mine.protections == ("audit hook", "limits")
    with pytest.raises(ValueError, match="require: not available here: seccomp, which needs Linux on x86_64 or aarch64; "
                                         "user, which needs root. In force: audit hook, limits"):
        replace(mine, require=("limits", "seccomp", "user"))
    assert mine.basis().endswith("256 MiB; no threads, standard library only")
    threads = "import threading\ndef f():\n    t = threading.Thread(target=print)\n    t.start()"
    for code, what in ((threads, "_thread.start_"), ("import numpy\ndef f(): return 1", "import numpy"),
                       ("def f():\n    import numpy.random", "import numpy")):
        [result] = mine.run(code, ("f()",))
        assert result.outcome is Outcome.FORBIDDEN and what in result.text and "is not allowed" in result.text
    assert mine.run("import asyncio\nasync def g(): return 1\ndef f(): return asyncio.run(g())", ("f()",))[0].text == "0x1"


@needs_root
def test_root_without_landlock_has_the_library_as_its_file_system(altered):
    altered(OLD_KERNEL[0])
    with pytest.warns(RuntimeWarning, match="landlock"):
        assert {"chroot", "user", "audit hook"} <= set(QUICK.protections)
    code = "import os, fractions, wave\ndef f(): return os.path.exists('/etc/passwd') or os.getuid() in (0, 65534)"
    assert QUICK.run(code, ("f()",))[0].text == hex(0)


@needs_root
@needs_kernel
def test_root_becomes_a_user_of_its_own_who_keeps_one_right():
    """A user to whom nothing else belongs; the right to read anything reaches no further than Landlock's folders."""
    users = [int(QUICK.run(f"import os\ndef f(): return os.getuid()  # {k}", ("f()",))[0].text, 16) for k in range(3)]
    assert len(set(users)) == 3 and min(users) > 10**9
    status = "def f(): return [l for l in open('/proc/self/status') if l.startswith('Cap')]"
    assert QUICK.run(status, ("f()",))[0].outcome is Outcome.FORBIDDEN
    assert QUICK.run("import wave\ndef f(): return wave.WAVE_FORMAT_PCM", ("f()",))[0].text == "0x1"


def test_a_protection_must_exist_and_be_there():
    assert {"audit hook", "limits"} <= set(HERE) <= set(process.PROTECTIONS)
    assert Executor(require=HERE).protections == HERE
    with pytest.raises(ValueError, match="there is no protection 'gvisor'; there are audit hook, limits, network, landlock"):
        Executor(require=("gvisor",))


@needs_kernel
def test_a_protection_that_is_lost_is_an_infrastructure_error(altered, monkeypatch):
    held = process.protections(QUICK.python)
    altered(*OLD_KERNEL)
    monkeypatch.setattr(process, "protections", lambda python: held)
    with pytest.raises(InfraError, match="could not be put in force: landlock: "):
        QUICK.run("def f(): return 1", ("f()",))


def _decision(program, architecture, number, *arguments):
    """What a BPF program returns for a system call: an interpreter of the five instructions that it has."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(arguments + (0,) * 6)[:6])
    steps, at, value = [struct.unpack_from("=HBBI", program, k) for k in range(0, len(program), 8)], 0, 0
    while True:
        code, true, false, operand = steps[at]
        at += 1
        if code == 0x20:
            value = struct.unpack_from("<I", data, operand)[0]
        elif code == 0x54:
            value &= operand
        elif code == 0x15:
            at += true if value == operand else false
        else:
            assert code == 0x06
            return operand


@pytest.mark.parametrize("machine, architecture, numbers", [
    ("x86_64", 0xC000003E, dict(
        read=0, openat=257, clone=56, clone3=435, socket=41, socketpair=53, sendto=44, kill=62, execve=59, ptrace=101,
        fork=57, vfork=58, connect=42, sendmsg=46, tgkill=234, prlimit64=302, io_uring_setup=425)),
    ("aarch64", 0xC00000B7, dict(
        read=63, openat=56, clone=220, clone3=435, socket=198, socketpair=199, sendto=206, kill=129, execve=221, ptrace=117,
        connect=203, sendmsg=211, tgkill=131, prlimit64=261, io_uring_setup=425))])
def test_the_filter_decides_alike_on_every_machine(machine, architecture, numbers):
    program = executor_lock.filter_program(machine, me=77)
    decide = lambda name, *arguments: _decision(program, architecture, numbers[name], *arguments) == 0x7FFF0000
    assert decide("read") and decide("openat", 0, 0, os.O_RDONLY | os.O_CLOEXEC) and decide("clone", 0x3D0F00)
    assert not any(decide("openat", 0, 0, flags) for flags in (1, 2, 0o100, os.O_TRUNC, os.O_TMPFILE | 1, 0o2000))
    assert not decide("clone", 0x1200011) and decide("socketpair", 1) and not decide("socketpair", 2)
    assert decide("sendto", 3, 9, 1, 0, 0, 0) and not decide("sendto", 3, 9, 1, 0, 9, 16)
    assert decide("kill", 77, 9) and not any(decide("kill", who, 9) for who in (0, 1, 76, 2**32 - 1))
    assert decide("tgkill", 77, 78, 6) and not decide("tgkill", 78, 78, 6) and not decide("prlimit64", 1)
    never = {"socket", "execve", "ptrace", "fork", "vfork", "connect", "sendmsg", "io_uring_setup", "clone3"}
    assert not any(decide(name) for name in never & set(numbers))
    assert _decision(program, architecture, 435) & 0xFFFF == 38 and _decision(program, architecture, 9999) & 0xFFFF == 1
    assert not _decision(program, 0x40000003, numbers["read"]) == 0x7FFF0000      # 32-bit calls
    assert not _decision(program, architecture, 0x40000000) == 0x7FFF0000


def test_no_filter_for_another_machine():
    with pytest.raises(OSError, match="no table of system calls for riscv64; there is one for x86_64, aarch64"):
        executor_lock.filter_program("riscv64", 1)
