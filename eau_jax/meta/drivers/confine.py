"""Runs a command that sees and writes only what it is given. A script that `process.py` starts; it knows no other file.

    python confine.py '{"read": [...], "write": [...], "user": [uid, gid] or null, "ports": [443] or null,
                       "landlock": true}' COMMAND...

Landlock (Linux 5.13 or newer) needs no rights: files outside the folders cannot be opened; from Linux 6.7 TCP connections
go to `ports` only, from 6.12 no signal reaches another process. A process of root becomes another user; under Landlock it
keeps the right to read files wherever they lie, so that an interpreter in somebody's home can run. What cannot be had is
an error: exit status 126.
"""

import json
import os
import resource
import signal
import struct
import subprocess
import sys

FAILED = 126
LARGEST_FILE = 64 * 2**20
PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 1, 8, 38, 47, 2
CAP_DAC_READ_SEARCH = 2
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL = (1 << bit for bit in (0, 1, 2, 3, 14, 15))


def main():
    job, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        for name, value in (("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", LARGEST_FILE)):
            resource.setrlimit(getattr(resource, name), (value, value))
        call = _native() if job["landlock"] else None
        if call:
            _landlock(call, job["read"], job["write"], job["ports"])
        if job["user"]:
            _become(call, *job["user"])
        # A child of ours, since this process may be the first of its namespace, which no default signal reaches.
        process = subprocess.Popen(command)
    except (OSError, ValueError) as error:
        print(f"confine: {error}", file=sys.stderr)
        sys.exit(FAILED)
    code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)


def _native():
    import ctypes
    library = ctypes.CDLL(None, use_errno=True)

    def call(name, *arguments):
        result = getattr(library, name)(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
        if result < 0:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
        return result
    return call


def _landlock(call, read, write, ports):
    create, add, restrict = 444, 445, 446
    version = call("syscall", create, None, 0, 1)
    every = (1 << 13) - 1 | (version >= 2) << 13 | (TRUNCATE if version >= 3 else 0) | (IOCTL if version >= 5 else 0)
    net = 2 if ports is not None and version >= 4 else 0      # connect
    attributes = struct.pack("=QQQ", every, net, 3)[:24 if version >= 6 else 16 if version >= 4 else 8]
    rules = call("syscall", create, attributes, len(attributes), 0)
    for path, rights in [*((path, EXECUTE | READ_FILE | READ_DIR) for path in read), *((path, every) for path in write)]:
        if not os.path.exists(path):
            continue
        if not os.path.isdir(path):
            rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
        call("syscall", add, rules, 1, struct.pack("=Qi", rights & every, beneath), 0)
        os.close(beneath)
    for port in ports if net else ():
        call("syscall", add, rules, 2, struct.pack("=QQ", net, port), 0)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("syscall", restrict, rules, 0)
    os.close(rules)


def _become(call, uid, gid):
    if call:
        call("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    if call:
        kept = 1 << CAP_DAC_READ_SEARCH
        call("capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", kept, kept, kept, 0, 0, 0))
        call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0)
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
