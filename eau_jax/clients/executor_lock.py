"""What holds a submission's process: limits, Landlock, another user, and seccomp. The audit hook is in `executor_hook.py`.

Runs inside the process (`executor_worker.py`) and knows nothing of this package. Each protection raises OSError where the
machine does not offer it, and holds until the process ends. Landlock and seccomp are Linux's own and need no rights.
"""

import _thread
import functools
import os
import resource
import signal
import struct
import sys
import threading

FIRST_USER, NOBODY = 1_000_000_000, 65534   # a process of root becomes user FIRST_USER + its id: nothing else belongs to him
THREADS = 32                                # of such a user
STACK, DEPTH = 64 * 2**20, 10_000           # bytes of the main thread's stack, and the deepest recursion limit there: C code
                                            # that calls Python back (a key of `sorted`) takes 2.5 KB a level
PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 8, 22, 38
CAP_DAC_READ_SEARCH = 2
NATIVE = ("landlock", "seccomp")            # protections that need ctypes

# seccomp: system call -> its number on (x86_64, aarch64), -1 where there is none. What is in neither table fails with EPERM.
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}   # (place in the tables, AUDIT_ARCH)
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "futex": (202, 98), "mmap": (9, 222), "munmap": (11, 215), "brk": (12, 214),
    "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233), "close": (3, 57), "stat": (4, -1), "fstat": (5, 80),
    "lstat": (6, -1), "newfstatat": (262, 79), "statx": (332, 291), "lseek": (8, 62), "pread64": (17, 67), "readv": (19, 65),
    "writev": (20, 66), "getdents64": (217, 61), "ioctl": (16, 29), "access": (21, -1), "faccessat": (269, 48),
    "faccessat2": (439, 439), "readlink": (89, -1), "readlinkat": (267, 78), "getcwd": (79, 17), "dup": (32, 23),
    "dup2": (33, -1), "dup3": (292, 24), "pipe": (22, -1), "pipe2": (293, 59), "poll": (7, -1), "ppoll": (271, 73),
    "select": (23, -1), "pselect6": (270, 72), "epoll_create": (213, -1), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, -1), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441), "eventfd2": (290, 19),
    "recvfrom": (45, 207), "shutdown": (48, 210), "getsockname": (51, 204), "getsockopt": (55, 209),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "restart_syscall": (219, 128),
    "getitimer": (36, 102), "setitimer": (38, 103), "alarm": (37, -1), "pause": (34, -1), "sched_yield": (24, 124),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, -1), "times": (100, 153), "getrusage": (98, 165), "getrlimit": (97, 163),
    "sysinfo": (99, 179), "uname": (63, 160), "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getrandom": (318, 278),
    "getcpu": (309, 168), "sched_getaffinity": (204, 123), "set_robust_list": (273, 99), "set_tid_address": (218, 96),
    "rseq": (334, 293), "membarrier": (324, 283), "exit": (60, 93), "exit_group": (231, 94)}
READ_ONLY = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND | getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY
CLONE_THREAD, CLONE3, ENOSYS, EPERM = 0x10000, 435, 38, 1

# Not audited by CPython, and of no use to a submission.
REMOVED = ("chroot", "mkfifo", "mknod", "setpriority", "nice", "sched_setaffinity", "sched_setscheduler", "sched_setparam",
           "sync", "killpg", "setuid", "seteuid", "setreuid", "setresuid", "setgid", "setegid", "setgroups")


def lock_in(job, names, folders):
    """Puts the protections `names` in force; the folder of the standard library as it is seen then.

    Args:
      job: "memory" (bytes beyond what the process holds now) and "cpu_seconds".
      names: some of "landlock", "chroot", "user", "seccomp".
      folders: what stays readable under Landlock.

    Raises:
      OSError: where one of them is not to be had; its text begins with the name.
    """
    library, call, own = os.path.dirname(os.__file__), None, False
    if any(name in names for name in NATIVE):
        call = _native()
    _limits(job)
    if "landlock" in names:
        _named("landlock", _landlock, call, folders)
    if "chroot" in names:
        _named("chroot", _chroot, library)
        library = "/" + os.path.basename(library)
    if "user" in names:
        own = _named("user", _user, call if "landlock" in names else None)
    if call:   # no submission outlives the server that ends it in time
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if own or ("seccomp" not in names and os.geteuid() != 0):
        resource.setrlimit(resource.RLIMIT_NPROC, (THREADS, THREADS) if own and "seccomp" in names else (0, 0))
    if "seccomp" in names:
        _named("seccomp", _seccomp, call)
    else:   # nothing else tells a thread from a process
        for module, name in ((_thread, "start_new_thread"), (_thread, "start_new"), (_thread, "start_joinable_thread"),
                             (threading, "_start_new_thread"), (threading, "_start_joinable_thread")):
            if hasattr(module, name):
                setattr(module, name, functools.partial(sys.audit, "_thread.start_new_thread"))
    _remove()
    sys.setrecursionlimit = _capped(sys.setrecursionlimit)
    return library


