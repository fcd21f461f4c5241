"""G4: gold plans carried out by another process, whose hashes are salted differently. What differs there was never
determined.

    python -m eau_jax.synth.replay WHERE      reads {"record": ..., "plan": ...} lines, writes {"digest": ...} lines
"""

import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Mapping, Sequence

from eau_jax.core.types import InfraError
from eau_jax.synth.domain import Domain, Step
from eau_jax.synth.record import canonical

SALT = "271828"          # of the other process's hashes


def load_domain(where: str) -> Domain:
    """The domain at "package.module:NAME" or "FILE.py:NAME".

    Raises:
      ValueError: where there is none.
    """
    place, _, name = where.rpartition(":")
    try:
        if place.endswith(".py"):
            found = importlib.util.spec_from_file_location(f"domain_{Path(place).stem}", place)
            module = importlib.util.module_from_spec(found)
            sys.modules[found.name] = module        # where dataclasses and fingerprints look
            found.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        domain = getattr(module, name)
    except (ImportError, AttributeError, OSError, ValueError) as error:
        raise ValueError(f"no domain at {where!r} ({error}); give package.module:NAME or FILE.py:NAME") from None
    if not isinstance(domain, Domain):
        raise ValueError(f"{where!r} is no Domain; give package.module:NAME or FILE.py:NAME of one")
    return domain


class Replayer:
    """The other process. Use as a context manager."""

    def __init__(self, domain: Domain):
        self._where = domain.where

    def __enter__(self) -> "Replayer":
        environment = {**os.environ, "PYTHONHASHSEED": SALT, "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen([sys.executable, "-m", "eau_jax.synth.replay", self._where], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(OSError):      # where it has ended before, what was asked last is still to be written
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def digest(self, record: Mapping[str, Any], plan: Sequence[Step]) -> str:
        """The digest of the last state.

        Raises:
          InfraError: when the process is gone.
        """
        try:
            self._process.stdin.write(canonical({"record": record, "plan": [list(step) for step in plan]}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError as error:
            raise InfraError(f"the process that carries plans out again is gone: {error}") from error
        if not line:
            raise InfraError("the process that carries plans out again has ended")
        return json.loads(line)["digest"]


def replayed(domain: Domain, record: Mapping[str, Any], plan: Sequence[Sequence[Any]]) -> str:
    """The digest of the last state of a plan."""
    case = domain.case(record)
    state = case.start
    for step in plan:
        state = case.call(state, Step(*step)).state
    return case.digest(state)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr        # a domain may print
    domain = load_domain(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        print(canonical({"digest": replayed(domain, asked["record"], asked["plan"])}), file=answers, flush=True)


if __name__ == "__main__":
    main()
