"""How the processes of a run meet before JAX connects them: each says who it is to the first one, and hears whether all are
there. JAX itself ends a process without a word where somebody is missing.
"""

import errno
import os
import socket
import time

from eau_jax.config import ConfigError

ADDRESS, COUNT, NUMBER = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
WELCOME = "all are there"
LINE = 1000   # bytes of what is said, at most


def place(count: int) -> tuple[str, int | None]:
    """The address of the first process and this one's number, as the environment says; "" and None where it does not.

    Raises:
      ConfigError: where it says what cannot be.
    """
    address, number, said = (os.environ.get(name, "") for name in (ADDRESS, NUMBER, COUNT))
    if said and said != str(count):
        raise ConfigError(f"processes = {count}, but {COUNT}={said}; give one number, the same to every process")
    if number and not (number.isdecimal() and int(number) < count):
        raise ConfigError(f"{NUMBER}={number}; allowed: 0 to {count - 1} (processes = {count}), each once")
    host, _, port = address.rpartition(":")
    if address and not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f"{ADDRESS}={address}; give HOST:PORT of the first process, such as 10.0.0.2:8476")
    if bool(address) != bool(number) and count > 1:
        given, missing = (ADDRESS, NUMBER) if address else (NUMBER, ADDRESS)
        raise ConfigError(f"{given} is set and {missing} is not; set both, or none where JAX finds the others by itself")
    return address, int(number) if number else None


def meet(address: str, number: int, count: int, wait_s: float) -> None:
    """Returns in each process when all `count` are there.

    Raises:
      ConfigError: when not all come within `wait_s` seconds, or two have one number, or another count.
    """
    end = time.monotonic() + wait_s
    host, _, port = address.rpartition(":")
    if number:
        _come(host.strip("[]"), int(port), number, count, end, wait_s)
    else:
        _receive(int(port), count, end, wait_s)


def _receive(port: int, count: int, end: float, wait_s: float) -> None:
    """What the first process does."""
    came: dict[int, socket.socket] = {}
    problem = ""
    try:
        with socket.create_server(("", port)) as door:
            while len(came) < count - 1 and not problem:
                door.settimeout(max(end - time.monotonic(), 0.01))
                try:
                    guest, _ = door.accept()
                except TimeoutError:
                    missing = ", ".join(str(other) for other in range(1, count) if other not in came)
                    problem = (f"of {count} processes, number {missing} did not come within {wait_s:g} s; start each with "
                               f"--processes {count} and a {NUMBER} of its own")
                    continue
                guest.settimeout(5.0)
                other, problem = _introduced(guest, count, came)
                if other is None:
                    guest.close()
                else:
                    came[other] = guest
            for guest in came.values():
                guest.sendall(f"{problem or WELCOME}\n".encode())
    except OSError as error:
        why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ConfigError(f"the first process cannot receive the others on port {port} of {ADDRESS}: {why}; choose another "
                          f"port, the same for every process") from None
    finally:
        for guest in came.values():
            guest.close()
    if problem:
        raise ConfigError(problem)


def _introduced(guest: socket.socket, count: int, came: dict[int, socket.socket]) -> tuple[int | None, str]:
    """The number of a process that has come, None for something else; and what is wrong with it."""
    try:
        name, *numbers = guest.makefile("r").readline(LINE).split()
        other, theirs = map(int, numbers)
    except (OSError, ValueError):
        return None, ""
    if name != "eau_jax" or other < 1:
        return None, ""
    problem = ""
    if theirs != count:
        problem = (f"process {other} was started with --processes {theirs}, and process 0 with {count}; give each the same "
                   f"number")
    elif other in came:
        problem = f"two processes have {NUMBER}={other}; give each a number of its own, 0 to {count - 1}"
    if problem:
        guest.sendall(f"{problem}\n".encode())
    return None if problem else other, problem


def _come(host: str, port: int, number: int, count: int, end: float, wait_s: float) -> None:
    """What another process does. It tries again until the first one is there."""
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(end - time.monotonic(), 0.1)) as line:
                line.sendall(f"eau_jax {number} {count}\n".encode())
                line.settimeout(max(end - time.monotonic(), 0.1) + 5.0)   # the first one says what is wrong
                said = line.makefile("r").readline(LINE).strip()
                if said == WELCOME:
                    return
                if said:
                    raise ConfigError(said)
                problem = "it broke the connection off"
        except OSError as error:
            problem = error.strerror or str(error)
        if time.monotonic() >= end:
            raise ConfigError(f"process {number} did not meet the first one at {ADDRESS}={host}:{port} within {wait_s:g} s "
                              f"({problem}); start the process with {NUMBER}=0 on that host, and let its port through")
        time.sleep(min(0.5, wait_s))