def _capped(set_limit):
    """`sys.setrecursionlimit` as far as the stack bears, so that recursion of any depth ends in a RecursionError."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    most = DEPTH if stack < 0 else min(DEPTH, DEPTH * stack // STACK)

    def setrecursionlimit(limit, /):
        set_limit(min(limit, most) if isinstance(limit, int) else limit)
    return setrecursionlimit


def _remove():
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ctypes", "_ctypes")]:
        del sys.modules[name]
    modules = ((os, REMOVED), (sys.modules["posix"], REMOVED), (_thread, ("stack_size",)), (threading, ("stack_size",)))
    for module, name in ((module, name) for module, names in modules for name in names):
        if hasattr(module, name):
            delattr(module, name)


def _named(name, protect, *arguments):
    try:
        return protect(*arguments)
    except (OSError, AttributeError, ImportError) as error:
        raise OSError(f"{name}: {error}") from None


def _native():
    """A C library's functions by name, which raise OSError where they fail; numbers are passed as long."""
    try:
        import ctypes
        library = ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError, TypeError) as error:
        raise OSError(f"landlock, seccomp: no ctypes: {error}") from None

    def call(name, *arguments):
        result = getattr(library, name)(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
        if result < 0:
            raise OSError(ctypes.get_errno(), f"{name} {os.strerror(ctypes.get_errno())}")
        return result
    call.address = lambda data: ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
    return call


def _limits(job):
    """A limit that the machine does not know is left out."""
    try:
        with open("/proc/self/statm", encoding="ascii") as sizes:
            held = int(sizes.read().split()[0]) * resource.getpagesize()
    except OSError:
        held = 0
    memory, most = held + job["memory"], resource.getrlimit(resource.RLIMIT_STACK)[1]
    stack = STACK if most < 0 else min(STACK, most)
    for name, value, hard in (("RLIMIT_CORE", 0, 0), ("RLIMIT_FSIZE", 0, 0), ("RLIMIT_NOFILE", 32, 32),
                              ("RLIMIT_AS", memory, memory), ("RLIMIT_STACK", stack, stack),
                              ("RLIMIT_CPU", job["cpu_seconds"], job["cpu_seconds"] + 1)):
        try:
            resource.setrlimit(getattr(resource, name), (value, hard))
        except (AttributeError, ValueError, OSError):
            pass


def _landlock(call, folders):
    """Nothing but `folders` is readable, nothing writable; from Linux 6.7 no TCP, from 6.12 no signal to another process."""
    create, add, restrict = 444, 445, 446
    version = call("syscall", create, None, 0, 1)
    rights = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    attributes = struct.pack("=QQQ", rights, 3, 3)[:24 if version >= 6 else 16 if version >= 4 else 8]
    rules = call("syscall", create, attributes, len(attributes), 0)
    for folder in folders:
        if os.path.isdir(folder):
            beneath = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            call("syscall", add, rules, 1, struct.pack("=Qi", 1 << 2 | 1 << 3, beneath), 0)   # read files, read folders
            os.close(beneath)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("syscall", restrict, rules, 0)
    os.close(rules)


def _chroot(library):
    """The folder around the standard library becomes the whole file system."""
    os.chroot(os.path.dirname(library))
    os.chdir("/")
    folder = "/" + os.path.basename(library)
    sys.path[:] = [folder, folder + "/lib-dynload"]
    sys.path_importer_cache.clear()


def _user(call):
    """Root becomes somebody else; whether nothing else belongs to him. With `call` it may still read the library,
    wherever that lies: one capability stays, which Landlock holds to its folders."""
    if os.geteuid() != 0:
        raise OSError("only root can become another user")
    if call:
        call("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    who = FIRST_USER + os.getpid()
    try:
        os.setgid(who)
    except OSError:   # a user namespace knows few users
        who = NOBODY
        os.setgid(who)
    os.setuid(who)
    if call:
        kept = 1 << CAP_DAC_READ_SEARCH
        call("capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", kept, kept, 0, 0, 0, 0))
    return who != NOBODY


def _seccomp(call):
    """The kernel refuses every system call but those of a computation: no new process, program, socket, file or signal."""
    program = filter_program(os.uname().machine, os.getpid())
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", PR_SET_SECCOMP, 2, struct.pack("@HP", len(program) // 8, call.address(program)), 0, 0)


def filter_program(machine, me):
    """The filter as a classic BPF program: struct sock_filter[], 8 bytes each."""
    if machine not in MACHINES or sys.maxsize < 2**32 or sys.byteorder != "little":
        raise OSError(f"no table of system calls for {machine}; there is one for {', '.join(MACHINES)}, 64 bit")
    column, architecture = MACHINES[machine]
    step = lambda code, value, true=0, false=0: struct.pack("=HBBI", code, true, false, value)
    load, equal, mask = 0x20, 0x15, 0x54
    allow, deny = step(0x06, 0x7FFF0000), step(0x06, 0x00050000 | EPERM)
    where = lambda argument: 16 + 8 * argument   # its low half

    def only(numbers, argument, values, bits=0xFFFFFFFF):
        """A call that is allowed where an argument, as far as `bits` show it, is one of `values`."""
        if numbers[column] < 0:
            return b""
        body = step(load, where(argument)) + step(mask, bits)
        body += b"".join(step(equal, value, 0, 1) + allow for value in values) + deny
        return step(equal, numbers[column], 0, len(body) // 8) + body

    return b"".join((
        step(load, 4), step(equal, architecture, 1, 0), deny, step(load, 0),
        *(step(equal, numbers[column], 0, 1) + allow for numbers in ALLOWED.values() if numbers[column] >= 0),
        only((257, 56), 2, (0,), READ_ONLY), only((2, -1), 1, (0,), READ_ONLY),     # openat, open
        only((56, 220), 0, (CLONE_THREAD,), CLONE_THREAD),     # clone: a thread, no process
        step(equal, CLONE3, 0, 1) + step(0x06, 0x00050000 | ENOSYS),     # libraries then use clone
        only((53, 199), 0, (1,)), only((44, 206), 5, (0,)),     # socketpair AF_UNIX; send, no address
        only((72, 25), 1, (0, 1, 2, 3, 4, 1030)),     # fcntl: duplicates and flags
        only((62, 129), 0, (me,)), only((234, 131), 0, (me,)), only((302, 261), 0, (0, me)),     # kill, tgkill, prlimit64
        deny))
