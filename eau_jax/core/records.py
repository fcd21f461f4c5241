"""The run folder: atomic files, append-only lines, one owner at a time.

    config.json  manifest.json  metrics.jsonl  episodes/<step>.jsonl  knobs/<generation>.json + current
    rules/<generation>.toml  audit.jsonl  checkpoints/  report.html

Whatever is killed at whatever moment leaves either the old file or the new one, and at most one torn last line, which
readers skip and the next writer removes. Secrets never come here.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Iterator

import numpy as np


class RunFolderError(ValueError):
    """The run folder cannot be used as asked."""


class RunFolder:
    """A run folder that this process may write. Use as a context manager; the lock is freed with the process."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._lock = None

    def __enter__(self) -> "RunFolder":
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "a+")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(f"{self.path} is in use by another process; wait for it, or choose another run name "
                                 f"with --name") from None
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be written: {error.strerror}; free space or choose another "
                                 f"place with --root") from error
        return self

    def __exit__(self, *_: Any) -> None:
        self._lock.close()

    def write(self, name: str, text: str) -> None:
        """Writes one file whole or not at all."""
        write_atomic(self.path / name, text)

    def append(self, name: str, record: dict) -> None:
        """Adds one JSON line and forces it to disk."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(plain(record), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def truncate_after(self, name: str, step: int) -> None:
        """Drops the lines of `name` whose "step" lies beyond `step`, and a torn last line: resuming rewrites them."""
        path = self.path / name
        if path.exists():
            kept = [line for line in read_lines(path) if line["step"] <= step]
            write_atomic(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in kept))


def write_atomic(path: Path, text: str) -> None:
    """Temporary file in the same folder, fsync, rename, fsync of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_lines(path: str | Path) -> Iterator[dict]:
    """The records of a JSON-lines file. A torn last line is skipped.

    Raises:
      RunFolderError: for a broken line that is not the last; it names file and line.
    """
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            raise RunFolderError(f"{path}, line {number}: not JSON ({error.msg}); mend or delete that line, or restore the "
                                 f"file from a copy") from None


def plain(value: Any) -> Any:
    """Numbers, strings, lists and dicts as JSON knows them; nan and infinities become None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray) or hasattr(value, "tolist"):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
