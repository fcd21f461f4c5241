"""Weights that a server reads from files: one Hugging Face folder for each push, whole or not at all, the last two kept."""

import dataclasses
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from eau_jax.core.types import InfraError
from eau_jax.models import hf, lora
from eau_jax.models.config import ModelConfig
from eau_jax.models.transformer import parameters

KEPT = 2                     # a server may still read the one before the last
MEMORY = Path("/dev/shm")    # files there are shared memory
PREFIX = "eau-jax-weights-"


class WeightStore:
    """Folders with the weights of pushes, in the dtype that the model computes in.

    Args:
      parent: folder that they are made below; empty: shared memory where three of them fit, else the temporary folder.
    """

    def __init__(self, config: ModelConfig, parent: str = ""):
        # What the server computes with. Adapters are merged: it knows nothing of them.
        self._config = dataclasses.replace(config, param_dtype=config.compute_dtype, lora=None)
        self._source, self._parent = config, parent
        self._home: Path | None = None
        self._lock: Any = None
        self._written: list[Path] = []

    def write(self, params: Any, label: str) -> Path:
        """The folder with `params` (of this store's model, adapters included); those before the last two are removed.

        Raises:
          InfraError: when the disk or the memory does not take them.
        """
        whole = lora.merge(self._source, params)
        unfinished = None
        try:
            folder = self._folder() / label
            unfinished = folder.with_name(f".{label}.unfinished")
            for old in self._written[:-(KEPT - 1)]:
                shutil.rmtree(old, ignore_errors=True)
            self._written = self._written[-(KEPT - 1):]
            hf.save(unfinished, self._config, whole)
            os.replace(unfinished, folder)
        except OSError as error:
            if unfinished is not None:
                shutil.rmtree(unfinished, ignore_errors=True)
            where = str(self._home or self._parent or tempfile.gettempdir())
            raise InfraError(f"the weights could not be written below {where!r}: {error}; name another folder with "
                             "SGLang(weights=...)") from error
        self._written.append(folder)
        return folder

    def clear(self) -> None:
        """Removes everything that was written."""
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._lock.close()
        self._home, self._written = None, []

    def _folder(self) -> Path:
        """A folder of our own; what a process that was killed has left beside it is removed."""
        if self._home is None:
            parent = Path(self._parent) if self._parent else self._roomy()
            parent.mkdir(parents=True, exist_ok=True)
            for left in parent.glob(f"{PREFIX}*"):
                _remove_if_left(left)
            self._home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)).absolute()
            if self._parent:
                self._home.chmod(0o755)   # servers of another user may read it
            self._lock = open(self._home / "lock", "w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            weakref.finalize(self, shutil.rmtree, self._home, ignore_errors=True)   # at the latest when the process ends
        return self._home

    def _roomy(self) -> Path:
        size = sum(np.prod(param.shape) for param in parameters(self._config).values())
        size *= 2 if self._config.param_dtype == "bfloat16" else 4
        roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > (KEPT + 1) * size
        return MEMORY if roomy else Path(tempfile.gettempdir())


def _remove_if_left(folder: Path) -> None:
    """Removes a folder whose owner does not hold its lock any more."""
    try:
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass   # it is in use, not ours, or being made
