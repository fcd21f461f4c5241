"""A run on several processes, such as one for each host of a TPU slice: how they find each other, and how the first one,
which leads, tells the others what all of them do next.

The leader does what the only process of a run does: it plays the episodes, talks to servers and writes the run folder. What
runs on the devices of all processes has to be begun by each of them, in the same order. So the leader says what comes
(`tell`), with the host's values that it takes, and the others wait for it (`hear`). Words go through JAX's coordination
service, not over the devices: nobody's time runs out while the leader plays.
"""

import contextlib
import itertools
import json
import pickle
from typing import Any, Iterator

import jax
from jax._src.distributed import global_state   # the coordination service has no public interface

from eau_jax import meeting
from eau_jax.config import Config, ConfigError
from eau_jax.config_file import describe
from eau_jax.learner.parts import NonFiniteError

JOIN_S = 300         # seconds for all processes to come
SILENCE_S = 10**6    # a leader that is gone ends the others much sooner: JAX sees that its heartbeat stops
PIECE = 2**20        # bytes of one message
KEPT = 16            # orders that the service holds; all have heard the older ones, since every update waits for all
_numbers = itertools.count()


def join(count: int, wait_s: float = JOIN_S) -> None:
    """Waits until all `count` processes of the run are there. To be called before anything touches a device.

    Which one this is, and where the first one is, JAX finds out by itself on TPU slices, under Slurm and under Open MPI.
    Elsewhere the environment says it: JAX_COORDINATOR_ADDRESS=HOST:PORT and JAX_PROCESS_ID, from 0.

    Raises:
      ConfigError: for a wrong count, number or address; when the leader cannot be reached, or not all of them come.
    """
    if count < 1:
        raise ConfigError(f"processes = {count}; give how many processes train together, 1 for this one alone")
    address, number = meeting.place(count)
    if count == 1:
        return
    if address:
        meeting.meet(address, number, count, wait_s)   # JAX itself would end the process where somebody is missing
    try:
        jax.distributed.initialize(address or None, count if address else None, number, initialization_timeout=int(wait_s))
    except ValueError as error:
        raise ConfigError(f"processes = {count}, but nothing says which of them this one is ({error}); set "
                          f"{meeting.ADDRESS}=HOST:PORT of the first one and {meeting.NUMBER}=0 to {count - 1}") from None
    if global_state.num_processes != count:
        raise ConfigError(f"processes = {count}, but JAX finds {global_state.num_processes}; give that number")


def leads() -> bool:
    """Whether this is the leader, or the only one."""
    return jax.process_index() == 0


def tell(name: str, *values: Any) -> None:
    """What all processes do next, and with what: numpy arrays and plain data. By the only process, or one that does not
    lead, nothing."""
    if jax.process_count() == 1 or not leads():
        return
    number = next(_numbers)
    _put(f"order/{number}", pickle.dumps((name, values)))
    if number >= KEPT:
        global_state.client.key_value_delete(f"eau/order/{number - KEPT}")


def hear() -> tuple[str, tuple[Any, ...]]:
    """Waits for what the leader tells next."""
    return pickle.loads(_get(f"order/{next(_numbers)}"))


def agree(problem: str = "") -> None:
    """Waits for all processes, and goes on where none of them has a problem. All must call it.

    Raises:
      ConfigError: in every process, with what the first of those that have one says.
    """
    if jax.process_count() == 1:
        if problem:
            raise ConfigError(problem)
        return
    number = next(_numbers)
    _put(f"agree/{number}/{jax.process_index()}", problem.encode())
    for other in range(jax.process_count()):
        said = _get(f"agree/{number}/{other}").decode()
        if said:
            raise ConfigError(f"process {other} of {jax.process_count()}: {said}")


@contextlib.contextmanager
def leading(config: Config) -> Iterator[None]:
    """What the leader does, however it ends: the others are told, and end with the same exit status.

    Raises:
      ConfigError: where another process was started with another config.
    """
    if jax.process_count() > 1:
        tell("config", plain_config(config))
        agree()
    try:
        yield
    except SystemExit as stop:
        tell("end", stop.code, "")
        raise
    except BaseException as error:
        status = 3 if isinstance(error, NonFiniteError) else 130 if isinstance(error, KeyboardInterrupt) else 2
        tell("end", status, f"{type(error).__name__}: {error}")
        raise
    tell("end", 0, "")


def plain_config(config: Config) -> dict[str, Any]:
    """What processes compare of their configs."""
    return json.loads(json.dumps(describe(config), default=str))


def _put(key: str, value: bytes) -> None:
    pieces = [value[at:at + PIECE] for at in range(0, len(value), PIECE)]
    for number, piece in enumerate(pieces):
        global_state.client.key_value_set_bytes(f"eau/{key}/{number}", piece)
    global_state.client.key_value_set_bytes(f"eau/{key}/count", str(len(pieces)).encode())


def _get(key: str) -> bytes:
    wait_ms = 1000 * SILENCE_S
    get = global_state.client.blocking_key_value_get_bytes
    return b"".join(get(f"eau/{key}/{number}", wait_ms) for number in range(int(get(f"eau/{key}/count", wait_ms))))
